"""Which cells of a block can match a condition, so that the others need not leave the task."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icefloe.tables.matching import Mask, match_leaf
from icefloe.tables.predicates import And, Or, Predicate, Unknown

_WORTHWHILE = 0.5
"""Up to this share of matching cells, leaving the others out costs less than sending them."""


@dataclass(frozen=True, slots=True)
class CellTest:
    """A condition on values, for those who filter again: it keeps every cell that matches, and maybe others."""

    predicate: Predicate
    zone: dt.tzinfo | None

    def matches(self, columns: Mapping[str, pa.Array]) -> Mask | None:
        """Cells that can match, by the columns of their values; None where most or all of them can."""
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
        if isinstance(predicate, Unknown):
            return None
        values = columns.get(predicate.column.lower())
        return None if values is None else match_leaf(values, predicate, self.zone)
