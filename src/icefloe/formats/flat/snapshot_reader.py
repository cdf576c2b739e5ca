"""A flatbuffers snapshot of either official generation as a model value."""

from __future__ import annotations

import numpy as np

from icefloe.formats.flat.body import Body
from icefloe.formats.flat.metadata_items import decode_metadata, read_items
from icefloe.formats.flat.ragged import texts_of
from icefloe.formats.flat.snapshot_nodes import FlatNodes, NodeColumns
from icefloe.formats.flat.tables import Tables, item_positions, root_table
from icefloe.formats.flat.times import from_microseconds
from icefloe.ids import ObjectId, encode_base32, encode_base32_column
from icefloe.model.snapshot import ManifestFileInfo, Snapshot, SnapshotInfo

_ID, _PARENT, _NODES, _FLUSHED_AT, _MESSAGE, _METADATA, _MANIFESTS, _MANIFESTS_V2 = range(8)


def decode_snapshot_body(body: Body, spec: int) -> Snapshot:
    """The snapshot of a file; `spec` is the file's own, which may be older than the repository's."""
    root = root_table(body)
    nodes, _ = root.tables(_NODES)
    info = _read_info(root, spec)
    return Snapshot(
        id=info.id,
        parent_id=info.parent_id,
        written_at=info.written_at,
        message=info.message,
        metadata=info.metadata,
        nodes=FlatNodes(NodeColumns(nodes)),
        manifests={manifest.id: manifest for manifest in info.manifests},
    )


def decode_snapshot_info_body(body: Body, spec: int) -> SnapshotInfo:
    """What history shows of a snapshot, without looking at its nodes."""
    return _read_info(root_table(body), spec)


def _read_info(root: Tables, spec: int) -> SnapshotInfo:
    message = texts_of(root.body, root.strings(_MESSAGE))[0]
    return SnapshotInfo(
        id=encode_base32(root.struct(_ID, 12).tobytes()),
        parent_id=_find_parent(root),
        written_at=from_microseconds(int(root.scalar(_FLUSHED_AT, "<u8")[0])),
        message=message or "",
        metadata=decode_metadata(read_items(root, _METADATA)[0], spec),
        manifests=tuple(read_manifest_files(root, spec).values()),
    )


def _find_parent(root: Tables) -> ObjectId | None:
    return encode_base32(root.struct(_PARENT, 12).tobytes()) if root.has(_PARENT)[0] else None


def read_manifest_files(root: Tables, spec: int) -> dict[ObjectId, ManifestFileInfo]:
    """The manifest files that a snapshot names; early files of spec 1 use the newer list's field for something else."""
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
