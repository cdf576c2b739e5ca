"""Chunk references as columns, sorted by coordinates: of one array, or of many arrays together.

A matrix of coordinates has millions of rows and few columns. A numpy reduction along an axis iterates over the rows of
such a matrix. That takes fifty times as long as iterating over the columns.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.ids import NodeId
from icefloe.lazy_exports import lazy_module

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazy_module("pyarrow")


def batches_up_to(most: int, ends: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Bounds [first, end) of batches. A batch ends before the item that would exceed the size.

    An item that is larger than the size is a batch. `ends` are the cumulative sizes of the items.
    """
    first = 0
    while first < len(ends):
        done = int(ends[first - 1]) if first else 0
        # Use the column's type, because numpy compares unsigned columns with other numbers as floats.
        end = max(int(np.searchsorted(ends, ends.dtype.type(done + most), side="right")), first + 1)
        yield first, end
        first = end


def lowest(coords: npt.NDArray[Any]) -> tuple[int, ...]:
    """The smallest coordinate in every dimension. There must be at least one row."""
    return tuple(int(coords[:, axis].min()) for axis in range(coords.shape[1]))


def highest(coords: npt.NDArray[Any]) -> tuple[int, ...]:
    """The largest coordinate in every dimension. There must be at least one row."""
    return tuple(int(coords[:, axis].max()) for axis in range(coords.shape[1]))


def rows_inside(
    coords: npt.NDArray[Any], low: Sequence[int] | npt.NDArray[Any], high: Sequence[int] | npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Which rows are at or above `low` and below `high` in every dimension."""
    inside = np.ones(len(coords), dtype=np.bool_)
    for axis, (first, end) in enumerate(zip(low, high, strict=True)):
        column = coords[:, axis]
        inside &= (column >= first) & (column < end)
    return inside


def rows_below(coords: npt.NDArray[Any], high: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which rows are below `high` in every dimension."""
    inside = np.ones(len(coords), dtype=np.bool_)
    for axis, end in enumerate(high):
        inside &= coords[:, axis] < end
    return inside


_BATCH = 65_536
_STR_BYTES = 57
"""The size of a str in a list, without its characters."""


class StringColumn(Sequence[str]):
    """An immutable sequence of str. Null is None.

    Many texts are an Arrow array, without one Python object per text. A few are a list, which becomes an Arrow array
    when that is asked for: loading Arrow takes longer than most operations on them.
    """

    __slots__ = ("_arrow", "_few")

    def __init__(self, arrow: Any) -> None:
        self._arrow = arrow
        self._few: list[Any] | None = None

    @classmethod
    def of_few(cls, texts: Sequence[str | None]) -> StringColumn:
        """A column of at most `FEW_TEXTS` texts. Those that are not valid Unicode are a UnicodeEncodeError."""
        listed: list[Any] = list(texts)
        _encode_texts(listed if None not in listed else [text for text in listed if text is not None])
        column = cls(None)
        column._few = listed
        return column

    @property
    def arrow(self) -> Any:
        """The texts as an Arrow array of the type `large_string`."""
        if self._arrow is None:
            self._arrow = text_array(self._few or [])
        return self._arrow

    def __len__(self) -> int:
        return len(self.arrow if self._few is None else self._few)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> StringColumn: ...
    def __getitem__(self, index: int | slice) -> str | StringColumn:
        if self._few is not None:
            return StringColumn.of_few(self._few[index]) if isinstance(index, slice) else self._few[index]
        if isinstance(index, slice):
            return StringColumn(self.arrow[index])
        text: str = self.arrow[index].as_py()
        return text

    def __iter__(self) -> Iterator[str]:
        if self._few is not None:
            yield from self._few
            return
        for start in range(0, len(self), _BATCH):
            yield from self.arrow.slice(start, _BATCH).to_pylist()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StringColumn):
            if self._few is not None or other._few is not None:
                return len(self) == len(other) and list(self) == list(other)
            return bool(self.arrow.equals(other.arrow))
        if isinstance(other, (list, tuple)):
            return len(self) == len(other) and list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"StringColumn({len(self)} strings)"

    @property
    def null_count(self) -> int:
        """The number of nulls."""
        return int(self.arrow.null_count) if self._few is None else self._few.count(None)

    @property
    def nbytes(self) -> int:
        if self._few is None:
            return int(self.arrow.nbytes)
        return sum(map(len, filter(None, self._few))) + _STR_BYTES * len(self._few)


