"""One flatbuffer, and reads in columns that never leave it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError

Positions = npt.NDArray[np.int64]
IDENTIFIER = b"Ichk"
MAX_BODY_BYTES = 2**31 - 1
"""Offsets to vtables are signed 32 bit, and official readers stop there too."""


def is_flat(body: bytes) -> bool:
    """Whether a decompressed body is a flatbuffer; MessagePack bodies of spec 1 share the header with it."""
    return body[4:8] == IDENTIFIER


class Body:
    """The bytes of a flatbuffer, with gathers that check every position first."""

    __slots__ = ("data", "size", "what")

    def __init__(self, data: bytes, what: str) -> None:
        self.data = data
        self.size = len(data)
        self.what = what
        if not 8 <= self.size <= MAX_BODY_BYTES:
            raise self.corrupt(f"{self.size} bytes are not a flatbuffer")

    def corrupt(self, detail: str) -> FormatError:
        """The error for a body that is not what it should be."""
        return FormatError(f"corrupt {self.what}: {detail}; restore the file from a backup or an older snapshot")

    def check(self, positions: Positions, width: int, alignment: int = 1) -> None:
        """Every item of `width` bytes at these positions lies inside, aligned."""
        if len(positions) == 0:
            return
        if int(positions.min()) < 0 or int(positions.max()) + width > self.size:
            raise self.corrupt("an offset points outside the file")
        if alignment > 1 and int(np.bitwise_or.reduce(positions)) & (alignment - 1):
            raise self.corrupt("an offset is not aligned")

    def read(self, positions: Positions, dtype: Any, alignment: int | None = None) -> npt.NDArray[Any]:
        """One item of a type at each position; alignment is the item's size unless given."""
        kind = np.dtype(dtype)
        self.check(positions, kind.itemsize, kind.itemsize if alignment is None else alignment)
        if len(positions) == 0:
            return np.empty(0, dtype=kind)
        return self.windows(kind)[positions]

    def windows(self, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """Every byte position seen as the start of an item; positions must have been checked."""
        return np.ndarray((self.size - kind.itemsize + 1,), dtype=kind, buffer=self.data, strides=(1,))

    def read_bytes(self, positions: Positions, width: int) -> npt.NDArray[np.uint8]:
        """`width` bytes at each position, as uint8[n, width]."""
        if width == 0:
            return np.empty((len(positions), 0), dtype=np.uint8)
        rows = self.read(positions, np.dtype((np.void, width)), alignment=1)
        return np.ascontiguousarray(rows).view(np.uint8).reshape(len(positions), width)
