"""Snapshots, references and logs of one generation as another one holds them; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from icefloe.conversion.identities import Identities
from icefloe.conversion.losses import RELATIVE, LossKind, has_default_keys, is_regular
from icefloe.conversion.survey import Grid
from icefloe.ids import NodeId, ObjectId
from icefloe.manifests.columns import take
from icefloe.manifests.split import filter_box
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.nodes import ArrayNode, AttributesRef, Extents, ManifestRef, Node
from icefloe.model.snapshot import Manifest, ManifestFileInfo, Snapshot, SnapshotInfo
from icefloe.model.string_column import string_column
from icefloe.model.transaction_log import TransactionLog

ROOT_MARKS = ("__root", "__icechunk")
"""Keys by which official libraries mark the first snapshot; each generation has its own."""


@dataclass(frozen=True, slots=True)
class ConvertedManifest:
    """A manifest of the target: its file, and the box that each array of the source fills in it."""

    file: ManifestFileInfo
    extents: Mapping[NodeId, Extents]


def convert_manifest(
    manifest_id: ObjectId,
    manifest: Manifest,
    users: Mapping[NodeId, Grid],
    identities: Identities,
    drops: frozenset[LossKind],
    absolute: Callable[[str], str | None] | None,
) -> tuple[Manifest, dict[NodeId, Extents]]:
    """The references of the arrays that use a manifest, and the box each of them fills.

    Early writers left references of other arrays behind: those of the wrong rank or outside of the grid are not taken.
    Nor did they write the id into the file.
    """
    tables: dict[NodeId, ChunkTable] = {}
    extents: dict[NodeId, Extents] = {}
    for node_id, grid in users.items():
        table = manifest.tables.get(node_id)
        if table is None or table.ndim != len(grid):
            continue
        table = filter_box(table, tuple((0, n) for n in grid)) if grid else table
        if absolute is not None:
            table = spell_out(table, absolute)
        if len(table) == 0:
            continue
        extents[node_id] = table.extents()
        tables[identities.node(node_id)] = _convert_table(table, identities, drops)
    return Manifest(identities.file(manifest_id), dict(sorted(tables.items()))), extents


def _convert_table(table: ChunkTable, identities: Identities, drops: frozenset[LossKind]) -> ChunkTable:
    ids = None if table.object_id is None else identities.chunks(table.object_id)
    if ids is not None and ids is not table.object_id:
        ids[table.kind != ChunkKind.NATIVE] = 0
    if LossKind.CHECKSUMS in drops:
        return replace(table, object_id=ids, etag=None, etags=(), last_modified=None)
    return replace(table, object_id=ids)


def spell_out(table: ChunkTable, absolute: Callable[[str], str | None]) -> ChunkTable:
    """Locations by name as URLs; references whose container nobody knows are left out."""
    if table.location is None or not any(text.startswith(RELATIVE) for text in table.locations):
        return table
    spelled = [absolute(text) for text in table.locations]
    unknown = np.array([text is None for text in spelled], dtype=bool)
    table = replace(table, locations=string_column([text or "" for text in spelled]))
    if not unknown.any():
        return table
    assert table.location is not None
    return take(table, np.flatnonzero((table.location < 0) | ~unknown[table.location]))


def convert_node(
    node: Node,
    document: bytes | None,
    identities: Identities,
    manifests: Mapping[ObjectId, ConvertedManifest | None],
) -> Node:
    """A node of the target; `document` is the whole document where the target keeps no attributes files."""
    attributes = node.attributes
    if document is not None:
        attributes = None
    elif attributes is not None:
        attributes = AttributesRef(identities.file(attributes.object_id), attributes.row)
    changed = replace(node, id=identities.node(node.id), document=document or node.document, attributes=attributes)
    if isinstance(changed, ArrayNode):
        refs = [_convert_ref(ref, node.id, manifests[ref.manifest_id]) for ref in changed.manifests]
        return replace(changed, manifests=tuple(ref for ref in refs if ref is not None))
    return changed


def _convert_ref(ref: ManifestRef, node_id: NodeId, manifest: ConvertedManifest | None) -> ManifestRef | None:
    """The reference with the box that is really filled; None where nothing is."""
    filled = None if manifest is None else manifest.extents.get(node_id)
    if manifest is None or filled is None:
        return None
    if ref.extents:
        filled = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(filled, ref.extents, strict=True))
        if any(first >= end for first, end in filled):
            return None
    return ManifestRef(manifest.file.id, filled)


def convert_info(info: SnapshotInfo, identities: Identities, root_mark: Mapping[str, object]) -> SnapshotInfo:
    """A commit as the target's history tells it; a first snapshot is marked the target's way."""
    metadata = dict(info.metadata)
    if info.parent_id is None:
        metadata = {key: value for key, value in metadata.items() if key not in ROOT_MARKS} | dict(root_mark)
    parent = None if info.parent_id is None else identities.file(info.parent_id)
    return replace(info, id=identities.file(info.id), parent_id=parent, metadata=metadata, manifests=())


def convert_snapshot(
    snapshot: Snapshot,
    info: SnapshotInfo,
    nodes: Mapping[str, Node],
    files: Mapping[ObjectId, ManifestFileInfo],
    ancestors: tuple[SnapshotInfo, ...],
    depth: int,
) -> Snapshot:
    """A snapshot of the target with all its nodes."""
    used = dict.fromkeys(
        ref.manifest_id for node in nodes.values() if isinstance(node, ArrayNode) for ref in node.manifests
    )
    return Snapshot(
        id=info.id,
        parent_id=info.parent_id,
        written_at=info.written_at,
        message=info.message,
        metadata=info.metadata,
        nodes=nodes,
        manifests={manifest_id: files[manifest_id] for manifest_id in used},
        attribute_files=tuple(
            dict.fromkeys(n.attributes.object_id for n in nodes.values() if n.attributes is not None)
        ),
        history=ancestors,
        total_ancestors=depth,
        started_at=snapshot.started_at,
    )


def is_kept(node: Node, drops: frozenset[LossKind]) -> bool:
    """Whether a node goes into the target."""
    if not isinstance(node, ArrayNode):
        return True
    if LossKind.CHUNK_GRIDS in drops and not is_regular(node):
        return False
    return LossKind.KEY_ENCODINGS not in drops or has_default_keys(node)


def convert_log(log: TransactionLog, identities: Identities) -> TransactionLog:
    """A log with the node ids of the target."""

    def mapped(nodes: frozenset[NodeId]) -> frozenset[NodeId]:
        known = identities.node_numbers
        return frozenset(identities.node(node) for node in nodes if not known or node in known)

    if not identities.node_numbers:
        return log
    return TransactionLog(
        new_groups=mapped(log.new_groups),
        new_arrays=mapped(log.new_arrays),
        deleted_groups=mapped(log.deleted_groups),
        deleted_arrays=mapped(log.deleted_arrays),
        updated_groups=mapped(log.updated_groups),
        updated_arrays=mapped(log.updated_arrays),
        updated_chunks={identities.node(n): c for n, c in log.updated_chunks.items() if n in identities.node_numbers},
        moves=tuple(replace(move, node_id=identities.node(move.node_id)) for move in log.moves),
        updated_boxes={identities.node(n): b for n, b in log.updated_boxes.items() if n in identities.node_numbers},
    )


def without_nodes(log: TransactionLog, gone: frozenset[NodeId]) -> TransactionLog:
    """A log that does not speak of nodes which were left out."""
    if not gone:
        return log
    return TransactionLog(
        new_groups=log.new_groups - gone,
        new_arrays=log.new_arrays - gone,
        deleted_groups=log.deleted_groups - gone,
        deleted_arrays=log.deleted_arrays - gone,
        updated_groups=log.updated_groups - gone,
        updated_arrays=log.updated_arrays - gone,
        updated_chunks={node: coords for node, coords in log.updated_chunks.items() if node not in gone},
        moves=tuple(move for move in log.moves if move.node_id not in gone),
        updated_boxes={node: boxes for node, boxes in log.updated_boxes.items() if node not in gone},
    )
