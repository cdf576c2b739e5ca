"""Blocks of a dataset: boxes that follow chunk bounds and hold about as much as one task should."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import xarray as xr

from icefloe.errors import InvalidInputError
from icefloe.spark.places import unknown_name

TASK_BYTES = 64 << 20

Window = Mapping[str, slice]


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """How dimensions are cut: the length of a block by dimension."""

    sizes: Mapping[str, int]
    lengths: Mapping[str, int]

    def windows(self, dims: Sequence[str] | None = None) -> list[Window]:
        """Every block (along some of the dimensions), as slices by dimension."""
        chosen = list(self.sizes) if dims is None else list(dims)
        ranges = [
            [slice(low, min(low + self.lengths[d], self.sizes[d])) for low in range(0, self.sizes[d], self.lengths[d])]
            for d in chosen
        ]
        return [dict(zip(chosen, combination, strict=True)) for combination in itertools.product(*ranges)]


def stored_chunks(dataset: xr.Dataset) -> dict[str, int]:
    """The chunk length along each dimension, of the largest variable that has it."""
    found: dict[str, int] = {}
    for variable in sorted(dataset.variables.values(), key=lambda v: -v.nbytes):
        chunks = variable.encoding.get("shards") or variable.encoding.get("chunks") or variable.shape
        for dim, length in zip(variable.dims, chunks, strict=True):
            found.setdefault(str(dim), max(1, int(length)))
    return found


def plan_blocks(
    dataset: xr.Dataset,
    *,
    asked: Mapping[str, int] | None = None,
    grow_first: Sequence[str] = (),
    task_bytes: int = TASK_BYTES,
) -> BlockGrid:
    """Blocks of whole chunks, grown to about `task_bytes`; lengths that were asked for (-1: all) stay as they are."""
    sizes = {str(dim): int(n) for dim, n in dataset.sizes.items()}
    unknown = sorted(set(asked or {}) - set(sizes))
    if unknown:
        raise unknown_name("dimension", unknown[0], sizes, option="blocks")
    for dim, length in (asked or {}).items():
        if length < 1 and length != -1:
            raise InvalidInputError(f"blocks of {length} cells along {dim} are not possible (-1 means all of it)")
    chunks = stored_chunks(dataset)
    fixed = {dim: sizes[dim] if n == -1 else min(n, max(1, sizes[dim])) for dim, n in (asked or {}).items()}
    lengths = {dim: fixed.get(dim, min(chunks.get(dim, n), max(1, n))) for dim, n in sizes.items()}
    order = [*grow_first, *(dim for dim in reversed(list(sizes)) if dim not in grow_first)]
    for dim in order:
        if dim in fixed:
            continue
        room = task_bytes // max(1, block_bytes(dataset, lengths))
        steps = min(max(1, room), -(-sizes[dim] // lengths[dim]))
        lengths[dim] = max(1, min(lengths[dim] * steps, sizes[dim]))
    return BlockGrid(sizes, lengths)


def whole_chunks(grid: BlockGrid, chunks: Mapping[str, int], asked: Mapping[str, int]) -> BlockGrid:
    """Blocks that are multiples of the chunks asked for."""
    lengths = dict(grid.lengths)
    for dim, chunk in chunks.items():
        if dim not in lengths or lengths[dim] >= grid.sizes[dim]:
            continue
        if lengths[dim] % chunk and dim in asked:
            raise InvalidInputError(f"blocks of {lengths[dim]} along {dim} are not whole chunks of {chunk}")
        lengths[dim] = max(chunk, lengths[dim] // chunk * chunk)
    return BlockGrid(grid.sizes, lengths)


def block_bytes(dataset: xr.Dataset, lengths: Mapping[str, int]) -> int:
    """Decoded bytes of all variables in one block."""
    return sum(
        math.prod(min(lengths.get(str(d), n), n) for d, n in zip(v.dims, v.shape, strict=True)) * v.dtype.itemsize
        for v in dataset.variables.values()
    )
