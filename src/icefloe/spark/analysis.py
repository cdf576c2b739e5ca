"""Ranges of values per chunk, found by tasks, so that conditions on values skip chunks."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from icefloe.repository import Repository
from icefloe.spark.tasks import TASKS_PER_CORE, SparkJob, parallelism, run_tasks
from icefloe.tables.grids import Grid, find_grid, list_grids
from icefloe.tables.options import Point
from icefloe.tables.places import open_place, place_of
from icefloe.tables.reading import read_blocks
from icefloe.tables.scans import Scan, share_out
from icefloe.tables.selection import BlockList, BlockPart, Selection
from icefloe.tables.statistics import has_ranges, keep_rows, measure_chunks, missing_chunks

_PART_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Analysis:
    """What an analysis added: chunks per array."""

    snapshot_id: str
    chunks: dict[str, int]
    seconds: float


def analyze(
    spark: SparkSession,
    repo: Repository | str | os.PathLike[str],
    *,
    group: str = "/",
    variables: Sequence[str] | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    progress: bool | None = None,
) -> Analysis:
    """Find and keep minimum, maximum, count and missing count of every chunk that has none yet.

    They are kept beside the repository's files and hold for every snapshot that still has the chunk; conditions such
    as `where="t2m > 310"` then read only chunks that can match. Nothing is committed.

    Examples
    --------
    >>> from icefloe.spark import analyze, connect
    >>> analyze(connect(), "s3://bucket/weather", variables=["t2m"])  # doctest: +SKIP
    """
    started = time.monotonic()
    place = place_of(repo)
    session = Point(branch, tag, snapshot_id).session(open_place(place))
    path = "/" + group.strip("/")
    names = (
        list(variables) if variables is not None else [name for names in list_grids(session, path) for name in names]
    )
    added: dict[str, int] = {}
    for name in names:
        grid = find_grid(session, path, [name])
        variable = grid.variables[0]
        todo = missing_chunks(session, variable) if has_ranges(variable.coding) else np.zeros(0, dtype=np.int64)
        if not len(todo):
            continue
        rows = _measure(spark, Scan(place, session.snapshot_id, grid, (None,) * len(grid.shape)), todo, progress)
        added[variable.path] = keep_rows(session, variable, rows)
    return Analysis(session.snapshot_id, added, time.monotonic() - started)


def _measure(spark: SparkSession, scan: Scan, chunks: npt.NDArray[np.int64], progress: bool | None) -> pa.Table:
    box = tuple((0, n) for n in scan.grid.blocks)
    blocks = BlockList(box, np.sort(chunks))
    selection = Selection(scan.masks, blocks, int(np.prod(scan.grid.blocks, dtype=np.int64)))
    plan = share_out(scan, selection, _PART_BYTES, parallelism(spark) * TASKS_PER_CORE)
    name = scan.grid.variables[0].path
    job = SparkJob(_Measure(scan), f"measuring {len(chunks):,} chunks of {name}", progress)
    return pa.concat_tables(run_tasks(spark, job, list(plan.parts)))


@dataclass(frozen=True, slots=True)
class _Measure:
    scan: Scan

    def __call__(self, part: BlockPart) -> pa.Table:
        grid: Grid = self.scan.grid
        found = (
            (int(np.ravel_multi_index(block.coordinates, grid.blocks)) if grid.blocks else 0, block.values[0])
            for block in read_blocks(self.scan, part)
        )
        return measure_chunks(grid.variables[0], found)
