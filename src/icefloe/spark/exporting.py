"""Snapshots taken out: as plain Zarr v3, or as tables in Parquet."""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import zarr
from pyspark.sql import SparkSession
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe.blocking import run_blocking
from icefloe.errors import AlreadyExistsError, InvalidInputError
from icefloe.model.chunk_keys import key_encoding
from icefloe.session.session import Session
from icefloe.spark.blocks import TASK_BYTES
from icefloe.spark.cell_tables import CellSelection, CellTable, export_cells
from icefloe.spark.copy_plan import CopyPlan, CopySelection, CopyTask, plan_copy
from icefloe.spark.copying import fetch_chunks, list_chunks, read_cells
from icefloe.spark.places import Bounds, Source, reading_session
from icefloe.spark.tasks import SparkJob, run_tasks
from icefloe.storage.build import resolve_storage
from icefloe.storage.contract import Buffer, Storage

ExportFormat = Literal["zarr", "parquet"]


@dataclass(frozen=True, slots=True)
class ExportOutcome:
    """What an export wrote."""

    objects: int
    bytes: int
    tasks: int
    seconds: float


def export(
    spark: SparkSession,
    source: Source,
    target: str | os.PathLike[str] | Storage,
    *,
    format: ExportFormat = "zarr",
    group: str = "",
    variables: Sequence[str] | None = None,
    region: Bounds | None = None,
    chunks: dict[str, int] | None = None,
    task_bytes: int = TASK_BYTES,
    progress: bool | None = None,
) -> ExportOutcome:
    """Write a snapshot, or a part of it, to an empty place without history.

    Parameters
    ----------
    source
        A repository (the tip of `main`), its path or URL, or a read-only session on any snapshot.
    target
        Path, URL or storage. Metadata of a Zarr hierarchy are written last: an export that dies is no hierarchy.
    format
        `zarr`: plain Zarr v3 with consolidated metadata; `parquet`: a row a cell, with coordinates as columns, as
        `xarray.Dataset.to_dataframe` has them. Variables of other grids than the largest's are refused.
    group, variables, region, chunks
        As of `icefloe.spark.copy`; chunks go with Zarr.
    """
    started = time.monotonic()
    session = reading_session(source)
    storage = target if isinstance(target, Storage) else resolve_storage(os.fspath(target))
    if not run_blocking(storage.is_empty()):
        raise AlreadyExistsError(f"{storage.url} is not empty; export to a new place")
    if format == "parquet":
        if chunks:
            raise InvalidInputError("chunks go with format='zarr'; a table has none")
        cells = CellSelection(group, tuple(variables) if variables is not None else None, region)
        counts = export_cells(spark, CellTable(session, cells, storage), task_bytes, progress)
    elif format == "zarr":
        selection = CopySelection(group, tuple(variables) if variables is not None else None, region, chunks)
        plan = plan_copy(session, selection, "", task_bytes)
        job = SparkJob(_ZarrWork(session, storage), f"exporting {len(plan.arrays):,} arrays", progress, plan.bytes)
        counts = run_tasks(spark, job, plan.tasks)
        counts.append(_write_documents(storage, plan))
    else:
        raise InvalidInputError(f"there is no export to {format!r}; there are zarr and parquet")
    seconds = time.monotonic() - started
    return ExportOutcome(sum(n for n, _ in counts), sum(size for _, size in counts), len(counts), seconds)


@dataclass(frozen=True, slots=True)
class _ZarrWork:
    """Writes the chunks of a box as objects; a second attempt writes the same bytes to the same keys."""

    source: Session
    storage: Storage

    def __call__(self, task: CopyTask) -> tuple[int, int]:
        if task.array.as_stored:
            return run_blocking(self._move(task))
        chunks = self._encode(task)
        run_blocking(self._put(chunks))
        return len(chunks), sum(map(len, chunks.values()))

    async def _move(self, task: CopyTask) -> tuple[int, int]:
        """Stored chunks become objects as they are."""
        encoding = key_encoding(task.array.document)
        count = size = 0
        for batch in await list_chunks(self.source, task.array, task.box):
            found = await fetch_chunks(self.source, task.array, batch)
            keys = [f"{task.array.target}/{encoding.suffix(coords)}" for coords in batch]
            await self._put(dict(zip(keys, found, strict=True)))
            count, size = count + len(found), size + sum(map(len, found))
        return count, size

    def _encode(self, task: CopyTask) -> dict[str, bytes]:
        """The chunks of a box by key, encoded by zarr in memory."""
        make = default_buffer_prototype().buffer.from_bytes
        contents = {"zarr.json": make(task.array.document)}
        array = zarr.open_array(MemoryStore(contents), mode="r+")
        array[task.array.cells(task.box) or ...] = read_cells(self.source, task.array, task.box)
        chunks = {key: value.to_bytes() for key, value in contents.items() if key != "zarr.json"}
        return {f"{task.array.target}/{key}": data for key, data in chunks.items()}

    async def _put(self, objects: Mapping[str, Buffer]) -> None:
        await asyncio.gather(*(self.storage.put(key, data) for key, data in objects.items()))


def _write_documents(storage: Storage, plan: CopyPlan) -> tuple[int, int]:
    """Every zarr.json, the root last; it also holds the others."""
    make = default_buffer_prototype().buffer.from_bytes
    documents = {**plan.groups, **{array.target: array.document for array in plan.arrays}}
    documents.setdefault("", b'{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    contents = {f"{path}/zarr.json".lstrip("/"): make(document) for path, document in documents.items()}
    with warnings.catch_warnings():
        # Consolidated metadata are what zarr and xarray look for first, specified or not.
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(MemoryStore(contents), zarr_format=3)
    for key in sorted(contents, key=lambda key: (-key.count("/"), key)):
        run_blocking(storage.put(key, contents[key].to_bytes()))
    return len(contents), sum(len(value) for value in contents.values())
