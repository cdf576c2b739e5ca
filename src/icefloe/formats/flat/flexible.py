"""FlexBuffers values read: how the second official generation stores JSON-like metadata and configuration."""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import Any

from icefloe.errors import FormatError


class Kind(enum.IntEnum):
    """Types of FlexBuffers values that stand alone; typed vectors are ranges between them."""

    NULL = 0
    INT = 1
    UINT = 2
    FLOAT = 3
    KEY = 4
    STRING = 5
    INDIRECT_INT = 6
    INDIRECT_UINT = 7
    INDIRECT_FLOAT = 8
    MAP = 9
    VECTOR = 10
    BLOB = 25
    BOOL = 26
    VECTOR_BOOL = 36


INTEGERS = {1: "<b", 2: "<h", 4: "<i", 8: "<q"}
NATURALS = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}
FLOATS = {2: "<e", 4: "<f", 8: "<d"}
MAX_DEPTH = 64
_MOST_VALUES = 1_000_000
"""A value takes about 100 bytes besides its text, at most; metadata of people has a few hundred."""
_TYPED_FIRST, _TYPED_LAST = 11, 15
_FIXED_FIRST, _FIXED_LAST = 16, 24


class ValueBudget:
    """How many values may still be made of some bodies that are kept together."""

    def __init__(self) -> None:
        self.left = _MOST_VALUES

    def take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise FormatError(f"metadata in FlexBuffers holds more than {_MOST_VALUES} values")


def decode_flexible(data: bytes, budget: ValueBudget | None = None) -> Any:
    """The value of a FlexBuffers body, checked: no read outside it, and no more items than it has bytes."""
    if len(data) < 3:
        raise FormatError(f"{len(data)} bytes are not a FlexBuffers value")
    width, packed = data[-1], data[-2]
    if width not in NATURALS:
        raise FormatError(f"a FlexBuffers value has the impossible root width {width}")
    reader = _Reader(data, budget or ValueBudget())
    return reader.value(len(data) - 2 - width, width, packed, 0)


class _Reader:
    def __init__(self, data: bytes, values: ValueBudget) -> None:
        self.data = data
        self.values = values
        # A value may be shared; counting visits keeps a file of shared containers from expanding without end.
        self.budget = 4 * len(data) + 64

    def number(self, formats: Mapping[int, str], at: int, width: int) -> Any:
        if width not in formats or at < 0 or at + width > len(self.data):
            raise FormatError("a FlexBuffers value reaches outside its bytes")
        return struct.unpack_from(formats[width], self.data, at)[0]

    def follow(self, at: int, width: int) -> int:
        target = at - int(self.number(NATURALS, at, width))
        if target < 0:
            raise FormatError("a FlexBuffers offset points outside its bytes")
        return target

    def spend(self, count: int) -> None:
        self.budget -= count
        if self.budget < 0:
            raise FormatError("a FlexBuffers value holds more items than its bytes can")

    def value(self, at: int, parent_width: int, packed: int, depth: int) -> Any:
        """The value at a position whose own width and type the packed byte tells."""
        self.spend(1)
        self.values.take()
        if depth > MAX_DEPTH:
            raise FormatError(f"a FlexBuffers value is nested more than {MAX_DEPTH} levels deep")
        kind, width = packed >> 2, 1 << (packed & 3)
        if kind == Kind.NULL:
            return None
        if kind == Kind.BOOL:
            return bool(self.number(NATURALS, at, parent_width))
        if kind in (Kind.INT, Kind.UINT, Kind.FLOAT):
            return self.number((INTEGERS, NATURALS, FLOATS)[kind - Kind.INT], at, parent_width)
        at = self.follow(at, parent_width)
        if kind in (Kind.INDIRECT_INT, Kind.INDIRECT_UINT, Kind.INDIRECT_FLOAT):
            return self.number((INTEGERS, NATURALS, FLOATS)[kind - Kind.INDIRECT_INT], at, width)
        if kind == Kind.KEY:
            return self.key(at)
        if kind in (Kind.STRING, Kind.BLOB):
            return self.blob(at, width, text=kind == Kind.STRING)
        if kind == Kind.MAP:
            return self.map(at, width, depth)
        if kind == Kind.VECTOR:
            return self.vector(at, width, depth)
        if _TYPED_FIRST <= kind <= _TYPED_LAST:
            return self.typed(at, self.length(at, width), width, kind - _TYPED_FIRST + Kind.INT, depth)
        if _FIXED_FIRST <= kind <= _FIXED_LAST:
            return self.typed(at, (kind - _FIXED_FIRST) // 3 + 2, width, (kind - _FIXED_FIRST) % 3 + Kind.INT, depth)
        if kind == Kind.VECTOR_BOOL:
            return self.typed(at, self.length(at, width), width, Kind.BOOL, depth)
        raise FormatError(f"a FlexBuffers value has the unknown type {kind}")

    def length(self, at: int, width: int) -> int:
        count = int(self.number(NATURALS, at - width, width))
        if at + count > len(self.data):
            raise FormatError("a FlexBuffers vector reaches outside its bytes")
        return count

    def key(self, at: int) -> str:
        end = self.data.find(b"\0", at)
        if end < 0:
            raise FormatError("a FlexBuffers key has no end")
        return self.text(self.data[at:end])

    def text(self, raw: bytes) -> str:
        self.spend(len(raw))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise FormatError("a FlexBuffers string is not UTF-8") from error

    def blob(self, at: int, width: int, *, text: bool) -> str | bytes:
        raw = self.data[at : at + self.length(at, width)]
        if text:
            return self.text(raw)
        self.spend(len(raw))
        return raw

    def vector(self, at: int, width: int, depth: int) -> list[Any]:
        count = self.length(at, width)
        types = at + count * width
        if types + count > len(self.data):
            raise FormatError("a FlexBuffers vector reaches outside its bytes")
        return [self.value(at + i * width, width, self.data[types + i], depth + 1) for i in range(count)]

    def typed(self, at: int, count: int, width: int, kind: int, depth: int) -> list[Any]:
        packed = kind << 2 | (width.bit_length() - 1)
        if kind in (Kind.KEY, Kind.STRING):
            packed = kind << 2
        return [self.value(at + i * width, width, packed, depth + 1) for i in range(count)]

    def map(self, at: int, width: int, depth: int) -> dict[str, Any]:
        keys_width = int(self.number(NATURALS, at - 2 * width, width))
        if keys_width not in NATURALS:
            raise FormatError(f"a FlexBuffers map has keys of the impossible width {keys_width}")
        keys_at = self.follow(at - 3 * width, width)
        keys = self.typed(keys_at, self.length(keys_at, keys_width), keys_width, Kind.KEY, depth)
        values = self.vector(at, width, depth)
        if len(keys) != len(values):
            raise FormatError("a FlexBuffers map has another number of keys than of values")
        return dict(zip(keys, values, strict=True))
