"""Work cut into tasks that share no chunk."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from icefloe.ingest.array_plan import ArrayPlan
from icefloe.ingest.source_model import SourceFile, SourceVariable

Window = Mapping[str, tuple[int, int]]
"""[first, end) by dimension; a dimension that is not named is meant whole."""


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file, the cell where its values start along each joined dimension, and its variables by array path."""

    file: SourceFile
    format: str
    origin: Mapping[str, int]
    variables: Mapping[str, SourceVariable]


@dataclass(frozen=True, slots=True)
class IngestTask:
    """Some cells of some arrays (native), or the references of some files (virtual)."""

    id: int
    kind: Literal["native", "virtual"]
    arrays: tuple[str, ...]
    window: Window
    files: tuple[PlacedFile, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The part of each joined dimension that the ingest writes."""

    bounds: Mapping[str, tuple[int, int]]


def plan_native_tasks(
    arrays: Sequence[ArrayPlan], files: Sequence[PlacedFile], extent: Extent, task_bytes: int
) -> Iterator[tuple[tuple[str, ...], Window, tuple[PlacedFile, ...], int]]:
    """Arrays, window, files and bytes of each native task; window bounds are chunk bounds or ends of the extent."""
    layers: dict[tuple[tuple[str, int], ...], list[ArrayPlan]] = {}
    for array in arrays:
        key = tuple((d, c) for d, c in zip(array.dims, array.chunks, strict=True) if d in array.joined)
        layers.setdefault(key, []).append(array)
    for key, layer in layers.items():
        placed = _LayerFiles(layer, [d for d, _ in key], files)
        for group, window in _windows(layer, dict(key), extent, task_bytes):
            chosen = placed.meeting(group, window)
            if chosen:
                size = sum(_window_bytes(array, window) for array in group)
                yield tuple(array.path for array in group), window, chosen, size


class _LayerFiles:
    """The files of a layer, with their boxes along the joined dimensions as columns."""

    def __init__(self, layer: Sequence[ArrayPlan], dims: Sequence[str], files: Sequence[PlacedFile]) -> None:
        paths = [array.path for array in layer]
        self._files = [f for f in files if any(p in f.variables for p in paths)]
        self._dims = dims
        boxes = [_box(f, next(f.variables[p] for p in paths if p in f.variables), dims) for f in self._files]
        self._boxes = np.array(boxes, dtype=np.int64).reshape(len(self._files), len(dims), 2)

    def meeting(self, group: Sequence[ArrayPlan], window: Window) -> tuple[PlacedFile, ...]:
        """The files that have cells of the group's arrays in a window."""
        low = np.array([window[d][0] for d in self._dims], dtype=np.int64)
        high = np.array([window[d][1] for d in self._dims], dtype=np.int64)
        inside = ((self._boxes[:, :, 0] < high) & (self._boxes[:, :, 1] > low)).all(axis=1)
        found = [self._files[i] for i in np.flatnonzero(inside)]
        return tuple(f for f in found if any(array.path in f.variables for array in group))


def _box(file: PlacedFile, variable: SourceVariable, dims: Sequence[str]) -> list[tuple[int, int]]:
    lengths = dict(zip(variable.dims, variable.shape, strict=True))
    return [(file.origin.get(d, 0), file.origin.get(d, 0) + lengths[d]) for d in dims]


def _windows(
    layer: Sequence[ArrayPlan], joined: Mapping[str, int], extent: Extent, task_bytes: int
) -> Iterator[tuple[Sequence[ArrayPlan], Window]]:
    bounds = {d: extent.bounds[d] for d in joined}
    cell = sum(_cell_bytes(array, joined, bounds) for array in layer)
    if cell > 2 * task_bytes and len(layer) > 1:
        for array in layer:
            yield from _windows([array], joined, extent, task_bytes)
        return
    inner: Sequence[Window] = [{}]
    if cell > 2 * task_bytes:
        inner = _split_inner(layer[0], joined, cell / task_bytes)
    rows = max(1, int(task_bytes // max(1, cell)))
    ranges: list[list[tuple[int, int]]] = []
    for dim, chunk in joined.items():
        first, end = bounds[dim]
        count = -(-(end - first // chunk * chunk) // chunk)
        # Rows are gathered along the first dimension that has several; the others go chunk by chunk.
        taken = min(rows, max(1, count))
        rows = max(1, rows // taken)
        step = taken * chunk
        ranges.append([(max(lo, first), min(lo + step, end)) for lo in range(first // chunk * chunk, end, step)])
    for combination in itertools.product(*ranges):
        window = dict(zip(joined, combination, strict=True))
        for part in inner:
            yield layer, {**window, **part}


def _cell_bytes(array: ArrayPlan, joined: Mapping[str, int], bounds: Window) -> int:
    """Bytes of an array in one chunk row of the joined dimensions, whole in the others."""
    lengths = [
        min(joined[d], bounds[d][1] - bounds[d][0]) if d in joined else n
        for d, n in zip(array.dims, array.shape, strict=True)
    ]
    return math.prod(lengths) * array.itemsize


def _split_inner(array: ArrayPlan, joined: Mapping[str, int], parts: float) -> list[Window]:
    """Windows over the other dimensions, at chunk bounds, about `parts` of them."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for dim, length, chunk in zip(array.dims, array.shape, array.chunks, strict=True):
        if dim in joined or parts <= 1:
            continue
        count = -(-length // chunk)
        pieces = min(count, math.ceil(parts))
        parts /= pieces
        step = -(-count // pieces) * chunk
        ranges[dim] = [(lo, min(lo + step, length)) for lo in range(0, length, step)]
    return [dict(zip(ranges, combination, strict=True)) for combination in itertools.product(*ranges.values())]


def _window_bytes(array: ArrayPlan, window: Window) -> int:
    lengths = [
        (window[d][1] - window[d][0]) if d in window else n for d, n in zip(array.dims, array.shape, strict=True)
    ]
    return math.prod(lengths) * array.itemsize


def plan_virtual_tasks(
    arrays: Sequence[ArrayPlan], files: Sequence[PlacedFile], files_per_task: int, references_per_task: int = 1 << 18
) -> Iterator[tuple[tuple[str, ...], Window, tuple[PlacedFile, ...], int]]:
    """Files gathered by number and by the references they are likely to hold."""
    paths = {a.path for a in arrays}
    batch: list[PlacedFile] = []
    references = 0
    for file in files:
        own = [file.variables[p] for p in paths if p in file.variables]
        if not own:
            continue
        count = sum(_reference_count(v) for v in own)
        if batch and (len(batch) >= files_per_task or references + count > references_per_task):
            yield _virtual(paths, batch)
            batch, references = [], 0
        batch.append(file)
        references += count
    if batch:
        yield _virtual(paths, batch)


def _virtual(
    paths: set[str], batch: Sequence[PlacedFile]
) -> tuple[tuple[str, ...], Window, tuple[PlacedFile, ...], int]:
    used = sorted({p for f in batch for p in f.variables if p in paths})
    return tuple(used), {}, tuple(batch), sum(f.variables[p].nbytes for f in batch for p in used if p in f.variables)


def _reference_count(variable: SourceVariable) -> int:
    return int(np.prod([-(-n // c) for n, c in zip(variable.shape, variable.chunks, strict=True)], dtype=np.int64))
