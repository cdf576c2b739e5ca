"""An expiry that runs inside another one, at any of its requests: history is whole and logs tell of everything."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zarr
from tests.maintenance.histories import GENERATIONS
from tests.maintenance.test_expired_bases import INLINE, NEVER, Interrupted

import icefloe
from icefloe.blocking import run_blocking
from icefloe.maintenance.expire import ExpiryPlan, ExpiryRequest, apply_expiry, plan_expiry_of

pytestmark = pytest.mark.every_generation

LOOSE = icefloe.RepositoryConfig(
    inline_chunk_threshold_bytes=0, chunk_packing=icefloe.ChunkPackingConfig(enabled=False)
)
"""Every chunk is an object of its own, so that a compaction packs them."""


def make_history(
    generation: str, config: icefloe.RepositoryConfig = INLINE
) -> tuple[icefloe.Repository, Interrupted, icefloe.Repository]:
    inner = icefloe.in_memory_storage()
    others = icefloe.Repository.create(inner, config, spec_version=generation)
    for name in ("a", "b"):
        with others.transaction("main", message=name) as store:
            zarr.create_array(store, name=name, shape=(6,), chunks=(1,), dtype="i8", compressors=None)[:] = 1
    with others.transaction("main", message="last") as store:
        zarr.open_array(store, path="a").resize((4,))
        zarr.create_array(store, name="c", shape=(6,), chunks=(1,), dtype="i8", compressors=None)[:] = 1
    slow = Interrupted(inner)
    return others, slow, icefloe.Repository.open(slow, config)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_expiries_at_the_same_time_leave_logs_that_tell_of_everything(generation: str) -> None:
    for request in range(1, NEVER):
        others, slow, repo = make_history(generation)
        expired = [info.id for info in others.ancestry(branch="main")][1]
        slow.action = lambda others=others: others.expire_snapshots(dt.timedelta(0))  # type: ignore[misc]
        slow.left = request
        with contextlib.suppress(icefloe.SnapshotNotFoundError):
            repo.expire_snapshots(snapshots=[expired])
        report = icefloe.Repository.open(others.storage).verify()
        assert report.is_clean, f"before request {request}: {report}"
        if slow.left > 0:
            return
    raise AssertionError("an expiry has no end")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_an_expiry_of_all_commits_follows_one_of_a_single_commit_that_ran_meanwhile(generation: str) -> None:
    for request in range(1, NEVER):
        others, slow, repo = make_history(generation)
        expired = [info.id for info in others.ancestry(branch="main")][1]

        # The other process has planned its expiry, and applies it at some request of this one.
        plan = run_blocking(plan_expiry_of(others.context, ExpiryRequest(snapshots=frozenset([expired]))))

        def expire_one(others: icefloe.Repository = others, plan: ExpiryPlan = plan) -> None:
            run_blocking(apply_expiry(others.context, plan))

        slow.action, slow.left = expire_one, request
        repo.expire_snapshots(dt.timedelta(0))
        report = icefloe.Repository.open(others.storage).verify()
        assert report.is_clean, f"before request {request}: {report}"
        if slow.left > 0:
            return
    raise AssertionError("an expiry has no end")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_collection_is_not_stopped_by_what_a_refused_commit_left(generation: str) -> None:
    for request in range(1, NEVER):
        others, slow, repo = make_history(generation)
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="c", mode="r+")[0] = 7
        cutoff = dt.datetime.now(dt.UTC)

        def run_nightly(others: icefloe.Repository = others, cutoff: dt.datetime = cutoff) -> None:
            with others.transaction("main", message="all of it again") as store:
                for name in ("a", "b", "c"):
                    zarr.open_array(store, path=name)[:] = 2
            others.expire_snapshots(dt.timedelta(0))
            others.garbage_collect(cutoff, ignore_running_sessions=True)

        slow.action, slow.left = run_nightly, request
        with contextlib.suppress(icefloe.ConflictError, icefloe.SessionStateError):
            session.commit("late")
        # A snapshot file that was written before the commit was refused is young, and what it names is gone.
        others.garbage_collect(cutoff, ignore_running_sessions=True)
        assert icefloe.Repository.open(others.storage).verify().is_clean, f"before request {request}"
        if slow.left > 0:
            return
    raise AssertionError("a commit has no end")


def late_writer(others: icefloe.Repository, repo: icefloe.Repository) -> icefloe.Session:
    """A session that replaced chunks, and then the branch was compacted."""
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="b", mode="r+")[:] = 7
    others.compact("main")
    return session


def commit_late(session: icefloe.Session, request: int) -> None:
    """Commit, or learn that history no longer contains the base. Nobody else wrote chunks, so none are in conflict."""
    try:
        session.commit("late", rebase_with=icefloe.ConflictDetector())
    except icefloe.RebaseFailedError as error:
        raise AssertionError(f"at request {request}: {error}") from error
    except icefloe.ConflictError:
        return


@pytest.mark.parametrize("generation", [g for g in GENERATIONS if g not in ("dataset", "store")])
def test_a_compaction_is_no_conflict_while_history_expires(generation: str) -> None:
    for request in range(1, NEVER):
        others, slow, repo = make_history(generation, LOOSE)
        session = late_writer(others, repo)
        slow.action = lambda others=others: others.expire_snapshots(dt.timedelta(0))  # type: ignore[misc]
        slow.left = request
        commit_late(session, request)
        if slow.left > 0:
            return
    raise AssertionError("a commit has no end")


@pytest.mark.parametrize("generation", [g for g in GENERATIONS if g not in ("dataset", "store")])
def test_a_compaction_is_no_conflict_after_an_expiry_that_died(generation: str) -> None:
    def die() -> None:
        raise RuntimeError("the process died")

    for request in range(1, NEVER):
        others, slow, dying = make_history(generation, LOOSE)
        session = late_writer(others, others)
        slow.action, slow.left = die, request
        with contextlib.suppress(RuntimeError):
            dying.expire_snapshots(dt.timedelta(0))
        if slow.left > 0:
            return
        commit_late(session, request)
    raise AssertionError("an expiry has no end")


CHANGES: dict[str, Callable[[Any], object]] = {
    "makes the array smaller": lambda root: root["b"].resize((1,)),
    "deletes the array": lambda root: root.__delitem__("b"),
    "changes its attributes": lambda root: root["b"].attrs.update(units="K"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_conflict_is_found_while_history_expires(generation: str, change: str) -> None:
    for request in range(1, NEVER):
        others, slow, repo = make_history(generation)
        session = repo.writable_session("main")
        array = zarr.open_array(session.store, path="b", mode="r+")
        if change == "changes its attributes":
            array.attrs["units"] = "m"
        else:
            array[3] = 7
        with others.transaction("main", message="another array") as store:
            zarr.open_array(store, path="c")[:] = 5
        with others.transaction("main", message=change) as store:
            CHANGES[change](zarr.open_group(store))
        slow.action = lambda others=others: others.expire_snapshots(dt.timedelta(0))  # type: ignore[misc]
        slow.left = request
        with pytest.raises(icefloe.ConflictError):
            session.commit("late", rebase_with=icefloe.ConflictDetector())
        if slow.left > 0:
            return
    raise AssertionError("a commit has no end")


def make_changeable_history(generation: str) -> tuple[icefloe.Repository, Interrupted, icefloe.Repository]:
    """Commits that make, change, shrink and delete arrays, so that every log has something which only it contains."""
    others, slow, repo = make_history(generation)
    with others.transaction("main", message="delete one, change one") as store:
        root = zarr.open_group(store)
        del root["c"]
        root["b"].attrs["units"] = "K"
    others.create_branch("side", others.lookup_branch("main"))
    with others.transaction("side", message="an array of the other branch") as store:
        zarr.create_array(store, name="s", shape=(2,), chunks=(1,), dtype="i8", compressors=None)[:] = 1
    with others.transaction("main", message="one more") as store:
        zarr.create_array(store, name="d", shape=(6,), chunks=(1,), dtype="i8", compressors=None)[:] = 1
        zarr.open_array(store, path="b")[2] = 3
    return others, slow, repo


def amend_with_deletion(repo: icefloe.Repository) -> object:
    session = repo.writable_session("main")
    root = zarr.open_group(session.store)
    del root["a"]
    root["d"][1] = 5
    return session.amend("amended")


def ids_of(repo: icefloe.Repository) -> list[str]:
    return [info.id for info in repo.ancestry(branch="main")]


WRITES: dict[str, Callable[[icefloe.Repository], object]] = {
    "squash": lambda repo: repo.squash("main", ids_of(repo)[-2], message="one"),
    "amend": amend_with_deletion,
    "merge": lambda repo: repo.merge("side", "main"),
    "cherry-pick": lambda repo: repo.cherry_pick(repo.lookup_branch("side"), "main"),
    "revert": lambda repo: repo.revert(repo.lookup_branch("main"), "main"),
    "compact": lambda repo: repo.compact("main"),
    "rewrite": lambda repo: repo.rewrite_manifests("again", branch="main"),
    "rewrite and amend": lambda repo: repo.rewrite_manifests("again", branch="main", commit_method="amend"),
}
EXPIRIES: dict[str, Callable[[icefloe.Repository], object]] = {
    "everything": lambda repo: repo.expire_snapshots(dt.timedelta(0)),
    "the newest but one": lambda repo: repo.expire_snapshots(snapshots=ids_of(repo)[1:2]),
    "one in the middle": lambda repo: repo.expire_snapshots(snapshots=ids_of(repo)[2:3]),
}


def run_interleaved(generation: str, verb: str, expiry: str, first: int, second: int) -> tuple[bool, bool]:
    """An expiry up to one of its requests, a verb up to one of its own, the rest of the expiry, the rest of the verb.

    Returns whether the two requests exist.
    """
    others, slow, repo = make_changeable_history(generation)
    paused = Interrupted(others.storage)
    expirer = icefloe.Repository.open(paused, INLINE)
    reached, resume = threading.Event(), threading.Event()

    def pause() -> None:
        reached.set()
        resume.wait()

    paused.action, paused.left = pause, first

    def expire() -> None:
        with contextlib.suppress(icefloe.IcefloeError):
            EXPIRIES[expiry](expirer)
        reached.set()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(expire)
        reached.wait()

        def finish() -> None:
            resume.set()
            running.result()

        slow.action, slow.left = finish, second
        try:
            with contextlib.suppress(icefloe.ConflictError, icefloe.NotFoundError):
                WRITES[verb](repo)
        finally:
            finish()
    report = icefloe.Repository.open(others.storage).verify()
    assert report.is_clean, f"expiry up to request {first}, {verb} up to request {second}: {report}"
    return paused.left <= 0, slow.left <= 0


@pytest.mark.parametrize("cases", [3, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("expiry", EXPIRIES)
@pytest.mark.parametrize("verb", WRITES)
@pytest.mark.parametrize("generation", [g for g in GENERATIONS if g not in ("dataset", "store")])
def test_what_writes_a_commit_leaves_whole_logs_while_history_expires(
    generation: str, verb: str, expiry: str, cases: int
) -> None:
    order = random.Random(f"{generation} {verb} {expiry}")  # the same cases in every run
    longest = [40, 60]
    for _ in range(cases):
        first, second = order.randrange(1, longest[0] + 1), order.randrange(1, longest[1] + 1)
        exist = run_interleaved(generation, verb, expiry, first, second)
        longest = [
            limit if exists else min(limit, max(2, number - 1))
            for limit, exists, number in zip(longest, exist, (first, second), strict=True)
        ]
