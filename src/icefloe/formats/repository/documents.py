"""zarr.json and the eight members of a snapshot: taken apart for other readers, put together again byte for byte.

The members cannot hold how a document was written. Two ways are known and cost nothing: zarr-python's own, and the
compact one of early snapshots. A document that neither gives back is kept whole beside the members.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from icefloe.errors import FormatError
from icefloe.model.zarr_document import parse_document

AS_ZARR, AS_EARLY = 0, 1
"""How a document is put together: like zarr-python writes it, or like readers of early snapshots did."""
Kept: TypeAlias = int | bytes
"""What a snapshot keeps beside the members: the way, or the document itself."""

Members: TypeAlias = tuple[list[int], Any, list[int], Any, dict[str, Any], list[Any], Any, Any]
"""shape, data_type, chunk_shape, chunk_key_encoding, fill_value, codecs, storage_transformers, dimension_names."""

_VARIANTS = {
    "bool": "Bool", "int8": "Int8", "int16": "Int16", "int32": "Int32", "int64": "Int64",
    "uint8": "UInt8", "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64",
    "float16": "Float16", "float32": "Float32", "float64": "Float64",
    "complex64": "Complex64", "complex128": "Complex128", "string": "String", "bytes": "Bytes",
}  # fmt: skip
_SEPARATORS = {"/": "Slash", ".": "Dot"}
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_UNPACKABLE = (OverflowError, UnicodeEncodeError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Taken:
    """A document taken apart."""

    attributes: bytes
    """MessagePack of the attributes object, or of nil."""
    zarr: bytes | None
    """MessagePack of the eight members; None for groups."""
    kept: Kept
    """What to keep beside them; AS_ZARR needs no keeping."""


def take_apart(document: bytes) -> Taken:
    """The members of a document, and what has to be kept so that `put_together` gives it back."""
    parsed = parse_document(document)
    attributes = parsed.get("attributes")
    try:
        packed = msgspec.msgpack.encode(attributes)
    except _UNPACKABLE:
        return Taken(b"\xc0", _best_members(parsed), document)
    zarr = None if parsed["node_type"] == "group" else _exact_members(parsed)
    if parsed["node_type"] == "array" and zarr is None:
        return Taken(packed, _best_members(parsed), document)
    for way in (AS_ZARR, AS_EARLY):
        if put_together(attributes, None if zarr is None else decode_members(zarr), way) == document:
            return Taken(packed, zarr, way)
    return Taken(packed, zarr, document)


_MEMBERS = msgspec.msgpack.Decoder(Members)


def decode_members(zarr: bytes | msgspec.Raw) -> Members:
    """The eight members from MessagePack; msgspec errors pass."""
    members: Members = _MEMBERS.decode(zarr)
    return members


def _exact_members(parsed: Mapping[str, Any]) -> bytes | None:
    """The members of an array document, or None when they cannot say what it says."""
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
    """Members that tell other readers as much as fits; our own reader takes the document kept beside them."""
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


def put_together(attributes: Any, members: Members | None, way: int) -> bytes:
    """The document of a node from its attributes (None: it has none) and members (None: it is a group)."""
    if way == AS_ZARR:
        return _indent(_zarr_order(attributes, members))
    if way == AS_EARLY:
        return json.dumps(_early_order(attributes, members), separators=(",", ":")).encode()
    raise FormatError(f"a document is put together in the unknown way {way}")


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
        # NaN and Infinity are written by json and refused by msgspec.
        return json.dumps(value, indent=2).encode()
