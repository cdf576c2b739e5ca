"""`df.write.format("icefloe")`: tasks write the rows of cells that exist, the rest is assembled when Spark commits.

Spark gives a source no way to bring the rows of a chunk to one task, so a chunk that two tasks wrote is refused here;
`icefloe.spark.write` shuffles first.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from icefloe.errors import ConflictError, InvalidInputError, UnsupportedError
from icefloe.repository import Repository
from icefloe.session.parts import WrittenParts
from icefloe.session.session import ForkSession, Session
from icefloe.storage.build import storage_from_url
from icefloe.tables.assembly import gather_tables, write_fragments, write_rows
from icefloe.tables.fragments import Fragment, split_rows
from icefloe.tables.options import (
    READ_OPTIONS,
    WRITE_OPTIONS,
    check_names,
    choose,
    normalise_options,
    parse_flag,
    parse_place,
    split_names,
)
from icefloe.tables.places import Place
from icefloe.tables.streams import find_batch, stream_metadata
from icefloe.tables.targets import DUPLICATES, OFF_GRID, Target, WriteOptions, plan_target, positions, write_dims

STAGED_BYTES = 256 << 20
"""How much the rows may be, together, that no task can place: they are assembled by one process."""
_ROWS = 1 << 19


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Everything a write through Spark's own door says."""

    place: Place
    branch: str
    message: str | None
    metadata: Mapping[str, Any]
    rows: WriteOptions
    create: bool
    query: str

    def repository(self) -> Repository:
        storage = storage_from_url(self.place.url, **dict(self.place.storage_options))
        authorize = dict.fromkeys(self.place.authorize)
        if self.create:
            return Repository.open_or_create(storage, authorize_virtual_chunk_access=authorize)
        return Repository.open(storage, authorize_virtual_chunk_access=authorize)


def parse_sink_options(given: Mapping[str, str], *, overwrite: bool) -> SinkOptions:
    """Check the options of a write; the error names the option and what is allowed."""
    options = normalise_options(given)
    if not options:
        raise UnsupportedError(
            "INSERT INTO and CREATE TABLE AS are not possible: Spark gives a Python data source no options of a "
            "catalog's table when it writes; use df.write.format('icefloe').option('path', ...) or icefloe.spark.write"
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
        parse_place(options), options.get("branch", "main"), options.get("message"), _json(options, "metadata"), rows,
        parse_flag(options, "create", True), options.get("query") or options.get("checkpointlocation", ""),
    )  # fmt: skip


def _lengths(text: str) -> dict[str, int]:
    lengths = {}
    for name in split_names(text):
        dim, equals, length = name.partition("=")
        if not equals or not length.strip().isdigit() or int(length) < 1:
            raise InvalidInputError(f"the option chunks has {name!r}; it takes DIM=LENGTH,DIM=LENGTH")
        lengths[dim.strip()] = int(length)
    return lengths


def _json(options: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        value = json.loads(options.get(name, "{}"))
    except ValueError as error:
        raise InvalidInputError(f"the option {name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInputError(f"the option {name} takes a JSON object")
    return value


@dataclass
class _Message(WriterCommitMessage):
    """What a task leaves: parts it wrote, and rows that it could not place."""

    parts: WrittenParts | None
    staged: bytes
    rows: int


class RowsWriter(DataSourceArrowWriter):
    """A batch of rows; the grid is planned when the writer is made, before it travels to tasks."""

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
            self.fork = pickle.dumps(session.fork())

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
        """Nothing was committed, and what tasks stored is referenced by nobody: collecting garbage removes it."""


class StreamRowsWriter(DataSourceStreamArrowWriter):
    """Micro-batches of rows, each committed exactly once: the commit tells which query and batch it was."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        if not options.query:
            raise InvalidInputError(
                "a stream into a repository needs a name by which its commits are found again: set the option query, "
                "or checkpointLocation on the stream itself"
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
        """Nothing was committed: the batch comes again."""


def commit_rows(
    session: Session,
    options: SinkOptions,
    schema: pa.Schema,
    messages: list[WriterCommitMessage | None],
    base: str = "",
) -> None:
    """Link what tasks wrote, assemble what they could not place, and commit both at once."""
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
        f"{size >> 20:,} MiB of rows make or extend arrays, more than one process should assemble; use "
        "icefloe.spark.write(df, ...), which shares the work among tasks"
    )
