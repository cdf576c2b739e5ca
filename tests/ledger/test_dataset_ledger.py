"""The state file of `dataset`: fields, schema, swaps, refs and history."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.early_generations import JSON_VALUES, METADATA, TEXT, TIMES

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    RefNotFoundError,
    RepositoryNotFoundError,
    SnapshotNotFoundError,
    UnsupportedError,
    VersionMismatchError,
)
from icefloe.formats.dataset import FORMAT
from icefloe.formats.dataset.state import (
    STATE_KEY,
    State,
    StateRef,
    StateSnapshot,
    encode_state,
    load_state_schema,
    parse_state,
    resolve_data_root,
    snapshot_entry,
)
from icefloe.ids import new_object_id
from icefloe.ledger.dataset import DatasetLedger, fetch_state
from icefloe.metadata_files import MetadataFiles
from icefloe.model.snapshot import Snapshot, SnapshotInfo
from icefloe.storage import s3_storage
from icefloe.storage.contract import Storage
from icefloe.storage.local import LocalStorage
from icefloe.storage.memory import MemoryStorage

START = dt.datetime(2024, 8, 4, 12, tzinfo=dt.UTC)


def make_snapshot(parent: str | None, number: int = 0, **metadata: Any) -> Snapshot:
    time = START + dt.timedelta(seconds=number, microseconds=number)
    return Snapshot(new_object_id(), parent, time, f"commit {number}", metadata, {}, {})


@pytest.fixture(params=["memory", "local", pytest.param("s3", marks=pytest.mark.s3)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "s3":
        server = request.getfixturevalue("s3_server")
        return s3_storage(**server.storage_options(request.getfixturevalue("s3_bucket")))
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path / "dataset")


async def make_ledger(storage: Storage, config: dict[str, Any] | None = None) -> tuple[DatasetLedger, Snapshot]:
    metadata_files = MetadataFiles(storage, FORMAT)
    initial = make_snapshot(None)
    await metadata_files.write_snapshot(initial)
    ledger = DatasetLedger(storage, metadata_files)
    await ledger.create(initial, config)
    return ledger, initial


async def commit(ledger: DatasetLedger, branch: str, number: int) -> Snapshot:
    tip = await ledger.fetch_tip(branch)
    snapshot = make_snapshot(tip.snapshot_id, number, author="x")
    await ledger.metadata_files.write_snapshot(snapshot)
    await ledger.advance(branch, tip, snapshot)
    return snapshot


async def check_schema(storage: Storage) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(await storage.get(STATE_KEY))
    jsonschema.validate(document, load_state_schema())
    return document


IDS = st.text("ABCDEFGH0123", min_size=1, max_size=6)
UNKNOWN = st.dictionaries(st.text("xyz-", min_size=1, max_size=3), JSON_VALUES, max_size=2)


@st.composite
def states(draw: st.DrawFn) -> State:
    ids = draw(st.lists(IDS, min_size=1, max_size=4, unique=True))
    entries = [
        StateSnapshot(
            name,
            draw(st.integers(0, 253402300799999)),
            draw(TEXT.filter(bool)),
            draw(st.none() | st.sampled_from(ids)),
            draw(st.none() | METADATA),
            draw(UNKNOWN),
        )
        for name in ids
    ]
    kinds = st.sampled_from(["branch", "tag"])
    refs = draw(st.dictionaries(TEXT, st.builds(StateRef, st.sampled_from(ids), kinds, UNKNOWN), max_size=3))
    root = draw(st.none() | st.just("s3://bucket/data"))
    return State(draw(IDS), draw(st.integers(0, 2**40)), tuple(entries), refs, root, draw(UNKNOWN))


@pytest.mark.long
@given(states())
def test_a_state_comes_back_with_the_keys_nobody_knows_and_fits_the_schema(state: State) -> None:
    data = encode_state(state)
    jsonschema.validate(json.loads(data), load_state_schema())
    assert parse_state(data) == state


@given(TIMES, TEXT, METADATA)
def test_a_snapshot_is_listed_with_its_message_metadata_and_exact_time(
    time: dt.datetime, message: str, metadata: dict[str, Any]
) -> None:
    info = SnapshotInfo("A", "B", time, message, metadata)
    state = State("D", 1, (snapshot_entry(info),))
    assert parse_state(encode_state(state)).snapshots[0].info() == info


@given(states(), st.data())
def test_a_broken_state_gives_a_format_error(state: State, data: st.DataObject) -> None:
    whole = encode_state(state)
    place = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FormatError):
        parse_state(whole[:place])
    flipped = bytearray(whole)
    flipped[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(FormatError):
        parse_state(bytes(flipped))
    document = json.loads(whole)
    key = data.draw(st.sampled_from(["id", "generation", "snapshots"]))
    document[key] = data.draw(st.none() | st.floats() | st.just([3]))
    with pytest.raises(FormatError):
        parse_state(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("root", "expected"),
    [(None, None), ("", None), ("s3://b/x/", "s3://b/x"), ("data", "{url}/data"), ("/abs", "/abs"), ("{url}", None)],
)
def test_the_data_root_is_where_the_state_says(root: str | None, expected: str | None) -> None:
    storage = MemoryStorage()
    url = storage.url.rstrip("/")
    state = State("D", 1, store_root=root.format(url=url) if root else root)
    assert resolve_data_root(state, storage) == (expected.format(url=url) if expected else None)


async def test_a_state_may_live_apart_from_its_data() -> None:
    place, data = MemoryStorage(), MemoryStorage()
    metadata_files = MetadataFiles(data, FORMAT)
    initial = make_snapshot(None)
    await metadata_files.write_snapshot(initial)
    await DatasetLedger(place, metadata_files).create(initial, None)
    state = (await fetch_state(place)).state
    assert resolve_data_root(state, place) == data.url.rstrip("/")
    assert await data.list_names("") == ["s/"]
    assert await place.list_names("") == ["state.json"]


async def test_only_one_creates_a_dataset(storage: Storage) -> None:
    with pytest.raises(RepositoryNotFoundError):
        await fetch_state(storage)
    ledger, initial = await make_ledger(storage)
    with pytest.raises(AlreadyExistsError):
        await ledger.create(make_snapshot(None), None)
    assert (await ledger.fetch_tip("main")).snapshot_id == initial.id
    assert await ledger.list_branches() == {"main"}
    assert await ledger.list_tags() == set()
    document = await check_schema(storage)
    assert document["generation"] == 1
    assert "store_root" not in document


async def test_history_names_every_commit_newest_first(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)
    made = [initial] + [await commit(ledger, "main", n) for n in range(1, 4)]
    infos = [info async for info in ledger.ancestry(made[-1].id)]
    assert infos == [snapshot.info for snapshot in reversed(made)]
    assert await ledger.fetch_info(made[1].id) == made[1].info
    assert (await check_schema(storage))["generation"] == 4
    with pytest.raises(SnapshotNotFoundError):
        await ledger.fetch_info("NOTHING")
    with pytest.raises(SnapshotNotFoundError):
        _ = [info async for info in ledger.ancestry("NOTHING")]


async def test_a_stale_tip_conflicts_only_when_the_branch_moved(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)
    other = DatasetLedger(storage, ledger.metadata_files)
    tip = await ledger.fetch_tip("main")
    await other.create_tag("v0", initial.id)
    first = make_snapshot(initial.id, 1)
    moved = await ledger.advance("main", tip, first)
    assert moved.snapshot_id == first.id
    with pytest.raises(ConflictError) as caught:
        await other.advance("main", tip, make_snapshot(initial.id, 2))
    assert (caught.value.expected_parent, caught.value.actual_parent) == (initial.id, first.id)
    # The same commit again, as after a lost answer, is a success and changes nothing.
    before = await storage.get(STATE_KEY)
    assert (await other.advance("main", tip, first)).snapshot_id == first.id
    assert await storage.get(STATE_KEY) == before


async def test_racing_writers_lose_no_commit(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)

    async def writer(number: int) -> None:
        own = DatasetLedger(storage, ledger.metadata_files)
        while True:
            tip = await own.fetch_tip("main")
            try:
                await own.advance("main", tip, make_snapshot(tip.snapshot_id, number))
            except ConflictError:
                await asyncio.sleep(0)
                continue
            return

    await asyncio.gather(
        *(writer(n) for n in range(12)), *(ledger.create_branch(f"b{n}", initial.id) for n in range(6))
    )
    tip = await ledger.fetch_tip("main")
    messages = [info.message async for info in ledger.ancestry(tip.snapshot_id)]
    assert sorted(messages) == sorted(["commit 0", *(f"commit {n}" for n in range(12))])
    assert await ledger.list_branches() == {"main", *(f"b{n}" for n in range(6))}
    assert (await check_schema(storage))["generation"] == 1 + 12 + 6


async def test_refs_are_created_reset_and_deleted_with_clear_errors(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)
    first = await commit(ledger, "main", 1)
    await ledger.create_branch("dev", initial.id)
    await ledger.create_tag("v1 é/"[:4], first.id)
    assert await ledger.fetch_tag("v1 é") == first.id
    for create in (ledger.create_branch, ledger.create_tag):
        with pytest.raises(AlreadyExistsError):
            await create("dev", initial.id)
        with pytest.raises(AlreadyExistsError):
            await create("v1 é", initial.id)
        with pytest.raises(InvalidInputError):
            await create("a/b", initial.id)
        with pytest.raises(SnapshotNotFoundError):
            await create("new", "NOTHING")
    with pytest.raises(ConflictError):
        await ledger.reset_branch("dev", first.id, first.id)
    await ledger.reset_branch("dev", first.id, initial.id)
    assert (await ledger.fetch_tip("dev")).snapshot_id == first.id
    with pytest.raises(RefNotFoundError):
        await ledger.reset_branch("v1 é", first.id, None)
    with pytest.raises(UnsupportedError):
        await ledger.delete_tag("v1 é")
    with pytest.raises(RefNotFoundError):
        await ledger.delete_tag("dev")
    with pytest.raises(InvalidInputError):
        await ledger.delete_branch("main")
    await ledger.delete_branch("dev")
    with pytest.raises(RefNotFoundError, match="main"):
        await ledger.fetch_tip("dev")
    await check_schema(storage)


async def test_a_detached_snapshot_is_known_but_on_no_branch(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)
    loose = make_snapshot(initial.id, 9)
    await ledger.metadata_files.write_snapshot(loose)
    await ledger.record_detached(loose)
    await ledger.record_detached(loose)
    assert await ledger.fetch_info(loose.id) == loose.info
    assert (await ledger.fetch_tip("main")).snapshot_id == initial.id


async def test_an_amended_commit_takes_the_place_of_the_old_one(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)
    old = await commit(ledger, "main", 1)
    better = dataclasses.replace(make_snapshot(initial.id, 2), message="better")
    await ledger.advance("main", await ledger.fetch_tip("main"), better, amends=old.id)
    assert [info.message async for info in ledger.ancestry(better.id)] == ["better", "commit 0"]


async def test_the_configuration_is_replaced_only_when_it_is_the_one_that_was_read(storage: Storage) -> None:
    ledger, _ = await make_ledger(storage, {"inline": 1})
    stored = await ledger.fetch_config()
    assert stored.document == {"inline": 1}
    await commit(ledger, "main", 1)
    await ledger.save_config({"inline": 2}, stored.version_token)
    with pytest.raises(ConflictError):
        await ledger.save_config({"inline": 3}, stored.version_token)
    assert (await ledger.fetch_config()).document == {"inline": 2}
    await check_schema(storage)


async def test_expiry_gives_children_the_nearest_kept_ancestor(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)
    made = [await commit(ledger, "main", n) for n in range(1, 5)]
    await ledger.create_tag("keep", made[1].id)
    with pytest.raises(InvalidInputError, match="keep"):
        await ledger.forget_snapshots([made[1].id])
    assert await ledger.forget_snapshots([made[0].id, made[2].id, "NOTHING"]) == {made[0].id, made[2].id}
    assert await ledger.forget_snapshots([made[0].id]) == frozenset()
    found = [info.id async for info in ledger.ancestry(made[3].id)]
    assert found == [made[3].id, made[1].id, initial.id]
    await check_schema(storage)


async def test_a_snapshot_can_be_given_another_parent(storage: Storage) -> None:
    ledger, initial = await make_ledger(storage)
    made = [await commit(ledger, "main", n) for n in range(1, 4)]
    await ledger.reparent_snapshot(made[2].id, initial.id)
    assert [info.id async for info in ledger.ancestry(made[2].id)] == [made[2].id, initial.id]
    assert (await ledger.metadata_files.fetch_snapshot(made[2].id)).parent_id == initial.id
    with pytest.raises(SnapshotNotFoundError):
        await ledger.reparent_snapshot(made[2].id, "NOTHING")


async def test_keys_of_others_survive_our_commits(storage: Storage) -> None:
    ledger, _ = await make_ledger(storage)
    seen = await storage.get_versioned(STATE_KEY)
    document = json.loads(seen.data)
    document["theirs"] = {"a": [1]}
    document["snapshots"][0]["theirs"] = 5
    document["refs"]["main"]["theirs"] = None
    await storage.swap(STATE_KEY, json.dumps(document).encode(), seen.version)
    await commit(ledger, "main", 1)
    after = await check_schema(storage)
    assert after["theirs"] == {"a": [1]}
    assert after["snapshots"][0]["theirs"] == 5
    assert after["refs"]["main"]["theirs"] is None


async def test_a_state_that_changed_is_never_overwritten(storage: Storage) -> None:
    ledger, _ = await make_ledger(storage)
    seen = await fetch_state(storage)
    await commit(ledger, "main", 1)
    with pytest.raises(VersionMismatchError):
        await storage.swap(STATE_KEY, encode_state(seen.state), seen.version)


async def test_a_ring_of_parents_ends_in_an_error(storage: Storage) -> None:
    ring = (StateSnapshot("A", 1, "A.parquet", "B"), StateSnapshot("B", 2, "B.parquet", "A"))
    await storage.create(STATE_KEY, encode_state(State("D", 1, ring, {"main": StateRef("A", "branch")})))
    ledger = DatasetLedger(storage, MetadataFiles(storage, FORMAT))
    with pytest.raises(SnapshotNotFoundError):
        _ = [info async for info in ledger.ancestry("A")]
