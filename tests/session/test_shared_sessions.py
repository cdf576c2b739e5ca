"""A session that several threads use: looking at it changes nothing, and no accepted change is lost.

Threads switch where they like. Some of these tests decide that themselves.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import RepositoryConfig
from icefloe.blocking import iterate_blocking
from icefloe.manifests import edits as edits_module
from icefloe.manifests.edits import EditBuffer
from icefloe.model.chunk_table import ChunkKind, ChunkRef

LOOKS: dict[str, Callable[[icefloe.Session], Any]] = {
    "status": lambda session: session.status().chunk_coords.get("/a", np.empty((0, 1)))[:, 0].tolist(),
    "coordinates": lambda session: [c for (c,) in iterate_blocking(session.chunk_coordinates("/a"))],
    "columns": lambda session: [
        int(c) for batch in iterate_blocking(session.store.array_chunk_iterator("a")) for c in batch[0][:, 0]
    ],
    "keys": lambda session: [
        int(key.rpartition("/")[2]) for key in iterate_blocking(session.store.list_prefix("a/c/"))
    ],
    "fork": lambda session: [c for (c,) in iterate_blocking(session.fork().chunk_coordinates("/a"))],
}


@pytest.mark.parametrize("kind", ["inline", "packed"])
@pytest.mark.parametrize("look", LOOKS)
def test_a_look_from_another_thread_shows_what_was_written_and_loses_nothing(
    look: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edits_module, "FOLD_AT", 8)
    chunks, size = 400, {"inline": 1, "packed": 32}[kind]
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), RepositoryConfig(inline_chunk_threshold_bytes=64))
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(chunks * size,), chunks=(size,), dtype="i4", compressors=None
    )
    rng, written, model = random.Random(look), [0], np.zeros(chunks, dtype="i4")
    order = rng.sample(range(chunks), chunks)
    problems: list[str] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            before = written[0]
            seen = LOOKS[look](session)
            after = written[0] + 1
            if len(set(seen)) != len(seen) or not set(order[:before]) <= set(seen) <= set(order[:after]):
                problems.append(f"{before} to {after} were written, {sorted(seen)} seen")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for number, chunk in enumerate(order):
            model[chunk] = number + 1
            array[chunk * size : (chunk + 1) * size] = number + 1
            written[0] = number + 1
            again = order[rng.randrange(number + 1)]
            model[again] = -number - 1
            array[again * size : (again + 1) * size] = -number - 1
    finally:
        done.set()
        watcher.join()
        sys.setswitchinterval(interval)
    assert not problems
    session.commit("all")
    committed = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:]
    assert committed.reshape(chunks, size)[:, 0].tolist() == model.tolist()


@given(st.lists(st.tuples(st.sampled_from("sstfdc"), st.integers(0, 40), st.integers(0, 9)), max_size=60))
def test_edits_say_the_same_at_every_moment_of_a_change_of_their_form(steps: list[tuple[str, int, int]]) -> None:
    """Whenever tables are built or joined, a copy taken by somebody else says what was said before."""
    buffer, model = EditBuffer(1), {}
    looking = False
    before = {"rows": edits_module.table_from_rows, "overlay": edits_module.overlay}

    def look() -> None:
        nonlocal looking
        if not looking:
            looking = True
            copied = buffer.copy()
            assert {c: copied.find((c,)) for c in model} == model
            assert len(copied) == len(model)
            looking = False

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            look()
            return function(*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edits_module, "FOLD_AT", 4)
        patch.setattr(edits_module, "table_from_rows", watched(before["rows"]))
        patch.setattr(edits_module, "overlay", watched(before["overlay"]))
        for step, at, value in steps:
            ref = ChunkRef(ChunkKind.INLINE, 0, 1, data=bytes([value]))
            if step == "s":
                # The new edit is there before others are brought together with it.
                model[at] = ref
                buffer.set((at,), ref)
            elif step == "t":
                buffer.to_table()
            elif step == "f":
                buffer.find_many(np.array([[at]], dtype=np.uint32), np.array([0]))
            elif step == "d":
                model[at] = ChunkRef(ChunkKind.DELETED, 0, 0)
                buffer.delete((at,))
            else:
                buffer = buffer.copy()
            look()
