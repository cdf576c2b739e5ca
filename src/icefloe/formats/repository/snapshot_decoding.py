"""A snapshot from bytes: the layouts of eleven, nine and eight members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from icefloe.errors import FormatError
from icefloe.formats.repository.documents import Kept
from icefloe.formats.repository.history import (
    DOCUMENTS,
    MANIFESTS,
    PARENTS,
    decode_history,
    decode_metadata,
    parent_or,
)
from icefloe.formats.repository.node_map import NodeMap
from icefloe.formats.repository.values import (
    WireId,
    are_canonical_ids,
    decode_or_refuse,
    parse_object_id,
    parse_time,
)
from icefloe.ids import ObjectId
from icefloe.model.snapshot import ManifestFileInfo, Snapshot

_PARTS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_NODES = dict[str, msgspec.Raw]
_FILES = list[tuple[WireId | int, ...]]
_WITH_HISTORY = msgspec.msgpack.Decoder(
    tuple[
        _FILES,
        _FILES,
        int,
        int,
        list[tuple[WireId, str, str]],
        tuple[WireId, str, str],
        str,
        dict[str, Any],
        _NODES,
    ]
)
_WITH_PARENT = msgspec.msgpack.Decoder(
    tuple[WireId, WireId | None, str, str, dict[str, Any], _FILES, _FILES, _NODES],
)
_LENGTHS = {0x9B: 11, 0x99: 9, 0x98: 8}


def decode_snapshot_body(body: bytes) -> Snapshot:
    """The snapshot of a MessagePack body, of whichever sub-generation it is."""
    length = _LENGTHS.get(body[0]) if body else None
    if length is None:
        raise FormatError(
            f"not a snapshot: the body starts with {body[:8].hex() or 'nothing'}, "
            "expected a MessagePack array of 8, 9 or 11"
        )
    if length == 8:
        return _decode_with_parent(body)
    if length == 11:
        # Format version and flags stood in front before there was a header.
        parts = decode_or_refuse(_PARTS, body, "snapshot")
        body = b"\x99" + b"".join(memoryview(part) for part in parts[2:])
    return _decode_with_history(body)


def _decode_with_history(body: bytes) -> Snapshot:
    files, attribute_files, total, _, history, own, started_at, properties, nodes = decode_or_refuse(
        _WITH_HISTORY, body, "snapshot"
    )
    snapshot_id = parse_object_id(own[0])
    ancestors = decode_history(history, properties)
    parents = properties.get(PARENTS)
    counts = properties.get(MANIFESTS)
    kept = properties.get(DOCUMENTS)
    return Snapshot(
        id=snapshot_id,
        parent_id=parent_or(
            parents if isinstance(parents, dict) else {}, snapshot_id, ancestors[0].id if ancestors else None
        ),
        written_at=parse_time(own[1]),
        message=own[2],
        metadata=decode_metadata(properties),
        nodes=NodeMap(nodes, _check_kept(kept)),
        manifests=_decode_files(files, counts if isinstance(counts, list) else [], size_at=2),
        attribute_files=_decode_attribute_files(attribute_files),
        history=ancestors,
        total_ancestors=max(total, len(ancestors)),
        started_at=parse_time(started_at),
    )


def _decode_with_parent(body: bytes) -> Snapshot:
    wire_id, parent, flushed_at, message, metadata, files, attribute_files, nodes = decode_or_refuse(
        _WITH_PARENT, body, "snapshot"
    )
    return Snapshot(
        id=parse_object_id(wire_id),
        parent_id=None if parent is None else parse_object_id(parent),
        written_at=parse_time(flushed_at),
        message=message,
        metadata=metadata,
        nodes=NodeMap(nodes, None),
        manifests=_decode_files(files, [], size_at=1),
        attribute_files=_decode_attribute_files(attribute_files),
    )


def _decode_files(wire: list[tuple[Any, ...]], counts: list[Any], size_at: int) -> dict[ObjectId, ManifestFileInfo]:
    """[id, version (, size (, references))], or in the last layout [id, size, references]."""
    usual = _decode_usual_files(wire, counts) if size_at == 2 else None
    if usual is not None:
        return usual
    files = {}
    for index, members in enumerate(wire):
        if not 2 <= len(members) <= 4 or not all(isinstance(m, int) for m in members[1:]):
            raise FormatError(f"a snapshot names a manifest file as {members!r:.120}")
        manifest_id = parse_object_id(members[0])
        sizes = members[2:] if len(members) != 3 else members[size_at:]
        size, count = (*sizes, 0, 0)[:2]
        if index < len(counts) and isinstance(counts[index], int):
            count = counts[index]
        files[manifest_id] = ManifestFileInfo(manifest_id, size, count)
    return files


def _decode_usual_files(wire: list[tuple[Any, ...]], counts: list[Any]) -> dict[ObjectId, ManifestFileInfo] | None:
    """The same for entries as this library writes them, looked at together; None when one is not such an entry."""
    if not wire or len(counts) != len(wire) or set(map(len, wire)) != {3}:
        return None
    ids, versions, sizes = zip(*wire, strict=True)
    if set(map(type, ids)) != {str} or {*map(type, versions), *map(type, sizes), *map(type, counts)} != {int}:
        return None
    if not are_canonical_ids(ids):
        return None
    return {key: ManifestFileInfo(key, size, count) for key, size, count in zip(ids, sizes, counts, strict=True)}


def _decode_attribute_files(wire: list[tuple[Any, ...]]) -> tuple[ObjectId, ...]:
    return tuple(parse_object_id(members[0] if members else None) for members in wire)


def _check_kept(kept: Any) -> Mapping[str, Kept] | None:
    if kept is None:
        return None
    if not isinstance(kept, dict) or not all(isinstance(value, int | bytes) for value in kept.values()):
        raise FormatError("a snapshot keeps its documents in a form that is not known")
    return kept
