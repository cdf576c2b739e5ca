"""Arrays as DataFrames, temporary views, and SQL queries that are planned before Spark runs them."""

from __future__ import annotations

import datetime as dt
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.lazy_exports import lazy_module
from icefloe.repository import Repository
from icefloe.repository.url import RepositoryUrl
from icefloe.session.session import Session
from icefloe.spark.connect import TIME_ZONE, quieten_failed_queries, require_spark, spark_version
from icefloe.spark.jobs import Target, existing_repository
from icefloe.spark.tasks import (
    TASKS_PER_CORE,
    SparkJob,
    arrow_frame,
    arrow_table,
    parallelism,
    reason_of,
    run_tasks,
    task_frame,
)
from icefloe.tables.aggregates import (
    ChunkAggregation,
    PartialGroups,
    aggregate_blocks,
    aggregate_part,
    merge_partials,
    share_blocks,
)
from icefloe.tables.grids import Variable, session_zone
from icefloe.tables.metadata_tables import SCHEMAS, MetadataPart, metadata_batches, plan_parts
from icefloe.tables.predicates import has_literals, parse_predicate, sql_lookup, sql_name
from icefloe.tables.queries import EngineTraits, PreparedQuery, PreparedRelation, few_rows, groups_table, prepare
from icefloe.tables.reading import (
    LENGTH,
    PICKED,
    START,
    RowsLayout,
    chunks_schema,
    plan_rows,
    read_chunks,
    read_rows,
    rows_schema,
)
from icefloe.tables.scans import Scan, ScanPlan, plan_scan
from icefloe.tables.selection import BlockPart
from icefloe.tables.table_options import (
    RepositoryAddress,
    Revision,
    TableOptions,
    absolute_address,
    address_of,
    choose,
    open_address,
    parse_revision,
    session_at,
)
from icefloe.tables.views import Catalog, View, list_views, refuse_shared

if TYPE_CHECKING:
    from icefloe.tables import sql_plan
else:
    # Tasks do not parse SQL.
    sql_plan = lazy_module("icefloe.tables.sql_plan")

MOST_METADATA_TASKS = 64
_SMALL_BYTES = 32 << 20
"""Chunks of less than this are read faster by the driver than by tasks."""
_FEW_BYTES = 1 << 20
"""The driver sends rows of at most this size to Spark."""
_LONG_BYTES = 1 << 30
"""More than this for each core is a long query."""
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
    """Return arrays of one grid as a DataFrame, with a column per dimension and variable and a row per cell.

    Parameters
    ----------
    spark
        The Spark session.
    repo
        A repository, or its path or URL, also with a ref (`RepositoryUrl`). The credentials of an open repository are
        sent to the tasks and are not part of query plans.
    group
        The group of the arrays.
    variables
        Names of arrays with the same dimensions. Not needed if the group has one grid.
    branch, tag, snapshot_id, as_of
        The snapshot. It is resolved now. Later commits do not change the DataFrame.
    where
        A SQL condition on the columns. Conditions on coordinates, and on values with statistics, restrict the chunks
        that are read. Spark filters the remaining rows.
    region
        Ranges of coordinates with included ends, such as `time=2020-01-01:2020-02-01,lat=-10:10`.
    region_index
        Ranges of positions with excluded ends.
    layout
        `cells`, or `chunks` for one row per chunk with its values as bytes.
    decode
        False keeps times, packed and missing values as they are stored.
    statistics
        Whether to use the statistics of chunks.
    partition_bytes
        The approximate decoded bytes of a partition.

    Returns
    -------
    pyspark.sql.DataFrame
        The cells or chunks.

    Raises
    ------
    InvalidInputError
        An option is invalid, or the arrays have different dimensions.

    Examples
    --------
    >>> from icefloe.spark import connect, table
    >>> df = table(connect(), "s3://bucket/weather", variables="t2m", where="lat > 60")  # doctest: +SKIP
    """
    given: dict[str, Any] = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id, "as_of": as_of}
    given = {key: value for key, value in given.items() if value is not None}
    if isinstance(repo, str):
        url = RepositoryUrl.parse(repo)
        repo, given, group = url.location, url.choose(given), url.choose_path(group) or ""
    address = address_of(repo)
    names = variables.split(",") if isinstance(variables, str) else variables
    options = TableOptions(
        address,
        parse_revision(given),
        "/" + group.strip("/"),
        None if names is None else tuple(name.strip() for name in names),
        region,
        region_index,
        None,
        choose({"layout": layout}, "layout", ("cells", "chunks")),
        raw=not decode,
        statistics=statistics,
        partition_bytes=partition_bytes,
    )
    plan = plan_table(spark, options, where)
    frame = scan_frame(spark, plan)
    settled = plan.decided and layout == "cells"
    return frame if where is None or settled else frame.where(where)


