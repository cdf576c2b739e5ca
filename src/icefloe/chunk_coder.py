"""Chunks to arrays and back by the codecs of an array, called directly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.codec import Codec
from zarr.codecs.bytes import BytesCodec
from zarr.codecs.sharding import ShardingCodec
from zarr.codecs.zstd import ZstdCodec
from zarr.core import codec_pipeline as zarrs
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer, default_buffer_prototype

from icefloe.storage.contract import Buffer as Bytes

Array: TypeAlias = npt.NDArray[Any]
Item: TypeAlias = tuple[Any, ArraySpec, Any, Any, bool]
"""What zarr asks for: where the bytes are, what the chunk is, which part of it, where that goes, is it all of it."""


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
        """The array that the bytes of a chunk stand for."""
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
        """The values of a whole chunk, for reading only; None stands for one that was never written."""
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
