"""Streams into arrays, and changes of arrays as a stream."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.streaming.readwriter import DataStreamWriter

from icefloe.errors import InvalidInputError
from icefloe.repository import Repository
from icefloe.spark.arguments import writing_repository
from icefloe.spark.write import CommitText, write_and_commit, write_options
from icefloe.tables.metadata_tables import changed_blocks, commits_since, find_batch, stream_metadata
from icefloe.tables.options import Revision, TableOptions, choose, open_address, parse_number
from icefloe.tables.reading import scan_batches
from icefloe.tables.scans import Scan, plan_scan, share_out
from icefloe.tables.selection import BlockPart
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
        limited = min(self._commits, self._chunks) < _NO_LIMIT
        return ReadMaxFiles(min(self._commits, 1 << 30)) if limited else ReadAllAvailable()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802 - Spark's name
        repository = open_address(self._options.address)
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
        scan = plan_scan(options).scan
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
        return scan_batches(partition.scan, partition.part)

    def commit(self, end: dict[str, str]) -> None:
        """Do nothing, because offsets are snapshots and no state is kept."""
