"""Snapshots, attributes files and refs of the generation `store`: JSON, and MessagePack as early code wrote it.

The JSON of snapshots follows the specification's schema. Additional members, which the schema permits: `icefloe` at the
top (parent, sizes of manifests), `zarr_json` in a node whose document the schema cannot represent, `parent` and
`properties` in entries of the history.

Nothing writes MessagePack any more. It is converted to the structure of the JSON files and read by the same functions.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from icefloe.ids import NODE_ID_BYTES, NodeId, ObjectId, decode_base32, encode_base32, text_length
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, Coords, table_from_rows
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
from icefloe.model.zarr_document import SMALL_FILE_BYTES, check_path, load_object, parse_array_shape, parse_document

ID_BYTES = 16
_TEXT_LENGTH = text_length(ID_BYTES)


def dump_object_id(object_id: ObjectId) -> list[int]:
    """Encode an id as the specification's schemas require."""
    return list(decode_base32(object_id, ID_BYTES))


def load_object_id(value: Any) -> ObjectId:
    """Parse an id: 16 integers, 26 characters of base32, or 32 hexadecimal digits."""
    return encode_base32(load_id_bytes(value))


def load_id_bytes(value: Any) -> bytes:
    """The same as load_object_id, but returns the bytes."""
    try:
        if isinstance(value, list) and len(value) == ID_BYTES and all(type(item) is int for item in value):
            return bytes(value)
        if isinstance(value, str) and len(value) == _TEXT_LENGTH:
            return decode_base32(value, ID_BYTES)
        if isinstance(value, str) and len(value) == 2 * ID_BYTES:
            return bytes.fromhex(value)
    except (ValueError, InvalidInputError) as error:
        raise FormatError(f"{str(value)[:80]!r} is not an object id: {error}") from error
    raise FormatError(f"{str(value)[:80]!r} is not an object id of {ID_BYTES} bytes")


EXTENSION = ".json"
LAST_SEQUENCE = 2**40 - 1
_NAME = re.compile(r"([0-9A-HJKMNP-TV-Z]{8})\.json")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Reference:
    """The snapshot of a branch or tag, and since when."""

    snapshot_id: ObjectId
    timestamp: dt.datetime
    properties: Mapping[str, Any] = field(default_factory=dict)


def encode_reference(reference: Reference) -> bytes:
    """The JSON file of a reference."""
    return dump_json(
        {
            "properties": dict(reference.properties),
            "snapshot": dump_object_id(reference.snapshot_id),
            "timestamp": dump_time(reference.timestamp),
        }
    )


def decode_reference(data: bytes) -> Reference:
    """Parse the JSON file of a reference. Some early files only contain the snapshot."""
    document = load_object(data, "the reference file", SMALL_FILE_BYTES)
    properties = document.get("properties", {})
    if "snapshot" not in document or not isinstance(properties, dict):
        raise FormatError('the reference file has no valid "snapshot", or "properties" that are not an object')
    timestamp = load_time(document["timestamp"], "timestamp") if "timestamp" in document else _EPOCH
    return Reference(load_object_id(document["snapshot"]), timestamp, properties)


def sequence_name(sequence: int) -> str:
    """The name of a branch file. The newest sorts first."""
    return encode_base32((LAST_SEQUENCE - sequence).to_bytes(5, "big")) + EXTENSION


def find_sequence(name: str) -> int | None:
    """The sequence number in a name, or None if it is not the name of a branch file."""
    found = _NAME.fullmatch(name)
    return None if found is None else LAST_SEQUENCE - int.from_bytes(decode_base32(found[1], 5), "big")


Json = Any

_SNAPSHOT = (
    "total_parents",
    "short_term_parents",
    "short_term_history",
    "metadata",
    "started_at",
    "properties",
    "nodes",
)
_METADATA = ("id", "written_at", "message")
_NODE = ("id", "path", "user_attributes", "node_data")
_ARRAY = (
    "shape",
    "data_type",
    "chunk_shape",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "storage_transformers",
    "dimension_names",
)
_NAMED = ("name", "configuration")
_MANIFEST_REF = ("object_id", "flags", "extents")
_ATTRIBUTES_REF = ("object_id", "location", "flags")


