"""Refs as sequence files: commits, races, resets, deletions, tags, history and configuration."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenChangeError,
    FormatError,
    InvalidInputError,
    RefNotFoundError,
    UnsupportedError,
)
from icefloe.formats.repository import FORMAT
from icefloe.formats.repository.snapshot import MAX_HISTORY
from icefloe.ids import new_object_id
from icefloe.ledger.ledger import StaleTipError, Tip
from icefloe.ledger.repository import RepositoryLedger
from icefloe.ledger.repository_refs import RefContent, RefStyle, encode_sequence, parse_sequence
from icefloe.metadata_files import MetadataFiles
from icefloe.model.snapshot import Snapshot
from icefloe.storage.build import in_memory_storage, local_filesystem_storage
from icefloe.storage.contract import ObjectInfo, Storage
from icefloe.storage.wrappers import Operation, WrappedStorage
from icefloe.testing.storages import CountingStorage, Fault, FaultKind, FaultyStorage

NOW = dt.datetime(2025, 1, 8, tzinfo=dt.UTC)


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return in_memory_storage() if request.param == "memory" else local_filesystem_storage(tmp_path / "repo")


def open_ledger(storage: Storage) -> RepositoryLedger:
    return RepositoryLedger(storage, MetadataFiles(storage, FORMAT))


def child_of(parent: Snapshot, message: str = "commit", **metadata: Any) -> Snapshot:
    """As the engine makes them."""
    return dataclasses.replace(
        parent,
        id=new_object_id(),
        parent_id=parent.id,
        message=message,
        metadata=metadata,
        written_at=parent.written_at + dt.timedelta(seconds=1),
        history=(dataclasses.replace(parent.info, manifests=()), *parent.history)[:MAX_HISTORY],
        total_ancestors=(parent.total_ancestors or 0) + 1,
    )


async def create(storage: Storage) -> tuple[RepositoryLedger, Snapshot]:
    ledger = open_ledger(storage)
    initial = FORMAT.initial_snapshot(NOW)
    await ledger.metadata_files.write_snapshot(initial)
    await ledger.create(initial, None)
    return ledger, initial


async def commit(ledger: RepositoryLedger, branch: str = "main", message: str = "commit", **metadata: Any) -> Snapshot:
    tip = await ledger.fetch_tip(branch)
    child = child_of(await ledger.metadata_files.fetch_snapshot(tip.snapshot_id), message, **metadata)
    await ledger.metadata_files.write_snapshot(child)
    await ledger.advance(branch, tip, child)
    return child


@given(st.integers(0, 2**40 - 2), st.sampled_from([5, 8]))
def test_later_sequence_numbers_sort_first(number: int, number_bytes: int) -> None:
    name = encode_sequence(number, number_bytes)
    assert encode_sequence(number + 1, number_bytes) < name
    assert parse_sequence(name) == (number, number_bytes)


@pytest.mark.parametrize(
    ("number", "name"), [(0, "ZZZZZZZZ"), (1, "ZZZZZZZY"), (3, "ZZZZZZZW"), (100, "ZZZZZZWV"), (2**40 - 1, "00000000")]
)
def test_sequence_names_are_those_of_the_specification(number: int, name: str) -> None:
    assert encode_sequence(number) == f"{name}.json"


def test_long_sequence_names_are_those_of_the_first_release() -> None:
    assert [encode_sequence(n, 8)[:-5] for n in range(3)] == ["ZZZZZZZZZZZZY", "ZZZZZZZZZZZZW", "ZZZZZZZZZZZZT"]
    assert parse_sequence("ref.json") is None
    assert parse_sequence("UUUUUUUU.json") is None
    with pytest.raises(InvalidInputError):
        encode_sequence(2**40)


async def test_a_commit_creates_the_next_file(storage: Storage) -> None:
    ledger, initial = await create(storage)
    assert await storage.get("refs/branch.main/ZZZZZZZZ.json") == f'{{"snapshot":"{initial.id}"}}'.encode()
    child = await commit(ledger)
    assert await storage.get("refs/branch.main/ZZZZZZZY.json") == f'{{"snapshot":"{child.id}"}}'.encode()
    for reader in (ledger, open_ledger(storage)):
        assert await reader.fetch_tip("main") == Tip(child.id, 1)


async def test_of_many_creators_one_wins(storage: Storage) -> None:
    results = await asyncio.gather(*(create(storage) for _ in range(8)), return_exceptions=True)
    assert sum(not isinstance(r, BaseException) for r in results) == 1
    assert all(isinstance(r, AlreadyExistsError) for r in results if isinstance(r, BaseException))


async def test_of_two_commits_on_one_parent_one_is_a_conflict(storage: Storage) -> None:
    ledger, initial = await create(storage)
    other = open_ledger(storage)
    tip = await ledger.fetch_tip("main")
    first, second = child_of(initial), child_of(initial)
    await ledger.advance("main", tip, first)
    with pytest.raises(ConflictError) as caught:
        await other.advance("main", tip, second)
    assert (caught.value.expected_parent, caught.value.actual_parent) == (initial.id, first.id)


async def test_a_stale_mark_at_the_same_snapshot_is_told_with_the_mark_of_now(storage: Storage) -> None:
    ledger, initial = await create(storage)
    tip = await ledger.fetch_tip("main")
    child = await commit(ledger)
    await ledger.reset_branch("main", initial.id, child.id)
    with pytest.raises(StaleTipError) as caught:
        await ledger.advance("main", tip, child_of(initial))
    assert (await ledger.advance("main", caught.value.tip, child_of(initial))).version_token == 3


async def test_a_touched_branch_stands_where_it_stood_and_its_remembered_snapshot_is_not_trusted(
    storage: Storage,
) -> None:
    ledger, _ = await create(storage)
    child = await commit(ledger)
    tip = await ledger.fetch_tip("main")
    assert ledger.is_current("main", tip)
    other = open_ledger(storage)
    assert await other.touch_branch("main", tip)
    assert not await other.touch_branch("main", tip)
    now = await ledger.fetch_tip("main")
    assert (now.snapshot_id, now.version_token) == (child.id, tip.version_token + 1)
    assert not ledger.is_current("main", now)


async def test_every_commit_of_many_writers_is_in_the_history_once(storage: Storage) -> None:
    ledger, _ = await create(storage)

    async def write(name: str) -> None:
        own = open_ledger(storage)
        for number in range(5):
            while True:
                try:
                    await commit(own, message=f"{name} {number}")
                    break
                except ConflictError:
                    await asyncio.sleep(0)

    await asyncio.gather(*(write(f"writer {i}") for i in range(4)))
    tip = await ledger.fetch_tip("main")
    messages = [info.message async for info in ledger.ancestry(tip.snapshot_id)]
    assert len(messages) == 21
    assert len(set(messages)) == 21


@pytest.mark.parametrize("kind", [FaultKind.LOSE_ANSWER, FaultKind.FAIL_BEFORE])
async def test_a_commit_whose_answer_was_lost_is_no_conflict(kind: FaultKind) -> None:
    inner = in_memory_storage()
    await create(inner)
    ledger = open_ledger(FaultyStorage(inner, [Fault(kind, methods=("create",), times=1)]))
    child = await commit(ledger)
    assert await open_ledger(inner).fetch_tip("main") == Tip(child.id, 1)
    faulty = open_ledger(FaultyStorage(inner, [Fault(kind, methods=("create",), times=1)]))
    parent = child.parent_id
    assert parent is not None
    await faulty.reset_branch("main", parent, child.id)
    assert (await open_ledger(inner).fetch_tip("main")).snapshot_id == parent


async def test_branches_are_made_reset_and_listed(storage: Storage) -> None:
    ledger, initial = await create(storage)
    child = await commit(ledger)
    await ledger.create_branch("dev", initial.id)
    with pytest.raises(AlreadyExistsError):
        await ledger.create_branch("dev", child.id)
    assert await ledger.fetch_tip("dev") == Tip(initial.id, 0)
    with pytest.raises(ConflictError):
        await ledger.reset_branch("dev", child.id, new_object_id())
    await ledger.reset_branch("dev", child.id, initial.id)
    await ledger.reset_branch("dev", initial.id, None)
    assert await ledger.fetch_tip("dev") == Tip(initial.id, 2)
    assert await open_ledger(storage).list_branches() == {"main", "dev"}
    for action in (ledger.fetch_tip("no"), ledger.reset_branch("no", child.id, None), ledger.delete_branch("no")):
        with pytest.raises(RefNotFoundError):
            await action


async def test_a_deleted_branch_is_gone_for_everyone_and_can_be_made_again(storage: Storage) -> None:
    ledger, initial = await create(storage)
    await ledger.create_branch("dev", initial.id)
    slow, tip = open_ledger(storage), await ledger.fetch_tip("dev")
    await slow.fetch_tip("dev")
    child = await commit(ledger, "dev")
    await ledger.delete_branch("dev")
    for reader in (ledger, slow, open_ledger(storage)):
        assert await reader.list_branches() == {"main"}
        with pytest.raises(RefNotFoundError):
            await reader.fetch_tip("dev")
        with pytest.raises(RefNotFoundError):
            await reader.delete_branch("dev")
    with pytest.raises(RefNotFoundError):
        await slow.advance("dev", tip, child_of(initial))
    await slow.create_branch("dev", initial.id)
    assert (await ledger.fetch_tip("dev")).snapshot_id == initial.id
    # A commit prepared before the deletion must not land on the branch of the same name as if nothing had happened.
    with pytest.raises(ConflictError):
        await slow.advance("dev", Tip(child.id, 1), child_of(child))
    with pytest.raises(InvalidInputError):
        await ledger.delete_branch("main")


async def test_a_branch_whose_files_were_all_deleted_is_none(storage: Storage) -> None:
    ledger, initial = await create(storage)
    await ledger.create_branch("dev", initial.id)
    await storage.delete(["refs/branch.dev/ZZZZZZZZ.json"])
    assert await ledger.list_branches() == {"main"}
    with pytest.raises(RefNotFoundError):
        await ledger.fetch_tip("dev")
    await ledger.create_branch("dev", initial.id)
    assert await ledger.list_branches() == {"main", "dev"}


async def test_tags_never_move_and_never_go(storage: Storage) -> None:
    ledger, initial = await create(storage)
    child = await commit(ledger)
    for tag in ("v1", "50% #1?", "it works!", "ümlaut", "a:b"):
        await ledger.create_tag(tag, initial.id)
        for again in (initial.id, child.id):
            with pytest.raises(AlreadyExistsError):
                await ledger.create_tag(tag, again)
        assert await ledger.fetch_tag(tag) == initial.id
        with pytest.raises(UnsupportedError):
            await ledger.delete_tag(tag)
    assert await open_ledger(storage).list_tags() == {"v1", "50% #1?", "it works!", "ümlaut", "a:b"}
    with pytest.raises(RefNotFoundError):
        await ledger.delete_tag("no")


async def test_tombstones_of_others_are_respected(storage: Storage) -> None:
    ledger, initial = await create(storage)
    await ledger.create_tag("v1", initial.id)
    await storage.put("refs/tag.v1/ref.json.deleted", b"")
    assert await ledger.list_tags() == set()
    with pytest.raises(RefNotFoundError):
        await ledger.fetch_tag("v1")
    with pytest.raises(AlreadyExistsError, match="cannot be used again"):
        await ledger.create_tag("v1", initial.id)


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", "x" * 300])
async def test_bad_names_are_refused(name: str) -> None:
    ledger, initial = await create(in_memory_storage())
    with pytest.raises(InvalidInputError):
        await ledger.create_branch(name, initial.id)
    with pytest.raises(InvalidInputError):
        await ledger.create_tag(name, initial.id)


@pytest.mark.parametrize("style", [RefStyle(":", 5), RefStyle(":", 8), RefStyle(".", 8)])
async def test_early_spellings_are_continued(storage: Storage, style: RefStyle) -> None:
    initial = FORMAT.initial_snapshot(NOW)
    await MetadataFiles(storage, FORMAT).write_snapshot(initial)
    await storage.put(style.branch_key("main", 0), RefContent(initial.id).encode())
    await storage.put(style.tag_folder("v0") + "ref.json", RefContent(initial.id).encode())
    ledger = open_ledger(storage)
    child = await commit(ledger)
    await ledger.create_branch("dev", child.id)
    await ledger.create_tag("v1", child.id)
    assert await storage.exists(style.branch_key("main", 1))
    assert await storage.exists(style.branch_key("dev", 0))
    fresh = open_ledger(storage)
    assert await fresh.fetch_tip("main") == Tip(child.id, 1)
    assert await fresh.list_branches() == {"main", "dev"}
    assert await fresh.list_tags() == {"v0", "v1"}
    await fresh.delete_branch("dev")
    assert await fresh.list_branches() == {"main"}


async def test_history_is_walked_with_one_file_per_quoted_stretch() -> None:
    inner = in_memory_storage()
    ledger, initial = await create(inner)
    expected = [initial.id]
    for number in range(100):
        metadata = {"n": number, "large": "x" * 3000} if number == 50 else {"n": number}
        expected.insert(0, (await commit(ledger, **metadata)).id)
    counting = CountingStorage(inner)
    fresh = open_ledger(counting)
    infos = [info async for info in fresh.ancestry(expected[0])]
    assert [info.id for info in infos] == expected
    assert [info.parent_id for info in infos] == [*expected[1:], None]
    assert [info.metadata.get("n") for info in infos] == [*range(99, -1, -1), None]
    assert len(infos[49].metadata["large"]) == 3000
    # One for the start, one per 32 commits, one for the metadata that was too large to quote.
    assert counting.counts.total.requests <= 1 + 100 // MAX_HISTORY + 1
    assert infos[0] == await fresh.fetch_info(expected[0])


async def test_the_newest_file_is_found_without_listing_once_the_branch_is_known() -> None:
    inner = in_memory_storage()
    ledger, _ = await create(inner)
    for _ in range(5):
        await commit(ledger)
    counting = CountingStorage(inner)
    fresh = open_ledger(counting)
    await fresh.fetch_tip("main")
    assert counting.counts.total.requests == 2
    counting.counts.reset()
    await fresh.fetch_tip("main")
    assert counting.counts.of("list").requests == 0
    assert counting.counts.total.requests == 2
    await commit(ledger)
    assert (await fresh.fetch_tip("main")).version_token == 6


class NoListing(CountingStorage):
    """A web server's files: no listing."""

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        raise UnsupportedError("no listing")
        yield []

    async def list_names(self, prefix: str) -> list[str]:
        raise UnsupportedError("no listing")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 6, 7, 8, 20])
