"""Object ids, and branch and tag files, of the generation `store`."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.json_documents import dump_json, dump_time, load_time
from icefloe.ids import ObjectId, decode_base32, encode_base32, text_length
from icefloe.model.zarr_document import SMALL_FILE_BYTES, load_object

ID_BYTES = 16
_TEXT_LENGTH = text_length(ID_BYTES)


def dump_object_id(object_id: ObjectId) -> list[int]:
    """Encode an id as the specification's schemas require."""
    return list(decode_base32(object_id, ID_BYTES))


def load_object_id(value: Any) -> ObjectId:
    """Parse an id: 16 integers, 26 characters of base32, or 32 hexadecimal digits."""
    return encode_base32(load_id_bytes(value))


def load_id_bytes(value: Any) -> bytes:
    """The same as load_object_id, but returns the bytes."""
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


EXTENSION = ".json"
LAST_SEQUENCE = 2**40 - 1
_NAME = re.compile(r"([0-9A-HJKMNP-TV-Z]{8})\.json")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Reference:
    """The snapshot of a branch or tag, and since when."""

    snapshot_id: ObjectId
    timestamp: dt.datetime
    properties: Mapping[str, Any] = field(default_factory=dict)


def encode_reference(reference: Reference) -> bytes:
    """The JSON file of a reference."""
    return dump_json(
        {
            "properties": dict(reference.properties),
            "snapshot": dump_object_id(reference.snapshot_id),
            "timestamp": dump_time(reference.timestamp),
        }
    )


def decode_reference(data: bytes) -> Reference:
    """Parse the JSON file of a reference. Some early files only contain the snapshot."""
    document = load_object(data, "the reference file", SMALL_FILE_BYTES)
    properties = document.get("properties", {})
    if "snapshot" not in document or not isinstance(properties, dict):
        raise FormatError('the reference file has no valid "snapshot", or "properties" that are not an object')
    timestamp = load_time(document["timestamp"], "timestamp") if "timestamp" in document else _EPOCH
    return Reference(load_object_id(document["snapshot"]), timestamp, properties)


def sequence_name(sequence: int) -> str:
    """The name of a branch file. The newest sorts first."""
    return encode_base32((LAST_SEQUENCE - sequence).to_bytes(5, "big")) + EXTENSION


def find_sequence(name: str) -> int | None:
    """The sequence number in a name, or None if it is not the name of a branch file."""
    found = _NAME.fullmatch(name)
    return None if found is None else LAST_SEQUENCE - int.from_bytes(decode_base32(found[1], 5), "big")
