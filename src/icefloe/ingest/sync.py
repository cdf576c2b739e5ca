"""Keep an archive equal to its sources: add, replace, move and remove what changed since the last sync.

A sync plans a new ingest of all sources, and compares where every source is now with where the catalogue of the last
sync says that it was. A chunk that consists of the same cells of the same versions of sources is kept. If it is at
another position, its reference is moved. Only the other chunks are written.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import zarr

from icefloe.blocking import run_blocking
from icefloe.errors import ConflictError, InvalidInputError
from icefloe.ingest.access import SourceAccess, choose_access
from icefloe.ingest.array_plan import ArrayChanges, can_keep
from icefloe.ingest.catalogue import Catalogue, SourceTable, write_catalogue
from icefloe.ingest.chunk_grids import Index, find_rows_at, grid_boxes, move_rows
from icefloe.ingest.local_ingest import (
    Archive,
    NamedSources,
    SessionSink,
    SourceComparison,
    read_archive,
    read_schemas,
)
from icefloe.ingest.parsers.registry import check_format
from icefloe.ingest.record import (
    METADATA_KEY,
    FoundSources,
    SourceChanges,
    Vanished,
    find_changes,
    ingest_metadata,
    keep_record,
    store_containers,
    with_stored_containers,
)
from icefloe.ingest.source_model import SourceFailure, SourceFile, SourceSchema
from icefloe.ingest.sources import IngestOptions, Sources, expand_sources
from icefloe.ingest.sync_plan import SyncPlan, plan_sync
from icefloe.ingest.write_tasks import TaskResult, check_repeated, run_task
from icefloe.manifests.chunk_columns import overlay
from icefloe.model.chunk_table import tombstones
from icefloe.model.snapshot import ArrayNode
from icefloe.model.virtual_chunk_container import VirtualChunkContainer
from icefloe.model.zarr_document import parse_document
from icefloe.repository import Repository
from icefloe.session.session import Session

MOST_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The result of a sync.

    Attributes
    ----------
    plan
        The plan, with the changes of the sources and of the arrays.
    snapshot_id
        The new snapshot. None for a dry run, or if nothing changed.
    tasks
        The results of the tasks.
    attempts
        The number of attempts of the commit. More than one after concurrent commits.
    seconds
        The duration.
    commits
        The number of commits. More than one with `batch`.

    Examples
    --------
    >>> SyncResult(SyncPlan(SourceChanges(unchanged=2), None)).snapshot_id is None
    True
    """

    plan: SyncPlan
    snapshot_id: str | None = None
    tasks: tuple[TaskResult, ...] = ()
    attempts: int = 0
    seconds: float = 0.0
    commits: int = 0

    @property
    def sources(self) -> SourceChanges:
        """What happened to the sources."""
        return self.plan.sources


# -- execution --------------------------------------------------------------------------------------------------------


def begin_sync(plan: SyncPlan, session: Session) -> None:
    """Delete arrays, write documents and coordinates, and move references. The tasks write the rest."""
    sink = SessionSink(session)
    state = session.state
    for path in plan.deleted:
        state.delete_node(f"/{path}")
    fresh = plan.ingest
    if fresh is None:
        return
    rewritten = {path for path, each in plan.arrays.items() if each.is_rewritten}
    values = {write.path for write in plan.values if write.values.shape == fresh.arrays[write.path].shape}
    for path, document in plan.documents.items():
        node = state.tree.find(f"/{path}") if path else None
        stored = None if node is None else parse_document(run_blocking(state.fetch_document(f"/{path}")) or b"{}", path)
        is_replaced = path in rewritten or (
            path in values and stored is not None and not can_keep(stored, fresh.arrays[path])
        )
        if node is not None and path in fresh.arrays and (is_replaced or not isinstance(node, ArrayNode)):
            state.delete_node(f"/{path}")
        change = plan.arrays.get(path)
        if change is None or change.is_rewritten:
            sink.write_documents({path: document})
    for path, each in plan.arrays.items():
        if not each.is_rewritten:
            run_blocking(_move_chunks(session, path, each, plan.documents.get(path)))
    for write in plan.values:
        region = tuple(slice(s, s + n) for s, n in zip(write.start, write.values.shape, strict=True))
        sink.write_block(write.path, region, write.values)


