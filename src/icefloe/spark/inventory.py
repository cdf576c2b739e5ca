"""Inventories of a store instead of listings: rows of keys, sizes and times, from wherever Spark reads them."""

from __future__ import annotations

import os
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from icefloe.errors import InvalidInputError
from icefloe.ids import text_length
from icefloe.maintenance.collect import folders_of
from icefloe.maintenance.collect_plan import KINDS
from icefloe.maintenance.listing import Listed, empty_listing, text_columns
from icefloe.maintenance.reading import Reading
from icefloe.spark.tasks import collect

Inventory: TypeAlias = DataFrame | pa.Table | str | os.PathLike[str]
_COLUMNS = ("key", "size", "last_modified")


def chunk_rows(spark: SparkSession, reading: Reading, inventory: Inventory, prefix: str) -> DataFrame:
    """The rows of an inventory that are chunk objects: key, size and time in microseconds since 1970."""
    folder = folders_of(reading)["chunks"]
    return _rows(spark, inventory, prefix, folder, "", reading.format.capabilities.object_id_bytes)


def other_listings(spark: SparkSession, reading: Reading, inventory: Inventory, prefix: str) -> dict[str, Listed]:
    """Everything but chunk objects, per kind, on the driver."""
    width, folders = reading.format.capabilities.object_id_bytes, folders_of(reading)
    listings = {kind: empty_listing(width) for kind in KINDS}
    extension = reading.format.metadata_extension
    for kind, folder in folders.items():
        if kind != "chunks":
            rows = collect(_rows(spark, inventory, prefix, folder, extension, width), "reading the inventory")
            batch = rows.combine_chunks().to_batches()
            if batch:
                listings[kind] = batch_columns(batch[0], folder, extension, width)
    return listings


def _rows(spark: SparkSession, inventory: Inventory, prefix: str, folder: str, extension: str, width: int) -> DataFrame:
    """Rows whose key has the form of an object's in a folder; others are none of this repository's business."""
    frame = _frame(spark, inventory)
    missing = [name for name in _COLUMNS if name not in frame.columns]
    if missing:
        raise InvalidInputError(
            f"the inventory has no {', '.join(missing)}; it has {', '.join(frame.columns)}: rename its columns"
        )
    key = sql.substring(sql.col("key"), len(prefix) + 1, 1 << 30) if prefix else sql.col("key")
    length = len(folder) + text_length(width) + len(extension)
    time = sql.unix_micros(sql.col("last_modified").cast("timestamp"))
    fitting = (sql.octet_length("key") == length) & sql.col("size").isNotNull() & sql.col("modified").isNotNull()
    return (
        frame.where(sql.col("key").startswith(prefix + folder))
        .select(key.alias("key"), sql.col("size").cast("long"), time.alias("modified"))
        .where(fitting)
    )


def _frame(spark: SparkSession, inventory: Inventory) -> DataFrame:
    if isinstance(inventory, str | os.PathLike):
        return spark.read.parquet(os.fspath(inventory))
    if isinstance(inventory, pa.Table):
        return spark.createDataFrame(inventory)
    return inventory


def batch_columns(batch: pa.RecordBatch, folder: str, extension: str, width: int) -> Listed:
    """Rows with keys of one length as columns, without an object for each."""
    length = len(folder) + text_length(width) + len(extension)
    names = _matrix(batch.column(0), length)[:, len(folder) :]
    return text_columns(names, _numbers(batch.column(1)), _numbers(batch.column(2)), extension, width)


def _matrix(texts: pa.Array, length: int) -> npt.NDArray[np.uint8]:
    """Texts of one length in bytes, as uint8[n, length]."""
    if not len(texts):
        return np.empty((0, length), dtype=np.uint8)
    plain = pc.cast(texts, pa.large_string())
    offsets = np.frombuffer(plain.buffers()[1], dtype=np.int64)[plain.offset : plain.offset + len(plain) + 1]
    data = np.frombuffer(plain.buffers()[2], dtype=np.uint8)
    return data[offsets[0] : offsets[-1]].reshape(len(plain), length)


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return values
