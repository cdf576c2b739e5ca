"""The codecs of one array, called directly: for chunks, and for shards, which contain chunks.

A shard has the bytes of its chunks one after the other, in any order, and an index before or after them. The index has
the offset and the length of every chunk, in C order of the grid of the shard, as two little-endian 64-bit numbers. Both
are 2**64 - 1 for a chunk that is not stored.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import zstandard
from zarr.abc.codec import Codec
from zarr.codecs.bytes import BytesCodec
from zarr.codecs.sharding import ShardingCodec
from zarr.codecs.zstd import ZstdCodec
from zarr.core import codec_pipeline as zarrs
from zarr.core import indexing
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer

from icefloe.storage.contract import Buffer as Bytes

Array: TypeAlias = npt.NDArray[Any]
Item: TypeAlias = tuple[Any, ArraySpec, Any, Any, bool]
"""One request of zarr: byte store, chunk spec, selection in the chunk, selection in the output, is it complete."""


def is_synchronous(codec: Codec) -> bool:
    """Whether a codec can be called without an event loop; shards are several chunks in one."""
    if isinstance(codec, ShardingCodec):
        return False
    return hasattr(codec, "_decode_sync") and hasattr(codec, "_encode_sync") and getattr(codec, "_sync_capable", True)


_per_thread = threading.local()
"""Contexts of zstd: a context must not be used by two threads at a time, and a new one for each chunk takes long."""


def _decompress(frame: Bytes) -> bytes | None:
    """The content of a zstd frame. None for anything but one sound frame with a content size: numcodecs decides."""
    context: zstandard.ZstdDecompressor | None = getattr(_per_thread, "decompressor", None)
    if context is None:
        context = _per_thread.decompressor = zstandard.ZstdDecompressor()
    try:
        return context.decompress(frame, allow_extra_data=False) or None
    except (zstandard.ZstdError, MemoryError):  # a damaged frame may claim to have any size
        return None


def _compress(content: Array, codec: ZstdCodec) -> bytes:
    """The zstd frame that numcodecs makes of the bytes of an array."""
    contexts: dict[tuple[int, bool], zstandard.ZstdCompressor] | None = getattr(_per_thread, "compressors", None)
    if contexts is None:
        contexts = _per_thread.compressors = {}
    context = contexts.get((codec.level, codec.checksum))
    if context is None:
        context = zstandard.ZstdCompressor(level=codec.level, write_checksum=codec.checksum)
        contexts[codec.level, codec.checksum] = context
    return context.compress(content.data)


class ChunkCoder:
    """The codecs of one array, called directly."""

    def __init__(self, filters: Any, serializer: Any, compressors: Any) -> None:
        self._filters = filters
        self._serializer = serializer
        self._compressors = compressors
        self._specs: dict[tuple[int, ...], list[ArraySpec]] = {}
        self._known_dtype: tuple[Any, np.dtype[Any] | None] = (None, None)
        is_serialized = not self._filters and type(self._serializer) is BytesCodec
        self.is_plain = is_serialized and not self._compressors
        """The bytes of a chunk are the bytes of an array."""
        self._zstd: ZstdCodec | None = None
        if len(self._compressors) == 1 and type(self._compressors[0]) is ZstdCodec:
            self._zstd = self._compressors[0]
        self._is_numpy = self.is_plain or (is_serialized and self._zstd is not None)
        """The bytes of a chunk are the bytes of an array, or a zstd frame with them."""

    @classmethod
    def of_pipeline(cls, pipeline: Any) -> ChunkCoder:
        """The coder of the codecs of a pipeline."""
        return cls(pipeline.array_array_codecs, pipeline.array_bytes_codec, pipeline.bytes_bytes_codecs)

    def decode(self, body: Bytes, spec: ArraySpec) -> Array:
        """Decode the bytes of a chunk to an array."""
        content = body if self._zstd is None else _decompress(body)
        stored = self._stored_dtype(spec)
        if stored is not None and content is not None:
            return np.frombuffer(content, dtype=stored).reshape(spec.shape)
        specs = self._resolve(spec)
        data: Any = spec.prototype.buffer.from_bytes(body if content is None else content)
        for codec in reversed(self._compressors) if self._zstd is None or content is None else ():
            data = codec._decode_sync(data, specs[-1])
        data = self._serializer._decode_sync(data, specs[-1])
        for codec, each in zip(reversed(self._filters), reversed(specs[:-1]), strict=True):
            data = codec._decode_sync(data, each)
        array: Array = data.as_ndarray_like()
        return array

    def decode_many(self, bodies: Sequence[Bytes], spec: ArraySpec) -> Array | None:
        """Chunks of one shape as one array, with one more dimension at its start. None if `decode` must be asked."""
        stored = self._stored_dtype(spec)
        if stored is None:
            return None
        contents = bodies if self._zstd is None else [_decompress(body) for body in bodies]
        size = math.prod(spec.shape) * stored.itemsize
        found = [content for content in contents if content is not None and len(content) == size]
        if len(found) < len(bodies):
            return None
        return np.frombuffer(b"".join(found), dtype=stored).reshape(len(bodies), *spec.shape)

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
        return self.encode_stored(chunk, spec)

    def encode_stored(self, chunk: Array, spec: ArraySpec) -> Bytes | None:
        """The bytes of a whole chunk that is stored whatever its values are."""
        stored = self._stored_dtype(spec)
        if stored is not None:
            flat = np.ascontiguousarray(chunk, dtype=stored).reshape(-1).view("B")
            return flat.data if self._zstd is None else _compress(flat, self._zstd)
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
        """How numpy reads and writes the bytes of a chunk, or of its zstd frame, by itself, if it can."""
        return self._serialized_dtype(spec) if self._is_numpy else None

    def plain_dtype(self, spec: ArraySpec) -> np.dtype[Any] | None:
        """As what numpy reads the bytes of a chunk. None if a codec must decode them."""
        return self._serialized_dtype(spec) if self.is_plain else None

    def compressed_dtype(self, spec: ArraySpec) -> np.dtype[Any] | None:
        """As what numpy reads the bytes of a chunk once they are out of their zstd frame; None for other codecs."""
        # A checksum stands at the end of a frame: it is there to be looked at.
        if self._zstd is None or self._zstd.checksum:
            return None
        return self._stored_dtype(spec)

    def _serialized_dtype(self, spec: ArraySpec) -> np.dtype[Any] | None:
        known, found = self._known_dtype
        if known is not spec.dtype:
            dtype = spec.dtype.to_native_dtype()
            found = None
            if dtype.kind in "biufc":
                endian = self._serializer.endian
                found = dtype if endian is None else dtype.newbyteorder(getattr(endian, "value", endian))
            self._known_dtype = (spec.dtype, found)
        return found

    def _resolve(self, spec: ArraySpec) -> list[ArraySpec]:
        """What each filter sees, and the serializer after them; most chunks differ in their shape only."""
        found = self._specs.get(spec.shape)
        if found is None or not _differ_in_shape(found[0], spec):
            found = [spec]
            for codec in self._filters:
                found.append(codec.resolve_metadata(found[-1]))
            self._specs[spec.shape] = found
        return found


def _differ_in_shape(spec: ArraySpec, other: ArraySpec) -> bool:
    """Whether two chunks have the same codecs, values and buffers."""
    return spec is other or (
        spec.prototype is other.prototype
        and spec.dtype is other.dtype
        and spec.config is other.config
        and spec.fill_value is other.fill_value
    )


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
        self._chunk_bytes = chunk_bytes(self._chunk_spec)
        self.index_bytes: int = codec._shard_index_size(self._grid)
        self.index_first = getattr(codec.index_location, "value", codec.index_location) == "start"
        self.layout = f"{self._grid} {self.index_first} {list(map(repr, codec.index_codecs))}"
        """How the bytes of the index are understood."""
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

    def read(self, shard: Bytes, part: ShardPart, out: Array | None = None) -> Array:
        """The values of the box of a part, from the bytes of a shard. They are written to `out` if it is given."""
        view, offsets, sizes = self.split(shard)
        if len(part.numbers) == self._count == math.prod(part.grid):
            box = self._new_box(part) if out is None else out
            if self._read_equal(view, offsets, sizes, box):
                return box
        bodies = [
            view[first : first + size] if size >= 0 else None
            for first, size in zip(offsets[part.numbers].tolist(), sizes[part.numbers].tolist(), strict=True)
        ]
        return self.assemble(part, bodies, out)

    def _read_equal(self, view: memoryview, offsets: Any, sizes: Any, box: Array) -> bool:
        """Fill a box with all values of a shard whose chunks are stored as they are, one after the other in any order.

        Returns False, and does nothing, if the shard is not like that.
        """
        stored = self._inner.plain_dtype(self._chunk_spec)
        size = self._chunk_bytes
        if stored is None or not self._count or (sizes != size).any():
            return False
        order = np.argsort(offsets)
        first = int(offsets[order[0]])
        if (offsets[order] != first + size * np.arange(self._count)).any():
            return False
        chunks = np.frombuffer(view, stored, self._count * math.prod(self._chunk_shape), first)
        blocks = self._blocks(box, self._grid)
        blocks[np.unravel_index(order, self._grid)] = chunks.reshape(self._count, *self._chunk_shape)
        return True

    def box_shape(self, part: ShardPart) -> tuple[int, ...]:
        """The shape of the box of a part, in elements."""
        return tuple(n * c for n, c in zip(part.grid, self._chunk_shape, strict=True))

    def box_bytes(self, part: ShardPart) -> int:
        """The size of the decoded chunks that a part needs."""
        return len(part.numbers) * self._chunk_bytes

    def _new_box(self, part: ShardPart) -> Array:
        return np.empty(self.box_shape(part), self._dtype)

    def _blocks(self, box: Array, grid: tuple[int, ...]) -> Array:
        """A view of a box with the dimensions of the grid first, and then those of a chunk."""
        ndim = len(grid)
        split = box.reshape([n for pair in zip(grid, self._chunk_shape, strict=True) for n in pair])
        return split.transpose([*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2)])

    def _coords(self, part: ShardPart) -> tuple[npt.NDArray[np.intp], ...]:
        """Where each inner chunk of a part is in the grid of its box."""
        found = np.unravel_index(part.numbers, self._grid)
        return tuple(each - low for each, low in zip(found, part.corner, strict=True))

    def assemble(self, part: ShardPart, bodies: Sequence[Bytes | None], out: Array | None = None) -> Array:
        """The values of the box of a part, from the bytes of its chunks. Chunks that it does not need are undefined."""
        if out is None and math.prod(part.grid) == len(bodies) == 1:
            return self._values(bodies[0])
        box = self._new_box(part) if out is None else out
        blocks, coords = self._blocks(box, part.grid), self._coords(part)
        is_stored = np.fromiter((body is not None for body in bodies), bool, len(bodies))
        if not is_stored.all():
            blocks[tuple(each[~is_stored] for each in coords)] = fill_value(self._spec)
        stored = np.flatnonzero(is_stored)
        # What is decoded together is copied while it is in the cache of the processor.
        together = max(1, _DECODED_BYTES // max(1, self._chunk_bytes))
        for first in range(0, len(stored), together):
            chosen = stored[first : first + together]
            group = [body for body in (bodies[number] for number in chosen.tolist()) if body is not None]
            where = tuple(each[chosen] for each in coords)
            values = self._inner.decode_many(group, self._chunk_spec) if together > 1 else None
            if values is not None:
                blocks[where] = values
                continue
            for place, body in zip(zip(*(each.tolist() for each in where), strict=True), group, strict=True):
                blocks[place] = self._inner.decode(body, self._chunk_spec)
        return box

    def _values(self, body: Bytes | None) -> Array:
        if body is not None:
            return self._inner.decode(body, self._chunk_spec)
        return np.full(self._chunk_shape, fill_value(self._spec), self._dtype)

    # -- writing --------------------------------------------------------------------------------------------------

    def encode(self, before: Bytes | None, item: Item, value: NDBuffer, drop_axes: tuple[int, ...]) -> Bytes | None:
        """The bytes of a shard after a part of `value` was laid over it; None when nothing is to be kept.

        Chunks that the write does not touch keep their bytes.
        """
        _, _, selection, _, is_complete = item
        bodies: list[Bytes | None] = [None] * self._count
        part = self.part(selection)  # a complete shard at the edge of an array has chunks that are outside of it
        is_new = before is None or is_complete
        if before is not None and not is_complete:
            view, offsets, sizes = self.split(before)
            for number in np.flatnonzero(sizes >= 0).tolist():
                bodies[number] = view[offsets[number] : offsets[number] + sizes[number]]
        box = self._merged(part, bodies, item, value, drop_axes)
        blocks, coords = self._blocks(box, part.grid), self._coords(part)
        is_stored = self._not_empty(blocks, coords)
        if is_new and self._inner.is_plain:
            copied = self._lay_out(part, blocks, coords, is_stored)
            if copied is not None:
                return copied
        places = zip(*(each.tolist() for each in coords), strict=True)
        for number, stored, place in zip(part.numbers.tolist(), is_stored.tolist(), places, strict=True):
            bodies[number] = self._inner.encode_stored(blocks[place], self._chunk_spec) if stored else None
        return self._join(bodies)

    def _not_empty(self, blocks: Array, coords: tuple[Any, ...]) -> npt.NDArray[np.bool_]:
        """Which chunks of a box are to be stored."""
        stored = np.ones(len(coords[0]), dtype=bool)
        if self._spec.config.write_empty_chunks:
            return stored
        if self._dtype.kind in "biufc":
            fill = fill_value(self._spec)
            stored[:] = False
            for corner in ((0,) * len(coords), tuple(n // 2 for n in self._chunk_shape), (-1,) * len(coords)):
                element = blocks[(..., *corner)][coords]
                stored |= (element == element) & (element != fill)
        else:
            stored[:] = False
        for number in np.flatnonzero(~stored).tolist():
            stored[number] = not _is_empty(blocks[tuple(int(each[number]) for each in coords)], self._chunk_spec)
        return stored

    def _lay_out(self, part: ShardPart, blocks: Array, coords: tuple[Any, ...], is_stored: Any) -> Bytes | None:
        """The bytes of a shard whose chunks are stored as they are. None if numpy cannot write them by itself."""
        dtype = self._inner.plain_dtype(self._chunk_spec)
        count = int(is_stored.sum())
        if dtype is None or not count:
            return None
        rank = np.empty(self._count, np.intp)
        rank[self._write_order()] = np.arange(self._count)
        order = np.argsort(rank[part.numbers[is_stored]])
        index = self._encode_index(part.numbers[is_stored][order], np.full(count, self._chunk_bytes, np.int64))
        shard = np.empty(count * self._chunk_bytes + len(index), np.uint8)
        first = len(index) if self.index_first else 0
        chunks = shard[first : first + count * self._chunk_bytes].view(dtype).reshape(count, *self._chunk_shape)
        places = np.empty(count, np.intp)
        places[order] = np.arange(count)
        if count == math.prod(part.grid):
            chunks[places.reshape(part.grid)] = blocks
        else:
            chunks[places] = blocks[tuple(each[is_stored] for each in coords)]
        where = slice(0, first) if self.index_first else slice(len(shard) - len(index), None)
        shard[where] = np.frombuffer(index, np.uint8)
        return shard.data

    def _merged(
        self, part: ShardPart, bodies: list[Bytes | None], item: Item, value: NDBuffer, drop_axes: tuple[int, ...]
    ) -> Array:
        """The box of a part with a part of `value` laid over it."""
        place, spec, _, out_selection, is_complete = item
        shape = self.box_shape(part)
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
        index = self._encode_index(stored, sizes[sizes > 0])
        chunks = [body for body in (bodies[number] for number in stored.tolist()) if body is not None]
        return b"".join([index, *chunks] if self.index_first else [*chunks, index])

    def _encode_index(self, numbers: npt.NDArray[np.intp], sizes: npt.NDArray[np.int64]) -> Bytes:
        """The bytes of the index of a shard that has these chunks in this order."""
        table = np.full((self._count, 2), _NOT_STORED, dtype=np.uint64)
        table[numbers, 1] = sizes
        table[numbers, 0] = np.cumsum(sizes) - sizes + (self.index_bytes if self.index_first else 0)
        index = self._index.encode_stored(table.reshape(self._index_spec.shape), self._index_spec)
        assert index is not None
        return index

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


_DECODED_BYTES = 256 << 10
"""Up to here, chunks of a shard are decoded together."""
_NOT_STORED = np.uint64(2**64 - 1)
"""The offset and the length of an inner chunk that a shard does not contain."""


@functools.lru_cache(maxsize=64)
def shard_coder(codec: Any, spec: ArraySpec) -> ShardCoder:
    return ShardCoder(codec, spec)


def _moved(selection: Any, by: int) -> Any:
    """A selection along one dimension, counted from another element."""
    if isinstance(selection, slice):
        return slice(selection.start - by, selection.stop - by, selection.step)
    return selection - by
