"""What others do to a repository before any single request of a commit hides no conflict and loses no data."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any

import pytest
import zarr
from tests.session.intrusions import GENERATIONS, IntrudedStorage, Intrusion, every_intrusion

import icefloe

OURS, MINE = 7, 77


def commit_cell(repo: icefloe.Repository, index: int) -> str:
    with repo.transaction("main", message=f"cell {index}") as store:
        root = zarr.open_group(store, mode="a")
        if "a" not in root:
            root.create_array("a", shape=(9,), chunks=(1,), dtype="i8")
        root["a"][index] = OURS  # type: ignore[index]
    return repo.lookup_branch("main")


def cells(repo: icefloe.Repository) -> Any:
    return zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:]


async def expire(repo: icefloe.Repository, *snapshots: str) -> None:
    with contextlib.suppress(icefloe.ConflictError):
        await repo.expire_snapshots_async(snapshots=list(snapshots))


async def collect(repo: icefloe.Repository) -> None:
    with contextlib.suppress(icefloe.ConflictError):
        await repo.garbage_collect_async(dt.datetime.now(dt.UTC), ignore_running_sessions=True)


def commit_while(generation: str, index: int, intrusion: Intrusion, is_expired: bool) -> tuple[str, Any]:
    """Commit a cell on top of two commits that it has missed, of which the first is expired and collected meanwhile.

    Returns how the commit ended, and the values after it.
    """
    inner = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(inner, spec_version=generation)
    commit_cell(repo, 8)
    mine = icefloe.Repository.open(IntrudedStorage(inner, intrusion)).writable_session("main")
    zarr.open_array(mine.store, path="a", mode="r+")[index] = MINE
    first, _ = commit_cell(repo, 0), commit_cell(repo, 1)
    if is_expired:
        repo.expire_snapshots(snapshots=[first])

    async def others() -> None:
        other = await icefloe.Repository.open_async(inner)
        if not is_expired:
            await expire(other, first)
        await collect(other)

    intrusion.run = others
    outcome = "committed"
    try:
        mine.commit("mine", rebase_with=icefloe.ConflictDetector())
    except icefloe.IcefloeError as error:
        outcome = type(error).__name__
    intrusion.run = None
    after = icefloe.Repository.open(inner)
    assert after.verify().is_clean
    return outcome, cells(after)


@pytest.mark.every_generation
@pytest.mark.parametrize("is_expired", [False, True], ids=["expires", "collects"])
@pytest.mark.parametrize("index", [0, 1, 5])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_commit_meets_every_conflict_whenever_others_expire_and_collect(
    generation: str, index: int, is_expired: bool
) -> None:
    for intrusion in every_intrusion():
        outcome, values = commit_while(generation, index, intrusion, is_expired)
        where = f"others came before request {intrusion.before}"
        assert values[[0, 1, 8]].tolist() == [OURS, OURS, OURS], where
        if index == 5:
            assert (outcome, values[5]) in (("committed", MINE), ("ConflictError", 0)), where
        else:
            assert outcome in ("RebaseFailedError", "ConflictError"), where
    assert intrusion.before > 5, "a commit that was rebased takes several requests"
