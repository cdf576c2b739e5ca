"""Expiry takes exactly what was asked for out of history, and history stays walkable."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from tests.maintenance.histories import GENERATIONS, INLINE, LARGE, PACKED, Past, make_past, messages, now

import icefloe
from icefloe.blocking import run_blocking
from icefloe.ledger.ledger import HistoryChange
from icefloe.maintenance.expire import ExpiryRequest, RetentionRule, plan_expiry
from icefloe.maintenance.inventory import History, RefTargets
from icefloe.model.snapshot import SnapshotInfo
from icefloe.storage.contract import Storage
from icefloe.storage.wrappers import Operation, WrappedStorage

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class Recording(WrappedStorage):
    """Remembers the keys that are written."""

    def __init__(self, inner: Storage, written: list[str] | None = None) -> None:
        super().__init__(inner)
        self.written: list[str] = [] if written is None else written

    def _rewrap(self, inner: Storage) -> Storage:
        return Recording(inner, self.written)

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[Any]]) -> Any:
        if operation.method in ("put", "create", "swap", "copy"):
            self.written.append(operation.key)
        return await call()


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("tagged", [(), (1,), (2, 4), (0, 3, 5)], ids=str)
def test_expiry_writes_no_file_of_what_it_expires_so_that_the_next_collection_takes_it(
    generation: str, tagged: tuple[int, ...]
) -> None:
    storage = Recording(icefloe.in_memory_storage())
    repo = icefloe.Repository.create(storage, icefloe.RepositoryConfig(), spec_version=generation)
    ids = []
    for number in range(8):
        with repo.transaction("main", message=f"commit {number}") as store:
            zarr.create_array(store, name="a", shape=(3,), chunks=(1,), dtype="i8", overwrite=True)[:] = number + 1
        ids.append(repo.lookup_branch("main"))
    for number in tagged:
        repo.create_tag(f"keep-{number}", ids[number])
    storage.written.clear()
    cutoff = now()
    expired = repo.expire_snapshots(cutoff)
    assert expired == {each for number, each in enumerate(ids[:-1]) if number not in tagged}
    rewritten = {each for each in expired for key in storage.written if each in key}
    assert not rewritten, "a file that is written again is young again: a collection keeps it for another grace period"
    collected = repo.garbage_collect(cutoff, ignore_running_sessions=True)
    assert collected.snapshots_deleted == len(expired)


@pytest.fixture(params=GENERATIONS)
def past(request: pytest.FixtureRequest) -> Past:
    return make_past(icefloe.in_memory_storage(), request.param)


def test_the_newest_commits_stay_and_history_leads_to_the_first(past: Past) -> None:
    expired = past.repo.expire_snapshots(retain_last=2)
    assert len(expired) == 4
    for repo in (past.repo, icefloe.Repository.open(past.repo.storage)):
        assert messages(repo) == ["c 5 on main", "b 4 on main", "Repository initialized"]
    past.check()
    assert past.repo.expire_snapshots(retain_last=2) == set()


def test_age_decides_and_the_tip_stays(past: Past) -> None:
    ids = [info.id for info in past.repo.ancestry(branch="main")]
    cutoff = next(info.written_at for info in past.repo.ancestry(branch="main") if info.id == ids[2])
    assert past.repo.expire_snapshots(cutoff) == set(ids[3:-1])
    assert past.repo.expire_snapshots(now()) == set(ids[1:3])
    assert [info.id for info in past.repo.ancestry(branch="main")] == [ids[0], ids[-1]]


def test_tags_and_other_branches_hold_what_they_point_at(past: Past) -> None:
    repo, ids = past.repo, [info.id for info in past.repo.ancestry(branch="main")]
    repo.create_tag("old", ids[4])
    repo.create_branch("dev", ids[3])
    past.commit("dev", seed=77)
    repo.expire_snapshots(now())
    again = icefloe.Repository.open(repo.storage)
    assert again.lookup_tag("old") == ids[4]
    assert [info.id for info in again.ancestry(branch="main")] == [ids[0], ids[4], ids[-1]]
    assert messages(again, "dev")[0] == "a 77 on dev"
    assert [info.id for info in again.ancestry(tag="old")] == [ids[4], ids[-1]]
    past.check()


def test_expired_branches_go_when_told(past: Past) -> None:
    repo, ids = past.repo, [info.id for info in past.repo.ancestry(branch="main")]
    repo.create_branch("dev", ids[3])
    repo.expire_snapshots(now(), delete_expired_branches=True)
    assert icefloe.Repository.open(repo.storage).list_branches() == {"main"}


def test_expired_tags_go_where_tags_can(past: Past) -> None:
    repo, ids = past.repo, [info.id for info in past.repo.ancestry(branch="main")]
    repo.create_tag("old", ids[3])
    if repo.context.capabilities.deletable_tags:
        repo.expire_snapshots(now(), delete_expired_tags=True)
        assert icefloe.Repository.open(repo.storage).list_tags() == set()
    else:
        with pytest.raises(icefloe.UnsupportedError, match="old"):
            repo.expire_snapshots(now(), delete_expired_tags=True)


def test_named_snapshots_expire_but_no_tip_does(past: Past) -> None:
    ids = [info.id for info in past.repo.ancestry(branch="main")]
    past.repo.expire_snapshots(snapshots=[ids[2], ids[3]])
    assert [info.id for info in past.repo.ancestry(branch="main")] == [ids[0], ids[1], *ids[4:]]
    with pytest.raises(icefloe.InvalidInputError, match="branch main"):
        past.repo.expire_snapshots(snapshots=[ids[0]])
    with pytest.raises(icefloe.SnapshotNotFoundError):
        past.repo.expire_snapshots(snapshots=["0" * len(ids[0])])


def test_a_plan_changes_nothing(past: Past) -> None:
    before = messages(past.repo)
    plan = past.repo.plan_expiry(retain_last=1)
    assert len(plan.expired) == 5 and "5 snapshots to expire" in str(plan)
    assert messages(icefloe.Repository.open(past.repo.storage)) == before


def test_what_a_snapshot_changed_can_still_be_told(past: Past) -> None:
    repo, ids = past.repo, [info.id for info in past.repo.ancestry(branch="main")]
    old = repo.diff(from_snapshot_id=ids[-1], to_snapshot_id=ids[0])
    repo.expire_snapshots(retain_last=1)
    new = icefloe.Repository.open(repo.storage).diff(from_snapshot_id=ids[-1], to_snapshot_id=ids[0])
    assert new.new_arrays == old.new_arrays == {"/a", "/b", "/c"}
    assert new.new_groups == old.new_groups


def test_a_writer_that_missed_expired_commits_still_meets_their_conflicts(past: Past) -> None:
    repo = past.repo
    repo.create_branch("work", repo.lookup_branch("main"))
    repo.create_tag("base", repo.lookup_branch("work"))
    late = repo.writable_session("work")
    zarr.open_array(late.store, path="a", mode="r+")[0] = 1
    for value in (2, 3):
        session = repo.writable_session("work")
        zarr.open_array(session.store, path="a" if value == 2 else "b", mode="r+")[0] = value
        session.commit(str(value))
    repo.expire_snapshots(retain_last=1)
    with pytest.raises(icefloe.RebaseFailedError):
        late.commit("late", rebase_with=icefloe.ConflictDetector())


def test_a_commit_of_a_session_from_before_the_expiry_lands_and_is_walkable(past: Past) -> None:
    session = past.repo.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("late")
    past.repo.expire_snapshots(retain_last=1)
    past.repo.garbage_collect(now(), ignore_running_sessions=True)
    session.commit("late")
    again = icefloe.Repository.open(past.repo.storage)
    assert messages(again)[0] == "late" and messages(again)[-1] == "Repository initialized"
    again.expire_snapshots(retain_last=2)
    assert messages(icefloe.Repository.open(past.repo.storage)) == ["late", "c 5 on main", "Repository initialized"]
    again.garbage_collect(now())
    past.check()


def test_long_histories_with_quotes_stay_walkable() -> None:
    past = make_past(icefloe.in_memory_storage(), "repository", commits=0)
    for number in range(80):
        past.commit(seed=number, size=4)
    past.repo.expire_snapshots(retain_last=40)
    assert len(messages(icefloe.Repository.open(past.repo.storage))) == 41
    past.repo.garbage_collect(now())
    assert len(messages(icefloe.Repository.open(past.repo.storage))) == 41
    past.check()


@st.composite
def histories(draw: st.DrawFn) -> History:
    count = draw(st.integers(1, 15))
    infos: dict[str, SnapshotInfo] = {}
    for number in range(count):
        parent = None if number == 0 else f"s{draw(st.integers(0, number - 1))}"
        infos[f"s{number}"] = SnapshotInfo(f"s{number}", parent, START + dt.timedelta(days=number), "")
    ids = st.sampled_from(sorted(infos))
    branches = {"main": draw(ids), **draw(st.dictionaries(st.sampled_from(["dev", "rel-1", "rel-2"]), ids))}
    history = History(RefTargets(branches, draw(st.dictionaries(st.sampled_from(["v1", "v2"]), ids))), infos)
    reachable = {info.id for start in history.refs.targets() for info in history.chain(start)}
    return History(history.refs, {key: infos[key] for key in infos if key in reachable})


RULES = st.lists(
    st.builds(
        RetentionRule,
        pattern=st.sampled_from(["*", "branch:*", "tag:v*", "rel-*", "main"]),
        keep_for=st.none() | st.integers(0, 15).map(lambda days: dt.timedelta(days=days)),
        keep_last=st.integers(1, 5),
        forever=st.booleans(),
    ),
    max_size=2,
)


@given(histories(), st.integers(0, 16), st.none() | st.integers(1, 5), RULES, st.booleans())
def test_any_expiry_leaves_a_history_in_which_every_ref_leads_to_a_root(
    history: History, days: int, last: int | None, rules: list[RetentionRule], delete: bool
) -> None:
    cutoff = START + dt.timedelta(days=days)
    now = START + dt.timedelta(days=16)
    request = ExpiryRequest(cutoff, last, rules, delete_branches=delete, delete_tags=delete, now=now)
    plan = plan_expiry(history, request)
    expired = plan.change.expired
    kept = {**{n: s for n, s in history.refs.branches.items() if n not in plan.change.branches}}
    kept |= {f"tag {n}": s for n, s in history.refs.tags.items() if n not in plan.change.tags}
    assert "main" in kept
    assert expired.isdisjoint(kept.values()) and expired.isdisjoint(history.roots())
    for start in kept.values():
        ancestors = [info.id for info in history.chain(start)]
        current: str | None = start
        walked = []
        while current is not None:
            walked.append(current)
            current = plan.change.parents.get(current, history.snapshots[current].parent_id)
        assert walked == [each for each in ancestors if each not in expired]
    for info in plan.expired:
        assert info.written_at < cutoff or rules


@pytest.mark.parametrize("size", [LARGE, PACKED, INLINE])
@pytest.mark.parametrize("version", GENERATIONS)
def test_a_writer_on_what_is_being_expired_does_not_meet_its_own_changes(
    version: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = make_past(icefloe.in_memory_storage(), version, commits=0)
    past.commit(size=size, name="a")
    repo = past.repo
    for chunk in (1, 2):
        _write(repo.writable_session("main"), size, chunk, chunk).commit("earlier")
    late = _write(repo.writable_session("main"), size, 2, 8)
    _write(repo.writable_session("main"), size, 0, 4).commit("others")

    async def die(change: HistoryChange) -> None:
        raise icefloe.StorageError("dead between logs and history")

    monkeypatch.setattr(repo.context.ledger, "change_history", die)
    with pytest.raises(icefloe.StorageError, match="dead"):
        _expire_in_files(repo)
    theirs = icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseTheirs)
    late.commit("late", rebase_with=theirs)
    found = zarr.open_array(icefloe.Repository.open(repo.storage).readonly_session("main").store, path="a", mode="r")
    assert [int(found[chunk * size]) for chunk in range(3)] == [4, 1, 8]


def _expire_in_files(repo: icefloe.Repository) -> None:
    """Expire all but the tip. A collection writes an expiry to the files that is only recorded."""
    repo.expire_snapshots(retain_last=1)
    repo.garbage_collect(now(), ignore_running_sessions=True)


def _write(session: icefloe.Session, size: int, chunk: int, value: int) -> icefloe.Session:
    zarr.open_array(session.store, path="a", mode="r+")[chunk * size : (chunk + 1) * size] = value
    return session


class Overtaken(WrappedStorage):
    """Does something just before the first replacement of an object."""

    def __init__(self, inner: Storage, before: list[Callable[[], Awaitable[None]]]) -> None:
        super().__init__(inner)
        self.before = before

    def _rewrap(self, inner: Storage) -> Storage:
        return Overtaken(inner, self.before)

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[Any]]) -> Any:
        if operation.method == "swap" and self.before:
            await self.before.pop()()
        return await call()


def test_an_expiry_that_another_writer_overtakes_is_repeated_and_leaves_no_backup_behind() -> None:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version="icechunk2")
    for number in range(4):
        with repo.transaction("main", message=f"commit {number}") as store:
            zarr.create_group(store, path=f"g{number}")

    async def commit() -> None:
        session = await repo.writable_session_async("main")
        await zarr.api.asynchronous.create_group(store=session.store, path="other")
        await session.commit_async("meanwhile")

    overtaken = Overtaken(storage, [commit])
    assert len(icefloe.Repository.open(overtaken).expire_snapshots(now())) == 3
    assert not overtaken.before
    kept = [info.message for info in repo.ancestry(branch="main")]
    assert kept[:2] == ["meanwhile", "commit 3"] and len(kept) == 3
    backups = run_blocking(storage.list_names("overwritten/"))
    assert set(backups) == {update.backup_path for update in repo.ops_log()} - {None}


def test_a_repository_that_is_set_to_read_only_refuses_an_expiry() -> None:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version="icechunk2")
    with repo.transaction("main", message="one") as store:
        zarr.create_group(store)
    with repo.transaction("main", message="two") as store:
        zarr.create_group(store, path="a")
    late = icefloe.Repository.open(storage)
    repo.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.read_only))
    with pytest.raises(icefloe.ReadOnlyError):
        late.expire_snapshots(now())
    assert len(list(late.ancestry(branch="main"))) == 3
