"""Does the memory of the driver depend on the number of references? The same Spark job, and a hundred times as many.

Run with `python -m benchmarks.spark_driver_memory [--scale 1]`: 100,000 and 10,000,000 references at scale 1.
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
from pathlib import Path
from typing import Any

TASKS = 64
COUNTS = (100_000, 10_000_000)


def measure(count: int, folder: Path) -> dict[str, float]:
    """One job in this process."""
    import zarr

    import icefloe
    from icefloe.spark import connect
    from icefloe.spark.tasks import WriteJob, link, write_with_tasks

    spark = connect("local[2,4]")
    per_task = count // TASKS
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer("s3://archive/", icefloe.s3_store(region="us-east-1"))
    )
    repository = icefloe.Repository.create(str(folder / "repo"), config)
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="x", shape=(TASKS, per_task), chunks=(1, 1), dtype="f4")
    started = time.perf_counter()
    written = write_with_tasks(spark, session, WriteJob(_Write(per_task), "writing references"), list(range(TASKS)))
    tasks_done = time.perf_counter()
    link(session, written)
    session.commit("references")
    committed = time.perf_counter()
    total = sum(each.parts.chunks for each in written)
    spark.stop()
    return {
        "references": total,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "task_seconds": tasks_done - started,
        "commit_seconds": committed - tasks_done,
        "descriptor_bytes": len(__import__("pickle").dumps(written)),
    }


class _Write:
    """A task that writes a row of virtual references."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, open_fork: Any, row: int) -> tuple[Any, None]:
        import numpy as np

        from icefloe.ingest.chunk_grids import virtual_table
        from icefloe.session.references import set_table

        fork = open_fork()
        coords = np.stack([np.full(self.count, row), np.arange(self.count)], axis=1).astype(np.uint32)
        offsets = np.arange(self.count, dtype=np.uint64) * 4096
        lengths = np.full(self.count, 4096, dtype=np.uint64)
        table = virtual_table(coords, offsets, lengths, f"s3://archive/{row:06d}.nc")
        set_table(fork.state, "x", table)
        return fork, None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            print(json.dumps(measure(arguments.child, Path(folder))))
        return
    rows = []
    for count in COUNTS:
        command = [sys.executable, "-m", "benchmarks.spark_driver_memory", "--child", str(int(count * arguments.scale))]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
        if done.returncode:
            raise SystemExit(done.stderr)
        rows.append(json.loads(done.stdout.strip().splitlines()[-1]))
    print(f"{'references':>12} {'driver peak MB':>15} {'tasks s':>9} {'link+commit s':>14} {'descriptors bytes':>18}")
    for row in rows:
        print(
            f"{row['references']:>12,} {row['peak_mb']:>15.0f} {row['task_seconds']:>9.1f} "
            f"{row['commit_seconds']:>14.2f} {row['descriptor_bytes']:>18,}"
        )
    print(f"difference on the driver: {rows[1]['peak_mb'] - rows[0]['peak_mb']:.0f} MB (limit: 50)")


if __name__ == "__main__":
    main()
