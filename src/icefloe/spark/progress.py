"""A progress bar for Spark jobs: tasks, bytes and time left; in terminals and notebooks, silent elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from icefloe.spark.connection import is_classic

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class JobMeter:
    """What is measured: how many tasks, over how many bytes; `shown=None` shows it to people only."""

    description: str
    tasks: int
    bytes: int = 0
    shown: bool | None = None

    def amount(self, done: int) -> str:
        """The share of the bytes that so many tasks stand for."""
        if not self.bytes:
            return ""
        return f"{self.bytes * done / max(1, self.tasks) / 1e6:,.0f}/{self.bytes / 1e6:,.0f} MB"


@contextmanager
def job_progress(spark: SparkSession, group: str, meter: JobMeter) -> Iterator[None]:
    """Show the progress of the jobs of one group while the block runs."""
    # Workers load this module with the functions they run, and would load rich for nothing.
    from icefloe.spark.progress_faces import progress_face  # noqa: PLC0415

    with progress_face(meter) as show:
        if show is None:
            yield
            return
        # Stages that merge have tasks of their own, which nobody counted.
        with _watching(spark, group, lambda done: show(min(done, meter.tasks))):
            yield
        show(meter.tasks)


@contextmanager
def _watching(spark: SparkSession, group: str, report: Any) -> Iterator[None]:
    if not is_classic(spark):
        with _watching_connect(spark, report):
            yield
        return
    stop = threading.Event()
    watcher = threading.Thread(target=_poll, args=(spark, group, report, stop), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def _poll(spark: SparkSession, group: str, report: Any, stop: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not stop.wait(_POLL_SECONDS):
        done = 0
        for job_id in tracker.getJobIdsForGroup(group):
            job = tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job is not None else ():
                stage = tracker.getStageInfo(stage_id)
                done += stage.numCompletedTasks if stage is not None else 0
        report(done)


@contextmanager
def _watching_connect(spark: SparkSession, report: Any) -> Iterator[None]:
    def handler(stages: Any, inflight_tasks: int, operation_id: str, done: bool) -> None:
        report(sum(stage.num_completed_tasks for stage in stages))

    spark.registerProgressHandler(handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)  # type: ignore[arg-type]
