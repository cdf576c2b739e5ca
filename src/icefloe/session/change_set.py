"""What a session has changed and not committed yet: nodes, edits of chunks, and where the bytes of a chunk go."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.chunks.packs import PackBuilder, PackingPolicy, SealedPack
from icefloe.formats.format import Format
from icefloe.ids import NodeId, new_chunk_id
from icefloe.manifests.cells import (
    ClearedChunks,
    PartRef,
    bounding_box,
    filled_boxes,
    filter_box,
    intersect,
    join_boxes,
)
from icefloe.manifests.chunk_columns import (
    Found,
    find_in,
    find_row,
    find_rows,
    join_runs,
    map_coords,
    overlay,
    shift_coords,
    take,
)
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
from icefloe.model.snapshot import ArrayNode, Diff, Extents, Move, Node, Snapshot, TransactionLog, WrittenChunks
from icefloe.session.ancestry import paths_of
from icefloe.storage.contract import Buffer, Storage

FOLD_AT = 4096
"""Single edits are kept in a dict up to this many, then become a columnar run."""

LISTED_CHUNKS = 16_384
"""A commit of more chunks than this describes them as boxes in its transaction log, where they fill boxes."""
_BOXED_CHUNKS = 16
_MOST_BOXES = 256
_LONGEST_LIST = 1 << 24
"""More coordinates of one array than this are never listed: readers refuse files of a gigabyte."""
_LONG_BOX = 1 << 16

Shared: TypeAlias = tuple[ChunkTables, int]
"""The rows of an array in the columns of many arrays, and its index among them."""

_ORDERED_RUNS, _LARGE_RUN = 64, 1 << 18
DELETED = ChunkRef(ChunkKind.DELETED, 0, 0)
_REF_BYTES = 400


class _Edits(NamedTuple):
    """The edits of a buffer, oldest last: single ones, sorted runs (the newest is the last), or rows among others."""

    recent: dict[Coords, ChunkRef]
    runs: tuple[ChunkTable, ...]
    shared: Shared | None


class EditBuffer:
    """Edits as a few sorted runs of geometrically growing size, and a small dict in front of them.

    Everything a buffer holds is one value that is replaced in one step, never taken out first and put back later. A
    question may bring the edits into another form, which says the same. Edits are made, and copies taken, by one thread
    at a time: the owner's lock sees to that.

    Memory is that of the columns (about 40 bytes for a native or virtual reference in two dimensions). While the
    largest runs are merged it is twice that for a moment, unless they follow each other in the order of chunks.
    `base_box` is the part of the committed chunks that is still visible: everything (None) until the array is made
    smaller or its chunks are moved.
    """

    __slots__ = ("_edits", "_recent_bytes", "base_box", "ndim")

    def __init__(self, ndim: int) -> None:
        self.ndim = ndim
        self.base_box: Extents | None = None
        self._recent_bytes = 0
        self._edits = _Edits({}, (), None)

    def set(self, coords: Coords, ref: ChunkRef) -> None:
        """Set one chunk."""
        recent = self._edits.recent
        recent[coords] = ref
        self._recent_bytes += _REF_BYTES + (len(ref.data) if ref.data is not None else 0)
        if len(recent) >= FOLD_AT:
            self._fold()

    def set_many(self, refs: Sequence[tuple[Coords, ChunkRef]]) -> None:
        """Set chunks one after the other."""
        recent = self._edits.recent
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
        if not any(self._edits):
            self._edits = _Edits({}, (), (tables, index))
        else:
            self.add_table(tables.at(index))

    @property
    def loose(self) -> Mapping[Coords, ChunkRef]:
        """Single edits, if there is nothing else and none of them is a deletion."""
        edits = self._edits
        if edits.runs or edits.shared is not None:
            return {}
        return {} if any(ref.kind is ChunkKind.DELETED for ref in edits.recent.values()) else edits.recent

    def take_shared(self, tables: ChunkTables, index: int) -> None:
        """Hold the same edits in columns that many arrays share."""
        self._edits, self._recent_bytes = _Edits({}, (), (tables, index)), 0

    @property
    def shared(self) -> Shared | None:
        """Where the edits lie, if all of them are those of one array among many and the base is visible."""
        edits = self._edits
        return None if edits.recent or edits.runs or self.base_box is not None else edits.shared

    def find(self, coords: Coords) -> ChunkRef | None:
        """The newest edit of a chunk, also a DELETED one. None if this change set has no edit of it."""
        edits = self._edits
        recent = edits.recent.get(coords)
        if recent is not None:
            return recent
        for run in reversed(_runs_of(edits)):
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

    def shows_base(self, coords: Coords) -> bool:
        """Whether an unedited chunk is looked up in the base."""
        if self.base_box is None:
            return True
        return all(first <= c < end for c, (first, end) in zip(coords, self.base_box, strict=True))

    def to_table(self) -> ChunkTable:
        """All edits as one table, tombstones included."""
        runs = list(self._fold())
        if len(runs) > 1:
            is_ordered = all(_follows(run, older) for older, run in itertools.pairwise(runs))
            # Tables may change their form at any time, so the buffer always holds all of the edits.
            runs = [join_runs(runs, self._hold) if is_ordered else overlay(*runs)]
            self._hold(tuple(runs))
        return runs[0] if runs else empty_table(self.ndim)

    def clip(self, grid: Sequence[int]) -> None:
        """Forget every chunk outside a grid, in the edits and in the base: the array was resized."""
        self.show_only(tuple((0, int(n)) for n in grid))

    def show_only(self, box: Extents) -> None:
        """Forget every chunk outside a box, in the edits and in the base."""
        self._rewrite(lambda run: filter_box(run, box))
        self.base_box = box if self.base_box is None else intersect(self.base_box, box)

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
        edits = self._edits
        twin._edits = edits._replace(recent=dict(edits.recent))
        twin._recent_bytes = self._recent_bytes
        twin.base_box = self.base_box
        return twin

    def __len__(self) -> int:
        """The number of edited chunks."""
        edits = self._edits
        return len(self.to_table()) if edits.runs or edits.shared else len(edits.recent)

    def __bool__(self) -> bool:
        return any(self._edits) or self.base_box is not None

    @property
    def nbytes(self) -> int:
        """Memory in use, estimated for the edits that are not columns yet."""
        return self._recent_bytes + sum(run.nbytes for run in _runs_of(self._edits))

    def _hold(self, runs: tuple[ChunkTable, ...]) -> None:
        self._edits, self._recent_bytes = _Edits({}, runs, None), 0

    def _fold(self) -> tuple[ChunkTable, ...]:
        """All edits as runs."""
        edits = self._edits
        runs = _runs_of(edits)
        if edits.recent:
            runs = _pushed(runs, table_from_rows(list(edits.recent.items()), self.ndim))
        if edits.recent or edits.shared is not None:
            self._hold(runs)
        return runs

    def _rewrite(self, change: Callable[[ChunkTable], ChunkTable]) -> None:
        self._hold(tuple(run for run in map(change, self._fold()) if len(run)))


def _runs_of(edits: _Edits) -> tuple[ChunkTable, ...]:
    """The runs, and rows that are shared with other arrays cut out of them: nothing is shared once there is a run."""
    if edits.shared is None:
        return edits.runs
    tables, index = edits.shared
    return (tables.at(index),)


def _pushed(runs: tuple[ChunkTable, ...], run: ChunkTable) -> tuple[ChunkTable, ...]:
    """The runs and a newer one, merged with those that are less than twice its size: their number is logarithmic.

    Large runs that follow each other in the order of chunks, as a caller sets an array part by part, are not copied
    until all of them are needed together.
    """
    if len(run) == 0:
        return runs
    older = list(runs)
    if older and len(runs) < _ORDERED_RUNS and len(run) >= _LARGE_RUN and _follows(run, older[-1]):
        return (*older, run)
    while older and len(older[-1]) < 2 * len(run):
        run = overlay(older.pop(), run)
    return (*older, run)


def _follows(run: ChunkTable, other: ChunkTable) -> bool:
    return bool(run.ndim) and tuple(run.coords[0].tolist()) > tuple(other.coords[-1].tolist())


@dataclass(frozen=True, slots=True)
class GatheredEdits:
    """The edits of many arrays: those that were written together as columns, the others one by one."""

    together: ChunkTables
    alone: Mapping[NodeId, EditBuffer]


def gather_edits(buffers: Mapping[NodeId, EditBuffer]) -> GatheredEdits:
    """The edits of a change set by how they are stored. Only scattered ones are copied."""
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


@dataclass(slots=True)
class ChangeSet:
    """Nodes that are other than in the base, by their present path, and chunk edits by node id.

    `added` holds nodes that are new, changed or moved here; `removed` the base paths at which the base's node is no
    longer; `origin` the base path of every node of the base that stands in `added`, was deleted or has chunk edits.
    """

    added: dict[str, Node] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    origin: dict[NodeId, str] = field(default_factory=dict)
    edits: dict[NodeId, EditBuffer] = field(default_factory=dict)
    parts: dict[NodeId, tuple[PartRef, ...]] = field(default_factory=dict)
    """Manifests that workers of a distributed write left for this change set; edits win over them."""
    cleared: dict[NodeId, tuple[ClearedChunks, ...]] = field(default_factory=dict)
    """Chunks that workers of a distributed write set to fill values where none was written before."""
    updated: set[NodeId] = field(default_factory=set)
    """Nodes whose document was written here, also if it is the same as before: an explicit write is a change."""

    def copy(self, only: NodeId | None = None) -> ChangeSet:
        """A private copy of the changes. With a node id, only the chunk edits of that array are copied."""
        if only is None:
            edits = {node_id: buffer.copy() for node_id, buffer in self.edits.items()}
        else:
            edits = {only: self.edits[only].copy()} if only in self.edits else {}
        return replace(self.copy_nodes(), edits=edits, parts=dict(self.parts), cleared=dict(self.cleared))

    def copy_nodes(self) -> ChangeSet:
        """The changes of nodes only."""
        return ChangeSet(dict(self.added), set(self.removed), dict(self.origin), updated=set(self.updated))

    def begin_fork(self) -> ChangeSet:
        """What a fork begins with: the nodes of the session, none of them written by the fork."""
        return replace(self.copy_nodes(), updated=set())

    def over(self, inherited: ChangeSet) -> ChangeSet:
        """The changes of a fork and those that it was made with, as one."""
        if not (inherited.edits or inherited.parts or inherited.cleared or inherited.updated):
            return self
        result = replace(self.copy_nodes(), edits=dict(inherited.edits), parts=dict(inherited.parts))
        result.cleared.update(inherited.cleared)
        result.updated |= inherited.updated
        for node_id, edits in self.edits.items():
            if edits.base_box is not None and node_id in result.parts:
                result.parts[node_id] = tuple(part.clipped(edits.base_box) for part in result.parts[node_id])
            if node_id not in inherited.edits:
                result.edits[node_id] = edits
                continue
            buffer = result.edits[node_id] = inherited.edits[node_id].copy()
            if edits.base_box is not None:
                buffer.show_only(edits.base_box)
            buffer.add_table(edits.to_table())
        for node_id, parts in self.parts.items():
            result.parts[node_id] = (*result.parts.get(node_id, ()), *parts)
        for node_id, cleared in self.cleared.items():
            result.cleared[node_id] = (*result.cleared.get(node_id, ()), *cleared)
        return result

    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.parts or self.cleared or any(self.edits.values()))

    def changes_nothing_of(self, inherited: ChangeSet) -> bool:
        """Whether a fork that began with the nodes of `inherited` has changed nothing since."""
        if self.parts or self.cleared or any(self.edits.values()):
            return False
        same_nodes = self.added == inherited.added and self.removed == inherited.removed
        return same_nodes and not self.updated

    def put_node(self, base: Snapshot, node: Node) -> None:
        """A node was written: it is at its path from now on, new or in place of what was there."""
        self._take_place(base, node)
        self.added[node.path] = node
        self.updated.add(node.id)

    def _take_place(self, base: Snapshot, node: Node) -> None:
        here = base.nodes.get(node.path)
        if here is not None and node.path not in self.added and node.path not in self.removed:
            self.origin[here.id] = node.path
            if here.id != node.id:
                self.removed.add(node.path)
        if here is not None and here.id == node.id:
            self.removed.discard(node.path)

    def remove_node(self, base: Snapshot, node: Node) -> None:
        """A node is no longer there."""
        self.leave_path(base, node)
        self.edits.pop(node.id, None)
        self.parts.pop(node.id, None)
        self.cleared.pop(node.id, None)
        self.updated.discard(node.id)

    def move_node(self, base: Snapshot, node: Node, to_path: str) -> None:
        """A node is at another path from now on; its chunk edits stay with its id."""
        self.leave_path(base, node)
        self.place_node(base, replace(node, path=to_path))

    def place_node(self, base: Snapshot, node: Node) -> None:
        """A node that was not written is at this path from now on."""
        self._take_place(base, node)
        self.added[node.path] = node
        if base.nodes.get(node.path) == node and node.id not in self.updated:
            del self.added[node.path]

    def leave_path(self, base: Snapshot, node: Node) -> None:
        """A node is no longer at its path; its chunk edits stay with its id."""
        self.added.pop(node.path, None)
        here = base.nodes.get(node.path)
        if here is not None:
            self.origin[here.id] = node.path
            self.removed.add(node.path)

    def add_parts(self, node: ArrayNode, parts: Sequence[PartRef]) -> None:
        """Take over manifests that workers wrote for an array."""
        self.parts[node.id] = (*self.parts.get(node.id, ()), *parts)
        if node.path not in self.added:
            self.origin[node.id] = node.path

    def add_cleared(self, node: ArrayNode, cleared: Sequence[ClearedChunks]) -> None:
        """Take over where workers wrote fill values for an array."""
        self.cleared[node.id] = (*self.cleared.get(node.id, ()), *cleared)
        if node.path not in self.added:
            self.origin[node.id] = node.path

    def clip(self, node: ArrayNode, grid: Sequence[int]) -> None:
        """An array became smaller: all chunks outside the grid are dropped."""
        self.show_only(node, tuple((0, int(n)) for n in grid))

    def show_only(self, node: ArrayNode, box: Extents) -> None:
        """Drop all chunks of an array outside a box."""
        self.buffer(node).show_only(box)
        if node.id in self.parts:
            self.parts[node.id] = tuple(part.clipped(box) for part in self.parts[node.id])

    def buffer(self, node: ArrayNode) -> EditBuffer:
        """The chunk edits of an array, made on first use."""
        buffer = self.edits.get(node.id)
        if buffer is None:
            buffer = self.edits[node.id] = EditBuffer(len(node.shape))
            if node.path not in self.added:
                self.origin[node.id] = node.path
        return buffer


@dataclass(frozen=True, slots=True)
class ChangeSummary:
    """The nodes of a change set, sorted out against the base, by what happened to them."""

    new: dict[NodeId, Node]
    deleted: dict[NodeId, Node]
    """As they were in the base."""
    updated: dict[NodeId, Node]
    """As they are now; the document differs from the base's."""
    moved: dict[NodeId, tuple[str, Node]]
    """The path in the base, and the node as it is now."""
    edits: GatheredEdits
    chunks: WrittenChunks
    """Coordinates that were set, replaced or deleted, in arrays that still exist."""
    boxes: dict[NodeId, tuple[Extents, ...]]
    """Boxes of the grid in which workers of a distributed write set chunks."""


