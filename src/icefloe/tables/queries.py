"""SQL over arrays and metadata with DuckDB, in this process: plan the query, register what it reads, run it."""

from __future__ import annotations

import atexit
import datetime as dt
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Any, TypeAlias
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.errors import InvalidInputError, UnsupportedError, printable
from icefloe.lazy_exports import lazy_module
from icefloe.repository import Repository
from icefloe.repository.url import RepositoryUrl
from icefloe.session.session import Session
from icefloe.storage.build import storage_from_url
from icefloe.tables.aggregates import (
    MOST_GROUPS,
    ChunkAggregation,
    GroupCodes,
    PartialGroups,
    aggregate_blocks,
    finish_groups,
    group_codes,
    known_partials,
    merge_partials,
    share_blocks,
)
from icefloe.tables.columns import from_numpy, to_numpy
from icefloe.tables.evaluate import exact_rows, is_exact, match_leaf
from icefloe.tables.grids import session_zone
from icefloe.tables.metadata_tables import SCHEMAS, metadata_batches, plan_parts
from icefloe.tables.predicates import And, Or, Positions, Predicate, Unknown
from icefloe.tables.reading import read_columns
from icefloe.tables.scans import Scan, ScanPlan, coordinate_at, grid_at, plan_scan
from icefloe.tables.selection import BlockList
from icefloe.tables.table_options import open_address, session_at
from icefloe.tables.views import Catalog

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

    from icefloe.tables import sql_plan, sql_planner
    from icefloe.tables.sql_plan import Aggregation, QueryPlan, Relation
else:
    # The extra `sql`.
    duckdb = lazy_module("duckdb")
    pl = lazy_module("polars")
    sql_plan = lazy_module("icefloe.tables.sql_plan")
    sql_planner = lazy_module("icefloe.tables.sql_planner")

_SHOWN_ROWS = 20
_FEW_GROUPS = 1024
_LARGEST_SHARE = 0.25
"""If there are more groups than this share of the cells, rows are as good as groups."""
Evaluate: TypeAlias = Callable[[Sequence[Any], str, pa.Array], list[pa.Array] | None]
"""Evaluates expressions of one dimension on its coordinate. None if that fails."""


def sql(
    repo: Repository | str | os.PathLike[str],
    query: str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: dt.datetime | None = None,
    time_zone: str = "UTC",
) -> QueryResult:
    """Run a SQL query over arrays and metadata, with DuckDB in this process.

    Every array is a table. Its columns are the dimensions and the values. `icefloe.tables.views.list_views` lists the
    tables of a snapshot. Chunks outside of the conditions of the query are not read, and aggregates that are grouped by
    coordinates are computed chunk by chunk.

    Parameters
    ----------
    repo
        A repository, or its path or URL, also with a ref (`RepositoryUrl`).
    query
        A SELECT statement, in the dialect of Spark. Names can be in double quotes or backticks.
        `FROM t2m VERSION AS OF 'v1'` and `TIMESTAMP AS OF '...'` read another snapshot.
    branch, tag, snapshot_id, as_of
        The snapshot of tables that do not name another. The default is the branch `main`.
    time_zone
        The time zone of times without a zone and of functions such as `hour`.

    Returns
    -------
    QueryResult
        The rows, as Arrow, pandas or Polars.

    Raises
    ------
    InvalidInputError
        The query is wrong.
    UnsupportedError
        DuckDB or sqlglot is not installed, or the statement is not a SELECT.

    Examples
    --------
    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with repo.transaction("main", message="data") as store:
    ...     array = zarr.create_array(store, name="t2m", shape=(4, 3), dtype="f4", dimension_names=["y", "x"])
    ...     array[:] = 7
    >>> icefloe.sql(repo, "select y, avg(t2m) as mean from t2m where y < 2 group by y order by y").to_pylist()
    [{'y': 0, 'mean': 7.0}, {'y': 1, 'mean': 7.0}]
    """
    given: dict[str, Any] = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id, "as_of": as_of}
    given = {name: value for name, value in given.items() if value is not None}
    if not isinstance(repo, Repository):
        url = RepositoryUrl.parse(os.fspath(repo))
        repo, given = Repository.open(storage_from_url(url.location)), url.choose(given)
    repository: Repository = repo
    session = repository.readonly_session(**given)
    return run_query(repository, session, query, time_zone=time_zone)


