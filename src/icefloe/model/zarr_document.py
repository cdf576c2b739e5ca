"""The parts of a zarr.json that the engine needs, and its attributes cut out and put back byte for byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icefloe.errors import FormatError, InvalidInputError
from icefloe.model.decoded_size import check_json

_DECODER = json.JSONDecoder()
_BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """Shape and chunk grid of an array document."""

    shape: tuple[int, ...]
    grid: tuple[int, ...]
    dimension_names: tuple[str | None, ...] | None


def parse_document(document: bytes, key: str = "zarr.json") -> dict[str, Any]:
    """A zarr.json as a dictionary, refused when it is not a Zarr v3 node document."""
    check_json(document, key)
    try:
        parsed = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{key} is not valid JSON: {error}") from error
    if not isinstance(parsed, dict) or parsed.get("node_type") not in ("array", "group"):
        raise InvalidInputError(f'{key} is not a Zarr v3 document: "node_type" must be "array" or "group"')
    return parsed


def parse_array_shape(parsed: Mapping[str, Any], key: str = "zarr.json") -> ArrayShape:
    """Shape and number of chunks per dimension of a parsed array document."""
    try:
        shape = tuple(int(n) for n in parsed["shape"])
        grid = _count_chunks(shape, parsed["chunk_grid"])
        names = parsed.get("dimension_names")
        dimension_names = None if names is None else tuple(None if n is None else str(n) for n in names)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{key} is not a valid Zarr array document: {error!r}") from error
    if any(n < 0 for n in shape) or len(grid) != len(shape):
        raise InvalidInputError(f"{key} is not a valid Zarr array document: shape {shape}, chunk grid {grid}")
    return ArrayShape(shape, grid, dimension_names)


def _count_chunks(shape: tuple[int, ...], chunk_grid: Mapping[str, Any]) -> tuple[int, ...]:
    name, configuration = chunk_grid["name"], chunk_grid.get("configuration", {})
    if name == "regular":
        chunks = configuration["chunk_shape"]
        if len(chunks) != len(shape):
            raise ValueError(f"chunk shape {chunks} for shape {shape}")
        # Zarr lets a chunk length be zero where the dimension is empty.
        return tuple(-(-n // int(c)) if n else 0 for n, c in zip(shape, chunks, strict=True))
    if name == "rectilinear":
        return tuple(
            _count_rectilinear(n, sizes) for n, sizes in zip(shape, configuration["chunk_shapes"], strict=True)
        )
    raise ValueError(f"unknown chunk grid {name!r}")


def _count_rectilinear(length: int, sizes: Any) -> int:
    if isinstance(sizes, int):
        return -(-length // sizes)
    return sum(int(s[1]) if isinstance(s, list) else 1 for s in sizes)


def find_attributes(document: str) -> tuple[int, int] | None:
    """Where the value of the top-level key "attributes" stands in a JSON object, or None."""
    position = _skip(document, document.index("{") + 1)
    while document[position] == '"':
        key, position = _DECODER.raw_decode(document, position)
        start = _skip(document, _skip(document, position) + 1)
        _, end = _DECODER.raw_decode(document, start)
        if key == "attributes":
            return start, end
        position = _skip(document, end)
        if document[position] != ",":
            return None
        position = _skip(document, position + 1)
    return None


def _skip(text: str, position: int) -> int:
    while text[position] in _BLANKS:
        position += 1
    return position


def split_attributes(document: bytes) -> tuple[bytes, bytes] | None:
    """The document with `{}` for its attributes, and the attributes as written; None when it has none."""
    text = document.decode()
    span = find_attributes(text)
    if span is None:
        return None
    start, end = span
    return (text[:start] + "{}" + text[end:]).encode(), text[start:end].encode()


def join_attributes(document: bytes, attributes: bytes) -> bytes:
    """Undo split_attributes, byte for byte."""
    check_json(document, "a document")
    check_json(attributes, "attributes")
    try:
        text, inner = document.decode(), attributes.decode()
        span = find_attributes(text)
    except (ValueError, IndexError) as error:
        raise FormatError(f"a document or its attributes are not JSON in UTF-8: {error}") from error
    if span is None:
        raise InvalidInputError("the document has no place for its attributes")
    start, end = span
    return (text[:start] + inner + text[end:]).encode()
