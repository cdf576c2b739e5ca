"""Zarr array metadata as the generation `store` spells it, from the members of a zarr.json and back."""

from __future__ import annotations

from typing import Any

from icefloe.errors import FormatError
from icefloe.formats.canonical_document import ArrayParts, NamedConfiguration
from icefloe.formats.fill_value import decode_fill_value, encode_fill_value, float_json, raw_bits
from icefloe.formats.strict_json import finite_json
from icefloe.model.nodes import ArrayNode

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
    """The object of the specification's schema; what it cannot say takes a harmless value."""
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
    """The members of the zarr.json that an object of the schema stands for."""
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
    # The schema wants numbers, which JSON has none for NaN and the infinities: those go as big-endian bytes.
    if data_type not in _VARIANTS or any(isinstance(part, str) for part in parts):
        return {"RawBits": list(data)}
    return {_VARIANTS[data_type]: canonical}


def _load_fill_value(data_type: str, stored: Json) -> Json:
    ((variant, value),) = stored.items()
    if variant == "RawBits":
        return decode_fill_value(data_type, bytes(value))
    if variant != _VARIANTS.get(data_type):
        raise FormatError(f"a fill value {variant!r} for an array of {data_type!r}")
    data = encode_fill_value(data_type, _spelled(value))
    if data is None:
        raise FormatError(f"{str(value)[:80]!r} is no fill value for an array of {data_type!r}")
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
        raise FormatError(f"a codec or storage transformer is not as the format says: {str(stored)[:80]}")
    return NamedConfiguration(stored["name"], configuration)
