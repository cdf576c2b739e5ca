"""Whether a block can hold values that satisfy a condition, by the range of its values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, fields
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.tables.matching import Mask, value_microseconds
from icefloe.tables.predicates import Comparison, Leaf, Membership, NullTest, Operator, Value


@dataclass(frozen=True, slots=True)
class ValueRanges:
    """Per block of a grid: bounds of its values, their total, how many cells it has and how many are missing.

    Bounds are doubles that are never tighter than the values; instants count in microseconds. Where `known` is
    false nothing is said, and where the total is NaN nothing is said of it.
    """

    known: Mask
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    count: npt.NDArray[np.int64]
    missing: npt.NDArray[np.int64]
    total: npt.NDArray[np.float64]

    @classmethod
    def unknown(cls, blocks: int) -> ValueRanges:
        """Of so many blocks, in one row, nothing is known yet."""
        none = np.zeros(blocks, dtype=np.int64)
        bounds = np.full(blocks, -np.inf), np.full(blocks, np.inf)
        return cls(np.zeros(blocks, dtype=bool), *bounds, none, none.copy(), np.full(blocks, np.nan))

    def reshape(self, grid: Sequence[int]) -> ValueRanges:
        """The same by the places of a grid."""
        return ValueRanges(*(getattr(self, each.name).reshape(grid) for each in fields(self)))


def match_ranges(ranges: ValueRanges, leaf: Leaf, type: pa.DataType, zone: dt.tzinfo | None) -> Mask | None:
    """Blocks that can hold a match; None where the condition cannot be held against ranges."""
    present = ranges.missing < ranges.count
    if isinstance(leaf, NullTest):
        return ~ranges.known | (present if leaf.negated else ranges.missing > 0)
    if isinstance(leaf, Comparison):
        found = _possible(ranges, leaf.operator, leaf.value, type, zone)
        return None if found is None else ~ranges.known | (present & found)
    if isinstance(leaf, Membership):
        if leaf.negated:
            return ~ranges.known | present
        each = [_possible(ranges, "=", value, type, zone) for value in leaf.values]
        if any(found is None for found in each):
            return None
        anywhere: Mask = np.logical_or.reduce([found for found in each if found is not None])
        return ~ranges.known | (present & anywhere)
    return None


def _possible(
    ranges: ValueRanges, operator: Operator, value: Value, type: pa.DataType, zone: dt.tzinfo | None
) -> Mask | None:
    number = _number(value, type, zone)
    if number is None:
        return None
    # A literal that is not a double exactly may lie on either side of it.
    below, above = np.nextafter(number, -np.inf), np.nextafter(number, np.inf)
    if operator in ("<", "<="):
        return np.asarray(ranges.low <= above)
    if operator in (">", ">="):
        return np.asarray(ranges.high >= below)
    if operator == "=":
        return np.asarray((ranges.low <= above) & (ranges.high >= below))
    return np.ones(ranges.low.shape, dtype=bool)


def _number(value: Value, type: pa.DataType, zone: dt.tzinfo | None) -> float | None:
    if pa.types.is_timestamp(type):
        micro = value_microseconds(value, zone)
        return None if micro is None else float(micro)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if not (pa.types.is_integer(type) or pa.types.is_floating(type)):
        return None
    if type == pa.float32() and isinstance(value, int) and abs(value) > 2**24:
        return None
    return float(value)
