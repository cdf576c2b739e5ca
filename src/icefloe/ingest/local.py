"""Run a whole ingest in one process, without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe.blocking import run_blocking
from icefloe.chunks.virtual_containers import container_prefix, normalise_location
from icefloe.errors import IcefloeError, VirtualChunkError
from icefloe.ingest.access import SourceAccess, choose_access
from icefloe.ingest.chunk_grids import ChunkRegion
from icefloe.ingest.parsers.registry import check_format, try_schema
from icefloe.ingest.placement import Existing, ExistingArray
from icefloe.ingest.plan import IngestPlan, check_free, check_plan, plan_ingest
from icefloe.ingest.record import (
    ingest_metadata,
    ingested_sources,
    keep_record,
    not_ingested,
    store_containers,
    with_stored_containers,
)
from icefloe.ingest.source_model import SourceFailure, SourceFile, SourceSchema
from icefloe.ingest.sources import IngestOptions, Sources, expand_sources
from icefloe.ingest.tasks import TaskResult, run_task
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, Coords
from icefloe.model.virtual_chunk_container import VirtualChunkContainer
from icefloe.model.zarr_document import key_encoding, parse_document
from icefloe.repository import Repository
from icefloe.session.references import set_table
from icefloe.session.session import Session
from icefloe.storage.contract import check_unchanged


class SessionSink:
    """Writes blocks through the session's Zarr store and references as whole tables; also serves forks."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._arrays: dict[str, zarr.Array[Any]] = {}

    def begin(self, plan: IngestPlan) -> None:
        """Write the documents and the values that the plan holds."""
        self.write_documents(plan.documents)
        for write in plan.values:
            region = tuple(slice(s, s + n) for s, n in zip(write.start, write.values.shape, strict=True))
            self.write_block(write.path, region, write.values)

    def write_documents(self, documents: Mapping[str, bytes]) -> None:
        """Write zarr.json documents by node path."""
        run_blocking(self._write_documents(documents))

    async def _write_documents(self, documents: Mapping[str, bytes]) -> None:
        make = default_buffer_prototype().buffer.from_bytes
        for path, document in documents.items():
            await self._session.store.set(f"{path}/zarr.json" if path else "zarr.json", make(document))

    def write_block(self, array_path: str, region: ChunkRegion, values: npt.NDArray[Any]) -> None:
        if array_path not in self._arrays:
            self._arrays[array_path] = zarr.open_array(self._session.store, path=array_path, mode="r+", zarr_format=3)
        self._arrays[array_path][region if region else ...] = values

    def write_table(self, array_path: str, table: ChunkTable) -> None:
        state = self._session.state
        if not state.engine.format.capabilities.checksums:
            table = replace(table, etag=None, etags=(), last_modified=None)
        set_table(state, array_path, table)


