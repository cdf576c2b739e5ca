"""Some cells of a chunk: no more of it is decoded than leads up to them."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.chunk_coder import ChunkDecoder
from icefloe.storage.contract import Buffer

_SAVED_BYTES = 1 << 19
"""From here on, decoding only a part of a chunk is faster than having the codec decode all of it."""
_Values: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """The cells of a chunk at some positions along each of its dimensions."""

    positions: tuple[npt.NDArray[np.int64], ...]

    def end(self, shape: Sequence[int]) -> int:
        """How many cells of the chunk lead up to the last of these, and it."""
        last = 0
        for each, length in zip(self.positions, shape, strict=True):
            last = last * length + int(each[-1])
        return last + 1

    def take(self, chunk: _Values) -> _Values:
        """The cells out of the whole chunk; a view, where they have no gaps."""
        window = tuple(slice(int(each[0]), int(each[-1]) + 1) for each in self.positions)
        return without_gaps(chunk[window], self.positions)


def without_gaps(values: _Values, positions: Sequence[npt.NDArray[np.int64]]) -> _Values:
    """The cells of a window that positions name, which begin where the window does."""
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
        """A part of the chunk that some bytes stand for; not to be written to."""
        if body is None or self._dtype is None:
            return part.take(self._decoder(body))
        size = math.prod(self._shape) * self._dtype.itemsize
        needed = part.end(self._shape) * self._dtype.itemsize
        if size - needed < _SAVED_BYTES:
            return part.take(self._decoder(body))
        memory = _scratch(size)
        if _decompress_start(body, memory[:needed]):
            return np.array(part.take(np.frombuffer(memory, dtype=self._dtype).reshape(self._shape)))
        # Whatever is wrong with these bytes, the codec itself is the one to say it.
        return part.take(self._decoder(body))


def _decompress_start(body: Buffer, out: memoryview) -> bool:
    """Fill memory with the first bytes of a zstd frame; False where it has not as many."""
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            return int(stream.readinto(out)) == len(out)
    except (OSError, pa.ArrowException):
        return False


_THREAD = threading.local()


def _scratch(size: int) -> memoryview:
    """Memory of this thread, used again for every chunk: new pages cost as much as filling them."""
    held: memoryview | None = getattr(_THREAD, "memory", None)
    if held is None or len(held) != size:
        held = _THREAD.memory = memoryview(bytearray(size))
    return held
