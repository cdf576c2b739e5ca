"""Which ranges of one object become one request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class MergedRead:
    """One request, [start, end), and the positions of the ranges it answers."""

    start: int
    end: int
    members: npt.NDArray[np.intp]


def plan_reads(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], *, gap_bytes: int, most_bytes: int
) -> Iterator[MergedRead]:
    """Merge ranges that lie at most a gap apart into requests of at most a size.

    Every range is in exactly one request, whole; a range larger than the limit has a request of its own, together
    only with what lies inside it.
    """
    order = np.argsort(starts, kind="stable")
    sorted_starts, sorted_ends = starts[order], ends[order]
    reach = np.maximum.accumulate(sorted_ends)
    breaks = np.flatnonzero(sorted_starts[1:] > reach[:-1] + gap_bytes) + 1
    edges = [0, *breaks.tolist(), len(order)]
    for first, last in pairwise(edges):
        while first < last:
            start = int(sorted_starts[first])
            inside = int(np.searchsorted(reach[first:last], start + most_bytes, side="right"))
            after = first + max(inside, 1)
            end = int(sorted_ends[first:after].max())
            if inside == 0:
                # What lies wholly inside an oversized range comes with it for nothing.
                while after < last and int(sorted_ends[after]) <= end:
                    after += 1
            yield MergedRead(start, end, order[first:after])
            first = after
