"""Run Python functions as Spark tasks, with a progress bar, and write one session from many tasks."""

from __future__ import annotations

import inspect
import pickle
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from icefloe.codec_pipeline import enable_variable_grids, has_variable_grids
from icefloe.errors import (
    ConflictError,
    FormatError,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    SessionStateError,
    StorageError,
    VirtualChunkError,
)
from icefloe.session.fork import WrittenParts
from icefloe.session.session import ForkSession, Session
from icefloe.spark.connect import freeze_loaded_modules, is_classic, spark_version
from icefloe.spark.jobs import JobMeter, job_progress

T = TypeVar("T")
R = TypeVar("R")

_SCHEMA = "task long, outcome binary"
FINAL_ERRORS = (
    InvalidInputError,
    FormatError,
    NotFoundError,
    ConflictError,
    ReadOnlyError,
    SessionStateError,
    VirtualChunkError,
)
"""Errors that a retry would meet again. They are returned to the driver and not retried."""

TASKS_PER_CORE = 3
"""Tasks per core. With several, no core is idle for long at the end."""
WAVE_TASKS = 4096
WAVE_BYTES = 32 << 20
"""The driver holds the payloads of a Spark job, so a job has at most this many, and this many bytes.

A task receives its own payload. The function, which every task receives, is sent without payloads.
"""
_LOCAL_BYTES = 1 << 20
"""Spark keeps a smaller table in the query plan, whatever its settings, and divides it by rows."""
FUNCTION_BYTES = 64 << 10
"""A DataFrame whose payloads have fewer bytes in all sends them with its function. The shuffle would take longer."""


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """An error of a task that is not retried, because a retry would not help."""

    error: IcefloeError


@dataclass(frozen=True, slots=True)
class SparkJob(Generic[T, R]):
    """A function to run over payloads, one task each. The function and the payloads are pickled.

    The function can run several times for a payload, because of retries and speculation. Repeated runs must be
    harmless.

    Parameters
    ----------
    run
        The function.
    description
        The text of the progress bar and the Spark job.
    shown
        Whether to show a progress bar. None shows it in terminals and notebooks.
    bytes
        The bytes of all tasks, for the progress bar. 0 is unknown.

    Examples
    --------
    >>> SparkJob(len, "measure texts").run("abc")
    3
    """

    run: Callable[[T], R]
    description: str
    shown: bool | None = None
    """Whether to show a progress bar. None shows it in terminals and notebooks."""
    bytes: int = 0
    """The bytes of all tasks, for the progress bar. 0 is unknown."""


def run_tasks(spark: SparkSession, job: SparkJob[T, R], payloads: Sequence[T]) -> list[R]:
    """Run a job and return its results in the order of the payloads.

    Parameters
    ----------
    spark
        The Spark session.
    job
        The function and its description.
    payloads
        One value per task.

    Returns
    -------
    list
        The result of each task.

    Raises
    ------
    IcefloeError
        A task failed with an error that a retry does not help.

    Examples
    --------
    >>> run_tasks(spark, SparkJob(len, "measure texts"), ["a", "bc"])  # doctest: +SKIP
    [1, 2]
    """
    return list(iterate_tasks(spark, job, payloads))


def iterate_tasks(spark: SparkSession, job: SparkJob[T, R], payloads: Sequence[T]) -> Iterator[R]:
    """Run a job as `run_tasks` does, and return one result after the other.

    Results wait as pickled bytes. The caller decides how much of each stays in memory.
    """
    if not payloads:
        return
    function = cloudpickle.dumps(job.run)
    run = run_partitions if is_classic(spark) else run_rows
    with watched(spark, JobMeter(job.description, len(payloads), job.bytes, job.shown)):
        for wave in _waves(payloads):
            waiting = run(spark, function, wave, job.description)[::-1]
            while waiting:
                outcome = pickle.loads(waiting.pop())
                if isinstance(outcome, TaskFailure):
                    raise outcome.error
                yield outcome


@contextmanager
def watched(spark: SparkSession, meter: JobMeter) -> Iterator[None]:
    """Show the progress of Spark jobs of the block, and cancel them on an interrupt."""
    group = f"icefloe-{secrets.token_hex(6)}"
    with _JobGroup(spark, group, meter.description), job_progress(spark, group, meter):
        yield


def _waves(payloads: Sequence[Any]) -> Iterator[list[bytes]]:
    wave: list[bytes] = []
    size = 0
    for payload in payloads:
        packed = cloudpickle.dumps(payload)
        if wave and (len(wave) >= WAVE_TASKS or size + len(packed) > WAVE_BYTES):
            yield wave
            wave, size = [], 0
        wave.append(packed)
        size += len(packed)
    yield wave


def run_partitions(spark: SparkSession, function: bytes, packed: list[bytes], description: str) -> list[bytes]:
    """Run a pickled function over pickled payloads as an RDD with one payload in each partition.

    Without the planner, the generated code and the shuffle of a DataFrame, the first job of a JVM takes a quarter of
    its processor time, and the others a sixth. Spark Connect has no RDDs.
    """
    with _translated(description):
        payloads = spark.sparkContext.parallelize(packed, len(packed))
        return payloads.mapPartitions(_partition_worker(function)).collect()


