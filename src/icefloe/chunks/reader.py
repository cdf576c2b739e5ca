"""Find chunk references in the manifests of a snapshot, and read the bytes that they point at, one or many at once."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.chunks.range_scheduler import ObjectSource, RangeScheduler, ReadCounts, ReadLimits, object_source
from icefloe.chunks.virtual_containers import VirtualContainers
from icefloe.errors import (
    FormatError,
    IcefloeError,
    ObjectNotFoundError,
    PermissionDeniedError,
    VersionMismatchError,
    VirtualChunkError,
)
from icefloe.ids import ObjectId, encode_base32
from icefloe.manifests.cells import SLAB_MANIFESTS, filter_box, plan_slabs
from icefloe.manifests.chunk_columns import Found, concat, find_in, find_row, take_raw
from icefloe.metadata_files import ByteCache, MetadataFiles
from icefloe.model.chunk_table import (
    ChunkKind,
    ChunkRef,
    ChunkTable,
    ChunkTables,
    empty_table,
    highest,
    lowest,
    rows_inside,
    table_from_rows,
)
from icefloe.model.config import CachingConfig, RepositoryConfig
from icefloe.model.manifest_lists import ListedRefs, ListsNotLoadedError, ManifestList, missing_lists
from icefloe.model.snapshot import ArrayNode, Extents, Manifest, ManifestRef, RefColumns, columns_of
from icefloe.storage.contract import Buffer, SourceStorage, Storage

_LARGEST_OFFSET = 2**62


class NotInMemory(enum.Enum):
    """The answer to a question that needs a request to storage."""

    NOT_IN_MEMORY = 0


NOT_IN_MEMORY = NotInMemory.NOT_IN_MEMORY


def check_plausible_range(offset: int, length: int, where: str) -> None:
    """Refuse a reference no object can satisfy before anything is computed with it."""
    if offset >= _LARGEST_OFFSET or length >= _LARGEST_OFFSET:
        raise FormatError(
            f"{where or 'a chunk reference'} points at {length} bytes from offset {offset}. The manifest is damaged"
        )


def explain_failure(error: IcefloeError, ref: ChunkRef, source: ObjectSource, where: str) -> IcefloeError:
    """The error to raise instead of the storage's error."""
    wanted_by = f", wanted by {where}" if where else ""
    if ref.location is not None:
        return _explain_virtual(error, ref.location, source, wanted_by)
    if isinstance(error, ObjectNotFoundError):
        assert ref.object_id is not None
        chunk_id = encode_base32(ref.object_id)
        return FormatError(
            f"the chunk object {source.key} is missing from {source.storage.url}{wanted_by}. It may have been deleted "
            "by a garbage collection with too short a grace period. `icefloe verify` lists all missing objects",
            chunk_id=chunk_id,
        )
    return error


def _explain_virtual(error: IcefloeError, location: str, source: ObjectSource, wanted_by: str) -> IcefloeError:
    if isinstance(error, ObjectNotFoundError):
        return VirtualChunkError(
            f"{location} is not in {source.storage.url}{wanted_by}. If the file has moved, change the store of its "
            "container",
            location=location,
        )
    if isinstance(error, VersionMismatchError):
        expected = f"ETag {source.etag}" if source.etag is not None else f"unchanged since {source.last_modified} s"
        return VirtualChunkError(
            f"a virtual chunk has changed: {location} has changed since the reference was made "
            f"(expected {expected}){wanted_by}. Write the "
            "references again",
            "virtual-chunk-modified",
            location=location,
        )
    if isinstance(error, PermissionDeniedError):
        return VirtualChunkError(
            f"the credentials of its container do not allow to read {location}{wanted_by}: {error.message}",
            location=location,
        )
    return error


def short_read(ref: ChunkRef, source: ObjectSource, where: str, *, wanted: int, found: int) -> IcefloeError:
    """The error for an object that ends inside a chunk."""
    wanted_by = f", wanted by {where}" if where else ""
    message = (
        f"{ref.location or source.key} in {source.storage.url} has {found} of the {wanted} bytes that a chunk of "
        f"{ref.length} bytes at offset {ref.offset} needs{wanted_by}"
    )
    if ref.location is not None:
        return VirtualChunkError(f"{message}. The file was truncated or replaced", location=ref.location)
    return FormatError(f"{message}. The object is truncated", chunk_id=encode_base32(ref.object_id or b""))


