"""A stream written by tasks: every micro-batch is one distributed write and one commit."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from icefloe.repository import Repository
from icefloe.spark.places import writing_repository
from icefloe.spark.writing import CommitText, write_and_commit, write_options
from icefloe.tables.streams import find_batch, stream_metadata
from icefloe.tables.targets import WriteOptions


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
    text = CommitText(*(options.pop(name, None) for name in ("message", "metadata", "rebase_with")))
    function = WriteBatch(target, query, branch, write_options(**options), text)

    def each(batch: DataFrame, number: int) -> None:
        function(batch, number)

    return df.writeStream.foreachBatch(each)
