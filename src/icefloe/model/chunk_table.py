"""The chunk references of one array as columns, sorted by coordinates."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.model.coordinates import highest, lowest
from icefloe.model.string_column import StringColumn, number_array, string_column

Coords = tuple[int, ...]


class ChunkKind(enum.IntEnum):
    """What a reference points at; the value is the byte in the kind column."""

    INLINE = 0
    NATIVE = 1
    VIRTUAL = 2
    DELETED = 3
    """Only in change sets: the chunk was there and is removed."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTable:
    """References as columns. A column that is None holds its default in every row.

    Two tables are equal when they hold the same references, however their dictionaries and inline bytes are laid out.
    `locations` and `etags` may hold entries twice, or ones that no row uses.

    coords         uint32[n, ndim], unique rows in lexicographic order
    kind           uint8[n], values of ChunkKind
    offset         uint64[n]: in the object or file; for INLINE the start in `inline`
    length         uint64[n]
    object_id      uint8[n, width] or None (no NATIVE rows); zero elsewhere
    location       int32[n] index into `locations`, or None (no VIRTUAL rows); -1 elsewhere
    etag           int32[n] index into `etags`, or None (no row has one); -1 elsewhere
    last_modified  uint32[n] seconds since 1970, or None; 0 = none
    inline         the bytes of the INLINE rows
    """

    coords: npt.NDArray[np.uint32]
    kind: npt.NDArray[np.uint8]
    offset: npt.NDArray[np.uint64]
    length: npt.NDArray[np.uint64]
    object_id: npt.NDArray[np.uint8] | None = None
    location: npt.NDArray[np.int32] | None = None
    locations: Sequence[str] = field(default=())
    etag: npt.NDArray[np.int32] | None = None
    etags: Sequence[str] = field(default=())
    last_modified: npt.NDArray[np.uint32] | None = None
    inline: bytes | memoryview = b""

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def ndim(self) -> int:
        return int(self.coords.shape[1])

    @property
    def nbytes(self) -> int:
        """Memory held by the columns, for caches; dictionaries are estimated."""
        columns: list[Any] = [
            self.coords, self.kind, self.offset, self.length, self.object_id,
            self.location, self.etag, self.last_modified,
        ]  # fmt: skip
        fixed = sum(int(c.nbytes) for c in columns if c is not None)
        return fixed + len(self.inline) + _text_bytes(self.locations) + _text_bytes(self.etags)

    def extents(self) -> tuple[tuple[int, int], ...]:
        """The bounding box of the rows, [first, end) per dimension."""
        if len(self) == 0:
            return tuple((0, 0) for _ in range(self.ndim))
        return tuple((a, b + 1) for a, b in zip(lowest(self.coords), highest(self.coords), strict=True))

    def row(self, index: int) -> ChunkRef:
        """One row as a value; for look-ups of single chunks, never for bulk work."""
        kind = ChunkKind(int(self.kind[index]))
        offset, length = int(self.offset[index]), int(self.length[index])
        if kind is ChunkKind.INLINE:
            return ChunkRef(kind, 0, length, data=bytes(self.inline[offset : offset + length]))
        if kind is ChunkKind.NATIVE:
            assert self.object_id is not None
            return ChunkRef(kind, offset, length, object_id=self.object_id[index].tobytes())
        if kind is ChunkKind.VIRTUAL:
            assert self.location is not None
            etag_index = -1 if self.etag is None else int(self.etag[index])
            modified = 0 if self.last_modified is None else int(self.last_modified[index])
            return ChunkRef(
                kind, offset, length,
                location=self.locations[int(self.location[index])],
                etag=self.etags[etag_index] if etag_index >= 0 else None,
                last_modified=modified or None,
            )  # fmt: skip
        return ChunkRef(kind, 0, 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChunkTable):
            return NotImplemented
        return self is other or _same_rows(self, other)

    __hash__ = None  # type: ignore[assignment]

    def rows(self) -> Iterator[tuple[Coords, ChunkRef]]:
        """Every row as a value; for tests and small displays only."""
        for index in range(len(self)):
            yield tuple(int(c) for c in self.coords[index]), self.row(index)


def _text_bytes(texts: Sequence[str]) -> int:
    return texts.nbytes if isinstance(texts, StringColumn) else 120 * len(texts)


def _same_rows(a: ChunkTable, b: ChunkTable) -> bool:
    if a.coords.shape != b.coords.shape or not np.array_equal(a.coords, b.coords):
        return False
    if not (np.array_equal(a.kind, b.kind) and np.array_equal(a.length, b.length)):
        return False
    pointing = (a.kind == ChunkKind.NATIVE) | (a.kind == ChunkKind.VIRTUAL)
    if not np.array_equal(a.offset[pointing], b.offset[pointing]):
        return False
    native, virtual = a.kind == ChunkKind.NATIVE, a.kind == ChunkKind.VIRTUAL
    if native.any() and not _same_ids(a, b, native):
        return False
    if virtual.any() and not _same_sources(a, b, virtual):
        return False
    inline = np.flatnonzero(a.kind == ChunkKind.INLINE)
    return all(a.row(i).data == b.row(i).data for i in inline.tolist())


