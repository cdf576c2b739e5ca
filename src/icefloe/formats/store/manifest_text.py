"""Chunk tables as the JSON text of a manifest of the generation `store`, built in columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.formats.store.object_id import ID_BYTES, dump_object_id
from icefloe.formats.store.snapshot_file import node_number
from icefloe.formats.store.text_matrix import (
    Piece,
    byte_lists,
    compress,
    decimal,
    escape_json,
    join_pieces,
    literal,
    ragged,
)
from icefloe.formats.strict_json import dump_json
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.snapshot import Manifest
from icefloe.model.string_column import string_column

_BLOCK_ROWS = 1 << 14
_BLOCK_BYTES = 1 << 25
Rows = npt.NDArray[np.intp]


def encode_manifest(manifest: Manifest) -> bytes:
    """The JSON file of a manifest, entries by node number and coordinates."""
    tables = sorted(((node_number(node), table) for node, table in manifest.tables.items()), key=lambda item: item[0])
    text = b"".join(block for number, table in tables for block in _encode_table(number, table))
    return b'{"id":' + dump_json(dump_object_id(manifest.id)) + b',"chunks":{' + text[:-1] + b"}}"


def _encode_table(number: int, table: ChunkTable) -> Iterator[bytes]:
    if (table.kind > ChunkKind.VIRTUAL).any():
        raise InvalidInputError("a manifest holds inline, native and virtual chunks only, no deletions")
    if table.object_id is not None and table.object_id.shape[1] != ID_BYTES:
        raise InvalidInputError(
            f"chunk ids of the generation `store` have {ID_BYTES} bytes, found {table.object_id.shape[1]}"
        )
    texts = _Texts(table)
    for start in range(0, len(table), _BLOCK_ROWS):
        yield from _encode_rows(number, table, texts, np.arange(start, min(start + _BLOCK_ROWS, len(table))))


class _Texts:
    """Locations and ETags of a table as escaped JSON text, looked up by index."""

    def __init__(self, table: ChunkTable) -> None:
        self.locations = _EscapedTexts(table.locations)
        self.etags = _EscapedTexts(table.etags)


class _EscapedTexts:
    def __init__(self, texts: Any) -> None:
        escaped = escape_json(string_column(texts).arrow) if len(texts) else pa.array([], pa.large_string())
        _, offsets, data = escaped.buffers()
        self.data = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
        bounds = np.frombuffer(offsets, dtype=np.int64) if offsets is not None else np.zeros(1, dtype=np.int64)
        self.bounds = bounds[escaped.offset : escaped.offset + len(escaped) + 1]

    def lengths(self, index: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        return self.bounds[index + 1] - self.bounds[index]

    def pick(self, index: npt.NDArray[np.int32]) -> Piece:
        return ragged(self.data, self.bounds[index], self.lengths(index))


def _encode_rows(number: int, table: ChunkTable, texts: _Texts, rows: Rows) -> Iterator[bytes]:
    """The text of some rows, in halves when one long row would blow up the width of all."""
    if len(rows) > 1 and _widest(table, texts, rows) * len(rows) > _BLOCK_BYTES:
        middle = len(rows) // 2
        yield from _encode_rows(number, table, texts, rows[:middle])
        yield from _encode_rows(number, table, texts, rows[middle:])
        return
    keys = _keys(number, table, rows)
    kinds = table.kind[rows]
    payloads = [(np.flatnonzero(kinds == kind), make) for kind, make in _PAYLOADS.items() if (kinds == kind).any()]
    if len(payloads) == 1:
        yield compress(join_pieces([keys, payloads[0][1](table, texts, rows)]))
        return
    made = [(places, make(table, texts, rows[places])) for places, make in payloads]
    lines = np.zeros((len(rows), keys.shape[1] + max(piece.shape[1] for _, piece in made)), dtype=np.uint8)
    lines[:, : keys.shape[1]] = keys
    for places, piece in made:
        lines[places, keys.shape[1] : keys.shape[1] + piece.shape[1]] = piece
    yield compress(lines)


def _widest(table: ChunkTable, texts: _Texts, rows: Rows) -> int:
    kinds = table.kind[rows]
    widths = [200]
    if (kinds == ChunkKind.INLINE).any():
        widths.append(4 * int(table.length[rows[kinds == ChunkKind.INLINE]].max()))
    if (kinds == ChunkKind.VIRTUAL).any() and table.location is not None:
        widths.append(200 + int(texts.locations.lengths(table.location[rows[kinds == ChunkKind.VIRTUAL]]).max()))
    return max(widths)


def _keys(number: int, table: ChunkTable, rows: Rows) -> Piece:
    count = len(rows)
    pieces = [literal(f'"{number}'.encode(), count)]
    for dimension in range(table.ndim):
        pieces += [literal(b"/", count), decimal(table.coords[rows, dimension])]
    return join_pieces([*pieces, literal(b'":', count)])


def _native(table: ChunkTable, texts: _Texts, rows: Rows) -> Piece:
    if table.object_id is None:
        raise InvalidInputError("native chunks without object ids")
    count = len(rows)
    return join_pieces(
        [
            literal(b'{"Ref":{"id":[', count),
            byte_lists(table.object_id[rows]),
            literal(b'],"offset":', count),
            decimal(table.offset[rows]),
            literal(b',"length":', count),
            decimal(table.length[rows]),
            literal(b"}},", count),
        ]
    )


def _inline(table: ChunkTable, texts: _Texts, rows: Rows) -> Piece:
    lengths = table.length[rows].astype(np.int64)
    starts = table.offset[rows].astype(np.int64)
    data = np.frombuffer(table.inline, dtype=np.uint8)
    if len(rows) and int((starts + lengths).max()) > len(data):
        raise InvalidInputError(f"a chunk lies outside of the {len(data)} inline bytes")
    content = byte_lists(ragged(data, starts, lengths), lengths)
    return join_pieces([literal(b'{"Inline":[', len(rows)), content, literal(b"]},", len(rows))])


def _virtual(table: ChunkTable, texts: _Texts, rows: Rows) -> Piece:
    if table.location is None:
        raise InvalidInputError("virtual chunks without locations")
    count = len(rows)
    pieces = [
        literal(b'{"Virtual":{"location":"', count),
        texts.locations.pick(table.location[rows]),
        literal(b'","offset":', count),
        decimal(table.offset[rows]),
        literal(b',"length":', count),
        decimal(table.length[rows]),
    ]
    if table.etag is not None and (table.etag[rows] >= 0).any():
        found = table.etag[rows] >= 0
        etags = texts.etags.pick(np.maximum(table.etag[rows], 0))
        pieces.append(_only(found, [literal(b',"etag":"', count), etags, literal(b'"', count)]))
    if table.last_modified is not None and table.last_modified[rows].any():
        seconds = table.last_modified[rows]
        pieces.append(_only(seconds > 0, [literal(b',"last_modified":', count), decimal(seconds)]))
    return join_pieces([*pieces, literal(b"}},", count)])


def _only(present: npt.NDArray[np.bool_], pieces: list[Piece]) -> Piece:
    return join_pieces(pieces) * present[:, None].astype(np.uint8)


_PAYLOADS = {ChunkKind.NATIVE: _native, ChunkKind.INLINE: _inline, ChunkKind.VIRTUAL: _virtual}
