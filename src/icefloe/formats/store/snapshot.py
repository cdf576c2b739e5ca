"""Snapshots and attributes files of the generation `store`: JSON that follows the specification's schema.

Additional members, which the schema permits: `icefloe` at the top (parent, sizes of manifests), `zarr_json` in
a node whose document the schema cannot represent, `parent` and `properties` in entries of the history.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Literal

import msgspec

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.json_documents import (
    ArrayParts,
    GroupParts,
    NamedConfiguration,
    build_document,
    decode_fill_value,
    dump_json,
    dump_time,
    encode_fill_value,
    extract_parts,
    finite_json,
    float_json,
    load_document,
    load_time,
    raw_bits,
    store_document,
)
from icefloe.formats.store.legacy_msgpack import is_legacy_msgpack, read_snapshot
from icefloe.formats.store.refs import dump_object_id, load_object_id
from icefloe.ids import NODE_ID_BYTES, NodeId
from icefloe.model.snapshot import (
    ArrayNode,
    AttributesRef,
    Extents,
    GroupNode,
    ManifestFileInfo,
    ManifestRef,
    Node,
    Snapshot,
    SnapshotInfo,
)
from icefloe.model.zarr_document import check_path, load_object, parse_array_shape, parse_document

Json = Any

_VARIANTS = {
    "bool": "Bool",
    **{f"int{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"Float{bits}" for bits in (16, 32, 64)},
    "complex64": "Complex64",
    "complex128": "Complex128",
}
_SEPARATORS = {"Slash": "/", "Dot": ".", "Default": "/"}
_ENCODINGS = {"/": "Slash", ".": "Dot"}


def dump_array_metadata(node: ArrayNode, parts: ArrayParts) -> dict[str, Json]:
    """The object of the specification's schema. Values that it cannot represent are replaced by harmless ones."""
    data_type = parts.data_type
    bits = raw_bits(data_type)
    known = isinstance(data_type, str) and data_type in _VARIANTS
    metadata: dict[str, Json] = {
        "shape": list(node.shape),
        "data_type": data_type if known else {"rawbits": bits or 0},
        "chunk_shape": [max(1, n) for n in parts.chunk_shape or _average_chunks(node)],
        "chunk_key_encoding": _ENCODINGS.get(parts.separator, "Default"),
        "fill_value": _dump_fill_value(data_type, parts.fill_value),
        "codecs": [_dump_named(codec) for codec in parts.codecs],
        "storage_transformers": None,
        "dimension_names": None if parts.dimension_names is None else list(parts.dimension_names),
    }
    if parts.storage_transformers is not None:
        metadata["storage_transformers"] = [_dump_named(item) for item in parts.storage_transformers]
    return metadata


def load_array_metadata(metadata: Json, attributes: Json) -> ArrayParts:
    """The members of the zarr.json that an object of the schema represents."""
    stored = metadata["data_type"]
    data_type = f"r{int(stored['rawbits'])}" if isinstance(stored, dict) else stored
    transformers = metadata.get("storage_transformers")
    names = metadata.get("dimension_names")
    return ArrayParts(
        shape=tuple(metadata["shape"]),
        data_type=data_type,
        chunk_shape=tuple(metadata["chunk_shape"]),
        key_encoding="default",
        separator=_SEPARATORS[metadata["chunk_key_encoding"]],
        fill_value=_load_fill_value(data_type, metadata["fill_value"]),
        codecs=tuple(_load_named(codec) for codec in metadata["codecs"]),
        storage_transformers=None if transformers is None else tuple(_load_named(item) for item in transformers),
        dimension_names=None if names is None else tuple(names),
        attributes=attributes,
    )


