"""JSON that every reader accepts, fill values, and zarr.json split into members and joined again.

Some generations store the members of a zarr.json and build the document again when reading. If the result is not
identical to the user's bytes (extension data types, other chunk grids, unknown keys, another text layout), they store
the whole document in addition. `store_document` and `load_document` convert it to JSON and back.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from icefloe.errors import FormatError

Json = Any


def dump_json(value: Json) -> bytes:
    """Compact JSON. NaN and the infinities become text. Lone surrogates stay escaped."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(finite_json(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(finite_json(value), separators=(",", ":"), allow_nan=False).encode()


def dump_time(moment: dt.datetime) -> str:
    """RFC 3339 text in UTC, to the microsecond."""
    return moment.astimezone(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def load_time(text: Json, what: str) -> dt.datetime:
    """Parse an RFC 3339 time. Digits beyond microseconds are dropped."""
    try:
        moment = dt.datetime.fromisoformat(text)
        return moment.astimezone(dt.UTC) if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(f"{what} is not an RFC 3339 time: {str(text)[:80]!r}") from error


def finite_json(value: Json) -> Json:
    """The value with NaN and the infinities as text, as it comes back from dump_json."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: finite_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(item) for item in value]
    return value


_NUMPY = {
    **{f"int{bits}": f">i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f">u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f">f{bits // 8}" for bits in (16, 32, 64)},
    "complex64": ">c8",
    "complex128": ">c16",
}
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_RAW_BITS = re.compile(r"r([1-9][0-9]{0,5})")


def raw_bits(data_type: Json) -> int | None:
    """The number of bits of a raw data type such as "r16", a multiple of 8; None for others."""
    found = _RAW_BITS.fullmatch(data_type) if isinstance(data_type, str) else None
    bits = int(found[1]) if found else 0
    return bits if bits and bits % 8 == 0 else None


def encode_fill_value(data_type: Json, value: Json) -> bytes | None:
    """Big-endian bytes of a fill value (text as UTF-8), or None if it cannot be represented."""
    if not isinstance(data_type, str):
        return None
    if data_type == "bool":
        return bytes([value]) if isinstance(value, bool) else None
    if data_type == "string":
        return _encode_text(value)
    if raw_bits(data_type) is not None:
        return _encode_raw(value, raw_bits(data_type) or 0)
    numpy_type = _NUMPY.get(data_type)
    if numpy_type is None:
        return None
    if data_type.startswith("complex"):
        parts = [_number(part) for part in value] if isinstance(value, list) and len(value) == 2 else [None]
        return None if None in parts else _pack(complex(*parts), numpy_type)
    if data_type.startswith("float"):
        number = _number(value)
        return None if number is None else _pack(number, numpy_type)
    return _pack(value, numpy_type) if type(value) is int else None


def decode_fill_value(data_type: str, data: bytes) -> Json:
    """The JSON value of a fill value that is stored as bytes."""
    if data_type == "string":
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"the fill value of a string array is not UTF-8: {error}") from error
    if data_type == "bool":
        if data not in (b"\0", b"\1"):
            raise FormatError(f"the fill value of a bool array is {data[:16].hex()!r}, expected one byte, 0 or 1")
        return data == b"\1"
    bits = raw_bits(data_type)
    if bits is not None and len(data) * 8 == bits:
        return list(data)
    numpy_type = _NUMPY.get(data_type)
    if numpy_type is None or np.dtype(numpy_type).itemsize != len(data):
        raise FormatError(f"{len(data)} bytes are not a fill value of the data type {data_type!r}")
    scalar = np.frombuffer(data, dtype=numpy_type)[0].item()
    if isinstance(scalar, complex):
        return [float_json(scalar.real), float_json(scalar.imag)]
    return float_json(scalar) if isinstance(scalar, float) else scalar


def float_json(number: float) -> float | str:
    """A float as zarr.json represents it: NaN and the infinities are text."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def _number(value: Json) -> float | None:
    if type(value) in (int, float):
        try:
            return float(value)
        except OverflowError:
            return None
    return _SPECIAL.get(value) if isinstance(value, str) else None


def _pack(value: complex | float | int, numpy_type: str) -> bytes | None:
    with np.errstate(all="ignore"):
        try:
            return np.array(value, dtype=numpy_type).tobytes()
        except (OverflowError, ValueError, TypeError):
            return None


def _encode_text(value: Json) -> bytes | None:
    try:
        return value.encode() if isinstance(value, str) else None
    except UnicodeEncodeError:
        return None


def _encode_raw(value: Json, bits: int) -> bytes | None:
    if not isinstance(value, list) or len(value) * 8 != bits:
        return None
    return bytes(value) if all(type(item) is int and 0 <= item < 256 for item in value) else None


@dataclass(frozen=True, slots=True)
class NamedConfiguration:
    """A codec or storage transformer: its name, and its configuration if it has one."""

    name: str
    configuration: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class GroupParts:
    """The members of a group document. `attributes` is None if the document has none."""

    attributes: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class ArrayParts:
    """The members of an array document. `chunk_shape` is None if the grid is not regular."""

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
    """The members of a parsed document that have the usual form. Other members make the rebuilt document differ."""
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
    """The same as json.dumps(document, indent=2), but encoded and indented in C, which is faster."""
    compact = json.dumps(document).encode()
    try:
        return msgspec.json.format(compact, indent=2)
    except msgspec.DecodeError:
        # NaN and Infinity, which zarr-python writes into attributes and strict parsers refuse.
        return json.dumps(document, indent=2).encode()


def store_document(document: bytes) -> Json:
    """A whole document as a JSON value: its text, or base64 if it is not UTF-8."""
    try:
        return document.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(document).decode()}


def load_document(stored: Json) -> bytes:
    """The inverse of store_document."""
    try:
        if isinstance(stored, str):
            return stored.encode()
        if isinstance(stored, dict) and isinstance(stored.get("base64"), str):
            return base64.b64decode(stored["base64"], validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise FormatError(f"a stored zarr.json cannot be read: {error}") from error
    raise FormatError(f"a stored zarr.json is of type {type(stored).__name__}, expected text or base64")


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
