"""Chunk coordinates as bytes whose order is the order of the coordinates, in columns.

A coordinate below 248 is one byte. A larger one is the byte 0xF7 + n followed by its n big-endian bytes, n as small as
possible. Coordinates of one chunk follow each other; a 0-d chunk is the empty string. Prefix-free and canonical.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Offsets: TypeAlias = npt.NDArray[np.int64]

_LONG = 0xF7
_SMALLEST = np.array([0, 248, 1 << 8, 1 << 16, 1 << 24], dtype=np.uint64)
"""The smallest value that may be written with that many bytes after the first."""
_MAX_RANK = 255


def encode_coords(coords: npt.NDArray[np.uint32]) -> tuple[Bytes, Offsets]:
    """Rows of coordinates as one run of bytes, and where each row starts and ends in it."""
    count, rank = coords.shape
    if coords.size == 0 or int(coords.max()) <= _LONG:
        return coords.astype(np.uint8).reshape(-1), np.arange(count + 1, dtype=np.int64) * rank
    extra = (np.searchsorted(_SMALLEST, coords, side="right") - 1).astype(np.uint8)
    text = np.empty((count, rank, 5), dtype=np.uint8)
    text[:, :, 0] = np.where(extra == 0, coords & 0xFF, _LONG + extra)
    text[:, :, 1:] = coords.astype(">u4")[:, :, None].view(np.uint8)
    used = np.empty(text.shape, dtype=bool)
    used[:, :, 0] = True
    used[:, :, 1:] = extra[:, :, None] > np.array([3, 2, 1, 0], dtype=np.uint8)
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum((extra.astype(np.int64) + 1).sum(axis=1), out=offsets[1:])
    return text[used], offsets


def encode_coord(coords: tuple[int, ...]) -> bytes:
    """The bytes of one chunk's coordinates, for bounds of predicates."""
    return encode_coords(np.array([coords], dtype=np.uint32).reshape(1, len(coords)))[0].tobytes()


def decode_coords(data: Bytes, offsets: Offsets) -> npt.NDArray[np.uint32]:
    """Undo encode_coords for rows of one rank; forms that are not canonical are refused."""
    position, end = offsets[:-1].copy(), offsets[1:]
    lengths = end - position
    if len(lengths) == 0:
        return np.empty((0, 0), dtype=np.uint32)
    covered = data[int(offsets[0]) : int(offsets[-1])]
    if (lengths == lengths[0]).all() and (covered.size == 0 or int(covered.max()) <= _LONG):
        _check_rank(int(lengths[0]))
        return covered.reshape(len(lengths), int(lengths[0])).astype(np.uint32)
    columns: list[npt.NDArray[np.uint32]] = []
    while (position < end).any():
        if not (position < end).all():
            raise FormatError("the chunk coordinates of one array have different numbers of dimensions")
        _check_rank(len(columns) + 1)
        columns.append(_decode_column(data, position, end))
    return np.stack(columns, axis=1)


def _decode_column(data: Bytes, position: Offsets, end: Offsets) -> npt.NDArray[np.uint32]:
    """The coordinate that starts at each position; moves the positions behind it."""
    first = data[position].astype(np.int64)
    extra = np.maximum(first - _LONG, 0)
    if (extra > 4).any() or (position + 1 + extra > end).any():
        raise FormatError("a chunk coordinate is cut short or larger than 4294967295")
    value = np.where(extra == 0, first, 0).astype(np.uint64)
    for byte in range(1, int(extra.max(initial=0)) + 1):
        rows = np.flatnonzero(extra >= byte)
        value[rows] = value[rows] << np.uint64(8) | data[position[rows] + byte]
    if (value < _SMALLEST[extra]).any():
        raise FormatError("a chunk coordinate is written with more bytes than it needs")
    position += 1 + extra
    return value.astype(np.uint32)


def decode_fixed_coords(data: Bytes, offsets: Offsets) -> npt.NDArray[np.uint32]:
    """Coordinates written as 8 big-endian bytes each, as early official code did."""
    lengths = np.diff(offsets)
    if len(lengths) == 0:
        return np.empty((0, 0), dtype=np.uint32)
    if (lengths != lengths[0]).any() or lengths[0] % 8:
        raise FormatError("the chunk coordinates of one array have different numbers of dimensions")
    _check_rank(int(lengths[0]) // 8)
    covered = np.ascontiguousarray(data[int(offsets[0]) : int(offsets[-1])])
    values = covered.view(">u8").reshape(len(lengths), int(lengths[0]) // 8)
    if (values > 0xFFFFFFFF).any():
        raise FormatError("a chunk coordinate is larger than 4294967295")
    return values.astype(np.uint32)


def _check_rank(rank: int) -> None:
    if rank > _MAX_RANK:
        raise FormatError(f"a chunk coordinate has more than {_MAX_RANK} dimensions")
