"""Partial results of cells equal those of numpy, and merging parts is the same as reducing all cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.tables.aggregates import AxisReducer, merge_values, reduce_cells

_KINDS = ("count", "sum", "min", "max")


@st.composite
def cells(draw: st.DrawFn) -> tuple[Any, Any]:
    shape = tuple(draw(st.lists(st.integers(2, 5), min_size=1, max_size=3)))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    values = (random.random(shape) * 100).astype(draw(st.sampled_from(["f4", "f8", "i2", "i8", "u1"])))
    if values.dtype.kind == "f":
        values[random.random(shape) < draw(st.sampled_from([0, 0.3, 1]))] = np.nan
    present = None if draw(st.booleans()) else random.random(shape) < 0.6
    return values, present


@settings(max_examples=150, deadline=None)
@given(cells(), st.data())
def test_parts_of_cells_merge_to_the_result_of_numpy(made: tuple[Any, Any], data: st.DataObject) -> None:
    values, present = made
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, values.ndim - 1))) | {0}))
    cut = data.draw(st.integers(1, values.shape[0] - 1))
    parts = [
        reduce_cells(AxisReducer(axes), values[at], None if present is None else present[at], _KINDS)
        for at in (slice(0, cut), slice(cut, None))
    ]
    found = {kind: merge_values(kind, parts[0][kind], parts[1][kind]) for kind in _KINDS}
    there = np.ones(values.shape, dtype=bool) if present is None else present
    there = there & ~np.isnan(values) if values.dtype.kind == "f" else there
    count = there.sum(axis=axes)
    np.testing.assert_array_equal(found["count"], count)
    np.testing.assert_allclose(found["sum"], np.where(there, values, 0).sum(axis=axes, dtype="f8"), rtol=1e-12)
    wide = values.astype("f8")
    low, high = np.where(there, wide, np.inf).min(axis=axes), np.where(there, wide, -np.inf).max(axis=axes)
    np.testing.assert_array_equal(np.asarray(found["min"])[count > 0], low[count > 0])
    np.testing.assert_array_equal(np.asarray(found["max"])[count > 0], high[count > 0])


@pytest.mark.parametrize("kind", ["min", "max"])
def test_the_extreme_of_nothing_but_missing_values_is_missing(kind: str) -> None:
    empty = np.full((2, 3), np.nan, dtype="f4")
    assert np.isnan(reduce_cells(AxisReducer((0, 1)), empty, None, (kind,))[kind])
    times = np.array(["NaT", "2020-01-01"], dtype="M8[ns]")
    assert reduce_cells(AxisReducer((0,)), times, None, (kind,))[kind] == times[1]
