"""Many ranges of one run of bytes, copied behind each other at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError


def gather_ranges(
    source: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """The bytes [start, start + length) of every row, concatenated; no copy where they already follow each other."""
    if len(starts) == 0:
        return np.empty(0, dtype=np.uint8)
    ends = starts + lengths
    full = lengths > 0
    if (starts < 0).any() or (lengths < 0).any() or (ends[full] > len(source)).any():
        raise InvalidInputError(f"a chunk lies outside of the {len(source)} inline bytes")
    used_starts, used_ends, used_lengths = starts[full], ends[full], lengths[full]
    if len(used_starts) == 0:
        return np.empty(0, dtype=np.uint8)
    if (used_starts[1:] == used_ends[:-1]).all():
        return source[int(used_starts[0]) : int(used_ends[-1])]
    targets = np.cumsum(used_lengths) - used_lengths
    index = np.repeat(used_starts - targets, used_lengths) + np.arange(int(used_lengths.sum()), dtype=np.int64)
    return source[index]
