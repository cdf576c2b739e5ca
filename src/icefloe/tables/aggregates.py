"""Aggregates of arrays, computed chunk by chunk with numpy. Cells do not become rows.

Every dimension of the grid is either reduced or grouped by a code per position. A block is reduced along its axes, then
along equal codes. The partial results of blocks are arrays over the groups. Merging is associative. `reduce_cells` and
`merge_values` also compute the reductions of `icefloe.spark`.
"""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.tables.columns import from_numpy, has_one_missing_value, to_numpy
from icefloe.tables.evaluate import ValueRanges, match_leaf
from icefloe.tables.grids import Grid, Variable, open_array
from icefloe.tables.predicates import And, Or, Predicate, Unknown
from icefloe.tables.reading import Block, read_blocks
from icefloe.tables.scans import Scan
from icefloe.tables.selection import BlockList, BlockPart
from icefloe.tables.statistics import load_ranges

MOST_GROUPS = 1 << 22
"""More groups than this become rows in the engine."""
_EXACT = 2.0**53
_PARTS_PER_CORE = 4
_BLOCKS_PER_PART = 16
"""A share with fewer blocks takes less time than starting to read it."""
_Numbers: TypeAlias = npt.NDArray[Any]
Box: TypeAlias = tuple[tuple[int, int], ...]
Partial: TypeAlias = dict[tuple[str, str], _Numbers]
"""Arrays over groups by column and kind: `rows`, `count`, `sum`, `min`, `max` and `m2`, the sum of squared differences
from the mean."""
_KINDS: Mapping[str, tuple[str, ...]] = {
    "count": ("count",),
    "sum": ("count", "sum"),
    "avg": ("count", "sum"),
    "min": ("count", "min"),
    "max": ("count", "max"),
    "stddev_samp": ("count", "sum", "m2"),
    "stddev_pop": ("count", "sum", "m2"),
    "var_samp": ("count", "sum", "m2"),
    "var_pop": ("count", "sum", "m2"),
}
_EXTREMES: Mapping[str, np.ufunc] = {"min": np.fmin, "max": np.fmax}
"""They skip NaN and NaT."""
_STATISTICS = frozenset({"count", "sum", "min", "max"})
"""The kinds that statistics of chunks contain."""


@dataclass(frozen=True, slots=True)
class GroupCodes:
    """The groups along one dimension: a code per position, and the number of codes."""

    codes: npt.NDArray[np.int64]
    count: int


