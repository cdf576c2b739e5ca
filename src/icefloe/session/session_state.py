"""The state of one session: nodes, references and chunks of a base snapshot with changes on top.

Numbers that count up would be the same in every session that starts from one snapshot, and would come back after the
highest node was deleted. They are drawn at random, small while the hierarchy is small (they then fit the narrow columns
of early files), and a new node gives its number up where another node has it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.blocking import fork_safe_lock, monotonic_time, random_bytes
from icefloe.chunks.reader import (
    NOT_IN_MEMORY,
    ChunkLookup,
    ChunkReader,
    LocatedChunk,
    LocatedChunks,
    NotInMemory,
    gather_located,
)
from icefloe.errors import (
    ForbiddenChangeError,
    InvalidInputError,
    NodeNotFoundError,
    NotAnArrayError,
    ParentNotFoundError,
    PathOccupiedError,
    ReadOnlyError,
    RebaseFailedError,
    SessionStateError,
)
from icefloe.ids import NODE_ID_BYTES, NodeId, new_node_id
from icefloe.ledger.ledger import Tip
from icefloe.manifests.cells import PartRef, filter_box, in_box, intersect
from icefloe.manifests.chunk_columns import Found, merge_edits, overlay, take
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, Coords, highest, rows_below
from icefloe.model.manifest_lists import lists_of
from icefloe.model.snapshot import ArrayNode, Extents, GroupNode, ManifestRef, Node, Snapshot
from icefloe.model.zarr_document import (
    check_json,
    check_path,
    check_unicode,
    document_key,
    join_attributes,
    key_encoding,
    parent_path,
    parse_array_shape,
    parse_document,
    subtree_bounds,
)
from icefloe.session.change_set import DELETED, ChangeSet, ChunkWriter, EditBuffer
from icefloe.session.open_repository import RepositoryContext
from icefloe.storage.contract import Buffer

_SMALL, _LARGE = 2**16 - 1, 2**32 - 1
_SMALL_HIERARCHY = 2**10


class NodeNumbers:
    """Draws numbers that no node of a session has."""

    def __init__(self) -> None:
        self._base: Snapshot | None = None
        self._used: set[NodeId] = set()

    def draw(self, base: Snapshot, changes: ChangeSet) -> NodeId:
        """An id for a new node."""
        if base is not self._base:
            self._base = base
            self._used = {node.id for node in base.nodes.values()}
            self._used.update(node.id for node in changes.added.values())
        drawn = draw_node_id(self._used)
        self._used.add(drawn)
        return drawn

    def forget(self) -> None:
        """Look at the hierarchy again, after nodes came from elsewhere."""
        self._base = None


def draw_node_id(used: Collection[NodeId]) -> NodeId:
    """A random number that is not in use, as a node id."""
    largest = _SMALL if len(used) < _SMALL_HIERARCHY else _LARGE
    while True:
        drawn = (1 + int.from_bytes(random_bytes(16), "big") % largest).to_bytes(NODE_ID_BYTES, "big")
        if drawn not in used:
            return drawn


def renumber_rebased(base: Snapshot, changes: ChangeSet, theirs: Snapshot, fresh: Set[NodeId]) -> ChangeSet:
    """The changes, with other ids for new nodes whose id is already the id of another node.

    `fresh` are the ids of the nodes that are new in `theirs`.
    """
    clashing = {n.id: path for path, n in changes.added.items() if n.id in fresh and n.id not in changes.origin}
    if not clashing:
        return changes
    if not clashing.keys().isdisjoint(changes.parts):
        # Manifests that workers wrote contain the number. Changing it would mean rewriting them.
        raise RebaseFailedError(
            message=f"a node of snapshot {theirs.id} has the same number as an array that workers of this session "
            "wrote. Open a new session and write again",
            snapshot=theirs.id,
            conflicts=[],
        )
    return _renumber(changes, clashing, {node.id for snapshot in (base, theirs) for node in snapshot.nodes.values()})


def renumber_fork(base: Snapshot, ours: ChangeSet, forked: ChangeSet) -> ChangeSet:
    """What a fork changed, with other ids for new nodes whose id another new node of the session has."""
    paths = {node.id: path for path, node in ours.added.items()}
    clashing = {
        node.id: path
        for path, node in forked.added.items()
        if node.id not in forked.origin and paths.get(node.id, path) != path
    }
    return _renumber(forked, clashing, {*paths, *(node.id for node in base.nodes.values())}) if clashing else forked


def _renumber(changes: ChangeSet, clashing: Mapping[NodeId, str], others: Set[NodeId]) -> ChangeSet:
    used = {*others, *(node.id for node in changes.added.values())}
    result = replace(changes, added=dict(changes.added), edits=dict(changes.edits), cleared=dict(changes.cleared))
    for old, path in clashing.items():
        new = draw_node_id(used)
        used.add(new)
        result.added[path] = replace(result.added[path], id=new)
        result.cleared.pop(old, None)  # only this session has a new array
        if old in result.edits:
            result.edits[new] = result.edits.pop(old)
    return result


class Tree:
    """Nodes by path over a base and a change set.

    Every method sees one consistent state: the change set is only changed while the lock is held.
    """

    def __init__(self, base: Snapshot, changes: ChangeSet, lock: threading.RLock | None = None) -> None:
        self.base = base
        self.changes = changes
        self._lock = lock or threading.RLock()
        self._base_paths: Sequence[str] | None = None

    def find(self, path: str) -> Node | None:
        """The node at a path, or None."""
        changes = self.changes
        if changes.added or changes.removed:
            with self._lock:
                node = changes.added.get(path)
                if node is not None:
                    return node
                if path in changes.removed:
                    return None
        return self.base.nodes.get(path)

    def find_array(self, path: str) -> ArrayNode | None:
        """The array at a path, or None when there is nothing or a group."""
        node = self.find(path)
        return node if isinstance(node, ArrayNode) else None

    def array(self, path: str) -> ArrayNode:
        """The array at a path; NodeNotFoundError otherwise."""
        node = self.find(path)
        if isinstance(node, ArrayNode):
            return node
        if node is not None:
            raise NotAnArrayError(f"no array at {path!r}; there is a group", path=path)
        raise NodeNotFoundError(f"no array at {path!r}; nearest group above: {self._nearest(path)}", path=path)

    def node(self, path: str) -> Node:
        """The node at a path; NodeNotFoundError otherwise."""
        node = self.find(path)
        if node is None:
            raise NodeNotFoundError(
                f"node not found: there is no array or group at {path!r}; nearest group above: {self._nearest(path)}",
                path=path,
            )
        return node

    def _nearest(self, path: str) -> str:
        above = parent_path(path)
        while above is not None and self.find(above) is None:
            above = parent_path(above)
        return repr(above) if above is not None else "none (the hierarchy is empty)"

    def paths(self) -> Iterator[str]:
        """Every path, in order."""
        with self._lock:
            found = list(self._merged(0, len(self._sorted_base()), sorted(self.changes.added)))
        yield from found

    def nodes(self) -> Iterator[Node]:
        """Every node, in order of path."""
        if not self.changes.added and not self.changes.removed:
            yield from self.base.nodes.values()
            return
        with self._lock:
            added, paths = dict(self.changes.added), list(self.paths())
        base = self.base.nodes
        for path in paths:
            node = added.get(path)
            yield base[path] if node is None else node

    def subtree(self, path: str) -> list[Node]:
        """The nodes at and below a path, in order."""
        first, end = subtree_bounds(path)
        base = self._sorted_base()
        with self._lock:
            added = sorted(p for p in self.changes.added if first <= p < end and p != path)
            here = self.find(path)
            below = [
                self.node(p) for p in self._merged(bisect_left(base, first), bisect_left(base, end), added) if p != path
            ]
        return ([here] if here is not None else []) + below

    def child_names(self, path: str) -> list[str]:
        """Names directly below a path, with or without a node of their own."""
        with self._lock:
            return self._child_names(path)

    def _child_names(self, path: str) -> list[str]:
        first, end = subtree_bounds(path)
        names = {p[len(first) :].partition("/")[0] for p in self.changes.added if first <= p < end and p != "/"}
        base = self._sorted_base()
        removed = self.changes.removed
        position = bisect_left(base, first)
        while position < len(base) and base[position] < end:
            found = base[position]
            if found in removed or found == "/":
                position += 1
                continue
            name = found[len(first) :].partition("/")[0]
            names.add(name)
            # Jump over the rest of that child's subtree; siblings such as `a-b` sort between `a` and `a/b`.
            position += 1
            if found != first + name:
                position = bisect_left(base, subtree_bounds(first + name)[1], position)
        return sorted(names)

    def enclosing_array(self, path: str) -> ArrayNode | None:
        """The array that a path would lie inside of, where nothing may be created."""
        above = parent_path(path)
        while above is not None:
            node = self.find(above)
            if isinstance(node, ArrayNode):
                return node
            if isinstance(node, GroupNode):
                return None
            above = parent_path(above)
        return None

    def _sorted_base(self) -> Sequence[str]:
        if self._base_paths is None:
            self._base_paths = list(self.base.nodes)
        return self._base_paths

    def _merged(self, start: int, end: int, added: list[str]) -> Iterator[str]:
        if start == end:
            yield from added
            return
        removed, fresh = self.changes.removed, self.changes.added
        base = (p for p in self._sorted_base()[start:end] if p not in removed and p not in fresh)
        pending = iter(added)
        nearest = next(pending, None)
        for path in base:
            while nearest is not None and nearest < path:
                yield nearest
                nearest = next(pending, None)
            yield path
        while nearest is not None:
            yield nearest
            nearest = next(pending, None)


MAX_COORD = 2**32 - 1


class SessionView:
    """An immutable view of a session.

    `inherited` are the changes of the session that this one was forked from. Its chunk edits and parts are read
    through, not committed from here.
    """

    def __init__(self, context: RepositoryContext, tree: Tree, inherited: ChangeSet, reader: ChunkReader) -> None:
        self.context = context
        self.tree = tree
        self.inherited = inherited
        self.lookup = ChunkLookup(context.metadata_files)
        self.reader = reader
        self._part_views: dict[NodeId, tuple[tuple[PartRef, ...], tuple[PartView, ...]]] = {}

    @property
    def base(self) -> Snapshot:
        return self.tree.base

    @property
    def changes(self) -> ChangeSet:
        return self.tree.changes

    async def fetch_base(self) -> Snapshot:
        """The base, with its manifest lists loaded."""
        await self.context.metadata_files.load_lists(lists_of(self.base))
        return self.base

    async def fetch_document(self, path: str) -> bytes | None:
        """The zarr.json at a path, as it was written."""
        node = self.tree.find(path)
        if node is None:
            return None
        if node.attributes is None:
            check_json(node.document, path)  # the caller parses it next
            return node.document
        attributes = await self.context.metadata_files.fetch_attributes(node.attributes.object_id, node.attributes.row)
        return join_attributes(node.document, attributes)

    async def chunk_table(self, node: ArrayNode, box: Extents | None = None) -> ChunkTable:
        """Every reference of an array (or of a box of its grid)."""
        bounds = box if box is not None else tuple((0, n) for n in node.grid)
        layers = self._layers(node)
        table = await self.lookup.table(node, bounds)
        for layer in reversed(layers):
            if layer.box is not None:
                table = filter_box(table, layer.box)
            for view in layer.parts:
                table = overlay(table, await self.lookup.table(view.node, view.clip(bounds)))
            if layer.edits is not None:
                table = merge_edits(table, filter_box(layer.edits.to_table(), bounds))
        return table

    async def chunk_batches(self, node: ArrayNode, batch_size: int) -> AsyncIterator[ChunkTable]:
        """Every reference of an array, in order, in tables of at most `batch_size` rows."""
        views = [view.node for layer in self._layers(node) for view in layer.parts]
        slabs: Sequence[Extents | None] = await self.lookup.slabs(node, *views) or [None]
        for box in slabs:
            table = await self.chunk_table(node, box)
            for start in range(0, len(table), batch_size):
                yield take(table, slice(start, min(start + batch_size, len(table))))

    def check_coords(self, node: ArrayNode, coords: Sequence[int]) -> None:
        """Refuse coordinates that the array's grid does not have."""
        if not in_grid(node, tuple(coords)):
            raise InvalidInputError(
                f"chunk {list(coords)} is outside the grid of {node.path}: {list(node.grid)} chunks for shape "
                f"{list(node.shape)}",
                path=node.path,
            )

    def _layers(self, node: ArrayNode) -> list[Layer]:
        """The edits of an array's chunks, in this change set and in those it was forked from, newest first."""
        found = []
        for changes in (self.changes, self.inherited):
            edits, parts = changes.edits.get(node.id), changes.parts.get(node.id)
            if edits is not None or parts:
                found.append(Layer(edits, self._views(node, parts) if parts else ()))
        return found

    def _views(self, node: ArrayNode, parts: tuple[PartRef, ...]) -> tuple[PartView, ...]:
        """The array as the parts of a distributed write hold it."""
        cached = self._part_views.get(node.id)
        if cached is None or cached[0] is not parts:
            cached = self._part_views[node.id] = (parts, _view_parts(node, parts))
        return cached[1]

    def _places(self, node: ArrayNode, coords: Coords) -> list[ChunkRef | ArrayNode]:
        """Where to look for a chunk, the first that has it: its reference, or an array with manifests that may."""
        found: list[ChunkRef | ArrayNode] = []
        for layer in self._layers(node):
            ref = layer.edits.find(coords) if layer.edits is not None else None
            if ref is not None:
                return [*found, ref]
            found += [view.node for view in layer.parts if view.shows(coords)]
            if layer.edits is not None and not layer.edits.shows_base(coords):
                return found
        return [*found, node]

    def _find_ref(self, places: Sequence[ChunkRef | ArrayNode], coords: Coords) -> ChunkRef | NotInMemory | None:
        """What `_fetch_ref` returns, if the manifests are in memory."""
        for place in places:
            ref = place if isinstance(place, ChunkRef) else self.lookup.find_now(place, coords)
            if ref is not None:
                return None if isinstance(ref, ChunkRef) and ref.kind is ChunkKind.DELETED else ref
        return None

    async def _fetch_ref(self, places: Sequence[ChunkRef | ArrayNode], coords: Coords) -> ChunkRef | None:
        """The reference of a chunk, or None when it was deleted or never written."""
        for place in places:
            ref = place if isinstance(place, ChunkRef) else await self.lookup.find(place, coords)
            if ref is not None:
                return None if ref.kind is ChunkKind.DELETED else ref
        return None


