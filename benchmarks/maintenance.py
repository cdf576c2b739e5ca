"""Maintenance: expiring and collecting a repository of many objects, again when little changed, and compaction."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.harness import OURS, Meter, Workload, create_repository, open_repository

OBJECTS = 20_000
COMMITS = 200


def _loose(library: Any) -> Any:
    """One object a chunk, as the official package writes them."""
    if library.__name__ != OURS:
        return library.RepositoryConfig(inline_chunk_threshold_bytes=0)
    packing = library.ChunkPackingConfig(enabled=False)
    return library.RepositoryConfig(inline_chunk_threshold_bytes=0, chunk_packing=packing)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def prepare(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """Commits that replace all chunks of an array again and again."""
    chunks = int(OBJECTS * scale) // COMMITS
    repo = create_repository(library, folder, config=_loose(library))
    with meter.timed():
        for number in range(COMMITS):
            session = repo.writable_session("main")
            root = zarr.open_group(session.store, mode="a")
            if number == 0:
                root.create_array("a", shape=(chunks * 8,), chunks=(8,), dtype="i8", compressors=None)
            root["a"][:] = np.full(chunks * 8, number + 1)
            session.commit(str(number))


def expire(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    repo = open_repository(library, folder)
    infos = list(repo.ancestry(branch="main"))
    cutoff = infos[COMMITS // 2].written_at
    with meter.timed():
        expired = repo.expire_snapshots(cutoff)
    meter.count("expired", len(expired))


def collect(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """The first collection: half of everything is garbage."""
    repo = open_repository(library, folder)
    options = {"incremental": True} if library.__name__ == OURS else {}
    with meter.timed():
        summary = repo.garbage_collect(_now(), **options)
    meter.count("chunks", summary.chunks_deleted)
    meter.count("manifests", summary.manifests_deleted)


def change_little(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    repo = open_repository(library, folder)
    for number in range(2):
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[:8] = number + 1000
        session.commit("little")
    cutoff = list(repo.ancestry(branch="main"))[100].written_at
    repo.expire_snapshots(cutoff)
    with meter.timed():
        pass


def collect_again(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """The second collection, after two small commits and as many expired ones."""
    collect(library, folder, meter, scale)


def verify(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """Ours alone: is everything there?"""
    if library.__name__ != OURS:
        raise SystemExit("the official package has no verification")
    repo = open_repository(library, folder)
    with meter.timed():
        report = repo.verify()
    assert report.is_clean, str(report)


WORKLOADS = [
    Workload(
        "expire and collect",
        "200 commits, 20,000 chunk objects, half of them garbage; then again after two small commits",
        {
            "prepare": prepare,
            "expire": expire,
            "collect": collect,
            "prepare again": change_little,
            "collect again": collect_again,
            "verify": verify,
        },
    )
]
