"""Cells as rows of Parquet files: a column for each coordinate and variable, a file for each block."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr
from pyspark.sql import SparkSession

from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError
from icefloe.session.session import Session
from icefloe.spark.blocks import Window, block_bytes, plan_blocks
from icefloe.spark.places import Bounds, open_dataset, select_region
from icefloe.spark.tasks import SparkJob, run_tasks
from icefloe.storage.contract import Storage

_ROWS_PER_GROUP = 1 << 20


@dataclass(frozen=True, slots=True)
class CellSelection:
    """Which cells: a group, some of its variables, a region by dimension."""

    group: str = ""
    variables: tuple[str, ...] | None = None
    region: Bounds | None = None


@dataclass(frozen=True, slots=True)
class CellTable:
    """Writes the cells of a block as one Parquet file; a second attempt writes the same file again."""

    session: Session
    selection: CellSelection
    storage: Storage

    def dataset(self) -> xr.Dataset:
        """The chosen variables, or all; those with fewer dimensions than the largest are repeated along the others."""
        chosen = self.selection
        dataset = select_region(open_dataset(self.session, chosen.group, chosen.variables), chosen.region)
        if not dataset.data_vars:
            raise InvalidInputError(f"/{chosen.group} has no variables to make rows of")
        largest = max(dataset.data_vars.values(), key=lambda array: (array.ndim, array.size))
        fitting = [str(name) for name, array in dataset.data_vars.items() if set(array.dims) <= set(largest.dims)]
        others = [str(name) for name in dataset.data_vars if name not in fitting]
        if others:
            raise InvalidInputError(
                f"{others[0]} has the dimensions {dataset[others[0]].dims}, {largest.name} {largest.dims}; rows of a "
                f"table are the cells of one grid: export variables={fitting!r}, and the others by themselves"
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
    """A row for each cell, in the order of the dimensions of the first variable."""
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
        # Nanoseconds are more than Spark's timestamps hold.
        return pa.array(values.astype("datetime64[us]"))
    return pa.array(values, from_pandas=values.dtype.kind == "f")


def export_cells(
    spark: SparkSession, table: CellTable, task_bytes: int, progress: bool | None
) -> list[tuple[int, int]]:
    """One file a block; returns objects and bytes of each."""
    dataset = table.dataset()
    grid = plan_blocks(dataset, task_bytes=task_bytes)
    windows = list(enumerate(grid.windows()))
    size = block_bytes(dataset, grid.lengths) * len(windows)
    return run_tasks(spark, SparkJob(table, f"exporting {len(windows):,} blocks", progress, size), windows)
