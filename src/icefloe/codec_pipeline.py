"""A Zarr codec pipeline that reads and writes batches of chunks at once, and the coder of single chunks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.codec import Codec
from zarr.codecs.bytes import BytesCodec
from zarr.codecs.sharding import ShardingCodec
from zarr.codecs.zstd import ZstdCodec
from zarr.core import codec_pipeline as zarrs
from zarr.core import indexing
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer, cpu
from zarr.registry import register_pipeline
from zarr.storage import StorePath

from icefloe.chunks.reader import NOT_IN_MEMORY, LocatedChunks
from icefloe.errors import IcefloeError, UnsupportedError
from icefloe.model.chunk_table import batches_up_to
from icefloe.storage.contract import Buffer as Bytes
from icefloe.storage.requests import Threads
from icefloe.store import IcechunkStore

Array: TypeAlias = npt.NDArray[Any]
Item: TypeAlias = tuple[Any, ArraySpec, Any, Any, bool]
"""One request of zarr: byte store, chunk spec, selection in the chunk, selection in the output, is it complete."""


def is_synchronous(codec: Codec) -> bool:
    """Whether a codec can be called without an event loop; shards are several chunks in one."""
    if isinstance(codec, ShardingCodec):
        return False
    return hasattr(codec, "_decode_sync") and hasattr(codec, "_encode_sync") and getattr(codec, "_sync_capable", True)


class ChunkCoder:
    """The codecs of one array, called directly."""

    def __init__(self, filters: Any, serializer: Any, compressors: Any) -> None:
        self._filters = filters
        self._serializer = serializer
        self._compressors = compressors
        self._specs: dict[tuple[int, ...], list[ArraySpec]] = {}
        self.is_plain = not self._filters and not self._compressors and type(self._serializer) is BytesCodec
        """The bytes of a chunk are the bytes of an array."""

    @classmethod
    def of_pipeline(cls, pipeline: Any) -> ChunkCoder:
        """The coder of the codecs of a pipeline."""
        return cls(pipeline.array_array_codecs, pipeline.array_bytes_codec, pipeline.bytes_bytes_codecs)

    def decode(self, body: Bytes, spec: ArraySpec) -> Array:
        """Decode the bytes of a chunk to an array."""
        stored = self._stored_dtype(spec)
        if stored is not None:
            return np.frombuffer(body, dtype=stored).reshape(spec.shape)
        specs = self._resolve(spec)
        data: Any = spec.prototype.buffer.from_bytes(body)
        for codec in reversed(self._compressors):
            data = codec._decode_sync(data, specs[-1])
        data = self._serializer._decode_sync(data, specs[-1])
        for codec, each in zip(reversed(self._filters), reversed(specs[:-1]), strict=True):
            data = codec._decode_sync(data, each)
        array: Array = data.as_ndarray_like()
        return array

    def encode(self, before: Bytes | None, item: Item, value: NDBuffer, drop_axes: tuple[int, ...]) -> Bytes | None:
        """The bytes of a chunk after a part of `value` was laid over it; None when nothing is to be kept."""
        _, spec, _, out_selection, is_complete = item
        chunk = None
        if is_complete and value.shape != ():
            piece = value.as_ndarray_like()[out_selection]
            if piece.shape == spec.shape and piece.dtype == spec.dtype.to_native_dtype():
                chunk = np.asarray(piece)
        if chunk is None:
            existing = None if before is None else _nd_buffer(self.decode(before, spec), spec)
            merged = _merge(existing, value, item, drop_axes)
            chunk = np.asarray(merged.as_ndarray_like())
        return self.encode_values(chunk, spec)

    def encode_values(self, chunk: Array, spec: ArraySpec) -> Bytes | None:
        """The bytes of a whole chunk; None when all of it is the fill value and need not be stored."""
        if not spec.config.write_empty_chunks and _is_empty(chunk, spec):
            return None
        stored = self._stored_dtype(spec)
        if stored is not None:
            flat = np.ascontiguousarray(chunk, dtype=stored).reshape(-1)
            return flat.view("B").data
        if chunk.dtype.kind in "OT":
            # The text codecs of zarr 3.1 take the elements in the order of memory, whatever the shape says.
            chunk = np.ascontiguousarray(chunk)
        return self._encode(_nd_buffer(chunk, spec), spec)

    def _encode(self, data: Any, spec: ArraySpec) -> Bytes | None:
        specs = self._resolve(spec)
        for codec, each in zip(self._filters, specs[:-1], strict=True):
            data = codec._encode_sync(data, each)
            if data is None:
                return None
        for codec in (self._serializer, *self._compressors):
            data = codec._encode_sync(data, specs[-1])
            if data is None:
                return None
        return memoryview(data.as_numpy_array())

    def _stored_dtype(self, spec: ArraySpec) -> np.dtype[Any] | None:
        """How numpy reads and writes the bytes of a chunk by itself, if it can."""
        return self._serialized_dtype(spec) if self.is_plain else None

    def compressed_dtype(self, spec: ArraySpec) -> np.dtype[Any] | None:
        """As what numpy reads the bytes of a chunk once they are out of their zstd frame; None for other codecs."""
        if self._filters or type(self._serializer) is not BytesCodec or len(self._compressors) != 1:
            return None
        codec = self._compressors[0]
        # A checksum stands at the end of a frame: it is there to be looked at.
        return self._serialized_dtype(spec) if type(codec) is ZstdCodec and not codec.checksum else None

    def _serialized_dtype(self, spec: ArraySpec) -> np.dtype[Any] | None:
        dtype = spec.dtype.to_native_dtype()
        if dtype.kind not in "biufc":
            return None
        endian = self._serializer.endian
        return dtype if endian is None else dtype.newbyteorder(getattr(endian, "value", endian))

    def _resolve(self, spec: ArraySpec) -> list[ArraySpec]:
        """What each filter sees, and the serializer after them; chunks of one call differ in their shape only."""
        found = self._specs.get(spec.shape)
        if found is None:
            found = [spec]
            for codec in self._filters:
                found.append(codec.resolve_metadata(found[-1]))
            self._specs[spec.shape] = found
        return found


def _merge(existing: Any, value: NDBuffer, item: Item, drop_axes: tuple[int, ...]) -> NDBuffer:
    """A chunk with a part of `value` laid over it, as zarr does it."""
    _, spec, chunk_selection, out_selection, is_complete = item
    arguments = (existing, value, out_selection, spec, chunk_selection, is_complete, drop_axes)
    function: Any = getattr(zarrs, "_merge_chunk_array", None)
    if function is None:
        # Zarr 3.1 has it as a method that does not look at the pipeline.
        method: Any = zarrs.BatchedCodecPipeline
        merged: NDBuffer = method._merge_chunk_array(None, *arguments)
    else:
        merged = function(*arguments)
    return merged


def fill_value(spec: ArraySpec) -> Any:
    """What every element of a chunk is that was never written."""
    return spec.dtype.default_scalar() if spec.fill_value is None else spec.fill_value


def _is_empty(chunk: Array, spec: ArraySpec) -> bool:
    """Whether every element is the fill value, by zarr's own rule."""
    fill = fill_value(spec)
    if chunk.size and chunk.dtype.kind in "biufc":
        first = chunk[(0,) * chunk.ndim]
        if first == first and first != fill:
            return False
    return bool(_nd_buffer(chunk, spec).all_equal(fill))


