"""zarr.json documents of groups and arrays, built and checked by zarr's own metadata classes."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from zarr.core.buffer import default_buffer_prototype
from zarr.core.metadata.v3 import ArrayV3Metadata
from zarr.dtype import parse_dtype

from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.model.zarr_document import as_lengths, grid_document

TEXT_CODECS: tuple[Mapping[str, Any], ...] = ({"name": "vlen-utf8"},)


@lru_cache(maxsize=256)
def _zarr_type(dtype: str) -> Any:
    return parse_dtype(np.dtype(dtype), zarr_format=3)


def data_type_document(dtype: str) -> Any:
    """The `data_type` member of zarr.json for a numpy type or "string"."""
    if dtype == "string":
        return "string"
    try:
        # np.dtype(float128) has no Zarr name; neither do objects and structures.
        return _zarr_type(dtype).to_json(zarr_format=3)
    except (ValueError, TypeError) as error:
        raise UnsupportedError(f"Zarr v3 has no data type for {dtype}", dtype=dtype) from error


def fill_value_document(dtype: str, value: Any) -> Any:
    """The `fill_value` member of zarr.json. None becomes the type's zero."""
    if dtype == "string":
        return "" if value is None else str(value)
    numpy_type = np.dtype(dtype)
    zarr_type = _zarr_type(dtype)
    scalar = numpy_type.type() if value is None else np.asarray(value).astype(numpy_type).reshape(())[()]
    if numpy_type.kind == "M" and value is None:
        scalar = np.datetime64("NaT")
    return zarr_type.to_json_scalar(scalar, zarr_format=3)


def bytes_codec(dtype: str) -> dict[str, Any]:
    """The array-to-bytes codec of raw values in the byte order of the type."""
    numpy_type = np.dtype(dtype)
    if numpy_type.itemsize == 1 or numpy_type.kind == "S":
        return {"name": "bytes"}
    big = numpy_type.byteorder == ">" or (numpy_type.byteorder == "=" and not np.little_endian)
    return {"name": "bytes", "configuration": {"endian": "big" if big else "little"}}


def array_document(
    *,
    shape: Sequence[int],
    dtype: str,
    chunks: Sequence[int | tuple[int, ...]],
    codecs: Sequence[Mapping[str, Any]],
    fill_value: Any,
    attributes: Mapping[str, Any],
    dims: Sequence[str] | None,
) -> bytes:
    """A checked array document. `fill_value` is given as in zarr.json.

    `chunks` has the chunk length along each dimension, or the lengths of all chunks along it.
    """
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type_document(dtype),
        "chunk_grid": grid_document(as_lengths(chunks)),
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": [dict(codec) for codec in codecs],
        "attributes": dict(attributes),
        "dimension_names": None if dims is None else list(dims),
    }
    try:
        metadata = ArrayV3Metadata.from_dict(document)
        return metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes()
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidInputError(f"zarr does not accept the array description: {error}", document=document) from error


def group_document(attributes: Mapping[str, Any]) -> bytes:
    """A group document."""
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}, indent=2).encode()


def json_value(value: Any) -> Any:
    """An attribute's value in zarr.json. NaN and infinities are written as zarr and xarray write them."""
    if isinstance(value, np.ndarray):
        return json_value(value.reshape(-1)[0]) if value.size == 1 else [json_value(v) for v in value.reshape(-1)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        return value.rstrip(b"\x00").decode("utf-8", errors="replace")
    if isinstance(value, (list, tuple)):
        return [json_value(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): json_value(v) for k, v in value.items()}
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return str(value)


def fill_attribute(dtype: str, value: Any) -> Any:
    """`_FillValue` as xarray writes it for a Zarr v3 array: floats as base64 of a little-endian double.

    xarray cannot read one of text. Text is written as base64 of its bytes, for `parse_missing_texts`.
    """
    numpy_type = np.dtype(dtype) if dtype != "string" else None
    if numpy_type is None or numpy_type.kind in "SU":
        text = value if isinstance(value, bytes) else str(value).encode()
        return base64.standard_b64encode(text).decode()
    if numpy_type.kind == "f":
        return base64.standard_b64encode(struct.pack("<d", float(value))).decode()
    if numpy_type.kind == "c":
        return [base64.standard_b64encode(struct.pack("<d", part)).decode() for part in (value.real, value.imag)]
    return bool(value) if numpy_type.kind == "b" else int(value)


def parse_fill_attribute(dtype: str, value: Any) -> Any:
    """The inverse of fill_attribute."""
    if isinstance(value, str) and dtype != "string" and np.dtype(dtype).kind == "f":
        try:
            return struct.unpack("<d", base64.standard_b64decode(value))[0]
        except (ValueError, struct.error) as error:
            raise InvalidInputError(f"the _FillValue {value!r} is not a number in base64") from error
    return value


def parse_missing_texts(attributes: Mapping[str, Any]) -> tuple[bytes, ...]:
    """The texts that `_FillValue` and `missing_value` of a text variable declare as missing, as bytes."""
    found: list[bytes] = []
    if isinstance(fill := attributes.get("_FillValue"), str):
        try:
            found.append(base64.standard_b64decode(fill))
        except ValueError:
            found.append(fill.encode())
    given = attributes.get("missing_value")
    found += [
        str(each).encode() for each in (given if isinstance(given, (list, tuple)) else [given]) if each is not None
    ]
    return tuple(found)


def attribute_pairs(attributes: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """A variable's attributes as JSON, with `_FillValue` in xarray's encoding."""
    pairs = {str(k): json_value(v) for k, v in attributes.items()}
    if "_FillValue" in attributes:
        value = np.asarray(attributes["_FillValue"]).reshape(-1)
        if value.size and _is_fill(dtype, value[0]):
            pairs["_FillValue"] = fill_attribute(dtype, value[0])
        else:
            del pairs["_FillValue"]
    return pairs


def _is_fill(dtype: str, value: Any) -> bool:
    """Whether a `_FillValue` can be a value of its array. xarray ignores other values."""
    if dtype == "string" or np.dtype(dtype).kind not in "iuf":
        return True
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return False
    return np.dtype(dtype).kind == "f" or (math.isfinite(number) and number == int(number))
