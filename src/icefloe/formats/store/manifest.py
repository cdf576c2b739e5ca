"""Manifests of the generation `store`: JSON text to columns and back.

Without its digits, such a text is one short pattern that repeats, and every entry has the same number of integers.
Other texts are read by the general decoder.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.byte_columns import (
    Piece,
    byte_lists,
    compress,
    decimal,
    escape_json,
    join_pieces,
    literal,
    parse_byte_lists,
    parse_keys,
    ragged,
    read_integers,
)
from icefloe.formats.json_documents import dump_json
from icefloe.formats.store.snapshot import (
    ID_BYTES,
    dump_object_id,
    is_legacy_msgpack,
    load_id_bytes,
    load_object_id,
    node_number,
    read_manifest,
)
from icefloe.ids import NODE_ID_BYTES, NodeId, encode_base32
from icefloe.model.chunk_table import ChunkKind, ChunkTable, ChunkTables, string_column
from icefloe.model.snapshot import Manifest

_START = re.compile(rb'\{"id":\[([0-9]{1,3}(?:,[0-9]{1,3}){15})\],"chunks":\{')
_END = b"}}}}"
_BLOCK = 1 << 13
_MAX_DIGITS = 19
"""Numbers of more digits may not fit 64 bits."""


def find_native_tables(data: bytes) -> tuple[bytes, dict[NodeId, ChunkTable]] | None:
    """The manifest's id and chunk tables. None for texts of another form, whether valid or not."""
    start = _START.match(data, 0, 200)
    if start is None or not data.endswith(_END):
        return None
    # Keep one byte of the end in place of the comma after the last entry.
    text = np.frombuffer(data, dtype=np.uint8)[start.end() : -1]
    closings = np.flatnonzero(text == ord("}"))
    if len(closings) % 2 == 0 or len(closings) < 3:
        return None
    bounds = np.concatenate([[0], closings[1:-1:2] + 2])
    ranks = np.diff(np.searchsorted(np.flatnonzero(text == ord("/")), bounds))
    blocks: list[npt.NDArray[np.uint64]] = []
    tables: dict[NodeId, ChunkTable] = {}
    for first, last in _runs(ranks):
        blocks = []
        for low in range(first, last, _BLOCK):
            high = min(low + _BLOCK, last)
            block = _read_block(text[bounds[low] : bounds[high]], high - low, int(ranks[first]))
            if block is None:
                return None
            blocks.append(block)
        if not _add_tables(np.concatenate(blocks), int(ranks[first]), tables):
            return None
    identity = bytes(number for number in map(int, start[1].split(b",")) if number < 256)
    return (identity, tables) if len(identity) == ID_BYTES else None