def string_column(values: Any) -> StringColumn:
    """Any sequence of str (list, numpy, Arrow, StringColumn) as a StringColumn, without copies if possible."""
    if isinstance(values, StringColumn):
        return values
    if not isinstance(values, (list, tuple, np.ndarray)):
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, pa.Array):
            return StringColumn(values if values.type == pa.large_string() else values.cast(pa.large_string()))
    texts = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return StringColumn.of_few(texts) if len(texts) <= FEW_TEXTS else StringColumn(text_array(texts))


def text_array(values: Sequence[str | None]) -> pa.Array:
    """Texts as an Arrow array. `pa.array` would load pandas first, which takes longer than most calls here."""
    missing = np.array([value is None for value in values], dtype=bool) if None in values else None
    texts: Sequence[Any] = values if missing is None else ["" if value is None else value for value in values]
    data, lengths = _encode_texts(texts)
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [_validity(missing), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(texts), buffers)


def _encode_texts(texts: Sequence[str]) -> tuple[bytes, npt.NDArray[np.int64]]:
    """All texts as UTF-8, one after the other, and the size of each."""
    try:
        joined = "".join(texts)
    except TypeError as error:
        raise InvalidInputError(f"a column of texts contains a value that is not text: {error}") from error
    if joined.isascii():
        return joined.encode(), np.fromiter(map(len, texts), np.int64, len(texts))
    encoded = [text.encode() for text in texts]
    return b"".join(encoded), np.fromiter(map(len, encoded), np.int64, len(encoded))


FEW_TEXTS = 2048
"""Up to this many texts, a Python loop is faster than loading Arrow's functions."""


def code_rows(texts: Sequence[str], rows: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], StringColumn]:
    """The distinct texts at some rows of a column without nulls, and the code of each row among them."""
    column = string_column(texts)
    if len(rows) > FEW_TEXTS:
        encoded = column.arrow.take(number_array(rows)).dictionary_encode()
        return codes_of(encoded.indices), StringColumn(encoded.dictionary)
    known: dict[str, int] = {}
    codes = [known.setdefault(column[row], len(known)) for row in rows.tolist()]
    return np.array(codes, dtype=np.int32), StringColumn.of_few(list(known))


def number_array(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """A numpy column as an Arrow array over the same memory, with optional nulls. Does not import pandas."""
    column = np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(column.dtype)
    return pa.Array.from_buffers(kind, len(column), [_validity(missing), pa.py_buffer(column)])


def codes_of(indices: pa.Array) -> npt.NDArray[np.int32]:
    """The indices of a dictionary array as numpy, -1 for null. Does not import pandas."""
    filled = indices.fill_null(-1) if indices.null_count else indices
    width = np.dtype(filled.type.to_pandas_dtype())
    start = filled.offset
    return np.frombuffer(filled.buffers()[1], dtype=width)[start : start + len(filled)].astype(np.int32, copy=False)


def _validity(missing: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))


Coords = tuple[int, ...]
ChunkBatch: TypeAlias = tuple[
    npt.NDArray[np.uint32],
    npt.NDArray[np.uint8],
    list[str],
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint64],
    dict[int, bytes],
]
"""References in the form of the official package: coordinates, kinds, locations, offsets, lengths and inline bytes."""


class ChunkKind(enum.IntEnum):
    """The kind of a reference. The value is the byte in the kind column."""

    INLINE = 0
    NATIVE = 1
    VIRTUAL = 2
    DELETED = 3
    """Only in change sets: an existing chunk is removed."""