@dataclass(frozen=True, slots=True)
class ChunkAggregation:
    """Everything that a task needs to aggregate its share of blocks. It can be pickled."""

    scan: Scan
    groups: tuple[GroupCodes | None, ...]
    """Per dimension. None for a dimension that is reduced."""
    functions: tuple[tuple[str, str | None], ...]
    """Aggregate functions and their columns."""
    condition: Predicate | None
    """A condition on cells, beyond the masks of the scan."""
    zone: dt.tzinfo | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of groups along each grouped dimension."""
        return tuple(group.count for group in self.groups if group is not None)

    def kinds(self) -> dict[str, tuple[str, ...]]:
        """Return the partial results that each column needs."""
        found: dict[str, list[str]] = {}
        for function, column in self.functions:
            if column is not None:
                found.setdefault(column, []).extend(_KINDS[function])
        return {column: tuple(dict.fromkeys(kinds)) for column, kinds in found.items()}


@dataclass(frozen=True, slots=True)
class PartialGroups:
    """Partial results for a box of groups."""

    box: Box
    values: Partial


def aggregate_part(work: ChunkAggregation, part: BlockPart) -> PartialGroups:
    """Aggregate some blocks."""
    box = _box(work, part)
    shape = tuple(end - first for first, end in box)
    state = _empty(work, shape)
    for block in read_blocks(work.scan, part):
        if block.cells:
            _add_block(work, block, box, state)
    return PartialGroups(box, state)


def aggregate_blocks(work: ChunkAggregation, parts: Sequence[BlockPart]) -> PartialGroups:
    """Aggregate shares of blocks with the threads of this process."""
    if len(parts) < 2:
        return merge_partials(work, [aggregate_part(work, part) for part in parts])
    with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1)) as pool:
        return merge_partials(work, pool.map(lambda part: aggregate_part(work, part), parts))


def merge_partials(work: ChunkAggregation, partials: Iterable[PartialGroups]) -> PartialGroups:
    """Merge partial results into one for all groups."""
    box = tuple((0, count) for count in work.shape)
    state = _empty(work, work.shape)
    for partial in partials:
        where = tuple(slice(first, end) for first, end in partial.box)
        _merge(state, where, partial.values)
    return PartialGroups(box, state)


def share_blocks(blocks: BlockList, parts: int | None = None) -> list[BlockPart]:
    """Divide blocks into shares for threads."""
    count = len(blocks)
    cores = os.cpu_count() or 1
    wanted = min(count, parts or cores * min(_PARTS_PER_CORE, max(1, count // (_BLOCKS_PER_PART * cores))))
    edges = [count * number // wanted for number in range(wanted + 1)] if wanted else [0]
    return [blocks.part(a, b) for a, b in pairwise(edges) if b > a]


def _box(work: ChunkAggregation, part: BlockPart) -> Box:
    """Return the range of codes along each grouped dimension that the blocks of a share can have."""
    coordinates = part.coordinates()
    box = []
    for axis, group in enumerate(work.groups):
        if group is None:
            continue
        lengths = work.scan.grid.block[axis]
        touched = np.zeros(len(group.codes), dtype=bool)
        for number in np.unique(coordinates[:, axis]).tolist():
            touched[lengths.start(number) : lengths.start(number + 1)] = True
        codes = group.codes[touched]
        box.append((int(codes.min()), int(codes.max()) + 1) if len(codes) else (0, 0))
    return tuple(box)


def _empty(work: ChunkAggregation, shape: tuple[int, ...]) -> Partial:
    types = {field.name: field.type for field in work.scan.grid.schema()}
    state: Partial = {("", "rows"): np.zeros(shape, dtype=np.int64)}
    for column, kinds in work.kinds().items():
        whole = not pa.types.is_floating(types[column])
        for kind in kinds:
            if kind == "count":
                state[column, kind] = np.zeros(shape, dtype=np.int64)
            elif kind in ("min", "max"):
                state[column, kind] = np.full(shape, _neutral(kind, whole), dtype=np.int64 if whole else np.float64)
            else:
                state[column, kind] = np.zeros(shape, dtype=np.int64 if whole and kind == "sum" else np.float64)
    return state


def _neutral(kind: str, whole: bool) -> float | int:
    limits = np.iinfo(np.int64)
    if whole:
        return int(limits.max if kind == "min" else limits.min)
    return np.inf if kind == "min" else -np.inf


def _merge(state: Partial, where: Any, other: Partial) -> None:
    """Merge partial results of some groups into the state."""
    for column, kind in other:
        if kind == "m2":
            _merge_squares(state, where, other, column)
    for (column, kind), values in other.items():
        if kind != "m2":
            held = state[column, kind]
            held[where] = merge_values(kind, held[where], values)


def _merge_squares(state: Partial, where: Any, other: Partial, column: str) -> None:
    """Merge sums of squared differences by the formula of Chan, Golub and LeVeque. Counts and sums are merged later."""
    n1, n2 = state[column, "count"][where], other[column, "count"]
    with np.errstate(divide="ignore", invalid="ignore"):
        between = (state[column, "sum"][where] / n1 - other[column, "sum"] / n2) ** 2 * (n1 * n2 / (n1 + n2))
    state[column, "m2"][where] += other[column, "m2"] + np.where((n1 > 0) & (n2 > 0), between, 0.0)


class CellReducer(Protocol):
    """Reduces arrays over cells to arrays over groups."""

    def __call__(self, ufunc: np.ufunc, cells: _Numbers, **options: Any) -> _Numbers: ...

    def count(self, shape: tuple[int, ...]) -> _Numbers:
        """Return the number of cells of each group."""

    def spread(self, groups: _Numbers) -> _Numbers:
        """Return values of groups for the cells. The shape can be broadcast to that of the cells."""


@dataclass(frozen=True, slots=True)
class AxisReducer:
    """Reduces along axes. Every position along the other axes is a group."""

    axes: tuple[int, ...]

    def __call__(self, ufunc: np.ufunc, cells: _Numbers, **options: Any) -> _Numbers:
        if not self.axes:
            return cells.astype(options["dtype"]) if "dtype" in options else cells
        if ufunc is np.add:
            return np.asarray(ufunc.reduce(cells, axis=self.axes, **options))
        for axis in sorted(self.axes, reverse=True):  # numpy is slow if it skips an axis between two others
            cells = ufunc.reduce(cells, axis=axis, **options)
        return np.asarray(cells)

    def count(self, shape: tuple[int, ...]) -> _Numbers:
        kept = tuple(length for axis, length in enumerate(shape) if axis not in self.axes)
        return np.full(kept, math.prod(shape[axis] for axis in self.axes), dtype=np.int64)

    def spread(self, groups: _Numbers) -> _Numbers:
        return np.expand_dims(groups, self.axes)


class _BlockReducer:
    """Reduces a block along its reduced axes, then along equal codes of the others."""

    def __init__(self, work: ChunkAggregation, block: Block, box: Box) -> None:
        self._along = AxisReducer(tuple(axis for axis, group in enumerate(work.groups) if group is None))
        kept = [axis for axis, group in enumerate(work.groups) if group is not None]
        self._steps: list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        targets = []
        self._back: list[npt.NDArray[np.int64]] = []
        for position, axis in enumerate(kept):
            group = work.groups[axis]
            assert group is not None
            codes = group.codes[block.indices[axis]] - box[position][0]
            unique, inverse = np.unique(codes, return_inverse=True)
            self._back.append(inverse.reshape(-1))
            if len(unique) < len(codes) or bool((codes != unique).any()):
                order = np.argsort(codes, kind="stable")
                starts = np.searchsorted(codes[order], unique)
                self._steps.append((position, order, starts))
            targets.append(unique)
        self.where = np.ix_(*targets) if targets else ()

    def __call__(self, ufunc: np.ufunc, cells: _Numbers, **options: Any) -> _Numbers:
        return self._by_code(ufunc, self._along(ufunc, cells, **options))

    def _by_code(self, ufunc: np.ufunc, result: _Numbers) -> _Numbers:
        for axis, order, starts in self._steps:
            result = ufunc.reduceat(np.take(result, order, axis=axis), starts, axis=axis)
        return result

    def count(self, shape: tuple[int, ...]) -> _Numbers:
        return self._by_code(np.add, self._along.count(shape))

    def spread(self, groups: _Numbers) -> _Numbers:
        return self._along.spread(groups[np.ix_(*self._back)] if self._back else groups)


def _add_block(work: ChunkAggregation, block: Block, box: Box, state: Partial) -> None:
    reducer = _BlockReducer(work, block, box)
    arrow = {
        v.name: v.coding.decode(stored, as_nan=v.coding.missing_is_nan and work.condition is None)
        for v, stored in zip(work.scan.grid.variables, block.values, strict=True)
    }
    chosen = None if work.condition is None else _matching(work, block, arrow, work.condition)
    chosen = None if chosen is None else np.broadcast_to(chosen, block.shape)
    found: Partial = {("", "rows"): _count(reducer, chosen, block.shape)}
    for column, kinds in work.kinds().items():
        cells, present = _cells(work, block, column, arrow)
        if chosen is not None:
            present = chosen if present is None else present & chosen
        for kind, values in reduce_cells(reducer, cells, present, kinds).items():
            found[column, kind] = values
    _merge(state, reducer.where, found)


def _cells(
    work: ChunkAggregation, block: Block, column: str, arrow: Mapping[str, pa.Array]
) -> tuple[_Numbers, npt.NDArray[np.bool_] | None]:
    """Return the values of a column in the shape of a block, and which of them are present (None for all).

    Missing floats are NaN, and are not marked.
    """
    axis = next((i for i, d in enumerate(work.scan.grid.dimensions) if d.name == column), None)
    if axis is None:
        values, shape = arrow[column], block.shape
    else:
        values = work.scan.coordinate(axis).take(from_numpy(block.indices[axis]))
        shape = tuple(len(values) if each == axis else 1 for each in range(len(block.shape)))
    present = None
    kind = values.type
    if values.null_count:
        present = to_numpy(values.is_valid()).reshape(shape)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind)):
        cells = np.zeros(shape, dtype=np.int64)  # it is only counted
    else:
        values = values.view(pa.int64()) if pa.types.is_timestamp(kind) else values
        cells = to_numpy(values.fill_null(0) if values.null_count else values).reshape(shape)
    if axis is not None:
        cells = np.broadcast_to(cells, block.shape)
        present = None if present is None else np.broadcast_to(present, block.shape)
    return cells, present


def _matching(
    work: ChunkAggregation, block: Block, arrow: Mapping[str, pa.Array], predicate: Predicate
) -> npt.NDArray[np.bool_]:
    """Return the cells that match, in a shape that can be broadcast to the block."""
    if isinstance(predicate, And | Or):
        result = _matching(work, block, arrow, predicate.parts[0])
        for part in predicate.parts[1:]:
            other = _matching(work, block, arrow, part)
            result = result & other if isinstance(predicate, And) else result | other
        return result
    assert not isinstance(predicate, Unknown)
    axis = next((i for i, d in enumerate(work.scan.grid.dimensions) if d.name == predicate.column), None)
    if axis is None:
        mask = match_leaf(arrow[predicate.column], predicate, work.zone)
        shape = block.shape
    else:
        mask = match_leaf(work.scan.coordinate(axis), predicate, work.zone)
        mask = None if mask is None else mask[block.indices[axis]]
        shape = tuple(-1 if each == axis else 1 for each in range(len(block.shape)))
    assert mask is not None, "the planner only accepts conditions that can be evaluated"
    return mask.reshape(shape)


def _count(reduce: CellReducer, present: npt.NDArray[np.bool_] | None, shape: tuple[int, ...]) -> _Numbers:
    return reduce.count(shape) if present is None else reduce(np.add, present, dtype=np.int64)


def reduce_cells(
    reduce: CellReducer,
    cells: _Numbers,
    present: npt.NDArray[np.bool_] | None,
    kinds: Sequence[str],
    sum_type: npt.DTypeLike | None = None,
) -> dict[str, _Numbers]:
    """Return partial results of cells, an array over groups for each kind.

    `present` tells which cells count, None for all. NaN never counts. The extremes of a group without cells are NaN
    for floats, and not defined for other types.
    """
    floating = cells.dtype.kind == "f"
    given = present
    found: dict[str, _Numbers] = {}
    wide = sum_type if sum_type is not None else np.float64 if floating else np.int64
    if floating and {"count", "sum", "m2"} & set(kinds):
        # If every total is a number, no value is missing. One pass is usually sufficient.
        total = reduce(np.add, cells, dtype=wide) if present is None and "sum" in kinds else None
        if total is not None and not np.isnan(total).any():
            found["sum"] = total
        else:
            there = ~np.isnan(cells)
            present = there if present is None else present & there
            present = None if given is None and present.all() else present
    if "count" in kinds or "m2" in kinds:
        found["count"] = _count(reduce, present, cells.shape)
    if "sum" in kinds and "sum" not in found:
        filled = cells if present is None else np.where(present, cells, cells.dtype.type(0))
        found["sum"] = reduce(np.add, filled, dtype=wide)
    if "m2" in kinds:
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(found["count"] > 0, found["sum"] / found["count"], 0.0)
        away = cells - reduce.spread(mean)
        found["m2"] = reduce(np.add, away * away if present is None else np.where(present, away * away, 0.0))
    for kind in ("min", "max"):
        if kind in kinds:
            kept = cells if given is None else np.where(given, cells, _absent(kind, cells.dtype))
            found[kind] = reduce(_EXTREMES[kind], kept)
    return {kind: found[kind] for kind in kinds}


def _absent(kind: str, dtype: np.dtype[Any]) -> Any:
    """Return a value that no minimum or maximum depends on."""
    if dtype.kind == "f":
        return dtype.type(np.nan)
    return np.iinfo(dtype).max if kind == "min" else np.iinfo(dtype).min


def merge_values(kind: str, first: _Numbers, second: _Numbers) -> _Numbers:
    """Merge partial results of a kind. NaN is an extreme of nothing. Squares need `_merge_squares`."""
    return np.asarray(_EXTREMES.get(kind, np.add)(first, second))


def known_partials(work: ChunkAggregation, blocks: BlockList) -> tuple[PartialGroups, BlockList]:
    """Return partial results from statistics of chunks, and the blocks that must be read.

    Statistics answer for a chunk if all its cells are selected and belong to one group.
    """
    everything = blocks.part(0, len(blocks))
    none = PartialGroups(tuple((0, count) for count in work.shape), _empty(work, work.shape))
    kinds = work.kinds()
    scan, grid = work.scan, work.scan.grid
    if work.condition is not None or any(set(each) - _STATISTICS for each in kinds.values()):
        return none, blocks
    coordinates = everything.coordinates()
    uniform = np.ones(len(coordinates), dtype=bool)
    codes: list[npt.NDArray[np.int64]] = []
    for axis, group in enumerate(work.groups):
        whole, code = _uniform_blocks(grid, axis, scan.masks[axis], group)
        uniform &= whole[coordinates[:, axis]]
        if group is not None:
            codes.append(code[coordinates[:, axis]])
    ranges = {column: _ranges(scan, grid, column) for column in kinds} if uniform.any() else {}
    if any(each is None for each in ranges.values()) or not uniform.any():
        return none, blocks
    usable = uniform.copy()
    at = tuple(coordinates.T)
    for column, found in ranges.items():
        assert found is not None
        usable &= _is_exact(found, at, kinds[column], grid, column)
    state = none.values
    where = np.zeros(int(usable.sum()), dtype=np.int64)
    for code, count in zip(codes, work.shape, strict=True):
        where = where * count + code[usable]
    at = tuple(each[usable] for each in at)
    np.add.at(state["", "rows"].reshape(-1), where, _cells_of(grid, at))
    for column, found in ranges.items():
        assert found is not None
        _add_statistics(state, where, at, column, kinds[column], found)
    if usable.all():
        return none, BlockList(blocks.box, np.zeros(0, dtype=np.int64))
    shape = blocks.shape
    numbers = np.arange(len(blocks)) if blocks.picked is None else blocks.picked
    rest = BlockList(blocks.box, numbers[~usable]) if shape else blocks
    return none, rest


def _uniform_blocks(
    grid: Grid, axis: int, mask: npt.NDArray[np.bool_] | None, group: GroupCodes | None
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Return which blocks along a dimension are selected completely and have one code, and their codes."""
    starts = grid.block[axis].starts(grid.shape[axis])
    whole = np.ones(len(starts), dtype=bool) if mask is None else np.logical_and.reduceat(mask, starts)
    if group is None:
        return whole, np.zeros(len(starts), dtype=np.int64)
    low, high = np.minimum.reduceat(group.codes, starts), np.maximum.reduceat(group.codes, starts)
    return whole & (low == high), low