def _average_chunks(node: ArrayNode) -> list[int]:
    return [-(-length // count) if count else 1 for length, count in zip(node.shape, node.grid, strict=True)]


def _dump_fill_value(data_type: Json, value: Json) -> dict[str, Json]:
    data = encode_fill_value(data_type, value)
    if data is None or data_type == "string":
        return {"RawBits": []}
    canonical = decode_fill_value(data_type, data)
    parts = canonical if isinstance(canonical, list) else [canonical]
    # The schema requires numbers. JSON has no NaN and infinities, so these are written as big-endian bytes.
    if data_type not in _VARIANTS or any(isinstance(part, str) for part in parts):
        return {"RawBits": list(data)}
    return {_VARIANTS[data_type]: canonical}


def _load_fill_value(data_type: str, stored: Json) -> Json:
    ((variant, value),) = stored.items()
    if variant == "RawBits":
        return decode_fill_value(data_type, bytes(value))
    if variant != _VARIANTS.get(data_type):
        raise FormatError(f"an array of {data_type!r} has a fill value of kind {variant!r}")
    data = encode_fill_value(data_type, _spelled(value))
    if data is None:
        raise FormatError(f"{str(value)[:80]!r} is not a fill value of an array of {data_type!r}")
    return decode_fill_value(data_type, data)


def _spelled(value: Json) -> Json:
    if isinstance(value, float):
        return float_json(value)
    return [_spelled(part) for part in value] if isinstance(value, list) else value


def _dump_named(part: NamedConfiguration) -> dict[str, Json]:
    return {"name": part.name, "configuration": finite_json(part.configuration)}


def _load_named(stored: Json) -> NamedConfiguration:
    configuration = stored.get("configuration")
    if not isinstance(stored["name"], str) or not isinstance(configuration, dict | None):
        raise FormatError(f"a codec or storage transformer does not match the format: {str(stored)[:80]}")
    return NamedConfiguration(stored["name"], configuration)


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
    """Decode the snapshot of a JSON file, or of a MessagePack file of the early format."""
    document = read_snapshot(data) if is_legacy_msgpack(data) else load_object(data, _WHAT)
    try:
        nodes = [_load_node(path, node) for path, node in document["nodes"].items()]
        return _build_snapshot(document, {node.path: node for node in sorted(nodes, key=lambda n: n.path.encode())})
    except (InvalidInputError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise FormatError(f"{_WHAT} does not match the format: {error!r}") from error


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
    """Ancestors, newest first. This library writes them oldest first. Other writers' are sorted by time."""
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
        raise InvalidInputError(f"the zarr.json of {node.path} is not that of its node type")
    if isinstance(node, ArrayNode) and isinstance(parts, ArrayParts):
        references = [_dump_manifest_ref(reference) for reference in node.manifests]
        entry["node_data"] = {"Array": [dump_array_metadata(node, parts), references]}
    if _rebuild(entry) != node.document:
        entry[_DOCUMENT] = store_document(node.document)
    return entry


def node_number(node_id: NodeId) -> int:
    """The number of a node in the file."""
    number = int.from_bytes(node_id, "big")
    if number > 0xFFFFFFFF:
        raise InvalidInputError(
            f"the node id {node_id.hex()} does not fit the generation `store`, expected a number below 2**32"
        )
    return number


def _rebuild(entry: Mapping[str, Json]) -> bytes | None:
    """The document that the members of a node represent, or None."""
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
        raise FormatError(f"{_WHAT} has no valid data type or fill value for the array {path}")
    parsed = parse_document(document, path)
    number = entry["id"]
    if type(number) is not int or not 0 <= number <= 0xFFFFFFFF:
        raise FormatError(f"{_WHAT} has a node id that is not a number below 2**32: {str(number)[:80]!r}")
    node_id = number.to_bytes(NODE_ID_BYTES, "big")
    attributes = _load_attributes_ref(entry.get("user_attributes"))
    is_group = entry["node_data"] == "Group"
    if is_group != (parsed["node_type"] == "group"):
        raise FormatError(f"{_WHAT} has a zarr.json of another node type at {path}")
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
        raise FormatError(f"{_WHAT} has extents of {len(extents)} dimensions for an array of {rank} dimensions")
    if any(not 0 <= first <= end <= 1 << 32 for first, end in extents):
        raise FormatError(f"{_WHAT} has invalid extents of a manifest: {extents!s:.120}")
    return ManifestRef(load_object_id(stored["object_id"]), extents)


_DECODER = msgspec.json.Decoder(list[msgspec.Raw])


def encode_attributes(attributes: Sequence[bytes]) -> bytes:
    """Encode an attributes file.

    Row i is the i-th attributes object, or a string with its text if it is not strict JSON.
    """
    return b"[" + b",".join(_dump_row(row) for row in attributes) + b"]"


def decode_attributes(data: bytes) -> list[bytes]:
    """The rows of an attributes file, byte for byte."""
    try:
        return [_load_row(bytes(row)) for row in _DECODER.decode(data)]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"the attributes file does not match the format: {error}") from error


def _dump_row(row: bytes) -> bytes:
    try:
        if row[:1] == b"{" and row[-1:] == b"}":
            msgspec.json.decode(row)
            return row
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        return json.dumps(row.decode()).encode()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"attributes must be UTF-8: {error}") from error


def _load_row(row: bytes) -> bytes:
    if row[:1] != b'"':
        return row
    text: str = json.loads(row)
    return text.encode()


def load_schema(name: Literal["reference", "snapshot", "manifest"]) -> dict[str, Any]:
    """The schema of one type of file."""
    text = resources.files("icefloe.formats.store").joinpath(f"{name}.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
