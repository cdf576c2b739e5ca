"""Evaluate conditions: on rows, on cells of a block, and on ranges of values."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import InvalidInputError
from icefloe.tables.columns import to_numpy
from icefloe.tables.grids import parse_instant, to_microseconds
from icefloe.tables.predicates import (
    And,
    Comparison,
    Indices,
    Instant,
    Leaf,
    Membership,
    NullTest,
    Operator,
    Or,
    Positions,
    Predicate,
    Unknown,
    Value,
)

Mask = npt.NDArray[np.bool_]
_COMPARE = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "=": np.equal,
    "!=": np.not_equal,
}
_EXACT_DOUBLE, _EXACT_SINGLE = 2**53, 2**24


def match_leaf(values: pa.Array, leaf: Leaf, zone: dt.tzinfo | None) -> Mask | None:
    """Rows of a column that satisfy a condition by the rules of SQL. None if these are not implemented for its type."""
    if isinstance(leaf, NullTest):
        nulls = _nulls(values)
        return ~nulls if leaf.negated else nulls
    if isinstance(leaf, Indices):
        rows = np.arange(len(values))
        return (rows >= leaf.first) & (rows < leaf.end)
    if isinstance(leaf, Positions):
        return leaf.mask
    if isinstance(leaf, Comparison):
        return _compare(values, leaf.operator, leaf.value, zone)
    return _member(values, leaf, zone)


def _member(values: pa.Array, leaf: Membership, zone: dt.tzinfo | None) -> Mask | None:
    kinds = {_family(value) for value in leaf.values}
    if len(kinds) != 1 or (kinds == {"text"} and not pa.types.is_string(values.type)):
        # SQL casts the values of a list to one type first, which may round or refuse them.
        return None
    found = np.zeros(len(values), dtype=bool)
    for value in leaf.values:
        matched = _compare(values, "=", value, zone)
        if matched is None:
            return None
        found |= matched
    return ~found & ~_nulls(values) if leaf.negated else found


def _family(value: Value) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "text"
    return "instant" if isinstance(value, Instant) else type(value).__name__


def _nulls(values: pa.Array) -> Mask:
    return to_numpy(values.is_null())


def _compare(values: pa.Array, operator: Operator, value: Value, zone: dt.tzinfo | None) -> Mask | None:
    kind = values.type
    if pa.types.is_timestamp(kind):
        micro = value_microseconds(value, zone)
        return None if micro is None else _apply(_COMPARE[operator], values.view(pa.int64()), micro)
    if isinstance(value, bool):
        same = pa.types.is_boolean(kind) and operator in ("=", "!=")
        return _apply(_COMPARE[operator], values.cast(pa.int8()), int(value)) if same else None
    if isinstance(value, str):
        return _compare_texts(values, operator, value) if pa.types.is_string(kind) else None
    if isinstance(value, Instant):
        return None
    if pa.types.is_integer(kind):
        return _compare_integers(values, operator, value)
    if pa.types.is_floating(kind):
        exact = _EXACT_SINGLE if kind == pa.float32() else _EXACT_DOUBLE
        if isinstance(value, int) and abs(value) > exact:
            return None
        return _compare_floats(values, operator, np.float64(value))
    return None


def _compare_floats(values: pa.Array, operator: Operator, number: np.floating[Any]) -> Mask:
    """Compare floats with a double. Numpy would convert singles to doubles, which takes longer than to compare them."""
    if values.type == pa.float32():
        with np.errstate(over="ignore"):
            single = np.float32(number)
        if single == number:
            number = single
        elif operator not in ("=", "!="):
            # No single lies between the double and the next lower single.
            number = single if single < number else np.nextafter(single, np.float32(-np.inf))
            operator = "<=" if operator in ("<", "<=") else ">"
    if operator in (">", ">="):
        # In SQL, NaN is the largest number. In numpy, comparisons with it are false.
        return _apply(lambda a, b: ~(a <= b if operator == ">" else a < b), values, number)
    return _apply(_COMPARE[operator], values, number)


def value_microseconds(value: Value, zone: dt.tzinfo | None) -> int | None:
    """A constant as an instant, as SQL casts it. None if it is not known."""
    moment = value_moment(value)
    if moment is None or (moment.tzinfo is None and zone is None):
        return None
    return to_microseconds(moment, zone or dt.UTC)


def value_moment(value: Value) -> dt.datetime | None:
    """A constant as a date and time, or None if it is neither. It has a zone if the constant has one."""
    return value.moment if isinstance(value, Instant) else parse_instant(value) if isinstance(value, str) else None


def _compare_integers(values: pa.Array, operator: Operator, value: int | float | Decimal) -> Mask | None:
    wide = values.cast(pa.int64())
    if isinstance(value, float):
        return _apply(_COMPARE[operator], wide.cast(pa.float64(), safe=False), value)
    if isinstance(value, Decimal):
        whole = math.floor(value)
        if whole != value:
            if operator in ("=", "!="):
                rows = ~_nulls(values)
                return rows if operator == "!=" else ~rows & rows
            operator = "<=" if operator in ("<", "<=") else ">"
        value = whole
    limits = np.iinfo(np.int64)
    if not limits.min <= value <= limits.max:
        above = value > limits.max
        matches = operator == "!=" or ((operator in ("<", "<=")) is above and operator not in ("=",))
        rows = ~_nulls(values)
        return rows if matches else ~rows & rows
    return _apply(_COMPARE[operator], wide, value)


def _compare_texts(values: pa.Array, operator: Operator, value: str) -> Mask:
    functions = {
        "<": pc.less,
        "<=": pc.less_equal,
        ">": pc.greater,
        ">=": pc.greater_equal,
        "=": pc.equal,
        "!=": pc.not_equal,
    }
    return to_numpy(functions[operator](values, pa.scalar(value)).fill_null(False))


def _apply(compare: Any, values: pa.Array, value: Any) -> Mask:
    if not values.null_count:
        matched: Mask = compare(to_numpy(values), value)
        return matched
    known: Mask = compare(to_numpy(values.fill_null(0)), value) & ~_nulls(values)
    return known


def exact_rows(batch: pa.RecordBatch, predicate: Predicate | None, zone: dt.tzinfo | None = dt.UTC) -> pa.RecordBatch:
    """The rows that match. Times without a zone are in the given one."""
    if predicate is None:
        return batch
    mask = _rows(batch, predicate, zone)
    return batch if mask.all() else batch.filter(pa.array(mask))


def is_exact(schema: pa.Schema, predicate: Predicate, zone: dt.tzinfo | None) -> bool:
    """Whether numpy evaluates a condition as SQL does, for columns of these types."""
    if isinstance(predicate, And | Or):
        return all(is_exact(schema, part, zone) for part in predicate.parts)
    if not isinstance(predicate, Comparison | Membership | NullTest):
        return False
    return match_leaf(pa.array([], type=schema.field(predicate.column).type), predicate, zone) is not None


def check_decidable(schema: pa.Schema, predicate: Predicate) -> None:
    """Refuse a condition that `exact_rows` cannot evaluate for columns of these types."""
    _rows(pa.RecordBatch.from_pylist([], schema=schema), predicate, dt.UTC)


def _rows(batch: pa.RecordBatch, predicate: Predicate, zone: dt.tzinfo | None) -> Mask:
    if isinstance(predicate, And | Or):
        masks = [_rows(batch, part, zone) for part in predicate.parts]
        combined: Mask = (np.logical_and if isinstance(predicate, And) else np.logical_or).reduce(masks)
        return combined
    if isinstance(predicate, Indices | Positions):
        # The masks of the scan already select positions. A batch does not know its positions.
        return np.ones(len(batch), dtype=bool)
    column = None if isinstance(predicate, Unknown) else _column(batch, predicate.column)
    mask = None if column is None or isinstance(predicate, Unknown) else match_leaf(column, predicate, zone)
    if mask is None:
        kind = f" on a column of type {column.type}" if column is not None else ""
        raise InvalidInputError(
            f"the condition {_spell(predicate)}{kind} cannot be evaluated here. Compare with constants of the type of "
            "the column, or use the condition in WHERE or in icefloe.spark.table(..., where=...)"
        )
    return mask


def _spell(predicate: Leaf | Unknown) -> str:
    if isinstance(predicate, Comparison):
        return f"`{predicate.column} {predicate.operator} {_constant(predicate.value)}`"
    if isinstance(predicate, Membership):
        listed = ", ".join(map(_constant, predicate.values))
        return f"`{predicate.column} {'NOT ' if predicate.negated else ''}IN ({listed})`"
    return f"`{predicate}`"


def _constant(value: Value) -> str:
    return f"'{value.moment}'" if isinstance(value, Instant) else repr(value) if isinstance(value, str) else str(value)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    for index, known in enumerate(batch.schema.names):
        if known.lower() == name.lower():
            return batch.column(index)
    return None


_WORTHWHILE = 0.5
"""Up to this share of matching cells, removing the others costs less than sending them."""


@dataclass(frozen=True, slots=True)
class CellTest:
    """A condition on values, for callers that filter again. It keeps all matching cells, and possibly others."""

    predicate: Predicate
    zone: dt.tzinfo | None

    def matches(self, columns: Mapping[str, pa.Array]) -> Mask | None:
        """Cells that can match, from the columns of their values. None if most of them can."""
        lowered = {name.lower(): values for name, values in columns.items()}
        mask = self._evaluate(lowered, self.predicate)
        return None if mask is None or np.count_nonzero(mask) > _WORTHWHILE * len(mask) else mask

    def _evaluate(self, columns: Mapping[str, pa.Array], predicate: Predicate) -> Mask | None:
        if isinstance(predicate, And | Or):
            masks = [self._evaluate(columns, part) for part in predicate.parts]
            known = [mask for mask in masks if mask is not None]
            if not known or (isinstance(predicate, Or) and len(known) < len(masks)):
                return None
            combined: Mask = (np.logical_and if isinstance(predicate, And) else np.logical_or).reduce(known)
            return combined
        if isinstance(predicate, Unknown | Positions):
            return None
        values = columns.get(predicate.column.lower())
        return None if values is None else match_leaf(values, predicate, self.zone)


@dataclass(frozen=True, slots=True)
class ValueRanges:
    """Per block of a grid: bounds and total of its values, the number of cells, and the number of missing cells.

    Bounds are doubles that are never tighter than the values. Instants are microseconds. If `known` is false, the block
    has no statistics. If the total is NaN, it is not known.
    """

    known: Mask
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    count: npt.NDArray[np.int64]
    missing: npt.NDArray[np.int64]
    total: npt.NDArray[np.float64]

    @classmethod
    def unknown(cls, blocks: int) -> ValueRanges:
        """Ranges of this many blocks without statistics, in one row."""
        none = np.zeros(blocks, dtype=np.int64)
        bounds = np.full(blocks, -np.inf), np.full(blocks, np.inf)
        return cls(np.zeros(blocks, dtype=bool), *bounds, none, none.copy(), np.full(blocks, np.nan))

    def reshape(self, grid: Sequence[int]) -> ValueRanges:
        """The same in the shape of a grid."""
        return ValueRanges(*(getattr(self, each.name).reshape(grid) for each in fields(self)))


def match_ranges(ranges: ValueRanges, leaf: Leaf, type: pa.DataType, zone: dt.tzinfo | None) -> Mask | None:
    """Blocks that can contain a match. None if the condition cannot be compared with ranges."""
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
    # A literal that is not exactly a double may be on either side of it.
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
