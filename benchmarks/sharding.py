"""Sharded arrays: whole writes, whole reads and partial reads of shards.

`python3 dev.py bench` runs the workloads beside the official package. `python -m benchmarks.sharding [--write]` also
compares Zarr's own pipeline and, if the package `zarrs` is installed, its pipeline on plain files. It has no other
stores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from rich.console import Console
from rich.table import Table
from zarr.codecs import ZstdCodec

from benchmarks.harness import Meter, Workload, create_repository, open_repository
from benchmarks.report import PAGE, markdown, replace_block, where_measured

SIDE, SHARD, CHUNK = 4096, 1024, 64
"""16 shards of 4 MiB, with 256 chunks of 16 KiB each."""
COMPRESSORS: dict[str, Any] = {"uncompressed": None, "zstd": ZstdCodec(level=1)}
SUBJECTS = {
    "official": ("icechunk", {}),
    "Icefloe, Zarr's own pipeline": ("icefloe", {"ICEFLOE_FAST_PIPELINE": "0"}),
    "Icefloe, batched pipeline": ("icefloe", {}),
    "files, Zarr's own pipeline": ("files", {}),
    "files, zarrs": ("zarrs", {}),
}


def _values(scale: float) -> np.ndarray[Any, Any]:
    """Smooth values with some noise, as measurements have."""
    side = max(SHARD, int(SIDE * scale**0.5) // SHARD * SHARD)
    rows, columns = np.ogrid[:side, :side]
    noise = np.random.default_rng(1).integers(0, 8, (side, side), dtype="i4")
    return ((rows + columns) // 16 + noise).astype("f4")


def _create(store: Any, name: str, shape: tuple[int, ...]) -> Any:
    return zarr.create_array(
        store,
        name=name,
        shape=shape,
        shards=(SHARD, SHARD),
        chunks=(CHUNK, CHUNK),
        dtype="f4",
        compressors=COMPRESSORS[name],
    )


def write(library: Any, folder: Path, meter: Meter, scale: float, name: str) -> None:
    values = _values(scale)
    repo = create_repository(library, folder)
    session = repo.writable_session("main")
    array = _create(session.store, name, values.shape)
    with meter.timed():
        array[:] = values
        session.commit("shards")


def _open(library: Any, folder: Path, name: str) -> Any:
    return zarr.open_array(open_repository(library, folder).readonly_session("main").store, path=name, mode="r")


def read_all(array: Any, meter: Meter) -> None:
    with meter.timed():
        array[:]


def read_columns(array: Any, meter: Meter) -> None:
    """20 columns of the array: a row of chunks of every shard, 20 times."""
    columns = np.random.default_rng(2).integers(0, array.shape[1], 20).tolist()
    with meter.timed():
        for column in columns:
            array[:, column]


def read_elements(array: Any, meter: Meter) -> None:
    places = np.random.default_rng(3).integers(0, array.shape[0], (200, 2)).tolist()
    with meter.timed():
        for row, column in places:
            array[row, column]


READS = {"full read": read_all, "20 columns": read_columns, "200 elements": read_elements}


def _workload(name: str) -> Workload:
    def write_it(library: Any, folder: Path, meter: Meter, scale: float) -> None:
        write(library, folder, meter, scale, name)

    def reading(read: Any) -> Any:
        return lambda library, folder, meter, scale: read(_open(library, folder, name), meter)

    steps = {"write + commit": write_it, **{step: reading(read) for step, read in READS.items()}}
    return Workload(f"64 MiB in 16 shards, {name}", "How fast are sharded arrays?", steps)


WORKLOADS = [_workload(name) for name in COMPRESSORS]


def _child(subject: str, folder: Path, scale: float) -> None:
    """Run all steps of one subject, and print processor seconds."""
    if subject == "zarrs":
        __import__("zarrs")
        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    measured = {}
    for name in COMPRESSORS:
        for step in ("write + commit", *READS):
            meter = Meter()
            if subject in ("icechunk", "icefloe"):
                workload = next(each for each in WORKLOADS if each.name.endswith(name))
                workload.steps[step](__import__(subject), folder / name, meter, scale)
            elif step == "write + commit":
                values = _values(scale)
                array = _create(zarr.storage.LocalStore(folder), name, values.shape)
                with meter.timed():
                    array[:] = values
            else:
                array = zarr.open_array(zarr.storage.LocalStore(folder), path=name, mode="r")
                READS[step](array, meter)
            measured[f"{step}, {name}"] = (meter.seconds, meter.cpu_seconds)
    print(json.dumps(measured))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharding")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the data  [default: 1]")
    parser.add_argument("--rounds", type=int, default=3, help="runs, the fastest counts  [default: 3]")
    parser.add_argument("--write", action="store_true", help="write the figures to docs/performance.md")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _child(arguments.child[0], Path(arguments.child[1]), arguments.scale)
        return
    best: dict[tuple[str, str], tuple[float, float]] = {}
    load = os.getloadavg()
    console = Console(width=160)
    with tempfile.TemporaryDirectory(prefix="sharding-") as root:
        for _ in range(arguments.rounds):
            for label, (subject, variables) in SUBJECTS.items():
                folder = tempfile.mkdtemp(dir=root)
                command = [sys.executable, "-m", "benchmarks.sharding", "--scale", str(arguments.scale)]
                done = subprocess.run(
                    [*command, "--child", subject, folder],
                    env={**os.environ, "ICECHUNK_LOG": "error", **variables},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    console.print(f"{label} did not run: {done.stderr.strip().splitlines()[-1]}")
                    continue
                for step, times in json.loads(done.stdout.splitlines()[-1]).items():
                    best[step, label] = min(best.get((step, label), times), times)
    header = ("seconds (processor seconds)", *SUBJECTS)
    table, rows = Table(*header), []
    for step in dict.fromkeys(step for step, _ in best):
        cells = [best.get((step, label)) for label in SUBJECTS]
        rows.append([step, *("-" if each is None else f"{each[0]:.3f} ({each[1]:.3f})" for each in cells)])
        table.add_row(*rows[-1])
    console.print(table)
    if arguments.write:
        text = f"{where_measured(load)} The fastest of {arguments.rounds} runs."
        replace_block(PAGE, "sharding", f"{text}\n\n{markdown(header, rows)}")


if __name__ == "__main__":
    main()
