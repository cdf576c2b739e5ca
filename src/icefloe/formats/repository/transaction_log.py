"""Transaction logs: six lists of node ids and the coordinates of the chunks that changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError
from icefloe.formats.repository.chunk_lists import coords_record, encode_chunks
from icefloe.formats.repository.values import MALFORMED, WireNodeId, decode_or_refuse, parse_node_id
from icefloe.ids import NodeId, encode_base32, encode_base32_all
from icefloe.model.nodes import Extents
from icefloe.model.transaction_log import Move, TransactionLog

FILE_VERSION = 1
_PARTS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_IDS = msgspec.msgpack.Decoder(list[WireNodeId])
_CHUNKS = msgspec.msgpack.Decoder(dict[WireNodeId, msgspec.Raw])
_COORDS = msgspec.msgpack.Decoder(list[tuple[int, ...]])
_MOVES = msgspec.msgpack.Decoder(list[tuple[str, str, WireNodeId, bool]])
_BOXES = msgspec.msgpack.Decoder(dict[WireNodeId, list[tuple[tuple[int, int], ...]]])
_MAX_COORD = 2**32 - 1


def encode_log_body(log: TransactionLog) -> bytes:
    """The MessagePack body of a log: eight members, a ninth when nodes were moved, a tenth for boxes of chunks."""
    members: list[Any] = [
        FILE_VERSION,
        _encode_ids(log.new_groups),
        _encode_ids(log.new_arrays),
        _encode_ids(log.deleted_groups),
        _encode_ids(log.deleted_arrays),
        # These two lists are "attributes changed" and "metadata changed" for early readers: arrays have both.
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
    """The log of a MessagePack body: seven members, eight with a version in front, then moves and boxes if any."""
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
        # An array without chunks says nothing, and nothing tells its rank.
        updated_chunks={node: coords for node, coords in chunks.items() if len(coords)},
        moves=() if moves is None else _decode_moves(moves),
        updated_boxes={} if boxes is None else _decode_boxes(boxes),
    )


def _decode_boxes(wire: msgspec.Raw) -> dict[NodeId, tuple[Extents, ...]]:
    found = decode_or_refuse(_BOXES, wire, "transaction log")
    if any(not 0 <= first <= end <= _MAX_COORD + 1 for boxes in found.values() for box in boxes for first, end in box):
        raise FormatError("a transaction log holds a box of chunks outside 0..2^32-1")
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
    """Coordinates written with fixed width, or None when they are not."""
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
        raise FormatError(f"a transaction log holds chunk coordinates that cannot be read: {error}") from error
    if coords.size and (int(coords.min()) < 0 or int(coords.max()) > _MAX_COORD):
        raise FormatError("a transaction log holds chunk coordinates outside 0..2^32-1")
    return coords.astype(np.uint32)