PARSE_THREADS = 8


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What an ingest did; `snapshot_id` is None for a dry run or when there was nothing new."""

    plan: IngestPlan | None
    snapshot_id: str | None
    tasks: tuple[TaskResult, ...] = ()
    already_there: int = 0
    """Sources that earlier commits had ingested."""


def read_schemas(
    files: Sequence[SourceFile], access: SourceAccess, format: str | None = None
) -> tuple[list[SourceSchema], list[SourceFailure]]:
    """The first pass over all files, several at a time; those that cannot be read are told apart."""
    with ThreadPoolExecutor(PARSE_THREADS) as pool:
        found = list(pool.map(lambda file: try_schema(file, access, format=format), files))
    schemas = [schema for schema in found if isinstance(schema, SourceSchema)]
    return schemas, [failure for failure in found if isinstance(failure, SourceFailure)]


@dataclass(frozen=True, slots=True)
class NamedSources:
    """The folders of the sources that a caller named, and how the caller reaches them.

    Who names a source may read it, so virtual coordinates of the repository that lie in these folders are read the
    same way. Nothing that the repository stores has a say in where or with which credentials.
    """

    access: SourceAccess = field(default_factory=SourceAccess)
    folders: frozenset[str] = frozenset()

    def url_of(self, session: Session, location: str) -> str | None:
        """The URL of a location, or None when it lies in none of the folders."""
        url = normalise_location(session.state.engine.containers.absolute(location))
        inside = ".." not in url.split("/") and any(url.startswith(folder) for folder in self.folders)
        return url if inside else None


def name_sources(
    files: Sequence[SourceFile],
    schemas: Sequence[SourceSchema],
    options: IngestOptions,
    access: SourceAccess,
    containers: Sequence[VirtualChunkContainer] = (),
) -> NamedSources:
    """The folders of all sources, of the files they refer to, and the prefixes that the caller gave."""
    prefixes = {file.url.rstrip("/").rsplit("/", 1)[0] for file in files}
    prefixes.update(folder for schema in schemas for folder in schema.referenced)
    prefixes.update(container.url_prefix for container in containers)
    if options.container_prefix is not None:
        prefixes.add(options.container_prefix)
    return NamedSources(access, frozenset(map(container_prefix, prefixes)))


def read_existing(session: Session, sources: NamedSources | None = None) -> Existing:
    """The arrays and groups of a session, with the values of its one-dimensional coordinates.

    Virtual coordinates are read where the session is authorised to, and in the folders of `sources`.
    """
    documents = run_blocking(_documents(session))
    arrays: dict[str, ExistingArray] = {}
    groups: set[str] = set()
    unreadable: dict[str, str] = {}
    for path, content in documents.items():
        document = parse_document(content, f"{path}/zarr.json")
        if document["node_type"] == "group":
            groups.add(path)
            continue
        values = None
        if document.get("dimension_names") == [path.rpartition("/")[2]]:
            try:
                values = _read_coordinate(session, path, content, sources or NamedSources())
            except VirtualChunkError as error:
                unreadable[path] = str(error).partition("\n")[0].partition(". Virtual chunks")[0]
        arrays[path] = ExistingArray(path, document, values)
    return Existing(arrays, frozenset(groups), unreadable)


def _read_coordinate(session: Session, path: str, document: bytes, sources: NamedSources) -> npt.NDArray[Any]:
    try:
        return np.asarray(zarr.open_array(session.store, path=path, mode="r")[...])
    except VirtualChunkError:
        chunks = _read_named(session, path, sources)
        if chunks is None:
            raise
    encoding = key_encoding(document)
    make = default_buffer_prototype().buffer.from_bytes
    contents = {encoding.suffix(coords): make(data) for coords, data in chunks.items()}
    return np.asarray(zarr.open_array(MemoryStore({**contents, "zarr.json": make(document)}), mode="r")[...])


def _read_named(session: Session, path: str, sources: NamedSources) -> dict[Coords, bytes] | None:
    """The chunks of an array read by the caller's own access; None when some lie outside of the named folders."""
    work = session.state
    node = work.tree.array(f"/{path}")
    table = run_blocking(work.chunk_table(node))
    found: dict[Coords, bytes] = {}
    by_file: dict[str, dict[Coords, ChunkRef]] = {}
    for coords, ref in table.rows():
        if ref.kind is not ChunkKind.VIRTUAL:
            found[coords] = bytes(run_blocking(work.fetch_chunk(node, coords)) or b"")
            continue
        url = sources.url_of(session, str(ref.location))
        if url is None:
            return None
        by_file.setdefault(url, {})[coords] = ref
    with ThreadPoolExecutor(PARSE_THREADS) as pool:
        for part in pool.map(lambda item: _read_refs(sources.access, *item), by_file.items()):
            found.update(part)
    return found


