"""The small values of MessagePack files: ids in three forms, times; decoding fails as FormatError only."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from icefloe.errors import FormatError, InvalidInputError
from icefloe.ids import NODE_ID_BYTES, OBJECT_ID_BYTES, NodeId, ObjectId, decode_base32, encode_base32, text_length

WireId: TypeAlias = str | tuple[bytes, tuple[Any, ...]]
"""Text, or [bytes, []]."""
WireNodeId: TypeAlias = int | str | tuple[bytes, tuple[Any, ...]]
"""A counter in the earliest files, then as WireId."""

T = TypeVar("T")

_CANONICAL_ID = re.compile("[0-9A-HJKMNP-TV-Z]{19}[0G]")
"""An id as every writer spells it: 20 characters for 96 bits leave four zero bits at the end."""

_CANONICAL_IDS = re.compile(f"(?:{_CANONICAL_ID.pattern})+")
_ID_LENGTH = text_length(OBJECT_ID_BYTES)

MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, TypeError, OverflowError)
"""What decoding of hostile MessagePack raises."""


def decode_or_refuse(decoder: msgspec.msgpack.Decoder[T], data: bytes | msgspec.Raw, what: str) -> T:
    """Decode MessagePack; FormatError says which kind of file it was not."""
    try:
        return decoder.decode(data)
    except MALFORMED as error:
        raise FormatError(f"a {what} file is not what it should be: {error}") from error


def parse_object_id(wire: Any) -> ObjectId:
    """An object id as text, checked."""
    if isinstance(wire, str) and _CANONICAL_ID.fullmatch(wire):
        return wire
    return encode_base32(parse_object_id_bytes(wire))


def are_canonical_ids(texts: Sequence[str]) -> bool:
    """Whether all of these are ids as every writer spells them."""
    return {*map(len, texts)} == {_ID_LENGTH} and _CANONICAL_IDS.fullmatch("".join(texts)) is not None


def parse_object_id_bytes(wire: Any) -> bytes:
    """An object id as bytes."""
    return _parse_id(wire, OBJECT_ID_BYTES)


def parse_node_id(wire: Any) -> NodeId:
    """A node id as 8 bytes; counters become big-endian numbers."""
    if isinstance(wire, int):
        if not 0 <= wire < 1 << 64:
            raise FormatError(f"{wire} is not a node id: expected 0..2^64-1")
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


def parse_time(text: str) -> dt.datetime:
    """An RFC 3339 time in UTC; digits beyond microseconds are cut."""
    base, _, zone = text.partition("Z")
    whole, _, fraction = base.partition(".")
    try:
        if zone or not text.endswith("Z"):
            parsed = dt.datetime.fromisoformat(text)
            return parsed.astimezone(dt.UTC) if parsed.tzinfo else parsed.replace(tzinfo=dt.UTC)
        moment = dt.datetime.fromisoformat(whole).replace(tzinfo=dt.UTC)
        return moment.replace(microsecond=int(fraction[:6].ljust(6, "0"))) if fraction else moment
    except (ValueError, OverflowError) as error:
        raise FormatError(f"{text!r:.80} is not a time: {error}") from error


def format_time(moment: dt.datetime) -> str:
    """RFC 3339 in UTC with as many fraction digits as needed: 0, 3 or 6."""
    text = moment.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    whole, _, fraction = text.partition(".")
    if fraction == "000000":
        return f"{whole}Z"
    return f"{whole}.{fraction.removesuffix('000')}Z"
