"""Snapshot files of the generation `store`: JSON after the specification's schema.

Members of our own, which the schema leaves room for: `icefloe` at the top (parent, sizes of manifests), `zarr_json` in
a node whose document the schema cannot express, `parent` and `properties` in entries of the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.canonical_document import (
    ArrayParts,
    GroupParts,
    build_document,
    extract_parts,
    load_document,
    store_document,
)
from icefloe.formats.store.array_metadata import dump_array_metadata, load_array_metadata
from icefloe.formats.store.code_form import is_code_form, read_snapshot
from icefloe.formats.store.object_id import dump_object_id, load_object_id
from icefloe.formats.strict_json import dump_json, dump_time, finite_json, load_object, load_time
from icefloe.ids import NODE_ID_BYTES, NodeId
from icefloe.model.nodes import ArrayNode, AttributesRef, Extents, GroupNode, ManifestRef, Node
from icefloe.model.paths import check_path
from icefloe.model.snapshot import ManifestFileInfo, Snapshot, SnapshotInfo
from icefloe.model.zarr_document import parse_array_shape, parse_document

Json = Any
_OWN = "icefloe"
_DOCUMENT = "zarr_json"
_WHAT = "the snapshot file"


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The JSON file of a snapshot."""
    total = snapshot.total_ancestors
    manifests = [
        [dump_object_id(info.id), info.size_bytes, info.num_chunk_refs] for info in snapshot.manifests.values()
    ]
    return dump_json(
        {
            "metadata": _dump_metadata(snapshot.info),
            "nodes": {path: _dump_node(node) for path, node in snapshot.nodes.items()},
            "properties": dict(snapshot.metadata),
            "short_term_history": [_dump_ancestor(info) for info in reversed(snapshot.history)],
            "short_term_parents": len(snapshot.history),
            "started_at": dump_time(snapshot.started_at or snapshot.written_at),
            "total_parents": len(snapshot.history) if total is None else total,
            _OWN: {
                "parent": None if snapshot.parent_id is None else dump_object_id(snapshot.parent_id),
                "manifests": manifests,
                "attribute_files": [dump_object_id(name) for name in snapshot.attribute_files],
            },
        }
    )


