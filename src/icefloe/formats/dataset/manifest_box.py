"""Reading a box of one array out of a Parquet manifest, touching only the row groups that can hold it."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.dataset.coord import encode_coord
from icefloe.formats.dataset.manifest_file import COORD_KEY, decode_rows
from icefloe.formats.dataset.parquet import Source, file_metadata, open_parquet, read_columns
from icefloe.ids import NODE_ID_BYTES
from icefloe.model.chunk_table import ChunkTable, empty_table
from icefloe.model.nodes import Extents

_WHAT = "the chunk manifest"
_COLUMNS = ("array_id", "coord", "inline_data", "chunk_file", "offset", "length")


def coord_bounds(extents: Extents) -> tuple[bytes, bytes]:
    """The smallest and largest `coord` inside a box, both included; the box must not be empty."""
    if any(first >= end for first, end in extents):
        raise InvalidInputError(f"the box {extents} is empty")
    return encode_coord(tuple(first for first, _ in extents)), encode_coord(tuple(end - 1 for _, end in extents))


def box_filter(array_id: int, extents: Extents) -> pc.Expression:
    """The box as an Arrow predicate on (array_id, coord), for datasets of manifests; bounds, not the exact box."""
    low, high = coord_bounds(extents)
    coord = pc.field("coord")
    return (pc.field("array_id") == array_id) & (coord >= pa.scalar(low)) & (coord <= pa.scalar(high))


def select_row_groups(opened: pq.ParquetFile, array_id: int, low: bytes, high: bytes) -> list[int]:
    """The row groups whose statistics do not rule out rows of the array between two coordinates."""
    columns = {opened.schema.column(i).path: i for i in range(len(opened.schema.names))}
    selected = []
    for group in range(opened.metadata.num_row_groups):
        row_group = opened.metadata.row_group(group)
        ids = row_group.column(columns["array_id"]).statistics
        if ids is not None and ids.has_min_max and not ids.min <= array_id <= ids.max:
            continue
        coords = row_group.column(columns["coord"]).statistics
        if coords is not None and coords.has_min_max and (coords.max < low or coords.min > high):
            continue
        selected.append(group)
    return selected


def read_manifest_box(source: Source, array_id: int, extents: Extents) -> ChunkTable:
    """The chunks of an array inside a box of its grid; the empty tuple is the box of a 0-d array.

    `source` is the bytes of a manifest file, or its path.
    """
    rank = len(extents)
    if any(first >= end for first, end in extents):
        return empty_table(rank)
    low, high = coord_bounds(extents)
    opened = open_parquet(source, _WHAT)
    metadata = file_metadata(opened)
    if metadata.get(COORD_KEY, b"ov1") != b"ov1":
        raise FormatError(f"{_WHAT} writes coordinates in a way that has no bounds; read it whole")
    try:
        groups = select_row_groups(opened.file, array_id, low, high)
    except (pa.ArrowException, KeyError, OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{_WHAT} has unreadable statistics: {error}") from error
    rows = read_columns(opened, _COLUMNS, _WHAT, groups)
    try:
        rows = rows.filter(box_filter(array_id, extents))
    except pa.ArrowException as error:
        raise FormatError(f"{_WHAT} cannot be searched: {error}") from error
    found = decode_rows(rows, metadata).get(array_id.to_bytes(NODE_ID_BYTES, "big"))
    if found is None:
        return empty_table(rank)
    if found.ndim != rank:
        raise InvalidInputError(f"a box of {rank} dimensions for an array of {found.ndim}")
    box = np.array(extents, dtype=np.int64).reshape(rank, 2)
    inside = ((found.coords >= box[:, 0]) & (found.coords < box[:, 1])).all(axis=1)
    return found if inside.all() else _select_rows(found, np.flatnonzero(inside))


def _select_rows(table: ChunkTable, rows: npt.NDArray[np.intp]) -> ChunkTable:
    return dataclasses.replace(
        table,
        coords=table.coords[rows],
        kind=table.kind[rows],
        offset=table.offset[rows],
        length=table.length[rows],
        object_id=None if table.object_id is None else table.object_id[rows],
        location=None if table.location is None else table.location[rows],
    )
