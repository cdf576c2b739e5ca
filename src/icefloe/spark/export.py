"""Export snapshots as plain Zarr v3 or as Parquet tables."""

from __future__ import annotations

import asyncio
import io
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr
import zarr
from pyspark.sql import SparkSession
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe.blocking import run_blocking
from icefloe.codec_pipeline import check_grid
from icefloe.errors import AlreadyExistsError, InvalidInputError
from icefloe.model.zarr_document import key_encoding, parse_document
from icefloe.session.session import Session
from icefloe.spark.copy import CopyPlan, CopySelection, CopyTask, fetch_chunks, list_chunks, plan_copy, read_cells
from icefloe.spark.jobs import Bounds, Source, open_dataset, reading_session, select_region
from icefloe.spark.map_blocks import TASK_BYTES, Window, block_bytes, plan_blocks
from icefloe.spark.tasks import SparkJob, run_tasks
from icefloe.storage.build import resolve_storage
from icefloe.storage.contract import Buffer, Storage

_ROWS_PER_GROUP = 1 << 20


@dataclass(frozen=True, slots=True)
class CellSelection:
    """The cells to export: a group, its variables, and a region by dimension."""

    group: str = ""
    variables: tuple[str, ...] | None = None
    region: Bounds | None = None


@dataclass(frozen=True, slots=True)
class CellTable:
    """Writes the cells of a block as one Parquet file. A retry writes the same file again."""

    session: Session
    selection: CellSelection
    storage: Storage

    def dataset(self) -> xr.Dataset:
        """Return the selected variables, or all. Variables with fewer dimensions are repeated along the others."""
        chosen = self.selection
        dataset = select_region(open_dataset(self.session, chosen.group, chosen.variables), chosen.region)
        if not dataset.data_vars:
            raise InvalidInputError(f"/{chosen.group} has no variables for the rows of a table")
        largest = max(dataset.data_vars.values(), key=lambda array: (array.ndim, array.size))
        fitting = [str(name) for name, array in dataset.data_vars.items() if set(array.dims) <= set(largest.dims)]
        others = [str(name) for name in dataset.data_vars if name not in fitting]
        if others:
            raise InvalidInputError(
                f"{others[0]} has the dimensions {dataset[others[0]].dims}, {largest.name} {largest.dims}; the rows of "
                f"a table are the cells of one grid. Export variables={fitting!r}, and the others separately"
            )
        return dataset[[str(largest.name), *(name for name in fitting if name != largest.name)]]

    def __call__(self, numbered: tuple[int, Window]) -> tuple[int, int]:
        number, window = numbered
        content = io.BytesIO()
        pq.write_table(cells_of(self.dataset().isel(dict(window)).load()), content, row_group_size=_ROWS_PER_GROUP)
        data = content.getvalue()
        run_blocking(self.storage.put(f"part-{number:06d}.parquet", data))
        return 1, len(data)


def cells_of(block: xr.Dataset) -> pa.Table:
    """Return a row for each cell, in the order of the dimensions of the first variable."""
    dims = next(iter(block.data_vars.values())).dims
    shape = tuple(block.sizes[dim] for dim in dims)
    columns: dict[str, Any] = {}
    for axis, dim in enumerate(dims):
        values = block[dim].values if dim in block.coords else np.arange(shape[axis])
        along = values.reshape([-1 if a == axis else 1 for a in range(len(shape))])
        columns[str(dim)] = np.broadcast_to(along, shape).reshape(-1)
    rest = {**block.data_vars, **{name: c for name, c in block.coords.items() if name not in dims}}
    for name, array in rest.items():
        own = array.transpose(*[dim for dim in dims if dim in array.dims])
        spread = own.values.reshape([block.sizes[dim] if dim in array.dims else 1 for dim in dims])
        columns[str(name)] = np.broadcast_to(spread, shape).reshape(-1)
    return pa.table({name: _column(values) for name, values in columns.items()})


def _column(values: Any) -> pa.Array:
    if values.dtype.kind == "M":
        # Spark's timestamps have microseconds, not nanoseconds.
        return pa.array(values.astype("datetime64[us]"))
    return pa.array(values, from_pandas=values.dtype.kind == "f")


def export_cells(
    spark: SparkSession, table: CellTable, task_bytes: int, progress: bool | None
) -> list[tuple[int, int]]:
    """Write one file per block. Return the number of objects and bytes of each."""
    dataset = table.dataset()
    grid = plan_blocks(dataset, task_bytes=task_bytes)
    windows = list(enumerate(grid.windows()))
    size = block_bytes(dataset, grid.lengths) * len(windows)
    return run_tasks(spark, SparkJob(table, f"exporting {len(windows):,} blocks", progress, size), windows)


ExportFormat = Literal["zarr", "parquet"]


