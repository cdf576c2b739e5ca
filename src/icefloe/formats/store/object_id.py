"""Object ids of the generation `store`: 16 bytes, as base32 text in the model and as 16 integers in its JSON files."""

from __future__ import annotations

from typing import Any

from icefloe.errors import FormatError, InvalidInputError
from icefloe.ids import ObjectId, decode_base32, encode_base32, text_length

ID_BYTES = 16
_TEXT_LENGTH = text_length(ID_BYTES)


def dump_object_id(object_id: ObjectId) -> list[int]:
    """The id as the specification's schemas have it."""
    return list(decode_base32(object_id, ID_BYTES))


def load_object_id(value: Any) -> ObjectId:
    """An id written as 16 integers, as 26 characters of base32, or as 32 hexadecimal digits."""
    return encode_base32(load_id_bytes(value))


def load_id_bytes(value: Any) -> bytes:
    """As load_object_id, the bytes themselves."""
    try:
        if isinstance(value, list) and len(value) == ID_BYTES and all(type(item) is int for item in value):
            return bytes(value)
        if isinstance(value, str) and len(value) == _TEXT_LENGTH:
            return decode_base32(value, ID_BYTES)
        if isinstance(value, str) and len(value) == 2 * ID_BYTES:
            return bytes.fromhex(value)
    except (ValueError, InvalidInputError) as error:
        raise FormatError(f"{str(value)[:80]!r} is not an object id: {error}") from error
    raise FormatError(f"{str(value)[:80]!r} is not an object id of {ID_BYTES} bytes")
