"""The Spark data source `icefloe` and the SQL table function `icefloe_scan`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.functions import udtf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from icefloe.errors import InvalidInputError
from icefloe.spark.streaming import ChangesReader
from icefloe.spark.write import RowsWriter, StreamRowsWriter, parse_sink_options
from icefloe.tables.metadata_tables import SCHEMAS, MetadataPart, metadata_batches, plan_parts
from icefloe.tables.options import (
    READ_OPTIONS,
    STREAM_OPTIONS,
    Revision,
    TableOptions,
    is_from_catalog,
    normalise_options,
    open_address,
    options_document,
    parse_options,
    session_at,
)
from icefloe.tables.reading import layout_schema, scan_batches
from icefloe.tables.scans import Scan, ScanPlan, plan_scan
from icefloe.tables.selection import BlockPart

PINNED = "icefloe.pinned"
_KEPT = "icefloe"
"""The key in a schema's metadata with the options that the schema was created from."""


class IcefloeDataSource(DataSource):
    """`spark.read.format("icefloe")`.

    The schema contains the options and, unless a catalog stores it, the snapshot. Spark requests the schema and plans
    the query in two different processes, and passes the options of a catalog's table to the first one only.
    """

    @classmethod
    def name(cls) -> str:
        return "icefloe"

    def schema(self) -> StructType:
        options = normalise_options(self.options)
        parsed = parse_options(options, STREAM_OPTIONS)
        # A catalog's table may be read from another working directory than it was created in.
        options["url"] = parsed.address.url
        session = parsed.pin()
        if not is_from_catalog(self.options):
            options[PINNED] = session.snapshot_id
        columns = _table_schema(parsed)
        return keep_options(from_arrow_schema(columns, prefer_timestamp_ntz=False), options)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = kept_options(schema) or normalise_options(self.options)
        pinned = options.pop(PINNED, None)
        parsed = parse_options(options, STREAM_OPTIONS)
        return TableReader(parsed if pinned is None else replace(parsed, revision=Revision(snapshot_id=pinned)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = kept_options(schema) or normalise_options(self.options)
        options.pop(PINNED, None)
        return ChangesReader(parse_options(options, STREAM_OPTIONS), options)

    def writer(self, schema: StructType, overwrite: bool) -> RowsWriter:
        return RowsWriter(parse_sink_options(self.options, overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamRowsWriter:  # noqa: N802 - Spark's name
        return StreamRowsWriter(parse_sink_options(self.options, overwrite=overwrite), schema)


def keep_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """A schema with options in the metadata of its first column."""
    if schema.fields:
        schema.fields[0].metadata = {_KEPT: json.dumps(dict(options))}
    return schema


def kept_options(schema: StructType) -> dict[str, str] | None:
    """The options in a schema."""
    for field in schema.fields:
        if _KEPT in (field.metadata or {}):
            kept: dict[str, str] = json.loads(field.metadata[_KEPT])
            return kept
    return None


def _table_schema(options: TableOptions) -> pa.Schema:
    if options.table is not None:
        return SCHEMAS[options.table]
    return layout_schema(plan_scan(options).scan)


class _Share(InputPartition):
    """The part of a table that one task reads."""

    def __init__(self, value: BlockPart | MetadataPart) -> None:
        super().__init__(value)

    def __repr__(self) -> str:
        return "icefloe share"


class TableReader(DataSourceReader):
    """Reads cells, rows of cells, chunks or metadata as Arrow batches.

    The plan is made in the constructor, because Spark sends the reader to tasks before it requests partitions. It must
    not accept filters of Spark (`pushFilters`), because all scans of one DataFrame share one planned reader.
    """

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._shares: list[InputPartition] = []
        self._scan: Scan | None = None
        if options.table is None:
            plan = plan_scan(options)
            self._scan = plan.scan
            self._shares = [_Share(part) for part in plan.parts]
        else:
            session = options.pin()
            self._snapshot_id = session.snapshot_id
            self._shares = [_Share(part) for part in plan_parts(options.table, session)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shares": []}

    def partitions(self) -> list[InputPartition]:
        return self._shares

    def read(self, partition: InputPartition) -> Iterator[Any]:
        part = partition.value
        options = self._options
        if isinstance(part, BlockPart) and self._scan is not None:
            return scan_batches(self._scan, part)
        if isinstance(part, MetadataPart) and options.table is not None:
            session = session_at(options.address, self._snapshot_id)
            return metadata_batches(
                options.table, open_address(options.address), session, part, options.from_snapshot_id
            )
        # Spark needs at least one partition.
        return iter(())


_POSITIONAL = ("path", "where", "variables")


@dataclass
class _Planned(AnalyzeResult):
    """The result of the analysis, for the function itself."""

    plan: ScanPlan | None = None
    options: TableOptions | None = None
    snapshot_id: str = ""


class IcefloeScan:
    """`SELECT ... FROM icefloe_scan('repo', 'lat BETWEEN 40 AND 60 AND time >= ''2020-01-01''', 't2m')`.

    Further options have names: `icefloe_scan('repo', tag => 'v1', group => '/daily')`. This function evaluates the
    condition itself (times without a zone are UTC), so a condition that it cannot evaluate is an error.
    """

    def __init__(self, planned: _Planned) -> None:
        self._planned = planned

    @staticmethod
    def analyze(*args: AnalyzeArgument, **kwargs: AnalyzeArgument) -> AnalyzeResult:
        options = _options(args, kwargs)
        if options.table is not None:
            session = options.pin()
            schema = from_arrow_schema(SCHEMAS[options.table], prefer_timestamp_ntz=False)
            return _Planned(schema, options=options, snapshot_id=session.snapshot_id)
        plan = plan_scan(options)
        return _Planned(from_arrow_schema(layout_schema(plan.scan), prefer_timestamp_ntz=False), plan=plan)

    def eval(self, *args: Any, **kwargs: Any) -> Iterator[tuple[Any, ...]]:
        for batch in self._batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        plan, options = self._planned.plan, self._planned.options
        if plan is not None:
            for part in plan.parts:
                yield from scan_batches(plan.scan, part)
        elif options is not None and options.table is not None:
            session = session_at(options.address, self._planned.snapshot_id)
            repository = open_address(options.address)
            for share in plan_parts(options.table, session):
                yield from metadata_batches(options.table, repository, session, share, options.from_snapshot_id)


def _options(args: tuple[AnalyzeArgument, ...], kwargs: dict[str, AnalyzeArgument]) -> TableOptions:
    if len(args) > len(_POSITIONAL):
        raise InvalidInputError(
            f"icefloe_scan takes only {', '.join(_POSITIONAL)} by position. Pass other arguments by name: "
            f"{', '.join(READ_OPTIONS)}"
        )
    given = dict(zip(_POSITIONAL, args)) | kwargs
    values: dict[str, Any] = {}
    for name, argument in given.items():
        if argument.isTable or not argument.isConstantExpression:
            raise InvalidInputError(f"the argument {name} of icefloe_scan must be a constant")
        if argument.value is not None:
            values[name] = argument.value
    return parse_options(normalise_options(options_document(values)))


def register(spark: SparkSession) -> None:
    """Register the data source `icefloe` and the SQL table function `icefloe_scan` with a session.

    The data source is found without this call if the package is installed on the driver. The table function is not.

    Parameters
    ----------
    spark
        The Spark session.

    Examples
    --------
    >>> from icefloe.spark import connect, register
    >>> spark = connect("local[2]")  # doctest: +SKIP
    >>> register(spark)  # doctest: +SKIP
    >>> spark.sql("SELECT * FROM icefloe_scan('s3://bucket/weather', 'lat > 60')")  # doctest: +SKIP
    """
    spark.dataSource.register(IcefloeDataSource)
    spark.udtf.register("icefloe_scan", udtf(IcefloeScan, useArrow=True))  # type: ignore[arg-type]
