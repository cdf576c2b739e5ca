"""Every cell that is not what it was is in a block that the stream of changes reads."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.tables.grids import find_grid
from icefloe.tables.metadata_tables import changed_blocks

GENERATIONS = ["repository", "dataset", "store", "icechunk1", "icechunk2"]


def _resize(group: zarr.Group, length: int) -> None:
    group["v"].resize((length, 5))
    known = group["t"].shape[0]
    group["t"].resize((length,))
    if length > known:
        group["t"][known:] = np.arange(known, length)


def _recreate(group: zarr.Group, chunks: tuple[int, int]) -> None:
    length = group["v"].shape[0]
    del group["v"]
    made = group.create_array(
        "v", shape=(length, 5), chunks=chunks, dtype="f8", dimension_names=("t", "x"), fill_value=np.nan
    )
    made[: length // 2] = 8.0


def _step(group: zarr.Group, rng: random.Random) -> None:
    length = group["v"].shape[0]
    match rng.randrange(6):
        case 0:
            group["v"][rng.randrange(length), rng.randrange(5)] = rng.random()
        case 1:
            _resize(group, length + rng.randrange(1, 4))
        case 2:
            _resize(group, max(2, length - rng.randrange(1, 4)))
        case 3:
            group["x"][rng.randrange(5)] = rng.randrange(10**6)
        case 4:
            _recreate(group, (rng.randrange(1, 4), rng.randrange(1, 6)))
        case 5:
            group["v"][rng.randrange(length)] = np.nan


def _cells(session: Any) -> dict[tuple[int, int], float]:
    group = zarr.open_group(session.store, mode="r")
    values, times, xs = (np.asarray(group[name][...]) for name in ("v", "t", "x"))
    return {(int(t), int(x)): float(values[i, j]) for i, t in enumerate(times) for j, x in enumerate(xs)}


def _emitted(repository: icefloe.Repository, before: str) -> tuple[dict[tuple[int, int], float], str]:
    session = repository.readonly_session("main")
    grid = find_grid(session, "/", ["v"])
    change = changed_blocks(repository, grid, before, session)
    group = zarr.open_group(session.store, mode="r")
    values, times, xs = (np.asarray(group[name][...]) for name in ("v", "t", "x"))
    found = {}
    blocks = change.selection.blocks
    for at in blocks.part(0, len(blocks)).coordinates().tolist():
        edges = zip(at, grid.block, grid.shape, strict=True)
        box = tuple(slice(each.start(c), min(each.start(c + 1), n)) for c, each, n in edges)
        for i in range(box[0].start, box[0].stop):
            for j in range(box[1].start, box[1].stop):
                found[int(times[i]), int(xs[j])] = float(values[i, j])
    return found, change.removed


def _commit(repository: icefloe.Repository, change: Callable[[zarr.Group], None]) -> None:
    session = repository.writable_session("main")
    change(zarr.open_group(session.store))
    if session.has_uncommitted_changes:
        session.commit("a step")


@pytest.fixture(params=GENERATIONS)
def repository(request: pytest.FixtureRequest) -> icefloe.Repository:
    made = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=request.param)
    with made.transaction("main", message="start") as store:
        group = zarr.create_group(store)
        group.create_array("v", shape=(6, 5), chunks=(2, 2), dtype="f8", dimension_names=("t", "x"), fill_value=np.nan)
        group["v"][:] = np.arange(30.0).reshape(6, 5)
        group.create_array("t", data=np.arange(6), chunks=(2,), dimension_names=("t",))
        group.create_array("x", data=np.arange(5) * 1000, dimension_names=("x",))
    return made


@pytest.mark.every_generation
@pytest.mark.parametrize("seed", range(4))
def test_whoever_applies_the_changes_has_what_is_there(repository: icefloe.Repository, seed: int) -> None:
    rng = random.Random(seed)
    state = _cells(repository.readonly_session("main"))
    for _ in range(8):
        before = repository.lookup_branch("main")
        for _ in range(rng.randrange(1, 4)):
            _commit(repository, lambda group: _step(group, rng))
        emitted, removed = _emitted(repository, before)
        state.update(emitted)
        now = _cells(repository.readonly_session("main"))
        gone = set(state) - set(now)
        assert {key: state[key] for key in now} == pytest.approx(now, nan_ok=True)
        assert removed or not gone, f"{len(gone)} cells vanished without a word"
        state = {key: value for key, value in state.items() if key in now}


def test_a_change_elsewhere_emits_nothing(repository: icefloe.Repository) -> None:
    before = repository.lookup_branch("main")
    _commit(repository, lambda group: group.create_array("other", data=np.arange(3)) and None)
    assert _emitted(repository, before) == ({}, "")
    before = repository.lookup_branch("main")
    _commit(repository, lambda group: group["v"].__setitem__((0, 0), 5.0))
    assert set(_emitted(repository, before)[0]) == {(0, 0), (0, 1000), (1, 0), (1, 1000)}
