"""A chunk table as an Arrow table and back, so that references travel to Spark and DataFrames as they are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.manifests.columns import code_texts, normalise
from icefloe.model.chunk_table import ChunkKind, ChunkTable, empty_table
from icefloe.model.string_column import string_column


def to_arrow(table: ChunkTable) -> pa.Table:
    """Columns coords (fixed list of uint32), kind, offset, length, object_id, location, etag, last_modified, inline."""
    count = len(table)
    columns: dict[str, pa.Array] = {
        "coords": pa.FixedSizeListArray.from_arrays(pa.array(table.coords.ravel()), table.ndim)
        if table.ndim
        else pa.array([[]] * count, type=pa.list_(pa.uint32(), 0)),
        "kind": pa.array(table.kind),
        "offset": pa.array(np.where(table.kind == ChunkKind.INLINE, 0, table.offset).astype(np.uint64)),
        "length": pa.array(table.length),
        "object_id": _ids(table),
        "location": _coded(table.location, table.locations, count),
        "etag": _coded(table.etag, table.etags, count),
        "last_modified": pa.nulls(count, pa.uint32())
        if table.last_modified is None
        else pa.array(table.last_modified, mask=table.last_modified == 0),
        "inline": _inline(table),
    }
    return pa.table(columns)


def _ids(table: ChunkTable) -> pa.Array:
    if table.object_id is None:
        return pa.nulls(len(table), pa.binary(12))
    width = table.object_id.shape[1]
    flat = np.ascontiguousarray(table.object_id)
    valid = pa.py_buffer(np.packbits(table.kind == ChunkKind.NATIVE, bitorder="little").tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(table), [valid, pa.py_buffer(flat)])


def _coded(codes: npt.NDArray[np.int32] | None, texts: object, count: int) -> pa.Array:
    if codes is None:
        return pa.DictionaryArray.from_arrays(pa.nulls(count, pa.int32()), pa.array([], pa.large_string()))
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), string_column(texts).arrow)


def _inline(table: ChunkTable) -> pa.Array:
    rows = table.kind == ChunkKind.INLINE
    if not rows.any():
        return pa.nulls(len(table), pa.large_binary())
    values = [table.row(i).data if chosen else None for i, chosen in enumerate(rows.tolist())]
    return pa.array(values, type=pa.large_binary())


def from_arrow(arrow: pa.Table) -> ChunkTable:
    """The inverse of to_arrow; rows in any order, the last of equal coordinates wins."""
    missing = {"coords", "kind", "offset", "length"} - set(arrow.column_names)
    if missing:
        raise InvalidInputError(f"a table of chunk references needs the columns {sorted(missing)}")
    count = arrow.num_rows
    coords_column = arrow.column("coords").combine_chunks()
    ndim = coords_column.type.list_size
    if count == 0:
        return empty_table(ndim)
    coords = np.asarray(coords_column.flatten(), dtype=np.uint32).reshape(count, ndim)
    kind = np.asarray(arrow.column("kind"), dtype=np.uint8)
    offset = np.asarray(arrow.column("offset"), dtype=np.uint64).copy()
    ids = None
    if bool((kind == ChunkKind.NATIVE).any()):
        column = arrow.column("object_id").combine_chunks()
        width = column.type.byte_width
        data = np.frombuffer(column.buffers()[1], dtype=np.uint8)
        ids = data[column.offset * width : (column.offset + count) * width].reshape(count, width).copy()
        ids[kind != ChunkKind.NATIVE] = 0
    location = etag = last_modified = None
    locations = etags = string_column(())
    if "location" in arrow.column_names and arrow.column("location").null_count < count:
        location, locations = code_texts(arrow.column("location"), count)
    if "etag" in arrow.column_names and arrow.column("etag").null_count < count:
        etag, etags = code_texts(arrow.column("etag"), count)
    if "last_modified" in arrow.column_names and arrow.column("last_modified").null_count < count:
        last_modified = np.asarray(arrow.column("last_modified").combine_chunks().fill_null(0), dtype=np.uint32)
    inline = b""
    rows = np.flatnonzero(kind == ChunkKind.INLINE)
    if len(rows):
        pieces = arrow.column("inline").combine_chunks().take(pa.array(rows)).to_pylist()
        lengths = np.array([len(p) for p in pieces], dtype=np.uint64)
        offset[rows] = np.cumsum(lengths) - lengths
        inline = b"".join(pieces)
    length = np.asarray(arrow.column("length"), dtype=np.uint64)
    return normalise(
        ChunkTable(coords, kind, offset, length, ids, location, locations, etag, etags, last_modified, inline)
    )
