"""Cells of arrays for other engines: an Arrow stream, pandas, a Polars lazy frame, a DuckDB relation."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.errors import InvalidInputError, UnsupportedError, suggest
from icefloe.lazy_exports import lazy_module
from icefloe.repository import Repository
from icefloe.repository.url import RepositoryUrl
from icefloe.tables.columns import from_numpy
from icefloe.tables.evaluate import exact_rows
from icefloe.tables.grids import Grid, session_zone
from icefloe.tables.predicates import And, Positions, Predicate, columns_of
from icefloe.tables.reading import read_columns
from icefloe.tables.scans import ScanPlan, coordinate_at, grid_at, parse_exact, plan_scan
from icefloe.tables.table_options import Revision, TableOptions, address_of

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import polars.io.plugins as polars_plugins
else:
    pl = lazy_module("polars")
    polars_plugins = lazy_module("polars.io.plugins")


def scan(
    repo: Repository | str | os.PathLike[str],
    *,
    group: str = "/",
    variables: Sequence[str] | str | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: dt.datetime | None = None,
    time_zone: str = "UTC",
) -> TableScan:
    """Return arrays of one grid as a table, with a column per dimension and variable and a row per cell.

    Nothing is read until the rows are asked for. Only chunks that can match the condition are read.

    Parameters
    ----------
    repo
        A repository, or its path or URL, also with a ref (`RepositoryUrl`).
    group
        The group of the arrays.
    variables
        Names of arrays with the same dimensions. Not needed if the group has one grid.
    columns
        The columns of the result, by default all. Columns of dimensions alone are read without chunks.
    where
        A SQL condition: comparisons of columns with constants, AND, OR, NOT, IN, BETWEEN, IS NULL.
    branch, tag, snapshot_id, as_of
        The snapshot. It is resolved now. Later commits do not change the result.
    time_zone
        The time zone of times without a zone in the condition.

    Returns
    -------
    TableScan
        The rows, as a stream of Arrow batches, a pandas or Polars frame, or a DuckDB relation.

    Raises
    ------
    InvalidInputError
        A column does not exist, the condition cannot be evaluated, or the arrays have different dimensions.

    Examples
    --------
    >>> import icefloe, zarr
    >>> from icefloe.tables import scan
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with repo.transaction("main", message="data") as store:
    ...     array = zarr.create_array(store, name="t2m", shape=(4, 3), dtype="f4", dimension_names=["y", "x"])
    ...     array[:] = 7
    >>> scan(repo, where="y > 2", columns=["x", "t2m"]).to_arrow().to_pylist()
    [{'x': 0, 't2m': 7.0}, {'x': 1, 't2m': 7.0}, {'x': 2, 't2m': 7.0}]
    """
    given: dict[str, Any] = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id, "as_of": as_of}
    given = {name: value for name, value in given.items() if value is not None}
    path: str | None = group
    if not isinstance(repo, Repository):
        url = RepositoryUrl.parse(os.fspath(repo))
        given, path = url.choose(given), url.choose_path(None if group == "/" else group)
        repo = Repository.open(url.location)
    repository: Repository = repo
    zone = session_zone(time_zone)
    if zone is None:
        raise InvalidInputError(f"unknown time zone {time_zone!r}")
    pinned = Revision(snapshot_id=repository.readonly_session(**given).snapshot_id)
    names = variables.split(",") if isinstance(variables, str) else variables
    chosen = None if names is None else tuple(name.strip() for name in names)
    options = TableOptions(address_of(repository), pinned, "/" + (path or "/").strip("/"), chosen)
    grid = _grid(options)
    _check_names(grid, columns or ())
    advice = "Compare columns with constants here, or use icefloe.sql"
    predicate = None if where is None else parse_exact(grid, where, "the condition", advice)
    return TableScan(options, tuple(columns or grid.schema().names), predicate, zone)


def _grid(options: TableOptions) -> Grid:
    assert options.revision.snapshot_id is not None
    return grid_at(options.address, options.revision.snapshot_id, options.group, options.variables, options.raw)


def _check_names(grid: Grid, columns: Sequence[str]) -> None:
    known = grid.schema().names
    for name in columns:
        if name not in known:
            raise InvalidInputError(f"there is no column {name!r}{suggest(name, known)}. There are: {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class TableScan:
    """A selection of cells at a snapshot. It can be read repeatedly. It also has the Arrow PyCapsule interface."""

    options: TableOptions
    columns: tuple[str, ...]
    predicate: Predicate | None
    zone: dt.tzinfo

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        schema = _grid(self.options).schema()
        return pa.schema([schema.field(name) for name in self.columns])

    def plan(self, columns: Sequence[str] | None = None, further: Predicate | None = None) -> ScanPlan:
        """Return what is read. `further` only excludes cells that cannot match."""
        parts = tuple(part for part in (self.predicate, further) if part is not None)
        loose = And(parts) if parts else None
        return plan_scan(self.options, zone=self.zone, loose=loose, columns=columns or self.columns)

    def to_batches(
        self, columns: Sequence[str] | None = None, further: Predicate | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows as Arrow batches. The next chunks are fetched meanwhile."""
        names = list(columns or self.columns)
        tested = set() if self.predicate is None else columns_of(self.predicate)
        read = [*names, *(n for n in _grid(self.options).schema().names if n.lower() in tested and n not in names)]
        plan = self.plan(read, further).in_one_stream()
        for part in plan.parts:
            for batch in read_columns(plan.scan, part, read):
                kept = exact_rows(batch, self.predicate, self.zone)
                if len(kept):
                    yield kept.select(names)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream of Arrow batches."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """Read all rows as an Arrow table."""
        return self.to_reader().read_all()

    def to_pandas(self) -> pd.DataFrame:
        """Read all rows as a pandas DataFrame."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection, name: str) -> duckdb.DuckDBPyRelation:
        """Register the rows as a view of a DuckDB connection, and return it as a relation.

        DuckDB reads all columns and rows of this scan. Select with `scan` what you need.
        """
        connection.register(name, self)
        return connection.table(name)

    def to_polars(self) -> pl.LazyFrame:
        """Return the rows as a Polars lazy frame.

        The frame reads only the columns, rows and chunks that its query needs. Polars evaluates conditions on single
        dimensions on the coordinate, also functions such as `pl.col("time").dt.hour()`.
        """
        try:
            schema = pl.from_arrow(self.schema.empty_table())
        except ModuleNotFoundError as error:
            raise UnsupportedError(f"Polars is not installed. Install it with: pip install polars ({error})") from error
        assert isinstance(schema, pl.DataFrame)
        return polars_plugins.register_io_source(self._polars_frames, schema=schema.schema)

    def _polars_frames(
        self, with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        wanted = with_columns or list(self.columns)
        read = list(wanted)
        further = None
        if predicate is not None:
            read += [name for name in predicate.meta.root_names() if name not in read]
            further = self._positions(predicate)
        left = n_rows
        for batch in self.to_batches(read, further):
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame)
            if predicate is not None:
                frame = frame.filter(predicate)
            if left is not None:
                frame = frame.head(left)
                left -= len(frame)
            yield frame.select(wanted)
            if left == 0:
                return

    def _positions(self, predicate: pl.Expr) -> Predicate | None:
        """Return the conditions on single dimensions as masks, evaluated by Polars."""
        grid = _grid(self.options)
        dimensions = {dimension.name: dimension for dimension in grid.dimensions}
        found: list[Predicate] = []
        for part in _conjuncts(predicate):
            names = set(part.meta.root_names())
            if len(names) != 1 or not names <= set(dimensions):
                continue
            [name] = names
            assert self.options.revision.snapshot_id is not None
            values = coordinate_at(self.options.address, self.options.revision.snapshot_id, dimensions[name])
            numbers = from_numpy(np.arange(len(values), dtype=np.int64))
            frame = pl.from_arrow(pa.table({name: values, "icefloe position": numbers}))
            assert isinstance(frame, pl.DataFrame)
            mask = np.zeros(len(values), dtype=bool)
            mask[frame.filter(part)["icefloe position"].to_numpy()] = True
            found.append(Positions(name, mask))
        return And(tuple(found)) if found else None


def _conjuncts(predicate: pl.Expr) -> list[pl.Expr]:
    """Split an expression of Polars at AND. An expression that cannot be split is one part."""
    try:
        document = json.loads(predicate.meta.serialize(format="json"))
    except (pl.exceptions.PolarsError, ValueError):
        return [predicate]
    parts, pending = [], [document]
    while pending:
        node = pending.pop()
        binary = node.get("BinaryExpr") if isinstance(node, dict) else None
        if isinstance(binary, dict) and binary.get("op") in ("And", "LogicalAnd"):
            pending += [binary["left"], binary["right"]]
        else:
            parts.append(node)
    if len(parts) == 1:
        return [predicate]
    return [pl.Expr.deserialize(io.StringIO(json.dumps(part)), format="json") for part in parts]