def summarise(base: Snapshot, changes: ChangeSet) -> ChangeSummary:
    """Sort a change set out by node id."""
    new: dict[NodeId, Node] = {}
    deleted: dict[NodeId, Node] = {}
    updated: dict[NodeId, Node] = {}
    moved: dict[NodeId, tuple[str, Node]] = {}
    present = set()
    for path, node in changes.added.items():
        present.add(node.id)
        origin = changes.origin.get(node.id)
        if origin is None:
            new[node.id] = node
            continue
        was = base.nodes[origin]
        if origin != path:
            moved[node.id] = (origin, node)
        if node.id in changes.updated or was.document != node.document or was.attributes != node.attributes:
            updated[node.id] = node
    for path in changes.removed:
        was = base.nodes[path]
        if was.id not in present:
            deleted[was.id] = was
    edits = gather_edits(changes.edits)
    alone = {}
    for node_id, buffer in edits.alone.items():
        table = buffer.to_table()
        if len(table):
            alone[node_id] = table.coords
    chunks = WrittenChunks(edits.together, alone)
    boxes = {node_id: tuple(part.extents for part in parts) for node_id, parts in changes.parts.items()}
    for node_id, cleared in changes.cleared.items():
        boxes[node_id] = (*boxes.get(node_id, ()), *(each.extents for each in cleared))
    boxes = {node_id: join_boxes(each) for node_id, each in boxes.items()}
    return ChangeSummary(new, deleted, updated, moved, edits, chunks, boxes)


