"""Snapshots and manifests of the generation `store` as early code wrote them: MessagePack, structures as arrays.

Nothing writes this form any more. It is converted to the structure of the JSON files and read by the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.store.refs import load_id_bytes
from icefloe.ids import NODE_ID_BYTES, NodeId
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, Coords, table_from_rows

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
            number.to_bytes(NODE_ID_BYTES, "big"): table_from_rows(list(held.items()), len(next(iter(held))))
            for number, held in sorted(rows.items())
        }
    except (TypeError, AttributeError, KeyError, ValueError, OverflowError, InvalidInputError) as error:
        raise FormatError(f"the chunk manifest does not match the early format: {error!r}") from error


def _unpack(data: bytes) -> Json:
    try:
        return msgpack.unpackb(data, strict_map_key=False, use_list=False)
    except (msgpack.UnpackException, ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"not a MessagePack file of the early format: {error!r}") from error


def _record(values: Json, names: tuple[str, ...]) -> dict[str, Json]:
    if not isinstance(values, tuple) or len(values) != len(names):
        raise FormatError(f"a structure of the early format does not have the {len(names)} members {', '.join(names)}")
    return dict(zip(names, values, strict=True))


def _node(values: Json) -> dict[str, Json]:
    node = _record(values, _NODE)
    attributes = node["user_attributes"]
    if isinstance(attributes, dict) and "Ref" in attributes:
        node["user_attributes"] = {"Ref": _record(attributes["Ref"], _ATTRIBUTES_REF)}
    else:
        node["user_attributes"] = _listed(attributes)
    if isinstance(node["node_data"], Mapping):
        metadata, references = node["node_data"]["Array"]
        array = _listed(_record(metadata, _ARRAY))
        for member in ("codecs", "storage_transformers"):
            if array[member] is not None:
                array[member] = [_record(tuple(entry), _NAMED) for entry in array[member]]
        node["node_data"] = {"Array": [array, [_record(_listed(entry, 1), _MANIFEST_REF) for entry in references]]}
    return node


def _listed(value: Json, depth: int = 0) -> Json:
    """The value with lists in place of tuples below the given depth, as in JSON."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_listed, value)) if depth else [_listed(item) for item in value]
    return value


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