_KINDS = tuple(ChunkKind)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTable:
    """References as columns. A column that is None has its default in every row.

    Two tables are equal if they have the same references, whatever the layout of their dictionaries and inline bytes.
    `locations` and `etags` may contain duplicates and unused entries.

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
        """Memory of the columns, for caches. Dictionaries are estimated."""
        columns: list[Any] = [
            self.coords,
            self.kind,
            self.offset,
            self.length,
            self.object_id,
            self.location,
            self.etag,
            self.last_modified,
        ]
        fixed = sum(int(c.nbytes) for c in columns if c is not None)
        return fixed + len(self.inline) + _text_bytes(self.locations) + _text_bytes(self.etags)

    def extents(self) -> tuple[tuple[int, int], ...]:
        """The bounding box of the rows, [first, end) per dimension."""
        if len(self) == 0:
            return tuple((0, 0) for _ in range(self.ndim))
        return tuple((a, b + 1) for a, b in zip(lowest(self.coords), highest(self.coords), strict=True))

    def row(self, index: int) -> ChunkRef:
        """One row as a value. For look-ups of single chunks, not for bulk work."""
        kind = _KINDS[self.kind.item(index)]
        offset, length = self.offset.item(index), self.length.item(index)
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
                kind,
                offset,
                length,
                location=self.locations[int(self.location[index])],
                etag=self.etags[etag_index] if etag_index >= 0 else None,
                last_modified=modified or None,
            )
        return ChunkRef(kind, 0, 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChunkTable):
            return NotImplemented
        return self is other or _same_rows(self, other)

    __hash__ = None  # type: ignore[assignment]

    def rows(self) -> Iterator[tuple[Coords, ChunkRef]]:
        """Every row as a value. For tests and small displays only."""
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
    """A table of single references. The last one of equal coordinates wins.

    Use this for single edits. Bulk code builds columns directly.
    """
    latest = dict(rows)
    ordered = sorted(latest)
    count = len(ordered)
    if any(len(coords) != ndim for coords in ordered):
        raise InvalidInputError(f"chunk coordinates do not have the {ndim} dimensions of the array")
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
        coords,
        kind,
        offset,
        length,
        object_id,
        location,
        list(locations),
        etag,
        list(etags),
        last_modified,
        bytes(inline),
    )


Numbers = npt.NDArray[np.int64]

_FEW_ROWS = 64
"""Up to this many rows, a Python loop builds the dictionary as fast."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTables(Mapping[NodeId, ChunkTable]):
    """Tables by node id. Arrays share columns, so that thousands of small arrays do not need a table each.

    `rows` contains the rows of all arrays in the order of `nodes`, sorted within each array. Its coordinates have the
    largest rank. They are zero beyond the rank of an array. Every array has rows.
    """

    nodes: Sequence[NodeId]
    counts: Numbers
    ndims: Numbers
    rows: ChunkTable
    _bounds: list[int] = field(default_factory=list, init=False, repr=False)
    _places: dict[NodeId, int] = field(default_factory=dict, init=False, repr=False)
    _cut: dict[int, ChunkTable] = field(default_factory=dict, init=False, repr=False)

    def __getitem__(self, node_id: NodeId) -> ChunkTable:
        return self.at(self._index()[node_id])

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._index()

    def find(self, node_id: NodeId) -> ChunkTable | None:
        """The table of an array, if it has one here."""
        index = self._index().get(node_id)
        return None if index is None else self.at(index)

    def _index(self) -> dict[NodeId, int]:
        if not self._places:
            # In one assignment, so that readers on other threads find nothing or all of it.
            self._places.update(dict(zip(self.nodes, range(len(self.nodes)), strict=True)))
        return self._places

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def at(self, index: int) -> ChunkTable:
        """The table of the array at an index in `nodes`."""
        table = self._cut.get(index)
        if table is None:
            if not self._bounds:
                self._bounds[:] = [0, *np.cumsum(self.counts).tolist()]
            first, end = self._bounds[index], self._bounds[index + 1]
            ndim = int(self.ndims[index])
            whole = len(self.nodes) == 1 and ndim == self.rows.coords.shape[1]
            table = self._cut[index] = self.rows if whole else cut_out(self.rows, first, end, ndim)
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkTables, (self.nodes, self.counts, self.ndims, self.rows)

    @property
    def nbytes(self) -> int:
        """Memory of the columns, for caches."""
        return self.rows.nbytes + 100 * len(self.nodes)

    def positions(self, node_ids: Sequence[NodeId]) -> Numbers:
        """The indices of some arrays in `nodes`."""
        return np.fromiter(map(self._index().__getitem__, node_ids), dtype=np.int64, count=len(node_ids))

    def select(self, positions: Numbers) -> ChunkTables:
        """The arrays at some indices in `nodes`, in the given order. Dictionaries and inline bytes are shared."""
        if len(positions) == len(self.nodes) and bool((positions == np.arange(len(positions))).all()):
            return self
        counts = self.counts[positions]
        shift = (np.cumsum(self.counts) - self.counts)[positions] - (np.cumsum(counts) - counts)
        chosen = np.repeat(shift, counts) + np.arange(int(counts.sum()))
        nodes = [self.nodes[position] for position in positions.tolist()]
        ndims = self.ndims[positions]
        return ChunkTables(nodes, counts, ndims, _pick(self.rows, chosen, int(ndims.max(initial=0))))

    def by_id(self) -> ChunkTables:
        """The same arrays, ordered by node id."""
        # All ids have eight bytes, so that they sort like numbers.
        ids = np.frombuffer(b"".join(self.nodes), dtype=">u8")
        return self if bool((ids[1:] > ids[:-1]).all()) else self.select(np.argsort(ids).astype(np.int64))

    def by_rank(self) -> Iterator[tuple[Sequence[NodeId], Numbers, ChunkTable]]:
        """Neighbouring arrays of the same rank as one table: the arrays, the number of rows of each, all rows."""
        bounds = np.concatenate([[0], np.cumsum(self.counts)])
        cuts = [0, *(np.flatnonzero(np.diff(self.ndims)) + 1).tolist(), len(self.nodes)]
        for first, end in itertools.pairwise(cuts):
            if first < end:
                rows = cut_out(self.rows, int(bounds[first]), int(bounds[end]), int(self.ndims[first]))
                yield self.nodes[first:end], self.counts[first:end], rows

    def array_of_row(self) -> Numbers:
        """Per row, the index of its array in `nodes`."""
        return np.repeat(np.arange(len(self.nodes)), self.counts)


