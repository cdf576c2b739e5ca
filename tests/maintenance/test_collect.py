"""Collection deletes everything that is unreachable and old, and nothing else."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import zarr
from tests.maintenance.histories import GENERATIONS, Past, count, make_past, messages, now

import icefloe
from icefloe.blocking import run_blocking
from icefloe.maintenance import collect as collecting
from icefloe.maintenance.collect import CollectionRequest, plan_collection_of
from icefloe.maintenance.inventory import columns_of, id_texts, is_among, open_uncached, text_ids
from icefloe.storage import local as local_files
from icefloe.storage.contract import ObjectInfo
from icefloe.testing.storages import CountingStorage, Fault, FaultKind, FaultyStorage


@pytest.fixture(params=GENERATIONS)
def past(request: pytest.FixtureRequest) -> Past:
    return make_past(icefloe.in_memory_storage(), request.param)


def test_nothing_reachable_is_deleted(past: Past) -> None:
    before = count(past.repo)
    assert past.repo.garbage_collect(now()) == icefloe.GCSummary()
    assert count(past.repo) == before
    past.check()


def test_everything_unreachable_and_old_is_deleted(past: Past) -> None:
    repo = past.repo
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="a", mode="r+")
    array[:] = 1
    run_blocking(session.state.writer.store_all(session.state.changes))
    session.discard_changes()
    repo.expire_snapshots(retain_last=1)
    live = _reachable(repo)
    planned = repo.garbage_collect(now(), dry_run=True)
    assert count(repo)["snapshots"] == 7
    done = repo.garbage_collect(now())
    assert done == planned
    assert done.snapshots_deleted == 5 and done.chunks_deleted >= 4 and done.bytes_deleted > 1_000_000
    assert count(repo) == live
    assert repo.garbage_collect(now()) == icefloe.GCSummary()
    past.check()


def _reachable(repo: icefloe.Repository) -> dict[str, int]:
    new_parents = run_blocking(repo.context.ledger.fetch_new_parents())
    planning = plan_collection_of(open_uncached(repo.context), CollectionRequest(now()), new_parents)
    marked = run_blocking(planning).marked
    counts = {
        "snapshots": len(marked.snapshots),
        "transaction_logs": len(marked.logs),
        "manifests": len(marked.manifests),
        "attributes": len(marked.attributes),
        "chunks": len(marked.chunks),
    }
    capabilities = repo.context.capabilities
    if not capabilities.transaction_logs:
        counts["transaction_logs"] = 0
    elif not repo.context.format.logs_initial_snapshot:
        counts["transaction_logs"] -= 1
    return counts


def test_what_is_too_young_stays(past: Past) -> None:
    started = now() - dt.timedelta(minutes=1)
    past.repo.expire_snapshots(retain_last=1)
    before = count(past.repo)
    assert past.repo.garbage_collect(started) == icefloe.GCSummary()
    assert past.repo.garbage_collect(dt.timedelta(minutes=1)) == icefloe.GCSummary()
    assert count(past.repo) == before


def test_a_snapshot_without_a_branch_keeps_its_files_while_it_is_young(past: Past) -> None:
    repo = past.repo
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:] = 5
    cutoff = now()
    flushed = session.flush("aside")
    for branch_tip in [list(repo.ancestry(branch="main"))[-1].id]:
        repo.reset_branch("main", branch_tip)
    repo.garbage_collect(cutoff)
    assert (zarr.open_array(repo.readonly_session(snapshot_id=flushed).store, path="a", mode="r")[:] == 5).all()
    repo.garbage_collect(now())
    with pytest.raises(icefloe.SnapshotNotFoundError):
        icefloe.Repository.open(repo.storage).readonly_session(snapshot_id=flushed)


def test_created_after_leaves_older_objects_alone(past: Past) -> None:
    past.repo.expire_snapshots(retain_last=1)
    assert past.repo.garbage_collect(now(), created_after=now()) == icefloe.GCSummary()
    assert past.repo.garbage_collect(now(), created_after=now() - dt.timedelta(hours=1)).snapshots_deleted == 5


@pytest.mark.parametrize("kind", ["snapshots", "manifests"])
@pytest.mark.parametrize("damage", ["missing", "broken"])
def test_anything_unreadable_stops_it_before_it_deletes(past: Past, kind: str, damage: str) -> None:
    repo, storage = past.repo, past.repo.storage
    repo.expire_snapshots(retain_last=3)
    tip = repo.lookup_branch("main")
    info = repo.lookup_snapshot(tip)
    victim = (
        repo.context.format.snapshot_key(list(repo.ancestry(branch="main"))[1].id)
        if kind == "snapshots"
        else repo.context.format.manifest_key(info.manifests[0].id)
    )
    run_blocking(storage.delete([victim]))
    if damage == "broken":
        run_blocking(storage.put(victim, b"not what it was"))
    before = count(repo)
    with pytest.raises(icefloe.IcefloeError):
        repo.garbage_collect(now())
    assert count(repo) == before


def test_a_store_that_fails_while_marking_stops_it(past: Past) -> None:
    past.repo.expire_snapshots(retain_last=1)
    before = count(past.repo)
    folder = past.repo.context.format.manifests_folder
    faulty = FaultyStorage(
        past.repo.storage, [Fault(FaultKind.FAIL_BEFORE, times=99, key_contains=folder, methods=("get",))]
    )
    repo = icefloe.Repository.open(faulty)
    with pytest.raises(icefloe.StorageError):
        repo.garbage_collect(now())
    assert count(past.repo) == before


def test_a_snapshot_that_becomes_reachable_meanwhile_stops_it(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = past.repo
    lost = list(repo.ancestry(branch="main"))[1].id
    repo.reset_branch("main", list(repo.ancestry(branch="main"))[-1].id)
    before = count(repo)
    plan = collecting.plan_collection_of

    async def plan_then_resurrect(*args: object, **kwargs: object) -> object:
        marking = await plan(*args, **kwargs)  # type: ignore[arg-type]
        await repo.context.ledger.create_branch("rescued", lost)
        return marking

    monkeypatch.setattr(collecting, "plan_collection_of", plan_then_resurrect)
    with pytest.raises(icefloe.ConflictError, match="Collect garbage again"):
        repo.garbage_collect(now())
    assert count(repo) == before
    past.check()


def test_open_sessions_of_this_process_are_seen(past: Past) -> None:
    session = past.repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:] = 1
    with pytest.raises(icefloe.InvalidInputError, match="writable session"):
        past.repo.garbage_collect(now())
    past.repo.garbage_collect(dt.timedelta(minutes=1))
    session.commit("done")
    past.repo.garbage_collect(now())


def test_foreign_objects_are_left_alone(past: Past) -> None:
    layout = past.repo.context.format
    names = [f"{layout.chunks_folder}notes.txt", f"{layout.snapshots_folder}ünbekannt", "readme.md"]
    names.append(layout.chunks_folder + "U" * 20)
    for name in names:
        run_blocking(past.repo.storage.put(name, b"mine"))
    past.repo.garbage_collect(now())
    assert [run_blocking(past.repo.storage.get(name)) for name in names] == [b"mine"] * 4


def test_packs_stay_while_one_chunk_of_them_is_named() -> None:
    past = make_past(icefloe.in_memory_storage(), "repository", commits=0)
    past.commit(size=500)
    for chunk in range(2):
        session = past.repo.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[chunk * 500 : (chunk + 1) * 500] = 9
        session.commit("replaced")
    past.repo.expire_snapshots(retain_last=1)
    past.repo.garbage_collect(now())
    assert count(past.repo)["chunks"] == 3
    session = past.repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:] = 9
    session.commit("all replaced")
    past.repo.expire_snapshots(retain_last=1)
    past.repo.garbage_collect(now())
    assert count(past.repo)["chunks"] == 1


def test_a_collection_of_little_garbage_asks_for_little() -> None:
    past = make_past(icefloe.in_memory_storage(), "repository")
    counting = CountingStorage(past.repo.storage)
    repo = icefloe.Repository.open(counting)
    counting.counts.reset()
    repo.garbage_collect(now())
    assert counting.counts.of("delete").requests == 1, "only the object that tells the time of the store"
    assert counting.counts.total.requests < 45


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("version", GENERATIONS)
def test_what_a_late_commit_quotes_of_collected_history_is_corrected(version: str, incremental: bool) -> None:
    past = make_past(icefloe.in_memory_storage(), version)
    session = past.repo.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("late")
    past.repo.expire_snapshots(retain_last=1)
    past.repo.garbage_collect(now(), ignore_running_sessions=True, incremental=incremental)
    session.commit("late")
    past.commit(seed=9, name="b")
    # A try of the late commit came before it was told of the collection; its files go.
    assert past.repo.garbage_collect(now(), incremental=incremental).snapshots_deleted <= 1
    assert past.repo.garbage_collect(now(), incremental=incremental) == icefloe.GCSummary()
    repo = icefloe.Repository.open(past.repo.storage)
    assert messages(repo) == ["b 9 on main", "late", "c 5 on main", "Repository initialized"]
    assert repo.verify().is_clean
    past.check(repo)


def test_local_leftovers_of_dead_writers_go(tmp_path: object) -> None:
    past = make_past(icefloe.local_filesystem_storage(str(tmp_path)), "repository", commits=2)
    past.repo.expire_snapshots(retain_last=1)
    assert past.repo.garbage_collect(now()).snapshots_deleted == 1
    past.check()


def test_ids_and_their_texts_are_one_to_one_in_columns() -> None:
    ids = np.random.default_rng(1).integers(0, 256, (500, 12), dtype=np.uint8)
    ids[3] = 0
    assert (text_ids(id_texts(ids), 12) == ids).all()
    live = np.sort(np.ascontiguousarray(ids[::2, :8]).view(">u8").ravel().astype(np.uint64))
    assert (is_among(ids, live) == (np.arange(500) % 2 == 0)).all()
    page = [ObjectInfo(f"chunks/{text}", 7, now()) for text in id_texts(ids)] + [ObjectInfo("chunks/x", 1, now())]
    listed = columns_of(page, "chunks/", "", 12)
    assert (listed.ids == ids).all() and listed.foreign == 1


def test_of_local_chunks_only_those_that_nothing_names_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = make_past(icefloe.local_filesystem_storage(str(tmp_path)), "repository")
    past.repo.expire_snapshots(retain_last=1)
    planned = past.repo.garbage_collect(now(), dry_run=True)
    assert planned.chunks_deleted > 1 and planned.bytes_deleted > 900_000
    chunks = tmp_path / "chunks"
    (chunks / ("U" * 20)).write_bytes(b"no id")
    (chunks / ("0" * 20)).mkdir()
    asked: list[str] = []
    stat_names = local_files.stat_names

    def note(folder: str, names: list[bytes], bounds: local_files.Bounds) -> tuple[list[int], list[int]]:
        if folder == str(chunks):
            asked.extend(name.decode() for name in names)
            (chunks / max(asked)).unlink()
        return stat_names(folder, names, bounds)

    monkeypatch.setattr(local_files, "stat_names", note)
    there = {entry.name for entry in chunks.iterdir()}
    done = past.repo.garbage_collect(now())
    # One was deleted by somebody else meanwhile, and one is a folder.
    assert len(asked) == planned.chunks_deleted + 1 and done.chunks_deleted == planned.chunks_deleted - 1
    assert {entry.name for entry in chunks.iterdir()} == there - (set(asked) - {"0" * 20})
    past.check()


def test_an_incremental_run_collects_local_chunks_that_the_first_did_not_look_at(tmp_path: Path) -> None:
    past = make_past(icefloe.local_filesystem_storage(str(tmp_path)), "repository")
    past.repo.garbage_collect(now(), incremental=True)
    past.repo.expire_snapshots(retain_last=1)
    planned = past.repo.garbage_collect(now(), dry_run=True)
    assert past.repo.garbage_collect(now(), incremental=True) == planned
    assert past.repo.garbage_collect(now(), dry_run=True) == icefloe.GCSummary()
    past.check()


@pytest.mark.compat
@pytest.mark.parametrize("version", ["icechunk1", "icechunk2"])
def test_the_official_package_opens_what_was_expired_and_collected(version: str, tmp_path: object) -> None:
    icechunk = pytest.importorskip("icechunk")
    if version == "icechunk2" and icechunk.__version__ < "2":
        pytest.skip("the installed release knows no icechunk2")
    past = make_past(icefloe.local_filesystem_storage(str(tmp_path)), version)
    ids = [info.id for info in past.repo.ancestry(branch="main")]
    past.repo.create_tag("kept", ids[3])
    past.repo.expire_snapshots(retain_last=2)
    past.repo.garbage_collect(now())
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    assert [info.id for info in theirs.ancestry(branch="main")] == [ids[0], ids[1], ids[3], ids[4], ids[-1]]
    for snapshot_id in (ids[0], ids[1], ids[3], ids[4]):
        root = zarr.open_group(theirs.readonly_session(snapshot_id=snapshot_id).store, mode="r")
        for path, values in past.values[snapshot_id].items():
            np.testing.assert_array_equal(root[path][:], values)
    theirs.diff(from_snapshot_id=ids[-1], to_snapshot_id=ids[0])
    assert theirs.garbage_collect(now()).chunks_deleted == 0
    session = theirs.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("theirs")
    session.commit("on top")
    theirs.expire_snapshots(now())
    theirs.garbage_collect(now())
    assert messages(icefloe.Repository.open(str(tmp_path)))[0] == "on top"
    past.check(icefloe.Repository.open(str(tmp_path)))


def test_the_clock_of_the_store_counts(tmp_path: object) -> None:
    past = make_past(icefloe.local_filesystem_storage(str(tmp_path)), "repository", commits=2)
    past.repo.expire_snapshots(retain_last=1)
    hour_ago = time.time() - 3600
    for folder, _, files in os.walk(str(tmp_path)):
        for name in files:
            os.utime(os.path.join(folder, name), (hour_ago, hour_ago))
    assert past.repo.garbage_collect(dt.timedelta(hours=2)).snapshots_deleted == 0
    assert past.repo.garbage_collect(dt.timedelta(minutes=59)).snapshots_deleted == 1


@pytest.mark.parametrize("how", ["fork", "travelled", "parts", "fork of a fork"])
def test_a_collection_sees_the_forks_of_its_process(tmp_path: Path, how: str) -> None:
    config = icefloe.RepositoryConfig(
        inline_chunk_threshold_bytes=0, chunk_packing=icefloe.ChunkPackingConfig(enabled=False)
    )
    repo = icefloe.Repository.create(tmp_path / "repo", config=config)
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="i8", compressors=None)
    del store
    session = repo.writable_session("main")
    fork = session.fork()
    if how == "fork of a fork":
        fork = fork.fork()
    zarr.open_array(fork.store, path="a")[:] = 7
    if how == "travelled":
        fork = pickle.loads(pickle.dumps(fork))
    parts = fork.write_parts() if how == "parts" else None
    with pytest.raises(icefloe.InvalidInputError, match="a writable session"):
        repo.garbage_collect(dt.timedelta(0))
    if parts is not None:
        del fork
        with pytest.raises(icefloe.InvalidInputError, match="a writable session"):
            repo.garbage_collect(dt.timedelta(0))
        session.link_parts([parts])
    else:
        session.merge(fork)
    session.commit("merged")
    repo.garbage_collect(dt.timedelta(0))
    assert zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:].tolist() == [7] * 4
