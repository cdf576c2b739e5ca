"""The Spark data source `icefloe`, the SQL table function `icefloe_scan`, and streams into and out of arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.functions import udtf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from icefloe.errors import InvalidInputError
from icefloe.repository import Repository
from icefloe.spark.jobs import writing_repository
from icefloe.spark.write import (
    CommitText,
    RowsWriter,
    StreamRowsWriter,
    parse_sink_options,
    write_and_commit,
    write_options,
)
from icefloe.tables.metadata_tables import (
    SCHEMAS,
    MetadataPart,
    changed_blocks,
    commits_since,
    find_batch,
    metadata_batches,
    plan_parts,
    stream_metadata,
)
from icefloe.tables.reading import layout_schema, scan_batches
from icefloe.tables.scans import Scan, ScanPlan, plan_scan, share_out
from icefloe.tables.selection import BlockPart
from icefloe.tables.table_options import (
    READ_OPTIONS,
    STREAM_OPTIONS,
    Revision,
    TableOptions,
    choose,
    is_from_catalog,
    normalise_options,
    open_address,
    options_document,
    parse_number,
    parse_options,
    parse_zone,
    session_at,
)
from icefloe.tables.targets import WriteOptions

TIME_ZONE = "spark.sql.session.timeZone"


def session_batches(scan: Scan, part: BlockPart) -> Iterator[pa.RecordBatch]:
    """Read a share in a task. Times without a zone in its condition are in the zone of the session.

    Spark does not tell the process that plans a data source the settings of the session. Tasks have them as local
    properties.
    """
    if not scan.needs_zone:
        return scan_batches(scan, part)
    context = TaskContext.get()
    name = None if context is None else context.getLocalProperty(TIME_ZONE)
    if name is None:
        raise InvalidInputError(
            "the condition has times without a time zone, and Spark does not tell tasks the time zone of this session. "
            f"Set {TIME_ZONE}, give the option time_zone, or write the times with a zone, such as 2020-01-01T00:00:00Z"
        )
    return scan_batches(*scan.in_zone(part, parse_zone(name)))


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Writes micro-batches exactly once, for `foreachBatch`."""

    repo: Repository | str
    query: str
    branch: str
    options: WriteOptions
    text: CommitText

    def __call__(self, batch: DataFrame, number: int) -> None:
        repository = writing_repository(self.repo)
        session = repository.writable_session(self.branch)
        if find_batch(repository, session.snapshot_id, self.query, number) is not None:
            return
        metadata = {**(self.text.metadata or {}), **stream_metadata(self.query, number)}
        message = self.text.message or f"Batch {number} of {self.query}"
        write_and_commit(batch, session, self.options, replace(self.text, message=message, metadata=metadata))


def write_stream(
    df: DataFrame, repo: Repository | str | os.PathLike[str], *, query: str, branch: str = "main", **options: Any
) -> DataStreamWriter:
    """Write a stream of rows into arrays. Each micro-batch is committed exactly once.

    Parameters
    ----------
    df
        A streaming DataFrame.
    repo
        A repository, or its path or URL. If it does not exist, it is created.
    query
        A name that identifies the commits of this stream. Keep it as long as the checkpoint.
    branch
        The target branch.
    **options
        Further arguments of `write`.

    Returns
    -------
    DataStreamWriter
        The writer of Spark. Set `checkpointLocation` and a trigger, then call `start()`.

    Examples
    --------
    >>> from icefloe.spark import write_stream
    >>> writer = write_stream(rows, "s3://b/r", query="stations", dims=["time", "station"])  # doctest: +SKIP
    >>> writer.option("checkpointLocation", "s3://b/checkpoint").start()  # doctest: +SKIP
    """
    target = repo if isinstance(repo, Repository) else os.fspath(repo)
    text = CommitText(*(options.pop(name, None) for name in ("message", "metadata", "rebase_with")))
    function = WriteBatch(target, query, branch, write_options(**options), text)

    def each(batch: DataFrame, number: int) -> None:
        function(batch, number)

    return df.writeStream.foreachBatch(each)


_SNAPSHOT = "snapshot"
_NO_LIMIT = 1 << 40