def plan_table(spark: SparkSession, options: TableOptions, where: str | None) -> ScanPlan:
    """The plan of `table`: which chunks are read, in how many tasks."""
    name = spark.conf.get(TIME_ZONE) or "UTC"
    loose = None if where is None else parse_predicate(where)
    plan = plan_scan(options, zone=session_zone(name), loose=loose, tasks=parallelism(spark) * TASKS_PER_CORE)
    if plan.scan.needs_zone:
        raise InvalidInputError(
            f"the region has times without a zone, and the time zone {name!r} of the session is unknown here. Write "
            "them with a zone, such as 2020-01-01T00:00:00Z"
        )
    return plan


def scan_frame(spark: SparkSession, plan: ScanPlan) -> DataFrame:
    """The DataFrame of a plan."""
    scan = plan.scan
    if scan.layout == "chunks":
        return _run(spark, plan, _ReadShare(scan, None))
    layout = plan_rows(scan.grid, scan.masks, picked=scan.test is not None)
    return _expand(_run(spark, plan, _ReadShare(scan, layout)), scan, layout)


def _run(spark: SparkSession, plan: ScanPlan, read: _ReadShare) -> DataFrame:
    schema = from_arrow_schema(read.schema(), prefer_timestamp_ntz=False)
    name = f"icefloe_reads_{plan.chunks}_of_{plan.total_chunks}_chunks"
    return task_frame(spark, read, plan.parts, schema, name=name)


@dataclass(frozen=True, slots=True)
class _ReadShare:
    scan: Scan
    layout: RowsLayout | None

    def schema(self) -> pa.Schema:
        if self.layout is None:
            return chunks_schema(self.scan.grid, self.scan.tensor)
        return rows_schema(self.scan.grid, self.layout)

    def __call__(self, part: BlockPart) -> Iterator[pa.RecordBatch]:
        return read_chunks(self.scan, part) if self.layout is None else read_rows(self.scan, part, self.layout)


def metadata_frame(spark: SparkSession, options: TableOptions) -> DataFrame:
    """A table of metadata as a DataFrame, at the snapshot of the options."""
    assert options.table is not None
    session = options.pin()
    read = _ReadMetadata(options, session.snapshot_id)
    schema = from_arrow_schema(SCHEMAS[options.table], prefer_timestamp_ntz=False)
    return task_frame(spark, read, plan_parts(options.table, session), schema, most_tasks=MOST_METADATA_TASKS)


@dataclass(frozen=True, slots=True)
class _ReadMetadata:
    options: TableOptions
    snapshot_id: str

    def __call__(self, part: MetadataPart) -> Iterator[pa.RecordBatch]:
        table, address = self.options.table, self.options.address
        assert table is not None
        session = session_at(address, self.snapshot_id)
        yield from metadata_batches(table, open_address(address), session, part, self.options.from_snapshot_id)


def _expand(rows: DataFrame, scan: Scan, layout: RowsLayout) -> DataFrame:
    """Convert rows of lists to cells, in the JVM.

    The first variable is exploded with positions, the others are looked up.
    """
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
            at = f"CAST({sql_name(START + name)} + {index} AS INT)"
            folded.append(f"{sql_lookup(scan.coordinate(axis), at)} AS {sql_name(name)}")
        else:
            folded.append(f"{sql_name(name)}[{_POSITION}] AS {sql_name(name)}")
        strides.append(length)
    columns += reversed(folded)
    columns.append(_value(first, _FIRST_VALUE))
    columns += [_value(variable, f"{sql_name(variable.name)}[{_POSITION}]") for variable in others]
    return exploded.selectExpr(*columns)


def _value(variable: Variable, listed: str) -> str:
    """A column of values from a column of lists."""
    value = f"if(isnan({listed}), NULL, {listed})" if variable.coding.missing_is_nan else listed
    return f"{value} AS {sql_name(variable.name)}"


def register(spark: SparkSession) -> None:
    """Register the data source `icefloe` and the SQL table function `icefloe_scan` with a session.

    The data source is found without this call if the package is installed on the driver. The table function is not.

    Parameters
    ----------
    spark
        The Spark session.

    Raises
    ------
    UnsupportedError
        This is Spark 3.5, which has no data sources in Python.

    Examples
    --------
    >>> from icefloe.spark import connect, register
    >>> spark = connect("local[2]")  # doctest: +SKIP
    >>> register(spark)  # doctest: +SKIP
    >>> spark.sql("SELECT * FROM icefloe_scan('s3://bucket/weather', 'lat > 60')")  # doctest: +SKIP
    """
    require_spark(
        "the data source icefloe",
        (4, 0),
        "Use icefloe.spark.table, icefloe.spark.sql and icefloe.spark.write, which return and take DataFrames",
    )
    from icefloe.spark.source import register_source  # noqa: PLC0415 - Spark 3.5 cannot import it

    register_source(spark)


