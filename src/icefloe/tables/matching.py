"""Which values of a column satisfy a condition."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.tables.instants import parse_instant, to_microseconds
from icefloe.tables.predicates import Comparison, Indices, Instant, Leaf, Membership, NullTest, Operator, Value

Mask = npt.NDArray[np.bool_]
_COMPARE = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "=": np.equal, "!=": np.not_equal,
}  # fmt: skip
_EXACT_DOUBLE, _EXACT_SINGLE = 2**53, 2**24


def match_leaf(values: pa.Array, leaf: Leaf, zone: dt.tzinfo | None) -> Mask | None:
    """Rows of a column that satisfy a condition as SQL compares; None where that is not known for its type."""
    if isinstance(leaf, NullTest):
        nulls = _nulls(values)
        return ~nulls if leaf.negated else nulls
    if isinstance(leaf, Indices):
        rows = np.arange(len(values))
        return (rows >= leaf.first) & (rows < leaf.end)
    if isinstance(leaf, Comparison):
        return _compare(values, leaf.operator, leaf.value, zone)
    return _member(values, leaf, zone)


def _member(values: pa.Array, leaf: Membership, zone: dt.tzinfo | None) -> Mask | None:
    kinds = {_family(value) for value in leaf.values}
    if len(kinds) != 1 or (kinds == {"text"} and not pa.types.is_string(values.type)):
        # SQL brings the values of a list to one type first, which may round or refuse them.
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
    return np.asarray(values.is_null())


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
        # As a double, so that numpy compares as doubles; NaN is the largest number to SQL, and less than none to numpy.
        number = np.float64(value)
        if operator in (">", ">="):
            return _apply(lambda a, b: ~(a <= b if operator == ">" else a < b), values, number)
        return _apply(_COMPARE[operator], values, number)
    return None


def value_microseconds(value: Value, zone: dt.tzinfo | None) -> int | None:
    """A constant as an instant, as SQL would cast it; None when that is not known."""
    moment = value.moment if isinstance(value, Instant) else parse_instant(value) if isinstance(value, str) else None
    if moment is None or (moment.tzinfo is None and zone is None):
        return None
    return to_microseconds(moment, zone or dt.UTC)


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
        "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
        "=": pc.equal, "!=": pc.not_equal,
    }  # fmt: skip
    matched: Mask = np.asarray(functions[operator](values, pa.scalar(value)).fill_null(False))
    return matched


def _apply(compare: Any, values: pa.Array, value: Any) -> Mask:
    if not values.null_count:
        matched: Mask = compare(values.to_numpy(zero_copy_only=False), value)
        return matched
    known: Mask = compare(values.fill_null(0).to_numpy(zero_copy_only=False), value) & ~_nulls(values)
    return known
