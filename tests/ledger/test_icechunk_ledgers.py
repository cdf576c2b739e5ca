"""Refs, history and state of the official generations: the same promises on memory and on local files."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.formats.hand_made import HandMade, group_node

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    ReadOnlyError,
    RefNotFoundError,
    RepositoryNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    VersionMismatchError,
)
from icefloe.formats.flatbuf.snapshot import INITIAL_SNAPSHOT_ID
from icefloe.formats.icechunk2.repo_edits import OVERWRITTEN
from icefloe.formats.icechunk2.repo_file import Availability, UpdateKind, decode_repo
from icefloe.ids import new_object_id
from icefloe.ledger.icechunk1 import Icechunk1Ledger
from icefloe.ledger.icechunk2 import Icechunk2Ledger
from icefloe.ledger.ledger import HistoryChange, StaleTipError
from icefloe.model.snapshot import Snapshot, TransactionLog, later_than
from icefloe.storage.build import in_memory_storage, local_filesystem_storage
from icefloe.storage.contract import Storage


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return in_memory_storage() if request.param == "memory" else local_filesystem_storage(tmp_path)


@pytest.fixture(params=[1, 2])
def repo(request: pytest.FixtureRequest, storage: Storage) -> HandMade:
    return HandMade.at(storage, request.param)


@pytest.fixture
def repo2(storage: Storage) -> HandMade:
    return HandMade.at(storage, 2)


async def commit(repo: HandMade, message: str, branch: str = "main") -> str:
    root = group_node("/")
    return await repo.commit(message, [root], [], TransactionLog(new_groups=frozenset([root.id])), branch=branch)


async def history(repo: HandMade, branch: str = "main") -> list[str]:
    tip = await repo.ledger.fetch_tip(branch)
    return [info.message async for info in repo.ledger.ancestry(tip.snapshot_id)]


def ledger2(repo: HandMade) -> Icechunk2Ledger:
    assert isinstance(repo.ledger, Icechunk2Ledger)
    return repo.ledger


async def test_a_new_repository_has_main_at_the_initial_snapshot(repo: HandMade) -> None:
    await repo.create()
    assert await repo.ledger.list_branches() == {"main"} and await repo.ledger.list_tags() == set()
    assert (await repo.ledger.fetch_tip("main")).snapshot_id == INITIAL_SNAPSHOT_ID
    assert await history(repo) == ["Repository initialized"]
    assert (await repo.ledger.fetch_config()).document is None
    with pytest.raises(AlreadyExistsError):
        await repo.create()


async def test_commits_follow_each_other(repo: HandMade) -> None:
    await repo.create()
    for number in range(4):
        await commit(repo, f"c{number}")
    assert await history(repo) == ["c3", "c2", "c1", "c0", "Repository initialized"]
    tip = (await repo.ledger.fetch_tip("main")).snapshot_id
    infos = [info async for info in repo.ledger.ancestry(tip)]
    assert all(newer.written_at > older.written_at for newer, older in itertools.pairwise(infos))
    assert (await repo.ledger.fetch_info(infos[1].id)).message == "c2"
    with pytest.raises(SnapshotNotFoundError):
        await repo.ledger.fetch_info(new_object_id())


async def test_a_commit_from_an_old_tip_is_a_conflict_that_says_where_the_branch_is(repo: HandMade) -> None:
    await repo.create()
    stale = await repo.ledger.fetch_tip("main")
    first = await commit(repo, "first")
    late = await flush_child(repo, stale.snapshot_id)
    with pytest.raises(ConflictError) as caught:
        await repo.ledger.advance("main", stale, late)
    assert (caught.value.expected_parent, caught.value.actual_parent) == (INITIAL_SNAPSHOT_ID, first)
    with pytest.raises(RefNotFoundError):
        await repo.ledger.advance("nowhere", dataclasses.replace(stale, version_token=None), late)


async def flush_child(repo: HandMade, parent: str, message: str = "child") -> Snapshot:
    written_at = later_than((await repo.ledger.fetch_info(parent)).written_at)
    snapshot = Snapshot(new_object_id(), parent, written_at, message, {}, {}, {})
    await repo.metadata_files.write_snapshot(snapshot)
    await repo.metadata_files.write_transaction_log(snapshot.id, TransactionLog())
    return snapshot


async def test_a_stale_mark_with_the_branch_in_place_is_no_conflict(repo: HandMade) -> None:
    """Another branch moved, or the same one there and back."""
    await repo.create()
    tip = await repo.ledger.fetch_tip("main")
    await repo.ledger.create_branch("other", tip.snapshot_id)
    there = await flush_child(repo, tip.snapshot_id)
    await repo.ledger.record_detached(there)
    await repo.ledger.reset_branch("main", there.id, tip.snapshot_id)
    await repo.ledger.reset_branch("main", tip.snapshot_id, None)
    landed = await flush_child(repo, tip.snapshot_id, "landed")
    try:
        after = await repo.ledger.advance("main", tip, landed)
    except StaleTipError as stale:
        after = await repo.ledger.advance("main", stale.tip, landed)
    assert after.snapshot_id == landed.id and await history(repo) == ["landed", "Repository initialized"]


async def test_branches_are_made_reset_and_deleted(repo: HandMade) -> None:
    await repo.create()
    first = await commit(repo, "first")
    second = await commit(repo, "second")
    await repo.ledger.create_branch("dev", first)
    with pytest.raises(AlreadyExistsError):
        await repo.ledger.create_branch("dev", first)
    with pytest.raises(InvalidInputError):
        await repo.ledger.create_branch("a\nb", first)
    with pytest.raises(ConflictError):
        await repo.ledger.reset_branch("dev", second, expected=INITIAL_SNAPSHOT_ID)
    await repo.ledger.reset_branch("dev", second, expected=first)
    assert (await repo.ledger.fetch_tip("dev")).snapshot_id == second
    await repo.ledger.delete_branch("dev")
    assert await repo.ledger.list_branches() == {"main"}
    for missing in (repo.ledger.delete_branch("dev"), repo.ledger.reset_branch("dev", first, None)):
        with pytest.raises(RefNotFoundError):
            await missing
    with pytest.raises(InvalidInputError):
        await repo.ledger.delete_branch("main")


async def test_the_name_of_a_deleted_tag_is_gone_for_good(repo: HandMade) -> None:
    await repo.create()
    first = await commit(repo, "first")
    for name in ("v1", "50% #1?", "ünïcode *", "a.b"):
        await repo.ledger.create_tag(name, first)
        assert await repo.ledger.fetch_tag(name) == first
    assert await repo.ledger.list_tags() == {"v1", "50% #1?", "ünïcode *", "a.b"}
    with pytest.raises(AlreadyExistsError):
        await repo.ledger.create_tag("v1", first)
    await repo.ledger.delete_tag("v1")
    assert "v1" not in await repo.ledger.list_tags()
    for missing in (repo.ledger.fetch_tag("v1"), repo.ledger.delete_tag("v1"), repo.ledger.fetch_tag("none")):
        with pytest.raises(RefNotFoundError):
            await missing
    with pytest.raises(AlreadyExistsError):
        await repo.ledger.create_tag("v1", first)


async def test_configuration_is_replaced_only_by_who_has_seen_it(repo: HandMade) -> None:
    await repo.create()
    stored = await repo.ledger.fetch_config()
    document = {"inline_chunk_threshold_bytes": 7, "unknown": {"kept": [1, None, "x"]}}
    await repo.ledger.save_config(document, stored.version_token)
    with pytest.raises(ConflictError):
        await repo.ledger.save_config({}, stored.version_token)
    again = await repo.ledger.fetch_config()
    assert again.document == document
    await repo.ledger.save_config({"a": 1}, again.version_token)
    assert (await repo.ledger.fetch_config()).document == {"a": 1}


async def test_many_writers_lose_no_commit(repo: HandMade) -> None:
    """Each rebases by hand: on a conflict it takes the new tip and tries again."""
    await repo.create()

    async def write(number: int) -> None:
        mine = HandMade.at(repo.storage, repo.spec)
        while True:
            tip = await mine.ledger.fetch_tip("main")
            child = await flush_child(mine, tip.snapshot_id, f"w{number}")
            try:
                await mine.ledger.advance("main", tip, child)
            except ConflictError:
                await asyncio.sleep(0.001 * number)
                continue
            return

    await asyncio.gather(*(write(number) for number in range(8)))
    assert sorted((await history(repo))[:-1]) == [f"w{number}" for number in range(8)]


class LostAnswers:
    """A storage whose swaps land, and then say that somebody else was first."""

    def __init__(self, inner: Storage, after: Callable[[], object] | None = None) -> None:
        self.inner = inner
        self.armed = True

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def swap(self, key: str, *args: object, **options: object) -> object:
        version = await self.inner.swap(key, *args, **options)  # type: ignore[arg-type]
        if self.armed:
            self.armed = False
            raise VersionMismatchError(f"{key} changed")
        return version


async def test_a_commit_whose_answer_was_lost_is_a_success(repo: HandMade) -> None:
    await repo.create()
    lossy = HandMade.at(LostAnswers(repo.storage), repo.spec)  # type: ignore[arg-type]
    tip = await lossy.ledger.fetch_tip("main")
    child = await flush_child(lossy, tip.snapshot_id)
    assert (await lossy.ledger.advance("main", tip, child)).snapshot_id == child.id
    assert await history(repo) == ["child", "Repository initialized"]


async def test_expiry_rewrites_a_snapshot_of_the_first_generation_in_place(storage: Storage) -> None:
    repo = HandMade.at(storage, 1)
    await repo.create()
    for message in "abc":
        await commit(repo, message)
    assert isinstance(repo.ledger, Icechunk1Ledger)
    tip = (await repo.ledger.fetch_tip("main")).snapshot_id
    await repo.ledger.reparent_snapshot(tip, INITIAL_SNAPSHOT_ID)
    assert await history(repo) == ["c", "Repository initialized"]


async def test_history_that_was_expired_and_collected_by_others_is_read_anew(storage: Storage) -> None:
    repo, other = HandMade.at(storage, 1), HandMade.at(storage, 1)
    await repo.create()
    first = await commit(repo, "first")
    second = await commit(repo, "second")
    assert await history(repo) == ["second", "first", "Repository initialized"]
    assert isinstance(other.ledger, Icechunk1Ledger)
    await other.ledger.reparent_snapshot(second, INITIAL_SNAPSHOT_ID)
    await storage.delete([repo.metadata_files.format.snapshot_key(first)])
    repo.ledger._history.pop(first)  # type: ignore[attr-defined]
    assert await history(repo) == ["second", "Repository initialized"]


async def test_a_broken_ref_is_a_format_error(storage: Storage) -> None:
    repo = HandMade.at(storage, 1)
    for content in (b"", b"{}", b'{"snapshot": 3}', b"[]", b"\xff"):
        await storage.put("refs/branch.main/ref.json", content)
        with pytest.raises(FormatError):
            await repo.ledger.fetch_tip("main")


async def test_every_update_leaves_a_backup_and_a_log_entry(repo2: HandMade) -> None:
    await repo2.create({"num_updates_per_repo_info_file": 3})
    first = await commit(repo2, "first")
    for number in range(7):
        await repo2.ledger.create_tag(f"t{number}", first)
    log = [update async for update in ledger2(repo2).ops_log()]
    assert [update.name for update in log[:7]] == [f"t{number}" for number in reversed(range(7))]
    assert [update.kind for update in log[7:]] == [UpdateKind.NEW_COMMIT, UpdateKind.REPO_INITIALIZED]
    assert all(newer.at_us > older.at_us for newer, older in itertools.pairwise(log))
    info = await ledger2(repo2).fetch_repo_info()
    assert len(info.updates) == 3 and info.updates[0].backup is None and info.updates_before is not None
    assert log[0].backup is None
    for update in log[1:]:
        # An entry's backup is the file in which it was the newest.
        backup = decode_repo(await repo2.storage.get(f"{OVERWRITTEN}{update.backup}"))
        assert (backup.updates[0].kind, backup.updates[0].at_us) == (update.kind, update.at_us)


async def test_the_log_ends_where_a_backup_is_missing(repo2: HandMade) -> None:
    await repo2.create({"num_updates_per_repo_info_file": 2})
    first = await commit(repo2, "first")
    for number in range(5):
        await repo2.ledger.create_tag(f"t{number}", first)
    before = (await ledger2(repo2).fetch_repo_info()).updates_before
    await repo2.storage.delete([f"{OVERWRITTEN}{before}"])
    assert [u.name async for u in ledger2(repo2).ops_log()] == ["t4", "t3"]


async def test_a_repository_that_is_not_online_takes_no_writes(repo2: HandMade) -> None:
    await repo2.create()
    first = await commit(repo2, "first")
    ledger = ledger2(repo2)
    await ledger.set_status(Availability.READ_ONLY, "moving house")
    assert (await ledger.fetch_status()).reason == "moving house"
    with pytest.raises(ReadOnlyError, match="moving house"):
        await ledger.check_writable()
    for write in (ledger.create_tag("t", first), commit(repo2, "no"), ledger.set_metadata({})):
        with pytest.raises(ReadOnlyError):
            await write
    assert await history(repo2) == ["first", "Repository initialized"]
    await ledger.set_status(Availability.ONLINE)
    await ledger.check_writable()
    await ledger.create_tag("t", first)


async def test_features_can_be_switched_off_and_back(repo2: HandMade) -> None:
    await repo2.create()
    ledger = ledger2(repo2)
    await ledger.set_flag("create_tag", False)
    with pytest.raises(SessionStateError):
        await ledger.create_tag("t", INITIAL_SNAPSHOT_ID)
    await ledger.set_flag("create_tag", True)
    assert await ledger.fetch_flags() == {"move_node": None, "create_tag": True, "delete_tag": None}
    await ledger.create_tag("t", INITIAL_SNAPSHOT_ID)
    with pytest.raises(InvalidInputError):
        await ledger.set_flag("fly", True)


async def test_metadata_is_replaced_or_updated(repo2: HandMade) -> None:
    await repo2.create()
    ledger = ledger2(repo2)
    await ledger.set_metadata({"a": 1, "b": {"c": [None, 2.5]}})
    assert await ledger.update_metadata({"a": "new"}) == {"a": "new", "b": {"c": [None, 2.5]}}
    assert await ledger.fetch_metadata() == {"a": "new", "b": {"c": [None, 2.5]}}
    await ledger.set_metadata({})
    assert await ledger.fetch_metadata() == {}


async def test_an_amendment_takes_the_place_of_the_tip(repo2: HandMade) -> None:
    await repo2.create()
    first = await commit(repo2, "first")
    second = await commit(repo2, "second")
    amended = await repo2.commit("amended", [], [], TransactionLog(), amends=second)
    assert await history(repo2) == ["amended", "first", "Repository initialized"]
    infos = await ledger2(repo2).fetch_snapshot_infos()
    assert second in infos and infos[amended].parent_id == first
    await repo2.ledger.reset_branch("main", INITIAL_SNAPSHOT_ID, None)
    with pytest.raises(InvalidInputError):
        await repo2.commit("no", [], [], TransactionLog(), amends=INITIAL_SNAPSHOT_ID)


async def test_expiry_puts_what_is_kept_on_what_is_left_and_names_the_logs(repo2: HandMade) -> None:
    await repo2.create()
    a, b = [await commit(repo2, message) for message in "ab"]
    await repo2.ledger.create_tag("tb", b)
    c = await commit(repo2, "c")
    await repo2.ledger.create_branch("old", b)
    o = await commit(repo2, "o", "old")
    e = await commit(repo2, "e")
    ledger = ledger2(repo2)
    everything = frozenset({a, b, c, o})
    await ledger.change_history(HistoryChange(everything))
    assert (await ledger.fetch_snapshot_infos()).keys() == {INITIAL_SNAPSHOT_ID, b, o, e}
    assert await history(repo2) == ["e", "b", "Repository initialized"]
    assert await ledger.fetch_pruned_logs(e) == (c,)
    assert await ledger.fetch_pruned_logs(b) == (a,)
    assert (await ledger.fetch_info(o)).parent_id == b
    before = await ledger.fetch_repo_info()
    await ledger.change_history(HistoryChange(everything))
    assert await ledger.fetch_repo_info() == before
    await ledger.change_history(HistoryChange(everything, branches={"old": o}, tags={"tb": b}))
    assert (await ledger.fetch_snapshot_infos()).keys() == {INITIAL_SNAPSHOT_ID, e}
    assert await ledger.list_tags() == set() and await ledger.list_branches() == {"main"}
    with pytest.raises(AlreadyExistsError):
        await ledger.create_tag("tb", e)
    assert await ledger.fetch_pruned_logs(e) == (a, b, c)


async def test_collection_forgets_only_what_nothing_reaches(repo2: HandMade) -> None:
    await repo2.create()
    first = await commit(repo2, "first")
    detached = await flush_child(repo2, first, "detached")
    await repo2.ledger.record_detached(detached)
    ledger = ledger2(repo2)
    assert detached.id in await ledger.fetch_snapshot_infos()
    assert await ledger.forget_snapshots({first, detached.id, new_object_id()}) == {detached.id}
    assert set(await ledger.fetch_snapshot_infos()) == {first, INITIAL_SNAPSHOT_ID}
    kinds = [update.kind async for update in ledger.ops_log()]
    assert kinds[:2] == [UpdateKind.GC_RAN, UpdateKind.NEW_DETACHED_SNAPSHOT]


async def test_a_missing_repo_file_is_no_repository(repo2: HandMade) -> None:
    with pytest.raises(RepositoryNotFoundError):
        await repo2.ledger.fetch_tip("main")
    await repo2.storage.put("repo", b"nonsense")
    with pytest.raises(FormatError):
        await repo2.ledger.fetch_tip("main")
