"""The Spark data source `icefloe` for tables and streams, and the SQL table function `icefloe_scan`.

They need Spark 4.0. A data source cannot send the rows of a chunk to one task, so a chunk that two tasks wrote is
refused. `icefloe.spark.write` shuffles the rows first.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.functions import udtf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from icefloe.errors import ConflictError, InvalidInputError, UnsupportedError
from icefloe.repository import Repository
from icefloe.session.fork import WrittenParts
from icefloe.session.session import ForkSession, Session
from icefloe.spark.connect import TIME_ZONE, require_spark, spark_version
from icefloe.spark.pushdown import enable_pushdown, filters_predicate, plans_pushdown
from icefloe.spark.tasks import arrow_schema
from icefloe.storage.build import storage_from_url
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
    WRITE_OPTIONS,
    RepositoryAddress,
    Revision,
    TableOptions,
    check_names,
    choose,
    is_from_catalog,
    normalise_options,
    open_address,
    options_document,
    parse_address,
    parse_flag,
    parse_number,
    parse_options,
    parse_zone,
    session_at,
    split_names,
)
from icefloe.tables.targets import (
    DUPLICATES,
    OFF_GRID,
    Fragment,
    Target,
    WriteOptions,
    gather_tables,
    plan_target,
    positions,
    split_rows,
    write_dims,
    write_fragments,
    write_rows,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
if TYPE_CHECKING or spark_version() >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    # It gets rows, which are converted.
    from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter
if TYPE_CHECKING or spark_version() >= (4, 2):
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
else:
    # Every batch reads all that is there. Nothing asks for limits.
    ReadAllAvailable = ReadLimit = ReadMaxFiles = SupportsTriggerAvailableNow = object


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
        if self._is_limited:
            require_spark(
                "the option max_commits_per_batch or max_chunks_per_batch of a stream",
                (4, 2),
                "Leave the option out: a batch then has all commits since the last one",
            )

    @property
    def _is_limited(self) -> bool:
        return min(self._commits, self._chunks) < _NO_LIMIT

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
        return ReadMaxFiles(min(self._commits, 1 << 30)) if self._is_limited else ReadAllAvailable()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, str] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, str]:
        repository = open_address(self._options.address)
        if start is None:
            # Spark before 4.2 passes nothing.
            return {_SNAPSHOT: repository.lookup_branch(self._branch)}
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


STAGED_BYTES = 256 << 20
"""The largest size of rows that create or extend arrays. One process assembles them."""
_ROWS = 1 << 19
_ROWS_PER_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of a write through the data source."""

    address: RepositoryAddress
    branch: str
    message: str | None
    metadata: Mapping[str, Any]
    rows: WriteOptions
    create: bool
    query: str

    def repository(self) -> Repository:
        storage = storage_from_url(self.address.url, **dict(self.address.storage_options))
        authorize = dict.fromkeys(self.address.authorize)
        if self.create:
            return Repository.open_or_create(storage, authorize_virtual_chunk_access=authorize)
        return Repository.open(storage, authorize_virtual_chunk_access=authorize)


def parse_sink_options(given: Mapping[str, str], *, overwrite: bool) -> SinkOptions:
    """Check the options of a write. The error names the option and what is allowed."""
    options = normalise_options(given)
    if not options:
        raise UnsupportedError(
            "INSERT INTO and CREATE TABLE AS are not supported, because Spark does not pass the options of a catalog's "
            "table to a Python data source. Use df.write.format('icefloe').option('path', ...) or icefloe.spark.write"
        )
    reading = {key: READ_OPTIONS[key] for key in ("path", "url", "branch", "group", "authorize")}
    check_names(options, {**reading, **WRITE_OPTIONS})
    rows = WriteOptions(
        group="/" + options.get("group", "/").strip("/"),
        dims=split_names(options["dims"]) if "dims" in options else None,
        mode="overwrite" if overwrite else "append",
        append_dim=options.get("append_dim"),
        chunks=_lengths(options.get("chunks", "")),
        coordinates=_json(options, "coordinates"),
        duplicates=choose(options, "duplicates", DUPLICATES),
        off_grid=choose(options, "off_grid", OFF_GRID),
        any_order=parse_flag(options, "any_order", False),
    )
    return SinkOptions(
        parse_address(options),
        options.get("branch", "main"),
        options.get("message"),
        _json(options, "metadata"),
        rows,
        parse_flag(options, "create", True),
        options.get("query") or options.get("checkpointlocation", ""),
    )


