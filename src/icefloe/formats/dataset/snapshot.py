"""Structure files of the generation `dataset`: a snapshot as Parquet, one row per node.

The columns of the specification contain the hierarchy. The message, parent and time, which are in the state file, are
repeated in the file's key-value metadata, so that a structure file is self-describing. The metadata also contains the
documents that the columns cannot represent.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.dataset.manifest import array_number
from icefloe.formats.dataset.parquet import (
    WIDENED_KEY,
    Source,
    file_metadata,
    open_parquet,
    read_columns,
    write_parquet,
)
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
    load_document,
    load_time,
    store_document,
)
from icefloe.ids import NODE_ID_BYTES
from icefloe.model.snapshot import ArrayNode, AttributesRef, GroupNode, ManifestFileInfo, ManifestRef, Node, Snapshot
from icefloe.model.zarr_document import check_path, load_object, parse_array_shape, parse_document

NARROW = pa.uint16()
WIDE = {
    "id": pa.uint32(),
    "row": pa.uint32(),
    "shape": pa.uint64(),
    "chunk_shape": pa.uint64(),
    "extent": pa.uint64(),
}
"""The type of a field, for the whole file, if one value does not fit the specification's uint16."""
LARGEST = {name: 2**kind.bit_width - 1 for name, kind in WIDE.items()}


def structure_schema(widened: Collection[str] = ()) -> pa.Schema:
    """The schema of the specification. The named fields have a wider type."""

    def number(name: str) -> pa.DataType:
        return WIDE[name] if name in widened else NARROW

    def required(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, nullable=False)

    grid = pa.struct([required("chunk_shape", pa.list_(number("chunk_shape")))])
    keys = pa.struct([required("separator", pa.string())])
    array_metadata = pa.struct(
        [
            required("shape", pa.list_(number("shape"))),
            required("data_type", pa.string()),
            pa.field("fill_value", pa.binary()),
            pa.field("dimension_names", pa.list_(pa.string())),
            pa.field("chunk_grid", pa.struct([required("name", pa.string()), required("configuration", grid)])),
            pa.field("chunk_key_encoding", pa.struct([required("name", pa.string()), required("configuration", keys)])),
            pa.field(
                "codecs", pa.list_(pa.struct([required("name", pa.string()), pa.field("configuration", pa.binary())]))
            ),
        ]
    )
    attrs_reference = pa.struct(
        [required("attrs_file", pa.string()), required("row", number("row")), pa.field("flags", NARROW)]
    )
    inventory = pa.struct(
        [
            required("inventory_file", pa.string()),
            required("row", number("row")),
            required("extent", pa.list_(pa.list_(number("extent"), 2))),
            pa.field("flags", NARROW),
        ]
    )
    return pa.schema(
        [
            _described(required("id", number("id")), "unique identifier for the node"),
            _described(required("type", pa.string()), "array or group"),
            _described(required("path", pa.string()), "path to the node within the store"),
            _described(pa.field("array_metadata", array_metadata), "All the Zarr array metadata"),
            _described(pa.field("inline_attrs", pa.binary()), "user-defined attributes, stored inline with this entry"),
            _described(
                pa.field("attrs_reference", attrs_reference),
                "user-defined attributes, stored in a separate attributes file",
            ),
            pa.field("inventories", pa.list_(inventory)),
        ]
    )


def _described(field: pa.Field, description: str) -> pa.Field:
    return field.with_metadata({"description": description})


