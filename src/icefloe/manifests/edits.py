"""The chunk edits of one array in a change set: written one by one or in columns, last write wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.ids import NodeId
from icefloe.manifests.columns import take
from icefloe.manifests.keys import Found, find_in, find_row, find_rows
from icefloe.manifests.merge import map_coords, overlay, shift_coords
from icefloe.manifests.split import filter_box, in_box
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, Coords, empty_table, table_from_rows
from icefloe.model.chunk_tables import ChunkTables
from icefloe.model.nodes import Extents
from icefloe.model.table_joining import concat_tables

FOLD_AT = 4096
"""Single edits are kept in a dict up to this many, then become a columnar run."""

Shared: TypeAlias = tuple[ChunkTables, int]
"""The rows of an array in columns of many arrays, and its place among them."""

_DELETED = ChunkRef(ChunkKind.DELETED, 0, 0)
_REF_BYTES = 400


class EditBuffer:
    """Edits as a few sorted runs of geometrically growing size, and a small dict in front of them.

    Memory is that of the columns (about 40 bytes for a native or virtual reference in two dimensions), for a moment
    twice that while the largest runs are merged. `base_box` is the part of the committed chunks that is still
    visible: everything (None) until the array is made smaller or its chunks are moved.
    """

    __slots__ = ("_recent", "_recent_bytes", "_runs", "_shared", "base_box", "ndim")

    def __init__(self, ndim: int) -> None:
        self.ndim = ndim
        self.base_box: Extents | None = None
        self._recent: dict[Coords, ChunkRef] = {}
        self._recent_bytes = 0
        self._runs: list[ChunkTable] = []
        self._shared: Shared | None = None

    def set(self, coords: Coords, ref: ChunkRef) -> None:
        """Set one chunk."""
        self._recent[coords] = ref
        self._recent_bytes += _REF_BYTES + (len(ref.data) if ref.data is not None else 0)
        if len(self._recent) >= FOLD_AT:
            self._fold()

    def delete(self, coords: Coords) -> None:
        """Remove one chunk, whether it is in the base or not."""
        self.set(coords, _DELETED)

    def add_table(self, table: ChunkTable) -> None:
        """Set many chunks at once; DELETED rows remove."""
        self._fold()
        self._push(table)

    def add_shared(self, tables: ChunkTables, index: int) -> None:
        """Set the chunks of one array among many; they are cut out of the columns when somebody asks for them."""
        if self._shared is None and not self._runs and not self._recent:
            self._shared = (tables, index)
        else:
            self.add_table(tables.at(index))

    @property
    def loose(self) -> Mapping[Coords, ChunkRef]:
        """Single edits, if there is nothing else and none of them is a deletion."""
        if self._runs or self._shared is not None:
            return {}
        return {} if any(ref.kind is ChunkKind.DELETED for ref in self._recent.values()) else self._recent

    def take_shared(self, tables: ChunkTables, index: int) -> None:
        """Hold the same edits in columns that many arrays share."""
        self._recent, self._recent_bytes, self._shared = {}, 0, (tables, index)

    @property
    def shared(self) -> Shared | None:
        """Where the edits lie, if all of them are those of one array among many and the base is visible."""
        return None if self._recent or self._runs or self.base_box is not None else self._shared

    def find(self, coords: Coords) -> ChunkRef | None:
        """The newest edit of a chunk (DELETED ones too), or None when this change set says nothing about it."""
        recent = self._recent.get(coords)
        if recent is not None:
            return recent
        self._cut_out()
        for run in reversed(self._runs):
            row = find_row(run, coords)
            if row is not None:
                return run.row(row)
        return None

    def find_many(
        self, coords: npt.NDArray[np.uint32], positions: npt.NDArray[np.intp]
    ) -> tuple[list[Found], npt.NDArray[np.intp]]:
        """The newest edits of `coords[positions]`, DELETED ones too, and the positions nothing is said about."""
        self._fold()
        found = []
        for run in reversed(self._runs):
            if not len(positions):
                break
            here, positions = find_in(run, coords, positions)
            found.append(here)
        return found, positions

    def sees_base(self, coords: Coords) -> bool:
        """Whether a chunk this change set says nothing about is to be looked up in the base."""
        if self.base_box is None:
            return True
        return all(first <= c < end for c, (first, end) in zip(coords, self.base_box, strict=True))

    def seeing_base(self, coords: npt.NDArray[np.uint32], positions: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Those of the positions whose chunks, if this change set says nothing about them, the base has a say in."""
        return positions if self.base_box is None else positions[in_box(coords[positions], self.base_box)]

    def to_table(self) -> ChunkTable:
        """All edits as one table, tombstones included."""
        self._fold()
        if len(self._runs) > 1:
            self._runs = [overlay(*self._runs)]
        return self._runs[0] if self._runs else empty_table(self.ndim)

    def clip(self, grid: Sequence[int]) -> None:
        """Forget every chunk outside a grid, in the edits and in the base: the array was resized."""
        box = tuple((0, int(n)) for n in grid)
        self._rewrite(lambda run: filter_box(run, box))
        self.base_box = box if self.base_box is None else _intersect(self.base_box, box)

    def drop_outside(self, grid: Sequence[int]) -> None:
        """Forget edits that a grid has no place for."""
        box = tuple((0, int(n)) for n in grid)
        self._rewrite(lambda run: filter_box(run, box))

    def discard(self, coords: npt.NDArray[np.uint32]) -> None:
        """Say nothing more about some chunks: what lies below the edits shows again."""

        def without(run: ChunkTable) -> ChunkTable:
            rows = find_rows(run, coords)
            return take(run, np.delete(np.arange(len(run)), rows[rows >= 0]))

        self._rewrite(without)

    def clear_box(self, box: Extents) -> None:
        """Forget the edits inside a box."""

        def outside(run: ChunkTable) -> ChunkTable:
            return take(run, np.flatnonzero(~in_box(run.coords, box)))

        self._rewrite(outside)

    def hide_base(self) -> None:
        """Nothing of the base is visible any more; the edits are all there is."""
        self.base_box = tuple((0, 0) for _ in range(self.ndim))

    def shift(self, offset: Sequence[int], grid: Sequence[int]) -> None:
        """Move every edit by an offset; those that leave the grid are gone."""
        self._rewrite(lambda run: shift_coords(run, offset, grid))

    def map_coords(self, func: Callable[[Coords], Sequence[int] | None]) -> None:
        """Move every edit by a Python function; None drops it."""
        self.to_table()
        self._rewrite(lambda run: map_coords(run, func))

    def copy(self) -> EditBuffer:
        """An independent buffer with the same edits; runs are shared, they never change."""
        twin = EditBuffer(self.ndim)
        twin._shared = self._shared
        twin.base_box = self.base_box
        twin._recent = dict(self._recent)
        twin._recent_bytes = self._recent_bytes
        twin._runs = list(self._runs)
        return twin

    def __len__(self) -> int:
        """The number of edited chunks."""
        return len(self.to_table()) if self._runs or self._shared else len(self._recent)

    def __bool__(self) -> bool:
        return bool(self._recent or self._runs or self._shared or self.base_box is not None)

    @property
    def nbytes(self) -> int:
        """Memory held, estimated for the edits that are not columns yet."""
        self._cut_out()
        return self._recent_bytes + sum(run.nbytes for run in self._runs)

    def _cut_out(self) -> None:
        # They are the oldest: nothing is shared once there is a run.
        if self._shared is not None:
            tables, index = self._shared
            self._runs, self._shared = [tables.at(index)], None

    def _fold(self) -> None:
        self._cut_out()
        if self._recent:
            recent, self._recent, self._recent_bytes = self._recent, {}, 0
            self._push(table_from_rows(list(recent.items()), self.ndim))

    def _push(self, run: ChunkTable) -> None:
        if len(run) == 0:
            return
        self._runs.append(run)
        # Merging a run only with one less than twice its size keeps the number of runs logarithmic.
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            newer, older = self._runs.pop(), self._runs.pop()
            self._runs.append(overlay(older, newer))

    def _rewrite(self, change: Callable[[ChunkTable], ChunkTable]) -> None:
        self._fold()
        self._runs = [run for run in map(change, self._runs) if len(run)]


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