async def test_a_storage_that_cannot_list_is_searched(count: int) -> None:
    inner = in_memory_storage()
    ledger, _ = await create(inner)
    for _ in range(count):
        await commit(ledger)
    reader = open_ledger(NoListing(inner))
    assert await reader.fetch_tip("main") == await ledger.fetch_tip("main")
    with pytest.raises(RefNotFoundError):
        await reader.fetch_tip("other")


async def test_a_repository_made_anew_at_the_same_place_is_noticed(storage: Storage) -> None:
    ledger, _ = await create(storage)
    await commit(ledger)
    await storage.delete(["refs/branch.main/ZZZZZZZZ.json", "refs/branch.main/ZZZZZZZY.json"])
    _, initial = await create(storage)
    assert await ledger.fetch_tip("main") == Tip(initial.id, 0)


async def test_the_configuration_is_stored_as_json_and_guarded(storage: Storage) -> None:
    ledger, _ = await create(storage)
    empty = await ledger.fetch_config()
    assert empty.document is None
    await ledger.save_config({"a": 1}, empty.version_token)
    assert json.loads(await storage.get("config.json")) == {"generation": "repository", "a": 1}
    stored = await ledger.fetch_config()
    assert stored.document == {"a": 1}
    with pytest.raises(ConflictError):
        await ledger.save_config({"a": 2}, None)
    await ledger.save_config({"a": 2}, stored.version_token)
    with pytest.raises(ConflictError):
        await ledger.save_config({"a": 3}, stored.version_token)