def _ranges(scan: Scan, grid: Grid, column: str) -> ValueRanges | None:
    variable: Variable | None = next((v for v in grid.variables if v.name == column), None)
    if variable is None or variable.chunks != grid.block:
        return None
    session = scan.session()
    if not has_one_missing_value(open_array(session, variable.path).attrs):
        return None
    return load_ranges(session, variable)


def _is_exact(
    ranges: ValueRanges, at: tuple[npt.NDArray[np.int64], ...], kinds: Sequence[str], grid: Grid, column: str
) -> npt.NDArray[np.bool_]:
    exact = ranges.known[at]
    floating = pa.types.is_floating(grid.schema().field(column).type)
    if "sum" in kinds:
        exact = exact & ~np.isnan(ranges.total[at])
    if not floating:
        largest = np.maximum(np.abs(ranges.low[at]), np.abs(ranges.high[at]))
        exact = exact & ((largest < _EXACT) | (ranges.missing[at] == ranges.count[at]))
    return np.asarray(exact)


def _cells_of(grid: Grid, at: tuple[npt.NDArray[np.int64], ...]) -> _Numbers:
    cells = np.ones(len(at[0]) if at else 1, dtype=np.int64)
    for axis, numbers in enumerate(at):
        starts = grid.block[axis].starts(grid.shape[axis])
        cells *= np.diff(starts, append=grid.shape[axis])[numbers]
    return cells


