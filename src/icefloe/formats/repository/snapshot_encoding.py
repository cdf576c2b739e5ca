"""A snapshot as bytes, in the layout of nine members."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.formats.repository.documents import AS_ZARR, Kept, Taken, take_apart
from icefloe.formats.repository.history import DOCUMENTS, encode_history, encode_properties
from icefloe.formats.repository.values import MALFORMED, format_time
from icefloe.ids import encode_base32_all
from icefloe.model.nodes import ArrayNode, Extents, Node
from icefloe.model.snapshot import Snapshot

FILE_VERSION = 1
_ENCODER = msgspec.msgpack.Encoder()
_MAX_TOTAL = 2**32 - 1
_MAX_SHORT = 2**16 - 1


def encode_snapshot_body(snapshot: Snapshot) -> bytes:
    """The MessagePack body of a snapshot file."""
    kept: dict[str, Kept] = {}
    ids = encode_base32_all([node.id for node in snapshot.nodes.values()])
    nodes = {
        path: _encode_node(node_id, path, node, kept)
        for node_id, (path, node) in zip(ids, snapshot.nodes.items(), strict=True)
    }
    total = len(snapshot.history) if snapshot.total_ancestors is None else snapshot.total_ancestors
    written_at = format_time(snapshot.written_at)
    try:
        properties = encode_properties(snapshot)
        properties[DOCUMENTS] = kept
        return _ENCODER.encode(
            [
                [[info.id, FILE_VERSION, info.size_bytes] for info in snapshot.manifests.values()],
                [[attributes_id, FILE_VERSION] for attributes_id in snapshot.attribute_files],
                min(total, _MAX_TOTAL),
                min(len(snapshot.history), _MAX_SHORT),
                encode_history(snapshot),
                [snapshot.id, written_at, snapshot.message],
                format_time(snapshot.started_at) if snapshot.started_at else written_at,
                properties,
                nodes,
            ]
        )
    except MALFORMED as error:
        raise InvalidInputError(
            f"the message or metadata of snapshot {snapshot.id} cannot be stored: {error}; metadata holds JSON values"
        ) from error


def _encode_node(node_id: str, path: str, node: Node, kept: dict[str, Kept]) -> msgspec.Raw:
    taken = _DOCUMENTS.take_apart(node.document)
    if taken.kept != AS_ZARR:
        kept[path] = taken.kept
    attributes: Any = None
    if node.attributes is not None:
        attributes = {"Ref": [node.attributes.object_id, node.attributes.row]}
    elif taken.attributes != b"\xc0":
        attributes = {"Inline": msgspec.Raw(taken.attributes)}
    data: Any = "Group"
    if isinstance(node, ArrayNode):
        if taken.zarr is None:
            raise InvalidInputError(f"the document of array {path} is that of a group")
        manifests = [[ref.manifest_id, _encode_extents(ref.extents)] for ref in node.manifests]
        data = {"Array": [msgspec.Raw(taken.zarr), manifests]}
    return msgspec.Raw(_ENCODER.encode((node_id, path, attributes, data)))


def _encode_extents(extents: Extents) -> list[list[int]]:
    return [[first for first, _ in extents], [end for _, end in extents]] if extents else []


class _TakenDocuments:
    """Documents taken apart before: most of a snapshot's are those of the one before it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._held: OrderedDict[bytes, Taken] = OrderedDict()
        self._lock = threading.Lock()

    def take_apart(self, document: bytes) -> Taken:
        with self._lock:
            taken = self._held.get(document)
            if taken is not None:
                self._held.move_to_end(document)
                return taken
        taken = take_apart(document)
        with self._lock:
            if document not in self._held:
                self._held[document] = taken
                self._bytes += 2 * len(document)
                while self._bytes > self._limit_bytes:
                    self._bytes -= 2 * len(self._held.popitem(last=False)[0])
        return taken


_DOCUMENTS = _TakenDocuments(64 << 20)
