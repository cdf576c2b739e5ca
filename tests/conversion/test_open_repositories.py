"""Whoever still has a repository open that another process converts in place is told so, and does no harm."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import zarr
from tests.maintenance.test_expired_bases import Interrupted

import icefloe
from icefloe.blocking import run_blocking
from icefloe.conversion.survey import LossKind
from icefloe.ledger import repository, store, switch_generation
from icefloe.ledger.ledger import JOURNAL_KEY
from icefloe.storage.contract import Storage
from icefloe.storage.wrappers import WRITES

GENERATIONS = ("dataset", "store", "repository", "icechunk1", "icechunk2")
PAIRS = [f"{one} to {two}" for one, two in itertools.permutations(GENERATIONS, 2)]
ORDINARY = ("icechunk1 to icechunk2", "repository to icechunk2", "store to repository", "icechunk2 to dataset")
"""Pairs that are tried at every write in the ordinary run."""
SOME_PAIRS = [pytest.param(pair, marks=() if pair in ORDINARY else pytest.mark.slow) for pair in PAIRS]
CONFIG = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)


def write_first(repo: icefloe.Repository) -> None:
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, name="a", shape=(8,), chunks=(2,), dtype="i4", compressors=None)[:] = 1


def write(repo: icefloe.Repository, value: int) -> icefloe.Session:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:] = value
    return session


@pytest.mark.long
@pytest.mark.parametrize("pair", PAIRS)
def test_nothing_that_was_open_before_a_conversion_in_place_loses_data_after_it(pair: str) -> None:
    old, new = pair.split(" to ")
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version=old, config=CONFIG)
    write_first(repo)
    tip = repo.lookup_branch("main")
    late = write(repo, 9)
    icefloe.upgrade(storage, new, drop=list(LossKind))
    write(icefloe.Repository.open(storage, config=CONFIG), 2).commit("after")

    refused: dict[str, Callable[[], object]] = {
        "commit": lambda: late.commit("late"),
        "expire": lambda: repo.expire_snapshots(dt.timedelta(0)),
        "collect": lambda: repo.garbage_collect(dt.timedelta(0), ignore_running_sessions=True),
        "compact": lambda: repo.compact("main"),
        "rewrite": lambda: repo.rewrite_manifests("rewrite", branch="main"),
        "tag": lambda: repo.create_tag("late", tip),
        "branch": lambda: repo.create_branch("late", tip),
        "reset": lambda: repo.reset_branch("main", tip),
        "settings": repo.save_config,
    }
    for call in refused.values():
        with pytest.raises((icefloe.NotFoundError, icefloe.ConflictError)):
            call()

    found = icefloe.Repository.open(storage)
    assert found.spec_version.value == new
    assert found.verify().is_clean
    found.garbage_collect(dt.timedelta(days=1))
    found.garbage_collect(dt.timedelta(0), ignore_running_sessions=True)
    fresh = icefloe.Repository.open(storage)
    values = zarr.open_array(fresh.readonly_session("main").store, path="a", mode="r")[:]
    np.testing.assert_array_equal(values, np.full(8, 2))
    assert fresh.verify(repair=True).is_clean
    assert icefloe.Repository.open(storage).spec_version.value == new
    assert icefloe.Repository.recover(storage) == ()


class _InterruptedError(Exception):
    """The process that converts has died."""


def _calling(inner: Storage, number: int, call: Callable[[], None]) -> Interrupted:
    """A storage that calls a function before the write with a given number."""
    storage = Interrupted(inner, WRITES)
    storage.left, storage.action = number, call
    return storage


def _commit(session: icefloe.Session | None, storage: Storage) -> bool:
    """Whether a commit was acknowledged. Otherwise it was refused with an error that says why."""
    try:
        session = session or write(icefloe.Repository.open(storage, config=CONFIG), 9)
        session.commit("late")
    except (icefloe.NotFoundError, icefloe.ConflictError, icefloe.ReadOnlyError):
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
@pytest.mark.parametrize("opened", ["before", "during"])
@pytest.mark.parametrize("pair", SOME_PAIRS)
def test_no_commit_is_lost_whenever_it_meets_a_conversion_in_place(
    pair: str, opened: str, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = pair.split(" to ")
    for ledger in (repository, store, switch_generation):
        monkeypatch.setattr(ledger, "FRESH_SECONDS", -0.1)
    acknowledged = []
    for number in itertools.count(1):
        storage = icefloe.in_memory_storage()
        repo = icefloe.Repository.create(storage, spec_version=old, config=CONFIG)
        write_first(repo)
        late = write(repo, 9) if opened == "before" else None

        def meet() -> None:
            if dies:
                raise _InterruptedError
            acknowledged.append(_commit(late, storage))  # noqa: B023

        meeting = _calling(storage, number, meet)
        try:
            icefloe.upgrade(meeting, new, drop=list(LossKind))
        except _InterruptedError:
            acknowledged.append(_commit(late, storage))
            icefloe.upgrade(storage, new, drop=list(LossKind))
        if meeting.left > 0:
            break
        found = icefloe.Repository.open(storage)
        assert found.spec_version.value == new
        value = zarr.open_array(found.readonly_session("main").store, path="a", mode="r")[0]
        assert value == (9 if acknowledged[-1] else 1), f"before write {number}"
    assert len(acknowledged) == number - 1 > 3
    assert acknowledged[0]


@pytest.mark.long
@pytest.mark.parametrize("pair", ["repository to icechunk1", "icechunk1 to icechunk2", "icechunk2 to repository"])
def test_nothing_is_collected_while_a_conversion_is_unfinished(pair: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = pair.split(" to ")
    monkeypatch.setattr(switch_generation, "FRESH_SECONDS", -0.1)
    unfinished = 0
    for number in itertools.count(1):
        storage = icefloe.in_memory_storage()
        write_first(icefloe.Repository.create(storage, spec_version=old, config=CONFIG))

        def die() -> None:
            raise _InterruptedError

        dying = _calling(storage, number, die)
        with contextlib.suppress(_InterruptedError):
            icefloe.upgrade(dying, new)
        if dying.left > 0:
            break
        if run_blocking(storage.exists(JOURNAL_KEY)):
            unfinished += 1
            with pytest.raises(icefloe.ReadOnlyError, match="a conversion"):
                icefloe.Repository.open(storage).garbage_collect(dt.timedelta(0), ignore_running_sessions=True)
        if icefloe.Repository.open(storage).spec_version.value != new or run_blocking(storage.exists(JOURNAL_KEY)):
            icefloe.upgrade(storage, new)
        found = icefloe.Repository.open(storage)
        found.garbage_collect(dt.timedelta(0), ignore_running_sessions=True)
        assert zarr.open_array(found.readonly_session("main").store, path="a", mode="r")[0] == 1
    assert unfinished >= 5


@pytest.mark.long
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "elsewhere"])
@pytest.mark.parametrize("pair", SOME_PAIRS)
def test_history_may_expire_between_an_interrupted_conversion_and_its_second_run(
    pair: str, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = pair.split(" to ")
    monkeypatch.setattr(switch_generation, "FRESH_SECONDS", -0.1)

    def die() -> None:
        raise _InterruptedError

    for number in itertools.count(1):
        source = icefloe.in_memory_storage()
        target = source if in_place else icefloe.in_memory_storage()
        repo = icefloe.Repository.create(source, spec_version=old, config=CONFIG)
        write_first(repo)
        write(repo, 2).commit("second")
        dying = _calling(target, number, die)
        with contextlib.suppress(_InterruptedError):
            if in_place:
                icefloe.upgrade(dying, new, drop=list(LossKind))
            else:
                icefloe.convert(source, dying, new, drop=list(LossKind))
        if dying.left > 0:
            break
        with contextlib.suppress(icefloe.ReadOnlyError):
            icefloe.Repository.open(source).expire_snapshots(dt.timedelta(0))
        expected = [info.message for info in icefloe.Repository.open(source).ancestry(branch="main")]
        if in_place and icefloe.Repository.open(source).spec_version.value != new:
            icefloe.upgrade(source, new, drop=list(LossKind))
        elif not in_place and not icefloe.Repository.exists(target):
            icefloe.convert(source, target, new, drop=list(LossKind))
        found = icefloe.Repository.open(target)
        if in_place:
            assert [info.message for info in found.ancestry(branch="main")] == expected, f"before write {number}"
        assert zarr.open_array(found.readonly_session("main").store, path="a", mode="r")[0] == 2
        assert found.verify().is_clean, f"before write {number}"
    assert number > 3


def test_a_collection_judges_nothing_by_refs_without_main() -> None:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, config=CONFIG)
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, name="a", shape=(8,), chunks=(2,), dtype="i4")[:] = 1
    repo.create_branch("dev", repo.lookup_branch("main"))

    async def lose() -> None:
        keys = [item.key async for page in storage.list("refs/branch.main/") for item in page]
        await storage.delete(keys)

    run_blocking(lose())
    with pytest.raises(icefloe.RefNotFoundError, match="Nothing was deleted"):
        repo.garbage_collect(dt.timedelta(0), ignore_running_sessions=True)