def _lengths(text: str) -> dict[str, int]:
    lengths = {}
    for name in split_names(text):
        dim, equals, length = name.partition("=")
        if not equals or not length.strip().isdigit() or int(length) < 1:
            raise InvalidInputError(f"the option chunks contains {name!r}, expected DIM=LENGTH,DIM=LENGTH")
        lengths[dim.strip()] = int(length)
    return lengths


def _json(options: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        value = json.loads(options.get(name, "{}"))
    except ValueError as error:
        raise InvalidInputError(f"the option {name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInputError(f"the option {name} must be a JSON object")
    return value


@dataclass
class _Message(WriterCommitMessage):
    """The result of a task: parts it wrote, and rows outside the existing grid."""

    parts: WrittenParts | None
    staged: bytes
    rows: int


class RowsWriter(DataSourceArrowWriter):
    """Writes a batch of rows. The grid is planned before the writer is sent to tasks."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self.options = options
        self.schema = arrow_schema(schema)
        self.fork: bytes | None = None
        self.target: Target | None = None
        self.base = ""
        session = options.repository().writable_session(options.branch)
        write_dims(session, options.rows, self.schema.names)
        if options.rows.mode == "append":
            self._plan(session)

    def _plan(self, session: Session) -> None:
        """Let tasks write cells of arrays that exist."""
        nothing = {field.name: pa.array([], type=field.type) for field in self.schema}
        target = plan_target(session, self.options.rows, self.schema, nothing)
        if all(variable.made is None for variable in target.variables) and all(d.path for d in target.dimensions):
            self.target = target
            self.base = session.snapshot_id
            self.fork = pickle.dumps(Session.fork(session))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        fragments: list[Fragment] = []
        staged: list[pa.Table] = []
        rows = 0
        for table in gather_tables(iterator, _ROWS):
            table = pa.table(table.columns, schema=self.schema)
            rows += len(table)
            here, rest = self._place(table)
            fragments += here
            if len(rest):
                staged.append(rest)
        parts = None
        if fragments and self.target is not None and self.fork is not None:
            fork: ForkSession = pickle.loads(self.fork)
            fragments.sort(key=lambda fragment: fragment.block)
            write_fragments(fork, self.target, fragments, self.options.rows.duplicates)
            parts = fork.write_parts("a task of df.write")
        return _Message(parts, _pack(staged), rows)

    def _place(self, table: pa.Table) -> tuple[list[Fragment], pa.Table]:
        """Fragments of the rows on the grid, and the rows that are not."""
        if self.target is None:
            return [], table
        on = np.ones(len(table), dtype=bool)
        for dimension in self.target.dimensions:
            on &= positions(table.column(dimension.name).combine_chunks(), dimension.values) >= 0
        return list(split_rows(self.target, table.filter(pa.array(on)))), table.filter(pa.array(~on))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        session = self.options.repository().writable_session(self.options.branch)
        commit_rows(session, self.options, self.schema, messages, self.base)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: nothing was committed, and garbage collection removes the objects of the tasks."""


class StreamRowsWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches of rows, each exactly once. The commit metadata has the query and the batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        if not options.query:
            raise InvalidInputError(
                "a stream into a repository needs a name, to find its commits after a restart. Set the option query, "
                "or checkpointLocation on the stream"
            )
        self.options = options
        self.schema = arrow_schema(schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        if spark_version() < (4, 1):
            iterator = _row_batches(iterator, self.schema)
        tables = [pa.table(table.columns, schema=self.schema) for table in gather_tables(iterator, _ROWS)]
        return _Message(None, _pack(tables), sum(len(table) for table in tables))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        repository = self.options.repository()
        session = repository.writable_session(self.options.branch)
        if find_batch(repository, session.snapshot_id, self.options.query, batchId) is not None:
            return
        metadata = {**self.options.metadata, **stream_metadata(self.options.query, batchId)}
        message = self.options.message or f"Batch {batchId} of a stream"
        commit_rows(session, replace(self.options, message=message, metadata=metadata), self.schema, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing, because nothing was committed and Spark repeats the batch."""


def _row_batches(rows: Iterator[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of Python values as Arrow batches."""
    while taken := list(islice(rows, _ROWS_PER_BATCH)):
        columns = [pa.array(map(_in_utc, column), type=field.type) for column, field in zip(zip(*taken), schema)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _in_utc(value: Any) -> Any:
    """Spark gives times in the zone of the process, and without naming it."""
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


def commit_rows(
    session: Session,
    options: SinkOptions,
    schema: pa.Schema,
    messages: list[WriterCommitMessage | None],
    base: str = "",
) -> None:
    """Link the parts of tasks, assemble the remaining rows, and commit both at once."""
    found = [message for message in messages if isinstance(message, _Message)]
    parts = [message.parts for message in found if message.parts is not None]
    if parts:
        if session.snapshot_id != base:
            raise ConflictError(expected_parent=base, actual_parent=session.snapshot_id)
        session.link_parts(parts)
    staged = _unpack([message.staged for message in found], schema)
    if len(staged) or options.rows.mode == "overwrite":
        write_rows(session, staged, options.rows)
    if session.has_uncommitted_changes:
        rows = sum(message.rows for message in found)
        session.commit(options.message or f"Write {rows:,} rows", options.metadata)


def _pack(tables: list[pa.Table]) -> bytes:
    if not tables:
        return b""
    sink = io.BytesIO()
    table = pa.concat_tables(tables)
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    if len(data) > STAGED_BYTES:
        raise _too_much(len(data))
    return data


def _unpack(staged: list[bytes], schema: pa.Schema) -> pa.Table:
    if sum(map(len, staged)) > STAGED_BYTES:
        raise _too_much(sum(map(len, staged)))
    tables = [pa.ipc.open_stream(data).read_all() for data in staged if data]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _too_much(size: int) -> InvalidInputError:
    return InvalidInputError(
        f"{size >> 20:,} MiB of rows are too many for one process. Use icefloe.spark.write(df, ...), which distributes "
        "the work"
    )


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
        return TableReader(self._read_options(schema))

    def _read_options(self, schema: StructType) -> TableOptions:
        options = kept_options(schema) or normalise_options(self.options)
        pinned = options.pop(PINNED, None)
        parsed = parse_options(options, STREAM_OPTIONS)
        return parsed if pinned is None else replace(parsed, revision=Revision(snapshot_id=pinned))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = kept_options(schema) or normalise_options(self.options)
        options.pop(PINNED, None)
        return ChangesReader(parse_options(options, STREAM_OPTIONS), options)

    def writer(self, schema: StructType, overwrite: bool) -> RowsWriter:
        return RowsWriter(parse_sink_options(self.options, overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamRowsWriter:  # noqa: N802 - Spark's name
        return StreamRowsWriter(parse_sink_options(self.options, overwrite=overwrite), schema)


class PushingDataSource(IcefloeDataSource):
    """The data source in sessions that push filters and limits right."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return PushingReader(self._read_options(schema)) if plans_pushdown() else super().reader(schema)


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

    The plan is made in the constructor, because Spark sends the reader to tasks before it requests partitions. Filters
    of Spark are accepted by `PushingReader` only: see `icefloe.spark.pushdown`.
    """

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._shares: list[InputPartition] = []
        self._scan: Scan | None = None
        if options.table is None:
            self._plan(plan_scan(options, zone=options.zone))
        else:
            session = options.pin()
            self._snapshot_id = session.snapshot_id
            self._shares = [_Share(part) for part in plan_parts(options.table, session)]

    def _plan(self, plan: ScanPlan) -> None:
        self._scan = plan.scan
        self._shares = [_Share(part) for part in plan.parts]

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


class PushingReader(TableReader):
    """Reads only chunks that can match the filters of a query, and no more rows than its limit.

    Spark evaluates the filters and the limit again. Filters of other layouts than cells concern other columns.
    """

    def __init__(self, options: TableOptions) -> None:
        super().__init__(options)
        self._most_rows: int | None = None

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        if self._scan is not None and self._scan.layout == "cells":
            loose = filters_predicate(filters, self._scan.grid.schema())
            self._plan(plan_scan(self._options, zone=self._options.zone, loose=loose))
        return filters

    def pushLimit(self, limit: int) -> bool:  # noqa: N802 - Spark's name
        self._most_rows = limit
        return True

    def read(self, partition: InputPartition) -> Iterator[Any]:
        batches = super().read(partition)
        return batches if self._most_rows is None else _first_rows(batches, self._most_rows)


def _first_rows(batches: Iterator[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    """Yield the first rows of batches. Later batches are not read."""
    while count > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, count)
        count -= len(batch)


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


def register_source(spark: SparkSession) -> None:
    """Register the data source and the table function with a session."""
    source = PushingDataSource if enable_pushdown(spark).filters else IcefloeDataSource
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        # Spark 4.0 refuses the name of a source that it found by itself. That one is ours, in `pyspark_icefloe`.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
    # Tasks see the settings of a session that were set, and not their defaults.
    spark.conf.set(TIME_ZONE, spark.conf.get(TIME_ZONE) or "UTC")
    spark.udtf.register("icefloe_scan", udtf(IcefloeScan, useArrow=True))  # type: ignore[arg-type]