def decode_snapshot(data: bytes) -> Snapshot:
    """The snapshot of a JSON file, or of a MessagePack file of early code."""
    document = read_snapshot(data) if is_code_form(data) else load_object(data, _WHAT)
    try:
        nodes = [_load_node(path, node) for path, node in document["nodes"].items()]
        return _build_snapshot(document, {node.path: node for node in sorted(nodes, key=lambda n: n.path.encode())})
    except (InvalidInputError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise FormatError(f"{_WHAT} is not as the format says: {error!r}") from error


def _build_snapshot(document: Mapping[str, Json], nodes: Mapping[str, Node]) -> Snapshot:
    own = document.get(_OWN) or {}
    history = _load_history(document["short_term_history"], ours=bool(own))
    info = _load_metadata(document["metadata"])
    manifests: dict[str, ManifestFileInfo] = {}
    for stored, size, references in own.get("manifests", []):
        name = load_object_id(stored)
        manifests[name] = ManifestFileInfo(name, int(size), int(references))
    for node in nodes.values():
        for manifest in node.manifests if isinstance(node, ArrayNode) else ():
            manifests.setdefault(manifest.manifest_id, ManifestFileInfo(manifest.manifest_id, 0, 0))
    if "parent" in own:
        parent = None if own["parent"] is None else load_object_id(own["parent"])
    else:
        parent = history[0].id if history else None
    referenced = {node.attributes.object_id: None for node in nodes.values() if node.attributes is not None}
    files = own.get("attribute_files")
    return Snapshot(
        id=info.id,
        parent_id=parent,
        written_at=info.written_at,
        message=info.message,
        metadata=dict(document["properties"]),
        nodes=nodes,
        manifests=manifests,
        attribute_files=tuple(referenced) if files is None else tuple(load_object_id(name) for name in files),
        history=history,
        total_ancestors=max(int(document["total_parents"]), len(history)),
        started_at=load_time(document["started_at"], "started_at"),
    )


def _dump_metadata(info: SnapshotInfo) -> dict[str, Json]:
    return {"id": dump_object_id(info.id), "message": info.message, "written_at": dump_time(info.written_at)}


def _dump_ancestor(info: SnapshotInfo) -> dict[str, Json]:
    entry = _dump_metadata(info)
    entry["parent"] = None if info.parent_id is None else dump_object_id(info.parent_id)
    if info.metadata:
        entry["properties"] = dict(info.metadata)
    return entry


def _load_metadata(stored: Json) -> SnapshotInfo:
    parent = stored.get("parent")
    if not isinstance(stored["message"], str):
        raise FormatError(f"{_WHAT} has a message that is not text")
    return SnapshotInfo(
        id=load_object_id(stored["id"]),
        parent_id=None if parent is None else load_object_id(parent),
        written_at=load_time(stored["written_at"], "written_at"),
        message=stored["message"],
        metadata=dict(stored.get("properties") or {}),
    )


def _load_history(stored: Json, *, ours: bool) -> tuple[SnapshotInfo, ...]:
    """Ancestors, newest first: ours are written oldest first, those of others in an order that their times tell."""
    entries = [_load_metadata(entry) for entry in reversed(stored)]
    if ours:
        return tuple(entries)
    entries.sort(key=lambda info: info.written_at, reverse=True)
    parents = [entry.id for entry in entries[1:]]
    return tuple(
        SnapshotInfo(entry.id, parent, entry.written_at, entry.message, entry.metadata)
        for entry, parent in zip(entries, [*parents, None], strict=True)
    )


def _dump_node(node: Node) -> dict[str, Json]:
    parts = extract_parts(parse_document(node.document, node.path))
    entry: dict[str, Json] = {
        "id": node_number(node.id),
        "path": node.path,
        "user_attributes": None if parts.attributes is None else {"Inline": finite_json(parts.attributes)},
        "node_data": "Group",
    }
    if node.attributes is not None:
        reference = {
            "object_id": dump_object_id(node.attributes.object_id),
            "location": node.attributes.row,
            "flags": [],
        }
        entry["user_attributes"] = {"Ref": reference}
    if isinstance(node, ArrayNode) != isinstance(parts, ArrayParts):
        raise InvalidInputError(f"the document of {node.path} is not one of its kind of node")
    if isinstance(node, ArrayNode) and isinstance(parts, ArrayParts):
        references = [_dump_manifest_ref(reference) for reference in node.manifests]
        entry["node_data"] = {"Array": [dump_array_metadata(node, parts), references]}
    if _rebuild(entry) != node.document:
        entry[_DOCUMENT] = store_document(node.document)
    return entry


def node_number(node_id: NodeId) -> int:
    """The number that stands for a node in the file."""
    number = int.from_bytes(node_id, "big")
    if number > 0xFFFFFFFF:
        raise InvalidInputError(f"node ids of the generation `store` are numbers below 2**32, found {node_id.hex()}")
    return number


def _rebuild(entry: Mapping[str, Json]) -> bytes | None:
    """The document that the members of a node give; None where they give none."""
    attributes = _plain_attributes(entry.get("user_attributes"))
    if entry["node_data"] == "Group":
        return build_document(GroupParts(attributes))
    try:
        return build_document(load_array_metadata(entry["node_data"]["Array"][0], attributes))
    except FormatError:
        return None


def _plain_attributes(stored: Json) -> dict[str, Json] | None:
    if stored is None:
        return None
    attributes = {} if "Ref" in stored else stored["Inline"]
    if not isinstance(attributes, dict):
        raise FormatError(f"{_WHAT} has attributes that are not an object")
    return attributes


def _dump_manifest_ref(reference: ManifestRef) -> dict[str, Json]:
    extents = [list(bounds) for bounds in zip(*reference.extents, strict=True)]
    return {"object_id": dump_object_id(reference.manifest_id), "flags": [], "extents": extents}


def _load_node(path: str, entry: Json) -> Node:
    if check_path(path) != path or entry["path"] != path:
        raise FormatError(f"{_WHAT} has a node {entry['path']!r} under the path {path!r}")
    document = load_document(entry[_DOCUMENT]) if _DOCUMENT in entry else _rebuild(entry)
    if document is None:
        raise FormatError(f"{_WHAT} describes the array {path} by a data type or fill value that is not there")
    parsed = parse_document(document, path)
    number = entry["id"]
    if type(number) is not int or not 0 <= number <= 0xFFFFFFFF:
        raise FormatError(f"{_WHAT} has a node id that is not a number below 2**32: {str(number)[:80]!r}")
    node_id = number.to_bytes(NODE_ID_BYTES, "big")
    attributes = _load_attributes_ref(entry.get("user_attributes"))
    is_group = entry["node_data"] == "Group"
    if is_group != (parsed["node_type"] == "group"):
        raise FormatError(f"{_WHAT} has a document of another type at {path}")
    if is_group:
        return GroupNode(node_id, path, document, attributes)
    shape = parse_array_shape(parsed, path)
    manifests = tuple(_load_manifest_ref(reference, len(shape.shape)) for reference in entry["node_data"]["Array"][1])
    return ArrayNode(node_id, path, document, shape.shape, shape.grid, shape.dimension_names, manifests, attributes)


def _load_attributes_ref(stored: Json) -> AttributesRef | None:
    if stored is None or "Ref" not in stored:
        return None
    return AttributesRef(load_object_id(stored["Ref"]["object_id"]), int(stored["Ref"]["location"]))


def _load_manifest_ref(stored: Json, rank: int) -> ManifestRef:
    extents: Extents = ()
    if stored["extents"]:
        starts, ends = stored["extents"]
        extents = tuple((int(first), int(end)) for first, end in zip(starts, ends, strict=True))
    if len(extents) not in (0, rank):
        raise FormatError(f"{_WHAT} gives extents of {len(extents)} dimensions to an array of {rank}")
    if any(not 0 <= first <= end <= 1 << 32 for first, end in extents):
        raise FormatError(f"{_WHAT} says that a manifest covers the chunks {extents!s:.120}")
    return ManifestRef(load_object_id(stored["object_id"]), extents)
