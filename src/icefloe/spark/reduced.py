"""What a reduction makes of the last partial results of a place: values, or chunks of arrays that keep them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from icefloe.session.parts import WrittenParts
from icefloe.session.session import ForkSession
from icefloe.spark.block_target import BlockTarget, chunk_length
from icefloe.spark.blocks import BlockGrid, Window, stored_chunks
from icefloe.spark.partials import Reduction
from icefloe.spark.reduction_tree import Partial
from icefloe.xarray import to_icechunk

Values = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class FinishPlace:
    """The values of one place of the result, by variable, in the types that xarray gives."""

    reduction: Reduction
    how: str
    dtypes: Mapping[str, np.dtype[Any]]
    """Types of the source."""

    def __call__(self, window: Window, partial: Partial) -> Values:
        return {name: self._typed(np.asarray(self.reduction.finish(part)), name) for name, part in partial.items()}

    def _typed(self, values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
        """Means and sums of small floats are computed in double precision and given back in their own."""
        dtype = self.dtypes[name]
        if dtype.kind in "mM" and self.how in ("mean", "sum"):
            return values.astype(np.int64).view(dtype)
        if self.how == "count" or not (dtype.kind == "f" or self.how in ("min", "max")):
            return values
        return values.astype(dtype)


def kept_dims(array: xr.DataArray, dims: Sequence[str]) -> tuple[str, ...]:
    """The dimensions of a variable that a reduction leaves."""
    return tuple(str(dim) for dim in array.dims if dim not in dims)


def assemble(
    dataset: xr.Dataset, dims: Sequence[str], finish: FinishPlace, parts: Sequence[tuple[Window, Values]]
) -> xr.Dataset:
    """One dataset of the values of all places, with the coordinates that are left."""
    result = xr.Dataset(attrs=dataset.attrs)
    for name, source in dataset.data_vars.items():
        kept = kept_dims(source, dims)
        whole: Any = None
        for window, values in parts:
            if whole is None:
                whole = np.empty([source.sizes[dim] for dim in kept], values[str(name)].dtype)
            whole[tuple(window[dim] for dim in kept)] = values[str(name)]
        result[name] = (kept, whole, {} if finish.how == "count" else source.attrs)
    return result.assign_coords({n: c for n, c in dataset.coords.items() if not set(c.dims) & set(dims)})


def sketch_of(dataset: xr.Dataset, dims: Sequence[str], finish: FinishPlace) -> xr.Dataset:
    """A result of one cell along every dimension: all that the arrays to be made are asked about."""
    first = dataset.isel({dim: slice(0, 1) for dim in dataset.sizes})
    partial: Partial = {}
    for name, array in first.data_vars.items():
        axes = tuple(axis for axis, dim in enumerate(array.dims) if dim in dims)
        partial[str(name)] = finish.reduction.partial(np.zeros(array.shape, array.dtype), axes)
    window = {str(dim): slice(0, 1) for dim in dataset.sizes}
    return assemble(first, dims, finish, [(window, finish(window, partial))])


def plan_reduced(dataset: xr.Dataset, sketch: xr.Dataset, grid: BlockGrid, chunks: Mapping[str, int]) -> dict[str, Any]:
    """Chunk lengths of the arrays of a result, by variable."""
    stored = stored_chunks(dataset)
    return {
        str(name): tuple(chunk_length(str(dim), 1, grid, chunks, stored) for dim in array.dims)
        for name, array in sketch.data_vars.items()
    }


@dataclass(frozen=True, slots=True)
class WritePlace:
    """Writes the values of one place into arrays that are there, through a fork of the session that made them."""

    finish: FinishPlace
    fork: bytes
    target: BlockTarget
    dims: Mapping[str, tuple[str, ...]]
    """Dimensions of the result by variable."""

    def __call__(self, window: Window, partial: Partial) -> WrittenParts:
        fork: ForkSession = pickle.loads(self.fork)
        for name, values in self.finish(window, partial).items():
            dims = self.dims[name]
            # A variable without one of the cut dimensions is the same at every place along it: the first one writes it.
            if any(part.start for dim, part in window.items() if dim not in dims):
                continue
            region = {dim: window[dim] for dim in dims}
            block = xr.Dataset({name: (dims, values)})
            to_icechunk(block, fork, group=self.target.group or None, region=region or None, mode="r+")
        where = ", ".join(f"{dim}={part.start}:{part.stop}" for dim, part in window.items())
        return fork.write_parts(f"the place {where or 'of everything'}")
