"""The nodes of a snapshot, decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.repository.documents import AS_EARLY, AS_ZARR, Kept, decode_members, put_together
from icefloe.formats.repository.values import (
    MALFORMED,
    WireId,
    WireNodeId,
    decode_or_refuse,
    parse_node_id,
    parse_object_id,
)
from icefloe.model.nodes import ArrayNode, AttributesRef, Extents, GroupNode, ManifestRef, Node
from icefloe.model.paths import find_bad_path
from icefloe.model.zarr_document import parse_array_shape, parse_document

_NODE = msgspec.msgpack.Decoder(
    tuple[WireNodeId, str, dict[str, msgspec.Raw] | None, str | dict[str, tuple[msgspec.Raw, msgspec.Raw]]]
)
_MANIFESTS = msgspec.msgpack.Decoder(list[tuple[WireId, list[list[int]]]])
_REF = msgspec.msgpack.Decoder(tuple[WireId, int])
_ANY = msgspec.msgpack.Decoder()
_MAX_INDEX = 2**32 - 1
_MOST_KNOWN = 4096


class NodeMap(Mapping[str, Node]):
    """Path to node, by path; a node is decoded at its first use, so that opening a large snapshot is quick."""

    def __init__(self, encoded: Mapping[str, msgspec.Raw], kept: Mapping[str, Kept] | None) -> None:
        """`kept` is what the snapshot keeps beside the members, None in files of others."""
        self._paths = sorted(encoded)
        bad = find_bad_path(encoded)
        if bad is not None:
            raise FormatError(f"a snapshot holds a node under {bad!r:.80}, which is not the path of a node")
        self._encoded = dict(encoded)
        self._kept = kept
        self._decoded: dict[str, Node] = {}
        self._alike = _Alike()

    def __getitem__(self, path: str) -> Node:
        node = self._decoded.get(path)
        if node is None:
            encoded = self._encoded[path]
            default = AS_EARLY if self._kept is None else AS_ZARR
            kept = default if self._kept is None else self._kept.get(path, default)
            node = self._decoded[path] = _decode_node(path, encoded, kept, self._alike)
        return node

    def __contains__(self, path: object) -> bool:
        return path in self._encoded

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, ({path: bytes(memoryview(raw)) for path, raw in self._encoded.items()}, self._kept)


def _rebuild(encoded: dict[str, bytes], kept: Mapping[str, Kept] | None) -> NodeMap:
    return NodeMap({path: msgspec.Raw(data) for path, data in encoded.items()}, kept)


@dataclass(frozen=True, slots=True)
class _Described:
    """What the members of an array say."""

    document: bytes
    shape: tuple[int, ...]
    grid: tuple[int, ...]
    dimension_names: tuple[str | None, ...] | None


class _Alike:
    """What nodes of one snapshot were found to say: thousands of arrays say the same, and share the values."""

    def __init__(self) -> None:
        self.manifests: dict[bytes, tuple[ManifestRef, ...]] = {}
        self.described: dict[tuple[bytes, bytes, int], _Described] = {}


def _decode_node(path: str, encoded: msgspec.Raw, kept: Kept, alike: _Alike) -> Node:
    wire_id, own_path, wire_attributes, data = decode_or_refuse(_NODE, encoded, "snapshot")
    if own_path != path or not path.startswith("/"):
        raise FormatError(f"a snapshot holds the node {own_path!r:.80} under the path {path!r:.80}")
    node_id = parse_node_id(wire_id)
    try:
        attributes, reference = _decode_attributes(wire_attributes)
        if isinstance(data, str):
            if data != "Group":
                raise FormatError(f"the node {path!r:.80} is of the unknown kind {data!r:.40}")
            document = kept if isinstance(kept, bytes) else put_together(_value(attributes), None, kept)
            return GroupNode(node_id, path, document, reference)
        (name, (zarr, wire_manifests)) = _only_item(data)
        if name != "Array":
            raise FormatError(f"the node {path!r:.80} is of the unknown kind {name!r:.40}")
        manifests = _decode_manifests(wire_manifests, alike)
        if isinstance(kept, bytes):
            parsed = parse_array_shape(parse_document(kept), path)
            return ArrayNode(
                node_id, path, kept, parsed.shape, parsed.grid, parsed.dimension_names, manifests, reference
            )  # fmt: skip
        found = _describe(path, attributes, bytes(zarr), kept, alike)
        if any(ref.extents and len(ref.extents) != len(found.shape) for ref in manifests):
            raise FormatError(
                f"the array {path!r:.80} of rank {len(found.shape)} has manifests with extents of another rank"
            )
        return ArrayNode(
            node_id, path, found.document, found.shape, found.grid, found.dimension_names, manifests, reference
        )  # fmt: skip
    except (InvalidInputError, *MALFORMED) as error:
        raise FormatError(f"the node {path!r:.80} of a snapshot cannot be read: {error}") from error


def _decode_manifests(wire: msgspec.Raw, alike: _Alike) -> tuple[ManifestRef, ...]:
    key = bytes(wire)
    known = alike.manifests.get(key)
    if known is None:
        known = tuple(ManifestRef(parse_object_id(m), _parse_extents(e)) for m, e in _MANIFESTS.decode(wire))
        if len(alike.manifests) < _MOST_KNOWN:
            alike.manifests[key] = known
    return known


def _describe(path: str, attributes: bytes, zarr: bytes, kept: int, alike: _Alike) -> _Described:
    key = attributes, zarr, kept
    known = alike.described.get(key)
    if known is not None:
        return known
    members = decode_members(zarr)
    lengths, chunks, names = members[0], members[2], members[7]
    if len(lengths) != len(chunks) or any(n < 0 for n in lengths) or any(c <= 0 < n for n, c in zip(lengths, chunks)):
        raise FormatError(f"the array {path!r:.80} has shape {lengths!s:.80} and chunks {chunks!s:.80}")
    grid = tuple(-(-n // c) if n else 0 for n, c in zip(lengths, chunks, strict=True))
    found = _Described(
        put_together(_value(attributes), members, kept), tuple(lengths), grid, None if names is None else tuple(names)
    )
    if len(alike.described) < _MOST_KNOWN:
        alike.described[key] = found
    return found


def _value(attributes: bytes) -> Any:
    return _ANY.decode(attributes)


_NIL, _EMPTY = b"\xc0", b"\x80"


def _decode_attributes(wire: dict[str, msgspec.Raw] | None) -> tuple[bytes, AttributesRef | None]:
    """The attributes in MessagePack, and where they are if they are elsewhere."""
    if wire is None:
        return _NIL, None
    name, value = _only_item(wire)
    if name == "Inline":
        return bytes(value), None
    if name == "Ref":
        object_id, row = _REF.decode(value)
        if row < 0:
            raise FormatError(f"attributes in row {row} of a file")
        return _EMPTY, AttributesRef(parse_object_id(object_id), row)
    raise FormatError(f"attributes of the unknown kind {name!r:.40}")


def _only_item(mapping: dict[str, Any]) -> tuple[str, Any]:
    if len(mapping) != 1:
        raise FormatError(f"a variant with {len(mapping)} names, expected one")
    return next(iter(mapping.items()))


def _parse_extents(wire: list[list[int]]) -> Extents:
    """[] covers everything; else [first per dimension], [end per dimension]."""
    if not wire:
        return ()
    firsts, ends = wire
    if any(not 0 <= first <= end <= _MAX_INDEX + 1 for first, end in zip(firsts, ends, strict=True)):
        raise FormatError(f"a manifest is said to cover the chunks {wire!s:.120}")
    return tuple(zip(firsts, ends, strict=True))