def _add_statistics(
    state: Partial,
    where: npt.NDArray[np.int64],
    at: tuple[npt.NDArray[np.int64], ...],
    column: str,
    kinds: Sequence[str],
    ranges: ValueRanges,
) -> None:
    present = ranges.count[at] - ranges.missing[at]
    there = present > 0
    where = where[there]
    for kind in kinds:
        held = state[column, kind].reshape(-1)
        if kind == "count":
            np.add.at(held, where, present[there])
        elif kind == "sum":
            np.add.at(held, where, ranges.total[at][there].astype(held.dtype))
        else:
            bounds = (ranges.low if kind == "min" else ranges.high)[at][there].astype(held.dtype)
            (np.minimum if kind == "min" else np.maximum).at(held, where, bounds)


def finish_groups(
    work: ChunkAggregation, result: PartialGroups, *, is_grouped: bool
) -> tuple[_Numbers, list[pa.Array]]:
    """Return the numbers of the groups with cells, and a column of results per function.

    Without GROUP BY there is always one group.
    """
    state = result.values
    rows = state["", "rows"].reshape(-1)
    groups = np.flatnonzero(rows > 0) if is_grouped else np.zeros(1, dtype=np.int64)
    types = {field.name: field.type for field in work.scan.grid.schema()}
    columns = []
    for function, column in work.functions:
        flat = {kind: values.reshape(-1)[groups] for (name, kind), values in state.items() if name == (column or "")}
        columns.append(_finish(function, flat, None if column is None else types[column]))
    return groups, columns


