"""Chunk coordinates kept as one small vector per row, read and ordered in columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icefloe.formats.flat.body import Body
from icefloe.formats.flat.tables import Tables, Vectors

Coords = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class CoordinateColumns:
    """The coordinates of the rows of several arrays; arrays of one rank share a column."""

    columns: dict[int, Coords]
    ranks: list[int]
    starts: list[int]
    """Per array, its rank and where its rows begin in the column of that rank."""
    in_order: bool
    """Whether the rows of every array increase strictly."""

    def of(self, array: int, count: int) -> Coords:
        """The rows of one array, uint32[n, ndim]."""
        start = self.starts[array]
        return self.columns[self.ranks[array]][start : start + count]


def read_coordinates(rows: Tables, slot: int, held: Vectors) -> CoordinateColumns:
    """The coordinate vector of every row; all rows of one array have the same rank."""
    body = rows.body
    vectors = rows.vectors(slot, 4, 4)
    bounds = held.bounds()
    counts = vectors.counts
    if len(counts) == 0:
        none = [0] * len(held.counts)
        return CoordinateColumns({0: np.empty((0, 0), dtype=np.uint32)}, none, none, in_order=True)
    if int(counts.sum()) * 4 > body.size:
        raise body.corrupt("its coordinates overlap")
    filled = held.counts > 0
    rank_of = np.zeros(len(held.counts), dtype=np.int64)
    rank_of[filled] = counts[bounds[:-1][filled]]
    if not bool((counts == (rank_of[0] if len(rank_of) == 1 else np.repeat(rank_of, held.counts))).all()):
        raise body.corrupt("chunks of one array differ in their number of dimensions")
    columns: dict[int, Coords] = {}
    starts = np.zeros(len(rank_of), dtype=np.int64)
    in_order = True
    ranks = np.unique(rank_of).tolist()
    for rank in ranks:
        at = vectors.starts if len(ranks) == 1 else vectors.starts[counts == rank]
        columns[rank] = _read_column(body, at, rank)
        mine = rank_of == rank
        ends = np.cumsum(held.counts[mine])
        starts[mine] = ends - held.counts[mine]
        in_order = in_order and _is_sorted(columns[rank], ends[:-1])
    return CoordinateColumns(columns, rank_of.tolist(), starts.tolist(), in_order)


def _read_column(body: Body, starts: npt.NDArray[np.int64], rank: int) -> Coords:
    return body.read_bytes(starts, 4 * rank).view("<u4").reshape(len(starts), rank).astype(np.uint32, copy=False)


def row_order(coords: Coords) -> npt.NDArray[np.int64] | None:
    """The order that sorts rows lexicographically, or None when they are sorted already."""
    if len(coords) < 2 or _is_sorted(coords):
        return None
    if coords.shape[1] == 0:
        return np.arange(len(coords), dtype=np.int64)
    return np.lexsort(coords.T[::-1])


def _is_sorted(coords: Coords, edges: npt.NDArray[np.int64] | None = None) -> bool:
    """Strictly increasing rows; across an edge, where another array begins, any order will do."""
    before, after = coords[:-1], coords[1:]
    equal = np.ones(len(before), dtype=np.bool_)
    if edges is not None:
        equal[edges[(edges > 0) & (edges <= len(before))] - 1] = False
    for axis in range(coords.shape[1]):
        a, b = before[:, axis], after[:, axis]
        if bool((equal & (a > b)).any()):
            return False
        equal &= a == b
    return not bool(equal.any())


def has_duplicates(ordered: Coords) -> bool:
    """Whether neighbouring rows of a sorted column are equal."""
    return bool((ordered[1:] == ordered[:-1]).all(axis=1).any())