NO_TABLES: Final = ChunkTables((), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), empty_table(0))


def cut_out(rows: ChunkTable, first: int, end: int, ndim: int) -> ChunkTable:
    """The rows from `first` to `end` as a table of its own, with its own dictionaries and inline bytes."""
    here = slice(first, end)
    coords, kind, offset, length = rows.coords[here, :ndim], rows.kind[here], rows.offset[here], rows.length[here]
    object_id = None if rows.object_id is None else rows.object_id[here]
    if rows.location is None and rows.etag is None and not len(rows.inline):
        return ChunkTable(coords, kind, offset, length, object_id)
    if object_id is not None and not bool((kind == ChunkKind.NATIVE).any()):
        object_id = None
    location, locations = _own_words(rows.location, rows.locations, here)
    etag, etags = _own_words(rows.etag, rows.etags, here)
    modified = None if rows.last_modified is None else rows.last_modified[here]
    if modified is not None and not bool(modified.any()):
        modified = None
    inline: bytes | memoryview = b""
    within = np.flatnonzero(kind == ChunkKind.INLINE)
    if len(within):
        low, high = int(offset[within].min()), int((offset[within] + length[within]).max())
        inline = bytes(rows.inline[low:high])
        if low:
            offset = offset.copy()
            offset[within] -= np.uint64(low)
    return ChunkTable(coords, kind, offset, length, object_id, location, locations, etag, etags, modified, inline)


def _own_words(
    codes: npt.NDArray[np.int32] | None, words: Sequence[str], here: slice
) -> tuple[npt.NDArray[np.int32] | None, Sequence[str]]:
    if codes is None:
        return None, ()
    if here.stop - here.start <= _FEW_ROWS:
        listed = codes[here].tolist()
        own = {code: index for index, code in enumerate(sorted({code for code in listed if code >= 0}))}
        if not own:
            return None, ()
        return np.array([own.get(code, -1) for code in listed], dtype=np.int32), [words[code] for code in own]
    distinct, inverse = np.unique(codes[here], return_inverse=True)
    missing = int(distinct[0] < 0)
    if missing == len(distinct):
        return None, ()
    return (inverse - missing).astype(np.int32), [words[code] for code in distinct[missing:].tolist()]


def _pick(rows: ChunkTable, chosen: Numbers, width: int) -> ChunkTable:
    def pick(column: Any) -> Any:
        return None if column is None else column[chosen]

    return replace(
        rows,
        coords=rows.coords[:, :width][chosen],
        kind=rows.kind[chosen],
        offset=rows.offset[chosen],
        length=rows.length[chosen],
        object_id=pick(rows.object_id),
        location=pick(rows.location),
        etag=pick(rows.etag),
        last_modified=pick(rows.last_modified),
    )


