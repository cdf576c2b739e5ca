"""What a snapshot keeps of its ancestors, and of itself, under reserved keys of its properties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from icefloe.formats.repository.values import format_time, parse_object_id, parse_time
from icefloe.ids import ObjectId
from icefloe.model.snapshot import Snapshot, SnapshotInfo

HISTORY, PARENTS, METADATA = "icefloe.history", "icefloe.parents", "icefloe.metadata"
DOCUMENTS, MANIFESTS = "icefloe.documents", "icefloe.manifests"
RESERVED = frozenset({HISTORY, PARENTS, METADATA, DOCUMENTS, MANIFESTS})

MAX_HISTORY = 32
"""Ancestors that a snapshot of ours quotes; the walk goes on in the file of the last one."""
_MAX_METADATA_BYTES = 1024


class MetadataElsewhere(Mapping[str, Any]):
    """Stands for the metadata of an ancestor that is too large to be quoted: it is in the ancestor's own file."""

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def encode_properties(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot's own metadata, and what the history members cannot say."""
    properties = {key: value for key, value in snapshot.metadata.items() if key not in RESERVED}
    if len(properties) < len(snapshot.metadata):
        properties[METADATA] = {key: value for key, value in snapshot.metadata.items() if key in RESERVED}
    quoted: dict[ObjectId, Any] = {}
    for entry in snapshot.history:
        if isinstance(entry.metadata, MetadataElsewhere):
            quoted[entry.id] = None
        elif entry.metadata:
            packed = msgspec.msgpack.encode(entry.metadata)
            quoted[entry.id] = msgspec.Raw(packed) if len(packed) <= _MAX_METADATA_BYTES else None
    if quoted:
        properties[HISTORY] = quoted
    chain = [(snapshot.id, snapshot.parent_id), *((entry.id, entry.parent_id) for entry in snapshot.history)]
    following = [entry.id for entry in snapshot.history] + [None]
    parents = {child: parent for (child, parent), next_id in zip(chain, following, strict=True) if parent != next_id}
    if parents:
        properties[PARENTS] = parents
    properties[MANIFESTS] = [info.num_chunk_refs for info in snapshot.manifests.values()]
    return properties


def encode_history(snapshot: Snapshot) -> list[list[str]]:
    """The quoted ancestors as [id, time, message], newest first."""
    return [[entry.id, format_time(entry.written_at), entry.message] for entry in snapshot.history]


def decode_history(wire: list[Any], properties: Mapping[str, Any]) -> tuple[SnapshotInfo, ...]:
    """The quoted ancestors; the parent of each is the next one, unless said otherwise."""
    quoted = _mapping(properties.get(HISTORY))
    parents = _mapping(properties.get(PARENTS))
    ids = [parse_object_id(entry[0]) for entry in wire]
    entries = []
    for index, (wire_id, written_at, message) in enumerate(wire):
        del wire_id
        own = ids[index]
        following = ids[index + 1] if index + 1 < len(ids) else None
        metadata = quoted.get(own, {})
        entries.append(
            SnapshotInfo(
                own,
                parent_or(parents, own, following),
                parse_time(written_at),
                message,
                MetadataElsewhere() if metadata is None else _mapping(metadata),
            )
        )
    return tuple(entries)


def parent_or(parents: Mapping[str, Any], child: ObjectId, default: ObjectId | None) -> ObjectId | None:
    """The recorded parent of a snapshot, or the default where none is recorded."""
    if child not in parents:
        return default
    return None if parents[child] is None else parse_object_id(parents[child])


def decode_metadata(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot's own metadata, without reserved keys."""
    own = {key: value for key, value in properties.items() if key not in RESERVED}
    return own | dict(_mapping(properties.get(METADATA)))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
