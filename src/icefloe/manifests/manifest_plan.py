"""Plan and build the manifests of a snapshot: which stay, which are rewritten, their content, and which to preload."""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from icefloe.ids import NodeId, ObjectId, new_object_id
from icefloe.manifests.cells import (
    ArrayEdits,
    Boxes,
    BulkEdits,
    Cutting,
    LinkedManifest,
    ManifestSource,
    OutputSlice,
    PartRef,
    box_array,
    configured_cell_shape,
    cut_rows,
    filter_box,
    full_box,
    halve,
    intersect,
    list_items,
    plan_recut,
    plan_regions,
)
from icefloe.manifests.chunk_columns import (
    Rows,
    bounding_rows,
    compact_inline,
    compact_locations,
    merge_edits,
    overlay,
    take,
)
from icefloe.manifests.few_edits import crossing_box, plan_few_edits
from icefloe.model.chunk_table import ChunkTable, ChunkTables, concat_tables, empty_table, join_tables
from icefloe.model.manifest_conditions import ArrayFacts
from icefloe.model.manifest_config import (
    ANY_PATH,
    DEFAULT_SET,
    SPECIFIED,
    ManifestConfig,
    ManifestPreloadConfig,
    ManifestSet,
    PreloadRules,
)
from icefloe.model.manifest_lists import EditedList, ListedRefs, ManifestList
from icefloe.model.snapshot import (
    ArrayNode,
    Extents,
    Manifest,
    ManifestFileInfo,
    ManifestRef,
    Snapshot,
    join_refs,
    manifest_ids,
)

A = TypeVar("A")
M = TypeVar("M")
A_contra = TypeVar("A_contra", contravariant=True)
M_co = TypeVar("M_co", covariant=True)


class ManifestsOfArrays(Protocol[A_contra, M_co]):
    """Looks up the manifests of one array at a time."""

    def get(self, key: A_contra, default: tuple[()] = (), /) -> Iterable[M_co]: ...


def closure(modified: Iterable[A], manifests_of: ManifestsOfArrays[A, M], arrays_of: Mapping[M, Iterable[A]]) -> set[A]:
    """All arrays that share a rewritten manifest with these arrays. A new array has no manifest yet."""
    found = set(modified)
    waiting = list(found)
    seen: set[M] = set()
    while waiting:
        for manifest in manifests_of.get(waiting.pop(), ()):
            if manifest not in seen:
                seen.add(manifest)
                for array in arrays_of[manifest]:
                    if array not in found:
                        found.add(array)
                        waiting.append(array)
    return found


class Package(NamedTuple):
    """An array to pack: its size in chunks and the set of its rule."""

    node_id: NodeId
    path: str
    size: int
    target: str


@dataclass(frozen=True, slots=True)
class Bin:
    """A planned manifest: its set and its arrays."""

    set_name: str
    packages: tuple[Package, ...]


_PATH, _SIZE = attrgetter("path"), attrgetter("size")


def find_target(config: ManifestConfig, path: str, metadata_chunks: int, initialized_chunks: int) -> str:
    """The set of the first rule that matches, or the default set."""
    for rule in config.rules:
        if rule.matches(path, metadata_chunks, initialized_chunks):
            return rule.target
    return DEFAULT_SET


def topological_order(sets: Sequence[ManifestSet]) -> list[ManifestSet]:
    """Sets in an order where overflow always goes to a later one. Ties keep the order of the configuration."""
    remaining = list(sets)
    ordered: list[ManifestSet] = []
    while remaining:
        targets = {s.overflow_to for s in remaining}
        chosen = next(s for s in remaining if s.name not in targets)
        ordered.append(chosen)
        remaining.remove(chosen)
    return ordered