def _nd_buffer(chunk: Any, spec: ArraySpec) -> NDBuffer:
    return spec.prototype.nd_buffer(chunk)


def chunk_bytes(spec: ArraySpec) -> int:
    """The size of a decoded chunk."""
    return math.prod(spec.shape) * spec.dtype.to_native_dtype().itemsize


@dataclass(frozen=True, slots=True)
class ShardPart:
    """The inner chunks of a shard that a selection needs, and the smallest box of whole inner chunks around them."""

    numbers: npt.NDArray[np.intp]
    """The inner chunks, counted in C order of the grid of the shard."""
    corner: tuple[int, ...]
    """The first inner chunk of the box, in the grid."""
    grid: tuple[int, ...]
    """The shape of the box, in inner chunks."""
    selection: Any
    """The selection, counted from the first element of the box."""
    is_whole_box: bool
    """Every element of the box is selected, in order."""


class ShardCoder:
    """The codecs of a sharded array. A shard contains chunks and an index of their ranges."""

    def __init__(self, codec: Any, spec: ArraySpec) -> None:
        self._inner = ChunkCoder(*zarrs.codecs_from_list(list(codec.codecs)))
        self._index = ChunkCoder(*zarrs.codecs_from_list(list(codec.index_codecs)))
        self._spec = spec
        self._chunk_shape = tuple(codec.chunk_shape)
        self._chunk_spec = replace(spec, shape=self._chunk_shape)
        self._grid = tuple(n // c for n, c in zip(spec.shape, self._chunk_shape, strict=True))
        self._index_spec = codec._get_index_chunk_spec(self._grid)
        self._codec = codec
        self._count = math.prod(self._grid)
        self._dtype = spec.dtype.to_native_dtype()
        self.index_bytes: int = codec._shard_index_size(self._grid)
        self.index_first = getattr(codec.index_location, "value", codec.index_location) == "start"
        self.is_plain = self._inner.is_plain
        self._order: npt.NDArray[np.intp] | None = None

    # -- which chunks a selection needs ---------------------------------------------------------------------------

    def part(self, selection: Any) -> ShardPart:
        """What a selection of elements of the shard needs."""
        if not isinstance(selection, tuple) or len(selection) != len(self._grid):
            return self._everything(selection)
        touched: list[Any] = []
        bounds: list[tuple[int, int]] = []
        normal: list[Any] = []
        whole = True
        for each, size, extent in zip(selection, self._chunk_shape, self._spec.shape, strict=True):
            if isinstance(each, slice):
                first, stop, step = each.indices(extent)
                if step < 1:
                    return self._everything(selection)
                last = first + (stop - first - 1) // step * step if stop > first else first
                low, high = first // size, last // size + 1
                touched.append(slice(low, high) if stop > first else slice(0, 0))
                whole = whole and step == 1 and first == low * size and stop == min(high * size, extent)
            else:
                places = np.asarray(each)
                if places.dtype == np.dtype(bool):
                    places = np.flatnonzero(places)
                if places.dtype.kind not in "iu" or (places.size and int(places.min()) < 0):
                    return self._everything(selection)
                low, high = (int(places.min()) // size, int(places.max()) // size + 1) if places.size else (0, 1)
                touched.append(places // size if places.ndim else int(places) // size)
                whole = False
            bounds.append((low, high))
            normal.append(
                slice(first, stop, step) if isinstance(each, slice) else places if places.ndim else int(places)
            )
        corner = tuple(low for low, _ in bounds)
        if all(isinstance(each, slice | int) for each in touched):
            lines = [
                np.arange(self._grid[d])[each] if isinstance(each, slice) else np.array([each])
                for d, each in enumerate(touched)
            ]
            numbers = _numbers(np.ix_(*lines), self._grid)
        else:
            needed = np.zeros(self._grid, dtype=bool)
            needed[tuple(touched)] = True
            numbers = np.flatnonzero(needed)
        moved = tuple(
            _moved(each, low * size) for each, low, size in zip(normal, corner, self._chunk_shape, strict=True)
        )
        return ShardPart(numbers, corner, tuple(high - low for low, high in bounds), moved, whole)

    def _everything(self, selection: Any) -> ShardPart:
        return ShardPart(np.arange(self._count), (0,) * len(self._grid), self._grid, selection, False)

    def share(self, part: ShardPart) -> float:
        """The share of the inner chunks that a part needs."""
        return float(len(part.numbers) / max(1, self._count))

    # -- the index ------------------------------------------------------------------------------------------------

    def ranges(self, index: Bytes, length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """First byte and length of every inner chunk, from the bytes of the index. A missing one has the length -1."""
        table = self._index.decode(index, self._index_spec).reshape(-1, 2)
        missing = (table == _NOT_STORED).all(axis=1)
        offsets, sizes = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
        offsets[missing], sizes[missing] = 0, -1
        wrong = ~missing & ((table[:, 0] > length) | (table[:, 1] > length) | (offsets + sizes > length))
        if wrong.any():
            raise ValueError(f"the index of the shard has a chunk outside of the shard's {length} bytes")
        return offsets, sizes

    def split(self, shard: Bytes) -> tuple[memoryview, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The bytes of a shard with the first byte and the length of every inner chunk."""
        view = memoryview(shard)
        if len(view) < self.index_bytes:
            raise ValueError(f"the shard has {len(view)} bytes, but its index alone has {self.index_bytes}")
        index = view[: self.index_bytes] if self.index_first else view[len(view) - self.index_bytes :]
        return view, *self.ranges(index, len(view))

    # -- values ---------------------------------------------------------------------------------------------------

    def read(self, shard: Bytes, part: ShardPart) -> Array:
        """The values of the box of a part, from the bytes of a shard."""
        view, offsets, sizes = self.split(shard)
        if len(part.numbers) == self._count == math.prod(part.grid):
            together = self._read_equal(view, offsets, sizes)
            if together is not None:
                return together
        bodies = [
            view[first : first + size] if size >= 0 else None
            for first, size in zip(offsets[part.numbers].tolist(), sizes[part.numbers].tolist(), strict=True)
        ]
        return self.assemble(part, bodies)

    def _read_equal(self, view: memoryview, offsets: Any, sizes: Any) -> Array | None:
        """All values of a shard whose chunks are stored as they are, one after the other in any order; else None."""
        stored = self._inner._stored_dtype(self._chunk_spec)
        if stored is None or not self._count:
            return None
        size = math.prod(self._chunk_shape) * stored.itemsize
        first = int(offsets.min())
        numbers, rest = np.divmod(offsets - first, size) if size else (offsets, offsets)
        if not size or (sizes != size).any() or rest.any() or int(numbers.max()) >= self._count:
            return None
        chunks = np.frombuffer(view, stored, self._count * math.prod(self._chunk_shape), first)
        blocks = chunks.reshape(self._count, *self._chunk_shape)[numbers].reshape(*self._grid, *self._chunk_shape)
        ndim = len(self._grid)
        return blocks.transpose([axis for d in range(ndim) for axis in (d, ndim + d)]).reshape(self._spec.shape)

    def assemble(self, part: ShardPart, bodies: Sequence[Bytes | None]) -> Array:
        """The values of the box of a part, from the bytes of its chunks. Chunks that it does not need are undefined."""
        if math.prod(part.grid) == len(bodies) == 1:
            return self._values(bodies[0])
        box = np.empty(tuple(n * c for n, c in zip(part.grid, self._chunk_shape, strict=True)), self._dtype)
        for where, body in zip(self._places(part), bodies, strict=True):
            box[where] = fill_value(self._spec) if body is None else self._inner.decode(body, self._chunk_spec)
        return box

    def _values(self, body: Bytes | None) -> Array:
        if body is not None:
            return self._inner.decode(body, self._chunk_spec)
        return np.full(self._chunk_shape, fill_value(self._spec), self._dtype)

    def _places(self, part: ShardPart) -> Iterator[tuple[slice, ...]]:
        """Where each inner chunk of a part is in its box."""
        coords = np.stack(np.unravel_index(part.numbers, self._grid), axis=1) if self._grid else np.zeros((1, 0), int)
        starts = (coords - np.array(part.corner, dtype=np.intp)) * np.array(self._chunk_shape, dtype=np.intp)
        for row in starts.tolist():
            yield tuple(slice(first, first + size) for first, size in zip(row, self._chunk_shape, strict=True))

    # -- writing --------------------------------------------------------------------------------------------------

    def encode(self, before: Bytes | None, item: Item, value: NDBuffer, drop_axes: tuple[int, ...]) -> Bytes | None:
        """The bytes of a shard after a part of `value` was laid over it; None when nothing is to be kept.

        Chunks that the write does not touch keep their bytes.
        """
        _, _, selection, _, is_complete = item
        bodies: list[Bytes | None] = [None] * self._count
        part = self.part(selection)  # a complete shard at the edge of an array has chunks that are outside of it
        if before is not None and not is_complete:
            view, offsets, sizes = self.split(before)
            for number in np.flatnonzero(sizes >= 0).tolist():
                bodies[number] = view[offsets[number] : offsets[number] + sizes[number]]
        box = self._merged(part, bodies, item, value, drop_axes)
        for number, where in zip(part.numbers.tolist(), self._places(part), strict=True):
            bodies[number] = self._inner.encode_values(box[where], self._chunk_spec)
        return self._join(bodies)

    def _merged(
        self, part: ShardPart, bodies: list[Bytes | None], item: Item, value: NDBuffer, drop_axes: tuple[int, ...]
    ) -> Array:
        """The box of a part with a part of `value` laid over it."""
        place, spec, _, out_selection, is_complete = item
        shape = tuple(n * c for n, c in zip(part.grid, self._chunk_shape, strict=True))
        if part.is_whole_box and value.shape != () and not drop_axes:
            piece = value.as_ndarray_like()[out_selection]
            if piece.shape == shape and piece.dtype == self._dtype:
                return np.asarray(piece)
        existing = None
        if not is_complete and any(bodies[number] is not None for number in part.numbers.tolist()):
            existing = _nd_buffer(self.assemble(part, [bodies[number] for number in part.numbers.tolist()]), spec)
        change = (place, replace(spec, shape=shape), part.selection, out_selection, False)
        return np.asarray(_merge(existing, value, change, drop_axes).as_ndarray_like())

    def _join(self, bodies: Sequence[Bytes | None]) -> Bytes | None:
        """The bytes of a shard with its index."""
        order = self._write_order()
        sizes = np.fromiter((0 if body is None else len(body) for body in bodies), np.int64, self._count)[order]
        stored = order[sizes > 0]
        if not len(stored):
            return None
        ends = np.cumsum(sizes[sizes > 0])
        table = np.full((self._count, 2), _NOT_STORED, dtype=np.uint64)
        table[stored, 1] = sizes[sizes > 0]
        table[stored, 0] = ends - sizes[sizes > 0] + (self.index_bytes if self.index_first else 0)
        index = self._index.encode_values(table.reshape(self._index_spec.shape), self._index_spec)
        assert index is not None
        chunks = [body for body in (bodies[number] for number in stored.tolist()) if body is not None]
        return b"".join([index, *chunks] if self.index_first else [*chunks, index])

    def _write_order(self) -> npt.NDArray[np.intp]:
        """The numbers of the inner chunks in the order in which zarr stores them."""
        if self._order is None:
            order = getattr(self._codec, "_subchunk_order_iter", None)
            if order is not None:
                coords = order(self._grid, self._codec.subchunk_write_order)
            else:
                coords = _ZARR_INDEXING.morton_order_iter(self._grid)  # zarr 3.1
            listed = np.array(list(coords), dtype=np.intp).reshape(self._count, len(self._grid))
            self._order = _numbers(tuple(listed.T), self._grid)
        return self._order


_ZARR_INDEXING: Any = indexing


def _numbers(coords: tuple[Any, ...], grid: tuple[int, ...]) -> npt.NDArray[np.intp]:
    """Coordinates in a grid as numbers in C order."""
    return np.ravel_multi_index(coords, grid).ravel() if grid else np.zeros(1, np.intp)


_NOT_STORED = np.uint64(2**64 - 1)
"""The offset and the length of an inner chunk that a shard does not contain."""


@functools.lru_cache(maxsize=64)
def _shard_coder(codec: Any, spec: ArraySpec) -> ShardCoder:
    return ShardCoder(codec, spec)


def _moved(selection: Any, by: int) -> Any:
    """A selection along one dimension, counted from another element."""
    if isinstance(selection, slice):
        return slice(selection.start - by, selection.stop - by, selection.step)
    return selection - by


T = TypeVar("T")

_ZARRS_DEFAULT = "zarr.core.codec_pipeline.BatchedCodecPipeline"
_ROUND_BYTES = 8 << 20
"""Chunks are fetched and decoded in rounds of this many bytes, so that a large read holds few encoded chunks."""
_ROUNDS = 4
"""Concurrent rounds: some wait for storage while others compute."""
_WHOLE_SHARD_SHARE = 0.5
"""From this share of its chunks on, a shard is fetched whole: one request instead of one for the index and others."""
_INLINE_BYTES = 1 << 20
"""Up to here, handing the work to a thread takes longer than the work."""
_LARGE_CHUNK_BYTES = 64 << 10
_WORKERS = min(8, os.cpu_count() or 1)
_CODERS = Threads("codecs", _WORKERS)


@dataclass(frozen=True)
class NamingPipeline(zarrs.BatchedCodecPipeline):
    """Zarr's pipeline, except that the error for a chunk of ours that cannot be decoded names the chunk."""

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Any) -> Any:
        """The pipeline for an array: this one for our stores, zarr's own for others."""
        if isinstance(store, IcechunkStore):
            raise NotImplementedError("zarr builds the pipeline from the codecs")
        ours: Any = zarr.core.array.create_codec_pipeline(array_metadata)
        return zarrs.BatchedCodecPipeline(
            array_array_codecs=ours.array_array_codecs,
            array_bytes_codec=ours.array_bytes_codec,
            bytes_bytes_codecs=ours.bytes_bytes_codecs,
            batch_size=ours.batch_size,
        )

    async def read(self, batch_info: Iterable[Item], out: NDBuffer, drop_axes: tuple[int, ...] = ()) -> Any:
        """Fill `out` from chunks. Returns for each chunk whether it exists."""
        batch = list(batch_info)
        try:
            return await super().read(batch, out, drop_axes)
        except Exception as error:
            await self._explain(batch, error)
            raise

    async def write(self, batch_info: Iterable[Item], value: NDBuffer, drop_axes: tuple[int, ...] = ()) -> None:
        """Write the parts of `value` that each chunk takes."""
        batch = list(batch_info)
        try:
            await super().write(batch, value, drop_axes)
        except Exception as error:
            await self._explain([item for item in batch if not item[4]], error)
            raise

    async def _explain(self, batch: Sequence[Item], error: Exception) -> None:
        """After a failure: raise the error that names the first chunk which cannot be decoded; return if all can."""
        if isinstance(error, IcefloeError | MemoryError):
            return
        for place, spec, *_ in batch:
            if not isinstance(place, StorePath) or not isinstance(place.store, IcechunkStore):
                return
            body = await place.get(prototype=spec.prototype)
            try:
                list(await self.decode([(body, spec)]))
            except Exception as found:
                located = await place.store.session.keyspace.locate([place.path])
                if located is None:
                    return
                raise located.undecodable(0, found) from found


@dataclass(frozen=True)
class BatchedChunkPipeline(NamingPipeline):
    """Zarr's pipeline, except that chunks in a session are located, fetched, decoded and written in bulk.

    Whatever it does not know is left to zarr: other stores, shards in shards, codecs without a synchronous form, and
    buffers outside of main memory.
    """

    async def read(self, batch_info: Iterable[Item], out: NDBuffer, drop_axes: tuple[int, ...] = ()) -> Any:
        """Fill `out` from chunks. Returns for each chunk whether it exists."""
        batch = list(batch_info)
        store = self._store_of(batch, out)
        coder = None if store is None else self._coder_of(batch)
        if store is not None and len(batch) == 1 and isinstance(coder, ChunkCoder):
            status = _read_one(store, coder, batch[0], out, drop_axes)
            if status is not None:
                return (status,)
        located = None
        if store is not None and coder is not None:
            located = await store.session.keyspace.locate([item[0].path for item in batch])
        if located is None or coder is None:
            return await super().read(batch, out, drop_axes)
        target = out.as_ndarray_like()
        if isinstance(coder, ShardCoder):
            await _read_shards(coder, located, batch, target, drop_axes)
            return _statuses(located)

        async def read_round(first: int, end: int) -> None:
            bodies = await located.fetch(first, end)
            work = [
                (i, body, *item) for i, (body, item) in enumerate(zip(bodies, batch[first:end], strict=True), first)
            ]
            await _spread(work, coder.is_plain, int(lengths[first:end].sum()), lambda part: scatter(part))

        def scatter(part: Sequence[Any]) -> None:
            for i, body, _, spec, chunk_selection, out_selection, _ in part:
                if body is None:
                    target[out_selection] = fill_value(spec)
                    continue
                try:
                    chunk = coder.decode(body, spec)
                except MemoryError:
                    raise
                except Exception as error:
                    raise located.undecodable(i, error) from error
                piece = chunk[chunk_selection]
                target[out_selection] = np.squeeze(piece, axis=drop_axes) if drop_axes else piece

        lengths = np.maximum(located.lengths, 0)
        await _in_rounds(lengths, read_round)
        return _statuses(located)

    async def write(self, batch_info: Iterable[Item], value: NDBuffer, drop_axes: tuple[int, ...] = ()) -> None:
        """Write the parts of `value` that each chunk takes."""
        batch = list(batch_info)
        store = self._store_of(batch, value)
        coder = None if store is None else self._coder_of(batch)
        if store is None or coder is None:
            return await super().write(batch, value, drop_axes)
        keys = [item[0].path for item in batch]
        keyspace = store.session.keyspace
        if keyspace.find_chunks(keys) is None or len(set(keys)) < len(keys):
            return await super().write(batch, value, drop_axes)
        store._check_writable()

        async def write_round(first: int, end: int) -> None:
            before = await _existing(keyspace, batch[first:end], first)
            work = [(i, before.get(i), item) for i, item in enumerate(batch[first:end], start=first)]
            encoded: dict[int, Bytes | None] = {}
            try:
                await _spread(work, coder.is_plain, int(sizes[first:end].sum()), lambda part: encode(part, encoded))
            except Exception as error:
                await self._explain([batch[i] for i in before], error)
                raise
            filled = {i: data for i, data in sorted(encoded.items()) if data is not None}
            await keyspace.write_chunks([keys[i] for i in filled], list(filled.values()))
            await keyspace.delete_chunks([keys[i] for i in sorted(encoded.keys() - filled.keys())])

        def encode(part: Sequence[Any], encoded: dict[int, Bytes | None]) -> None:
            for i, body, item in part:
                encoded[i] = coder.encode(body, item, value, drop_axes)

        sizes = np.array([chunk_bytes(item[1]) for item in batch], dtype=np.int64)
        await _in_rounds(sizes, write_round)
        return None

    def _store_of(self, batch: Sequence[Item], buffer: NDBuffer) -> IcechunkStore | None:
        """The store of ours that all chunks are in; None when zarr should do the work."""
        if not batch:
            return None
        place, spec = batch[0][0], batch[0][1]
        if not isinstance(place, StorePath) or not isinstance(place.store, IcechunkStore):
            return None
        store = place.store
        in_memory = isinstance(buffer.as_ndarray_like(), np.ndarray) and spec.prototype.buffer is cpu.Buffer
        if not in_memory:
            return None
        return store if all(type(item[0]) is StorePath and item[0].store is store for item in batch) else None

    def _coder_of(self, batch: Sequence[Item]) -> ChunkCoder | ShardCoder | None:
        """The coder of the array. None if only zarr can call the codecs.

        That is the case for codecs that need an event loop, shards in shards, codecs around shards, and shards of
        different shapes.
        """
        codec: Any = self.array_bytes_codec
        if type(codec) is not ShardingCodec:
            return ChunkCoder.of_pipeline(self) if all(map(is_synchronous, self)) else None
        if not batch or self.array_array_codecs or self.bytes_bytes_codecs:
            return None
        spec = batch[0][1]
        if not all(map(is_synchronous, (*codec.codecs, *codec.index_codecs))):
            return None
        if not all(item[1].shape == spec.shape for item in batch):
            return None
        try:
            return _shard_coder(codec, spec)
        except TypeError:  # a fill value that cannot be hashed
            return ShardCoder(codec, spec)


def _read_one(
    store: IcechunkStore, coder: ChunkCoder, item: Item, out: NDBuffer, drop_axes: tuple[int, ...]
) -> Any | None:
    """Fill `out` from a chunk that is in memory or in a small local file, without a turn of the event loop.

    None if it is elsewhere, or cannot be decoded: then the other way names the chunk in its error.
    """
    place, spec, chunk_selection, out_selection, _ = item
    body = store.session.keyspace.fetch_now(place.path)
    if body is NOT_IN_MEMORY or (body is not None and len(body) > _INLINE_BYTES):
        return None
    target: Any = out.as_ndarray_like()
    if body is None:
        target[out_selection] = fill_value(spec)
        return {"status": "missing"}
    try:
        chunk = coder.decode(body, spec)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - raised with the name of the chunk by the other way
        return None
    piece = chunk[chunk_selection]
    target[out_selection] = np.squeeze(piece, axis=drop_axes) if drop_axes else piece
    return {"status": "present"}


def _statuses(located: LocatedChunks) -> tuple[Any, ...]:
    return tuple({"status": "missing" if length < 0 else "present"} for length in located.lengths.tolist())


async def _read_shards(
    coder: ShardCoder, located: LocatedChunks, batch: Sequence[Item], target: Any, drop_axes: tuple[int, ...]
) -> None:
    """Fill `target` from shards.

    A shard of which half or more is needed is fetched whole. Of the others, the indexes are fetched together, and then
    the ranges of the chunks together, so that a read of many shards waits twice and not once for each of them.
    """
    parts = [coder.part(item[2]) for item in batch]
    shares = np.array([coder.share(part) for part in parts])
    whole = shares >= _WHOLE_SHARD_SHARE
    lengths = np.maximum(located.lengths, 0)
    sizes = np.where(whole, lengths, (lengths * shares).astype(np.int64) + coder.index_bytes)

    async def read_round(first: int, end: int) -> None:
        is_present = located.lengths[first:end] >= 0
        for position in (first + np.flatnonzero(~is_present)).tolist():
            target[batch[position][3]] = fill_value(batch[position][1])
        present = first + np.flatnonzero(is_present)
        at_once, by_index = present[whole[present]], present[~whole[present]]
        reads = [
            located.fetch_ranges(at_once, np.zeros(len(at_once), np.int64), lengths[at_once]),
            located.fetch_ranges(by_index, *_index_ranges(coder, located, by_index)),
        ]
        shards, indexes = (
            await asyncio.gather(*reads) if len(at_once) and len(by_index) else [await each for each in reads]
        )
        wanted = _wanted_ranges(coder, located, parts, by_index, indexes)
        bodies = iter(await located.fetch_ranges(*wanted.fetched()))
        work: list[tuple[int, Any]] = list(zip(at_once.tolist(), shards, strict=True))
        for position, stored in wanted.stored:
            work.append((position, [next(bodies) if is_stored else None for is_stored in stored]))
        await _spread(work, coder.is_plain, int(sizes[first:end].sum()), scatter)

    def scatter(share: Sequence[tuple[int, Any]]) -> None:
        for position, data in share:
            part = parts[position]
            try:
                box = coder.assemble(part, data) if isinstance(data, list) else coder.read(data, part)
            except MemoryError:
                raise
            except Exception as error:
                raise located.undecodable(position, error) from error
            piece = box[part.selection]
            target[batch[position][3]] = np.squeeze(piece, axis=drop_axes) if drop_axes else piece

    await _in_rounds(sizes, read_round)


def _index_ranges(coder: ShardCoder, located: LocatedChunks, positions: Any) -> tuple[Any, Any]:
    """Where the indexes of shards are."""
    lengths = located.lengths[positions]
    for position in positions[lengths < coder.index_bytes].tolist():
        short = ValueError(f"the shard has {located.lengths[position]} bytes, its index alone {coder.index_bytes}")
        raise located.undecodable(position, short)
    starts = np.zeros(len(positions), np.int64) if coder.index_first else lengths - coder.index_bytes
    return starts, np.full(len(positions), coder.index_bytes, np.int64)


@dataclass(frozen=True, slots=True)
class _WantedRanges:
    """The ranges of the inner chunks that a read needs, shard by shard."""

    stored: list[tuple[int, list[bool]]]
    """The position of each shard, and which of the chunks it needs are in the shard."""
    columns: list[tuple[npt.NDArray[np.int64], ...]]

    def fetched(self) -> tuple[npt.NDArray[np.int64], ...]:
        """Position of the shard, first byte and length of each chunk."""
        empty = np.empty(0, np.int64)
        positions, starts, sizes = zip(*self.columns, strict=True) if self.columns else ((empty,),) * 3
        return np.concatenate(positions), np.concatenate(starts), np.concatenate(sizes)


def _wanted_ranges(
    coder: ShardCoder, located: LocatedChunks, parts: Sequence[ShardPart], positions: Any, indexes: Sequence[Bytes]
) -> _WantedRanges:
    wanted = _WantedRanges([], [])
    for position, index in zip(positions.tolist(), indexes, strict=True):
        try:
            offsets, sizes = coder.ranges(index, int(located.lengths[position]))
        except Exception as error:
            raise located.undecodable(position, error) from error
        numbers = parts[position].numbers
        stored = sizes[numbers] >= 0
        chosen = numbers[stored]
        wanted.stored.append((position, stored.tolist()))
        wanted.columns.append((np.full(len(chosen), position, np.int64), offsets[chosen], sizes[chosen]))
    return wanted


async def _existing(keyspace: Any, batch: Sequence[Item], first: int) -> dict[int, Bytes]:
    """The bytes of the chunks that are written in part, by position."""
    partial = [i for i, item in enumerate(batch) if not item[4]]
    if not partial:
        return {}
    if len(partial) == 1:
        found = keyspace.fetch_now(batch[partial[0]][0].path)
        if found is not NOT_IN_MEMORY:
            return {} if found is None else {first + partial[0]: found}
    located = await keyspace.locate([batch[i][0].path for i in partial])
    if located is None:
        return {}
    bodies = await located.fetch(0, len(partial))
    return {first + i: body for i, body in zip(partial, bodies, strict=True) if body is not None}


async def _in_rounds(sizes: npt.NDArray[np.int64], work: Callable[[int, int], Any]) -> None:
    """Do the work in rounds of about `_ROUND_BYTES`, a few at a time."""
    if len(sizes) == 1:
        await work(0, 1)
        return
    turns = asyncio.Semaphore(_ROUNDS)

    async def one(first: int, end: int) -> None:
        async with turns:
            await work(first, end)

    rounds = list(batches_up_to(_ROUND_BYTES, np.cumsum(sizes)))
    if len(rounds) == 1:
        await work(*rounds[0])
    else:
        await asyncio.gather(*(one(*each) for each in rounds))


async def _spread(work: Sequence[T], is_plain: bool, size_bytes: int, do: Callable[[Sequence[T]], None]) -> None:
    """Do the work here when there is little, else in threads: several, unless it is many tiny copies."""
    if size_bytes <= _INLINE_BYTES:
        do(work)
        return
    # Copies of a few kilobytes hold Python's lock most of the time: more threads would only wait for one another.
    parts = 1 if is_plain and size_bytes < len(work) * _LARGE_CHUNK_BYTES else min(_WORKERS, len(work))
    edges = np.linspace(0, len(work), parts + 1).astype(int).tolist()
    await asyncio.gather(*(_run(do, work[a:b]) for a, b in pairwise(edges)))


async def _run(do: Callable[[Sequence[T]], None], part: Sequence[T]) -> None:
    await _CODERS.run(lambda: do(part))


PIPELINE = f"{BatchedChunkPipeline.__module__}.{BatchedChunkPipeline.__qualname__}"
PLAIN_PIPELINE = f"{NamingPipeline.__module__}.{NamingPipeline.__qualname__}"
register_pipeline(NamingPipeline)
register_pipeline(BatchedChunkPipeline)


class _Choice:
    """Whether the user has chosen a pipeline."""

    by_default = os.environ.get("ICEFLOE_FAST_PIPELINE", "1").strip().lower() not in ("0", "false", "no", "off")


def enable_fast_pipeline() -> None:
    """Read and write many chunks at once, for arrays of Icefloe stores opened from now on.

    Arrays in other stores are not affected. The function sets `codec_pipeline.path` in the configuration of zarr.

    Examples
    --------
    >>> import icefloe
    >>> icefloe.enable_fast_pipeline()
    """
    zarr.config.set({"codec_pipeline.path": PIPELINE})


def disable_fast_pipeline() -> None:
    """Use zarr's own code for arrays opened from now on. It reads and writes chunk by chunk.

    An error for a chunk that cannot be decoded still contains the name of the chunk.

    Examples
    --------
    >>> import icefloe
    >>> icefloe.disable_fast_pipeline()
    >>> icefloe.enable_fast_pipeline()
    """
    _Choice.by_default = False
    if zarr.config.get("codec_pipeline.path") in (PIPELINE, _ZARRS_DEFAULT):
        zarr.config.set({"codec_pipeline.path": PLAIN_PIPELINE})


def prefer_fast_pipeline() -> None:
    """Use the pipeline unless the user chose another one."""
    if zarr.config.get("codec_pipeline.path") == _ZARRS_DEFAULT:
        zarr.config.set({"codec_pipeline.path": PIPELINE if _Choice.by_default else PLAIN_PIPELINE})


@contextlib.contextmanager
def fast_pipeline() -> Iterator[None]:
    """Like `enable_fast_pipeline`, for arrays opened inside a `with` block.

    Yields
    ------
    None
        Nothing.

    Examples
    --------
    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with icefloe.fast_pipeline(), repo.transaction("main", message="data") as store:
    ...     array = zarr.create_array(store, name="t", shape=3, dtype="f4")
    """
    with zarr.config.set({"codec_pipeline.path": PIPELINE}):
        yield


__all__ = [
    "PIPELINE",
    "BatchedChunkPipeline",
    "disable_fast_pipeline",
    "enable_fast_pipeline",
    "fast_pipeline",
    "prefer_fast_pipeline",
]


def has_variable_grids() -> bool:
    """Whether zarr reads and writes chunks of different lengths, and is asked to."""
    return bool(zarr.config.get("array.rectilinear_chunks", False))


def enable_variable_grids() -> None:
    """Let zarr use chunks of different lengths in this process, for a worker of a job that has them."""
    if not has_variable_grids():
        zarr.config.set({"array.rectilinear_chunks": True})


def check_grid(path: str, document: Mapping[str, Any]) -> None:
    """Refuse an array of the repository whose chunk grid zarr does not read."""
    name = document["chunk_grid"]["name"]
    if name != "regular" and not has_variable_grids():
        text = f"/{path} has the chunk grid {name!r}, which zarr does not use here. {variable_grid_advice()}"
        raise UnsupportedError(text, path=path)


def variable_grid_advice() -> str:
    """What makes zarr use chunks of different lengths."""
    if "rectilinear_chunks" in zarr.config.get("array"):
        return "Set the variable ZARR_ARRAY__RECTILINEAR_CHUNKS=True, also for the workers of Spark"
    return "Use Python 3.12 or newer with a newer zarr"