async def _move_chunks(session: Session, path: str, change: ArrayChanges, document: bytes | None) -> None:
    """Write the document of an array, remove the references of chunks that are not kept, and move others."""
    state = session.state
    node = state.tree.array(f"/{path}")
    targets = {*change.moved, *change.written, *change.cleared}
    needed = targets | set(change.moved.values())
    tables = [await state.chunk_table(node, box) for box in grid_boxes(needed, change.axes, node.grid)]
    if document is not None:
        await SessionSink(session)._write_documents({path: document})
        node = state.tree.array(f"/{path}")
    table = overlay(*tables) if tables else None
    if table is None or not len(table):
        return
    grid = [*node.grid]
    old_grid = [max(int(i) + 1, n) for i, n in zip(table.coords.max(axis=0), grid, strict=True)]
    removed = find_rows_at(table, change.axes, targets, old_grid)
    inside = (table.coords[removed] < np.asarray(grid)).all(axis=1)
    edits = tombstones(table.coords[removed][inside])
    moved = move_rows(table, change.axes, change.moved, old_grid)
    state.set_table(node, overlay(edits, moved) if moved is not None else edits)


def copy_cells(plan: SyncPlan, before: Session, session: Session) -> None:
    """Copy the cells of vanished sources from the last snapshot."""
    for path, copies in itertools.groupby(plan.copies, key=lambda each: each.path):
        source = zarr.open_array(before.store, path=path, mode="r")
        target = zarr.open_array(session.store, path=path, mode="r+")
        for each in copies:
            target[each.new] = source[each.old]


