"""Manifests of the generation `dataset`: Parquet rows sorted by array and coordinates.

A coordinate below 248 is one byte. A larger one is the byte 0xF7 + n followed by its n big-endian bytes, n as small as
possible. The coordinates of one chunk are concatenated. A 0-d chunk is the empty string. The encoding is prefix-free
and canonical.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import FormatError, InvalidInputError, UnsupportedError
from icefloe.formats.byte_columns import gather_ranges
from icefloe.formats.dataset.parquet import (
    WIDENED_KEY,
    Source,
    file_metadata,
    open_parquet,
    read_columns,
    write_parquet,
)
from icefloe.ids import NODE_ID_BYTES, NodeId, decode_base32_column, encode_base32_column, text_length
from icefloe.model.chunk_table import ChunkKind, ChunkTable, ChunkTables, string_column
from icefloe.model.snapshot import Manifest

Bytes: TypeAlias = npt.NDArray[np.uint8]
Offsets: TypeAlias = npt.NDArray[np.int64]

_LONG = 0xF7
_SMALLEST = np.array([0, 248, 1 << 8, 1 << 16, 1 << 24], dtype=np.uint64)
"""The smallest value that may be written with that many bytes after the first."""
_MAX_RANK = 255


def encode_coords(coords: npt.NDArray[np.uint32]) -> tuple[Bytes, Offsets]:
    """Rows of coordinates as concatenated bytes, and the start and end of each row."""
    count, rank = coords.shape
    if coords.size == 0 or int(coords.max()) <= _LONG:
        return coords.astype(np.uint8).reshape(-1), np.arange(count + 1, dtype=np.int64) * rank
    extra = (np.searchsorted(_SMALLEST, coords, side="right") - 1).astype(np.uint8)
    text = np.empty((count, rank, 5), dtype=np.uint8)
    text[:, :, 0] = np.where(extra == 0, coords & 0xFF, _LONG + extra)
    text[:, :, 1:] = coords.astype(">u4")[:, :, None].view(np.uint8)
    used = np.empty(text.shape, dtype=bool)
    used[:, :, 0] = True
    used[:, :, 1:] = extra[:, :, None] > np.array([3, 2, 1, 0], dtype=np.uint8)
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum((extra.astype(np.int64) + 1).sum(axis=1), out=offsets[1:])
    return text[used], offsets


def encode_coord(coords: tuple[int, ...]) -> bytes:
    """The bytes of one chunk's coordinates, for bounds of predicates."""
    return encode_coords(np.array([coords], dtype=np.uint32).reshape(1, len(coords)))[0].tobytes()


def decode_coords(data: Bytes, offsets: Offsets) -> npt.NDArray[np.uint32]:
    """The inverse of encode_coords for rows of one rank. Refuses forms that are not canonical."""
    position, end = offsets[:-1].copy(), offsets[1:]
    lengths = end - position
    if len(lengths) == 0:
        return np.empty((0, 0), dtype=np.uint32)
    covered = data[int(offsets[0]) : int(offsets[-1])]
    if (lengths == lengths[0]).all() and (covered.size == 0 or int(covered.max()) <= _LONG):
        _check_rank(int(lengths[0]))
        return covered.reshape(len(lengths), int(lengths[0])).astype(np.uint32)
    columns: list[npt.NDArray[np.uint32]] = []
    while (position < end).any():
        if not (position < end).all():
            raise FormatError("the chunk coordinates of one array have different numbers of dimensions")
        _check_rank(len(columns) + 1)
        columns.append(_decode_column(data, position, end))
    return np.stack(columns, axis=1)


def _decode_column(data: Bytes, position: Offsets, end: Offsets) -> npt.NDArray[np.uint32]:
    """Decode the coordinate at each position, and move the positions past it."""
    first = data[position].astype(np.int64)
    extra = np.maximum(first - _LONG, 0)
    if (extra > 4).any() or (position + 1 + extra > end).any():
        raise FormatError("a chunk coordinate is truncated, or larger than 4294967295")
    value = np.where(extra == 0, first, 0).astype(np.uint64)
    for byte in range(1, int(extra.max(initial=0)) + 1):
        rows = np.flatnonzero(extra >= byte)
        value[rows] = value[rows] << np.uint64(8) | data[position[rows] + byte]
    if (value < _SMALLEST[extra]).any():
        raise FormatError("a chunk coordinate is written with more bytes than it needs")
    position += 1 + extra
    return value.astype(np.uint32)


