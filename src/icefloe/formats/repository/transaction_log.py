"""Transaction logs: six lists of node ids and the coordinates of the chunks that changed."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError
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
        _encode_chunks(log.updated_chunks),
    ]
    if log.moves or log.updated_boxes:
        members.append([[m.from_path, m.to_path, encode_base32(m.node_id), m.is_array] for m in log.moves])
    if log.updated_boxes:
        members.append({encode_base32(node): list(boxes) for node, boxes in sorted(log.updated_boxes.items())})
    return msgspec.msgpack.encode(members)


def _encode_ids(ids: Iterable[NodeId]) -> list[str]:
    return encode_base32_all(sorted(ids))


def _encode_chunks(chunks: Mapping[NodeId, npt.NDArray[np.uint32]]) -> dict[str, msgspec.Raw]:
    """The coordinates of every array; arrays of one rank are encoded together."""
    nodes = sorted(chunks)
    by_rank: dict[int, list[NodeId]] = defaultdict(list)
    for node in nodes:
        by_rank[chunks[node].shape[1]].append(node)
    encoded: dict[NodeId, msgspec.Raw] = {}
    for ndim, alike in by_rank.items():
        counts = [len(chunks[node]) for node in alike]
        rows = memoryview(_encode_coords(np.concatenate([chunks[node] for node in alike])))
        size = _coords_record(ndim).itemsize
        end = 0
        for node, count in zip(alike, counts, strict=True):
            start, end = end, end + count * size
            encoded[node] = msgspec.Raw(b"\xdd" + count.to_bytes(4, "big") + rows[start:end])
    return {text: encoded[node] for text, node in zip(encode_base32_all(nodes), nodes, strict=True)}


def _encode_coords(coords: npt.NDArray[np.uint32]) -> bytes:
    """Integers of fixed width, so that the list is a matrix of bytes."""
    count, ndim = coords.shape
    rows = np.empty(count, dtype=_coords_record(ndim))
    if ndim < 16:
        rows["head"] = 0x90 | ndim
    else:
        rows["head"] = np.void(b"\xdc" + ndim.to_bytes(2, "big"))
    for dimension in range(ndim):
        rows[f"m{dimension}"] = 0xCE
        rows[f"c{dimension}"] = coords[:, dimension]
    return rows.tobytes()


@functools.cache
def _coords_record(ndim: int) -> np.dtype[Any]:
    members: list[tuple[str, str]] = [("head", "u1" if ndim < 16 else "V3")]
    for dimension in range(ndim):
        members += [(f"m{dimension}", "u1"), (f"c{dimension}", ">u4")]
    return np.dtype(members)


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
    chunks = decode_or_refuse(_CHUNKS, parts[6], "transaction log")
    return TransactionLog(
        new_groups=sets[0],
        new_arrays=sets[1],
        deleted_groups=sets[2],
        deleted_arrays=sets[3],
        # Early writers list new nodes here as well.
        updated_groups=sets[4] - sets[0] - sets[1],
        updated_arrays=sets[5] - sets[0] - sets[1],
        updated_chunks={parse_node_id(node): _decode_coords(memoryview(raw)) for node, raw in chunks.items()},
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
    record = _coords_record(ndim)
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
