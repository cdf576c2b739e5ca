"""Regions of a grid as options name them: ranges of coordinates or of positions per dimension."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.tables.grids import Dimension, Grid
from icefloe.tables.instants import parse_instant
from icefloe.tables.predicates import And, Comparison, Indices, Instant, Operator, Predicate, Value

_RANGE = re.compile(r"^\s*([^=]+?)\s*=\s*(.*?)\s*$")
_POSITIONS = re.compile(r"^(\d*)\s*:\s*(\d*)$|^(\d+)$")


def parse_region(grid: Grid, region: str, region_index: str = "") -> Predicate | None:
    """The condition that both options state together; None when they are empty."""
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
            raise InvalidInputError(f"the option {option} has {piece.strip()!r}; it takes DIM=FIRST:LAST,DIM=VALUE,...")
        pairs.append((match[1], match[2]))
    return pairs


def _dimension(grid: Grid, name: str, option: str) -> Dimension:
    for dimension in grid.dimensions:
        if dimension.name == name:
            return dimension
    raise InvalidInputError(
        f"the option {option} names {name!r}, which is no dimension; there are {', '.join(grid.dims) or 'none'}"
    )


def _by_value(dimension: Dimension, text: str) -> list[Predicate]:
    low, high = _ends(dimension, text)
    if low == high:
        return [Comparison(dimension.name, "=", _value(dimension, low))]
    ends: list[tuple[Operator, str]] = [(">=", low), ("<=", high)]
    return [Comparison(dimension.name, operator, _value(dimension, end)) for operator, end in ends if end]


def _ends(dimension: Dimension, text: str) -> tuple[str, str]:
    """The ends of a range; the colons of times are not those between ends."""
    if ":" not in text or _is_value(dimension, text):
        return text, text
    for index in (i for i, character in enumerate(text) if character == ":"):
        low, high = text[:index].strip(), text[index + 1 :].strip()
        if (not low or _is_value(dimension, low)) and (not high or _is_value(dimension, high)) and (low or high):
            return low, high
    raise InvalidInputError(
        f"the option region has {dimension.name}={text!r}; it takes FIRST:LAST with values of type {dimension.type}"
    )


def _is_value(dimension: Dimension, text: str) -> bool:
    return _find_value(dimension, text) is not None


def _value(dimension: Dimension, text: str) -> Value:
    value = _find_value(dimension, text)
    if value is None:
        raise InvalidInputError(
            f"the option region has {dimension.name}={text!r}; its values are of type {dimension.type}"
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
            f"the option region_index has {dimension.name}={text!r}; it takes FIRST:END or POSITION"
        )
    if match[3] is not None:
        return Indices(dimension.name, int(match[3]), int(match[3]) + 1)
    return Indices(dimension.name, int(match[1] or 0), int(match[2] or dimension.length))
