"""Expiry and garbage collection of a repository with many objects, and again after few changes.

The official package creates the repository for both libraries.
"""

from __future__ import annotations

import datetime as dt
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.harness import OFFICIAL, OURS, Meter, Workload, create_repository, open_repository

OBJECTS = 20_000
COMMITS = 200


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def prepare(library: Any, folder: Path, meter: Meter, scale: float, objects: int = OBJECTS) -> None:
    """Commits that replace all chunks of an array. Every chunk is one object."""
    maker = importlib.import_module(OFFICIAL)
    chunks = int(objects * scale) // COMMITS
    repo = create_repository(maker, folder, config=maker.RepositoryConfig(inline_chunk_threshold_bytes=0))
    for number in range(COMMITS):
        session = repo.writable_session("main")
        root = zarr.open_group(session.store, mode="a")
        if number == 0:
            root.create_array("a", shape=(chunks * 8,), chunks=(8,), dtype="i8", compressors=None)
        root["a"][:] = np.full(chunks * 8, number + 1)
        session.commit(str(number))


def prepare_many(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    prepare(library, folder, meter, scale, 10 * OBJECTS)


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
    """Two small commits by the official package, and two expired snapshots."""
    repo = open_repository(importlib.import_module(OFFICIAL), folder)
    for number in range(2):
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[:8] = number + 1000
        session.commit("little")
    repo.expire_snapshots(list(repo.ancestry(branch="main"))[COMMITS // 2].written_at)


def collect_again(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """The second collection, after two small commits and two expired snapshots."""
    collect(library, folder, meter, scale)


def verify(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """Verify the repository. Only our package can."""
    if library.__name__ != OURS:
        raise SystemExit("the official package has no verification")
    repo = open_repository(library, folder)
    with meter.timed():
        report = repo.verify()
    assert report.is_clean, str(report)


STEPS = {
    "expire": expire,
    "collect": collect,
    "prepare again": change_little,
    "collect again": collect_again,
    "verify": verify,
}
WORKLOADS = [
    Workload(
        "maintain 20,000 objects",
        "200 commits, 20,000 chunk objects, half of them garbage; then again after two small commits",
        {"prepare": prepare, **STEPS},
    ),
    Workload(
        "maintain 200,000 objects",
        "200 commits, 200,000 chunk objects, half of them garbage; then again after two small commits",
        {"prepare": prepare_many, **STEPS},
    ),
]
