"""Which manifests of a snapshot stay, which are rewritten, and what each new one will hold."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from icefloe.ids import NodeId, ObjectId
from icefloe.manifests.boxes import Boxes, box_array
from icefloe.manifests.cells import CellShape
from icefloe.manifests.columns import take
from icefloe.manifests.packing import Package, closure, pack, topological_order
from icefloe.manifests.pieces import ArrayEdits, BulkEdits, Item, PartRef, Piece, Source, full_box, list_items
from icefloe.manifests.placement import AlikePlacements, Placement, can_alike, place
from icefloe.manifests.regions import Cutting, cut_rows, plan_recut, plan_regions
from icefloe.manifests.split import halve
from icefloe.manifests.untouched import Untouched
from icefloe.model.chunk_table import ChunkTable
from icefloe.model.chunk_tables import ChunkTables
from icefloe.model.manifest_config import ManifestConfig
from icefloe.model.nodes import ArrayNode, ManifestRef
from icefloe.model.snapshot import ManifestFileInfo


@dataclass(frozen=True, slots=True)
class PlannedManifest:
    """One manifest to be written; a piece with a limit may become several, one with no chunks left none."""

    set_name: str
    pieces: tuple[Piece, ...]
    fresh: tuple[NodeId, ...] = ()
    """Arrays of `BulkEdits.fresh` that go in whole."""
    untouched: tuple[Untouched, ...] = ()

    @property
    def fetch(self) -> tuple[ObjectId, ...]:
        """The manifests that must be at hand to build it."""
        of_pieces = (source.manifest_id for piece in self.pieces for source in piece.sources)
        return tuple(dict.fromkeys([*of_pieces, *(each.manifest_id for each in self.untouched)]))

    @property
    def node_ids(self) -> Iterator[NodeId]:
        """The arrays whose references it will hold."""
        yield from (piece.node_id for piece in self.pieces)
        yield from self.fresh
        yield from (node.id for each in self.untouched for node in each.nodes)

    def __str__(self) -> str:
        new = [f"{len(self.fresh)} new arrays"] if self.fresh else []
        return f"in set {self.set_name}: " + ", ".join([*map(str, self.pieces), *map(str, self.untouched), *new])


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """What is to be written, and what each changed array keeps; arrays not named keep all they have."""

    outputs: tuple[PlannedManifest, ...] = ()
    kept: Mapping[NodeId, tuple[ManifestRef, ...]] = field(default_factory=dict)
    """For every array whose references change: its manifests that stay linked, linked parts included."""
    linked_parts: tuple[PartRef, ...] = ()

    @property
    def fetch(self) -> tuple[ObjectId, ...]:
        """All manifests that must be read, in the order in which they are first needed."""
        return tuple(dict.fromkeys(m for output in self.outputs for m in output.fetch))

    def __str__(self) -> str:
        lines = [f"{len(self.outputs)} manifests to write, {len(self.fetch)} to read, {len(self.linked_parts)} linked"]
        return "\n".join([*lines, *(f"  {output}" for output in self.outputs)])


def choose_cell_shape(node: ArrayNode, config: ManifestConfig) -> CellShape:
    """The cells an array is cut into, so that those it has stay; the whole grid when it is not cut."""
    cutting = place(node, math.prod(node.grid), config).cutting
    return tuple(node.grid) if cutting is None else cutting.shape_for(node, _known_boxes(node))


def cut_table(node: ArrayNode, table: ChunkTable, config: ManifestConfig) -> Iterator[ChunkTable]:
    """The references a worker wrote, cut into tables for manifests of their own; linked, they are as the plan's."""
    cutting = place(node, math.prod(node.grid), config).cutting
    if cutting is None:
        yield table
        return
    _, cells = cut_rows(node, table, cutting.shape_for(node, _known_boxes(node)), cutting)
    for cell in cells:
        yield from halve(take(table, cell.rows), cutting.limit or cell.count)


def _known_boxes(node: ArrayNode) -> Boxes:
    return box_array([ref.extents for ref in node.manifests if ref.extents], len(node.grid))


def plan_manifests(
    arrays: Iterable[ArrayNode],
    infos: Mapping[ObjectId, ManifestFileInfo],
    edits: Mapping[NodeId, ArrayEdits],
    config: ManifestConfig,
) -> ManifestPlan:
    """Decide how edits become manifests.

    `arrays` are all arrays of the new snapshot with the manifests they had in the base (a new array has none, a deleted
    one is not listed), `infos` the manifests of the base. An array whose grid became smaller is in `edits`.
    """
    return _plan(arrays, infos, edits, config, frozenset())


