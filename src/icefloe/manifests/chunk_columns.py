"""Gather, join, merge and search the columns of chunk tables."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.lazy_exports import lazy_module
from icefloe.model.chunk_table import (
    FEW_TEXTS,
    ChunkKind,
    ChunkTable,
    ChunkTables,
    Coords,
    StringColumn,
    batches_up_to,
    code_rows,
    codes_of,
    empty_table,
    highest,
    rows_inside,
    string_column,
)

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazy_module("pyarrow")

Radix = tuple[int, ...] | None
"""The number of values per dimension, or None if their product does not fit 64 bits."""

_FEW = 64
"""Up to this many look-ups, single searches are faster than building the keys of the whole table."""


def common_radix(*coords: npt.NDArray[np.uint32]) -> Radix:
    """A radix for which the keys of all these coordinates are comparable."""
    filled = [c for c in coords if len(c)]
    if not filled:
        return (1,) * coords[0].shape[1] if coords else ()
    radix = tuple(max(column) + 1 for column in zip(*map(highest, filled), strict=True))
    return radix if math.prod(radix) <= 2**64 else None


def sort_keys(coords: npt.NDArray[Any], radix: Radix) -> npt.NDArray[Any]:
    """One key per row that sorts like the coordinates. Keys of the same radix are comparable."""
    count, ndim = coords.shape
    if ndim == 0:
        return np.zeros(count, dtype=np.uint64)
    if radix is None:
        # Big-endian bytes sort like the numbers. The padding of numpy has no effect at equal width.
        return np.ascontiguousarray(coords, dtype=">u4").view(f"S{4 * ndim}").ravel()
    keys = coords[:, 0].astype(np.uint64)
    for axis in range(1, ndim):
        keys *= np.uint64(radix[axis])
        keys += coords[:, axis]
    return keys


def find_position(table: ChunkTable, target: list[int]) -> tuple[int, bool]:
    """The row of coordinates in a table, or its insertion point, and whether it exists."""
    rows = table.coords
    guess = _find_in_full_box(rows, target)
    if guess is not None:
        return guess, True
    low, high = 0, len(table)
    while low < high:
        middle = (low + high) // 2
        if rows[middle].tolist() < target:
            low = middle + 1
        else:
            high = middle
    return low, low < len(table) and rows[low].tolist() == target


def _find_in_full_box(rows: npt.NDArray[np.uint32], target: Sequence[int]) -> int | None:
    """The row of coordinates if the table has every chunk of a box, as after a write of a whole region.

    Then the row can be calculated. Tables without gaps are common, and the search of others takes several times as
    long as this attempt.
    """
    count = len(rows)
    if not count or len(target) != rows.shape[1]:
        return None
    position = 0
    for axis, wanted in enumerate(target):
        low = rows.item(0, axis)
        position = position * (rows.item(count - 1, axis) - low + 1) + wanted - low
    if not 0 <= position < count:
        return None
    for axis, wanted in enumerate(target):
        if rows.item(position, axis) != wanted:
            return None
    return position


def find_row(table: ChunkTable, coords: Sequence[int]) -> int | None:
    """The row of a chunk, or None. It takes a few microseconds and needs no preparation."""
    guess = _find_in_full_box(table.coords, coords)
    if guess is not None or len(coords) != table.ndim:
        return guess
    position, found = find_position(table, list(coords))
    return position if found else None


def find_rows(table: ChunkTable, coords: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """The rows of many chunks, -1 for those that are missing."""
    result = np.full(len(coords), -1, dtype=np.int64)
    if len(table) == 0 or len(coords) == 0 or coords.shape[1] != table.ndim:
        return result
    if len(coords) <= _FEW:
        for index, wanted in enumerate(coords.tolist()):
            row = find_row(table, wanted)
            result[index] = -1 if row is None else row
        return result
    own_keys = sort_keys(coords, common_radix(coords))
    first, _ = find_position(table, coords[own_keys.argmin()].tolist())
    last, is_there = find_position(table, coords[own_keys.argmax()].tolist())
    # Build keys only for the part of the table that the look-up spans, so that the cost is that of this part.
    part = table.coords[first : last + is_there]
    if len(part) == 0:
        return result
    radix = common_radix(part, coords)
    keys, wanted_keys = sort_keys(part, radix), sort_keys(coords, radix)
    positions = np.minimum(np.searchsorted(keys, wanted_keys), len(keys) - 1)
    return np.where(keys[positions] == wanted_keys, positions + first, -1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of a table that were found for some of the requested chunks."""

    table: ChunkTable
    rows: npt.NDArray[np.intp]
    positions: npt.NDArray[np.intp]
    """The positions of these chunks in the request, ascending."""