def run_query(
    repository: Repository, session: Session, query: str, *, time_zone: str = "UTC", limit: int | None = None
) -> QueryResult:
    """Run a query at the snapshot of a session. Return at most `limit` rows."""
    with closing(DuckDBEngine(time_zone)) as engine:
        prepared = prepare(query, Catalog.of(repository, session, time_zone), EngineTraits(engine.evaluate))
        return QueryResult(engine.run(prepared, limit), prepared)


def explain(repository: Repository, session: Session, query: str, *, time_zone: str = "UTC") -> str:
    """Describe what a query reads and what is computed by chunk, without running it."""
    with closing(DuckDBEngine(time_zone)) as engine:
        return prepare(query, Catalog.of(repository, session, time_zone), EngineTraits(engine.evaluate)).describe()


@dataclass(frozen=True, slots=True)
class PreparedRelation:
    """A relation of a planned query, and what is read for it."""

    relation: Relation
    scan: ScanPlan | None = None
    """None for metadata."""
    work: ChunkAggregation | None = None
    keys: tuple[tuple[pa.Array, ...], ...] = ()
    """Per grouped dimension, the values of its keys for each code."""
    known: PartialGroups | None = None
    """Results from statistics of chunks."""
    rest: BlockList | None = None
    """The blocks that must be read for an aggregate."""
    decided: frozenset[str] = frozenset()
    """The texts of conditions that exactly the cells of the scan satisfy."""

    def describe(self) -> str:
        """Describe the chunks that are read."""
        if self.scan is None:
            return ""
        read = self.scan.chunks if self.rest is None else len(self.rest)
        values = self.relation.columns and any(v.name in self.relation.columns for v in self.scan.scan.grid.variables)
        if not values and not self.scan.scan.grid.variables:
            return f"  chunks: none of {self.scan.total_chunks:,}, coordinates only"
        by_statistics = f", {self.scan.chunks - read:,} by statistics" if read < self.scan.chunks else ""
        return f"  chunks: {read:,} of {self.scan.total_chunks:,} are read{by_statistics}"


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """A planned query whose relations are ready to be read."""

    plan: QueryPlan
    catalog: Catalog
    relations: tuple[PreparedRelation, ...]

    def describe(self) -> str:
        """Describe what is read from each table."""
        lines = []
        for prepared, text in zip(self.relations, self.plan.describe().split("\n\n"), strict=False):
            lines.append("\n".join(line for line in (text, prepared.describe()) if line))
        return "\n".join(lines) or "no table is read"


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """How an engine reads relations."""

    evaluate: Evaluate
    tasks: int = 1
    """The number of tasks that read at the same time."""
    needs_values: bool = False
    """Whether a relation must have a column of values."""


def prepare(query: str, catalog: Catalog, engine: EngineTraits) -> PreparedQuery:
    """Plan a query, and find the chunks that it reads."""
    try:
        planner = sql_planner.plan_query
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"SQL needs the extra `sql`: pip install 'icefloe[sql]' ({error})") from error
    rows_only: list[str] = []
    while True:
        plan = planner(query, catalog, rows_only=rows_only)
        prepared = []
        for relation in plan.relations:
            made = _prepare(relation, catalog, engine)
            if made is None:
                rows_only.append(relation.name)
                break
            prepared.append(made)
        else:
            return PreparedQuery(plan, catalog, tuple(prepared))


