"""Select the part of a grid that a condition or a region can match: cells per dimension, and blocks."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.model.zarr_document import ChunkLengths
from icefloe.tables.evaluate import Mask, ValueRanges, match_leaf, match_ranges, value_moment
from icefloe.tables.grids import WIDEST_OFFSET, Dimension, Grid, parse_instant
from icefloe.tables.predicates import (
    And,
    Comparison,
    Indices,
    Instant,
    Leaf,
    Membership,
    Operator,
    Or,
    Predicate,
    Unknown,
    Value,
)

_RANGE = re.compile(r"^\s*([^=]+?)\s*=\s*(.*?)\s*$")
_POSITIONS = re.compile(r"^(\d*)\s*:\s*(\d*)$|^(\d+)$")


def parse_region(grid: Grid, region: str, region_index: str = "") -> Predicate | None:
    """Return the condition of both region options, or None if they are empty."""
    parts: list[Predicate] = []
    for name, text in _pairs(region, "region"):
        parts += _by_value(_dimension(grid, name, "region"), text)
    for name, text in _pairs(region_index, "region_index"):
        parts.append(_by_position(_dimension(grid, name, "region_index"), text))
    return And(tuple(parts)) if parts else None


def _pairs(text: str, option: str) -> list[tuple[str, str]]:
    pairs = []
    for piece in text.split(","):
        if not piece.strip():
            continue
        match = _RANGE.match(piece)
        if match is None:
            raise InvalidInputError(
                f"the option {option} contains {piece.strip()!r}, expected DIM=FIRST:LAST,DIM=VALUE,..."
            )
        pairs.append((match[1], match[2]))
    return pairs


def _dimension(grid: Grid, name: str, option: str) -> Dimension:
    for dimension in grid.dimensions:
        if dimension.name == name:
            return dimension
    raise InvalidInputError(
        f"the option {option} contains {name!r}, which is not a dimension. There are: {', '.join(grid.dims) or 'none'}"
    )


def _by_value(dimension: Dimension, text: str) -> list[Predicate]:
    low, high = _ends(dimension, text)
    if low == high:
        return [Comparison(dimension.name, "=", _value(dimension, low))]
    ends: list[tuple[Operator, str]] = [(">=", low), ("<=", high)]
    return [Comparison(dimension.name, operator, _value(dimension, end)) for operator, end in ends if end]


def _ends(dimension: Dimension, text: str) -> tuple[str, str]:
    """Split a range into its ends. Colons within times do not count."""
    if ":" not in text or _is_value(dimension, text):
        return text, text
    for index in (i for i, character in enumerate(text) if character == ":"):
        low, high = text[:index].strip(), text[index + 1 :].strip()
        if (not low or _is_value(dimension, low)) and (not high or _is_value(dimension, high)) and (low or high):
            return low, high
    raise InvalidInputError(
        f"the option region contains {dimension.name}={text!r}, expected FIRST:LAST with values of type "
        f"{dimension.type}"
    )


def _is_value(dimension: Dimension, text: str) -> bool:
    return _find_value(dimension, text) is not None


def _value(dimension: Dimension, text: str) -> Value:
    value = _find_value(dimension, text)
    if value is None:
        raise InvalidInputError(
            f"the option region contains {dimension.name}={text!r}, expected values of type {dimension.type}"
        )
    return value


def _find_value(dimension: Dimension, text: str) -> Value | None:
    if pa.types.is_timestamp(dimension.type):
        moment = parse_instant(text)
        return None if moment is None else Instant(moment)
    if pa.types.is_string(dimension.type):
        return text
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else Decimal(text)
    except InvalidOperation:
        return None


def _by_position(dimension: Dimension, text: str) -> Indices:
    match = _POSITIONS.match(text)
    if match is None:
        raise InvalidInputError(
            f"the option region_index contains {dimension.name}={text!r}, expected FIRST:END or POSITION"
        )
    if match[3] is not None:
        return Indices(dimension.name, int(match[3]), int(match[3]) + 1)
    return Indices(dimension.name, int(match[1] or 0), int(match[2] or dimension.length))


def in_any_zone(grid: Grid, predicate: Predicate) -> Predicate:
    """Return a condition that holds wherever the given one holds in some time zone.

    It is the same condition if its times have a zone.
    """
    instants = {column.name.lower() for column in grid.schema() if pa.types.is_timestamp(column.type)}
    return _in_any_zone(predicate, instants)


def _in_any_zone(predicate: Predicate, instants: Set[str]) -> Predicate:
    if isinstance(predicate, And):
        return And(tuple(_in_any_zone(part, instants) for part in predicate.parts))
    if isinstance(predicate, Or):
        return Or(tuple(_in_any_zone(part, instants) for part in predicate.parts))
    if not isinstance(predicate, Comparison | Membership) or predicate.column.lower() not in instants:
        return predicate
    if isinstance(predicate, Comparison):
        return _compare_in_any_zone(predicate)
    if all(_has_zone(value) for value in predicate.values):
        return predicate
    if predicate.negated:
        return Unknown()
    return Or(tuple(_compare_in_any_zone(Comparison(predicate.column, "=", value)) for value in predicate.values))


def _has_zone(value: Value) -> bool:
    moment = value_moment(value)
    return moment is None or moment.tzinfo is not None


def _compare_in_any_zone(comparison: Comparison) -> Predicate:
    moment = value_moment(comparison.value)
    if moment is None or moment.tzinfo is not None:
        return comparison
    if comparison.operator == "!=":
        return Unknown()
    try:
        first = Comparison(comparison.column, ">=", Instant(moment.replace(tzinfo=dt.UTC) - WIDEST_OFFSET))
        last = Comparison(comparison.column, "<=", Instant(moment.replace(tzinfo=dt.UTC) + WIDEST_OFFSET))
    except OverflowError:
        return Unknown()
    if comparison.operator == "=":
        return And((first, last))
    return last if comparison.operator in ("<", "<=") else first


Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BlockList:
    """Blocks of a grid in order: a box, or some blocks of a box."""

    box: Box
    picked: npt.NDArray[np.int64] | None = None
    """Numbers of the blocks within the box, in C order. None for all."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(end - first for first, end in self.box)

    def __len__(self) -> int:
        return len(self.picked) if self.picked is not None else int(np.prod(self.shape, dtype=np.int64))

    def part(self, first: int, end: int) -> BlockPart:
        """Return some of the blocks in compact form."""
        picked = None if self.picked is None else self.picked[first:end]
        return BlockPart(self.box, first, end, picked)


