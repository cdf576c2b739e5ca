"""FlexBuffers values written: one width for all of a value, keys in order, children before their parents."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from icefloe.errors import InvalidInputError
from icefloe.formats.flat.flexible import FLOATS, INTEGERS, MAX_DEPTH, NATURALS, Kind

_Slot = tuple[Kind, Any]
"""What a vector holds at a place: a scalar, or where the value stands that was written before."""


def encode_flexible(value: Any) -> bytes:
    """A JSON-like value as FlexBuffers, in the narrowest width that fits all of it."""
    narrowest = _width(value, 0)
    for width in (1, 2, 4, 8):
        if width >= narrowest:
            data = _Writer(width).encode(value)
            if len(data) < 1 << (8 * width):
                return data
    raise InvalidInputError("metadata of this size cannot be stored")


def _width(value: Any, depth: int) -> int:
    """How many bytes the widest scalar needs; InvalidInputError for what is not JSON."""
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"metadata is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or "\0" in key:
                raise InvalidInputError(f"metadata keys must be text without NUL characters, not {key!r}")
            _check_text(key)
        return max((_width(member, depth + 1) for member in value.values()), default=1)
    if isinstance(value, list | tuple):
        return max((_width(member, depth + 1) for member in value), default=1)
    if isinstance(value, str):
        _check_text(value)
        return 1
    if isinstance(value, bool) or value is None:
        return 1
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise InvalidInputError(f"the integer {value} in metadata does not fit into 64 bits")
        return next((n for n in (1, 2, 4) if -(1 << (8 * n - 1)) <= value < 1 << (8 * n - 1)), 8)
    if isinstance(value, float):
        return 8
    raise InvalidInputError(f"metadata may hold JSON values only, not {type(value).__name__}")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"metadata text that is not Unicode cannot be stored: {error}") from error


class _Writer:
    def __init__(self, width: int) -> None:
        self.width = width
        self.bits = width.bit_length() - 1
        self.data = bytearray()
        self.keys: dict[bytes, int] = {}

    def encode(self, value: Any) -> bytes:
        slot = self.add(value)
        self.align()
        self.put(slot)
        self.data += bytes([self.packed(slot[0]), self.width])
        return bytes(self.data)

    def align(self) -> None:
        self.data += bytes(-len(self.data) % self.width)

    def packed(self, kind: Kind) -> int:
        return kind << 2 | (0 if kind in (Kind.NULL, Kind.KEY) else self.bits)

    def natural(self, number: int) -> None:
        # A value too large for the width makes the whole too long for it, which the caller notices.
        self.data += struct.pack(NATURALS[self.width], number & ((1 << (8 * self.width)) - 1))

    def put(self, slot: _Slot) -> None:
        kind, content = slot
        if kind is Kind.INT:
            self.data += struct.pack(INTEGERS[self.width], content)
        elif kind is Kind.FLOAT:
            self.data += struct.pack(FLOATS[self.width], content)
        elif kind in (Kind.NULL, Kind.BOOL, Kind.UINT):
            self.natural(int(content or 0))
        else:
            self.natural(len(self.data) - content)

    def add(self, value: Any) -> _Slot:
        """Write what does not fit into a slot; returns the slot."""
        if value is None:
            return Kind.NULL, 0
        if isinstance(value, bool):
            return Kind.BOOL, value
        if isinstance(value, int):
            return (Kind.UINT if value >= 2**63 else Kind.INT), value
        if isinstance(value, float):
            return Kind.FLOAT, value
        if isinstance(value, str):
            return Kind.STRING, self.text(value)
        if isinstance(value, Mapping):
            return Kind.MAP, self.map(value)
        slots = [self.add(member) for member in value]
        self.align()
        return Kind.VECTOR, self.vector(slots)

    def text(self, value: str) -> int:
        raw = value.encode()
        self.align()
        self.natural(len(raw))
        start = len(self.data)
        self.data += raw + b"\0"
        return start

    def key(self, raw: bytes) -> int:
        if raw not in self.keys:
            self.keys[raw] = len(self.data)
            self.data += raw + b"\0"
        return self.keys[raw]

    def vector(self, slots: list[_Slot]) -> int:
        """The length, the slots, and their types; the buffer is aligned."""
        self.natural(len(slots))
        start = len(self.data)
        for slot in slots:
            self.put(slot)
        self.data += bytes(self.packed(kind) for kind, _ in slots)
        return start

    def map(self, value: Mapping[str, Any]) -> int:
        """Keys as a vector of their own, in the order of their bytes, for readers search them."""
        members = sorted(((key.encode(), value[key]) for key in value), key=lambda pair: pair[0])
        slots = [self.add(member) for _, member in members]
        keys = [self.key(raw) for raw, _ in members]
        self.align()
        self.natural(len(keys))
        keys_at = len(self.data)
        for at in keys:
            self.natural(len(self.data) - at)
        self.natural(len(self.data) - keys_at)
        self.natural(self.width)
        return self.vector(slots)
