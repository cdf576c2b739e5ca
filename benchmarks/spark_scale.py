"""Does a Spark job stay within bounds at scale? Many source files, many chunks in one plan, arrays larger than memory.

Run with `python -m benchmarks.spark_scale [--sources 1000 10000 100000] [--chunks 1e5 1e6 1e7] [--gigabytes 0.25 2]`.
An option without numbers leaves out its measurements. `--results FILE` adds what was measured to a file, so that a run
can be done in pieces, and its tables show what all of them measured.

* Sources: HDF5 files with one time each are ingested by reference. Each phase is timed: the list of files, the schemas
  that tasks read, the plan, the writing tasks, and the commit.
* Chunks: the driver plans a copy of and a computation over an array with that many chunks of 1 MiB.
* Gigabytes: an array of that size is rechunked and ingested natively, with two settings of `task_bytes`. The memory of
  the Python workers is sampled while the job runs.

Every measurement runs in a process of its own. The memory of the driver is its highest memory above that before the
job, and that of a worker is the highest of any Python worker. `cpu s` is the processor time of the driver, `tree cpu s`
also that of the JVM and the Python workers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scale_100m import resident_mb
from benchmarks.spark_tables import PeakMemory, tree_cpu_seconds

MIB = 1 << 20
SIDE = 512
"""Cells along each horizontal dimension of the large arrays."""


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def timed(facts: dict[str, float], name: str) -> Iterator[None]:
    started, worked, together = time.perf_counter(), time.process_time(), tree_cpu_seconds()
    yield
    facts[f"{name} s"] = facts.get(f"{name} s", 0) + time.perf_counter() - started
    facts[f"{name} cpu s"] = facts.get(f"{name} cpu s", 0) + time.process_time() - worked
    facts[f"{name} tree cpu s"] = facts.get(f"{name} tree cpu s", 0) + tree_cpu_seconds() - together


def time_calls(module: Any, function: str, facts: dict[str, float], name: str) -> None:
    """Time every call of a module's function."""
    plain = getattr(module, function)

    def call(*args: Any, **kwargs: Any) -> Any:
        with timed(facts, name):
            return plain(*args, **kwargs)

    setattr(module, function, call)


def make_sources(folder: Path, count: int) -> None:
    """HDF5 files that differ in their time and values: copies of one file with other bytes in two places."""
    import h5py

    model = folder / "model.nc"
    hour, marker = 123456789.0, 987654.25
    with h5py.File(model, "w") as file:
        for name, values in (("time", [hour]), ("lat", np.arange(8.0)), ("lon", np.arange(16.0))):
            file.create_dataset(name, data=np.asarray(values, dtype="f8")).make_scale(name)
        file["time"].attrs["units"] = "hours since 1970-01-01"
        cells = file.create_dataset("t2m", data=np.full((1, 8, 16), marker), chunks=(1, 4, 16))
        for axis, name in enumerate(("time", "lat", "lon")):
            cells.dims[axis].attach_scale(file[name])
    data = bytearray(model.read_bytes())
    model.unlink()
    at = data.index(np.float64(hour).tobytes())
    cell = data.index(np.float64(marker).tobytes())
    for number in range(count):
        data[at : at + 8] = np.float64(number).tobytes()
        data[cell : cell + 8] = np.float64(number % 251).tobytes()
        below = folder / f"{number // 1000:04d}"
        if number % 1000 == 0:
            below.mkdir()
        (below / f"{number:07d}.nc").write_bytes(data)


def ingest_sources(count: int, folder: Path) -> dict[str, float]:
    from icefloe.spark import connect, ingest, ingest_commit

    module = sys.modules["icefloe.spark.ingest"]
    files = folder / "files"
    files.mkdir()
    make_sources(files, count)
    spark = connect("local[2,4]", quick_start=True)
    spark.range(8).count()
    facts: dict[str, float] = {}
    time_calls(module, "find_files", facts, "list")
    time_calls(module, "_read_sources", facts, "schemas")
    time_calls(ingest_commit, "plan_first_pass", facts, "plan")
    time_calls(ingest_commit, "write_with_tasks", facts, "tasks")
    before = peak_mb()
    with timed(facts, "all"):
        outcome = ingest(
            spark, str(files / "*/*.nc"), folder / "repo", mode="virtual", append_dim="time", progress=False
        )
    facts["driver MB"] = peak_mb() - before
    facts["references"] = outcome.references
    for unit in ("s", "cpu s", "tree cpu s"):
        phases = sum(facts[f"{name} {unit}"] for name in ("list", "schemas", "plan", "tasks"))
        facts[f"link and commit {unit}"] = facts[f"all {unit}"] - phases
    assert outcome.plan is not None
    check_sources(folder / "repo", list(outcome.plan.containers), count)
    spark.stop()
    return facts