async def test_the_configuration_of_others_is_read_and_then_replaced(storage: Storage) -> None:
    ledger, _ = await create(storage)
    await storage.delete(["config.json"])
    await storage.put("config.yaml", b"inline_chunk_threshold_bytes: 12\nstore: !S3 {region: x}\n")
    stored = await ledger.fetch_config()
    assert stored.document == {"inline_chunk_threshold_bytes": 12, "store": {"!S3": {"region": "x"}}}
    await ledger.save_config({"a": 2}, stored.version_token)
    assert (await ledger.fetch_config()).document == {"a": 2}
    await storage.put("config.json", b"[")
    with pytest.raises(FormatError):
        await ledger.fetch_config()


@pytest.mark.parametrize("content", [b"", b"\0" * 40, b'{"snapshot":"0000', b'{"snapshot"' + b"\0" * 9])
async def test_a_branch_file_that_was_not_finished_is_passed_over_and_stays(content: bytes) -> None:
    storage = in_memory_storage()
    ledger, initial = await create(storage)
    await storage.put("refs/branch.main/ZZZZZZZY.json", content)
    for each in (ledger, open_ledger(storage)):
        tip = await each.fetch_tip("main")
        assert (tip.snapshot_id, tip.version_token) == (initial.id, 1)
    await ledger.reset_branch("main", "0" * 20, initial.id)
    assert await storage.get("refs/branch.main/ZZZZZZZY.json") == content
    assert (await open_ledger(storage).fetch_tip("main")).version_token == 2


