"""Reduce whole arrays over named dimensions."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

import numpy as np
import numpy.typing as npt
import xarray as xr
from pyspark.sql import SparkSession

from icefloe.errors import InvalidInputError
from icefloe.session.fork import WrittenParts
from icefloe.session.rebase import ConflictDetector
from icefloe.session.session import ForkSession, Session
from icefloe.spark.jobs import (
    Bounds,
    JobOutcome,
    Source,
    Target,
    node_path,
    open_dataset,
    open_source_and_target,
    parse_bounds,
    reading_session,
    unknown_name,
)
from icefloe.spark.map_blocks import (
    TASK_BYTES,
    BlockGrid,
    BlockTarget,
    Window,
    chunk_length,
    create_target,
    plan_blocks,
    stored_chunks,
    whole_chunks,
)
from icefloe.spark.partial_results import (
    SKETCH_POINTS,
    Extremes,
    Partial,
    PartialOfBlock,
    QuantilePoints,
    QuantileSketch,
    Reduction,
    ReductionTree,
    Sums,
    find_reduction,
    is_defined,
    sum_type,
)
from icefloe.tables.statistics import Summary, summarise_array
from icefloe.xarray import to_icechunk

Values = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class FinishPosition:
    """Computes the final values of one position of the result, by variable, with the types of xarray."""

    reduction: Reduction
    how: str
    dtypes: Mapping[str, np.dtype[Any]]
    """Types of the source."""

    def __call__(self, window: Window, partial: Partial) -> Values:
        return {name: self._typed(np.asarray(self.reduction.finish(part)), name) for name, part in partial.items()}

    def _typed(self, values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
        """Cast the values to the type of the result. Sums and means are computed in double precision."""
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
    dataset: xr.Dataset, dims: Sequence[str], finish: FinishPosition, parts: Sequence[tuple[Window, Values]]
) -> xr.Dataset:
    """Combine the values of all positions into one dataset, with the remaining coordinates."""
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


def sketch_of(dataset: xr.Dataset, dims: Sequence[str], finish: FinishPosition) -> xr.Dataset:
    """A result with one cell along every dimension. It has the variables, types and attributes of the whole result."""
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
class WritePosition:
    """Writes the values of one position into existing arrays, through a fork of the session that created them."""

    finish: FinishPosition
    fork: bytes
    target: BlockTarget
    dims: Mapping[str, tuple[str, ...]]
    """Dimensions of the result by variable."""

    def __call__(self, window: Window, partial: Partial) -> WrittenParts:
        fork: ForkSession = pickle.loads(self.fork)
        for name, values in self.finish(window, partial).items():
            dims = self.dims[name]
            # A variable without a cut dimension is the same at every position along it. The first position writes it.
            if any(part.start for dim, part in window.items() if dim not in dims):
                continue
            region = {dim: window[dim] for dim in dims}
            block = xr.Dataset({name: (dims, values)})
            to_icechunk(block, fork, group=self.target.group or None, region=region or None, mode="r+")
        where = ", ".join(f"{dim}={part.start}:{part.stop}" for dim, part in window.items())
        return fork.write_parts(f"the result at {where or 'the only position'}")


def reduce_from_statistics(
    session: Session, group: str, dataset: xr.Dataset, dims: Sequence[str], finish: FinishPosition
) -> Values:
    """Results by variable, from the stored statistics. A variable is left out if the statistics do not suffice.

    All its dimensions must be reduced, and all its chunks must be measured.
    """
    found: Values = {}
    if isinstance(finish.reduction, Sums | Extremes):
        for name, array in dataset.data_vars.items():
            if array.dtype.kind in "iuf" and set(array.dims) <= set(dims):
                summary = summarise_array(session, node_path(group, str(name)))
                partial = None if summary is None else _partial(summary, array.dtype, finish.reduction)
                if partial is not None:
                    found[str(name)] = finish({}, {str(name): partial})[str(name)]
    return found


def _partial(
    summary: Summary, dtype: np.dtype[np.generic], reduction: Sums | Extremes
) -> tuple[np.ndarray, np.ndarray] | np.ndarray | None:
    """A summary as the partial result of all cells. None if the summary does not contain it."""
    if isinstance(reduction, Extremes):
        extreme = summary.low if reduction.how == "min" else summary.high
        return None if extreme is None or (np.isnan(extreme) and dtype.kind != "f") else np.asarray(extreme, dtype)
    count = np.asarray(summary.count, dtype=np.int64)
    if reduction.how == "count":
        return count, count
    if summary.total is None:
        return None
    return np.asarray(summary.total, dtype=sum_type(dtype, reduction.how)), count


How: TypeAlias = Literal["mean", "sum", "min", "max", "count", "quantile"]

_MOST_SKETCH_CELLS = 1 << 22
_MOST_PARTIAL_BYTES = 16 << 20
"""Up to this size, the driver merges the partial results. Larger ones are merged by tasks."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The data of a reduction, its dimensions, and its blocks."""

    session: Session
    dataset: xr.Dataset
    dims: tuple[str, ...]
    grid: BlockGrid
    finish: FinishPosition
    work: PartialOfBlock

    @property
    def description(self) -> str:
        return f"{self.finish.how} over {', '.join(self.dims)}"

    def collect(self, spark: SparkSession, known: Mapping[str, Any], progress: bool | None) -> xr.Dataset:
        """The result as a dataset. `known` variables are not computed. The driver merges small partial results."""
        parts: list[tuple[Window, Any]] = [({}, dict(known))]
        if self.work.variables:
            tree = ReductionTree(self.work, self.finish.reduction, self.finish)
            run = tree.run_flat if self._partial_bytes() <= _MOST_PARTIAL_BYTES else tree.run
            parts = run(spark, self.grid, self.dims, self.description, progress)
        return assemble(self.dataset, self.dims, self.finish, [(at, {**values, **known}) for at, values in parts])

    def _partial_bytes(self) -> int:
        """The approximate size of the partial results of all blocks."""
        cells = sum(
            math.prod(array.sizes[dim] for dim in kept_dims(array, self.dims))
            for array in self.dataset.data_vars.values()
        )
        width = SKETCH_POINTS if isinstance(self.finish.reduction, QuantileSketch) else 1
        return cells * width * 16 * len(self.grid.windows(self.dims))


