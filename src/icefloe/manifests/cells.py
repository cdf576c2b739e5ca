"""The shape of the cells a large array's chunk grid is cut into."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from icefloe.manifests.boxes import Boxes
from icefloe.manifests.keys import common_radix, sort_keys
from icefloe.model.chunk_table import ChunkTable, Coords
from icefloe.model.manifest_config import ManifestConfig
from icefloe.model.nodes import ArrayNode, Extents

CellShape = tuple[int, ...]

WHOLE = 2**32 - 1
"""The length of a cell along a dimension that is not cut, however much it grows."""

_MANY_CELLS = 64
_SPARSE = 16


def configured_cell_shape(node: ArrayNode, config: ManifestConfig) -> CellShape | None:
    """The cell shape that a splitting rule asks for, or None when no rule is about this array."""
    if config.splitting is None:
        return None
    names = node.dimension_names or (None,) * len(node.grid)
    sizes = config.splitting.find_sizes(node.path, names)
    return None if sizes is None else tuple(WHOLE if n is None else min(n, WHOLE) for n in sizes)


def cell_shape(grid: Sequence[int], limit: int, existing: Boxes | None = None) -> CellShape:
    """Cells of at most `limit` chunks, trailing dimensions whole, lengths powers of two, anchored at the origin.

    The first dimension alone decides where cells end once the others fit, so appending along it touches only the last
    cells. The shape starts from the smallest one in which every existing box lies inside one cell: growth along any
    dimension, which would give another shape from scratch, leaves the cells already written where they are.
    """
    budget = 1 << (max(limit, 1).bit_length() - 1)
    shape = _smallest_shape(existing) if existing is not None and len(existing) else [1] * len(grid)
    if math.prod(shape) > budget:
        shape = [1] * len(grid)
    for axis in reversed(range(len(grid))):
        room = budget // math.prod(shape)
        needed = _power_of_two(grid[axis])
        shape[axis] = max(shape[axis], min(needed, shape[axis] * room))
    return tuple(min(n, WHOLE) for n in shape)


def _smallest_shape(boxes: Boxes) -> list[int]:
    """The least powers of two such that no box crosses a multiple of them."""
    last = np.maximum(boxes[:, :, 1] - 1, boxes[:, :, 0])
    differing = np.bitwise_or.reduce(boxes[:, :, 0] ^ last, axis=0)
    return [1 << int(bits).bit_length() for bits in differing]


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def is_sparse(rows: int, cells: int, limit: int) -> bool:
    """Whether that many rows in that many cells leave the cells next to empty."""
    return cells > _MANY_CELLS and rows * _SPARSE < cells * limit


def coarsen_for(table: ChunkTable, shape: CellShape, limit: int, grid: Sequence[int]) -> CellShape:
    """Larger cells, so large that the chunks of the table fill them somewhat or that they are few."""
    current = list(shape)
    while is_sparse(len(table), _count_cells(table, current), limit):
        growing = [axis for axis in range(len(grid)) if current[axis] < grid[axis]]
        if not growing:
            break
        current[growing[-1]] = min(current[growing[-1]] * 4, WHOLE)
    return tuple(current)


def _count_cells(table: ChunkTable, shape: Sequence[int]) -> int:
    cells = table.coords // np.asarray(shape, dtype=np.uint32)
    keys = sort_keys(cells, common_radix(cells))
    if not bool((keys[1:] >= keys[:-1]).all()):
        keys = np.sort(keys)
    return 1 + int((keys[1:] != keys[:-1]).sum()) if len(keys) else 0


def cells_meeting(box: Extents, shape: CellShape) -> Iterator[Coords]:
    """The cells that share chunks with a box."""
    spans = [range(first // n, -(-end // n)) for (first, end), n in zip(box, shape, strict=True)]
    return itertools.product(*spans)


def count_cells_meeting(box: Extents, shape: CellShape) -> int:
    """How many cells share chunks with a box, without listing them."""
    return math.prod(-(-end // n) - first // n for (first, end), n in zip(box, shape, strict=True))


def cell_box(cell: Coords, shape: CellShape) -> Extents:
    """The chunks of a cell."""
    return tuple((c * n, (c + 1) * n) for c, n in zip(cell, shape, strict=True))
