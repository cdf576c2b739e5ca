"""A writer that missed commits changes what it wrote and nothing else, also when these commits became one since."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.maintenance.histories import GENERATIONS

import icefloe
from icefloe.errors import FormatError
from icefloe.model.snapshot import TransactionLog
from icefloe.session.ancestry import join_coordinates, merge_logs

LENGTH = 8

sizes = st.integers(1, LENGTH + 4)
resizes = st.tuples(st.just("resize"), sizes, st.just(0))
writes = st.tuples(st.just("write"), st.integers(0, LENGTH), st.integers(1, 4))
others = st.sampled_from([("attributes", 0, 0), ("delete and revert", 0, 0), ("elsewhere", 0, 0)])
operations = st.lists(resizes | writes | others, min_size=1, max_size=4)


def apply(repo: icefloe.Repository, operation: tuple[str, int, int], number: int) -> None:
    """One step of a history: a commit, or two."""
    name, first, second = operation
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="a")
    if name == "resize":
        array.resize((first,))
    elif name == "write":
        array[first : first + second] = 100 + number
    elif name == "attributes":
        array.update_attributes({"number": number})
    elif name == "elsewhere":
        zarr.create_array(session.store, name=f"b{number}", shape=(2,), chunks=(1,), dtype="i4")
    else:
        del zarr.open_group(session.store)["a"]
        repo.revert(session.commit("deleted"), "main")
        return
    session.commit(f"{name} {number}", allow_empty=True)


def read(repo: icefloe.Repository) -> np.ndarray:
    return np.asarray(zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:])


@pytest.mark.long
@pytest.mark.parametrize("generation", GENERATIONS)
@given(
    steps=operations,
    late=st.tuples(st.integers(0, LENGTH - 1), st.integers(1, 3)),
    how=st.sampled_from(["nothing", "expire", "squash"]),
)
@settings(max_examples=30)
def test_a_late_writer_changes_only_what_it_wrote(
    generation: str, steps: list[tuple[str, int, int]], late: tuple[int, int], how: str
) -> None:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version=generation)
    with repo.transaction("main", message="base") as store:
        zarr.create_group(store)
        zarr.create_array(store, name="a", shape=(LENGTH,), chunks=(2,), dtype="i4")[:] = 1
    base = repo.lookup_branch("main")
    session = icefloe.Repository.open(storage).writable_session("main")
    first, count = late
    zarr.open_array(session.store, path="a")[first : first + count] = 7
    for number, step in enumerate(steps):
        apply(repo, step, number)
    between = [info.id for info in repo.ancestry(branch="main")]
    between = between[: between.index(base)]
    if how == "expire":
        repo.expire_snapshots(snapshots=between[1:]) if between[1:] else None
    elif how == "squash":
        repo.squash("main", base, message="squashed")
    expected = read(repo)
    assert repo.verify().is_clean, str(repo.verify())
    try:
        session.commit("late", rebase_with=icefloe.ConflictDetector())
    except icefloe.RebaseFailedError:
        return
    expected[first : min(first + count, LENGTH)] = 7
    np.testing.assert_array_equal(read(icefloe.Repository.open(storage)), expected)
    assert repo.verify().is_clean, str(repo.verify())


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_deletion_that_was_reverted_is_no_conflict_once_both_are_one_commit(generation: str) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=generation)
    with repo.transaction("main", message="base") as store:
        zarr.create_group(store)
        zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="i4")[:] = 1
    base, late = repo.lookup_branch("main"), repo.writable_session("main")
    zarr.open_array(late.store, path="a")[:2] = 5
    apply(repo, ("delete and revert", 0, 0), 0)
    repo.squash("main", base, message="squashed")
    assert repo.verify().is_clean, str(repo.verify())
    late.commit("late", rebase_with=icefloe.ConflictDetector())
    assert read(repo).tolist() == [5, 5, 1, 1]


def test_merging_logs_does_not_depend_on_how_they_are_grouped() -> None:
    node = b"\x01" * 8
    steps = [
        TransactionLog(new_arrays=frozenset({node})),
        TransactionLog(deleted_arrays=frozenset({node})),
        TransactionLog(updated_arrays=frozenset({node})),
    ]

    @given(st.lists(st.sampled_from(steps), min_size=3, max_size=3))
    def check(logs: list[TransactionLog]) -> None:
        there = [log.new_arrays == frozenset() for log in logs]
        # Only histories that can be: a node is created when it is not there, and deleted or changed when it is.
        present = there[0]
        for log in logs:
            if present == bool(log.new_arrays):
                return
            present = not log.deleted_arrays
        one, two, three = logs
        assert merge_logs(merge_logs(one, two), three) == merge_logs(one, merge_logs(two, three))

    check()


def test_logs_that_contradict_each_other_are_refused_with_a_typed_error() -> None:
    with pytest.raises(FormatError, match="contradict"):
        join_coordinates([np.zeros((1, 1), dtype=np.uint32), np.zeros((1, 2), dtype=np.uint32)])
    assert join_coordinates([np.zeros((0, 0), dtype=np.uint32), np.ones((1, 2), dtype=np.uint32)]).tolist() == [[1, 1]]
