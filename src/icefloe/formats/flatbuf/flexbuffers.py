"""FlexBuffers values and the named metadata items of snapshots and repositories."""

from __future__ import annotations

import enum
import itertools
import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from icefloe.errors import FormatError, InvalidInputError, InvalidTypeError
from icefloe.formats.byte_columns import texts_of
from icefloe.formats.flatbuf.decode import MOST_CHILDREN, Body, Table, Tables
from icefloe.formats.flatbuf.encode import OFFSET_TYPE, FlatWriter, ReferenceBlock
from icefloe.model.zarr_document import check_messagepack


class Kind(enum.IntEnum):
    """Types of single FlexBuffers values. Typed vectors are ranges between them."""

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
"""A value takes at most about 100 bytes in addition to its text. Metadata written by users has a few hundred values."""
_TYPED_FIRST, _TYPED_LAST = 11, 15
_FIXED_FIRST, _FIXED_LAST = 16, 24


class ValueBudget:
    """How many more values may be decoded from a group of bodies."""

    def __init__(self) -> None:
        self.left = _MOST_VALUES

    def take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise FormatError(f"metadata in FlexBuffers contains more than {_MOST_VALUES} values")


def decode_flexible(data: bytes, budget: ValueBudget | None = None) -> Any:
    """Decode a FlexBuffers body.

    All offsets are checked, and a value cannot have more items than the body has bytes.
    """
    if len(data) < 3:
        raise FormatError(f"{len(data)} bytes are not a FlexBuffers value")
    width, packed = data[-1], data[-2]
    if width not in NATURALS:
        raise FormatError(f"a FlexBuffers value has the invalid root width {width}")
    reader = _Reader(data, budget or ValueBudget())
    return reader.value(len(data) - 2 - width, width, packed, 0)


class _Reader:
    def __init__(self, data: bytes, values: ValueBudget) -> None:
        self.data = data
        self.values = values
        # Values may be shared. Counting visits limits how far a file of shared containers can expand.
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
            raise FormatError("a FlexBuffers value has more items than fit in its bytes")

    def value(self, at: int, parent_width: int, packed: int, depth: int) -> Any:
        """The value at a position. The packed byte contains its width and type."""
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
            raise FormatError(f"a FlexBuffers map has keys of the invalid width {keys_width}")
        keys_at = self.follow(at - 3 * width, width)
        keys = self.typed(keys_at, self.length(keys_at, keys_width), keys_width, Kind.KEY, depth)
        values = self.vector(at, width, depth)
        if len(keys) != len(values):
            raise FormatError("a FlexBuffers map has different numbers of keys and values")
        return dict(zip(keys, values, strict=True))


_Slot = tuple[Kind, Any]
"""One item of a vector: a scalar, or the position of a value that was written before."""


def encode_flexible(value: Any) -> bytes:
    """A JSON-like value as FlexBuffers, in the narrowest width that fits all of it."""
    narrowest = _width(value, 0)
    for width in (1, 2, 4, 8):
        if width >= narrowest:
            data = _Writer(width).encode(value)
            if len(data) < 1 << (8 * width):
                return data
    raise InvalidInputError("the metadata is too large to be stored")


def _width(value: Any, depth: int) -> int:
    """The number of bytes that the widest scalar needs. Raises InvalidInputError for values that are not JSON."""
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"metadata is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or "\0" in key:
                raise InvalidInputError(f"the metadata key {key!r} is not text, or contains a NUL character")
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
    raise InvalidTypeError(
        f"metadata can only contain JSON values; this {type(value).__name__} object cannot be cast to one"
    )


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"the metadata contains text that is not valid Unicode: {error}") from error


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
        # If a value is too large for the width, the result is too long for it. The caller detects that.
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
        """Write a value that does not fit into a slot. Returns the slot."""
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
        """Write the length, the slots and their types. The buffer is aligned."""
        self.natural(len(slots))
        start = len(self.data)
        for slot in slots:
            self.put(slot)
        self.data += bytes(self.packed(kind) for kind, _ in slots)
        return start

    def map(self, value: Mapping[str, Any]) -> int:
        """Keys as a separate vector, ordered by their bytes, because readers use binary search."""
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