class SyncEngine(Protocol):
    """Where the work of a sync runs."""

    def read(self, files: Sequence[SourceFile]) -> tuple[list[SourceSchema], list[SourceFailure]]:
        """Read the schemas of files. Return those that cannot be read separately."""

    def run(self, plan: SyncPlan, session: Session) -> Sequence[TaskResult]:
        """Run the tasks of a plan, and write into a session."""


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Runs a sync in this process."""

    access: SourceAccess
    format: str | None
    progress: Callable[[TaskResult], None] | None = None

    def read(self, files: Sequence[SourceFile]) -> tuple[list[SourceSchema], list[SourceFailure]]:
        return read_schemas(files, self.access, self.format)

    def run(self, plan: SyncPlan, session: Session) -> list[TaskResult]:
        sink, results = SessionSink(session), []
        arrays = plan.ingest.arrays if plan.ingest is not None else {}
        for task in plan.tasks:
            results.append(run_task(task, arrays, sink, access=self.access, format=self.format))
            if self.progress is not None:
                self.progress(results[-1])
        return results


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """The parameters of a sync that do not depend on where it runs. `sync_local` describes them."""

    branch: str = "main"
    vanished: Vanished = "keep"
    message: str | None = None
    containers: Sequence[VirtualChunkContainer] = ()
    metadata: Mapping[str, Any] | None = None
    rebuild: bool = False
    dry_run: bool = False
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class SyncJob:
    """Everything that does not change when a sync is planned again."""

    repository: Repository
    files: tuple[SourceFile, ...]
    options: IngestOptions
    access: SourceAccess
    engine: SyncEngine
    settings: SyncSettings
    listed: int = 0
    """When the files were listed, in seconds since 1970."""
    parsed: dict[str, SourceSchema] = field(default_factory=dict)
    """Schemas that were read, by URL."""

    def read(self, files: Sequence[SourceFile]) -> tuple[list[SourceSchema], list[SourceFailure]]:
        """Read the schemas of files. Those that are known are not read again."""
        schemas, failures = self.engine.read([file for file in files if file.url not in self.parsed])
        self.parsed.update({schema.file.url: schema for schema in schemas})
        return [self.parsed[file.url] for file in files if file.url in self.parsed], failures


def sync_sources(
    sources: Sources,
    open_repository: Callable[[], Repository],
    options: IngestOptions,
    access: SourceAccess,
    engine: SyncEngine,
    settings: SyncSettings,
) -> SyncResult:
    """Sync with an engine. The repository is opened after the sources are found."""
    options = check_options(options)
    listed = int(time.time())
    files = tuple(expand_sources(sources, access))
    return run_sync(SyncJob(open_repository(), files, options, access, engine, settings, listed))


def run_sync(job: SyncJob) -> SyncResult:
    """Sync with one commit, or with one for every batch of new sources."""
    started, batch = time.monotonic(), job.settings.batch
    if batch is None or job.settings.dry_run:
        return _sync_once(job)
    if batch < 1 or job.settings.rebuild:
        raise InvalidInputError(f"batch is {batch}, expected at least 1, and it cannot be used with rebuild")
    # Everything is planned before the first batch, so that sources that do not fit are found in time.
    whole = _sync_once(replace(job, settings=replace(job.settings, dry_run=True)))
    batches = _cut(whole.plan, batch)
    later = {url for urls in batches[1:] for url in urls}
    results = []
    for urls in batches:
        later -= urls
        files = tuple(file for file in job.files if file.url not in later)
        results.append(_sync_once(replace(job, files=files)))
    return SyncResult(
        replace(results[-1].plan, sources=whole.sources),
        next((each.snapshot_id for each in reversed(results) if each.snapshot_id is not None), None),
        tuple(task for each in results for task in each.tasks),
        sum(each.attempts for each in results),
        time.monotonic() - started,
        sum(each.commits for each in results),
    )


def _cut(plan: SyncPlan, batch: int) -> list[set[str]]:
    """Divide new sources into batches by their position. Sources at one position are in the same batch.

    The first batch also has everything that changed.
    """
    starts: dict[str, Index] = {}
    for url in plan.sources.added:
        extents = [each.extent.values() for each in plan.catalogue.sources[url].placed.values()]
        starts[url] = min((tuple(first for first, _ in extent) for extent in extents), default=())
    batches: list[set[str]] = [set()]
    last: Index | None = None
    for url in sorted(starts, key=lambda url: starts[url]):
        if len(batches[-1]) >= batch and starts[url] != last:
            batches.append(set())
        batches[-1].add(url)
        last = starts[url]
    return batches


def _sync_once(job: SyncJob) -> SyncResult:
    """Sync with one commit, and repeat the work if the branch has new commits."""
    started, settings = time.monotonic(), job.settings
    repository = with_stored_containers(job.repository)
    for attempt in range(1, MOST_ATTEMPTS + 1):
        archive = read_archive(repository, settings.branch, job.options.group, rebuild=settings.rebuild)
        _check_function(archive, job.options)
        found = find_changes(
            job.files, archive.catalogue, job.options, job.access, settings.vanished, job.listed, job.read
        )
        if _is_known(found, job.options, archive):
            plan = SyncPlan(found.changes, None, catalogue=archive.catalogue or Catalogue())
            return SyncResult(plan, seconds=time.monotonic() - started)
        plan = plan_sync(found, job.options, archive)
        _check_shared(plan, found, archive, job)
        if settings.dry_run or _is_done(plan, archive):
            return SyncResult(plan, seconds=time.monotonic() - started)
        if plan.ingest is not None:
            repository = store_containers(repository, plan.ingest.containers, settings.containers, job.access.options)
        session = repository.writable_session(settings.branch)
        if session.snapshot_id != archive.session.snapshot_id:
            continue
        begin_sync(plan, session)
        results = tuple(job.engine.run(plan, session))
        copy_cells(plan, archive.session, session)
        metadata = _metadata(job, repository, plan, found, archive)
        message = settings.message or f"Sync {len(found.sources):,} sources: {plan.sources}"
        try:
            snapshot_id = session.commit(message, metadata, allow_empty=True)
        except ConflictError:
            if attempt == MOST_ATTEMPTS:
                raise
            continue
        return SyncResult(plan, str(snapshot_id), results, attempt, time.monotonic() - started, 1)
    raise ConflictError(
        message=f"branch {settings.branch} got a new commit during each of {MOST_ATTEMPTS} attempts. Run the sync again"
    )


def _is_known(found: FoundSources, options: IngestOptions, archive: Archive) -> bool:
    """Return whether the last sync had the same sources and options, and nobody changed the archive since then."""
    known = archive.catalogue
    if known is None or archive.all_foreign or archive.foreign or known.planned_with != options.identity():
        return False
    has_nodes = all(path in archive.documents for path in (*known.groups, *known.arrays))
    return has_nodes and _same_sources(found.sources, known)


def _check_function(archive: Archive, options: IngestOptions) -> None:
    """Refuse to mix sources that different functions preprocessed."""
    before = archive.catalogue.settings.get("preprocess") if archive.catalogue is not None else None
    now = options.recorded().get("preprocess")
    if archive.catalogue is not None and before != now:
        raise InvalidInputError(
            f"the archive was synced with {before or 'no function'} as preprocess, and this sync has "
            f"{now or 'no function'}. Use the former function, or rebuild=True (--rebuild) to write the archive again",
            before=before,
            now=now,
        )


def _is_done(plan: SyncPlan, archive: Archive) -> bool:
    """Return whether there is nothing to write, and nothing new to record."""
    known = archive.catalogue
    if known is None or not plan.is_empty or archive.all_foreign:
        return False
    return _same_sources(plan.catalogue.sources, known)


def _same_sources(sources: SourceTable, known: Catalogue) -> bool:
    """Return whether sources are those of a catalogue, with the same versions and positions."""
    if len(sources) != len(known.sources) or not all(batch.is_stored for batch in sources.batches):
        return False
    # When a version was asked for is recorded with the next change.
    return all(
        (before := known.sources.get(url)) is not None and replace(source, listed=before.listed) == before
        for url, source in sources.singles.items()
    )


def _check_shared(plan: SyncPlan, found: FoundSources, archive: Archive, job: SyncJob) -> None:
    """Compare variables that several sources must have in common, if one of the sources is new or changed."""
    if plan.ingest is None:
        return
    new = {*plan.sources.added, *plan.sources.replaced}
    checked = []
    for each in plan.ingest.repeated:
        urls = {placed.file.url for placed in (each.kept, each.other) if placed is not None}
        if urls & new and not urls & found.unreadable:
            checked.append(each)
    named = NamedSources(job.access)
    check_repeated(checked, plan.ingest.arrays, SourceComparison(archive.session, named, job.options.format))


def _metadata(
    job: SyncJob, repository: Repository, plan: SyncPlan, found: FoundSources, archive: Archive
) -> dict[str, Any]:
    base = archive.session.state.base
    facts = {
        "sync": f"/{job.options.group}",
        "added": len(plan.sources.added),
        "replaced": len(plan.sources.replaced),
        "vanished": len(plan.sources.vanished),
    }
    entry: dict[str, Any] = {METADATA_KEY: facts}
    if plan.ingest is not None:
        changed = {*plan.sources.added, *plan.sources.replaced, *plan.sources.touched}
        files = [file for file in job.files if file.url in changed]
        done = replace(plan.ingest, tasks=plan.tasks)
        entry = keep_record(repository, base, ingest_metadata(done, files, **facts))
    group, rename = job.options.group, job.options.rename
    catalogue = write_catalogue(repository, base.metadata, group, archive.stored, plan.catalogue, rename)
    return {**entry, **catalogue, **(job.settings.metadata or {})}


def sync_local(
    sources: Sources,
    repository: Repository,
    options: IngestOptions | None = None,
    *,
    branch: str = "main",
    vanished: Vanished = "keep",
    message: str | None = None,
    access: SourceAccess | None = None,
    source_options: Mapping[str, Any] | None = None,
    containers: Sequence[VirtualChunkContainer] = (),
    rebuild: bool = False,
    dry_run: bool = False,
    batch: int | None = None,
    progress: Callable[[TaskResult], None] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> SyncResult:
    """Make a group of a branch equal to its sources, with one commit, in this process.

    New sources are added where they belong, also before or between others. Sources with new content replace what they
    brought. The call can be repeated at any time. The archive is then equal to a new ingest of the same sources.

    Parameters
    ----------
    sources
        Paths, globs, directories, URLs, or text files that list them. All sources of the archive, not only new ones.
    repository
        The repository.
    options
        Mode, combination and encoding, see `IngestOptions`. `append_dim` is the dimension along which sources follow
        each other. `region` and `on_error="skip"` are not possible.
    branch
        The branch.
    vanished
        What happens with sources of the archive that are not among `sources` any more: `keep` their cells, `remove`
        them, or `fail`.
    message
        The commit message.
    access
        Storages of sources that need other credentials than those of the environment.
    source_options
        Options of the storages of all other sources, such as `endpoint_url` and `anonymous` of `s3_storage`.
    containers
        Containers for the virtual chunks, if the default settings of the store are not sufficient.
    rebuild
        Write everything again from the sources, also what did not change.
    dry_run
        Only plan. Nothing is written.
    batch
        Commit about this number of new sources at a time, in the order of their positions. After an interruption, the
        same call continues with the next batch. Readers see the archive grow.
    progress
        A function that is called with the result of each task.
    metadata
        Further metadata of the commit.

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
    >>> import icefloe, xarray
    >>> def write(day, value):
    ...     data = xarray.Dataset({"t": ("time", [value])}, {"time": [float(day)]})
    ...     data.to_netcdf(f"sync{day}.nc")
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> options = IngestOptions(append_dim="time")
    >>> write(2, 20.5)
    >>> print(sync_local("sync*.nc", repo, options).sources)
    1 added
    >>> write(1, 19.5)
    >>> print(sync_local("sync*.nc", repo, options).sources)
    1 added, 1 unchanged
    >>> zarr.open_array(repo.readonly_session("main").store, path="t", mode="r")[:]
    array([19.5, 20.5])
    """
    options = options or IngestOptions()
    access = choose_access(access, source_options, options.function)
    settings = SyncSettings(branch, vanished, message, tuple(containers), metadata, rebuild, dry_run, batch)
    engine = LocalEngine(access, options.format, progress)
    return sync_sources(sources, lambda: repository, options, access, engine, settings)


def check_options(options: IngestOptions) -> IngestOptions:
    """Return the options for a new ingest of all sources. Raise an error for those that a sync cannot have."""
    check_format(options.format)
    if options.region is not None:
        raise InvalidInputError("sync has no region: it finds where each source belongs from its coordinates")
    if options.on_error != "fail":
        raise InvalidInputError(
            "sync has no on_error='skip': a source that cannot be read today would be removed from the archive. Leave "
            "it out of the sources, and use vanished='keep'"
        )
    if options.append_dim is None:
        return options
    dims = options.concat_dims or ()
    joined = dims if options.append_dim in dims else (*dims, options.append_dim)
    return replace(options, append_dim=None, concat_dims=joined)
