"""Reading and writing nodes and chunks of one session: the hierarchy, its references, and the bytes behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.blocking import fork_safe_lock
from icefloe.environment import monotonic_time
from icefloe.errors import InvalidInputError, NodeNotFoundError, ReadOnlyError, SessionStateError
from icefloe.ids import NodeId, new_node_id
from icefloe.ledger.contract import Tip
from icefloe.manifests.edits import DELETED, EditBuffer
from icefloe.manifests.keys import Found
from icefloe.manifests.split import in_box
from icefloe.model.chunk_keys import key_encoding
from icefloe.model.chunk_table import ChunkRef, ChunkTable, Coords
from icefloe.model.coordinates import highest, rows_below
from icefloe.model.nodes import ArrayNode, Extents, GroupNode, Node
from icefloe.model.paths import check_path, check_unicode, document_key
from icefloe.model.snapshot import Snapshot
from icefloe.model.zarr_document import parse_array_shape, parse_document
from icefloe.session.change_set import ChangeSet
from icefloe.session.chunk_writer import ChunkWriter
from icefloe.session.engine import Engine
from icefloe.session.located import LocatedChunks, gather_located
from icefloe.session.node_numbers import NodeNumbers
from icefloe.session.tree import Tree
from icefloe.session.view import View, in_grid
from icefloe.storage.contract import Buffer


class Workspace(View):
    """The state of one session: base, changes, and the chunks on their way to storage.

    The changes are a value that is only changed while the lock is held, and the lock is never held while something is
    awaited. Looking takes a copy (`view`), whose columns are shared. A verb that needs the changes to stay as they are
    while it waits for storage, such as a commit, makes the session `exclusive`: it can still be read, but what would
    change it is refused until the verb has ended.
    """

    def __init__(
        self,
        engine: Engine,
        base: Snapshot,
        changes: ChangeSet | None = None,
        tip: Tip | None = None,
        inherited: ChangeSet | None = None,
    ) -> None:
        self.lock = fork_safe_lock()
        self.writer = ChunkWriter(engine.storage, engine.format, engine.config, self.lock)
        reader = engine.reader.for_session(self.writer.unstored)
        super().__init__(engine, Tree(base, changes or ChangeSet(), self.lock), inherited or ChangeSet(), reader)
        self.tip = tip
        """Where the branch stood that a commit goes to, when the base was found there."""
        self.first_tip = tip
        """Where the branch stood when the session was opened; a rebase leaves it as it is."""
        self._opened = monotonic_time()
        self.node_numbers = NodeNumbers()
        self._running: str | None = None
        self._closed = False
        self.asked = 0
        """How often a change was asked for."""

    def view(self, only: NodeId | None = None) -> View:
        """The session as it is now; of chunk edits only those of one array, where one is named."""
        with self.lock:
            self.writer.settle(self.changes)
            if only is not None and only in self.changes.edits:
                # Who asks about one array asks again: bring its edits together once.
                self.changes.edits[only].to_table()
            return View(self.engine, Tree(self.base, self.changes.copy(only)), self.inherited, self.reader)

    def check_open(self) -> None:
        """Refuse a change where the session takes none; the lock is held by the caller."""
        self.asked += 1
        if self._closed:
            raise ReadOnlyError(
                "the session was committed, so it is read-only now; open a new one with repo.writable_session(branch)"
            )
        if self._running is not None:
            raise SessionStateError(
                f"{self._running}() of this session is running in another thread or task. The change was refused: it "
                "is neither in the commit nor in the session. Try again when the other one has ended"
            )

    @contextmanager
    def exclusive(self, verb: str) -> Iterator[None]:
        """Refuse every change from elsewhere until the block ends; reading goes on."""
        with self.lock:
            self.check_open()
            self.writer.settle(self.changes)
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

    async def stored_view(self) -> View:
        """The session as it is now, with every chunk in storage: a view that other processes can read."""
        with self.lock:
            view, packs = self.view(), dict(self.writer.unstored)
        await self.writer.store_packs(packs)
        return view

    async def flush(self) -> None:
        """Store every chunk that is still in memory."""
        with self.lock:
            self.writer.settle(self.changes)
        await self.writer.store_packs()

    # -- documents ------------------------------------------------------------------------------------------------

    def write_document(self, path: str, document: bytes) -> None:
        """Create or replace the node at a path."""
        check_path(path)
        key = document_key(path)
        parsed = parse_document(document, key)
        with self.lock:
            self.check_open()
            self._write_node(path, key, document, parsed)

    def _write_node(self, path: str, key: str, document: bytes, parsed: dict[str, Any]) -> None:
        existing = self.tree.find(path)
        inside = self.tree.enclosing_array(path)
        if inside is not None:
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
                self.writer.settle(self.changes)
                self.changes.clip(existing, grid.grid)
            node = replace(
                existing, document=document, attributes=None,
                shape=grid.shape, grid=grid.grid, dimension_names=grid.dimension_names,
            )  # fmt: skip
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
        most = self.engine.format.capabilities.max_chunks_per_dimension
        if max(counts, default=0) > most and not (isinstance(existing, ArrayNode) and existing.grid == counts):
            raise InvalidInputError(
                f"{key} asks for {max(counts)} chunks in one dimension; the most is {most}. Choose larger chunks"
            )
        if not self.engine.format.capabilities.any_chunk_grid and grid["name"] != "regular":
            raise InvalidInputError(
                f"{key} has a {grid['name']!r} chunk grid; repositories of generation "
                f"{self.engine.format.spec_version.value!r} hold regular grids only"
            )

    def _check_key_encoding(self, document: bytes, key: str, existing: Node | None) -> None:
        if self.engine.format.capabilities.any_key_encoding or key_encoding(document).is_default:
            return
        if not isinstance(existing, ArrayNode) or key_encoding(existing.document) != key_encoding(document):
            raise InvalidInputError(
                f"{key} has a chunk key encoding that the official package cannot read in repositories of generation "
                f"{self.engine.format.spec_version.value!r}; use the default one: "
                '{"name": "default", "separator": "/"}'
            )

    def _new_node_id(self) -> NodeId:
        if not self.engine.format.capabilities.node_id_is_counter:
            return new_node_id()
        return self.node_numbers.draw(self.base, self.changes)

    def delete_node(self, path: str) -> bool:
        """Remove the node at a path (a group with everything below it); False when there is none."""
        with self.lock:
            self.check_open()
            nodes = self.tree.subtree(path)
            for node in nodes:
                self._remove(node)
        return bool(nodes)

    def delete_document(self, path: str) -> bool:
        """Remove one node and, for an array, its chunks; what lies below a group stays."""
        with self.lock:
            self.check_open()
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
            raise InvalidInputError(f"cannot move {source} into itself ({target})")
        if self.tree.find(target) is not None:
            raise InvalidInputError(f"cannot move {source} to {target}: there is a node already; delete it first")
        parent = self.tree.find(target.rpartition("/")[0] or "/")
        if not isinstance(parent, GroupNode):
            raise NodeNotFoundError(f"cannot move {source} to {target}: there is no group above it; create it first")
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
        """The chunk edits of an array, to be changed by who holds the lock; refused where nothing may change."""
        self.check_open()
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
        # Whether it waits, its edits and the manifests of its array are looked up as of one moment: a commit that ends
        # in between turns the first into the second, and the second into the third.
        with self.lock:
            now = self._current(node)
            if now is None or not in_grid(now, coords):
                return None
            pending = self.writer.find_pending(now.id, coords)
            if pending is not None:
                return pending
            places = self._places(now, coords)
        return await self._fetch_ref(places, coords)

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
                held = ((i, self.writer.find_pending(node.id, c)) for i, c in zip(positions.tolist(), wanted))
                waiting = {position: data for position, data in held if data is not None}
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
                f"references of rank {table.ndim} for {node.path}, which has {len(node.shape)} dimensions"
            )
        last = highest(table.coords) if len(table) else None
        if last is not None:
            self.check_coords(node, last)
        with self.lock:
            edits = self.open_edits(node, last)
            if self.writer.has_pending:
                self.writer.settle(self.changes)
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