_READ_FROM = re.compile(r"\b(?:from|join)\s+`?(\w+)`?", re.IGNORECASE)
_log = logging.getLogger("icefloe.spark")


def register_views(
    spark: SparkSession, repo: Target, revision: Revision | None = None, query: str | None = None
) -> Mapping[str, View]:
    """Create temporary views of the arrays that a query mentions, or of all arrays.

    All views are of one snapshot. An array that cannot be a table has no view. This is an error only if the query reads
    from it. The same applies to a name that several arrays share.

    A query over a view reads every chunk, unless this Spark pushes filters into Python data sources without losing rows
    (no version up to 4.3 does) and `repo` is a path or a URL. `icefloe.spark.sql` reads few chunks with every version.

    Parameters
    ----------
    spark
        The Spark session.
    repo
        A repository, or its path or URL.
    revision
        The branch, tag or snapshot. The default is the tip of `main`.
    query
        A SQL query. Only views that it mentions are created. None creates all.

    Returns
    -------
    mapping
        The created views by name.

    Raises
    ------
    IcefloeError
        The query reads from an array that has no view.

    Examples
    --------
    >>> register_views(spark, "s3://bucket/weather")  # doctest: +SKIP
    >>> spark.sql("SELECT max(t2m) FROM t2m")  # doctest: +SKIP
    """
    url = None
    if spark_version() >= (4, 0):
        register(spark)
        from icefloe.spark.pushdown import find_pushdown  # noqa: PLC0415 - Spark 3.5 cannot import it

        # Options of a data source are visible in plans. The credentials of an open repository must not be.
        if not isinstance(repo, Repository) and find_pushdown(spark).filters:
            url = absolute_address(os.fspath(repo))
    repository = existing_repository(repo)
    session = (revision or Revision()).session(repository)
    wanted = None if query is None else {word.lower() for word in re.findall(r"\w+", query)}
    read = {word.lower() for word in _READ_FROM.findall(query or "")}
    address = address_of(repository)
    made: dict[str, View] = {}
    views = list_views(session)
    refuse_shared(views, read)
    for view in views:
        if wanted is None or view.name.lower() in wanted:
            try:
                if url is not None and _has_options(view):
                    frame = _source_frame(spark, url, session.snapshot_id, view)
                else:
                    frame = _frame(spark, address, session.snapshot_id, view)
                frame.createOrReplaceTempView(view.name)
            except (IcefloeError, PySparkException) as error:
                if view.name.lower() in read:
                    raise
                # The array has a type or name that a table cannot have. Create the other views.
                _log.warning("there is no view of %s: %s", view.holds, str(error).partition("\n")[0])
                continue
            made[view.name] = view
    return made


def _has_options(view: View) -> bool:
    """Whether options of the data source can express a view of arrays."""
    return view.table is None and not any("," in name or name != name.strip() for name in view.variables)


def _source_frame(spark: SparkSession, url: str, snapshot_id: str, view: View) -> DataFrame:
    """A view of the data source, which gets the conditions of a query."""
    options = {"url": url, "snapshot_id": snapshot_id, "group": view.group, "variables": ",".join(view.variables)}
    return spark.read.format("icefloe").options(**{key: value for key, value in options.items() if value}).load()


def _frame(spark: SparkSession, address: RepositoryAddress, snapshot_id: str, view: View) -> DataFrame:
    options = TableOptions(address, Revision(snapshot_id=snapshot_id), view.group, view.variables or None)
    if view.table is not None:
        return metadata_frame(spark, replace(options, table=view.table))
    return scan_frame(spark, plan_table(spark, options, None))