def find_in(
    table: ChunkTable, coords: npt.NDArray[np.uint32], positions: npt.NDArray[np.intp]
) -> tuple[Found, npt.NDArray[np.intp]]:
    """Look up `coords[positions]` in a table. Returns the found rows, and the positions that are missing."""
    rows = find_rows(table, coords[positions])
    there = rows >= 0
    return Found(table, rows[there].astype(np.intp), positions[there]), positions[~there]


def sort_order(coords: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64] | None:
    """Rows in lexicographic order, only the last of equal ones. None if they already are."""
    if len(coords) < 2:
        return None
    keys = sort_keys(coords, common_radix(coords))
    if bool((keys[1:] > keys[:-1]).all()):
        return None
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    last = np.ones(len(keys), dtype=bool)
    last[:-1] = keys[1:] != keys[:-1]
    return order if bool(last.all()) else order[last]


Rows = npt.NDArray[Any] | slice
"""Row numbers, a mask, or a slice."""

_GATHER_BLOCK = 1 << 22
_APPEND_RATIO = 16


def take(table: ChunkTable, rows: Rows) -> ChunkTable:
    """The chosen rows, in the given order (which must keep the table sorted). Dictionaries are reduced."""
    chosen = _take_columns(table, rows)
    return compact_locations(compact_inline(chosen)) if len(chosen) < len(table) else chosen


def _take_columns(table: ChunkTable, rows: Rows) -> ChunkTable:
    def pick(column: Any) -> Any:
        return None if column is None else column[rows]

    return ChunkTable(
        coords=table.coords[rows],
        kind=table.kind[rows],
        offset=table.offset[rows],
        length=table.length[rows],
        object_id=pick(table.object_id),
        location=pick(table.location),
        locations=table.locations,
        etag=pick(table.etag),
        etags=table.etags,
        last_modified=pick(table.last_modified),
        inline=table.inline,
    )


def concat(tables: Sequence[ChunkTable]) -> ChunkTable:
    """Join tables, sorted. For equal coordinates, the later table wins."""
    filled = [t for t in tables if len(t)]
    if len(filled) <= 1:
        return filled[0] if filled else tables[0]
    _check_ranks(filled)
    return join_columns(filled, sort_order(np.concatenate([t.coords for t in filled])))


def normalise(table: ChunkTable) -> ChunkTable:
    """A table from columns in any order: sorted by coordinates, the last of equal ones wins."""
    order = sort_order(table.coords)
    return table if order is None else _take_columns(table, order)


def join_columns(tables: Sequence[ChunkTable], order: npt.NDArray[np.int64] | None = None) -> ChunkTable:
    """The concatenated rows of all tables, or the rows of `order`. Dictionaries are unified.

    Columns are joined and ordered one at a time, so that only one of them is in memory twice.
    """
    filled = [t for t in tables if len(t)]
    if order is None and len(filled) <= 1:
        return filled[0] if filled else tables[0]
    _check_ranks(filled)

    def pick(column: Any) -> Any:
        return column if column is None or order is None else column[order]

    location, locations = _join_coded(filled, lambda t: (t.location, t.locations))
    etag, etags = _join_coded(filled, lambda t: (t.etag, t.etags))
    offset, inline = _join_inline(filled)
    location, etag, offset = pick(location), pick(etag), pick(offset)
    return ChunkTable(
        coords=pick(np.concatenate([t.coords for t in filled])),
        kind=pick(np.concatenate([t.kind for t in filled])),
        offset=offset,
        length=pick(np.concatenate([t.length for t in filled])),
        object_id=pick(_join_ids(filled)),
        location=location,
        locations=locations,
        etag=etag,
        etags=etags,
        last_modified=pick(_join_optional(filled, lambda t: t.last_modified, np.uint32)),
        inline=inline,
    )


