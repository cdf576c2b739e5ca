"""What a repository is made of can be asked for, and the official package counts the same."""

from __future__ import annotations

import asyncio
import datetime as dt
from inspect import signature
from pathlib import Path

import pytest
import zarr
from tests.maintenance.histories import GENERATIONS, INLINE, LARGE, PACKED, Past, make_past

import icefloe
from icefloe.maintenance.marking import FetchLimits, ManifestMemory
from icefloe.model.snapshot import ManifestFileInfo


@pytest.mark.parametrize("version", GENERATIONS)
def test_files_are_shown_as_plain_data(version: str) -> None:
    past = make_past(icefloe.in_memory_storage(), version)
    tip = past.repo.lookup_branch("main")
    shown = past.repo.inspect_snapshot(tip)
    assert shown["id"] == tip and {node["path"] for node in shown["nodes"]} == {"/", "/a", "/b", "/c"}
    manifest = past.repo.inspect_manifest(shown["manifests"][0]["id"])
    assert manifest["total_chunk_refs"] > 0 and manifest["size_bytes"] > 0
    if past.repo.context.capabilities.transaction_logs:
        log = past.repo.inspect_transaction_log(tip)
        assert len(log["new_arrays"]) == 1 and log["updated_chunks"][0]["num_chunks"] == 3


@pytest.mark.parametrize("kept", [True, False])
def test_the_log_of_a_snapshot_includes_those_of_its_expired_ancestors(tmp_path: Path, kept: bool) -> None:
    repo = make_past(icefloe.local_filesystem_storage(str(tmp_path)), "icechunk2", commits=3).repo
    first, *between, tip = [info.id for info in repo.ancestry(branch="main")][::-1]
    before = repo.diff(from_snapshot_id=first, to_branch="main")
    assert "synthetic_composite" not in repo.inspect_transaction_log(tip)
    repo.expire_snapshots(snapshots=between)
    if not kept:
        (tmp_path / "transactions" / between[0]).unlink()
    log = repo.inspect_transaction_log(tip)
    assert len(log["new_arrays"]) == (3 if kept else 2)
    assert log["synthetic_composite"]["merged_pruned_ancestor_tx_logs"] == (between if kept else between[1:])
    assert log["synthetic_composite"]["missing_tx_logs"] == ([] if kept else between[:1])
    assert repo.inspect_transaction_log(between[1])["new_arrays"]  # an expired one has a file until it is collected
    assert repo.diff(from_snapshot_id=first, to_branch="main") == before


@pytest.mark.parametrize("version", GENERATIONS)
def test_bytes_are_counted_once(version: str) -> None:
    repo = make_past(icefloe.in_memory_storage(), version, commits=3).repo
    stats = repo.chunk_storage_stats()
    assert stats.native_bytes == repo.total_chunks_storage() == 3 * 8 * (40_000 + 500)
    assert stats.inlined_bytes > 0 and stats.virtual_bytes == 0
    repo.create_branch("same", repo.lookup_branch("main"))
    assert repo.chunk_storage_stats() == stats
    assert stats.total_bytes == stats.non_virtual_bytes


def test_the_memory_of_manifests_that_are_read_at_once_is_limited() -> None:
    infos = {str(number): ManifestFileInfo(str(number), 100, 1000) for number in range(6)}

    async def most_at_once(limits: FetchLimits) -> int:
        memory, running, most = ManifestMemory(limits, infos), 0, 0

        async def read(manifest_id: str) -> None:
            nonlocal running, most
            async with memory.reserve(manifest_id):
                running += 1
                most = max(most, running)
                await asyncio.sleep(0)
                running -= 1

        await asyncio.gather(*map(read, [*infos, "a manifest of unknown size"]))
        return most

    for limits, expected in (
        (FetchLimits(), 7),
        (FetchLimits(manifest_bytes=250), 2),
        (FetchLimits(decoded_bytes=500_000), 3),
        (FetchLimits(decoded_bytes=1), 1),
    ):
        assert asyncio.run(most_at_once(limits)) == expected


@pytest.mark.parametrize("version", GENERATIONS)
def test_a_small_limit_only_makes_maintenance_slower(version: str) -> None:
    repo = make_past(icefloe.in_memory_storage(), version, commits=3).repo
    expected = repo.chunk_storage_stats()
    assert repo.chunk_storage_stats(max_decoded_manifest_mem_bytes=1) == expected
    repo.garbage_collect(dt.timedelta(0), max_decoded_manifest_mem_bytes=1, ignore_running_sessions=True)
    assert repo.chunk_storage_stats() == expected


@pytest.mark.compat
def test_the_official_package_counts_the_same(tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk")
    # The official package counts an object with several chunks as large as the first of them.
    loose = icefloe.RepositoryConfig(chunk_packing=icefloe.ChunkPackingConfig(enabled=False))
    place = icefloe.local_filesystem_storage(str(tmp_path))
    past = Past(icefloe.Repository.create(place, loose, spec_version="icechunk1"))
    for number, size in enumerate((LARGE, PACKED, INLINE)):
        past.commit(seed=number, size=size, name="abc"[number])
    repo = past.repo
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="v", shape=(4,), chunks=(2,), dtype="i4")
    for number in range(2):
        session.store.set_virtual_ref(
            f"v/c/{number}", "s3://bucket/file", offset=8 * number, length=8, validate_container=False
        )
    session.commit("virtual")
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path))).chunk_storage_stats()
    ours = repo.chunk_storage_stats()
    assert (ours.native_bytes, ours.virtual_bytes) == (theirs.native_bytes, theirs.virtual_bytes)
    assert ours.inlined_bytes == theirs.inlined_bytes


COUNTING = ("chunk_storage_stats", "total_chunks_storage", "garbage_collect")


def _call(repo: icefloe.Repository, method: str, **limits: int) -> object:
    age = {"delete_object_older_than": dt.timedelta(days=1)} if method == "garbage_collect" else {}
    return getattr(repo, method)(**age, **limits)


@pytest.mark.parametrize("method", COUNTING)
def test_a_misspelt_argument_is_refused_and_the_right_one_is_named(method: str) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with pytest.raises(icefloe.InvalidInputError, match="did you mean 'max_concurrent_manifest_fetches'"):
        _call(repo, method, max_concurent_manifest_fetch=4)
    with pytest.raises(icefloe.InvalidInputError, match="did you mean 'max_snapshots_in_memory'"):
        _call(repo, method, max_snapshot_in_memory=4)


@pytest.mark.compat
@pytest.mark.parametrize("method", COUNTING)
def test_the_limits_of_the_official_package_are_accepted(method: str) -> None:
    icechunk = pytest.importorskip("icechunk")
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    names = [name for name in signature(getattr(icechunk.Repository, method)).parameters if name.startswith("max_")]
    assert len(names) >= 3
    _call(repo, method, **dict.fromkeys(names, 5))
