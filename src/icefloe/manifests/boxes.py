"""Boxes of the chunk grid in columns: which overlap, which contain, what bounds them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from icefloe.model.coordinates import highest, lowest
from icefloe.model.nodes import Extents
from icefloe.model.runs import runs_up_to

Boxes = npt.NDArray[np.int64]
"""int64[n, ndim, 2], [first, end) per dimension."""

_BLOCK = 1 << 20


def bounding_box(coords: npt.NDArray[np.uint32]) -> Extents:
    """The smallest box around some chunks; there is at least one."""
    return tuple((first, last + 1) for first, last in zip(lowest(coords), highest(coords), strict=True))


def box_array(boxes: Sequence[Extents], ndim: int) -> Boxes:
    """Extents as one array."""
    return np.array(boxes, dtype=np.int64).reshape(len(boxes), ndim, 2)


def to_extents(box: npt.NDArray[np.int64]) -> Extents:
    """One row of a box array as extents."""
    return tuple((int(a), int(b)) for a, b in box)


def intersect(a: Extents, b: Extents) -> Extents:
    """What two boxes share; first = end where they do not meet."""
    return tuple((max(x[0], y[0]), max(max(x[0], y[0]), min(x[1], y[1]))) for x, y in zip(a, b, strict=True))


def volume(box: Extents) -> int:
    """The number of chunks in a box; a box without dimensions holds one."""
    return math.prod(end - first for first, end in box)


def contains(outer: Extents, inner: Extents) -> bool:
    """Whether a box lies wholly in another."""
    return all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=True))


def overlapping_pairs(boxes: Boxes) -> npt.NDArray[np.int64]:
    """All pairs of boxes that share a chunk, int64[m, 2]; a sweep along the axis that tells most boxes apart."""
    count, ndim, _ = boxes.shape
    if count < 2:
        return np.empty((0, 2), dtype=np.int64)
    if ndim == 0:
        return np.stack(np.triu_indices(count, k=1), axis=1).astype(np.int64)
    alive = np.flatnonzero((boxes[:, :, 0] < boxes[:, :, 1]).all(axis=1))
    sweeps = [_sweep(boxes[alive, axis]) for axis in range(ndim)]
    order, until = min(sweeps, key=lambda sweep: int((sweep[1] - np.arange(len(alive)) - 1).sum()))
    order = alive[order]
    candidates = until - np.arange(len(order)) - 1
    found: list[npt.NDArray[np.int64]] = []
    for first, last in runs_up_to(_BLOCK, np.cumsum(candidates)):
        sizes = candidates[first:last]
        left = np.repeat(np.arange(first, last), sizes)
        right = left + 1 + np.arange(len(left)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        a, b = boxes[order[left]], boxes[order[right]]
        meet = ((a[:, :, 0] < b[:, :, 1]) & (b[:, :, 0] < a[:, :, 1])).all(axis=1)
        found.append(np.stack([order[left[meet]], order[right[meet]]], axis=1))
    return np.sort(np.concatenate(found), axis=1) if found else np.empty((0, 2), dtype=np.int64)


def _sweep(spans: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Spans in order of their start, and for each the number of spans that start before it ends."""
    order = np.argsort(spans[:, 0], kind="stable")
    return order, np.searchsorted(spans[order, 0], spans[order, 1], side="left")


def bounding_boxes(boxes: Boxes, labels: npt.NDArray[np.int64], count: int) -> Boxes:
    """The bounding box of the boxes with each label."""
    bounds = np.empty((count, boxes.shape[1], 2), dtype=np.int64)
    bounds[:, :, 0], bounds[:, :, 1] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    np.minimum.at(bounds[:, :, 0], labels, boxes[:, :, 0])
    np.maximum.at(bounds[:, :, 1], labels, boxes[:, :, 1])
    return bounds