def plan_repack(
    arrays: Iterable[ArrayNode], infos: Mapping[ObjectId, ManifestFileInfo], config: ManifestConfig
) -> ManifestPlan:
    """Decide how everything is packed anew after the configuration; cells that are as they should be stay."""
    listed = list(arrays)
    return _plan(listed, infos, {}, config, frozenset(node.id for node in listed if node.manifests))


def _plan(
    arrays: Iterable[ArrayNode],
    infos: Mapping[ObjectId, ManifestFileInfo],
    edits: Mapping[NodeId, ArrayEdits],
    config: ManifestConfig,
    repacked: frozenset[NodeId],
) -> ManifestPlan:
    nodes = {node.id: node for node in arrays}
    fresh: list[Package] = []
    if isinstance(edits, BulkEdits) and can_alike(config):
        fresh, cut = _place_fresh(edits.fresh, nodes, config)
        edits = {**edits.arrays, **cut}
    edits = {key: change for key, change in edits.items() if key in nodes and change.says_something()}
    places = _Placements(nodes, infos, edits, config)
    shared = _shared_manifests(nodes.values()) if repacked else frozenset()

    outputs: list[PlannedManifest] = []
    kept: dict[NodeId, tuple[ManifestRef, ...]] = {}
    linked: list[PartRef] = []
    modified: set[NodeId] = set()
    for key in sorted(edits.keys() | repacked, key=lambda k: nodes[k].path):
        node, change, cutting = nodes[key], edits.get(key, ArrayEdits()), places[key].cutting
        listed = list_items(node, change, infos)
        has_rows = change.table is not None and len(change.table) > 0
        if cutting is None and (has_rows or key in repacked or not listed.settled):
            modified.add(key)
            kept[key] = ()
            continue
        if key in repacked and cutting is not None:
            regions = plan_recut(node, listed, cutting, shared)
        else:
            regions = plan_regions(node, change, listed, cutting or Cutting(None, None))
        outputs += [PlannedManifest(places[key].target, (piece,)) for piece in regions.pieces]
        kept[key] = regions.kept
        linked += regions.linked
    small = _plan_small(nodes, places, modified, edits, config, infos, fresh)
    outputs += small
    for output in small:
        kept.update(dict.fromkeys(output.node_ids, ()))
    return ManifestPlan(tuple(outputs), kept, tuple(linked))


def _place_fresh(
    fresh: ChunkTables, nodes: Mapping[NodeId, ArrayNode], config: ManifestConfig
) -> tuple[list[Package], dict[NodeId, ArrayEdits]]:
    """The arrays that a set takes whole, as packages, and the edits of those that are cut into cells."""
    alike = AlikePlacements(config)
    packages: list[Package] = []
    cut: dict[NodeId, ArrayEdits] = {}
    for node_id in fresh.nodes:
        node = nodes.get(node_id)
        if node is None:
            continue
        size, placement = alike.place(node)
        if placement.cutting is None:
            packages.append(Package(node_id, node.path, size, placement.target))
        else:
            cut[node_id] = ArrayEdits(fresh[node_id])
    return packages, cut


class _Placements(dict[NodeId, Placement]):
    """Where arrays belong, found when asked: a commit to one large array looks at no other."""

    def __init__(
        self,
        nodes: Mapping[NodeId, ArrayNode],
        infos: Mapping[ObjectId, ManifestFileInfo],
        edits: Mapping[NodeId, ArrayEdits],
        config: ManifestConfig,
    ) -> None:
        super().__init__()
        self._nodes, self._infos, self._edits, self._config = nodes, infos, edits, config
        self._counting = any(rule.initialized_chunks for rule in config.rules)
        self._alike = AlikePlacements(config) if can_alike(config) else None

    def __missing__(self, key: NodeId) -> Placement:
        node = self._nodes[key]
        if self._alike is not None:
            self[key] = placement = self._alike.place(node)[1]
        else:
            self[key] = placement = place(node, self._count_written(node), self._config)
        return placement

    def _count_written(self, node: ArrayNode) -> int:
        """At most: what the manifests hold inside the array's extents, and its edits."""
        if not self._counting:
            return math.prod(node.grid)
        change = self._edits.get(node.id)
        total = sum(item.count for item in list_items(node, change, self._infos).items)
        if change is not None and change.table is not None:
            total += len(change.table)
        return min(total, math.prod(node.grid))


def _shared_manifests(nodes: Iterable[ArrayNode]) -> frozenset[ObjectId]:
    tenants = Counter(m for node in nodes for m in {ref.manifest_id for ref in node.manifests})
    return frozenset(m for m, count in tenants.items() if count > 1)


