"""Rows of a batch that satisfy a condition exactly."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.tables.matching import Mask, match_leaf
from icefloe.tables.predicates import And, Indices, Or, Predicate, Unknown


def exact_rows(batch: pa.RecordBatch, predicate: Predicate | None) -> pa.RecordBatch:
    """The rows that match; times without a zone are UTC."""
    if predicate is None:
        return batch
    mask = _rows(batch, predicate)
    return batch if mask.all() else batch.filter(pa.array(mask))


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
        raise InvalidInputError(f"the condition {predicate} cannot be decided here; put it into WHERE")
    return mask


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    for index, known in enumerate(batch.schema.names):
        if known.lower() == name.lower():
            return batch.column(index)
    return None
