"""Ingest many files on Spark with one commit."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pyspark.sql import SparkSession

from icefloe.errors import InvalidInputError, suggest
from icefloe.ingest.access import SourceAccess, choose_access
from icefloe.ingest.local import name_sources, read_existing, read_schemas
from icefloe.ingest.parsers.registry import check_format
from icefloe.ingest.placement import Existing
from icefloe.ingest.plan import IngestPlan, check_free
from icefloe.ingest.record import explain_authorisation, ingested_sources, not_ingested
from icefloe.ingest.source_model import SourceFailure, SourceFile, SourceSchema, intern_schemas
from icefloe.ingest.sources import IngestOptions, Mode, OnError, Region, Sources, expand_sources
from icefloe.model.virtual_chunk_container import VirtualChunkContainer
from icefloe.repository import Repository
from icefloe.session.rebase import ConflictSolver
from icefloe.spark.ingest_commit import (
    FirstPass,
    IngestJob,
    check_batches,
    land,
    land_in_batches,
    plan_first_pass,
    publish_batches,
    staging_branch,
)
from icefloe.spark.maintenance import analyze
from icefloe.spark.tasks import SparkJob, parallelism, run_tasks
from icefloe.storage.build import storage_from_url

FILES_FOR_SPARK = 32
"""Fewer files are read by the driver faster than tasks start."""
_MOST_FILES_PER_TASK = 128
_TASKS_PER_CORE = 2

Schemas = tuple[list[SourceSchema], list[SourceFailure]]


@dataclass(frozen=True, slots=True)
class _ReadSchemas:
    access: SourceAccess
    format: str | None

    def __call__(self, files: Sequence[SourceFile]) -> Schemas:
        schemas, failures = read_schemas(files, self.access, self.format)
        # Alike files share most of what they say: the answer carries it once.
        return intern_schemas(schemas), failures


def fetch_schemas(
    spark: SparkSession, files: Sequence[SourceFile], access: SourceAccess, format: str | None, shown: bool | None
) -> Schemas:
    """Schemas of the files that can be read, and why the others cannot."""
    if len(files) < FILES_FOR_SPARK:
        return read_schemas(files, access, format)
    step = min(_MOST_FILES_PER_TASK, -(-len(files) // (parallelism(spark) * _TASKS_PER_CORE)))
    batches = [files[start : start + step] for start in range(0, len(files), step)]
    job = SparkJob(_ReadSchemas(access, format), f"reading {len(files):,} schemas", shown)
    answers = run_tasks(spark, job, batches)
    return [s for schemas, _ in answers for s in schemas], [f for _, failures in answers for f in failures]


@dataclass(frozen=True, slots=True)
class IngestOutcome:
    """What an ingest did; `snapshot_id` is None for a dry run or when there was nothing new."""

    job_id: str
    plan: IngestPlan | None
    snapshot_id: str | None = None
    already_there: int = 0
    """Sources that earlier commits had ingested."""
    references: int = 0
    decoded_bytes: int = 0
    failures: tuple[SourceFailure, ...] = ()
    """Sources that were left out because they are broken."""
    attempts: int = 0
    """Tries it took to land the commit: more than one when others committed meanwhile."""
    seconds: float = 0.0

    @property
    def authorisation(self) -> str:
        """How a reader opens the repository so that its virtual chunks can be read; empty when it has none."""
        return explain_authorisation(self.plan.containers) if self.plan is not None else ""


def ingest(
    spark: SparkSession,
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
    """Ingest sources into a branch of a repository with one commit, the work done by Spark tasks.

    Parameters
    ----------
    spark
        Any session: `icefloe.spark.connect()`, a notebook's own, one of Spark Connect.
    sources
        Paths, globs, folders, URLs, text files of them, or a DataFrame whose first column (or one named `path` or
        `url`) holds them.
    repo
        A repository, or its path or URL; one that is not there is created.
    mode
        `native` decodes values and writes new chunks; `virtual` writes references to chunks that stay where they are;
        `mixed` writes coordinates and small arrays natively and references the rest.
    append_dim
        Extend the arrays of the repository along this dimension. Of several jobs that append at the same time, each
        lands behind those that were faster.
    region
        Write into arrays that exist: `{dim: (first, end)}`, or `"auto"` to find the place from coordinates.
    chunks
        Native chunk length by dimension.
    on_error
        `fail`: a broken file is named and nothing is written; `skip`: it is left out, and its region is missing.
    dry_run
        Only plan; nothing is written, and no repository is created.
    skip_ingested
        Leave out sources that earlier commits of the branch ingested in the same state.
    batch
        Land so many sources at a time on a branch of their own, and move `branch` there when all are done: if the run
        dies, the same call goes on behind the last batch. Needs `append_dim`; the history then has a commit per batch.
    rebase_with
        Solver for conflicts with commits that came in between; by default any true conflict fails.
    containers
        How readers reach virtual chunks, where the ordinary settings of the store do not do.
    access
        Storages for sources that need more than the environment's credentials.
    source_options
        Options of the storages of all other sources, such as `endpoint_url` and `anonymous` of `s3_storage`. A virtual
        ingest keeps those that are no secrets in the containers of the repository.
    repo_options
        Options of the repository's storage, where `repo` is a path or URL.
    statistics
        Keep the ranges of values of chunks, as `icefloe.spark.analyze` does: after the commit, for all chunks of the
        groups that were written to of which none are kept. It reads them once more, so it goes with `native` only;
        chunks elsewhere are analyzed by a repository that may read them.
    unchecked
        Go on where coordinates of the repository that the sources must be compared with cannot be read: virtual ones
        outside the folders of the sources, which the repository is not authorised for. Without it they are refused.
    more
        Further options of `icefloe.ingest.sources.IngestOptions`: concat_dims, rename, codecs, dtypes, unpack, ...

    Examples
    --------
    >>> from icefloe.spark import connect, ingest
    >>> ingest(connect(), "weather/*.nc", "s3://bucket/weather", append_dim="time")  # doctest: +SKIP
    """
    started = time.monotonic()
    if statistics and mode != "native":
        raise InvalidInputError(
            f"statistics=True goes with mode='native', not {mode!r}: open the repository with the authorisation that "
            "the outcome tells, and call icefloe.spark.analyze"
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
    access = choose_access(access, source_options)
    check_format(options.format)
    named = files = expand_sources(list_sources(sources), access)
    repository = _repository(repo, repo_options, create=not dry_run)
    known = len(files)
    if skip_ingested and repository is not None:
        files = not_ingested(files, ingested_sources(repository, branch))
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
    schemas, failures = fetch_schemas(spark, files, access, options.format, progress)
    fixed = "task_bytes" in more or "files_per_task" in more
    found = FirstPass(tuple(files), tuple(schemas), tuple(failures), options, fixed)
    allowed = name_sources(named, schemas, options, access, containers)
    if dry_run or repository is None:
        existing = Existing() if repository is None else read_existing(repository.readonly_session(branch), allowed)
        plan = plan_first_pass(spark, found, existing, options)
        check_free(plan, existing)
        return IngestOutcome(
            job_id, plan, None, known - len(files), failures=found.failures, seconds=time.monotonic() - started
        )
    job = IngestJob(
        job_id, repository, branch, found, access, message, tuple(containers), rebase_with, metadata, progress, allowed
    )
    landed = land(spark, job) if batch is None else land_in_batches(spark, job, staging, batch)
    if statistics:
        for written in sorted({path.rpartition("/")[0] for path in landed.plan.arrays}):
            analyze(spark, repository, group=written, snapshot_id=landed.snapshot_id, progress=progress)
    late = {f.file.url: f for report in landed.reports for f in report.failures}
    return IngestOutcome(
        job_id=job_id,
        plan=landed.plan,
        snapshot_id=landed.snapshot_id,
        already_there=known - len(files),
        references=landed.references,
        decoded_bytes=sum(report.result.bytes for report in landed.reports),
        failures=(*failures, *late.values()),
        attempts=landed.attempts,
        seconds=time.monotonic() - started,
    )


def _options(given: Mapping[str, Any], more: Mapping[str, Any]) -> IngestOptions:
    allowed = {field.name for field in fields(IngestOptions)}
    unknown = sorted(set(more) - allowed)
    if unknown:
        near = suggest(unknown[0], allowed)
        raise InvalidInputError(f"ingest has no option {unknown[0]!r}{near}; there are {', '.join(sorted(allowed))}")
    return IngestOptions(**{**given, **more})


def list_sources(sources: Any) -> Sources:
    """Sources as paths and URLs; those of a DataFrame (Spark's or pandas') are taken out of its column."""
    columns = getattr(sources, "columns", None)
    if columns is None:
        return sources  # type: ignore[no-any-return]
    names = [str(name) for name in columns]
    if not names:
        raise InvalidInputError("the DataFrame of sources has no columns")
    chosen = next((name for name in ("path", "url") if name in names), names[0])
    column = sources.select(chosen).toArrow()[chosen] if hasattr(sources, "toArrow") else sources[chosen]
    values: Iterable[Any] = column.to_pylist() if hasattr(column, "to_pylist") else column.tolist()
    return [str(value) for value in values if value is not None]


def _repository(
    repo: Repository | str | os.PathLike[str], options: Mapping[str, Any] | None, *, create: bool
) -> Repository | None:
    if isinstance(repo, Repository):
        if options:
            raise InvalidInputError("repo_options are for a path or URL; this repository has been opened already")
        return repo
    storage = storage_from_url(os.fspath(repo), **(options or {}))
    if create:
        return Repository.open_or_create(storage)
    return Repository.open(storage) if Repository.exists(storage) else None
