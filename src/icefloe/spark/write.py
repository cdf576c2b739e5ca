"""Write rows of a DataFrame into arrays.

A data source of Spark cannot send the rows of a chunk to one task, so a chunk that two tasks wrote is refused.
`icefloe.spark.write` shuffles the rows first.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from icefloe.errors import ConflictError, InvalidInputError, StorageError, UnsupportedError
from icefloe.repository import Repository
from icefloe.session.fork import WrittenParts
from icefloe.session.rebase import ConflictDetector, ConflictSolver
from icefloe.session.session import ForkSession, Session
from icefloe.spark.jobs import writing_repository
from icefloe.spark.tasks import FINAL_ERRORS, TaskFailure, parallelism, reason_of
from icefloe.storage.build import storage_from_url
from icefloe.tables.fragments import (
    Fragment,
    gather_tables,
    merge_uniques,
    split_rows,
    unique_values,
    unpack_fragment,
    write_fragments,
    write_rows,
)
from icefloe.tables.metadata_tables import find_batch, stream_metadata
from icefloe.tables.table_options import (
    READ_OPTIONS,
    WRITE_OPTIONS,
    RepositoryAddress,
    check_names,
    choose,
    normalise_options,
    parse_address,
    parse_flag,
    split_names,
)
from icefloe.tables.targets import (
    DUPLICATES,
    OFF_GRID,
    Target,
    WriteOptions,
    apply_target,
    plan_target,
    positions,
    write_dims,
)

ROWS_PER_FRAGMENTS = 1 << 19
"""The number of rows that are sorted into blocks at a time."""
_TASK_BYTES = 64 << 20
_TASKS_PER_CORE = 2
_OUTCOME = "outcome binary"
_FRAGMENTS = "task int, block long, data binary"


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """The result of a write.

    Attributes
    ----------
    snapshot_id
        The new snapshot, or None if there was nothing to write.
    cells
        The number of cells written.
    chunks
        The number of chunks written.
    tasks
        The number of tasks.
    seconds
        The duration of the job.

    Examples
    --------
    >>> WriteOutcome(None, cells=0, chunks=0, tasks=0, seconds=0.1).cells
    0
    """

    snapshot_id: str | None
    cells: int
    chunks: int
    tasks: int
    seconds: float


def write(
    df: DataFrame,
    repo: Repository | str | os.PathLike[str],
    *,
    group: str = "/",
    dims: Sequence[str] | None = None,
    mode: str = "append",
    append_dim: str | None = None,
    chunks: Mapping[str, int] | None = None,
    coordinates: Mapping[str, Any] | None = None,
    duplicates: str = "error",
    off_grid: str = "error",
    any_order: bool = False,
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    rebase_with: ConflictSolver | None = None,
) -> WriteOutcome:
    """Write the rows of a DataFrame to cells of arrays, with one commit.

    Every column is a dimension or a variable. The DataFrame is read twice, for the coordinates and for the values.
    Cache it if it is expensive to compute.

    Parameters
    ----------
    df
        The rows.
    repo
        A repository, or its path or URL. If it does not exist, it is created.
    group
        The group of the arrays.
    dims
        The columns that are dimensions, in order. Not needed if the arrays exist.
    mode
        `append`: new coordinates along `append_dim` extend the arrays, other rows set existing cells. `upsert`: rows
        only set existing cells. `overwrite`: the arrays and their coordinates are replaced. `error`: the arrays must
        not exist.
    append_dim
        The dimension that grows. The default is the first one.
    chunks
        Chunk lengths of new arrays by dimension.
    coordinates
        Coordinates of new arrays by dimension. The default is the sorted values of the rows.
    duplicates
        How several rows of one cell are combined: `error`, `any`, `min`, `max`, `sum` or `mean`.
    off_grid
        What happens with rows outside the grid: `error` or `drop`.
    any_order
        Allow new coordinates that are smaller than existing ones. They are appended at the end.
    branch
        The target branch.
    message, metadata
        The message and metadata of the commit.
    rebase_with
        The solver for conflicts with concurrent commits.

    Returns
    -------
    WriteOutcome
        The new snapshot and the counts of the job.

    Raises
    ------
    InvalidInputError
        A column, an option or the rows do not fit the arrays.
    ConflictError, RebaseFailedError
        A concurrent commit changed the same arrays.

    Examples
    --------
    >>> from icefloe.spark import write
    >>> write(df, "s3://bucket/weather", dims=["time", "lat", "lon"], chunks={"time": 24})  # doctest: +SKIP
    """
    options = write_options(
        group=group,
        dims=dims,
        mode=mode,
        append_dim=append_dim,
        chunks=chunks,
        coordinates=coordinates,
        duplicates=duplicates,
        off_grid=off_grid,
        any_order=any_order,
    )
    session = writing_repository(repo).writable_session(branch)
    return write_and_commit(df, session, options, CommitText(message, metadata, rebase_with))


def write_options(
    *,
    group: str = "/",
    dims: Sequence[str] | None = None,
    chunks: Mapping[str, int] | None = None,
    coordinates: Mapping[str, Any] | None = None,
    **more: Any,
) -> WriteOptions:
    """Parse the options of a write."""
    allowed = [each.name for each in fields(WriteOptions)]
    unknown = sorted(set(more) - set(allowed))
    if unknown:
        raise InvalidInputError(f"unknown option {unknown[0]!r} of a write. Known: {', '.join(allowed)}")
    return WriteOptions(
        group="/" + group.strip("/"),
        dims=tuple(dims) if dims is not None else None,
        chunks=dict(chunks or {}),
        coordinates=dict(coordinates or {}),
        **more,
    )


@dataclass(frozen=True, slots=True)
class CommitText:
    """The message, metadata and conflict solver of a commit."""

    message: str | None = None
    metadata: Mapping[str, Any] | None = None
    rebase_with: ConflictSolver | None = None


def write_and_commit(df: DataFrame, session: Session, options: WriteOptions, text: CommitText) -> WriteOutcome:
    """Write rows into a session and commit it, unless there was nothing to write."""
    started = time.monotonic()
    outcome = write_to_session(df, session, options)
    if not session.has_uncommitted_changes:
        return WriteOutcome(None, 0, 0, outcome.tasks, time.monotonic() - started)
    message = text.message or f"Write {outcome.cells:,} cells"
    snapshot_id = session.commit(message, text.metadata, rebase_with=text.rebase_with or ConflictDetector())
    return WriteOutcome(str(snapshot_id), outcome.cells, outcome.chunks, outcome.tasks, time.monotonic() - started)


def write_to_session(df: DataFrame, session: Session, options: WriteOptions) -> WriteOutcome:
    """Write rows into a session that is committed by the caller."""
    started = time.monotonic()
    spark = df.sparkSession
    schema = to_arrow_schema(df.schema, timezone="UTC")
    dims = write_dims(session, options, df.columns)
    incoming = fetch_coordinates(df, dims, schema)
    if not len(incoming[dims[0]]):
        return WriteOutcome(None, 0, 0, 0, time.monotonic() - started)
    target = plan_target(session, options, schema, incoming)
    apply_target(session, target)
    routing = plan_routing(target, incoming, parallelism(spark))
    frame = df.select(*[_quoted(name) for name in df.columns])
    fragments = frame.mapInArrow(_Split(target, routing, options.off_grid == "drop"), _FRAGMENTS)
    routed = fragments.repartitionById(routing.tasks, "task").sortWithinPartitions("block")
    written = _run(
        routed.mapInArrow(_Assemble(pickle.dumps(Session.fork(session)), target, options.duplicates), _OUTCOME)
    )
    session.link_parts([parts for parts, _ in written])
    cells = sum(count for _, count in written)
    return WriteOutcome(None, cells, sum(p.chunks for p, _ in written), routing.tasks, time.monotonic() - started)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def fetch_coordinates(df: DataFrame, dims: Sequence[str], schema: pa.Schema) -> dict[str, pa.Array]:
    """The distinct values of dimension columns, computed in one pass."""
    frame = df.select(*[_quoted(name) for name in dims])
    found = _run(frame.mapInArrow(_find_uniques, _OUTCOME))
    empty = {name: pa.array([], type=schema.field(name).type) for name in dims}
    return merge_uniques([empty, *found])


def _find_uniques(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    uniques: dict[str, pa.Array] | None = None
    for table in gather_tables(batches, ROWS_PER_FRAGMENTS):
        found = {name: unique_values(table.column(name)) for name in table.column_names}
        uniques = found if uniques is None else merge_uniques([uniques, found])
    if uniques is not None:
        yield pa.RecordBatch.from_pydict({"outcome": [pickle.dumps(uniques)]})


@dataclass(frozen=True, slots=True)
class Routing:
    """Assigns blocks to tasks: equal runs of the changed blocks, ranked per dimension."""

    ranks: tuple[npt.NDArray[np.int64], ...]
    """Per dimension: the rank of every block among those with rows."""
    touched: tuple[int, ...]
    tasks: int

    def task_of(self, block: int, blocks: tuple[int, ...]) -> int:
        rank = 0
        for axis, coordinate in enumerate(np.unravel_index(block, blocks)):
            rank = rank * self.touched[axis] + int(self.ranks[axis][coordinate])
        return rank * self.tasks // max(1, int(np.prod(self.touched, dtype=np.int64)))


def plan_routing(target: Target, incoming: Mapping[str, pa.Array], cores: int) -> Routing:
    """Distribute the blocks that can have rows over tasks."""
    ranks, touched = [], []
    for dimension, length, count in zip(target.dimensions, target.block, target.blocks, strict=True):
        index = positions(incoming[dimension.name], dimension.values)
        hit = np.zeros(count, dtype=bool)
        hit[index[index >= 0] // length] = True
        ranks.append(np.maximum(np.cumsum(hit) - 1, 0))
        touched.append(max(1, int(hit.sum())))
    blocks = int(np.prod(touched, dtype=np.int64))
    cell_bytes = 8 * len(target.variables)
    wanted = max(
        cores * _TASKS_PER_CORE, blocks * int(np.prod(target.block, dtype=np.int64)) * cell_bytes // _TASK_BYTES
    )
    return Routing(tuple(ranks), tuple(touched), max(1, min(blocks, wanted)))


@dataclass(frozen=True, slots=True)
class _Split:
    """Sorts rows into fragments of blocks."""

    target: Target
    routing: Routing
    drop_off_grid: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in gather_tables(batches, ROWS_PER_FRAGMENTS):
            try:
                fragments = list(split_rows(self.target, table, drop_off_grid=self.drop_off_grid))
            except FINAL_ERRORS as error:
                # Send the error as a fragment without a block, so that the driver raises it.
                yield _fragment_batch([0], [-1], [pickle.dumps(error)])
                return
            tasks = [self.routing.task_of(fragment.block, self.target.blocks) for fragment in fragments]
            yield _fragment_batch(tasks, [f.block for f in fragments], [f.pack() for f in fragments])


def _fragment_batch(tasks: list[int], blocks: list[int], data: list[bytes]) -> pa.RecordBatch:
    arrays = [pa.array(tasks, type=pa.int32()), pa.array(blocks, type=pa.int64()), pa.array(data, type=pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, names=["task", "block", "data"])


@dataclass(frozen=True, slots=True)
class _Assemble:
    """Writes the blocks of one task. Fragments are sorted by block."""

    fork: bytes
    target: Target
    duplicates: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is None:
            return
        try:
            fork: ForkSession = pickle.loads(self.fork)
            cells = write_fragments(fork, self.target, self._fragments(first, batches), self.duplicates)
            outcome: Any = (fork.write_parts("a task of rows"), cells)
        except FINAL_ERRORS as error:
            outcome = TaskFailure(error)
            for _ in batches:
                pass
        yield pa.RecordBatch.from_pydict({"outcome": [pickle.dumps(outcome)]})

    def _fragments(self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[Fragment]:
        for batch in chain([first], batches):
            for block, data in zip(batch.column(1).to_pylist(), batch.column(2), strict=True):
                if block < 0:
                    raise pickle.loads(data.as_py())
                yield unpack_fragment(block, data.as_py())


def _run(frame: DataFrame) -> list[Any]:
    """The pickled results of a stage. They are collected directly, so that no later stage can run the tasks again."""
    try:
        table = frame.toArrow()
    except PySparkException as error:
        raise StorageError(f"writing rows failed on Spark: {reason_of(error)}") from error
    outcomes = [pickle.loads(data) for data in table.column("outcome").to_pylist()]
    for outcome in outcomes:
        if isinstance(outcome, TaskFailure):
            raise outcome.error
    return outcomes


STAGED_BYTES = 256 << 20
"""The largest size of rows that create or extend arrays. One process assembles them."""
_ROWS = 1 << 19


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
        self.schema = to_arrow_schema(schema, timezone="UTC")
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
        self.schema = to_arrow_schema(schema, timezone="UTC")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
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
