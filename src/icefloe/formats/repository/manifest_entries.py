"""Manifests of any writer, entry by entry: the four shapes that were ever written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError
from icefloe.formats.repository.values import (
    WireId,
    WireNodeId,
    decode_or_refuse,
    parse_node_id,
    parse_object_id,
    parse_object_id_bytes,
)
from icefloe.ids import OBJECT_ID_BYTES, NodeId, ObjectId
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.snapshot import Manifest

_Coords: TypeAlias = tuple[int, ...]
_Member: TypeAlias = str | int | dict[str, str | int] | tuple[bytes, tuple[Any, ...]] | None
_Payload: TypeAlias = dict[str, bytes | tuple[_Member, ...]]

_FLAT = msgspec.msgpack.Decoder(dict[tuple[WireNodeId, _Coords], _Payload])
_NESTED = msgspec.msgpack.Decoder(dict[WireNodeId, dict[_Coords, _Payload]])
_ID = msgspec.msgpack.Decoder(WireId)
_PARTS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_MAX_COORD = 2**32 - 1


def decode_entries(body: bytes) -> Manifest:
    """The manifest of a body, of whichever shape it is; its id is empty where the shape does not hold one."""
    manifest_id, references = _take_parts(body)
    if _is_flat(references):
        flat = decode_or_refuse(_FLAT, references, "manifest")
        by_node: dict[NodeId, dict[_Coords, _Payload]] = {}
        for (node, coords), payload in flat.items():
            by_node.setdefault(parse_node_id(node), {})[coords] = payload
    else:
        nested = decode_or_refuse(_NESTED, references, "manifest")
        by_node = {parse_node_id(node): entries for node, entries in nested.items()}
    ranks = _choose_ranks(by_node)
    return Manifest(manifest_id, {node: _make_table(by_node[node], rank) for node, rank in ranks.items()})


def _take_parts(body: bytes) -> tuple[ObjectId, msgspec.Raw]:
    """Id and references of [version, flags, references], [version, flags, id, references] or [id, references]."""
    if not body or body[0] not in (0x92, 0x93, 0x94):
        raise FormatError(
            f"not a manifest: the body starts with {body[:8].hex() or 'nothing'}, "
            "expected a MessagePack array of 2 to 4"
        )
    *first, references = decode_or_refuse(_PARTS, body, "manifest")
    if len(first) == 2:
        return "", references
    return parse_object_id(decode_or_refuse(_ID, first[-1], "manifest")), references


def _is_flat(references: msgspec.Raw) -> bool:
    """Whether keys are [node, coords] (else they are nodes), by the first key."""
    data = memoryview(references)
    head = {0xDE: 3, 0xDF: 5}.get(data[0], 1)
    key = bytes(data[head : head + 2])
    # A binary node id is itself an array of two, of bytes and an empty array.
    return key[:1] == b"\x92" and key[1:] not in (b"\xc4", b"\xc5")


def _choose_ranks(by_node: Mapping[NodeId, Mapping[_Coords, _Payload]]) -> dict[NodeId, int]:
    """The rank of every array.

    Some early files hold references that were copied from other arrays, even of another rank, beside an array's own.
    Where an array has references of several ranks, those that another array holds too are the copies.
    """
    counts = {node: Counter(map(len, entries)) for node, entries in by_node.items() if entries}
    ranks = {node: next(iter(count)) for node, count in counts.items() if len(count) == 1}
    for node, count in counts.items():
        if len(count) == 1:
            continue
        others = [by_node[other] for other in counts if other != node]
        copied = {
            len(coords)
            for coords, payload in by_node[node].items()
            if any(other.get(coords) == payload for other in others)
        }
        own = {rank: number for rank, number in count.items() if rank not in copied} or count
        ranks[node] = max(own, key=lambda rank: (own[rank], rank))
    return ranks


def _make_table(entries: Mapping[_Coords, _Payload], rank: int) -> ChunkTable:
    """Columns of the entries of one array, sorted; those of another rank can never be asked for."""
    keys = sorted(coords for coords in entries if len(coords) == rank)
    try:
        coords = np.array(keys, dtype=np.int64).reshape(len(keys), rank)
        columns = _EntryColumns(len(keys))
        for index, key in enumerate(keys):
            columns.add(index, entries[key])
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        raise FormatError(f"a manifest holds a reference that cannot be read: {error}") from error
    if coords.size and (int(coords.min()) < 0 or int(coords.max()) > _MAX_COORD):
        raise FormatError("a manifest holds chunk coordinates outside 0..2^32-1")
    return columns.finish(coords.astype(np.uint32))


class _EntryColumns:
    """Columns that grow by entries."""

    def __init__(self, count: int) -> None:
        self._kind = bytearray(count)
        self._offset = [0] * count
        self._length = [0] * count
        self._ids = bytearray()
        self._id_rows: list[int] = []
        self._location = np.full(count, -1, dtype=np.int32)
        self._locations: dict[str, int] = {}
        self._etag = np.full(count, -1, dtype=np.int32)
        self._etags: dict[str, int] = {}
        self._modified = np.zeros(count, dtype=np.uint32)
        self._inline = bytearray()

    def add(self, row: int, payload: _Payload) -> None:
        ((name, value),) = payload.items()
        if name == "Ref":
            chunk_id, self._offset[row], self._length[row] = value  # type: ignore[assignment]
            self._kind[row] = ChunkKind.NATIVE
            self._ids += parse_object_id_bytes(chunk_id)
            self._id_rows.append(row)
        elif name == "Virtual":
            self._add_virtual(row, value)
        elif name == "Inline" and isinstance(value, bytes):
            self._kind[row] = ChunkKind.INLINE
            self._offset[row], self._length[row] = len(self._inline), len(value)
            self._inline += value
        else:
            raise ValueError(f"unknown kind of reference {name!r:.40}")

    def _add_virtual(self, row: int, value: Any) -> None:
        location, self._offset[row], self._length[row], *rest = value
        if isinstance(location, dict):
            location = location["Absolute"] if len(location) == 1 and "Absolute" in location else None
        if not isinstance(location, str):
            raise ValueError(f"a virtual reference to {value[0]!r:.80}")
        self._kind[row] = ChunkKind.VIRTUAL
        self._location[row] = self._locations.setdefault(location, len(self._locations))
        checksum = rest[0] if rest else None
        if checksum is None:
            return
        ((name, seal),) = checksum.items()
        if name == "ETag" and isinstance(seal, str):
            self._etag[row] = self._etags.setdefault(seal, len(self._etags))
        elif name == "LastModified" and isinstance(seal, int):
            self._modified[row] = seal
        else:
            raise ValueError(f"unknown checksum {name!r:.40}")

    def finish(self, coords: npt.NDArray[np.uint32]) -> ChunkTable:
        object_id = None
        if self._id_rows:
            object_id = np.zeros((len(self._kind), OBJECT_ID_BYTES), dtype=np.uint8)
            object_id[self._id_rows] = np.frombuffer(bytes(self._ids), dtype=np.uint8).reshape(-1, OBJECT_ID_BYTES)
        return ChunkTable(
            coords,
            np.frombuffer(bytes(self._kind), dtype=np.uint8),
            _unsigned(self._offset),
            _unsigned(self._length),
            object_id,
            self._location if self._locations else None,
            list(self._locations),
            self._etag if self._etags else None,
            list(self._etags),
            self._modified if self._modified.any() else None,
            bytes(self._inline),
        )


def _unsigned(values: list[int]) -> npt.NDArray[np.uint64]:
    try:
        return np.array(values, dtype=np.uint64)
    except (OverflowError, TypeError, ValueError) as error:
        raise FormatError(f"a manifest holds an offset or length that is no number from 0 on: {error}") from error
