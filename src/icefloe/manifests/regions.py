"""How the edits of one large array meet its manifests: only what they touch is rewritten, cell by cell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from icefloe.ids import ObjectId
from icefloe.manifests.boxes import (
    Boxes,
    bounding_boxes,
    box_array,
    contains,
    intersect,
    overlapping_pairs,
    to_extents,
)
from icefloe.manifests.cells import (
    CellShape,
    cell_box,
    cell_shape,
    cells_meeting,
    coarsen_for,
    count_cells_meeting,
    is_sparse,
)
from icefloe.manifests.columns import Rows
from icefloe.manifests.pieces import ArrayEdits, ArrayItems, Item, PartRef, Piece, full_box
from icefloe.manifests.split import CellRows, rows_by_cell
from icefloe.model.chunk_table import ChunkTable, Coords
from icefloe.model.nodes import ArrayNode, Extents, ManifestRef

_CELLS_PER_FULL_CELL = 8
_FEW_CELLS = 64


@dataclass(frozen=True, slots=True)
class Cutting:
    """How an array is cut: into cells a splitting rule asks for, or into cells of at most `limit` chunks."""

    shape: CellShape | None
    limit: int | None

    def shape_for(self, node: ArrayNode, existing: Boxes | None = None) -> CellShape:
        if self.shape is not None:
            return self.shape
        return tuple(node.grid) if self.limit is None else cell_shape(node.grid, self.limit, existing)


@dataclass(frozen=True, slots=True)
class Regions:
    """What becomes of one array: manifests that stay, parts among them, and pieces to be written."""

    kept: tuple[ManifestRef, ...]
    linked: tuple[PartRef, ...]
    pieces: tuple[Piece, ...]


def plan_regions(node: ArrayNode, change: ArrayEdits, listed: ArrayItems, cutting: Cutting) -> Regions:
    """Group edits with the manifests they meet, so that no two boxes of the result overlap.

    Edits inside one manifest's box rewrite that manifest. Edits in new territory join the manifests of their cell, so
    that a cell fills up by appends. Whatever a group's bounding box meets joins it.
    """
    items = listed.items
    boxes = box_array([item.box for item in items], len(node.grid))
    shape = cutting.shape_for(node, boxes)
    cells: list[CellRows] = []
    if change.table is not None:
        shape, cells = cut_rows(node, change.table, shape, cutting)
    if not cells and listed.settled:
        return _regions(items, [])
    groups = _Groups(items, cells, len(node.grid))
    groups.join_edits(shape, cutting.limit)
    groups.join_overlaps()
    pieces: list[Piece] = []
    untouched: list[Item] = []
    for members, edited in groups.components():
        if len(members) == 1 and not edited and not members[0].forced:
            untouched += members
        else:
            pieces += _cut(node, members, edited, shape, cutting)
    return _regions(untouched, pieces)


def cut_rows(
    node: ArrayNode, table: ChunkTable, shape: CellShape, cutting: Cutting
) -> tuple[CellShape, list[CellRows]]:
    """The rows of a table by cells of this shape, or of a larger one where they are sparse."""
    cells = list(rows_by_cell(table, shape))
    if cutting.limit is not None and is_sparse(len(table), len(cells), cutting.limit):
        shape = coarsen_for(table, shape, cutting.limit, node.grid)
        cells = list(rows_by_cell(table, shape))
    return shape, cells


def plan_recut(node: ArrayNode, listed: ArrayItems, cutting: Cutting, shared: frozenset[ObjectId]) -> Regions:
    """Cut a whole array anew: a manifest that alone fills one cell stays, all others are rewritten cell by cell."""
    shape = cutting.shape_for(node)
    meeting: dict[Coords, list[Item]] = defaultdict(list)
    for item in listed.items:
        if not _listable(item.box, item.count, shape, cutting.limit):
            # Too sparse for cells: everything is read once and halved until it fits.
            return _regions([], [_piece(node, full_box(node), listed.items, None, cutting.limit)])
        for cell in cells_meeting(item.box, shape):
            meeting[cell].append(item)
    lonely = {id(items[0]) for items in meeting.values() if len(items) == 1}
    crossing = {id(item) for item in listed.items if count_cells_meeting(item.box, shape) > 1}
    stays = [
        item
        for item in listed.items
        if id(item) in lonely - crossing and not item.forced and item.ref.extents and item.ref.manifest_id not in shared
    ]
    staying = {id(item) for item in stays}
    pieces = [
        _piece(node, intersect(cell_box(cell, shape), full_box(node)), items, None, cutting.limit)
        for cell, items in sorted(meeting.items())
        if not all(id(item) in staying for item in items)
    ]
    return _regions(stays, pieces)


def _regions(stays: Iterable[Item], pieces: Sequence[Piece]) -> Regions:
    ordered = sorted(stays, key=lambda item: item.box)
    parts = tuple(item.part for item in ordered if item.part is not None)
    return Regions(tuple(item.ref for item in ordered), parts, tuple(pieces))


def _piece(node: ArrayNode, box: Extents, items: Iterable[Item], rows: Rows | None, limit: int | None) -> Piece:
    sources = tuple(item.source for item in sorted(items, key=lambda item: item.layer))
    return Piece(node.id, node.path, box, sources, rows, limit)


def _listable(box: Extents, count: int, shape: CellShape, limit: int | None) -> bool:
    """Whether a box has few enough cells to be cut by them; a nearly empty one is not worth it."""
    full = 1 if limit is None else -(-count // limit)
    return count_cells_meeting(box, shape) <= max(_FEW_CELLS, _CELLS_PER_FULL_CELL * full, count)


def _cut(
    node: ArrayNode, members: Sequence[Item], edited: Sequence[CellRows], shape: CellShape, cutting: Cutting
) -> list[Piece]:
    """The pieces of one group: one if it is small enough, else one for each of its cells."""
    boxes = [item.box for item in members] + [part.box for part in edited]
    array = box_array(boxes, len(node.grid))
    box = to_extents(bounding_boxes(array, np.zeros(len(boxes), dtype=np.int64), 1)[0])
    count = sum(item.count for item in members) + sum(part.count for part in edited)
    fits = cutting.limit is not None and count <= cutting.limit
    if fits or not _listable(box, count, shape, cutting.limit):
        return [_piece(node, box, members, _join_rows([part.rows for part in edited]), cutting.limit)]
    meeting: dict[Coords, list[Item]] = {part.cell: [] for part in edited}
    for item in members:
        for cell in cells_meeting(item.box, shape):
            meeting.setdefault(cell, []).append(item)
    rows = {part.cell: part.rows for part in edited}
    return [
        _piece(node, intersect(cell_box(cell, shape), box), items, rows.get(cell), cutting.limit)
        for cell, items in sorted(meeting.items())
    ]


def _join_rows(rows: Sequence[Rows]) -> Rows | None:
    if len(rows) <= 1:
        return rows[0] if rows else None
    return np.sort(np.concatenate([np.arange(r.start, r.stop) if isinstance(r, slice) else r for r in rows]))


class _Groups:
    """Union-find over the manifests of an array (first) and its edited cells (after them)."""

    def __init__(self, items: Sequence[Item], cells: Sequence[CellRows], ndim: int) -> None:
        self.items, self.cells = items, cells
        self.boxes = box_array([item.box for item in items] + [cell.box for cell in cells], ndim)
        self._parent = list(range(len(self.boxes)))

    def join_edits(self, shape: CellShape, limit: int | None) -> None:
        """Each edited cell with the manifest that holds it wholly, or else with all of its cell and all it meets."""
        count = len(self.items)
        met: dict[int, list[int]] = defaultdict(list)
        for a, b in overlapping_pairs(self.boxes).tolist():
            if a < count <= b:
                met[b].append(a)
        housemates = self._items_by_cell(shape)
        for index, cell in enumerate(self.cells, start=count):
            meets = met.get(index, [])
            if len(meets) == 1 and contains(self.items[meets[0]].box, cell.box):
                self._join(meets[0], index)
                continue
            others = housemates.get(cell.cell, [])
            total = cell.count + sum(self.items[i].count for i in others)
            for other in meets if limit is not None and total > limit else {*meets, *others}:
                self._join(other, index)

    def _items_by_cell(self, shape: CellShape) -> dict[Coords, list[int]]:
        """The manifests that lie inside one cell, by cell."""
        own = self.boxes[: len(self.items)]
        size = np.asarray(shape, dtype=np.int64)
        first, last = own[:, :, 0] // size, (own[:, :, 1] - 1) // size
        result: dict[Coords, list[int]] = defaultdict(list)
        for index in np.flatnonzero((first == last).all(axis=1)).tolist():
            result[tuple(first[index].tolist())].append(index)
        return result

    def join_overlaps(self) -> None:
        """Join groups whose bounding boxes meet until none do."""
        while True:
            roots, labels = np.unique([self._find(i) for i in range(len(self._parent))], return_inverse=True)
            pairs = overlapping_pairs(bounding_boxes(self.boxes, labels.astype(np.int64), len(roots)))
            if len(pairs) == 0:
                return
            for a, b in pairs.tolist():
                self._join(int(roots[a]), int(roots[b]))

    def components(self) -> list[tuple[list[Item], list[CellRows]]]:
        """The manifests and edited cells of each group."""
        groups: dict[int, tuple[list[Item], list[CellRows]]] = defaultdict(lambda: ([], []))
        for index in range(len(self._parent)):
            members, edited = groups[self._find(index)]
            if index < len(self.items):
                members.append(self.items[index])
            else:
                edited.append(self.cells[index - len(self.items)])
        return list(groups.values())

    def _find(self, index: int) -> int:
        while self._parent[index] != index:
            self._parent[index] = self._parent[self._parent[index]]
            index = self._parent[index]
        return index

    def _join(self, a: int, b: int) -> None:
        self._parent[self._find(a)] = self._find(b)
