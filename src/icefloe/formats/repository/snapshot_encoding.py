"""A snapshot as bytes, in the layout of nine members."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from icefloe.blocking import fork_safe_lock
from icefloe.errors import InvalidInputError
from icefloe.formats.repository.documents import AS_ZARR, Kept, Taken, take_apart
from icefloe.formats.repository.history import DOCUMENTS, encode_history, encode_properties
from icefloe.formats.repository.rows import NODE_TEXT_BYTES, map_mark, text_mark
from icefloe.formats.repository.values import MALFORMED, format_time
from icefloe.ids import encode_base32_all
from icefloe.model.nodes import ArrayNode, Extents, ManifestRef, Node
from icefloe.model.snapshot import Snapshot

FILE_VERSION = 1
_ENCODER = msgspec.msgpack.Encoder()
_MAX_TOTAL = 2**32 - 1
_MAX_SHORT = 2**16 - 1

_NODE_HEAD = b"\x94" + text_mark(NODE_TEXT_BYTES)
_NIL, _INLINE = b"\xc0", b"\x81" + text_mark(6) + b"Inline"
_GROUP, _ARRAY = text_mark(5) + b"Group", b"\x81" + text_mark(5) + b"Array\x92"


def encode_snapshot_body(snapshot: Snapshot) -> bytes:
    """The MessagePack body of a snapshot file."""
    kept: dict[str, Kept] = {}
    nodes = _encode_nodes(snapshot.nodes, kept)
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


def _encode_nodes(nodes: Mapping[str, Node], kept: dict[str, Kept]) -> msgspec.Raw:
    """The map of nodes by path, put together from pieces that most nodes share with others."""
    ids = encode_base32_all([node.id for node in nodes.values()])
    documents: dict[bytes, Taken] = {}
    links = _Links()
    parts = [map_mark(len(nodes))]
    for node_id, (path, node) in zip(ids, nodes.items(), strict=True):
        taken = documents.get(node.document)
        if taken is None:
            taken = documents[node.document] = _DOCUMENTS.take_apart(node.document)
        if taken.kept != AS_ZARR:
            kept[path] = taken.kept
        encoded = path.encode()
        text = text_mark(len(encoded)) + encoded
        # Key, and a list of four: id, path, attributes, and what is a group's or an array's own.
        parts += (text, _NODE_HEAD, node_id.encode(), text, _encode_attributes(node, taken))
        if not isinstance(node, ArrayNode):
            parts.append(_GROUP)
        elif taken.zarr is None:
            raise InvalidInputError(f"the document of array {path} is that of a group")
        else:
            parts += (_ARRAY, taken.zarr, links.encode(node.manifests))
    return msgspec.Raw(b"".join(parts))


def _encode_attributes(node: Node, taken: Taken) -> bytes:
    if node.attributes is not None:
        return _ENCODER.encode({"Ref": [node.attributes.object_id, node.attributes.row]})
    return _NIL if taken.attributes == _NIL else _INLINE + taken.attributes


class _Links:
    """The manifests of nodes as bytes: thousands of arrays in one manifest say the same about it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[ManifestRef, ...], bytes]] = {}

    def encode(self, manifests: tuple[ManifestRef, ...]) -> bytes:
        known = self._known.get(id(manifests))
        if known is None:
            encoded = _ENCODER.encode([[ref.manifest_id, _encode_extents(ref.extents)] for ref in manifests])
            # The tuple is held as well: as long as it is, no other one has its number.
            known = self._known[id(manifests)] = (manifests, encoded)
        return known[1]


def _encode_extents(extents: Extents) -> list[list[int]]:
    return [[first for first, _ in extents], [end for _, end in extents]] if extents else []


class _TakenDocuments:
    """Documents taken apart before: most of a snapshot's are those of the one before it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._held: OrderedDict[bytes, Taken] = OrderedDict()
        self._lock = fork_safe_lock()

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
