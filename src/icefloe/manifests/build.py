"""The manifests a plan asks for, made one at a time from fetched manifests and edits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from icefloe.ids import NodeId, ObjectId, new_object_id
from icefloe.manifests.boxes import intersect
from icefloe.manifests.columns import Rows, bounding_rows, compact_inline, compact_locations, take
from icefloe.manifests.merge import merge_edits, overlay
from icefloe.manifests.pieces import ArrayEdits, BulkEdits, Piece, Source, full_box
from icefloe.manifests.plan import ManifestPlan, PlannedManifest
from icefloe.manifests.split import filter_box, halve
from icefloe.manifests.untouched import take_untouched, visible_box
from icefloe.model.chunk_table import ChunkTable, empty_table
from icefloe.model.chunk_tables import ChunkTables
from icefloe.model.nodes import Extents, ManifestRef
from icefloe.model.snapshot import Manifest
from icefloe.model.table_joining import concat_tables, join_tables

Fetch = Callable[[ObjectId], Manifest]

_FEW_ARRAYS = 8
"""Up to here, a table for each is as quick as columns for all."""


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
    for piece in output.pieces:
        table = build_piece(piece, fetch, edits.get(piece.node_id))
        if len(table) == 0:
            continue
        if piece.limit is None or len(table) <= piece.limit:
            together[piece.node_id] = table
        else:
            for part in halve(table, piece.limit):
                yield _built({piece.node_id: part}, new_id())
    parts: list[ChunkTables] = []
    for untouched in output.untouched:
        taken, others = take_untouched(fetch(untouched.manifest_id).tables, untouched.nodes)
        parts.append(taken)
        for node in others:
            source = Source(untouched.manifest_id, visible_box(node))
            table = build_piece(Piece(node.id, node.path, full_box(node), (source,)), fetch, None)
            together |= {node.id: table} if len(table) else {}
    if output.fresh:
        assert isinstance(edits, BulkEdits), "only these have fresh arrays"
        parts.append(edits.fresh.select(edits.fresh.positions(output.fresh)))
    if not parts and len(together) <= _FEW_ARRAYS:
        if together:
            yield _built(dict(sorted(together.items())), new_id())
        return
    tables = concat_tables([join_tables(together), *parts]).by_id()
    if len(tables):
        yield _built_together(tables, new_id())


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


def _built(tables: Mapping[NodeId, ChunkTable], manifest_id: ObjectId) -> BuiltManifest:
    compacted = {key: compact_locations(table) for key, table in tables.items()}
    refs = {key: ManifestRef(manifest_id, table.extents()) for key, table in tables.items()}
    return BuiltManifest(Manifest(manifest_id, compacted), refs)


def _built_together(tables: ChunkTables, manifest_id: ObjectId) -> BuiltManifest:
    rows = compact_locations(compact_inline(tables.rows))
    refs = _share_refs(manifest_id, tables)
    return BuiltManifest(Manifest(manifest_id, replace(tables, rows=rows)), dict(zip(tables.nodes, refs, strict=True)))


def _share_refs(manifest_id: ObjectId, tables: ChunkTables) -> list[ManifestRef]:
    """What every array says about its manifest; arrays whose chunks fill the same box say it with the same value."""
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
) -> dict[NodeId, tuple[ManifestRef, ...]]:
    """The manifests of every array that the plan changes, from what stays and the `refs` of what was built."""
    linked = dict(plan.kept)
    several: set[NodeId] = set()
    alone: dict[int, tuple[ManifestRef, ...]] = {}
    for refs in built:
        for key, ref in refs.items():
            before = linked.get(key)
            if before:
                linked[key] = (*before, ref)
                several.add(key)
                continue
            # Thousands of arrays say the same about one manifest: they share the tuple, too.
            one = alone.get(id(ref))
            linked[key] = alone.setdefault(id(ref), (ref,)) if one is None else one
    for key in several:
        linked[key] = tuple(sorted(linked[key], key=_place))
    return linked


def _place(ref: ManifestRef) -> tuple[Extents, ObjectId]:
    return ref.extents, ref.manifest_id
