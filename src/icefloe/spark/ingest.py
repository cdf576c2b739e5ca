"""Ingest many files on Spark with one commit, and keep an archive equal to its files."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from icefloe.errors import InvalidInputError, suggest
from icefloe.ingest.access import SourceAccess, choose_access
from icefloe.ingest.local_ingest import name_sources, read_existing, read_schemas
from icefloe.ingest.parsers.registry import check_format
from icefloe.ingest.placement import Existing
from icefloe.ingest.plan import IngestPlan, check_free
from icefloe.ingest.record import Vanished, explain_authorisation, ingested_sources, not_ingested
from icefloe.ingest.schema_table import SchemaTable
from icefloe.ingest.source_files import SourceFiles
from icefloe.ingest.source_model import SchemaInterner, SourceFailure, SourceFile, SourceSchema
from icefloe.ingest.sources import IngestOptions, Mode, OnError, Region, Sources, find_files
from icefloe.ingest.sync import SyncResult, SyncSettings, sync_sources
from icefloe.ingest.sync_plan import SyncPlan
from icefloe.ingest.write_tasks import IngestTask, TaskResult
from icefloe.model.virtual_chunk_container import VirtualChunkContainer
from icefloe.repository import Repository
from icefloe.session.rebase import ConflictSolver
from icefloe.session.session import Session
from icefloe.spark.ingest_commit import (
    FILES_FOR_SPARK,
    FirstPass,
    IngestJob,
    IngestReport,
    IngestWork,
    check_batches,
    commit_in_batches,
    commit_with_retry,
    plan_first_pass,
    publish_batches,
    staging_branch,
)
from icefloe.spark.maintenance import analyze
from icefloe.spark.tasks import (
    SparkJob,
    WriteJob,
    arrow_table,
    iterate_tasks,
    link,
    parallelism,
    run_tasks,
    write_with_tasks,
)
from icefloe.storage.build import in_memory_storage, storage_from_url

_MOST_FILES_PER_TASK = 128
_TASKS_PER_CORE = 2
_SYNC_TASK_BYTES = 32 << 20
_FILES_WHILE_STARTING = 16
"""Files that this process reads before it looks again whether Spark has started."""

Schemas = tuple[list[SourceSchema], list[SourceFailure]]
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _ReadSchemas:
    access: SourceAccess
    format: str | None

    def __call__(self, files: Sequence[SourceFile]) -> Schemas:
        return read_schemas(files, self.access, self.format)


@dataclass(frozen=True, slots=True)
class _ReadTable:
    """Reads schemas into a table, which is smaller, because it has what similar files share once."""

    access: SourceAccess
    options: IngestOptions

    def __call__(self, files: Sequence[SourceFile]) -> tuple[SchemaTable, list[SourceFailure]]:
        schemas, failures = read_schemas(files, self.access, self.options.format)
        return SchemaTable(schemas, self.options).without_files(files), failures


@dataclass(frozen=True, slots=True)
class _Starting:
    """Spark while it starts."""

    session: Future[SparkSession]
    workers: Future[None]
    """Done when the Python workers have started too."""


def _start_in_thread(start: Callable[[], SparkSession]) -> _Starting:
    """Start Spark and its Python workers in a thread."""
    connected: Future[SparkSession] = Future()

    def run() -> None:
        try:
            session = start()
        except BaseException as error:
            connected.set_exception(error)
            raise
        connected.set_result(session)
        run_tasks(session, SparkJob(_load_modules, "starting workers", shown=False), list(range(parallelism(session))))

    pool = ThreadPoolExecutor(1)
    workers = pool.submit(run)
    pool.shutdown(wait=False)
    return _Starting(connected, workers)


def _load_modules(_: int) -> None:
    """Import in a worker what its first task needs. This module is imported with the function."""
    with contextlib.suppress(ImportError):
        importlib.import_module("icefloe.ingest.parsers.hdf5")


def read_while_starting(
    starting: Future[Any], files: Sequence[SourceFile], access: SourceAccess, format: str | None
) -> Iterator[tuple[Sequence[SourceFile], Schemas]]:
    """Read schemas in this process until Spark has started. Return some files after the others, and what was read."""
    done = 0
    while done < len(files) and not starting.done():
        part = files[done : done + _FILES_WHILE_STARTING]
        yield part, read_schemas(part, access, format)
        done += len(part)


def read_in_tasks(
    spark: SparkSession, files: Sequence[SourceFile], read: Callable[[Sequence[SourceFile]], R], shown: bool | None
) -> Iterator[tuple[Sequence[SourceFile], R]]:
    """Return some files after the others, and what a function reads of them. Tasks do it if there are many."""
    if len(files) < FILES_FOR_SPARK:
        yield files, read(files)
        return
    step = min(_MOST_FILES_PER_TASK, -(-len(files) // (parallelism(spark) * _TASKS_PER_CORE)))
    batches = [files[start : start + step] for start in range(0, len(files), step)]
    job = SparkJob(read, f"reading {len(files):,} schemas", shown)
    yield from zip(batches, iterate_tasks(spark, job, batches), strict=True)


@dataclass(frozen=True, slots=True)
class _ReadSources:
    """The schemas of all sources that can be read, the others, and the Spark session."""

    session: SparkSession
    schemas: SchemaTable
    failures: list[SourceFailure]
    workers: Future[None] | None = None
    """Done when the Python workers have started, if this job starts Spark."""


def _read_sources(
    spark: SparkSession | Callable[[], SparkSession],
    files: Sequence[SourceFile],
    access: SourceAccess,
    options: IngestOptions,
    shown: bool | None,
) -> _ReadSources:
    """Read the schemas of all sources. Those of a few files are in memory at a time, and the rest in a table."""
    schemas, failures, count = SchemaTable(options=options), list[SourceFailure](), 0
    workers: Future[None] | None = None
    if callable(spark):
        starting = _start_in_thread(spark)
        workers = starting.workers
        for part, (read, failed) in read_while_starting(workers, files, access, options.format):
            schemas.add(read, part)
            failures += failed
            count += len(part)
        session = starting.session.result()
    else:
        session = spark
    for part, (table, failed) in read_in_tasks(session, files[count:], _ReadTable(access, options), shown):
        schemas.join(table, part)
        failures += failed
    return _ReadSources(session, schemas, failures, workers)


@dataclass(frozen=True, slots=True)
class IngestOutcome:
    """The result of an ingest.

    Attributes
    ----------
    job_id
        The id of the job.
    plan
        The plan, or None if there was nothing new.
    snapshot_id
        The new snapshot. None for a dry run, or if there was nothing new.
    already_there
        The number of sources that earlier commits had ingested.
    references
        The number of chunk references written.
    decoded_bytes
        The bytes written by value.
    failures
        Sources that were skipped because they cannot be read.
    attempts
        The number of attempts of the commit. More than one after concurrent commits.
    seconds
        The duration of the job.

    Examples
    --------
    >>> IngestOutcome("job", None, already_there=3).authorisation
    ''
    """

    job_id: str
    plan: IngestPlan | None
    snapshot_id: str | None = None
    already_there: int = 0
    """Sources that earlier commits had ingested."""
    references: int = 0
    decoded_bytes: int = 0
    failures: tuple[SourceFailure, ...] = ()
    """Sources that were skipped because they cannot be read."""
    attempts: int = 0
    """Attempts of the commit. More than one after concurrent commits."""
    seconds: float = 0.0

    @property
    def authorisation(self) -> str:
        """Instructions for readers of the virtual chunks. Empty if there are none."""
        return explain_authorisation(self.plan.containers) if self.plan is not None else ""


def ingest(
    spark: SparkSession | Callable[[], SparkSession],
    sources: Any,
    repo: Repository | str | os.PathLike[str],
    *,
    mode: Mode = "native",
    append_dim: str | None = None,
    region: Region | None = None,
    branch: str = "main",
    message: str | None = None,
    chunks: Mapping[str, int] | None = None,
    group: str = "",
    variables: Sequence[str] | None = None,
    on_error: OnError = "fail",
    dry_run: bool = False,
    skip_ingested: bool = False,
    unchecked: bool = False,
    batch: int | None = None,
    rebase_with: ConflictSolver | None = None,
    containers: Sequence[VirtualChunkContainer] = (),
    access: SourceAccess | None = None,
    source_options: Mapping[str, Any] | None = None,
    repo_options: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    statistics: bool = False,
    progress: bool | None = None,
    **more: Any,
) -> IngestOutcome:
    """Ingest sources into a branch of a repository with one commit. Spark tasks do the work.

    Parameters
    ----------
    spark
        The Spark session: `icefloe.spark.connect()`, that of a notebook, or one of Spark Connect. Or a function that
        starts one, such as `connect` itself: Spark then starts in a thread while this process reads the first files.
    sources
        Paths, globs, directories, URLs, text files that list them, or a DataFrame. Its column `path` or `url`, or the
        first one, has the sources.
    repo
        A repository, or its path or URL. If it does not exist, it is created.
    mode
        `native` decodes values and writes new chunks. `virtual` writes references only. `mixed` writes coordinates and
        small arrays natively and the rest as references.
    append_dim
        Extend the arrays of the repository along this dimension. Concurrent jobs append in the order of their commits.
    region
        Write into existing arrays: `{dim: (first, end)}`, or `"auto"` to find the region from the coordinates.
    branch
        The target branch.
    message
        The commit message.
    chunks
        Native mode: chunk lengths by dimension.
    group
        The target group.
    variables
        Only these variables and the coordinates they need.
    on_error
        `fail`: an unreadable file is an error and nothing is written. `skip`: it is left out and its region is missing.
    dry_run
        Only plan. Nothing is written, and no repository is created.
    skip_ingested
        Leave out sources that earlier commits of the branch ingested and that have not changed.
    unchecked
        Continue if coordinates of the repository cannot be read and compared with the sources. These are virtual
        coordinates without authorisation, outside the directories of the sources. The default is an error. Variables
        without a joined dimension, such as masks, are not compared either.
    batch
        Commit this number of sources at a time to a separate branch, and move `branch` there at the end. After an
        interruption, the same call continues after the last batch. Needs `append_dim`. The history has one commit per
        batch.
    rebase_with
        The solver for conflicts with concurrent commits. By default, every real conflict is an error.
    containers
        Containers for the virtual chunks, if the default settings of the store are not sufficient.
    access
        Storages of sources that need other credentials than those of the environment.
    source_options
        Options of the storages of all other sources, such as `endpoint_url` and `anonymous` of `s3_storage`. A virtual
        ingest stores those that are not secret in the containers of the repository.
    repo_options
        Options of the repository's storage, if `repo` is a path or URL.
    metadata
        Further metadata of the commit.
    statistics
        Store the value ranges of chunks after the commit, as `icefloe.spark.analyze` does. It covers all chunks of the
        written groups that have none, and reads them again. Native mode only.
    progress
        Whether to show a progress bar. None shows it in terminals and notebooks.
    **more
        Further options of `icefloe.ingest.IngestOptions`: concat_dims, rename, codecs, dtypes, unpack, ...

    Returns
    -------
    IngestOutcome
        The plan, the new snapshot, and the counts of the job.

    Raises
    ------
    InvalidInputError
        The sources or options are invalid, or the sources do not fit together.
    ConflictError, RebaseFailedError
        A concurrent commit changed the same arrays.

    Examples
    --------
    >>> from icefloe.spark import connect, ingest
    >>> outcome = ingest(connect(), "weather/*.nc", "s3://bucket/weather", append_dim="time")  # doctest: +SKIP
    """
    started = time.monotonic()
    if statistics and mode != "native":
        raise InvalidInputError(
            f"statistics=True needs mode='native', got {mode!r}. Open the repository with the authorisation in the "
            "result, and call icefloe.spark.analyze"
        )
    job_id = secrets.token_hex(8)
    options = _options(
        {
            "mode": mode,
            "append_dim": append_dim,
            "region": region,
            "group": group,
            "on_error": on_error,
            "unchecked": unchecked,
            "chunks": dict(chunks or {}),
            "variables": tuple(variables) if variables is not None else None,
        },
        more,
    )
    access = choose_access(access, source_options, options.function)
    check_format(options.format)
    named = files = find_files(list_sources(sources), access)
    repository = _repository(repo, repo_options, create=not dry_run)
    known = len(files)
    if skip_ingested and repository is not None:
        files = SourceFiles.of(not_ingested(files, ingested_sources(repository, branch)))
        if not files:
            return IngestOutcome(job_id, None, already_there=known, seconds=time.monotonic() - started)
    if batch is not None:
        check_batches(batch, options)
    staging = branch
    if batch is not None and repository is not None and not dry_run:
        staging, files = staging_branch(repository, branch, files, options)
        if not files:
            tip = publish_batches(repository, branch, staging)
            return IngestOutcome(job_id, None, tip, known, seconds=time.monotonic() - started)
    first = _read_sources(spark, files, access, options, progress)
    session, workers, schemas, failures = first.session, first.workers, first.schemas, first.failures
    fixed = "task_bytes" in more or "files_per_task" in more
    found = FirstPass(files, schemas, tuple(failures), options, fixed)
    allowed = name_sources(named, schemas.referenced(), options, access, containers)
    if dry_run or repository is None:
        existing = Existing() if repository is None else read_existing(repository.readonly_session(branch), allowed)
        plan = plan_first_pass(session, found, existing, options)
        check_free(plan, existing)
        return IngestOutcome(
            job_id, plan, None, known - len(files), failures=found.failures, seconds=time.monotonic() - started
        )
    job = IngestJob(
        job_id,
        repository,
        branch,
        found,
        access,
        message,
        tuple(containers),
        rebase_with,
        metadata,
        progress,
        allowed,
        starting=workers,
    )
    commits = commit_with_retry(session, job) if batch is None else commit_in_batches(session, job, staging, batch)
    if statistics:
        for written in sorted({path.rpartition("/")[0] for path in commits.plan.arrays}):
            analyze(session, repository, group=written, snapshot_id=commits.snapshot_id, progress=progress)
    if workers is not None:
        wait_for([workers])  # the caller may stop Spark
    late = {f.file.url: f for report in commits.reports for f in report.failures}
    return IngestOutcome(
        job_id=job_id,
        plan=commits.plan,
        snapshot_id=commits.snapshot_id,
        already_there=known - len(files),
        references=commits.references,
        decoded_bytes=sum(report.result.bytes for report in commits.reports),
        failures=(*failures, *late.values()),
        attempts=commits.attempts,
        seconds=time.monotonic() - started,
    )


@dataclass(frozen=True, slots=True)
class _WriteFork:
    """Runs a task on a copy of a fork, and returns the fork with what the task wrote."""

    fork: bytes
    work: IngestWork

    def __call__(self, task: IngestTask) -> tuple[bytes, IngestReport]:
        fork, report = self.work(lambda: pickle.loads(self.fork), task)
        return pickle.dumps(fork), report


def sync(
    spark: SparkSession,
    sources: Any,
    repo: Repository | str | os.PathLike[str],
    *,
    append_dim: str | None = None,
    mode: Mode = "native",
    branch: str = "main",
    message: str | None = None,
    chunks: Mapping[str, int] | None = None,
    group: str = "",
    variables: Sequence[str] | None = None,
    vanished: Vanished = "keep",
    rebuild: bool = False,
    dry_run: bool = False,
    batch: int | None = None,
    containers: Sequence[VirtualChunkContainer] = (),
    access: SourceAccess | None = None,
    source_options: Mapping[str, Any] | None = None,
    repo_options: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    **more: Any,
) -> SyncResult:
    """Make a group of a branch equal to its sources, with one commit. Spark tasks do the work.

    New sources are added where they belong, also before or between others. Sources with new content replace what they
    brought. Equal chunks are kept, and moved if their position changed. The call can be repeated at any time. The
    archive is then equal to a new ingest of the same sources.

    Parameters
    ----------
    spark
        The Spark session: `icefloe.spark.connect()`, that of a notebook, or one of Spark Connect.
    sources
        Paths, globs, directories, URLs, text files that list them, or a DataFrame. All sources of the archive, not only
        new ones.
    repo
        A repository, or its path or URL. If it does not exist, it is created.
    append_dim
        The dimension along which sources follow each other. None finds it from the coordinates.
    mode
        `native` decodes values and writes new chunks. `virtual` writes references only. `mixed` writes coordinates and
        small arrays natively and the rest as references.
    branch
        The target branch.
    message
        The commit message.
    chunks
        Native mode: chunk lengths by dimension.
    group
        The target group.
    variables
        Only these variables and the coordinates they need.
    vanished
        What happens with sources of the archive that are not among `sources` any more: `keep` their cells, `remove`
        them, or `fail`.
    rebuild
        Write everything again from the sources, also what did not change.
    dry_run
        Only plan. Nothing is written, and no repository is created.
    batch
        Commit about this number of new sources at a time, in the order of their positions. After an interruption, the
        same call continues with the next batch. Readers see the archive grow.
    containers
        Containers for the virtual chunks, if the default settings of the store are not sufficient.
    access
        Storages of sources that need other credentials than those of the environment.
    source_options
        Options of the storages of all other sources, such as `endpoint_url` and `anonymous` of `s3_storage`.
    repo_options
        Options of the repository's storage, if `repo` is a path or URL.
    metadata
        Further metadata of the commit.
    progress
        Whether to show a progress bar. None shows it in terminals and notebooks.
    **more
        Further options of `icefloe.ingest.IngestOptions`: concat_dims, rename, codecs, dtypes, unpack, ...

    Returns
    -------
    SyncResult
        What happened to the sources, the plan, and the new snapshot.

    Raises
    ------
    InvalidInputError
        The sources do not fit together, a source cannot be read, or `vanished` is `fail` and a source is gone.
    ConflictError
        Other commits came during every attempt.

    Examples
    --------
    >>> from icefloe.spark import connect, sync
    >>> result = sync(connect(), "weather/*.nc", "s3://bucket/weather", append_dim="time")  # doctest: +SKIP
    >>> print(result.sources)  # doctest: +SKIP
    1 added, 1 replaced, 3,650 unchanged
    """
    given = {"mode": mode, "append_dim": append_dim, "group": group, "chunks": dict(chunks or {})}
    options = _options({**given, "variables": tuple(variables) if variables is not None else None}, more)
    if "task_bytes" not in more:
        options = replace(options, task_bytes=min(options.task_bytes, _SYNC_TASK_BYTES))
    access = choose_access(access, source_options, options.function)
    settings = SyncSettings(branch, vanished, message, tuple(containers), metadata, rebuild, dry_run, batch)

    def opened() -> Repository:
        # A dry run without a repository: everything is new.
        return _repository(repo, repo_options, create=not dry_run) or Repository.create(in_memory_storage())

    engine = SparkEngine(spark, access, options.format, progress)
    return sync_sources(list_sources(sources), opened, options, access, engine, settings)


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Runs a sync with Spark tasks."""

    spark: SparkSession
    access: SourceAccess
    format: str | None
    shown: bool | None = None

    def read(self, files: Sequence[SourceFile]) -> Schemas:
        interner, found, failures = SchemaInterner(files), list[SourceSchema](), list[SourceFailure]()
        for _, (schemas, failed) in read_in_tasks(
            self.spark, files, _ReadSchemas(self.access, self.format), self.shown
        ):
            found += interner.share(schemas)
            failures += failed
        return found, failures

    def run(self, plan: SyncPlan, session: Session) -> list[TaskResult]:
        return _run_sync_tasks(self.spark, plan, session, self.access, self.shown)


