"""Which rows of a table lie in a box or in a cell of the chunk grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icefloe.manifests.columns import Rows, take
from icefloe.manifests.keys import common_radix, sort_keys
from icefloe.model.chunk_table import ChunkTable, Coords
from icefloe.model.coordinates import highest, lowest, rows_inside
from icefloe.model.nodes import Extents


def filter_box(table: ChunkTable, extents: Extents) -> ChunkTable:
    """The rows inside a box; the empty box of formats that do not know extents covers everything."""
    if not extents or len(table) == 0:
        return table
    start, stop = _first_axis_range(table, extents[0])
    inside = in_box(table.coords[start:stop], extents)
    if bool(inside.all()):
        return table if stop - start == len(table) else take(table, slice(start, stop))
    return take(table, np.flatnonzero(inside) + start)


def in_box(coords: npt.NDArray[np.uint32], box: Extents) -> npt.NDArray[np.bool_]:
    """Which coordinates lie in a box."""
    return rows_inside(coords, [first for first, _ in box], [end for _, end in box])


def _first_axis_range(table: ChunkTable, span: tuple[int, int]) -> tuple[int, int]:
    column = table.coords[:, 0]
    if span[0] <= int(column[0]) and int(column[-1]) < span[1]:
        return 0, len(table)
    start, stop = np.searchsorted(column, np.array(span))
    return int(start), int(stop)


@dataclass(frozen=True, slots=True)
class CellRows:
    """The rows of a table that lie in one cell, and their bounding box."""

    cell: Coords
    rows: Rows
    box: Extents
    count: int


def rows_by_cell(table: ChunkTable, cell_shape: Sequence[int]) -> Iterator[CellRows]:
    """The non-empty cells of a table in order; the rows of a cell are a slice where they follow each other."""
    if len(table) == 0:
        return
    if table.ndim == 0:
        yield CellRows((), slice(0, len(table)), (), len(table))
        return
    cells = table.coords // np.asarray(cell_shape, dtype=np.uint32)
    keys = sort_keys(cells, common_radix(cells))
    order = None
    if not bool((keys[1:] >= keys[:-1]).all()):
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1, [len(keys)]])
    del keys
    for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        rows: Rows = slice(start, end) if order is None else order[start:end]
        inside = table.coords[rows]
        first = start if order is None else int(order[start])
        cell = tuple(cells[first].tolist())
        box = tuple((a, b + 1) for a, b in zip(lowest(inside), highest(inside), strict=True))
        yield CellRows(cell, rows, box, end - start)


def split_by_cells(table: ChunkTable, cell_shape: Sequence[int]) -> dict[Coords, ChunkTable]:
    """The table of every non-empty cell of a grid whose cells have this shape, anchored at the origin."""
    return {part.cell: take(table, part.rows) for part in rows_by_cell(table, cell_shape)}


def halve(table: ChunkTable, limit: int) -> Iterator[ChunkTable]:
    """Parts of at most `limit` rows whose boxes do not meet, cut along the longest side again and again."""
    if len(table) <= limit:
        yield table
        return
    extents = table.extents()
    axis = max(range(table.ndim), key=lambda d: extents[d][1] - extents[d][0])
    values = table.coords[:, axis]
    middle = max(int(np.partition(values, len(values) // 2)[len(values) // 2]), extents[axis][0] + 1)
    upper: npt.NDArray[np.bool_] = values >= middle
    yield from halve(take(table, np.flatnonzero(~upper)), limit)
    yield from halve(take(table, np.flatnonzero(upper)), limit)