def undecodable(ref: ChunkRef | None, where: str, key: str, error: Exception) -> IcefloeError:
    """The error for a chunk whose bytes its codecs refuse; `key` is the object it is in.

    No reference stands for a chunk that waits in a session.
    """
    said = f"the codecs of the array cannot decode {where} ({type(error).__name__}: {error})"
    if ref is None:
        return FormatError(f"{said}. It was written in this session and is not committed")
    if ref.kind is ChunkKind.INLINE:
        return FormatError(f"{said}: its {ref.length} bytes in the manifest are damaged. Write the chunk again")
    part = f"its {ref.length} bytes from offset {ref.offset}"
    if ref.location is not None:
        return VirtualChunkError(
            f"{said}: {part} of {ref.location} are damaged, or the file has changed. Check the file and write the "
            "references again",
            location=ref.location,
        )
    return FormatError(
        f"{said}: {part} of {key} are damaged. `icefloe verify --decode` lists all damage",
        chunk_id=encode_base32(ref.object_id or b""),
    )


_REMEMBERED = 16_384
"""Objects whose key is remembered, because the chunks of a pack ask for it one after the other."""
_NOTHING: Mapping[bytes, Buffer] = {}
_INDEX_CACHE_BYTES = 32 << 20
"""Bytes of indexes of shards that a repository keeps: 16 for each chunk in a shard."""
_INDEX_ENTRY_BYTES = 400
"""What an index needs in memory besides its numbers."""