@pytest.mark.parametrize("content", [b"{}", b"[]", b'{"snapshot": 5}', b'{"snapshot": "short"}', b"\xff"])
async def test_a_broken_ref_file_is_refused(content: bytes) -> None:
    storage = in_memory_storage()
    await create(storage)
    await storage.put("refs/branch.main/ZZZZZZZY.json", content)
    with pytest.raises(FormatError):
        await open_ledger(storage).fetch_tip("main")


async def test_a_new_parent_is_seen_by_every_descendant() -> None:
    storage = in_memory_storage()
    ledger, initial = await create(storage)
    ids = [initial.id]
    for number in range(50):
        ids.insert(0, (await commit(ledger, n=number)).id)
    await ledger.create_branch("side", ids[3])
    side = await commit(ledger, "side")
    oldest_kept = ids[5]
    await ledger.reparent_snapshot(oldest_kept, initial.id)
    fresh = open_ledger(storage)
    assert [info.id async for info in fresh.ancestry(ids[0])] == [*ids[:6], initial.id]
    assert [info.id async for info in fresh.ancestry(side.id)] == [side.id, *ids[3:6], initial.id]
    assert (await fresh.fetch_info(oldest_kept)).parent_id == initial.id
    infos = [info async for info in fresh.ancestry(ids[0])]
    assert [info.parent_id for info in infos] == [*ids[1:6], initial.id, None]
    assert [info.metadata.get("n") for info in infos] == [49, 48, 47, 46, 45, 44, None]


