"""Small chunks share objects and their reads share requests, through Zarr."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr
from tests.session.journal import Journal, JournalStorage

import icefloe
from icefloe import ChunkPackingConfig, RepositoryConfig, SpecVersion
from icefloe.blocking import run_blocking
from icefloe.errors import StorageError
from icefloe.model.config import PackBy
from icefloe.testing.storages import Fault, FaultKind, FaultPlan, FaultyStorage

CHUNKS = 400
ITEMS = 512  # of 8 bytes: 4 KiB a chunk, above the inline threshold


def packing(**settings: object) -> RepositoryConfig:
    return RepositoryConfig(chunk_packing=ChunkPackingConfig(**settings))  # type: ignore[arg-type]


def small_chunks(store: icefloe.IcechunkStore, name: str = "small", chunks: int = CHUNKS) -> zarr.Array:
    return zarr.create_array(
        store, name=name, shape=(chunks * ITEMS,), chunks=(ITEMS,), dtype="f8", compressors=None, fill_value=0
    )


def values(chunks: int = CHUNKS, start: int = 1) -> np.ndarray:
    return np.arange(start, start + chunks * ITEMS, dtype="f8")


def objects(journal: Journal) -> set[str]:
    return {entry.key for entry in journal.writes("chunks/")}


def write(repo: icefloe.Repository, names: tuple[str, ...] = ("small",)) -> None:
    session = repo.writable_session("main")
    for name in names:
        small_chunks(session.store, name)[:] = values()
    session.commit("small chunks")


def test_small_chunks_share_an_object(storage: JournalStorage, reopen: Callable[..., icefloe.Repository]) -> None:
    write(icefloe.Repository.create(storage))
    assert len(objects(storage.journal)) == 1
    array = zarr.open_array(reopen().readonly_session("main").store, path="small", mode="r")
    np.testing.assert_array_equal(array[:], values())


def test_packing_is_off_by_one_setting(storage: JournalStorage) -> None:
    write(icefloe.Repository.create(storage, packing(enabled=False)))
    assert len(objects(storage.journal)) == CHUNKS


def test_packs_keep_to_their_target(storage: JournalStorage) -> None:
    write(icefloe.Repository.create(storage, packing(target_bytes=256 << 10, threshold_bytes=8 << 10)))
    sizes = [entry.sent_bytes for entry in storage.journal.writes("chunks/")]
    assert max(sizes) <= 256 << 10
    assert sum(sizes) == CHUNKS * ITEMS * 8
    assert len(sizes) <= 2 * (sum(sizes) // (256 << 10))


def test_arrays_share_packs_or_not_as_configured(storage: JournalStorage) -> None:
    names = ("a", "b", "c")
    write(icefloe.Repository.create(storage, packing(by=PackBy.ARRAY)), names)
    assert len(objects(storage.journal)) == 3
    mixed = JournalStorage(icefloe.in_memory_storage())
    write(icefloe.Repository.create(mixed, packing(by=PackBy.MIXED)), names)
    assert len(objects(mixed.journal)) == 1


def test_large_chunks_are_one_object_each_and_reach_storage_at_once(storage: JournalStorage) -> None:
    repo = icefloe.Repository.create(storage)
    session = repo.writable_session("main")
    large = zarr.create_array(
        session.store, name="large", shape=(4, 1 << 17), chunks=(1, 1 << 17), dtype="f8", compressors=None
    )
    large[:] = 1.5
    assert len(objects(storage.journal)) == 4
    small_chunks(session.store, chunks=10)[:] = values(10)
    session.commit("both")
    sizes = sorted(entry.sent_bytes for entry in storage.journal.writes("chunks/"))
    assert sizes == [10 * ITEMS * 8] + 4 * [1 << 20]


def test_tiny_chunks_are_in_the_manifest_and_in_no_object(storage: JournalStorage) -> None:
    repo = icefloe.Repository.create(storage)
    with repo.transaction("main", message="tiny") as store:
        zarr.create_array(store, name="tiny", data=np.arange(1, 101, dtype="i4"), chunks=(10,), compressors=None)
    assert objects(storage.journal) == set()


def test_uncommitted_packed_chunks_are_read_from_the_session(storage: JournalStorage) -> None:
    repo = icefloe.Repository.create(storage)
    session = repo.writable_session("main")
    array = small_chunks(session.store)
    array[:] = values()
    assert objects(storage.journal) == set()
    np.testing.assert_array_equal(array[ITEMS : 3 * ITEMS], values()[ITEMS : 3 * ITEMS])
    array[ITEMS : 2 * ITEMS] = -1
    assert (array[ITEMS : 2 * ITEMS] == -1).all()
    assert session.chunk_type("/small", (1,)) is icefloe.ChunkType.NATIVE
    session.commit("both writes")
    # What was overwritten before it was stored takes no place in the pack.
    assert sum(entry.sent_bytes for entry in storage.journal.writes("chunks/")) == CHUNKS * ITEMS * 8
    again = zarr.open_array(repo.readonly_session("main").store, path="small", mode="r")
    assert (again[ITEMS : 2 * ITEMS] == -1).all()
    assert again[0] == 1


@pytest.mark.parametrize("folder", ["chunks/", "manifests/", "snapshots/"])
def test_a_commit_that_cannot_store_something_moves_no_branch_and_can_be_tried_again(folder: str) -> None:
    plan = FaultPlan([Fault(FaultKind.FAIL_BEFORE, times=1000, methods=("put",), key_contains=folder)], enabled=False)
    storage = FaultyStorage(icefloe.in_memory_storage(), plan)
    repo = icefloe.Repository.create(storage)
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    for index in range(4):
        root.create_array(f"a{index}", shape=(2000,), chunks=(500,), dtype="i4", compressors=None)[:] = index
    before = repo.lookup_branch("main")
    plan.enabled = True
    with pytest.raises(StorageError):
        session.commit("fails")
    assert repo.lookup_branch("main") == before
    assert (root["a3"][:] == 3).all()  # type: ignore[index, operator]
    plan.enabled = False
    session.commit("works")
    again = zarr.open_group(icefloe.Repository.open(storage).readonly_session("main").store, mode="r")
    assert all((again[f"a{index}"][:] == index).all() for index in range(4))  # type: ignore[index, operator]


@pytest.mark.parametrize("version", [version.value for version in SpecVersion])
def test_many_arrays_of_any_rank_are_read_as_they_were_written_and_changed(version: str) -> None:
    storage = icefloe.in_memory_storage()
    # Packs so small that arrays lie across their ends.
    config = packing(target_bytes=20_000, threshold_bytes=10_000)
    repo = icefloe.Repository.create(storage, config, spec_version=SpecVersion(version))
    expected: dict[str, np.ndarray] = {}

    def write(session: icefloe.Session, name: str, start: int) -> None:
        shape = (3, 2, 2)[: len(expected) % 4]
        expected[name] = np.arange(start, start + math.prod(shape) * 100, dtype="f8").reshape(*shape, 100)
        made = zarr.create_array(
            session.store,
            name=name,
            shape=(*shape, 100),
            chunks=(*(1 for _ in shape), 100),
            dtype="f8",
            compressors=None,
            overwrite=True,
        )
        made[...] = expected[name]

    session = repo.writable_session("main")
    zarr.group(session.store)
    for index in range(40):
        write(session, f"a{index}", index)
    session.commit("many")
    session = repo.writable_session("main")
    for name in ("a7", "new", "another"):
        write(session, name, 1000)
    expected["a12"][..., 5] = -1
    zarr.open_array(session.store, path="a12")[...] = expected["a12"]
    session.commit("some")
    found = zarr.open_group(icefloe.Repository.open(storage).readonly_session("main").store, mode="r")
    assert {name for name, _ in found.members()} == set(expected)
    assert all(np.array_equal(found[name][...], values) for name, values in expected.items())  # type: ignore[index]


def test_no_branch_moves_before_a_slow_pack_is_stored() -> None:
    slow = Fault(FaultKind.SLOW, times=1000, methods=("put",), key_contains="chunks/", seconds=0.3)
    storage = JournalStorage(FaultyStorage(icefloe.in_memory_storage(), [slow]))
    repo = icefloe.Repository.create(storage)
    session = repo.writable_session("main")
    small_chunks(session.store)[:] = values()
    storage.journal.reset()
    session.commit("slow")
    written = [entry.key.partition("/")[0] for entry in storage.journal.writes()]
    assert sorted(written[:-1]) == ["chunks", "manifests", "snapshots", "transactions"] and written[-1] == "refs"


def test_forgotten_chunks_reach_no_object(storage: JournalStorage) -> None:
    session = icefloe.Repository.create(storage).writable_session("main")
    small_chunks(session.store)[:] = values()
    session.discard_changes()
    small_chunks(session.store, "other", chunks=2)[:] = values(2)
    session.commit("only the other")
    assert sum(entry.sent_bytes for entry in storage.journal.writes("chunks/")) == 2 * ITEMS * 8


def test_the_packs_of_forks_are_their_own(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    repo = icefloe.Repository.create(storage)
    session = repo.writable_session("main")
    array = small_chunks(session.store)
    array[: 10 * ITEMS] = values(10)
    returned = []
    for worker in range(1, 4):
        fork: icefloe.ForkSession = pickle.loads(pickle.dumps(session.fork()))
        mine = zarr.open_array(fork.store, path="small")
        assert mine[0] == 1  # what the session packed before is seen by its forks
        rows = slice(worker * 100 * ITEMS, (worker * 100 + 50) * ITEMS)
        mine[rows] = worker
        returned.append(pickle.loads(pickle.dumps(fork)))
    assert (array[100 * ITEMS :] == 0).all()
    session.merge(*returned)
    session.commit("forks")

    state = repo.readonly_session("main").state
    table = run_blocking(state.chunk_table(state.tree.array("/small")))
    ids = []
    for first in (0, 100, 200, 300):
        rows_here = (table.coords[:, 0] >= first) & (table.coords[:, 0] < first + 50)
        ids.append({bytes(object_id) for object_id in table.object_id[rows_here]})
    assert [len(found) for found in ids] == [1, 1, 1, 1]
    assert len(set.union(*ids)) == 4
    read = zarr.open_array(repo.readonly_session("main").store, path="small", mode="r")
    assert [read[worker * 100 * ITEMS] for worker in range(4)] == [1, 1, 2, 3]


@pytest.fixture(params=[False, True], ids=["zarr's pipeline", "bulk pipeline"])
def in_bulk(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Zarr reads chunk by chunk, or in bulk."""
    before = zarr.config.get("codec_pipeline.path")
    if not request.param:
        icefloe.disable_fast_pipeline()
        yield False
    icefloe.enable_fast_pipeline()
    if request.param:
        yield True
    zarr.config.set({"codec_pipeline.path": before})


