"""Conflicts between sessions on one branch, and how a rebase settles them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import BasicConflictSolver, ConflictDetector, ConflictType, VersionSelection
from icefloe.session.races import longest_pause


@pytest.fixture
def repo() -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="base") as store:
        root = zarr.group(store)
        root.create_group("g")
        for name in ("a", "g/b"):
            array = root.create_array(name, shape=(8, 8), chunks=(2, 2), dtype="i4")
            array[:] = 1
    return repo


def open_array(session: icefloe.Session, path: str) -> zarr.Array:
    return zarr.open_array(session.store, path=path, mode="r" if session.read_only else "r+")


def conflicts_of(session: icefloe.Session, solver: icefloe.ConflictSolver) -> list[icefloe.Conflict]:
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        session.rebase(solver)
    return list(caught.value.conflicts)


def test_commit_on_a_branch_that_moved_is_a_conflict_that_names_both_snapshots(repo: icefloe.Repository) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    open_array(first, "a")[0, 0] = 5
    open_array(second, "a")[7, 7] = 6
    started = second.snapshot_id
    landed = first.commit("first")
    with pytest.raises(icefloe.ConflictError) as caught:
        second.commit("second")
    assert (caught.value.expected_parent, caught.value.actual_parent) == (started, landed)


def test_disjoint_chunks_of_one_array_rebase(repo: icefloe.Repository) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    open_array(first, "a")[0, 0] = 5
    open_array(second, "a")[7, 7] = 6
    first.commit("first")
    second.commit("second", rebase_with=ConflictDetector())
    values = open_array(repo.readonly_session("main"), "a")[:]
    assert values[0, 0] == 5 and values[7, 7] == 6 and values.sum() == 64 + 4 + 5


@pytest.mark.parametrize(("choice", "winner"), [(VersionSelection.UseOurs, 6), (VersionSelection.UseTheirs, 5)])
def test_the_same_chunk_twice_is_settled_as_the_solver_says(
    repo: icefloe.Repository, choice: VersionSelection, winner: int
) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    open_array(first, "a")[0, 0] = 5
    open_array(second, "a")[0, 0] = 6
    open_array(second, "a")[7, 7] = 7
    first.commit("first")
    (conflict,) = conflicts_of(second, ConflictDetector())
    assert conflict.conflict_type is ConflictType.ChunkDoubleUpdate
    assert (conflict.path, conflict.conflicted_chunks) == ("/a", [[0, 0]])
    second.commit("second", rebase_with=BasicConflictSolver(on_chunk_conflict=choice))
    values = open_array(repo.readonly_session("main"), "a")[:]
    assert values[0, 0] == winner and values[7, 7] == 7


def test_a_failed_rebase_leaves_the_session_as_it_was(repo: icefloe.Repository) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    open_array(first, "a")[0, 0] = 5
    open_array(second, "a")[0, 0] = 6
    before = second.snapshot_id
    first.commit("first")
    conflicts_of(second, ConflictDetector())
    assert second.snapshot_id == before
    assert open_array(second, "a")[0, 0] == 6


def test_both_change_metadata_of_one_array(repo: icefloe.Repository) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    open_array(first, "a").attrs["x"] = 1
    open_array(second, "a").attrs["x"] = 2
    first.commit("first")
    (conflict,) = conflicts_of(second, BasicConflictSolver())
    assert conflict.conflict_type is ConflictType.ZarrMetadataDoubleUpdate


def test_the_same_metadata_from_both_sides_is_a_conflict_too(repo: icefloe.Repository) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    for session in (first, second):
        open_array(session, "a").resize((10, 8))
    first.commit("first")
    with pytest.raises(icefloe.RebaseFailedError, match="ZarrMetadataDoubleUpdate"):
        second.commit("second", rebase_with=ConflictDetector())


def test_chunks_written_to_an_array_that_was_deleted(repo: icefloe.Repository) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    del zarr.open_group(first.store)["a"]
    open_array(second, "a")[0, 0] = 2
    first.commit("first")
    (conflict,) = conflicts_of(second, BasicConflictSolver())
    assert conflict.conflict_type is ConflictType.ChunksUpdatedInDeletedArray


def test_deleting_an_array_that_was_written_to(repo: icefloe.Repository) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    open_array(first, "a")[0, 0] = 2
    del zarr.open_group(second.store)["a"]
    first.commit("first")
    (conflict,) = conflicts_of(second, BasicConflictSolver(fail_on_delete_of_updated_array=True))
    assert conflict.conflict_type is ConflictType.DeleteOfUpdatedArray
    second.commit("second", rebase_with=BasicConflictSolver())
    assert "a" not in zarr.open_group(repo.readonly_session("main").store, mode="r")


def test_deleting_a_group_that_gained_an_array(repo: icefloe.Repository) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    zarr.open_group(first.store)["g"].create_array("new", shape=2, dtype="i1")
    del zarr.open_group(second.store)["g"]
    first.commit("first")
    (conflict,) = conflicts_of(second, ConflictDetector())
    assert conflict.conflict_type is ConflictType.DeleteOfUpdatedGroup


def test_two_new_nodes_at_one_path(repo: icefloe.Repository) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    zarr.open_group(first.store).create_array("new", shape=2, dtype="i1")
    zarr.open_group(second.store).create_array("new", shape=3, dtype="i1")
    first.commit("first")
    (conflict,) = conflicts_of(second, BasicConflictSolver())
    assert (conflict.conflict_type, conflict.path) == (ConflictType.NewNodeConflictsWithExistingNode, "/new")


def test_two_writers_may_begin_with_the_same_group(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(tmp_path / "fresh"))
    first, second = repo.writable_session("main"), repo.writable_session("main")
    zarr.create_group(first.store, path="g").create_array("a", shape=2, dtype="i1")[:] = 1
    zarr.create_group(second.store, path="g").create_array("b", shape=2, dtype="i1")[:] = 2
    first.commit("first")
    second.commit("second", rebase_with=ConflictDetector())
    group = zarr.open_group(repo.readonly_session("main").store, path="g", mode="r")
    assert (group["a"][:].tolist(), group["b"][:].tolist()) == ([1, 1], [2, 2])


def test_groups_that_differ_still_clash(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(tmp_path / "fresh"))
    first, second = repo.writable_session("main"), repo.writable_session("main")
    zarr.create_group(first.store, path="g", attributes={"title": "one"})
    zarr.create_group(second.store, path="g", attributes={"title": "two"})
    first.commit("first")
    (conflict,) = conflicts_of(second, ConflictDetector())
    assert (conflict.conflict_type, conflict.path) == (ConflictType.NewNodeConflictsWithExistingNode, "/g")


def test_a_new_node_in_a_group_that_was_deleted(repo: icefloe.Repository) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    del zarr.open_group(first.store)["g"]
    zarr.open_group(second.store)["g"].create_array("new", shape=3, dtype="i1")
    first.commit("first")
    kinds = {conflict.conflict_type for conflict in conflicts_of(second, BasicConflictSolver())}
    assert kinds == {ConflictType.NewNodeInInvalidGroup}


def test_a_move_and_chunks_of_the_moved_array_go_together(repo: icefloe.Repository) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    first.move("/a", "/g/moved")
    open_array(second, "a")[0, 0] = 9
    first.commit("move")
    second.commit("write", rebase_with=ConflictDetector())
    assert open_array(repo.readonly_session("main"), "g/moved")[0, 0] == 9


def test_our_move_of_an_array_that_was_written_to_keeps_both(repo: icefloe.Repository) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    open_array(first, "g/b")[0, 0] = 9
    second.move("/g", "/h")
    first.commit("write")
    second.commit("move", rebase_with=ConflictDetector())
    assert open_array(repo.readonly_session("main"), "h/b")[0, 0] == 9


def test_two_moves_of_one_node_cannot_be_rebased(repo: icefloe.Repository) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    first.move("/a", "/x")
    second.move("/a", "/y")
    first.commit("first")
    (conflict,) = conflicts_of(second, BasicConflictSolver())
    assert conflict.conflict_type is ConflictType.MoveOperationCannotBeRebased


def test_a_solver_written_in_python(repo: icefloe.Repository) -> None:
    class TheirsInA(icefloe.ConflictSolver):
        def resolve(self, conflict: icefloe.Conflict) -> VersionSelection:
            return VersionSelection.UseTheirs if conflict.path == "/a" else VersionSelection.UseOurs

    first, second = repo.writable_session("main"), repo.writable_session("main")
    for session, value in ((first, 5), (second, 6)):
        open_array(session, "a")[0, 0] = value
        open_array(session, "g/b")[0, 0] = value
    first.commit("first")
    second.commit("second", rebase_with=TheirsInA())
    reader = repo.readonly_session("main")
    assert (open_array(reader, "a")[0, 0], open_array(reader, "g/b")[0, 0]) == (5, 6)


def test_several_missed_commits_are_carried_over_one_by_one(repo: icefloe.Repository) -> None:
    late = repo.writable_session("main")
    open_array(late, "a")[7, 7] = 100
    for index in range(5):
        session = repo.writable_session("main")
        open_array(session, "a")[0, index] = index + 2
        session.commit(f"commit {index}")
    late.commit("late", rebase_with=ConflictDetector())
    values = open_array(repo.readonly_session("main"), "a")[:]
    assert values[7, 7] == 100 and list(values[0, :5]) == [2, 3, 4, 5, 6]


def test_a_branch_that_was_reset_behind_the_session_is_a_conflict(repo: icefloe.Repository) -> None:
    root = list(repo.ancestry(branch="main"))[-1].id
    session = repo.writable_session("main")
    open_array(session, "a")[0, 0] = 5
    repo.reset_branch("main", root)
    with pytest.raises(icefloe.ConflictError, match="reset"):
        session.commit("lost", rebase_with=BasicConflictSolver())


def test_chunks_shifted_by_whole_chunks_leave_fill_values_behind(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    open_array(session, "a")[:] = np.arange(64).reshape(8, 8)
    session.shift_array("/a", (1, 0))
    session.commit("shift")
    values = open_array(repo.readonly_session("main"), "a")[:]
    np.testing.assert_array_equal(values[2:], np.arange(64).reshape(8, 8)[:6])
    assert (values[:2] == 0).all()


def test_chunks_reindexed_by_a_function_and_its_inverse(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    open_array(session, "a")[:] = np.arange(64).reshape(8, 8)

    def flip(coords: Iterable[int]) -> list[int]:
        row, column = coords
        return [3 - row, column]

    session.reindex_array("/a", flip, flip)
    session.commit("flip")
    expected = np.arange(64).reshape(4, 2, 8)[::-1].reshape(8, 8)
    np.testing.assert_array_equal(open_array(repo.readonly_session("main"), "a")[:], expected)


@given(st.integers(1, 1000), st.floats(0, 1e4))
def test_who_has_lost_more_often_begins_the_next_try_sooner(lost: int, took: float) -> None:
    assert 0 <= longest_pause(lost + 1, took) <= longest_pause(lost, took) <= 10
    assert longest_pause(lost, took) == min(4 * took / lost, 10)


def test_a_first_try_that_stored_much_delays_the_next_one_no_more_than_any() -> None:
    assert longest_pause(0, 3600) == longest_pause(0, 0) < 0.1