def pack(packages: Iterable[Package], config: ManifestConfig, carried_over: Mapping[str, int]) -> list[Bin]:
    """Put every package in exactly one bin. `carried_over` counts the unchanged manifests of each set."""
    waiting: dict[str, list[Package]] = {s.name: [] for s in config.sets}
    for package in packages:
        waiting[package.target].append(package)
    result: list[Bin] = []
    for entry in topological_order(config.sets):
        oversized, groups = _pack_set(waiting[entry.name], entry)
        if entry.overflow_to is None:
            result += [Bin(entry.name, (package,)) for package in oversized]
        else:
            waiting[entry.overflow_to] += oversized
        allowed = len(groups)
        if entry.cardinality is not None:
            allowed = max(0, entry.cardinality - carried_over.get(entry.name, 0))
        result += [Bin(entry.name, tuple(group)) for group in groups[:allowed]]
        for group in groups[allowed:]:
            assert entry.overflow_to is not None, "only the default set has no overflow, and it has no cardinality"
            waiting[entry.overflow_to] += group
    return result


def _pack_set(packages: list[Package], entry: ManifestSet) -> tuple[list[Package], list[list[Package]]]:
    """The arrays too large for the set, and the bins of the others, fullest first."""
    ordered = sorted(sorted(packages, key=_PATH), key=_SIZE, reverse=True)
    if entry.arrays_per_manifest is not None:
        return [], _pair(ordered, entry.arrays_per_manifest)
    assert entry.max_manifest_size is not None and entry.shared_size is not None
    oversized = [p for p in ordered if p.size > entry.max_manifest_size]
    return oversized, _fit(ordered[len(oversized) :], entry.shared_size)


