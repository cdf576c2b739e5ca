"""Items in order as runs that each come to no more than a size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt


def runs_up_to(most: int, ends: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Bounds [first, end) of runs, cut where the next item would pass the size; a larger item is a run by itself.

    `ends` are the sizes of the items, added up.
    """
    first = 0
    while first < len(ends):
        done = int(ends[first - 1]) if first else 0
        # As the column's own type: numpy compares unsigned columns with other numbers as floats.
        end = max(int(np.searchsorted(ends, ends.dtype.type(done + most), side="right")), first + 1)
        yield first, end
        first = end
