"""Partial results of blocks in a task, from chunks where that can be, else from what xarray reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import xarray as xr

from icefloe.session.session import Session
from icefloe.spark.blocks import Window
from icefloe.spark.chunk_partials import ChunkedArray, chunked_array
from icefloe.spark.partials import Reduction
from icefloe.spark.places import Bounds, node_path, open_dataset, parse_bounds
from icefloe.spark.reduction_tree import Partial


@dataclass(frozen=True, slots=True, eq=False)
class PartialOfBlock:
    """The partial results of one block, by variable."""

    session: Session
    group: str
    variables: tuple[str, ...]
    region: Bounds | None
    dims: tuple[str, ...]
    reduction: Reduction

    def __call__(self, window: Window) -> Partial:
        return _open(self)(window)

    def open(self) -> _OpenSource:
        """What a task reads all of its blocks from."""
        dataset = open_dataset(self.session, self.group, self.variables)
        chunked = {
            name: chunked_array(self.session, node_path(self.group, name), dataset[name], self.reduction)
            for name in self.variables
        }
        bounds = parse_bounds(self.region or {}, {str(dim): n for dim, n in dataset.sizes.items()})
        return _OpenSource(self, dataset, chunked, {dim: part.start for dim, part in bounds.items()})


@dataclass(frozen=True, slots=True)
class _OpenSource:
    work: PartialOfBlock
    dataset: xr.Dataset
    chunked: Mapping[str, ChunkedArray | None]
    origin: Mapping[str, int]
    """Where the region begins, along the dimensions that it cuts."""

    def __call__(self, window: Window) -> Partial:
        moved = {dim: self._move(dim, part) for dim, part in window.items()}
        return {name: self._of(name, window, moved) for name in self.work.variables}

    def _move(self, dim: str, part: slice) -> slice:
        first = self.origin.get(dim, 0)
        return slice(part.start + first, part.stop + first)

    def _of(self, name: str, window: Window, moved: Window) -> Any:
        array, dims, reduction = self.dataset[name], self.work.dims, self.work.reduction
        # A variable without one of the reduced dimensions is in every block along it: it counts in the first one.
        if any(window[dim].start for dim in dims if dim not in array.dims):
            return None
        axes = tuple(axis for axis, dim in enumerate(array.dims) if dim in dims)
        box = {str(dim): moved[str(dim)] for dim in array.dims}
        chunked = self.chunked[name]
        if chunked is None or not array.size:
            return reduction.partial(array.isel(box).values, axes)
        return chunked.partial(list(box.values()), axes, reduction)


@lru_cache(maxsize=1)
def _open(work: PartialOfBlock) -> _OpenSource:
    """Opened once for all blocks of a task."""
    return work.open()
