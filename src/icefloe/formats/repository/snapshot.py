"""Snapshots and small documents of the generation `repository`: MessagePack and JSON to values and back.

The members do not record the text layout of a document. Two layouts need no extra space: that of zarr-python, and the
compact layout of early snapshots. A document with another layout is stored whole in addition to the members.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import json
import math
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np

from icefloe.blocking import fork_safe_lock
from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.repository.manifest_list import Lists, decode_summaries, encode_summaries
from icefloe.formats.repository.manifest_writer import NODE_TEXT_BYTES, map_header, text_header
from icefloe.formats.repository.wire_values import (
    MALFORMED,
    WireId,
    WireNodeId,
    are_canonical_ids,
    decode_or_refuse,
    parse_node_id,
    parse_object_id,
)
from icefloe.ids import NodeId, ObjectId, encode_base32_all
from icefloe.model.manifest_lists import ListedFiles, ListedRefs
from icefloe.model.snapshot import (
    ArrayNode,
    AttributesRef,
    Extents,
    GroupNode,
    ManifestFileInfo,
    ManifestFiles,
    ManifestRef,
    ManifestRefs,
    Node,
    RefColumns,
    Snapshot,
    SnapshotInfo,
    StoredNodes,
    columns_of,
)
from icefloe.model.zarr_document import find_bad_path, parse_array_shape, parse_document


def parse_time(text: str) -> dt.datetime:
    """Parse an RFC 3339 time to UTC. Digits beyond microseconds are dropped."""
    try:
        parsed = dt.datetime.fromisoformat(text)
        if parsed.tzinfo is dt.UTC:
            return parsed
        return parsed.astimezone(dt.UTC) if parsed.tzinfo else parsed.replace(tzinfo=dt.UTC)
    except (ValueError, OverflowError) as error:
        raise FormatError(f"{text!r:.80} is not a time: {error}") from error


@functools.lru_cache(maxsize=1024)
def format_time(moment: dt.datetime) -> str:
    """RFC 3339 in UTC with as many fraction digits as needed: 0, 3 or 6.

    Every snapshot repeats the times of its newest ancestors, so they are formatted once.
    """
    text = moment.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    whole, _, fraction = text.partition(".")
    if fraction == "000000":
        return f"{whole}Z"
    return f"{whole}.{fraction.removesuffix('000')}Z"


AS_ZARR, AS_EARLY = 0, 1
"""The text layout of a document: that of zarr-python, or that of readers of early snapshots."""
Kept: TypeAlias = int | bytes
"""What a snapshot stores in addition to the members: the layout of the document, or the document itself."""

Members: TypeAlias = tuple[list[int], Any, list[int], Any, dict[str, Any], list[Any], Any, Any]
"""shape, data_type, chunk_shape, chunk_key_encoding, fill_value, codecs, storage_transformers, dimension_names."""

_VARIANTS = {
    "bool": "Bool",
    "int8": "Int8",
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "uint8": "UInt8",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "float16": "Float16",
    "float32": "Float32",
    "float64": "Float64",
    "complex64": "Complex64",
    "complex128": "Complex128",
    "string": "String",
    "bytes": "Bytes",
}
_SEPARATORS = {"/": "Slash", ".": "Dot"}
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_UNPACKABLE = (OverflowError, UnicodeEncodeError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class SplitDocument:
    """A document, split into members."""

    attributes: bytes
    """MessagePack of the attributes object, or of nil."""
    zarr: bytes | None
    """MessagePack of the eight members; None for groups."""
    kept: Kept
    """What to store in addition to the members. Nothing for AS_ZARR."""


def split_document(document: bytes) -> SplitDocument:
    """Split a document into members, and what `join_document` needs in addition to restore it."""
    parsed = parse_document(document)
    attributes = parsed.get("attributes")
    try:
        packed = msgspec.msgpack.encode(attributes)
    except _UNPACKABLE:
        return SplitDocument(b"\xc0", _best_members(parsed), document)
    zarr = None if parsed["node_type"] == "group" else _exact_members(parsed)
    if parsed["node_type"] == "array" and zarr is None:
        return SplitDocument(packed, _best_members(parsed), document)
    for way in (AS_ZARR, AS_EARLY):
        if join_document(attributes, None if zarr is None else decode_members(zarr), way) == document:
            return SplitDocument(packed, zarr, way)
    return SplitDocument(packed, zarr, document)


_MEMBERS = msgspec.msgpack.Decoder(Members)


def decode_members(zarr: bytes | msgspec.Raw) -> Members:
    """Decode the eight members from MessagePack. Raises the errors of msgspec."""
    members: Members = _MEMBERS.decode(zarr)
    return members


def _exact_members(parsed: Mapping[str, Any]) -> bytes | None:
    """The members of an array document, or None if they cannot represent it."""
    grid, encoding, data_type = parsed.get("chunk_grid"), parsed.get("chunk_key_encoding"), parsed.get("data_type")
    try:
        if grid["name"] != "regular" or encoding["name"] != "default" or data_type not in _VARIANTS:  # type: ignore[index]
            return None
        separator = _SEPARATORS[encoding["configuration"]["separator"]]  # type: ignore[index]
        transformers = parsed.get("storage_transformers")
        return msgspec.msgpack.encode(
            [
                parsed["shape"],
                data_type,
                grid["configuration"]["chunk_shape"],  # type: ignore[index]
                separator,
                {_VARIANTS[data_type]: _encode_fill(data_type, parsed["fill_value"])},
                [[codec["name"], codec.get("configuration")] for codec in parsed["codecs"]],
                None if transformers is None else [[t["name"], t.get("configuration")] for t in transformers],
                parsed.get("dimension_names"),
            ]
        )
    except (KeyError, AttributeError, struct.error, *_UNPACKABLE):
        return None


def _best_members(parsed: Mapping[str, Any]) -> bytes | None:
    """Members for other readers, as complete as possible. Our own reader uses the stored document."""
    if parsed["node_type"] == "group":
        return None
    shape = [n for n in parsed.get("shape", []) if isinstance(n, int)]
    data_type = parsed.get("data_type")
    name = data_type.get("name") if isinstance(data_type, dict) else data_type
    grid = parsed.get("chunk_grid")
    chunks = grid.get("configuration", {}).get("chunk_shape") if isinstance(grid, dict) else None
    codecs = [c for c in parsed.get("codecs", []) if isinstance(c, dict)]
    return msgspec.msgpack.encode(
        [
            shape,
            str(name),
            chunks if isinstance(chunks, list) else [max(n, 1) for n in shape],
            "Default",
            {"Bytes": []},
            [[str(c.get("name")), None] for c in codecs],
            None,
            None,
        ]
    )


def _encode_fill(data_type: str, value: Any) -> Any:
    if data_type.startswith("float"):
        return _encode_float(value, 8 if data_type == "float64" else 4)
    if data_type.startswith("complex"):
        real, imaginary = value
        size = 8 if data_type == "complex128" else 4
        return [_encode_float(real, size), _encode_float(imaginary, size)]
    return value


def _encode_float(value: Any, size: int) -> msgspec.Raw:
    number = _NON_FINITE[value] if isinstance(value, str) else float(value)
    return msgspec.Raw(b"\xca" + struct.pack(">f", number) if size == 4 else b"\xcb" + struct.pack(">d", number))


def _decode_fill(value: Any) -> Any:
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
    elif isinstance(value, list | tuple):
        return [_decode_fill(v) for v in value]
    return value


def join_document(attributes: Any, members: Members | None, way: int) -> bytes:
    """Join the document of a node from its attributes (None if it has none) and members (None for a group)."""
    if way == AS_ZARR:
        return _indent(_zarr_order(attributes, members))
    if way == AS_EARLY:
        return json.dumps(_early_order(attributes, members), separators=(",", ":")).encode()
    raise FormatError(f"a document has the unknown layout {way}")


def _zarr_order(attributes: Any, members: Members | None) -> dict[str, Any]:
    if members is None:
        document = {} if attributes is None else {"attributes": attributes}
        return document | {"zarr_format": 3, "node_type": "group"}
    parts = _array_parts(members)
    names, transformers = parts.pop("dimension_names"), parts.pop("storage_transformers")
    if attributes is not None:
        parts["attributes"] = attributes
    if names is not None:
        parts["dimension_names"] = names
    parts |= {"zarr_format": 3, "node_type": "array"}
    if transformers is not None:
        parts["storage_transformers"] = transformers
    return parts


def _early_order(attributes: Any, members: Members | None) -> dict[str, Any]:
    document: dict[str, Any] = {"zarr_format": 3, "node_type": "group" if members is None else "array"}
    if attributes is not None:
        document["attributes"] = attributes
    if members is None:
        return document
    parts = _array_parts(members)
    if parts["storage_transformers"] is None:
        del parts["storage_transformers"]
    return document | parts


def _array_parts(members: Members) -> dict[str, Any]:
    shape, data_type, chunks, encoding, fill, codecs, transformers, names = members
    separator = "." if encoding == "Dot" else "/"
    (fill_value,) = fill.values()
    return {
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
        "fill_value": _decode_fill(fill_value),
        "codecs": [_named(codec) for codec in codecs],
        "storage_transformers": None if transformers is None else [_named(t) for t in transformers],
        "dimension_names": names,
    }


def _named(pair: Any) -> dict[str, Any]:
    name, configuration = pair
    return {"name": name} if configuration is None else {"name": name, "configuration": configuration}


def _indent(value: dict[str, Any]) -> bytes:
    text = json.dumps(value)
    try:
        return msgspec.json.format(text, indent=2).encode()
    except msgspec.DecodeError:
        # json writes NaN and Infinity, but msgspec refuses them.
        return json.dumps(value, indent=2).encode()


HISTORY, PARENTS, METADATA = "icefloe.history", "icefloe.parents", "icefloe.metadata"
DOCUMENTS, MANIFESTS, LISTS = "icefloe.documents", "icefloe.manifests", "icefloe.manifest-lists"
RESERVED = frozenset({HISTORY, PARENTS, METADATA, DOCUMENTS, MANIFESTS, LISTS})

MAX_HISTORY = 32
"""How many ancestors a snapshot file contains. Older history is read from the file of the last one."""
_MAX_METADATA_BYTES = 1024


class MetadataElsewhere(Mapping[str, Any]):
    """Replaces the metadata of an ancestor that is too large to be repeated. It is in the ancestor's own file."""

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def encode_properties(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot's own metadata, and the facts that the history members cannot represent."""
    properties = {key: value for key, value in snapshot.metadata.items() if key not in RESERVED}
    if len(properties) < len(snapshot.metadata):
        properties[METADATA] = {key: value for key, value in snapshot.metadata.items() if key in RESERVED}
    quoted: dict[ObjectId, Any] = {}
    for entry in snapshot.history:
        if type(entry.metadata) is MetadataElsewhere:  # isinstance takes long for an abstract class
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
    properties[MANIFESTS] = [info.num_chunk_refs for info in _own_files(snapshot).values()]
    lists = encode_summaries(snapshot.nodes) if isinstance(snapshot.manifests, ListedFiles) else None
    if lists:
        properties[LISTS] = lists
    return properties


def _own_files(snapshot: Snapshot) -> Mapping[ObjectId, ManifestFileInfo]:
    """The manifest files that are in no list."""
    return snapshot.manifests.own if isinstance(snapshot.manifests, ListedFiles) else snapshot.manifests


def encode_history(snapshot: Snapshot) -> list[list[str]]:
    """The quoted ancestors as [id, time, message], newest first."""
    return [[entry.id, format_time(entry.written_at), entry.message] for entry in snapshot.history]


def decode_history(wire: list[Any], properties: Mapping[str, Any]) -> tuple[SnapshotInfo, ...]:
    """The quoted ancestors. The parent of each is the next one, unless another one is recorded."""
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
    """The recorded parent of a snapshot, or the default if none is recorded."""
    if child not in parents:
        return default
    return None if parents[child] is None else parse_object_id(parents[child])


def decode_metadata(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot's own metadata, without reserved keys."""
    own = {key: value for key, value in properties.items() if key not in RESERVED}
    return own | dict(_mapping(properties.get(METADATA)))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


_NODE = msgspec.msgpack.Decoder(
    tuple[WireNodeId, str, dict[str, msgspec.Raw] | None, str | dict[str, tuple[msgspec.Raw, msgspec.Raw]]]
)
_NODE_ID = msgspec.msgpack.Decoder(tuple[WireNodeId, msgspec.Raw, msgspec.Raw, msgspec.Raw])
_MANIFESTS = msgspec.msgpack.Decoder(list[tuple[WireId, list[list[int]]]])
_REF = msgspec.msgpack.Decoder(tuple[WireId, int])
_ANY = msgspec.msgpack.Decoder()
_MAX_INDEX = 2**32 - 1
_MANY_MANIFESTS = 64
_MOST_KNOWN = 4096


class NodeMap(StoredNodes):
    """Nodes by path. A node is decoded at its first use, so that opening a large snapshot is fast."""

    def __init__(
        self, encoded: Mapping[str, msgspec.Raw], kept: Mapping[str, Kept] | None, lists: Lists | None = None
    ) -> None:
        """`kept` is what the snapshot stores in addition to the members. It is None in files of other writers."""
        self._paths = sorted(encoded)
        bad = find_bad_path(encoded)
        if bad is not None:
            raise FormatError(f"a snapshot has a node at {bad!r:.80}, which is not a valid path")
        self._encoded = dict(encoded)
        self._kept = kept
        self._lists = lists or {}
        self._decoded: dict[str, Node] = {}
        self._shared = _SharedValues()

    def __getitem__(self, path: str) -> Node:
        node = self._decoded.get(path)
        if node is None:
            encoded = self._encoded[path]
            default = AS_EARLY if self._kept is None else AS_ZARR
            kept = default if self._kept is None else self._kept.get(path, default)
            node = self._decoded[path] = _decode_node(path, encoded, kept, self._shared, self._lists.get(path))
        return node

    def __contains__(self, path: object) -> bool:
        return path in self._encoded

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def paths_by_id(self) -> Mapping[NodeId, str]:
        found = (decode_or_refuse(_NODE_ID, self._encoded[path], "snapshot")[0] for path in self._paths)
        return dict(zip(map(parse_node_id, found), self._paths, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        encoded = {path: bytes(memoryview(raw)) for path, raw in self._encoded.items()}
        return _rebuild, (encoded, self._kept, self._lists)


def _rebuild(encoded: dict[str, bytes], kept: Mapping[str, Kept] | None, lists: Lists) -> NodeMap:
    return NodeMap({path: msgspec.Raw(data) for path, data in encoded.items()}, kept, lists)


@dataclass(frozen=True, slots=True)
class _Described:
    """The decoded members of an array."""

    document: bytes
    shape: tuple[int, ...]
    grid: tuple[int, ...]
    dimension_names: tuple[str | None, ...] | None


class _SharedValues:
    """Decoded values of the nodes of one snapshot. Arrays with equal values share them."""

    def __init__(self) -> None:
        self.manifests: dict[tuple[bytes, int], Sequence[ManifestRef]] = {}
        self.described: dict[tuple[bytes, bytes, int], _Described] = {}


def _decode_node(path: str, encoded: msgspec.Raw, kept: Kept, shared: _SharedValues, lists: ListedRefs | None) -> Node:
    wire_id, own_path, wire_attributes, data = decode_or_refuse(_NODE, encoded, "snapshot")
    if own_path != path or not path.startswith("/"):
        raise FormatError(f"a snapshot has the node {own_path!r:.80} under the path {path!r:.80}")
    node_id = parse_node_id(wire_id)
    try:
        attributes, reference = _decode_attributes(wire_attributes)
        if isinstance(data, str):
            if data != "Group":
                raise FormatError(f"the node {path!r:.80} has the unknown kind {data!r:.40}")
            document = kept if isinstance(kept, bytes) else join_document(_ANY.decode(attributes), None, kept)
            return GroupNode(node_id, path, document, reference)
        (name, (zarr, wire_manifests)) = _only_item(data)
        if name not in ("Array", "ListedArray"):
            raise FormatError(f"the node {path!r:.80} has the unknown kind {name!r:.40}")
        if (name == "ListedArray") != (lists is not None):
            raise FormatError(f"the kind {name} of the node {path!r:.80} contradicts the lists of the snapshot")
        if isinstance(kept, bytes):
            parsed = parse_array_shape(parse_document(kept), path)
            document, shape, grid, names = kept, parsed.shape, parsed.grid, parsed.dimension_names
        else:
            found = _describe(path, attributes, bytes(zarr), kept, shared)
            document, shape, grid, names = found.document, found.shape, found.grid, found.dimension_names
        manifests = lists or _decode_manifests(wire_manifests, path, len(shape), shared)
        if lists is not None and lists.bounds.shape[1] != len(shape):
            raise FormatError(f"the array {path!r:.80} of rank {len(shape)} has manifest lists of another rank")
        return ArrayNode(node_id, path, document, shape, grid, names, manifests, reference)
    except (InvalidInputError, *MALFORMED) as error:
        raise FormatError(f"the node {path!r:.80} of a snapshot cannot be read: {error}") from error


def _decode_manifests(wire: msgspec.Raw, path: str, rank: int, shared: _SharedValues) -> Sequence[ManifestRef]:
    """The manifests of an array. A long list is decoded at its first use."""
    key = bytes(wire), rank
    known = shared.manifests.get(key)
    if known is None:
        count = _count_entries(key[0])

        def load() -> RefColumns | tuple[ManifestRef, ...]:
            found = decode_or_refuse(_MANIFESTS, key[0], "snapshot")
            return _parse_usual_manifests(found, rank) or _parse_manifests(found, path, rank)

        if count >= _MANY_MANIFESTS:
            known = ManifestRefs(count, load)
        else:
            known = _parse_manifests(decode_or_refuse(_MANIFESTS, key[0], "snapshot"), path, rank)
        if len(shared.manifests) < _MOST_KNOWN:
            shared.manifests[key] = known
    return known


def _count_entries(array: bytes) -> int:
    """The number of values of a MessagePack array. 0 for another value."""
    if array[:1] in (b"\xdc", b"\xdd"):
        return int.from_bytes(array[1 : 3 if array[0] == 0xDC else 5], "big")
    return array[0] & 0x0F if array and array[0] & 0xF0 == 0x90 else 0


def _parse_manifests(found: list[tuple[WireId, list[list[int]]]], path: str, rank: int) -> tuple[ManifestRef, ...]:
    try:
        refs = tuple(ManifestRef(parse_object_id(m), _parse_extents(e)) for m, e in found)
    except (InvalidInputError, *MALFORMED) as error:
        raise FormatError(f"the node {path!r:.80} of a snapshot cannot be read: {error}") from error
    if any(ref.extents and len(ref.extents) != rank for ref in refs):
        raise FormatError(f"the array {path!r:.80} of rank {rank} has manifests with extents of another rank")
    return refs


def _parse_usual_manifests(found: list[tuple[WireId, list[list[int]]]], rank: int) -> RefColumns | None:
    """Manifests of a large array as this library writes them, all at once. None if one has another form."""
    ids, boxes = zip(*found, strict=True)
    if set(map(type, ids)) != {str} or set(map(len, boxes)) != {2} or not are_canonical_ids(ids):
        return None
    bounds = list(itertools.chain.from_iterable(boxes))
    if set(map(len, bounds)) != {rank}:
        return None
    try:
        ends = np.fromiter(itertools.chain.from_iterable(bounds), np.int64).reshape(len(boxes), 2, -1)
    except OverflowError:
        return None
    if not ((ends[:, 0] >= 0) & (ends[:, 0] <= ends[:, 1]) & (ends[:, 1] <= _MAX_INDEX + 1)).all():
        return None
    return RefColumns(ids, np.ascontiguousarray(ends.transpose(0, 2, 1)))


def _describe(path: str, attributes: bytes, zarr: bytes, kept: int, shared: _SharedValues) -> _Described:
    key = attributes, zarr, kept
    known = shared.described.get(key)
    if known is not None:
        return known
    members = decode_members(zarr)
    lengths, chunks, names = members[0], members[2], members[7]
    if len(lengths) != len(chunks) or any(n < 0 for n in lengths) or any(c <= 0 < n for n, c in zip(lengths, chunks)):
        raise FormatError(f"the array {path!r:.80} has shape {lengths!s:.80} and chunks {chunks!s:.80}")
    grid = tuple(-(-n // c) if n else 0 for n, c in zip(lengths, chunks, strict=True))
    document = join_document(_ANY.decode(attributes), members, kept)
    found = _Described(document, tuple(lengths), grid, None if names is None else tuple(names))
    if len(shared.described) < _MOST_KNOWN:
        shared.described[key] = found
    return found


_NIL_BYTES, _EMPTY = b"\xc0", b"\x80"


def _decode_attributes(wire: dict[str, msgspec.Raw] | None) -> tuple[bytes, AttributesRef | None]:
    """The attributes in MessagePack, and their location if they are in another file."""
    if wire is None:
        return _NIL_BYTES, None
    name, value = _only_item(wire)
    if name == "Inline":
        return bytes(value), None
    if name == "Ref":
        object_id, row = _REF.decode(value)
        if row < 0:
            raise FormatError(f"a snapshot refers to attributes in the invalid row {row} of a file")
        return _EMPTY, AttributesRef(parse_object_id(object_id), row)
    raise FormatError(f"a snapshot has attributes of the unknown kind {name!r:.40}")


def _only_item(mapping: dict[str, Any]) -> tuple[str, Any]:
    if len(mapping) != 1:
        raise FormatError(f"a variant has {len(mapping)} names, expected one")
    return next(iter(mapping.items()))


def _parse_extents(wire: list[list[int]]) -> Extents:
    """[] covers everything; else [first per dimension], [end per dimension]."""
    if not wire:
        return ()
    firsts, ends = wire
    if any(not 0 <= first <= end <= _MAX_INDEX + 1 for first, end in zip(firsts, ends, strict=True)):
        raise FormatError(f"a manifest has the invalid extents {wire!s:.120}")
    return tuple(zip(firsts, ends, strict=True))


_PARTS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_NODES = dict[str, msgspec.Raw]
_FILES = list[tuple[WireId | int, ...]]
_FILE_LIST = msgspec.msgpack.Decoder(_FILES)
_WITH_HISTORY = msgspec.msgpack.Decoder(
    tuple[
        msgspec.Raw,
        _FILES,
        int,
        int,
        list[tuple[WireId, str, str]],
        tuple[WireId, str, str],
        str,
        dict[str, Any],
        _NODES,
    ]
)
_WITH_PARENT = msgspec.msgpack.Decoder(
    tuple[WireId, WireId | None, str, str, dict[str, Any], _FILES, _FILES, _NODES],
)
_LENGTHS = {0x9B: 11, 0x99: 9, 0x98: 8}


def decode_snapshot_body(body: bytes) -> Snapshot:
    """Decode the snapshot of a MessagePack body of any layout."""
    length = _LENGTHS.get(body[0]) if body else None
    if length is None:
        raise FormatError(
            f"not a snapshot: the body starts with {body[:8].hex() or 'nothing'}, "
            "expected a MessagePack array of 8, 9 or 11"
        )
    if length == 8:
        return _decode_with_parent(body)
    if length == 11:
        # Before files had a header, the format version and flags came first.
        parts = decode_or_refuse(_PARTS, body, "snapshot")
        body = b"\x99" + b"".join(memoryview(part) for part in parts[2:])
    return _decode_with_history(body)


def _decode_with_history(body: bytes) -> Snapshot:
    files, attribute_files, total, _, history, own, started_at, properties, nodes = decode_or_refuse(
        _WITH_HISTORY, body, "snapshot"
    )
    snapshot_id = parse_object_id(own[0])
    ancestors = decode_history(history, properties)
    parents = properties.get(PARENTS)
    counts = properties.get(MANIFESTS)
    kept = properties.get(DOCUMENTS)
    lists = decode_summaries(properties[LISTS]) if LISTS in properties else {}
    if not nodes.keys() >= lists.keys():
        raise FormatError("a snapshot has manifest lists of an array that does not exist")
    listed = dict.fromkeys(each for refs in lists.values() for each in refs.select(np.arange(len(refs.lists))))
    own_files = _open_files(files, counts if isinstance(counts, list) else [])
    return Snapshot(
        id=snapshot_id,
        parent_id=parent_or(
            parents if isinstance(parents, dict) else {}, snapshot_id, ancestors[0].id if ancestors else None
        ),
        written_at=parse_time(own[1]),
        message=own[2],
        metadata=decode_metadata(properties),
        nodes=NodeMap(nodes, _check_kept(kept), lists),
        manifests=ListedFiles(own_files, listed) if listed else own_files,
        attribute_files=_decode_attribute_files(attribute_files),
        history=ancestors,
        total_ancestors=max(total, len(ancestors)),
        started_at=parse_time(started_at),
    )


def _decode_with_parent(body: bytes) -> Snapshot:
    wire_id, parent, flushed_at, message, metadata, files, attribute_files, nodes = decode_or_refuse(
        _WITH_PARENT, body, "snapshot"
    )
    return Snapshot(
        id=parse_object_id(wire_id),
        parent_id=None if parent is None else parse_object_id(parent),
        written_at=parse_time(flushed_at),
        message=message,
        metadata=metadata,
        nodes=NodeMap(nodes, None),
        manifests=_decode_files(files, [], size_at=1),
        attribute_files=_decode_attribute_files(attribute_files),
    )


def _open_files(wire: msgspec.Raw, counts: list[Any]) -> Mapping[ObjectId, ManifestFileInfo]:
    """The manifest files of a snapshot. A long list is decoded at its first use."""
    data = bytes(wire)

    def load() -> dict[ObjectId, ManifestFileInfo]:
        return _decode_files(decode_or_refuse(_FILE_LIST, data, "snapshot"), counts, size_at=2)

    return ManifestFiles(load) if _count_entries(data) >= _MANY_MANIFESTS else load()


def _decode_files(wire: list[tuple[Any, ...]], counts: list[Any], size_at: int) -> dict[ObjectId, ManifestFileInfo]:
    """[id, version (, size (, references))], or in the last layout [id, size, references]."""
    usual = _decode_usual_files(wire, counts) if size_at == 2 else None
    if usual is not None:
        return usual
    files = {}
    for index, members in enumerate(wire):
        if not 2 <= len(members) <= 4 or not all(isinstance(m, int) for m in members[1:]):
            raise FormatError(f"a snapshot has an invalid entry for a manifest file: {members!r:.120}")
        manifest_id = parse_object_id(members[0])
        sizes = members[2:] if len(members) != 3 else members[size_at:]
        size, count = (*sizes, 0, 0)[:2]
        if index < len(counts) and isinstance(counts[index], int):
            count = counts[index]
        files[manifest_id] = ManifestFileInfo(manifest_id, size, count)
    return files


def _decode_usual_files(wire: list[tuple[Any, ...]], counts: list[Any]) -> dict[ObjectId, ManifestFileInfo] | None:
    """The same for entries that this library wrote, all at once. None if one is not such an entry."""
    if not wire or len(counts) != len(wire) or set(map(len, wire)) != {3}:
        return None
    ids, versions, sizes = zip(*wire, strict=True)
    if set(map(type, ids)) != {str} or {*map(type, versions), *map(type, sizes), *map(type, counts)} != {int}:
        return None
    if not are_canonical_ids(ids):
        return None
    return {key: ManifestFileInfo(key, size, count) for key, size, count in zip(ids, sizes, counts, strict=True)}


def _decode_attribute_files(wire: list[tuple[Any, ...]]) -> tuple[ObjectId, ...]:
    return tuple(parse_object_id(members[0] if members else None) for members in wire)


def _check_kept(kept: Any) -> Mapping[str, Kept] | None:
    if kept is None:
        return None
    if not isinstance(kept, dict) or not all(isinstance(value, int | bytes) for value in kept.values()):
        raise FormatError("a snapshot stores its documents in an unknown form")
    return kept


FILE_VERSION = 1
_ENCODER = msgspec.msgpack.Encoder()
_MAX_TOTAL = 2**32 - 1
_MAX_SHORT = 2**16 - 1

_NODE_HEAD = b"\x94" + text_header(NODE_TEXT_BYTES)
_NIL, _INLINE = b"\xc0", b"\x81" + text_header(6) + b"Inline"
_GROUP, _ARRAY = text_header(5) + b"Group", b"\x81" + text_header(5) + b"Array\x92"
_LISTED_ARRAY = b"\x81" + text_header(11) + b"ListedArray\x92"
"""The kind of an array whose manifests are in lists. Readers that do not know lists refuse it."""


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
                [[info.id, FILE_VERSION, info.size_bytes] for info in _own_files(snapshot).values()],
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
            f"the message or metadata of snapshot {snapshot.id} cannot be stored: {error}. Metadata can only contain "
            "JSON values"
        ) from error


def _encode_nodes(nodes: Mapping[str, Node], kept: dict[str, Kept]) -> msgspec.Raw:
    """Encode the map of nodes by path. Pieces that nodes share are encoded once."""
    ids = encode_base32_all([node.id for node in nodes.values()])
    documents: dict[bytes, SplitDocument] = {}
    links = _Links()
    parts = [map_header(len(nodes))]
    for node_id, (path, node) in zip(ids, nodes.items(), strict=True):
        split = documents.get(node.document)
        if split is None:
            split = documents[node.document] = _DOCUMENTS.split_document(node.document)
        if split.kept != AS_ZARR:
            kept[path] = split.kept
        encoded = path.encode()
        text = text_header(len(encoded)) + encoded
        # The key, and a list of four: id, path, attributes, and the data of the group or array.
        parts += (text, _NODE_HEAD, node_id.encode(), text, _encode_attributes(node, split))
        if not isinstance(node, ArrayNode):
            parts.append(_GROUP)
        elif split.zarr is None:
            raise InvalidInputError(f"the zarr.json of array {path} is that of a group")
        elif isinstance(node.manifests, ListedRefs):
            parts += (_LISTED_ARRAY, split.zarr, b"\x90")
        else:
            parts += (_ARRAY, split.zarr, links.encode(node.manifests))
    return msgspec.Raw(b"".join(parts))


def _encode_attributes(node: Node, split: SplitDocument) -> bytes:
    if node.attributes is not None:
        return _ENCODER.encode({"Ref": [node.attributes.object_id, node.attributes.row]})
    return _NIL if split.attributes == _NIL else _INLINE + split.attributes


class _Links:
    """The encoded manifest links of nodes. The arrays of one manifest have equal links."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Sequence[ManifestRef], bytes]] = {}

    def encode(self, manifests: Sequence[ManifestRef]) -> bytes:
        known = self._known.get(id(manifests))
        if known is None:
            # [first per dimension], [end per dimension]; [] covers everything.
            columns = columns_of(manifests)
            if columns is None:
                entries = [(ref.manifest_id, tuple(zip(*ref.extents, strict=True))) for ref in manifests]
            else:
                entries = [*zip(columns.ids, columns.boxes.transpose(0, 2, 1).tolist(), strict=True)]
            encoded = _ENCODER.encode(entries)
            # Keep the tuple too: while it exists, no other object has its id().
            known = self._known[id(manifests)] = (manifests, encoded)
        return known[1]


class _SplitDocuments:
    """Documents that were split before. Most documents of a snapshot are those of its parent."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._documents: OrderedDict[bytes, SplitDocument] = OrderedDict()
        self._lock = fork_safe_lock()

    def split_document(self, document: bytes) -> SplitDocument:
        with self._lock:
            split = self._documents.get(document)
            if split is not None:
                self._documents.move_to_end(document)
                return split
        split = split_document(document)
        with self._lock:
            if document not in self._documents:
                self._documents[document] = split
                self._bytes += 2 * len(document)
                while self._bytes > self._limit_bytes:
                    self._bytes -= 2 * len(self._documents.popitem(last=False)[0])
        return split


_DOCUMENTS = _SplitDocuments(64 << 20)