ShardRanges: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""First byte and length of every chunk in a shard."""


def read_limits(config: RepositoryConfig) -> ReadLimits:
    """The limits of a configuration; objects are fetched in parts only where a part size was set."""
    concurrency = config.storage.concurrency if config.storage is not None else None
    return ReadLimits(
        max_requests=config.effective("max_concurrent_requests"),
        split_bytes=concurrency.ideal_concurrent_request_size if concurrency is not None else None,
    )


class ChunkReader:
    """Fetches chunks of one repository; shared by all its sessions, from any event loop.

    Reads that are in flight together are merged, see `RangeScheduler`. `for_session` gives a session its own view,
    which finds the packs that the session has not written yet in memory.
    """

    def __init__(
        self,
        storage: Storage,
        chunk_key: Callable[[bytes], str],
        *,
        containers: VirtualContainers | None = None,
        limits: ReadLimits | None = None,
        cache_bytes: int = 0,
    ) -> None:
        self._storage = storage
        self._chunk_key = chunk_key
        self._containers = containers or VirtualContainers({}, {})
        self._scheduler = RangeScheduler(limits)
        self._cache: ByteCache[tuple[ObjectSource, int, int], bytes] = ByteCache(cache_bytes)
        self._indexes: ByteCache[tuple[bytes, int, int, str], ShardRanges] = ByteCache(_INDEX_CACHE_BYTES)
        self._local = _NOTHING
        self._sources: dict[bytes, ObjectSource] = {}

    @classmethod
    def configured(
        cls,
        storage: Storage,
        chunk_key: Callable[[bytes], str],
        config: RepositoryConfig,
        authorized: Mapping[str, Any] | None = None,
    ) -> ChunkReader:
        """A reader for a repository's configuration. `authorized` maps container prefixes to credentials."""
        caching = config.caching or CachingConfig()
        return cls(
            storage,
            chunk_key,
            containers=VirtualContainers(config.virtual_chunk_containers or {}, authorized or {}),
            limits=read_limits(config),
            cache_bytes=caching.effective("num_bytes_chunks"),
        )

    @property
    def containers(self) -> VirtualContainers:
        return self._containers

    @property
    def counts(self) -> ReadCounts:
        """Ranges asked for, requests made and bytes received so far."""
        return self._scheduler.counts

    def for_session(self, local_objects: Mapping[bytes, Buffer]) -> ChunkReader:
        """The same reader, which looks for chunk objects in `local_objects` first."""
        view = ChunkReader.__new__(ChunkReader)
        view.__dict__.update(self.__dict__)
        view._local = local_objects
        return view

    def undecodable(self, ref: ChunkRef | None, where: str, error: Exception) -> IcefloeError:
        """The error for a chunk whose bytes cannot be decoded. `ref` is None for a chunk that is not stored yet."""
        key = self._chunk_key(ref.object_id) if ref is not None and ref.object_id is not None else ""
        return undecodable(ref, where, key, error)

    async def fetch(self, ref: ChunkRef, start: int = 0, end: int | None = None, *, where: str = "") -> bytes:
        """Bytes [start, end) of a chunk, cut to its length; `where` names it in errors."""
        end = ref.length if end is None or end > ref.length else end
        if start >= end:
            return b""
        if ref.kind is ChunkKind.INLINE:
            return (ref.data or b"")[start:end]
        if ref.object_id is not None:
            unsaved = self._local.get(ref.object_id)
            if unsaved is not None:
                return bytes(memoryview(unsaved)[ref.offset + start : ref.offset + end])
        check_plausible_range(ref.offset, ref.length, where)
        source = self._source(ref)
        if self._cache.limit_bytes and start == 0 and end == ref.length:

            async def load() -> tuple[bytes, int]:
                data = await self._read(source, ref, 0, ref.length, where)
                return data, len(data)

            return await self._cache.get((source, ref.offset, ref.length), load)
        return await self._read(source, ref, start, end, where)

    def fetch_now(self, ref: ChunkRef, start: int = 0, end: int | None = None) -> Buffer | NotInMemory:
        """Bytes [start, end) of a chunk, if they are in memory or few in a local file, without an event loop.

        NOT_IN_MEMORY if `fetch` has to be asked, also after an error: it explains the error.
        """
        end = ref.length if end is None or end > ref.length else end
        if ref.kind is ChunkKind.INLINE:
            return (ref.data or b"")[start:end]
        if ref.object_id is None or ref.offset >= _LARGEST_OFFSET or start >= end:
            return NOT_IN_MEMORY
        unsaved = self._local.get(ref.object_id)
        if unsaved is not None:
            return bytes(memoryview(unsaved)[ref.offset + start : ref.offset + end])
        source = self._source(ref)
        if self._cache.limit_bytes and start == 0 and end == ref.length:
            return self._cache.find((source, ref.offset, ref.length)) or NOT_IN_MEMORY
        data = self._scheduler.read_now(source, ref.offset + start, ref.offset + end)
        return NOT_IN_MEMORY if data is None or len(data) < end - start else data

    @property
    def has_fast_reads(self) -> bool:
        """Whether threads that decode chunks read them too. Not if chunks are cached: others may need them again."""
        storage = self._storage
        return isinstance(storage, SourceStorage) and storage.has_fast_reads and not self._cache.limit_bytes

    def read_in_thread(self, ref: ChunkRef) -> Buffer | None:
        """The bytes of a chunk, read in this thread. None if `fetch` has to be asked, also after an error."""
        if ref.object_id is None or ref.object_id in self._local or ref.offset >= _LARGEST_OFFSET:
            return None
        data = self._source(ref).read_in_thread(ref.offset, ref.offset + ref.length)
        return None if data is None or len(data) < ref.length else data

    def note_reads(self, sizes: Sequence[int]) -> None:
        """Count the reads of other threads."""
        self._scheduler.note_reads(sizes)

    def find_index(self, ref: ChunkRef, layout: str) -> ShardRanges | None:
        """The index of a shard that was read before. `layout` says how its bytes were understood."""
        key = _index_key(ref, layout)
        return None if key is None else self._indexes.find(key)

    def keep_index(self, ref: ChunkRef, layout: str, index: ShardRanges) -> None:
        """Remember the index of a shard for later reads."""
        key = _index_key(ref, layout)
        if key is not None:
            self._indexes.put(key, index, sum(each.nbytes for each in index) + _INDEX_ENTRY_BYTES)

    async def _read(self, source: ObjectSource, ref: ChunkRef, start: int, end: int, where: str) -> bytes:
        try:
            data = await self._scheduler.read(source, ref.offset + start, ref.offset + end)
        except IcefloeError as error:
            raise explain_failure(error, ref, source, where) from error
        if len(data) < end - start:
            raise short_read(ref, source, where, wanted=end - start, found=len(data))
        return data

    def _source(self, ref: ChunkRef) -> ObjectSource:
        if ref.location is not None:
            return self._containers.resolve(ref.location, ref.etag, ref.last_modified)
        assert ref.object_id is not None
        source = self._sources.get(ref.object_id)
        if source is None:
            source = object_source(self._storage, self._chunk_key(ref.object_id))
            if len(self._sources) >= _REMEMBERED:
                self._sources.clear()
            self._sources[ref.object_id] = source
        return source

    async def fetch_many(
        self, table: ChunkTable, rows: npt.NDArray[np.intp] | None = None, *, array_path: str = ""
    ) -> list[Buffer]:
        """The chunks of a table's rows (all of them when None), whole, in the order of `rows`."""
        picked = np.arange(len(table), dtype=np.intp) if rows is None else rows
        result: list[Buffer] = [b""] * len(picked)
        kinds = table.kind[picked]
        for position in np.flatnonzero(kinds == ChunkKind.INLINE).tolist():
            row = picked[position]
            at = int(table.offset[row])
            result[position] = bytes(table.inline[at : at + int(table.length[row])])
        groups = [
            *_groups(kinds == ChunkKind.NATIVE, picked, [table.object_id]),
            *_groups(kinds == ChunkKind.VIRTUAL, picked, [table.location, table.etag, table.last_modified]),
        ]
        await asyncio.gather(*(self._fetch_group(table, picked, group, array_path, result) for group in groups))
        return result

    async def _fetch_group(
        self,
        table: ChunkTable,
        picked: npt.NDArray[np.intp],
        positions: npt.NDArray[np.intp],
        array_path: str,
        result: list[Buffer],
    ) -> None:
        """Rows that lie in one object."""
        rows = picked[positions]
        first = table.row(int(rows[0]))
        offsets, lengths = table.offset[rows], table.length[rows]
        unsaved = self._local.get(first.object_id) if first.object_id is not None else None
        if unsaved is not None:
            view = memoryview(unsaved)
            for position, low, size in zip(positions.tolist(), offsets.tolist(), lengths.tolist(), strict=True):
                result[position] = bytes(view[low : low + size])
            return
        if self._cache.limit_bytes:
            kept = await asyncio.gather(*(self.fetch(table.row(int(row)), where=array_path) for row in rows))
            for position, whole in zip(positions.tolist(), kept, strict=True):
                result[position] = whole
            return
        check_plausible_range(int(offsets.max()), int(lengths.max()), array_path)
        source = self._source(first)
        starts = offsets.astype(np.int64)
        try:
            bodies = await self._scheduler.read_many(source, starts, starts + lengths.astype(np.int64))
        except IcefloeError as error:
            raise explain_failure(error, first, source, array_path) from error
        for position, size, body in zip(positions.tolist(), lengths.tolist(), bodies, strict=True):
            if len(body) < size:
                row = int(picked[position])
                where = f"chunk {tuple(table.coords[row].tolist())} of {array_path or 'an array'}"
                raise short_read(table.row(row), source, where, wanted=size, found=len(body))
            result[position] = body

    def __reduce__(self) -> tuple[Any, ...]:
        # Unwritten packs of a session are not pickled. They are stored before a session is pickled.
        return _rebuild, (
            self._storage,
            self._chunk_key,
            self._containers,
            self._scheduler.limits,
            self._cache.limit_bytes,
        )


