"""The nouns of a manifest plan: edits of an array, the manifests it has, and the pieces new ones are made of."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from icefloe.ids import NodeId, ObjectId
from icefloe.manifests.boxes import bounding_box, box_array, intersect, overlapping_pairs, volume
from icefloe.manifests.columns import Rows
from icefloe.model.chunk_table import ChunkTable
from icefloe.model.chunk_tables import ChunkTables
from icefloe.model.nodes import ArrayNode, Extents, ManifestRef
from icefloe.model.snapshot import ManifestFileInfo


@dataclass(frozen=True, slots=True)
class PartRef:
    """A manifest file written elsewhere, by a task of a distributed write, to be linked into the snapshot."""

    manifest_id: ObjectId
    node_id: NodeId
    extents: Extents
    count: int
    size_bytes: int
    visible: Extents | None = None
    """What is left of it after the array became smaller; None for all."""

    @property
    def box(self) -> Extents:
        """Where in the grid it speaks."""
        return self.extents if self.visible is None else intersect(self.extents, self.visible)

    def clipped(self, box: Extents) -> PartRef:
        """The same part, seen only inside a box."""
        return replace(self, visible=box if self.visible is None else intersect(self.visible, box))

    @property
    def info(self) -> ManifestFileInfo:
        return ManifestFileInfo(self.manifest_id, self.size_bytes, self.count)


@dataclass(frozen=True, slots=True)
class ClearedChunks:
    """Chunks that a task of a distributed write set to fill values where none was written: no manifest knows them."""

    extents: Extents
    count: int
    packed: bytes = field(repr=False)
    """The differences of their sorted coordinates, compressed: patterns that repeat take a few bytes."""

    @classmethod
    def of(cls, coords: npt.NDArray[np.uint32]) -> ClearedChunks:
        """Some chunks, at least one, by their sorted coordinates."""
        steps = np.diff(coords.astype(np.int64), axis=0, prepend=0)
        return cls(bounding_box(coords), len(coords), zlib.compress(steps.astype("<i8").tobytes()))

    def coords(self) -> npt.NDArray[np.uint32]:
        """Their coordinates."""
        steps = np.frombuffer(zlib.decompress(self.packed), dtype="<i8").reshape(self.count, len(self.extents))
        return np.cumsum(steps, axis=0).astype(np.uint32)


@dataclass(frozen=True, slots=True)
class ArrayEdits:
    """What a change set does to the chunks of one array: parts win over the base, `table` over both.

    `base_box` is the part of the base that is still visible, None for all of it.
    """

    table: ChunkTable | None = None
    parts: tuple[PartRef, ...] = ()
    base_box: Extents | None = None

    def says_something(self) -> bool:
        return bool(self.parts) or self.base_box is not None or (self.table is not None and len(self.table) > 0)


@dataclass(frozen=True, slots=True, eq=False)
class BulkEdits(Mapping[NodeId, ArrayEdits]):
    """Edits by array, those of `fresh` in common columns: arrays without manifests and without deletions among them.

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
class Source:
    """A manifest to read an array's references from, and the box it speaks for."""

    manifest_id: ObjectId
    extents: Extents


@dataclass(frozen=True, slots=True)
class Piece:
    """The references of one array that go together: those of the sources inside the box, later ones win, then edits.

    With a limit, more references than that are cut into several manifests.
    """

    node_id: NodeId
    path: str
    box: Extents
    sources: tuple[Source, ...] = ()
    rows: Rows | None = field(default=None, repr=False, compare=False)
    limit: int | None = None

    def __str__(self) -> str:
        where = "x".join(f"[{first},{end})" for first, end in self.box)
        return f"{self.path}{where}"


@dataclass(frozen=True, slots=True)
class Item:
    """A manifest of an array as a plan sees it: what it may hold, and whether it must be rewritten."""

    layer: int
    ref: ManifestRef
    box: Extents
    count: int
    forced: bool
    part: PartRef | None = None

    @property
    def source(self) -> Source:
        return Source(self.ref.manifest_id, self.box)


@dataclass(frozen=True, slots=True)
class ArrayItems:
    """The manifests of an array that still matter; settled when they can all stay linked as they are."""

    items: tuple[Item, ...]
    settled: bool


_NO_ITEMS = ArrayItems((), settled=True)


def full_box(node: ArrayNode) -> Extents:
    """The whole chunk grid."""
    return tuple((0, n) for n in node.grid)


def list_items(node: ArrayNode, change: ArrayEdits | None, infos: Mapping[ObjectId, ManifestFileInfo]) -> ArrayItems:
    """The base manifests, clipped to what is still visible, and the parts.

    Readers take the first manifest whose extents hold a chunk, so among base manifests the first one is the top layer.
    """
    if not node.manifests and (change is None or not change.parts):
        return _NO_ITEMS
    whole = full_box(node)
    change = change or ArrayEdits()
    visible = whole if change.base_box is None else intersect(whole, change.base_box)
    items: list[Item] = []
    for index, ref in enumerate(node.manifests):
        unknown = not ref.extents and bool(node.grid)
        box = visible if unknown else intersect(ref.extents, visible)
        if volume(box) == 0:
            continue
        info = infos.get(ref.manifest_id)
        most = volume(box)
        # Early generations do not say how many references a manifest holds.
        count = min(most, info.num_chunk_refs) if info is not None and info.num_chunk_refs else most
        forced = change.base_box is not None if unknown else box != ref.extents
        items.append(Item(-1 - index, ref, box, count, forced))
    for index, part in enumerate(change.parts):
        box = part.extents if part.extents or not node.grid else whole
        inside = intersect(box if part.visible is None else intersect(box, part.visible), whole)
        if volume(inside):
            forced = inside != part.extents
            items.append(Item(index, ManifestRef(part.manifest_id, box), inside, part.count, forced, part))
    settled = not any(item.forced for item in items)
    if settled and len(items) > 1:
        settled = len(overlapping_pairs(box_array([item.box for item in items], len(node.grid)))) == 0
    return ArrayItems(tuple(items), settled)
