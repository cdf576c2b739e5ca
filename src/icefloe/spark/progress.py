"""A progress bar for Spark jobs: tasks done, time left; in terminals and notebooks, silent elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from icefloe.spark.connect import is_classic

_POLL_SECONDS = 0.2


@contextmanager
def job_progress(
    spark: SparkSession, group: str, description: str, total: int, *, shown: bool | None
) -> Iterator[None]:
    """Show the progress of the jobs of one group while the block runs; `shown=None` shows it to people only."""
    console = Console(stderr=True)
    visible = console.is_terminal or console.is_jupyter if shown is None else shown
    if not visible:
        yield
        return
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, transient=not sys.stderr.isatty(),
    )  # fmt: skip
    with bar:
        task = bar.add_task(description, total=total)
        with _watching(spark, group, lambda done: bar.update(task, completed=done)):
            yield
        bar.update(task, completed=total)


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
