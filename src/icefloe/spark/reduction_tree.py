"""How partial results become one for each place of the result: in one task where it has all, else merged as a tree."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeAlias, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from icefloe.spark.blocks import BlockGrid, Window
from icefloe.spark.partials import Reduction
from icefloe.spark.progress import JobMeter
from icefloe.spark.tasks import (
    FINAL_ERRORS,
    TASKS_PER_CORE,
    SparkJob,
    TaskFailure,
    collect,
    parallelism,
    run_tasks,
    watched,
)
from icefloe.spark.workers import settle_worker

R = TypeVar("R")
Partial: TypeAlias = dict[str, Any]
"""Partial results by variable."""

FAN_IN = 32
"""Partial results that one step of the tree merges."""
_SCHEMA = "place long, branch long, part binary"


@dataclass(frozen=True, slots=True)
class ReductionTree(Generic[R]):
    """What is computed from a block, how two of those merge, and what is made of the last one at its place."""

    partial: Callable[[Window], Partial]
    reduction: Reduction
    finish: Callable[[Window, Partial], R]

    def run(
        self, spark: SparkSession, grid: BlockGrid, dims: Sequence[str], description: str, shown: bool | None
    ) -> list[tuple[Window, R]]:
        """Reduce over some dimensions of the grid: every place along the others, and what was made of it there."""
        places = grid.windows([dim for dim in grid.sizes if dim not in dims])
        inner = grid.windows(dims)
        if len(inner) == 1:
            job = SparkJob(_OneBlock(self, inner[0]), description, shown)
            return list(zip(places, run_tasks(spark, job, places), strict=True))
        table = self._merge(spark, places, inner, description, shown)
        made: list[Any] = [None] * len(places)
        for place, part in zip(table["place"].to_pylist(), table["part"].to_pylist(), strict=True):
            made[place] = pickle.loads(part)
        for each in made:
            if isinstance(each, TaskFailure):
                raise each.error
        return list(zip(places, made, strict=True))

    def run_flat(
        self, spark: SparkSession, grid: BlockGrid, dims: Sequence[str], description: str, shown: bool | None
    ) -> list[tuple[Window, R]]:
        """The same for small partial results: one job without a shuffle, merged and finished here."""
        places = grid.windows([dim for dim in grid.sizes if dim not in dims])
        inner = grid.windows(dims)
        windows = [(place, {**at, **part}) for place, at in enumerate(places) for part in inner]
        tasks = min(len(windows), parallelism(spark) * TASKS_PER_CORE)
        edges = [len(windows) * task // tasks for task in range(tasks + 1)]
        shares = [windows[a:b] for a, b in pairwise(edges)]
        merged: dict[int, Partial] = {}
        for part in run_tasks(spark, SparkJob(_MergedShare(self.partial, self.reduction), description, shown), shares):
            for place, found in part.items():
                merged[place] = _merge_all(self.reduction, merged.get(place), found)
        return [(at, self.finish(at, merged[place])) for place, at in enumerate(places)]

    def _merge(
        self,
        spark: SparkSession,
        places: Sequence[Window],
        inner: Sequence[Window],
        description: str,
        shown: bool | None,
    ) -> pa.Table:
        windows = [{**place, **part} for place in places for part in inner]
        fan = len(inner)
        frame = spark.range(0, len(windows), 1, len(windows)).mapInArrow(
            _partials(cloudpickle.dumps(self.partial), windows, fan), _SCHEMA
        )
        while fan > 1:
            fan = -(-fan // FAN_IN)
            finish = cloudpickle.dumps((self.finish, places)) if fan == 1 else None
            merge = _merger(cloudpickle.dumps(self.reduction), finish)
            frame = frame.withColumn("branch", sf.floor(sf.col("branch") / FAN_IN))
            # A direct action on the last merge: nothing behind it could make it run again.
            frame = frame.groupBy("place", "branch").applyInArrow(merge, _SCHEMA)
        with watched(spark, JobMeter(description, len(windows), shown=shown)):
            return collect(frame, description)


@dataclass(frozen=True, slots=True)
class _OneBlock(Generic[R]):
    """A place of which one block holds all cells."""

    tree: ReductionTree[R]
    inner: Window

    def __call__(self, place: Window) -> R:
        return self.tree.finish(place, self.tree.partial({**place, **self.inner}))


@dataclass(frozen=True, slots=True)
class _MergedShare:
    """The partial results of several blocks, merged by place."""

    partial: Callable[[Window], Partial]
    reduction: Reduction

    def __call__(self, share: Sequence[tuple[int, Window]]) -> dict[int, Partial]:
        merged: dict[int, Partial] = {}
        for place, window in share:
            merged[place] = _merge_all(self.reduction, merged.get(place), self.partial(window))
        return merged


def _partials(work: bytes, windows: Sequence[Window], fan: int) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partial = pickle.loads(work)
        for batch in batches:
            for index in batch.column(0).to_pylist():
                part = _attempt(partial, windows[index])
                yield pa.RecordBatch.from_pydict({"place": [index // fan], "branch": [index % fan], "part": [part]})
        settle_worker()

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
            make, places = pickle.loads(finish)
            window = places[table["place"][0].as_py()]
            last = _attempt(make, window, merged)
        settle_worker()
        return pa.table({"place": table["place"][:1], "branch": table["branch"][:1], "part": [last]})

    return merge


def _merge_all(reduction: Reduction, first: Partial | None, second: Partial) -> Partial:
    if first is None:
        return second
    return {name: _merge_two(reduction, first[name], second[name]) for name in first}


def _merge_two(reduction: Reduction, first: Any, second: Any) -> Any:
    """Two partial results as one; None stands for a block in which the variable does not count."""
    if first is None or second is None:
        return second if first is None else first
    return reduction.merge(first, second)


def _attempt(work: Callable[..., Any], *given: Any) -> bytes:
    """What some work made; an error that no retry helps travels instead of it."""
    try:
        return pickle.dumps(work(*given))
    except FINAL_ERRORS as error:
        return pickle.dumps(TaskFailure(error))
