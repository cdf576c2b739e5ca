"""Write rows and streams of rows into arrays. The rows are shuffled, so that one task has all rows of a chunk."""

from __future__ import annotations

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
from pyspark.sql.streaming.readwriter import DataStreamWriter

from icefloe.errors import InvalidInputError, StorageError
from icefloe.repository import Repository
from icefloe.session.rebase import ConflictDetector, ConflictSolver
from icefloe.session.session import ForkSession, Session
from icefloe.spark.connect import spark_version
from icefloe.spark.jobs import writing_repository
from icefloe.spark.tasks import FINAL_ERRORS, TaskFailure, arrow_schema, arrow_table, parallelism, reason_of
from icefloe.tables.metadata_tables import find_batch, stream_metadata
from icefloe.tables.targets import (
    Fragment,
    Target,
    WriteOptions,
    apply_target,
    gather_tables,
    merge_uniques,
    plan_target,
    positions,
    split_rows,
    unique_values,
    unpack_fragment,
    write_dims,
    write_fragments,
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
    schema = arrow_schema(df.schema)
    dims = write_dims(session, options, df.columns)
    incoming = fetch_coordinates(df, dims, schema)
    if not len(incoming[dims[0]]):
        return WriteOutcome(None, 0, 0, 0, time.monotonic() - started)
    target = plan_target(session, options, schema, incoming)
    apply_target(session, target)
    routing = plan_routing(target, incoming, parallelism(spark))
    frame = df.select(*[_quoted(name) for name in df.columns])
    fragments = frame.mapInArrow(_Split(target, routing, options.off_grid == "drop"), _FRAGMENTS)
    routed = _by_task(fragments, routing.tasks).sortWithinPartitions("block")
    written = _run(
        routed.mapInArrow(_Assemble(pickle.dumps(Session.fork(session)), target, options.duplicates), _OUTCOME)
    )
    session.link_parts([parts for parts, _ in written])
    cells = sum(count for _, count in written)
    return WriteOutcome(None, cells, sum(p.chunks for p, _ in written), routing.tasks, time.monotonic() - started)


def _by_task(fragments: DataFrame, tasks: int) -> DataFrame:
    """Send fragments to the partition with the number of their task."""
    if spark_version() >= (4, 1):
        return fragments.repartitionById(tasks, "task")
    # A hash may put two tasks into one partition and leave another empty. All fragments of a block stay together.
    return fragments.repartition(tasks, "task")


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
    for dimension, lengths, count in zip(target.dimensions, target.block, target.blocks, strict=True):
        index = positions(incoming[dimension.name], dimension.values)
        hit = np.zeros(count, dtype=bool)
        hit[lengths.indices(index[index >= 0])] = True
        ranks.append(np.maximum(np.cumsum(hit) - 1, 0))
        touched.append(max(1, int(hit.sum())))
    blocks = int(np.prod(touched, dtype=np.int64))
    cell_bytes = 8 * len(target.variables)
    wanted = max(
        cores * _TASKS_PER_CORE, blocks * int(np.prod(target.largest, dtype=np.int64)) * cell_bytes // _TASK_BYTES
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
        table = arrow_table(frame)
    except PySparkException as error:
        raise StorageError(f"writing rows failed on Spark: {reason_of(error)}") from error
    outcomes = [pickle.loads(data) for data in table.column("outcome").to_pylist()]
    for outcome in outcomes:
        if isinstance(outcome, TaskFailure):
            raise outcome.error
    return outcomes


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
