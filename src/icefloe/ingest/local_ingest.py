"""Run a whole ingest in one process, without Spark, and read what the repository has."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe.blocking import run_blocking
from icefloe.chunks.virtual_containers import container_prefix, normalise_location
from icefloe.codec_pipeline import check_grid, has_variable_grids
from icefloe.errors import FormatError, IcefloeError, InvalidInputError, SnapshotNotFoundError, VirtualChunkError
from icefloe.ingest.access import SourceAccess, choose_access, local_path
from icefloe.ingest.array_plan import ArrayPlan
from icefloe.ingest.catalogue import Catalogue, StoredCatalogue, changed_nodes, has_catalogue, read_catalogue
from icefloe.ingest.chunk_grids import ChunkRegion
from icefloe.ingest.parsers.registry import check_format, try_schema
from icefloe.ingest.placement import Existing, ExistingArray
from icefloe.ingest.plan import IngestPlan, check_free, check_plan, plan_ingest
from icefloe.ingest.record import (
    METADATA_KEY,
    ingest_metadata,
    ingested_sources,
    keep_record,
    not_ingested,
    store_containers,
    with_stored_containers,
)
from icefloe.ingest.source_model import SourceFailure, SourceFile, SourceSchema, intern_schemas
from icefloe.ingest.sources import IngestOptions, Sources, expand_sources
from icefloe.ingest.write_tasks import PlacedFile, TaskResult, check_stores, digest_variables, run_task
from icefloe.maintenance.compact import merged_array
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, Coords
from icefloe.model.snapshot import SnapshotInfo
from icefloe.model.virtual_chunk_container import VirtualChunkContainer
from icefloe.model.zarr_document import key_encoding, parse_document, parse_grid
from icefloe.repository import Repository
from icefloe.session.references import set_table
from icefloe.session.session import Session
from icefloe.storage.requests import check_unchanged


class SessionSink:
    """Writes the results of ingest tasks into a session or fork.

    Blocks are written through the Zarr store of the session, references as whole tables.

    Parameters
    ----------
    session
        A writable session or a fork.

    Examples
    --------
    >>> import icefloe
    >>> session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    >>> array = zarr.create_array(session.store, name="a", shape=(2,), dtype="i8")
    >>> SessionSink(session).write_block("a", (slice(0, 2),), np.array([1, 2]))
    >>> array[:]
    array([1, 2])
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._arrays: dict[str, zarr.Array[Any]] = {}

    def begin(self, plan: IngestPlan, sources: NamedSources | None = None) -> None:
        """Write the zarr.json documents and the values that the plan contains.

        Parameters
        ----------
        plan
            The plan of the ingest.
        sources
            The sources that the caller named. An array by reference may need cells of them again.

        Examples
        --------
        >>> import icefloe, xarray
        >>> xarray.Dataset({"t": ("x", [1.0, 2.0])}).to_netcdf("begin.nc")
        >>> schemas, _ = read_schemas(expand_sources("begin.nc"), SourceAccess())
        >>> session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
        >>> SessionSink(session).begin(plan_ingest(schemas, IngestOptions()))
        >>> zarr.open_group(session.store, mode="r")["t"].shape
        (2,)
        """
        recut = [array for array in plan.arrays.values() if array.recut]
        old = {array.path: _StoredCells(self._session, array.path, sources or NamedSources()) for array in recut}
        self.write_documents(plan.documents)
        for array in recut:
            for region in _recut_regions(array, old[array.path].shape):
                self.write_block(array.path, region, old[array.path].read(region))
        for write in plan.values:
            region = tuple(slice(s, s + n) for s, n in zip(write.start, write.values.shape, strict=True))
            self.write_block(write.path, region, write.values)

    def write_documents(self, documents: Mapping[str, bytes]) -> None:
        """Write zarr.json documents.

        Parameters
        ----------
        documents
            Documents by node path.

        Examples
        --------
        >>> import icefloe
        >>> session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
        >>> SessionSink(session).write_documents({"g": b'{"zarr_format": 3, "node_type": "group"}'})
        >>> zarr.open_group(session.store, path="g", mode="r").path
        'g'
        """
        run_blocking(self._write_documents(documents))

    async def _write_documents(self, documents: Mapping[str, bytes]) -> None:
        make = default_buffer_prototype().buffer.from_bytes
        for path, document in documents.items():
            await self._session.store.set(f"{path}/zarr.json" if path else "zarr.json", make(document))

    def write_block(self, array_path: str, region: ChunkRegion, values: npt.NDArray[Any]) -> None:
        """Encode and write the values of a region.

        Parameters
        ----------
        array_path
            The path of the array.
        region
            One slice per dimension.
        values
            The values, with the shape of the region.

        Examples
        --------
        >>> import icefloe
        >>> session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
        >>> array = zarr.create_array(session.store, name="a", shape=(4,), dtype="i8")
        >>> SessionSink(session).write_block("a", (slice(2, 4),), np.array([1, 2]))
        >>> array[:]
        array([0, 0, 1, 2])
        """
        if array_path not in self._arrays:
            self._arrays[array_path] = zarr.open_array(self._session.store, path=array_path, mode="r+", zarr_format=3)
        self._arrays[array_path][region if region else ...] = values

    def write_table(self, array_path: str, table: ChunkTable) -> None:
        """Set the chunk references of an array.

        Parameters
        ----------
        array_path
            The path of the array.
        table
            The references. Checksums are left out if the generation of the repository cannot store them.

        Examples
        --------
        >>> import icefloe
        >>> from icefloe.model.chunk_table import empty_table
        >>> session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
        >>> array = zarr.create_array(session.store, name="a", shape=(4,), dtype="i8")
        >>> SessionSink(session).write_table("a", empty_table(1))
        """
        state = self._session.state
        if not state.context.format.capabilities.checksums:
            table = replace(table, etag=None, etags=(), last_modified=None)
        set_table(state, array_path, table)


