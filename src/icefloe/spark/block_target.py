"""The arrays that blocks are written into: made once by the driver, filled by tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dask.array
import numpy as np
import xarray as xr

from icefloe.errors import AlreadyExistsError, InvalidInputError
from icefloe.session.session import Session
from icefloe.spark.blocks import BlockGrid, Window, stored_chunks
from icefloe.xarray import to_icechunk


@dataclass(frozen=True, slots=True)
class BlockTarget:
    """A group and the chunk lengths of its arrays by variable."""

    group: str
    chunks: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    """Data types of the arrays; a block that has wider ones is refused."""

    def write(self, session: Session, block: xr.Dataset, window: Window) -> None:
        """Write the result of one block into its place."""
        block = block.reset_coords([name for name in block.coords if name in self.chunks])
        region = {dim: part for dim, part in window.items() if dim in block.sizes}
        chosen = block[[name for name in self.chunks if name in block]].drop_vars(list(block.coords), errors="ignore")
        missing = [name for name in self.chunks if name not in block]
        if missing:
            raise InvalidInputError(f"the function returned no {missing[0]!r} for a block, but did for the first one")
        more = [str(name) for name in block.data_vars if name not in self.chunks]
        if more:
            raise InvalidInputError(f"the function returned {more[0]!r} for a block, but not for the first one")
        for name in chosen.variables:
            chosen[name].encoding = {}
            found, expected = chosen[name].dtype, self.dtypes.get(str(name), chosen[name].dtype)
            if not np.can_cast(found, expected, "safe"):
                raise InvalidInputError(
                    f"the function returned {name} as {found} for a block, but as {expected} for the first one; "
                    "return the same type for all (astype)"
                )
        to_icechunk(chosen, session, group=self.group or None, region=region, mode="r+")


def plan_target(
    source: xr.Dataset, sketch: xr.Dataset, grid: BlockGrid, chunks: Mapping[str, int], group: str
) -> BlockTarget:
    """Which variables tasks write, and in which chunks; those without a dimension of the source cannot be placed."""
    stored = stored_chunks(source)
    found: dict[str, tuple[int, ...]] = {}
    for name, variable in sketch.variables.items():
        if name in sketch.sizes or (name in sketch.coords and name in source.coords):
            continue
        placed = [str(dim) for dim in variable.dims if dim in grid.sizes]
        cut = [dim for dim in grid.sizes if dim not in placed and grid.lengths[dim] < grid.sizes[dim]]
        if cut and name in sketch.coords:
            if placed:
                raise InvalidInputError(
                    f"the function makes a coordinate {name} along {', '.join(placed)}, and blocks are also cut along "
                    f"{cut[0]!r}, so that several would write it; pass blocks={{{cut[0]!r}: -1}}, or drop it"
                )
            continue
        if cut:
            raise InvalidInputError(
                f"the function drops {cut[0]!r} from {name}, but a block has only {grid.lengths[cut[0]]} of its "
                f"{grid.sizes[cut[0]]} cells; pass blocks={{{cut[0]!r}: -1}}, or use icefloe.spark.reduce"
            )
        found[str(name)] = tuple(
            chunk_length(str(dim), length, grid, chunks, stored)
            for dim, length in zip(variable.dims, variable.shape, strict=True)
        )
    if not found:
        raise InvalidInputError("the function returned no variable to write")
    return BlockTarget(group.strip("/"), found, {name: sketch[name].dtype for name in found})


def chunk_length(dim: str, length: int, grid: BlockGrid, chunks: Mapping[str, int], stored: Mapping[str, int]) -> int:
    """How long chunks are along a dimension: as asked, as the source's where blocks hold whole ones, else a block."""
    if dim not in grid.sizes:
        return max(1, min(chunks.get(dim, length), length))
    block = grid.lengths[dim]
    if dim in chunks:
        return min(chunks[dim], grid.sizes[dim])
    return stored[dim] if dim in stored and block % stored[dim] == 0 else block


def create_target(
    session: Session, target: BlockTarget, source: xr.Dataset, sketch: xr.Dataset, *, overwrite: bool
) -> None:
    """Create the arrays, empty, with their coordinates."""
    _make_room(session, target, overwrite=overwrite)
    template = xr.Dataset(attrs=sketch.attrs)
    for name, chunks in target.chunks.items():
        variable = sketch[name].variable
        shape = tuple(source.sizes.get(dim, sketch.sizes[dim]) for dim in variable.dims)
        empty = dask.array.zeros(shape, dtype=variable.dtype, chunks=chunks or -1)
        template[name] = (variable.dims, empty, variable.attrs)
    for label, coordinate in sketch.coords.items():
        if label in target.chunks:
            continue
        values: Any = source[label].load() if label in source.coords else coordinate
        if set(values.dims) <= set(template.dims):
            template = template.assign_coords({label: values.variable.copy()})
    template = template.drop_vars(_known(session, target, template))
    encoding: dict[Any, Any] = {name: {"chunks": chunks} for name, chunks in target.chunks.items() if chunks}
    for coordinate in template.coords.values():
        kept = ("units", "calendar", "dtype")
        coordinate.encoding = {key: value for key, value in coordinate.encoding.items() if key in kept}
    template.to_zarr(
        session.store, group=target.group or None, mode="a", encoding=encoding, compute=False, consolidated=False,
        zarr_format=3,
    )  # fmt: skip


def _known(session: Session, target: BlockTarget, template: xr.Dataset) -> list[str]:
    """Coordinates of dimensions that the group has already, with the same values: nothing to write, or to clash on."""
    if session.workspace.tree.find(f"/{target.group}") is None:
        return []
    there = xr.open_zarr(session.store, group=target.group or None, consolidated=False, chunks=None)
    return [
        str(dim) for dim in template.dims
        if dim in template.coords and dim in there.coords and there[dim].variable.equals(template[dim].variable)
    ]  # fmt: skip


def _make_room(session: Session, target: BlockTarget, *, overwrite: bool) -> None:
    work = session.workspace
    for name in target.chunks:
        path = f"/{target.group}/{name}" if target.group else f"/{name}"
        if work.tree.find(path) is None:
            continue
        if not overwrite:
            raise AlreadyExistsError(f"the array {path} exists; choose another target_group, or pass overwrite=True")
        work.delete_node(path)
