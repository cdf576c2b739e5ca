"""From the first pass of an ingest to its commit: plan, tasks, link, commit, and retry after a conflict.

The target branch moves once, after all batches are committed. Readers see everything or nothing.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt
from pyspark.sql import SparkSession

from icefloe.blocking import run_blocking
from icefloe.errors import ConflictError, FormatError, IcefloeError, InvalidInputError, RebaseFailedError, StorageError
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.array_plan import ArrayPlan
from icefloe.ingest.chunk_grids import ChunkRegion, shift_table
from icefloe.ingest.local_ingest import DigestWork, NamedSources, SessionSink, SourceComparison, read_existing
from icefloe.ingest.placement import Existing
from icefloe.ingest.plan import IngestPlan, check_plan, plan_tasks
from icefloe.ingest.record import (
    Fingerprints,
    ingest_metadata,
    ingested_sources,
    keep_record,
    not_ingested,
    store_containers,
    with_stored_containers,
)
from icefloe.ingest.runs import plan_table
from icefloe.ingest.schema_table import SchemaTable
from icefloe.ingest.source_files import SourceFiles, natural_key
from icefloe.ingest.source_model import SourceFailure
from icefloe.ingest.sources import IngestOptions, OnError
from icefloe.ingest.target_arrays import fill_means_missing
from icefloe.ingest.write_tasks import IngestTask, PlacedFile, TaskResult, check_stores, run_task
from icefloe.model.chunk_table import ChunkTable
from icefloe.model.virtual_chunk_container import VirtualChunkContainer
from icefloe.model.zarr_document import ChunkLengths
from icefloe.repository import Repository
from icefloe.session.fork import WrittenParts
from icefloe.session.rebase import ConflictDetector, ConflictSolver
from icefloe.session.session import ForkSession, Session
from icefloe.session.session_state import SessionState
from icefloe.spark.tasks import (
    TASKS_PER_CORE,
    OpenFork,
    SparkJob,
    TaskOutput,
    WriteJob,
    parallelism,
    run_tasks,
    write_with_tasks,
)

ChunkOffsets = Mapping[str, tuple[int, ...]]
"""By array path: how many chunks its parts move along each dimension."""


def plan_relocation(before: IngestPlan, after: IngestPlan) -> ChunkOffsets | None:
    """Return how the parts of one plan become those of another with different offsets.

    Return None if that is impossible.

    Parts move by whole chunks. A part that shares its first chunk with existing cells cannot move.
    """
    if len(before.tasks) != len(after.tasks):
        return None
    offsets: dict[str, tuple[int, ...]] = {}
    for old, new in zip(before.tasks, after.tasks, strict=True):
        moved = _task_shift(old, new)
        if moved is None:
            return None
        for path in old.arrays:
            offset = _array_offset(before.arrays[path], after.arrays[path], moved)
            if offset is None or not _is_aligned(before.arrays[path], old):
                return None
            if offsets.setdefault(path, offset) != offset:
                return None
    return offsets


def _task_shift(old: IngestTask, new: IngestTask) -> Mapping[str, int] | None:
    """Return how far a task moved along each joined dimension, in cells. Return None if it is another task."""
    if (old.kind, old.arrays) != (new.kind, new.arrays) or len(old.files) != len(new.files):
        return None
    shifts: dict[str, int] = {}
    for a, b in zip(old.files, new.files, strict=True):
        if a.file != b.file or _urls(a) != _urls(b) or a.origin.keys() != b.origin.keys():
            return None
        for dim, origin in a.origin.items():
            if shifts.setdefault(dim, b.origin[dim] - origin) != b.origin[dim] - origin:
                return None
    expected = {dim: (first + shifts.get(dim, 0), end + shifts.get(dim, 0)) for dim, (first, end) in old.window.items()}
    return shifts if expected == dict(new.window) else None


def _urls(placed: PlacedFile) -> Sequence[str]:
    """Return the files of a run."""
    return () if placed.run is None else placed.run.urls


def _array_offset(old: ArrayPlan, new: ArrayPlan, shifts: Mapping[str, int]) -> tuple[int, ...] | None:
    cells = [shifts.get(dim, 0) if dim in old.joined else 0 for dim in old.dims]
    if _layout(old) != _layout(new) or (any(cells) and not old.is_regular):
        return None
    if any(shift % chunk for shift, chunk in zip(cells, old.chunks, strict=True)):
        return None
    return tuple(shift // chunk for shift, chunk in zip(cells, old.chunks, strict=True))


def _layout(array: ArrayPlan) -> tuple[Any, ...]:
    """Return the properties that must be equal for chunks of one array to be chunks of the other."""
    document = json.loads(array.document)
    facets = ("data_type", "chunk_grid", "chunk_key_encoding", "codecs", "fill_value", "dimension_names")
    return array.kind, tuple(json.dumps(document.get(facet), sort_keys=True) for facet in facets)


def _is_aligned(array: ArrayPlan, task: IngestTask) -> bool:
    return all(lengths.is_bound(start) for start, lengths in _starts(array, task))


def _starts(array: ArrayPlan, task: IngestTask) -> Iterator[tuple[int, ChunkLengths]]:
    for dim, lengths in zip(array.dims, array.grid, strict=True):
        if dim not in array.joined:
            continue
        if task.kind == "native":
            yield task.window[dim][0], lengths
        else:
            yield from ((placed.origin.get(dim, 0), lengths) for placed in task.of_files().files)


@dataclass(frozen=True, slots=True)
class RelocateWork:
    """Writes the references of earlier parts again, at new coordinates and for the arrays of a new session."""

    offsets: ChunkOffsets

    def __call__(self, open_fork: OpenFork, written: WrittenParts) -> tuple[ForkSession, None]:
        fork = open_fork()
        run_blocking(_relocate(fork.state, written, self.offsets))
        return fork, None


async def _relocate(work: SessionState, written: WrittenParts, offsets: ChunkOffsets) -> None:
    for part in written.parts:
        path = written.paths[part.node_id]
        manifest = await work.context.metadata_files.fetch_manifest(part.manifest_id)
        shifted = shift_table(manifest.tables[part.node_id], offsets[path.lstrip("/")])
        work.set_table(work.tree.array(path), shifted)


_BROKEN = (IcefloeError, OSError, ValueError, RuntimeError, EOFError, zlib.error)
"""The exceptions of parsers and codecs for invalid bytes."""


@dataclass(frozen=True, slots=True)
class IngestReport:
    """The result of a task, and the files it skipped."""

    result: TaskResult
    failures: tuple[SourceFailure, ...] = ()


class _DiscardingSink:
    """A sink that discards everything, to test whether files can be read."""

    def write_block(self, array_path: str, region: ChunkRegion, values: npt.NDArray[Any]) -> None:
        pass

    def write_table(self, array_path: str, table: ChunkTable) -> None:
        pass


@dataclass(frozen=True, slots=True)
class IngestWork:
    """The arrays of a plan, and the access to its sources."""

    arrays: Mapping[str, ArrayPlan]
    access: SourceAccess
    format: str | None
    on_error: OnError

    def __call__(self, open_fork: OpenFork, task: IngestTask) -> tuple[ForkSession, IngestReport]:
        task, fork = task.of_files(), open_fork()
        try:
            return fork, IngestReport(self._run(task, SessionSink(fork)))
        except _BROKEN as error:
            failures = self._find_broken(task)
            if not failures:
                raise
            if self.on_error == "fail":
                raise FormatError(
                    f"{failures[0].file.url} cannot be read. Nothing was committed: {failures[0].reason}. Use "
                    "on_error='skip' to leave its region missing",
                    url=failures[0].file.url,
                ) from error
        self._check_holes(task, failures)
        broken = {failure.file.url for failure in failures}
        rest = replace(task, files=tuple(placed for placed in task.files if placed.file.url not in broken))
        fork = open_fork()
        return fork, IngestReport(self._run(rest, SessionSink(fork)), failures)

    def _check_holes(self, task: IngestTask, failures: Sequence[SourceFailure]) -> None:
        """Raise an error if a skipped file would leave cells whose fill value is an ordinary value."""
        for path in task.arrays:
            if not fill_means_missing(self.arrays[path]):
                raise FormatError(
                    f"{failures[0].file.url} cannot be read, and /{path} has no missing value for its cells. Nothing "
                    f"was committed: {failures[0].reason}",
                    url=failures[0].file.url,
                )

    def _run(self, task: IngestTask, sink: Any) -> TaskResult:
        return run_task(task, self.arrays, sink, access=self.access, format=self.format)

    def _find_broken(self, task: IngestTask) -> tuple[SourceFailure, ...]:
        """Return the files that fail on their own.

        Raises if a storage is unavailable, because that is not the fault of a file.
        """
        found = []
        for placed in task.files:
            failure = self._try_file(task, placed)
            if failure is not None:
                found.append(failure)
        return tuple(found)

    def _try_file(self, task: IngestTask, placed: PlacedFile) -> SourceFailure | None:
        try:
            self._run(replace(task, files=(placed,)), _DiscardingSink())
        except StorageError:
            raise
        except InvalidInputError:
            # The values do not fit the arrays. The file is not broken, so the caller decides whether to leave it out.
            raise
        except _BROKEN as error:
            return SourceFailure(placed.file, f"{type(error).__name__}: {error}", type(error).__name__)
        return None


FILES_FOR_SPARK = 32
"""The driver reads fewer files than this itself, which is faster than starting tasks."""
MOST_ATTEMPTS = 50
_SMALLEST_TASK_BYTES = 4 << 20
_LONGEST_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class FirstPass:
    """The sources and the results of the first pass."""

    files: SourceFiles
    schemas: SchemaTable
    failures: tuple[SourceFailure, ...]
    options: IngestOptions
    fixed_tasks: bool = False
    """Whether the caller gave the size of tasks."""


@dataclass(frozen=True, slots=True)
class IngestJob:
    """Everything that does not change when an ingest is planned again."""

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
    """Further locations from which virtual coordinates of the repository may be read."""
    digests: dict[tuple[str, str, bytes], str] = field(default_factory=dict)
    """Hashes of variables that were compared, by URL, array path and array document."""
    starting: Future[Any] | None = None
    """Done when the workers of Spark have started. The driver runs tasks that write references until then."""

    @property
    def options(self) -> IngestOptions:
        return self.first_pass.options


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A session with all parts linked, ready to commit."""

    plan: IngestPlan
    session: Session
    planned_on: Existing
    written: tuple[TaskOutput[Any], ...]
    reports: tuple[IngestReport, ...]