def widen(coords: npt.NDArray[np.uint32], width: int) -> npt.NDArray[np.uint32]:
    """Coordinates with this many dimensions. Missing dimensions are zero."""
    if coords.shape[1] >= width:
        return coords[:, :width]
    wide = np.zeros((len(coords), width), dtype=np.uint32)
    wide[:, : coords.shape[1]] = coords
    return wide


def join_tables(tables: Mapping[NodeId, ChunkTable]) -> ChunkTables:
    """All tables that have rows, ordered by node id."""
    if isinstance(tables, ChunkTables):
        return tables.by_id()
    nodes = sorted(node for node, table in tables.items() if len(table))
    parts = [tables[node] for node in nodes]
    counts = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
    ndims = np.fromiter((p.coords.shape[1] for p in parts), dtype=np.int64, count=len(parts))
    return ChunkTables(nodes, counts, ndims, _join_rows(parts))


def concat_tables(parts: Sequence[ChunkTables]) -> ChunkTables:
    """The arrays of all parts, in order. No array is in two of them."""
    filled = [part for part in parts if len(part)]
    if len(filled) < 2:
        return filled[0] if filled else NO_TABLES
    nodes = [node for part in filled for node in part.nodes]
    counts = _concatenate([part.counts for part in filled], np.int64)
    ndims = _concatenate([part.ndims for part in filled], np.int64)
    return ChunkTables(nodes, counts, ndims, _join_rows([part.rows for part in filled]))


def _join_rows(parts: list[ChunkTable]) -> ChunkTable:
    """The concatenated rows of all tables."""
    if len(parts) < 2:
        return parts[0] if parts else empty_table(0)
    counts = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
    locations, location = _join_dictionaries(parts, lambda p: p.location, lambda p: p.locations)
    etags, etag = _join_dictionaries(parts, lambda p: p.etag, lambda p: p.etags)
    kind = _concatenate([p.kind for p in parts], np.uint8)
    offset = _concatenate([p.offset for p in parts], np.uint64)
    inline_bytes = np.fromiter((len(p.inline) for p in parts), dtype=np.int64, count=len(parts))
    if inline_bytes.any():
        shift = np.repeat((np.cumsum(inline_bytes) - inline_bytes).astype(np.uint64), counts)
        offset = np.where(kind == ChunkKind.INLINE, offset + shift, offset)
    width = max(p.coords.shape[1] for p in parts)
    return ChunkTable(
        np.concatenate([widen(p.coords, width) for p in parts]),
        kind,
        offset,
        _concatenate([p.length for p in parts], np.uint64),
        _join_ids(parts),
        location,
        locations,
        etag,
        etags,
        _join_optional(parts, lambda p: p.last_modified, 0, np.uint32),
        b"".join(p.inline for p in parts) if inline_bytes.any() else b"",
    )


def _concatenate(parts: list[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)


def _join_ids(parts: list[ChunkTable]) -> npt.NDArray[np.uint8] | None:
    width = next((p.object_id.shape[1] for p in parts if p.object_id is not None), 0)
    if not width:
        return None
    return np.concatenate(
        [np.zeros((len(p), width), dtype=np.uint8) if p.object_id is None else p.object_id for p in parts]
    )


def _join_optional(
    parts: list[ChunkTable], pick: Callable[[ChunkTable], npt.NDArray[Any] | None], default: int, dtype: type
) -> npt.NDArray[Any] | None:
    picked = [pick(p) for p in parts]
    if all(column is None for column in picked):
        return None
    return np.concatenate(
        [np.full(len(p), default, dtype=dtype) if c is None else c for p, c in zip(parts, picked, strict=True)]
    )


def _join_dictionaries(
    parts: list[ChunkTable],
    pick: Callable[[ChunkTable], npt.NDArray[np.int32] | None],
    words: Callable[[ChunkTable], Sequence[str]],
) -> tuple[Sequence[str], npt.NDArray[np.int32] | None]:
    column = _join_optional(parts, pick, -1, np.int32)
    if column is None:
        return (), None
    dictionaries = [words(part) for part in parts if pick(part) is not None]
    if all(each is dictionaries[0] for each in dictionaries):
        return dictionaries[0], column
    joined: list[str] = []
    starts = []
    for part in parts:
        starts.append(len(joined))
        joined.extend(words(part))
    shift = np.repeat(np.array(starts, dtype=np.int32), [len(p) for p in parts])
    return joined, np.where(column >= 0, column + shift, column).astype(np.int32)