def _run_sync_tasks(
    spark: SparkSession, plan: SyncPlan, session: Session, access: SourceAccess, shown: bool | None
) -> list[TaskResult]:
    """Write the chunks that are not kept.

    Tasks of new arrays leave parts, of which there may be very many. Other tasks write into arrays whose references the
    session has changed already, so their forks are merged.
    """
    if plan.ingest is None or not plan.tasks:
        return []
    options = plan.ingest.options
    work = IngestWork(plan.ingest.arrays, access, options.format, options.on_error)
    new: list[IngestTask] = []
    known: list[IngestTask] = []
    for task in plan.tasks:
        (new if all(plan.arrays[path].is_rewritten for path in task.arrays) else known).append(task)
    reports: list[IngestReport] = []
    description = f"syncing {len(plan.ingest.sources):,} sources ({options.mode})"
    if known:
        write = _WriteFork(pickle.dumps(Session.fork(session)), work)
        size = sum(task.bytes for task in known)
        answers = run_tasks(spark, SparkJob(write, description, shown, size), known)
        session.merge(*(pickle.loads(fork) for fork, _ in answers))
        reports += [report for _, report in answers]
    if new:
        size = sum(task.bytes for task in new)
        reports += link(session, write_with_tasks(spark, session, WriteJob(work, description, shown, size), new))
    return [report.result for report in reports]


