"""Reductions of whole arrays over named dimensions: partial results in tasks, merged as a tree."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
import xarray as xr
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from icefloe.errors import InvalidInputError, StorageError
from icefloe.session.session import Session
from icefloe.spark.blocks import TASK_BYTES, BlockGrid, Window, plan_blocks
from icefloe.spark.partials import QuantilePoints, Reduction, find_reduction
from icefloe.spark.places import Bounds, Source, open_dataset, reading_session, select_region
from icefloe.spark.tasks import SparkJob, run_tasks

How: TypeAlias = Literal["mean", "sum", "min", "max", "count", "quantile"]
Partial: TypeAlias = dict[str, Any]

FAN_IN = 32
"""Partial results that one step of the tree merges."""
_MOST_SKETCH_CELLS = 1 << 22


@dataclass(frozen=True, slots=True)
class _PartialOfBlock:
    """The partial results of one block, by variable."""

    session: Session
    group: str
    variables: tuple[str, ...]
    region: Bounds | None
    dims: tuple[str, ...]
    reduction: Reduction

    def __call__(self, window: Window) -> Partial:
        dataset = select_region(open_dataset(self.session, self.group, self.variables), self.region)
        block = dataset.isel(dict(window)).load()
        return {
            name: self.reduction.partial(block[name].values, _axes(block[name], self.dims)) for name in self.variables
        }


def _axes(array: xr.DataArray, dims: Sequence[str]) -> tuple[int, ...]:
    return tuple(axis for axis, dim in enumerate(array.dims) if dim in dims)


def reduce(
    spark: SparkSession,
    source: Source,
    how: How,
    dims: str | Sequence[str] | None = None,
    *,
    q: float | None = None,
    exact: bool | None = None,
    group: str = "",
    variables: Sequence[str] | None = None,
    region: Bounds | None = None,
    task_bytes: int = TASK_BYTES,
    progress: bool | None = None,
) -> xr.Dataset:
    """Reduce the variables of a dataset over some dimensions; missing values do not count.

    Parameters
    ----------
    source
        A repository (the tip of `main`), its path or URL, or a read-only session on any snapshot.
    how
        mean, sum, min, max, count (of values that are not missing), or quantile.
    dims
        The dimensions to reduce over; all of them by default. Variables that have none of them are left out.
    q, exact
        For quantile: which one, from 0 to 1, and whether it is exact (each task then holds all reduced cells of its
        part) or from sketches of 2,048 points a cell. By default exact where that fits `task_bytes`.
    region
        Only the cells [first, end) by dimension.

    Examples
    --------
    >>> reduce(spark, repo, "mean", "time", variables=["t2m"])  # doctest: +SKIP
    """
    session = reading_session(source)
    dataset = select_region(open_dataset(session, group, variables), region)
    chosen = _dims(dims, dataset)
    names = tuple(str(name) for name, array in dataset.data_vars.items() if set(array.dims) & set(chosen))
    if not names:
        raise InvalidInputError(f"no variable has a dimension {' or '.join(chosen)}")
    dataset = dataset[list(names)]
    exact = _is_exact(dataset, chosen, task_bytes) if how == "quantile" and exact is None else bool(exact)
    reduction = find_reduction(how, q, exact=exact)
    asked = dict.fromkeys(chosen, -1) if isinstance(reduction, QuantilePoints) else None
    grid = plan_blocks(dataset, asked=asked, grow_first=chosen, task_bytes=task_bytes)
    work = _PartialOfBlock(session, group, names, region, chosen, reduction)
    kept = [dim for dim in grid.sizes if dim not in chosen]
    parts = _Tree(spark, work, grid, kept, chosen).run(f"{how} over {', '.join(chosen)}", progress)
    return _assemble(dataset, names, chosen, parts, reduction, how)


def _dims(dims: str | Sequence[str] | None, dataset: xr.Dataset) -> tuple[str, ...]:
    if dims is None:
        return tuple(str(dim) for dim in dataset.sizes)
    chosen = (dims,) if isinstance(dims, str) else tuple(dims)
    unknown = [dim for dim in chosen if dim not in dataset.sizes]
    if unknown:
        raise InvalidInputError(f"there is no dimension {unknown[0]!r}; there are {', '.join(map(str, dataset.sizes))}")
    return chosen


def _is_exact(dataset: xr.Dataset, dims: Sequence[str], task_bytes: int) -> bool:
    kept = int(np.prod([n for dim, n in dataset.sizes.items() if dim not in dims], dtype=np.int64))
    reduced = int(np.prod([dataset.sizes[dim] for dim in dims], dtype=np.int64))
    # Sketches of many cells take more room than the values of a few tasks.
    return reduced * 8 <= task_bytes or kept * 2048 > _MOST_SKETCH_CELLS


@dataclass(frozen=True, slots=True)
class _Tree:
    """Blocks that share their place in the result are merged, some at a time, until one is left."""

    spark: SparkSession
    work: _PartialOfBlock
    grid: BlockGrid
    kept: Sequence[str]
    dims: Sequence[str]

    def run(self, description: str, progress: bool | None) -> list[tuple[Window, Partial]]:
        places = self.grid.windows(self.kept)
        inner = self.grid.windows(self.dims)
        windows = [{**place, **part} for place in places for part in inner]
        if len(inner) == 1:
            return list(zip(places, run_tasks(self.spark, SparkJob(self.work, description, progress), windows)))
        table = self._merged(windows, len(inner), description)
        merged = {
            place: pickle.loads(part)
            for place, part in zip(table["place"].to_pylist(), table["part"].to_pylist(), strict=True)
        }
        return [(window, merged[index]) for index, window in enumerate(places)]

    def _merged(self, windows: Sequence[Window], fan: int, description: str) -> pa.Table:
        frame = self.spark.range(0, len(windows), 1, len(windows)).mapInArrow(
            _partials(cloudpickle.dumps(self.work), windows, fan), "place long, branch long, part binary"
        )
        merge = _merger(cloudpickle.dumps(self.work.reduction))
        while True:
            frame = frame.withColumn("branch", sf.floor(sf.col("branch") / FAN_IN))
            frame = frame.groupBy("place", "branch").applyInArrow(merge, "place long, branch long, part binary")
            fan = -(-fan // FAN_IN)
            if fan == 1:
                break
        try:
            return frame.toArrow()
        except PySparkException as error:
            raise StorageError(f"{description} failed on Spark: {error}") from error


def _partials(work: bytes, windows: Sequence[Window], fan: int) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partial = pickle.loads(work)
        for batch in batches:
            for index in batch.column(0).to_pylist():
                part = pickle.dumps(partial(windows[index]))
                yield pa.RecordBatch.from_pydict({"place": [index // fan], "branch": [index % fan], "part": [part]})

    return run


def _merger(packed: bytes) -> Any:
    def merge(table: pa.Table) -> pa.Table:
        reduction = pickle.loads(packed)
        merged: Partial | None = None
        for part in table["part"]:
            found: Partial = pickle.loads(part.as_py())
            if merged is None:
                merged = found
            else:
                merged = {name: reduction.merge(merged[name], found[name]) for name in merged}
        return pa.table(
            {"place": table["place"][:1], "branch": table["branch"][:1], "part": pa.array([pickle.dumps(merged)])}
        )

    return merge


def _assemble(
    dataset: xr.Dataset,
    names: Sequence[str],
    dims: Sequence[str],
    parts: Sequence[tuple[Window, Mapping[str, Any]]],
    reduction: Reduction,
    how: str,
) -> xr.Dataset:
    result = xr.Dataset(attrs=dataset.attrs)
    for name in names:
        source = dataset[name]
        kept = [str(dim) for dim in source.dims if dim not in dims]
        whole: Any = None
        for window, found in parts:
            values = np.asarray(reduction.finish(found[name]))
            if whole is None:
                whole = np.empty([source.sizes[dim] for dim in kept], values.dtype)
            whole[tuple(window[dim] for dim in kept)] = values
        attrs = {} if how == "count" else source.attrs
        result[name] = (kept, _as_source_type(whole, source, how), attrs)
    coords = {n: c for n, c in dataset.coords.items() if not set(c.dims) & set(dims)}
    return result.assign_coords(coords)


def _as_source_type(values: Any, source: xr.DataArray, how: str) -> Any:
    """Means and sums of small floats are computed in double precision and given back as xarray gives them."""
    if how in ("count",):
        return values
    return values.astype(source.dtype) if source.dtype.kind == "f" or how in ("min", "max") else values
