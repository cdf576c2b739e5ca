"""Chunk grids: coordinates of chunks, boxes, and tables of references built from columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.manifests.chunk_columns import take
from icefloe.model.chunk_table import ChunkKind, ChunkTable, empty_table
from icefloe.model.zarr_document import ChunkLengths

ChunkRegion = tuple[slice, ...]

CONTIGUOUS_CHUNK_BYTES = 64 << 20


def cut_cells(cells: int, chunk: int) -> tuple[int, ...]:
    """The lengths of chunks that begin at the first cell and end at the last one. The last one may be shorter."""
    whole, rest = divmod(cells, max(1, chunk))
    return (max(1, chunk),) * whole + ((rest,) if rest else ())


def grid_shape(shape: Sequence[int], chunks: Sequence[int]) -> tuple[int, ...]:
    """Number of chunks per dimension."""
    return tuple(-(-n // max(1, c)) if n else 0 for n, c in zip(shape, chunks, strict=True))


def all_coords(grid: Sequence[int]) -> npt.NDArray[np.uint32]:
    """Every chunk coordinate of a grid, in lexicographic order."""
    if not grid:
        return np.zeros((1, 0), dtype=np.uint32)
    return np.indices(tuple(grid), dtype=np.uint32).reshape(len(grid), -1).T.copy()


def virtual_table(
    coords: npt.NDArray[np.unsignedinteger],
    offsets: npt.NDArray[np.integer],
    lengths: npt.NDArray[np.integer],
    location: str,
    *,
    etag: str | None = None,
    last_modified: int | None = None,
) -> ChunkTable:
    """A table of references into one file, sorted."""
    count = len(offsets)
    order = lexicographic_order(coords)
    return ChunkTable(
        coords=np.ascontiguousarray(coords[order], dtype=np.uint32),
        kind=np.full(count, ChunkKind.VIRTUAL, dtype=np.uint8),
        offset=offsets[order].astype(np.uint64),
        length=lengths[order].astype(np.uint64),
        location=np.zeros(count, dtype=np.int32),
        locations=[location],
        etag=np.zeros(count, dtype=np.int32) if etag else None,
        etags=[etag] if etag else [],
        last_modified=np.full(count, last_modified, dtype=np.uint32) if last_modified else None,
    )


def lexicographic_order(coords: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.intp]:
    """The permutation that sorts rows of coordinates."""
    if coords.shape[1] == 0:
        return np.arange(len(coords))
    return np.lexsort(coords.T[::-1])


def shift_table(table: ChunkTable, chunk_offset: Sequence[int]) -> ChunkTable:
    """The same references, moved along the grid."""
    if not any(chunk_offset):
        return table
    moved = table.coords + np.asarray(chunk_offset, dtype=np.uint32)
    return _with_columns(table, moved)


def expand_table(table: ChunkTable) -> ChunkTable:
    """The same references with a new first dimension, at index 0."""
    return _with_columns(table, np.insert(table.coords, 0, 0, axis=1))


def _with_columns(table: ChunkTable, coords: npt.NDArray[np.uint32]) -> ChunkTable:
    return ChunkTable(
        coords,
        table.kind,
        table.offset,
        table.length,
        table.object_id,
        table.location,
        table.locations,
        table.etag,
        table.etags,
        table.last_modified,
        table.inline,
    )


def concatenate_tables(tables: Sequence[ChunkTable], ndim: int) -> ChunkTable:
    """Join tables into one sorted table. A chunk in two tables is an error."""
    tables = [t for t in tables if len(t)]
    if not tables:
        return empty_table(ndim)
    if len(tables) == 1:
        return tables[0]
    if any(t.object_id is not None for t in tables):
        raise InvalidInputError("tables of sources can only contain virtual and inline references")
    coords = np.concatenate([t.coords for t in tables])
    order = lexicographic_order(coords)
    coords = coords[order]
    clash = np.flatnonzero((coords[1:] == coords[:-1]).all(axis=1))
    if clash.size:
        raise InvalidInputError(
            f"chunk {tuple(int(c) for c in coords[clash[0]])} comes from two sources", coords=coords[clash[0]].tolist()
        )
    locations, location = _merge_dictionary([(t.locations, t.location, len(t)) for t in tables])
    etags, etag = _merge_dictionary([(t.etags, t.etag, len(t)) for t in tables])
    modified = None
    if any(t.last_modified is not None for t in tables):
        columns = [np.zeros(len(t), np.uint32) if t.last_modified is None else t.last_modified for t in tables]
        modified = np.concatenate(columns)[order]
    starts = np.cumsum([0] + [len(t.inline) for t in tables[:-1]])
    offset = np.concatenate(
        [
            t.offset + np.where(t.kind == ChunkKind.INLINE, np.uint64(start), np.uint64(0))
            for t, start in zip(tables, starts, strict=True)
        ]
    )
    return ChunkTable(
        coords=coords,
        kind=np.concatenate([t.kind for t in tables])[order],
        offset=offset[order],
        length=np.concatenate([t.length for t in tables])[order],
        location=None if location is None else location[order],
        locations=locations,
        etag=None if etag is None else etag[order],
        etags=etags,
        last_modified=modified,
        inline=b"".join(bytes(t.inline) for t in tables),
    )


def _merge_dictionary(
    parts: Sequence[tuple[Sequence[str], npt.NDArray[np.int32] | None, int]],
) -> tuple[list[str], npt.NDArray[np.int32] | None]:
    words: dict[str, int] = {}
    columns: list[npt.NDArray[np.int32]] = []
    for entries, column, count in parts:
        if column is None:
            columns.append(np.full(count, -1, dtype=np.int32))
            continue
        codes = np.array([words.setdefault(word, len(words)) for word in entries] + [-1], dtype=np.int32)
        columns.append(codes[column])
    return list(words), np.concatenate(columns) if words else None


def chunk_region(coords: Sequence[int], chunks: Sequence[int], shape: Sequence[int]) -> ChunkRegion:
    """The cells of one chunk of a regular grid, clipped to the array."""
    return tuple(slice(int(i) * c, min((int(i) + 1) * c, n)) for i, c, n in zip(coords, chunks, shape, strict=True))


def region_shape(region: ChunkRegion) -> tuple[int, ...]:
    """Lengths of a region with explicit bounds."""
    return tuple(s.stop - s.start for s in region)


def contiguous_references(
    shape: Sequence[int], chunks: Sequence[int], itemsize: int, begin: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Coordinates, offsets and lengths of the full chunks of row-major bytes, and coordinates of partial chunks.

    Chunks must be contiguous: complete in every dimension after the first that is longer than one.
    """
    shape, chunks = tuple(shape), tuple(chunks)
    if not is_contiguous_chunking(shape, chunks):
        raise InvalidInputError(f"chunks {chunks} of an array of shape {shape} are not contiguous in the file")
    coords = all_coords(grid_shape(shape, chunks))
    first = coords.astype(np.int64) * np.asarray(chunks, dtype=np.int64)
    full = (first + np.asarray(chunks) <= np.asarray(shape)).all(axis=1)
    strides = np.ones(len(shape), dtype=np.int64)
    strides[:-1] = np.cumprod(np.asarray(shape[:0:-1], dtype=np.int64))[::-1]
    offsets = begin + (first @ strides) * itemsize
    length = int(np.prod(chunks, dtype=np.int64)) * itemsize
    lengths = np.full(len(coords), length, dtype=np.int64)
    return coords[full], offsets[full], lengths[full], coords[~full]


