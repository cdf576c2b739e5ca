"""What the statistics of its chunks say of a whole array: total, count and extremes, without reading a chunk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icefloe.session.session import Session
from icefloe.tables.columns import coding_of, has_one_missing_value
from icefloe.tables.grids import Variable, open_array
from icefloe.tables.statistics import load_ranges

_EXACT = 2.0**53


@dataclass(frozen=True, slots=True)
class Summary:
    """Of the values of an array that are there; None where the statistics do not tell it exactly."""

    count: int
    total: float | None
    low: float | None
    high: float | None
    """Both extremes are NaN where no value is there."""


def summarise_array(session: Session, path: str) -> Summary | None:
    """The summary of an array; None where the statistics of some of its chunks are not known."""
    array = open_array(session, path)
    if array.dtype.kind not in "iuf" or not has_one_missing_value(array.attrs):
        return None
    chunks = tuple(max(1, int(each)) for each in (array.shards or array.chunks))
    coding = coding_of(array.dtype, array.attrs)
    if coding.times is not None:
        return None
    ranges = load_ranges(session, Variable(path.rpartition("/")[2], path, chunks, coding))
    if ranges is None or not ranges.known.all():
        return None
    count = int((ranges.count - ranges.missing).sum())
    total = None if np.isnan(ranges.total).any() else float(ranges.total.sum())
    if pa.types.is_integer(coding.type) and total is not None and float(np.abs(ranges.total).sum()) >= _EXACT:
        total = None
    if not count:
        return Summary(0, total, np.nan, np.nan)
    there = ranges.missing < ranges.count
    low, high = float(ranges.low[there].min()), float(ranges.high[there].max())
    exact = max(abs(low), abs(high)) < _EXACT or array.dtype.kind == "f"
    return Summary(count, total, low if exact else None, high if exact else None)
