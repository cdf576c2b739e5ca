"""A stream written by tasks: every micro-batch is one distributed write and one commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from icefloe.repository import Repository
from icefloe.spark.places import writing_repository
from icefloe.spark.writing import write
from icefloe.tables.streams import find_batch, stream_metadata


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Writes micro-batches exactly once, for `foreachBatch`."""

    repo: Repository | str
    query: str
    branch: str = "main"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, batch: DataFrame, number: int) -> None:
        repository = writing_repository(self.repo)
        if find_batch(repository, self.branch, self.query, number) is not None:
            return
        metadata = {**self.options.get("metadata", {}), **stream_metadata(self.query, number)}
        rest = {key: value for key, value in self.options.items() if key not in ("metadata", "message")}
        message = self.options.get("message") or f"Batch {number} of {self.query}"
        write(batch, repository, branch=self.branch, message=message, metadata=metadata, **rest)


def write_stream(
    df: DataFrame, repo: Repository | str | os.PathLike[str], *, query: str, branch: str = "main", **options: Any
) -> DataStreamWriter:
    """A stream of rows into arrays, each micro-batch with one commit that is made exactly once.

    Returns Spark's own writer: set `checkpointLocation` and a trigger, then `start()`.

    Parameters
    ----------
    query
        A name by which the commits of this stream are found again; keep it with the checkpoint.
    options
        As of `write`.

    Examples
    --------
    >>> from icefloe.spark import write_stream
    >>> writer = write_stream(rows, "s3://b/r", query="stations", dims=["time", "station"])  # doctest: +SKIP
    >>> writer.option("checkpointLocation", "s3://b/checkpoint").start()  # doctest: +SKIP
    """
    target = repo if isinstance(repo, Repository) else os.fspath(repo)
    function: Callable[[DataFrame, int], None] = WriteBatch(target, query, branch, options)

    def each(batch: DataFrame, number: int) -> None:
        function(batch, number)

    return df.writeStream.foreachBatch(each)
