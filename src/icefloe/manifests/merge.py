"""What a table holds after edits: overlays, tombstones, differences and moved coordinates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.manifests.columns import concat, join_columns, normalise, take
from icefloe.manifests.keys import common_radix, find_position, find_rows, sort_keys
from icefloe.model.chunk_table import ChunkKind, ChunkTable, Coords
from icefloe.model.coordinates import rows_inside

_SPLICE_EDITS = 64
_UINT32_END = 2**32


def overlay(*tables: ChunkTable) -> ChunkTable:
    """All rows of all tables; where several have the same coordinates the later table wins. Tombstones stay."""
    return concat(tables)


def drop_tombstones(table: ChunkTable) -> ChunkTable:
    """The table without its DELETED rows."""
    deleted = table.kind == ChunkKind.DELETED
    return take(table, np.flatnonzero(~deleted)) if bool(deleted.any()) else table


def merge_edits(base: ChunkTable, edits: ChunkTable) -> ChunkTable:
    """The base after the edits: they win, and DELETED ones remove."""
    if len(edits) == 0:
        return base
    if len(base) == 0:
        return drop_tombstones(edits)
    if len(edits) <= _SPLICE_EDITS and len(base) > _SPLICE_EDITS * len(edits):
        return _splice(base, edits)
    return drop_tombstones(overlay(base, edits))


def _splice(base: ChunkTable, edits: ChunkTable) -> ChunkTable:
    """A few edits in a long table: slices between them are copied, no key is built."""
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
    """Slices of one table would repeat its inline bytes; they get them once, in front of those of the edits."""
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
    # Only the first table carries the bytes, so that joining leaves every offset as it is.
    return [replace(t, inline=joined if i == 0 else b"") for i, t in enumerate(shifted)]


def _slice(table: ChunkTable, start: int, end: int) -> ChunkTable:
    def cut(column: Any) -> Any:
        return None if column is None else column[start:end]

    return replace(
        table, coords=table.coords[start:end], kind=table.kind[start:end], offset=table.offset[start:end],
        length=table.length[start:end], object_id=cut(table.object_id), location=cut(table.location),
        etag=cut(table.etag), last_modified=cut(table.last_modified),
    )  # fmt: skip


def diff_tables(before: ChunkTable, after: ChunkTable) -> npt.NDArray[np.uint32]:
    """Coordinates whose reference was added, removed or is another one, in order."""
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
    """Rows with the dictionaries and bytes of the whole table."""

    def pick(column: Any) -> Any:
        return None if column is None else column[rows]

    return replace(
        table, coords=table.coords[rows], kind=table.kind[rows], offset=table.offset[rows],
        length=table.length[rows], object_id=pick(table.object_id), location=pick(table.location),
        etag=pick(table.etag), last_modified=pick(table.last_modified),
    )  # fmt: skip


def same_references(a: ChunkTable, b: ChunkTable) -> npt.NDArray[np.bool_]:
    """Row by row: do two tables of equal length hold the same reference?"""
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
    """Codes may differ while the texts are the same, because a dictionary can hold a text twice."""
    same = left == right
    for row in np.flatnonzero(~same & (left >= 0) & (right >= 0)).tolist():
        same[row] = texts[left[row]] == texts[right[row]]
    result: npt.NDArray[np.bool_] = same
    return result


def shift_coords(table: ChunkTable, offset: Sequence[int], grid: Sequence[int]) -> ChunkTable:
    """Every chunk moved by an offset; those that leave the grid are gone."""
    moved = table.coords.astype(np.int64) + np.asarray(offset, dtype=np.int64)
    inside = rows_inside(moved, (0,) * len(grid), [min(n, _UINT32_END) for n in grid])
    rows = np.flatnonzero(inside)
    return replace(take(table, rows), coords=moved[rows].astype(np.uint32))


def map_coords(table: ChunkTable, func: Callable[[Coords], Sequence[int] | None]) -> ChunkTable:
    """Every chunk moved by a Python function (None drops it); one call per row, so not for bulk work."""
    moved = [func(tuple(coords)) for coords in table.coords.tolist()]
    rows = np.array([i for i, coords in enumerate(moved) if coords is not None], dtype=np.int64)
    kept = [list(coords) for coords in moved if coords is not None]
    if any(len(c) != table.ndim or any(not 0 <= n < _UINT32_END for n in c) for c in kept):
        raise InvalidInputError(f"a chunk was moved to coordinates that are not {table.ndim} whole numbers from 0 on")
    coords = np.array(kept, dtype=np.uint32).reshape(len(kept), table.ndim)
    return normalise(replace(take(table, rows), coords=coords))
