"""Partial results of a block from its chunks, one after the other: no more than a chunk is decoded at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from icefloe.session.session import Session
from icefloe.spark.partials import Axes, Extremes, Reduction, Sums, Values
from icefloe.tables.chunk_values import ChunkValues
from icefloe.tables.columns import ColumnCoding, coding_of, has_one_missing_value


@dataclass(frozen=True, slots=True)
class ChunkedArray:
    """An array that can be reduced chunk by chunk: its values, as stored, and what they stand for."""

    values: ChunkValues
    coding: ColumnCoding

    def partial(self, window: Sequence[slice], axes: Axes, reduction: Reduction) -> Any:
        """The partial result of a box of cells."""
        array = self.values.array
        kept = [axis for axis in range(array.ndim) if axis not in axes]
        ranges = [range(w.start // c, -(-w.stop // c)) for w, c in zip(window, array.chunks, strict=True)]
        grid = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, array.ndim)
        merged: dict[tuple[int, ...], Any] = {}
        for place, chunk in zip(grid.tolist(), self.values.read(grid), strict=True):
            origin = [p * c for p, c in zip(place, array.chunks, strict=True)]
            cut = tuple(
                slice(max(w.start - o, 0), min(w.stop - o, c))
                for w, o, c in zip(window, origin, array.chunks, strict=True)
            )
            part = reduction.partial(self.coding.decode_tensor(chunk[cut]), axes)
            at = tuple(max(origin[axis], window[axis].start) - window[axis].start for axis in kept)
            merged[at] = reduction.merge(merged[at], part) if at in merged else part
        return _assemble(merged, [window[axis].stop - window[axis].start for axis in kept])


def chunk_coding(session: Session, path: str, decoded: xr.DataArray, reduction: Reduction) -> ColumnCoding | None:
    """What the chunks of a variable stand for, where they give the partial results of xarray's values; else None."""
    if not isinstance(reduction, Sums | Extremes) or not decoded.size or not decoded.ndim:
        return None
    values = ChunkValues(session, path)
    array = values.array
    if not values.is_direct or array.dtype.kind not in "iuf" or not has_one_missing_value(array.attrs):
        return None
    coding = coding_of(array.dtype, array.attrs)
    one = np.zeros((1,) * array.ndim, dtype=array.dtype)
    fills_integers = array.dtype.kind in "iu" and coding.packing is not None and coding.packing.is_plain
    if coding.times is not None or fills_integers or coding.decode_tensor(one).dtype != decoded.dtype:
        return None
    return coding


def _assemble(parts: dict[tuple[int, ...], Any], shape: Sequence[int]) -> Any:
    """Partial results of neighbours as one, laid where they belong."""
    first = next(iter(parts.values()))
    if not shape:
        return first
    if isinstance(first, tuple):
        laid = [_lay({at: part[i] for at, part in parts.items()}, shape) for i in range(len(first))]
        return tuple(laid)
    return _lay(parts, shape)


def _lay(parts: dict[tuple[int, ...], Values], shape: Sequence[int]) -> Values:
    whole = np.empty(shape, dtype=next(iter(parts.values())).dtype)
    for at, part in parts.items():
        whole[tuple(slice(low, low + n) for low, n in zip(at, part.shape, strict=True))] = part
    return whole
