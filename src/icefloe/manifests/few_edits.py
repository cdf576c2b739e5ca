"""Edits of a few cells of an array with many manifests: planned without a look at each manifest."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter

import numpy as np

from icefloe.ids import ObjectId
from icefloe.manifests.cells import (
    FEW_CELLS,
    ArrayEdits,
    Boxes,
    CellRows,
    CellShape,
    Cutting,
    LinkedManifest,
    OutputSlice,
    Regions,
    box_array,
    cell_box,
    cut,
    cut_rows,
    group,
    group_box,
    most_references,
    overlap_any,
    overlapping_pairs,
    to_extents,
)
from icefloe.model.chunk_table import ChunkTable
from icefloe.model.manifest_lists import ListedRefs, ListsNotLoadedError, is_in_order, missing_lists
from icefloe.model.snapshot import (
    ArrayNode,
    Extents,
    ManifestFileInfo,
    ManifestRef,
    ManifestRefs,
    RefColumns,
    columns_of,
)

_MANY_MANIFESTS = 64


def plan_few_edits(
    node: ArrayNode, change: ArrayEdits, infos: Mapping[ObjectId, ManifestFileInfo], cutting: Cutting
) -> Regions | None:
    """Plan edits of a few cells of an array with many manifests, without a look at each. None for other edits.

    The result is that of `plan_regions`. No two manifests overlap, so a manifest that no group of edits reaches stays.
    Raises ListsNotLoadedError if the edits reach manifests in lists that are not loaded.
    """
    refs, table = node.manifests, change.table
    if table is None or change.parts or change.base_box is not None:
        return None
    if isinstance(refs, ListedRefs):
        return _plan_in_lists(node, refs, table, infos, cutting)
    if len(refs) < _MANY_MANIFESTS:
        return None
    columns = columns_of(refs)
    if columns is not None:
        boxes = columns.boxes
    elif all(ref.extents for ref in refs):
        boxes = box_array([ref.extents for ref in refs], len(node.grid))
    else:
        return None
    if not _are_inside(boxes, node) or len(overlapping_pairs(boxes)):
        return None
    shape, cells = cut_rows(node, table, cutting.shape_for(node, boxes), cutting)
    if not 0 < len(cells) <= FEW_CELLS:
        return None
    is_near = overlap_any(boxes, _cell_boxes(cells, shape))
    while True:
        near = np.flatnonzero(is_near).tolist()
        items = [_item(index, refs[index].manifest_id, refs[index].extents, infos) for index in near]
        groups = _edited_groups(items, cells, shape, cutting)
        is_reached = overlap_any(boxes, _reached(node, groups))
        if not (is_reached & ~is_near).any():
            break
        is_near |= is_reached
    changed, slices = _slices(node, groups, shape, cutting)
    stays = np.ones(len(refs), dtype=bool)
    stays[changed] = False
    kept: Sequence[ManifestRef]
    if columns is not None and is_in_order(boxes):
        kept = ManifestRefs.of(RefColumns([*itertools.compress(columns.ids, stays.tolist())], boxes[stays]))
    else:
        kept = tuple(sorted(itertools.compress(refs, stays.tolist()), key=attrgetter("extents")))
    return Regions(kept, (), slices)


def _plan_in_lists(
    node: ArrayNode,
    refs: ListedRefs,
    table: ChunkTable,
    infos: Mapping[ObjectId, ManifestFileInfo],
    cutting: Cutting,
) -> Regions | None:
    """The same where manifests are in lists. Their boxes are in order and do not overlap."""
    if not _are_inside(refs.bounds, node):
        return None
    shape, cells = cut_rows(node, table, cutting.shape_for(node, crossing_box(refs)), cutting)
    if not 0 < len(cells) <= FEW_CELLS:
        return None
    starts = np.cumsum([0, *map(len, refs.lists)]).tolist()
    near: dict[int, LinkedManifest] = {}
    groups: Groups | None = None
    reached = _cell_boxes(cells, shape)
    while True:
        found: dict[int, LinkedManifest] = {}
        positions = np.flatnonzero(overlap_any(refs.bounds, reached))
        lists = refs.select(positions)
        if missing := missing_lists(lists):
            raise ListsNotLoadedError(missing)
        for position, each in zip(positions.tolist(), lists, strict=True):
            boxes = each.columns.boxes
            for row in np.flatnonzero(overlap_any(boxes, reached)).tolist():
                index = starts[position] + row
                if index not in near:
                    found[index] = _item(index, each.columns.ids[row], to_extents(boxes[row]), infos)
        if groups is not None and not found:
            break
        near |= found
        groups = _edited_groups([near[index] for index in sorted(near)], cells, shape, cutting)
        reached = _reached(node, groups)
    changed, slices = _slices(node, groups, shape, cutting)
    rows: dict[int, list[int]] = defaultdict(list)
    for index in changed:
        position = bisect.bisect_right(starts, index) - 1
        rows[position].append(index - starts[position])
    return Regions(refs.without(rows), (), slices)


def crossing_box(refs: ListedRefs) -> Boxes:
    """A box that crosses the same multiples of powers of two as all manifests together. Lists are not loaded."""
    summaries = [each.summary for each in refs.select(np.arange(len(refs.lists)))]
    bits = np.bitwise_or.reduce(np.array([each.crossing for each in summaries], dtype=np.int64), axis=0)
    return np.stack([np.zeros_like(bits), bits + 1], axis=1)[None]


def _are_inside(boxes: Boxes, node: ArrayNode) -> bool:
    return bool((boxes[:, :, 0] < boxes[:, :, 1]).all() and (boxes[:, :, 1] <= np.array(node.grid)).all())


def _cell_boxes(cells: Sequence[CellRows], shape: CellShape) -> Boxes:
    return box_array([cell_box(cell.cell, shape) for cell in cells], len(shape))


def _item(
    index: int, manifest_id: ObjectId, extents: Extents, infos: Mapping[ObjectId, ManifestFileInfo]
) -> LinkedManifest:
    count = most_references(extents, infos.get(manifest_id))
    return LinkedManifest(-1 - index, ManifestRef(manifest_id, extents), extents, count, forced=False)


Groups = Sequence[tuple[list[LinkedManifest], list[CellRows]]]


def _edited_groups(
    items: Sequence[LinkedManifest], cells: Sequence[CellRows], shape: CellShape, cutting: Cutting
) -> Groups:
    return [each for each in group(items, cells, shape, cutting.limit) if each[1]]


def _reached(node: ArrayNode, groups: Groups) -> Boxes:
    return box_array([group_box(node, *each) for each in groups], len(node.grid))


def _slices(
    node: ArrayNode, groups: Groups, shape: CellShape, cutting: Cutting
) -> tuple[list[int], tuple[OutputSlice, ...]]:
    """The manifests that are replaced, and the pieces to write."""
    changed = [-1 - item.layer for members, _ in groups for item in members]
    return changed, tuple(each for members, edited in groups for each in cut(node, members, edited, shape, cutting))
