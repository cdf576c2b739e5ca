"""Transaction logs of the generation `repository`: lists of node ids and coordinates of changed chunks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError
from icefloe.formats.repository.manifest_writer import NODE_TEXT_BYTES, text_header
from icefloe.formats.repository.wire_values import MALFORMED, WireNodeId, decode_or_refuse, parse_node_id
from icefloe.ids import (
    NODE_ID_BYTES,
    NodeId,
    encode_base32,
    encode_base32_all,
    encode_base32_column,
    encode_node_id,
)
from icefloe.model.chunk_table import NO_TABLES
from icefloe.model.snapshot import Extents, Move, TransactionLog, WrittenChunks, WrittenColumns, join_written

Coordinates = npt.NDArray[np.uint32]

_HEAD_BYTES = 1 + NODE_TEXT_BYTES + 5
"""The head of an entry: the text of the node id, and the number of coordinates."""
_FEW_ARRAYS = 8
"""Up to this size, a loop is as fast as a vectorised write."""
_MANY_ROWS = 4096
"""Arrays with more chunks are written one at a time, to limit memory."""


def encode_chunks(chunks: Mapping[NodeId, Coordinates]) -> msgspec.Raw:
    """Encode the entry of every array: arrays with few chunks first, then the others, each ordered by node id."""
    head = b"\xdf" + len(chunks).to_bytes(4, "big")
    if len(chunks) <= _FEW_ARRAYS:
        return msgspec.Raw(b"".join([head, *_encode_alone(dict(chunks))]))
    together, alone = (chunks.together, chunks.alone) if isinstance(chunks, WrittenChunks) else (NO_TABLES, chunks)
    few = {node: coords for node, coords in alone.items() if len(coords) <= _MANY_ROWS}
    many = _encode_alone({node: coords for node, coords in alone.items() if node not in few})
    return msgspec.Raw(b"".join([head, _encode_together(join_written(WrittenChunks(together, few))).data, *many]))


def _encode_alone(chunks: Mapping[NodeId, Coordinates]) -> Iterator[bytes | memoryview]:
    for node, coords in sorted(chunks.items(), key=itemgetter(0)):
        yield text_header(NODE_TEXT_BYTES) + encode_node_id(node) + b"\xdd" + len(coords).to_bytes(4, "big")
        yield _encode_coords(coords).data


def _encode_together(written: WrittenColumns) -> npt.NDArray[np.uint8]:
    """The entries of some arrays, ordered by node id."""
    nodes, counts, ndims, coords = written.nodes, written.counts, written.ndims, written.coords
    sizes = np.array([coords_record(ndim).itemsize for ndim in range(coords.shape[1] + 1)], dtype=np.int64)[ndims]
    entry_bytes = _HEAD_BYTES + counts * sizes
    body = np.empty(int(entry_bytes.sum()), dtype=np.uint8)
    if not nodes:
        return body
    order = np.argsort(np.frombuffer(b"".join(nodes), dtype=">u8"))
    starts = np.empty(len(nodes), dtype=np.int64)
    starts[order] = np.cumsum(entry_bytes[order]) - entry_bytes[order]
    _scatter(body, starts, _heads(nodes, counts))
    within = np.arange(len(coords)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.repeat(starts + _HEAD_BYTES, counts) + within * np.repeat(sizes, counts)
    ranks = np.repeat(ndims, counts)
    for ndim in np.flatnonzero(np.bincount(ndims)).tolist():
        rows = ranks == ndim
        _scatter(body, places[rows], _encode_coords(coords[rows, :ndim]).reshape(-1, coords_record(ndim).itemsize))
    return body


def _scatter(body: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], rows: npt.NDArray[np.uint8]) -> None:
    """Copy rows of bytes to their offsets."""
    if not len(rows):
        return
    size = rows.shape[1]
    # Windows of one row at every byte: assigning to some of them scatters whole rows.
    windows = np.ndarray((len(body) - size + 1,), dtype=f"V{size}", buffer=body.data, strides=(1,))
    windows[starts] = np.ascontiguousarray(rows).view(f"V{size}")[:, 0]


def _heads(nodes: list[NodeId], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    heads = np.empty((len(nodes), _HEAD_BYTES), dtype=np.uint8)
    heads[:, 0] = 0xA0 | NODE_TEXT_BYTES
    ids = np.frombuffer(b"".join(nodes), dtype=np.uint8).reshape(len(nodes), NODE_ID_BYTES)
    heads[:, 1 : 1 + NODE_TEXT_BYTES] = encode_base32_column(ids)
    heads[:, 1 + NODE_TEXT_BYTES] = 0xDD
    heads[:, 2 + NODE_TEXT_BYTES :] = counts.astype(">u4").view(np.uint8).reshape(len(nodes), 4)
    return heads


def _encode_coords(coords: Coordinates) -> npt.NDArray[np.uint8]:
    """Integers of fixed width, so that the list is a matrix of bytes."""
    count, ndim = coords.shape
    rows = np.empty(count, dtype=coords_record(ndim))
    if ndim < 16:
        rows["head"] = 0x90 | ndim
    else:
        rows["head"] = np.void(b"\xdc" + ndim.to_bytes(2, "big"))
    for dimension in range(ndim):
        rows[f"m{dimension}"] = 0xCE
        rows[f"c{dimension}"] = coords[:, dimension]
    return rows.view(np.uint8)


@functools.cache
def coords_record(ndim: int) -> np.dtype[Any]:
    """The encoding of one row of coordinates."""
    members: list[tuple[str, str]] = [("head", "u1" if ndim < 16 else "V3")]
    for dimension in range(ndim):
        members += [(f"m{dimension}", "u1"), (f"c{dimension}", ">u4")]
    return np.dtype(members)


FILE_VERSION = 1
_PARTS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_IDS = msgspec.msgpack.Decoder(list[WireNodeId])
_CHUNKS = msgspec.msgpack.Decoder(dict[WireNodeId, msgspec.Raw])
_COORDS = msgspec.msgpack.Decoder(list[tuple[int, ...]])
_MOVES = msgspec.msgpack.Decoder(list[tuple[str, str, WireNodeId, bool]])
_BOXES = msgspec.msgpack.Decoder(dict[WireNodeId, list[tuple[tuple[int, int], ...]]])
_MAX_COORD = 2**32 - 1


def encode_log_body(log: TransactionLog) -> bytes:
    """Encode a log as MessagePack: eight members, a ninth if nodes were moved, a tenth for boxes of chunks."""
    members: list[Any] = [
        FILE_VERSION,
        _encode_ids(log.new_groups),
        _encode_ids(log.new_arrays),
        _encode_ids(log.deleted_groups),
        _encode_ids(log.deleted_arrays),
        # Early readers read these two lists as "attributes changed" and "metadata changed". Arrays are in both.
        _encode_ids(log.updated_groups),
        _encode_ids(log.updated_arrays),
        encode_chunks(log.updated_chunks),
    ]
    if log.moves or log.updated_boxes:
        members.append([[m.from_path, m.to_path, encode_base32(m.node_id), m.is_array] for m in log.moves])
    if log.updated_boxes:
        members.append({encode_base32(node): list(boxes) for node, boxes in sorted(log.updated_boxes.items())})
    return msgspec.msgpack.encode(members)


def _encode_ids(ids: Iterable[NodeId]) -> list[str]:
    return encode_base32_all(sorted(ids))


def decode_log_body(body: bytes) -> TransactionLog:
    """Decode a log: seven members, or eight with a version first, then moves and boxes if there are any."""
    if not body or body[0] not in (0x97, 0x98, 0x99, 0x9A):
        raise FormatError(
            f"not a transaction log: the body starts with {body[:8].hex() or 'nothing'}, "
            "expected a MessagePack array of 7 to 10"
        )
    parts = decode_or_refuse(_PARTS, body, "transaction log")
    moves = parts[8] if len(parts) > 8 else None
    boxes = parts[9] if len(parts) > 9 else None
    if len(parts) > 7:
        parts = parts[1:8]
    lists = [decode_or_refuse(_IDS, part, "transaction log") for part in parts[:6]]
    sets = [frozenset(parse_node_id(wire) for wire in ids) for ids in lists]
    wire_chunks = decode_or_refuse(_CHUNKS, parts[6], "transaction log")
    chunks = {parse_node_id(node): _decode_coords(memoryview(raw)) for node, raw in wire_chunks.items()}
    return TransactionLog(
        new_groups=sets[0],
        new_arrays=sets[1],
        deleted_groups=sets[2],
        deleted_arrays=sets[3],
        # Early writers list new nodes here as well.
        updated_groups=sets[4] - sets[0] - sets[1],
        updated_arrays=sets[5] - sets[0] - sets[1],
        # An array without chunks has no entry, because its rank is not known.
        updated_chunks={node: coords for node, coords in chunks.items() if len(coords)},
        moves=() if moves is None else _decode_moves(moves),
        updated_boxes={} if boxes is None else _decode_boxes(boxes),
    )


def _decode_boxes(wire: msgspec.Raw) -> dict[NodeId, tuple[Extents, ...]]:
    found = decode_or_refuse(_BOXES, wire, "transaction log")
    if any(not 0 <= first <= end <= _MAX_COORD + 1 for boxes in found.values() for box in boxes for first, end in box):
        raise FormatError("a transaction log contains a box of chunks outside of 0..2^32-1")
    return {parse_node_id(node): tuple(boxes) for node, boxes in found.items()}


def _decode_moves(wire: msgspec.Raw) -> tuple[Move, ...]:
    moves = decode_or_refuse(_MOVES, wire, "transaction log")
    return tuple(Move(source, target, parse_node_id(node), is_array) for source, target, node, is_array in moves)


def _decode_coords(data: memoryview) -> npt.NDArray[np.uint32]:
    """Coordinates as sorted unique rows."""
    coords = _view_coords(data)
    if coords is None:
        coords = _parse_coords(data)
    if len(coords) < 2 or not coords.shape[1]:
        return coords[:1]
    order = np.lexsort(coords.T[::-1])
    ordered = coords[order]
    keep = np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])
    unique: npt.NDArray[np.uint32] = ordered[keep]
    return unique


def _view_coords(data: memoryview) -> npt.NDArray[np.uint32] | None:
    """Decode coordinates of fixed width. None if they do not have one."""
    if len(data) < 6 or data[0] != 0xDD or data[5] & 0xF0 != 0x90:
        return None
    count, ndim = int.from_bytes(data[1:5], "big"), data[5] & 0x0F
    record = coords_record(ndim)
    if count * record.itemsize != len(data) - 5:
        return None
    rows = np.frombuffer(data, dtype=record, offset=5)
    coords = np.empty((count, ndim), dtype=np.uint32)
    if (rows["head"] != data[5]).any():
        return None
    for dimension in range(ndim):
        if (rows[f"m{dimension}"] != 0xCE).any():
            return None
        coords[:, dimension] = rows[f"c{dimension}"]
    return coords


def _parse_coords(data: memoryview) -> npt.NDArray[np.uint32]:
    try:
        rows = _COORDS.decode(data)
        ndim = len(rows[0]) if rows else 0
        coords = np.array(rows, dtype=np.int64).reshape(len(rows), ndim)
    except MALFORMED as error:
        raise FormatError(f"a transaction log contains chunk coordinates that cannot be read: {error}") from error
    if coords.size and (int(coords.min()) < 0 or int(coords.max()) > _MAX_COORD):
        raise FormatError("a transaction log contains chunk coordinates outside of 0..2^32-1")
    return coords.astype(np.uint32)
