"""Cases in which two sessions meet, or one session meets its workers, that were once decided wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import ConflictDetector
from icefloe.storage.build import in_memory_storage
from icefloe.testing.storages import Fault, FaultKind, FaultPlan, FaultyStorage


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    repo = icefloe.Repository.create(tmp_path / "repository")
    with repo.transaction("main", message="first") as store:
        root = zarr.group(store)
        root.create_group("g").create_array("a", shape=(4,), chunks=(1,), dtype="i4")[:] = 1
        root.create_array("b", shape=(4,), chunks=(1,), dtype="i4")[:] = 1
    return repo


def race(
    repo: icefloe.Repository, ours: Callable[[icefloe.Session], None], theirs: Callable[[icefloe.Session], None]
) -> icefloe.Session:
    """A session with changes of its own that missed a commit."""
    session, other = repo.writable_session("main"), repo.writable_session("main")
    ours(session)
    theirs(other)
    other.commit("theirs")
    return session


def root(session: icefloe.Session) -> zarr.Group:
    return zarr.open_group(session.store, mode="r+")


def delete_document(session: icefloe.Session, key: str) -> None:
    zarr.core.sync.sync(session.store.delete(key))


def test_what_is_in_a_group_whose_document_alone_was_deleted_survives_a_rebase(repo: icefloe.Repository) -> None:
    session = race(
        repo,
        lambda s: delete_document(s, "g/zarr.json"),
        lambda s: root(s)["b"].__setitem__(0, 9),  # type: ignore[union-attr]
    )
    session.commit("ours", rebase_with=ConflictDetector())
    assert (zarr.open_array(session.store, path="g/a", mode="r")[:] == 1).all()


def clear_tail(session: icefloe.Session) -> None:
    """Make an array smaller and larger again: its last chunks are gone, its document is as it was."""
    array = zarr.open_array(session.store, path="b", mode="r+")
    array.resize((2,))
    array.resize((4,))


def test_chunks_that_an_array_lost_for_a_while_are_in_the_diff(repo: icefloe.Repository) -> None:
    before = repo.lookup_branch("main")
    session = repo.writable_session("main")
    clear_tail(session)
    session.commit("cleared")
    np.testing.assert_array_equal(zarr.open_array(session.store, path="b", mode="r")[:], [1, 1, 0, 0])
    diff = repo.diff(from_snapshot_id=before, to_branch="main")
    assert diff.updated_chunks == {"/b": [[2], [3]]}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda s: root(s).create_group("g/n"), lambda s: s.move("/g", "/h")),
        (lambda s: s.move("/g", "/h"), lambda s: root(s).create_group("g/n")),
        (lambda s: s.move("/g", "/h"), lambda s: s.move("/b", "/g/b")),
        (lambda s: root(s).__delitem__("g"), lambda s: s.move("/b", "/g/b")),
        (lambda s: root(s).__delitem__("b"), lambda s: s.move("/b", "/g/b")),
        (lambda s: root(s)["b"].__setitem__(3, 5), lambda s: root(s)["b"].resize((2,))),
        (lambda s: root(s)["b"].resize((2,)), lambda s: root(s)["b"].__setitem__(3, 5)),
        (clear_tail, lambda s: root(s)["b"].__setitem__(3, 5)),
        (lambda s: root(s)["b"].__setitem__(3, 5), clear_tail),
    ],
    ids=[
        "into moved",
        "move of filled",
        "move of entered",
        "delete of entered",
        "delete of moved",
        "outside",
        "cut off",
        "cleared",
        "clearing",
    ],
)
def test_changes_that_would_lose_or_orphan_something_are_conflicts(
    repo: icefloe.Repository,
    ours: Callable[[icefloe.Session], None],
    theirs: Callable[[icefloe.Session], None],
) -> None:
    session = race(repo, ours, theirs)
    with pytest.raises(icefloe.RebaseFailedError):
        session.commit("ours", rebase_with=ConflictDetector())


def test_a_rebase_that_fails_at_the_second_commit_changes_nothing(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    base = session.snapshot_id
    root(session)["b"][0] = 5  # type: ignore[index]
    for path, value in (("g/a", 2), ("b", 3)):
        other = repo.writable_session("main")
        root(other)[path][0] = value  # type: ignore[index]
        other.commit("theirs")
    with pytest.raises(icefloe.RebaseFailedError):
        session.rebase(ConflictDetector())
    assert session.snapshot_id == base
    assert root(session)["g/a"][0] == 1  # type: ignore[index]
    session.rebase(icefloe.BasicConflictSolver())
    session.commit("ours")
    assert root(repo.writable_session("main"))["b"][0] == 5  # type: ignore[index]


def test_a_commit_that_failed_after_its_rebase_can_simply_be_made_again() -> None:
    plan = FaultPlan()
    repo = icefloe.Repository.create(FaultyStorage(in_memory_storage(), plan))
    with repo.transaction("main", message="first") as store:
        zarr.group(store).create_array("a", shape=(4,), chunks=(1,), dtype="i4")
    session = race(repo, lambda s: root(s)["a"].__setitem__(0, 1), lambda s: root(s)["a"].__setitem__(1, 2))  # type: ignore[union-attr]
    plan.faults, plan._seen = (Fault(FaultKind.FAIL_BEFORE, at=2, times=100, key_contains="snapshots/"),), [0]
    with pytest.raises(icefloe.StorageError):
        session.commit("ours", rebase_with=ConflictDetector())
    plan.faults, plan._seen = (), []
    session.commit("ours")
    np.testing.assert_array_equal(zarr.open_array(session.store, path="a", mode="r")[:], [1, 2, 0, 0])


def test_what_workers_write_lies_over_what_the_session_had_written(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    root(session)["b"][:] = 2  # type: ignore[index]
    fork = session.fork()
    root(fork)["b"][1] = 3  # type: ignore[index]
    session.link_parts([fork.write_parts("task")])
    assert root(session.fork())["b"][1] == 3  # type: ignore[index]
    np.testing.assert_array_equal(root(session)["b"][:], [2, 3, 2, 2])  # type: ignore[index]
    session.commit("both")
    np.testing.assert_array_equal(zarr.open_array(session.store, path="b", mode="r")[:], [2, 3, 2, 2])


def test_chunks_of_workers_outside_an_array_made_smaller_do_not_come_back(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    fork = session.fork()
    root(fork)["b"][:] = 3  # type: ignore[index]
    session.link_parts([fork.write_parts("task")])
    array = zarr.open_array(session.store, path="b", mode="r+")
    array.resize((2,))
    array.resize((4,))
    later = session.fork()
    zarr.open_array(later.store, path="g/a", mode="r+")[0] = 4
    session.link_parts([later.write_parts("later")])
    np.testing.assert_array_equal(zarr.open_array(session.store, path="b", mode="r")[:], [3, 3, 0, 0])
    session.commit("resized")
    np.testing.assert_array_equal(zarr.open_array(session.store, path="b", mode="r")[:], [3, 3, 0, 0])


def test_an_amendment_that_makes_an_array_larger_again_tells_of_the_chunks_it_lost(repo: icefloe.Repository) -> None:
    before = repo.lookup_branch("main")
    for size, finish in ((2, "commit"), (4, "amend")):
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="b", mode="r+").resize((size,))
        getattr(session, finish)("resized")
    diff = repo.diff(from_snapshot_id=before, to_branch="main")
    assert diff.updated_chunks == {"/b": [[2], [3]]}


class Choose(icefloe.ConflictSolver):
    """Decides every conflict in the same way."""

    def __init__(self, choice: icefloe.VersionSelection) -> None:
        self.choice = choice

    def resolve(self, conflict: icefloe.Conflict) -> icefloe.VersionSelection:
        return self.choice


def change_layout(session: icefloe.Session) -> None:
    """Chunks of two cells instead of one."""
    array = zarr.open_array(session.store, path="b", mode="r+")
    document = array.metadata.to_dict()
    document["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": (2,)}}
    content = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(json.dumps(document).encode())
    zarr.core.sync.sync(session.store.set("b/zarr.json", content))
    zarr.open_array(session.store, path="b", mode="r+")[:] = 5


def write_cell(session: icefloe.Session) -> None:
    zarr.open_array(session.store, path="b", mode="r+")[3] = 9


@pytest.mark.parametrize("choice", icefloe.VersionSelection)
def test_no_solver_keeps_chunks_of_a_layout_that_the_array_no_longer_has(
    repo: icefloe.Repository, choice: icefloe.VersionSelection
) -> None:
    ours = race(repo, change_layout, write_cell)
    with pytest.raises(icefloe.RebaseFailedError, match="ChunksUpdatedInUpdatedArray"):
        ours.rebase(Choose(choice))
    found = zarr.open_array(repo.readonly_session("main").store, path="b", mode="r")[:]
    assert found.tolist() == [1, 1, 1, 9]
    repo.reset_branch("main", next(info.parent_id for info in repo.ancestry(branch="main")) or "")
    late = race(repo, write_cell, change_layout)
    if choice is icefloe.VersionSelection.UseTheirs:
        late.rebase(Choose(choice))
        late.commit("nothing is left", allow_empty=True)
    else:
        with pytest.raises(icefloe.RebaseFailedError, match="ChunksUpdatedInUpdatedArray"):
            late.rebase(Choose(choice))
    found = zarr.open_array(repo.readonly_session("main").store, path="b", mode="r")[:]
    assert found.tolist() == [5, 5, 5, 5]
