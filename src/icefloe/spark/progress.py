"""Progress bars of Spark jobs, in terminals and notebooks."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator
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

from icefloe.errors import printable
from icefloe.spark.connect import is_classic

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class JobMeter:
    """The number of tasks and bytes of a job. `shown=None` shows progress in terminals and notebooks only."""

    description: str
    tasks: int
    bytes: int = 0
    shown: bool | None = None

    def amount(self, done: int) -> str:
        """The bytes of this many tasks."""
        if not self.bytes:
            return ""
        return f"{self.bytes * done / max(1, self.tasks) / 1e6:,.0f}/{self.bytes / 1e6:,.0f} MB"


@contextmanager
def job_progress(spark: SparkSession, group: str, meter: JobMeter) -> Iterator[None]:
    """Show the progress of the jobs of one group while the block runs."""
    # Workers import this module too, and do not need rich.

    with progress_display(meter) as show:
        if show is None:
            yield
            return
        # Merging stages have additional tasks that are not in the total.
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


Show = Callable[[int], None]
"""Called with the number of finished tasks."""


@contextmanager
def progress_display(meter: JobMeter) -> Iterator[Show | None]:
    """A function that shows the number of finished tasks while the block runs. None if progress is not shown."""
    console = Console(stderr=True)
    visible = console.is_terminal or console.is_jupyter if meter.shown is None else meter.shown
    if not visible:
        yield None
    elif console.is_jupyter and importlib.util.find_spec("ipywidgets") is None:
        with _line(meter) as show:
            yield show
    else:
        with _bar(console, meter) as show:
            yield show


@contextmanager
def _bar(console: Console, meter: JobMeter) -> Iterator[Show]:
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[amount]}", markup=False),
        TimeRemainingColumn(),
        TimeElapsedColumn(),
        # Keep a finished bar on the screen, unless it had only one task.
        console=console,
        transient=meter.tasks == 1,
    )
    with bar:
        task = bar.add_task(printable(meter.description), total=meter.tasks, amount=meter.amount(0))
        yield lambda done: bar.update(task, completed=done, amount=meter.amount(done))


@contextmanager
def _line(meter: JobMeter) -> Iterator[Show]:
    """One line that is overwritten, because notebooks only draw bars with the package ipywidgets."""
    started = time.monotonic()

    def show(done: int) -> None:
        passed = time.monotonic() - started
        left = f", about {passed * (meter.tasks - done) / done:,.0f} s left" if 0 < done < meter.tasks else ""
        parts = (f"{done:,}/{meter.tasks:,} tasks", meter.amount(done), f"{passed:,.0f} s{left}")
        text = f"{printable(meter.description)}: {', '.join(part for part in parts if part)}"
        sys.stderr.write(f"\r{text:<100}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\n")