def _options(given: Mapping[str, Any], more: Mapping[str, Any]) -> IngestOptions:
    allowed = {field.name for field in fields(IngestOptions)}
    unknown = sorted(set(more) - allowed)
    if unknown:
        near = suggest(unknown[0], allowed)
        raise InvalidInputError(f"unknown option {unknown[0]!r} of ingest{near}. Known: {', '.join(sorted(allowed))}")
    return IngestOptions(**{**given, **more})


def list_sources(sources: Any) -> Sources:
    """Sources as paths and URLs. Those of a DataFrame (of Spark or pandas) are the values of its column."""
    columns = getattr(sources, "columns", None)
    if columns is None:
        return sources  # type: ignore[no-any-return]
    names = [str(name) for name in columns]
    if not names:
        raise InvalidInputError("the DataFrame of sources has no columns")
    chosen = next((name for name in ("path", "url") if name in names), names[0])
    column = arrow_table(sources.select(chosen))[chosen] if hasattr(sources, "sparkSession") else sources[chosen]
    values: Iterable[Any] = column.to_pylist() if hasattr(column, "to_pylist") else column.tolist()
    return [str(value) for value in values if value is not None]


def _repository(
    repo: Repository | str | os.PathLike[str], options: Mapping[str, Any] | None, *, create: bool
) -> Repository | None:
    if isinstance(repo, Repository):
        if options:
            raise InvalidInputError("repo_options can only be used with a path or URL. This repository is already open")
        return repo
    storage = storage_from_url(os.fspath(repo), **(options or {}))
    if create:
        return Repository.open_or_create(storage)
    return Repository.open(storage) if Repository.exists(storage) else None