RawMetadata = tuple[tuple[str, bytes], ...]
"""Names and encoded values, in the order of the file."""


def encode_value(value: Any, spec: int) -> bytes:
    """One JSON-like value in the encoding of a spec."""
    if spec >= 2:
        return encode_flexible(value)
    try:
        _check_plain(value)
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidTypeError(
            f"metadata can only contain JSON values; this object cannot be cast to one ({error})"
        ) from error


def _check_plain(value: Any) -> None:
    """Raise TypeError for a value that is not JSON. The encoder also takes times, sets and dataclasses."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            _check_plain(key)
            _check_plain(member)
    elif isinstance(value, list | tuple):
        for member in value:
            _check_plain(member)
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(f"found {type(value).__name__}")


def decode_value(data: bytes, spec: int, budget: ValueBudget | None = None) -> Any:
    """One JSON-like value in the encoding of a spec."""
    if spec >= 2:
        return decode_flexible(data, budget)
    check_messagepack(data, 0, "metadata")
    try:
        return msgspec.msgpack.decode(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"a metadata value is not MessagePack: {error}") from error


def encode_metadata(metadata: Mapping[str, Any], spec: int) -> RawMetadata:
    """Encode metadata items, sorted by name."""
    return tuple((name, encode_value(metadata[name], spec)) for name in sorted(metadata, key=str.encode))


def decode_metadata(items: RawMetadata, spec: int) -> dict[str, Any]:
    """Decode metadata items."""
    budget = ValueBudget()
    if spec < 2:
        check_messagepack(b"".join(value for _, value in items), 0, "metadata")
    return {name: decode_value(value, spec, budget) for name, value in items}


def read_items(tables: Tables, slot: int) -> list[RawMetadata]:
    """The encoded metadata of each row. Empty if the field is absent."""
    items, vectors = tables.tables(slot, required=False)
    names = texts_of(tables.body, items.strings(0))
    values = items.vectors(1, 1, 1)
    contents = _slices(tables.body, dict(zip(values.starts.tolist(), values.counts.tolist(), strict=True)))
    pairs = [(name or "", contents[start]) for name, start in zip(names, values.starts.tolist(), strict=True)]
    bounds = vectors.bounds().tolist()
    return [tuple(pairs[start:end]) for start, end in itertools.pairwise(bounds)]


def read_few_items(table: Table, slot: int) -> RawMetadata:
    """The encoded metadata of one table. Empty if the field is absent."""
    if table.vector(slot, 4, 4, required=False)[1] > MOST_CHILDREN:
        return read_items(Tables(table.body, np.array([table.position])), slot)[0]
    items = table.children(slot, required=False)
    names = dict(item.vector(0, 1, 1) for item in items)
    values = dict(item.vector(1, 1, 1) for item in items)
    _slices(table.body, names)
    contents = _slices(table.body, values)
    return tuple((item.text(0) or "", contents[item.vector(1, 1, 1)[0]]) for item in items)


def _slices(body: Body, counts: Mapping[int, int]) -> dict[int, bytes]:
    """The bytes at each position. Items may share bytes, but their total size is at most that of the file."""
    if sum(counts.values()) > body.size:
        raise body.corrupt("its metadata overlaps")
    return {start: body.data[start : start + count] for start, count in counts.items()}


def write_items(writer: FlatWriter, rows: list[RawMetadata]) -> ReferenceBlock:
    """One vector of metadata items per row."""
    items = [item for row in rows for item in row]
    vectors = writer.references(np.array([len(row) for row in rows], dtype=np.int64))
    block = writer.tables(len(items), {0: OFFSET_TYPE, 1: OFFSET_TYPE})
    block.link(0, writer.texts([name for name, _ in items]))
    block.link(1, writer.blobs([value for _, value in items]))
    vectors.link(block.positions)
    return vectors
