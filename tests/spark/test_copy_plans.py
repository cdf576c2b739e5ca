"""Copies over random chunk grids equal what numpy selects. The tasks of a plan run in this process, without Spark."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe import Repository, Session
from icefloe.blocking import run_blocking
from icefloe.errors import UnsupportedError
from icefloe.model.zarr_document import ChunkLengths, grid_document, parse_grid

pytest.importorskip("pyspark")
from icefloe.spark.copy import CopyPlan, CopySelection, _CopyWork, _create, plan_copy
from icefloe.spark.export import _write_documents, _ZarrWork

RECTILINEAR = "rectilinear_chunks" in zarr.config.get("array")
needs_grids = pytest.mark.skipif(not RECTILINEAR, reason="this zarr has regular grids only")
DIMS = ("time", "y")


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with zarr.config.set({"array.rectilinear_chunks": True} if RECTILINEAR else {}):
        yield


@st.composite
def lengths_along(draw: st.DrawFn) -> tuple[int, Any]:
    """The length of a dimension, and its chunks. Half of the grids are regular."""
    if not RECTILINEAR or draw(st.booleans()):
        return draw(st.integers(1, 12)), draw(st.integers(1, 6))
    each = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    # An array that was made smaller ends within a chunk.
    return draw(st.integers(1, sum(each))), each


def _source(shape: tuple[int, ...], chunks: Any, shards: bool, generation: str) -> tuple[Repository, Any]:
    repository = Repository.create(icefloe.in_memory_storage(), spec_version=generation)
    session = repository.writable_session("main")
    options: dict[str, Any] = {"chunks": (1,) * len(shape), "shards": chunks} if shards else {"chunks": chunks}
    if not all(isinstance(each, int) for each in chunks):
        # Zarr wants lengths that end at the last cell, and keeps them if the array becomes smaller.
        lengths = [
            [each] * -(-n // each) if isinstance(each, int) else each for n, each in zip(shape, chunks, strict=True)
        ]
        options["shards" if shards else "chunks"] = lengths
        array = zarr.create_array(
            session.store, name="t", shape=tuple(map(sum, lengths)), dtype="i4", dimension_names=DIMS, **options
        )
        array.resize(shape)
    else:
        array = zarr.create_array(session.store, name="t", shape=shape, dtype="i4", dimension_names=DIMS, **options)
    values = np.arange(1, np.prod(shape) + 1, dtype="i4").reshape(shape)
    array[:] = values
    session.commit("values")
    return repository, values


def _run(plan: CopyPlan, source: Session, target: Repository) -> None:
    session = target.writable_session("main")
    _create(session, plan, overwrite=False)
    fork = session.fork()
    # A chunk belongs to one task, so all tasks can share a fork.
    for task in plan.tasks:
        _CopyWork(source)(lambda: fork, task)
    session.merge(fork)
    session.commit("copy")


def _bodies(session: Session, path: str) -> dict[tuple[int, ...], bytes]:
    node = session.state.tree.array(path)
    coords = run_blocking(session.state.chunk_table(node)).coords.tolist()
    return {tuple(each): bytes(run_blocking(session.state.fetch_chunk(node, tuple(each))) or b"") for each in coords}


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_copy_has_the_cells_that_numpy_selects_and_keeps_whole_chunks(data: st.DataObject) -> None:
    axes = [data.draw(lengths_along()) for _ in DIMS]
    shape, chunks = tuple(n for n, _ in axes), [each for _, each in axes]
    shards = data.draw(st.booleans())
    repository, values = _source(shape, chunks, shards, data.draw(st.sampled_from(["repository", "icechunk2"])))
    region, asked = {}, {}
    for dim, n in zip(DIMS, shape, strict=True):
        if data.draw(st.booleans()):
            first = data.draw(st.integers(0, n - 1))
            region[dim] = (first, data.draw(st.integers(first + 1, n)))
        if data.draw(st.integers(0, 3)) == 0:
            asked[dim] = data.draw(st.sampled_from([-1, 1, 2, 3, 5]))
    source = repository.readonly_session("main")
    plan = plan_copy(
        source, CopySelection(region=region or None, chunks=asked or None), "", data.draw(st.integers(1, 200))
    )
    where = tuple(slice(*region.get(dim, (0, n))) for dim, n in zip(DIMS, shape, strict=True))
    expected = values[where]
    target = Repository.create(icefloe.in_memory_storage())
    _run(plan, source, target)
    copied = target.readonly_session("main")
    np.testing.assert_array_equal(zarr.open_array(copied.store, path="t", mode="r")[:], expected)
    [array] = plan.arrays
    # Every chunk is in one task.
    covered = [c for task in plan.tasks for c in itertools.product(*(range(a, b) for a, b in task.box))]
    assert sorted(covered) == sorted(itertools.product(*map(range, array.grid)))
    # Chunks that are copied without decoding have the bytes of the source.
    old, new = _bodies(source, "/t"), _bodies(copied, "/t")
    for coords, body in new.items():
        if array.keeps(tuple((c, c + 1) for c in coords)):
            assert old[tuple(c + s for c, s in zip(coords, array.shift, strict=True))] == body
    # A grid without new lengths keeps the bounds between chunks where it varies.
    grid = parse_grid(json.loads(array.document))
    before = parse_grid(json.loads(source.state.tree.array("/t").document))
    for axis, dim in enumerate(DIMS):
        if dim not in asked and not before[axis].is_regular:
            kept = set((before[axis].starts(shape[axis])[1:] - where[axis].start).tolist())
            size = expected.shape[axis]
            assert set(grid[axis].starts(size)[1:].tolist()) == {each for each in kept if 0 < each < size}
    if not region and not asked:
        assert array.as_stored and array.document == source.state.tree.array("/t").document
    # An export is the same, as plain Zarr.
    storage = icefloe.in_memory_storage()
    for task in plan.tasks:
        _ZarrWork(source, storage)(task)
    _write_documents(storage, plan)
    names = [name for name, _ in storage.list_objects()]
    plain = {name: zarr.core.buffer.cpu.Buffer.from_bytes(run_blocking(storage.get(name))) for name in names}
    np.testing.assert_array_equal(zarr.open_group(plain, mode="r")["t"][:], expected)
    assert plain["t/zarr.json"].to_bytes() == array.document


@needs_grids
def test_only_the_chunks_that_a_region_cuts_are_decoded() -> None:
    repository, _ = _source((90, 4), [[31, 28, 31], [4]], False, "repository")
    session = repository.readonly_session("main")
    [array] = plan_copy(session, CopySelection(region={"time": (31, 90)}), "", 1).arrays
    assert array.as_stored and [each.each for each in array.chunks] == [(28, 31), (4,)]
    plan = plan_copy(session, CopySelection(region={"time": (10, 80)}), "", 1)
    assert [each.each for each in plan.arrays[0].chunks] == [(21, 28, 21), (4,)]
    assert [task.as_stored for task in plan.tasks] == [False, True, False]


def test_a_grid_that_zarr_does_not_use_is_copied_only_without_decoding() -> None:
    with zarr.config.set({"array.rectilinear_chunks": False} if RECTILINEAR else {}):
        repository = Repository.create(icefloe.in_memory_storage())
        session = repository.writable_session("main")
        array = zarr.create_array(session.store, name="t", shape=(6,), chunks=(6,), dtype="i4", dimension_names=["x"])
        array[:] = range(6)
        document = {
            **json.loads(session.state.tree.array("/t").document),
            "chunk_grid": grid_document([ChunkLengths((6, 2))]),
        }
        body = zarr.core.buffer.cpu.Buffer.from_bytes(json.dumps(document).encode())
        run_blocking(session.store.set("t/zarr.json", body))
        session.commit("a variable grid")
        source, target = repository.readonly_session("main"), Repository.create(icefloe.in_memory_storage())
        plan = plan_copy(source, CopySelection(), "", 1)
        _run(plan, source, target)
        assert _bodies(target.readonly_session("main"), "/t") == _bodies(source, "/t")
        with pytest.raises(UnsupportedError, match="/t has the chunk grid 'rectilinear', which zarr does not use here"):
            plan_copy(source, CopySelection(region={"x": (1, 5)}), "", 1)