def _prepare(relation: Relation, catalog: Catalog, engine: EngineTraits) -> PreparedRelation | None:
    """Prepare a relation. None if its aggregation should be done by the engine."""
    if relation.table.view.table is not None:
        return PreparedRelation(relation)
    zone = session_zone(catalog.zone)
    evaluated = _evaluate_conditions(relation, catalog, engine)
    predicate = relation.predicate(evaluated)
    if relation.aggregation is None:
        dimensions = relation.table.dimensions
        columns = relation.columns or dimensions[:1] or relation.table.names[:1]
        if engine.needs_values and not set(columns) - set(dimensions):
            columns = (*columns, *relation.table.names[len(dimensions) :][:1])
        options = catalog.options(relation.table)
        scan = plan_scan(options, zone=zone, loose=predicate, columns=columns, tasks=engine.tasks)
        return PreparedRelation(relation, scan, decided=frozenset(evaluated))
    if any(each.is_exact and each.dimension is not None and each.text not in evaluated for each in relation.conditions):
        return None
    scan = plan_scan(catalog.options(relation.table), zone=zone, loose=predicate, columns=relation.columns)
    found = _groups(relation.aggregation, scan.scan, engine)
    if found is None:
        return None
    groups, keys = found
    # Masks select positions exactly. Conditions on single dimensions are in the masks.
    cells = tuple(
        condition.predicate for condition in relation.conditions if condition.dimension is None and condition.is_exact
    )
    functions = tuple((measure.function, measure.column) for measure in relation.aggregation.measures)
    work = ChunkAggregation(scan.scan, groups, functions, And(cells) if cells else None, zone)
    cells_in_all = float(np.prod(scan.scan.grid.shape, dtype=np.float64))
    if work.shape and np.prod(work.shape, dtype=np.float64) > max(
        1024, min(MOST_GROUPS, _LARGEST_SHARE * cells_in_all)
    ):
        return None
    blocks = _blocks(scan)
    known, rest = known_partials(work, blocks)
    return PreparedRelation(relation, scan, work, keys, known, rest)


def _blocks(plan: ScanPlan) -> BlockList:
    if not plan.parts:
        return BlockList(tuple((0, 0) for _ in plan.scan.grid.shape))
    first = plan.parts[0]
    if first.picked is None:
        return BlockList(first.box)
    return BlockList(first.box, np.concatenate([part.picked for part in plan.parts if part.picked is not None]))


def _evaluate_conditions(relation: Relation, catalog: Catalog, engine: EngineTraits) -> dict[str, Predicate]:
    """Return the conditions on single dimensions as masks."""
    done: dict[str, Predicate] = {}
    zone = session_zone(catalog.zone)
    for condition in relation.conditions:
        if condition.dimension is not None:
            values = _coordinate(relation, catalog, condition.dimension)
            known = _match(values, condition.predicate, zone)
            if known is not None:
                done[condition.text] = Positions(condition.dimension, known)
                continue
            found = engine.evaluate([condition.expression], condition.dimension, values)
            if found is not None and pa.types.is_boolean(found[0].type):
                mask = to_numpy(found[0].fill_null(False) if found[0].null_count else found[0])  # NULL is not true
                done[condition.text] = Positions(condition.dimension, mask)
    return done


def _match(values: pa.Array, predicate: Predicate, zone: dt.tzinfo | None) -> npt.NDArray[np.bool_] | None:
    """Evaluate a condition on a coordinate without an engine. None if that is not possible."""
    if isinstance(predicate, And | Or):
        masks = [_match(values, part, zone) for part in predicate.parts]
        known = [mask for mask in masks if mask is not None]
        if len(known) < len(masks):
            return None
        combined: npt.NDArray[np.bool_] = (np.logical_and if isinstance(predicate, And) else np.logical_or).reduce(
            known
        )
        return combined
    return None if isinstance(predicate, Unknown) else match_leaf(values, predicate, zone)


def _coordinate(relation: Relation, catalog: Catalog, dimension: str) -> pa.Array:
    view = relation.table.view
    grid = grid_at(catalog.address, relation.table.snapshot_id, view.group, view.variables or None, False)
    found = next(each for each in grid.dimensions if each.name == dimension)
    return coordinate_at(catalog.address, relation.table.snapshot_id, found)


def _groups(
    aggregation: Aggregation, scan: Scan, engine: EngineTraits
) -> tuple[tuple[GroupCodes | None, ...], tuple[tuple[pa.Array, ...], ...]] | None:
    groups: list[GroupCodes | None] = []
    keys = []
    for axis, dimension in enumerate(scan.grid.dimensions):
        expressions = [key.expression for key in aggregation.keys if key.dimension == dimension.name]
        if not expressions:
            groups.append(None)
            continue
        values: list[pa.Array] | None = [scan.coordinate(axis)]
        if len(expressions) > 1 or expressions[0].key != "column":
            values = engine.evaluate(expressions, dimension.name, scan.coordinate(axis))
        if values is None:
            return None
        codes, kept = group_codes(values)
        groups.append(codes)
        keys.append(tuple(kept))
    return tuple(groups), tuple(keys)


