"""Does garbage collection on Spark need bounded memory? Measured with synthetic references, and with ten times as many.

Run with `python -m benchmarks.spark_collection [--scale 1]`: 500,000 and 5,000,000 references, and as many listed
objects, of which a tenth is garbage. The objects themselves do not exist. Deleting a missing object is not an error.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

import icefloe
from icefloe.maintenance.inventory import id_texts
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.session.references import set_table

COUNTS = (500_000, 5_000_000)
MANIFEST_CHUNKS = 100_000
JVM_MB = 1024


def make_repository(count: int, folder: Path) -> icefloe.Repository:
    """A repository whose manifests refer to this number of chunk objects, one per chunk."""
    split = icefloe.ManifestSplittingConfig.from_dict(
        {icefloe.ManifestSplitCondition.AnyArray(): {icefloe.ManifestSplitDimCondition.Any(): MANIFEST_CHUNKS}}
    )
    config = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(splitting=split))
    repo = icefloe.Repository.create(str(folder / "repo"), config)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="x", shape=(count,), chunks=(1,), dtype="f4", compressors=None)
    random = np.random.default_rng(7)
    form = repo.context.format.chunks_folder + "{}"
    writer: pq.ParquetWriter | None = None
    for low in range(0, count, MANIFEST_CHUNKS):
        size = min(MANIFEST_CHUNKS, count - low)
        ids = random.integers(0, 256, (size, repo.context.capabilities.object_id_bytes), dtype=np.uint8)
        coords = np.arange(low, low + size, dtype=np.uint32).reshape(-1, 1)
        length = np.full(size, 4, dtype=np.uint64)
        kind = np.full(size, ChunkKind.NATIVE, dtype=np.uint8)
        set_table(session.state, "x", ChunkTable(coords, kind, np.zeros(size, dtype=np.uint64), length, ids))
        # The last tenth of what is listed is garbage: other ids stand in its place.
        ids = ids.copy()
        ids[-size // 10 :] = random.integers(0, 256, (len(ids[-size // 10 :]), ids.shape[1]), dtype=np.uint8)
        table = _rows(form, id_texts(ids))
        writer = writer or pq.ParquetWriter(folder / "inventory.parquet", table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    session.commit("references")
    return repo


def _rows(form: str, texts: list[str]) -> pa.Table:
    old = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    return pa.table(
        {
            "key": pa.array([form.format(text) for text in texts]),
            "size": pa.array([4] * len(texts), pa.int64()),
            "last_modified": pa.array([old] * len(texts), pa.timestamp("us", tz="UTC")),
        }
    )


def measure(folder: Path) -> dict[str, Any]:
    """One collection in this process, which is the driver."""
    from icefloe.spark import collect_garbage, connect

    spark = connect("local[2]", settings={"spark.driver.memory": f"{JVM_MB}m", "spark.ui.enabled": "false"})
    repo = icefloe.Repository.open(str(folder / "repo"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.perf_counter()
    done = collect_garbage(spark, repo, dt.datetime.now(dt.UTC), inventory=str(folder / "inventory.parquet"))
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    spark.stop()
    return {"deleted": done.chunks_deleted, "start_mb": before, "peak_mb": peak, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--make", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        folder = Path(arguments.child)
        if arguments.make is not None:
            make_repository(arguments.make, folder)
        else:
            print(json.dumps(measure(folder)))
        return
    rows = []
    for count in (int(each * arguments.scale) for each in COUNTS):
        with tempfile.TemporaryDirectory(prefix="bench-") as place:
            _child("--child", place, "--make", str(count))
            rows.append({"count": count, **json.loads(_child("--child", place).strip().splitlines()[-1])})
            expected = count // 10
            assert abs(rows[-1]["deleted"] - expected) <= count // MANIFEST_CHUNKS + 1, rows[-1]
    print(f"{'references':>12} {'listed':>12} {'deleted':>10} {'driver MB before':>17} {'peak':>7} {'seconds':>8}")
    for row in rows:
        print(
            f"{row['count']:>12,} {row['count']:>12,} {row['deleted']:>10,} {row['start_mb']:>17.0f} "
            f"{row['peak_mb']:>7.0f} {row['seconds']:>8.1f}"
        )
    print(f"The driver and the tasks share a JVM of at most {JVM_MB} MB. Python tasks run in their own processes.")


def _child(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.spark_collection", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


if __name__ == "__main__":
    main()
