"""Branch and tag files of the generation `store`, and the names of branch files in their sequence."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from icefloe.errors import FormatError
from icefloe.formats.store.object_id import dump_object_id, load_object_id
from icefloe.formats.strict_json import SMALL_FILE_BYTES, dump_json, dump_time, load_object, load_time
from icefloe.ids import ObjectId, decode_base32, encode_base32

EXTENSION = ".json"
LAST_SEQUENCE = 2**40 - 1
_NAME = re.compile(r"([0-9A-HJKMNP-TV-Z]{8})\.json")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a branch or tag points, and since when."""

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
    """The reference of a JSON file; later early forms have the snapshot only."""
    document = load_object(data, "the reference file", SMALL_FILE_BYTES)
    properties = document.get("properties", {})
    if "snapshot" not in document or not isinstance(properties, dict):
        raise FormatError('the reference file must have a "snapshot", and "properties" that are an object')
    timestamp = load_time(document["timestamp"], "timestamp") if "timestamp" in document else _EPOCH
    return Reference(load_object_id(document["snapshot"]), timestamp, properties)


def sequence_name(sequence: int) -> str:
    """The name of a branch file: the newest sorts first."""
    return encode_base32((LAST_SEQUENCE - sequence).to_bytes(5, "big")) + EXTENSION


def find_sequence(name: str) -> int | None:
    """The sequence number in a name; None when it is not the name of a branch file."""
    found = _NAME.fullmatch(name)
    return None if found is None else LAST_SEQUENCE - int.from_bytes(decode_base32(found[1], 5), "big")
