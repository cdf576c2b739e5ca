"""Branch and tag files of `store`: sequence numbers, races, refs, history and configuration."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    RefNotFoundError,
    SnapshotNotFoundError,
    UnsupportedError,
)
from icefloe.formats.store import FORMAT
from icefloe.formats.store.snapshot import load_schema
from icefloe.ids import new_object_id
from icefloe.ledger.ledger import StaleTipError
from icefloe.ledger.store import StoreLedger
from icefloe.metadata_files import MetadataFiles
from icefloe.model.snapshot import Snapshot
from icefloe.storage import s3_storage
from icefloe.storage.contract import ObjectInfo, Storage
from icefloe.storage.local import LocalStorage
from icefloe.storage.memory import MemoryStorage

START = dt.datetime(2024, 9, 18, 12, tzinfo=dt.UTC)
KEPT = 3
"""How many ancestors these snapshots quote; the engine quotes more."""


@pytest.fixture(params=["memory", "local", pytest.param("s3", marks=pytest.mark.s3)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "s3":
        server = request.getfixturevalue("s3_server")
        return s3_storage(**server.storage_options(request.getfixturevalue("s3_bucket")))
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path / "store")


def make_snapshot(parent: Snapshot | None, number: int = 0, **metadata: Any) -> Snapshot:
    history = () if parent is None else (parent.info, *parent.history)
    return Snapshot(
        id=new_object_id(16),
        parent_id=None if parent is None else parent.id,
        # Later commits have earlier times: clocks of different writers may go that wrong.
        written_at=START - dt.timedelta(hours=number),
        message=f"commit {number}",
        metadata=metadata,
        nodes={},
        manifests={},
        history=history[:KEPT],
        total_ancestors=0 if parent is None else (parent.total_ancestors or 0) + 1,
        started_at=START,
    )


async def make_ledger(storage: Storage, config: dict[str, Any] | None = None) -> tuple[StoreLedger, Snapshot]:
    metadata_files = MetadataFiles(storage, FORMAT)
    initial = make_snapshot(None)
    await metadata_files.write_snapshot(initial)
    ledger = StoreLedger(storage, metadata_files)
    await ledger.create(initial, config)
    return ledger, initial


async def commit(ledger: StoreLedger, branch: str, number: int) -> Snapshot:
    tip = await ledger.fetch_tip(branch)
    snapshot = make_snapshot(await ledger.metadata_files.fetch_snapshot(tip.snapshot_id), number, author=number)
    await ledger.metadata_files.write_snapshot(snapshot)
    await ledger.advance(branch, tip, snapshot)
    return snapshot


async def check_schemas(storage: Storage) -> list[str]:
    """Every file is valid against its schema; their keys."""
    keys = []
    async for page in storage.list(""):
        for item in page:
            schema = {"r/": "reference", "s/": "snapshot", "m/": "manifest"}.get(item.key[:2])
            if schema is not None:
                # Not jsonschema.validate: the specification's own schema has an empty list that draft 7 does not allow.
                checker = jsonschema.Draft7Validator(load_schema(schema))  # type: ignore[arg-type]
                checker.validate(json.loads(await storage.get(item.key)))
            keys.append(item.key)
    return keys


async def test_only_one_creates_a_store_and_files_have_their_names(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)
    with pytest.raises(AlreadyExistsError):
        await ledger.create(make_snapshot(None), None)
    first = await commit(ledger, "main", 1)
    await ledger.create_tag("v1", first.id)
    keys = await check_schemas(storage)
    assert sorted(keys) == sorted(
        ["r/main/ZZZZZZZY.json", "r/main/ZZZZZZZZ.json", "r/v1.json", f"s/{initial.id}.json", f"s/{first.id}.json"]
    )
    assert len(initial.id) == 26


async def test_history_goes_on_in_the_file_of_the_last_quoted_ancestor(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)
    made = [initial] + [await commit(ledger, "main", n) for n in range(1, 11)]
    metadata_files = MetadataFiles(storage, FORMAT)
    infos = [info async for info in StoreLedger(storage, metadata_files).ancestry(made[-1].id)]
    assert infos == [snapshot.info for snapshot in reversed(made)]
    # Ten ancestors, three in each file.
    assert metadata_files._snapshots.misses == 4
    assert await ledger.fetch_info(made[4].id) == made[4].info
    with pytest.raises(SnapshotNotFoundError):
        await ledger.fetch_info(new_object_id(16))


async def test_a_stale_tip_conflicts_only_when_the_branch_moved(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)
    tip = await ledger.fetch_tip("main")
    first = await commit(ledger, "main", 1)
    with pytest.raises(ConflictError) as caught:
        await ledger.advance("main", tip, make_snapshot(initial, 2))
    assert (caught.value.expected_parent, caught.value.actual_parent) == (initial.id, first.id)
    await ledger.reset_branch("main", initial.id, first.id)
    with pytest.raises(StaleTipError) as stale:
        await ledger.advance("main", tip, make_snapshot(initial, 3))
    moved = await ledger.advance("main", stale.value.tip, make_snapshot(initial, 3))
    assert moved.version_token == 3


async def test_racing_writers_lose_no_commit(storage: Storage) -> None:
    ledger, _ = await make_ledger(storage)

    async def writer(number: int) -> None:
        own = StoreLedger(storage, ledger.metadata_files)
        while True:
            try:
                await commit(own, "main", number)
            except ConflictError:
                await asyncio.sleep(0)
                continue
            return

    await asyncio.gather(*(writer(n) for n in range(12)))
    tip = await ledger.fetch_tip("main")
    assert tip.version_token == 12
    messages = [info.message async for info in ledger.ancestry(tip.snapshot_id)]
    assert sorted(messages) == sorted(["commit 0", *(f"commit {n}" for n in range(12))])


async def test_refs_are_created_reset_and_deleted_with_clear_errors(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)
    first = await commit(ledger, "main", 1)
    await ledger.create_branch("dev é%", initial.id)
    await ledger.create_tag("dev é%", first.id)
    assert await ledger.list_branches() == {"main", "dev é%"}
    assert await ledger.list_tags() == {"dev é%"}
    assert await ledger.fetch_tag("dev é%") == first.id
    for create in (ledger.create_branch, ledger.create_tag):
        with pytest.raises(AlreadyExistsError):
            await create("dev é%", initial.id)
        with pytest.raises(InvalidInputError):
            await create("a/b", initial.id)
    with pytest.raises(InvalidInputError, match="tag"):
        await ledger.create_branch("v1.json", initial.id)
    with pytest.raises(ConflictError):
        await ledger.reset_branch("dev é%", first.id, first.id)
    await ledger.reset_branch("dev é%", first.id, initial.id)
    assert (await ledger.fetch_tip("dev é%")).snapshot_id == first.id
    with pytest.raises(UnsupportedError):
        await ledger.delete_tag("dev é%")
    with pytest.raises(RefNotFoundError):
        await ledger.delete_tag("nothing")
    with pytest.raises(InvalidInputError):
        await ledger.delete_branch("main")
    await check_schemas(storage)


async def test_a_deleted_branch_is_gone_until_it_is_made_again(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)
    await ledger.create_branch("dev", initial.id)
    tip = await ledger.fetch_tip("dev")
    await ledger.delete_branch("dev")
    assert await ledger.list_branches() == {"main"}
    with pytest.raises(RefNotFoundError):
        await ledger.fetch_tip("dev")
    with pytest.raises(RefNotFoundError):
        await ledger.delete_branch("dev")
    with pytest.raises(RefNotFoundError):
        await ledger.advance("dev", tip, make_snapshot(initial, 1))
    await ledger.create_branch("dev", initial.id)
    assert (await ledger.fetch_tip("dev")).version_token == 2
    await check_schemas(storage)


async def test_the_configuration_is_replaced_only_when_it_is_the_one_that_was_read(storage: Storage) -> None:
    ledger, _ = await make_ledger(storage)
    assert (await ledger.fetch_config()).document is None
    await ledger.save_config({"inline": 1}, None)
    stored = await ledger.fetch_config()
    await ledger.save_config({"inline": 2}, stored.version_token)
    for mark in (stored.version_token, None):
        with pytest.raises(ConflictError):
            await ledger.save_config({"inline": 3}, mark)
    assert (await ledger.fetch_config()).document == {"inline": 2}


async def test_an_amended_commit_takes_the_place_of_the_old_one(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)
    old = await commit(ledger, "main", 1)
    better = dataclasses.replace(make_snapshot(initial, 2), message="better")
    await ledger.metadata_files.write_snapshot(better)
    await ledger.advance("main", await ledger.fetch_tip("main"), better, amends=old.id)
    assert [info.message async for info in ledger.ancestry(better.id)] == ["better", "commit 0"]


async def test_a_snapshot_can_be_given_another_parent(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)
    made = [await commit(ledger, "main", n) for n in range(1, 8)]
    await ledger.reparent_snapshot(made[3].id, initial.id)
    fresh = StoreLedger(storage, MetadataFiles(storage, FORMAT))
    found = [info.id async for info in fresh.ancestry(made[6].id)]
    assert found == [made[6].id, made[5].id, made[4].id, made[3].id, initial.id]
    await check_schemas(storage)


class Unlisted(MemoryStorage):
    """A storage that cannot list, as web servers are."""

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        raise UnsupportedError("cannot list")
        yield []


@pytest.mark.parametrize("commits", [0, 1, 2, 3, 6, 9])
async def test_the_newest_file_is_found_without_listing(commits: int) -> None:
    storage = Unlisted()
    ledger, tip = await make_ledger(storage)
    for number in range(1, commits + 1):
        tip = await commit(ledger, "main", number)
    found = await StoreLedger(storage, ledger.metadata_files).fetch_tip("main")
    assert (found.snapshot_id, found.version_token) == (tip.id, commits)
    with pytest.raises(RefNotFoundError):
        await ledger.fetch_tip("nothing")


@pytest.mark.parametrize("content", [b"[]", b"{}", b"{]}", b'{"snapshot":"NOT AN ID"}', b"no JSON"])
async def test_a_broken_branch_file_is_an_error_not_an_older_state(storage: Storage, content: bytes) -> None:
    ledger, _ = await make_ledger(storage)
    await storage.create("r/main/ZZZZZZZY.json", content)
    with pytest.raises(FormatError):
        await ledger.fetch_tip("main")


@pytest.mark.parametrize("content", [b"", bytes(20), b"{", b'{"snapshot":"ABCD'])
async def test_a_newest_branch_file_that_was_not_written_to_its_end_is_passed_over(
    storage: Storage, content: bytes
) -> None:
    ledger, initial = await make_ledger(storage)
    await storage.create("r/main/ZZZZZZZY.json", content)
    tip = await ledger.fetch_tip("main")
    assert (tip.snapshot_id, tip.version_token) == (initial.id, 1)
    made = await commit(ledger, "main", 2)
    tip = await StoreLedger(storage, ledger.metadata_files).fetch_tip("main")
    assert (tip.snapshot_id, tip.version_token) == (made.id, 2)


@pytest.mark.parametrize("content", [b"", b"{"])
async def test_a_branch_of_which_no_file_is_whole_is_an_error(storage: Storage, content: bytes) -> None:
    ledger, _ = await make_ledger(storage)
    await storage.create("r/other/ZZZZZZZZ.json", content)
    with pytest.raises(FormatError, match="is truncated"):
        await ledger.fetch_tip("other")


async def test_a_whole_but_wrong_file_before_an_unfinished_one_is_an_error(storage: Storage) -> None:
    ledger, _ = await make_ledger(storage)
    await storage.create("r/main/ZZZZZZZY.json", b"{}")
    await storage.create("r/main/ZZZZZZZX.json", b"{")
    with pytest.raises(FormatError):
        await ledger.fetch_tip("main")
