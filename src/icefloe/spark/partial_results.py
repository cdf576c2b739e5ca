"""Partial results of reductions: computed per chunk or block, merged as a tree."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xarray as xr
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as sf

from icefloe.errors import InvalidInputError
from icefloe.session.session import Session
from icefloe.spark.connect import freeze_loaded_modules, spark_version
from icefloe.spark.jobs import JobMeter, node_path, open_dataset
from icefloe.spark.map_blocks import BlockGrid, Window
from icefloe.spark.tasks import (
    FINAL_ERRORS,
    TASKS_PER_CORE,
    SparkJob,
    TaskFailure,
    collect,
    parallelism,
    run_tasks,
    task_frame,
    watched,
)
from icefloe.tables.aggregates import AxisReducer, merge_values, reduce_cells
from icefloe.tables.chunk_values import ChunkValues
from icefloe.tables.columns import ColumnCoding, coding_of, has_one_missing_value

SKETCH_POINTS = 2048
Values = npt.NDArray[Any]
Axes = tuple[int, ...]


class Reduction(Protocol):
    """Computes a partial result from values, merges two partial results, and computes the final result."""

    def partial(self, values: Values, axes: Axes) -> Any: ...

    def merge(self, first: Any, second: Any) -> Any: ...

    def finish(self, partial: Any) -> Values: ...


def find_reduction(how: str, q: float | None = None, *, exact: bool = True) -> Reduction:
    """Return the reduction with a name."""
    if how == "quantile":
        if q is None or not 0 <= q <= 1:
            raise InvalidInputError(f"a quantile needs q from 0 to 1, got {q}")
        return QuantilePoints(q) if exact else QuantileSketch(q)
    if q is not None:
        raise InvalidInputError(f"q can only be used with 'quantile', not with {how!r}")
    if how in ("mean", "sum", "count"):
        return Sums(how)
    if how in ("min", "max"):
        return Extremes(how)
    raise InvalidInputError(f"unknown reduction {how!r}. Known: mean, sum, min, max, count and quantile")


def is_defined(how: str, dtype: np.dtype[Any]) -> bool:
    """Return whether values of a type can be reduced. Times have no sum, and text can only be counted."""
    if how == "count" or dtype.kind in "biufc":
        return True
    return dtype.kind in "mM" and (how in ("mean", "min", "max") or (how == "sum" and dtype.kind == "m"))


def _present(values: Values) -> npt.NDArray[np.bool_]:
    if values.dtype.kind in "fc":
        return ~np.isnan(values)
    if values.dtype.kind in "mM":
        return ~np.isnat(values)
    return np.ones(values.shape, dtype=bool)


def sum_type(dtype: np.dtype[Any], how: str) -> np.dtype[Any]:
    """Return the type of sums, as in numpy: integers for integers, doubles for means."""
    whole = how != "mean" and dtype.kind in "iub"
    return np.dtype(np.uint64 if whole and dtype.kind == "u" else np.int64 if whole else np.float64)


@dataclass(frozen=True, slots=True)
class Sums:
    """Sum and count of the values that are not missing."""

    how: str

    def partial(self, values: Values, axes: Axes) -> tuple[Values, Values]:
        reduce = AxisReducer(axes)
        if self.how != "count" and values.dtype.kind in "iubf":
            found = reduce_cells(reduce, values, None, ("sum", "count"), sum_type(values.dtype, self.how))
            return found["sum"], found["count"]
        there = _present(values)
        count = reduce_cells(reduce, values, there, ("count",))["count"]
        if self.how == "count":
            return count, count
        if values.dtype.kind in "mM":
            return _sum_halves(np.where(there, values.view(np.int64), 0), axes), count
        return np.asarray(np.sum(values, axis=axes, dtype=sum_type(values.dtype, self.how), where=there)), count

    def merge(self, first: tuple[Values, Values], second: tuple[Values, Values]) -> tuple[Values, Values]:
        return merge_values("sum", first[0], second[0]), merge_values("count", first[1], second[1])

    def finish(self, partial: tuple[Values, Values]) -> Values:
        total, count = partial
        if self.how != "count" and total.ndim > count.ndim:
            return _join_halves(total, count if self.how == "mean" else np.ones_like(count), count)
        if self.how != "mean":
            return np.asarray(count if self.how == "count" else total)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(total / count)


def _sum_halves(values: npt.NDArray[np.int64], axes: Axes) -> Values:
    """Sum integers that overflow 64 bits, such as nanoseconds since 1970, as upper and lower halves."""
    upper, lower = values >> 32, values & 0xFFFFFFFF
    return np.stack([upper.sum(axis=axes, dtype=np.int64), lower.sum(axis=axes, dtype=np.int64)], axis=-1)


def _join_halves(total: Values, divisor: Values, count: Values) -> Values:
    """Divide totals of integers. The result is NaT where the count is zero."""
    upper, lower = total[..., 0], total[..., 1]
    safe = np.maximum(divisor, 1)
    whole, rest = np.divmod(upper, safe)
    joined = (whole << 32) + ((rest << 32) + lower) // safe
    return np.asarray(np.where(count > 0, joined, np.iinfo(np.int64).min))


@dataclass(frozen=True, slots=True)
class Extremes:
    """The smallest or largest value that is not missing."""

    how: str

    def partial(self, values: Values, axes: Axes) -> Values:
        # Missing values are skipped, also of times. The result is only missing if all values are.
        return reduce_cells(AxisReducer(axes), values, None, (self.how,))[self.how]

    def merge(self, first: Values, second: Values) -> Values:
        return merge_values(self.how, first, second)

    def finish(self, partial: Values) -> Values:
        return partial


@dataclass(frozen=True, slots=True)
class QuantilePoints:
    """A quantile of all values. There is nothing to merge, because one block has all values."""

    q: float

    def partial(self, values: Values, axes: Axes) -> Values:
        return np.asarray(np.nanquantile(values.astype(np.float64), self.q, axis=axes))

    def merge(self, first: Values, second: Values) -> Values:
        raise AssertionError("blocks of an exact quantile contain all reduced cells")

    def finish(self, partial: Values) -> Values:
        return partial


@dataclass(frozen=True, slots=True)
class QuantileSketch:
    """A quantile from points of equal rank. With 2,048 points, the rank error is about 0.1 % after a few merges."""

    q: float
    points: int = SKETCH_POINTS

    def partial(self, values: Values, axes: Axes) -> tuple[Values, Values]:
        kept = [axis for axis in range(values.ndim) if axis not in axes]
        rows = np.transpose(values, [*kept, *axes]).reshape(*[values.shape[a] for a in kept], -1).astype(np.float64)
        return self._compress(rows, _present(rows).astype(np.float64))

    def merge(self, first: tuple[Values, Values], second: tuple[Values, Values]) -> tuple[Values, Values]:
        return self._compress(
            np.concatenate([first[0], second[0]], axis=-1), np.concatenate([first[1], second[1]], axis=-1)
        )

    def _compress(self, values: Values, weights: Values) -> tuple[Values, Values]:
        """Return the same distribution with fewer points. The ends do not change."""
        if values.shape[-1] <= self.points:
            return values, weights
        shape = (*values.shape[:-1], self.points)
        points, kept = np.full(shape, np.nan), np.zeros(shape)
        for position in np.ndindex(*values.shape[:-1]):
            there = weights[position] > 0
            total = weights[position][there].sum()
            if total:
                points[position] = _at_ranks(values[position][there], weights[position][there], self.points)
                kept[position] = total / self.points
        return points, kept

    def finish(self, partial: tuple[Values, Values]) -> Values:
        values, weights = partial
        result = np.full(values.shape[:-1], np.nan)
        for position in np.ndindex(*values.shape[:-1]):
            there = weights[position] > 0
            if there.any():
                order = np.argsort(values[position][there])
                ordered, weight = values[position][there][order], weights[position][there][order]
                ranks = _middles(weight)
                result[position] = np.interp(ranks[0] + self.q * (ranks[-1] - ranks[0]), ranks, ordered)
        return result


def _middles(weights: Values) -> Values:
    """Return the rank in the middle of each point's weight."""
    return np.asarray(np.cumsum(weights) - weights / 2)


