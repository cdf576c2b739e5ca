"""From a first pass to a commit: plan, write with tasks, link, commit; and again where somebody else came first."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from icefloe.errors import ConflictError, RebaseFailedError
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.existing import Existing
from icefloe.ingest.ingested import keep_record
from icefloe.ingest.local import NamedSources, read_existing
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.plan import IngestPlan, check_plan, plan_ingest
from icefloe.ingest.record import ingest_metadata
from icefloe.ingest.session_sink import SessionSink
from icefloe.ingest.source_model import SourceFailure, SourceFile, SourceSchema
from icefloe.ingest.virtual_places import store_containers, with_stored_containers
from icefloe.model.virtual_chunk_container import VirtualChunkContainer
from icefloe.repository import Repository
from icefloe.session.conflicts import ConflictDetector, ConflictSolver
from icefloe.session.session import Session
from icefloe.spark.distributed import WriteJob, Written, write_with_tasks
from icefloe.spark.ingest_work import IngestReport, IngestWork
from icefloe.spark.relocation import RelocateWork, plan_relocation
from icefloe.spark.tasks import TASKS_PER_CORE, parallelism

MOST_ATTEMPTS = 50
_SMALLEST_TASK_BYTES = 4 << 20
_LONGEST_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class FirstPass:
    """The sources and what the first pass found in them."""

    files: tuple[SourceFile, ...]
    schemas: tuple[SourceSchema, ...]
    failures: tuple[SourceFailure, ...]
    options: IngestOptions
    fixed_tasks: bool = False
    """Whether the caller said how large tasks are."""


@dataclass(frozen=True, slots=True)
class IngestJob:
    """Everything that stays the same when an ingest has to be planned again."""

    id: str
    repository: Repository
    branch: str
    first_pass: FirstPass
    access: SourceAccess
    message: str | None = None
    containers: tuple[VirtualChunkContainer, ...] = ()
    rebase_with: ConflictSolver | None = None
    metadata: Mapping[str, Any] | None = None
    shown: bool | None = None
    named: NamedSources | None = None
    """Where virtual coordinates of the repository may be read, beside what it is authorised for."""

    @property
    def options(self) -> IngestOptions:
        return self.first_pass.options


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A session with everything linked, ready to be committed."""

    plan: IngestPlan
    session: Session
    planned_on: Existing
    written: tuple[Written[Any], ...]
    reports: tuple[IngestReport, ...]


@dataclass(frozen=True, slots=True)
class Landed:
    """A commit, and what it took."""

    snapshot_id: str
    plan: IngestPlan
    reports: tuple[IngestReport, ...]
    references: int
    attempts: int


