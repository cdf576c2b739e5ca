"""Snapshots of the first flatbuffers days, when Zarr metadata was still MessagePack inside."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from icefloe.formats.flat.body import Body
from icefloe.formats.flat.metadata_items import decode_metadata, read_items
from icefloe.formats.flat.ragged import texts_of
from icefloe.formats.flat.snapshot_nodes import ARRAY, GROUP, ManifestColumns
from icefloe.formats.flat.snapshot_reader import read_manifest_files
from icefloe.formats.flat.tables import Tables, root_table
from icefloe.formats.flat.times import from_microseconds
from icefloe.ids import encode_base32
from icefloe.model.nodes import ArrayNode, GroupNode, Node
from icefloe.model.paths import is_node_path
from icefloe.model.snapshot import Snapshot
from icefloe.model.zarr_document import ArrayShape

_ID, _PATH, _ATTRIBUTES_TYPE, _ATTRIBUTES, _DATA_TYPE, _DATA = range(6)
_INLINE_ATTRIBUTES = 1


class EarlyDocuments(Protocol):
    """How zarr.json is built from the MessagePack of that time; the generation that wrote it knows."""

    def build_group(self, attributes: bytes | None) -> bytes:
        """The document of a group."""

    def build_array(self, members: bytes, attributes: bytes | None) -> tuple[bytes, ArrayShape]:
        """The document of an array, and its shape and grid."""


def is_early_snapshot(body: Body) -> bool:
    """Whether the node tables of a snapshot of spec 1 have the early layout, told by their sixth field."""
    nodes, _ = root_table(body).tables(2)
    return len(nodes) > 0 and bool(nodes.has(_DATA).all())


def decode_early_snapshot_body(body: Body, documents: EarlyDocuments) -> Snapshot:
    """The snapshot of an early file, its documents built as that time built them."""
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
    """The MessagePack of each node's attributes, None where it has none."""
    kinds = nodes.scalar(_ATTRIBUTES_TYPE, "u1")
    at = nodes.targets(_ATTRIBUTES)
    if not bool(np.isin(kinds, (0, _INLINE_ATTRIBUTES)).all()) or bool(((kinds > 0) & (at < 0)).any()):
        raise nodes.body.corrupt("the attributes of a node are kept in an unknown way")
    here = kinds == _INLINE_ATTRIBUTES
    held = Tables(nodes.body, at[here]).vectors(0, 1, 1)
    found: list[bytes | None] = [None] * len(nodes)
    for row, start, count in zip(
        np.flatnonzero(here).tolist(), held.starts.tolist(), held.counts.tolist(), strict=True
    ):
        found[row] = nodes.body.data[start : start + count]
    return found