def decode_fixed_coords(data: Bytes, offsets: Offsets) -> npt.NDArray[np.uint32]:
    """Coordinates written as 8 big-endian bytes each, as early official code did."""
    lengths = np.diff(offsets)
    if len(lengths) == 0:
        return np.empty((0, 0), dtype=np.uint32)
    if (lengths != lengths[0]).any() or lengths[0] % 8:
        raise FormatError("the chunk coordinates of one array have different numbers of dimensions")
    _check_rank(int(lengths[0]) // 8)
    covered = np.ascontiguousarray(data[int(offsets[0]) : int(offsets[-1])])
    values = covered.view(">u8").reshape(len(lengths), int(lengths[0]) // 8)
    if (values > 0xFFFFFFFF).any():
        raise FormatError("a chunk coordinate is larger than 4294967295")
    return values.astype(np.uint32)


def _check_rank(rank: int) -> None:
    if rank > _MAX_RANK:
        raise FormatError(f"a chunk coordinate has more than {_MAX_RANK} dimensions")


MANIFEST_KEY = b"icefloe.manifest"
COORD_KEY = b"icechunk.coord"
ROW_GROUP_ROWS = 1 << 16
_COORD_NAMES = {b"ov1": decode_coords, b"be64": decode_fixed_coords}
_SLICE_ROWS = 1 << 18
_SLICE_INLINE_BYTES = 1 << 30
_COLUMNS = ("array_id", "coord", "inline_data", "chunk_file", "offset", "length")
_REPEATING = ("array_id", "inline_data", "offset", "length")
"""Nearly all names and coordinates are distinct, so that dictionary encoding would only cost time and space."""
_WHAT = "the chunk manifest"


def manifest_schema(length: pa.DataType | None = None) -> pa.Schema:
    """The Arrow schema of the specification. `length` is only wider than uint32 if a chunk has 4 GiB or more."""
    return pa.schema(
        [
            pa.field("id", pa.uint32(), nullable=False),
            pa.field("array_id", pa.uint32(), nullable=False),
            pa.field("coord", pa.binary(), nullable=False),
            pa.field("inline_data", pa.binary()),
            pa.field("chunk_file", pa.string()),
            pa.field("offset", pa.uint64()),
            pa.field("length", length or pa.uint32(), nullable=False),
        ]
    )


def encode_manifest(manifest: Manifest) -> bytes:
    """The Parquet file of a manifest."""
    tables = list(_joined_tables(manifest))
    wide = any(int(table.length.max()) > 0xFFFFFFFF for _, table in tables)
    schema = manifest_schema(pa.uint64() if wide else None)
    batches: list[pa.RecordBatch] = []
    first_row = 0
    for numbers, table in tables:
        for rows in _slices(table):
            batches.append(_batch(numbers[rows], table, rows, first_row, schema))
            first_row += rows.stop - rows.start
    metadata = {COORD_KEY: b"ov1", MANIFEST_KEY: manifest.id.encode()}
    if wide:
        metadata[WIDENED_KEY] = b"length"
    return write_parquet(pa.Table.from_batches(batches, schema), ROW_GROUP_ROWS, metadata, _REPEATING)


def _joined_tables(manifest: Manifest) -> Iterator[tuple[npt.NDArray[np.uint32], ChunkTable]]:
    """The references in the order of array numbers, and the number of the array of each row.

    Thousands of small arrays come as few tables.
    """
    if isinstance(manifest.tables, ChunkTables):
        for nodes, counts, table in manifest.tables.by_id().by_rank():
            yield np.repeat(np.array([array_number(node) for node in nodes], dtype=np.uint32), counts), table
        return
    tables = {array_number(node): table for node, table in manifest.tables.items() if len(table)}
    for number, table in sorted(tables.items(), key=lambda item: item[0]):
        yield np.full(len(table), number, dtype=np.uint32), table


def array_number(node_id: NodeId) -> int:
    """The number of a node in the file."""
    number = int.from_bytes(node_id, "big")
    if number > 0xFFFFFFFF:
        raise InvalidInputError(
            f"the node id {node_id.hex()} does not fit the generation `dataset`, expected a number below 2**32"
        )
    return number


def _slices(table: ChunkTable) -> Iterator[slice]:
    """Split rows into batches that are small enough for the 32-bit offsets of one Arrow array."""
    inline_bytes = np.where(table.kind == ChunkKind.INLINE, table.length, 0)
    start = 0
    while start < len(table):
        stop = min(start + _SLICE_ROWS, len(table))
        while stop - start > 1 and int(inline_bytes[start:stop].sum()) > _SLICE_INLINE_BYTES:
            stop = start + (stop - start) // 2
        yield slice(start, stop)
        start = stop


def _batch(
    numbers: npt.NDArray[np.uint32], table: ChunkTable, rows: slice, first_row: int, schema: pa.Schema
) -> pa.RecordBatch:
    kind, count = table.kind[rows], rows.stop - rows.start
    if (kind > ChunkKind.VIRTUAL).any():
        raise InvalidInputError("a manifest can only contain inline, native and virtual chunks, not deletions")
    if (table.etag is not None and (table.etag[rows] >= 0).any()) or (
        table.last_modified is not None and table.last_modified[rows].any()
    ):
        raise UnsupportedError(
            "the generation `dataset` cannot store checksums of virtual chunks. Set the references without a checksum"
        )
    inline = kind == ChunkKind.INLINE
    coord_data, coord_offsets = encode_coords(table.coords[rows])
    columns = [
        pa.array(np.arange(first_row, first_row + count, dtype=np.uint32)),
        pa.array(numbers),
        _binary(coord_data, coord_offsets, pa.binary(), None),
        _inline_column(table, rows, inline),
        _chunk_file_column(table, rows),
        pa.array(table.offset[rows], mask=inline),
        pa.array(table.length[rows].astype(schema.field("length").type.to_pandas_dtype())),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _inline_column(table: ChunkTable, rows: slice, inline: npt.NDArray[np.bool_]) -> pa.Array:
    if not inline.any():
        return pa.nulls(len(inline), pa.binary())
    lengths = np.where(inline, table.length[rows], 0).astype(np.int64)
    starts = np.where(inline, table.offset[rows], 0).astype(np.int64)
    source = np.frombuffer(table.inline, dtype=np.uint8)
    offsets = np.zeros(len(inline) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return _binary(gather_ranges(source, starts, lengths), offsets, pa.binary(), ~inline)


def _chunk_file_column(table: ChunkTable, rows: slice) -> pa.Array:
    """Names of native chunks and URLs of virtual ones, in one array."""
    kind = table.kind[rows]
    native, virtual = kind == ChunkKind.NATIVE, kind == ChunkKind.VIRTUAL
    pick = np.zeros(len(kind), dtype=np.int64)
    values: list[pa.Array] = []
    if native.any():
        if table.object_id is None:
            raise InvalidInputError("native chunks without object ids")
        names = encode_base32_column(table.object_id[rows][native])
        values.append(
            _binary(names.reshape(-1), np.arange(len(names) + 1, dtype=np.int64) * names.shape[1], pa.string(), None)
        )
        pick[native] = np.arange(len(names))
    if virtual.any():
        if table.location is None:
            raise InvalidInputError("virtual chunks without locations")
        used = string_column(table.locations).arrow.take(pa.array(table.location[rows][virtual]))
        _check_locations(used)
        pick[virtual] = np.arange(len(used)) + (len(values[0]) if values else 0)
        values.append(used.cast(pa.string()))
    if not values:
        return pa.nulls(len(kind), pa.string())
    if native.all():
        return values[0]
    return pa.concat_arrays(values).take(pa.array(pick, mask=~(native | virtual)))


def _check_locations(locations: pa.Array) -> None:
    urls = pc.match_substring(locations, "://")
    if not pc.all(urls).as_py():
        wrong = locations.filter(pc.invert(urls))[0]
        raise InvalidInputError(f"the location of a virtual chunk is {wrong.as_py()!r}, expected a URL")


def _binary(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], kind: pa.DataType, absent: npt.NDArray[np.bool_] | None
) -> pa.Array:
    validity = None
    if absent is not None and absent.any():
        validity = pa.py_buffer(np.packbits(~absent, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def decode_manifest(data: Source) -> Manifest:
    """Decode the manifest of a Parquet file. Node ids are the array ids as 8 big-endian bytes."""
    opened = open_parquet(data, _WHAT)
    metadata = file_metadata(opened)
    return Manifest(
        metadata.get(MANIFEST_KEY, b"").decode("ascii", "replace"),
        decode_rows(read_columns(opened, _COLUMNS, _WHAT), metadata),
    )


def decode_rows(rows: pa.Table, metadata: dict[bytes, bytes]) -> dict[NodeId, ChunkTable]:
    """Chunk tables of manifest rows, by node id."""
    try:
        numbers = rows.column("array_id").cast(pa.uint32()).to_numpy()
        if len(numbers) == 0:
            return {}
        order = np.argsort(numbers, kind="stable")
        if (np.diff(numbers.astype(np.int64)) < 0).any():
            rows, numbers = rows.take(pa.array(order)), numbers[order]
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] ^ 1))
        tables = {}
        for start, stop in zip(starts, [*starts[1:], len(numbers)]):
            node_id = int(numbers[start]).to_bytes(NODE_ID_BYTES, "big")
            tables[node_id] = _decode_array(rows.slice(int(start), int(stop - start)), metadata)
        return tables
    except (pa.ArrowException, UnicodeDecodeError, InvalidInputError) as error:
        raise FormatError(f"{_WHAT} has rows that cannot be read: {error}") from error


def _decode_array(rows: pa.Table, metadata: dict[bytes, bytes]) -> ChunkTable:
    if any(rows.column(name).null_count for name in ("array_id", "coord", "length")):
        raise FormatError(f"{_WHAT} has nulls in a required column")
    coords = _decode_coord_column(rows, metadata)
    order = _sorting_order(coords)
    if order is not None:
        rows, coords = rows.take(pa.array(order)), coords[order]
    inline_data = _combine(rows, "inline_data", pa.binary())
    chunk_file = _combine(rows, "chunk_file", pa.string())
    inline = inline_data.is_valid().to_numpy(zero_copy_only=False)
    if (inline == chunk_file.is_valid().to_numpy(zero_copy_only=False)).any():
        raise FormatError(f"{_WHAT} has a row that does not have exactly one of inline_data and chunk_file")
    length = rows.column("length").cast(pa.uint64()).to_numpy()
    offset = rows.column("offset").cast(pa.uint64()).fill_null(0).to_numpy()
    inline_bytes, offsets = _buffers(inline_data)
    if (inline & (np.diff(offsets) != length.astype(np.int64))).any():
        raise FormatError(f"{_WHAT} has an inline chunk whose length is not the recorded one")
    virtual = pc.match_substring(chunk_file, "://").fill_null(False).to_numpy(zero_copy_only=False)
    kind = np.where(inline, ChunkKind.INLINE, np.where(virtual, ChunkKind.VIRTUAL, ChunkKind.NATIVE)).astype(np.uint8)
    location, locations = _decode_locations(chunk_file, virtual)
    first, last = int(offsets[0]), int(offsets[-1])
    return ChunkTable(
        coords=coords,
        kind=kind,
        offset=np.where(inline, (offsets[:-1] - first).astype(np.uint64), offset),
        length=length,
        object_id=_decode_names(chunk_file, kind == ChunkKind.NATIVE),
        location=location,
        locations=locations,
        inline=inline_bytes[first:last].tobytes() if inline.any() else b"",
    )


def _decode_coord_column(rows: pa.Table, metadata: dict[bytes, bytes]) -> npt.NDArray[np.uint32]:
    decode = _COORD_NAMES.get(metadata.get(COORD_KEY, b"ov1"))
    if decode is None:
        raise FormatError(f"{_WHAT} has an unknown encoding of coordinates: {metadata[COORD_KEY][:40]!r}")
    return decode(*_buffers(_combine(rows, "coord", pa.binary())))


def _decode_names(chunk_file: pa.Array, native: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8] | None:
    if not native.any():
        return None
    data, offsets = _buffers(chunk_file if native.all() else chunk_file.filter(pa.array(native)))
    lengths = np.diff(offsets)
    characters = int(lengths[0])
    width = characters * 5 // 8
    if (lengths != characters).any() or characters == 0 or text_length(width) != characters:
        raise FormatError(f"{_WHAT} refers to a chunk file whose name is not an id")
    names = data[int(offsets[0]) : int(offsets[-1])].reshape(-1, characters)
    ids = decode_base32_column(names, width)
    if native.all():
        return ids
    object_id = np.zeros((len(native), width), dtype=np.uint8)
    object_id[native] = ids
    return object_id


def _decode_locations(
    chunk_file: pa.Array, virtual: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int32] | None, Sequence[str]]:
    if not virtual.any():
        return None, ()
    coded = chunk_file.filter(pa.array(virtual)).dictionary_encode()
    location = np.full(len(virtual), -1, dtype=np.int32)
    location[virtual] = coded.indices.to_numpy(zero_copy_only=False)
    coded.dictionary.validate(full=True)
    return location, string_column(coded.dictionary)


def _sorting_order(coords: npt.NDArray[np.uint32]) -> npt.NDArray[Any] | None:
    """The order that sorts the rows, or None if they are sorted. Raises FormatError for equal rows."""
    order = None
    if not _strictly_increasing(coords):
        order = np.lexsort(coords.T[::-1]) if coords.shape[1] else np.arange(len(coords))
        if not _strictly_increasing(coords[order]):
            raise FormatError(f"{_WHAT} has two rows for one chunk")
    return order


def _strictly_increasing(coords: npt.NDArray[np.uint32]) -> bool:
    before, after = coords[:-1], coords[1:]
    less = np.zeros(len(before), dtype=bool)
    equal = np.ones(len(before), dtype=bool)
    for dimension in range(coords.shape[1]):
        less |= equal & (before[:, dimension] < after[:, dimension])
        equal &= before[:, dimension] == after[:, dimension]
    return bool(less.all())


def _combine(rows: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    column = rows.column(name).cast(kind).combine_chunks()
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _buffers(column: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Bytes of a binary or string column, and the offsets of its rows. Null rows are empty."""
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32, count=column.offset + len(column) + 1)[column.offset :]
    content = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return content, bounds.astype(np.int64)