def _index_key(ref: ChunkRef, layout: str) -> tuple[bytes, int, int, str] | None:
    """What an index is kept under. None for shards whose index may change, or takes no request.

    An object of the repository never changes, so its id and a range name the same bytes forever. The coordinates of
    the shard do not: a session may write it again. A file of others may be replaced.
    """
    if ref.object_id is None or ref.kind is not ChunkKind.NATIVE:
        return None
    return ref.object_id, ref.offset, ref.length, layout


def _rebuild(
    storage: Storage,
    chunk_key: Callable[[bytes], str],
    containers: VirtualContainers,
    limits: ReadLimits,
    cache_bytes: int,
) -> ChunkReader:
    return ChunkReader(storage, chunk_key, containers=containers, limits=limits, cache_bytes=cache_bytes)


def _groups(
    wanted: npt.NDArray[np.bool_], picked: npt.NDArray[np.intp], columns: list[npt.NDArray[Any] | None]
) -> list[npt.NDArray[np.intp]]:
    """Positions of the wanted rows, split by equal values in all columns."""
    positions = np.flatnonzero(wanted)
    if not len(positions):
        return []
    rows = picked[positions]
    keys = [column[rows].reshape(len(rows), -1).view(np.uint8) for column in columns if column is not None]
    joined = np.ascontiguousarray(np.concatenate(keys, axis=1))
    values = joined.view(f"V{joined.shape[1]}").reshape(-1)
    # Rows of one object mostly lie together: compare neighbours first, so that few values are left to sort.
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    heads = np.concatenate([[0], changes])
    _, inverse = np.unique(values[heads], return_inverse=True)
    runs = np.repeat(inverse, np.diff(np.append(heads, len(values))))
    order = np.argsort(runs, kind="stable")
    edges = np.flatnonzero(np.diff(runs[order])) + 1
    return np.split(positions[order], edges)


@dataclass(frozen=True, slots=True)
class LocatedChunk:
    """One chunk that exists, for reads without an event loop."""

    _found: ChunkRef | Buffer
    """The bytes of a chunk that waits for its pack, or its reference."""
    _reader: ChunkReader

    @property
    def length(self) -> int:
        """Bytes of the chunk."""
        return self._found.length if isinstance(self._found, ChunkRef) else len(self._found)

    def fetch_now(self, start: int, end: int) -> Buffer | NotInMemory:
        """Bytes [start, end), as `ChunkReader.fetch_now` reads them."""
        if isinstance(self._found, ChunkRef):
            return self._reader.fetch_now(self._found, start, end)
        return memoryview(self._found)[start:end]

    def find_index(self, layout: str) -> ShardRanges | None:
        """The index of the shard, if it was read before."""
        return self._reader.find_index(self._found, layout) if isinstance(self._found, ChunkRef) else None

    def keep_index(self, layout: str, index: ShardRanges) -> None:
        """Remember the index of the shard for later reads."""
        if isinstance(self._found, ChunkRef):
            self._reader.keep_index(self._found, layout, index)


