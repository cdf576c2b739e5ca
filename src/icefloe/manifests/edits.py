"""The chunk edits of one array in a change set: written one by one or in columns, last write wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.ids import NodeId
from icefloe.manifests.cells import filter_box, in_box
from icefloe.manifests.columns import Found, find_in, find_row, find_rows, map_coords, overlay, shift_coords, take
from icefloe.model.chunk_table import (
    ChunkKind,
    ChunkRef,
    ChunkTable,
    ChunkTables,
    Coords,
    concat_tables,
    empty_table,
    table_from_rows,
)
from icefloe.model.snapshot import Extents

FOLD_AT = 4096
"""Single edits are kept in a dict up to this many, then become a columnar run."""

Shared: TypeAlias = tuple[ChunkTables, int]
"""The rows of an array in the columns of many arrays, and its index among them."""

DELETED = ChunkRef(ChunkKind.DELETED, 0, 0)
_REF_BYTES = 400


class _Held(NamedTuple):
    """The edits of a buffer, oldest last: single ones, sorted runs (the newest is the last), or rows among others."""

    recent: dict[Coords, ChunkRef]
    runs: tuple[ChunkTable, ...]
    shared: Shared | None


class EditBuffer:
    """Edits as a few sorted runs of geometrically growing size, and a small dict in front of them.

    Everything a buffer holds is one value that is replaced in one step, never taken out first and put back later. A
    question may bring the edits into another form, which says the same. Edits are made, and copies taken, by one thread
    at a time: the owner's lock sees to that.

    Memory is that of the columns (about 40 bytes for a native or virtual reference in two dimensions), for a moment
    twice that while the largest runs are merged. `base_box` is the part of the committed chunks that is still
    visible: everything (None) until the array is made smaller or its chunks are moved.
    """

    __slots__ = ("_held", "_recent_bytes", "base_box", "ndim")

    def __init__(self, ndim: int) -> None:
        self.ndim = ndim
        self.base_box: Extents | None = None
        self._recent_bytes = 0
        self._held = _Held({}, (), None)

    def set(self, coords: Coords, ref: ChunkRef) -> None:
        """Set one chunk."""
        recent = self._held.recent
        recent[coords] = ref
        self._recent_bytes += _REF_BYTES + (len(ref.data) if ref.data is not None else 0)
        if len(recent) >= FOLD_AT:
            self._fold()

    def set_many(self, refs: Sequence[tuple[Coords, ChunkRef]]) -> None:
        """Set chunks one after the other."""
        recent = self._held.recent
        recent.update(refs)
        self._recent_bytes += _REF_BYTES * len(refs) + sum([len(ref.data) for _, ref in refs if ref.data is not None])
        if len(recent) >= FOLD_AT:
            self._fold()

    def delete(self, coords: Coords) -> None:
        """Remove one chunk, whether it is in the base or not."""
        self.set(coords, DELETED)

    def add_table(self, table: ChunkTable) -> None:
        """Set many chunks at once; DELETED rows remove."""
        self._hold(_pushed(self._fold(), table))

    def add_shared(self, tables: ChunkTables, index: int) -> None:
        """Set the chunks of one array among many. They are extracted from the columns on first use."""
        if not any(self._held):
            self._held = _Held({}, (), (tables, index))
        else:
            self.add_table(tables.at(index))

    @property
    def loose(self) -> Mapping[Coords, ChunkRef]:
        """Single edits, if there is nothing else and none of them is a deletion."""
        held = self._held
        if held.runs or held.shared is not None:
            return {}
        return {} if any(ref.kind is ChunkKind.DELETED for ref in held.recent.values()) else held.recent

    def take_shared(self, tables: ChunkTables, index: int) -> None:
        """Hold the same edits in columns that many arrays share."""
        self._held, self._recent_bytes = _Held({}, (), (tables, index)), 0

    @property
    def shared(self) -> Shared | None:
        """Where the edits lie, if all of them are those of one array among many and the base is visible."""
        held = self._held
        return None if held.recent or held.runs or self.base_box is not None else held.shared

    def find(self, coords: Coords) -> ChunkRef | None:
        """The newest edit of a chunk, also a DELETED one. None if this change set has no edit of it."""
        held = self._held
        recent = held.recent.get(coords)
        if recent is not None:
            return recent
        for run in reversed(_runs_of(held)):
            row = find_row(run, coords)
            if row is not None:
                return run.row(row)
        return None

    def find_many(
        self, coords: npt.NDArray[np.uint32], positions: npt.NDArray[np.intp]
    ) -> tuple[list[Found], npt.NDArray[np.intp]]:
        """The newest edits of `coords[positions]`, DELETED ones too, and the positions nothing is said about."""
        found = []
        for run in reversed(self._fold()):
            if not len(positions):
                break
            here, positions = find_in(run, coords, positions)
            found.append(here)
        return found, positions

    def sees_base(self, coords: Coords) -> bool:
        """Whether an unedited chunk is looked up in the base."""
        if self.base_box is None:
            return True
        return all(first <= c < end for c, (first, end) in zip(coords, self.base_box, strict=True))

    def seeing_base(self, coords: npt.NDArray[np.uint32], positions: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """The positions whose chunks, if unedited, are looked up in the base."""
        return positions if self.base_box is None else positions[in_box(coords[positions], self.base_box)]

    def to_table(self) -> ChunkTable:
        """All edits as one table, tombstones included."""
        runs = self._fold()
        if len(runs) > 1:
            runs = (overlay(*runs),)
            self._hold(runs)
        return runs[0] if runs else empty_table(self.ndim)

    def clip(self, grid: Sequence[int]) -> None:
        """Forget every chunk outside a grid, in the edits and in the base: the array was resized."""
        self.show_only(tuple((0, int(n)) for n in grid))

    def show_only(self, box: Extents) -> None:
        """Forget every chunk outside a box, in the edits and in the base."""
        self._rewrite(lambda run: filter_box(run, box))
        self.base_box = box if self.base_box is None else _intersect(self.base_box, box)

    def drop_outside(self, grid: Sequence[int]) -> None:
        """Drop edits outside a grid."""
        box = tuple((0, int(n)) for n in grid)
        self._rewrite(lambda run: filter_box(run, box))

    def discard(self, coords: npt.NDArray[np.uint32]) -> None:
        """Drop the edits of some chunks, so that the base is visible again."""

        def without(run: ChunkTable) -> ChunkTable:
            rows = find_rows(run, coords)
            return take(run, np.delete(np.arange(len(run)), rows[rows >= 0]))

        self._rewrite(without)

    def shift(self, offset: Sequence[int], grid: Sequence[int]) -> None:
        """Move every edit by an offset. Those that leave the grid are dropped."""
        self._rewrite(lambda run: shift_coords(run, offset, grid))

    def map_coords(self, func: Callable[[Coords], Sequence[int] | None]) -> None:
        """Move every edit by a Python function; None drops it."""
        self.to_table()
        self._rewrite(lambda run: map_coords(run, func))

    def copy(self) -> EditBuffer:
        """An independent buffer with the same edits; runs are shared, they never change."""
        twin = EditBuffer(self.ndim)
        held = self._held
        twin._held = held._replace(recent=dict(held.recent))
        twin._recent_bytes = self._recent_bytes
        twin.base_box = self.base_box
        return twin

    def __len__(self) -> int:
        """The number of edited chunks."""
        held = self._held
        return len(self.to_table()) if held.runs or held.shared else len(held.recent)

    def __bool__(self) -> bool:
        return any(self._held) or self.base_box is not None

    @property
    def nbytes(self) -> int:
        """Memory held, estimated for the edits that are not columns yet."""
        return self._recent_bytes + sum(run.nbytes for run in _runs_of(self._held))

    def _hold(self, runs: tuple[ChunkTable, ...]) -> None:
        self._held, self._recent_bytes = _Held({}, runs, None), 0

    def _fold(self) -> tuple[ChunkTable, ...]:
        """All edits as runs."""
        held = self._held
        runs = _runs_of(held)
        if held.recent:
            runs = _pushed(runs, table_from_rows(list(held.recent.items()), self.ndim))
        if held.recent or held.shared is not None:
            self._hold(runs)
        return runs

    def _rewrite(self, change: Callable[[ChunkTable], ChunkTable]) -> None:
        self._hold(tuple(run for run in map(change, self._fold()) if len(run)))


def _runs_of(held: _Held) -> tuple[ChunkTable, ...]:
    """The runs, and rows that are shared with other arrays cut out of them: nothing is shared once there is a run."""
    if held.shared is None:
        return held.runs
    tables, index = held.shared
    return (tables.at(index),)


def _pushed(runs: tuple[ChunkTable, ...], run: ChunkTable) -> tuple[ChunkTable, ...]:
    """The runs and a newer one, merged with those that are less than twice its size: their number is logarithmic."""
    if len(run) == 0:
        return runs
    older = list(runs)
    while older and len(older[-1]) < 2 * len(run):
        run = overlay(older.pop(), run)
    return (*older, run)


@dataclass(frozen=True, slots=True)
class GatheredEdits:
    """The edits of many arrays: those that were written together as columns, the others one by one."""

    together: ChunkTables
    alone: Mapping[NodeId, EditBuffer]


def gather_edits(buffers: Mapping[NodeId, EditBuffer]) -> GatheredEdits:
    """Sort the edits of a change set out by how they are held; nothing is copied but what lies scattered."""
    _fold_together({node_id: buffer for node_id, buffer in buffers.items() if buffer.loose})
    alone: dict[NodeId, EditBuffer] = {}
    places: dict[int, tuple[ChunkTables, list[int]]] = {}
    for node_id, buffer in buffers.items():
        shared = buffer.shared
        # A node that gave its number up to another has its edits in columns that still name it by the old one.
        if shared is None or shared[0].nodes[shared[1]] != node_id:
            alone[node_id] = buffer
            continue
        tables, index = shared
        found = places.get(id(tables))
        if found is None:
            found = places[id(tables)] = (tables, [])
        found[1].append(index)
    parts = [tables.select(np.array(indices, dtype=np.int64)) for tables, indices in places.values()]
    return GatheredEdits(concat_tables(parts), alone)


def _fold_together(buffers: Mapping[NodeId, EditBuffer]) -> None:
    """Make the single edits of several arrays one set of columns: a table for each takes longer than its rows do."""
    if len(buffers) < 2:
        return
    width = 1 + max(buffer.ndim for buffer in buffers.values())
    # The place of the array in front keeps its rows together; zeros behind make all of them as long.
    rows = [
        ((place, *coords, *(0,) * (width - 1 - len(coords))), ref)
        for place, buffer in enumerate(buffers.values())
        for coords, ref in buffer.loose.items()
    ]
    table = table_from_rows(rows, width)
    counts = np.bincount(table.coords[:, 0]).astype(np.int64)
    ndims = np.array([buffer.ndim for buffer in buffers.values()], dtype=np.int64)
    tables = ChunkTables(list(buffers), counts, ndims, replace(table, coords=table.coords[:, 1:]))
    for place, buffer in enumerate(buffers.values()):
        buffer.take_shared(tables, place)


def _intersect(a: Extents, b: Extents) -> Extents:
    return tuple((max(x[0], y[0]), max(max(x[0], y[0]), min(x[1], y[1]))) for x, y in zip(a, b, strict=True))
