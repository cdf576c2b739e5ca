"""A Zarr codec pipeline that reads and writes batches of chunks at once, and the coder of single chunks."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer, cpu, default_buffer_prototype
from zarr.registry import register_pipeline
from zarr.storage import StorePath

import icefloe.grib_codec  # noqa: F401 - registers its codec with zarr
from icefloe.errors import IcefloeError
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

    def __init__(self, pipeline: Any) -> None:
        self._filters: Any = pipeline.array_array_codecs
        self._serializer: Any = pipeline.array_bytes_codec
        self._compressors: Any = pipeline.bytes_bytes_codecs
        self._specs: dict[tuple[int, ...], list[ArraySpec]] = {}
        self.is_plain = not self._filters and not self._compressors and type(self._serializer) is BytesCodec
        """The bytes of a chunk are the bytes of an array."""

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


@dataclass(frozen=True, slots=True)
class ChunkDecoder:
    """Turns the bytes of any chunk of an array into values."""

    coder: ChunkCoder
    spec: ArraySpec

    def __call__(self, body: Bytes | None) -> Array:
        """The read-only values of a whole chunk. None for a chunk that was never written."""
        if body is None:
            return np.broadcast_to(
                np.asarray(fill_value(self.spec), self.spec.dtype.to_native_dtype()), self.spec.shape
            )
        return self.coder.decode(body, self.spec)


def decoder_of(array: zarr.Array[Any]) -> ChunkDecoder | None:
    """The decoder of an array; None where only zarr knows how: shards, and codecs that need an event loop."""
    inner: Any = array.async_array
    pipeline = inner.codec_pipeline
    if not isinstance(pipeline, zarrs.BatchedCodecPipeline) or not all(map(is_synchronous, pipeline)):
        return None
    metadata = inner.metadata
    spec = ArraySpec(
        shape=tuple(array.chunks),
        dtype=metadata.dtype,
        fill_value=metadata.fill_value,
        config=inner.config if hasattr(inner, "config") else inner._config,
        prototype=default_buffer_prototype(),
    )
    return ChunkDecoder(ChunkCoder(pipeline), spec)


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


T = TypeVar("T")

_ZARRS_DEFAULT = "zarr.core.codec_pipeline.BatchedCodecPipeline"
_ROUND_BYTES = 8 << 20
"""Chunks are fetched and decoded in rounds of this many bytes, so that a large read holds few encoded chunks."""
_ROUNDS = 4
"""Concurrent rounds: some wait for storage while others compute."""
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

    Whatever it does not know is left to zarr: other stores, sharded arrays, codecs without a synchronous form, and
    buffers outside of main memory.
    """

    async def read(self, batch_info: Iterable[Item], out: NDBuffer, drop_axes: tuple[int, ...] = ()) -> Any:
        """Fill `out` from chunks. Returns for each chunk whether it exists."""
        batch = list(batch_info)
        store = self._store_of(batch, out)
        located = None
        if store is not None:
            located = await store.session.keyspace.locate([item[0].path for item in batch])
        if located is None:
            return await super().read(batch, out, drop_axes)
        coder = ChunkCoder(self)
        target = out.as_ndarray_like()

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
        return tuple({"status": "missing" if length < 0 else "present"} for length in located.lengths.tolist())

    async def write(self, batch_info: Iterable[Item], value: NDBuffer, drop_axes: tuple[int, ...] = ()) -> None:
        """Write the parts of `value` that each chunk takes."""
        batch = list(batch_info)
        store = self._store_of(batch, value)
        if store is None:
            return await super().write(batch, value, drop_axes)
        keys = [item[0].path for item in batch]
        keyspace = store.session.keyspace
        if keyspace.find_chunks(keys) is None or len(set(keys)) < len(keys):
            return await super().write(batch, value, drop_axes)
        store._check_writable()
        coder = ChunkCoder(self)

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
        if not in_memory or not all(map(is_synchronous, self)):
            return None
        return store if all(type(item[0]) is StorePath and item[0].store is store for item in batch) else None


async def _existing(keyspace: Any, batch: Sequence[Item], first: int) -> dict[int, Bytes]:
    """The bytes of the chunks that are written in part, by position."""
    partial = [i for i, item in enumerate(batch) if not item[4]]
    if not partial:
        return {}
    located = await keyspace.locate([batch[i][0].path for i in partial])
    if located is None:
        return {}
    bodies = await located.fetch(0, len(partial))
    return {first + i: body for i, body in zip(partial, bodies, strict=True) if body is not None}


async def _in_rounds(sizes: npt.NDArray[np.int64], work: Callable[[int, int], Any]) -> None:
    """Do the work in rounds of about `_ROUND_BYTES`, a few at a time."""
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
