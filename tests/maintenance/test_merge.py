"""Changes come from branch to branch whole, or every conflict is told and nothing happens."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from tests.maintenance.histories import GENERATIONS, messages

import icefloe
from icefloe import BasicConflictSolver, ConflictType, VersionSelection


def write(repo: icefloe.Repository, branch: str, message: str = "", **values: dict[int, int] | int | None) -> str:
    """Set elements of arrays (one per chunk), create arrays, or delete them."""
    session = repo.writable_session(branch)
    root = zarr.open_group(session.store, mode="a")
    for name, change in values.items():
        if change is None:
            del root[name]
        elif isinstance(change, int):
            root.create_array(name, shape=(6,), chunks=(1,), dtype="i4", compressors=None, overwrite=True)[:] = change
        else:
            for index, value in change.items():
                root[name][index] = value  # type: ignore[index]
    return session.commit(message or f"on {branch}")


def read(repo: icefloe.Repository, branch: str = "main") -> dict[str, list[int]]:
    root = zarr.open_group(icefloe.Repository.open(repo.storage).readonly_session(branch).store, mode="r")
    return {name: np.asarray(array[:]).tolist() for name, array in sorted(root.arrays())}


@pytest.fixture(params=GENERATIONS)
def repo(request: pytest.FixtureRequest) -> icefloe.Repository:
    made = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=request.param)
    base = write(made, "main", "base", a=1, b=2)
    made.create_branch("dev", base)
    return made


def test_changes_of_both_sides_come_together(repo: icefloe.Repository) -> None:
    write(repo, "dev", a={0: 10}, c=3)
    write(repo, "dev", b=None)
    write(repo, "main", a={1: 20}, d=4)
    plan = repo.plan_merge("dev")
    assert not plan.conflicts and plan.diff.new_arrays == {"/c"} and plan.diff.deleted_arrays == {"/b"}
    tip = repo.merge("dev", message="joined", metadata={"by": "test"})
    assert repo.lookup_branch("main") == tip
    assert read(repo) == {"a": [10, 20, 1, 1, 1, 1], "c": [3] * 6, "d": [4] * 6}
    assert messages(repo)[:2] == ["joined", "on main"]
    assert repo.lookup_snapshot(tip).metadata["merged_branch"] == "dev"
    assert repo.verify().is_clean
    assert repo.plan_merge("main", "dev").fast_forward is False


def test_a_branch_without_commits_of_its_own_is_moved(repo: icefloe.Repository) -> None:
    tip = write(repo, "dev", a={0: 10})
    assert repo.plan_merge("dev").fast_forward
    assert repo.merge("dev") == tip == repo.lookup_branch("main")
    assert repo.plan_merge("dev").up_to_date and repo.merge("dev") == tip
    made = repo.merge("dev", "main", fast_forward=False)
    assert made == tip


def test_without_moving_a_commit_is_made(repo: icefloe.Repository) -> None:
    tip = write(repo, "dev", a={0: 10})
    assert repo.merge("dev", fast_forward=False) != tip
    assert messages(repo)[0] == "Merge branch 'dev'" and read(repo)["a"][0] == 10


def test_every_conflict_is_listed_and_nothing_happens(repo: icefloe.Repository) -> None:
    write(repo, "dev", a={0: 10, 2: 10}, c=3)
    write(repo, "main", a={0: 20})
    write(repo, "main", c=5)
    plan = repo.plan_merge("dev")
    found = {(c.conflict_type, c.path) for c in plan.conflicts}
    assert found == {
        (ConflictType.ChunkDoubleUpdate, "/a"),
        (ConflictType.NewNodeConflictsWithExistingNode, "/c"),
    }
    assert "2 conflicts" in str(plan)
    before = repo.lookup_branch("main")
    with pytest.raises(icefloe.RebaseFailedError) as failure:
        repo.merge("dev")
    assert len(failure.value.conflicts) == 2 and repo.lookup_branch("main") == before


@pytest.mark.parametrize(("selection", "expected"), [(VersionSelection.UseOurs, 10), (VersionSelection.UseTheirs, 20)])
def test_a_solver_decides(repo: icefloe.Repository, selection: VersionSelection, expected: int) -> None:
    write(repo, "dev", a={0: 10, 1: 11})
    write(repo, "main", a={0: 20, 2: 22})
    repo.merge("dev", solver=BasicConflictSolver(on_chunk_conflict=selection))
    assert read(repo)["a"] == [expected, 11, 22, 1, 1, 1]


def test_one_commit_is_picked_from_anywhere(repo: icefloe.Repository) -> None:
    write(repo, "dev", a={0: 10})
    picked = write(repo, "dev", "the one", a={1: 11}, e=7)
    write(repo, "dev", a={2: 12})
    write(repo, "main", b={0: 9})
    assert repo.plan_cherry_pick(picked).diff.new_arrays == {"/e"}
    repo.cherry_pick(picked)
    assert read(repo) == {"a": [1, 11, 1, 1, 1, 1], "b": [9, 2, 2, 2, 2, 2], "e": [7] * 6}
    assert messages(repo)[0] == "the one"
    root = list(repo.ancestry(branch="main"))[-1].id
    with pytest.raises(icefloe.InvalidInputError, match="first"):
        repo.cherry_pick(root)


def test_a_commit_is_reverted(repo: icefloe.Repository) -> None:
    bad = write(repo, "main", "bad", a={0: -1}, b=None, z=9)
    write(repo, "main", a={5: 55})
    repo.revert(bad)
    assert read(repo) == {"a": [1, 1, 1, 1, 1, 55], "b": [2] * 6}
    assert messages(repo)[0] == "Revert 'bad'"
    assert repo.verify().is_clean


def test_a_revert_of_what_changed_since_is_a_conflict(repo: icefloe.Repository) -> None:
    bad = write(repo, "main", a={0: -1})
    write(repo, "main", a={0: 5})
    assert [c.conflict_type for c in repo.plan_revert(bad).conflicts] == [ConflictType.ChunkDoubleUpdate]


def test_commits_become_one(repo: icefloe.Repository) -> None:
    start = repo.lookup_branch("main")
    for number in range(4):
        write(repo, "main", a={number: number + 50})
    write(repo, "main", q=8)
    content = read(repo)
    assert len(repo.plan_squash("main", start).commits) == 5
    tip = repo.squash("main", start, message="all at once")
    assert read(repo) == content and messages(repo) == ["all at once", "base", "Repository initialized"]
    diff = icefloe.Repository.open(repo.storage).diff(from_snapshot_id=start, to_snapshot_id=tip)
    assert diff.new_arrays == {"/q"} and sorted(map(tuple, diff.updated_chunks["/a"])) == [(0,), (1,), (2,), (3,)]
    assert repo.verify().is_clean


def test_fast_forward_refuses_a_branch_with_commits_of_its_own(repo: icefloe.Repository) -> None:
    tip = write(repo, "dev", a={0: 10})
    assert repo.fast_forward("main", tip) == tip
    write(repo, "main", a={1: 1})
    with pytest.raises(icefloe.ConflictError, match="not an ancestor"):
        repo.fast_forward("main", write(repo, "dev", a={0: 11}))


def test_resized_moved_and_swapped_nodes_are_merged() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    base = write(repo, "main", a=1, b=2)
    repo.create_branch("dev", base)
    session = repo.writable_session("dev")
    zarr.open_array(session.store, path="a", mode="r+").resize((3,))
    session.move("/a", "/t")
    session.move("/b", "/a")
    session.move("/t", "/b")
    session.commit("swapped")
    write(repo, "main", c=3)
    repo.merge("dev")
    assert read(repo) == {"a": [2] * 6, "b": [1] * 3, "c": [3] * 6}
    assert repo.verify().is_clean


def test_unrelated_work_merges_beside_concurrent_commits(repo: icefloe.Repository) -> None:
    write(repo, "dev", a={0: 10})
    write(repo, "main", b={0: 9})
    ledger, advance = repo.context.ledger, repo.context.ledger.advance
    calls: list[int] = []

    async def contended(*args: object, **kwargs: object) -> object:
        if not calls:
            calls.append(1)
            other = await icefloe.Repository.open_async(repo.storage)
            session = await other.writable_session_async("main")
            node = session.state.tree.array("/b")
            await session.state.write_chunk(node, (5,), np.array([5], dtype="<i4").tobytes())
            await session.commit_async("in between")
        return await advance(*args, **kwargs)  # type: ignore[arg-type]

    ledger.advance = contended  # type: ignore[method-assign, assignment]
    repo.merge("dev")
    assert read(repo)["a"][0] == 10 and messages(repo)[1] == "in between"


def test_a_branch_can_be_merged_again_and_again(repo: icefloe.Repository) -> None:
    for turn in range(3):
        write(repo, "dev", a={turn: 10 + turn})
        write(repo, "main", b={turn: 20 + turn})
        repo.merge("dev")
        assert repo.plan_merge("dev").up_to_date and repo.plan_merge("dev", fast_forward=False).up_to_date
    assert read(repo) == {"a": [10, 11, 12, 1, 1, 1], "b": [20, 21, 22, 2, 2, 2]}
