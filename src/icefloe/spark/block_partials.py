"""Partial results of blocks in a task, from chunks where that can be, else from what xarray reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import xarray as xr

from icefloe.session.session import Session
from icefloe.spark.blocks import Window
from icefloe.spark.chunk_partials import ChunkedArray, chunk_coding
from icefloe.spark.partials import Reduction
from icefloe.spark.places import node_path, open_dataset
from icefloe.spark.reduction_tree import Partial
from icefloe.tables.chunk_values import ChunkValues
from icefloe.tables.columns import ColumnCoding


@dataclass(frozen=True, slots=True)
class ReducedVariable:
    """A variable and how a task gets at its values."""

    name: str
    dims: tuple[str, ...]
    coding: ColumnCoding | None
    """What its chunks stand for; None where xarray has to read them."""


@dataclass(frozen=True, slots=True, eq=False)
class PartialOfBlock:
    """The partial results of one block, by variable."""

    session: Session
    group: str
    variables: tuple[ReducedVariable, ...]
    origin: Mapping[str, int]
    """Where the region begins, along the dimensions that it cuts."""
    dims: tuple[str, ...]
    reduction: Reduction

    @classmethod
    def plan(
        cls, session: Session, group: str, dataset: xr.Dataset, origin: Mapping[str, int], reduced: tuple[str, ...],
        reduction: Reduction,
    ) -> PartialOfBlock:  # fmt: skip
        """The work on the variables of a dataset, which may be cut from one that begins at another origin."""
        variables = tuple(
            ReducedVariable(
                str(name), tuple(map(str, array.dims)),
                chunk_coding(session, node_path(group, str(name)), array, reduction),
            )
            for name, array in dataset.data_vars.items()
        )  # fmt: skip
        return cls(session, group, variables, origin, reduced, reduction)

    def __call__(self, window: Window) -> Partial:
        source = _open(self)
        moved = {dim: _move(part, self.origin.get(dim, 0)) for dim, part in window.items()}
        return {each.name: self._of(source, each, window, moved) for each in self.variables}

    def _of(self, source: _Source, variable: ReducedVariable, window: Window, moved: Window) -> Any:
        # A variable without one of the reduced dimensions is in every block along it: it counts in the first one.
        if any(window[dim].start for dim in self.dims if dim not in variable.dims):
            return None
        axes = tuple(axis for axis, dim in enumerate(variable.dims) if dim in self.dims)
        box = {dim: moved[dim] for dim in variable.dims}
        chunked = source.chunked.get(variable.name)
        if chunked is not None:
            return chunked.partial(list(box.values()), axes, self.reduction)
        assert source.dataset is not None
        return self.reduction.partial(source.dataset[variable.name].isel(box).values, axes)


@dataclass(frozen=True, slots=True)
class _Source:
    """What a task reads its blocks from."""

    chunked: Mapping[str, ChunkedArray]
    dataset: xr.Dataset | None
    """The variables that xarray reads; opening it takes as long as reading a few chunks."""


@lru_cache(maxsize=1)
def _open(work: PartialOfBlock) -> _Source:
    """Opened once for all blocks of a task."""
    chunked = {
        each.name: ChunkedArray(ChunkValues(work.session, node_path(work.group, each.name)), each.coding)
        for each in work.variables
        if each.coding is not None
    }
    others = [each.name for each in work.variables if each.coding is None]
    return _Source(chunked, open_dataset(work.session, work.group, others) if others else None)


def _move(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)