class _Options(TypedDict, total=False):
    """The options of `reduce` by name."""

    q: float | None
    exact: bool | None
    group: str
    variables: Sequence[str] | None
    region: Bounds | None
    target_group: str | None
    chunks: Mapping[str, int] | None
    overwrite: bool
    branch: str
    message: str | None
    metadata: Mapping[str, Any] | None
    task_bytes: int
    statistics: bool
    progress: bool | None


@overload
def reduce(
    spark: SparkSession,
    source: Source,
    how: How,
    dims: str | Sequence[str] | None = None,
    target: None = None,
    **options: Unpack[_Options],
) -> xr.Dataset: ...


@overload
def reduce(
    spark: SparkSession,
    source: Source,
    how: How,
    dims: str | Sequence[str] | None,
    target: Target,
    **options: Unpack[_Options],
) -> JobOutcome: ...


@overload
def reduce(
    spark: SparkSession,
    source: Source,
    how: How,
    dims: str | Sequence[str] | None = None,
    *,
    target: Target,
    **options: Unpack[_Options],
) -> JobOutcome: ...


def reduce(
    spark: SparkSession,
    source: Source,
    how: How,
    dims: str | Sequence[str] | None = None,
    target: Target | None = None,
    *,
    q: float | None = None,
    exact: bool | None = None,
    group: str = "",
    variables: Sequence[str] | None = None,
    region: Bounds | None = None,
    target_group: str | None = None,
    chunks: Mapping[str, int] | None = None,
    overwrite: bool = False,
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    task_bytes: int = TASK_BYTES,
    statistics: bool = True,
    progress: bool | None = None,
) -> xr.Dataset | JobOutcome:
    """Reduce the variables of a dataset over dimensions. Missing values are skipped.

    Parameters
    ----------
    spark
        The Spark session.
    source
        A repository (the tip of `main`), its path or URL, or a read-only session.
    how
        mean, sum, min, max, count (of values that are not missing), or quantile.
    dims
        The dimensions to reduce. The default is all. Variables without any of them are left out. Variables whose type
        does not support the reduction, such as a sum of times, are left out unless `variables` names them.
    target
        A repository for the result. Tasks write it, and there is one commit. Without a target, the result is returned
        as a dataset.
    q
        The quantile, from 0 to 1.
    exact
        Whether the quantile is exact. Each task then holds all reduced cells of its part. Otherwise, sketches of 2,048
        points per cell are used. The default is exact if that fits `task_bytes`.
    group
        The group of the source.
    variables
        Only these variables.
    region
        Only the cells [first, end) by dimension.
    target_group
        The target group. The default is `group`.
    chunks
        Chunk lengths of the result by dimension.
    overwrite
        Replace existing arrays.
    branch
        The target branch.
    message, metadata
        The message and metadata of the commit.
    task_bytes
        The approximate decoded bytes of a task.
    statistics
        Use the statistics of chunks (see `analyze`) instead of reading the values. This applies to mean, sum, min, max
        and count over all dimensions of arrays whose chunks all have statistics.
    progress
        Whether to show a progress bar. None shows it in terminals and notebooks.

    Returns
    -------
    xarray.Dataset or JobOutcome
        The result, or the new snapshot if a target is given.

    Raises
    ------
    InvalidInputError
        The arguments are invalid, or no variable can be reduced.

    Examples
    --------
    >>> reduce(spark, repo, "mean", "time", variables=["t2m"])  # doctest: +SKIP
    >>> reduce(spark, repo, "max", "time", repo, target_group="records")  # doctest: +SKIP
    """
    started = time.monotonic()
    session, begin_writing = (
        (reading_session(source), None) if target is None else open_source_and_target(source, target, branch)
    )
    whole = open_dataset(session, group, variables)
    bounds = parse_bounds(region or {}, {str(dim): n for dim, n in whole.sizes.items()})
    dataset = whole.isel(bounds)
    chosen = _dims(dims, dataset)
    names = tuple(str(name) for name, array in dataset.data_vars.items() if set(array.dims) & set(chosen))
    if not names:
        raise InvalidInputError(f"no variable has a dimension {' or '.join(chosen)}")
    defined = tuple(name for name in names if is_defined(how, dataset[name].dtype))
    if len(defined) < len(names) and (variables is not None or not defined):
        other = next(name for name in names if name not in defined)
        raise InvalidInputError(
            f"{other} has values of type {dataset[other].dtype}, which have no {how}. Choose other variables"
        )
    names = defined
    dataset = dataset[list(names)]
    exact = _is_exact(dataset, chosen, task_bytes) if how == "quantile" and exact is None else bool(exact)
    reduction = find_reduction(how, q, exact=exact)
    asked = dict.fromkeys(chosen, -1) if isinstance(reduction, QuantilePoints) else None
    grid = plan_blocks(dataset, asked=asked, grow_first=chosen, task_bytes=task_bytes)
    if target is not None:
        grid = whole_chunks(grid, {dim: n for dim, n in (chunks or {}).items() if dim not in chosen}, {})
    finish = FinishPosition(reduction, how, {name: dataset[name].dtype for name in names})
    asks = target is None and statistics and not region
    known = reduce_from_statistics(session, group, dataset, chosen, finish) if asks else {}
    origin = {dim: part.start for dim, part in bounds.items()}
    unknown = dataset[[name for name in names if name not in known]]
    work = PartialOfBlock.plan(session, group, unknown, origin, chosen, reduction)
    plan = _Plan(session, dataset, chosen, grid, finish, work)
    if begin_writing is None:
        return plan.collect(spark, known, progress)
    writer = begin_writing()
    result_group = group if target_group is None else target_group
    tasks, references = _write(spark, plan, writer, result_group, chunks or {}, overwrite=overwrite, progress=progress)
    facts = {"source": str(session.snapshot_id), "how": how, "dims": list(chosen), **({} if q is None else {"q": q})}
    text = message or plan.description.capitalize()
    snapshot = writer.commit(text, {"icefloe.reduce": facts, **(metadata or {})}, rebase_with=ConflictDetector())
    return JobOutcome(str(snapshot), tasks, references, time.monotonic() - started)


