"""A zarr.json taken apart into the members that early generations keep, and built again the way zarr-python writes it.

A generation that stores members instead of the document builds it again when reading. Where that does not give the very
bytes the user stored (extension data types, other chunk grids, unknown keys, another layout of the text), it keeps the
whole document beside the members: `store_document` and `load_document` are its JSON form.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from icefloe.errors import FormatError

Json = Any


@dataclass(frozen=True, slots=True)
class NamedConfiguration:
    """A codec or storage transformer: its name, and its configuration if it has one."""

    name: str
    configuration: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class GroupParts:
    """The members of a group document; `attributes` is None when the document has none."""

    attributes: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class ArrayParts:
    """The members of an array document; `chunk_shape` is None for other grids than the regular one."""

    shape: tuple[int, ...]
    data_type: Json
    chunk_shape: tuple[int, ...] | None
    key_encoding: str
    separator: str
    fill_value: Json
    codecs: tuple[NamedConfiguration, ...]
    storage_transformers: tuple[NamedConfiguration, ...] | None = ()
    dimension_names: tuple[str | None, ...] | None = None
    attributes: Mapping[str, Json] | None = None


def extract_parts(parsed: Mapping[str, Json]) -> ArrayParts | GroupParts:
    """The members of a parsed document, as far as they have the usual form; the rest shows in the rebuilt text."""
    attributes = parsed.get("attributes")
    attributes = attributes if isinstance(attributes, dict) else None
    if parsed.get("node_type") == "group":
        return GroupParts(attributes)
    grid = _mapping(parsed.get("chunk_grid"))
    keys = _mapping(parsed.get("chunk_key_encoding"))
    regular = (
        _integers(_mapping(grid.get("configuration")).get("chunk_shape")) if grid.get("name") == "regular" else None
    )
    separator = _mapping(keys.get("configuration")).get("separator")
    names = parsed.get("dimension_names")
    return ArrayParts(
        shape=_integers(parsed.get("shape")) or (),
        data_type=parsed.get("data_type"),
        chunk_shape=regular,
        key_encoding=str(keys.get("name", "default")),
        separator=separator if isinstance(separator, str) else "/",
        fill_value=parsed.get("fill_value"),
        codecs=_named(parsed.get("codecs")) or (),
        storage_transformers=_named(parsed.get("storage_transformers")),
        dimension_names=tuple(n if isinstance(n, str) else None for n in names) if isinstance(names, list) else None,
        attributes=attributes,
    )


def build_document(parts: ArrayParts | GroupParts) -> bytes:
    """The document of these members, in the order and layout of zarr-python."""
    document: dict[str, Json] = {}
    if isinstance(parts, ArrayParts):
        document["shape"] = parts.shape
        document["data_type"] = parts.data_type
        document["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": parts.chunk_shape}}
        document["chunk_key_encoding"] = {"name": parts.key_encoding, "configuration": {"separator": parts.separator}}
        document["fill_value"] = parts.fill_value
        document["codecs"] = [_plain(codec) for codec in parts.codecs]
    if parts.attributes is not None:
        document["attributes"] = parts.attributes
    if isinstance(parts, ArrayParts) and parts.dimension_names is not None:
        document["dimension_names"] = parts.dimension_names
    document["zarr_format"] = 3
    document["node_type"] = "array" if isinstance(parts, ArrayParts) else "group"
    if isinstance(parts, ArrayParts) and parts.storage_transformers is not None:
        document["storage_transformers"] = [_plain(transformer) for transformer in parts.storage_transformers]
    return _indented(document)


def _indented(document: dict[str, Json]) -> bytes:
    """As json.dumps(document, indent=2), which is slow: written compactly by C, then laid out by C."""
    compact = json.dumps(document).encode()
    try:
        return msgspec.json.format(compact, indent=2)
    except msgspec.DecodeError:
        # NaN and Infinity, which zarr-python writes into attributes and strict parsers refuse.
        return json.dumps(document, indent=2).encode()


def store_document(document: bytes) -> Json:
    """A whole document as a JSON value: its text, or base64 where it is not UTF-8."""
    try:
        return document.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(document).decode()}


def load_document(stored: Json) -> bytes:
    """Undo store_document."""
    try:
        if isinstance(stored, str):
            return stored.encode()
        if isinstance(stored, dict) and isinstance(stored.get("base64"), str):
            return base64.b64decode(stored["base64"], validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise FormatError(f"a kept zarr.json cannot be read back: {error}") from error
    raise FormatError(f"a kept zarr.json must be text or base64, found {type(stored).__name__}")


def _plain(part: NamedConfiguration) -> dict[str, Json]:
    plain: dict[str, Json] = {"name": part.name}
    if part.configuration is not None:
        plain["configuration"] = part.configuration
    return plain


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _integers(value: Json) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        return None
    return tuple(value)


def _named(value: Json) -> tuple[NamedConfiguration, ...] | None:
    if not isinstance(value, list):
        return None
    found = []
    for item in value:
        entry = {"name": item} if isinstance(item, str) else _mapping(item)
        configuration = entry.get("configuration")
        found.append(
            NamedConfiguration(str(entry.get("name", "")), configuration if isinstance(configuration, dict) else None)
        )
    return tuple(found)