def test_neighbouring_chunks_are_read_in_few_requests(
    in_bulk: bool, storage: JournalStorage, reopen: Callable[..., icefloe.Repository]
) -> None:
    write(icefloe.Repository.create(storage))
    array = zarr.open_array(reopen().readonly_session("main").store, path="small", mode="r")
    np.testing.assert_array_equal(array[:], values())
    whole = storage.journal.reads("chunks/")
    # Zarr asks for as many chunks at once as its concurrency says; what is asked together is fetched together.
    at_once = zarr.config.get("async.concurrency")
    assert len(whole) <= (2 if in_bulk else CHUNKS // at_once + 2)
    # Chunks of one pack that are asked for in different moments may be fetched twice, with what lies around them.
    spare = 0 if in_bulk else len(whole) * ITEMS * 8
    assert 0 <= sum(entry.received_bytes for entry in whole) - CHUNKS * ITEMS * 8 <= spare
    storage.journal.reset()
    assert array[7 * ITEMS] == values()[7 * ITEMS]
    lone = storage.journal.reads("chunks/")
    assert [entry.received_bytes for entry in lone] == [ITEMS * 8]


def test_neighbouring_ranges_of_a_file_elsewhere_are_read_in_few_requests(tmp_path: Path) -> None:
    data = np.arange(1, 257, dtype="f8")
    file = tmp_path / "data.bin"
    file.write_bytes(data.tobytes())
    prefix = file.parent.as_uri() + "/"
    config = RepositoryConfig.default()
    container = icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(file.parent)))
    config.set_virtual_chunk_container(container)
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, authorize_virtual_chunk_access={prefix: None})
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="v", shape=(256,), chunks=(4,), dtype="f8", compressors=None, filters=None)
    session.store.set_virtual_refs_arr("v", (64,), file.as_uri(), np.arange(64) * 32, np.full(64, 32))
    session.commit("virtual")
    counts = repo.context.reader.counts
    array = zarr.open_array(repo.readonly_session("main").store, path="v", mode="r")
    np.testing.assert_array_equal(array[:], data)
    assert counts.requests <= 64 // 8
