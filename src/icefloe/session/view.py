"""Nodes and chunk references as a session sees them at one moment: its base with the change set laid over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from icefloe.chunks.reader import ChunkReader
from icefloe.errors import InvalidInputError
from icefloe.ids import NodeId
from icefloe.manifests.boxes import intersect
from icefloe.manifests.columns import take
from icefloe.manifests.edits import EditBuffer
from icefloe.manifests.merge import merge_edits, overlay
from icefloe.manifests.pieces import PartRef
from icefloe.manifests.split import filter_box, in_box
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, Coords
from icefloe.model.decoded_size import check_json
from icefloe.model.nodes import ArrayNode, Extents, ManifestRef
from icefloe.model.snapshot import Snapshot
from icefloe.model.zarr_document import join_attributes
from icefloe.session.change_set import ChangeSet
from icefloe.session.engine import Engine
from icefloe.session.lookup import ChunkLookup
from icefloe.session.tree import Tree

_MAX_COORD = 2**32 - 1


class View:
    """A session at one moment: nobody changes what it shows.

    `inherited` are the changes of the session that this one was forked from. Its chunk edits and parts are read
    through, not committed from here.
    """

    def __init__(self, engine: Engine, tree: Tree, inherited: ChangeSet, reader: ChunkReader) -> None:
        self.engine = engine
        self.tree = tree
        self.inherited = inherited
        self.lookup = ChunkLookup(engine.archive)
        self.reader = reader
        self._part_views: dict[NodeId, tuple[tuple[PartRef, ...], tuple[PartView, ...]]] = {}

    @property
    def base(self) -> Snapshot:
        return self.tree.base

    @property
    def changes(self) -> ChangeSet:
        return self.tree.changes

    async def fetch_document(self, path: str) -> bytes | None:
        """The zarr.json at a path, as it was written."""
        node = self.tree.find(path)
        if node is None:
            return None
        if node.attributes is None:
            check_json(node.document, path)  # whoever asked for it parses it next
            return node.document
        attributes = await self.engine.archive.fetch_attributes(node.attributes.object_id, node.attributes.row)
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
        table = await self.chunk_table(node)
        for start in range(0, len(table), batch_size):
            yield take(table, np.arange(start, min(start + batch_size, len(table))))

    def check_coords(self, node: ArrayNode, coords: Sequence[int]) -> None:
        """Refuse coordinates that the array's grid does not have."""
        if not in_grid(node, tuple(coords)):
            raise InvalidInputError(
                f"chunk {list(coords)} is outside the grid of {node.path}: {list(node.grid)} chunks for shape "
                f"{list(node.shape)}",
                path=node.path,
            )

    def _layers(self, node: ArrayNode) -> list[Layer]:
        """What the changes, and those they were forked from, say about the chunks of an array; the newest first."""
        found = []
        for changes in (self.changes, self.inherited):
            edits, parts = changes.edits.get(node.id), changes.parts.get(node.id)
            if edits is not None or parts:
                found.append(Layer(edits, self._views(node, parts) if parts else ()))
        return found

    def _views(self, node: ArrayNode, parts: tuple[PartRef, ...]) -> tuple[PartView, ...]:
        """The array as the parts of a distributed write hold it."""
        held = self._part_views.get(node.id)
        if held is None or held[0] is not parts:
            held = self._part_views[node.id] = (parts, _view_parts(node, parts))
        return held[1]

    def _places(self, node: ArrayNode, coords: Coords) -> list[ChunkRef | ArrayNode]:
        """Where to look for a chunk, the first that has it: its reference, or an array with manifests that may."""
        found: list[ChunkRef | ArrayNode] = []
        for layer in self._layers(node):
            ref = layer.edits.find(coords) if layer.edits is not None else None
            if ref is not None:
                return [*found, ref]
            found += [view.node for view in layer.parts if view.shows(coords)]
            if layer.edits is not None and not layer.edits.sees_base(coords):
                return found
        return [*found, node]

    async def _fetch_ref(self, places: Sequence[ChunkRef | ArrayNode], coords: Coords) -> ChunkRef | None:
        """The reference of a chunk, or None when it was deleted or never written."""
        for place in places:
            ref = place if isinstance(place, ChunkRef) else await self.lookup.find(place, coords)
            if ref is not None:
                return None if ref.kind is ChunkKind.DELETED else ref
        return None


@dataclass(frozen=True, slots=True)
class Layer:
    """What one change set says about the chunks of an array: edits lie over parts."""

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
    return len(coords) == len(grid) and all(0 <= c < n and c <= _MAX_COORD for c, n in zip(coords, grid, strict=True))