def join_runs(runs: list[ChunkTable], hold: Callable[[tuple[ChunkTable, ...]], None]) -> ChunkTable:
    """The concatenated rows of tables whose coordinates follow each other. Only one column is in memory twice.

    After each column, the tables of `runs` are replaced by the same rows in the common columns, and `hold` gets them. A
    caller that holds nothing else gives the memory of the old columns back step by step.
    """
    _check_ranks(runs)
    ends = np.cumsum([len(run) for run in runs]).tolist()
    spans = list(zip([0, *ends], ends, strict=False))

    def share(**columns: Any) -> None:
        for place, (first, end) in enumerate(spans):
            own: dict[str, Any] = {
                name: column[first:end] if isinstance(column, np.ndarray) else column
                for name, column in columns.items()
            }
            runs[place] = replace(runs[place], **own)
        hold(tuple(runs))
        if ends[-1] >= _MANY_ROWS:
            _return_memory()

    share(coords=(coords := np.concatenate([run.coords for run in runs])))
    share(kind=(kind := np.concatenate([run.kind for run in runs])))
    offset, inline = _join_inline(runs)
    share(offset=offset, inline=inline)
    share(length=(length := np.concatenate([run.length for run in runs])))
    share(object_id=(object_id := _join_ids(runs)))
    location, locations = _join_coded(runs, lambda run: (run.location, run.locations))
    share(location=location, locations=locations)
    etag, etags = _join_coded(runs, lambda run: (run.etag, run.etags))
    share(etag=etag, etags=etags)
    last_modified = _join_optional(runs, lambda run: run.last_modified, np.uint32)
    return ChunkTable(
        coords=coords,
        kind=kind,
        offset=offset,
        length=length,
        object_id=object_id,
        location=location,
        locations=locations,
        etag=etag,
        etags=etags,
        last_modified=last_modified,
        inline=inline,
    )


def _return_memory() -> None:
    """Give freed memory back to the system. The allocator of Linux keeps blocks of up to 32 MiB otherwise."""
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


def _find_malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None  # another system, or another C library


_MANY_ROWS = 1 << 22
_MALLOC_TRIM = _find_malloc_trim()


def _check_ranks(tables: Sequence[ChunkTable]) -> None:
    if len({t.ndim for t in tables}) > 1:
        raise InvalidInputError(f"chunk tables have different ranks: {sorted({t.ndim for t in tables})}")


def _join_optional(tables: Sequence[ChunkTable], column: Callable[[ChunkTable], Any], dtype: Any) -> Any:
    columns = [column(t) for t in tables]
    if all(c is None for c in columns):
        return None
    return np.concatenate(
        [np.zeros(len(t), dtype=dtype) if c is None else c for t, c in zip(tables, columns, strict=True)]
    )


def _join_ids(tables: Sequence[ChunkTable]) -> npt.NDArray[np.uint8] | None:
    widths = {t.object_id.shape[1] for t in tables if t.object_id is not None}
    if not widths:
        return None
    if len(widths) > 1:
        raise InvalidInputError(f"chunk ids of one array have different widths: {sorted(widths)} bytes")
    width = widths.pop()
    return np.concatenate(
        [np.zeros((len(t), width), dtype=np.uint8) if t.object_id is None else t.object_id for t in tables]
    )


def _join_inline(tables: Sequence[ChunkTable]) -> tuple[npt.NDArray[np.uint64], bytes | memoryview]:
    offset = np.concatenate([t.offset for t in tables])
    buffers: list[Any] = []
    base = row = 0
    for table in tables:
        if len(table.inline):
            if base:
                offset[row : row + len(table)][table.kind == ChunkKind.INLINE] += np.uint64(base)
            buffers.append(table.inline)
            base += len(table.inline)
        row += len(table)
    return offset, buffers[0] if len(buffers) == 1 else b"".join(buffers)