@dataclass(frozen=True, slots=True)
class Layer:
    """The edits of an array's chunks in one change set. Edits win over parts."""

    edits: EditBuffer | None
    parts: tuple[PartView, ...]

    @property
    def box(self) -> Extents | None:
        """What is still visible of that which lies below; None for all."""
        return None if self.edits is None else self.edits.base_box


@dataclass(frozen=True, slots=True)
class PartView:
    """An array as parts of a distributed write hold it, and the box in which they still count; None: everywhere."""

    node: ArrayNode
    box: Extents | None = None

    def shows(self, coords: Coords) -> bool:
        return self.box is None or all(a <= c < b for c, (a, b) in zip(coords, self.box, strict=True))

    def shown(self, coords: npt.NDArray[np.uint32], positions: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        return positions if self.box is None else positions[in_box(coords[positions], self.box)]

    def clip(self, bounds: Extents) -> Extents:
        return bounds if self.box is None else intersect(bounds, self.box)


def _view_parts(node: ArrayNode, parts: Sequence[PartRef]) -> tuple[PartView, ...]:
    """All parts as one view; one by one where the array became smaller since they were written."""
    refs = tuple(ManifestRef(part.manifest_id, part.extents) for part in parts)
    if all(part.visible is None for part in parts):
        return (PartView(replace(node, manifests=refs)),)
    views = zip(refs, parts, strict=True)
    return tuple(PartView(replace(node, manifests=(ref,)), part.visible) for ref, part in views)


def in_grid(node: ArrayNode, coords: Coords) -> bool:
    """Whether the grid of an array has a chunk; grids of early repositories may be larger than coordinates can tell."""
    grid = node.grid
    if len(coords) != len(grid):
        return False
    for c, n in zip(coords, grid, strict=True):  # noqa: SIM110 - a generator takes several times as long
        if not (0 <= c < n and c <= MAX_COORD):
            return False
    return True


class SessionState(SessionView):
    """The state of one session: base, changes, and the chunks on their way to storage.

    The changes are a value that is only changed while the lock is held, and the lock is never held while something is
    awaited. Looking takes a copy (`view`), whose columns are shared. A verb that needs the changes to stay as they are
    while it waits for storage, such as a commit, makes the session `exclusive`: it can still be read, but what would
    change it is refused until the verb has ended.
    """

    def __init__(
        self,
        context: RepositoryContext,
        base: Snapshot,
        changes: ChangeSet | None = None,
        tip: Tip | None = None,
        inherited: ChangeSet | None = None,
    ) -> None:
        self.lock = fork_safe_lock()
        self.writer = ChunkWriter(context.storage, context.format, context.packing, self.lock)
        reader = context.reader.for_session(self.writer.unstored)
        super().__init__(context, Tree(base, changes or ChangeSet(), self.lock), inherited or ChangeSet(), reader)
        self.tip = tip
        """The tip of the target branch when the base was read from it."""
        self.first_tip = tip
        """Where the branch stood when the session was opened; a rebase leaves it as it is."""
        self._opened = monotonic_time()
        self.node_numbers = NodeNumbers()
        self._running: str | None = None
        self._closed = False
        self.asked = 0
        """How often a change was asked for."""
        self.only_moves = False
        """Whether nodes and chunks may be moved, but neither written nor deleted."""

    def view(self, only: NodeId | None = None) -> SessionView:
        """The session as it is now; of chunk edits only those of one array, where one is named."""
        with self.lock:
            self.writer.seal_packs(self.changes)
            if only is not None and only in self.changes.edits:
                # Who asks about one array asks again: bring its edits together once.
                self.changes.edits[only].to_table()
            return SessionView(self.context, Tree(self.base, self.changes.copy(only)), self.inherited, self.reader)

    def check_open(self) -> None:
        """Refuse a change where the session takes none; the lock is held by the caller."""
        self.asked += 1
        if self._closed:
            raise ReadOnlyError(
                "the session was committed and is now read-only. Open a new one with repo.writable_session(branch)"
            )
        if self._running is not None:
            raise SessionStateError(
                f"{self._running}() of this session is running in another thread or task. This change was not made. "
                "Try again afterwards"
            )

    def check_writable(self) -> None:
        """Refuse a change of content where the session takes none; the lock is held by the caller."""
        self.check_open()
        if self.only_moves:
            raise SessionStateError(
                "a rearrange session only moves nodes and chunks; write with repo.writable_session(branch)",
                "rearrange-session-only",
            )

    @contextmanager
    def exclusive(self, verb: str) -> Iterator[None]:
        """Refuse changes from other threads and tasks until the block ends. Reads are still possible."""
        with self.lock:
            self.check_open()
            self.writer.seal_packs(self.changes)
            self._running = verb
        try:
            yield
        finally:
            with self.lock:
                self._running = None

    def is_long_open(self, seconds: float) -> bool:
        """Whether the session was opened longer ago than this."""
        return monotonic_time() - self._opened > seconds

    def rebase_to(self, base: Snapshot, changes: ChangeSet, tip: Tip | None = None) -> None:
        """Stand on another base with other changes."""
        with self.lock:
            self.tree = Tree(base, changes, self.lock)
            self.tip = tip

    def close(self, base: Snapshot) -> None:
        """Stand on what was committed, and take no change from now on."""
        with self.lock:
            self.writer.discard()
            self.rebase_to(base, ChangeSet())
            self._closed = True

    def discard(self) -> None:
        """Forget every change."""
        with self.lock:
            self.check_open()
            self.writer.discard()
            self.tree = Tree(self.base, self.inherited.begin_fork(), self.lock)

    def is_clean(self) -> bool:
        """Whether nothing has changed; for a fork, since it left."""
        with self.lock:
            return self.changes.changes_nothing_of(self.inherited) and not self.writer.has_pending

    def begin(self, changes: ChangeSet, inherited: ChangeSet) -> None:
        """Start with changes that a fork was given."""
        with self.lock:
            self.inherited = inherited
            self.tree = Tree(self.base, changes, self.lock)

    async def stored_view(self) -> SessionView:
        """The session as it is now, with every chunk in storage: a view that other processes can read."""
        with self.lock:
            view, packs = self.view(), dict(self.writer.unstored)
        await self.writer.store_packs(packs)
        return view

    async def store_chunks(self) -> None:
        """Store every chunk that is still in memory."""
        with self.lock:
            self.writer.seal_packs(self.changes)
        await self.writer.store_packs()

    # -- documents ------------------------------------------------------------------------------------------------

    def write_document(self, path: str, document: bytes) -> None:
        """Create or replace the node at a path."""
        check_path(path)
        key = document_key(path)
        parsed = parse_document(document, key)
        with self.lock:
            self.check_writable()
            self._write_node(path, key, document, parsed)

    def _write_node(self, path: str, key: str, document: bytes, parsed: dict[str, Any]) -> None:
        existing = self.tree.find(path)
        inside = self.tree.enclosing_array(path)
        if inside is not None and not self.context.official_rules:
            raise InvalidInputError(f"cannot create {key}: {inside.path} is an array, not a group", path=path)
        if parsed["node_type"] == "group":
            group_id = existing.id if isinstance(existing, GroupNode) else self._new_node_id()
            self._replace(existing, GroupNode(group_id, path, document))
            return
        grid = parse_array_shape(parsed, key)
        for name in grid.dimension_names or ():
            check_unicode(name or "", f"{key}: the dimension name")
        self._check_grid(parsed, key, grid.grid, existing)
        self._check_key_encoding(document, key, existing)
        if isinstance(existing, ArrayNode) and len(existing.shape) == len(grid.shape):
            if any(new < old for new, old in zip(grid.grid, existing.grid, strict=True)):
                self.writer.seal_packs(self.changes)
                self.changes.clip(existing, grid.grid)
            node = replace(
                existing,
                document=document,
                attributes=None,
                shape=grid.shape,
                grid=grid.grid,
                dimension_names=grid.dimension_names,
            )
        else:
            node = ArrayNode(self._new_node_id(), path, document, grid.shape, grid.grid, grid.dimension_names)
        self._replace(existing, node)

    def _replace(self, existing: Node | None, node: Node) -> None:
        if existing is not None and existing.id != node.id:
            self._remove(existing)
        self.changes.put_node(self.base, node)

    def _check_grid(self, parsed: dict[str, object], key: str, counts: tuple[int, ...], existing: Node | None) -> None:
        grid = parsed["chunk_grid"]
        assert isinstance(grid, dict)
        most = self.context.format.capabilities.max_chunks_per_dimension
        if max(counts, default=0) > most and not (isinstance(existing, ArrayNode) and existing.grid == counts):
            raise InvalidInputError(
                f"{key} has {max(counts)} chunks along one dimension. At most {most} are allowed. Choose larger chunks"
            )
        if not self.context.format.capabilities.any_chunk_grid and grid["name"] != "regular":
            raise InvalidInputError(
                f"{key} has a {grid['name']!r} chunk grid; repositories of generation "
                f"{self.context.format.spec_version.value!r} only support regular grids"
            )

    def _check_key_encoding(self, document: bytes, key: str, existing: Node | None) -> None:
        if self.context.format.capabilities.any_key_encoding or key_encoding(document).is_default:
            return
        if not isinstance(existing, ArrayNode) or key_encoding(existing.document) != key_encoding(document):
            raise InvalidInputError(
                f"{key} has a chunk key encoding that the official package cannot read in repositories of generation "
                f"{self.context.format.spec_version.value!r}; use the default one: "
                '{"name": "default", "separator": "/"}'
            )

    def _new_node_id(self) -> NodeId:
        if not self.context.format.capabilities.node_id_is_counter:
            return new_node_id()
        return self.node_numbers.draw(self.base, self.changes)

    def delete_node(self, path: str) -> bool:
        """Remove the node at a path (a group with everything below it); False when there is none."""
        with self.lock:
            self.check_writable()
            nodes = self.tree.subtree(path)
            for node in nodes:
                self._remove(node)
        return bool(nodes)

    def delete_document(self, path: str) -> bool:
        """Remove one node and, for an array, its chunks; what lies below a group stays."""
        with self.lock:
            self.check_writable()
            node = self.tree.find(path)
            if node is not None:
                self._remove(node)
        return node is not None

    def _remove(self, node: Node) -> None:
        self.writer.forget_node(node.id)
        self.changes.remove_node(self.base, node)

    def move(self, from_path: str, to_path: str) -> None:
        """Give a node, and what is below it, another path; no chunk or manifest is touched."""
        source, target = check_path(from_path), check_path(to_path)
        with self.lock:
            self.check_open()
            self._move(source, target)

    def _move(self, source: str, target: str) -> None:
        node = self.tree.node(source)
        if source == target:
            return
        if source == "/" or target.startswith(source + "/"):
            raise ForbiddenChangeError(
                f"cannot move {source} into itself or its own descendant {target}", "move-into-self-or-descendant"
            )
        if self.tree.find(target) is not None:
            raise PathOccupiedError(
                f"cannot move {source} to {target}: a move does not overwrite existing nodes. Delete {target} first"
            )
        parent = self.tree.find(target.rpartition("/")[0] or "/")
        if isinstance(parent, ArrayNode):
            raise ForbiddenChangeError(
                f"cannot move {source} to {target}: {parent.path} is an array, not a group",
                "move-destination-parent-not-group",
            )
        if parent is None:
            raise ParentNotFoundError(
                f"cannot move {source} to {target}: the destination's parent group does not exist. Create it first"
            )
        moving = self.tree.subtree(node.path)
        for each in moving:
            self.changes.move_node(self.base, each, target + each.path[len(source) :])

    # -- chunks ---------------------------------------------------------------------------------------------------

    def _current(self, node: ArrayNode) -> ArrayNode | None:
        """An array as it is now: another thread may have changed, moved or deleted it since it was looked up."""
        now = self.tree.find(node.path)
        if now is node:
            return node
        return now if isinstance(now, ArrayNode) and now.id == node.id else None

    def open_edits(self, node: ArrayNode, coords: Coords | None = None) -> EditBuffer:
        """The chunk edits of an array. The caller must hold the lock. Raises if the session takes no changes."""
        self.check_writable()
        now = self._current(node)
        if now is None:
            raise NodeNotFoundError(
                f"{node.path} was deleted, moved or replaced while its chunks were being written", path=node.path
            )
        if coords is not None and now is not node:
            self.check_coords(now, coords)
        return self.changes.buffer(now)

    async def fetch_chunk(
        self, node: ArrayNode, coords: Coords, start: int | None = None, end: int | None = None
    ) -> Buffer | None:
        """The bytes [start, end) of a chunk (negative start counts from the end); None when it was never written."""
        found = await self.find_chunk(node, coords)
        if found is None or not isinstance(found, ChunkRef):
            return None if found is None else _slice(found, start, end)
        return await self.reader.fetch(found, start or 0, end, where=f"chunk {list(coords)} of {node.path}")

    async def find_chunk(self, node: ArrayNode, coords: Coords) -> ChunkRef | Buffer | None:
        """The reference of a chunk, or its bytes when it waits for its pack; None when it was never written."""
        places = self._look_up(node, coords)
        return await self._fetch_ref(places, coords) if isinstance(places, list) else places

    def _look_up(self, node: ArrayNode, coords: Coords) -> list[ChunkRef | ArrayNode] | Buffer:
        """The bytes of a chunk that waits for its pack, or where to look for its reference."""
        # Whether it waits, its edits and the manifests of its array are looked up as of one moment: a commit that ends
        # in between turns the first into the second, and the second into the third.
        with self.lock:
            now = self._current(node)
            if now is None or not in_grid(now, coords):
                return []
            pending = self.writer.find_pending(now.id, coords)
            return self._places(now, coords) if pending is None else pending

    def fetch_chunk_now(self, node: ArrayNode, coords: Coords) -> Buffer | NotInMemory | None:
        """What `fetch_chunk` returns for a whole chunk, if that takes no request but the read of a small local file."""
        found = self._find_now(node, coords)
        return self.reader.fetch_now(found) if isinstance(found, ChunkRef) else found

    def locate_chunk_now(self, node: ArrayNode, coords: Coords) -> LocatedChunk | NotInMemory | None:
        """Where a chunk is, if that takes no request. None if it was never written."""
        found = self._find_now(node, coords)
        return found if found is None or found is NOT_IN_MEMORY else LocatedChunk(found, self.reader)

    def _find_now(self, node: ArrayNode, coords: Coords) -> ChunkRef | Buffer | NotInMemory | None:
        """What `find_chunk` returns, if the manifests are in memory."""
        with self.lock:
            now = self._current(node)
            if now is not None and not self._is_written(now.id) and in_grid(now, coords):
                places = None  # most reads are of arrays that the session does not change
            else:
                places = self._look_up(node, coords)
        if places is None:
            assert now is not None
            ref = self.lookup.find_now(now, coords)
            return None if isinstance(ref, ChunkRef) and ref.kind is ChunkKind.DELETED else ref
        return self._find_ref(places, coords) if isinstance(places, list) else places

    def _is_written(self, node_id: NodeId) -> bool:
        """Whether chunks of an array were written here, or before the session was forked."""
        ours, others = self.tree.changes, self.inherited
        return (
            node_id in ours.edits
            or node_id in ours.parts
            or node_id in others.edits
            or node_id in others.parts
            or self.writer.has_pending
        )

    async def locate_chunks(self, node: ArrayNode, coords: npt.NDArray[np.uint32]) -> LocatedChunks:
        """Where many chunks of an array are, as the session sees it: what `fetch_chunk` reads, asked for at once."""
        waiting: dict[int, Buffer] = {}
        pieces: list[Found] = []
        with self.lock:
            now = self._current(node)
            if now is None:
                return gather_located(len(coords), waiting, pieces, self.reader, node.path)
            positions = np.flatnonzero(rows_below(coords, now.grid))
            if self.writer.has_pending:
                wanted = map(tuple, coords[positions].tolist())
                pending = ((i, self.writer.find_pending(node.id, c)) for i, c in zip(positions.tolist(), wanted))
                waiting = {position: data for position, data in pending if data is not None}
                positions = positions[~np.isin(positions, list(waiting))] if waiting else positions
            layers = [(layer, layer.box) for layer in self._layers(now)]
            own = self.changes.edits.get(now.id)
            if own is not None:
                found, positions = own.find_many(coords, positions)
                pieces += found
        for layer, box in layers:
            if layer.edits is not None and layer.edits is not own:
                found, positions = layer.edits.find_many(coords, positions)
                pieces += found
            for view in layer.parts:
                found, _ = await self.lookup.find_many(view.node, coords, view.shown(coords, positions))
                pieces += found
                for each in found:
                    positions = np.setdiff1d(positions, each.positions, assume_unique=True)
            if box is not None:
                positions = positions[in_box(coords[positions], box)]
        found, _ = await self.lookup.find_many(now, coords, positions)
        pieces += found
        return gather_located(len(coords), waiting, pieces, self.reader, node.path)

    async def chunk_length(self, node: ArrayNode, coords: Coords) -> int | None:
        """How many bytes a chunk has, without reading it."""
        found = await self.find_chunk(node, coords)
        if found is None:
            return None
        return found.length if isinstance(found, ChunkRef) else len(found)

    async def write_chunk(self, node: ArrayNode, coords: Coords, data: Buffer) -> None:
        """Set a chunk."""
        self.check_coords(node, coords)
        await self.writer.write(self, node, coords, data)

    async def write_chunks(self, node: ArrayNode, coords: Sequence[Coords], data: Sequence[Buffer]) -> None:
        """Set many chunks of an array."""
        columns = list(zip(*coords, strict=True))
        corners = (tuple(map(min, columns)), tuple(map(max, columns)))
        if not all(in_grid(node, corner) for corner in corners):
            for each in coords:
                self.check_coords(node, each)
        await self.writer.write_many(self, node, coords, data)

    def set_ref(self, node: ArrayNode, coords: Coords, ref: ChunkRef) -> None:
        """Point a chunk at bytes that are elsewhere."""
        self.check_coords(node, coords)
        self.writer.record(self, node, coords, ref)

    def set_table(self, node: ArrayNode, table: ChunkTable) -> None:
        """Set many references at once, as columns."""
        if table.ndim != len(node.shape):
            raise InvalidInputError(
                f"the references have {table.ndim} dimension(s), but {node.path} has {len(node.shape)}"
            )
        last = highest(table.coords) if len(table) else None
        if last is not None:
            self.check_coords(node, last)
        with self.lock:
            edits = self.open_edits(node, last)
            if self.writer.has_pending:
                self.writer.seal_packs(self.changes)
            edits.add_table(table)

    def add_table(self, node: ArrayNode, table: ChunkTable) -> None:
        """Set many references at once; for a verb that has the session for itself."""
        with self.lock:
            self.changes.buffer(node).add_table(table)

    def delete_chunks(self, node: ArrayNode, coords: Iterable[Coords]) -> None:
        """Make chunks read as fill value, whether they have other values or not.

        This is how Zarr writes a chunk of fill values, so it is a change also where nothing was written before.
        """
        with self.lock:
            for each in coords:
                if in_grid(node, each):
                    self.writer.record(self, node, each, DELETED)

    async def chunk_table(self, node: ArrayNode, box: Extents | None = None) -> ChunkTable:
        """Every reference of an array (or of a box of its grid) as the session sees it."""
        view = self.view(node.id)
        now = view.tree.find(node.path)
        return await view.chunk_table(now if isinstance(now, ArrayNode) and now.id == node.id else node, box)


def _slice(data: Buffer, start: int | None, end: int | None) -> Buffer:
    if start is None and end is None:
        return data
    return memoryview(data)[start:end]
