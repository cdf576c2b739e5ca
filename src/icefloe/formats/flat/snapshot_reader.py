"""A flatbuffers snapshot of either official generation as a model value."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from icefloe.formats.flat.body import Body
from icefloe.formats.flat.metadata_items import decode_metadata, read_few_items
from icefloe.formats.flat.snapshot_few import FEW_NODES, read_few_nodes
from icefloe.formats.flat.snapshot_nodes import FlatNodes, NodeColumns
from icefloe.formats.flat.table import Table, root
from icefloe.formats.flat.tables import Tables, item_positions, root_table
from icefloe.formats.flat.times import from_microseconds
from icefloe.ids import ObjectId, encode_base32, encode_base32_column
from icefloe.model.nodes import Node
from icefloe.model.snapshot import ManifestFileInfo, Snapshot, SnapshotInfo

_ID, _PARENT, _NODES, _FLUSHED_AT, _MESSAGE, _METADATA, _MANIFESTS, _MANIFESTS_V2 = range(8)
_FEW_MANIFESTS = 16
_INFO = struct.Struct("<12s4xQI4x")
"""A manifest file in the older list: its id, its size, how many references it holds."""


def decode_snapshot_body(body: Body, spec: int) -> Snapshot:
    """The snapshot of a file; `spec` is the file's own, which may be older than the repository's."""
    table = root(body)
    info = _read_info(table, spec)
    return Snapshot(
        id=info.id,
        parent_id=info.parent_id,
        written_at=info.written_at,
        message=info.message,
        metadata=info.metadata,
        nodes=_read_nodes(table),
        manifests={manifest.id: manifest for manifest in info.manifests},
    )


def decode_snapshot_info_body(body: Body, spec: int) -> SnapshotInfo:
    """What history shows of a snapshot, without looking at its nodes."""
    return _read_info(root(body), spec)


def _read_nodes(table: Table) -> Mapping[str, Node]:
    if table.vector(_NODES, 4, 4)[1] <= FEW_NODES:
        return read_few_nodes(table.children(_NODES))
    return FlatNodes(NodeColumns(root_table(table.body).tables(_NODES)[0]))


def _read_info(table: Table, spec: int) -> SnapshotInfo:
    return SnapshotInfo(
        id=encode_base32(table.struct(_ID, 12)),
        parent_id=encode_base32(table.struct(_PARENT, 12)) if table.has(_PARENT) else None,
        written_at=from_microseconds(table.scalar(_FLUSHED_AT, "<u8")),
        message=table.text(_MESSAGE) or "",
        metadata=decode_metadata(read_few_items(table, _METADATA), spec),
        manifests=_read_manifest_infos(table, spec),
    )


def _read_manifest_infos(table: Table, spec: int) -> tuple[ManifestFileInfo, ...]:
    slot, width, alignment = (_MANIFESTS_V2, 4, 4) if _has_newer_list(table, spec) else (_MANIFESTS, 32, 8)
    start, count = table.vector(slot, width, alignment)
    if count > _FEW_MANIFESTS:
        return tuple(read_manifest_files(root_table(table.body), spec).values())
    if slot == _MANIFESTS:
        found = [_INFO.unpack_from(table.body.data, start + 32 * row) for row in range(count)]
    else:
        found = [(t.struct(0, 12), t.scalar(1, "<u8"), t.scalar(2, "<u4")) for t in table.children(slot)]
    infos = (ManifestFileInfo(encode_base32(raw), size, refs) for raw, size, refs in found)
    return tuple({info.id: info for info in infos}.values())


def _has_newer_list(root: Table, spec: int) -> bool:
    """Early files of spec 1 use the newer list's field for something else."""
    return spec >= 2 and root.has(_MANIFESTS_V2)


def read_manifest_files(root: Tables, spec: int) -> dict[ObjectId, ManifestFileInfo]:
    """The manifest files that a snapshot names, read in columns; the newer list is as old as spec 2."""
    body = root.body
    if spec >= 2 and root.has(_MANIFESTS_V2)[0]:
        infos, _ = root.tables(_MANIFESTS_V2)
        ids, sizes, counts = infos.struct(0, 12), infos.scalar(1, "<u8"), infos.scalar(2, "<u4")
    else:
        at = item_positions(body, root.vectors(_MANIFESTS, 32, 8), 32)
        ids = body.read_bytes(at, 12)
        sizes, counts = body.read(at + 16, "<u8"), body.read(at + 24, "<u4")
    texts = [row.tobytes().decode("ascii") for row in np.ascontiguousarray(encode_base32_column(ids))]
    return {
        text: ManifestFileInfo(text, size, count)
        for text, size, count in zip(texts, sizes.tolist(), counts.tolist(), strict=True)
    }
