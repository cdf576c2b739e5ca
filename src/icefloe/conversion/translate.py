"""Translate ids, manifests, snapshots and logs of one generation into those of another. Pure functions.

A new id depends only on the old one, so that an interrupted conversion finds its own files again. The exception is
small numbers of nodes, which are assigned in order and stored in the journal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from icefloe.conversion.survey import RELATIVE, Grid, LossKind, has_default_keys, is_regular
from icefloe.formats.format import Format
from icefloe.ids import NODE_ID_BYTES, NodeId, ObjectId, decode_base32, encode_base32
from icefloe.manifests.cells import filter_box
from icefloe.manifests.chunk_columns import take
from icefloe.model.chunk_table import ChunkKind, ChunkTable, string_column
from icefloe.model.snapshot import (
    ArrayNode,
    AttributesRef,
    Extents,
    Manifest,
    ManifestFileInfo,
    ManifestRef,
    Node,
    Snapshot,
    SnapshotInfo,
    TransactionLog,
)

_MIX = np.uint32(0x9E3779B1)
"""An odd factor, so that multiplication is reversible."""
Ids = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class IdMapping:
    """Maps ids of the source to ids of the target."""

    source_bytes: int
    target_bytes: int
    salt: str = ""
    """A salt for file names, if other files have the names already."""
    node_numbers: Mapping[NodeId, int] = field(default_factory=dict)
    """Set if the target identifies nodes by small numbers."""

    def file(self, object_id: ObjectId) -> ObjectId:
        """The id of a snapshot, manifest or attributes file."""
        data = decode_base32(object_id, self.source_bytes)
        if self.salt:
            digest = hashlib.sha256(self.salt.encode() + b"\0" + data).digest()
            return encode_base32(digest[: self.target_bytes])
        return encode_base32(self.chunks(np.frombuffer(data, dtype=np.uint8).reshape(1, -1)).tobytes())

    def chunks(self, ids: Ids) -> Ids:
        """A column of chunk ids. Converting ids to a longer form and back returns the same ids."""
        if self.source_bytes == self.target_bytes:
            return ids
        if self.source_bytes < self.target_bytes:
            return np.pad(ids, ((0, 0), (0, self.target_bytes - self.source_bytes)))
        folded = np.ascontiguousarray(ids[:, : self.target_bytes]).copy()
        tail = np.zeros((len(ids), 4), dtype=np.uint8)
        tail[:, : self.source_bytes - self.target_bytes] = ids[:, self.target_bytes :]
        mixed = tail.view("<u4") * _MIX
        folded[:, -4:] ^= mixed.view(np.uint8).reshape(len(ids), 4)
        return folded

    def chunk(self, chunk_id: bytes) -> bytes:
        """One chunk id."""
        return self.chunks(np.frombuffer(chunk_id, dtype=np.uint8).reshape(1, -1)).tobytes()

    def node(self, node_id: NodeId) -> NodeId:
        """The id of a node."""
        if not self.node_numbers:
            return node_id
        return self.node_numbers[node_id].to_bytes(NODE_ID_BYTES, "big")


def shares_names(source: Format, target: Format) -> bool:
    """Whether both generations store files under the same names."""
    return source.snapshots_folder == target.snapshots_folder and source.metadata_extension == target.metadata_extension


def plan_id_mapping(
    source: Format,
    target: Format,
    *,
    same_root: bool,
    nodes: Iterable[NodeId],
    known: Mapping[NodeId, int],
    salt: str = "",
) -> IdMapping:
    """The id mapping between two generations. `known` are the node numbers of an earlier run."""
    if not salt and same_root and shares_names(source, target):
        salt = f"{source.spec_version.value}>{target.spec_version.value}"
    numbers: dict[NodeId, int] = {}
    if target.capabilities.node_id_is_counter and not source.capabilities.node_id_is_counter:
        numbers = dict(known)
        following = max(numbers.values(), default=0) + 1
        for node in nodes:
            if node not in numbers:
                numbers[node] = following
                following += 1
    return IdMapping(
        source.capabilities.object_id_bytes,
        target.capabilities.object_id_bytes,
        salt,
        numbers,
    )


ROOT_MARKS = ("__root", "__icechunk")
"""Metadata keys of the first snapshot in official libraries. Each generation has its own."""


@dataclass(frozen=True, slots=True)
class ConvertedManifest:
    """A manifest of the target, with the extents of each array in it."""

    file: ManifestFileInfo
    extents: Mapping[NodeId, Extents]


def convert_manifest(
    manifest_id: ObjectId,
    manifest: Manifest,
    users: Mapping[NodeId, Grid],
    identities: IdMapping,
    drops: frozenset[LossKind],
    absolute: Callable[[str], str | None] | None,
) -> tuple[Manifest, dict[NodeId, Extents]]:
    """The references of the arrays that use a manifest, with their extents.

    Early writers left references of other arrays in a manifest. References with the wrong rank or outside the grid
    are ignored. Early writers also did not write the id into the file.
    """
    tables: dict[NodeId, ChunkTable] = {}
    extents: dict[NodeId, Extents] = {}
    for node_id, grid in users.items():
        table = manifest.tables.get(node_id)
        if table is None or table.ndim != len(grid):
            continue
        table = filter_box(table, tuple((0, n) for n in grid)) if grid else table
        if absolute is not None:
            table = make_locations_absolute(table, absolute)
        if len(table) == 0:
            continue
        extents[node_id] = table.extents()
        tables[identities.node(node_id)] = _convert_table(table, identities, drops)
    return Manifest(identities.file(manifest_id), dict(sorted(tables.items()))), extents


def _convert_table(table: ChunkTable, identities: IdMapping, drops: frozenset[LossKind]) -> ChunkTable:
    ids = None if table.object_id is None else identities.chunks(table.object_id)
    if ids is not None and ids is not table.object_id:
        ids[table.kind != ChunkKind.NATIVE] = 0
    if LossKind.CHECKSUMS in drops:
        return replace(table, object_id=ids, etag=None, etags=(), last_modified=None)
    return replace(table, object_id=ids)


def make_locations_absolute(table: ChunkTable, absolute: Callable[[str], str | None]) -> ChunkTable:
    """Replace relative locations by URLs. References with an unknown container are left out."""
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
    identities: IdMapping,
    manifests: Mapping[ObjectId, ConvertedManifest | None],
) -> Node:
    """A node of the target. `document` is the whole document if the target has no attributes files."""
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
    """The reference with the actual extents. None if there are no chunks."""
    filled = None if manifest is None else manifest.extents.get(node_id)
    if manifest is None or filled is None:
        return None
    if ref.extents:
        filled = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(filled, ref.extents, strict=True))
        if any(first >= end for first, end in filled):
            return None
    return ManifestRef(manifest.file.id, filled)


def convert_info(info: SnapshotInfo, identities: IdMapping, root_mark: Mapping[str, object]) -> SnapshotInfo:
    """A commit of the target. The first snapshot has the metadata keys of the target."""
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
    """Whether the target contains a node."""
    if not isinstance(node, ArrayNode):
        return True
    if LossKind.CHUNK_GRIDS in drops and not is_regular(node):
        return False
    return LossKind.KEY_ENCODINGS not in drops or has_default_keys(node)


def convert_log(log: TransactionLog, identities: IdMapping) -> TransactionLog:
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
    """A log without the nodes that were left out."""
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