def run_rows(spark: SparkSession, function: bytes, packed: list[bytes], description: str) -> list[bytes]:
    """Run a pickled function over pickled payloads as a DataFrame with one payload in each partition."""
    frame = one_row_per_task(spark, packed).mapInArrow(_worker(function), _SCHEMA)
    # A direct action, so that no later stage can run these tasks again.
    table = collect(frame, description)
    outcomes = [b""] * len(packed)
    for task, outcome in zip(table["task"].to_pylist(), table["outcome"].to_pylist(), strict=True):
        outcomes[task] = outcome
    return outcomes


def arrow_table(frame: DataFrame) -> pa.Table:
    """The rows of a DataFrame. Errors are those of Spark."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    # Spark 3.5 only has the parts of which `toArrow` is made.
    parts: Any = frame
    schema = arrow_schema(frame.schema)
    if not is_classic(frame.sparkSession):
        client = parts.sparkSession.client
        return client.to_table(parts._plan.to_proto(client))[0].cast(schema)
    batches = parts._collect_as_arrow()
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


# Versions without the argument know no other zone.
_UTC: Any = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of rows. Times have the zone UTC."""
    return to_arrow_schema(schema, **_UTC)


def arrow_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """An Arrow table as a DataFrame."""
    schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=False)
    if spark_version() >= (4, 0):
        return spark.createDataFrame(table, schema)
    # Spark 3.5 takes only pandas, which has no integers with missing values. Arrow batches travel as binary rows.
    rows = [(_pack_batch(batch),) for batch in table.to_batches()]
    packed = spark.createDataFrame(rows, "batch binary")
    return packed.mapInArrow(_unpack_batches, schema)


def _pack_batch(batch: pa.RecordBatch) -> bytearray:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytearray(sink.getvalue())


def _unpack_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for data in batch.column(0):
            yield from pa.ipc.open_stream(data.as_buffer())


def task_frame(
    spark: SparkSession,
    work: Callable[[T], Iterator[pa.RecordBatch]],
    payloads: Sequence[T],
    schema: Any,
    *,
    most_tasks: int | None = None,
    name: str = "",
) -> DataFrame:
    """The rows that a function returns for each of some payloads, in their order.

    A task receives the payloads that it works on: one, or a few neighbours if there are more than `most_tasks`. Only
    if all payloads together are small, each task receives all of them. Spark shows `name` in its plans.
    """
    function = cloudpickle.dumps(work)
    packed = [cloudpickle.dumps(payload) for payload in payloads]
    count = max(1, len(packed) if most_tasks is None else min(len(packed), most_tasks))
    if sum(map(len, packed)) <= FUNCTION_BYTES:
        return spark.range(0, max(1, len(packed)), 1, count).mapInArrow(_reader(function, packed, name), schema)
    rows = one_row_per_task(spark, packed, count)
    rows = rows if count == len(packed) else rows.sortWithinPartitions("task")
    return rows.mapInArrow(_reader(function, None, name), schema)


