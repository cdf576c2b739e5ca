"""Values of chunks or parts of chunks, fetched and decoded ahead of their use."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zarr
from zarr.codecs import ShardingCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.codec_pipeline import BatchedCodecPipeline

from icefloe.blocking import blocking_loop, run_blocking
from icefloe.chunk_coders import ChunkCoder, fill_value, is_synchronous
from icefloe.chunks.reader import LocatedChunks
from icefloe.model.chunk_table import batches_up_to
from icefloe.session.session import Session
from icefloe.storage.contract import Buffer
from icefloe.storage.requests import Threads
from icefloe.tables.grids import chunk_lengths, open_array
from icefloe.tables.table_options import RepositoryAddress, session_at

_SAVED_BYTES = 1 << 19
"""From this size on, decoding only a part of a chunk is faster than decoding all of it."""
_Values: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ChunkDecoder:
    """Turns the bytes of any chunk of an array into values."""

    coder: ChunkCoder
    spec: ArraySpec

    def of_shape(self, shape: tuple[int, ...]) -> ChunkDecoder:
        """The decoder of chunks of another shape."""
        spec = self.spec
        return ChunkDecoder(self.coder, ArraySpec(shape, spec.dtype, spec.fill_value, spec.config, spec.prototype))

    def __call__(self, body: Buffer | None) -> _Values:
        """The read-only values of a whole chunk. None for a chunk that was never written."""
        if body is None:
            return np.broadcast_to(
                np.asarray(fill_value(self.spec), self.spec.dtype.to_native_dtype()), self.spec.shape
            )
        return self.coder.decode(body, self.spec)


def decoder_of(array: zarr.Array[Any], shape: tuple[int, ...] | None = None) -> ChunkDecoder | None:
    """The decoder of chunks of a shape, by default the one of all chunks.

    None where only zarr knows how: shards, and codecs that need an event loop.
    """
    inner: Any = array.async_array
    pipeline = inner.codec_pipeline
    if not isinstance(pipeline, BatchedCodecPipeline) or not all(map(is_synchronous, pipeline)):
        return None
    metadata = inner.metadata
    if isinstance(pipeline.array_bytes_codec, ShardingCodec):
        return None
    spec = ArraySpec(
        shape=tuple(array.chunks) if shape is None else shape,
        dtype=metadata.dtype,
        fill_value=metadata.fill_value,
        config=inner.config if hasattr(inner, "config") else inner._config,
        prototype=default_buffer_prototype(),
    )
    return ChunkDecoder(ChunkCoder.of_pipeline(pipeline), spec)


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """The cells of a chunk at some positions along each of its dimensions."""

    positions: tuple[npt.NDArray[np.int64], ...]

    def end(self, shape: Sequence[int]) -> int:
        """The number of cells of the chunk up to and including the last selected one."""
        last = 0
        for each, length in zip(self.positions, shape, strict=True):
            last = last * length + int(each[-1])
        return last + 1

    def take(self, chunk: _Values) -> _Values:
        """The selected cells of the whole chunk. A view if they are contiguous."""
        window = tuple(slice(int(each[0]), int(each[-1]) + 1) for each in self.positions)
        return without_gaps(chunk[window], self.positions)


def without_gaps(values: _Values, positions: Sequence[npt.NDArray[np.int64]]) -> _Values:
    """The selected cells of a window. Positions are relative to the start of the window."""
    if any(len(each) != size for each, size in zip(positions, values.shape, strict=True)):
        return values[np.ix_(*(each - each[0] for each in positions))]
    return values


class PartDecoder:
    """Decodes parts of the chunks of one array."""

    def __init__(self, decoder: ChunkDecoder) -> None:
        self._decoder = decoder
        self._shape = decoder.spec.shape
        self._dtype = decoder.coder.compressed_dtype(decoder.spec)

    def __call__(self, body: Buffer | None, part: ChunkPart) -> _Values:
        """Decode a part of a chunk from its bytes. The result is read-only."""
        if body is None or self._dtype is None:
            return part.take(self._decoder(body))
        size = math.prod(self._shape) * self._dtype.itemsize
        needed = part.end(self._shape) * self._dtype.itemsize
        if size - needed < _SAVED_BYTES:
            return part.take(self._decoder(body))
        memory = _scratch(size)
        if _decompress_start(body, memory[:needed]):
            return np.array(part.take(np.frombuffer(memory, dtype=self._dtype).reshape(self._shape)))
        # Let the codec raise the error for invalid bytes.
        return part.take(self._decoder(body))


def _decompress_start(body: Buffer, out: memoryview) -> bool:
    """Fill memory with the first bytes of a zstd frame. Returns False if the frame is shorter."""
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            return int(stream.readinto(out)) == len(out)
    except (OSError, pa.ArrowException):
        return False


_THREAD = threading.local()


def _scratch(size: int) -> memoryview:
    """Memory of this thread that is reused for every chunk, because allocating pages costs as much as filling them."""
    held: memoryview | None = getattr(_THREAD, "memory", None)
    if held is None or len(held) != size:
        held = _THREAD.memory = memoryview(bytearray(size))
    return held


_ROUND_BYTES = 2 << 20
"""The stored size of the chunks that are fetched together."""
_ROUNDS_AHEAD = 3
_DECODED_AHEAD = 8
_DECODERS = Threads("decoders", 2)
_Places: TypeAlias = npt.NDArray[np.integer[Any]]
_Bodies: TypeAlias = list[Buffer | None]


class ChunkValues:
    """The values of one array by chunk, in a session."""

    def __init__(self, session: Session, path: str) -> None:
        self._session = session
        self._node = session.state.tree.array(path)
        self.array: zarr.Array[Any] = open_array(session, path)
        self.lengths = chunk_lengths(self._node)
        """The lengths of the chunks along each dimension."""
        self._decode = decoder_of(self.array, tuple(each.length(0) for each in self.lengths))

    @property
    def is_direct(self) -> bool:
        """Whether chunks can be decoded here. Shards and codecs that need an event loop are read through zarr."""
        return self._decode is not None

    def read(self, coordinates: _Places) -> Iterator[_Values]:
        """The chunks at some coordinates, in that order, each with its full shape. They are read-only.

        They are decoded on demand.
        """
        assert self._decode is not None
        if not len(coordinates):
            return iter(())
        located = self._locate(coordinates)
        decode = _Explained(*self._decoders(self._decode, coordinates), located)
        return map(decode, count(), _in_turn(_fetch(located)))

    def read_parts(
        self, coordinates: _Places, parts: Iterable[ChunkPart], *, decode_ahead: bool = False
    ) -> Iterator[_Values]:
        """A part of each of the chunks at some coordinates, in that order. They are read-only.

        They are decoded on demand, or ahead of time by other threads if cores are idle.
        """
        assert self._decode is not None
        if not len(coordinates):
            return iter(())
        located = self._locate(coordinates)
        decoders, which = self._decoders(self._decode, coordinates)
        decode = _Explained([PartDecoder(each) for each in decoders], which, located)
        rounds = _fetch(located)
        return _decoded_ahead(decode, rounds, parts) if decode_ahead else map(decode, count(), _in_turn(rounds), parts)

    def _decoders(
        self, decode: ChunkDecoder, coordinates: _Places
    ) -> tuple[list[ChunkDecoder], npt.NDArray[np.intp] | None]:
        """A decoder for each shape of the chunks, and which one each chunk needs. None if all need the first."""
        if all(each.is_regular for each in self.lengths):
            return [decode], None
        shapes = [each.lengths(coordinates[:, axis].astype(np.int64)) for axis, each in enumerate(self.lengths)]
        found, which = np.unique(np.stack(shapes, axis=1), axis=0, return_inverse=True)
        return [decode.of_shape(tuple(each)) for each in found.tolist()], which.reshape(-1)

    def _locate(self, coordinates: _Places) -> LocatedChunks:
        return run_blocking(self._session.state.locate_chunks(self._node, coordinates.astype(np.uint32)))


@dataclass(frozen=True, slots=True)
class _Explained:
    """Decodes chunks. The error for invalid bytes contains the array, the chunk and the file."""

    decoders: Sequence[Callable[..., _Values]]
    which: npt.NDArray[np.intp] | None
    located: LocatedChunks

    def __call__(self, position: int, *args: Any) -> _Values:
        decode = self.decoders[0 if self.which is None else self.which[position]]
        try:
            return decode(*args)
        except MemoryError:
            raise
        except Exception as error:
            raise self.located.undecodable(position, error) from error


def _fetch(located: LocatedChunks) -> Iterator[Future[_Bodies]]:
    """The stored bytes of chunks in batches. The next batches are fetched ahead."""
    waiting: deque[Future[_Bodies]] = deque()
    try:
        for bounds in _rounds(np.cumsum(np.maximum(located.lengths, 0))):
            waiting.append(asyncio.run_coroutine_threadsafe(located.fetch(*bounds), blocking_loop()))
            if len(waiting) == _ROUNDS_AHEAD:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        for future in waiting:
            future.cancel()


def _in_turn(rounds: Iterable[Future[_Bodies]]) -> Iterator[Buffer | None]:
    for fetched in rounds:
        yield from fetched.result()


def _decoded_ahead(
    decode: _Explained, rounds: Iterator[Future[_Bodies]], parts: Iterable[ChunkPart]
) -> Iterator[_Values]:
    """Parts of chunks in order. Threads decode the next ones that are already fetched."""
    todo = zip(count(), parts)
    fetched = next(rounds, None)
    bodies: deque[Buffer | None] = deque()
    decoding: deque[Future[_Values]] = deque()
    try:
        while fetched is not None or bodies or decoding:
            # Only wait for requests if there is nothing else to do.
            while fetched is not None and not bodies and (fetched.done() or not decoding):
                bodies.extend(fetched.result())
                fetched = next(rounds, None)
            while bodies and len(decoding) < _DECODED_AHEAD:
                position, part = next(todo)
                decoding.append(_DECODERS.submit(decode, position, bodies.popleft(), part))
            yield decoding.popleft().result()
    finally:
        for future in decoding:
            future.cancel()


def _rounds(ends: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Batches of chunks to fetch.

    The first chunk is a batch of its own, so that it is processed while others arrive.
    """
    yield 0, 1
    for first, end in batches_up_to(_ROUND_BYTES, ends[1:] - ends[0]):
        yield first + 1, end + 1


@lru_cache(maxsize=64)
def chunk_values_at(address: RepositoryAddress, snapshot_id: str, path: str) -> ChunkValues:
    """The chunks of an array at a snapshot. Opened once per process."""
    return ChunkValues(session_at(address, snapshot_id), path)