def groups_table(prepared: PreparedRelation, partials: PartialGroups) -> pa.Table:
    """Return the table of groups: a column per key and measure."""
    work, aggregation = prepared.work, prepared.relation.aggregation
    assert work is not None and aggregation is not None and prepared.known is not None
    result = merge_partials(work, [prepared.known, partials])
    groups, measures = finish_groups(work, result, is_grouped=aggregation.is_grouped)
    positions = np.unravel_index(groups, work.shape) if work.shape else ()
    columns: dict[str, pa.Array] = {}
    grouped = [d.name for d, codes in zip(work.scan.grid.dimensions, work.groups, strict=True) if codes is not None]
    for name, values, position in zip(grouped, prepared.keys, positions, strict=True):
        own = [key for key in aggregation.keys if key.dimension == name]
        for key, each in zip(own, values, strict=True):
            columns[key.name] = each.take(from_numpy(position))
    for measure, values in zip(aggregation.measures, measures, strict=True):
        columns[measure.name] = values
    if not columns:
        columns["icefloe_rows"] = from_numpy(np.ones(len(groups), dtype=np.int64))
    return pa.table(columns)


class _Stream:
    """A relation as a stream of Arrow batches that can be read repeatedly."""

    def __init__(self, schema: pa.Schema, batches: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self.schema = schema
        self.batches = batches

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)


def relation_stream(prepared: PreparedRelation, catalog: Catalog) -> _Stream:
    """Return the rows of a relation."""
    relation, plan = prepared.relation, prepared.scan
    table = relation.table
    if plan is None:
        name = table.view.table
        assert name is not None
        session = session_at(catalog.address, table.snapshot_id)

        def rows() -> Iterator[pa.RecordBatch]:
            for part in plan_parts(name, session):
                yield from metadata_batches(name, open_address(catalog.address), session, part)

        return _Stream(SCHEMAS[name], rows)
    return _cells(relation, plan)


def _cells(relation: Relation, plan: ScanPlan) -> _Stream:
    """Return the cells of an array with the columns of a relation, or with one column if it needs none."""
    plan = plan.in_one_stream()
    columns = _columns(relation)
    schema = plan.scan.grid.schema()

    def batches() -> Iterator[pa.RecordBatch]:
        for part in plan.parts:
            yield from read_columns(plan.scan, part, columns)

    return _Stream(pa.schema([schema.field(name) for name in columns]), batches)


def _columns(relation: Relation) -> tuple[str, ...]:
    return relation.columns or relation.table.dimensions[:1] or tuple(relation.table.names[:1])


def few_rows(prepared: PreparedRelation, most_read: int, most_returned: int) -> pa.Table | None:
    """Return the rows of a relation if few bytes are read for them and they are small, otherwise None."""
    relation, plan = prepared.relation, prepared.scan
    if plan is None or plan.chunks * plan.scan.grid.block_bytes >= most_read:
        return None
    if plan.scan.test is None and plan.cells * len(_columns(relation)) > most_returned:
        return None
    cells = _cells(relation, plan)
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in cells.batches():
        kept.append(batch)
        size += batch.nbytes
        if size > most_returned:
            return None
    return pa.Table.from_batches(kept, schema=cells.schema)


_SAME_TYPES = frozenset(("int8", "int16", "int32", "int64", "float", "double", "bool", "string"))
"""Types that DuckDB returns as it gets them."""


