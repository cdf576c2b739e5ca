"""Common operations: small commits, opening, many nodes, large chunks, small chunks."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.harness import OURS, Meter, Workload, create_repository, open_repository


def make_small_array(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    repo = create_repository(library, folder)
    with repo.transaction("main", message="base") as store:
        zarr.create_array(store, name="a", shape=(1000,), chunks=(10,), dtype="i4")


def commit_tiny(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    _commit_tiny(open_repository(library, folder), meter, scale)


def commit_tiny_unsynced(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """The same without waiting for the disk, which the official package never does."""
    options = {"fsync": False} if library.__name__ == OURS else {}
    repo = library.Repository.open(library.local_filesystem_storage(str(folder / "repo"), **options))
    _commit_tiny(repo, meter, scale)


def _commit_tiny(repo: Any, meter: Meter, scale: float) -> None:
    for index in range(max(int(500 * scale), 10)):
        with meter.timed():
            session = repo.writable_session("main")
            zarr.open_array(session.store, path="a", mode="r+")[index % 1000] = index + 1
            session.commit(f"commit {index}")


def open_and_read(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    for _ in range(50):
        with meter.timed():
            repo = open_repository(library, folder)
            zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[0]


def create_nodes(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    repo = create_repository(library, folder)
    with meter.timed():
        session = repo.writable_session("main")
        root = zarr.group(session.store)
        for index in range(int(5000 * scale)):
            root.create_group(f"group-{index}")
        session.commit("nodes")


def list_nodes(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    with meter.timed():
        session = open_repository(library, folder).readonly_session("main")
        found = list(zarr.open_group(session.store, mode="r").members())
    assert len(found) == int(5000 * scale)


def _large(scale: float) -> tuple[int, int]:
    return int(1024 * scale), 1 << 20


def write_large(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    repo = create_repository(library, folder)
    count, size = _large(scale)
    block = np.random.default_rng(1).integers(0, 255, (64, size), dtype="u1")
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(count, size), chunks=(1, size), dtype="u1", compressors=None
    )
    with meter.timed():
        for start in range(0, count, 64):
            array[start : start + 64] = block[: min(64, count - start)]
        session.commit("large")


def read_large(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    session = open_repository(library, folder).readonly_session("main")
    array = zarr.open_array(session.store, path="a", mode="r")
    with meter.timed():
        for start in range(0, array.shape[0], 64):
            array[start : start + 64]


def write_small(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    repo = create_repository(library, folder)
    count = int(50_000 * scale)
    values = np.random.default_rng(1).integers(0, 2**31, (count, 1024), dtype="i4")
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=values.shape, chunks=(1, 1024), dtype="i4", compressors=None
    )
    with meter.timed():
        array[:] = values
        session.commit("small")


def read_small(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    with meter.timed():
        session = open_repository(library, folder).readonly_session("main")
        values = zarr.open_array(session.store, path="a", mode="r")[:]
    assert values.shape == (int(50_000 * scale), 1024)


def read_at_random(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    session = open_repository(library, folder).readonly_session("main")
    array = zarr.open_array(session.store, path="a", mode="r")
    rows = np.random.default_rng(2).integers(0, array.shape[0], 1000).tolist()
    array[rows[0]]
    with meter.timed():
        for row in rows:
            array[row]


def import_it(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """Import the library in new processes, and `zarr` alone for comparison. The fastest of five counts."""
    whole = _import_seconds(f"import {library.__name__}; {library.__name__}.Repository")
    meter.seconds, meter.cpu_seconds = whole
    meter.count(IMPORT_FACT, round(whole[1] / _import_seconds("import zarr")[1], 2))


IMPORT_FACT = "processor time beside `import zarr`"


def _import_seconds(statement: str) -> tuple[float, float]:
    """Return seconds by the clock and processor seconds. An installed package has its bytecode."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    best = (float("inf"), float("inf"))
    for _ in range(6):  # the first one compiles
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
        seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = (min(best[0], seconds), min(best[1], used))
    return best


WORKLOADS = [
    Workload(
        "import",
        "How long until a repository can be opened?",
        {"import": import_it},
        {IMPORT_FACT: "≤ 1.5 times"},
        {IMPORT_FACT: "times"},
    ),
    Workload(
        "tiny commits",
        "What does one small change cost?",
        {"prepare": make_small_array, "500 commits": commit_tiny, "50 times open + read": open_and_read},
        {"500 commits": 2, "50 times open + read": 1.5},
    ),
    Workload(
        "tiny commits, no fsync",
        "And if neither package waits for the disk?",
        {"prepare": make_small_array, "500 commits": commit_tiny_unsynced},
        {"500 commits": 2},
    ),
    Workload(
        "5,000 nodes",
        "How long to make and list a wide hierarchy?",
        {"create + commit": create_nodes, "open + list": list_nodes},
    ),
    Workload(
        "1 GiB in 1 MiB chunks",
        "Is bulk data as fast as the disk?",
        {"write": write_large, "read": read_large},
        {"write": 1.5},
    ),
    Workload(
        "50,000 chunks of 4 KiB",
        "How much does a small chunk cost?",
        {"write + commit": write_small, "cold full read": read_small, "1,000 random reads": read_at_random},
        {"1,000 random reads": 3},
    ),
]
