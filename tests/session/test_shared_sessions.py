"""A session that several threads use: looking at it changes nothing, and no accepted change is lost.

Threads switch where they like. Most of these tests decide that themselves: another thread comes exactly when a request
of a running verb is on its way, at each of its requests in turn, or in the middle of a change of the edits.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import ConflictDetector, RepositoryConfig, SpecVersion
from icefloe.blocking import iterate_blocking
from icefloe.model.chunk_table import ChunkKind, ChunkRef
from icefloe.session import change_set as edits_module
from icefloe.session.change_set import EditBuffer
from icefloe.storage.contract import Storage
from icefloe.storage.wrappers import Operation, WrappedStorage

GENERATIONS = [version.value for version in SpecVersion]
CELLS = 6
SIZES = {"inline": 4, "packed": 1000, "large": 300_000}
"""Elements of a chunk, by where its bytes go."""


class Interrupted(WrappedStorage):
    """Lets another thread do something while the n-th request is on its way."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.wait_for: int | None = None
        self.action: Callable[[], None] = lambda: None

    def _rewrap(self, inner: Storage) -> Storage:
        return Interrupted(inner)

    async def _forward(self, op: Operation, call: Callable[[], Awaitable[Any]]) -> Any:
        if self.wait_for == 0:
            self.wait_for = None
            await asyncio.to_thread(self.action)
        elif self.wait_for is not None:
            self.wait_for -= 1
        return await call()


def make(generation: str, size: int) -> tuple[icefloe.Repository, Interrupted]:
    storage = Interrupted(icefloe.in_memory_storage())
    repo = icefloe.Repository.create(
        storage, RepositoryConfig(inline_chunk_threshold_bytes=64), spec_version=generation
    )
    with repo.transaction("main", message="start") as store:
        root = zarr.create_group(store)
        root.create_array("a", shape=(CELLS * size,), chunks=(size,), dtype="i4", compressors=None)
        root.create_array("gone", shape=(4,), chunks=(2,), dtype="i4")[:] = 3
    return repo, storage


def cells(store: Any, size: int) -> list[int]:
    values = zarr.open_array(store, path="a", mode="r")[:].reshape(CELLS, size)
    assert (values == values[:, :1]).all(), "part of a chunk"
    return [int(value) for value in values[:, 0]]


def write_cell(session: icefloe.Session, size: int, cell: int, value: int) -> None:
    zarr.open_array(session.store, path="a")[cell * size : (cell + 1) * size] = value


def others_commit(repo: icefloe.Repository) -> None:
    with repo.transaction("main", message="theirs") as store:
        zarr.create_group(store, path="theirs", overwrite=True)


VERBS: dict[str, Callable[[icefloe.Session], Any]] = {
    "commit": lambda session: session.commit("x"),
    "commit and rebase": lambda session: session.commit("x", rebase_with=ConflictDetector()),
    "amend": lambda session: session.amend("x"),
    "flush": lambda session: session.flush("x"),
    "rebase": lambda session: session.rebase(ConflictDetector()),
    "shift": lambda session: session.shift_array("/a", (0,)),
}
ACTIONS: dict[str, Callable[[icefloe.Session], Any]] = {
    "delete": lambda session: zarr.open_group(session.store).__delitem__("gone"),
    "attribute": lambda session: zarr.open_array(session.store, path="a").attrs.__setitem__("changed", 1),
    "move": lambda session: session.move("/gone", "/moved"),
    "create": lambda session: zarr.create_group(session.store, path="made"),
    "discard": lambda session: session.discard_changes(),
}


def effects(session: icefloe.Session) -> dict[str, bool]:
    store = session.store
    root = zarr.open_group(store, mode="r")
    return {
        "delete": "gone" not in root and "moved" not in root,
        "attribute": zarr.open_array(store, path="a", mode="r").attrs.get("changed") == 1,
        "move": "moved" in root,
        "create": "made" in root,
        "discard": int(zarr.open_array(store, path="a", mode="r")[0]) == 0,
    }


@contextmanager
def at_each_request(
    generation: str, size: int, verb: str, action: Callable[[icefloe.Session], Any]
) -> Iterator[Iterator[tuple[icefloe.Repository, icefloe.Session, Exception | None]]]:
    """Run a verb once for each of its requests, with an action of another thread meanwhile; how that ended."""

    def runs() -> Iterator[tuple[icefloe.Repository, icefloe.Session, Exception | None]]:
        repo, storage = make(generation, size)
        for request in range(100):
            session = repo.writable_session("main")
            write_cell(session, size, 0, request + 1)
            outcome: list[Exception | None] = []

            def act(session: icefloe.Session = session, outcome: list[Exception | None] = outcome) -> None:
                try:
                    action(session)
                    outcome.append(None)
                except (icefloe.SessionStateError, icefloe.ReadOnlyError, ValueError) as error:
                    outcome.append(error)

            if "rebase" in verb:
                others_commit(repo)
            storage.action, storage.wait_for = act, request
            VERBS[verb](session)
            if storage.wait_for is not None:
                storage.wait_for = None
                return
            yield repo, session, outcome[0]
            if not session.read_only:
                session.discard_changes()
            repo.reset_branch("main", next(iter(list(repo.ancestry(branch="main"))[-2:])).id)

    yield runs()


@pytest.mark.every_generation
@pytest.mark.parametrize(
    ("generation", "kind"),
    [*((generation, "packed") for generation in GENERATIONS), ("repository", "inline"), ("repository", "large")],
)
@pytest.mark.parametrize("verb", VERBS)
def test_a_chunk_written_while_a_verb_runs_is_in_the_session_or_was_refused(
    generation: str, verb: str, kind: str
) -> None:
    size = SIZES[kind]
    with at_each_request(generation, size, verb, lambda session: write_cell(session, size, 1, 77)) as runs:
        for number, (repo, session, refused) in enumerate(runs):
            expected = 0 if refused is not None else 77
            assert cells(session.store, size)[:2] == [number + 1, expected]
            if session.read_only and verb != "flush":
                assert cells(repo.readonly_session("main").store, size)[:2] == [number + 1, expected]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ACTIONS)
def test_a_change_made_while_a_verb_runs_is_in_the_session_or_was_refused(verb: str, name: str) -> None:
    with at_each_request("repository", 4, verb, ACTIONS[name]) as runs:
        for _, session, refused in runs:
            assert effects(session)[name] is (refused is None)


@pytest.mark.parametrize("kind", SIZES)
def test_a_commit_that_fails_leaves_a_session_that_can_be_written_and_committed(kind: str) -> None:
    size = SIZES[kind]
    repo, _ = make("repository", size)
    session = repo.writable_session("main")
    write_cell(session, size, 0, 1)
    others_commit(repo)
    with pytest.raises(icefloe.ConflictError):
        session.commit("too late")
    write_cell(session, size, 1, 2)
    session.rebase(ConflictDetector())
    session.commit("both")
    assert cells(repo.readonly_session("main").store, size)[:2] == [1, 2]


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


@pytest.mark.long
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
