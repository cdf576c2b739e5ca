"""Manifests of any writer, entry by entry: the four shapes that were ever written."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError
from icefloe.formats.repository.rows import ID_TEXT_BYTES
from icefloe.formats.repository.values import (
    WireId,
    WireNodeId,
    decode_or_refuse,
    parse_node_id,
    parse_object_id,
    parse_object_id_bytes,
)
from icefloe.ids import OBJECT_ID_BYTES, NodeId, ObjectId, decode_base32_column
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
    with _without_cycle_search():
        return Manifest(manifest_id, _decode_tables(references))


def _decode_tables(references: msgspec.Raw) -> dict[NodeId, ChunkTable]:
    if _is_flat(references):
        flat = decode_or_refuse(_FLAT, references, "manifest")
        by_wire: dict[WireNodeId, dict[_Coords, _Payload]] = {}
        for (node, coords), payload in flat.items():
            by_wire.setdefault(node, {})[coords] = payload
    else:
        by_wire = decode_or_refuse(_NESTED, references, "manifest")
    by_node = {parse_node_id(node): entries for node, entries in by_wire.items()}
    ranks = _choose_ranks(by_node)
    return {node: _make_table(by_node[node], rank) for node, rank in ranks.items()}


_pauses = threading.Lock()
_paused = 0


def _resume_in_child() -> None:
    # The threads that paused the search are those of the parent.
    global _pauses, _paused
    if _paused:
        gc.enable()
    _pauses, _paused = threading.Lock(), 0


os.register_at_fork(after_in_child=_resume_in_child)


@contextlib.contextmanager
def _without_cycle_search() -> Iterator[None]:
    """No search for cycles while millions of values are made that have none: it would take most of the time."""
    global _paused
    with _pauses:
        if _paused == 0 and not gc.isenabled():
            resume = False
        else:
            resume = True
            _paused += 1
            gc.disable()
    try:
        yield
    finally:
        if resume:
            with _pauses:
                _paused -= 1
                if _paused == 0:
                    gc.enable()


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
    keys = [coords for coords in entries if len(coords) == rank]
    payloads = list(entries.values()) if len(keys) == len(entries) else [entries[coords] for coords in keys]
    try:
        flat = np.fromiter(chain.from_iterable(keys), dtype=np.int64, count=len(keys) * rank)
        coords = flat.reshape(len(keys), rank)
        if coords.size and (int(coords.min()) < 0 or int(coords.max()) > _MAX_COORD):
            raise FormatError("a manifest holds chunk coordinates outside 0..2^32-1")
        if rank and not _is_ascending(coords):
            order = np.lexsort(coords.T[::-1])
            coords, payloads = coords[order], [payloads[row] for row in order.tolist()]
        return _EntryColumns(payloads).finish(coords.astype(np.uint32))
    except (ValueError, TypeError, OverflowError, KeyError, IndexError) as error:
        raise FormatError(f"a manifest holds a reference that cannot be read: {error}") from error


def _is_ascending(coords: npt.NDArray[np.int64]) -> bool:
    ascending = np.zeros(max(len(coords) - 1, 0), dtype=np.bool_)
    for dimension in range(coords.shape[1] - 1, -1, -1):
        column = coords[:, dimension]
        ascending &= column[1:] == column[:-1]
        ascending |= column[1:] > column[:-1]
    return bool(ascending.all())


_KINDS = {"Inline": ChunkKind.INLINE, "Ref": ChunkKind.NATIVE, "Virtual": ChunkKind.VIRTUAL}


class _EntryColumns:
    """Columns from payloads, kind by kind; ValueError, TypeError and the like for payloads that are none."""

    def __init__(self, payloads: list[_Payload]) -> None:
        count = len(payloads)
        self._kind = np.fromiter((_KINDS[name] for (name,) in payloads), dtype=np.uint8, count=count)
        self._offset = np.zeros(count, dtype=np.uint64)
        self._length = np.zeros(count, dtype=np.uint64)
        self._object_id: npt.NDArray[np.uint8] | None = None
        self._location: npt.NDArray[np.int32] | None = None
        self._locations: dict[str, int] = {}
        self._etag = np.full(count, -1, dtype=np.int32)
        self._etags: dict[str, int] = {}
        self._modified = np.zeros(count, dtype=np.uint32)
        self._inline = b""
        takers = {"Inline": self._take_inline, "Ref": self._take_native, "Virtual": self._take_virtual}
        for name, take in takers.items():
            rows = np.flatnonzero(self._kind == _KINDS[name])
            if len(rows):
                take(rows, [payloads[row][name] for row in rows.tolist()])

    def _take_inline(self, rows: npt.NDArray[np.int64], values: list[Any]) -> None:
        sizes = np.fromiter(map(len, values), dtype=np.uint64, count=len(values))
        self._inline = b"".join(values)
        self._offset[rows] = np.cumsum(sizes) - sizes
        self._length[rows] = sizes

    def _take_native(self, rows: npt.NDArray[np.int64], values: list[Any]) -> None:
        ids, offsets, lengths = zip(*values, strict=True)
        self._offset[rows] = np.array(offsets, dtype=np.uint64)
        self._length[rows] = np.array(lengths, dtype=np.uint64)
        self._object_id = np.zeros((len(self._kind), OBJECT_ID_BYTES), dtype=np.uint8)
        if all(isinstance(i, str) and len(i) == ID_TEXT_BYTES for i in ids):
            text = np.frombuffer("".join(ids).encode("ascii"), dtype=np.uint8).reshape(len(ids), ID_TEXT_BYTES)
            self._object_id[rows] = decode_base32_column(text, OBJECT_ID_BYTES)
        else:
            joined = b"".join(map(parse_object_id_bytes, ids))
            self._object_id[rows] = np.frombuffer(joined, dtype=np.uint8).reshape(len(ids), OBJECT_ID_BYTES)

    def _take_virtual(self, rows: npt.NDArray[np.int64], values: list[Any]) -> None:
        self._location = np.full(len(self._kind), -1, dtype=np.int32)
        self._offset[rows] = np.array([value[1] for value in values], dtype=np.uint64)
        self._length[rows] = np.array([value[2] for value in values], dtype=np.uint64)
        known = self._locations
        codes = [known.setdefault(_parse_location(value[0]), len(known)) for value in values]
        self._location[rows] = np.array(codes, dtype=np.int32)
        for row, value in zip(rows.tolist(), values, strict=True):
            if len(value) > 3 and value[3] is not None:
                self._take_checksum(row, value[3])

    def _take_checksum(self, row: int, checksum: Any) -> None:
        if not isinstance(checksum, dict):
            raise ValueError(f"a checksum is {checksum!r:.40}")
        ((name, seal),) = checksum.items()
        if name == "ETag" and isinstance(seal, str):
            self._etag[row] = self._etags.setdefault(seal, len(self._etags))
        elif name == "LastModified" and isinstance(seal, int):
            self._modified[row] = seal
        else:
            raise ValueError(f"unknown checksum {name!r:.40}")

    def finish(self, coords: npt.NDArray[np.uint32]) -> ChunkTable:
        return ChunkTable(
            coords,
            self._kind,
            self._offset,
            self._length,
            self._object_id,
            self._location,
            list(self._locations),
            self._etag if self._etags else None,
            list(self._etags),
            self._modified if self._modified.any() else None,
            self._inline,
        )


def _parse_location(wire: Any) -> str:
    """A location, plain or as the earliest writers wrapped it."""
    if isinstance(wire, dict) and len(wire) == 1:
        wire = wire["Absolute"]
    if not isinstance(wire, str):
        raise ValueError(f"a virtual reference to {wire!r:.80}")
    return wire
