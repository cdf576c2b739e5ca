"""Reading and writing nodes and chunks of one session: the hierarchy, its references, and the bytes behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.ids import NodeId, new_node_id
from icefloe.ledger.contract import Tip
from icefloe.manifests.boxes import intersect
from icefloe.manifests.columns import take
from icefloe.manifests.edits import EditBuffer
from icefloe.manifests.merge import merge_edits, overlay
from icefloe.manifests.pieces import PartRef
from icefloe.manifests.split import filter_box, in_box
from icefloe.model.chunk_keys import key_encoding
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, Coords
from icefloe.model.coordinates import highest, rows_below
from icefloe.model.nodes import ArrayNode, Extents, GroupNode, ManifestRef, Node
from icefloe.model.paths import check_path, check_unicode, document_key
from icefloe.model.snapshot import Snapshot
from icefloe.model.zarr_document import join_attributes, parse_array_shape, parse_document
from icefloe.session.change_set import ChangeSet
from icefloe.session.chunk_writer import ChunkWriter
from icefloe.session.engine import Engine
from icefloe.session.located import LocatedChunks, gather_located
from icefloe.session.lookup import ChunkLookup
from icefloe.session.node_numbers import NodeNumbers
from icefloe.session.tree import Tree
from icefloe.storage.contract import Buffer

_MAX_COORD = 2**32 - 1


class Workspace:
    """The state of one session: base, changes, and the chunks on their way to storage."""

    def __init__(
        self, engine: Engine, base: Snapshot, changes: ChangeSet | None = None, tip: Tip | None = None
    ) -> None:
        self.engine = engine
        self.tip = tip
        """Where the branch stood that a commit goes to, when the base was found there."""
        self.tree = Tree(base, changes or ChangeSet())
        self.lookup = ChunkLookup(engine.archive)
        self.writer = ChunkWriter(engine.storage, engine.format, engine.config)
        self.reader = engine.reader.for_session(self.writer.unstored)
        self.inherited_edits: Mapping[NodeId, EditBuffer] = {}
        """Edits of the session that this one was forked from: read through, not committed from here."""
        self.inherited_parts: Mapping[NodeId, tuple[PartRef, ...]] = {}
        self._part_views: dict[NodeId, tuple[tuple[PartRef, ...], tuple[_PartView, ...]]] = {}
        self.node_numbers = NodeNumbers()

    @property
    def base(self) -> Snapshot:
        return self.tree.base

    @property
    def changes(self) -> ChangeSet:
        return self.tree.changes

    def rebase_to(self, base: Snapshot, changes: ChangeSet, tip: Tip | None = None) -> None:
        """Stand on another base with other changes."""
        self.tree = Tree(base, changes)
        self.tip = tip

    def discard(self) -> None:
        """Forget every change."""
        self.writer.discard()
        self.tree = Tree(self.base, ChangeSet())

    def is_clean(self) -> bool:
        """Whether nothing has changed."""
        return self.changes.is_empty() and not self.writer.has_pending

    # -- documents ------------------------------------------------------------------------------------------------

    async def fetch_document(self, path: str) -> bytes | None:
        """The zarr.json at a path, as it was written."""
        node = self.tree.find(path)
        if node is None:
            return None
        if node.attributes is None:
            return node.document
        attributes = await self.engine.archive.fetch_attributes(node.attributes.object_id, node.attributes.row)
        return join_attributes(node.document, attributes)

    def write_document(self, path: str, document: bytes) -> None:
        """Create or replace the node at a path."""
        check_path(path)
        key = document_key(path)
        parsed = parse_document(document, key)
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
        nodes = self.tree.subtree(path)
        for node in nodes:
            self._remove(node)
        return bool(nodes)

    def delete_document(self, path: str) -> bool:
        """Remove one node and, for an array, its chunks; what lies below a group stays."""
        node = self.tree.find(path)
        if node is None:
            return False
        self._remove(node)
        return True

    def _remove(self, node: Node) -> None:
        self.writer.forget_node(node.id)
        self.changes.remove_node(self.base, node)

    def move(self, from_path: str, to_path: str) -> None:
        """Give a node, and what is below it, another path; no chunk or manifest is touched."""
        source, target = check_path(from_path), check_path(to_path)
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

    async def find_ref(self, node: ArrayNode, coords: Coords) -> ChunkRef | None:
        """The reference of a chunk as the session sees it, or None; waiting chunks have none yet."""
        sees_base = True
        for edits in self._edit_layers(node):
            ref = edits.find(coords)
            if ref is not None:
                return None if ref.kind is ChunkKind.DELETED else ref
            sees_base = sees_base and edits.sees_base(coords)
        for view in self._parts_of(node):
            ref = await self.lookup.find(view.node, coords) if view.shows(coords) else None
            if ref is not None:
                return ref
        return await self.lookup.find(node, coords) if sees_base else None

    def _parts_of(self, node: ArrayNode) -> tuple[_PartView, ...]:
        """The array as the parts of a distributed write hold it."""
        parts = self.changes.parts.get(node.id) or self.inherited_parts.get(node.id)
        if not parts:
            return ()
        held = self._part_views.get(node.id)
        if held is None or held[0] is not parts:
            held = self._part_views[node.id] = (parts, _view_parts(node, parts))
        return held[1]

    def _edit_layers(self, node: ArrayNode) -> Iterator[EditBuffer]:
        """Edits of an array, newest layer first."""
        own = self.changes.edits.get(node.id)
        if own is not None:
            yield own
        inherited = self.inherited_edits.get(node.id)
        if inherited is not None:
            yield inherited

    async def fetch_chunk(
        self, node: ArrayNode, coords: Coords, start: int | None = None, end: int | None = None
    ) -> Buffer | None:
        """The bytes [start, end) of a chunk (negative start counts from the end); None when it was never written."""
        if not _in_grid(node, coords):
            return None
        pending = self.writer.find_pending(node.id, coords)
        if pending is not None:
            return _slice(pending, start, end)
        ref = await self.find_ref(node, coords)
        if ref is None:
            return None
        return await self.reader.fetch(ref, start or 0, end, where=f"chunk {list(coords)} of {node.path}")

    async def locate_chunks(self, node: ArrayNode, coords: npt.NDArray[np.uint32]) -> LocatedChunks:
        """Where many chunks of an array are, as the session sees it: what `fetch_chunk` reads, asked for at once."""
        positions = np.flatnonzero(rows_below(coords, node.grid))
        waiting: dict[int, Buffer] = {}
        pieces = []
        with self.writer.lock:
            if self.writer.has_pending:
                wanted = map(tuple, coords[positions].tolist())
                held = ((i, self.writer.find_pending(node.id, c)) for i, c in zip(positions.tolist(), wanted))
                waiting = {position: data for position, data in held if data is not None}
                positions = positions[~np.isin(positions, list(waiting))] if waiting else positions
            for edits in self._edit_layers(node):
                found, positions = edits.find_many(coords, positions)
                pieces += found
        for view in self._parts_of(node):
            found, _ = await self.lookup.find_many(view.node, coords, view.shown(coords, positions))
            pieces += found
            for each in found:
                positions = np.setdiff1d(positions, each.positions, assume_unique=True)
        for edits in self._edit_layers(node):
            positions = edits.seeing_base(coords, positions)
        found, _ = await self.lookup.find_many(node, coords, positions)
        pieces += found
        return gather_located(len(coords), waiting, pieces, self.reader, node.path)

    async def chunk_length(self, node: ArrayNode, coords: Coords) -> int | None:
        """How many bytes a chunk has, without reading it."""
        pending = self.writer.find_pending(node.id, coords)
        if pending is not None:
            return len(pending)
        ref = await self.find_ref(node, coords) if _in_grid(node, coords) else None
        return None if ref is None else ref.length

    async def write_chunk(self, node: ArrayNode, coords: Coords, data: Buffer) -> None:
        """Set a chunk."""
        self.check_coords(node, coords)
        await self.writer.write(self.changes, node, coords, data)

    async def write_chunks(self, node: ArrayNode, coords: Sequence[Coords], data: Sequence[Buffer]) -> None:
        """Set many chunks of an array."""
        for each in coords:
            self.check_coords(node, each)
        await self.writer.write_many(self.changes, node, coords, data)

    def set_ref(self, node: ArrayNode, coords: Coords, ref: ChunkRef) -> None:
        """Point a chunk at bytes that are elsewhere."""
        self.check_coords(node, coords)
        self.writer.record(self.changes, node, coords, ref)

    def set_table(self, node: ArrayNode, table: ChunkTable) -> None:
        """Set many references at once, as columns."""
        if table.ndim != len(node.shape):
            raise InvalidInputError(
                f"references of rank {table.ndim} for {node.path}, which has {len(node.shape)} dimensions"
            )
        if len(table):
            self.check_coords(node, highest(table.coords))
        if self.writer.has_pending:
            self.writer.settle(self.changes)
        self.changes.buffer(node).add_table(table)

    async def delete_chunk(self, node: ArrayNode, coords: Coords) -> None:
        """Make a chunk read as fill value again."""
        if len(coords) != len(node.shape):
            return
        waiting = self.writer.find_pending(node.id, coords) is not None
        if waiting or await self.find_ref(node, coords) is not None:
            self.writer.record(self.changes, node, coords, ChunkRef(ChunkKind.DELETED, 0, 0))

    async def chunk_table(self, node: ArrayNode, box: Extents | None = None) -> ChunkTable:
        """Every reference of an array (or of a box of its grid) as the session sees it."""
        if self.writer.has_pending:
            self.writer.settle(self.changes)
        bounds = box if box is not None else tuple((0, n) for n in node.grid)
        layers = list(self._edit_layers(node))
        table = await self.lookup.table(node, bounds)
        for edits in layers:
            if edits.base_box is not None:
                table = filter_box(table, edits.base_box)
        for view in self._parts_of(node):
            table = overlay(table, await self.lookup.table(view.node, view.clip(bounds)))
        for edits in reversed(layers):
            table = merge_edits(table, filter_box(edits.to_table(), bounds))
        return table

    async def chunk_batches(self, node: ArrayNode, batch_size: int) -> AsyncIterator[ChunkTable]:
        """Every reference of an array, in order, in tables of at most `batch_size` rows."""
        table = await self.chunk_table(node)
        for start in range(0, len(table), batch_size):
            yield take(table, np.arange(start, min(start + batch_size, len(table))))

    def check_coords(self, node: ArrayNode, coords: Sequence[int]) -> None:
        """Refuse coordinates that the array's grid does not have."""
        if not _in_grid(node, tuple(coords)):
            raise InvalidInputError(
                f"chunk {list(coords)} is outside the grid of {node.path}: {list(node.grid)} chunks for shape "
                f"{list(node.shape)}",
                path=node.path,
            )