def _read_refs(access: SourceAccess, url: str, refs: Mapping[Coords, ChunkRef]) -> dict[Coords, bytes]:
    """Chunks of one file, which must be as it was when it was referred to."""
    spans = [(ref.offset, ref.offset + ref.length) for ref in refs.values()]
    try:
        file = access.describe(url)
        for etag, modified in {(ref.etag, ref.last_modified) for ref in refs.values()}:
            check_unchanged(
                url,
                etag=etag,
                found_etag=file.etag,
                not_modified_after=_instant(modified),
                found_modified=_instant(file.last_modified),
            )
        data = access.read_ranges(url, [start for start, _ in spans], [end for _, end in spans])
    except VirtualChunkError:
        raise
    except IcefloeError as error:
        raise VirtualChunkError(str(error), location=url) from error
    for (start, end), each in zip(spans, data, strict=True):
        if len(each) < end - start:
            raise VirtualChunkError(f"{url} ends before byte {end}, which a reference names", location=url)
    return dict(zip(refs, data, strict=True))


def _instant(seconds: int | None) -> dt.datetime | None:
    return None if seconds is None else dt.datetime.fromtimestamp(seconds, tz=dt.UTC)


async def _documents(session: Session) -> dict[str, bytes]:
    """Every zarr.json by path, straight from the tree: chunk keys are not listed for it."""
    found: dict[str, bytes] = {}
    for path in list(session.state.tree.paths()):
        content = await session.state.fetch_document(path)
        if content is not None:
            found[path.strip("/")] = content
    return found


def ingest_local(
    sources: Sources,
    repository: Repository,
    options: IngestOptions | None = None,
    *,
    branch: str = "main",
    message: str | None = None,
    access: SourceAccess | None = None,
    source_options: Mapping[str, Any] | None = None,
    containers: Sequence[VirtualChunkContainer] = (),
    skip_ingested: bool = False,
    dry_run: bool = False,
    progress: Callable[[TaskResult], None] | None = None,
    metadata: dict[str, Any] | None = None,
) -> IngestResult:
    """Ingest sources into a branch with one commit, in this process.

    Parameters
    ----------
    sources
        Paths, globs, folders, URLs, or text files of them.
    repository
        Where to. A virtual or mixed ingest adds the containers it needs to its configuration.
    options
        Mode, combining, encoding: see IngestOptions.
    access
        Storages for sources that need more than the environment's credentials.
    source_options
        Options of the storages of all other sources, such as `endpoint_url` and `anonymous` of `s3_storage`.
    containers
        How readers reach the virtual chunks, where the ordinary settings of the store do not do.
    skip_ingested
        Leave out sources that earlier commits of the branch ingested in the same state.
    dry_run
        Only plan; nothing is written.

    Examples
    --------
    >>> ingest_local("weather/*.nc", repository, IngestOptions(mode="virtual"))  # doctest: +SKIP
    """
    options = options or IngestOptions()
    access = choose_access(access, source_options)
    check_format(options.format)
    named = files = expand_sources(sources, access)
    known = len(files)
    if skip_ingested:
        files = not_ingested(files, ingested_sources(repository, branch))
        if not files:
            return IngestResult(None, None, already_there=known)
    schemas, failures = read_schemas(files, access, options.format)
    repository = with_stored_containers(repository)
    allowed = name_sources(named, schemas, options, access, containers)
    while True:
        planned = repository.readonly_session(branch)
        existing = read_existing(planned, allowed)
        plan = plan_ingest(schemas, options, failures=failures, existing=existing)
        if dry_run:
            check_free(plan, existing)
            return IngestResult(plan, None, already_there=known - len(files))
        check_plan(plan, existing)
        repository = store_containers(repository, plan.containers, containers, access.options)
        session = repository.writable_session(branch)
        if session.snapshot_id == planned.snapshot_id:
            break
    sink = SessionSink(session)
    sink.begin(plan)
    results = []
    for task in plan.tasks:
        results.append(run_task(task, plan.arrays, sink, access=access, format=options.format))
        if progress is not None:
            progress(results[-1])
    facts = {**keep_record(repository, session.state.base, ingest_metadata(plan, files)), **(metadata or {})}
    # Files without cells change nothing; that they were ingested is recorded all the same.
    snapshot_id = session.commit(message or f"Ingest {len(plan.sources)} sources", facts, allow_empty=True)
    return IngestResult(plan, str(snapshot_id), tuple(results), known - len(files))