EXTENSION = ".parquet"
SNAPSHOT_KEY = b"icefloe.snapshot"
DOCUMENTS_KEY = b"icefloe.documents"
_ROW_GROUP_ROWS = 1 << 14
_WHAT = "the structure file"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Row = dict[str, Any]


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The structure file of a snapshot."""
    rows, documents = _node_rows(snapshot.nodes.values())
    widened = _widened_fields(rows)
    metadata = {SNAPSHOT_KEY: dump_json(_snapshot_facts(snapshot))}
    if documents:
        metadata[DOCUMENTS_KEY] = dump_json(documents)
    if widened:
        metadata[WIDENED_KEY] = ",".join(widened).encode()
    try:
        table = pa.Table.from_pylist(rows, schema=structure_schema(widened))
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise InvalidInputError(f"a node cannot be written to a structure file: {error}") from error
    return write_parquet(table, _ROW_GROUP_ROWS, metadata)


def decode_snapshot(data: Source) -> Snapshot:
    """Decode the snapshot of a structure file. Its id is empty if the file does not contain it."""
    opened = open_parquet(data, _WHAT)
    metadata = file_metadata(opened)
    facts = load_object(metadata.get(SNAPSHOT_KEY, b"{}"), f"{_WHAT}'s description of its snapshot")
    documents = load_object(metadata.get(DOCUMENTS_KEY, b"{}"), f"{_WHAT}'s list of documents")
    table = read_columns(opened, structure_schema().names, _WHAT)
    nodes: dict[str, Node] = {}
    try:
        for row in table.to_pylist():
            node = _decode_node(row, documents)
            if node.path in nodes:
                raise FormatError(f"{_WHAT} has two nodes at {node.path}")
            nodes[node.path] = node
        return _build_snapshot(facts, dict(sorted(nodes.items(), key=lambda item: item[0].encode())))
    except (
        InvalidInputError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        pa.ArrowException,
    ) as error:
        raise FormatError(f"{_WHAT} does not match the format: {error!r}") from error


def _snapshot_facts(snapshot: Snapshot) -> Row:
    facts: Row = {
        "id": snapshot.id,
        "parent": snapshot.parent_id,
        "written_at": dump_time(snapshot.written_at),
        "message": snapshot.message,
        "metadata": dict(snapshot.metadata),
        "manifests": [[info.id, info.size_bytes, info.num_chunk_refs] for info in snapshot.manifests.values()],
        "attribute_files": list(snapshot.attribute_files),
    }
    if snapshot.started_at is not None:
        facts["started_at"] = dump_time(snapshot.started_at)
    return facts


def _build_snapshot(facts: Row, nodes: Mapping[str, Node]) -> Snapshot:
    manifests = {
        str(name): ManifestFileInfo(str(name), int(size), int(refs)) for name, size, refs in facts.get("manifests", [])
    }
    for node in nodes.values():
        for manifest in node.manifests if isinstance(node, ArrayNode) else ():
            manifests.setdefault(manifest.manifest_id, ManifestFileInfo(manifest.manifest_id, 0, 0))
    referenced = {node.attributes.object_id: None for node in nodes.values() if node.attributes is not None}
    return Snapshot(
        id=str(facts.get("id", "")),
        parent_id=None if facts.get("parent") is None else str(facts["parent"]),
        written_at=load_time(facts["written_at"], "written_at") if "written_at" in facts else _EPOCH,
        message=str(facts.get("message", "")),
        metadata=dict(facts.get("metadata", {})),
        nodes=nodes,
        manifests=manifests,
        attribute_files=tuple(str(name) for name in facts.get("attribute_files", referenced)),
        started_at=load_time(facts["started_at"], "started_at") if "started_at" in facts else None,
    )


def _node_rows(nodes: Iterable[Node]) -> tuple[list[Row], dict[str, Any]]:
    """The rows of nodes, and by path the documents that a row cannot represent.

    Thousands of arrays often have the same document, which is then looked at once.
    """
    rows: list[Row] = []
    documents: dict[str, Any] = {}
    known: dict[tuple[bytes, bool], tuple[Row, bool]] = {}
    for node in nodes:
        key = (node.document, isinstance(node, ArrayNode))
        found = known.get(key) if node.attributes is None else None
        if found is None:
            row = _node_row(node)
            is_whole = _rebuild(row) == node.document
            if node.attributes is None:
                known[key] = row, is_whole
        else:
            alike, is_whole = found
            row = {**alike, "id": array_number(node.id), "path": node.path}
            if isinstance(node, ArrayNode):
                row["inventories"] = [_inventory(ref) for ref in node.manifests]
        rows.append(row)
        if not is_whole:
            documents[node.path] = store_document(node.document)
    return rows, documents


def _node_row(node: Node) -> Row:
    parts = extract_parts(parse_document(node.document, node.path))
    reference = None
    if node.attributes is not None:
        name = node.attributes.object_id + EXTENSION
        reference = {"attrs_file": name, "row": node.attributes.row, "flags": None}
    inline = None if parts.attributes is None or reference is not None else dump_json(parts.attributes)
    is_array = isinstance(node, ArrayNode)
    if is_array != isinstance(parts, ArrayParts):
        raise InvalidInputError(f"the zarr.json of {node.path} is not that of {'an array' if is_array else 'a group'}")
    return {
        "id": array_number(node.id),
        "type": "array" if is_array else "group",
        "path": node.path,
        "array_metadata": _array_row(parts) if isinstance(parts, ArrayParts) else None,
        "inline_attrs": inline,
        "attrs_reference": reference,
        "inventories": [_inventory(ref) for ref in node.manifests] if isinstance(node, ArrayNode) else None,
    }


def _array_row(parts: ArrayParts) -> Row:
    plain = isinstance(parts.data_type, str)
    return {
        "shape": parts.shape,
        "data_type": parts.data_type if plain else dump_json(parts.data_type).decode(),
        "fill_value": encode_fill_value(parts.data_type, parts.fill_value),
        "dimension_names": parts.dimension_names,
        "chunk_grid": None
        if parts.chunk_shape is None
        else {"name": "regular", "configuration": {"chunk_shape": parts.chunk_shape}},
        "chunk_key_encoding": {"name": parts.key_encoding, "configuration": {"separator": parts.separator}},
        "codecs": [
            {"name": c.name, "configuration": None if c.configuration is None else dump_json(c.configuration)}
            for c in parts.codecs
        ],
    }


def _inventory(ref: ManifestRef) -> Row:
    # Rows are sorted by array_id, so a search may always start at 0.
    return {"inventory_file": ref.manifest_id + EXTENSION, "row": 0, "extent": ref.extents, "flags": None}


def _widened_fields(rows: Iterable[Row]) -> list[str]:
    """The fields of which some value does not fit uint16."""
    largest = dict.fromkeys(LARGEST, 0)

    def see(field: str, values: Iterable[int]) -> None:
        largest[field] = max(largest[field], max(values, default=0))

    for row in rows:
        see("id", [row["id"]])
        if row["attrs_reference"] is not None:
            see("row", [row["attrs_reference"]["row"]])
        array = row["array_metadata"]
        if array is not None:
            see("shape", array["shape"])
            see("chunk_shape", array["chunk_grid"]["configuration"]["chunk_shape"] if array["chunk_grid"] else ())
            see("extent", (bound for ref in row["inventories"] for pair in ref["extent"] for bound in pair))
    for field, value in largest.items():
        if value > LARGEST[field]:
            raise InvalidInputError(f"{value} is too large for the field {field!r} of a structure file")
    return [field for field, value in largest.items() if value > 0xFFFF]


def _rebuild(row: Row) -> bytes | None:
    """The document that the columns of a row represent, or None."""
    attributes: dict[str, Any] | None = None
    if row["attrs_reference"] is not None:
        attributes = {}
    elif row["inline_attrs"] is not None:
        attributes = load_object(row["inline_attrs"], f"the attributes of {row['path']}")
    array = row["array_metadata"]
    if row["type"] == "group":
        return build_document(GroupParts(attributes))
    if array["chunk_grid"] is None or array["chunk_key_encoding"] is None or array["fill_value"] is None:
        return None
    names = array["dimension_names"]
    return build_document(
        ArrayParts(
            shape=array["shape"],
            data_type=array["data_type"],
            chunk_shape=array["chunk_grid"]["configuration"]["chunk_shape"],
            key_encoding=array["chunk_key_encoding"]["name"],
            separator=array["chunk_key_encoding"]["configuration"]["separator"],
            fill_value=decode_fill_value(array["data_type"], array["fill_value"]),
            codecs=tuple(
                NamedConfiguration(
                    c["name"], None if c["configuration"] is None else load_object(c["configuration"], c["name"])
                )
                for c in array["codecs"] or ()
            ),
            dimension_names=None if names is None else tuple(names),
            attributes=attributes,
        )
    )


def _decode_node(row: Row, documents: Mapping[str, Any]) -> Node:
    path = row["path"]
    if check_path(path) != path or row["type"] not in ("array", "group"):
        raise FormatError(f"{_WHAT} has a node {path!r} of type {row['type']!r}")
    document = load_document(documents[path]) if path in documents else _rebuild(row)
    if document is None:
        raise FormatError(f"{_WHAT} has no valid grid, key encoding or fill value for the array {path}")
    parsed = parse_document(document, path)
    if parsed["node_type"] != row["type"]:
        raise FormatError(f"{_WHAT} has a zarr.json of another node type at {path}")
    node_id = int(row["id"]).to_bytes(NODE_ID_BYTES, "big")
    reference = row["attrs_reference"]
    attributes = None
    if reference is not None:
        attributes = AttributesRef(_file_id(reference["attrs_file"]), reference["row"])
    if row["type"] == "group":
        return GroupNode(node_id, path, document, attributes)
    shape = parse_array_shape(parsed, path)
    manifests = tuple(_decode_inventory(entry, len(shape.shape), path) for entry in row["inventories"] or ())
    return ArrayNode(node_id, path, document, shape.shape, shape.grid, shape.dimension_names, manifests, attributes)


def _decode_inventory(entry: Row, rank: int, path: str) -> ManifestRef:
    extents = tuple((int(first), int(end)) for first, end in entry["extent"])
    if len(extents) not in (0, rank):
        raise FormatError(f"{_WHAT} has extents of {len(extents)} dimensions for {path}, which has {rank} dimensions")
    if any(not 0 <= first <= end <= 1 << 32 for first, end in extents):
        raise FormatError(f"{_WHAT} has invalid extents of a manifest of {path}: {extents!s:.120}")
    return ManifestRef(_file_id(entry["inventory_file"]), extents)


def _file_id(name: str) -> str:
    return name.removesuffix(EXTENSION)