def _recut_regions(array: ArrayPlan, shape: Sequence[int]) -> Iterator[ChunkRegion]:
    """Yield the cells of chunks that become shorter because the array grows behind them, chunk by chunk."""
    for axis, dim in enumerate(array.dims):
        if dim not in array.recut:
            continue
        others = [lengths.covering(n) for lengths, n in zip(array.grid, shape, strict=True)]
        ranges = [
            [array.recut[dim]]
            if other == axis
            else [(each.start(i), min(each.start(i + 1), n)) for i in range(each.count(n))]
            for other, (each, n) in enumerate(zip(others, shape, strict=True))
        ]
        yield from (tuple(slice(*bounds) for bounds in box) for box in itertools.product(*ranges))


class _StoredCells:
    """Reads cells of an array as it is before its document changes."""

    def __init__(self, session: Session, path: str, sources: NamedSources) -> None:
        self._session, self._path, self._sources = session, path, sources
        self._document = run_blocking(session.state.fetch_document(f"/{path}")) or b""
        self._grid = parse_grid(parse_document(self._document, path))
        self._array = zarr.open_array(session.store, path=path, mode="r", zarr_format=3)
        self.shape: tuple[int, ...] = self._array.shape

    def read(self, region: ChunkRegion) -> npt.NDArray[Any]:
        try:
            return np.asarray(self._array[region])
        except VirtualChunkError:
            pairs = zip(self._grid, region, strict=True)
            box = tuple((each.index(part.start), each.count(part.stop)) for each, part in pairs)
            chunks = _read_named(self._session, self._path, self._sources, box)
            if chunks is None:
                raise
        return np.asarray(_memory_array(self._document, chunks)[region])