REF_CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["create branch", "reset", "delete branch", "tag", "touch"]),
        st.sampled_from(["main", "a", "b"]),
        st.integers(0, 3),
    ),
    max_size=12,
)


async def change_ref(ledger: RepositoryLedger, action: str, name: str, snapshot_id: str) -> None:
    """Change a ref. A change that the state of the refs does not allow changes nothing."""
    with contextlib.suppress(AlreadyExistsError, RefNotFoundError, ForbiddenChangeError):
        if action == "create branch":
            await ledger.create_branch(name, snapshot_id)
        elif action == "reset":
            await ledger.reset_branch(name, snapshot_id, None)
        elif action == "delete branch":
            await ledger.delete_branch(name)
        elif action == "tag":
            await ledger.create_tag(f"{name}{snapshot_id[:2]}", snapshot_id)
        else:
            await ledger.touch_branch(name, await ledger.fetch_tip(name))


@given(changes=REF_CHANGES, writers=st.randoms(use_true_random=False), style=st.sampled_from([".", ":"]))
def test_one_listing_returns_the_same_refs_as_a_request_for_each(
    changes: list[tuple[str, str, int]], writers: Any, style: str
) -> None:
    async def run() -> None:
        storage = in_memory_storage()
        await storage.create(RefStyle(style).branch_key("main", 0), RefContent(ids[0]).encode())
        reader, other = open_ledger(storage), open_ledger(storage)
        for action, name, number in changes:
            writer = writers.choice([reader, other, open_ledger(storage)])
            await change_ref(writer, action, name, ids[number])
            view = open_ledger(storage)
            view.learn_from(reader)
            fresh = open_ledger(storage)
            expected = await fresh.fetch_tips(), await fresh.fetch_tags()
            for ledger in (reader, view):
                tips, tags = await ledger.fetch_refs()
                assert (tips, tags) == expected
                assert {n: t.collection for n, t in tips.items()} == {n: t.collection for n, t in expected[0].items()}

    ids = [new_object_id() for _ in range(4)]
    asyncio.run(run())


