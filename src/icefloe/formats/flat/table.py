"""One flatbuffers table read field by field, bounds and alignment checked: for the few that a question needs."""

from __future__ import annotations

import struct

from icefloe.formats.flat.body import Body

_I4, _U2, _U4 = struct.Struct("<i"), struct.Struct("<H"), struct.Struct("<I")
NUMBERS = {
    kind: struct.Struct(code) for kind, code in {"u1": "<B", "<u2": "<H", "<i4": "<i", "<u4": "<I", "<u8": "<Q"}.items()
}

MOST_CHILDREN = 4096
"""Tables may be shared, so a small file could name one of them millions of times."""


class Table:
    """A table at one position. Columns of many are read by `Tables`; this one costs a microsecond per field."""

    __slots__ = ("_size", "_vtable", "_vtable_bytes", "body", "position")

    def __init__(self, body: Body, position: int) -> None:
        self.body = body
        self.position = position
        self._vtable = position - read_number(body, _I4, position)
        self._vtable_bytes = read_number(body, _U2, self._vtable)
        self._size = read_number(body, _U2, self._vtable + 2)
        if self._vtable_bytes < 4 or self._vtable_bytes & 1:
            raise body.corrupt("a vtable has an impossible size")
        if self._vtable + self._vtable_bytes > body.size or self._size < 4:
            raise body.corrupt("a vtable points outside the file")
        if position + self._size > body.size:
            raise body.corrupt("a table reaches outside the file")

    def field(self, slot: int, width: int, alignment: int) -> int:
        """Where a field stands, -1 where it is absent."""
        at = 4 + 2 * slot
        if at + 2 > self._vtable_bytes:
            return -1
        offset: int = _U2.unpack_from(self.body.data, self._vtable + at)[0]
        if offset == 0:
            return -1
        if offset < 4 or offset + width > self._size:
            raise self.body.corrupt("a field reaches outside its table")
        found = self.position + offset
        if found % alignment:
            raise self.body.corrupt("an offset is not aligned")
        return found

    def _required(self, slot: int, width: int, alignment: int) -> int:
        found = self.field(slot, width, alignment)
        if found < 0:
            raise self.body.corrupt(f"required field {slot} is missing")
        return found

    def has(self, slot: int) -> bool:
        """Whether the table has a field."""
        return self.field(slot, 1, 1) >= 0

    def scalar(self, slot: int, dtype: str, default: int = 0) -> int:
        """A number, the schema's default where it is absent."""
        kind = NUMBERS[dtype]
        found = self.field(slot, kind.size, kind.size)
        return default if found < 0 else int(kind.unpack_from(self.body.data, found)[0])

    def struct(self, slot: int, width: int) -> bytes:
        """A required struct as bytes."""
        found = self._required(slot, width, 1)
        return self.body.data[found : found + width]

    def target(self, slot: int, *, required: bool = False) -> int:
        """Where the offset in a field points, -1 where the field is absent."""
        found = self._required(slot, 4, 4) if required else self.field(slot, 4, 4)
        return -1 if found < 0 else found + int(_U4.unpack_from(self.body.data, found)[0])

    def vector(self, slot: int, item_bytes: int, alignment: int, *, required: bool = True) -> tuple[int, int]:
        """Where the first item of a vector stands and how many there are; (-1, 0) where the field is absent."""
        at = self.target(slot, required=required)
        return (-1, 0) if at < 0 else read_vector(self.body, at, item_bytes, alignment)

    def blob(self, slot: int) -> bytes | None:
        """The bytes of a vector, None where the field is absent."""
        start, count = self.vector(slot, 1, 1, required=False)
        return None if start < 0 else self.body.data[start : start + count]

    def text(self, slot: int, *, required: bool = True) -> str | None:
        """A string, None where the field is absent."""
        start, count = self.vector(slot, 1, 1, required=required)
        if start < 0:
            return None
        try:
            return self.body.data[start : start + count].decode()
        except UnicodeDecodeError as error:
            raise self.body.corrupt("a string is not UTF-8") from error

    def child(self, slot: int) -> Table:
        """The table that a required field points at."""
        return Table(self.body, self.target(slot, required=True))

    def children(self, slot: int, *, required: bool = True) -> list[Table]:
        """The tables of a vector that is short in every file that means well."""
        start, count = self.vector(slot, 4, 4, required=required)
        if count > MOST_CHILDREN:
            raise self.body.corrupt(f"field {slot} of a table has {count} items; at most {MOST_CHILDREN} make sense")
        return [item_table(self.body, start, row) for row in range(count)]


def root(body: Body) -> Table:
    """The table that the file is."""
    return Table(body, read_number(body, _U4, 0))


def item_table(body: Body, start: int, row: int) -> Table:
    """One table of a vector of tables that begins at `start`; the row has been checked."""
    at = start + 4 * row
    return Table(body, at + int(_U4.unpack_from(body.data, at)[0]))


def read_number(body: Body, kind: struct.Struct, at: int) -> int:
    """A number anywhere in the file."""
    if at < 0 or at + kind.size > body.size:
        raise body.corrupt("an offset points outside the file")
    if at % kind.size:
        raise body.corrupt("an offset is not aligned")
    return int(kind.unpack_from(body.data, at)[0])


def read_vector(body: Body, at: int, item_bytes: int, alignment: int) -> tuple[int, int]:
    """Where the first item of the vector at a position stands, and how many there are."""
    count = read_number(body, _U4, at)
    start = at + 4
    if start + count * item_bytes > body.size:
        raise body.corrupt("a vector reaches outside the file")
    if count and start % max(alignment, 1):
        raise body.corrupt("an offset is not aligned")
    return start, count