def _same_ids(a: ChunkTable, b: ChunkTable, rows: npt.NDArray[np.bool_]) -> bool:
    return a.object_id is not None and b.object_id is not None and np.array_equal(a.object_id[rows], b.object_id[rows])


def _same_sources(a: ChunkTable, b: ChunkTable, rows: npt.NDArray[np.bool_]) -> bool:
    if not _same_texts((a.location, a.locations), (b.location, b.locations), rows):
        return False
    if not _same_texts((a.etag, a.etags), (b.etag, b.etags), rows):
        return False
    zeros = np.zeros(len(a), dtype=np.uint32)
    left = zeros if a.last_modified is None else a.last_modified
    right = zeros if b.last_modified is None else b.last_modified
    return np.array_equal(left[rows], right[rows])


Coded = tuple[npt.NDArray[np.int32] | None, Sequence[str]]


def _same_texts(a: Coded, b: Coded, rows: npt.NDArray[np.bool_]) -> bool:
    return bool(_texts(a, rows).equals(_texts(b, rows)))


def _texts(coded: Coded, rows: npt.NDArray[np.bool_]) -> pa.Array:
    codes, texts = coded
    if codes is None:
        return pa.nulls(int(rows.sum()), type=pa.large_string())
    chosen = codes[rows]
    return string_column(texts).arrow.take(number_array(chosen, chosen < 0))


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """One reference, as a single look-up returns it."""

    kind: ChunkKind
    offset: int
    length: int
    object_id: bytes | None = None
    location: str | None = None
    etag: str | None = None
    last_modified: int | None = None
    data: bytes | None = None


def empty_table(ndim: int) -> ChunkTable:
    """A table without rows."""
    return ChunkTable(
        coords=np.empty((0, ndim), dtype=np.uint32),
        kind=np.empty(0, dtype=np.uint8),
        offset=np.empty(0, dtype=np.uint64),
        length=np.empty(0, dtype=np.uint64),
    )


def tombstones(coords: npt.NDArray[np.uint32]) -> ChunkTable:
    """Edits that remove the chunks at sorted coordinates."""
    count = len(coords)
    zeros = np.zeros(count, dtype=np.uint64)
    return ChunkTable(coords, np.full(count, ChunkKind.DELETED, dtype=np.uint8), zeros, zeros)


def table_from_rows(rows: Sequence[tuple[Coords, ChunkRef]], ndim: int) -> ChunkTable:
    """A table of single references; the last one of equal coordinates wins.

    The per-row door for single edits; bulk work builds columns directly.
    """
    latest = dict(rows)
    ordered = sorted(latest)
    count = len(ordered)
    if any(len(coords) != ndim for coords in ordered):
        raise InvalidInputError(f"chunk coordinates of another rank than the array's {ndim} dimensions")
    coords = np.array(ordered, dtype=np.uint32).reshape(count, ndim)
    kind = np.zeros(count, dtype=np.uint8)
    offset = np.zeros(count, dtype=np.uint64)
    length = np.zeros(count, dtype=np.uint64)
    width = max((len(r.object_id) for r in latest.values() if r.object_id is not None), default=0)
    object_id = np.zeros((count, width), dtype=np.uint8) if width else None
    location = etag = last_modified = None
    if any(r.kind is ChunkKind.VIRTUAL for r in latest.values()):
        location = np.full(count, -1, dtype=np.int32)
    if any(r.etag is not None for r in latest.values()):
        etag = np.full(count, -1, dtype=np.int32)
    if any(r.last_modified for r in latest.values()):
        last_modified = np.zeros(count, dtype=np.uint32)
    locations: dict[str, int] = {}
    etags: dict[str, int] = {}
    inline = bytearray()
    for index, key in enumerate(ordered):
        ref = latest[key]
        kind[index] = ref.kind
        length[index] = ref.length
        offset[index] = ref.offset
        if ref.kind is ChunkKind.INLINE:
            offset[index] = len(inline)
            inline += ref.data or b""
        elif ref.kind is ChunkKind.NATIVE:
            assert object_id is not None and ref.object_id is not None
            object_id[index] = np.frombuffer(ref.object_id, dtype=np.uint8)
        elif ref.kind is ChunkKind.VIRTUAL:
            assert location is not None and ref.location is not None
            location[index] = locations.setdefault(ref.location, len(locations))
            if etag is not None and ref.etag is not None:
                etag[index] = etags.setdefault(ref.etag, len(etags))
            if last_modified is not None and ref.last_modified:
                last_modified[index] = ref.last_modified
    return ChunkTable(
        coords, kind, offset, length, object_id, location, list(locations), etag, list(etags),
        last_modified, bytes(inline),
    )  # fmt: skip