@dataclass(frozen=True, slots=True)
class LocatedChunks:
    """The chunks of a question, by their position in it."""

    lengths: npt.NDArray[np.int64]
    """Bytes of each chunk; -1 where there is none."""
    array_path: str
    _waiting: Mapping[int, Buffer]
    _pieces: tuple[Found, ...]
    _reader: ChunkReader

    async def fetch(self, first: int, end: int) -> list[Buffer | None]:
        """The bytes of the chunks at positions [first, end); None where there are none."""
        result: list[Buffer | None] = [self._waiting.get(position) for position in range(first, end)]
        if len(self._pieces) == 1:
            await self._fetch_piece(self._pieces[0], first, end, result)
        else:
            await asyncio.gather(*(self._fetch_piece(piece, first, end, result) for piece in self._pieces))
        return result

    async def fetch_ranges(
        self, positions: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> list[Buffer]:
        """Ranges of chunks that exist, in the given order. A position may occur several times."""
        result: list[Buffer] = [b""] * len(positions)
        for at in np.flatnonzero(np.isin(positions, list(self._waiting))).tolist() if self._waiting else ():
            first = int(starts[at])
            result[at] = memoryview(self._waiting[int(positions[at])])[first : first + int(sizes[at])]

        async def fetch(piece: Found) -> None:
            found = np.minimum(np.searchsorted(piece.positions, positions), len(piece.positions) - 1)
            here = np.flatnonzero((piece.positions[found] == positions) & (sizes > 0))
            if not len(here):
                return
            if len(here) == 1:  # columns would take longer than the request
                at = int(here[0])
                first = int(starts[at])
                result[at] = await self._fetch_row(piece, int(found[at]), first, first + int(sizes[at]))
                return
            rows = take_raw(piece.table, piece.rows[found[here]])
            ranges = replace(
                rows,
                offset=rows.offset + starts[here].astype(np.uint64),
                length=sizes[here].astype(np.uint64),
            )
            bodies = await self._reader.fetch_many(ranges, array_path=self.array_path)
            for at, body in zip(here.tolist(), bodies, strict=True):
                result[at] = body

        if len(positions) and len(self._pieces) == 1:
            await fetch(self._pieces[0])
        elif len(positions):
            await asyncio.gather(*(fetch(piece) for piece in self._pieces))
        return result

    async def _fetch_piece(self, piece: Found, first: int, end: int, result: list[Buffer | None]) -> None:
        low, high = np.searchsorted(piece.positions, [first, end]).tolist()
        if low == high:
            return
        if high - low == 1:
            result[int(piece.positions[low]) - first] = await self._fetch_row(piece, low)
            return
        bodies = await self._reader.fetch_many(piece.table, piece.rows[low:high], array_path=self.array_path)
        for position, body in zip((piece.positions[low:high] - first).tolist(), bodies, strict=True):
            result[position] = body

    async def _fetch_row(self, piece: Found, index: int, start: int = 0, end: int | None = None) -> bytes:
        """A range of one chunk. For one chunk, columns would take longer than the request."""
        row = int(piece.rows[index])
        where = f"chunk {tuple(piece.table.coords[row].tolist())} of {self.array_path}"
        return await self._reader.fetch(piece.table.row(row), start, end, where=where)

    @property
    def has_fast_reads(self) -> bool:
        """Whether threads that decode chunks read them too."""
        return self._reader.has_fast_reads

    def read_in_thread(self, position: int) -> Buffer | None:
        """The bytes of a chunk that exists, read in this thread. None if they must be fetched."""
        waiting = self._waiting.get(position)
        found = None if waiting is not None else self._row(position)
        return waiting if found is None else self._reader.read_in_thread(found[0].table.row(found[1]))

    def note_reads(self, sizes: Sequence[int]) -> None:
        """Count the reads of other threads."""
        self._reader.note_reads(sizes)

    def find_index(self, position: int, layout: str) -> ShardRanges | None:
        """The index of the shard at a position, if it was read before."""
        found = self._row(position)
        return None if found is None else self._reader.find_index(found[0].table.row(found[1]), layout)

    def keep_index(self, position: int, layout: str, index: ShardRanges) -> None:
        """Remember the index of the shard at a position for later reads."""
        found = self._row(position)
        if found is not None:
            self._reader.keep_index(found[0].table.row(found[1]), layout, index)

    def undecodable(self, position: int, error: Exception) -> IcefloeError:
        """The error for the chunk at a position whose bytes the codecs refused; it names the array, chunk and file."""
        found = self._row(position)
        if found is None:
            return self._reader.undecodable(None, f"a chunk of {self.array_path}", error)
        piece, row = found
        where = f"chunk {tuple(piece.table.coords[row].tolist())} of {self.array_path}"
        return self._reader.undecodable(piece.table.row(row), where, error)

    def _row(self, position: int) -> tuple[Found, int] | None:
        """The row of the chunk at a position. None for a chunk that waits for its pack."""
        for piece in self._pieces:
            at = int(np.searchsorted(piece.positions, position))
            if at < len(piece.positions) and piece.positions[at] == position:
                return piece, int(piece.rows[at])
        return None


def gather_located(
    count: int, waiting: Mapping[int, Buffer], pieces: Iterable[Found], reader: ChunkReader, array_path: str
) -> LocatedChunks:
    """What was found in memory and in tables, as one answer; deleted chunks are as if never written."""
    lengths = np.full(count, -1, dtype=np.int64)
    for position, data in waiting.items():
        lengths[position] = len(data)
    present = []
    for piece in pieces:
        alive = piece.table.kind[piece.rows] != ChunkKind.DELETED
        kept = piece if alive.all() else Found(piece.table, piece.rows[alive], piece.positions[alive])
        if len(kept.rows):
            lengths[kept.positions] = kept.table.length[kept.rows]
            present.append(kept)
    return LocatedChunks(lengths, array_path, waiting, tuple(present), reader)


_MAX_INDEXED_ARRAYS = 1024
_FEW_BOXES = 8
_FEW_CHUNKS = 64
"""Questions about more chunks are answered from columns."""


@dataclass(frozen=True, slots=True)
class _Boxes:
    """The extents of an array's manifests as columns, so that one comparison finds the right one."""

    source: Sequence[ManifestRef] | RefColumns
    """The value that was indexed."""
    ids: Sequence[ObjectId]
    first: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    few: Sequence[tuple[ObjectId, Sequence[tuple[int, int]]]] | None = None
    """The boxes again, if they are so few that a loop takes less time than a comparison of columns."""

    @classmethod
    def of(
        cls, source: Sequence[ManifestRef] | RefColumns, ids: Sequence[ObjectId], bounds: npt.NDArray[np.int64]
    ) -> _Boxes:
        """The extents of manifests: bounds are [manifest, dimension, (first, end)]."""
        few = [*zip(ids, bounds.tolist(), strict=True)] if len(ids) <= _FEW_BOXES else None
        return cls(source, ids, bounds[:, :, 0], bounds[:, :, 1], few)

    def holding(self, coords: Sequence[int]) -> list[ObjectId]:
        """Manifests whose box contains the coordinates; more than one only in files of others.

        A single manifest is always searched: in files of other writers its extents may be wrong.
        """
        if len(self.ids) == 1:
            return [self.ids[0]]
        if self.few is not None:
            found = []
            for manifest_id, box in self.few:
                for c, (first, end) in zip(coords, box, strict=True):
                    if not first <= c < end:
                        break
                else:
                    found.append(manifest_id)
            return found
        point = np.asarray(coords, dtype=np.int64)
        inside = ((self.first <= point) & (point < self.end)).all(axis=1)
        return [self.ids[i] for i in np.flatnonzero(inside).tolist()]

    def asked(self, coords: npt.NDArray[np.uint32]) -> list[tuple[ObjectId, npt.NDArray[np.bool_]]]:
        """Manifests that may hold some of the chunks, each with a mask of those."""
        if len(self.ids) == 1:
            return [(self.ids[0], np.ones(len(coords), dtype=np.bool_))]
        low, high = np.array(lowest(coords)), np.array(highest(coords))
        near = np.flatnonzero(((self.first <= high) & (low < self.end)).all(axis=1)).tolist()
        masks = [rows_inside(coords, self.first[i], self.end[i]) for i in near]
        return [(self.ids[i], mask) for i, mask in zip(near, masks, strict=True) if mask.any()]

    def meeting(self, box: Extents) -> list[ObjectId]:
        """Manifests whose box overlaps another box."""
        low = np.array([a for a, _ in box], dtype=np.int64)
        high = np.array([b for _, b in box], dtype=np.int64)
        meets = ((self.first < high) & (low < self.end)).all(axis=1)
        return [self.ids[i] for i in np.flatnonzero(meets).tolist()]


def _boxes(node: ArrayNode) -> _Boxes:
    columns = columns_of(node.manifests)
    if columns is not None:
        return _Boxes.of(node.manifests, columns.ids, columns.boxes)
    everything = tuple((0, 1 << 62) for _ in node.shape)
    bounds = np.array([ref.extents or everything for ref in node.manifests], dtype=np.int64)
    bounds = bounds.reshape(len(node.manifests), len(node.shape), 2)
    ids = [ref.manifest_id for ref in node.manifests]
    return _Boxes.of(node.manifests, ids, bounds)


def _table_in(manifest: Manifest, node: ArrayNode) -> ChunkTable | None:
    """The references of an array in a manifest."""
    tables = manifest.tables
    table = tables.find(node.id) if type(tables) is ChunkTables else tables.get(node.id)
    # Early writers left entries of other arrays under an id; another rank cannot be this array's.
    return table if table is not None and table.ndim == len(node.shape) else None


class ChunkLookup:
    """Looks up references in manifests. Fetches only manifests whose extents overlap the requested chunks."""

    def __init__(self, metadata_files: MetadataFiles) -> None:
        self._metadata_files = metadata_files
        # By identity of the tuple, which its boxes keep alive: hashing thousands of refs per look-up would cost more
        # than the look-up.
        self._indexed: dict[int, _Boxes] = {}

    async def find(self, node: ArrayNode, coords: tuple[int, ...]) -> ChunkRef | None:
        """The reference of one chunk, or None when it was never written."""
        if isinstance(node.manifests, ListedRefs):
            await self._metadata_files.load_lists(node.manifests.at(coords))
        for manifest_id in self.manifests_for(node, coords):
            refs = await self._find_few(node, manifest_id, [coords])
            if refs is not None:
                return refs[0]
            table = await self._table(node, manifest_id)
            if table is not None:
                row = find_row(table, coords)
                if row is not None:
                    return table.row(row)
        return None

    def find_now(self, node: ArrayNode, coords: tuple[int, ...]) -> ChunkRef | NotInMemory | None:
        """What `find` returns, if the manifests are in memory or in small local files."""
        files = self._metadata_files
        try:
            manifest_ids = self.manifests_for(node, coords)
        except ListsNotLoadedError:
            return NOT_IN_MEMORY
        for manifest_id in manifest_ids:
            manifest = files.load_manifest_now(manifest_id)
            if isinstance(manifest, Manifest):
                table = _table_in(manifest, node)
                if table is not None and (row := find_row(table, coords)) is not None:
                    return table.row(row)
            else:
                refs = None if manifest is None else files.find_refs_now(manifest, node.id, [coords])
                return NOT_IN_MEMORY if refs is None else refs[0]
        return None

    async def find_many(
        self, node: ArrayNode, coords: npt.NDArray[np.uint32], positions: npt.NDArray[np.intp]
    ) -> tuple[list[Found], npt.NDArray[np.intp]]:
        """The rows of `coords[positions]`, by manifest, and the positions that were never written."""
        if not node.manifests or not len(positions):
            return [], positions
        asked = await self._asked(node, coords[positions])
        tables = await asyncio.gather(
            *(self._table_of(node, manifest_id, coords[positions[inside]]) for manifest_id, inside in asked)
        )
        found, missing = [], np.ones(len(coords), dtype=bool)
        for (_, inside), table in zip(asked, tables, strict=True):
            if table is not None:
                wanted = positions[inside]
                here, _ = find_in(table, coords, wanted[missing[wanted]])
                missing[here.positions] = False
                found.append(here)
        return found, positions[missing[positions]]

    async def _asked(
        self, node: ArrayNode, coords: npt.NDArray[np.uint32]
    ) -> list[tuple[ObjectId, npt.NDArray[np.bool_]]]:
        """Manifests that may hold some of the chunks, each with a mask of those."""
        if not isinstance(node.manifests, ListedRefs):
            return self._index(node).asked(coords)
        lists = node.manifests.holding(coords)
        await self._metadata_files.load_lists(lists)
        return list(itertools.chain.from_iterable(self._index_list(each).asked(coords) for each in lists))

    async def load(self, node: ArrayNode) -> None:
        """Load the manifest lists of an array."""
        if isinstance(node.manifests, ListedRefs):
            await self._metadata_files.load_lists(missing_lists(node.manifests.lists))

    def manifests_for(self, node: ArrayNode, coords: tuple[int, ...]) -> list[ObjectId]:
        """Manifests that may hold a chunk. Raises ListsNotLoadedError."""
        if type(node.manifests) is ListedRefs:  # much faster than isinstance() of a class with abstract bases
            lists = node.manifests.at(coords)
            if len(lists) == 1:
                return self._index_list(lists[0]).holding(coords)
            return list(itertools.chain.from_iterable(self._index_list(each).holding(coords) for each in lists))
        boxes = self._indexed.get(id(node.manifests))
        if boxes is None or boxes.source is not node.manifests:
            if len(node.manifests) < 2:
                return [ref.manifest_id for ref in node.manifests]
            boxes = self._index(node)
        return boxes.holding(coords)

    async def table(self, node: ArrayNode, box: Extents | None = None) -> ChunkTable:
        """All references of an array, or those inside a box of its grid."""
        bounds = box if box is not None else tuple((0, n) for n in node.grid)
        if not node.manifests or any(a >= b for a, b in bounds):
            return empty_table(len(node.shape))
        ids = list(dict.fromkeys(await self._meeting(node, bounds)))
        tables = await asyncio.gather(*(self._table(node, manifest_id) for manifest_id in ids))
        inside = [filter_box(table, bounds) for table in tables if table is not None]
        return concat(inside) if inside else empty_table(len(node.shape))

    async def _meeting(self, node: ArrayNode, box: Extents) -> list[ObjectId]:
        """Manifests whose box overlaps another box."""
        if not isinstance(node.manifests, ListedRefs):
            return self._index(node).meeting(box)
        lists = node.manifests.meeting(box)
        await self._metadata_files.load_lists(lists)
        return list(itertools.chain.from_iterable(self._index_list(each).meeting(box) for each in lists))

    async def slabs(self, *nodes: ArrayNode) -> list[Extents]:
        """Parts of the grid of an array, in order, each with few manifests: of the array at several snapshots."""
        for node in nodes:
            await self.load(node)
        grid = [max(sizes) for sizes in zip(*(node.grid for node in nodes), strict=True)]
        indexed = [self._index(node) for node in nodes if node.manifests]
        boxes = [np.stack([each.first, each.end], axis=2) for each in indexed]
        return plan_slabs(grid, np.concatenate(boxes), SLAB_MANIFESTS) if boxes else []

    async def _table(self, node: ArrayNode, manifest_id: ObjectId) -> ChunkTable | None:
        return _table_in(await self.fetch(manifest_id, node), node)

    async def _table_of(
        self, node: ArrayNode, manifest_id: ObjectId, coords: npt.NDArray[np.uint32]
    ) -> ChunkTable | None:
        """A table that has these chunks if the manifest has: just them, where they can be found by themselves."""
        if len(coords) <= _FEW_CHUNKS:
            wanted = [tuple(row) for row in coords.tolist()]
            refs = await self._find_few(node, manifest_id, wanted)
            if refs is not None:
                return table_from_rows(list(zip(wanted, refs, strict=True)), len(node.shape))
        return await self._table(node, manifest_id)

    async def _find_few(
        self, node: ArrayNode, manifest_id: ObjectId, wanted: list[tuple[int, ...]]
    ) -> list[ChunkRef] | None:
        with self._naming(manifest_id, node):
            return await self._metadata_files.find_refs(manifest_id, node.id, wanted)

    async def fetch(self, manifest_id: ObjectId, node: ArrayNode | None = None) -> Manifest:
        """A manifest that a snapshot names; its absence is damage."""
        with self._naming(manifest_id, node):
            return await self._metadata_files.fetch_manifest(manifest_id)

    @contextlib.contextmanager
    def _naming(self, manifest_id: ObjectId, node: ArrayNode | None) -> Iterator[None]:
        try:
            yield
        except ObjectNotFoundError as error:
            whose = f" of array {node.path}" if node is not None else ""
            raise FormatError(
                f"manifest {manifest_id}{whose} of the snapshot is missing from {self._metadata_files.storage.url}. "
                "`icefloe verify` lists all damage",
                manifest_id=manifest_id,
            ) from error

    def _index(self, node: ArrayNode) -> _Boxes:
        return self._indexed_as(node.manifests, lambda: _boxes(node))

    def _index_list(self, each: ManifestList) -> _Boxes:
        columns = each.columns
        return self._indexed_as(columns, lambda: _Boxes.of(columns, columns.ids, columns.boxes))

    def _indexed_as(self, source: Sequence[ManifestRef] | RefColumns, index: Callable[[], _Boxes]) -> _Boxes:
        boxes = self._indexed.get(id(source))
        if boxes is None or boxes.source is not source:
            if len(self._indexed) >= _MAX_INDEXED_ARRAYS:
                self._indexed.clear()
            boxes = self._indexed[id(source)] = index()
        return boxes
