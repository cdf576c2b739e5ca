"""What a condition leaves of a grid: cells per dimension, and the blocks that can hold matching ones."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.tables.grids import Grid
from icefloe.tables.matching import Mask, match_leaf
from icefloe.tables.predicates import And, Leaf, Or, Predicate, Unknown
from icefloe.tables.value_ranges import ValueRanges, match_ranges

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BlockList:
    """Blocks of a grid in order: a box of them, or some of a box."""

    box: Box
    picked: npt.NDArray[np.int64] | None = None
    """Numbers of the blocks within the box, in C order; None: all of them."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(end - first for first, end in self.box)

    def __len__(self) -> int:
        return len(self.picked) if self.picked is not None else int(np.prod(self.shape, dtype=np.int64))

    def part(self, first: int, end: int) -> BlockPart:
        """Some of the blocks, as small as it can be said."""
        picked = None if self.picked is None else self.picked[first:end]
        return BlockPart(self.box, first, end, picked)


@dataclass(frozen=True, slots=True)
class BlockPart:
    """Blocks [first, end) of a list."""

    box: Box
    first: int
    end: int
    picked: npt.NDArray[np.int64] | None = None

    def coordinates(self) -> npt.NDArray[np.int64]:
        """Block coordinates, one row each."""
        numbers = np.arange(self.first, self.end, dtype=np.int64) if self.picked is None else self.picked
        if not self.box:
            return np.zeros((len(numbers), 0), dtype=np.int64)
        shape = tuple(end - first for first, end in self.box)
        origin = np.array([first for first, _ in self.box], dtype=np.int64)
        return np.stack(np.unravel_index(numbers, shape), axis=1).astype(np.int64) + origin


@dataclass(frozen=True, slots=True)
class Selection:
    """Cells per dimension that can match (None: all), and the blocks that hold them."""

    masks: tuple[Mask | None, ...]
    blocks: BlockList
    total_blocks: int
    decided: bool = False
    """Whether the cells are exactly those that match, so that nobody has to filter again."""


@dataclass(frozen=True, slots=True)
class _Match:
    """Supersets of the matching cells: per-dimension masks that hold together, and blocks (broadcastable)."""

    blocks: Mask
    masks: Mapping[int, Mask] = field(default_factory=dict)
    decided: bool = False
    """Whether the masks together are no superset but the matching cells themselves."""

    def __and__(self, other: _Match) -> _Match:
        masks = dict(self.masks)
        for axis, mask in other.masks.items():
            masks[axis] = masks[axis] & mask if axis in masks else mask
        return _Match(self.blocks & other.blocks, masks, self.decided and other.decided)

    def __or__(self, other: _Match) -> _Match:
        masks = {axis: mask | other.masks[axis] for axis, mask in self.masks.items() if axis in other.masks}
        # Masks of several dimensions are a box, and two boxes are none.
        along_one = len(masks) == 1 and self.masks.keys() == other.masks.keys()
        return _Match(self.blocks | other.blocks, masks, self.decided and other.decided and along_one)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What conditions are held against: coordinates, ranges of values per block, the zone of times without one."""

    coordinates: Sequence[pa.Array]
    ranges: Mapping[str, ValueRanges] = field(default_factory=dict)
    zone: dt.tzinfo | None = dt.UTC


def select(grid: Grid, predicate: Predicate | None, around: Surroundings) -> Selection:
    """The part of a grid outside of which no cell matches."""
    total = int(np.prod(grid.blocks, dtype=np.int64))
    everything = _Match(np.ones((1,) * len(grid.shape), dtype=bool), decided=True)
    match = everything if predicate is None else _evaluate(grid, predicate, around)
    blocks = match.blocks
    for axis, mask in match.masks.items():
        blocks = blocks & _along(_blocks_of(mask, grid.block[axis]), axis, len(grid.shape))
    masks = tuple(None if (m := match.masks.get(axis)) is None or m.all() else m for axis in range(len(grid.shape)))
    return Selection(masks, _list_blocks(blocks, grid.blocks), total, match.decided)


def _evaluate(grid: Grid, predicate: Predicate, around: Surroundings) -> _Match:
    if isinstance(predicate, And | Or):
        matches = [_evaluate(grid, part, around) for part in predicate.parts]
        result = matches[0]
        for match in matches[1:]:
            result = result & match if isinstance(predicate, And) else result | match
        return result
    everything = _Match(np.ones((1,) * len(grid.shape), dtype=bool))
    if isinstance(predicate, Unknown):
        return everything
    return _evaluate_leaf(grid, predicate, around) or everything


def _evaluate_leaf(grid: Grid, leaf: Leaf, around: Surroundings) -> _Match | None:
    name = leaf.column.lower()
    for axis, dimension in enumerate(grid.dimensions):
        if dimension.name.lower() == name:
            mask = match_leaf(around.coordinates[axis], leaf, around.zone)
            if mask is None:
                return None
            along = _along(_blocks_of(mask, grid.block[axis]), axis, len(grid.shape))
            # Whether another spelling of a name means the same column is a setting of SQL engines.
            return _Match(along, {axis: mask}, decided=leaf.column == dimension.name)
    for variable in grid.variables:
        if variable.name.lower() == name and variable.name in around.ranges:
            blocks = match_ranges(around.ranges[variable.name], leaf, variable.coding.type, around.zone)
            return None if blocks is None else _Match(blocks)
    return None


def _blocks_of(mask: Mask, length: int) -> Mask:
    if not len(mask):
        return np.zeros(0, dtype=bool)
    found: Mask = np.logical_or.reduceat(mask, np.arange(0, len(mask), length))
    return found


def _along(vector: Mask, axis: int, rank: int) -> Mask:
    return vector.reshape((1,) * axis + (-1,) + (1,) * (rank - axis - 1))


def _list_blocks(mask: Mask, grid: tuple[int, ...]) -> BlockList:
    """The smallest box around the blocks, and which of its blocks they are where not all."""
    if not grid:
        return BlockList(()) if mask.all() else BlockList((), np.zeros(0, dtype=np.int64))
    box = []
    for axis, count in enumerate(grid):
        others = tuple(other for other in range(mask.ndim) if other != axis)
        held = np.broadcast_to(mask.any(axis=others), (count,))
        found = np.flatnonzero(held)
        if not len(found):
            return BlockList(tuple((0, 0) for _ in grid))
        box.append((int(found[0]), int(found[-1]) + 1))
    inside = mask[tuple(slice(None) if mask.shape[a] == 1 else slice(*box[a]) for a in range(mask.ndim))]
    if inside.all():
        return BlockList(tuple(box))
    shape = tuple(end - first for first, end in box)
    return BlockList(tuple(box), np.flatnonzero(np.broadcast_to(inside, shape)))