def _finish(function: str, flat: Mapping[str, _Numbers], type: pa.DataType | None) -> pa.Array:
    if type is None:
        return from_numpy(flat["rows"])
    count = flat["count"]
    if function == "count":
        return from_numpy(count)
    if function in ("min", "max"):
        values = from_numpy(flat[function], count == 0)
        if pa.types.is_timestamp(type):
            return values.view(type)
        return values.cast(type, safe=False)
    if function == "sum":
        return from_numpy(flat["sum"], count == 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        if function == "avg":
            return from_numpy(flat["sum"] / count, count == 0)
        lost = 1 if function.endswith("samp") else 0
        variance = flat["m2"] / (count - lost)
        values = np.sqrt(variance) if function.startswith("stddev") else variance
    return from_numpy(values, count <= lost)


def group_codes(values: Sequence[pa.Array]) -> tuple[GroupCodes, list[pa.Array]]:
    """Return a code per position for the combinations of some keys of one dimension, and the keys of each code.

    Codes are numbered in the order of their first position, so that neighbours have near codes.
    """
    codes = np.zeros(len(values[0]), dtype=np.int64)
    for key in values:
        if pa.types.is_floating(key.type):
            key = from_numpy(
                to_numpy(key.fill_null(0) if key.null_count else key) + 0.0, to_numpy(key.is_null())
            )  # -0.0 is 0.0
        encoded = key.dictionary_encode(null_encoding="encode")
        numbers = to_numpy(encoded.indices).astype(np.int64)
        codes = codes * (len(encoded.dictionary) + 1) + numbers
        _, codes = np.unique(codes, return_inverse=True)
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    kept = [key.take(from_numpy(first[order])) for key in values]
    return GroupCodes(rank[inverse.reshape(-1)], len(order)), kept