async def test_refs_that_did_not_change_are_one_listing() -> None:
    storage = CountingStorage(in_memory_storage())
    ledger, ids = open_ledger(storage), [new_object_id() for _ in range(3)]
    await storage.create(RefStyle().branch_key("main", 0), RefContent(ids[0]).encode())
    await ledger.create_branch("side", ids[1])
    await ledger.create_tag("v1", ids[2])
    before = await ledger.fetch_refs()
    assert await ledger.fetch_refs() == before
    view = open_ledger(storage)
    view.learn_from(ledger)
    storage.counts.reset()
    assert await view.fetch_refs() == before
    assert storage.counts.of("get").requests == 0
    # What this process wrote itself is not read either.
    assert await ledger.touch_branch("side", before[0]["side"])
    storage.counts.reset()
    assert (await view.fetch_refs())[0]["side"].version_token == before[0]["side"].version_token + 1
    assert storage.counts.of("get").requests == 0


class WalkedStorage(WrappedStorage):
    """Lists as a file system does: a folder that was listed already may change before the next one is listed."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.between: Callable[[], Awaitable[None]] | None = None

    def _rewrap(self, inner: Storage) -> Storage:
        return WalkedStorage(inner)

    async def _forward(self, op: Operation, call: Callable[[], Awaitable[Any]]) -> Any:
        return await call()

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        names = [item.key async for page in self.inner.list(prefix, after=after) for item in page]
        folders = {name.rpartition("/")[0] for name in names}
        if self.between is not None and prefix == "refs/" and after is None:
            between, self.between = self.between, None
            await between()
        items = [item async for page in self.inner.list(prefix, after=after) for item in page]
        yield [item for item in items if item.key.rpartition("/")[0] in folders]


@pytest.mark.parametrize("end", ["reset", "delete"])
async def test_a_tag_that_replaces_a_branch_is_not_missed_during_a_listing(end: str) -> None:
    storage, ids = WalkedStorage(in_memory_storage()), [new_object_id() for _ in range(2)]
    reader, other = open_ledger(storage), open_ledger(storage)
    await storage.create(RefStyle().branch_key("main", 0), RefContent(ids[0]).encode())
    await other.create_branch("side", ids[1])
    await reader.fetch_refs()

    async def replace_branch() -> None:
        await other.create_tag("kept", ids[1])
        if end == "reset":
            await other.reset_branch("side", ids[0], None)
        else:
            await other.delete_branch("side")

    storage.between = replace_branch
    tips, tags = await reader.fetch_refs()
    assert ids[1] in {*(tip.snapshot_id for tip in tips.values()), *tags.values()}


async def test_many_ref_files_are_not_listed_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icefloe.ledger.repository._MOST_LISTED_FILES", 3)
    storage = CountingStorage(in_memory_storage())
    ledger, ids = open_ledger(storage), [new_object_id() for _ in range(6)]
    await storage.create(RefStyle().branch_key("main", 0), RefContent(ids[0]).encode())
    for each in ids[1:]:
        await ledger.reset_branch("main", each, None)
    fresh = open_ledger(storage)
    assert await fresh.fetch_refs() == ({"main": Tip(ids[-1], 5)}, {})
    storage.counts.reset()
    await fresh.fetch_refs()
    assert storage.counts.of("list_names").requests == 1
