"""What a commit costs does not depend on how many were made before, nor on how much it leaves alone."""

from __future__ import annotations

import datetime as dt
import json

import pytest
import zarr

import icefloe
from icefloe.blocking import run_blocking
from icefloe.ids import new_object_id
from icefloe.ledger.repository_refs import DOTTED, RefContent
from icefloe.model.snapshot import Snapshot, SnapshotInfo
from icefloe.session.commit_files import HISTORY_LENGTH
from icefloe.storage.build import in_memory_storage
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.wrappers import MethodMetrics
from icefloe.testing.storages import CountingStorage

DAY = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def _tiny_commit(repo: icefloe.Repository, number: int) -> None:
    session = repo.writable_session("main")
    chunk = run_blocking(session.keyspace.fetch("a/zarr.json"))
    assert chunk is not None
    run_blocking(session.keyspace.write(f"a/c/{number % 16}", number.to_bytes(4, "little")))
    session.commit(f"commit {number:06d}")


@pytest.mark.long
def test_the_two_thousandth_commit_writes_and_asks_for_as_much_as_the_hundredth() -> None:
    storage = CountingStorage(in_memory_storage())
    repo = icefloe.Repository.create(storage)
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(16,), chunks=(1,), dtype="i4", compressors=None)
    costs: dict[int, MethodMetrics] = {}
    for number in range(2, 2001):
        storage.counts.reset()
        _tiny_commit(repo, number)
        if number in (100, 2000):
            costs[number] = MethodMetrics(storage.counts.total.requests, sent_bytes=storage.counts.writes.sent_bytes)
    assert costs[2000].sent_bytes <= 1.2 * costs[100].sent_bytes
    assert costs[2000].requests <= costs[100].requests
    # A reader who comes anew pays no more either, and finds every commit.
    storage.counts.reset()
    fresh = icefloe.Repository.open(storage)
    fresh.readonly_session("main")
    assert storage.counts.total.requests <= 12
    assert sum(1 for _ in fresh.ancestry(branch="main")) == 2001


@pytest.fixture(scope="module")
def long_history() -> tuple[MemoryStorage, int]:
    """A branch of 100,000 commits, written file by file: only the snapshots that a walk visits have a file."""
    count = 100_000
    storage = in_memory_storage()
    repo = icefloe.Repository.create(storage)
    metadata_files = repo.context.metadata_files
    ids = [repo.lookup_branch("main"), *(new_object_id() for _ in range(count))]
    infos = [
        SnapshotInfo(each, ids[n - 1] if n else None, DAY + dt.timedelta(seconds=n), f"commit {n}", {})
        for n, each in enumerate(ids)
    ]

    async def write() -> None:
        needed = range(count, 0, -HISTORY_LENGTH)
        for number in needed:
            own = infos[number]
            history = tuple(reversed(infos[max(0, number - HISTORY_LENGTH) : number]))
            await metadata_files.write_snapshot(
                Snapshot(
                    own.id,
                    own.parent_id,
                    own.written_at,
                    own.message,
                    {},
                    {},
                    {},
                    history=history,
                    total_ancestors=number,
                    started_at=own.written_at,
                )
            )
        for number in range(1, count + 1):
            await storage.create(DOTTED.branch_key("main", number), RefContent(ids[number]).encode())

    run_blocking(write())
    assert isinstance(storage, MemoryStorage)
    return storage, count


@pytest.mark.long
def test_a_walk_through_a_hundred_thousand_commits_fetches_one_file_in_thirty_two(
    long_history: tuple[MemoryStorage, int],
) -> None:
    inner, count = long_history
    storage = CountingStorage(inner)
    repo = icefloe.Repository.open(storage)
    storage.counts.reset()
    assert sum(1 for _ in repo.ancestry(branch="main")) == count + 1
    assert storage.counts.of("get", "get_range", "get_versioned").requests <= count / HISTORY_LENGTH + 10


@pytest.mark.long
def test_opening_and_committing_on_a_hundred_thousand_commits_asks_for_a_few_objects(
    long_history: tuple[MemoryStorage, int],
) -> None:
    inner, _ = long_history
    storage = CountingStorage(inner)
    repo = icefloe.Repository.open(storage)
    session = repo.writable_session("main")
    assert storage.counts.total.requests <= 12
    assert storage.counts.of("list", "list_names").requests <= 2
    storage.counts.reset()
    zarr.create_group(session.store)
    session.commit("one more")
    assert storage.counts.total.requests <= 12
    storage.counts.reset()
    first = [info.message for _, info in zip(range(10), repo.ancestry(branch="main"), strict=False)]
    assert first[0] == "one more"
    assert storage.counts.total.requests <= 6


def test_a_commit_of_one_chunk_leaves_a_large_hierarchy_alone() -> None:
    storage = CountingStorage(in_memory_storage())
    repo = icefloe.Repository.create(storage)
    session = repo.writable_session("main")
    document = json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [4],
            "data_type": "int32",
            "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "attributes": {},
        }
    ).encode()
    run_blocking(session.keyspace.write("zarr.json", b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'))
    for number in range(5000):
        run_blocking(session.keyspace.write(f"a{number:04d}/zarr.json", document))
    session.commit("arrays")
    session = repo.writable_session("main")
    run_blocking(session.keyspace.write("a2500/c/1", b"\1\2\3\4"))
    storage.counts.reset()
    session.commit("one chunk")
    assert storage.counts.of("put").requests <= 3
    assert storage.counts.total.requests <= 6