def _write(
    spark: SparkSession,
    plan: _Plan,
    writer: Session,
    group: str,
    chunks: Mapping[str, int],
    *,
    overwrite: bool,
    progress: bool | None,
) -> tuple[int, int]:
    """Create the arrays, write them with tasks, and link the results. Returns the numbers of tasks and references."""
    sketch = sketch_of(plan.dataset, plan.dims, plan.finish)
    target = BlockTarget(group.strip("/"), plan_reduced(plan.dataset, sketch, plan.grid, chunks))
    create_target(writer, target, plan.dataset, sketch, overwrite=overwrite)
    dims = {str(name): kept_dims(array, plan.dims) for name, array in plan.dataset.data_vars.items()}
    write = WritePosition(plan.finish, pickle.dumps(Session.fork(writer)), target, dims)
    tree = ReductionTree(plan.work, plan.finish.reduction, write)
    written = [parts for _, parts in tree.run(spark, plan.grid, plan.dims, plan.description, progress)]
    writer.link_parts(written)
    return len(plan.grid.windows()), sum(parts.chunks for parts in written)


def _dims(dims: str | Sequence[str] | None, dataset: xr.Dataset) -> tuple[str, ...]:
    if dims is None:
        return tuple(str(dim) for dim in dataset.sizes)
    chosen = (dims,) if isinstance(dims, str) else tuple(dims)
    unknown = [dim for dim in chosen if dim not in dataset.sizes]
    if unknown:
        raise unknown_name("dimension", unknown[0], dataset.sizes)
    return chosen


def _is_exact(dataset: xr.Dataset, dims: Sequence[str], task_bytes: int) -> bool:
    kept = int(np.prod([n for dim, n in dataset.sizes.items() if dim not in dims], dtype=np.int64))
    reduced = int(np.prod([dataset.sizes[dim] for dim in dims], dtype=np.int64))
    # Sketches of many cells take more memory than the values of a few tasks.
    return reduced * 8 <= task_bytes or kept * 2048 > _MOST_SKETCH_CELLS