def _fit(ordered: Sequence[Package], limit: int) -> list[list[Package]]:
    """Best fit decreasing: into the fullest bin with enough free space, found by bisection.

    A package that is larger than the limit is alone in its bin.
    """
    bins: list[list[Package]] = [[package] for package in ordered if package.size > limit]
    ordered = ordered[len(bins) :]
    free: list[tuple[int, int]] = []  # (free space, -bin) so that among equals the first bin is the last entry
    for size, alike in groupby(ordered, key=_SIZE):
        waiting = list(alike)
        while waiting:
            position = bisect.bisect_left(free, (size, -len(bins)))
            if position == len(free):
                bins.append([])
                left, index = limit, len(bins) - 1
            else:
                left, negative = free.pop(position)
                index = -negative
            # The bin of a package is also the best for the next packages of this size, until they do not fit.
            taken = min(left // size, len(waiting)) if size else len(waiting)
            bins[index] += waiting[:taken]
            del waiting[:taken]
            bisect.insort(free, (left - taken * size, -index))
    return sorted(bins, key=lambda group: -sum(p.size for p in group))


def _pair(ordered: Sequence[Package], count: int) -> list[list[Package]]:
    """`count` arrays per bin, the largest with the smallest, so that bins have similar sizes."""
    left = deque(ordered)
    bins: list[list[Package]] = []
    while left:
        group: list[Package] = []
        while left and len(group) < count:
            group.append(left.popleft() if len(group) % 2 == 0 else left.pop())
        bins.append(group)
    return bins


@dataclass(frozen=True, slots=True)
class Placement:
    """The target of an array: packed by a set, or split into separate cells."""

    target: str
    cutting: Cutting | None


def place(node: ArrayNode, initialized: int, config: ManifestConfig) -> Placement:
    """Follow the rules and, by size, the overflow, until a set packs the array or splits it."""
    size = math.prod(node.grid)
    target = find_target(config, node.path, size, initialized)
    asked = configured_cell_shape(node, config)
    if asked is not None and any(n < length for n, length in zip(asked, node.grid, strict=True)):
        return Placement(target, Cutting(asked, None))
    return _place_by_size(target, size, config)


def _place_by_size(target: str, size: int, config: ManifestConfig) -> Placement:
    entry = config.find_set(target)
    while True:
        if entry.split_size is not None and size > entry.split_size:
            return Placement(target, Cutting(None, min(entry.split_size, entry.max_manifest_size or entry.split_size)))
        if entry.max_manifest_size is None or size <= entry.max_manifest_size:
            return Placement(target, None)
        if entry.overflow_to is None:
            return Placement(target, Cutting(None, entry.max_manifest_size))
        entry = config.find_set(entry.overflow_to)


def is_placed_by_path_and_grid(config: ManifestConfig) -> bool:
    """Whether the placement of an array depends only on its path and grid."""
    return config.splitting is None and not any(rule.initialized_chunks for rule in config.rules)


class PlacementCache:
    """Caches placements by path and grid. Thousands of arrays often have the same grid."""

    def __init__(self, config: ManifestConfig) -> None:
        self._config = config
        self._by_path = any(rule.path not in (None, ANY_PATH) for rule in config.rules)
        self._by_size: dict[tuple[str, int], Placement] = {}
        self._by_grid: dict[tuple[int, ...], tuple[int, Placement]] = {}

    def place(self, node: ArrayNode) -> tuple[int, Placement]:
        """The number of chunks in the grid of an array, and its placement."""
        known = self._by_grid.get(node.grid)
        if known is not None:
            return known
        size = math.prod(node.grid)
        target = find_target(self._config, node.path, size, size)
        found = self._by_size.get((target, size))
        if found is None:
            found = self._by_size[target, size] = _place_by_size(target, size, self._config)
        if not self._by_path:
            self._by_grid[node.grid] = (size, found)
        return size, found


@dataclass(frozen=True, slots=True)
class CarriedOver:
    """Arrays of one manifest that have no other, and no edits."""

    manifest_id: ObjectId
    nodes: tuple[ArrayNode, ...]

    def __str__(self) -> str:
        return f"{len(self.nodes)} untouched arrays of {self.manifest_id}"


def visible_box(node: ArrayNode) -> Extents:
    """The box that the only manifest of an array covers."""
    whole = full_box(node)
    return intersect(node.manifests[0].extents or whole, whole)


def take_carried_over(
    tables: Mapping[NodeId, ChunkTable], nodes: Sequence[ArrayNode]
) -> tuple[ChunkTables, list[ArrayNode]]:
    """The references of arrays whose references are all visible. Other arrays are returned, to be built one by one.

    Early writers left references of other arrays behind, and a manifest may contain references outside of its extents.
    """
    present = [node for node in nodes if node.id in tables]
    if isinstance(tables, ChunkTables):
        found = tables.select(tables.positions([node.id for node in present]))
    else:
        found = join_tables({node.id: tables[node.id] for node in present if len(tables[node.id])})
        by_id = {node.id: node for node in present}
        present = [by_id[node_id] for node_id in found.nodes]
    if not present:
        return found, []
    shown = _shows_all(found, present)
    if bool(shown.all()):
        return found, []
    return found.select(np.flatnonzero(shown)), [present[index] for index in np.flatnonzero(~shown).tolist()]


def _shows_all(tables: ChunkTables, nodes: Sequence[ArrayNode]) -> npt.NDArray[np.bool_]:
    """Whether the references of every array have its rank and are inside of the box of its manifest."""
    width = tables.rows.coords.shape[1]
    known: dict[tuple[tuple[int, ...], Extents], list[int]] = {}
    allowed = []
    for node in nodes:
        key = node.grid, node.manifests[0].extents
        bounds = known.get(key)
        if bounds is None:
            box = (*visible_box(node), *[(0, 1)] * width)[:width]
            bounds = known[key] = [len(node.grid), *(first for first, _ in box), *(end for _, end in box)]
        allowed.append(bounds)
    limits = np.array(allowed, dtype=np.int64)
    found = bounding_rows(tables)
    inside: npt.NDArray[np.bool_] = found[:, 0] == limits[:, 0]
    inside &= (found[:, 1 : 1 + width] >= limits[:, 1 : 1 + width]).all(axis=1)
    inside &= (found[:, 1 + width :] <= limits[:, 1 + width :]).all(axis=1)
    return inside


@dataclass(frozen=True, slots=True)
class PlannedManifest:
    """A manifest to write. A piece with a limit may become several manifests. A piece without chunks becomes none."""

    set_name: str
    slices: tuple[OutputSlice, ...]
    fresh: tuple[NodeId, ...] = ()
    """Arrays of `BulkEdits.fresh` that it contains completely."""
    carried_over: tuple[CarriedOver, ...] = ()

    @property
    def fetch(self) -> tuple[ObjectId, ...]:
        """The manifests that are needed to build it."""
        of_slices = (source.manifest_id for slice_ in self.slices for source in slice_.sources)
        return tuple(dict.fromkeys([*of_slices, *(each.manifest_id for each in self.carried_over)]))

    @property
    def node_ids(self) -> Iterator[NodeId]:
        """The arrays whose references it will contain."""
        yield from (slice_.node_id for slice_ in self.slices)
        yield from self.fresh
        yield from (node.id for each in self.carried_over for node in each.nodes)

    def __str__(self) -> str:
        new = [f"{len(self.fresh)} new arrays"] if self.fresh else []
        return f"in set {self.set_name}: " + ", ".join([*map(str, self.slices), *map(str, self.carried_over), *new])


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """The manifests to write, and the manifests that each changed array keeps. Other arrays do not change."""

    outputs: tuple[PlannedManifest, ...] = ()
    kept: Mapping[NodeId, Sequence[ManifestRef]] = field(default_factory=dict)
    """For every array whose references change: its manifests that stay linked, linked parts included."""
    linked_parts: tuple[PartRef, ...] = ()

    @property
    def fetch(self) -> tuple[ObjectId, ...]:
        """All manifests to read, in the order of their first use."""
        return tuple(dict.fromkeys(m for output in self.outputs for m in output.fetch))

    def __str__(self) -> str:
        lines = [f"{len(self.outputs)} manifests to write, {len(self.fetch)} to read, {len(self.linked_parts)} linked"]
        return "\n".join([*lines, *(f"  {output}" for output in self.outputs)])


def cut_table(node: ArrayNode, table: ChunkTable, config: ManifestConfig) -> Iterator[ChunkTable]:
    """Split the references of a worker into tables for separate manifests, as a plan would."""
    cutting = place(node, math.prod(node.grid), config).cutting
    if cutting is None:
        yield table
        return
    _, cells = cut_rows(node, table, cutting.shape_for(node, _known_boxes(node)), cutting)
    for cell in cells:
        yield from halve(take(table, cell.rows), cutting.limit or cell.count)


def pack_parts(written: Iterable[tuple[ArrayNode, ChunkTable]], config: ManifestConfig) -> Iterator[PartTables]:
    """Divide the references of a worker into manifests: arrays of one set share one, up to the size of a split.

    A worker that writes a few chunks of many arrays writes one file, and not one for each array.
    """
    waiting: dict[str, PartTables] = {}
    counts: Counter[str] = Counter()
    for node, table in written:
        entry = config.find_set(place(node, math.prod(node.grid), config).target)
        limit = min((n for n in (entry.split_size, entry.shared_size) if n is not None), default=0)
        if entry.arrays_per_manifest is not None:
            limit = 0
        for cell in cut_table(node, table, config):
            together = waiting.get(entry.name, {})
            if together and (node.id in together or counts[entry.name] + len(cell) > limit):
                # The larger one is full enough. The other one waits for more.
                if len(cell) >= counts[entry.name]:
                    yield {node.id: cell}
                    continue
                yield waiting.pop(entry.name)
                counts[entry.name] = 0
            waiting.setdefault(entry.name, {})[node.id] = cell
            counts[entry.name] += len(cell)
    yield from waiting.values()


PartTables = dict[NodeId, ChunkTable]
"""The references of a manifest, by array."""


def _known_boxes(node: ArrayNode) -> Boxes:
    if isinstance(node.manifests, ListedRefs):
        return crossing_box(node.manifests)
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
    """Plan to repack everything by the configuration. Cells that already fit it stay."""
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
    if isinstance(edits, BulkEdits) and is_placed_by_path_and_grid(config):
        fresh, cut = _place_fresh(edits.fresh, nodes, config)
        edits = {**edits.arrays, **cut}
    edits = {key: change for key, change in edits.items() if key in nodes and change.has_changes()}
    places = _Placements(nodes, infos, edits, config)
    shared = _shared_manifests(nodes.values()) if repacked else frozenset()

    outputs: list[PlannedManifest] = []
    kept: dict[NodeId, Sequence[ManifestRef]] = {}
    linked: list[PartRef] = []
    modified: set[NodeId] = set()
    for key in sorted(edits.keys() | repacked, key=lambda k: nodes[k].path):
        node, change, cutting = nodes[key], edits.get(key, ArrayEdits()), places[key].cutting
        regions = None if cutting is None or key in repacked else plan_few_edits(node, change, infos, cutting)
        if regions is None:
            listed = list_items(node, change, infos)
            has_rows = change.table is not None and len(change.table) > 0
            if cutting is None and (has_rows or key in repacked or not listed.reusable):
                modified.add(key)
                kept[key] = ()
                continue
            if key in repacked and cutting is not None:
                regions = plan_recut(node, listed, cutting, shared)
            else:
                regions = plan_regions(node, change, listed, cutting or Cutting(None, None))
        outputs += [PlannedManifest(places[key].target, (slice_,)) for slice_ in regions.slices]
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
    """The arrays that sets pack, as packages, and the edits of arrays that are split into cells."""
    alike = PlacementCache(config)
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
    """Placements of arrays, computed on demand. A commit to one large array does not look at others."""

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
        self._placements = PlacementCache(config) if is_placed_by_path_and_grid(config) else None

    def __missing__(self, key: NodeId) -> Placement:
        node = self._nodes[key]
        if self._placements is not None:
            self[key] = placement = self._placements.place(node)[1]
        else:
            self[key] = placement = place(node, self._count_written(node), self._config)
        return placement

    def _count_written(self, node: ArrayNode) -> int:
        """An upper bound: the references of its manifests inside of its extents, and its edits."""
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
    """Pack the closure of the modified arrays by sets, without arrays that are split into cells."""
    if not modified and not fresh:
        return []
    arrays_of: dict[ObjectId, list[NodeId]] = defaultdict(list)
    for key, node in nodes.items():
        # An array that is split into cells is not packed again. Those of a large array are not even loaded.
        if node.manifests and not (isinstance(node.manifests, ListedRefs) and places[key].cutting is not None):
            for manifest_id in _manifests_of(node):
                arrays_of[manifest_id].append(key)
    if arrays_of:
        reached = closure(modified, _PackedManifests(nodes, places), arrays_of)
        dragged = [key for key in reached if places[key].cutting is None]
    else:
        dragged = list(modified)
    carried_over: Mapping[str, int] = {}
    if any(entry.cardinality is not None for entry in config.sets):
        consumed = {m for key in dragged for m in _manifests_of(nodes[key])}
        kept = {m: [key for key in keys if places[key].cutting is None] for m, keys in arrays_of.items()}
        left = {m: keys for m, keys in kept.items() if m not in consumed and keys}
        carried_over = _count_carried_over(left, places, config, infos)
    packages = [
        Package(key, nodes[key].path, math.prod(nodes[key].grid), places[key].target)
        for key in sorted(dragged, key=lambda k: nodes[k].path)
    ]
    known = {package.node_id for package in packages}
    outputs = []
    for packed in pack([*packages, *fresh], config, carried_over):
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
    """A manifest with some complete arrays. Arrays that need no filtering are joined."""
    slices: list[OutputSlice] = []
    carried_over: dict[ObjectId, list[ArrayNode]] = defaultdict(list)
    for node in nodes:
        if len(node.manifests) == 1 and node.id not in edits:
            carried_over[node.manifests[0].manifest_id].append(node)
        else:
            slices.append(_whole_slice(node, edits.get(node.id), infos))
    taken = tuple(CarriedOver(manifest_id, tuple(alike)) for manifest_id, alike in carried_over.items())
    return PlannedManifest(set_name, tuple(slices), fresh, taken)


def _manifests_of(node: ArrayNode) -> tuple[ObjectId, ...]:
    if len(node.manifests) < 2:
        return (node.manifests[0].manifest_id,) if node.manifests else ()
    return tuple(dict.fromkeys(ref.manifest_id for ref in node.manifests))


class _PackedManifests:
    """The manifests that an array shares with others. An array split into cells shares none."""

    def __init__(self, nodes: Mapping[NodeId, ArrayNode], places: Mapping[NodeId, Placement]) -> None:
        self._nodes, self._places = nodes, places

    def get(self, key: NodeId, default: tuple[ObjectId, ...] = ()) -> tuple[ObjectId, ...]:
        return _manifests_of(self._nodes[key]) if self._places[key].cutting is None else default


def _count_carried_over(
    carried_over: Mapping[ObjectId, list[NodeId]],
    places: Mapping[NodeId, Placement],
    config: ManifestConfig,
    infos: Mapping[ObjectId, ManifestFileInfo],
) -> Counter[str]:
    """The manifests that stay, by the set they belong to.

    Files do not record their set. It is the last set, in overflow order, of the rules of its arrays, or the next one
    after it that allows a manifest of that size.
    """
    rank = {entry.name: i for i, entry in enumerate(topological_order(config.sets))}
    counted: Counter[str] = Counter()
    for manifest_id, keys in carried_over.items():
        entry = config.find_set(max((places[key].target for key in keys), key=rank.__getitem__))
        info = infos.get(manifest_id)
        size = 0 if info is None else info.num_chunk_refs
        while entry.overflow_to is not None and entry.max_manifest_size is not None and size > entry.max_manifest_size:
            entry = config.find_set(entry.overflow_to)
        counted[entry.name] += 1
    return counted


def _whole_slice(node: ArrayNode, change: ArrayEdits | None, infos: Mapping[ObjectId, ManifestFileInfo]) -> OutputSlice:
    box = full_box(node)
    listed = list_items(node, change, infos)
    rows = slice(None) if change is not None and change.table is not None else None
    return OutputSlice(node.id, node.path, box, _sources(listed.items), rows)


def _sources(items: Sequence[LinkedManifest]) -> tuple[ManifestSource, ...]:
    return tuple(item.source for item in sorted(items, key=lambda item: item.layer)) if items else ()


Fetch = Callable[[ObjectId], Manifest]

_FEW_ARRAYS = 8
"""Up to this many arrays, separate tables are as fast as common columns."""
_SMALL_INLINE_BYTES = 1 << 12


@dataclass(frozen=True, slots=True)
class BuiltManifest:
    """A manifest that is ready to write, and the link to it for each of its arrays."""

    manifest: Manifest
    refs: Mapping[NodeId, ManifestRef]


def build_output(
    output: PlannedManifest,
    fetch: Fetch,
    edits: Mapping[NodeId, ArrayEdits],
    new_id: Callable[[], ObjectId] = new_object_id,
) -> Iterator[BuiltManifest]:
    """Build the manifests of one output. Outputs are independent and can be built concurrently."""
    together: dict[NodeId, ChunkTable] = {}
    for slice_ in output.slices:
        table = build_slice(slice_, fetch, edits.get(slice_.node_id))
        if len(table) == 0:
            continue
        if slice_.limit is None or len(table) <= slice_.limit:
            together[slice_.node_id] = table
        else:
            for part in halve(table, slice_.limit):
                yield _built({slice_.node_id: part}, new_id())
    parts: list[ChunkTables] = []
    for carried_over in output.carried_over:
        taken, others = take_carried_over(fetch(carried_over.manifest_id).tables, carried_over.nodes)
        parts.append(taken)
        for node in others:
            source = ManifestSource(carried_over.manifest_id, visible_box(node))
            table = build_slice(OutputSlice(node.id, node.path, full_box(node), (source,)), fetch, None)
            together |= {node.id: table} if len(table) else {}
    if output.fresh:
        assert isinstance(edits, BulkEdits), "only these have fresh arrays"
        parts.append(edits.fresh.select(edits.fresh.positions(output.fresh)))
    if not parts:
        if together:
            yield build_manifest(together, new_id())
        return
    tables = concat_tables([join_tables(together), *parts]).by_id()
    if len(tables):
        yield _built_together(tables, new_id())


def output_sources(output: PlannedManifest) -> tuple[object, ...]:
    """What an output is built from, besides edits. Equal for outputs with the same references before the edits."""
    slices = tuple((each.node_id, each.box, each.sources, each.limit, each.rows is None) for each in output.slices)
    carried_over = tuple(
        (each.manifest_id, tuple((node.id, node.grid, node.manifests[0].extents) for node in each.nodes))
        for each in output.carried_over
    )
    return slices, output.fresh, carried_over


def edited_rows(output: PlannedManifest, edits: Mapping[NodeId, ArrayEdits]) -> list[object]:
    """The edits that an output contains, as values that can be compared."""
    found: list[object] = []
    for slice_ in output.slices:
        table = edits[slice_.node_id].table if slice_.rows is not None else None
        if table is not None and slice_.rows is not None:
            found.append(table if _is_all(slice_.rows) else take(table, slice_.rows))
    if output.fresh:
        assert isinstance(edits, BulkEdits), "only these have fresh arrays"
        chosen = edits.fresh.select(edits.fresh.positions(output.fresh))
        found += [chosen.counts.tolist(), chosen.ndims.tolist(), chosen.rows]
    return found


def build_slice(slice_: OutputSlice, fetch: Fetch, change: ArrayEdits | None) -> ChunkTable:
    """The references of one piece after the edits."""
    ndim = len(slice_.box)
    layers: list[ChunkTable] = []
    for source in slice_.sources:
        table = fetch(source.manifest_id).tables.get(slice_.node_id)
        # Early writers left references of other arrays behind. Those of another rank do not belong to this array.
        if table is not None and table.ndim == ndim:
            layers.append(filter_box(table, intersect(source.extents, slice_.box)))
    if len(layers) == 1:
        base = layers[0]
    else:
        base = overlay(*layers) if layers else empty_table(ndim)
    if slice_.rows is None or change is None or change.table is None:
        return base
    return merge_edits(base, change.table if _is_all(slice_.rows) else take(change.table, slice_.rows))


def _is_all(rows: Rows | None) -> bool:
    return isinstance(rows, slice) and rows == slice(None)


def build_manifest(tables: Mapping[NodeId, ChunkTable], manifest_id: ObjectId) -> BuiltManifest:
    """A manifest with the references of some arrays."""
    if len(tables) <= _FEW_ARRAYS:
        return _built(dict(sorted(tables.items())), manifest_id)
    return _built_together(join_tables(tables).by_id(), manifest_id)


def _built(tables: Mapping[NodeId, ChunkTable], manifest_id: ObjectId) -> BuiltManifest:
    # Every commit to a chunk would leave the bytes of the chunk before it in memory.
    compacted = {
        key: compact_locations(compact_inline(table) if len(table.inline) > _SMALL_INLINE_BYTES else table)
        for key, table in tables.items()
    }
    refs = {key: ManifestRef(manifest_id, table.extents()) for key, table in tables.items()}
    return BuiltManifest(Manifest(manifest_id, compacted), refs)


def _built_together(tables: ChunkTables, manifest_id: ObjectId) -> BuiltManifest:
    rows = compact_locations(compact_inline(tables.rows))
    refs = _share_refs(manifest_id, tables)
    return BuiltManifest(Manifest(manifest_id, replace(tables, rows=rows)), dict(zip(tables.nodes, refs, strict=True)))


def _share_refs(manifest_id: ObjectId, tables: ChunkTables) -> list[ManifestRef]:
    """The link of every array to its manifest. Arrays whose chunks fill the same box share one value."""
    boxes = bounding_rows(tables)
    keys = boxes.view(f"V{boxes.itemsize * boxes.shape[1]}")[:, 0].tolist()
    made = {}
    for key, index in dict(zip(keys, range(len(keys)), strict=True)).items():
        ndim, *corners = boxes[index].tolist()
        width = len(corners) // 2
        made[key] = ManifestRef(manifest_id, tuple(zip(corners[:ndim], corners[width : width + ndim], strict=True)))
    return [made[key] for key in keys]


def link_manifests(
    plan: ManifestPlan, built: Iterable[Mapping[NodeId, ManifestRef]]
) -> dict[NodeId, Sequence[ManifestRef]]:
    """The manifests of every array that the plan changes: those that stay, and the `refs` of new ones."""
    linked = dict(plan.kept)
    added: dict[NodeId, list[ManifestRef]] = {}
    alone: dict[int, tuple[ManifestRef, ...]] = {}
    for refs in built:
        for key, ref in refs.items():
            if linked.get(key):
                added.setdefault(key, []).append(ref)
                continue
            # Thousands of arrays have equal links to one manifest. They share the tuple.
            one = alone.get(id(ref))
            linked[key] = alone.setdefault(id(ref), (ref,)) if one is None else one
    for key, more in added.items():
        kept = linked[key]
        linked[key] = kept.joined(more) if isinstance(kept, ListedRefs) else join_refs(kept, more)
    return linked


_DEFAULT_ARRAYS_TO_SCAN = 50
_DEFAULT_TOTAL_REFS = 10_000


def manifests_to_preload(snapshot: Snapshot, config: ManifestConfig | None) -> list[ObjectId]:
    """The manifests to preload, in the order of the configuration. Raises ListsNotLoadedError."""
    chosen = config or SPECIFIED
    if chosen.preload is not None:
        return list(_by_condition(snapshot, chosen.preload))
    return list(_by_rules(snapshot, chosen.preload_rules))


def _by_rules(snapshot: Snapshot, rules: PreloadRules) -> Iterator[ObjectId]:
    if not rules.paths:
        return
    seen: set[ObjectId] = set()
    for path in rules.fitting(snapshot.nodes):
        for manifest_id, count in _manifests(snapshot, path):
            if rules.max_manifests is not None and len(seen) >= rules.max_manifests:
                return
            if manifest_id not in seen and (rules.max_manifest_size is None or count <= rules.max_manifest_size):
                seen.add(manifest_id)
                yield manifest_id


def _by_condition(snapshot: Snapshot, config: ManifestPreloadConfig) -> Iterator[ObjectId]:
    condition = config.preload_if
    if condition is None:
        return
    left = _DEFAULT_TOTAL_REFS if config.max_total_refs is None else config.max_total_refs
    scan = _DEFAULT_ARRAYS_TO_SCAN if config.max_arrays_to_scan is None else config.max_arrays_to_scan
    seen: set[ObjectId] = set()
    for path in snapshot.nodes:
        node = snapshot.nodes[path]
        if not isinstance(node, ArrayNode):
            continue
        scan -= 1
        if scan < 0:
            return
        for manifest_id, count in _manifests(snapshot, path):
            if manifest_id not in seen and count <= left and condition.matches(ArrayFacts(path, count)):
                seen.add(manifest_id)
                left -= count
                yield manifest_id


def _manifests(snapshot: Snapshot, path: str) -> Iterator[tuple[ObjectId, int]]:
    """The manifests of an array and the maximum number of references of each, if the snapshot does not record it."""
    node = snapshot.nodes[path]
    if isinstance(node, ArrayNode):
        refs = node.manifests
        # One list after another: most are not loaded, and the first ones may be enough.
        ids = chain.from_iterable(map(_list_ids, refs.lists)) if isinstance(refs, ListedRefs) else manifest_ids(refs)
        for manifest_id in ids:
            info = snapshot.manifests.get(manifest_id)
            known = info is not None and info.num_chunk_refs > 0
            yield manifest_id, info.num_chunk_refs if info is not None and known else math.prod(node.grid)


def _list_ids(each: ManifestList | EditedList) -> Sequence[ObjectId]:
    return each.columns.ids
