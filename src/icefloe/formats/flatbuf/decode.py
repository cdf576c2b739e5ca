"""Read flatbuffers: single tables field by field, or many tables of one type as columns. Bounds are checked."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError
from icefloe.lazy_exports import lazy_module

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazy_module("pyarrow")

Positions = npt.NDArray[np.int64]
MAX_BODY_BYTES = 2**31 - 1
"""Offsets to vtables are signed 32 bit, and official readers stop there too."""


class Body:
    """The bytes of a flatbuffer. Reads check every position first."""

    __slots__ = ("data", "size", "what")

    def __init__(self, data: bytes, what: str) -> None:
        self.data = data
        self.size = len(data)
        self.what = what
        if not 8 <= self.size <= MAX_BODY_BYTES:
            raise self.corrupt(f"{self.size} bytes are not a flatbuffer")

    def corrupt(self, detail: str) -> FormatError:
        """The error for an invalid body."""
        return FormatError(f"corrupt {self.what}: {detail}. Restore the file from a backup, or use an older snapshot")

    def check(self, positions: Positions, width: int, alignment: int = 1) -> None:
        """Check that every item of `width` bytes at these positions is inside of the file and aligned."""
        if len(positions) == 0:
            return
        if int(positions.min()) < 0 or int(positions.max()) + width > self.size:
            raise self.corrupt("an offset points outside the file")
        if alignment > 1 and int(np.bitwise_or.reduce(positions)) & (alignment - 1):
            raise self.corrupt("an offset is not aligned")

    def read(self, positions: Positions, dtype: Any, alignment: int | None = None) -> npt.NDArray[Any]:
        """Read one item of a type at each position. The default alignment is the item's size."""
        kind = np.dtype(dtype)
        self.check(positions, kind.itemsize, kind.itemsize if alignment is None else alignment)
        if len(positions) == 0:
            return np.empty(0, dtype=kind)
        return self.windows(kind)[positions]

    def windows(self, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """A view of every byte position as the start of an item. Positions must have been checked."""
        return np.ndarray((self.size - kind.itemsize + 1,), dtype=kind, buffer=self.data, strides=(1,))

    def read_bytes(self, positions: Positions, width: int) -> npt.NDArray[np.uint8]:
        """`width` bytes at each position, as uint8[n, width]."""
        if width == 0:
            return np.empty((len(positions), 0), dtype=np.uint8)
        rows = self.read(positions, np.dtype((np.void, width)), alignment=1)
        return np.ascontiguousarray(rows).view(np.uint8).reshape(len(positions), width)


_I4, _U2, _U4 = struct.Struct("<i"), struct.Struct("<H"), struct.Struct("<I")
NUMBERS = {
    kind: struct.Struct(code) for kind, code in {"u1": "<B", "<u2": "<H", "<i4": "<i", "<u4": "<I", "<u8": "<Q"}.items()
}

MOST_CHILDREN = 4096
"""Tables may be shared, so that a small file could refer to one of them millions of times."""


class Table:
    """A table at one position. Reading a field takes a microsecond. Use `Tables` to read columns of many tables."""

    __slots__ = ("_size", "_vtable", "_vtable_bytes", "body", "position")

    def __init__(self, body: Body, position: int) -> None:
        self.body = body
        self.position = position
        self._vtable = position - read_number(body, _I4, position)
        self._vtable_bytes = read_number(body, _U2, self._vtable)
        self._size = read_number(body, _U2, self._vtable + 2)
        if self._vtable_bytes < 4 or self._vtable_bytes & 1:
            raise body.corrupt("a vtable has an invalid size")
        if self._vtable + self._vtable_bytes > body.size or self._size < 4:
            raise body.corrupt("a vtable points outside the file")
        if position + self._size > body.size:
            raise body.corrupt("a table reaches outside the file")

    def field(self, slot: int, width: int, alignment: int) -> int:
        """The position of a field, -1 if it is absent."""
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
        """A number, or the schema's default if the field is absent."""
        kind = NUMBERS[dtype]
        found = self.field(slot, kind.size, kind.size)
        return default if found < 0 else int(kind.unpack_from(self.body.data, found)[0])

    def struct(self, slot: int, width: int) -> bytes:
        """A required struct as bytes."""
        found = self._required(slot, width, 1)
        return self.body.data[found : found + width]

    def target(self, slot: int, *, required: bool = False) -> int:
        """The position that the offset in a field points to, or -1 if the field is absent."""
        found = self._required(slot, 4, 4) if required else self.field(slot, 4, 4)
        return -1 if found < 0 else found + int(_U4.unpack_from(self.body.data, found)[0])

    def vector(self, slot: int, item_bytes: int, alignment: int, *, required: bool = True) -> tuple[int, int]:
        """The position of the first item of a vector and the number of items; (-1, 0) if the field is absent."""
        at = self.target(slot, required=required)
        return (-1, 0) if at < 0 else read_vector(self.body, at, item_bytes, alignment)

    def blob(self, slot: int) -> bytes | None:
        """The bytes of a vector, or None if the field is absent."""
        start, count = self.vector(slot, 1, 1, required=False)
        return None if start < 0 else self.body.data[start : start + count]

    def text(self, slot: int, *, required: bool = True) -> str | None:
        """A string, or None if the field is absent."""
        start, count = self.vector(slot, 1, 1, required=required)
        if start < 0:
            return None
        try:
            return self.body.data[start : start + count].decode()
        except UnicodeDecodeError as error:
            raise self.body.corrupt("a string is not UTF-8") from error

    def child(self, slot: int) -> Table:
        """The table that a required field points to."""
        return Table(self.body, self.target(slot, required=True))

    def children(self, slot: int, *, required: bool = True) -> list[Table]:
        """The tables of a vector that is short in every valid file."""
        start, count = self.vector(slot, 4, 4, required=required)
        if count > MOST_CHILDREN:
            raise self.body.corrupt(f"field {slot} of a table has {count} items, expected at most {MOST_CHILDREN}")
        return [item_table(self.body, start, row) for row in range(count)]


def root(body: Body) -> Table:
    """The root table of the file."""
    return Table(body, read_number(body, _U4, 0))


def item_table(body: Body, start: int, row: int) -> Table:
    """One table of the vector of tables at `start`. The row must have been checked."""
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
    """The position of the first item, and the number of items, of the vector at a position."""
    count = read_number(body, _U4, at)
    start = at + 4
    if start + count * item_bytes > body.size:
        raise body.corrupt("a vector reaches outside the file")
    if count and start % max(alignment, 1):
        raise body.corrupt("an offset is not aligned")
    return start, count


_SHAREABLE_TABLE_BYTES = 8
"""Tables up to this size are empty, so that writers may refer to one of them many times."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """One vector per row: the position of its first item and the number of items; start -1 if it is absent."""

    starts: Positions
    counts: npt.NDArray[np.int64]

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        return self.starts >= 0

    def bounds(self) -> npt.NDArray[np.int64]:
        """The offset of each row's items when all are concatenated. There is one more entry than rows."""
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.counts)])


