"""Values in MessagePack files of the generation `repository`: checked decoding, and ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from icefloe.errors import FormatError, InvalidInputError
from icefloe.ids import NODE_ID_BYTES, OBJECT_ID_BYTES, NodeId, ObjectId, decode_base32, encode_base32, text_length

WireId: TypeAlias = str | tuple[bytes, tuple[Any, ...]]
"""Text, or [bytes, []]."""
WireNodeId: TypeAlias = int | str | tuple[bytes, tuple[Any, ...]]
"""A counter in the earliest files, later the same as WireId."""

T = TypeVar("T")

_CANONICAL_ID = re.compile("[0-9A-HJKMNP-TV-Z]{19}[0G]")
"""An id in canonical form: 20 characters have four bits more than the 96 of an id, and these are zero."""

_CANONICAL_IDS = re.compile(f"(?:{_CANONICAL_ID.pattern})+")
_ID_LENGTH = text_length(OBJECT_ID_BYTES)

MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, TypeError, OverflowError)
"""The exceptions that decoding invalid MessagePack can raise."""


def decode_or_refuse(decoder: msgspec.msgpack.Decoder[T], data: bytes | msgspec.Raw, what: str) -> T:
    """Decode MessagePack. A FormatError contains the expected kind of file."""
    try:
        return decoder.decode(data)
    except MALFORMED as error:
        raise FormatError(f"a {what} file does not match the format: {error}") from error


def parse_object_id(wire: Any) -> ObjectId:
    """An object id as text, checked."""
    if isinstance(wire, str) and _CANONICAL_ID.fullmatch(wire):
        return wire
    return encode_base32(parse_object_id_bytes(wire))


def are_canonical_ids(texts: Sequence[str]) -> bool:
    """Whether all of these are ids in canonical form."""
    return {*map(len, texts)} == {_ID_LENGTH} and _CANONICAL_IDS.fullmatch("".join(texts)) is not None


def parse_object_id_bytes(wire: Any) -> bytes:
    """An object id as bytes."""
    return _parse_id(wire, OBJECT_ID_BYTES)


def parse_node_id(wire: Any) -> NodeId:
    """A node id as 8 bytes. Counters become big-endian numbers."""
    if isinstance(wire, int):
        if not 0 <= wire < 1 << 64:
            raise FormatError(f"{wire} is not a node id, expected 0..2^64-1")
        return wire.to_bytes(NODE_ID_BYTES, "big")
    return _parse_id(wire, NODE_ID_BYTES)


def _parse_id(wire: Any, byte_count: int) -> bytes:
    if isinstance(wire, str):
        try:
            return decode_base32(wire, byte_count)
        except InvalidInputError as error:
            raise FormatError(str(error)) from error
    if isinstance(wire, tuple) and len(wire) == 2 and isinstance(wire[0], bytes) and len(wire[0]) == byte_count:
        return wire[0]
    raise FormatError(f"{wire!r:.80} is not an id of {byte_count} bytes")