def _runs(values: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
    """Runs of equal values."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return list(itertools.pairwise(edges))


def _read_block(text: npt.NDArray[np.uint8], count: int, rank: int) -> npt.NDArray[np.uint64] | None:
    """The integers of some entries, one row each: node, coordinates, id, offset, length."""
    if text[-1] == ord("}"):
        text = np.concatenate([text[:-1], np.frombuffer(b",", dtype=np.uint8)])
    pattern = b'"' + b"/" * rank + b'":{"Ref":{"id":[' + b"," * (ID_BYTES - 1) + b'],"offset":,"length":}},'
    is_digit = (text - np.uint8(ord("0"))) < 10
    rest = text[~is_digit]
    if len(rest) != count * len(pattern):
        return None
    if (rest.reshape(count, -1) != np.frombuffer(pattern, dtype=np.uint8)).any():
        return None
    turns = np.flatnonzero(is_digit[:-1] != is_digit[1:]) + 1
    columns = rank + ID_BYTES + 3
    if len(turns) != 2 * count * columns:
        return None
    starts, ends = turns[::2], turns[1::2]
    lengths = ends - starts
    if int(lengths.max()) > _MAX_DIGITS or ((lengths > 1) & (text[starts] == ord("0"))).any():
        return None
    ends, lengths = ends.reshape(count, columns), lengths.reshape(count, columns)
    numbers = np.empty((count, columns), dtype=np.uint64)
    for low, high in ((0, rank + 1), (rank + 1, columns - 2), (columns - 2, columns)):
        part = read_integers(text, ends[:, low:high].ravel(), lengths[:, low:high].ravel())
        numbers[:, low:high] = part.reshape(count, high - low)
    if (numbers[:, : rank + 1] > 0xFFFFFFFF).any() or (numbers[:, rank + 1 : columns - 2] > 255).any():
        return None
    return numbers


def _add_tables(numbers: npt.NDArray[np.uint32], rank: int, tables: dict[NodeId, ChunkTable]) -> bool:
    """Split rows into tables by node. Returns False if rows are not in order."""
    for low, high in _runs(numbers[:, 0].astype(np.int64)):
        rows = numbers[low:high]
        node_id = int(rows[0, 0]).to_bytes(NODE_ID_BYTES, "big")
        coords = rows[:, 1 : rank + 1].astype(np.uint32)
        if node_id in tables or not is_increasing(coords):
            return False
        tables[node_id] = ChunkTable(
            coords=coords,
            kind=np.full(len(rows), ChunkKind.NATIVE, dtype=np.uint8),
            offset=np.ascontiguousarray(rows[:, -2]),
            length=np.ascontiguousarray(rows[:, -1]),
            object_id=rows[:, rank + 1 : -2].astype(np.uint8),
        )
    return True


def is_increasing(coords: npt.NDArray[np.uint32]) -> bool:
    """Whether rows are unique and in lexicographic order."""
    less = np.zeros(max(len(coords) - 1, 0), dtype=bool)
    equal = ~less
    for column in coords.T:
        less |= equal & (column[:-1] < column[1:])
        equal &= column[:-1] == column[1:]
    return bool(less.all())


_BLOCK_ROWS = 1 << 14
_BLOCK_BYTES = 1 << 25
Rows = npt.NDArray[np.intp]


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest as JSON. Entries are sorted by node number and coordinates."""
    text = b"".join(block for numbers, table in _joined_tables(manifest) for block in _encode_table(numbers, table))
    return b'{"id":' + dump_json(dump_object_id(manifest.id)) + b',"chunks":{' + text[:-1] + b"}}"


def _joined_tables(manifest: Manifest) -> Iterator[tuple[npt.NDArray[np.uint32], ChunkTable]]:
    """The references in the order of node numbers, and the number of the node of each row.

    Thousands of small arrays come as few tables.
    """
    if isinstance(manifest.tables, ChunkTables):
        for nodes, counts, table in manifest.tables.by_id().by_rank():
            yield np.repeat(np.array([node_number(node) for node in nodes], dtype=np.uint32), counts), table
        return
    tables = {node_number(node): table for node, table in manifest.tables.items()}
    for number, table in sorted(tables.items(), key=lambda item: item[0]):
        yield np.full(len(table), number, dtype=np.uint32), table


def _encode_table(numbers: npt.NDArray[np.uint32], table: ChunkTable) -> Iterator[bytes]:
    if (table.kind > ChunkKind.VIRTUAL).any():
        raise InvalidInputError("a manifest can only contain inline, native and virtual chunks, not deletions")
    if table.object_id is not None and table.object_id.shape[1] != ID_BYTES:
        raise InvalidInputError(
            f"a chunk id has {table.object_id.shape[1]} bytes, but the generation `store` needs {ID_BYTES}"
        )
    texts = _Texts(table)
    for start in range(0, len(table), _BLOCK_ROWS):
        yield from _encode_rows(numbers, table, texts, np.arange(start, min(start + _BLOCK_ROWS, len(table))))


class _Texts:
    """Locations and ETags of a table as escaped JSON text, by index."""

    def __init__(self, table: ChunkTable) -> None:
        self.locations = _EscapedTexts(table.locations)
        self.etags = _EscapedTexts(table.etags)


class _EscapedTexts:
    def __init__(self, texts: Any) -> None:
        escaped = escape_json(string_column(texts).arrow) if len(texts) else pa.nulls(0, pa.large_string())
        _, offsets, data = escaped.buffers()
        self.data = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
        bounds = np.frombuffer(offsets, dtype=np.int64) if offsets is not None else np.zeros(1, dtype=np.int64)
        self.bounds = bounds[escaped.offset : escaped.offset + len(escaped) + 1]

    def lengths(self, index: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        return self.bounds[index + 1] - self.bounds[index]

    def pick(self, index: npt.NDArray[np.int32]) -> Piece:
        return ragged(self.data, self.bounds[index], self.lengths(index))


def _encode_rows(numbers: npt.NDArray[np.uint32], table: ChunkTable, texts: _Texts, rows: Rows) -> Iterator[bytes]:
    """The text of some rows. Rows are halved if one long row would make all of them wide."""
    if len(rows) > 1 and _widest(table, texts, rows) * len(rows) > _BLOCK_BYTES:
        middle = len(rows) // 2
        yield from _encode_rows(numbers, table, texts, rows[:middle])
        yield from _encode_rows(numbers, table, texts, rows[middle:])
        return
    keys = _keys(numbers, table, rows)
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


def _keys(numbers: npt.NDArray[np.uint32], table: ChunkTable, rows: Rows) -> Piece:
    count = len(rows)
    pieces = [literal(b'"', count), decimal(numbers[rows])]
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
        raise InvalidInputError(f"the offset and length of an inline chunk are outside of the {len(data)} inline bytes")
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


_WHAT = "the chunk manifest"


class _Native(msgspec.Struct, gc=False):
    id: msgspec.Raw
    offset: int
    length: int


class _Virtual(msgspec.Struct, gc=False):
    location: str
    offset: int
    length: int
    etag: str | None = None
    last_modified: int | None = None


class _Payload(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    native: _Native | None = msgspec.field(name="Ref", default=None)
    virtual: _Virtual | None = msgspec.field(name="Virtual", default=None)
    # A field of type Raw cannot be None. Empty text means absent.
    inline: msgspec.Raw = msgspec.field(name="Inline", default=msgspec.Raw(b""))


class _File(msgspec.Struct, gc=False):
    chunks: dict[str, _Payload]
    id: Any = None


_DECODER = msgspec.json.Decoder(_File)


def decode_manifest(data: bytes) -> Manifest:
    """Decode the manifest of a JSON file, or of a MessagePack file of the early format.

    Node ids are the node numbers as 8 big-endian bytes.
    """
    if is_legacy_msgpack(data):
        return Manifest("", read_manifest(data))
    native = find_native_tables(data)
    if native is not None:
        return Manifest(encode_base32(native[0]), native[1])
    try:
        file = _DECODER.decode(data)
        name = "" if file.id is None else load_object_id(file.id)
        return Manifest(name, _decode_chunks(file.chunks))
    except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise FormatError(f"{_WHAT} does not match the format: {error}") from error


def _decode_chunks(chunks: dict[str, _Payload]) -> dict[NodeId, ChunkTable]:
    keys = parse_keys(list(chunks))
    if not chunks:
        return {}
    columns = _decode_payloads(list(chunks.values()))
    nodes, ranks = keys.nodes, keys.ranks
    order = np.argsort(nodes, kind="stable")
    starts = np.flatnonzero(np.diff(nodes[order], prepend=nodes[order[0]] ^ 1))
    tables = {}
    for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
        rows = order[start:stop]
        rank = int(ranks[rows[0]])
        if (ranks[rows] != rank).any():
            raise FormatError(f"{_WHAT} has coordinates of different ranks for node {nodes[rows[0]]}")
        coords = keys.coords(rows, rank)
        if not is_increasing(coords):
            by_coords = np.lexsort(coords.T[::-1])
            coords, rows = coords[by_coords], rows[by_coords]
        tables[int(nodes[rows[0]]).to_bytes(NODE_ID_BYTES, "big")] = _take_rows(columns, coords, rows)
    return tables


def _decode_payloads(payloads: Sequence[_Payload]) -> ChunkTable:
    """All payloads as one table, without coordinates."""
    count = len(payloads)
    kind = np.full(count, ChunkKind.DELETED, dtype=np.uint8)
    offset, length = np.zeros(count, dtype=np.uint64), np.zeros(count, dtype=np.uint64)
    columns: dict[str, Any] = {}
    native = [payload.native for payload in payloads if payload.native is not None]
    virtual = [payload.virtual for payload in payloads if payload.virtual is not None]
    inline = [bytes(payload.inline) for payload in payloads if payload.inline]
    if len(native) + len(virtual) + len(inline) != count:
        raise FormatError(f"{_WHAT} has an entry that is not exactly one of Inline, Virtual and Ref")
    if native:
        rows = _rows(payload.native is not None for payload in payloads)
        kind[rows] = ChunkKind.NATIVE
        offset[rows] = _unsigned([ref.offset for ref in native])
        length[rows] = _unsigned([ref.length for ref in native])
        columns["object_id"] = np.zeros((count, ID_BYTES), dtype=np.uint8)
        columns["object_id"][rows] = _decode_ids([bytes(ref.id) for ref in native])
    if virtual:
        rows = _rows(payload.virtual is not None for payload in payloads)
        kind[rows] = ChunkKind.VIRTUAL
        offset[rows] = _unsigned([ref.offset for ref in virtual])
        length[rows] = _unsigned([ref.length for ref in virtual])
        columns |= _decode_virtual(virtual, rows, count)
    if inline:
        rows = _rows(bool(payload.inline) for payload in payloads)
        kind[rows] = ChunkKind.INLINE
        content, sizes = parse_byte_lists(inline)
        offset[rows] = np.cumsum(sizes) - sizes
        length[rows] = sizes
        columns["inline"] = content.tobytes()
    if (kind == ChunkKind.DELETED).any():
        raise FormatError(f"{_WHAT} has an entry that is not exactly one of Inline, Virtual and Ref")
    return ChunkTable(np.empty((count, 0), dtype=np.uint32), kind, offset, length, **columns)


def _decode_virtual(references: Sequence[_Virtual], rows: npt.NDArray[np.intp], count: int) -> dict[str, Any]:
    """The columns of virtual references."""
    coded = pa.array([ref.location for ref in references], pa.large_string()).dictionary_encode()
    columns: dict[str, Any] = {"location": np.full(count, -1, dtype=np.int32)}
    columns["location"][rows] = coded.indices.to_numpy()
    columns["locations"] = string_column(coded.dictionary)
    if any(ref.etag is not None for ref in references):
        etags: dict[str, int] = {}
        columns["etag"] = np.full(count, -1, dtype=np.int32)
        columns["etag"][rows] = [
            -1 if ref.etag is None else etags.setdefault(ref.etag, len(etags)) for ref in references
        ]
        columns["etags"] = list(etags)
    if any(ref.last_modified for ref in references):
        seconds = _unsigned([ref.last_modified or 0 for ref in references])
        if (seconds > 0xFFFFFFFF).any():
            raise FormatError(f"{_WHAT} has a last_modified that is not a number of seconds")
        columns["last_modified"] = np.zeros(count, dtype=np.uint32)
        columns["last_modified"][rows] = seconds
    return columns


def _rows(present: Iterable[bool]) -> npt.NDArray[np.intp]:
    return np.flatnonzero(np.fromiter(present, dtype=bool))


def _unsigned(values: Sequence[int]) -> npt.NDArray[np.uint64]:
    return np.array(values, dtype=np.uint64)


def _decode_ids(texts: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    if all(text[:1] == b"[" for text in texts):
        data, counts = parse_byte_lists(texts)
        if (counts != ID_BYTES).any():
            raise FormatError(f"{_WHAT} has a chunk id that does not have {ID_BYTES} bytes")
        return data.reshape(len(texts), ID_BYTES)
    ids = b"".join(load_id_bytes(msgspec.json.decode(text)) for text in texts)
    return np.frombuffer(ids, dtype=np.uint8).reshape(len(texts), ID_BYTES)


def _take_rows(columns: ChunkTable, coords: npt.NDArray[np.uint32], rows: npt.NDArray[np.intp]) -> ChunkTable:
    def take(column: Any, kind: ChunkKind) -> Any:
        return None if column is None or not (columns.kind[rows] == kind).any() else column[rows]

    return ChunkTable(
        coords=coords,
        kind=columns.kind[rows],
        offset=columns.offset[rows],
        length=columns.length[rows],
        object_id=take(columns.object_id, ChunkKind.NATIVE),
        location=take(columns.location, ChunkKind.VIRTUAL),
        locations=columns.locations,
        etag=take(columns.etag, ChunkKind.VIRTUAL),
        etags=columns.etags,
        last_modified=take(columns.last_modified, ChunkKind.VIRTUAL),
        inline=columns.inline,
    )
