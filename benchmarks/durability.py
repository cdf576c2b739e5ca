"""What does it cost that a commit to local files survives a power loss?

`python -m benchmarks.durability [--commits 200] [--write]`. Commits of one element, in every generation, with
`fsync=False` and `fsync=True` in turns. The fastest tenth counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import zarr

import icefloe
from benchmarks.report import PAGE, markdown, replace_block, where_measured
from icefloe import SpecVersion

HEADER = ("generation", "`fsync=False`", "`fsync=True`")


def committing(folder: Path, version: SpecVersion, *, fsync: bool) -> Callable[[int], float]:
    """Return a function that commits one element and returns the seconds that it took."""
    storage = icefloe.local_filesystem_storage(str(folder / f"{version.value}-{fsync}"), fsync=fsync)
    repo = icefloe.Repository.create(storage, spec_version=version)
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(1000,), chunks=(10,), dtype="i4")

    def commit(number: int) -> float:
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[number % 1000] = number + 1
        started = time.perf_counter()
        session.commit(f"commit {number}")
        return time.perf_counter() - started

    return commit


def measure(folder: Path, version: SpecVersion, commits: int) -> list[str]:
    """Return the cells of a row: milliseconds of both settings."""
    ways = [committing(folder, version, fsync=fsync) for fsync in (False, True)]
    times: list[list[float]] = [[], []]
    for number in range(commits):
        for way, column in zip(ways, times, strict=True):
            column.append(way(number))
    fastest = [sorted(column)[: max(commits // 10, 1)] for column in times]
    return [f"`{version.value}`", *(f"{1000 * statistics.mean(column):.1f}" for column in fastest)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.durability", description=__doc__.partition("\n")[0])
    parser.add_argument("--commits", type=int, default=200, help="commits of each kind  [default: 200]")
    parser.add_argument("--write", action="store_true", help="write the figures to docs/performance.md")
    arguments = parser.parse_args()
    load, order = os.getloadavg(), ("repository", "store", "dataset", "icechunk1", "icechunk2")
    with tempfile.TemporaryDirectory(prefix="durability-") as folder:
        rows = [measure(Path(folder), SpecVersion(name), arguments.commits) for name in order]
    table = markdown(HEADER, rows)
    print(table)
    if arguments.write:
        text = f"{where_measured(load)} Milliseconds of the fastest tenth of {arguments.commits} commits."
        replace_block(PAGE, "durability", f"{text}\n\n{table}")


if __name__ == "__main__":
    main()
