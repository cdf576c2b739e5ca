"""Reductions that the statistics of chunks answer, so that no chunk is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from icefloe.session.session import Session
from icefloe.spark.partials import Extremes, Sums, sum_type
from icefloe.spark.places import node_path
from icefloe.spark.reduced import FinishPlace, Values
from icefloe.tables.summaries import Summary, summarise_array


def answer(session: Session, group: str, dataset: xr.Dataset, dims: Sequence[str], finish: FinishPlace) -> Values:
    """Results by variable, of those whose cells are all reduced to one and whose chunks were all measured."""
    found: Values = {}
    if isinstance(finish.reduction, Sums | Extremes):
        for name, array in dataset.data_vars.items():
            if array.dtype.kind in "iuf" and set(array.dims) <= set(dims):
                summary = summarise_array(session, node_path(group, str(name)))
                partial = None if summary is None else _partial(summary, array.dtype, finish.reduction)
                if partial is not None:
                    found[str(name)] = finish({}, {str(name): partial})[str(name)]
    return found


def _partial(
    summary: Summary, dtype: np.dtype[np.generic], reduction: Sums | Extremes
) -> tuple[np.ndarray, np.ndarray] | np.ndarray | None:
    """A summary as the partial result of all cells; None where it does not hold what is asked."""
    if isinstance(reduction, Extremes):
        extreme = summary.low if reduction.how == "min" else summary.high
        return None if extreme is None or (np.isnan(extreme) and dtype.kind != "f") else np.asarray(extreme, dtype)
    count = np.asarray(summary.count, dtype=np.int64)
    if reduction.how == "count":
        return count, count
    if summary.total is None:
        return None
    return np.asarray(summary.total, dtype=sum_type(dtype, reduction.how)), count
