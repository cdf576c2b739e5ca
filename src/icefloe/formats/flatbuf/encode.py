"""Flatbuffers written in columns: tables of one kind share a vtable and a stride, parents precede children."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.formats.byte_columns import copy_rows
from icefloe.formats.flatbuf.decode import MAX_BODY_BYTES, Positions
from icefloe.formats.header import FLATBUFFER_IDENTIFIER

OFFSET_TYPE = "<u4"
"""A field that points to a string, vector or table. `link` sets it."""


@dataclass(frozen=True, slots=True)
class Coordinates:
    """A field that is a vector of u32 of fixed length, stored within the table's stride."""

    length: int


FieldType = str | int | Coordinates
"""A numpy type of a scalar, a width in bytes of an unaligned struct, or an embedded vector."""


class FlatWriter:
    """The consecutive pieces of a file. The position of a piece is known when it is reserved."""

    def __init__(self) -> None:
        head = np.zeros(8, dtype=np.uint8)
        head[4:] = np.frombuffer(FLATBUFFER_IDENTIFIER, dtype=np.uint8)
        self._pieces: list[npt.NDArray[np.uint8]] = [head]
        self._end = 8
        self.apparent_bytes = 8
        """The size without sharing. Official readers limit it too."""

    def _align(self, alignment: int, before: int = 0) -> None:
        """Pad so that the position after the next `before` bytes is aligned."""
        gap = -(self._end + before) % alignment
        if gap:
            self._pieces.append(np.zeros(gap, dtype=np.uint8))
            self._end += gap

    def append(self, piece: npt.NDArray[np.uint8]) -> int:
        """Append bytes. Returns their position."""
        start = self._end
        self._pieces.append(piece)
        self._end += len(piece)
        self.apparent_bytes += len(piece)
        if max(self._end, self.apparent_bytes) > MAX_BODY_BYTES:
            raise InvalidInputError(
                f"a metadata file would have more than {MAX_BODY_BYTES} bytes, the limit of its readers. Split the "
                "manifests of this array into smaller ones"
            )
        return start

    def tables(self, count: int, fields: Mapping[int, FieldType]) -> TableBlock:
        """Reserve tables of one kind. Their fields are set by slot."""
        return TableBlock(self, count, fields)

    def vectors(
        self,
        data: Any,
        counts: npt.NDArray[np.int64],
        item_bytes: int = 1,
        alignment: int = 1,
        *,
        text: bool = False,
        sources: Positions | None = None,
    ) -> Positions:
        """Write one vector per row. Returns the position of each.

        The items are taken from `data` at `sources`. Without `sources`, they are taken from the start of `data` in
        order.
        """
        lengths = counts * item_bytes
        step = max(alignment, 4)
        padded = -(-(4 + lengths + int(text)) // step) * step
        ends = np.cumsum(padded)
        self._align(step, 4 % step)
        total = int(ends[-1]) if len(ends) else 0
        piece = np.zeros(total, dtype=np.uint8)
        starts = ends - padded
        piece.view("<u4")[starts >> 2] = counts
        copy_rows(piece, starts + 4, data, np.cumsum(lengths) - lengths if sources is None else sources, lengths)
        return starts + self.append(piece)

    def texts(self, values: Sequence[str]) -> Positions:
        """One string per row."""
        try:
            return self.blobs([value.encode() for value in values], text=True)
        except UnicodeEncodeError as error:
            raise InvalidInputError(f"the text is not valid Unicode and cannot be stored: {error}") from error

    def blobs(self, values: Sequence[bytes], *, text: bool = False) -> Positions:
        """One byte vector per row."""
        counts = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
        return self.vectors(b"".join(values), counts, text=text)

    def references(self, counts: npt.NDArray[np.int64]) -> ReferenceBlock:
        """One vector of table offsets per row. They are linked when the positions of the tables are known."""
        return ReferenceBlock(self, counts)

    def finish(self, root: TableBlock) -> bytes:
        """The whole flatbuffer."""
        self._pieces[0][:4] = np.array([root.positions[0]], dtype="<u4").view(np.uint8)
        return b"".join(piece.data for piece in self._pieces)

    def aligned(self, alignment: int) -> int:
        """Pad to an alignment. Returns the end."""
        self._align(alignment)
        return self._end


class TableBlock:
    """Tables of one kind: a vtable, then rows of equal stride."""

    def __init__(self, writer: FlatWriter, count: int, fields: Mapping[int, FieldType]) -> None:
        names, formats, offsets, vtable, stride, alignment = _plan_row(fields)
        writer.aligned(2)
        at = writer.append(vtable.view(np.uint8))
        start = writer.aligned(alignment)
        kind = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": stride})
        raw = np.zeros(count * stride, dtype=np.uint8)
        writer.append(raw)
        self._rows: npt.NDArray[Any] = raw.view(kind)
        self._offsets = dict(zip(names, offsets, strict=True))
        self.positions: Positions = start + np.arange(count, dtype=np.int64) * stride
        self._rows["vtable"] = self.positions - at
        for slot, field in fields.items():
            if isinstance(field, Coordinates):
                self._rows[f"count{slot}"] = field.length
                self._rows[f"slot{slot}"] = self._offsets[f"count{slot}"] - self._offsets[f"slot{slot}"]

    def set(self, slot: int, values: Any) -> TableBlock:
        """Set a scalar or struct field of all rows. Structs are given as uint8[n, width]."""
        self._rows[f"slot{slot}"] = values
        return self

    def set_coordinates(self, slot: int, values: npt.NDArray[np.uint32]) -> TableBlock:
        """Set an embedded vector of all rows, from uint32[n, length]."""
        if values.shape[1]:
            self._rows[f"items{slot}"] = values
        return self

    def link(self, slot: int, targets: Positions) -> TableBlock:
        """Link a field of all rows to objects that were written later."""
        self._rows[f"slot{slot}"] = targets - (self.positions + self._offsets[f"slot{slot}"])
        return self


class ReferenceBlock:
    """Vectors of table offsets, one per row."""

    def __init__(self, writer: FlatWriter, counts: npt.NDArray[np.int64]) -> None:
        sizes = 4 + 4 * counts
        starts = np.cumsum(sizes) - sizes
        piece = np.zeros(int(sizes.sum()), dtype=np.uint8)
        self._items = piece.view("<u4")
        self._items[starts >> 2] = counts
        base = writer.aligned(4)
        writer.append(piece)
        self.positions: Positions = base + starts
        self._base = base
        self._counts = counts
        self._heads = starts >> 2

    def link(self, targets: Positions) -> None:
        """Link all vectors to tables that were written later, in order."""
        before = np.cumsum(self._counts) - self._counts
        index = np.repeat(self._heads + 1 - before, self._counts) + np.arange(len(targets), dtype=np.int64)
        self._items[index] = targets - (self._base + index * 4)


def _plan_row(
    fields: Mapping[int, FieldType],
) -> tuple[list[str], list[Any], list[int], npt.NDArray[np.uint16], int, int]:
    """The offset of each field in a row: widest scalars first, then structs, then embedded vectors."""
    names, formats, offsets = ["vtable"], [np.dtype("<i4")], [0]
    slots: dict[int, int] = {}
    end = 4
    alignment = 4

    def place(name: str, kind: Any, align: int) -> int:
        nonlocal end, alignment
        end = -(-end // align) * align
        alignment = max(alignment, align)
        names.append(name)
        formats.append(kind)
        offsets.append(end)
        end += np.dtype(kind).itemsize
        return offsets[-1]

    scalars = {
        slot: np.dtype(OFFSET_TYPE if isinstance(f, Coordinates) else f)
        for slot, f in fields.items()
        if not isinstance(f, int)
    }
    # Four-byte fields first: one of them fills the gap between the vtable offset and the first eight-byte field.
    for width in (4, 8, 2, 1):
        for slot, kind in scalars.items():
            if kind.itemsize == width:
                slots[slot] = place(f"slot{slot}", kind, width)
    for slot, field in fields.items():
        if isinstance(field, int):
            slots[slot] = place(f"slot{slot}", np.dtype((np.uint8, (field,))), 1)
    table_bytes = end
    for slot, field in fields.items():
        if isinstance(field, Coordinates):
            place(f"count{slot}", np.dtype("<u4"), 4)
            if field.length:
                place(f"items{slot}", np.dtype(("<u4", (field.length,))), 4)
    vtable = np.zeros(2 + (max(fields) + 1 if fields else 0), dtype="<u2")
    vtable[0], vtable[1] = 2 * len(vtable), table_bytes
    for slot, offset in slots.items():
        vtable[2 + slot] = offset
    stride = -(-end // alignment) * alignment
    return names, formats, offsets, vtable, stride, alignment
