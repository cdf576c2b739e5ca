"""Files of early releases between `repository` and `icechunk1`: flatbuffers around MessagePack metadata."""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np

from icefloe.errors import FormatError
from icefloe.formats.byte_columns import texts_of
from icefloe.formats.flatbuf.decode import Body, Tables, root_table
from icefloe.formats.flatbuf.files import decode_transaction_log_body
from icefloe.formats.flatbuf.flexbuffers import decode_metadata, read_items
from icefloe.formats.flatbuf.manifest import decode_manifest_body
from icefloe.formats.flatbuf.snapshot import ARRAY, GROUP, ManifestColumns, decode_snapshot_body, read_manifest_files
from icefloe.formats.repository.snapshot import AS_EARLY, decode_members, join_document
from icefloe.formats.repository.wire_values import MALFORMED
from icefloe.ids import encode_base32
from icefloe.model.snapshot import ArrayNode, GroupNode, Manifest, Node, Snapshot, TransactionLog, from_microseconds
from icefloe.model.zarr_document import ArrayShape, is_node_path, parse_array_shape, parse_document

_ID, _PATH, _ATTRIBUTES_TYPE, _ATTRIBUTES, _DATA_TYPE, _DATA = range(6)
_INLINE_ATTRIBUTES = 1


class EarlyDocuments(Protocol):
    """Builds a zarr.json from the MessagePack of early releases."""

    def build_group(self, attributes: bytes | None) -> bytes:
        """The document of a group."""

    def build_array(self, members: bytes, attributes: bytes | None) -> tuple[bytes, ArrayShape]:
        """The document of an array, and its shape and grid."""


def is_early_snapshot(body: Body) -> bool:
    """Whether the node tables of a snapshot of spec 1 have the early layout. Their sixth field shows it."""
    nodes, _ = root_table(body).tables(2)
    return len(nodes) > 0 and bool(nodes.has(_DATA).all())


def decode_early_snapshot_body(body: Body, documents: EarlyDocuments) -> Snapshot:
    """Decode the snapshot of an early file. Documents are built as early releases built them."""
    root = root_table(body)
    nodes, _ = root.tables(2)
    parent = encode_base32(root.struct(1, 12).tobytes()) if root.has(1)[0] else None
    return Snapshot(
        id=encode_base32(root.struct(0, 12).tobytes()),
        parent_id=parent,
        written_at=from_microseconds(int(root.scalar(3, "<u8")[0])),
        message=texts_of(body, root.strings(4))[0] or "",
        metadata=decode_metadata(read_items(root, 5)[0], 1),
        nodes=_read_nodes(nodes, documents),
        manifests=read_manifest_files(root, 1),
    )


def _read_nodes(nodes: Tables, documents: EarlyDocuments) -> dict[str, Node]:
    body = nodes.body
    ids = nodes.struct(_ID, 8)
    paths = [path or "" for path in texts_of(body, nodes.strings(_PATH))]
    attributes = _read_attributes(nodes)
    kinds = nodes.scalar(_DATA_TYPE, "u1")
    if not bool(np.isin(kinds, (ARRAY, GROUP)).all()):
        raise body.corrupt("a node is neither an array nor a group")
    is_array = kinds == ARRAY
    arrays = Tables(body, nodes.targets(_DATA, required=True)[is_array])
    members = arrays.vectors(0, 1, 1)
    manifests = ManifestColumns(arrays, None, slot=1)
    array_rows = np.cumsum(is_array) - 1
    made: dict[str, Node] = {}
    for row in sorted(range(len(paths)), key=lambda row: paths[row].encode()):
        path, node_id = paths[row], ids[row].tobytes()
        if not is_node_path(path):
            raise body.corrupt(f"{path!r:.80} is not the path of a node")
        if path in made:
            raise body.corrupt(f"the path {path} appears twice")
        if not is_array[row]:
            made[path] = GroupNode(node_id, path, documents.build_group(attributes[row]))
            continue
        array = int(array_rows[row])
        start = int(members.starts[array])
        packed = body.data[start : start + int(members.counts[array])]
        document, shape = documents.build_array(packed, attributes[row])
        made[path] = ArrayNode(
            node_id, path, document, shape.shape, shape.grid, shape.dimension_names, manifests.of(array)
        )
    return made


def _read_attributes(nodes: Tables) -> list[bytes | None]:
    """The MessagePack of each node's attributes, or None if it has none."""
    kinds = nodes.scalar(_ATTRIBUTES_TYPE, "u1")
    at = nodes.targets(_ATTRIBUTES)
    if not bool(np.isin(kinds, (0, _INLINE_ATTRIBUTES)).all()) or bool(((kinds > 0) & (at < 0)).any()):
        raise nodes.body.corrupt("the attributes of a node have an unknown encoding")
    here = kinds == _INLINE_ATTRIBUTES
    vectors = Tables(nodes.body, at[here]).vectors(0, 1, 1)
    found: list[bytes | None] = [None] * len(nodes)
    for row, start, count in zip(
        np.flatnonzero(here).tolist(), vectors.starts.tolist(), vectors.counts.tolist(), strict=True
    ):
        found[row] = nodes.body.data[start : start + count]
    return found


_SPEC = 1


class _Documents:
    """Build a zarr.json from the members of early releases."""

    def build_group(self, attributes: bytes | None) -> bytes:
        return join_document(_unpack(attributes), None, AS_EARLY)

    def build_array(self, members: bytes, attributes: bytes | None) -> tuple[bytes, ArrayShape]:
        try:
            document = join_document(_unpack(attributes), decode_members(members), AS_EARLY)
            return document, parse_array_shape(parse_document(document))
        except (*MALFORMED, ValueError, KeyError, TypeError) as error:
            raise FormatError(f"the Zarr metadata of an early snapshot cannot be read: {error}") from error


def _unpack(attributes: bytes | None) -> object:
    if attributes is None:
        return None
    try:
        return msgspec.msgpack.decode(attributes)
    except MALFORMED as error:
        raise FormatError(f"the attributes of an early snapshot cannot be read: {error}") from error


def decode_flat_snapshot(body: bytes) -> Snapshot:
    """Decode a flatbuffers snapshot of the early or the later layout."""
    flat = Body(body, "snapshot")
    if is_early_snapshot(flat):
        return decode_early_snapshot_body(flat, _Documents())
    return decode_snapshot_body(flat, _SPEC)


def decode_flat_manifest(body: bytes) -> Manifest:
    """A flatbuffers manifest."""
    return decode_manifest_body(Body(body, "manifest"))


def decode_flat_log(body: bytes) -> TransactionLog:
    """A flatbuffers transaction log."""
    return decode_transaction_log_body(Body(body, "transaction log"))