@dataclass(frozen=True, slots=True)
class ExportOutcome:
    """The result of an export.

    Attributes
    ----------
    objects
        The number of objects written.
    bytes
        The bytes written.
    tasks
        The number of tasks.
    seconds
        The duration of the job.

    Examples
    --------
    >>> ExportOutcome(objects=12, bytes=4096, tasks=2, seconds=0.5).objects
    12
    """

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
    """Write a snapshot, or a part of it, without history to an empty directory or prefix.

    Parameters
    ----------
    spark
        The Spark session.
    source
        A repository (the tip of `main`), its path or URL, or a read-only session.
    target
        A path, URL or storage. The metadata of a Zarr hierarchy is written last, so that an interrupted export is not
        mistaken for a complete one.
    format
        `zarr` is plain Zarr v3 with consolidated metadata and the chunk grids of the source. `parquet` has a row per
        cell and the coordinates as columns, like `xarray.Dataset.to_dataframe`. Its variables must share the grid of
        the largest one.
    group
        The group to export.
    variables
        Only these arrays.
    region
        Only the cells [first, end) by dimension.
    chunks
        New chunk lengths by dimension, for Zarr.
    task_bytes
        The approximate decoded bytes of a task.
    progress
        Whether to show a progress bar. None shows it in terminals and notebooks.

    Returns
    -------
    ExportOutcome
        The counts of the export.

    Raises
    ------
    InvalidInputError
        The target is not empty, or the arguments contradict each other.

    Examples
    --------
    >>> export(spark, "s3://bucket/weather", "/data/weather.zarr")  # doctest: +SKIP
    """
    started = time.monotonic()
    session = reading_session(source)
    storage = target if isinstance(target, Storage) else resolve_storage(os.fspath(target))
    if not run_blocking(storage.is_empty()):
        raise AlreadyExistsError(f"{storage.url} is not empty. Export to an empty directory or prefix")
    if format == "parquet":
        if chunks:
            raise InvalidInputError("chunks can only be used with format='zarr'. A table has no chunks")
        cells = CellSelection(group, tuple(variables) if variables is not None else None, region)
        counts = export_cells(spark, CellTable(session, cells, storage), task_bytes, progress)
    elif format == "zarr":
        selection = CopySelection(group, tuple(variables) if variables is not None else None, region, chunks)
        plan = plan_copy(session, selection, "", task_bytes)
        for array in plan.arrays:
            # Zarr reads every document for the consolidated metadata.
            check_grid(array.source.strip("/"), parse_document(array.document))
        job = SparkJob(_ZarrWork(session, storage), f"exporting {len(plan.arrays):,} arrays", progress, plan.bytes)
        counts = run_tasks(spark, job, plan.tasks)
        counts.append(_write_documents(storage, plan))
    else:
        raise InvalidInputError(f"unknown format {format!r}. Known: zarr and parquet")
    seconds = time.monotonic() - started
    return ExportOutcome(sum(n for n, _ in counts), sum(size for _, size in counts), len(counts), seconds)


@dataclass(frozen=True, slots=True)
class _ZarrWork:
    """Writes the chunks of a box as objects. A retry writes the same bytes to the same keys."""

    source: Session
    storage: Storage

    def __call__(self, task: CopyTask) -> tuple[int, int]:
        if task.as_stored:
            return run_blocking(self._move(task))
        chunks = self._encode(task)
        run_blocking(self._put(chunks))
        return len(chunks), sum(map(len, chunks.values()))

    async def _move(self, task: CopyTask) -> tuple[int, int]:
        """Copy stored chunks without decoding."""
        encoding = key_encoding(task.array.document)
        count = size = 0
        for batch in await list_chunks(self.source, task.array, task.box):
            found = await fetch_chunks(self.source, task.array, batch)
            keys = [f"{task.array.target}/{encoding.suffix(coords)}" for coords in batch]
            await self._put(dict(zip(keys, found, strict=True)))
            count, size = count + len(found), size + sum(map(len, found))
        return count, size

    def _encode(self, task: CopyTask) -> dict[str, bytes]:
        """Return the chunks of a box by key, encoded by zarr in memory."""
        make = default_buffer_prototype().buffer.from_bytes
        contents = {"zarr.json": make(task.array.document)}
        array = zarr.open_array(MemoryStore(contents), mode="r+")
        array[task.array.cells(task.box) or ...] = read_cells(self.source, task.array, task.box)
        chunks = {key: value.to_bytes() for key, value in contents.items() if key != "zarr.json"}
        return {f"{task.array.target}/{key}": data for key, data in chunks.items()}

    async def _put(self, objects: Mapping[str, Buffer]) -> None:
        await asyncio.gather(*(self.storage.put(key, data) for key, data in objects.items()))


def _write_documents(storage: Storage, plan: CopyPlan) -> tuple[int, int]:
    """Write every zarr.json, the root last. The root contains the others."""
    make = default_buffer_prototype().buffer.from_bytes
    documents = {**plan.groups, **{array.target: array.document for array in plan.arrays}}
    documents.setdefault("", b'{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    contents = {f"{path}/zarr.json".lstrip("/"): make(document) for path, document in documents.items()}
    with warnings.catch_warnings():
        # zarr and xarray look for consolidated metadata first, although it is not in the specification.
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(MemoryStore(contents), zarr_format=3)
    for key in sorted(contents, key=lambda key: (-key.count("/"), key)):
        run_blocking(storage.put(key, contents[key].to_bytes()))
    return len(contents), sum(len(value) for value in contents.values())