def _join_coded(
    tables: Sequence[ChunkTable], column: Callable[[ChunkTable], tuple[Any, Sequence[str]]]
) -> tuple[npt.NDArray[np.int32] | None, Sequence[str]]:
    coded = [column(t) for t in tables]
    if all(codes is None for codes, _ in coded):
        return None, ()
    dictionaries = [texts for codes, texts in coded if codes is not None]
    if all(texts is dictionaries[0] for texts in dictionaries):
        mapped, texts = [codes for codes, _ in coded], dictionaries[0]
    else:
        mapped, texts = _unify(coded)
    columns = [
        np.full(len(t), -1, dtype=np.int32) if codes is None else codes for t, codes in zip(tables, mapped, strict=True)
    ]
    return np.concatenate(columns), texts


def _unify(coded: Sequence[tuple[Any, Sequence[str]]]) -> tuple[list[Any], StringColumn]:
    distinct = {id(texts): string_column(texts) for codes, texts in coded if codes is not None}
    total, longest = sum(map(len, distinct.values())), max(map(len, distinct.values()))
    if total <= FEW_TEXTS:
        joined = StringColumn.of_few([text for column in distinct.values() for text in column])
    else:
        joined = StringColumn(pa.concat_arrays([column.arrow for column in distinct.values()]))
    if (total - longest) * _APPEND_RATIO < longest:
        # A few new texts after many: storing a text twice is cheaper than hashing all of them.
        mapping, texts = np.arange(total, dtype=np.int32), joined
    else:
        mapping, texts = code_rows(joined, np.arange(total))
    parts: dict[int, npt.NDArray[np.int32]] = {}
    start = 0
    for key, dictionary in distinct.items():
        parts[key] = np.append(mapping[start : start + len(dictionary)], np.int32(-1))  # code -1 stays -1
        start += len(dictionary)
    return [None if codes is None else parts[id(words)][codes] for codes, words in coded], texts


def bounding_rows(tables: ChunkTables) -> npt.NDArray[np.int64]:
    """Per array its rank, then the first index of its chunks per dimension, then the end per dimension."""
    starts = np.cumsum(tables.counts) - tables.counts
    coords = tables.rows.coords
    width = coords.shape[1]
    bounds = np.empty((len(tables), 1 + 2 * width), dtype=np.int64)
    bounds[:, 0] = tables.ndims
    for axis in range(width):
        bounds[:, 1 + axis] = np.minimum.reduceat(coords[:, axis], starts)
        bounds[:, 1 + width + axis] = np.maximum.reduceat(coords[:, axis], starts)
    bounds[:, 1 + width :] += 1
    return bounds


def compact_locations(table: ChunkTable) -> ChunkTable:
    """The same table with reduced dictionaries: only texts that its rows use, without duplicates."""
    if table.location is None and table.etag is None:
        return table
    location, locations = _compact_coded(table.location, table.locations)
    etag, etags = _compact_coded(table.etag, table.etags)
    return replace(table, location=location, locations=locations, etag=etag, etags=etags)


def _compact_coded(
    codes: npt.NDArray[np.int32] | None, texts: Sequence[str]
) -> tuple[npt.NDArray[np.int32] | None, Sequence[str]]:
    if codes is None or len(codes) == 0:
        return None, ()
    if 8 * len(codes) < len(texts):
        distinct, inverse = np.unique(codes, return_inverse=True)
        missing = int(distinct[0] < 0)
        if missing == len(distinct):
            return None, ()
        coded, fewer_texts = code_rows(texts, distinct[missing:])
        fewer = np.concatenate([np.full(missing, -1), coded]).astype(np.int32)
        return fewer[inverse], fewer_texts
    used = np.zeros(len(texts) + 1, dtype=bool)
    used[codes] = True  # -1 marks the last, extra entry
    kept = np.flatnonzero(used[:-1])
    if len(kept) == 0:
        return None, ()
    coded, kept_texts = code_rows(texts, kept)
    mapping = np.full(len(texts) + 1, -1, dtype=np.int32)
    mapping[kept] = coded
    return mapping[codes], kept_texts


