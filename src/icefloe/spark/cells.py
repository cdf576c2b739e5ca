"""A repository as a DataFrame, planned here: chunks that cannot match are not read, rows travel as lists."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from icefloe.repository import Repository
from icefloe.spark.tasks import TASKS_PER_CORE, parallelism
from icefloe.spark.workers import settle_worker
from icefloe.tables.grids import Variable
from icefloe.tables.instants import session_zone
from icefloe.tables.layouts import LENGTH, PICKED, START, RowsLayout, chunks_schema, plan_rows, rows_schema
from icefloe.tables.metadata_tables import SCHEMAS, MetadataPart, metadata_batches, plan_parts
from icefloe.tables.options import TableOptions, choose, parse_point
from icefloe.tables.places import open_place, place_of, session_at
from icefloe.tables.reading import read_chunks, read_rows
from icefloe.tables.scans import Scan, ScanPlan, plan_scan
from icefloe.tables.selection import BlockPart
from icefloe.tables.sql_literals import sql_lookup, sql_name
from icefloe.tables.sql_predicates import parse_predicate

MOST_METADATA_TASKS = 64
_POSITION = "__position"
_FIRST_VALUE = "__value"


def table(
    spark: SparkSession,
    repo: Repository | str | os.PathLike[str],
    *,
    group: str = "/",
    variables: Sequence[str] | str | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: str | None = None,
    where: str | None = None,
    region: str = "",
    region_index: str = "",
    layout: str = "cells",
    decode: bool = True,
    statistics: bool = True,
    partition_bytes: int = 64 << 20,
) -> DataFrame:
    """Arrays of one grid as a DataFrame: a column per dimension, a column per variable, a row per cell.

    Parameters
    ----------
    repo
        A repository, or its path or URL. One that was opened with credentials takes them along to the tasks, outside
        of query plans.
    variables
        Names of arrays of the group that have the same dimensions; all of them when there is one grid only.
    branch, tag, snapshot_id, as_of
        The point of history, resolved now: later commits do not change the DataFrame.
    where
        Any SQL condition on the columns. What it says about coordinates, and about values where statistics are kept,
        decides which chunks are read; Spark filters where that leaves anything to decide.
    region, region_index
        Ranges of coordinates (`time=2020-01-01:2020-02-01,lat=-10:10`, ends included) or of positions (ends excluded).
    layout
        `cells`, or `chunks` for one row per chunk with its values as bytes.
    decode
        False leaves times, packed and missing values as they are stored.

    Examples
    --------
    >>> from icefloe.spark import connect, table
    >>> df = table(connect(), "s3://bucket/weather", variables="t2m", where="lat > 60")  # doctest: +SKIP
    """
    place = place_of(repo)
    names = variables.split(",") if isinstance(variables, str) else variables
    point = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id, "as_of": as_of}
    options = TableOptions(
        place, parse_point({key: value for key, value in point.items() if value is not None}),
        "/" + group.strip("/"), None if names is None else tuple(name.strip() for name in names),
        region, region_index, None, choose({"layout": layout}, "layout", ("cells", "chunks")),
        raw=not decode, statistics=statistics, partition_bytes=partition_bytes,
    )  # fmt: skip
    plan = plan_table(spark, options, where)
    frame = scan_frame(spark, plan)
    settled = plan.decided and layout == "cells"
    return frame if where is None or settled else frame.where(where)


def plan_table(spark: SparkSession, options: TableOptions, where: str | None) -> ScanPlan:
    """The plan of `table`: which chunks are read, in how many tasks."""
    zone = session_zone(spark.conf.get("spark.sql.session.timeZone") or "UTC")
    loose = None if where is None else parse_predicate(where)
    return plan_scan(options, zone=zone, loose=loose, tasks=parallelism(spark) * TASKS_PER_CORE)


def scan_frame(spark: SparkSession, plan: ScanPlan) -> DataFrame:
    """The DataFrame of a plan."""
    scan = plan.scan
    if scan.layout == "chunks":
        read = _ReadShares(scan, plan.parts, None)
        return _run(spark, plan, read, read.schema())
    layout = plan_rows(scan.grid, scan.masks, picked=scan.test is not None)
    read = _ReadShares(scan, plan.parts, layout)
    rows = _run(spark, plan, read, read.schema())
    return _expand(rows, scan, layout)


def _run(spark: SparkSession, plan: ScanPlan, read: _ReadShares, schema: pa.Schema) -> DataFrame:
    count = max(1, len(plan.parts))

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return read(batches)

    # Spark shows the name in its plans.
    work.__name__ = f"icefloe_reads_{plan.chunks}_of_{plan.total_chunks}_chunks"
    return spark.range(0, count, 1, count).mapInArrow(work, from_arrow_schema(schema, prefer_timestamp_ntz=False))


@dataclass(frozen=True, slots=True)
class _ReadShares:
    scan: Scan
    parts: tuple[BlockPart, ...]
    layout: RowsLayout | None

    def schema(self) -> pa.Schema:
        if self.layout is None:
            return chunks_schema(self.scan.grid, self.scan.tensor)
        return rows_schema(self.scan.grid, self.layout)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                if number < len(self.parts):
                    yield from self._read(self.parts[number])
        settle_worker()

    def _read(self, part: BlockPart) -> Iterator[pa.RecordBatch]:
        return read_chunks(self.scan, part) if self.layout is None else read_rows(self.scan, part, self.layout)


def metadata_frame(spark: SparkSession, options: TableOptions) -> DataFrame:
    """A table of metadata as a DataFrame, at the point that the options name now."""
    assert options.table is not None
    session = options.pin()
    parts = plan_parts(options.table, session)
    read = _ReadMetadata(options, session.snapshot_id, tuple(parts))
    schema = from_arrow_schema(SCHEMAS[options.table], prefer_timestamp_ntz=False)
    return spark.range(0, len(parts), 1, min(len(parts), MOST_METADATA_TASKS)).mapInArrow(read, schema)


@dataclass(frozen=True, slots=True)
class _ReadMetadata:
    options: TableOptions
    snapshot_id: str
    parts: tuple[MetadataPart, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table, place = self.options.table, self.options.place
        assert table is not None
        session = session_at(place, self.snapshot_id)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                part = self.parts[number]
                yield from metadata_batches(table, open_place(place), session, part, self.options.from_snapshot_id)


def _expand(rows: DataFrame, scan: Scan, layout: RowsLayout) -> DataFrame:
    """Cells from rows of lists, in the JVM: positions and the first variable exploded, the others looked up."""
    grid = scan.grid
    rank = len(grid.shape)
    first, *others = grid.variables
    exploded = rows.selectExpr("*", f"posexplode({sql_name(first.name)}) AS ({_POSITION}, {_FIRST_VALUE})")
    columns = [sql_name(d.name) for d in grid.dimensions[: rank - layout.folded]]
    position = f"if({PICKED} IS NULL, {_POSITION}, {PICKED}[{_POSITION}])" if layout.picked else _POSITION
    strides: list[str] = []
    folded = []
    for axis in reversed(range(rank - layout.folded, rank)):
        name = grid.dimensions[axis].name
        length = sql_name(LENGTH + name)
        if axis in layout.looked_up:
            index = f"({position} div ({' * '.join(strides)}))" if strides else position
            index = index if axis == rank - layout.folded else f"({index} % {length})"
            place = f"CAST({sql_name(START + name)} + {index} AS INT)"
            folded.append(f"{sql_lookup(scan.coordinate(axis), place)} AS {sql_name(name)}")
        else:
            folded.append(f"{sql_name(name)}[{_POSITION}] AS {sql_name(name)}")
        strides.append(length)
    columns += reversed(folded)
    columns.append(_value(first, _FIRST_VALUE))
    columns += [_value(variable, f"{sql_name(variable.name)}[{_POSITION}]") for variable in others]
    return exploded.selectExpr(*columns)


def _value(variable: Variable, listed: str) -> str:
    """A column of values from what lists hold."""
    value = f"if(isnan({listed}), NULL, {listed})" if variable.coding.missing_is_nan else listed
    return f"{value} AS {sql_name(variable.name)}"
