"""Is this checkout as fast as another one?

Run it by itself: `python -m benchmarks.checkouts ../before [--pairs 15] [--only read]`. The argument is the root of
another checkout of this project, for example one made by `git worktree add ../before COMMIT --detach`. Both must run in
the present environment.

Each checkout runs in its own process. The two processes take turns at each workload, so that other programs slow both
equally. The benchmark compares processor time (user and system), not wall time. It prints the smallest time of each
checkout, which is the least disturbed one, and the median of the ratios of all pairs. Local files are not synced,
because that would measure the disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

HERE = Path(__file__).resolve().parent.parent
COMMITS, CHUNKS, CHUNK_BYTES, SMALL_CHUNKS, FILES = 200, 256, 1 << 20, 20_000, 1_000

Measure = Callable[[Path], float]
"""Runs a workload in an empty folder and returns seconds of processor time."""


def _storage(folder: Path) -> Any:
    import icefloe

    return icefloe.local_filesystem_storage(str(folder / "repo"), fsync=False)


def _array(session: Any, chunks: int, chunk_bytes: int) -> Any:
    return zarr.create_array(
        session.store, name="a", shape=(chunks, chunk_bytes), chunks=(1, chunk_bytes), dtype="u1", compressors=None
    )


def tiny_commits(folder: Path) -> float:
    """Commits of one small chunk each."""
    import icefloe

    repo = icefloe.Repository.create(_storage(folder))
    with repo.transaction("main", message="base") as store:
        zarr.create_array(store, name="a", shape=(1000,), chunks=(10,), dtype="i4")
    started = time.process_time()
    for index in range(COMMITS):
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[index] = index + 1
        session.commit(f"commit {index}")
    return time.process_time() - started


def _write(folder: Path, chunks: int, chunk_bytes: int) -> float:
    import icefloe

    block = np.random.default_rng(1).integers(1, 255, (64, chunk_bytes), dtype="u1")
    session = icefloe.Repository.create(_storage(folder)).writable_session("main")
    array = _array(session, chunks, chunk_bytes)
    started = time.process_time()
    for start in range(0, chunks, 64):
        array[start : start + 64] = block[: min(64, chunks - start)]
    session.commit("data")
    return time.process_time() - started


def _read(folder: Path, chunks: int, chunk_bytes: int) -> float:
    import icefloe

    _write(folder, chunks, chunk_bytes)
    array = zarr.open_array(
        icefloe.Repository.open(_storage(folder)).readonly_session("main").store, path="a", mode="r"
    )
    started = time.process_time()
    for start in range(0, chunks, 64):
        array[start : start + 64]
    return time.process_time() - started


def write_large(folder: Path) -> float:
    """256 MiB in chunks of 1 MiB, and the commit."""
    return _write(folder, CHUNKS, CHUNK_BYTES)


def read_large(folder: Path) -> float:
    """256 MiB in chunks of 1 MiB."""
    return _read(folder, CHUNKS, CHUNK_BYTES)


def write_small(folder: Path) -> float:
    """20,000 chunks of 4 KiB, and the commit."""
    return _write(folder, SMALL_CHUNKS, 4096)


def read_small(folder: Path) -> float:
    """20,000 chunks of 4 KiB."""
    return _read(folder, SMALL_CHUNKS, 4096)


_SCHEMAS: list[Any] = []


def plan(folder: Path) -> float:
    """The plan of an ingest of 1,000 NetCDF files, from their schemas."""
    from icefloe.ingest import IngestOptions, SourceAccess, expand_sources, parse_schema, plan_ingest

    if not _SCHEMAS:
        access, files = SourceAccess(), folder.parent.parent / "files"
        _SCHEMAS.extend(parse_schema(file, access) for file in expand_sources(str(files), access))
    started = time.process_time()
    plan_ingest(_SCHEMAS, IngestOptions(mode="virtual"))
    return time.process_time() - started


def _ingest(folder: Path, mode: str) -> float:
    import icefloe
    from icefloe.ingest import IngestOptions, ingest_local

    repo = icefloe.Repository.create(_storage(folder))
    started = time.process_time()
    ingest_local(str(folder.parent.parent / "files"), repo, IngestOptions(mode=mode))  # type: ignore[arg-type]
    return time.process_time() - started


def ingest_values(folder: Path) -> float:
    """1,000 NetCDF files by value, in one process."""
    return _ingest(folder, "native")


def ingest_references(folder: Path) -> float:
    """1,000 NetCDF files by reference, in one process."""
    return _ingest(folder, "virtual")


WORKLOADS: dict[str, Measure] = {
    "200 tiny commits": tiny_commits,
    "write of 256 MiB, chunks of 1 MiB": write_large,
    "read of 256 MiB, chunks of 1 MiB": read_large,
    "write of 20,000 chunks of 4 KiB": write_small,
    "read of 20,000 chunks of 4 KiB": read_small,
    "plan of 1,000 files": plan,
    "native ingest of 1,000 files": ingest_values,
    "virtual ingest of 1,000 files": ingest_references,
}


class Runner:
    """A process that runs workloads with one checkout."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{HERE}", "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-m", "benchmarks.checkouts", "--serve"]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, name: str) -> float:
        """Seconds of processor time of one run of a workload, in an empty folder."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        place = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            self._process.stdin.write(f"{name}\t{place}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            if not answer:
                raise RuntimeError(f"{name!r} failed, see above")
            return float(answer)
        finally:
            shutil.rmtree(place)

    def close(self) -> None:
        self._process.communicate()


def serve() -> None:
    """Read names of workloads from standard input, run them, and print the time of each."""
    for line in sys.stdin:
        name, folder = line.rstrip("\n").split("\t")
        print(WORKLOADS[name](Path(folder)), flush=True)


def compare(before: Path, only: str, pairs: int, folder: Path) -> None:
    """Print a table: the smallest times of both, their ratio, and the median of the ratios of pairs."""
    names = [name for name in WORKLOADS if only in name]
    if any("files" in name for name in names):
        from icefloe.testing.synthetic_weather import write_month

        write_month(folder / "files", days=FILES, hours_per_file=24, nlat=9, nlon=18)
    runners = {side: Runner(root, folder / side) for side, root in (("before", before), ("now", HERE))}
    print(f"{'':<36}{'before s':>10}{'now s':>10}{'now / before':>14}{'median of pairs':>17}")
    for name in names:
        for runner in runners.values():
            runner.measure(name)  # what is loaded and cached at the first use
        times: dict[str, list[float]] = {side: [] for side in runners}
        for pair in range(pairs):
            for side in ("before", "now") if pair % 2 else ("now", "before"):
                times[side].append(runners[side].measure(name))
        best = {side: min(found) for side, found in times.items()}
        ratios = [now / then for now, then in zip(times["now"], times["before"], strict=True)]
        print(
            f"{name:<36}{best['before']:>10.4f}{best['now']:>10.4f}{best['now'] / best['before']:>14.3f}"
            f"{statistics.median(ratios):>17.3f}",
            flush=True,
        )
    for runner in runners.values():
        runner.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.checkouts")
    parser.add_argument("before", nargs="?", type=Path, help="root of the other checkout")
    parser.add_argument("--pairs", type=int, default=15, help="number of runs of each checkout  [default: 15]")
    parser.add_argument("--only", default="", help="run only workloads whose name contains this text")
    parser.add_argument("--folder", help="folder to write to  [default: the temporary folder of the system]")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    if arguments.before is None or not (arguments.before / "src" / "icefloe").is_dir():
        parser.error("name the root of another checkout")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as folder:
        compare(arguments.before.resolve(), arguments.only, arguments.pairs, Path(folder))


if __name__ == "__main__":
    main()
