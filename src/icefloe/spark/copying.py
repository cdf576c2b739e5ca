"""Snapshots copied to another repository, whole or in part; arrays given other chunks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from pyspark.sql import SparkSession

from icefloe.blocking import run_blocking
from icefloe.errors import AlreadyExistsError, InvalidInputError
from icefloe.ingest.session_sink import SessionSink
from icefloe.model.chunk_table import Coords
from icefloe.session.conflicts import ConflictDetector
from icefloe.session.session import ForkSession, Session
from icefloe.session.workspace import Workspace
from icefloe.spark.blocks import TASK_BYTES
from icefloe.spark.copy_plan import ArrayCopy, Box, CopyPlan, CopySelection, CopyTask, plan_copy
from icefloe.spark.distributed import OpenFork, WriteJob, link, write_with_tasks
from icefloe.spark.places import Bounds, JobOutcome, Source, Target, existing_repository, open_places
from icefloe.storage.contract import Buffer

_AT_ONCE = 32
"""Chunks of a task that are on their way together."""


@dataclass(frozen=True, slots=True)
class _CopyWork:
    source: Session

    def __call__(self, open_fork: OpenFork, task: CopyTask) -> tuple[ForkSession, None]:
        fork = open_fork()
        array = task.array
        if array.as_stored:
            run_blocking(self._copy_chunks(fork.workspace, task))
        else:
            target = zarr.open_array(fork.store, path=array.target, mode="r+", zarr_format=3)
            target[array.cells(task.box) or ...] = read_cells(self.source, array, task.box)
        return fork, None

    async def _copy_chunks(self, target: Workspace, task: CopyTask) -> None:
        node = target.tree.array("/" + task.array.target)
        for batch in await list_chunks(self.source, task.array, task.box):
            found = await fetch_chunks(self.source, task.array, batch)
            for coords, data in zip(batch, found, strict=True):
                await target.write_chunk(node, coords, data)


def read_cells(source: Session, array: ArrayCopy, box: Box) -> Any:
    """The values that go into a box of the target."""
    return zarr.open_array(source.store, path=array.source.strip("/"), mode="r")[array.source_cells(box) or ...]


async def list_chunks(source: Session, array: ArrayCopy, box: Box) -> list[list[Coords]]:
    """Target coordinates of the chunks of a box that exist, in batches."""
    node = source.workspace.tree.array(array.source)
    shift = array.chunk_shift
    wanted = tuple((first + s, end + s) for (first, end), s in zip(box, shift, strict=True))
    table = await source.workspace.chunk_table(node, wanted)
    coords = table.coords.astype(np.int64) - np.array(shift, dtype=np.int64).reshape(1, len(shift))
    rows: list[Coords] = [tuple(row) for row in coords.tolist()]
    return [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]


async def fetch_chunks(source: Session, array: ArrayCopy, batch: Sequence[Coords]) -> list[Buffer]:
    """The stored bytes of some chunks."""
    node = source.workspace.tree.array(array.source)
    shift = array.chunk_shift
    places = [tuple(c + s for c, s in zip(coords, shift, strict=True)) for coords in batch]
    found = await asyncio.gather(*(source.workspace.fetch_chunk(node, place) for place in places))
    return [data for data in found if data is not None]


def copy(
    spark: SparkSession,
    source: Source,
    target: Target,
    *,
    group: str = "",
    target_group: str | None = None,
    variables: Sequence[str] | None = None,
    region: Bounds | None = None,
    chunks: Mapping[str, int] | None = None,
    overwrite: bool = False,
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    task_bytes: int = TASK_BYTES,
    progress: bool | None = None,
) -> JobOutcome:
    """Copy a snapshot, or a group, variables or a region of it, to a repository with one commit.

    Parameters
    ----------
    source
        A repository (the tip of `main`), its path or URL, or a read-only session on any snapshot.
    target, target_group, branch
        Where to; a repository that is not there is created. The group of the source by default.
    variables
        Only these arrays (paths below the group), with the coordinates of their dimensions.
    region
        Only the cells [first, end) by dimension.
    chunks
        Other chunk lengths by dimension, -1 for all of it; chunks that stay as they are travel without decoding.
    overwrite
        Replace arrays that are there.
    """
    session, begin_writing = open_places(source, target, branch)
    return _copy(
        spark, session, begin_writing, group=group, target_group=target_group, variables=variables, region=region,
        chunks=chunks, overwrite=overwrite, message=message, metadata=metadata, task_bytes=task_bytes,
        progress=progress,
    )  # fmt: skip


def _copy(
    spark: SparkSession,
    session: Session,
    begin_writing: Callable[[], Session],
    *,
    group: str = "",
    target_group: str | None = None,
    variables: Sequence[str] | None = None,
    region: Bounds | None = None,
    chunks: Mapping[str, int] | None = None,
    overwrite: bool = False,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    task_bytes: int = TASK_BYTES,
    progress: bool | None = None,
) -> JobOutcome:
    started = time.monotonic()
    selection = CopySelection(group, tuple(variables) if variables is not None else None, region, chunks)
    plan = plan_copy(session, selection, group if target_group is None else target_group, task_bytes)
    writer = begin_writing()
    _create(writer, plan, overwrite=overwrite)
    job = WriteJob(_CopyWork(session), f"copying {len(plan.arrays):,} arrays", progress, plan.bytes)
    written = write_with_tasks(spark, writer, job, plan.tasks)
    link(writer, written)
    facts = {"icefloe.copy": {"source": str(session.snapshot_id), "arrays": len(plan.arrays)}, **(metadata or {})}
    text = message or f"Copy {len(plan.arrays):,} arrays of snapshot {session.snapshot_id}"
    snapshot = writer.commit(text, facts, rebase_with=ConflictDetector())
    references = sum(each.parts.chunks for each in written)
    return JobOutcome(str(snapshot), len(plan.tasks), references, time.monotonic() - started)


def rechunk(
    spark: SparkSession,
    source: Source,
    chunks: Mapping[str, int],
    target: Target | None = None,
    *,
    group: str = "",
    target_group: str | None = None,
    variables: Sequence[str] | None = None,
    branch: str = "main",
    message: str | None = None,
    **options: Any,
) -> JobOutcome:
    """Give arrays other chunks, in place (one commit replaces them) or in another group or repository.

    Parameters
    ----------
    chunks
        Chunk length by dimension, -1 for all of it.
    target
        Another repository; without it, the repository of the source.
    options
        As of `copy`.

    Examples
    --------
    >>> rechunk(spark, repo, {"time": -1, "latitude": 16, "longitude": 16})  # doctest: +SKIP
    """
    in_place = target is None
    if target is None:
        if isinstance(source, Session):
            raise InvalidInputError("a session does not say where to write: pass the repository, or a target")
        # The branch that is rewritten is the one that is read, at one snapshot.
        repository = existing_repository(source)
        writer = repository.writable_session(branch)
        session = repository.readonly_session(snapshot_id=writer.snapshot_id)
        begin_writing: Callable[[], Session] = lambda: writer  # noqa: E731
    else:
        session, begin_writing = open_places(source, target, branch)
    same = in_place and (target_group is None or target_group.strip("/") == group.strip("/"))
    return _copy(
        spark, session, begin_writing, group=group, target_group=target_group, variables=variables, chunks=chunks,
        overwrite=same or bool(options.pop("overwrite", False)),
        message=message or f"Rechunk to {', '.join(f'{dim}={n}' for dim, n in chunks.items())}", **options,
    )  # fmt: skip


def _create(session: Session, plan: CopyPlan, *, overwrite: bool) -> None:
    work = session.workspace
    for array in plan.arrays:
        if work.tree.find("/" + array.target) is None:
            continue
        if not overwrite:
            raise AlreadyExistsError(
                f"the array /{array.target} exists; choose another target_group, or pass overwrite=True"
            )
        # Another grid needs another node: chunks of the old one would be taken for its own.
        work.delete_node("/" + array.target)
    fresh = {path: document for path, document in plan.groups.items() if work.tree.find("/" + path) is None}
    documents = {**_parents(plan, fresh, work), **fresh, **{array.target: array.document for array in plan.arrays}}
    SessionSink(session).write_documents(dict(sorted(documents.items())))


def _parents(plan: CopyPlan, fresh: Mapping[str, bytes], work: Workspace) -> dict[str, bytes]:
    """Groups above the target group that are not there yet."""
    found: dict[str, bytes] = {}
    for path in [*plan.groups, *(array.target for array in plan.arrays)]:
        parts = path.split("/")[:-1]
        for depth in range(len(parts) + 1):
            above = "/".join(parts[:depth])
            if above not in fresh and work.tree.find("/" + above) is None:
                found[above] = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
    return found
