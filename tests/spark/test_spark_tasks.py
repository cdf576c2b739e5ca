"""Work on Spark: attempts, errors, double writes, and what of it is seen in plans."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import zarr
from pyspark import TaskContext
from tests.spark.starting import StartedAfter

from icefloe import Repository, s3_storage
from icefloe.errors import InvalidInputError, StorageError
from icefloe.spark import SparkJob, run_tasks, tasks
from icefloe.spark.tasks import OpenFork, WriteJob, link, parallelism, write_with_tasks

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


def _repository(place: Path) -> Repository:
    repository = Repository.create(str(place))
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="x", shape=(40,), chunks=(10,), dtype="i4")
    session.commit("empty")
    return repository


def test_results_come_in_the_order_of_their_payloads_through_several_waves(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "WAVE_TASKS", 3)
    found = run_tasks(spark, SparkJob(lambda number: number * 2, "doubling"), list(range(10)))
    assert found == [number * 2 for number in range(10)] and parallelism(spark) == 2


@pytest.mark.parametrize("run", [tasks.run_partitions, tasks.run_rows])
def test_tasks_are_the_same_as_partitions_and_as_rows(spark: Any, run: Any) -> None:
    """Sessions of Spark Connect have rows only."""

    def describe(number: int) -> tuple[int, int]:
        if number == 3:
            raise InvalidInputError("number 3 is wrong")
        context = TaskContext.get()
        assert context is not None
        return number * 2, context.partitionId()

    packed = [pickle.dumps(number) for number in range(5)]
    found = [pickle.loads(each) for each in run(spark, pickle_of(describe), packed, "describing")]
    assert isinstance(found.pop(3).error, InvalidInputError)
    assert [value for value, _ in found] == [0, 2, 4, 8]
    assert len({partition for _, partition in found}) == 4


def test_an_error_that_no_retry_helps_comes_back_as_itself(spark: Any, tmp_path: Path) -> None:
    def refuse(number: int) -> int:
        (tmp_path / f"{number}-{time.monotonic_ns()}").touch()
        raise InvalidInputError(f"number {number} is wrong", number=number)

    with pytest.raises(InvalidInputError, match="number 0 is wrong") as caught:
        run_tasks(spark, SparkJob(refuse, "refusing"), [0, 1])
    assert caught.value.number == 0 and len(list(tmp_path.glob("0-*"))) == 1


def test_a_task_that_crashes_is_tried_again_and_leaves_nothing_referenced(spark: Any, tmp_path: Path) -> None:
    repository = _repository(tmp_path / "repo")
    session = repository.writable_session("main")

    def write(open_fork: OpenFork, index: int) -> tuple[Any, int]:
        fork = open_fork()
        zarr.open_array(fork.store, path="x", mode="r+")[index * 10 : index * 10 + 10] = index + 1
        mark = tmp_path / f"crashed-{index}"
        if not mark.exists():
            mark.touch()
            fork.write_parts("an attempt that dies")
            os._exit(7)
        return fork, index

    written = write_with_tasks(spark, session, WriteJob(write, "writing"), [0, 1, 2])
    assert link(session, written) == [0, 1, 2]
    session.commit("written")
    values = zarr.open_array(repository.readonly_session("main").store, path="x", mode="r")[:]
    np.testing.assert_array_equal(values, np.repeat([1, 2, 3, 0], 10))


def test_one_chunk_from_two_tasks_is_refused_naming_both(spark: Any, tmp_path: Path) -> None:
    repository = _repository(tmp_path / "repo")
    session = repository.writable_session("main")

    def write(open_fork: OpenFork, index: int) -> tuple[Any, None]:
        fork = open_fork()
        zarr.open_array(fork.store, path="x", mode="r+")[15:25] = index
        return fork, None

    written = write_with_tasks(spark, session, WriteJob(write, "clashing"), [1, 2])
    with pytest.raises(InvalidInputError, match="task 0 of clashing.*task 1 of clashing"):
        link(session, written)


@pytest.mark.parametrize("here", [0, 2, 4])
def test_the_driver_writes_until_the_workers_have_started(spark: Any, tmp_path: Path, here: int) -> None:
    repository = _repository(tmp_path / "repo")
    session, driver = repository.writable_session("main"), os.getpid()

    def write(open_fork: OpenFork, number: int) -> tuple[Any, bool]:
        fork = open_fork()
        zarr.open_array(fork.store, path="x", mode="r+")[number * 10 : number * 10 + 10] = number + 1
        return fork, os.getpid() == driver

    written = write_with_tasks(spark, session, WriteJob(write, "writing"), [0, 1, 2, 3], StartedAfter(here))
    assert link(session, written) == [number < here for number in range(4)]
    session.commit("written")
    values = zarr.open_array(repository.readonly_session("main").store, path="x", mode="r")[:]
    np.testing.assert_array_equal(values, np.repeat([1, 2, 3, 4], 10))


def test_spark_reports_the_error_of_a_task_that_failed_in_the_driver(spark: Any, tmp_path: Path) -> None:
    repository = _repository(tmp_path / "repo")
    driver = os.getpid()

    def write(open_fork: OpenFork, number: int) -> Any:
        if number == 1 and os.getpid() == driver:
            raise OSError("the driver has no access")
        if number == 2:
            raise InvalidInputError("number 2 is wrong")
        return open_fork(), os.getpid() == driver

    session = repository.writable_session("main")
    with pytest.raises(InvalidInputError, match="number 2"):
        write_with_tasks(spark, session, WriteJob(write, "writing"), [0, 1, 2], Future())
    written = write_with_tasks(spark, session, WriteJob(write, "writing"), [0, 1], Future())
    assert link(session, written) == [True, False]


def test_descriptors_do_not_grow_with_the_chunks(spark: Any, tmp_path: Path) -> None:
    repository = Repository.create(str(tmp_path / "repo"))
    session = repository.writable_session("main")
    for count in (10, 5000):
        zarr.create_array(session.store, name=f"x{count}", shape=(count,), chunks=(1,), dtype="i4")

    def write(open_fork: OpenFork, count: int) -> tuple[Any, None]:
        fork = open_fork()
        zarr.open_array(fork.store, path=f"x{count}", mode="r+")[:] = 3
        return fork, None

    small, large = write_with_tasks(spark, session, WriteJob(write, "writing"), [10, 5000])
    assert large.parts.chunks == 5000
    assert len(pickle.dumps(large)) < len(pickle.dumps(small)) + 200


def test_secrets_are_in_no_plan_and_no_description(spark: Any, tmp_path: Path) -> None:
    storage = s3_storage(
        bucket="b", prefix="p", region="eu-west-1", access_key_id="AKIAVISIBLE", secret_access_key="very-secret-word"
    )
    job = SparkJob(lambda number: (number, storage.url), "talking about a storage")
    payloads = [pickle_of((number, storage, "very-secret-word")) for number in range(2)]
    frame = tasks.one_row_per_task(spark, payloads).mapInArrow(tasks._worker(pickle_of(job.run)), tasks._SCHEMA)
    shown = frame._jdf.queryExecution().toString()
    assert "very-secret-word" not in shown and "AKIAVISIBLE" not in shown
    assert "very-secret-word" not in repr(storage) and "very-secret-word" not in repr(job)


def pickle_of(function: Any) -> bytes:
    import cloudpickle

    return cloudpickle.dumps(function)


def test_a_storage_that_fails_for_good_ends_as_a_storage_error(spark: Any) -> None:
    def fail(number: int) -> int:
        raise StorageError("the disk is on fire")

    with pytest.raises(StorageError, match="burning failed on Spark.*the disk is on fire"):
        run_tasks(spark, SparkJob(fail, "burning"), [1])


def test_an_interrupt_cancels_the_job_and_leaves_the_session_clean(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"

    def sleep(_: int) -> int:
        started.touch()
        time.sleep(60)
        (tmp_path / "finished").touch()
        return 1

    def interrupt_later() -> None:
        while not started.exists():
            time.sleep(0.05)
        time.sleep(0.2)
        import signal

        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_later, daemon=True).start()
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_tasks(spark, SparkJob(sleep, "sleeping"), [1, 2])
    assert time.monotonic() - before < 50
    assert run_tasks(spark, SparkJob(lambda n: n, "still works"), [5]) == [5]
    assert not (tmp_path / "finished").exists()


def test_a_task_receives_its_own_payload_and_not_those_of_others(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark sends to every task does not grow with the payloads, and no task gets two of them."""
    sent: list[int] = []
    worker = tasks._partition_worker

    def measured(function: bytes) -> Any:
        made = worker(function)
        sent.append(len(cloudpickle.dumps(made)))
        return made

    monkeypatch.setattr(tasks, "_partition_worker", measured)

    def describe(payload: bytes) -> tuple[int, bytes]:
        context = TaskContext.get()
        assert context is not None
        return context.partitionId(), payload[:4]

    for size in (10, 200_000):
        payloads = [number.to_bytes(4, "big") + bytes(size) for number in range(24)]
        found = run_tasks(spark, SparkJob(describe, "describing"), payloads)
        assert [head for _, head in found] == [payload[:4] for payload in payloads]
        assert sorted(partition for partition, _ in found) == list(range(24))
    assert max(sent) - min(sent) < 100 and max(sent) < 20_000