def is_legacy_msgpack(data: bytes) -> bool:
    """Whether a file is MessagePack. MessagePack files start with a short array, JSON texts do not."""
    return 0x90 <= data[0] <= 0x9F if data else False


def read_snapshot(data: bytes) -> dict[str, Json]:
    """A snapshot file in the structure of the JSON one."""
    document = _record(_unpack(data), _SNAPSHOT)
    try:
        document["metadata"] = _record(document["metadata"], _METADATA)
        document["short_term_history"] = [_record(entry, _METADATA) for entry in document["short_term_history"]]
        document["nodes"] = {path: _node(entry) for path, entry in document["nodes"].items()}
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise FormatError(f"the snapshot file does not match the early format: {error!r}") from error
    return document


def read_manifest(data: bytes) -> dict[NodeId, ChunkTable]:
    """The chunk tables of a manifest file. Entries are read in a loop, because these files are few and small."""
    rows: dict[int, dict[Coords, ChunkRef]] = {}
    try:
        (chunks,) = _unpack(data)
        for (number, coords), payload in chunks.items():
            rows.setdefault(number, {})[tuple(coords)] = _payload(payload)
        return {
            number.to_bytes(NODE_ID_BYTES, "big"): table_from_rows(list(refs.items()), len(next(iter(refs))))
            for number, refs in sorted(rows.items())
        }
    except (TypeError, AttributeError, KeyError, ValueError, OverflowError, InvalidInputError) as error:
        raise FormatError(f"the chunk manifest does not match the early format: {error!r}") from error


def _unpack(data: bytes) -> Json:
    try:
        return msgspec.msgpack.decode(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a MessagePack file of the early format: {error!r}") from error


def _record(values: Json, names: tuple[str, ...]) -> dict[str, Json]:
    if not isinstance(values, list) or len(values) != len(names):
        raise FormatError(f"a structure of the early format does not have the {len(names)} members {', '.join(names)}")
    return dict(zip(names, values, strict=True))


def _node(values: Json) -> dict[str, Json]:
    node = _record(values, _NODE)
    attributes = node["user_attributes"]
    if isinstance(attributes, dict) and "Ref" in attributes:
        node["user_attributes"] = {"Ref": _record(attributes["Ref"], _ATTRIBUTES_REF)}
    if isinstance(node["node_data"], Mapping):
        metadata, references = node["node_data"]["Array"]
        array = _record(metadata, _ARRAY)
        for member in ("codecs", "storage_transformers"):
            if array[member] is not None:
                array[member] = [_record(entry, _NAMED) for entry in array[member]]
        node["node_data"] = {"Array": [array, [_record(entry, _MANIFEST_REF) for entry in references]]}
    return node


def _payload(payload: Json) -> ChunkRef:
    ((kind, content),) = payload.items()
    if kind == "Inline":
        return ChunkRef(ChunkKind.INLINE, 0, len(content), data=bytes(content))
    place, offset, length = content
    if kind == "Ref":
        return ChunkRef(ChunkKind.NATIVE, offset, length, object_id=load_id_bytes(place))
    if kind == "Virtual":
        location = place["Absolute"] if isinstance(place, dict) else place
        if not isinstance(location, str):
            raise FormatError(f"a virtual chunk has no location: {place!r}")
        return ChunkRef(ChunkKind.VIRTUAL, offset, length, location=location)
    raise FormatError(f"an unknown kind of chunk: {str(kind)[:40]!r}")


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
            "nodes": dict(zip(snapshot.nodes, _dump_nodes(snapshot.nodes.values()), strict=True)),
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


def _dump_nodes(nodes: Iterable[Node]) -> Iterator[dict[str, Json]]:
    """The entries of nodes. Thousands of arrays often have the same document, which is then looked at once."""
    known: dict[tuple[bytes, bool], dict[str, Json]] = {}
    for node in nodes:
        key = (node.document, isinstance(node, ArrayNode))
        alike = known.get(key) if node.attributes is None else None
        if alike is None:
            entry = _dump_node(node)
            if node.attributes is None:
                known[key] = entry
        else:
            entry = {**alike, "id": node_number(node.id), "path": node.path}
            if isinstance(node, ArrayNode):
                references = [_dump_manifest_ref(reference) for reference in node.manifests]
                entry["node_data"] = {"Array": [alike["node_data"]["Array"][0], references]}
        yield entry


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