def compact_inline(table: ChunkTable) -> ChunkTable:
    """The same table without most of the inline bytes that no row uses."""
    if not len(table.inline):
        return table
    rows = np.flatnonzero(table.kind == ChunkKind.INLINE)
    lengths = table.length[rows].astype(np.int64)
    total = int(lengths.sum())
    if 2 * total > len(table.inline):
        return table
    ends = np.cumsum(lengths)
    offset = table.offset.copy()
    inline = _gather_bytes(table.inline, table.offset[rows].astype(np.int64), lengths, ends)
    offset[rows] = (ends - lengths).astype(np.uint64)
    return replace(table, offset=offset, inline=inline)


def _gather_bytes(source: bytes | memoryview, starts: Any, lengths: Any, ends: Any) -> bytes:
    """The concatenated byte ranges, gathered in blocks so that the index stays small."""
    data = np.frombuffer(source, dtype=np.uint8)
    slices: list[bytes] = []
    for first, last in batches_up_to(_GATHER_BLOCK, ends):
        size = lengths[first:last]
        shift = starts[first:last] - (np.cumsum(size) - size)
        slices.append(data[np.repeat(shift, size) + np.arange(int(size.sum()))].tobytes())
    return b"".join(slices)


def code_texts(values: Any, count: int) -> tuple[npt.NDArray[np.int32], StringColumn]:
    """Texts in any columnar form (one for all rows, list, numpy, Arrow plain or dictionary) as codes. Null is -1."""
    if isinstance(values, str):
        return np.zeros(count, dtype=np.int32), string_column([values])
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, (list, tuple)):
        _check_count(len(values), count)
        coder = TextCoder()
        codes = np.empty(count, dtype=np.int32)
        for first in range(0, count, CODED_AT_ONCE):
            piece = values[first : first + CODED_AT_ONCE]
            coded = coder.code(piece)
            if coded is None:
                break
            codes[first : first + len(piece)] = coded
        else:
            return codes, string_column(coder.texts)
        values = string_column(values).arrow.dictionary_encode()
    if isinstance(values, pa.ChunkedArray):
        values = values.unify_dictionaries().combine_chunks()
    if not isinstance(values, pa.DictionaryArray):
        values = string_column(values).arrow.dictionary_encode()
    _check_count(len(values), count)
    return codes_of(values.indices), string_column(values.dictionary)


def _check_count(found: int, count: int) -> None:
    if found != count:
        raise InvalidInputError(
            f"there are {found} texts for {count} chunk references. Give one for each, or one for all"
        )


CODED_AT_ONCE = 4096
"""So many values are coded at a time. They stay in the processor's cache."""

_MANY_CODED, _ROWS_PER_CODE = 1 << 15, 8
"""From this many distinct texts on, Arrow is faster than a dict, unless each has this many rows on average."""


class _Codes(dict[str, int]):
    """Numbers texts in the order in which they are looked up first."""

    def __missing__(self, text: str) -> int:
        code = self[text] = len(self)
        return code