@dataclass(frozen=True, slots=True)
class IngestCommit:
    """A commit, with its plan, the reports of its tasks, and the numbers of references and attempts."""

    snapshot_id: str
    plan: IngestPlan
    reports: tuple[IngestReport, ...]
    references: int
    attempts: int


def plan_first_pass(spark: SparkSession, found: FirstPass, existing: Existing, options: IngestOptions) -> IngestPlan:
    """Return the plan. Unless the caller gave a task size, tasks are small enough to use every core."""
    plan = plan_table(found.schemas, options, failures=found.failures, existing=existing)
    wanted = parallelism(spark) * TASKS_PER_CORE
    if found.fixed_tasks or len(plan.tasks) >= wanted:
        return plan
    files = max(1, len(plan.sources) // wanted)
    size = max(_SMALLEST_TASK_BYTES, plan.total_bytes // wanted)
    finer = replace(
        options, task_bytes=min(options.task_bytes, size), files_per_task=min(options.files_per_task, files)
    )
    # Nothing else depends on the size of tasks.
    tasks = () if plan.report.errors else plan_tasks(plan.datasets, finer)
    return replace(plan, options=finer, tasks=tasks)


def commit_with_retry(spark: SparkSession, job: IngestJob) -> IngestCommit:
    """Write and commit. If the branch has new commits, retry until it succeeds or there is a real conflict."""
    attempt = _attempt(spark, job, job.options, None)
    check_stores(job.first_pass.schemas.files("zarr"), job.access)
    for number in range(1, MOST_ATTEMPTS + 1):
        references = sum(each.parts.chunks for each in attempt.written)
        metadata = _metadata(job, attempt, references, number)
        try:
            snapshot_id = attempt.session.commit(_message(job, attempt), metadata, allow_empty=True)
            return IngestCommit(str(snapshot_id), attempt.plan, attempt.reports, references, number)
        except ConflictError:
            if number == MOST_ATTEMPTS:
                raise
        time.sleep(random.uniform(0, min(0.02 * 2**number, _LONGEST_PAUSE_SECONDS)))
        attempt = _after_conflict(spark, job, attempt)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _after_conflict(spark: SparkSession, job: IngestJob, attempt: _Attempt) -> _Attempt:
    """Repeat the work on top of the concurrent commits."""
    try:
        attempt.session.rebase(job.rebase_with or ConflictDetector())
    except RebaseFailedError:
        if job.options.append_dim is None:
            raise
    else:
        if job.options.append_dim is None or not _arrays_changed(attempt):
            return attempt
    # Another writer appended first. The cells of this ingest now begin later.
    return _attempt(spark, job, replace(job.options, append_order="any"), attempt)


def _arrays_changed(attempt: _Attempt) -> bool:
    """Return whether arrays that the plan extends have changed since it was made."""
    nodes = attempt.session.state.base.nodes
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
    SessionSink(session).begin(plan, replace(job.named or NamedSources(), access=job.access))
    offsets = plan_relocation(before.plan, plan) if before is not None else None
    if before is not None and offsets is not None:
        move = WriteJob(RelocateWork(offsets), "moving references behind another append", job.shown)
        moved = write_with_tasks(spark, session, move, [each.parts for each in before.written])
        session.link_parts([each.parts for each in moved])
        return _Attempt(plan, session, existing, tuple(moved), before.reports)
    work = IngestWork(plan.arrays, job.access, options.format, options.on_error)
    description = f"ingesting {len(plan.sources):,} sources ({options.mode})"
    writing = WriteJob(work, description, job.shown, plan.total_bytes)
    # Tasks that write values may need much memory.
    starting = job.starting if options.mode == "virtual" else None
    written = write_with_tasks(spark, session, writing, plan.tasks, starting)
    session.link_parts([each.parts for each in written])
    return _Attempt(plan, session, existing, tuple(written), tuple(each.result for each in written))


def _prepare(spark: SparkSession, job: IngestJob, options: IngestOptions) -> tuple[IngestPlan, Existing, Session]:
    """Return a plan, and a writable session at the snapshot of the plan."""
    repository = with_stored_containers(job.repository)
    while True:
        planned = repository.readonly_session(job.branch)
        existing = read_existing(planned, job.named)
        plan = plan_first_pass(spark, job.first_pass, existing, options)
        check_plan(plan, existing, _comparison(spark, job, planned))
        repository = store_containers(repository, plan.containers, job.containers, job.access.options)
        session = repository.writable_session(job.branch)
        if session.snapshot_id == planned.snapshot_id:
            return plan, existing, session


@dataclass(frozen=True, slots=True)
class _TaskComparison(SourceComparison):
    """Reads the variables of many files in tasks."""

    spark: SparkSession | None = None
    shown: bool | None = None

    def read(self, files: Sequence[PlacedFile], arrays: Mapping[str, ArrayPlan]) -> Sequence[Mapping[str, str]]:
        if self.spark is None or len(files) < FILES_FOR_SPARK:
            return SourceComparison.read(self, files, arrays)
        work = DigestWork(arrays, self.sources.access, self.format)
        return run_tasks(self.spark, SparkJob(work, f"comparing {len(files):,} sources", self.shown), files)


def _comparison(spark: SparkSession, job: IngestJob, session: Session) -> _TaskComparison:
    sources = replace(job.named or NamedSources(), access=job.access)
    return _TaskComparison(session, sources, job.options.format, job.digests, spark, job.shown)


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
    record = keep_record(job.repository, attempt.session.state.base, own)
    return {**record, **(job.metadata or {})}


PREFIX = "ingest-"


def check_batches(batch: int, options: IngestOptions) -> None:
    """Raise an error for options that do not work with batches."""
    if batch < 1:
        raise InvalidInputError(f"batch is {batch}, expected at least 1")
    if options.append_dim is None:
        raise InvalidInputError("batch needs append_dim, because every batch is appended to the previous one")


def staging_branch(
    repository: Repository, branch: str, files: SourceFiles, options: IngestOptions
) -> tuple[str, SourceFiles]:
    """Return the branch for the batches of this ingest, and the sources that it lacks. Create the branch if needed.

    Its name is derived from the sources, the options and the snapshot of the target. The same call finds it again.
    """
    tip = repository.lookup_branch(branch)
    digest = hashlib.blake2b(f"{branch}\0{tip}\0{options.identity()}\0".encode(), digest_size=6)
    digest.update(bytes(Fingerprints.of(files)))
    name = f"{PREFIX}{digest.hexdigest()}"
    if name not in repository.list_branches():
        repository.create_branch(name, tip)
        return name, files
    return name, SourceFiles.of(not_ingested(files, ingested_sources(repository, name)))


def commit_in_batches(spark: SparkSession, job: IngestJob, staging: str, batch: int) -> IngestCommit:
    """Commit every batch to the staging branch, then move the branch of the job there."""
    planned = job.repository.readonly_session(staging)
    existing = read_existing(planned, job.named)
    whole = plan_first_pass(spark, job.first_pass, existing, job.options)
    # Everything is checked before the first batch, so that all differences between files are reported at once.
    check_plan(whole, existing, _comparison(spark, job, planned))
    parts = _cut(job.first_pass, whole, batch)
    commits = [commit_with_retry(spark, replace(job, branch=staging, first_pass=part)) for part in parts]
    return IngestCommit(
        snapshot_id=publish_batches(job.repository, job.branch, staging),
        plan=whole,
        reports=tuple(report for each in commits for report in each.reports),
        references=sum(each.references for each in commits),
        attempts=sum(each.attempts for each in commits) - len(commits) + 1,
    )


def publish_batches(repository: Repository, branch: str, staging: str) -> str:
    """Move a branch to its batches. Return its new snapshot."""
    tip = str(repository.lookup_branch(staging))
    try:
        repository.fast_forward(branch, tip)
    except ConflictError as error:
        raise ConflictError(
            message=f"branch {branch} has new commits since the ingest started. The ingested batches are on branch "
            f"{staging}. Merge that branch, or delete it and ingest again",
            expected_parent=tip,
            actual_parent=str(repository.lookup_branch(branch)),
        ) from error
    repository.delete_branch(staging)
    return tip


def _cut(found: FirstPass, whole: IngestPlan, batch: int) -> list[FirstPass]:
    """Divide the first pass into batches along the appended dimension. Sources of one position stay together."""
    dimension = str(whole.options.append_dim)
    origins: dict[str, int] = {}
    for placed in (placed for task in whole.tasks for placed in task.of_files().files):
        origin = placed.origin.get(dimension, 0)
        origins[placed.file.url] = min(origin, origins.get(placed.file.url, origin))
    schemas = sorted(found.schemas, key=lambda s: (origins.get(s.file.url, 0), natural_key(s.file.url)))
    edges = [0]
    for index in range(1, len(schemas)):
        moved_on = origins.get(schemas[index].file.url) != origins.get(schemas[index - 1].file.url)
        if moved_on and index - edges[-1] >= batch:
            edges.append(index)
    parts, lasts = [], []
    for first, end in zip(edges, [*edges[1:], len(schemas)], strict=True):
        chosen = schemas[first:end]
        urls = {schema.file.url for schema in chosen}
        lasts.append(natural_key(chosen[-1].file.url))
        files = SourceFiles.of(file for file in found.files if file.url in urls)
        parts.append(replace(found, files=files, schemas=SchemaTable(chosen, found.options), failures=()))
    # A skipped source belongs to the batch whose sources are next to it by name.
    for failure in found.failures:
        key = natural_key(failure.file.url)
        index = next((i for i, last in enumerate(lasts) if key <= last), len(parts) - 1)
        part = parts[index]
        parts[index] = replace(
            part, files=SourceFiles.of([*part.files, failure.file]), failures=(*part.failures, failure)
        )
    return parts
