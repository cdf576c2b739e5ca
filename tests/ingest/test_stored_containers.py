"""Jobs that store containers at the same time keep those of one another."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import icefloe
from icefloe.ingest.record import store_containers

JOBS = 6


@pytest.mark.parametrize("generation", ["repository", "dataset", "store", "icechunk1", "icechunk2"])
def test_containers_that_several_jobs_store_at_once_are_all_kept(tmp_path: Path, generation: str) -> None:
    place = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    icefloe.Repository.create(place, spec_version=generation)
    prefixes = [f"file://{tmp_path}/{number}/" for number in range(JOBS)]
    opened = [icefloe.Repository.open(place) for _ in prefixes]
    together = threading.Barrier(JOBS)

    def store(number: int) -> None:
        together.wait()
        store_containers(opened[number], [prefixes[number]])

    threads = [threading.Thread(target=store, args=(number,)) for number in range(JOBS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = icefloe.Repository.open(place).config.virtual_chunk_containers or {}
    assert set(kept) >= set(prefixes)