def is_contiguous_chunking(shape: Sequence[int], chunks: Sequence[int]) -> bool:
    """Whether every chunk of row-major values is contiguous."""
    cut = False
    for length, chunk in zip(reversed(shape), reversed(chunks), strict=True):
        if cut and chunk != 1:
            return False
        cut = cut or chunk != length
    return True


def contiguous_chunks(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """One chunk, or contiguous chunks along the first dimensions if one would be too large."""
    chunks = [max(1, n) for n in shape]
    for axis in range(len(chunks)):
        inner = int(np.prod(chunks[axis + 1 :], dtype=np.int64)) * itemsize
        if chunks[axis] * inner <= CONTIGUOUS_CHUNK_BYTES:
            break
        wanted = max(1, CONTIGUOUS_CHUNK_BYTES // inner)
        chunks[axis] = next(c for c in range(wanted, 0, -1) if shape[axis] % c == 0)
        if chunks[axis] > 1:
            break
    assert is_contiguous_chunking(shape, chunks) or 0 in shape
    return tuple(chunks)


Index: TypeAlias = tuple[int, ...]
"""The position of chunks along the joined dimensions of an array."""


def cover(positions: Iterable[Index]) -> list[tuple[tuple[int, int], ...]]:
    """Return boxes, [first, end) by dimension, that contain exactly these positions."""
    rows: dict[Index, list[int]] = {}
    for position in sorted(positions):
        if not position:
            return [()]
        rows.setdefault(position[:-1], []).append(position[-1])
    found: list[tuple[tuple[int, int], ...]] = []
    for outer, numbers in rows.items():
        prefix = tuple((i, i + 1) for i in outer)
        breaks = [k for k in range(1, len(numbers)) if numbers[k] != numbers[k - 1] + 1]
        for first, end in itertools.pairwise([0, *breaks, len(numbers)]):
            found.append((*prefix, (numbers[first], numbers[end - 1] + 1)))
    return found


_MOST_BOXES = 32


def grid_boxes(
    positions: Iterable[Index], axes: Sequence[int], grid: Sequence[int]
) -> list[tuple[tuple[int, int], ...]]:
    """Return boxes of a chunk grid that contain positions along some axes. Many small boxes become one large box."""
    limits = [grid[axis] for axis in axes]
    inside = [p for p in positions if all(i < n for i, n in zip(p, limits, strict=True))]
    boxes = cover(inside) if inside else []
    if len(boxes) > _MOST_BOXES:
        bounds = np.array(inside)
        boxes = [tuple(zip(bounds.min(axis=0).tolist(), (bounds.max(axis=0) + 1).tolist(), strict=True))]
    found = []
    for box in boxes:
        joined = dict(zip(axes, box, strict=True))
        found.append(tuple(joined.get(axis, (0, count)) for axis, count in enumerate(grid)))
    return found


def _numbers(coords: npt.NDArray[Any], axes: Sequence[int], grid: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return one number for the position of each row along the joined dimensions."""
    number = np.zeros(len(coords), dtype=np.int64)
    for axis in axes:
        number = number * grid[axis] + coords[:, axis]
    return number


def find_rows_at(
    table: ChunkTable, axes: Sequence[int], positions: Iterable[Index], grid: Sequence[int]
) -> npt.NDArray[np.intp]:
    """Return the rows of a table at positions along some axes."""
    limits = [grid[axis] for axis in axes]
    inside = [p for p in positions if all(i < n for i, n in zip(p, limits, strict=True))]
    wanted = np.array(inside, dtype=np.int64).reshape(len(inside), len(axes))
    numbers = _numbers(wanted, range(len(axes)), limits)
    return np.flatnonzero(np.isin(_numbers(table.coords, axes, grid), numbers))


def move_rows(
    table: ChunkTable, axes: Sequence[int], moved: Mapping[Index, Index], grid: Sequence[int]
) -> ChunkTable | None:
    """Return the references at old positions along some axes, at their new positions."""
    if not moved:
        return None
    limits = [grid[axis] for axis in axes]
    pairs = sorted((old, new) for new, old in moved.items())
    old = np.array([o for o, _ in pairs], dtype=np.int64).reshape(len(pairs), len(axes))
    new = np.array([n for _, n in pairs], dtype=np.int64).reshape(len(pairs), len(axes))
    sources = _numbers(old, range(len(axes)), limits)
    numbers = _numbers(table.coords, axes, grid)
    rows = np.flatnonzero(np.isin(numbers, sources))
    if not len(rows):
        return None
    chosen = take(table, rows)
    coords = chosen.coords.copy()
    place = np.searchsorted(sources, numbers[rows])
    for column, axis in enumerate(axes):
        coords[:, axis] = new[place, column]
    order = np.lexsort(coords.T[::-1])
    return take(replace(chosen, coords=coords), order)


Recipe: TypeAlias = tuple[tuple[Any, ...], ...]
"""The cells of a chunk: versions of sources, their variables, where they begin in the chunk, and its lengths."""


@dataclass(frozen=True, slots=True)
class SourceBox:
    """The cells of a source in an array, along its joined dimensions."""

    url: str
    version: tuple[Any, ...]
    variable: str
    start: tuple[int, ...]
    size: tuple[int, ...]
    first: tuple[int, ...] = ()
    """The first of these cells in the source. Empty if it is the first cell of the source."""

    @property
    def origin(self) -> tuple[int, ...]:
        """Where the first cell of the source is, or would be."""
        return tuple(s - f for s, f in zip(self.start, self.first, strict=True)) if self.first else self.start

    def holds(self, other: SourceBox) -> bool:
        """Whether it has all cells of the source that another box has."""
        return all(
            s - o <= t - p and t - p + m <= s - o + n
            for s, o, n, t, p, m in zip(
                self.start, self.origin, self.size, other.start, other.origin, other.size, strict=True
            )
        )

    def positions(self, grid: Sequence[ChunkLengths]) -> Iterable[Index]:
        """The chunks that have cells of the source."""
        if 0 in self.size:
            return ()
        ranges = [
            range(lengths.index(first), lengths.index(first + size - 1) + 1)
            for first, size, lengths in zip(self.start, self.size, grid, strict=True)
        ]
        return itertools.product(*ranges)


def find_recipes(boxes: Iterable[SourceBox], grid: Sequence[ChunkLengths]) -> dict[Index, Recipe]:
    """Return what each chunk consists of, by its position along the joined dimensions."""
    cells: dict[Index, list[tuple[Any, ...]]] = {}
    for box in boxes:
        for position in box.positions(grid):
            lengths = tuple(each.length(i) for each, i in zip(grid, position, strict=True))
            relative = tuple(first - each.start(i) for first, each, i in zip(box.start, grid, position, strict=True))
            if box.first:
                # Parts of one source are told apart by their cells in the chunk, and where these are in the source.
                origin = tuple(r - f for r, f in zip(relative, box.first, strict=True))
                ends = tuple(min(r + n, c) for r, n, c in zip(relative, box.size, lengths, strict=True))
                cells.setdefault(position, []).append((box.version, box.variable, relative, lengths, ends, origin))
            else:
                cells.setdefault(position, []).append((box.version, box.variable, relative, lengths))
    return {position: tuple(sorted(each, key=lambda cell: cell[2])) for position, each in cells.items()}


@dataclass(frozen=True, slots=True)
class LevelGrids:
    """The chunk grids of an array and of its overviews. Level 0 is the array, and every level halves two dimensions.

    The chunks of the overviews have one length along these dimensions, the longest of the array. Along the others they
    have the lengths of the array.
    """

    cells: tuple[int, ...]
    """The shape of the array."""
    grid: tuple[ChunkLengths, ...]
    """The chunk lengths of the array."""
    axes: tuple[int, int]
    """The dimensions that are halved."""

    @property
    def is_regular(self) -> bool:
        """Whether all chunks of the array have one shape."""
        return all(each.is_regular for each in self.grid)

    def shape(self, level: int) -> tuple[int, ...]:
        """The number of cells of a level along each dimension."""
        return tuple(-(-n // (1 << level)) if axis in self.axes else n for axis, n in enumerate(self.cells))

    def chunks(self, level: int) -> tuple[ChunkLengths, ...]:
        """The chunk lengths of a level."""
        if not level:
            return self.grid
        return tuple(ChunkLengths(g.longest) if axis in self.axes else g for axis, g in enumerate(self.grid))

    def counts(self, level: int) -> tuple[int, ...]:
        """The number of chunks of a level along each dimension."""
        return tuple(each.count(n) for each, n in zip(self.chunks(level), self.shape(level), strict=True))

    def region(self, level: int, coords: Sequence[int]) -> ChunkRegion:
        """The cells of a chunk of a level."""
        found = zip(coords, self.chunks(level), self.shape(level), strict=True)
        return tuple(slice(each.start(i), min(each.start(i + 1), n)) for i, each, n in found)

    def above(self, changed: npt.NDArray[np.int64], level: int) -> npt.NDArray[np.int64]:
        """The chunks of a level that depend on chunks of the array."""
        first, last = changed.copy(), changed.copy()
        for axis in self.axes:
            lengths, n = self.grid[axis], self.cells[axis]
            ends = np.minimum(lengths.starts_of(changed[:, axis] + 1), n)
            first[:, axis] = (lengths.starts_of(changed[:, axis]) >> level) // lengths.longest
            last[:, axis] = ((ends - 1) >> level) // lengths.longest
        if not len(changed):
            return changed
        # In a variable grid, the cells of a chunk can be in several chunks of the level.
        steps = all_coords(((last - first).max(axis=0) + 1).tolist()).astype(np.int64)
        every = (first[:, np.newaxis] + steps).reshape(-1, changed.shape[1])
        return np.unique(every[(every <= np.repeat(last, len(steps), axis=0)).all(axis=1)], axis=0)

    def first_new(self, before: Sequence[ChunkLengths], shape: Sequence[int]) -> list[int] | None:
        """The first chunk of the array along each dimension that has other cells than before.

        None if the overviews cannot keep any chunk.
        """
        found = []
        for axis, (old, new, n, count) in enumerate(zip(before, self.grid, shape, self.counts(0), strict=True)):
            found.append(count)
            if old == new:
                continue
            was, now = old.of(n), new.of(n)
            differ = [index for index, pair in enumerate(zip(was, now, strict=False)) if pair[0] != pair[1]]
            if (differ and axis in self.axes) or len(now) < len(was) or old.is_regular != new.is_regular:
                return None
            if differ:
                found[-1] = differ[0]
        return found
