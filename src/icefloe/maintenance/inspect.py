"""The content of single files of a repository as plain data, for people who look for a fault."""

from __future__ import annotations

from typing import Any

import numpy as np

from icefloe.formats.header import HEADER_BYTES, Compression, FileType, has_magic, parse_header
from icefloe.ids import ObjectId, encode_base32
from icefloe.maintenance.reading import read_anew
from icefloe.model.chunk_table import ChunkKind
from icefloe.model.nodes import ArrayNode, Node
from icefloe.session.engine import Engine


async def inspect_snapshot(engine: Engine, snapshot_id: ObjectId) -> dict[str, Any]:
    """Every node of a snapshot with its id and manifests."""
    snapshot = await read_anew(engine).archive.fetch_snapshot(snapshot_id)
    return {
        "id": snapshot.id,
        "header": await _header(engine, engine.format.snapshot_key(snapshot_id)),
        "flushed_at": snapshot.written_at.isoformat(),
        "commit_message": snapshot.message,
        "metadata": dict(snapshot.metadata),
        "manifests": [
            {"id": info.id, "size_bytes": info.size_bytes, "num_chunk_refs": info.num_chunk_refs}
            for info in snapshot.manifests.values()
        ],
        "nodes": [_node(node) for node in snapshot.nodes.values()],
    }


def _node(node: Node) -> dict[str, Any]:
    told: dict[str, Any] = {"id": encode_base32(node.id), "path": node.path, "node_type": "group"}
    if isinstance(node, ArrayNode):
        told |= {
            "node_type": "array",
            "shape": list(node.shape),
            "num_chunks": list(node.grid),
            "manifest_refs": [
                {"id": ref.manifest_id, "extents": [list(span) for span in ref.extents]} for ref in node.manifests
            ],
        }
    return told


async def inspect_manifest(engine: Engine, manifest_id: ObjectId) -> dict[str, Any]:
    """Chunk references of a manifest, counted by array and kind."""
    reading = read_anew(engine)
    manifest = await reading.archive.fetch_manifest(manifest_id)
    key = engine.format.manifest_key(manifest_id)
    arrays = []
    for node_id, table in manifest.tables.items():
        counts = {kind.name.lower(): int(np.count_nonzero(table.kind == kind)) for kind in list(ChunkKind)[:3]}
        arrays.append({
            "node_id": encode_base32(node_id), "num_chunk_refs": len(table),
            **{f"num_{name}": count for name, count in counts.items()},
        })  # fmt: skip
    return {
        "id": manifest.id,
        "header": await _header(engine, key),
        "size_bytes": (await reading.storage.head(key)).size_bytes,
        "num_arrays": len(arrays),
        "total_chunk_refs": len(manifest),
        **{f"total_{name}": sum(each[f"num_{name}"] for each in arrays) for name in ("inline", "native", "virtual")},
        "arrays": arrays,
    }


async def inspect_transaction_log(engine: Engine, snapshot_id: ObjectId) -> dict[str, Any]:
    """What one commit changed, by node id."""
    log = await read_anew(engine).archive.fetch_transaction_log(snapshot_id)
    sets = ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays", "updated_groups", "updated_arrays")
    return {
        "header": await _header(engine, engine.format.transaction_log_key(snapshot_id)),
        **{name: sorted(encode_base32(each) for each in getattr(log, name)) for name in sets},
        "updated_chunks": [
            {"node_id": encode_base32(node_id), "num_chunks": len(coords), "coords": coords.tolist()}
            for node_id, coords in log.updated_chunks.items()
        ],
        "updated_boxes": [
            {"node_id": encode_base32(node_id), "extents": [[list(span) for span in box] for box in boxes]}
            for node_id, boxes in log.updated_boxes.items()
        ],
        "moved_nodes": [
            {"from": move.from_path, "to": move.to_path, "node_id": encode_base32(move.node_id)} for move in log.moves
        ],
    }


async def _header(engine: Engine, key: str) -> dict[str, Any] | None:
    """The header of a file; None where the generation has none."""
    start = await engine.storage.get_range(key, 0, HEADER_BYTES)
    if not has_magic(start):
        return None
    header = parse_header(start)
    return {
        "written_by": header.writer,
        "spec_version": f"{header.spec_version}.0",
        "file_type": FileType(header.file_type).name.lower().replace("_", "-"),
        "compression": Compression(header.compression).name.lower(),
    }