def sql(
    spark: SparkSession,
    repo: Target,
    query: str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: dt.datetime | None = None,
) -> DataFrame:
    """Run a SQL query over arrays and metadata on Spark.

    The query is planned as by `icefloe.sql`: chunks outside of its conditions are not read, and aggregates that are
    grouped by coordinates are computed chunk by chunk, in Spark tasks, before this function returns. Times without a
    zone are in the time zone of the session.

    Parameters
    ----------
    spark
        The Spark session.
    repo
        A repository, or its path or URL, also with a ref (`RepositoryUrl`).
    query
        A SELECT statement, in the dialect of `icefloe.sql`.
    branch, tag, snapshot_id, as_of
        The snapshot of tables that do not name another. The default is the branch `main`.

    Returns
    -------
    pyspark.sql.DataFrame
        The rows.

    Raises
    ------
    InvalidInputError
        The query is wrong.

    Examples
    --------
    >>> from icefloe.spark import connect, sql
    >>> sql(connect(), "weather", "select lat, avg(t2m) from t2m group by lat").show()  # doctest: +SKIP
    """
    given: dict[str, Any] = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id, "as_of": as_of}
    given = {name: value for name, value in given.items() if value is not None}
    if isinstance(repo, str):
        url = RepositoryUrl.parse(repo)
        repo, given = url.location, url.choose(given)
    repository = existing_repository(repo)
    prepared = prepare_query(spark, repository, repository.readonly_session(**given), query)
    frames = {each.relation.name: _relation_frame(spark, prepared.catalog, each) for each in prepared.relations}
    # Spark fills in the relations. Other braces are text.
    text = sql_plan.spark_text(prepared.plan.query).replace("{", "{{").replace("}", "}}")
    for name in frames:
        text = text.replace(f"`{name}`", f"{{{name}}}")
    try:
        return spark.sql(text, None, **frames)
    except PySparkException as error:
        raise _query_error(error) from error


def prepare_query(spark: SparkSession, repository: Repository, session: Session, query: str) -> PreparedQuery:
    """Plan a query for a Spark session, and find the chunks that it reads."""
    tasks = parallelism(spark) * TASKS_PER_CORE
    traits = EngineTraits(_Evaluation(spark), tasks, needs_values=True)
    return prepare(query, Catalog.of(repository, session, spark.conf.get(TIME_ZONE) or "UTC"), traits)


@dataclass(frozen=True)
class _Evaluation:
    """Evaluates expressions on a coordinate, with Spark."""

    spark: SparkSession

    def __call__(self, expressions: Sequence[Any], name: str, values: pa.Array) -> list[pa.Array] | None:
        if not has_literals(values.type) or values.null_count:
            return None
        # The positions keep the order. The column is computed from them.
        lookup = sql_lookup(values, "CAST(position AS INT)")
        columns = [f"{sql_plan.spark_text(each)} AS c{number}" for number, each in enumerate(expressions)]
        try:
            rows = (
                self.spark.range(0, len(values), 1, 1)
                .toDF("position")
                .selectExpr("position", f"{lookup} AS {sql_name(name)}")
            )
            found = arrow_table(rows.selectExpr("position", *columns)).sort_by("position")
        except PySparkException:
            return None
        return [found.column(f"c{number}").combine_chunks() for number in range(len(columns))]


def _relation_frame(spark: SparkSession, catalog: Catalog, prepared: PreparedRelation) -> DataFrame:
    relation = prepared.relation
    if prepared.scan is None:
        return metadata_frame(spark, catalog.options(relation.table))
    if prepared.work is None:
        rows = few_rows(prepared, _SMALL_BYTES, _FEW_BYTES)
        if rows is not None:
            return arrow_frame(spark, rows)
        frame = scan_frame(spark, prepared.scan)
        return frame.select(*map(sql_name, relation.columns or frame.columns[:1]))
    assert prepared.rest is not None
    grid = prepared.scan.scan.grid
    read_bytes = len(prepared.rest) * grid.block_bytes
    # One task per core needs no shuffle. A longer query has more, so that no core is idle for long at its end.
    cores = parallelism(spark)
    is_long = read_bytes > cores * _LONG_BYTES
    shares = share_blocks(prepared.rest, cores * (TASKS_PER_CORE if is_long else 1))
    if read_bytes < _SMALL_BYTES or not grid.variables:
        partials = aggregate_blocks(prepared.work, shares)
    else:
        job = SparkJob(_AggregateShare(prepared.work), f"aggregate {relation.text}", shown=False)
        partials = merge_partials(prepared.work, run_tasks(spark, job, shares))
    groups = groups_table(prepared, partials)
    return arrow_frame(spark, groups)


@dataclass(frozen=True, slots=True)
class _AggregateShare:
    work: ChunkAggregation

    def __call__(self, part: BlockPart) -> PartialGroups:
        return aggregate_part(self.work, part)


def run_query(frame: DataFrame, limit: int | None = None) -> pa.Table:
    """Return the rows of a query. The error of a failed query has one line."""
    quieten_failed_queries()
    try:
        return arrow_table(frame.limit(limit) if limit else frame)
    except PySparkException as error:
        raise _query_error(error) from error


def _query_error(error: PySparkException) -> InvalidInputError:
    # Drop the query plan and the Java traceback. They are in the cause of the error.
    text = str(error)
    return InvalidInputError(reason_of(error) if "Traceback" in text else text.partition("\n")[0])
