"""Boxes of the chunk grid, cells of large arrays, and how edits are merged into the manifests that they overlap."""

from __future__ import annotations

import itertools
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.ids import NodeId, ObjectId
from icefloe.manifests.chunk_columns import Rows, common_radix, sort_keys, take
from icefloe.model.chunk_table import ChunkTable, ChunkTables, Coords, batches_up_to, highest, lowest, rows_inside
from icefloe.model.manifest_config import ManifestConfig
from icefloe.model.snapshot import ArrayNode, Extents, ManifestFileInfo, ManifestRef

Boxes = npt.NDArray[np.int64]
"""int64[n, ndim, 2], [first, end) per dimension."""

_BLOCK = 1 << 20


def bounding_box(coords: npt.NDArray[np.uint32]) -> Extents:
    """The smallest box around some chunks. There must be at least one."""
    return tuple((first, last + 1) for first, last in zip(lowest(coords), highest(coords), strict=True))


def box_array(boxes: Sequence[Extents], ndim: int) -> Boxes:
    """Extents as one array."""
    return np.array(boxes, dtype=np.int64).reshape(len(boxes), ndim, 2)


def to_extents(box: npt.NDArray[np.int64]) -> Extents:
    """One row of a box array as extents."""
    return tuple((int(a), int(b)) for a, b in box)


def intersect(a: Extents, b: Extents) -> Extents:
    """The overlap of two boxes. first = end if they do not overlap."""
    return tuple((max(x[0], y[0]), max(max(x[0], y[0]), min(x[1], y[1]))) for x, y in zip(a, b, strict=True))


def volume(box: Extents) -> int:
    """The number of chunks in a box. A box without dimensions contains one."""
    return math.prod(end - first for first, end in box)


def contains(outer: Extents, inner: Extents) -> bool:
    """Whether a box is completely inside of another."""
    return all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=True))