def _reader(
    function: bytes, packed: list[bytes] | None, name: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow`. Its rows have the number of a payload, or the number and the payload itself."""

    varies = has_variable_grids()

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if varies:
            enable_variable_grids()
        work = pickle.loads(function)
        for batch in batches:
            if packed is None:
                found = batch.column(1).to_pylist()
            else:
                found = [packed[number] for number in batch.column(0).to_pylist() if number < len(packed)]
            for payload in found:
                yield from work(pickle.loads(payload))
        freeze_loaded_modules()

    read.__name__ = name or read.__name__
    return read


def one_row_per_task(spark: SparkSession, packed: list[bytes], most_tasks: int | None = None) -> DataFrame:
    """A table with a row for each payload, every row in a partition of its own unless there are more than `most_tasks`.

    Spark divides a local table into as many partitions as there are cores, so a table with fewer rows needs no shuffle.

    Otherwise, Spark looks at all rows to find the ranges, because it samples a hundred for each partition. Numbers that
    differ are in different ranges then. The shuffle moves every payload once, to the task that works on it. The
    optimizer would remove a `coalesce(1)` in front of a plain `repartition`, which would then put two rows into some
    partitions.
    """
    rows = pa.table({"task": pa.array(range(len(packed)), pa.int64()), "payload": pa.array(packed, pa.binary())})
    frame, count = arrow_frame(spark, rows), min(len(packed), most_tasks or len(packed))
    is_local = spark_version() >= (4, 0) and len(packed) <= parallelism(spark) and rows.nbytes < _LOCAL_BYTES
    return frame if is_local and count == len(packed) else frame.repartitionByRange(count, "task")


def collect(frame: DataFrame, description: str) -> pa.Table:
    """The rows of a DataFrame. Errors of Spark are translated."""
    with _translated(description):
        return arrow_table(frame)


@contextmanager
def _translated(description: str) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if _is_interrupt(error):
            raise KeyboardInterrupt from error
        raise StorageError(f"{description} failed on Spark: {reason_of(error)}") from error


def _worker(function: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow`. Its rows have the number of a payload, and the payload."""
    run_partition = _partition_worker(function)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            tasks, payloads = (column.to_pylist() for column in batch.columns)
            for task, outcome in zip(tasks, run_partition(payloads), strict=True):
                yield pa.RecordBatch.from_pydict({"task": [task], "outcome": [outcome]})

    return work


def _partition_worker(function: bytes) -> Callable[[Iterable[bytes]], Iterator[bytes]]:
    """A function that runs tasks in a worker. It takes and returns pickled values."""
    # Workers have settings of their own, and need this one of the driver.
    varies = has_variable_grids()

    def work(payloads: Iterable[bytes]) -> Iterator[bytes]:
        if varies:
            enable_variable_grids()
        warnings.filterwarnings("ignore", message="Numcodecs codecs are not in the Zarr version 3")
        run = pickle.loads(function)
        for payload in payloads:
            try:
                outcome = run(pickle.loads(payload))
            except FINAL_ERRORS as error:
                outcome = TaskFailure(error)
            yield cloudpickle.dumps(outcome)
        freeze_loaded_modules()

    return work


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that run at the same time, as reported by Spark."""
    if is_classic(spark):
        return max(1, spark.sparkContext.defaultParallelism)
    configured = spark.conf.get("spark.default.parallelism", None)
    return int(configured) if configured and configured.isdigit() else 8


class _JobGroup:
    """Put the jobs of the block into a group, and cancel it on an interrupt."""

    def __init__(self, spark: SparkSession, group: str, description: str) -> None:
        self._spark, self._group, self._description = spark, group, description

    def __enter__(self) -> None:
        if is_classic(self._spark):
            self._spark.sparkContext.setJobGroup(self._group, self._description, interruptOnCancel=True)
        else:
            self._spark.addTag(self._group)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        if is_classic(self._spark):
            if interrupted:
                self._spark.sparkContext.cancelJobGroup(self._group)
            self._spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        else:
            if interrupted:
                self._spark.interruptTag(self._group)
            self._spark.removeTag(self._group)


def _is_interrupt(error: BaseException) -> bool:
    """Whether an error was raised while pyspark cleaned up after an interrupt."""
    context = error.__context__
    while context is not None and not isinstance(context, KeyboardInterrupt):
        context = context.__context__
    return context is not None


def reason_of(error: Exception) -> str:
    """The last meaningful line of a Python traceback inside of a Spark error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and not line.startswith(("at ", "File"))]
    return (errors or lines or ["unknown"])[-1]


OpenFork = Callable[[], ForkSession]
"""Open a new fork of the session. Writes to an earlier fork are discarded."""


@dataclass(frozen=True, slots=True)
class WriteJob(Generic[T, R]):
    """A writing function.

    It gets a function that opens forks, and a payload. It returns its fork and a small result.
    """

    work: Callable[[OpenFork, T], tuple[ForkSession, R]]
    description: str
    shown: bool | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class TaskOutput(Generic[R]):
    """What a task wrote to storage, and its result."""

    parts: WrittenParts
    result: R


@dataclass(frozen=True, slots=True)
class _WriteTask(Generic[T, R]):
    fork: bytes
    work: Callable[[OpenFork, T], tuple[ForkSession, R]]
    description: str

    def __call__(self, numbered: tuple[int, T]) -> TaskOutput[R]:
        number, payload = numbered
        fork, result = self.work(self._open, payload)
        return TaskOutput(fork.write_parts(f"task {number} of {self.description}"), result)

    def _open(self) -> ForkSession:
        fork: ForkSession = pickle.loads(self.fork)
        return fork


def write_with_tasks(
    spark: SparkSession,
    session: Session,
    job: WriteJob[T, R],
    payloads: Sequence[T],
    starting: Future[Any] | None = None,
) -> list[TaskOutput[R]]:
    """Run writing tasks. Their output is not referenced until `link` is called.

    As long as the workers of Spark are `starting`, this process runs tasks, one after the other.
    """
    task = _WriteTask(pickle.dumps(Session.fork(session)), job.work, job.description)
    plain = SparkJob(task, job.description, job.shown, job.bytes)
    numbered = list(enumerate(payloads))
    here = [] if starting is None else _run_until(starting, task, numbered)
    return [*here, *run_tasks(spark, plain, numbered[len(here) :])]


def _run_until(ready: Future[Any], run: Callable[[T], R], payloads: Sequence[T]) -> list[R]:
    """Results of the first payloads. Stops when a future is done, or at the first error."""
    results: list[R] = []
    for payload in payloads:
        if ready.done():
            break
        try:
            results.append(run(payload))
        except Exception:  # noqa: BLE001 - Spark runs this task again, and reports its error
            break
    return results


def link(session: Session, written: Sequence[TaskOutput[R]]) -> list[R]:
    """Link the output of tasks into a session. Returns their results."""
    session.link_parts([each.parts for each in written])
    return [each.result for each in written]
