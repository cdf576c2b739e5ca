"""One session written by many Spark tasks: they store chunks and references, the driver links descriptors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyspark.sql import SparkSession

from icefloe.session.parts import WrittenParts
from icefloe.session.session import ForkSession, Session
from icefloe.spark.tasks import SparkJob, run_tasks

T = TypeVar("T")
R = TypeVar("R")

OpenFork = Callable[[], ForkSession]
"""A fresh fork of the session; what was written to an earlier one is forgotten."""


@dataclass(frozen=True, slots=True)
class WriteJob(Generic[T, R]):
    """Work that writes: given a way to open forks and a payload, the fork it wrote to and a small result."""

    work: Callable[[OpenFork, T], tuple[ForkSession, R]]
    description: str
    shown: bool | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Written(Generic[R]):
    """What a task left in storage, and what it says about it."""

    parts: WrittenParts
    result: R


@dataclass(frozen=True, slots=True)
class _WriteTask(Generic[T, R]):
    fork: bytes
    work: Callable[[OpenFork, T], tuple[ForkSession, R]]
    description: str

    def __call__(self, numbered: tuple[int, T]) -> Written[R]:
        number, payload = numbered
        fork, result = self.work(self._open, payload)
        return Written(fork.write_parts(f"task {number} of {self.description}"), result)

    def _open(self) -> ForkSession:
        fork: ForkSession = pickle.loads(self.fork)
        return fork


def write_with_tasks(
    spark: SparkSession, session: Session, job: WriteJob[T, R], payloads: Sequence[T]
) -> list[Written[R]]:
    """Run writing tasks; nothing they wrote is referenced until `link` takes it over."""
    task = _WriteTask(pickle.dumps(session.fork()), job.work, job.description)
    plain = SparkJob(task, job.description, job.shown, job.bytes)
    return run_tasks(spark, plain, list(enumerate(payloads)))


def link(session: Session, written: Sequence[Written[R]]) -> list[R]:
    """Make what tasks wrote part of a session; returns their results."""
    session.link_parts([each.parts for each in written])
    return [each.result for each in written]