def _plan_small(
    nodes: Mapping[NodeId, ArrayNode],
    places: Mapping[NodeId, Placement],
    modified: set[NodeId],
    edits: Mapping[NodeId, ArrayEdits],
    config: ManifestConfig,
    infos: Mapping[ObjectId, ManifestFileInfo],
    fresh: Sequence[Package],
) -> list[PlannedManifest]:
    """Pack the closure of the modified arrays by sets; arrays that are cut into cells take no part in it."""
    if not modified and not fresh:
        return []
    arrays_of: dict[ObjectId, list[NodeId]] = defaultdict(list)
    for key, node in nodes.items():
        if node.manifests:
            for manifest_id in _manifests_of(node):
                arrays_of[manifest_id].append(key)
    if arrays_of:
        reached = closure(modified, _PackedManifests(nodes, places), arrays_of)
        dragged = [key for key in reached if places[key].cutting is None]
    else:
        dragged = list(modified)
    untouched: Mapping[str, int] = {}
    if any(entry.cardinality is not None for entry in config.sets):
        consumed = {m for key in dragged for m in _manifests_of(nodes[key])}
        kept = {m: [key for key in keys if places[key].cutting is None] for m, keys in arrays_of.items()}
        left = {m: keys for m, keys in kept.items() if m not in consumed and keys}
        untouched = _count_untouched(left, places, config, infos)
    packages = [
        Package(key, nodes[key].path, math.prod(nodes[key].grid), places[key].target)
        for key in sorted(dragged, key=lambda k: nodes[k].path)
    ]
    known = {package.node_id for package in packages}
    outputs = []
    for packed in pack([*packages, *fresh], config, untouched):
        keys = [package.node_id for package in packed.packages]
        old = [key for key in keys if key in known] if known else []
        new = [key for key in keys if key not in known] if old else keys
        outputs.append(_planned(packed.set_name, [nodes[key] for key in old], edits, infos, tuple(new)))
    return outputs


def _planned(
    set_name: str,
    nodes: Iterable[ArrayNode],
    edits: Mapping[NodeId, ArrayEdits],
    infos: Mapping[ObjectId, ManifestFileInfo],
    fresh: tuple[NodeId, ...],
) -> PlannedManifest:
    """A manifest with all of some arrays, those that need no looking into put together."""
    pieces: list[Piece] = []
    untouched: dict[ObjectId, list[ArrayNode]] = defaultdict(list)
    for node in nodes:
        if len(node.manifests) == 1 and node.id not in edits:
            untouched[node.manifests[0].manifest_id].append(node)
        else:
            pieces.append(_whole_piece(node, edits.get(node.id), infos))
    taken = tuple(Untouched(manifest_id, tuple(alike)) for manifest_id, alike in untouched.items())
    return PlannedManifest(set_name, tuple(pieces), fresh, taken)


def _manifests_of(node: ArrayNode) -> tuple[ObjectId, ...]:
    if len(node.manifests) < 2:
        return (node.manifests[0].manifest_id,) if node.manifests else ()
    return tuple(dict.fromkeys(ref.manifest_id for ref in node.manifests))


class _PackedManifests:
    """The manifests by which an array drags others along; one that is cut into cells drags nobody."""

    def __init__(self, nodes: Mapping[NodeId, ArrayNode], places: Mapping[NodeId, Placement]) -> None:
        self._nodes, self._places = nodes, places

    def get(self, key: NodeId, default: tuple[ObjectId, ...] = ()) -> tuple[ObjectId, ...]:
        return _manifests_of(self._nodes[key]) if self._places[key].cutting is None else default


def _count_untouched(
    untouched: Mapping[ObjectId, list[NodeId]],
    places: Mapping[NodeId, Placement],
    config: ManifestConfig,
    infos: Mapping[ObjectId, ManifestFileInfo],
) -> Counter[str]:
    """The manifests that stay, by the set they belong to.

    Files do not name their set: it is the last one, in overflow order, that a rule sends one of their arrays to, or
    the next after it that takes a manifest of that size.
    """
    rank = {entry.name: i for i, entry in enumerate(topological_order(config.sets))}
    counted: Counter[str] = Counter()
    for manifest_id, keys in untouched.items():
        entry = config.find_set(max((places[key].target for key in keys), key=rank.__getitem__))
        info = infos.get(manifest_id)
        size = 0 if info is None else info.num_chunk_refs
        while entry.overflow_to is not None and entry.max_manifest_size is not None and size > entry.max_manifest_size:
            entry = config.find_set(entry.overflow_to)
        counted[entry.name] += 1
    return counted


def _whole_piece(node: ArrayNode, change: ArrayEdits | None, infos: Mapping[ObjectId, ManifestFileInfo]) -> Piece:
    box = full_box(node)
    listed = list_items(node, change, infos)
    rows = slice(None) if change is not None and change.table is not None else None
    return Piece(node.id, node.path, box, _sources(listed.items), rows)


def _sources(items: Sequence[Item]) -> tuple[Source, ...]:
    return tuple(item.source for item in sorted(items, key=lambda item: item.layer)) if items else ()
