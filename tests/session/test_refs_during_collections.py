"""A branch or tag never points to a snapshot that a garbage collection deletes, whenever the two meet."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import zarr
from tests.session.intrusions import GENERATIONS, IntrudedStorage, Intrusion, every_intrusion

import icefloe
from icefloe.blocking import run_blocking
from icefloe.maintenance.expire import write_new_parents
from icefloe.session import open_repository
from icefloe.session.open_repository import announced
from icefloe.storage.contract import Storage

Verb = Callable[[icefloe.Repository, str], Awaitable[None]]
VERBS: dict[str, Verb] = {
    "reset main": lambda repo, target: repo.reset_branch_async("main", target),
    "reset": lambda repo, target: repo.reset_branch_async("dev", target),
    "tag": lambda repo, target: repo.create_tag_async("t", target),
    "branch": lambda repo, target: repo.create_branch_async("new", target),
}


def with_expired_snapshot(generation: str) -> tuple[Storage, str]:
    """A repository with branches `main` and `dev`, and a snapshot that is no longer in their history."""
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version=generation)
    ids = []
    for name in "abc":
        with repo.transaction("main", message=name) as store:
            zarr.open_group(store, mode="a").create_group(name)
        ids.append(repo.lookup_branch("main"))
    repo.create_branch("dev", ids[0])
    repo.expire_snapshots(snapshots=[ids[1]])
    return storage, ids[1]


async def collect(storage: Storage) -> None:
    repo = await icefloe.Repository.open_async(storage)
    with contextlib.suppress(icefloe.ConflictError):
        await repo.garbage_collect_async(dt.datetime.now(dt.UTC), ignore_running_sessions=True)


async def outcome(change: Awaitable[Any]) -> str:
    try:
        await change
    except icefloe.IcefloeError as error:
        return type(error).__name__
    return "done"


def check(storage: Storage, verb: str, target: str, ended: str, where: str) -> None:
    repo = icefloe.Repository.open(storage)
    assert repo.verify().is_clean, where
    refs = [repo.lookup_branch(name) for name in repo.list_branches()]
    refs += [repo.lookup_tag(name) for name in repo.list_tags()]
    assert (target in refs) == (ended == "done"), f"{verb}: {ended}; {where}"
    assert ended in ("done", "SnapshotNotFoundError", "InvalidInputError"), f"{ended}: {where}"
    for snapshot_id in refs:
        zarr.open_group(repo.readonly_session(snapshot_id=snapshot_id).store, mode="r")["a"]


@pytest.mark.every_generation
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_collection_before_any_request_of_a_change_leaves_no_ref_to_a_missing_snapshot(
    generation: str, verb: str
) -> None:
    for intrusion in every_intrusion():
        storage, target = with_expired_snapshot(generation)
        repo = icefloe.Repository.open(IntrudedStorage(storage, intrusion))
        intrusion.run = lambda storage=storage: collect(storage)  # type: ignore[misc]
        ended = run_blocking(outcome(VERBS[verb](repo, target)))
        intrusion.run = None
        check(storage, verb, target, ended, f"collected before request {intrusion.before}")
    assert intrusion.before > 2


@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_change_before_any_request_of_a_collection_leaves_no_ref_to_a_missing_snapshot(
    generation: str, verb: str
) -> None:
    async def both(storage: Storage, target: str, intrusion: Intrusion) -> str:
        changing: list[asyncio.Task[str]] = []

        async def change() -> None:
            repo = await icefloe.Repository.open_async(storage)
            changing.append(asyncio.create_task(outcome(VERBS[verb](repo, target))))
            for _ in range(50):  # it may wait for the collection, which waits here
                await asyncio.sleep(0)

        intrusion.run = change
        await collect(IntrudedStorage(storage, intrusion))
        intrusion.run = None
        return await changing[0] if changing else "never begun"

    for intrusion in every_intrusion():
        storage, target = with_expired_snapshot(generation)
        ended = run_blocking(both(storage, target, intrusion))
        if intrusion.happened:
            check(storage, verb, target, ended, f"changed before request {intrusion.before}")
    assert intrusion.before > 10


@pytest.mark.parametrize("verb", ["tag", "branch", "reset main"])
@pytest.mark.parametrize("generation", ["repository", "store", "icechunk1"])
def test_a_ref_to_a_snapshot_in_history_does_not_wait_for_a_running_collection(
    generation: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, expired = with_expired_snapshot(generation)
    repo = icefloe.Repository.open(storage)
    run_blocking(write_new_parents(repo.context))  # as every collection does first
    old = [info.id for info in repo.ancestry(branch="main")][1]
    monkeypatch.setattr(open_repository, "_WAIT_SECONDS", 0.2)

    async def during_collection(target: str) -> str:
        async with announced(storage, dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)):
            return await outcome(VERBS[verb](repo, target))

    assert run_blocking(during_collection(expired)) == "StorageError"
    assert expired not in {repo.lookup_branch("main"), *map(repo.lookup_branch, repo.list_branches())}
    assert not repo.list_tags()
    assert run_blocking(during_collection(old)) == "done"
