"""Questions to many chunk coordinates at once, asked one dimension after the other.

A matrix of coordinates has millions of rows and a few columns: numpy goes over such a matrix row by row when it reduces
along an axis, which takes fifty times as long as going over the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def lowest(coords: npt.NDArray[Any]) -> tuple[int, ...]:
    """The least coordinate in every dimension; there is at least one row."""
    return tuple(int(coords[:, axis].min()) for axis in range(coords.shape[1]))


def highest(coords: npt.NDArray[Any]) -> tuple[int, ...]:
    """The greatest coordinate in every dimension; there is at least one row."""
    return tuple(int(coords[:, axis].max()) for axis in range(coords.shape[1]))


def rows_inside(
    coords: npt.NDArray[Any], low: Sequence[int] | npt.NDArray[Any], high: Sequence[int] | npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Which rows are at or above `low` and below `high` in every dimension."""
    inside = np.ones(len(coords), dtype=np.bool_)
    for axis, (first, end) in enumerate(zip(low, high, strict=True)):
        column = coords[:, axis]
        inside &= (column >= first) & (column < end)
    return inside


def rows_below(coords: npt.NDArray[Any], high: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which rows are below `high` in every dimension."""
    inside = np.ones(len(coords), dtype=np.bool_)
    for axis, end in enumerate(high):
        inside &= coords[:, axis] < end
    return inside