def select_without_engine(prepared: PreparedQuery, limit: int | None = None) -> pa.Table | None:
    """Return the rows of a query that selects columns of one array by conditions that numpy evaluates as SQL does.

    The result is that of DuckDB. None for other queries.
    """
    selection = sql_plan.plain_selection(prepared.plan)
    zone = session_zone(prepared.catalog.zone)
    if selection is None or prepared.relations[0].scan is None or not (zone is dt.UTC or isinstance(zone, ZoneInfo)):
        return None
    [relation] = prepared.relations
    rest = [each.predicate for each in selection.conditions if each.text not in relation.decided]
    schema = relation.relation.table.schema
    if not all(is_exact(schema, each, zone) for each in rest):
        return None
    types = [each.type for values in relation.keys for each in values]
    types += [schema.field(name).type for name in selection.columns.values() if relation.work is None]
    if not all(pa.types.is_timestamp(each) or str(each) in _SAME_TYPES for each in types):
        return None
    if relation.work is not None:
        assert relation.rest is not None
        rows = groups_table(relation, aggregate_blocks(relation.work, share_blocks(relation.rest)))
    else:
        rows = _read_rows(relation, And(tuple(rest)) if rest else None, zone, limit)
    columns = {}
    for shown, name in selection.columns.items():
        values = rows.column(name)
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("us", tz=prepared.catalog.zone))
        columns[shown] = values
    found = pa.table(columns)
    return found if limit is None else found.slice(0, limit)


def _read_rows(prepared: PreparedRelation, predicate: Predicate | None, zone: dt.tzinfo, limit: int | None) -> pa.Table:
    """Read the cells of a relation that satisfy a condition, until there are enough."""
    assert prepared.scan is not None
    cells = _cells(prepared.relation, prepared.scan)
    found: list[pa.RecordBatch] = []
    for batch in cells.batches():
        found.append(exact_rows(batch, predicate, zone))
        if limit is not None and sum(map(len, found)) >= limit:
            break
    return pa.Table.from_batches(found, schema=cells.schema)


@lru_cache(maxsize=1)
def _database(process: int) -> duckdb.DuckDBPyConnection:
    """Return the empty database of this process. Its threads do not survive a fork."""
    database = duckdb.connect()
    for setting in (
        "python_enable_replacements = false",
        "autoinstall_known_extensions = false",
        "enable_external_access = false",
    ):
        database.execute(f"SET {setting}")
    atexit.register(_close, database, process)
    return database


def _close(database: duckdb.DuckDBPyConnection, process: int) -> None:
    if process == os.getpid():
        database.close()


