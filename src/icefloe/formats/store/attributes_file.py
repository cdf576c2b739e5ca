"""Attributes files of the generation `store`: a JSON array with one attributes object per row."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from icefloe.errors import FormatError, InvalidInputError

_DECODER = msgspec.json.Decoder(list[msgspec.Raw])


def encode_attributes(attributes: Sequence[bytes]) -> bytes:
    """Row i is the i-th attributes object as it was written, or that text in a string where it is not strict JSON."""
    return b"[" + b",".join(_dump_row(row) for row in attributes) + b"]"


def decode_attributes(data: bytes) -> list[bytes]:
    """The rows of an attributes file, byte for byte."""
    try:
        return [_load_row(bytes(row)) for row in _DECODER.decode(data)]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"the attributes file is not as the format says: {error}") from error


def _dump_row(row: bytes) -> bytes:
    try:
        if row[:1] == b"{" and row[-1:] == b"}":
            msgspec.json.decode(row)
            return row
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        return json.dumps(row.decode()).encode()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"attributes must be UTF-8: {error}") from error


def _load_row(row: bytes) -> bytes:
    if row[:1] != b'"':
        return row
    text: str = json.loads(row)
    return text.encode()
