"""The fill value of a core Zarr data type: from the JSON of a zarr.json to big-endian bytes and back."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from icefloe.errors import FormatError

Json = Any

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
    """Big-endian bytes of a fill value (text as UTF-8); None where type and value have no such form."""
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
    """The JSON value of a fill value kept as bytes."""
    if data_type == "string":
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"the fill value of a string array is not UTF-8: {error}") from error
    if data_type == "bool":
        if data not in (b"\0", b"\1"):
            raise FormatError(f"the fill value of a bool array must be one byte, 0 or 1, found {data[:16].hex()!r}")
        return data == b"\1"
    bits = raw_bits(data_type)
    if bits is not None and len(data) * 8 == bits:
        return list(data)
    numpy_type = _NUMPY.get(data_type)
    if numpy_type is None or np.dtype(numpy_type).itemsize != len(data):
        raise FormatError(f"{len(data)} bytes are no fill value of the data type {data_type!r}")
    scalar = np.frombuffer(data, dtype=numpy_type)[0].item()
    if isinstance(scalar, complex):
        return [float_json(scalar.real), float_json(scalar.imag)]
    return float_json(scalar) if isinstance(scalar, float) else scalar


def float_json(number: float) -> float | str:
    """A float as zarr.json spells it: the three that JSON lacks as text."""
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
