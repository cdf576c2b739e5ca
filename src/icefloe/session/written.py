"""Which chunks of an array a change wrote: coordinates where they are known, boxes where only manifests know."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icefloe.model.coordinates import rows_inside
from icefloe.model.nodes import Extents

Coordinates = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Written:
    """Coordinates, and boxes that may hold further ones."""

    ndim: int
    known: Coordinates | None = None
    boxes: tuple[Extents, ...] = ()

    @property
    def coords(self) -> Coordinates:
        """The known coordinates, and the first corner of every box."""
        corners = np.array([[first for first, _ in box] for box in self.boxes], dtype=np.uint32)
        corners = corners.reshape(len(self.boxes), self.ndim)
        return corners if self.known is None else np.concatenate([self.known, corners])

    def common(self, other: Written) -> Coordinates:
        """Chunks that both may have written; of two boxes that meet, the first corner of what they share."""
        found = []
        if self.known is not None and other.known is not None and self.known.shape[1] == other.known.shape[1]:
            found.append(_common_rows(self.known, other.known))
        if self.known is not None:
            found.append(self.known[_inside(self.known, other.boxes)])
        if other.known is not None and other.known.shape[1] == self.ndim:
            found.append(other.known[_inside(other.known, self.boxes)])
        found.append(_shared_corners(self.boxes, other.boxes, self.ndim))
        return np.unique(np.concatenate(found), axis=0).astype(np.uint32, copy=False)

    def outside(self, box: Extents) -> Coordinates:
        """Chunks that are not in a box; of boxes that are not wholly in it, the last corner."""
        found = []
        if self.known is not None and self.known.shape[1] == self.ndim:
            found.append(self.known[~_inside(self.known, (box,))])
        corners = [[end - 1 for _, end in each] for each in self.boxes]
        last = np.array(corners, dtype=np.uint32).reshape(len(corners), self.ndim)
        return np.concatenate([*found, last[~_inside(last, (box,))]])


def _common_rows(ours: Coordinates, theirs: Coordinates) -> Coordinates:
    if ours.shape[1] == 0:
        return ours[: min(len(ours), len(theirs))]
    row = np.dtype((np.void, ours.dtype.itemsize * ours.shape[1]))
    mine = np.ascontiguousarray(ours).view(row).ravel()
    other = np.ascontiguousarray(theirs.astype(np.uint32)).view(row).ravel()
    return ours[np.isin(mine, other)]


def _inside(coords: Coordinates, boxes: tuple[Extents, ...]) -> npt.NDArray[np.bool_]:
    inside = np.zeros(len(coords), dtype=bool)
    for box in boxes:
        inside |= rows_inside(coords, [first for first, _ in box], [end for _, end in box])
    return inside


def _shared_corners(ours: tuple[Extents, ...], theirs: tuple[Extents, ...], ndim: int) -> Coordinates:
    mine = np.array(ours, dtype=np.int64).reshape(len(ours), 1, ndim, 2)
    other = np.array(theirs, dtype=np.int64).reshape(1, len(theirs), ndim, 2)
    first = np.maximum(mine[..., 0], other[..., 0])
    end = np.minimum(mine[..., 1], other[..., 1])
    corners: Coordinates = first[(first < end).all(axis=-1)].astype(np.uint32)
    return corners
