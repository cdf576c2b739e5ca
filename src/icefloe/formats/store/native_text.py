"""Manifests of native chunks only, in the very text that our encoder writes, read in columns.

Without its digits such a text is one short pattern repeated, and every entry has the same number of integers. A text of
any other form is left to the general decoder.
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import numpy.typing as npt

from icefloe.formats.store.integer_text import read_integers
from icefloe.formats.store.object_id import ID_BYTES
from icefloe.ids import NODE_ID_BYTES, NodeId
from icefloe.model.chunk_table import ChunkKind, ChunkTable

_START = re.compile(rb'\{"id":\[([0-9]{1,3}(?:,[0-9]{1,3}){15})\],"chunks":\{')
_END = b"}}}}"
_BLOCK = 1 << 13
_MAX_DIGITS = 19
"""Numbers of more digits may not fit 64 bits."""


def find_native_tables(data: bytes) -> tuple[bytes, dict[NodeId, ChunkTable]] | None:
    """The manifest's id and chunk tables; None for texts of another form, right or wrong."""
    start = _START.match(data, 0, 200)
    if start is None or not data.endswith(_END):
        return None
    # One byte of the end stays, in the place of the comma after the last entry.
    text = np.frombuffer(data, dtype=np.uint8)[start.end() : -1]
    closings = np.flatnonzero(text == ord("}"))
    if len(closings) % 2 == 0 or len(closings) < 3:
        return None
    bounds = np.concatenate([[0], closings[1:-1:2] + 2])
    ranks = np.diff(np.searchsorted(np.flatnonzero(text == ord("/")), bounds))
    blocks: list[npt.NDArray[np.uint64]] = []
    tables: dict[NodeId, ChunkTable] = {}
    for first, last in _runs(ranks):
        blocks = []
        for low in range(first, last, _BLOCK):
            high = min(low + _BLOCK, last)
            block = _read_block(text[bounds[low] : bounds[high]], high - low, int(ranks[first]))
            if block is None:
                return None
            blocks.append(block)
        if not _add_tables(np.concatenate(blocks), int(ranks[first]), tables):
            return None
    identity = bytes(number for number in map(int, start[1].split(b",")) if number < 256)
    return (identity, tables) if len(identity) == ID_BYTES else None


def _runs(values: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
    """Stretches of equal values."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return list(itertools.pairwise(edges))


def _read_block(text: npt.NDArray[np.uint8], count: int, rank: int) -> npt.NDArray[np.uint64] | None:
    """The integers of some entries, a row each: node, coordinates, id, offset, length."""
    if text[-1] == ord("}"):
        text = np.concatenate([text[:-1], np.frombuffer(b",", dtype=np.uint8)])
    pattern = b'"' + b"/" * rank + b'":{"Ref":{"id":[' + b"," * (ID_BYTES - 1) + b'],"offset":,"length":}},'
    is_digit = (text - np.uint8(ord("0"))) < 10
    rest = text[~is_digit]
    if len(rest) != count * len(pattern):
        return None
    if (rest.reshape(count, -1) != np.frombuffer(pattern, dtype=np.uint8)).any():
        return None
    turns = np.flatnonzero(is_digit[:-1] != is_digit[1:]) + 1
    columns = rank + ID_BYTES + 3
    if len(turns) != 2 * count * columns:
        return None
    starts, ends = turns[::2], turns[1::2]
    lengths = ends - starts
    if int(lengths.max()) > _MAX_DIGITS or ((lengths > 1) & (text[starts] == ord("0"))).any():
        return None
    ends, lengths = ends.reshape(count, columns), lengths.reshape(count, columns)
    numbers = np.empty((count, columns), dtype=np.uint64)
    for low, high in ((0, rank + 1), (rank + 1, columns - 2), (columns - 2, columns)):
        part = read_integers(text, ends[:, low:high].ravel(), lengths[:, low:high].ravel())
        numbers[:, low:high] = part.reshape(count, high - low)
    if (numbers[:, : rank + 1] > 0xFFFFFFFF).any() or (numbers[:, rank + 1 : columns - 2] > 255).any():
        return None
    return numbers


def _add_tables(numbers: npt.NDArray[np.uint64], rank: int, tables: dict[NodeId, ChunkTable]) -> bool:
    """Cut rows into tables by node; False when rows are not in order."""
    for low, high in _runs(numbers[:, 0].astype(np.int64)):
        rows = numbers[low:high]
        node_id = int(rows[0, 0]).to_bytes(NODE_ID_BYTES, "big")
        coords = rows[:, 1 : rank + 1].astype(np.uint32)
        if node_id in tables or not is_increasing(coords):
            return False
        tables[node_id] = ChunkTable(
            coords=coords,
            kind=np.full(len(rows), ChunkKind.NATIVE, dtype=np.uint8),
            offset=np.ascontiguousarray(rows[:, -2]),
            length=np.ascontiguousarray(rows[:, -1]),
            object_id=rows[:, rank + 1 : -2].astype(np.uint8),
        )
    return True


def is_increasing(coords: npt.NDArray[np.uint32]) -> bool:
    """Whether rows are unique and in lexicographic order."""
    less = np.zeros(max(len(coords) - 1, 0), dtype=bool)
    equal = ~less
    for column in coords.T:
        less |= equal & (column[:-1] < column[1:])
        equal &= column[:-1] == column[1:]
    return bool(less.all())
