"""How Python workers of Spark wait for tasks, and how they end."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest

from icefloe.spark import SparkJob, run_tasks
from icefloe.spark.workers import QuietWorker


def _loop(_: int) -> tuple[str, bool]:
    loop = sys.modules["__main__"]
    return loop.__spec__.name, isinstance(loop.worker, QuietWorker)  # type: ignore[attr-defined, union-attr]


@pytest.mark.spark
def test_a_worker_that_ran_a_task_will_end_quietly(spark: Any) -> None:
    run_tasks(spark, SparkJob(_loop, "settling"), [1, 2])
    assert set(run_tasks(spark, SparkJob(_loop, "asking"), [1])) == {("pyspark.daemon", True)}


def _run(connection: socket.socket, authenticated: bool) -> int:
    assert authenticated
    return int(connection.recv(10))


def test_a_task_is_handed_on_untouched_and_a_closed_connection_ends_the_loop() -> None:
    ours, theirs = socket.socketpair()
    worker = QuietWorker(_run)
    theirs.sendall(b"42")
    assert worker(ours, True) == 42
    theirs.close()
    assert worker(ours, True) == 1
    ours.close()