class DuckDBEngine:
    """A DuckDB connection that reads nothing but the relations of queries. It is opened when it is first used."""

    def __init__(self, time_zone: str) -> None:
        self._time_zone = time_zone
        self._opened: duckdb.DuckDBPyConnection | None = None

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        if self._opened is None:
            try:
                connection = _database(os.getpid()).cursor()
            except ModuleNotFoundError as error:
                raise UnsupportedError(f"SQL needs the extra `sql`: pip install 'icefloe[sql]' ({error})") from error
            try:
                connection.execute("SET TimeZone = ?", [self._time_zone])
            except duckdb.Error as error:
                connection.close()
                raise InvalidInputError(f"unknown time zone {self._time_zone!r}") from error
            self._opened = connection
        return self._opened

    def close(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            self._opened.close()

    def evaluate(self, expressions: Sequence[Any], name: str, values: pa.Array) -> list[pa.Array] | None:
        """Evaluate expressions of one column on its values. None if that fails."""
        columns = ", ".join(f"({sql_plan.duckdb_text(each)}) AS c{n}" for n, each in enumerate(expressions))
        self._connection.register("icefloe_coordinate", pa.table({name: values}))
        try:
            found = self._table(f"SELECT {columns} FROM icefloe_coordinate")
        except duckdb.Error:
            return None
        finally:
            self._connection.unregister("icefloe_coordinate")
        return [column.combine_chunks() for column in found.columns] if len(found) == len(values) else None

    def run(self, prepared: PreparedQuery, limit: int | None = None) -> pa.Table:
        """Run a query and return its rows. Queries that do not need DuckDB run without it."""
        selected = select_without_engine(prepared, limit)
        if selected is not None:
            return selected
        text = sql_plan.duckdb_text(prepared.plan.query)
        streams = []
        for each in prepared.relations:
            if each.work is not None:
                assert each.rest is not None
                found = groups_table(each, aggregate_blocks(each.work, share_blocks(each.rest)))
                streams.append((each.relation.name, found))
            else:
                streams.append((each.relation.name, relation_stream(each, prepared.catalog)))
        for name, stream in streams:
            self._connection.register(name, stream)
        try:
            return _usual_types(self._table(f"SELECT * FROM ({text}) LIMIT {limit}" if limit else text))
        except duckdb.Error as error:
            raise InvalidInputError(_explain_error(error)) from error
        finally:
            for name, _ in streams:
                self._connection.unregister(name)

    def _table(self, text: str) -> pa.Table:
        found: pa.Table = self._connection.sql(text).to_arrow_table()
        return found


def _usual_types(table: pa.Table) -> pa.Table:
    """Return sums of integers as 64-bit integers. DuckDB computes them with 128 bits."""
    for number, column in enumerate(table.schema):
        if column.type == pa.decimal128(38, 0):
            try:
                narrow = table.column(number).cast(pa.int64())
            except pa.ArrowInvalid:
                continue
            table = table.set_column(number, column.with_type(pa.int64()), narrow)
    return table


def _explain_error(error: Exception) -> str:
    """Return the first sentence of an error of DuckDB, without the names of relations."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines[:3] if not line.startswith(("LINE ", "^"))]
    return " ".join(kept) or type(error).__name__


class QueryResult:
    """The rows of a query.

    Parameters
    ----------
    table
        The rows.
    prepared
        The plan of the query.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> icefloe.sql(repo, "select message from history").columns
    ['message']
    """

    def __init__(self, table: pa.Table, prepared: PreparedQuery) -> None:
        self._table = table
        self._prepared = prepared

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._table.schema.names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def arrow(self) -> pa.Table:
        """Return the rows as an Arrow table.

        Returns
        -------
        pyarrow.Table
            The rows.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> icefloe.sql(repo, "select count(*) as n from history").arrow().num_rows
        1
        """
        return self._table

    def pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            The rows.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> icefloe.sql(repo, "select count(*) as n from history").pandas().shape
        (1, 1)
        """
        frame: pd.DataFrame = self._table.to_pandas()
        return frame

    def polars(self) -> pl.DataFrame:
        """Return the rows as a Polars DataFrame.

        Returns
        -------
        polars.DataFrame
            The rows.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> icefloe.sql(repo, "select count(*) as n from history").polars().shape
        (1, 1)
        """
        frame = pl.from_arrow(self._table)
        assert isinstance(frame, pl.DataFrame)
        return frame

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries.

        Returns
        -------
        list of dict
            A dictionary per row.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> icefloe.sql(repo, "select count(*) as n from history").to_pylist()
        [{'n': 1}]
        """
        rows: list[dict[str, Any]] = self._table.to_pylist()
        return rows

    def explain(self) -> str:
        """Describe what was read from each table.

        Returns
        -------
        str
            The tables with their columns, conditions and chunks.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> "columns: position" in icefloe.sql(repo, "select max(position) from history").explain()
        True
        """
        return self._prepared.describe()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        shown = self._table.slice(0, _SHOWN_ROWS)
        cells = [[str(name) for name in shown.schema.names]]
        cells += [[printable(format_cell(value)) for value in row.values()] for row in _rows(shown)]
        widths = [max(len(row[n]) for row in cells) for n in range(len(cells[0]))]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        return "\n".join([*lines, _more(len(self), len(shown))])

    def _repr_html_(self) -> str:
        shown = self._table.slice(0, _SHOWN_ROWS)
        head = "".join(f"<th>{escape(name)}</th>" for name in shown.schema.names)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(format_cell(value))}</td>" for value in row.values()) + "</tr>"
            for row in _rows(shown)
        )
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{_more(len(self), len(shown))}</p>"
        )


def _rows(table: pa.Table) -> list[Mapping[str, Any]]:
    names = [f"{number}" for number in range(table.num_columns)]
    rows: list[Mapping[str, Any]] = table.rename_columns(names).to_pylist()
    return rows


def _more(rows: int, shown: int) -> str:
    return f"{rows:,} rows" + (f", the first {shown} are shown" if rows > shown else "")


def format_cell(value: Any) -> str:
    """Return a value as text for people."""
    if value is None:
        return "·"
    return f"{value:.9g}" if isinstance(value, float) else str(value)
