"""A commit meets expiry and collection at any of its requests: it lands whole, or says that its base has expired."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import numpy as np
import pytest
import zarr
from tests.maintenance.histories import GENERATIONS

import icefloe
from icefloe.storage.contract import Storage
from icefloe.storage.wrappers import METHODS, Operation, WrappedStorage

pytestmark = pytest.mark.every_generation

INLINE = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=512)
"""Chunks are in manifests: no chunk object can be collected under a session, which would be refused for that."""
FORGETFUL = icefloe.RepositoryConfig(
    inline_chunk_threshold_bytes=512, caching=icefloe.CachingConfig(num_bytes_manifests=0, num_bytes_snapshots=0)
)
"""The writer remembers nothing, so that it meets every file that is gone."""
NEVER = 1000


class Interrupted(WrappedStorage):
    """Lets another thread do something before the n-th request, or the n-th of some methods."""

    def __init__(self, inner: Storage, methods: Collection[str] = METHODS) -> None:
        super().__init__(inner)
        self.methods = methods
        self.left = NEVER
        self.action: Callable[[], None] = lambda: None

    def _rewrap(self, inner: Storage) -> Storage:
        return Interrupted(inner, self.methods)

    async def _forward(self, op: Operation, call: Callable[[], Awaitable[Any]]) -> Any:
        if op.method in self.methods:
            self.left -= 1
            if self.left == 0:
                await asyncio.to_thread(self.action)
        return await call()


def write(repo: icefloe.Repository, chunk: int, value: int) -> None:
    with repo.transaction("main", message=f"chunk {chunk}") as store:
        zarr.open_array(store, path="a")[chunk] = value


def start(generation: str) -> tuple[icefloe.Repository, Interrupted, icefloe.Session]:
    """Others, and a writer that missed three commits of theirs."""
    inner = icefloe.in_memory_storage()
    others = icefloe.Repository.create(inner, INLINE, spec_version=generation)
    with others.transaction("main", message="array") as store:
        zarr.create_group(store)
        zarr.create_array(store, name="a", shape=(8,), chunks=(1,), dtype="i8", compressors=None)[:] = 1
    late = Interrupted(inner)
    session = icefloe.Repository.open(late, FORGETFUL).writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 7
    for chunk in (1, 2, 3):
        write(others, chunk, 2)
    return others, late, session


def read(repo: icefloe.Repository) -> list[int]:
    repo = icefloe.Repository.open(repo.storage)
    return np.asarray(zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:]).tolist()


def run_nightly(repo: icefloe.Repository, base: str, *, keeps_base: bool) -> None:
    write(repo, 4, 2)
    write(repo, 5, 2)
    history = [info.id for info in repo.ancestry(branch="main")]
    between = history[1 : history.index(base)] if keeps_base else history[1:-1]
    repo.expire_snapshots(snapshots=between)
    repo.garbage_collect(dt.timedelta(0), ignore_running_sessions=True)


@pytest.mark.parametrize("keeps_base", [True, False], ids=["base kept", "base expired"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_commit_under_way_while_history_is_expired_lands_or_says_that_its_base_has_expired(
    generation: str, keeps_base: bool
) -> None:
    refused = 0
    for number in range(1, NEVER):
        others, late, session = start(generation)
        base = session.snapshot_id
        late.action = lambda others=others, base=base: run_nightly(others, base, keeps_base=keeps_base)  # type: ignore[misc]
        late.left = number
        expected = [1, 2, 2, 2, 1, 1, 1, 1]
        reason = ""
        try:
            session.commit("late", rebase_with=icefloe.ConflictDetector())
            expected[0] = 7
        except icefloe.ConflictError as error:
            reason = str(error)
            refused += 1
        # A rebase that comes to its end makes the tip of that moment the base, which expires in both cases.
        assert not reason or "expired" in reason, f"request {number}: {reason}"
        interrupted = late.left <= 0
        if interrupted:
            expected[4:6] = [2, 2]
        assert read(others) == expected, f"request {number}"
        assert icefloe.Repository.open(others.storage).verify().is_clean, f"request {number}"
        if not interrupted:
            break
    assert number > 5
    assert keeps_base or refused > 0


USES: dict[str, Callable[[icefloe.Session], object]] = {
    "commit": lambda session: session.commit("late"),
    "commit with rebase": lambda session: session.commit("late", rebase_with=icefloe.ConflictDetector()),
    "rebase": lambda session: session.rebase(icefloe.ConflictDetector()),
    "amend": lambda session: session.amend("late"),
    "flush": lambda session: session.flush("late"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_is_done_with_a_collected_base_is_a_conflict_and_a_new_session_works(
    generation: str, use: Callable[[icefloe.Session], object]
) -> None:
    others, late, session = start(generation)
    run_nightly(others, session.snapshot_id, keeps_base=False)
    with pytest.raises(icefloe.ConflictError) as caught:
        use(session)
    assert caught.value.expected_parent == session.snapshot_id
    assert caught.value.actual_parent == others.lookup_branch("main")
    again = icefloe.Repository.open(late).writable_session("main")
    zarr.open_array(again.store, path="a")[0] = 7
    again.commit("again")
    assert read(others) == [7, 2, 2, 2, 2, 2, 1, 1]


def attempt(call: Callable[[], Any]) -> tuple[Any, icefloe.SnapshotNotFoundError | None]:
    try:
        return call(), None
    except icefloe.SnapshotNotFoundError as error:
        return None, error


def run_expiry(repo: icefloe.Repository, keep: set[str]) -> None:
    """Expire and collect what is between the snapshots to keep."""
    history = [info.id for info in repo.ancestry(branch="main")]
    repo.expire_snapshots(snapshots=[each for each in history[1:-1] if each not in keep])
    repo.garbage_collect(dt.timedelta(0), ignore_running_sessions=True)


@pytest.mark.parametrize("keeps_end", [True, False], ids=["end kept", "end expired"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_diff_tells_the_changes_or_which_snapshot_is_gone_while_history_is_expired(
    generation: str, keeps_end: bool
) -> None:
    refused = 0
    for number in range(1, NEVER):
        others, late, session = start(generation)
        base = session.snapshot_id
        late.action = lambda others=others, base=base: run_expiry(others, {base} if keeps_end else set())  # type: ignore[misc]
        reader = icefloe.Repository.open(late, FORGETFUL)
        late.left = number
        found, gone = attempt(lambda reader=reader, base=base: reader.diff(from_snapshot_id=base, to_branch="main"))  # type: ignore[misc]
        if gone is None:
            assert {tuple(each) for each in found.updated_chunks["/a"]} == {(1,), (2,), (3,)}, f"request {number}"
        else:
            assert gone.snapshot_id == base, f"request {number}: {gone}"
            assert "expired" in str(gone) and "icefloe log" in str(gone)
            refused += 1
        if late.left > 0:
            break
    assert number > 3
    assert (refused == 0) == keeps_end


@pytest.mark.parametrize("keeps_onto", [True, False], ids=["onto kept", "onto expired"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_squash_joins_the_commits_or_says_what_expired_while_history_is_expired(
    generation: str, keeps_onto: bool
) -> None:
    refused = 0
    for number in range(1, NEVER):
        others, late, session = start(generation)
        onto = session.snapshot_id
        late.action = lambda others=others, onto=onto: run_expiry(others, {onto} if keeps_onto else set())  # type: ignore[misc]
        writer = icefloe.Repository.open(late, FORGETFUL)
        tip = writer.lookup_branch("main")
        late.left = number
        _, gone = attempt(lambda writer=writer, onto=onto: writer.squash("main", onto, message="one"))  # type: ignore[misc]
        if gone is not None:
            assert gone.snapshot_id == onto, f"request {number}: {gone}"
            assert "expired" in str(gone) and "icefloe log" in str(gone)
            assert others.lookup_branch("main") == tip
            refused += 1
        assert read(others) == [1, 2, 2, 2, 1, 1, 1, 1], f"request {number}"
        assert icefloe.Repository.open(others.storage).verify().is_clean, f"request {number}"
        if late.left > 0:
            break
    assert number > 3
    assert (refused == 0) == keeps_onto