class Tables:
    """Tables of one type at many positions. Rows may have different vtables. Few distinct ones are expected."""

    __slots__ = ("_sizes", "_slots", "_which", "body", "positions")

    def __init__(self, body: Body, positions: Positions) -> None:
        self.body = body
        self.positions = positions
        vtables = positions - body.read(positions, "<i4")
        distinct, self._which = distinct_values(vtables)
        vtable_sizes = body.read(distinct, "<u2").astype(np.int64)
        self._sizes = body.read(distinct + 2, "<u2").astype(np.int64)
        if len(distinct):
            if int(vtable_sizes.min()) < 4 or int(np.bitwise_or.reduce(vtable_sizes)) & 1:
                raise body.corrupt("a vtable has an invalid size")
            if int((distinct + vtable_sizes).max()) > body.size or int(self._sizes.min()) < 4:
                raise body.corrupt("a vtable points outside the file")
            self._check_extent()
        most = int(vtable_sizes.max(initial=4))
        self._slots = _slot_offsets(body, distinct, vtable_sizes, min((most - 4) // 2, 32))

    def __len__(self) -> int:
        return len(self.positions)

    def _spread(self, per_vtable: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | int:
        return int(per_vtable[0]) if self._which is None else per_vtable[self._which]

    def _check_extent(self) -> None:
        sizes = self._spread(self._sizes)
        if int((self.positions + sizes).max()) > self.body.size:
            raise self.body.corrupt("a table reaches outside the file")
        weights = np.where(self._sizes > _SHAREABLE_TABLE_BYTES, self._sizes, 0)
        total = int(weights[0]) * len(self) if self._which is None else int(weights[self._which].sum())
        if total > self.body.size:
            raise self.body.corrupt("its tables overlap")

    def field(self, slot: int, width: int, alignment: int) -> Positions | None:
        """The position of a field in each row, -1 if it is absent. None if no row has it."""
        if len(self) == 0 or slot >= self._slots.shape[1]:
            return None
        offsets = self._slots[:, slot]
        if not offsets.any():
            return None
        if ((offsets > 0) & ((offsets < 4) | (offsets + width > self._sizes))).any():
            raise self.body.corrupt("a field reaches outside its table")
        here = self._spread(offsets)
        if isinstance(here, int) or bool(here.all()):
            found: Positions = self.positions + here
            self.body.check(found, width, alignment)
            return found
        found = np.where(here > 0, self.positions + here, -1)
        self.body.check(found[here > 0], width, alignment)
        return found

    def has(self, slot: int) -> npt.NDArray[np.bool_]:
        """Which rows have a field."""
        found = self.field(slot, 1, 1)
        return np.zeros(len(self), dtype=np.bool_) if found is None else found >= 0

    def scalar(self, slot: int, dtype: str, default: int = 0) -> npt.NDArray[Any]:
        """A number of each row, or the schema's default if it is absent."""
        kind = np.dtype(dtype)
        found = self.field(slot, kind.itemsize, kind.itemsize)
        if found is None:
            return np.full(len(self), default, dtype=kind)
        if bool((found >= 0).all()):
            return self.body.windows(kind)[found]
        values = np.full(len(self), default, dtype=kind)
        values[found >= 0] = self.body.windows(kind)[found[found >= 0]]
        return values

    def struct(self, slot: int, width: int, alignment: int = 1) -> npt.NDArray[np.uint8]:
        """A required struct of each row as bytes, uint8[n, width]."""
        return self.body.read_bytes(self._required(slot, width, alignment), width)

    def _required(self, slot: int, width: int, alignment: int) -> Positions:
        if len(self) == 0:
            return self.positions
        found = self.field(slot, width, alignment)
        if found is None or int(found.min()) < 0:
            raise self.body.corrupt(f"required field {slot} is missing")
        return found

    def targets(self, slot: int, *, required: bool = False) -> Positions:
        """The position that the offset in a field points to, or -1 if the field is absent."""
        found = self._required(slot, 4, 4) if required else self.field(slot, 4, 4)
        if found is None:
            return np.full(len(self), -1, dtype=np.int64)
        kind = np.dtype("<u4")
        if len(found) == 0 or int(found.min()) >= 0:
            return found + self.body.read(found, kind).astype(np.int64)
        here = found >= 0
        result = np.full(len(self), -1, dtype=np.int64)
        result[here] = found[here] + self.body.windows(kind)[found[here]]
        return result

    def vectors(self, slot: int, item_bytes: int, alignment: int, *, required: bool = True) -> Vectors:
        """The vector of each row. The items of all rows together are not larger than the file."""
        at = self.targets(slot, required=required)
        everywhere = len(at) == 0 or int(at.min()) >= 0
        here = slice(None) if everywhere else at >= 0
        heads = at[here]
        counts_here = self.body.read(heads, "<u4").astype(np.int64)
        starts_here = heads + 4
        if len(heads):
            if int((starts_here + counts_here * item_bytes).max()) > self.body.size:
                raise self.body.corrupt("a vector reaches outside the file")
            filled = starts_here[counts_here > 0] if alignment > 4 else starts_here[:0]
            self.body.check(filled, 0, alignment)
        if everywhere:
            return Vectors(starts_here, counts_here)
        starts = np.full(len(at), -1, dtype=np.int64)
        counts = np.zeros(len(at), dtype=np.int64)
        starts[here], counts[here] = starts_here, counts_here
        return Vectors(starts, counts)

    def strings(self, slot: int, *, required: bool = True) -> Vectors:
        """The UTF-8 bytes of a string of each row."""
        return self.vectors(slot, 1, 1, required=required)

    def tables(self, slot: int, *, required: bool = True) -> tuple[Tables, Vectors]:
        """All tables in the vectors of a field, concatenated, and how many each row has."""
        vectors = self.vectors(slot, 4, 4, required=required)
        at = item_positions(self.body, vectors, 4)
        return Tables(self.body, at + self.body.read(at, "<u4")), vectors

    def child(self, slot: int) -> Tables:
        """The table that a required field of each row points to."""
        return Tables(self.body, self.targets(slot, required=True))


def root_table(body: Body) -> Tables:
    """The root table of the file."""
    start = int(body.read(np.zeros(1, dtype=np.int64), "<u4")[0])
    return Tables(body, np.array([start], dtype=np.int64))


def item_positions(body: Body, vectors: Vectors, item_bytes: int) -> Positions:
    """The positions of the items of all vectors, concatenated."""
    total = int(vectors.counts.sum())
    if total * item_bytes > body.size:
        raise body.corrupt("its vectors overlap")
    if len(vectors.counts) == 1:
        return int(vectors.starts[0]) + np.arange(total, dtype=np.int64) * item_bytes
    first = np.repeat(vectors.starts - vectors.bounds()[:-1] * item_bytes, vectors.counts)
    return first + np.arange(total, dtype=np.int64) * item_bytes


_SORTED_ROWS = 1 << 14
"""Up to this many rows, sorting takes less time than loading Arrow's functions."""


def distinct_values(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32] | None]:
    """The distinct values, and the number of each row's value (None if there is only one value)."""
    if len(values) == 0 or bool((values == values[0]).all()):
        return values[:1], None
    if len(values) <= _SORTED_ROWS:
        found, which = np.unique(values, return_inverse=True)
        return found, which.astype(np.int32)
    # Use buffers: pyarrow's conversions from and to numpy import pandas, which takes longer than the work.
    column = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
    encoded = column.dictionary_encode()
    distinct = np.frombuffer(encoded.dictionary.buffers()[1], dtype=np.int64, count=len(encoded.dictionary))
    return distinct, np.frombuffer(encoded.indices.buffers()[1], dtype=np.int32, count=len(values))


def _slot_offsets(
    body: Body, vtables: Positions, vtable_sizes: npt.NDArray[np.int64], slots: int
) -> npt.NDArray[np.int64]:
    """The field offsets of each vtable, int64[vtables, slots], 0 = absent."""
    offsets = np.zeros((len(vtables), max(slots, 0)), dtype=np.int64)
    if len(vtables) == 1:
        start = int(vtables[0]) + 4
        offsets[0] = np.frombuffer(body.data, dtype="<u2", count=slots, offset=start)
        return offsets
    for slot in range(slots):
        here = vtable_sizes >= 6 + 2 * slot
        offsets[here, slot] = body.read(vtables[here] + 4 + 2 * slot, "<u2")
    return offsets
