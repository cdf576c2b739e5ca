"""The manifests a plan asks for, made one at a time from fetched manifests and edits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from icefloe.ids import NodeId, ObjectId, new_object_id
from icefloe.manifests.boxes import intersect
from icefloe.manifests.columns import Rows, compact_locations, list_extents, take
from icefloe.manifests.merge import merge_edits, overlay
from icefloe.manifests.pieces import ArrayEdits, Piece
from icefloe.manifests.plan import ManifestPlan, PlannedManifest
from icefloe.manifests.split import filter_box, halve
from icefloe.model.chunk_table import ChunkKind, ChunkTable, empty_table
from icefloe.model.nodes import Extents, ManifestRef
from icefloe.model.snapshot import Manifest

Fetch = Callable[[ObjectId], Manifest]


@dataclass(frozen=True, slots=True)
class BuiltManifest:
    """A manifest ready to be written, and what each of its arrays says about it."""

    manifest: Manifest
    refs: Mapping[NodeId, ManifestRef]


def build_manifests(
    plan: ManifestPlan,
    fetch: Fetch,
    edits: Mapping[NodeId, ArrayEdits],
    new_id: Callable[[], ObjectId] = new_object_id,
) -> Iterator[BuiltManifest]:
    """All manifests of a plan, one at a time, so that memory holds one; `fetch` returns those in `plan.fetch`."""
    for output in plan.outputs:
        yield from build_output(output, fetch, edits, new_id)


def build_output(
    output: PlannedManifest,
    fetch: Fetch,
    edits: Mapping[NodeId, ArrayEdits],
    new_id: Callable[[], ObjectId] = new_object_id,
) -> Iterator[BuiltManifest]:
    """The manifests of one output; outputs are independent of each other and can be built at the same time."""
    together: dict[NodeId, ChunkTable] = {}
    fresh = _fresh_tables(output.pieces, edits)
    for piece in output.pieces:
        table = fresh.get(piece.node_id)
        if table is None:
            table = build_piece(piece, fetch, edits.get(piece.node_id))
        if len(table) == 0:
            continue
        if piece.limit is None or len(table) <= piece.limit:
            together[piece.node_id] = table
        else:
            for part in halve(table, piece.limit):
                yield _built({piece.node_id: part}, new_id())
    if together:
        yield _built(dict(sorted(together.items())), new_id())


def _fresh_tables(pieces: Iterable[Piece], edits: Mapping[NodeId, ArrayEdits]) -> dict[NodeId, ChunkTable]:
    """The edits of the arrays that had no references before, which are all they have now; none if some are deletions.

    Thousands of new arrays in one commit are looked at together.
    """
    found = {}
    for piece in pieces:
        change = edits.get(piece.node_id)
        if not piece.sources and change is not None and change.table is not None and _is_all(piece.rows):
            found[piece.node_id] = change.table
    if found and (np.concatenate([table.kind for table in found.values()]) == ChunkKind.DELETED).any():
        return {}
    return found


def build_piece(piece: Piece, fetch: Fetch, change: ArrayEdits | None) -> ChunkTable:
    """The references of one piece after the edits."""
    ndim = len(piece.box)
    layers: list[ChunkTable] = []
    for source in piece.sources:
        table = fetch(source.manifest_id).tables.get(piece.node_id)
        # Early writers left references of other arrays behind; those of another rank cannot be this array's.
        if table is not None and table.ndim == ndim:
            layers.append(filter_box(table, intersect(source.extents, piece.box)))
    if len(layers) == 1:
        base = layers[0]
    else:
        base = overlay(*layers) if layers else empty_table(ndim)
    if piece.rows is None or change is None or change.table is None:
        return base
    return merge_edits(base, change.table if _is_all(piece.rows) else take(change.table, piece.rows))


def _is_all(rows: Rows | None) -> bool:
    return isinstance(rows, slice) and rows == slice(None)


def _built(tables: dict[NodeId, ChunkTable], manifest_id: ObjectId) -> BuiltManifest:
    compacted = {key: compact_locations(table) for key, table in tables.items()}
    boxes = list_extents(list(tables.values()))
    refs = {key: ManifestRef(manifest_id, box) for key, box in zip(tables, boxes, strict=True)}
    return BuiltManifest(Manifest(manifest_id, compacted), refs)


def link_manifests(
    plan: ManifestPlan, built: Iterable[Mapping[NodeId, ManifestRef]]
) -> dict[NodeId, tuple[ManifestRef, ...]]:
    """The manifests of every array that the plan changes, from what stays and the `refs` of what was built."""
    linked = {key: list(refs) for key, refs in plan.kept.items()}
    for refs in built:
        for key, ref in refs.items():
            linked.setdefault(key, []).append(ref)
    return {key: tuple(sorted(refs, key=_place)) if len(refs) > 1 else tuple(refs) for key, refs in linked.items()}


def _place(ref: ManifestRef) -> tuple[Extents, ObjectId]:
    return ref.extents, ref.manifest_id
