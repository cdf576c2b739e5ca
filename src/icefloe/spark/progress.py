"""A progress bar for Spark jobs: tasks, bytes and time left; in terminals and notebooks, silent elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

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
    console = Console(stderr=True)
    visible = console.is_terminal or console.is_jupyter if meter.shown is None else meter.shown
    if not visible:
        yield
        return
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[amount]}"), TimeRemainingColumn(), TimeElapsedColumn(),
        console=console, transient=not sys.stderr.isatty(),
    )  # fmt: skip

    def show(done: int) -> None:
        bar.update(task, completed=done, amount=meter.amount(done))

    with bar:
        task = bar.add_task(meter.description, total=meter.tasks, amount=meter.amount(0))
        with _watching(spark, group, show):
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
