"""What every job on Spark has: arguments, an outcome, and a progress bar in terminals and notebooks."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

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

from icefloe.errors import InvalidInputError, NodeNotFoundError, printable, suggest
from icefloe.repository import Repository
from icefloe.session.session import Session
from icefloe.spark.connect import is_classic
from icefloe.storage.build import resolve_storage
from icefloe.tables.grids import unreadable_grid

if TYPE_CHECKING:
    import xarray as xr

Source: TypeAlias = "Session | Repository | str | os.PathLike[str]"
Target: TypeAlias = "Repository | str | os.PathLike[str]"
Bounds: TypeAlias = Mapping[str, "slice | tuple[int, int]"]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result of a job that writes.

    Attributes
    ----------
    snapshot_id
        The new snapshot.
    tasks
        The number of tasks.
    references
        The number of chunk references written.
    seconds
        The duration of the job.

    Examples
    --------
    >>> JobOutcome("J0YW0WNV6JWY3RH21G7G", tasks=8, references=64, seconds=1.5).tasks
    8
    """

    snapshot_id: str
    tasks: int
    references: int
    seconds: float


def open_source_and_target(source: Source, target: Target, branch: str) -> tuple[Session, Callable[[], Session]]:
    """Return the session that a job reads, and a function that returns the session it writes.

    If a job reads and writes one branch, both sessions use the same snapshot. A commit that is made while the job runs
    is rebased over or is a conflict. A target that does not exist is created when the writing session is requested.
    """
    origin = source if isinstance(source, Session) else existing_repository(source)
    storage = target.storage if isinstance(target, Repository) else resolve_storage(os.fspath(target))
    if not isinstance(target, Repository) and not Repository.exists(storage):
        return reading_session(origin), lambda: writing_repository(target).writable_session(branch)
    repository = existing_repository(target)
    writer = repository.writable_session(branch)
    if isinstance(origin, Repository) and branch == "main" and origin.storage == repository.storage:
        return origin.readonly_session(snapshot_id=writer.snapshot_id), lambda: writer
    return reading_session(origin), lambda: writer


def unknown_name(what: str, name: str, known: Iterable[Any], *, option: str = "") -> InvalidInputError:
    """Return the error for an unknown name in the argument `option`, with the most similar known name."""
    names = [str(each) for each in known]
    near = suggest(str(name), names)
    where = f"{option}: " if option else ""
    return InvalidInputError(f"{where}there is no {what} {name!r}{near}. There are: {', '.join(names) or 'none'}")


def reading_session(source: Source) -> Session:
    """Return a read-only session. For a repository, it is at the tip of the branch `main`."""
    if isinstance(source, Session):
        if not source.read_only:
            raise InvalidInputError(
                "jobs only read committed data. Commit the session, then pass a read-only session or the repository"
            )
        return source
    return existing_repository(source).readonly_session("main")


def existing_repository(target: Target) -> Repository:
    """Return an existing repository, or open it from its path or URL."""
    return target if isinstance(target, Repository) else Repository.open(resolve_storage(os.fspath(target)))


def writing_repository(target: Target) -> Repository:
    """Return a repository for writing. If it does not exist, it is created."""
    if isinstance(target, Repository):
        return target
    return Repository.open_or_create(resolve_storage(os.fspath(target)))


def open_dataset(session: Session, group: str = "", variables: Sequence[str] | None = None) -> xr.Dataset:
    """Open the arrays of a group as a lazy dataset, decoded by the CF conventions."""
    import xarray as xr  # noqa: PLC0415 - slow to import, and the workers of an ingest import this module without it

    path = group.strip("/")
    try:
        dataset: xr.Dataset = xr.open_zarr(session.store, group=path or None, consolidated=False, chunks=None)
    except (FileNotFoundError, KeyError) as error:
        raise NodeNotFoundError(f"there is no group /{path} in snapshot {session.snapshot_id}", path=path) from error
    except ValueError as error:
        raise unreadable_grid(session, path) or error from error
    if variables is None:
        return dataset
    missing = [name for name in variables if name not in dataset.variables]
    if missing:
        raise NodeNotFoundError(
            str(unknown_name("variable", missing[0], dataset.data_vars, option=f"/{path}")), path=path
        )
    return dataset[list(variables)]


def node_path(group: str, name: str) -> str:
    """Return the path of an array in a group."""
    return "/" + "/".join([*filter(None, group.split("/")), name])


def select_region(dataset: xr.Dataset, region: Bounds | None) -> xr.Dataset:
    """Select the cells of a region, given as [first, end) by dimension."""
    if not region:
        return dataset
    return dataset.isel(parse_bounds(region, {str(d): n for d, n in dataset.sizes.items()}))


def parse_bounds(region: Bounds, sizes: Mapping[str, int]) -> dict[str, slice]:
    """Return bounds as slices with both ends, checked against the sizes."""
    parsed: dict[str, slice] = {}
    for dim, bounds in region.items():
        if dim not in sizes:
            raise unknown_name("dimension", dim, sizes, option="region")
        part: Any = bounds if isinstance(bounds, slice) else slice(*bounds)
        first, end, step = part.indices(sizes[dim])
        if step != 1 or end <= first:
            raise InvalidInputError(f"the region {bounds} along {dim} is empty, or has a step")
        parsed[dim] = slice(first, end)
    return parsed


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
    if not hasattr(spark, "registerProgressHandler"):  # Spark 3.5
        yield
        return

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