PARSE_THREADS = 8
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The result of an ingest.

    Attributes
    ----------
    plan
        The plan, or None if there was nothing new.
    snapshot_id
        The new snapshot. None for a dry run, or if there was nothing new.
    tasks
        The results of the tasks.
    already_there
        The number of sources that earlier commits had ingested.
    failures
        Sources that were skipped because they cannot be read.

    Examples
    --------
    >>> IngestResult(None, None, already_there=3).already_there
    3
    """

    plan: IngestPlan | None
    snapshot_id: str | None
    tasks: tuple[TaskResult, ...] = ()
    already_there: int = 0
    """Sources that earlier commits had ingested."""
    failures: tuple[SourceFailure, ...] = ()
    """Sources that were skipped because they cannot be read."""


def read_schemas(
    files: Sequence[SourceFile], access: SourceAccess, format: str | None = None
) -> tuple[list[SourceSchema], list[SourceFailure]]:
    """Read the schemas of all files. Files that cannot be read are returned separately."""
    failures: list[SourceFailure] = []

    def readable() -> Iterator[SourceSchema]:
        for found in _read_each(partial(try_schema, access=access, format=format), files, [file.url for file in files]):
            if isinstance(found, SourceFailure):
                failures.append(found)
            else:
                yield found

    # Similar files share most of their schema.
    return intern_schemas(readable(), files), failures


def _read_each(read: Callable[[T], R], sources: Sequence[T], urls: Sequence[str]) -> Iterator[R]:
    """Call a function for each source. Several threads wait for remote files.

    Local files are read one after the other. Threads would only pass the locks of Python and of HDF5 to each other,
    which takes twice the processor time.
    """
    if all(local_path(url) is not None for url in urls):
        yield from map(read, sources)
        return
    with ThreadPoolExecutor(PARSE_THREADS) as pool:
        yield from pool.map(read, sources)


@dataclass(frozen=True, slots=True)
class NamedSources:
    """The directories of the sources that the caller named, and the caller's access to them.

    A caller who names a source can read it. Virtual coordinates of the repository in these directories are read with
    the same access. What the repository stores does not influence the location or the credentials.
    """

    access: SourceAccess = field(default_factory=SourceAccess)
    folders: frozenset[str] = frozenset()

    def url_of(self, session: Session, location: str) -> str | None:
        """Return the URL of a location, or None if it is in none of the directories."""
        url = normalise_location(session.state.context.containers.absolute(location))
        inside = ".." not in url.split("/") and any(url.startswith(folder) for folder in self.folders)
        return url if inside else None


def name_sources(
    files: Sequence[SourceFile],
    referenced: Iterable[str],
    options: IngestOptions,
    access: SourceAccess,
    containers: Sequence[VirtualChunkContainer] = (),
) -> NamedSources:
    """Return the directories of all sources, those that they refer to, and the prefixes that the caller gave."""
    prefixes = {file.url.rstrip("/").rsplit("/", 1)[0] for file in files}
    prefixes.update(referenced)
    prefixes.update(container.url_prefix for container in containers)
    if options.container_prefix is not None:
        prefixes.add(options.container_prefix)
    return NamedSources(access, frozenset(map(container_prefix, prefixes)))


def read_existing(session: Session, sources: NamedSources | None = None) -> Existing:
    """Read the arrays and groups of a session, with the values of one-dimensional coordinates.

    Parameters
    ----------
    session
        A session of the target branch.
    sources
        The sources that the caller named. Virtual coordinates are read in their directories, and wherever the session
        is authorised.

    Returns
    -------
    Existing
        The arrays and groups, for `plan_ingest`.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> read_existing(repo.readonly_session("main")).arrays
    {}
    """
    documents = run_blocking(fetch_documents(session))
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
            check_grid(path, document)
            try:
                values = _read_coordinate(session, path, content, sources or NamedSources())
            except VirtualChunkError as error:
                unreadable[path] = str(error).partition("\n")[0].partition(". Virtual chunks")[0]
        arrays[path] = ExistingArray(path, document, values)
    return Existing(arrays, frozenset(groups), unreadable, variable_grids=allows_variable_grids(session))


def allows_variable_grids(session: Session) -> bool:
    """Return whether chunks of different lengths are possible, because the repository and zarr can have them."""
    return session.state.context.format.capabilities.any_chunk_grid and has_variable_grids()


@dataclass(frozen=True, slots=True)
class SourceComparison:
    """Reads variables that must be the same in two files, or in a file and in the repository, in this process.

    `known` keeps hashes for an ingest that is planned again after another commit.
    """

    session: Session
    sources: NamedSources
    format: str | None = None
    known: dict[tuple[str, str, bytes], str] = field(default_factory=dict)

    def stored(self, path: str, region: ChunkRegion | None = None) -> npt.NDArray[Any]:
        """Return the values of an array of the repository, or of a region of it."""
        document = run_blocking(self.session.state.fetch_document(f"/{path}"))
        try:
            return _read_coordinate(self.session, path, document or b"", self.sources, region)
        except VirtualChunkError as error:
            raise InvalidInputError(
                f"/{path} of the repository cannot be compared with the sources: {error}. Open the repository with "
                "that authorisation (authorize_virtual_chunk_access, --authorize), or continue with unchecked=True "
                "(--unchecked)",
                path=path,
            ) from error

    def digests(self, files: Sequence[PlacedFile], arrays: Mapping[str, ArrayPlan]) -> list[dict[str, str]]:
        """Return hashes of the variables of each file, by array path."""
        missing = [f for f in map(partial(self._unknown, arrays=arrays), files) if f.variables]
        used = {path: arrays[path] for file in missing for path in file.variables}
        for file, found in zip(missing, self.read(missing, used) if missing else (), strict=True):
            self.known.update({(file.file.url, path, used[path].document): each for path, each in found.items()})
        return [
            {path: self.known[file.file.url, path, arrays[path].document] for path in file.variables} for file in files
        ]

    def read(self, files: Sequence[PlacedFile], arrays: Mapping[str, ArrayPlan]) -> Sequence[Mapping[str, str]]:
        """Read and hash variables."""
        work = DigestWork(arrays, self.sources.access, self.format)
        return list(_read_each(work, files, [file.file.url for file in files]))

    def _unknown(self, file: PlacedFile, arrays: Mapping[str, ArrayPlan]) -> PlacedFile:
        left = {p: v for p, v in file.variables.items() if (file.file.url, p, arrays[p].document) not in self.known}
        return replace(file, variables=left)


@dataclass(frozen=True, slots=True)
class DigestWork:
    """Hashes variables of one file."""

    arrays: Mapping[str, ArrayPlan]
    access: SourceAccess
    format: str | None

    def __call__(self, file: PlacedFile) -> dict[str, str]:
        return digest_variables(file, self.arrays, self.access, self.format)


def _read_coordinate(
    session: Session, path: str, document: bytes, sources: NamedSources, region: ChunkRegion | None = None
) -> npt.NDArray[Any]:
    try:
        return np.asarray(zarr.open_array(session.store, path=path, mode="r")[region or ...])
    except VirtualChunkError:
        chunks = _read_named(session, path, sources)
        if chunks is None:
            raise
    return np.asarray(_memory_array(document, chunks)[region or ...])


def _memory_array(document: bytes, chunks: Mapping[Coords, bytes]) -> zarr.Array[Any]:
    encoding = key_encoding(document)
    make = default_buffer_prototype().buffer.from_bytes
    contents = {encoding.suffix(coords): make(data) for coords, data in chunks.items()}
    return zarr.open_array(MemoryStore({**contents, "zarr.json": make(document)}), mode="r")


def _read_named(
    session: Session, path: str, sources: NamedSources, box: tuple[tuple[int, int], ...] | None = None
) -> dict[Coords, bytes] | None:
    """Read the chunks of an array with the caller's access. Return None if some are outside the named directories.

    `box` limits the chunks: [first, end) along each dimension.
    """
    work = session.state
    node = work.tree.array(f"/{path}")
    table = run_blocking(work.chunk_table(node, box))
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
    """Read chunks of one file. The file must not have changed since it was referenced."""
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
            raise VirtualChunkError(f"{url} ends before byte {end}, but a reference needs it", location=url)
    return dict(zip(refs, data, strict=True))


def _instant(seconds: int | None) -> dt.datetime | None:
    return None if seconds is None else dt.datetime.fromtimestamp(seconds, tz=dt.UTC)


async def fetch_documents(session: Session) -> dict[str, bytes]:
    """Return every zarr.json by path. It reads the node tree, so chunk keys are not listed."""
    found: dict[str, bytes] = {}
    for path in list(session.state.tree.paths()):
        content = await session.state.fetch_document(path)
        if content is not None:
            found[path.strip("/")] = content
    return found


@dataclass(frozen=True, slots=True)
class Archive:
    """What the repository has: the session that reads it, its documents, and the changes of others."""

    session: Session
    documents: Mapping[str, Mapping[str, Any]]
    stored: StoredCatalogue | None
    foreign: Mapping[str, npt.NDArray[np.uint32] | None] = field(default_factory=dict)
    """Arrays that others changed since the last sync: the chunks they wrote, or None for all of them."""
    all_foreign: bool = False
    """It is not known what others changed."""
    former: frozenset[str] = frozenset()
    """The arrays of the last sync, if its catalogue is not used because the archive is written again."""

    @property
    def catalogue(self) -> Catalogue | None:
        return self.stored.catalogue if self.stored is not None else None


def read_archive(repository: Repository, branch: str, group: str, *, rebuild: bool = False) -> Archive:
    """Read what the last sync left, and what others changed since then."""
    session = repository.readonly_session(branch)
    contents = run_blocking(fetch_documents(session))
    documents = {path: parse_document(content, f"{path}/zarr.json") for path, content in contents.items()}
    known, last, merges = _find_commits(repository, session.snapshot_id, group)
    former: frozenset[str] = frozenset()
    stored = read_catalogue(repository, known.metadata, group) if known is not None and not rebuild else None
    if known is not None and rebuild:
        # A damaged catalogue is one of the reasons to write an archive again.
        with contextlib.suppress(FormatError):
            last_sync = read_catalogue(repository, known.metadata, group)
            former = frozenset(last_sync.catalogue.arrays) if last_sync is not None else former
    if stored is None or known is None:
        return Archive(session, documents, None, all_foreign=True, former=former)
    changed = changed_nodes(known.metadata, group)
    if known.id == session.snapshot_id and not changed:
        return Archive(session, documents, stored)
    # The commit of the last sync shows which chunks others wrote. Without it, only the arrays are known.
    foreign: dict[str, npt.NDArray[np.uint32] | None] = {}
    if last is None:
        foreign.update(dict.fromkeys(changed))
    start = last or known.id
    for merge in reversed(merges) if last is not None else ():
        # A merge changes no value. Chunks that somebody wrote before it have other coordinates now.
        if not _add_changes(repository, start, str(merge.parent_id), documents, foreign):
            return Archive(session, documents, stored, all_foreign=True)
        path, start = merged_array(merge) or "", str(merge.id)
        if path in foreign:
            foreign[path] = None
    if not _add_changes(repository, start, session.snapshot_id, documents, foreign):
        return Archive(session, documents, stored, all_foreign=True)
    return Archive(session, documents, stored, foreign, all_foreign="*" in foreign)


def _add_changes(
    repository: Repository,
    start: str,
    end: str,
    documents: Iterable[str],
    foreign: dict[str, npt.NDArray[np.uint32] | None],
) -> bool:
    """Add the arrays and chunks that changed between two commits. Return whether both exist."""
    if start == end:
        return True
    try:
        diff = repository.diff(from_snapshot_id=start, to_snapshot_id=end)
    except SnapshotNotFoundError:
        return False
    for path, coords in diff.chunk_coords.items():
        known = foreign.get(path.strip("/"), coords[:0])
        foreign[path.strip("/")] = None if known is None else np.concatenate([known, coords])
    moved = [path.strip("/") for pair in diff.moved_nodes for path in pair]
    replaced = {path.strip("/") for path in (*diff.new_arrays, *diff.deleted_arrays, *diff.updated_arrays)} | {*moved}
    replaced |= {path for path in documents if any(path.startswith(f"{each}/") for each in moved)}
    foreign.update(dict.fromkeys(replaced))
    return True


def _find_commits(
    repository: Repository, snapshot_id: str, group: str
) -> tuple[SnapshotInfo | None, str | None, list[SnapshotInfo]]:
    """Return the newest commit with the catalogue of a group, and the commit of the last sync, if history has them.

    The third value are the commits since then that only merged chunks, newest first. Commits of other libraries do not
    take over the catalogue.
    """
    known: SnapshotInfo | None = None
    merges: list[SnapshotInfo] = []
    for info in repository.ancestry(snapshot_id=snapshot_id):
        if known is None and has_catalogue(info.metadata, group):
            known = info
        entry = info.metadata.get(METADATA_KEY)
        if isinstance(entry, Mapping) and entry.get("sync") == f"/{group}":
            return known, str(info.id), merges
        if known is not None and info.id == snapshot_id and not changed_nodes(info.metadata, group):
            return known, None, merges
        if merged_array(info) is not None:
            merges.append(info)
    return known, None, merges


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
        Paths, globs, directories, URLs, or text files that list them.
    repository
        The target. A virtual or mixed ingest adds the containers it needs to its configuration.
    options
        Mode, combination and encoding, see `IngestOptions`.
    branch
        The target branch.
    message
        The commit message.
    access
        Storages of sources that need other credentials than those of the environment.
    source_options
        Options of the storages of all other sources, such as `endpoint_url` and `anonymous` of `s3_storage`.
    containers
        Containers for the virtual chunks, if the default settings of the store are not sufficient.
    skip_ingested
        Leave out sources that earlier commits of the branch ingested and that have not changed.
    dry_run
        Only plan. Nothing is written.
    progress
        A function that is called with the result of each task.
    metadata
        Further metadata of the commit.

    Returns
    -------
    IngestResult
        The plan, the new snapshot, and the results of the tasks.

    Examples
    --------
    >>> import icefloe, xarray
    >>> for day in (1, 2):
    ...     data = xarray.Dataset({"t": ("time", [20.5])}, {"time": [float(day)]})
    ...     data.to_netcdf(f"local{day}.nc")
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> result = ingest_local("local*.nc", repo)
    >>> zarr.open_array(repo.readonly_session("main").store, path="t", mode="r")[:]
    array([20.5, 20.5])
    """
    options = options or IngestOptions()
    access = choose_access(access, source_options, options.function)
    check_format(options.format)
    named: Sequence[SourceFile] = expand_sources(sources, access)
    files = named
    known = len(files)
    if skip_ingested:
        files = not_ingested(files, ingested_sources(repository, branch))
        if not files:
            return IngestResult(None, None, already_there=known)
    schemas, failures = read_schemas(files, access, options.format)
    repository = with_stored_containers(repository)
    folders = [folder for schema in schemas for folder in schema.referenced]
    allowed = name_sources(named, folders, options, access, containers)
    digests: dict[tuple[str, str, bytes], str] = {}
    while True:
        planned = repository.readonly_session(branch)
        existing = read_existing(planned, allowed)
        plan = plan_ingest(schemas, options, failures=failures, existing=existing)
        if dry_run:
            check_free(plan, existing)
            return IngestResult(plan, None, (), known - len(files), tuple(failures))
        check_plan(plan, existing, SourceComparison(planned, allowed, options.format, digests))
        repository = store_containers(repository, plan.containers, containers, access.options)
        session = repository.writable_session(branch)
        if session.snapshot_id == planned.snapshot_id:
            break
    sink = SessionSink(session)
    sink.begin(plan, allowed)
    results = []
    for task in plan.tasks:
        results.append(run_task(task, plan.arrays, sink, access=access, format=options.format))
        if progress is not None:
            progress(results[-1])
    check_stores([schema.file for schema in schemas if schema.format == "zarr"], access)
    facts = {**keep_record(repository, session.state.base, ingest_metadata(plan, files)), **(metadata or {})}
    # Files without cells change nothing, but they are recorded as ingested.
    snapshot_id = session.commit(message or f"Ingest {len(plan.sources)} sources", facts, allow_empty=True)
    return IngestResult(plan, str(snapshot_id), tuple(results), known - len(files), tuple(failures))