@dataclass(frozen=True, slots=True)
class _PartView:
    """An array as parts of a distributed write hold it, and the box in which they still count; None: everywhere."""

    node: ArrayNode
    box: Extents | None = None

    def shows(self, coords: Coords) -> bool:
        return self.box is None or all(a <= c < b for c, (a, b) in zip(coords, self.box, strict=True))

    def shown(self, coords: npt.NDArray[np.uint32], positions: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        return positions if self.box is None else positions[in_box(coords[positions], self.box)]

    def clip(self, bounds: Extents) -> Extents:
        return bounds if self.box is None else intersect(bounds, self.box)


def _view_parts(node: ArrayNode, parts: Sequence[PartRef]) -> tuple[_PartView, ...]:
    """All parts as one view; one by one where the array became smaller since they were written."""
    refs = tuple(ManifestRef(part.manifest_id, part.extents) for part in parts)
    if all(part.visible is None for part in parts):
        return (_PartView(replace(node, manifests=refs)),)
    views = zip(refs, parts, strict=True)
    return tuple(_PartView(replace(node, manifests=(ref,)), part.visible) for ref, part in views)


def _in_grid(node: ArrayNode, coords: Coords) -> bool:
    # Arrays of early repositories may have larger grids than there are coordinates.
    grid = node.grid
    return len(coords) == len(grid) and all(0 <= c < n and c <= _MAX_COORD for c, n in zip(coords, grid, strict=True))


def _slice(data: Buffer, start: int | None, end: int | None) -> Buffer:
    if start is None and end is None:
        return data
    return memoryview(data)[start:end]
