"""Where a chunk stands in a table: one sortable key per row, and look-ups by binary search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.model.chunk_table import ChunkTable
from icefloe.model.coordinates import highest

Radix = tuple[int, ...] | None
"""The number of values per dimension, or None when their product does not fit 64 bits."""

_FEW = 64
"""Up to this many look-ups, searching one by one beats building the keys of the whole table."""


def common_radix(*coords: npt.NDArray[np.uint32]) -> Radix:
    """The radix under which the keys of all these coordinates can be compared."""
    filled = [c for c in coords if len(c)]
    if not filled:
        return (1,) * coords[0].shape[1] if coords else ()
    radix = tuple(max(column) + 1 for column in zip(*map(highest, filled), strict=True))
    return radix if math.prod(radix) <= 2**64 else None


def sort_keys(coords: npt.NDArray[Any], radix: Radix) -> npt.NDArray[Any]:
    """One key per row that sorts as the coordinates do; comparable with other keys of the same radix."""
    count, ndim = coords.shape
    if ndim == 0:
        return np.zeros(count, dtype=np.uint64)
    if radix is None:
        # Big-endian bytes compare as the numbers do; numpy pads text with zeros, which changes nothing at equal width.
        return np.ascontiguousarray(coords, dtype=">u4").view(f"S{4 * ndim}").ravel()
    keys = coords[:, 0].astype(np.uint64)
    for axis in range(1, ndim):
        keys *= np.uint64(radix[axis])
        keys += coords[:, axis]
    return keys


def find_position(table: ChunkTable, target: list[int]) -> tuple[int, bool]:
    """Where coordinates stand in a table, or would stand, and whether they are there."""
    rows = table.coords
    low, high = 0, len(table)
    while low < high:
        middle = (low + high) // 2
        if rows[middle].tolist() < target:
            low = middle + 1
        else:
            high = middle
    return low, low < len(table) and rows[low].tolist() == target


def find_row(table: ChunkTable, coords: Sequence[int]) -> int | None:
    """The row of a chunk, or None; a few microseconds, nothing is prepared or kept."""
    if len(coords) != table.ndim:
        return None
    position, found = find_position(table, list(coords))
    return position if found else None


def find_rows(table: ChunkTable, coords: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """The rows of many chunks, -1 for those that are missing."""
    result = np.full(len(coords), -1, dtype=np.int64)
    if len(table) == 0 or len(coords) == 0 or coords.shape[1] != table.ndim:
        return result
    if len(coords) <= _FEW:
        for index, wanted in enumerate(coords.tolist()):
            row = find_row(table, wanted)
            result[index] = -1 if row is None else row
        return result
    own_keys = sort_keys(coords, common_radix(coords))
    first, _ = find_position(table, coords[own_keys.argmin()].tolist())
    last, is_there = find_position(table, coords[own_keys.argmax()].tolist())
    # Only the part of the table that the question spans gets keys: a slab of a large table costs what the slab is.
    part = table.coords[first : last + is_there]
    if len(part) == 0:
        return result
    radix = common_radix(part, coords)
    keys, wanted_keys = sort_keys(part, radix), sort_keys(coords, radix)
    positions = np.minimum(np.searchsorted(keys, wanted_keys), len(keys) - 1)
    return np.where(keys[positions] == wanted_keys, positions + first, -1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of a table that answer a part of a question about many chunks."""

    table: ChunkTable
    rows: npt.NDArray[np.intp]
    positions: npt.NDArray[np.intp]
    """Which chunks of the question the rows are, ascending."""


def find_in(
    table: ChunkTable, coords: npt.NDArray[np.uint32], positions: npt.NDArray[np.intp]
) -> tuple[Found, npt.NDArray[np.intp]]:
    """Look up `coords[positions]` in a table: what is there, and the positions that are not."""
    rows = find_rows(table, coords[positions])
    there = rows >= 0
    return Found(table, rows[there].astype(np.intp), positions[there]), positions[~there]


def sort_order(coords: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64] | None:
    """Rows in lexicographic order, of equal ones only the last; None when they already are so."""
    if len(coords) < 2:
        return None
    keys = sort_keys(coords, common_radix(coords))
    if bool((keys[1:] > keys[:-1]).all()):
        return None
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    last = np.ones(len(keys), dtype=bool)
    last[:-1] = keys[1:] != keys[:-1]
    return order if bool(last.all()) else order[last]