def check_sources(path: Path, prefixes: list[str], count: int) -> None:
    """Compare the values of a sample of files with those of the repository."""
    import zarr

    import icefloe

    access = icefloe.containers_credentials(dict.fromkeys(prefixes))
    session = icefloe.Repository.open(str(path), authorize_virtual_chunk_access=access).readonly_session("main")
    array = zarr.open_array(session.store, path="t2m", mode="r")
    assert array.shape[0] == count
    for number in range(0, count, max(1, count // 20)):
        assert array[number, 0, 0] == number % 251


def create_array(store: Any, times: int) -> Any:
    """An array with a chunk of 1 MiB for each time."""
    import zarr

    return zarr.create_array(
        store,
        name="x",
        shape=(times, SIDE, SIDE),
        chunks=(1, SIDE, SIDE),
        dtype="f4",
        dimension_names=["time", "y", "x"],
    )


def plan_chunks(count: int, folder: Path) -> dict[str, float]:
    """Plan jobs over one array with that many chunks. Nothing is written, and Spark is not started."""
    import xarray as xr

    import icefloe
    from icefloe.spark.copy import CopySelection, plan_copy
    from icefloe.spark.map_blocks import plan_blocks

    repository = icefloe.Repository.create(str(folder / "repo"))
    session = repository.writable_session("main")
    create_array(session.store, count)
    session.commit("array")
    readonly = repository.readonly_session("main")
    facts: dict[str, float] = {}
    before = peak_mb()
    with timed(facts, "copy"):
        facts["copy tasks"] = len(plan_copy(readonly, CopySelection(), "", 128 * MIB).tasks)
    dataset = xr.open_zarr(readonly.store, consolidated=False, chunks=None)
    with timed(facts, "blocks"):
        facts["block tasks"] = len(plan_blocks(dataset, task_bytes=128 * MIB).windows())
    facts["driver MB"] = peak_mb() - before
    return facts


def make_array(path: Path, gigabytes: float) -> None:
    """An array of chunks with one time each."""

    import icefloe

    times = int(gigabytes * 2**30 / (SIDE * SIDE * 4))
    repository = icefloe.Repository.create(str(path))
    session = repository.writable_session("main")
    array = create_array(session.store, times)
    noise = np.random.default_rng(0).integers(0, 1000, (SIDE, SIDE)).astype("f4")
    for first in range(0, times, 32):
        block = np.arange(first, min(first + 32, times), dtype="f4")
        array[first : first + 32] = noise + block[:, None, None]
    session.commit("array")


def make_large_files(folder: Path, gigabytes: float) -> None:
    """HDF5 files of 256 MiB, larger than a task."""
    import h5py

    folder.mkdir()
    each = 256
    noise = np.random.default_rng(0).integers(0, 1000, (SIDE, SIDE)).astype("f4")
    for number in range(max(1, int(gigabytes * 4))):
        with h5py.File(folder / f"{number:04d}.h5", "w") as file:
            times = file.create_dataset("time", data=np.arange(number * each, (number + 1) * each, dtype="f8"))
            times.make_scale("time")
            cells = file.create_dataset("x", (each, SIDE, SIDE), "f4", chunks=(1, SIDE, SIDE))
            cells.dims[0].attach_scale(times)
            for first in range(each):
                cells[first] = noise + np.float32(number * each + first)


def work_beyond_memory(gigabytes: float, task_mib: int, folder: Path) -> dict[str, float]:
    import zarr

    import icefloe
    from icefloe.spark import connect, ingest, rechunk

    make_array(folder / "repo", gigabytes)
    make_large_files(folder / "files", gigabytes)
    spark = connect("local[2,4]", quick_start=True)
    spark.range(8).count()
    facts: dict[str, float] = {"gigabytes": gigabytes, "task_bytes MiB": task_mib}
    # The driver has made the array. Its memory during the jobs is sampled, because its peak was before them.
    before, drivers = resident_mb(), []
    with PeakMemory() as memory, timed(facts, "rechunk"):
        chunks = {"time": 256, "y": 64, "x": 64}
        rechunk(spark, str(folder / "repo"), chunks, task_bytes=task_mib * MIB, progress=False)
    facts["rechunk worker MB"] = memory.peaks["largest worker"]
    drivers.append(memory.peaks["driver's Python"] - before)
    with PeakMemory() as memory, timed(facts, "ingest"):
        target = folder / "native"
        ingest(spark, str(folder / "files/*.h5"), target, append_dim="time", task_bytes=task_mib * MIB, progress=False)
    facts["ingest worker MB"] = memory.peaks["largest worker"]
    drivers.append(memory.peaks["driver's Python"] - before)
    facts["driver MB"] = max(drivers)
    for name in ("repo", "native"):
        session = icefloe.Repository.open(str(folder / name)).readonly_session("main")
        array = zarr.open_array(session.store, path="x", mode="r")
        np.testing.assert_array_equal(np.diff(array[:, 3, 5]), 1)
    spark.stop()
    return facts


def in_child(what: str, *arguments: object) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.spark_scale", "--child", what, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    facts: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return facts


Results = dict[str, dict[str, float]]
"""What was measured, by kind of measurement and its arguments."""


def measure(results: Results, store: Path | None, what: str, *arguments: float) -> None:
    """Run one measurement in a process of its own, print it, and add it to the results."""
    given = [f"{argument:.15g}" for argument in arguments]
    facts = results[" ".join([what, *given])] = in_child(what, *given)
    shown = (f"{name} {_digits(value)}" for name, value in facts.items())
    print(f"{what} {' '.join(given)}: {', '.join(shown)}", flush=True)
    if store is not None:
        store.write_text(json.dumps(results, indent=1) + "\n")


def show(title: str, results: Results, what: str) -> None:
    """The measurements of one kind as a table, a column for each."""
    keys = sorted(
        (key for key in results if key.startswith(f"{what} ")), key=lambda key: list(map(float, key.split()[1:]))
    )
    if not keys:
        return
    names = list(dict.fromkeys(name for key in keys for name in results[key]))
    rows = [["", *keys]]
    rows += [[name, *(_digits(results[key][name]) if name in results[key] else "-" for key in keys)] for name in names]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"\n{title}")
    for name, *cells in rows:
        aligned = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        print("  ".join([name.ljust(widths[0]), *aligned]), flush=True)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


CHILDREN: dict[str, Callable[..., dict[str, float]]] = {
    "sources": lambda count, folder: ingest_sources(int(count), folder),
    "chunks": lambda count, folder: plan_chunks(int(float(count)), folder),
    "memory": lambda gigabytes, mib, folder: work_beyond_memory(float(gigabytes), int(mib), folder),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--chunks", type=float, nargs="*", default=[1e5, 1e6, 1e7])
    parser.add_argument("--gigabytes", type=float, nargs="*", default=[0.25, 2])
    parser.add_argument("--results", type=Path, help="a file to keep measurements in, and to add to")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            print(json.dumps(CHILDREN[arguments.child[0]](*arguments.child[1:], Path(folder))))
        return
    store: Path | None = arguments.results
    results: Results = json.loads(store.read_text()) if store is not None and store.exists() else {}
    for count in arguments.sources:
        measure(results, store, "sources", count)
    for count in arguments.chunks:
        measure(results, store, "chunks", count)
    for mib in (16, 128):
        for size in arguments.gigabytes:
            measure(results, store, "memory", size, mib)
    show("Ingest by reference, by number of files", results, "sources")
    show("Plans on the driver, by number of chunks", results, "chunks")
    show("Arrays larger than the memory of a task, by gigabytes and MiB of task_bytes", results, "memory")


if __name__ == "__main__":
    main()
