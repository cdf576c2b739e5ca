"""Rows of a batch that satisfy a condition exactly."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.tables.matching import Mask, match_leaf
from icefloe.tables.predicates import (
    And,
    Comparison,
    Indices,
    Instant,
    Leaf,
    Membership,
    Or,
    Predicate,
    Unknown,
    Value,
)


def exact_rows(batch: pa.RecordBatch, predicate: Predicate | None) -> pa.RecordBatch:
    """The rows that match; times without a zone are UTC."""
    if predicate is None:
        return batch
    mask = _rows(batch, predicate)
    return batch if mask.all() else batch.filter(pa.array(mask))


def check_decidable(schema: pa.Schema, predicate: Predicate) -> None:
    """Refuse a condition that `exact_rows` cannot decide for columns of these types, whatever their values are."""
    _rows(pa.RecordBatch.from_pylist([], schema=schema), predicate)


def _rows(batch: pa.RecordBatch, predicate: Predicate) -> Mask:
    if isinstance(predicate, And | Or):
        masks = [_rows(batch, part) for part in predicate.parts]
        combined: Mask = (np.logical_and if isinstance(predicate, And) else np.logical_or).reduce(masks)
        return combined
    if isinstance(predicate, Indices):
        # Positions are held by the masks of the scan already: a batch does not know its own.
        return np.ones(len(batch), dtype=bool)
    column = None if isinstance(predicate, Unknown) else _column(batch, predicate.column)
    mask = None if column is None or isinstance(predicate, Unknown) else match_leaf(column, predicate, dt.UTC)
    if mask is None:
        kind = f", which is a column of {column.type}s" if column is not None else ""
        raise InvalidInputError(
            f"how SQL decides {_spell(predicate)}{kind}, is not known here; compare with constants of the type of the "
            "column, or put the condition into WHERE or into icefloe.spark.table(..., where=...)"
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