def transaction_log(summary: ChangeSummary) -> TransactionLog:
    """The log that a commit of these changes writes."""

    def ids(nodes: dict[NodeId, Node], *, arrays: bool) -> frozenset[NodeId]:
        return frozenset(node_id for node_id, node in nodes.items() if isinstance(node, ArrayNode) is arrays)

    return TransactionLog(
        new_groups=ids(summary.new, arrays=False),
        new_arrays=ids(summary.new, arrays=True),
        deleted_groups=ids(summary.deleted, arrays=False),
        deleted_arrays=ids(summary.deleted, arrays=True),
        updated_groups=ids(summary.updated, arrays=False),
        updated_arrays=ids(summary.updated, arrays=True),
        updated_chunks=summary.chunks,
        updated_boxes=summary.boxes,
        moves=tuple(_moves(summary)),
    )


def box_chunks(log: TransactionLog, edits: GatheredEdits) -> TransactionLog:
    """The log of a large write with boxes in place of the coordinates of chunks that fill them.

    A list of coordinates has eleven bytes a chunk, a box has forty. Deleted chunks stay listed, because a box only
    says something about chunks that are still there. A list that is too long to be read again becomes boxes that
    contain a little more.
    """
    tables = {node_id: buffer.to_table() for node_id, buffer in edits.alone.items()}
    if int(edits.together.counts.sum()) + sum(map(len, tables.values())) <= LISTED_CHUNKS:
        return log
    chunks, boxes = {}, dict(log.updated_boxes)
    for node_id, table in tables.items():
        found = None
        if len(table) >= _BOXED_CHUNKS and not (table.kind == ChunkKind.DELETED).any():
            found = filled_boxes(table.coords, _MOST_BOXES)
            if found is None and len(table) > _LONGEST_LIST:
                found = tuple(bounding_box(part) for part in np.array_split(table.coords, len(table) // _LONG_BOX))
        if found is not None:
            boxes[node_id] = (*boxes.get(node_id, ()), *found)
        elif len(table):
            chunks[node_id] = table.coords
    return replace(log, updated_chunks=WrittenChunks(edits.together, chunks), updated_boxes=boxes)


def _moves(summary: ChangeSummary) -> Iterator[Move]:
    by_target = sorted(summary.moved.values(), key=lambda move: move[1].path.split("/"))
    for from_path, node in by_target:
        yield Move(from_path, node.path, node.id, is_array=isinstance(node, ArrayNode))


def diff_of_changes(base: Snapshot, changes: ChangeSet) -> Diff:
    """What a change set does to its base, by path."""
    summary = summarise(base, changes)
    present = {node.id: node.path for node in changes.added.values()}
    return Diff(
        new_groups=paths_of(summary.new.values(), arrays=False),
        new_arrays=paths_of(summary.new.values(), arrays=True),
        deleted_groups=paths_of(summary.deleted.values(), arrays=False),
        deleted_arrays=paths_of(summary.deleted.values(), arrays=True),
        updated_groups=paths_of(summary.updated.values(), arrays=False),
        updated_arrays=paths_of(summary.updated.values(), arrays=True),
        chunk_coords={
            present.get(node_id) or changes.origin[node_id]: coords for node_id, coords in summary.chunks.items()
        },
        moved_nodes=sorted(((old, node.path) for old, node in summary.moved.values()), key=lambda m: m[1].split("/")),
    )


_AT_ONCE = 256
"""Chunks that are recorded before other threads have a turn."""


class EditTarget(Protocol):
    """Where the references of written chunks are recorded."""

    @property
    def changes(self) -> ChangeSet: ...
    def open_edits(self, node: ArrayNode, coords: Coords) -> EditBuffer:
        """The edits of an array; an error when the session takes no change, or has no such chunk (any more)."""


class ChunkWriter:
    """Writes chunks of one session and records them in its change set, while the session's lock is held.

    A chunk is recorded when its bytes are stored or in memory. Where the session takes no change at that moment, the
    write is an error and the change set does not know of it.

    Small chunks wait in memory until their pack is full. A pack that could not be stored stays in memory and is
    tried again by `store_all`, so that no chunk whose write was accepted is lost before the commit says so.
    """

    def __init__(self, storage: Storage, format: Format, packing: PackingPolicy, lock: threading.RLock) -> None:
        self._storage = storage
        self._format = format
        self._inline_bytes = packing.inline_bytes
        self._packs = PackBuilder(packing, id_bytes=format.capabilities.object_id_bytes)
        self.unstored: dict[bytes, bytes] = {}
        """Packs that are sealed but not known to be stored, by object id."""
        self.lock = lock

    def find_pending(self, node_id: NodeId, coords: Coords) -> Buffer | None:
        """The bytes of a chunk that waits for its pack."""
        return self._packs.find(node_id, coords)

    async def write(self, target: EditTarget, node: ArrayNode, coords: Coords, data: Buffer) -> None:
        """Take a chunk; it can be read back at once."""
        size = len(data)
        if size <= self._inline_bytes:
            self.record(target, node, coords, ChunkRef(ChunkKind.INLINE, 0, size, data=bytes(data)))
        elif self._packs.policy.takes(size):
            with self.lock:
                target.open_edits(node, coords)
                self._packs.add(node.id, coords, data)
                full = self._packs.seal_full(self._recorder(target.changes)) if self._packs.is_full else []
            for pack in full:
                await self._store(pack.object_id, pack.data)
        else:
            chunk_id = new_chunk_id(self._format.capabilities.object_id_bytes)
            await self._storage.put(self._format.chunk_key(chunk_id), data)
            self.record(target, node, coords, ChunkRef(ChunkKind.NATIVE, 0, size, object_id=chunk_id))

    async def write_many(
        self, target: EditTarget, node: ArrayNode, coords: Sequence[Coords], data: Sequence[Buffer]
    ) -> None:
        """Take many chunks of an array; large ones are stored at the same time."""
        large, inline, packed = [], [], []
        limit = self._inline_bytes
        for each, body in zip(coords, data, strict=True):
            size = len(body)
            if size <= limit:
                inline.append((each, ChunkRef(ChunkKind.INLINE, 0, size, data=bytes(body))))
                if len(inline) == _AT_ONCE:
                    self._record_many(target, node, inline)
                    inline = []
            elif self._packs.policy.takes(size):
                packed.append((each, body))
            else:
                large.append(self.write(target, node, each, body))
        if inline:
            self._record_many(target, node, inline)
        for each, body in packed:
            await self.write(target, node, each, body)
        await asyncio.gather(*large)

    def _record_many(self, target: EditTarget, node: ArrayNode, refs: Sequence[tuple[Coords, ChunkRef]]) -> None:
        last = tuple(map(max, zip(*(coords for coords, _ in refs), strict=True)))
        with self.lock:
            edits = target.open_edits(node, last)
            if self.has_pending:
                for coords, _ in refs:
                    self._packs.discard(node.id, coords)
            edits.set_many(refs)

    def record(self, target: EditTarget, node: ArrayNode, coords: Coords, ref: ChunkRef) -> None:
        """Record a reference whose bytes are elsewhere, or a deletion."""
        with self.lock:
            edits = target.open_edits(node, coords)
            self._packs.discard(node.id, coords)
            edits.set(coords, ref)

    def forget_node(self, node_id: NodeId) -> None:
        """Drop what waits for an array that is deleted."""
        with self.lock:
            self._packs.discard_node(node_id)

    def seal_packs(self, changes: ChangeSet) -> None:
        """Assign every waiting chunk to a pack, so that the change set has all references."""
        with self.lock:
            self._packs.seal(self._recorder(changes))

    async def store_all(self, changes: ChangeSet) -> None:
        """Store everything that is still in memory."""
        self.seal_packs(changes)
        await self.store_packs()

    async def store_packs(self, packs: Mapping[bytes, bytes] | None = None) -> None:
        """Store packs that are not known to be stored: some, or all there are."""
        waiting = dict(self.unstored) if packs is None else packs
        await asyncio.gather(*(self._store(object_id, data) for object_id, data in waiting.items()))

    def discard(self) -> None:
        """Forget everything that is not stored."""
        with self.lock:
            self._packs.clear()
            self.unstored.clear()

    @property
    def has_pending(self) -> bool:
        return self._packs.size_bytes > 0  # no chunk is empty

    def _recorder(self, changes: ChangeSet) -> Callable[[SealedPack], None]:
        def record(pack: SealedPack) -> None:
            self.unstored[pack.object_id] = pack.data
            for index, node_id in enumerate(pack.tables.nodes):
                changes.edits[node_id].add_shared(pack.tables, index)

        return record

    async def _store(self, object_id: bytes, data: bytes) -> None:
        await self._storage.put(self._format.chunk_key(object_id), data)
        self.unstored.pop(object_id, None)