class TextCoder:
    """Codes lists of texts, piece by piece. Distinct texts are numbered in the order of their first occurrence."""

    def __init__(self) -> None:
        self._codes = _Codes()
        self._rows = 0

    @property
    def texts(self) -> list[str]:
        """The distinct texts."""
        return list(self._codes)

    def code(self, texts: Sequence[Any]) -> npt.NDArray[np.int32] | None:
        """The code of each text. None if a value is not exactly a str, or if there are too many distinct texts."""
        if list(map(type, texts)).count(str) < len(texts):
            return None
        if len(self._codes) > max(_MANY_CODED, self._rows // _ROWS_PER_CODE):
            return None
        self._rows += len(texts)
        return pack_numbers(list(map(self._codes.__getitem__, texts)), "i")


def pack_numbers(numbers: Sequence[int], form: str) -> npt.NDArray[Any]:
    """Whole numbers as a column of a type of `struct`. Other values and those that do not fit are a struct.error."""
    return np.frombuffer(struct.pack(f"{len(numbers)}{form}", *numbers), dtype=form)


def table_from_columns(
    coords: npt.ArrayLike,
    *,
    kind: ChunkKind | npt.ArrayLike,
    offset: npt.ArrayLike = 0,
    length: npt.ArrayLike = 0,
    object_id: npt.ArrayLike | None = None,
    location: Any = None,
    etag: Any = None,
    last_modified: npt.ArrayLike | None = None,
    inline: bytes | memoryview = b"",
) -> ChunkTable:
    """A table from columns in any order. The last of equal coordinates wins.

    A single value applies to all rows. `location` and `etag` can be one text, a list, numpy texts, or an Arrow array,
    plain or dictionary-encoded. Null means none.
    """
    where = _whole_numbers(coords, np.uint32, "coords")
    if where.ndim != 2:
        raise InvalidInputError(f"chunk coordinates have the shape {where.shape}, expected [references, dimensions]")
    count = len(where)
    if count == 0:
        return empty_table(where.shape[1])

    def column(values: npt.ArrayLike, dtype: Any, name: str) -> Any:
        numbers = _whole_numbers(values, dtype, name)
        if numbers.ndim == 0:
            return np.full(count, numbers, dtype=dtype)
        if numbers.shape != (count,):
            raise InvalidInputError(f"column {name} has the shape {numbers.shape} for {count} chunk references")
        return numbers

    ids = None
    if object_id is not None:
        ids = np.ascontiguousarray(object_id, dtype=np.uint8)
        if ids.ndim == 1:
            ids = np.broadcast_to(ids, (count, len(ids)))
        if len(ids) != count:
            raise InvalidInputError(f"there are {len(ids)} object ids for {count} chunk references")
    coded, texts = (None, ()) if location is None else code_texts(location, count)
    tags, tag_texts = (None, ()) if etag is None else code_texts(etag, count)
    table = ChunkTable(
        where,
        column(kind, np.uint8, "kind"),
        column(offset, np.uint64, "offset"),
        column(length, np.uint64, "length"),
        ids,
        coded,
        texts,
        tags,
        tag_texts,
        None if last_modified is None else column(last_modified, np.uint32, "last_modified"),
        inline,
    )
    _check_kinds(table)
    return normalise(table)


def _whole_numbers(values: npt.ArrayLike, dtype: Any, name: str) -> npt.NDArray[Any]:
    numbers = np.asarray(values)
    if numbers.size and numbers.dtype != dtype:
        if numbers.dtype.kind not in "iub":
            raise InvalidInputError(f"column {name} has the type {numbers.dtype}, expected whole numbers")
        low, high = int(numbers.min()), int(numbers.max())
        if low < 0 or high > np.iinfo(dtype).max:
            raise InvalidInputError(
                f"column {name} contains {low if low < 0 else high}, which is outside of 0..{np.iinfo(dtype).max}"
            )
    return numbers.astype(dtype, copy=False)


def _check_kinds(table: ChunkTable) -> None:
    if int(table.kind.max()) > max(ChunkKind):
        raise InvalidInputError(f"column kind contains {int(table.kind.max())}, which is not a kind of chunk reference")
    if table.object_id is None and bool((table.kind == ChunkKind.NATIVE).any()):
        raise InvalidInputError("native chunk references need a column object_id")
    virtual = table.kind == ChunkKind.VIRTUAL
    if bool(virtual.any()) and (table.location is None or bool((table.location[virtual] < 0).any())):
        row = int(np.flatnonzero(virtual if table.location is None else virtual & (table.location < 0))[0])
        raise InvalidInputError(f"the virtual reference of chunk {table.coords[row].tolist()} has no location")
    inline = table.kind == ChunkKind.INLINE
    if bool(inline.any()) and int((table.offset[inline] + table.length[inline]).max()) > len(table.inline):
        raise InvalidInputError("offsets and lengths of inline references are outside of the inline bytes")


_SPLICE_EDITS = 64
_UINT32_END = 2**32


def overlay(*tables: ChunkTable) -> ChunkTable:
    """All rows of all tables. For equal coordinates, the later table wins. Tombstones stay."""
    return concat(tables)


def drop_tombstones(table: ChunkTable) -> ChunkTable:
    """The table without its DELETED rows."""
    deleted = table.kind == ChunkKind.DELETED
    return take(table, np.flatnonzero(~deleted)) if bool(deleted.any()) else table


def merge_edits(base: ChunkTable, edits: ChunkTable) -> ChunkTable:
    """Apply edits to the base. Edits win, and DELETED edits remove rows."""
    if len(edits) == 0:
        return base
    if len(base) == 0:
        return drop_tombstones(edits)
    if len(edits) == 1 and base.location is None and edits.location is None and base.ndim == edits.ndim:
        return _merge_one(base, edits)
    if len(edits) <= _SPLICE_EDITS and len(base) > _SPLICE_EDITS * len(edits):
        return _splice(base, edits)
    return drop_tombstones(overlay(base, edits))


def _merge_one(base: ChunkTable, edit: ChunkTable) -> ChunkTable:
    """Apply one edit to a table without virtual references. Most small commits write one chunk."""
    start, found = find_position(base, edit.coords[0].tolist())
    end = start + found
    kind = int(edit.kind[0])
    if kind == ChunkKind.DELETED:
        return take(base, np.delete(np.arange(len(base)), start)) if found else base
    offset, inline = edit.offset, base.inline
    if kind == ChunkKind.INLINE:
        if len(inline):
            offset = offset + np.uint64(len(inline))
        inline = b"".join([inline, edit.inline]) if len(inline) else edit.inline

    def put(column: Any, row: Any) -> Any:
        return np.concatenate([column[:start], row, column[end:]])

    ids, new_id = base.object_id, edit.object_id
    if ids is None and new_id is not None:
        ids = np.zeros((len(base), new_id.shape[1]), dtype=np.uint8)
    elif ids is not None and new_id is None:
        new_id = np.zeros((1, ids.shape[1]), dtype=np.uint8)
    elif ids is not None and new_id is not None and ids.shape[1] != new_id.shape[1]:
        _join_ids([base, edit])  # says what is wrong
    return ChunkTable(
        coords=put(base.coords, edit.coords),
        kind=put(base.kind, edit.kind),
        offset=put(base.offset, offset),
        length=put(base.length, edit.length),
        object_id=None if ids is None else put(ids, new_id),
        inline=inline,
    )


def _splice(base: ChunkTable, edits: ChunkTable) -> ChunkTable:
    """Apply a few edits to a long table. The slices between them are copied, without building keys."""
    tables: list[ChunkTable] = []
    start = 0
    for index, coords in enumerate(edits.coords.tolist()):
        position, found = find_position(base, coords)
        if position > start:
            tables.append(_slice(base, start, position))
        if edits.kind[index] != ChunkKind.DELETED:
            tables.append(_slice(edits, index, index + 1))
        start = position + 1 if found else position
    if start < len(base):
        tables.append(_slice(base, start, len(base)))
    return join_columns(_share_buffers(tables, base)) if tables else _slice(base, 0, 0)


def _share_buffers(tables: Sequence[ChunkTable], base: ChunkTable) -> list[ChunkTable]:
    """Slices of one table would repeat its inline bytes. Store them once, before those of the edits."""
    extra = bytearray()
    shifted: list[ChunkTable] = []
    for table in tables:
        offset = table.offset
        if table.inline is not base.inline and len(table.inline):
            offset = table.offset.copy()
            rows = np.flatnonzero(table.kind == ChunkKind.INLINE)
            for row in rows.tolist():
                data = table.row(row).data or b""
                offset[row] = len(base.inline) + len(extra)
                extra += data
        shifted.append(replace(table, offset=offset, inline=b""))
    joined = b"".join([base.inline, extra]) if extra else base.inline
    # Only the first table has the bytes, so that joining does not change offsets.
    return [replace(t, inline=joined if i == 0 else b"") for i, t in enumerate(shifted)]


def _slice(table: ChunkTable, start: int, end: int) -> ChunkTable:
    def cut(column: Any) -> Any:
        return None if column is None else column[start:end]

    return replace(
        table,
        coords=table.coords[start:end],
        kind=table.kind[start:end],
        offset=table.offset[start:end],
        length=table.length[start:end],
        object_id=cut(table.object_id),
        location=cut(table.location),
        etag=cut(table.etag),
        last_modified=cut(table.last_modified),
    )


def diff_tables(before: ChunkTable, after: ChunkTable) -> npt.NDArray[np.uint32]:
    """Coordinates whose reference was added, removed or changed, in order."""
    rows_in_after = find_rows(after, before.coords)
    rows_in_before = find_rows(before, after.coords)
    kept = np.flatnonzero(rows_in_after >= 0)
    changed = kept[~same_references(take_raw(before, kept), take_raw(after, rows_in_after[kept]))]
    coords = np.concatenate(
        [before.coords[rows_in_after < 0], before.coords[changed], after.coords[rows_in_before < 0]]
    )
    order = np.argsort(sort_keys(coords, common_radix(coords)), kind="stable")
    return coords[order]


def take_raw(table: ChunkTable, rows: npt.NDArray[np.int64]) -> ChunkTable:
    """Some rows, with the dictionaries and bytes of the whole table."""

    def pick(column: Any) -> Any:
        return None if column is None else column[rows]

    return replace(
        table,
        coords=table.coords[rows],
        kind=table.kind[rows],
        offset=table.offset[rows],
        length=table.length[rows],
        object_id=pick(table.object_id),
        location=pick(table.location),
        etag=pick(table.etag),
        last_modified=pick(table.last_modified),
    )


def same_references(a: ChunkTable, b: ChunkTable) -> npt.NDArray[np.bool_]:
    """Whether two tables of equal length have the same reference, row by row."""
    if len(a) == 0:
        return np.zeros(0, dtype=bool)
    joined = join_columns([a, b])
    count = len(a)
    pointing = (joined.kind == ChunkKind.NATIVE) | (joined.kind == ChunkKind.VIRTUAL)
    same: npt.NDArray[np.bool_] = (joined.kind[:count] == joined.kind[count:]) & (
        joined.length[:count] == joined.length[count:]
    )
    place = np.where(pointing, joined.offset, 0)
    same &= place[:count] == place[count:]
    if joined.object_id is not None:
        same &= (joined.object_id[:count] == joined.object_id[count:]).all(axis=1)
    for codes, texts in ((joined.location, joined.locations), (joined.etag, joined.etags)):
        if codes is not None:
            same &= _same_codes(codes[:count], codes[count:], texts)
    if joined.last_modified is not None:
        same &= joined.last_modified[:count] == joined.last_modified[count:]
    for row in np.flatnonzero(same & (a.kind == ChunkKind.INLINE)).tolist():
        same[row] = a.row(row).data == b.row(row).data
    return same


def _same_codes(left: Any, right: Any, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Compare texts, not codes, because a dictionary can contain a text twice."""
    same = left == right
    for row in np.flatnonzero(~same & (left >= 0) & (right >= 0)).tolist():
        same[row] = texts[left[row]] == texts[right[row]]
    result: npt.NDArray[np.bool_] = same
    return result


def shift_coords(table: ChunkTable, offset: Sequence[int], grid: Sequence[int]) -> ChunkTable:
    """Every chunk moved by an offset. Those that leave the grid are dropped."""
    moved = table.coords.astype(np.int64) + np.asarray(offset, dtype=np.int64)
    inside = rows_inside(moved, (0,) * len(grid), [min(n, _UINT32_END) for n in grid])
    rows = np.flatnonzero(inside)
    return replace(take(table, rows), coords=moved[rows].astype(np.uint32))


def map_coords(table: ChunkTable, func: Callable[[Coords], Sequence[int] | None]) -> ChunkTable:
    """Every chunk moved by a Python function (None drops it). One call per row, so not for bulk work."""
    moved = [func(tuple(coords)) for coords in table.coords.tolist()]
    rows = np.array([i for i, coords in enumerate(moved) if coords is not None], dtype=np.int64)
    kept = [list(coords) for coords in moved if coords is not None]
    if any(len(c) != table.ndim or any(not 0 <= n < _UINT32_END for n in c) for c in kept):
        raise InvalidInputError(
            f"a chunk was moved to invalid coordinates, expected {table.ndim} whole numbers of at least 0"
        )
    coords = np.array(kept, dtype=np.uint32).reshape(len(kept), table.ndim)
    return normalise(replace(take(table, rows), coords=coords))