@pytest.mark.parametrize("size", [10, 20_000])
@pytest.mark.parametrize("most_tasks", [None, 5])
def test_a_task_of_a_frame_receives_its_own_payloads_unless_all_are_small(
    spark: Any, monkeypatch: pytest.MonkeyPatch, size: int, most_tasks: int | None
) -> None:
    """The rows of a frame are in the order of its payloads, also if a task works on several of them."""
    sent: list[int] = []
    reader = tasks._reader

    def measured(*given: Any) -> Any:
        made = reader(*given)
        sent.append(len(cloudpickle.dumps(made)))
        return made

    monkeypatch.setattr(tasks, "_reader", measured)

    def describe(payload: bytes) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        number = int.from_bytes(payload[:4], "big")
        yield pa.RecordBatch.from_pydict({"task": [context.partitionId()], "number": [number]})

    payloads = [number.to_bytes(4, "big") + bytes(size) for number in range(24)]
    frame = tasks.task_frame(spark, describe, payloads, "task long, number long", most_tasks=most_tasks)
    found = tasks.arrow_table(frame).to_pydict()
    assert found["number"] == list(range(24))
    assert sorted(set(found["task"])) == list(range(most_tasks or 24))
    assert sent[0] < 24_000
    assert tasks.arrow_table(tasks.task_frame(spark, describe, [], "task long, number long")).num_rows == 0
