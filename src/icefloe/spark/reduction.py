"""Reductions of whole arrays over named dimensions: partial results in tasks, merged as a tree."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

import numpy as np
import xarray as xr
from pyspark.sql import SparkSession

from icefloe.errors import InvalidInputError
from icefloe.session.conflicts import ConflictDetector
from icefloe.session.session import Session
from icefloe.spark.answers import answer
from icefloe.spark.block_partials import PartialOfBlock
from icefloe.spark.block_target import BlockTarget, create_target
from icefloe.spark.blocks import TASK_BYTES, BlockGrid, Window, plan_blocks, whole_chunks
from icefloe.spark.partials import SKETCH_POINTS, QuantilePoints, QuantileSketch, find_reduction, is_defined
from icefloe.spark.places import (
    Bounds,
    JobOutcome,
    Source,
    Target,
    open_dataset,
    open_places,
    parse_bounds,
    reading_session,
    unknown_name,
)
from icefloe.spark.reduced import FinishPlace, WritePlace, assemble, kept_dims, plan_reduced, sketch_of
from icefloe.spark.reduction_tree import ReductionTree

How: TypeAlias = Literal["mean", "sum", "min", "max", "count", "quantile"]

_MOST_SKETCH_CELLS = 1 << 22
_MOST_PARTIAL_BYTES = 16 << 20
"""Partial results that are brought together here; more of them are merged by tasks."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is reduced, over what, and how it is cut."""

    session: Session
    dataset: xr.Dataset
    dims: tuple[str, ...]
    grid: BlockGrid
    finish: FinishPlace
    work: PartialOfBlock

    @property
    def description(self) -> str:
        return f"{self.finish.how} over {', '.join(self.dims)}"

    def collect(self, spark: SparkSession, known: Mapping[str, Any], progress: bool | None) -> xr.Dataset:
        """The result here, but for what is known already; partial results that are small are merged here as well."""
        parts: list[tuple[Window, Any]] = [({}, dict(known))]
        if self.work.variables:
            tree = ReductionTree(self.work, self.finish.reduction, self.finish)
            run = tree.run_flat if self._partial_bytes() <= _MOST_PARTIAL_BYTES else tree.run
            parts = run(spark, self.grid, self.dims, self.description, progress)
        return assemble(self.dataset, self.dims, self.finish, [(at, {**values, **known}) for at, values in parts])

    def _partial_bytes(self) -> int:
        """About how much the partial results of all blocks take."""
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
    """Reduce the variables of a dataset over some dimensions; missing values do not count.

    Parameters
    ----------
    source
        A repository (the tip of `main`), its path or URL, or a read-only session on any snapshot.
    how
        mean, sum, min, max, count (of values that are not missing), or quantile.
    dims
        The dimensions to reduce over; all of them by default. Variables that have none of them are left out, and so
        are, unless `variables` names them, those whose values cannot be reduced so: a sum of times, a mean of texts.
    target
        A repository that keeps the result: the tasks write it, and one commit lands it. Without a target it is
        returned as a dataset.
    q, exact
        For quantile: which one, from 0 to 1, and whether it is exact (each task then holds all reduced cells of its
        part) or from sketches of 2,048 points a cell. By default exact where that fits `task_bytes`.
    region
        Only the cells [first, end) by dimension.
    target_group, branch, chunks, overwrite, message, metadata
        For a target, as of `map_blocks`.
    statistics
        Whole arrays whose chunks were all measured (see `analyze`) are not read: mean, sum, min, max and count over all
        dimensions come from what was kept of each chunk. False reads them.

    Examples
    --------
    >>> reduce(spark, repo, "mean", "time", variables=["t2m"])  # doctest: +SKIP
    >>> reduce(spark, repo, "max", "time", repo, target_group="records")  # doctest: +SKIP
    """
    started = time.monotonic()
    session, begin_writing = (reading_session(source), None) if target is None else open_places(source, target, branch)
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
            f"{other} holds {dataset[other].dtype} values, which have no {how}; choose other variables"
        )
    names = defined
    dataset = dataset[list(names)]
    exact = _is_exact(dataset, chosen, task_bytes) if how == "quantile" and exact is None else bool(exact)
    reduction = find_reduction(how, q, exact=exact)
    asked = dict.fromkeys(chosen, -1) if isinstance(reduction, QuantilePoints) else None
    grid = plan_blocks(dataset, asked=asked, grow_first=chosen, task_bytes=task_bytes)
    if target is not None:
        grid = whole_chunks(grid, {dim: n for dim, n in (chunks or {}).items() if dim not in chosen}, {})
    finish = FinishPlace(reduction, how, {name: dataset[name].dtype for name in names})
    asks = target is None and statistics and not region
    known = answer(session, group, dataset, chosen, finish) if asks else {}
    origin = {dim: part.start for dim, part in bounds.items()}
    unknown = dataset[[name for name in names if name not in known]]
    work = PartialOfBlock.plan(session, group, unknown, origin, chosen, reduction)
    plan = _Plan(session, dataset, chosen, grid, finish, work)
    if begin_writing is None:
        return plan.collect(spark, known, progress)
    writer = begin_writing()
    place = group if target_group is None else target_group
    tasks, references = _write(spark, plan, writer, place, chunks or {}, overwrite=overwrite, progress=progress)
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
    """Make the arrays, let tasks fill them, link what they wrote; how many tasks and references it took."""
    sketch = sketch_of(plan.dataset, plan.dims, plan.finish)
    target = BlockTarget(group.strip("/"), plan_reduced(plan.dataset, sketch, plan.grid, chunks))
    create_target(writer, target, plan.dataset, sketch, overwrite=overwrite)
    dims = {str(name): kept_dims(array, plan.dims) for name, array in plan.dataset.data_vars.items()}
    write = WritePlace(plan.finish, pickle.dumps(writer.fork()), target, dims)
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
    # Sketches of many cells take more room than the values of a few tasks.
    return reduced * 8 <= task_bytes or kept * 2048 > _MOST_SKETCH_CELLS
