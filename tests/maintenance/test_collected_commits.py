"""A commit that refers to collected objects is refused, whatever the grace period was; others cost nothing more."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable

import numpy as np
import pytest
import zarr
from tests.maintenance.histories import GENERATIONS

import icefloe
from icefloe.blocking import run_blocking
from icefloe.maintenance.collect import CollectionRequest, apply_plan, plan_collection_of
from icefloe.maintenance.inventory import open_uncached
from icefloe.session.open_repository import RECORDS, Announcement, list_collections
from icefloe.storage.contract import Storage
from icefloe.testing.storages import CountingStorage

SINGLE = icefloe.RepositoryConfig(
    inline_chunk_threshold_bytes=0, chunk_packing=icefloe.ChunkPackingConfig(enabled=False)
)
NOW = dt.timedelta(0)
Change = Callable[[icefloe.Session], None]


@pytest.fixture(params=GENERATIONS)
def storage(request: pytest.FixtureRequest) -> Storage:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, SINGLE, spec_version=request.param)
    with repo.transaction("main", message="array") as store:
        zarr.create_group(store)
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="i8", compressors=None)[:] = 1
    return storage


def open_repo(storage: Storage) -> icefloe.Repository:
    return icefloe.Repository.open(storage, SINGLE)


def collect(storage: Storage) -> icefloe.GCSummary:
    return open_repo(storage).garbage_collect(NOW, ignore_running_sessions=True)


def read(storage: Storage) -> list[int]:
    session = open_repo(storage).readonly_session("main")
    return np.asarray(zarr.open_array(session.store, path="a", mode="r")[:]).tolist()


def write(session: icefloe.Session) -> None:
    zarr.open_array(session.store, path="a")[0] = 7


def write_in_fork(session: icefloe.Session) -> None:
    fork = session.fork()
    zarr.open_array(fork.store, path="a")[0] = 7
    session.merge(fork)


def write_in_parts(session: icefloe.Session) -> None:
    fork = session.fork()
    zarr.open_array(fork.store, path="a")[0] = 7
    session.link_parts([fork.write_parts()])


def write_and_rebase(session: icefloe.Session) -> None:
    write(session)
    with open_repo(session.state.context.storage).transaction("main", message="other") as store:
        zarr.create_group(store, path="other")
    session.rebase(icefloe.ConflictDetector())


CHANGES: list[Change] = [write, write_in_fork, write_in_parts, write_and_rebase]


@pytest.mark.every_generation
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("how", ["commit", "amend", "flush", "rebase"])
def test_a_commit_whose_chunks_were_collected_is_refused_before_it_lands(
    storage: Storage, change: Change, how: str
) -> None:
    session = open_repo(storage).writable_session("main")
    change(session)
    collect(storage)
    options = {}
    if how == "rebase":
        with open_repo(storage).transaction("main", message="another") as store:
            zarr.create_group(store, path="another")
        how, options = "commit", {"rebase_with": icefloe.ConflictDetector()}
    standing = open_repo(storage).lookup_branch("main")
    with pytest.raises(icefloe.SessionStateError, match="garbage collected"):
        getattr(session, how)("late", **options)
    assert open_repo(storage).lookup_branch("main") == standing
    assert open_repo(storage).verify().is_clean
    assert read(storage) == [1, 1, 1, 1]


@pytest.mark.parametrize("how", ["commit", "amend"])
def test_a_commit_whose_chunks_are_there_lands_after_a_collection(storage: Storage, how: str) -> None:
    with open_repo(storage).transaction("main", message="overwritten") as store:
        zarr.open_array(store, path="a")[1] = 2
    open_repo(storage).expire_snapshots(retain_last=1)
    cutoff = dt.datetime.now(dt.UTC)
    session = open_repo(storage).writable_session("main")
    write(session)
    assert open_repo(storage).garbage_collect(cutoff, ignore_running_sessions=True).chunks_deleted == 1
    getattr(session, how)("late")
    assert read(storage) == [7, 2, 1, 1]
    assert open_repo(storage).verify().is_clean
    collect(storage)
    assert read(storage) == [7, 2, 1, 1]


def test_a_collection_keeps_what_commits_refer_to_that_were_faster(storage: Storage) -> None:
    session = open_repo(storage).writable_session("main")
    write(session)
    repo = open_repo(storage)
    uncached = open_uncached(repo.context)
    marking = run_blocking(plan_collection_of(uncached, CollectionRequest(NOW, ignore_running=True)))
    assert len(marking.plan.garbage["chunks"]) == 1
    session.commit("faster than the deletion")
    assert len(run_blocking(apply_plan(repo.context, uncached, marking)).garbage["chunks"]) == 0
    assert read(storage) == [7, 1, 1, 1]
    assert open_repo(storage).verify().is_clean


@pytest.mark.every_generation
def test_a_commit_waits_for_a_collection_that_may_still_delete_its_chunks(storage: Storage) -> None:
    repo = open_repo(storage)
    session, others = repo.writable_session("main"), open_repo(storage).context.ledger
    write(session)

    async def run() -> None:
        announcement = Announcement(storage, dt.datetime.now(dt.UTC))
        await announcement.begin()
        await others.announce_collection(announcement.record.id, soon=True)
        committing = asyncio.create_task(session.commit_async("waits"))
        await asyncio.sleep(0.3)
        assert not committing.done()
        await announcement.end(finished=True)
        await asyncio.wait_for(committing, 10)

    run_blocking(run())
    assert read(storage) == [7, 1, 1, 1]
    assert [record.running for record in run_blocking(list_collections(storage))] == [False]


def test_a_collection_that_cannot_tell_others_of_itself_stops() -> None:
    announcement = Announcement(icefloe.in_memory_storage(), dt.datetime.now(dt.UTC))
    announcement.check()
    announcement._renewed -= 100
    with pytest.raises(icefloe.StorageError, match="Collect again"):
        announcement.check()


@pytest.mark.parametrize("verb", ["cherry_pick", "revert"])
def test_changes_of_a_collected_snapshot_do_not_come_back(storage: Storage, verb: str) -> None:
    service = open_repo(storage)
    session = service.writable_session("main")
    write(session)
    lost = session.commit("lost")
    assert read(storage) == [7, 1, 1, 1]
    service.reset_branch("main", next(info.parent_id for info in service.ancestry(branch="main")))  # type: ignore[arg-type]
    assert zarr.open_array(service.readonly_session(snapshot_id=lost).store, path="a", mode="r")[0] == 7
    collect(storage)
    with pytest.raises(icefloe.IcefloeError):
        getattr(service, verb)(lost)
    with pytest.raises(icefloe.IcefloeError):
        service.create_branch("again", lost)
    with pytest.raises(icefloe.IcefloeError):
        service.create_tag("again", lost)
    assert open_repo(storage).verify().is_clean
    assert read(storage) == [1, 1, 1, 1]


def test_a_commit_costs_the_same_before_and_after_a_collection(storage: Storage) -> None:
    counting = CountingStorage(storage)
    repo = icefloe.Repository.open(counting, SINGLE)

    def cost() -> int:
        counting.counts.reset()
        with repo.transaction("main", message="tiny") as store:
            zarr.open_array(store, path="a")[0] = 5
        return counting.counts.total.requests

    cost()
    before = cost()
    collect(storage)
    assert cost() <= before + 1, "the snapshot is read once, because its ref was written again"
    assert cost() == before


def test_what_a_collection_judged_is_told(storage: Storage) -> None:
    cutoff = dt.datetime.now(dt.UTC)
    session = open_repo(storage).writable_session("main")
    write(session)
    summary = open_repo(storage).garbage_collect(cutoff, ignore_running_sessions=True)
    assert summary.cutoff == cutoff
    assert summary.objects_too_young >= 1
    assert summary.objects_in_use >= 6
    assert f"{cutoff:%Y-%m-%d %H:%M}" in summary.judged()


def test_one_record_of_collections_is_left(storage: Storage) -> None:
    for _ in range(3):
        write(open_repo(storage).writable_session("main"))
        assert collect(storage).chunks_deleted == 1
    records = run_blocking(storage.list_names(RECORDS))
    assert len(records) == 1 and records[0].endswith(".done")