@dataclass(frozen=True, slots=True)
class BlockPart:
    """The blocks [first, end) of a list."""

    box: Box
    first: int
    end: int
    picked: npt.NDArray[np.int64] | None = None

    def coordinates(self) -> npt.NDArray[np.int64]:
        """Return block coordinates, one row each."""
        numbers = np.arange(self.first, self.end, dtype=np.int64) if self.picked is None else self.picked
        if not self.box:
            return np.zeros((len(numbers), 0), dtype=np.int64)
        shape = tuple(end - first for first, end in self.box)
        origin = np.array([first for first, _ in self.box], dtype=np.int64)
        return np.stack(np.unravel_index(numbers, shape), axis=1).astype(np.int64) + origin


def common_blocks(part: BlockPart, blocks: BlockList) -> BlockPart:
    """Return the blocks of a part that are also in a list."""
    found = part.coordinates()
    inside = np.ones(len(found), dtype=bool)
    for axis, (first, end) in enumerate(blocks.box):
        inside &= (found[:, axis] >= first) & (found[:, axis] < end)
    where = np.flatnonzero(inside)
    if blocks.picked is not None and len(where):
        origin = np.array([first for first, _ in blocks.box], dtype=np.int64)
        picked = np.ravel_multi_index(tuple((found[where] - origin).T), blocks.shape) if blocks.box else where
        inside[where] = np.isin(picked, blocks.picked)
    if inside.all():
        return part
    numbers = np.arange(part.first, part.end, dtype=np.int64) if part.picked is None else part.picked
    return BlockPart(part.box, 0, int(inside.sum()), numbers[inside])


@dataclass(frozen=True, slots=True)
class Selection:
    """Cells per dimension that can match (None is all), and the blocks that contain them."""

    masks: tuple[Mask | None, ...]
    blocks: BlockList
    total_blocks: int
    decided: bool = False
    """Whether the cells are exactly those that match, so that no further filter is needed."""


@dataclass(frozen=True, slots=True)
class _Match:
    """Supersets of the matching cells: a mask per dimension, and broadcastable blocks."""

    blocks: Mask
    masks: Mapping[int, Mask] = field(default_factory=dict)
    decided: bool = False
    """Whether the masks select exactly the matching cells."""

    def __and__(self, other: _Match) -> _Match:
        masks = dict(self.masks)
        for axis, mask in other.masks.items():
            masks[axis] = masks[axis] & mask if axis in masks else mask
        return _Match(self.blocks & other.blocks, masks, self.decided and other.decided)

    def __or__(self, other: _Match) -> _Match:
        masks = {axis: mask | other.masks[axis] for axis, mask in self.masks.items() if axis in other.masks}
        # Masks of several dimensions are a box. The union of two boxes is not a box.
        along_one = len(masks) == 1 and self.masks.keys() == other.masks.keys()
        return _Match(self.blocks | other.blocks, masks, self.decided and other.decided and along_one)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The context of conditions: coordinates, value ranges per block, and the zone of times without one."""

    coordinates: Sequence[pa.Array]
    ranges: Mapping[str, ValueRanges] = field(default_factory=dict)
    zone: dt.tzinfo | None = dt.UTC


def select(grid: Grid, predicate: Predicate | None, around: Surroundings) -> Selection:
    """Return the part of a grid outside of which no cell matches."""
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
            # Whether names are case-sensitive is a setting of SQL engines.
            return _Match(along, {axis: mask}, decided=leaf.column == dimension.name)
    for variable in grid.variables:
        if variable.name.lower() == name and variable.name in around.ranges:
            blocks = match_ranges(around.ranges[variable.name], leaf, variable.coding.type, around.zone)
            return None if blocks is None else _Match(blocks)
    return None


def _blocks_of(mask: Mask, lengths: ChunkLengths) -> Mask:
    if not len(mask):
        return np.zeros(0, dtype=bool)
    found: Mask = np.logical_or.reduceat(mask, lengths.starts(len(mask)))
    return found


def _along(vector: Mask, axis: int, rank: int) -> Mask:
    return vector.reshape((1,) * axis + (-1,) + (1,) * (rank - axis - 1))


def _list_blocks(mask: Mask, grid: tuple[int, ...]) -> BlockList:
    """Return the smallest box around the blocks, and which of its blocks they are."""
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
