"""An expiry that is only recorded shows the same history as one that is written to files, until it is collected."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.maintenance.histories import GENERATIONS, Past, count, make_past, messages, now
from tests.maintenance.test_expire import Recording

import icefloe
from icefloe.blocking import run_blocking
from icefloe.conversion.convert import convert
from icefloe.ledger import repository
from icefloe.ledger.recover import recover
from icefloe.ledger.repository_refs import DOTTED, parse_sequence
from icefloe.maintenance import expire
from icefloe.maintenance.expire import write_new_parents
from icefloe.maintenance.inventory import fetch_history, open_uncached
from icefloe.storage.contract import Storage
from icefloe.storage.wrappers import WRITES, Operation, WrappedStorage


class Overtaken(WrappedStorage):
    """Does something just before a write of an object in a folder: before the first one, or after some others."""

    def __init__(
        self, inner: Storage, before: list[Callable[[], Awaitable[None]]], folder: str = "", others: int = 0
    ) -> None:
        super().__init__(inner)
        self.before = before
        self.folder = folder
        self.left = [others]

    def _rewrap(self, inner: Storage) -> Storage:
        wrapped = Overtaken(inner, self.before, self.folder)
        wrapped.left = self.left
        return wrapped

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[Any]]) -> Any:
        if self.before and operation.method in WRITES and operation.key.startswith(self.folder):
            self.left[0] -= 1
            if self.left[0] < 0:
                await self.before.pop()()
        return await call()


Step = tuple[str, int, int]
BRANCHES = ("main", "dev", "rel")


@dataclass(slots=True)
class Side:
    """A repository, and the snapshots of its commits by message."""

    is_written: bool
    """Whether every expiry is written to the files at once."""
    repo: icefloe.Repository = field(default_factory=lambda: icefloe.Repository.create(icefloe.in_memory_storage()))
    ids: dict[str, str] = field(default_factory=dict)

    def run(self, number: int, step: Step) -> object:
        """Carry out a step. Returns what the caller sees of it, without ids."""
        verb, which, value = step
        branches = sorted(self.repo.list_branches())
        branch = branches[which % len(branches)]
        shown = sorted(self.shown(), key=lambda message: list(self.ids).index(message))
        target = shown[value % len(shown)]
        try:
            if verb in ("commit", "amend"):
                self._commit(f"{verb} {number}", branch, value, amends=verb == "amend")
            elif verb == "tag":
                self.repo.create_tag(f"tag {number}", self.ids[target])
            elif verb == "branch":
                self.repo.create_branch(BRANCHES[which % 3], self.ids[target])
            elif verb == "reset":
                self.repo.reset_branch(branch, self.ids[target])
            elif verb == "delete":
                self.repo.delete_branch(branch)
            elif verb == "name":
                return self._expired(lambda: self.repo.expire_snapshots(snapshots=[self.ids[target]]))
            else:
                delete = verb == "expire branches"
                keep = 1 + value % 3
                return self._expired(
                    lambda: self.repo.expire_snapshots(retain_last=keep, delete_expired_branches=delete)
                )
        except icefloe.IcefloeError as error:
            return type(error).__name__
        return None

    def _expired(self, call: Callable[[], set[str]]) -> set[str]:
        found = call()
        if self.is_written:
            run_blocking(write_new_parents(self.repo.context))
        return {message for message, key in self.ids.items() if key in found}

    def _commit(self, message: str, branch: str, value: int, *, amends: bool) -> None:
        session = self.repo.writable_session(branch)
        group = zarr.open_group(session.store, mode="a")
        if "a" not in group:
            group.create_array("a", shape=(4,), chunks=(1,), dtype="i8")
        zarr.open_array(session.store, path="a", mode="r+")[value % 4] = 1 + len(self.ids)
        if value % 5 == 0:
            group.require_group(f"g{value}")
        self.ids[message] = session.amend(message) if amends else session.commit(message)

    def start(self) -> None:
        self.ids["Repository initialized"] = self.repo.lookup_branch("main")
        for number in range(3):
            self._commit(f"start {number}", "main", number, amends=False)

    def histories(self, repo: icefloe.Repository | None = None) -> dict[str, list[tuple[str, str | None]]]:
        """What every ref shows: messages, each with that of the parent."""
        repo = repo or self.repo
        names = {key: message for message, key in self.ids.items()}
        found = {}
        for kind, listed in (("branch", repo.list_branches()), ("tag", repo.list_tags())):
            for name in sorted(listed):
                infos = list(repo.ancestry(**{kind: name}))
                found[f"{kind} {name}"] = [(info.message, names.get(info.parent_id or "")) for info in infos]
        return found

    def shown(self) -> set[str]:
        return {message for history in self.histories().values() for message, _ in history}

    def diffs(self) -> dict[str, tuple[Any, ...]]:
        """What changed from each shown snapshot of `main` to the tip."""
        infos = list(self.repo.ancestry(branch="main"))
        found = {}
        for info in infos[1:]:
            diff = self.repo.diff(from_snapshot_id=info.id, to_branch="main")
            coords = {path: sorted(map(tuple, rows)) for path, rows in diff.updated_chunks.items()}
            found[info.message] = (diff.new_groups, diff.new_arrays, diff.deleted_groups, diff.updated_arrays, coords)
        return found


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [*["commit"] * 4, *["expire"] * 3, "amend", "tag", "branch", "reset", "delete", "name", "expire branches"]
        ),
        st.integers(0, 5),
        st.integers(0, 30),
    ),
    min_size=2,
    max_size=14,
)


@pytest.mark.long
@settings(deadline=None)
@given(STEPS)
def test_history_is_the_same_whether_expiries_are_recorded_or_written(steps: list[Step]) -> None:
    recorded, written = Side(False), Side(True)
    recorded.start()
    written.start()
    for number, step in enumerate(steps):
        assert recorded.run(number, step) == written.run(number, step), step
        assert recorded.histories() == written.histories(), step
    assert recorded.diffs() == written.diffs()
    for side in (recorded, written):
        before = side.histories()
        preview = side.repo.plan_garbage_collection(now()).summary()
        assert side.repo.garbage_collect(now(), ignore_running_sessions=True) == preview
        assert side.histories() == before
        assert side.histories(icefloe.Repository.open(side.repo.storage)) == before
        assert run_blocking(side.repo.context.ledger.fetch_new_parents()) == {}
        assert side.repo.verify().is_clean
    assert count(recorded.repo) == count(written.repo)
    assert recorded.diffs() == written.diffs()


def test_an_expiry_writes_one_file_of_main() -> None:
    storage = Recording(icefloe.in_memory_storage())
    past = make_past(storage, "repository")
    past.repo.create_branch("dev", past.repo.lookup_branch("main"))
    past.commit("dev", seed=9)
    storage.written.clear()
    assert len(past.repo.expire_snapshots(retain_last=1)) == 5
    assert [key.rpartition("/")[0] for key in storage.written] == ["refs/branch.main"]
    assert past.repo.expire_snapshots(retain_last=1) == set()
    assert len(storage.written) == 1
    past.check()


def test_every_later_file_of_main_repeats_the_record_until_garbage_is_collected() -> None:
    past = make_past(icefloe.in_memory_storage(), "repository")
    repo = past.repo
    repo.expire_snapshots(retain_last=2)
    shown = messages(repo)
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("more")
    session.commit("more")
    tip = repo.lookup_branch("main")
    repo.reset_branch("main", next(info.id for info in repo.ancestry(branch="main") if info.message == shown[1]))
    repo.reset_branch("main", tip)
    assert messages(icefloe.Repository.open(repo.storage)) == ["more", *shown]
    repo.garbage_collect(now(), ignore_running_sessions=True)
    assert run_blocking(icefloe.Repository.open(repo.storage).context.ledger.fetch_new_parents()) == {}
    assert messages(icefloe.Repository.open(repo.storage)) == ["more", *shown]
    past.check()


@pytest.mark.parametrize("branch", ["main", "dev"])
def test_an_amended_snapshot_keeps_its_new_parent(branch: str) -> None:
    past = make_past(icefloe.in_memory_storage(), "repository")
    repo = past.repo
    if branch != "main":
        repo.create_branch(branch, repo.lookup_branch("main"))
        past.commit("main", seed=8)
    repo.expire_snapshots(retain_last=1)
    for number in range(3):
        session = repo.writable_session(branch)
        zarr.open_group(session.store, mode="a").create_group(f"g{number}")
        session.amend(f"amended {number}")
        assert messages(icefloe.Repository.open(repo.storage), branch) == [
            f"amended {number}",
            "Repository initialized",
        ]
    repo.garbage_collect(now(), ignore_running_sessions=True)
    assert messages(icefloe.Repository.open(repo.storage), branch) == ["amended 2", "Repository initialized"]
    assert repo.verify().is_clean


@pytest.mark.parametrize("most", [1, 64])
def test_an_amendment_that_is_refused_leaves_the_record_as_it_was(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "MOST_NEW_PARENTS", most)
    past = make_past(icefloe.in_memory_storage(), "repository")
    repo = past.repo
    repo.create_branch("dev", repo.lookup_branch("main"))
    past.commit("main", seed=8)
    repo.expire_snapshots(retain_last=1)
    before = run_blocking(repo.context.ledger.fetch_new_parents())

    async def commit() -> None:
        session = await repo.writable_session_async("dev")
        await zarr.api.asynchronous.create_group(store=session.store, path="other")
        await session.commit_async("other")

    storage = Overtaken(repo.storage, [commit], "refs/branch.dev/")
    late = icefloe.Repository.open(storage).writable_session("dev")
    zarr.open_group(late.store, mode="a").create_group("late")
    with pytest.raises(icefloe.ConflictError):
        late.amend("late")
    assert not storage.before
    assert run_blocking(icefloe.Repository.open(repo.storage).context.ledger.fetch_new_parents()) == before
    collect(repo.storage)
    assert messages(repo, "dev") == ["other", "c 5 on main", "Repository initialized"]


def test_a_full_record_keeps_the_new_parents_of_amended_tips_and_of_what_others_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repository, "MOST_NEW_PARENTS", 1)
    past = make_past(icefloe.in_memory_storage(), "repository")
    repo = past.repo
    for branch in ("dev", "rel"):
        repo.create_branch(branch, repo.lookup_branch("main"))
    past.commit("main", seed=8)
    repo.expire_snapshots(retain_last=1)
    for number in range(5):
        for branch in ("dev", "rel", "main"):
            session = repo.writable_session(branch)
            zarr.open_group(session.store, mode="a").create_group(f"g{number}")
            session.amend(f"amended {number}")
        assert len(run_blocking(repo.context.ledger.fetch_new_parents())) <= 3
    assert messages(repo, "dev") == messages(repo, "rel") == ["amended 4", "Repository initialized"]
    assert messages(repo, "main") == ["amended 4", "c 5 on main", "Repository initialized"]


def test_many_new_parents_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expire, "MOST_NEW_PARENTS", 2)
    past = make_past(icefloe.in_memory_storage(), "repository", commits=9)
    repo = past.repo
    ids = [info.id for info in repo.ancestry(branch="main")]
    repo.expire_snapshots(snapshots=[ids[1]])
    assert len(run_blocking(repo.context.ledger.fetch_new_parents())) == 1
    repo.expire_snapshots(snapshots=[ids[3], ids[5], ids[7]])
    assert run_blocking(repo.context.ledger.fetch_new_parents()) == {}
    assert [info.id for info in icefloe.Repository.open(repo.storage).ancestry(branch="main")] == [*ids[:9:2], ids[9]]
    past.check()
    assert repo.verify().is_clean


def test_an_expired_snapshot_can_be_read_and_a_branch_can_be_reset_to_it() -> None:
    past = make_past(icefloe.in_memory_storage(), "repository")
    repo = past.repo
    ids = [info.id for info in repo.ancestry(branch="main")]
    repo.expire_snapshots(retain_last=1)
    past.check_snapshot(repo, ids[2])
    repo.create_branch("saved", ids[2])
    repo.garbage_collect(now(), ignore_running_sessions=True)
    assert [info.id for info in repo.ancestry(branch="saved")] == ids[2:]
    assert [info.id for info in repo.ancestry(branch="main")] == [ids[0], ids[-1]]
    past.check()


def test_a_history_longer_than_a_file_quotes_skips_what_expired() -> None:
    past = Past(icefloe.Repository.create(icefloe.in_memory_storage()))
    for number in range(90):
        past.commit(seed=number, size=4)
    ids = [info.id for info in past.repo.ancestry(branch="main")]
    past.repo.create_tag("kept", ids[70])
    past.repo.expire_snapshots(retain_last=2)
    kept = [ids[0], ids[1], ids[70], ids[71], ids[-1]]
    assert [info.id for info in icefloe.Repository.open(past.repo.storage).ancestry(branch="main")] == kept
    past.repo.garbage_collect(now())
    assert [info.id for info in icefloe.Repository.open(past.repo.storage).ancestry(branch="main")] == kept
    past.check()


@pytest.mark.parametrize("generation", ["store", "icechunk2"])
def test_a_conversion_takes_over_what_history_shows(generation: str) -> None:
    past = make_past(icefloe.in_memory_storage(), "repository")
    repo, tip = past.repo, past.repo.lookup_branch("main")
    root = list(repo.ancestry(branch="main"))[-1].id
    expected = repo.diff(from_snapshot_id=root, to_snapshot_id=tip)
    repo.expire_snapshots(retain_last=1)
    done = convert(repo, icefloe.in_memory_storage(), icefloe.SpecVersion(generation)).repository
    assert done is not None
    assert messages(done) == messages(repo) == ["c 5 on main", "Repository initialized"]
    found = done.diff(from_snapshot_id=list(done.ancestry(branch="main"))[-1].id, to_branch="main")
    assert found.new_arrays == expected.new_arrays
    assert {path: sorted(map(tuple, rows)) for path, rows in found.updated_chunks.items()} == {
        path: sorted(map(tuple, rows)) for path, rows in expected.updated_chunks.items()
    }
    assert done.verify().is_clean


def test_a_repaired_main_still_has_its_record(tmp_path: Path) -> None:
    repo = make_past(icefloe.local_filesystem_storage(str(tmp_path)), "repository").repo
    repo.expire_snapshots(retain_last=1)
    newest = parse_sequence(min(path.name for path in (tmp_path / "refs" / "branch.main").iterdir()))
    assert newest is not None
    (tmp_path / DOTTED.branch_key("main", newest[0] + 1)).write_bytes(b"not a ref")
    run_blocking(recover(repo.storage))
    assert messages(icefloe.Repository.open(repo.storage)) == ["c 5 on main", "Repository initialized"]


TOO_MANY = {f"{number:020}": "0" * 20 for number in range(4097)}


@pytest.mark.parametrize("bad", [["x"], {"x": "y"}, {"0" * 20: 7}, "text", TOO_MANY], ids=lambda bad: str(bad)[:20])
def test_a_record_that_cannot_be_read_is_an_error_of_the_format(bad: object) -> None:
    repo = make_past(icefloe.in_memory_storage(), "repository", commits=1).repo
    text = json.dumps({"snapshot": repo.lookup_branch("main"), "new_parents": bad})
    run_blocking(repo.storage.create(DOTTED.branch_key("main", 2), text.encode()))
    with pytest.raises(icefloe.FormatError, match="not a ref file"):
        icefloe.Repository.open(repo.storage).lookup_branch("main")


@pytest.mark.parametrize("is_written_at_once", [True, False])
def test_an_expiry_that_was_planned_before_another_one_was_written_is_not_recorded(
    is_written_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = make_past(icefloe.in_memory_storage(), "repository").repo
    ids = [info.id for info in repo.ancestry(branch="main")]
    uncached = open_uncached(repo.context)
    planned = run_blocking(fetch_history(uncached))
    assert planned.main is not None
    other = icefloe.Repository.open(repo.storage)
    monkeypatch.setattr(expire, "MOST_NEW_PARENTS", 0 if is_written_at_once else 64)
    other.expire_snapshots(snapshots=ids[1:3])
    if not is_written_at_once:
        other.garbage_collect(now())
    # The record is empty again, but the files have another parent, and a snapshot of the plan may no longer exist.
    assert run_blocking(other.context.ledger.fetch_new_parents()) == planned.new_parents == {}
    assert not run_blocking(uncached.ledger.record_new_parents(planned.main, {ids[0]: ids[2]}))
    assert [info.id for info in repo.ancestry(branch="main")] == [ids[0], *ids[3:]]


def test_commits_since_the_plan_do_not_hinder_an_expiry() -> None:
    past = make_past(icefloe.in_memory_storage(), "repository")
    ids = [info.id for info in past.repo.ancestry(branch="main")]
    uncached = open_uncached(past.repo.context)
    planned = run_blocking(fetch_history(uncached))
    assert planned.main is not None
    newest = [past.commit(seed=seed) for seed in (7, 8, 9)]
    assert run_blocking(uncached.ledger.record_new_parents(planned.main, {ids[0]: ids[3]}))
    assert [info.id for info in past.repo.ancestry(branch="main")] == [*newest[::-1], ids[0], *ids[3:]]


def test_a_branch_that_is_amended_or_moved_during_an_expiry_shows_nothing_expired() -> None:
    past = make_past(icefloe.in_memory_storage(), "repository")
    repo = past.repo
    repo.create_branch("dev", repo.lookup_branch("main"))
    past.commit("main", seed=8)

    async def amend() -> None:
        session = await repo.writable_session_async("dev")
        await zarr.api.asynchronous.create_group(store=session.store, path="amended")
        await session.amend_async("amended")

    overtaken = Overtaken(repo.storage, [amend], "refs/branch.main/")
    icefloe.Repository.open(overtaken).expire_snapshots(retain_last=1)
    assert not overtaken.before
    assert messages(icefloe.Repository.open(repo.storage), "dev") == ["amended", "Repository initialized"]


def test_a_new_parent_that_does_not_exist_hides_nothing() -> None:
    repo = make_past(icefloe.in_memory_storage(), "repository", commits=3).repo
    ids = [info.id for info in repo.ancestry(branch="main")]
    text = json.dumps({"snapshot": ids[0], "new_parents": {ids[1]: "0" * 20}})
    run_blocking(repo.storage.create(DOTTED.branch_key("main", 4), text.encode()))
    other = icefloe.Repository.open(repo.storage)
    assert [info.id for info in other.ancestry(branch="main")] == ids
    other.garbage_collect(now())
    assert [info.id for info in other.ancestry(branch="main")] == ids
    assert run_blocking(other.context.ledger.fetch_new_parents()) == {}


def test_a_record_that_leads_in_a_circle_is_an_error_of_the_format() -> None:
    repo = make_past(icefloe.in_memory_storage(), "repository", commits=3).repo
    ids = [info.id for info in repo.ancestry(branch="main")]
    text = json.dumps({"snapshot": ids[0], "new_parents": {ids[0]: ids[2], ids[2]: ids[0]}})
    run_blocking(repo.storage.create(DOTTED.branch_key("main", 4), text.encode()))
    with pytest.raises(icefloe.FormatError, match="twice"):
        list(icefloe.Repository.open(repo.storage).ancestry(branch="main"))


class KilledError(Exception):
    """The process was killed."""


class Killing(WrappedStorage):
    """Carries out some writes. After them every request fails, as for a process that was killed."""

    def __init__(self, inner: Storage, left: list[int]) -> None:
        super().__init__(inner)
        self.left = left

    def _rewrap(self, inner: Storage) -> Storage:
        return Killing(inner, self.left)

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[Any]]) -> Any:
        self.left[0] -= operation.method in WRITES
        if self.left[0] < 0:
            raise KilledError
        return await call()


def copy_of(storage: Storage) -> Storage:
    async def copy() -> Storage:
        found = icefloe.in_memory_storage()
        async for page in storage.list(""):
            for item in page:
                await found.put(item.key, await storage.get(item.key))
        return found

    return run_blocking(copy())


def collect(storage: Storage) -> None:
    icefloe.Repository.open(storage).garbage_collect(now(), ignore_running_sessions=True)


def make_fork(above: int, dev_first: bool) -> icefloe.Repository:
    """`dev` is at a snapshot of `main` with an expired parent. Histories are read in the order of the ids of tips."""
    repo = icefloe.Repository.create(icefloe.in_memory_storage())

    def commit(name: str, *, amends: bool = False) -> str:
        session = repo.writable_session("main")
        zarr.open_group(session.store, mode="a").create_group(name)
        return session.amend(name) if amends else session.commit(name)

    ids = {name: commit(name) for name in ("expired 1", "expired 2", "below", "expired 3", "fork")}
    repo.create_branch("dev", ids["fork"])
    tip = [commit(f"kept {number}") for number in range(above)][-1]
    for number in itertools.count(above):
        if (ids["fork"] < tip) == dev_first:
            break
        tip = commit(f"kept {number}", amends=True)
    repo.expire_snapshots(snapshots=[key for name, key in ids.items() if name.startswith("expired")])
    return repo


@pytest.mark.parametrize("dev_first", [True, False])
@pytest.mark.parametrize(("above", "step"), [(1, 1), pytest.param(40, 9, marks=pytest.mark.long)])
def test_a_collection_finishes_the_expiry_that_a_killed_one_began_to_write(
    above: int, step: int, dev_first: bool
) -> None:
    made = make_fork(above, dev_first)
    shown = {branch: messages(made, branch) for branch in ("main", "dev")}
    for writes in itertools.count(0, step):
        storage, is_killed = copy_of(made.storage), False
        try:
            collect(Killing(storage, [writes]))
        except KilledError:
            is_killed = True
        collect(storage)
        repo = icefloe.Repository.open(storage)
        assert repo.verify().is_clean, writes
        assert {branch: messages(repo, branch) for branch in shown} == shown, writes
        for info in repo.ancestry(branch="main"):
            # Also where no walk from a tip reads the file of a snapshot.
            assert not [each.message for each in repo.ancestry(snapshot_id=info.id) if "expired" in each.message], (
                writes
            )
        if not is_killed:
            break


# In `icechunk1`, an expiry of one commit does not write the file of a grandchild, so a late one cannot notice it.
@pytest.mark.every_generation
@pytest.mark.parametrize("generation", [each for each in GENERATIONS if each != "icechunk1"])
@pytest.mark.parametrize("theirs", [("later",), ("earlier", "later"), ("earlier",), ()], ids=" ".join)
def test_an_expiry_and_a_collection_that_are_late_do_not_undo_what_others_wrote(
    generation: str, theirs: tuple[str, ...]
) -> None:
    if (generation, theirs) == ("store", ("later",)):
        pytest.skip("an expiry between two writes of a late one may follow the quotes that are not written yet")
    made = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=generation)
    names, ids = ("start", "oldest", "earlier", "later", "expired", "fork", "tip"), {}
    for number, name in enumerate(names):
        session = made.writable_session("main")
        group = zarr.open_group(session.store, mode="a")
        if name == "start":
            group.create_array("a", shape=(9,), chunks=(1,), dtype="i8")
        zarr.open_array(session.store, path="a", mode="r+")[number] = number + 1
        ids[name] = session.commit(name)
    made.create_branch("dev", ids["fork"])
    chunks = {(names.index(name),) for name in ("earlier", "later", "expired", "fork")}

    async def overtake() -> None:
        other = await icefloe.Repository.open_async(storage)
        for name in theirs:
            await other.expire_snapshots_async(snapshots=[ids[name]])
        await other.garbage_collect_async(now(), ignore_running_sessions=True)

    for others in itertools.count():
        storage = copy_of(made.storage)
        late = Overtaken(storage, [overtake], "", others)
        icefloe.Repository.open(late).expire_snapshots(snapshots=[ids["expired"]])
        with contextlib.suppress(icefloe.ConflictError):
            collect(late)
        expired = {"expired"} if late.before else {"expired", *theirs}
        shown = ["Repository initialized", *(name for name in names if name not in expired)][::-1]
        for _ in range(2):
            repo = icefloe.Repository.open(storage)
            assert repo.verify().is_clean, others
            assert (messages(repo), messages(repo, "dev")) == (shown, shown[1:]), others
            diff = repo.diff(from_snapshot_id=ids["oldest"], to_snapshot_id=ids["fork"])
            assert set(map(tuple, diff.updated_chunks["/a"])) == chunks, others
            collect(storage)
        if late.before:
            break
