"""A collection that begins where the last one ended finds the same and reads only what is new."""

from __future__ import annotations

import datetime as dt

import pytest
import zarr
from tests.maintenance.histories import GENERATIONS, Past, count, make_past, now

import icefloe
from icefloe.blocking import run_blocking
from icefloe.ids import new_chunk_id
from icefloe.maintenance.collect import KEY
from icefloe.testing.storages import CountingStorage


@pytest.fixture(params=GENERATIONS)
def past(request: pytest.FixtureRequest) -> Past:
    return make_past(icefloe.in_memory_storage(), request.param)


@pytest.mark.every_generation
def test_it_finds_what_a_full_collection_finds(past: Past) -> None:
    repo = past.repo
    assert repo.garbage_collect(now(), incremental=True) == icefloe.GCSummary()
    for turn in range(3):
        for number in range(3):
            past.commit(seed=100 * turn + number, size=(40_000, 500, 8)[number], name="abc"[number])
        repo.create_branch(f"b{turn}", list(repo.ancestry(branch="main"))[2].id)
        repo.expire_snapshots(retain_last=2)
        if turn == 1:
            repo.delete_branch("b0")
        full = repo.garbage_collect(now(), dry_run=True)
        done = repo.garbage_collect(now(), incremental=True)
        assert (done.snapshots_deleted, done.chunks_deleted, done.manifests_deleted, done.transaction_logs_deleted) == (
            full.snapshots_deleted,
            full.chunks_deleted,
            full.manifests_deleted,
            full.transaction_logs_deleted,
        )
        assert done.bytes_deleted == pytest.approx(full.bytes_deleted, rel=0.2)
        assert repo.garbage_collect(now(), dry_run=True) == icefloe.GCSummary()
        past.check()


def test_what_was_too_young_goes_later(past: Past) -> None:
    repo = past.repo
    key = repo.context.format.chunk_key(new_chunk_id(repo.context.capabilities.object_id_bytes))
    run_blocking(repo.storage.put(key, b"left by a dead writer"))
    repo.expire_snapshots(retain_last=1)
    repo.garbage_collect(now() - dt.timedelta(hours=1), incremental=True)
    assert run_blocking(repo.storage.exists(key))
    done = repo.garbage_collect(now(), incremental=True)
    assert not run_blocking(repo.storage.exists(key)) and done.snapshots_deleted == 5
    assert repo.garbage_collect(now()) == icefloe.GCSummary()
    past.check()


def test_a_second_run_reads_only_what_is_new(past: Past) -> None:
    past.repo.garbage_collect(now(), incremental=True)
    past.commit(seed=9)
    counting = CountingStorage(past.repo.storage)
    repo = icefloe.Repository.open(counting)
    folder = repo.context.format.manifests_folder
    counting.counts.reset()
    repo.garbage_collect(now(), incremental=True)
    assert counting.counts.of("get").requests <= 12, folder
    assert counting.counts.of("list").requests <= 7


@pytest.mark.parametrize("damage", [b"", b"junk", b"\0" * 100])
def test_a_damaged_mark_is_as_good_as_none(past: Past, damage: bytes) -> None:
    past.repo.garbage_collect(now(), incremental=True)
    run_blocking(past.repo.storage.put(KEY, damage))
    past.repo.expire_snapshots(retain_last=1)
    assert past.repo.garbage_collect(now(), incremental=True).snapshots_deleted == 5
    past.check()


def test_a_snapshot_that_expiry_rewrote_is_read_again() -> None:
    past = make_past(icefloe.in_memory_storage(), "icechunk1")
    past.repo.garbage_collect(now(), incremental=True)
    past.repo.expire_snapshots(retain_last=2)
    assert past.repo.garbage_collect(now(), incremental=True).snapshots_deleted == 4
    assert count(past.repo)["snapshots"] == 3


def test_chunks_that_are_named_again_stay(past: Past) -> None:
    repo = past.repo
    old = list(repo.ancestry(branch="main"))[3].id
    repo.create_tag("keep", old)
    repo.garbage_collect(now(), incremental=True)
    repo.expire_snapshots(retain_last=1)
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("x")
    session.commit("x")
    repo.garbage_collect(now(), incremental=True)
    past.check()
