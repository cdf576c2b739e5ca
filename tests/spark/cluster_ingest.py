"""A driver of its own for tests that kill processes: ingests a folder and says what became of it, as JSON."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path


def main(arguments: dict[str, str]) -> None:
    sys.path.insert(0, arguments["source"])
    import pyspark

    from icefloe.spark import SparkJob, connect, ingest, run_tasks, ship_package

    if arguments["master"] == "connect":
        # A server of its own in another process, which has none of this checkout.
        spark = connect(remote="local[2]")
        ship_package(spark)
        [found] = run_tasks(spark, SparkJob(_where, "where"), [None])
        outcome = ingest(spark, arguments["files"], arguments["repo"], task_bytes=1, chunks={"time": 24})
        sys.stdout.write(json.dumps({"package": found, "snapshot": outcome.snapshot_id}) + "\n")
        spark.stop()
        return
    settings = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}
    if "package" in arguments:
        settings["spark.submit.pyFiles"] = arguments["package"]
    spark = connect(arguments["master"], settings=settings)
    application = spark.sparkContext.applicationId
    try:
        [found] = run_tasks(spark, SparkJob(_where, "where"), [None])
        killed: list[int] = []
        if arguments.get("kill") == "executor":
            watcher = threading.Thread(target=_kill_executor, args=(Path(arguments["repo"]), application, killed))
            watcher.start()
        outcome = ingest(
            spark, arguments["files"], arguments["repo"], task_bytes=1, chunks={"time": 24}, append_dim="time"
        )
        told = {"package": found, "killed": killed, "tasks": len(outcome.plan.tasks), "snapshot": outcome.snapshot_id}
        sys.stdout.write(json.dumps(told) + "\n")
    finally:
        spark.stop()
        # Executors of local-cluster keep their folders inside the installed package.
        shutil.rmtree(Path(pyspark.__file__).parent / "work" / application, ignore_errors=True)


def _where(_: object) -> str:
    import icefloe

    return str(icefloe.__file__)


def _kill_executor(repository: Path, application: str, killed: list[int]) -> None:
    """Kill one executor as soon as a first chunk was written."""
    while not written_chunks(repository):
        time.sleep(0.01)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"CoarseGrainedExecutorBackend" in command and application.encode() in command:
            os.kill(int(entry.name), signal.SIGKILL)
            killed.append(int(entry.name))
            return


def written_chunks(repository: Path) -> int:
    """How many chunk objects there are."""
    return sum(1 for path in (repository / "chunks").rglob("*") if path.is_file())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