class _ChangedShare(InputPartition):
    """Blocks that changed, and the scan that reads them."""

    def __init__(self, scan: Scan, part: BlockPart) -> None:
        super().__init__(None)
        self.scan = scan
        self.part = part

    def __repr__(self) -> str:
        return f"icefloe changes up to {self.scan.snapshot_id}"


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a branch. An offset is the last snapshot whose changes were read. It is empty at the start."""

    def __init__(self, options: TableOptions, given: Mapping[str, str]) -> None:
        if options.table is not None:
            raise InvalidInputError("metadata tables cannot be streamed. Read them with spark.read")
        if options.revision.tag or options.revision.snapshot_id or options.revision.as_of:
            raise InvalidInputError(
                "a stream follows a branch. To start at another snapshot, use the option starting_snapshot"
            )
        self._options = options
        self._start = given.get("starting_snapshot", "earliest")
        self._commits = parse_number(given, "max_commits_per_batch", _NO_LIMIT)
        self._chunks = parse_number(given, "max_chunks_per_batch", _NO_LIMIT)
        self._emit = choose(given, "emit", ("chunks", "new_cells"))
        self._deletions = choose(given, "deletions", ("error", "ignore"))
        self._until: str | None = None

    @property
    def _branch(self) -> str:
        return self._options.revision.branch or "main"

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        if self._start == "earliest":
            return {_SNAPSHOT: ""}
        repository = open_address(self._options.address)
        if self._start == "latest":
            return {_SNAPSHOT: repository.lookup_branch(self._branch)}
        return {_SNAPSHOT: repository.lookup_snapshot(self._start).id}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limited = min(self._commits, self._chunks) < _NO_LIMIT
        return ReadMaxFiles(min(self._commits, 1 << 30)) if limited else ReadAllAvailable()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802 - Spark's name
        repository = open_address(self._options.address)
        commits = commits_since(repository, self._branch, start[_SNAPSHOT] or None)
        if self._until is not None:
            ids = [info.id for info in commits]
            commits = commits[: ids.index(self._until) + 1] if self._until in ids else []
        if not commits:
            return start
        if isinstance(limit, ReadAllAvailable):
            return {_SNAPSHOT: commits[-1].id}
        if not start[_SNAPSHOT]:
            # The state at the start is one batch. There are no changes yet.
            return {_SNAPSHOT: commits[-1].id}
        taken = commits[: self._commits]
        if self._chunks < _NO_LIMIT:
            taken = self._within_chunks(start[_SNAPSHOT], [info.id for info in taken], taken)
        return {_SNAPSHOT: taken[-1].id}

    def _within_chunks(self, start: str, ids: list[str], commits: list[Any]) -> list[Any]:
        repository = open_address(self._options.address)
        count, before = 0, start
        for number, snapshot_id in enumerate(ids):
            diff = repository.diff(from_snapshot_id=before, to_snapshot_id=snapshot_id)
            count += sum(len(coords) for coords in diff.chunk_coords.values())
            if count > self._chunks:
                return commits[: max(1, number)]
            before = snapshot_id
        return commits

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802 - Spark's name
        return {_SNAPSHOT: open_address(self._options.address).lookup_branch(self._branch)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._until = open_address(self._options.address).lookup_branch(self._branch)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        if start[_SNAPSHOT] == end[_SNAPSHOT]:
            return []
        options = replace(self._options, revision=Revision(snapshot_id=end[_SNAPSHOT]))
        scan = plan_scan(options, zone=options.zone).scan
        before = start[_SNAPSHOT] or None
        change = changed_blocks(open_address(options.address), scan.grid, before, options.pin())
        if change.removed and self._deletions == "error":
            raise InvalidInputError(
                f"cells were removed between {before} and {end[_SNAPSHOT]}: {change.removed}. A stream of rows cannot "
                "show deletions. Read the whole table again, or set the option deletions to ignore"
            )
        if before is not None and self._emit == "new_cells":
            scan = replace(scan, beyond=change.first_new)
        selection = replace(change.selection, masks=scan.masks)
        return [_ChangedShare(scan, part) for part in share_out(scan, selection, options.partition_bytes).parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, _ChangedShare):
            return iter(())
        return session_batches(partition.scan, partition.part)

    def commit(self, end: dict[str, str]) -> None:
        """Do nothing, because offsets are snapshots and no state is kept."""


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
    return layout_schema(plan_scan(options, zone=options.zone).scan)


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
            plan = plan_scan(options, zone=options.zone)
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
            return session_batches(self._scan, part)
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
    condition itself, so a condition that it cannot evaluate is an error. Times without a zone are in the zone of the
    session.
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
        plan = plan_scan(options, zone=options.zone)
        return _Planned(from_arrow_schema(layout_schema(plan.scan), prefer_timestamp_ntz=False), plan=plan)

    def eval(self, *args: Any, **kwargs: Any) -> Iterator[tuple[Any, ...]]:
        for batch in self._batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        plan, options = self._planned.plan, self._planned.options
        if plan is not None:
            for part in plan.parts:
                yield from session_batches(plan.scan, part)
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
    # Tasks see the settings of a session that were set, and not their defaults.
    spark.conf.set(TIME_ZONE, spark.conf.get(TIME_ZONE) or "UTC")
    spark.udtf.register("icefloe_scan", udtf(IcefloeScan, useArrow=True))  # type: ignore[arg-type]