def _at_ranks(values: Values, weights: Values, points: int) -> Values:
    order = np.argsort(values)
    ordered, ranks = values[order], _middles(weights[order])
    return np.asarray(np.interp(np.linspace(ranks[0], ranks[-1], points), ranks, ordered))


R = TypeVar("R")
Partial: TypeAlias = dict[str, Any]
"""Partial results by variable."""

FAN_IN = 32
"""Partial results that one step of the tree merges."""
_SCHEMA = "position long, branch long, window binary, part binary"


@dataclass(frozen=True, slots=True)
class ReductionTree(Generic[R]):
    """How a block is reduced, how two results are merged, and how the last result is finished."""

    partial: Callable[[Window], Partial]
    reduction: Reduction
    finish: Callable[[Window, Partial], R]

    def run(
        self, spark: SparkSession, grid: BlockGrid, dims: Sequence[str], description: str, shown: bool | None
    ) -> list[tuple[Window, R]]:
        """Reduce over some dimensions of the grid. Yield the finished result of each position along the others."""
        positions = grid.windows([dim for dim in grid.sizes if dim not in dims])
        inner = grid.windows(dims)
        if len(inner) == 1:
            job = SparkJob(_OneBlock(self, inner[0]), description, shown)
            return list(zip(positions, run_tasks(spark, job, positions), strict=True))
        table = self._merge(spark, positions, inner, description, shown)
        made: list[Any] = [None] * len(positions)
        for position, part in zip(table["position"].to_pylist(), table["part"].to_pylist(), strict=True):
            made[position] = pickle.loads(part)
        for each in made:
            if isinstance(each, TaskFailure):
                raise each.error
        return list(zip(positions, made, strict=True))

    def run_flat(
        self, spark: SparkSession, grid: BlockGrid, dims: Sequence[str], description: str, shown: bool | None
    ) -> list[tuple[Window, R]]:
        """Do the same for small partial results, with one job without a shuffle. The driver merges and finishes."""
        positions = grid.windows([dim for dim in grid.sizes if dim not in dims])
        inner = grid.windows(dims)
        windows = [(position, {**at, **part}) for position, at in enumerate(positions) for part in inner]
        tasks = min(len(windows), parallelism(spark) * TASKS_PER_CORE)
        edges = [len(windows) * task // tasks for task in range(tasks + 1)]
        shares = [windows[a:b] for a, b in pairwise(edges)]
        merged: dict[int, Partial] = {}
        for part in run_tasks(spark, SparkJob(_MergedShare(self.partial, self.reduction), description, shown), shares):
            for position, found in part.items():
                merged[position] = _merge_all(self.reduction, merged.get(position), found)
        return [(at, self.finish(at, merged[position])) for position, at in enumerate(positions)]

    def _merge(
        self,
        spark: SparkSession,
        positions: Sequence[Window],
        inner: Sequence[Window],
        description: str,
        shown: bool | None,
    ) -> pa.Table:
        blocks = [
            _Block(number, branch, position, part)
            for number, position in enumerate(positions)
            for branch, part in enumerate(inner)
        ]
        fan = len(inner)
        frame = task_frame(spark, _partials(self.partial), blocks, _SCHEMA)
        while fan > 1:
            fan = -(-fan // FAN_IN)
            finish = cloudpickle.dumps(self.finish) if fan == 1 else None
            merge = _merger(cloudpickle.dumps(self.reduction), finish)
            frame = frame.withColumn("branch", sf.floor(sf.col("branch") / FAN_IN))
            # A direct action on the last merge, so that no later stage can run it again.
            frame = _apply_by_group(frame.groupBy("position", "branch"), merge)
        with watched(spark, JobMeter(description, len(blocks), shown=shown)):
            return collect(frame, description)


def _apply_by_group(groups: GroupedData, function: Callable[[pa.Table], pa.Table]) -> DataFrame:
    if spark_version() >= (4, 0):
        return groups.applyInArrow(function, _SCHEMA)

    def convert(frame: Any) -> Any:
        return function(pa.Table.from_pandas(frame, preserve_index=False)).to_pandas()

    return groups.applyInPandas(convert, _SCHEMA)


@dataclass(frozen=True, slots=True)
class _OneBlock(Generic[R]):
    """A position of which one block has all cells."""

    tree: ReductionTree[R]
    inner: Window

    def __call__(self, position: Window) -> R:
        return self.tree.finish(position, self.tree.partial({**position, **self.inner}))


@dataclass(frozen=True, slots=True)
class _MergedShare:
    """The partial results of several blocks, merged by position."""

    partial: Callable[[Window], Partial]
    reduction: Reduction

    def __call__(self, share: Sequence[tuple[int, Window]]) -> dict[int, Partial]:
        merged: dict[int, Partial] = {}
        for position, window in share:
            merged[position] = _merge_all(self.reduction, merged.get(position), self.partial(window))
        return merged


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of a position: the number of the position, the number of the block in it, and the windows of both."""

    position: int
    branch: int
    outer: Window
    inner: Window


def _partials(partial: Callable[[Window], Partial]) -> Callable[[_Block], Iterator[pa.RecordBatch]]:
    def run(block: _Block) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict(
            {
                "position": [block.position],
                "branch": [block.branch],
                "window": [pickle.dumps(block.outer)],
                "part": [_attempt(partial, {**block.outer, **block.inner})],
            }
        )

    return run


def _merger(reduction: bytes, finish: bytes | None) -> Any:
    def merge(table: pa.Table) -> pa.Table:
        merging = pickle.loads(reduction)
        merged: Partial | TaskFailure | None = None
        for part in table["part"]:
            found: Partial | TaskFailure = pickle.loads(part.as_py())
            if merged is None or isinstance(found, TaskFailure):
                merged = found
            elif not isinstance(merged, TaskFailure):
                merged = _merge_all(merging, merged, found)
        last = pickle.dumps(merged)
        if finish is not None and isinstance(merged, dict):
            last = _attempt(pickle.loads(finish), pickle.loads(table["window"][0].as_py()), merged)
        freeze_loaded_modules()
        return pa.table({**{name: table[name][:1] for name in ("position", "branch", "window")}, "part": [last]})

    return merge


def _merge_all(reduction: Reduction, first: Partial | None, second: Partial) -> Partial:
    if first is None:
        return second
    return {name: _merge_two(reduction, first[name], second[name]) for name in first}


def _merge_two(reduction: Reduction, first: Any, second: Any) -> Any:
    """Merge two partial results. None is a block without the variable."""
    if first is None or second is None:
        return second if first is None else first
    return reduction.merge(first, second)


def _attempt(work: Callable[..., Any], *given: Any) -> bytes:
    """Return the result of some work, or the error if a retry would not help."""
    try:
        return pickle.dumps(work(*given))
    except FINAL_ERRORS as error:
        return pickle.dumps(TaskFailure(error))


@dataclass(frozen=True, slots=True)
class ChunkedArray:
    """An array that can be reduced chunk by chunk: its stored values and their decoding."""

    values: ChunkValues
    coding: ColumnCoding

    def partial(self, window: Sequence[slice], axes: Axes, reduction: Reduction) -> Any:
        """Return the partial result of a box of cells."""
        lengths = self.values.lengths
        kept = [axis for axis in range(len(lengths)) if axis not in axes]
        ranges = [range(c.index(w.start), c.index(w.stop - 1) + 1) for w, c in zip(window, lengths, strict=True)]
        grid = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, len(lengths))
        merged: dict[tuple[int, ...], Any] = {}
        for position, chunk in zip(grid.tolist(), self.values.read(grid), strict=True):
            origin = [c.start(p) for p, c in zip(position, lengths, strict=True)]
            cut = tuple(
                slice(max(w.start - o, 0), min(w.stop - o, n))
                for w, o, n in zip(window, origin, chunk.shape, strict=True)
            )
            part = reduction.partial(self.coding.decode_tensor(chunk[cut]), axes)
            at = tuple(max(origin[axis], window[axis].start) - window[axis].start for axis in kept)
            merged[at] = reduction.merge(merged[at], part) if at in merged else part
        return _assemble(merged, [window[axis].stop - window[axis].start for axis in kept])


def chunk_coding(session: Session, path: str, decoded: xr.DataArray, reduction: Reduction) -> ColumnCoding | None:
    """Return the decoding of a variable's chunks if it gives the same results as xarray, otherwise None."""
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
    """Combine partial results of neighbours into one."""
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


@dataclass(frozen=True, slots=True)
class ReducedVariable:
    """A variable, and how a task reads its values."""

    name: str
    dims: tuple[str, ...]
    coding: ColumnCoding | None
    """The decoding of its chunks. None if xarray has to read them."""


@dataclass(frozen=True, slots=True, eq=False)
class PartialOfBlock:
    """The partial results of one block, by variable."""

    session: Session
    group: str
    variables: tuple[ReducedVariable, ...]
    origin: Mapping[str, int]
    """The start of the region, along the dimensions that it limits."""
    dims: tuple[str, ...]
    reduction: Reduction

    @classmethod
    def plan(
        cls,
        session: Session,
        group: str,
        dataset: xr.Dataset,
        origin: Mapping[str, int],
        reduced: tuple[str, ...],
        reduction: Reduction,
    ) -> PartialOfBlock:
        """Plan the work on the variables of a dataset. The dataset can be a part that starts at another origin."""
        variables = tuple(
            ReducedVariable(
                str(name),
                tuple(map(str, array.dims)),
                chunk_coding(session, node_path(group, str(name)), array, reduction),
            )
            for name, array in dataset.data_vars.items()
        )
        return cls(session, group, variables, origin, reduced, reduction)

    def __call__(self, window: Window) -> Partial:
        source = _open(self)
        moved = {dim: _move(part, self.origin.get(dim, 0)) for dim, part in window.items()}
        return {each.name: self._of(source, each, window, moved) for each in self.variables}

    def _of(self, source: _Source, variable: ReducedVariable, window: Window, moved: Window) -> Any:
        # A variable without one of the reduced dimensions is in every block along it. Count it in the first one.
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
    """The source from which a task reads its blocks."""

    chunked: Mapping[str, ChunkedArray]
    dataset: xr.Dataset | None
    """The variables that xarray reads. Opening them takes as long as reading a few chunks."""


@lru_cache(maxsize=1)
def _open(work: PartialOfBlock) -> _Source:
    """Open the source once for all blocks of a task."""
    chunked = {
        each.name: ChunkedArray(ChunkValues(work.session, node_path(work.group, each.name)), each.coding)
        for each in work.variables
        if each.coding is not None
    }
    others = [each.name for each in work.variables if each.coding is None]
    return _Source(chunked, open_dataset(work.session, work.group, others) if others else None)


def _move(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)