def overlapping_pairs(boxes: Boxes) -> npt.NDArray[np.int64]:
    """All pairs of boxes that share a chunk, int64[m, 2]. Sweeps along the axis that separates most boxes."""
    count, ndim, _ = boxes.shape
    if count < 2:
        return np.empty((0, 2), dtype=np.int64)
    if ndim == 0:
        return np.stack(np.triu_indices(count, k=1), axis=1).astype(np.int64)
    alive = np.flatnonzero((boxes[:, :, 0] < boxes[:, :, 1]).all(axis=1))
    sweeps = [_sweep(boxes[alive, axis]) for axis in range(ndim)]
    order, until = min(sweeps, key=lambda sweep: int((sweep[1] - np.arange(len(alive)) - 1).sum()))
    order = alive[order]
    candidates = until - np.arange(len(order)) - 1
    found: list[npt.NDArray[np.int64]] = []
    for first, last in batches_up_to(_BLOCK, np.cumsum(candidates)):
        sizes = candidates[first:last]
        left = np.repeat(np.arange(first, last), sizes)
        right = left + 1 + np.arange(len(left)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        a, b = boxes[order[left]], boxes[order[right]]
        meet = ((a[:, :, 0] < b[:, :, 1]) & (b[:, :, 0] < a[:, :, 1])).all(axis=1)
        found.append(np.stack([order[left[meet]], order[right[meet]]], axis=1))
    return np.sort(np.concatenate(found), axis=1) if found else np.empty((0, 2), dtype=np.int64)


def _sweep(spans: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Spans in order of their start, and for each the number of spans that start before it ends."""
    order = np.argsort(spans[:, 0], kind="stable")
    return order, np.searchsorted(spans[order, 0], spans[order, 1], side="left")


def bounding_boxes(boxes: Boxes, labels: npt.NDArray[np.int64], count: int) -> Boxes:
    """The bounding box of the boxes with each label."""
    bounds = np.empty((count, boxes.shape[1], 2), dtype=np.int64)
    bounds[:, :, 0], bounds[:, :, 1] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    np.minimum.at(bounds[:, :, 0], labels, boxes[:, :, 0])
    np.maximum.at(bounds[:, :, 1], labels, boxes[:, :, 1])
    return bounds


def filled_boxes(coords: npt.NDArray[np.uint32], most: int) -> tuple[Extents, ...] | None:
    """The boxes that some chunks fill without gaps, in order. None if that needs more than `most` of them.

    The rows of `coords` are unique and in lexicographic order. Rows become runs along the last axis. Runs that are
    equal and adjacent become boxes, axis by axis.
    """
    count, ndim = coords.shape
    if count == 0:
        return ()
    whole = bounding_box(coords)
    if volume(whole) == count:
        return (whole,)
    starts = np.ones(count, dtype=np.bool_)
    starts[1:] = np.diff(coords[:, -1].astype(np.int64)) != 1
    for axis in range(ndim - 1):
        starts[1:] |= coords[1:, axis] != coords[:-1, axis]
    first = np.flatnonzero(starts)
    del starts
    if len(first) > count // _LEAST_RUN:
        return None
    boxes = np.empty((len(first), ndim, 2), dtype=np.int64)
    boxes[:, :, 0] = coords[first]
    boxes[:, :, 1] = coords[np.append(first[1:], count) - 1]
    boxes[:, :, 1] += 1
    for axis in range(ndim - 2, -1, -1):
        boxes = _join_along(boxes, axis)
    if len(boxes) > most:
        return None
    return tuple(sorted(map(to_extents, boxes)))


_LEAST_RUN = 4
"""Chunks that are written in shorter runs than this are not looked at as boxes."""


def _join_along(boxes: Boxes, axis: int) -> Boxes:
    """Join boxes that touch each other along an axis and are equal along the others."""
    others = [other for other in range(boxes.shape[1]) if other != axis]
    keys = [boxes[:, axis, 0], *(boxes[:, other, side] for other in reversed(others) for side in (1, 0))]
    boxes = boxes[np.lexsort(keys)]
    joined = boxes[1:, axis, 0] == boxes[:-1, axis, 1]
    joined &= (boxes[1:, others] == boxes[:-1, others]).all(axis=(1, 2))
    first = np.flatnonzero(np.concatenate([[True], ~joined]))
    result = boxes[first].copy()
    result[:, axis, 1] = boxes[np.append(first[1:], len(boxes)) - 1, axis, 1]
    return result


def join_boxes(boxes: Sequence[Extents]) -> tuple[Extents, ...]:
    """The same chunks in fewer boxes: boxes that touch each other along one axis and are equal along the others.

    The boxes of one array have the same rank. The parts of a distributed write mostly become one box.
    """
    if len(boxes) < 2 or not boxes[0]:
        return tuple(boxes[:1])
    joined = box_array(boxes, len(boxes[0]))
    for axis in reversed(range(joined.shape[1])):
        joined = _join_along(joined, axis)
    return tuple(sorted(map(to_extents, joined)))


def in_boxes(coords: npt.NDArray[np.uint32], boxes: Sequence[Extents]) -> npt.NDArray[np.bool_]:
    """Which coordinates are inside of at least one box. The rows of `coords` are in lexicographic order."""
    inside = np.zeros(len(coords), dtype=np.bool_)
    for box in join_boxes(boxes):
        first, end = 0, len(coords)
        for axis, (low, high) in enumerate(box):
            # Rows are in order, so that a box concerns a few neighbouring ones.
            column = coords[first:end, axis]
            first, end = first + int(np.searchsorted(column, low)), first + int(np.searchsorted(column, high))
            if high - low > 1:
                break
        inside[first:end] |= in_box(coords[first:end], box)
    return inside


SLAB_MANIFESTS = 64
"""Manifests that are in memory together where references of an array are read one part after the other."""


def plan_slabs(grid: Sequence[int], boxes: Boxes, most: int) -> list[Extents]:
    """Divide a chunk grid into parts that meet few manifests each, so that all references can be read in little memory.

    The parts follow each other in the order of chunks. They are cut along the first axis, where manifests begin and
    end. A part that is one chunk thick is cut along the next axis. A part that cannot be cut meets more manifests.
    """
    return list(_cut_slabs(tuple((0, n) for n in grid), boxes, most, 0))


def _cut_slabs(box: Extents, boxes: Boxes, most: int, axis: int) -> Iterator[Extents]:
    if len(boxes) <= most or axis == len(box):
        yield box
        return
    low, end = box[axis]
    starts, ends = np.sort(boxes[:, axis, 0]), np.sort(boxes[:, axis, 1])
    cuts = np.unique(np.clip(np.concatenate([starts, ends, [end]]), low, end))
    while low < end:
        # The manifests in front are done. The part may end where one more than `most` of the others have begun.
        until = int(np.searchsorted(ends, low, side="right")) + most
        wanted = starts[until] if until < len(starts) else end
        following = int(np.searchsorted(cuts, low, side="right"))
        high = int(cuts[max(following, int(np.searchsorted(cuts, wanted, side="right")) - 1)])
        part = (*box[:axis], (low, high), *box[axis + 1 :])
        if high - low == 1:
            inside = (boxes[:, axis, 0] < high) & (boxes[:, axis, 1] > low)
            yield from _cut_slabs(part, boxes[inside], most, axis + 1)
        else:
            yield part
        low = high


def filter_box(table: ChunkTable, extents: Extents) -> ChunkTable:
    """The rows inside of a box. The empty box of formats without extents contains everything."""
    if not extents or len(table) == 0:
        return table
    start, stop = _first_axis_range(table, extents[0])
    inside = in_box(table.coords[start:stop], extents)
    if bool(inside.all()):
        return table if stop - start == len(table) else take(table, slice(start, stop))
    return take(table, np.flatnonzero(inside) + start)


def in_box(coords: npt.NDArray[np.uint32], box: Extents) -> npt.NDArray[np.bool_]:
    """Which coordinates are inside of a box."""
    return rows_inside(coords, [first for first, _ in box], [end for _, end in box])


def _first_axis_range(table: ChunkTable, span: tuple[int, int]) -> tuple[int, int]:
    column = table.coords[:, 0]
    if span[0] <= int(column[0]) and int(column[-1]) < span[1]:
        return 0, len(table)
    start, stop = np.searchsorted(column, np.array(span))
    return int(start), int(stop)


_KEYS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class CellRows:
    """The rows of a table in one cell, and their bounding box."""

    cell: Coords
    rows: Rows
    box: Extents
    count: int


def rows_by_cell(table: ChunkTable, cell_shape: Sequence[int]) -> Iterator[CellRows]:
    """The non-empty cells of a table, in order. The rows of a cell are a slice if they are consecutive."""
    if len(table) == 0:
        return
    if table.ndim == 0:
        yield CellRows((), slice(0, len(table)), (), len(table))
        return
    shape = np.asarray(cell_shape, dtype=np.uint32)
    order = None
    starts = _cell_starts(table.coords, shape)
    if starts is None:
        keys = _cell_keys(table.coords, shape, np.asarray(highest(table.coords)) // shape + 1)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        starts = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist()]
        del keys
    for start, end in itertools.pairwise([*starts, len(table)]):
        rows: Rows = slice(start, end) if order is None else order[start:end]
        inside = table.coords[rows]
        box = tuple((a, b + 1) for a, b in zip(lowest(inside), highest(inside), strict=True))
        yield CellRows(tuple((inside[0] // shape).tolist()), rows, box, end - start)


def _cell_keys(coords: npt.NDArray[np.uint32], shape: npt.NDArray[np.uint32], grid: npt.NDArray[Any]) -> Any:
    """A key for each row that sorts like its cell, in a grid of so many cells."""
    radix = tuple(grid.tolist())
    return sort_keys(coords // shape, radix if math.prod(radix) <= 2**64 else None)


def _cell_starts(coords: npt.NDArray[np.uint32], shape: npt.NDArray[np.uint32]) -> list[int] | None:
    """The first row of each cell, if the rows of every cell are consecutive. Some rows are looked at at a time."""
    grid = np.asarray(highest(coords)) // shape + 1
    starts, last = [0], None
    for first in range(0, len(coords), _KEYS_AT_ONCE):
        keys = _cell_keys(coords[first : first + _KEYS_AT_ONCE], shape, grid)
        if (last is not None and keys[0] < last) or not bool((keys[1:] >= keys[:-1]).all()):
            return None
        if last is not None and keys[0] != last:
            starts.append(first)
        starts += (np.flatnonzero(keys[1:] != keys[:-1]) + (first + 1)).tolist()
        last = keys[-1]
    return starts


def halve(table: ChunkTable, limit: int) -> Iterator[ChunkTable]:
    """Parts of at most `limit` rows whose boxes do not overlap, by repeated cuts along the longest side."""
    if len(table) <= limit:
        yield table
        return
    extents = table.extents()
    axis = max(range(table.ndim), key=lambda d: extents[d][1] - extents[d][0])
    values = table.coords[:, axis]
    middle = max(int(np.partition(values, len(values) // 2)[len(values) // 2]), extents[axis][0] + 1)
    upper: npt.NDArray[np.bool_] = values >= middle
    yield from halve(take(table, np.flatnonzero(~upper)), limit)
    yield from halve(take(table, np.flatnonzero(upper)), limit)


@dataclass(frozen=True, slots=True)
class PartRef:
    """A manifest file that a task of a distributed write has written, to be linked into the snapshot."""

    manifest_id: ObjectId
    node_id: NodeId
    extents: Extents
    count: int
    size_bytes: int
    visible: Extents | None = None
    """The part that is left after the array became smaller. None for all of it."""
    manifest_count: int | None = None
    """The references of all arrays in the file. None if it has only those of this part."""

    @property
    def box(self) -> Extents:
        """The box of the grid that it covers."""
        return self.extents if self.visible is None else intersect(self.extents, self.visible)

    def clipped(self, box: Extents) -> PartRef:
        """The same part, limited to a box."""
        return replace(self, visible=box if self.visible is None else intersect(self.visible, box))

    @property
    def info(self) -> ManifestFileInfo:
        total = self.count if self.manifest_count is None else self.manifest_count
        return ManifestFileInfo(self.manifest_id, self.size_bytes, total)


@dataclass(frozen=True, slots=True)
class ClearedChunks:
    """Chunks that a task of a distributed write set to fill values. They are in no manifest."""

    extents: Extents
    count: int
    packed: bytes = field(repr=False)
    """The differences of their sorted coordinates, compressed. Repeating patterns take a few bytes."""

    @classmethod
    def of(cls, coords: npt.NDArray[np.uint32]) -> ClearedChunks:
        """Create the value from sorted coordinates. There must be at least one chunk."""
        steps = np.diff(coords.astype(np.int64), axis=0, prepend=0)
        return cls(bounding_box(coords), len(coords), zlib.compress(steps.astype("<i8").tobytes()))

    def coords(self) -> npt.NDArray[np.uint32]:
        """Their coordinates."""
        steps = np.frombuffer(zlib.decompress(self.packed), dtype="<i8").reshape(self.count, len(self.extents))
        return np.cumsum(steps, axis=0).astype(np.uint32)


@dataclass(frozen=True, slots=True)
class ArrayEdits:
    """The edits of a change set to the chunks of one array. Parts win over the base, `table` wins over both.

    `base_box` is the part of the base that is still visible, None for all of it.
    """

    table: ChunkTable | None = None
    parts: tuple[PartRef, ...] = ()
    base_box: Extents | None = None

    def has_changes(self) -> bool:
        return bool(self.parts) or self.base_box is not None or (self.table is not None and len(self.table) > 0)


@dataclass(frozen=True, slots=True, eq=False)
class BulkEdits(Mapping[NodeId, ArrayEdits]):
    """Edits by array. `fresh` are arrays without manifests and without deletions, in common columns.

    No array is in both. A plan and its builder treat the fresh arrays of a manifest as one.
    """

    arrays: Mapping[NodeId, ArrayEdits]
    fresh: ChunkTables

    def __getitem__(self, node_id: NodeId) -> ArrayEdits:
        found = self.arrays.get(node_id)
        return ArrayEdits(self.fresh[node_id]) if found is None else found

    def __iter__(self) -> Iterator[NodeId]:
        yield from self.arrays
        yield from self.fresh

    def __len__(self) -> int:
        return len(self.arrays) + len(self.fresh)


@dataclass(frozen=True, slots=True)
class ManifestSource:
    """A manifest with references of an array, and the box that it covers."""

    manifest_id: ObjectId
    extents: Extents


@dataclass(frozen=True, slots=True)
class OutputSlice:
    """References of one array that are written together: those of the sources inside of the box, then edits.

    Later sources win. With a limit, they are split into several manifests if there are more.
    """

    node_id: NodeId
    path: str
    box: Extents
    sources: tuple[ManifestSource, ...] = ()
    rows: Rows | None = field(default=None, repr=False, compare=False)
    limit: int | None = None

    def __str__(self) -> str:
        where = "x".join(f"[{first},{end})" for first, end in self.box)
        return f"{self.path}{where}"


@dataclass(frozen=True, slots=True)
class LinkedManifest:
    """A manifest of an array in a plan: its possible content, and whether it must be rewritten."""

    layer: int
    ref: ManifestRef
    box: Extents
    count: int
    forced: bool
    part: PartRef | None = None

    @property
    def source(self) -> ManifestSource:
        return ManifestSource(self.ref.manifest_id, self.box)


@dataclass(frozen=True, slots=True)
class LinkedManifests:
    """The linked manifests of an array. They are reusable if all of them can stay linked unchanged."""

    items: tuple[LinkedManifest, ...]
    reusable: bool


_NO_MANIFESTS = LinkedManifests((), reusable=True)


def full_box(node: ArrayNode) -> Extents:
    """The whole chunk grid."""
    return tuple((0, n) for n in node.grid)


def list_items(
    node: ArrayNode, change: ArrayEdits | None, infos: Mapping[ObjectId, ManifestFileInfo]
) -> LinkedManifests:
    """The base manifests, clipped to their visible part, and the linked parts.

    Readers use the first manifest whose extents contain a chunk, so the first base manifest is the top layer.
    """
    if not node.manifests and (change is None or not change.parts):
        return _NO_MANIFESTS
    whole = full_box(node)
    change = change or ArrayEdits()
    visible = whole if change.base_box is None else intersect(whole, change.base_box)
    items: list[LinkedManifest] = []
    for index, ref in enumerate(node.manifests):
        unknown = not ref.extents and bool(node.grid)
        box = visible if unknown else intersect(ref.extents, visible)
        if volume(box) == 0:
            continue
        forced = change.base_box is not None if unknown else box != ref.extents
        items.append(LinkedManifest(-1 - index, ref, box, most_references(box, infos.get(ref.manifest_id)), forced))
    for index, part in enumerate(change.parts):
        box = part.extents if part.extents or not node.grid else whole
        inside = intersect(box if part.visible is None else intersect(box, part.visible), whole)
        if volume(inside):
            forced = inside != part.extents
            items.append(LinkedManifest(index, ManifestRef(part.manifest_id, box), inside, part.count, forced, part))
    reusable = not any(item.forced for item in items)
    if reusable and len(items) > 1:
        reusable = len(overlapping_pairs(box_array([item.box for item in items], len(node.grid)))) == 0
    return LinkedManifests(tuple(items), reusable)


def most_references(box: Extents, info: ManifestFileInfo | None) -> int:
    """The largest number of references that a manifest can have in a box."""
    # Early generations do not record the number of references of a manifest.
    return min(volume(box), info.num_chunk_refs) if info is not None and info.num_chunk_refs else volume(box)


CellShape = tuple[int, ...]

WHOLE = 2**32 - 1
"""The length of a cell along a dimension that is not split."""

_MANY_CELLS = 64
_SPARSE = 16


def configured_cell_shape(node: ArrayNode, config: ManifestConfig) -> CellShape | None:
    """The cell shape of a splitting rule, or None if no rule matches this array."""
    if config.splitting is None:
        return None
    names = node.dimension_names or (None,) * len(node.grid)
    sizes = config.splitting.find_sizes(node.path, names)
    return None if sizes is None else tuple(WHOLE if n is None else min(n, WHOLE) for n in sizes)


def cell_shape(grid: Sequence[int], limit: int, existing: Boxes | None = None) -> CellShape:
    """Choose cells of at most `limit` chunks. Leading dimensions are split first. Lengths are powers of two.

    If the other dimensions fit, only the first dimension is split, so that appending along it changes only the last
    cells. The search starts from the smallest shape in which every existing box is inside of one cell. So an array that
    grows keeps the cells that are already written.
    """
    budget = 1 << (max(limit, 1).bit_length() - 1)
    shape = _smallest_shape(existing) if existing is not None and len(existing) else [1] * len(grid)
    if math.prod(shape) > budget:
        shape = [1] * len(grid)
    for axis in reversed(range(len(grid))):
        free = budget // math.prod(shape)
        needed = _power_of_two(grid[axis])
        shape[axis] = max(shape[axis], min(needed, shape[axis] * free))
    return tuple(min(n, WHOLE) for n in shape)


def _smallest_shape(boxes: Boxes) -> list[int]:
    """The smallest powers of two for which no box crosses a multiple."""
    last = np.maximum(boxes[:, :, 1] - 1, boxes[:, :, 0])
    differing = np.bitwise_or.reduce(boxes[:, :, 0] ^ last, axis=0)
    return [1 << int(bits).bit_length() for bits in differing]


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def is_sparse(rows: int, cells: int, limit: int) -> bool:
    """Whether this many rows leave this many cells nearly empty."""
    return cells > _MANY_CELLS and rows * _SPARSE < cells * limit


def coarsen_for(table: ChunkTable, shape: CellShape, limit: int, grid: Sequence[int]) -> CellShape:
    """Enlarge cells until the chunks of the table fill them sufficiently, or there are few cells."""
    current = list(shape)
    while is_sparse(len(table), _count_cells(table, current), limit):
        growing = [axis for axis in range(len(grid)) if current[axis] < grid[axis]]
        if not growing:
            break
        current[growing[-1]] = min(current[growing[-1]] * 4, WHOLE)
    return tuple(current)


def _count_cells(table: ChunkTable, shape: Sequence[int]) -> int:
    cells = table.coords // np.asarray(shape, dtype=np.uint32)
    keys = sort_keys(cells, common_radix(cells))
    if not bool((keys[1:] >= keys[:-1]).all()):
        keys = np.sort(keys)
    return 1 + int((keys[1:] != keys[:-1]).sum()) if len(keys) else 0


def cells_meeting(box: Extents, shape: CellShape) -> Iterator[Coords]:
    """The cells that share chunks with a box."""
    spans = [range(first // n, -(-end // n)) for (first, end), n in zip(box, shape, strict=True)]
    return itertools.product(*spans)


def count_cells_meeting(box: Extents, shape: CellShape) -> int:
    """How many cells share chunks with a box, without listing them."""
    return math.prod(-(-end // n) - first // n for (first, end), n in zip(box, shape, strict=True))


def cell_box(cell: Coords, shape: CellShape) -> Extents:
    """The chunks of a cell."""
    return tuple((c * n, (c + 1) * n) for c, n in zip(cell, shape, strict=True))


_CELLS_PER_FULL_CELL = 8
FEW_CELLS = 64


@dataclass(frozen=True, slots=True)
class Cutting:
    """How an array is split: into the cells of a splitting rule, or into cells of at most `limit` chunks."""

    shape: CellShape | None
    limit: int | None

    def shape_for(self, node: ArrayNode, existing: Boxes | None = None) -> CellShape:
        if self.shape is not None:
            return self.shape
        return tuple(node.grid) if self.limit is None else cell_shape(node.grid, self.limit, existing)


@dataclass(frozen=True, slots=True)
class Regions:
    """The plan of one array: manifests that stay, including linked parts, and pieces to write."""

    kept: Sequence[ManifestRef]
    linked: tuple[PartRef, ...]
    slices: tuple[OutputSlice, ...]


def plan_regions(node: ArrayNode, change: ArrayEdits, listed: LinkedManifests, cutting: Cutting) -> Regions:
    """Group edits with the manifests they overlap, so that no two boxes of the result overlap.

    Edits inside of one manifest's box rewrite that manifest. Edits outside of all boxes join the manifests of their
    cell, so that appends fill a cell. Everything that overlaps a group's bounding box joins it.
    """
    items = listed.items
    boxes = box_array([item.box for item in items], len(node.grid))
    shape = cutting.shape_for(node, boxes)
    cells: list[CellRows] = []
    if change.table is not None:
        shape, cells = cut_rows(node, change.table, shape, cutting)
    if not cells and listed.reusable:
        return _regions(items, [])
    slices: list[OutputSlice] = []
    carried_over: list[LinkedManifest] = []
    for members, edited in group(items, cells, shape, cutting.limit):
        if len(members) == 1 and not edited and not members[0].forced:
            carried_over += members
        else:
            slices += cut(node, members, edited, shape, cutting)
    return _regions(carried_over, slices)


def overlap_any(boxes: Boxes, others: Boxes) -> npt.NDArray[np.bool_]:
    """Whether each box shares a chunk with any of some other boxes, which are few."""
    found = np.zeros(len(boxes), dtype=bool)
    for other in others:
        found |= ((boxes[:, :, 0] < other[:, 1]) & (boxes[:, :, 1] > other[:, 0])).all(axis=1)
    return found


def group(
    items: Sequence[LinkedManifest], cells: Sequence[CellRows], shape: CellShape, limit: int | None
) -> list[tuple[list[LinkedManifest], list[CellRows]]]:
    """The manifests and edited cells that are written together."""
    groups = _Groups(items, cells, len(shape))
    groups.join_edits(shape, limit)
    groups.join_overlaps()
    return groups.components()


def cut_rows(
    node: ArrayNode, table: ChunkTable, shape: CellShape, cutting: Cutting
) -> tuple[CellShape, list[CellRows]]:
    """The rows of a table by cells of this shape, or of a larger shape if they are sparse."""
    cells = list(rows_by_cell(table, shape))
    if cutting.limit is not None and is_sparse(len(table), len(cells), cutting.limit):
        shape = coarsen_for(table, shape, cutting.limit, node.grid)
        cells = list(rows_by_cell(table, shape))
    return shape, cells


def plan_recut(node: ArrayNode, listed: LinkedManifests, cutting: Cutting, shared: frozenset[ObjectId]) -> Regions:
    """Split a whole array again. A manifest that alone fills one cell stays. Others are rewritten cell by cell."""
    shape = cutting.shape_for(node)
    meeting: dict[Coords, list[LinkedManifest]] = defaultdict(list)
    for item in listed.items:
        if not _listable(item.box, item.count, shape, cutting.limit):
            # Too sparse for cells: read everything once, and halve it until it fits.
            return _regions([], [_output_slice(node, full_box(node), listed.items, None, cutting.limit)])
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
    slices = [
        _output_slice(node, intersect(cell_box(cell, shape), full_box(node)), items, None, cutting.limit)
        for cell, items in sorted(meeting.items())
        if not all(id(item) in staying for item in items)
    ]
    return _regions(stays, slices)


def _regions(stays: Iterable[LinkedManifest], slices: Sequence[OutputSlice]) -> Regions:
    ordered = sorted(stays, key=lambda item: item.box)
    parts = tuple(item.part for item in ordered if item.part is not None)
    return Regions(tuple(item.ref for item in ordered), parts, tuple(slices))


def _output_slice(
    node: ArrayNode, box: Extents, items: Iterable[LinkedManifest], rows: Rows | None, limit: int | None
) -> OutputSlice:
    sources = tuple(item.source for item in sorted(items, key=lambda item: item.layer))
    return OutputSlice(node.id, node.path, box, sources, rows, limit)


def _listable(box: Extents, count: int, shape: CellShape, limit: int | None) -> bool:
    """Whether a box has few enough cells to be split by them. A nearly empty box is not split."""
    full = 1 if limit is None else -(-count // limit)
    return count_cells_meeting(box, shape) <= max(FEW_CELLS, _CELLS_PER_FULL_CELL * full, count)


def cut(
    node: ArrayNode, members: Sequence[LinkedManifest], edited: Sequence[CellRows], shape: CellShape, cutting: Cutting
) -> list[OutputSlice]:
    """The pieces of one group: one if it is small enough, else one for each of its cells."""
    box = group_box(node, members, edited)
    count = sum(item.count for item in members) + sum(part.count for part in edited)
    fits = cutting.limit is not None and count <= cutting.limit
    if fits or not _listable(box, count, shape, cutting.limit):
        return [_output_slice(node, box, members, _join_rows([part.rows for part in edited]), cutting.limit)]
    meeting: dict[Coords, list[LinkedManifest]] = {part.cell: [] for part in edited}
    for item in members:
        for cell in cells_meeting(item.box, shape):
            meeting.setdefault(cell, []).append(item)
    rows = {part.cell: part.rows for part in edited}
    return [
        _output_slice(node, intersect(cell_box(cell, shape), box), items, rows.get(cell), cutting.limit)
        for cell, items in sorted(meeting.items())
    ]


def group_box(node: ArrayNode, members: Sequence[LinkedManifest], edited: Sequence[CellRows]) -> Extents:
    """The smallest box around a group."""
    boxes = box_array([item.box for item in members] + [part.box for part in edited], len(node.grid))
    return to_extents(bounding_boxes(boxes, np.zeros(len(boxes), dtype=np.int64), 1)[0])


def _join_rows(rows: Sequence[Rows]) -> Rows | None:
    if len(rows) <= 1:
        return rows[0] if rows else None
    return np.sort(np.concatenate([np.arange(r.start, r.stop) if isinstance(r, slice) else r for r in rows]))


class _Groups:
    """Union-find over the manifests of an array (first) and its edited cells (after them)."""

    def __init__(self, items: Sequence[LinkedManifest], cells: Sequence[CellRows], ndim: int) -> None:
        self.items, self.cells = items, cells
        self.boxes = box_array([item.box for item in items] + [cell.box for cell in cells], ndim)
        self._parent = list(range(len(self.boxes)))

    def join_edits(self, shape: CellShape, limit: int | None) -> None:
        """Join each edited cell with the manifest that contains it, or else with all manifests it overlaps."""
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
        """The manifests that are inside of one cell, by cell."""
        own = self.boxes[: len(self.items)]
        size = np.asarray(shape, dtype=np.int64)
        first, last = own[:, :, 0] // size, (own[:, :, 1] - 1) // size
        result: dict[Coords, list[int]] = defaultdict(list)
        for index in np.flatnonzero((first == last).all(axis=1)).tolist():
            result[tuple(first[index].tolist())].append(index)
        return result

    def join_overlaps(self) -> None:
        """Join groups with overlapping bounding boxes until none overlap."""
        while True:
            roots, labels = np.unique([self._find(i) for i in range(len(self._parent))], return_inverse=True)
            pairs = overlapping_pairs(bounding_boxes(self.boxes, labels.astype(np.int64), len(roots)))
            if len(pairs) == 0:
                return
            for a, b in pairs.tolist():
                self._join(int(roots[a]), int(roots[b]))

    def components(self) -> list[tuple[list[LinkedManifest], list[CellRows]]]:
        """The manifests and edited cells of each group."""
        groups: dict[int, tuple[list[LinkedManifest], list[CellRows]]] = defaultdict(lambda: ([], []))
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
