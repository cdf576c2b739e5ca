"""A driver of its own on a cluster: an ingest of which one task lags until Spark has started a second attempt of it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}
_LONGEST_WAIT_SECONDS = 200


class Lagging:
    """The work of an ingest; the first attempt at one task does all of it, then waits until another one has begun."""

    def __init__(self, work: Any, marks: str) -> None:
        self._work, self._marks = work, marks

    def __call__(self, open_fork: Any, task: Any) -> Any:
        place = Path(self._marks) / hashlib.sha256(repr(task).encode()).hexdigest()[:16]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{os.getpid()}-{time.monotonic_ns()}").touch()
        fork, report = self._work(open_fork, task)
        if self._is_first(place):
            fork.write_parts("an attempt that lags")
            deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
            while len(list(place.iterdir())) < 2 and time.monotonic() < deadline:
                time.sleep(0.02)
            # Time for the other attempt to be done as well: whichever is told first wins.
            time.sleep(1)
            fork, report = self._work(open_fork, task)
        return fork, report

    def _is_first(self, place: Path) -> bool:
        """Whether this is the one attempt of the job that lags."""
        try:
            (Path(self._marks) / "lagging").symlink_to(place)
        except FileExistsError:
            return False
        return True


def main(arguments: dict[str, str]) -> None:
    from icefloe.spark import connect, ingest
    from icefloe.spark import ingest_commit as landing

    settings = {"spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.driver.host": "127.0.0.1"}
    spark = connect(arguments["master"], settings={**settings, **SPECULATION})
    work = landing.IngestWork
    landing.IngestWork = lambda *given: Lagging(work(*given), arguments["marks"])  # type: ignore[assignment,misc]
    try:
        outcome = ingest(spark, arguments["files"], arguments["repo"], task_bytes=1, chunks={"time": 24})
        sys.stdout.write(json.dumps({"references": outcome.references, "tasks": len(outcome.plan.tasks)}) + "\n")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
