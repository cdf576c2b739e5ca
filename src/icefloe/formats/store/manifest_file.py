"""Manifest files of the generation `store`: JSON into chunk tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.errors import FormatError
from icefloe.formats.store.code_form import is_code_form, read_manifest
from icefloe.formats.store.integer_text import parse_byte_lists, parse_keys
from icefloe.formats.store.native_text import find_native_tables, is_increasing
from icefloe.formats.store.object_id import ID_BYTES, load_id_bytes, load_object_id
from icefloe.ids import NODE_ID_BYTES, NodeId, encode_base32
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.snapshot import Manifest
from icefloe.model.string_column import string_column

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
    # Raw takes no None beside it: the empty text stands for absent.
    inline: msgspec.Raw = msgspec.field(name="Inline", default=msgspec.Raw(b""))


class _File(msgspec.Struct, gc=False):
    chunks: dict[str, _Payload]
    id: Any = None


_DECODER = msgspec.json.Decoder(_File)


def decode_manifest(data: bytes) -> Manifest:
    """The manifest of a JSON file, or of a MessagePack file of early code.

    Node ids are the node numbers as 8 big-endian bytes.
    """
    if is_code_form(data):
        return Manifest("", read_manifest(data))
    native = find_native_tables(data)
    if native is not None:
        return Manifest(encode_base32(native[0]), native[1])
    try:
        file = _DECODER.decode(data)
        name = "" if file.id is None else load_object_id(file.id)
        return Manifest(name, _decode_chunks(file.chunks))
    except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise FormatError(f"{_WHAT} is not as the format says: {error}") from error


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
    """All payloads as one table whose coordinates are still missing."""
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
    """The columns that only virtual references have."""
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
            raise FormatError(f"{_WHAT} has a last_modified that is no number of seconds")
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