def plan_first_pass(spark: SparkSession, found: FirstPass, existing: Existing, options: IngestOptions) -> IngestPlan:
    """The plan, with tasks small enough to keep every core busy unless the caller said how large they are."""
    plan = plan_ingest(found.schemas, options, failures=found.failures, existing=existing)
    wanted = parallelism(spark) * TASKS_PER_CORE
    if found.fixed_tasks or len(plan.tasks) >= wanted:
        return plan
    files = max(1, len(plan.sources) // wanted)
    size = max(_SMALLEST_TASK_BYTES, plan.total_bytes // wanted)
    finer = replace(
        options, task_bytes=min(options.task_bytes, size), files_per_task=min(options.files_per_task, files)
    )
    return plan_ingest(found.schemas, finer, failures=found.failures, existing=existing)


def land(spark: SparkSession, job: IngestJob) -> Landed:
    """Write and commit; a branch that moved is dealt with until the commit lands or truly conflicts."""
    attempt = _attempt(spark, job, job.options, None)
    for number in range(1, MOST_ATTEMPTS + 1):
        references = sum(each.parts.chunks for each in attempt.written)
        metadata = _metadata(job, attempt, references, number)
        try:
            snapshot_id = attempt.session.commit(_message(job, attempt), metadata, allow_empty=True)
            return Landed(str(snapshot_id), attempt.plan, attempt.reports, references, number)
        except ConflictError:
            if number == MOST_ATTEMPTS:
                raise
        time.sleep(random.uniform(0, min(0.02 * 2**number, _LONGEST_PAUSE_SECONDS)))
        attempt = _after_conflict(spark, job, attempt)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _after_conflict(spark: SparkSession, job: IngestJob, attempt: _Attempt) -> _Attempt:
    """The same work on top of what was committed in between."""
    try:
        attempt.session.rebase(job.rebase_with or ConflictDetector())
    except RebaseFailedError:
        if job.options.append_dim is None:
            raise
    else:
        if job.options.append_dim is None or not _arrays_changed(attempt):
            return attempt
    # Somebody appended first: our cells begin later now.
    return _attempt(spark, job, replace(job.options, append_order="any"), attempt)


def _arrays_changed(attempt: _Attempt) -> bool:
    """Whether arrays that the plan extends are no longer as they were when it was made."""
    nodes = attempt.session.workspace.base.nodes
    for path in attempt.plan.arrays:
        known = attempt.planned_on.arrays.get(path)
        now = nodes.get("/" + path)
        if (known is None) != (now is None):
            return True
        if known is not None and now is not None and tuple(known.document["shape"]) != now.shape:  # type: ignore[union-attr]
            return True
    return False


def _attempt(spark: SparkSession, job: IngestJob, options: IngestOptions, before: _Attempt | None) -> _Attempt:
    plan, existing, session = _prepare(spark, job, options)
    SessionSink(session).begin(plan)
    offsets = plan_relocation(before.plan, plan) if before is not None else None
    if before is not None and offsets is not None:
        move = WriteJob(RelocateWork(offsets), "moving references behind another append", job.shown)
        moved = write_with_tasks(spark, session, move, [each.parts for each in before.written])
        session.link_parts([each.parts for each in moved])
        return _Attempt(plan, session, existing, tuple(moved), before.reports)
    work = IngestWork(plan.arrays, job.access, options.format, options.on_error)
    description = f"ingesting {len(plan.sources):,} sources ({options.mode})"
    written = write_with_tasks(spark, session, WriteJob(work, description, job.shown, plan.total_bytes), plan.tasks)
    session.link_parts([each.parts for each in written])
    return _Attempt(plan, session, existing, tuple(written), tuple(each.result for each in written))


def _prepare(spark: SparkSession, job: IngestJob, options: IngestOptions) -> tuple[IngestPlan, Existing, Session]:
    """A plan, and a writable session that stands on the very snapshot that it was made for."""
    repository = with_stored_containers(job.repository)
    while True:
        planned = repository.readonly_session(job.branch)
        existing = read_existing(planned, job.named)
        plan = plan_first_pass(spark, job.first_pass, existing, options)
        check_plan(plan, existing)
        repository = store_containers(repository, plan.containers, job.containers, job.access.options)
        session = repository.writable_session(job.branch)
        if session.snapshot_id == planned.snapshot_id:
            return plan, existing, session


def _failures(reports: Sequence[IngestReport]) -> tuple[SourceFailure, ...]:
    found = {failure.file.url: failure for report in reports for failure in report.failures}
    return tuple(found.values())


def _message(job: IngestJob, attempt: _Attempt) -> str:
    return job.message or f"Ingest {len(attempt.plan.sources):,} sources ({attempt.plan.options.mode})"


def _metadata(job: IngestJob, attempt: _Attempt, references: int, number: int) -> dict[str, Any]:
    late = _failures(attempt.reports)
    plan = replace(attempt.plan, skipped=(*attempt.plan.skipped, *(failure.file.url for failure in late)))
    facts: dict[str, Any] = {
        "job": job.id,
        "references": references,
        "decoded_bytes": sum(report.result.bytes for report in attempt.reports),
        "attempts": number,
    }
    if plan.options.append_order == "any" and job.options.append_order == "after":
        facts["appended_behind_another"] = True
    own = ingest_metadata(plan, job.first_pass.files, **facts)
    record = keep_record(job.repository, attempt.session.workspace.base, own)
    return {**record, **(job.metadata or {})}
