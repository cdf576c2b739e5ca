"""The content of single files as plain data, and the total size of chunks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.display.card import WithFields, format_bytes
from icefloe.errors import ObjectNotFoundError, SnapshotNotFoundError
from icefloe.formats.header import HEADER_BYTES, Compression, FileType, has_magic, parse_header
from icefloe.ids import ObjectId, encode_base32
from icefloe.maintenance.collect import list_all
from icefloe.maintenance.inventory import is_among, open_uncached, report_each, stream_bounded
from icefloe.maintenance.marking import FetchLimits, ManifestMemory, mark
from icefloe.model.chunk_table import ChunkKind
from icefloe.model.snapshot import ArrayNode, Manifest, Node
from icefloe.session.ancestry import merge_logs
from icefloe.session.open_repository import RepositoryContext


async def inspect_snapshot(context: RepositoryContext, snapshot_id: ObjectId) -> dict[str, Any]:
    """Every node of a snapshot with its id and manifests."""
    snapshot = await open_uncached(context).metadata_files.fetch_snapshot(snapshot_id)
    return {
        "id": snapshot.id,
        "header": await _header(context, context.format.snapshot_key(snapshot_id)),
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
    document: dict[str, Any] = {"id": encode_base32(node.id), "path": node.path, "node_type": "group"}
    if isinstance(node, ArrayNode):
        document |= {
            "node_type": "array",
            "shape": [
                {"array_length": length, "num_chunks": count}
                for length, count in zip(node.shape, node.grid, strict=True)
            ],
            "manifest_refs": [
                {"id": ref.manifest_id, "extents": [list(span) for span in ref.extents]} for ref in node.manifests
            ],
        }
    return document


async def inspect_manifest(context: RepositoryContext, manifest_id: ObjectId) -> dict[str, Any]:
    """Chunk references of a manifest, counted by array and kind."""
    uncached = open_uncached(context)
    manifest = await uncached.metadata_files.fetch_manifest(manifest_id)
    key = context.format.manifest_key(manifest_id)
    arrays = []
    for node_id, table in manifest.tables.items():
        counts = {kind.name.lower(): int(np.count_nonzero(table.kind == kind)) for kind in list(ChunkKind)[:3]}
        arrays.append(
            {
                "node_id": encode_base32(node_id),
                "num_chunk_refs": len(table),
                **{f"num_{name}": count for name, count in counts.items()},
            }
        )
    return {
        "id": manifest.id,
        "header": await _header(context, key),
        "size_bytes": (await uncached.storage.head(key)).size_bytes,
        "num_arrays": len(arrays),
        "total_chunk_refs": len(manifest),
        **{f"total_{name}": sum(each[f"num_{name}"] for each in arrays) for name in ("inline", "native", "virtual")},
        "arrays": arrays,
    }


async def inspect_transaction_log(context: RepositoryContext, snapshot_id: ObjectId) -> dict[str, Any]:
    """The changes of a commit, by node id.

    Expiry in `icechunk2` keeps the logs of ancestors that it removes. The result includes their changes, and
    `synthetic_composite` names them, and those that are missing because an early official package collected them.
    """
    files = open_uncached(context).metadata_files
    log = await files.fetch_transaction_log(snapshot_id)
    merged, missing, logs = [], [], []
    for each in await _find_pruned_logs(context, snapshot_id):
        try:
            logs.append(await files.fetch_transaction_log(each))
            merged.append(each)
        except ObjectNotFoundError:
            missing.append(each)
    log = reduce(merge_logs, [*logs, log])
    composite = {
        "note": "The history of this snapshot was expired. The log includes the logs of its expired ancestors.",
        "merged_pruned_ancestor_tx_logs": merged,
        "missing_tx_logs": missing,
    }
    sets = ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays", "updated_groups", "updated_arrays")
    return {
        "header": await _header(context, context.format.transaction_log_key(snapshot_id)),
        **{name: sorted(encode_base32(each) for each in getattr(log, name)) for name in sets},
        "updated_chunks": [
            {"node_id": encode_base32(node_id), "num_chunks": len(coords), "chunks": coords.tolist()}
            for node_id, coords in log.updated_chunks.items()
        ],
        "updated_boxes": [
            {"node_id": encode_base32(node_id), "extents": [[list(span) for span in box] for box in boxes]}
            for node_id, boxes in log.updated_boxes.items()
        ],
        "moved_nodes": [
            {"from": move.from_path, "to": move.to_path, "node_id": encode_base32(move.node_id)} for move in log.moves
        ],
        **({"synthetic_composite": composite} if merged or missing else {}),
    }


async def _find_pruned_logs(context: RepositoryContext, snapshot_id: ObjectId) -> tuple[ObjectId, ...]:
    """The logs of expired ancestors that belong to a snapshot. A snapshot that was expired itself has none."""
    try:
        return await context.ledger.fetch_pruned_logs(snapshot_id)
    except SnapshotNotFoundError:
        return ()


async def _header(context: RepositoryContext, key: str) -> dict[str, Any] | None:
    """The header of a file. None if the generation has none."""
    start = await context.storage.get_range(key, 0, HEADER_BYTES)
    if not has_magic(start):
        return None
    header = parse_header(start)
    app_name, _, app_version = header.writer.partition("-")
    return {
        "written_by": header.writer,
        "app_name": app_name,
        "app_version": app_version,
        "spec_version": f"{header.spec_version}.0",
        "file_type": FileType(header.file_type).name.lower().replace("_", "-"),
        "compression": Compression(header.compression).name.lower(),
    }


@dataclass(frozen=True, slots=True, repr=False)
class ChunkStorageStats(WithFields):
    """The size of all chunks that are reachable from branches and tags, including history."""

    _full_name = "icechunk.stats.ChunkStorageStats"

    native_bytes: int = 0
    """Bytes of chunk objects in the repository, including unused bytes of packs."""
    virtual_bytes: int = 0
    """Bytes of distinct virtual references."""
    inlined_bytes: int = 0
    """Bytes of chunks inside manifests."""

    @property
    def non_virtual_bytes(self) -> int:
        return self.native_bytes + self.inlined_bytes

    @property
    def total_bytes(self) -> int:
        return self.native_bytes + self.virtual_bytes + self.inlined_bytes

    def __str__(self) -> str:
        parts = (("native", self.native_bytes), ("virtual", self.virtual_bytes), ("inline", self.inlined_bytes))
        return ", ".join(f"{format_bytes(size)} {name}" for name, size in parts)


async def chunk_storage_stats(context: RepositoryContext, limits: FetchLimits | None = None) -> ChunkStorageStats:
    """Count all reachable chunks.

    A chunk object or a range of a virtual file that several snapshots share counts once.
    """
    uncached = open_uncached(context)
    listings = await list_all(uncached)
    new_parents = await uncached.ledger.fetch_new_parents()
    marked = await mark(uncached, frozenset(), frozenset(), limits=limits, new_parents=new_parents)
    chunks = listings["chunks"]
    native = int(chunks.size[is_among(chunks.ids, marked.chunks)].sum())

    memory = ManifestMemory(limits or FetchLimits(), marked.infos)

    async def count(manifest_id: ObjectId) -> tuple[int, list[Ranges]]:
        async with memory.reserve(manifest_id):
            return _count_manifest(await uncached.metadata_files.fetch_manifest(manifest_id))

    inlined = 0
    files: dict[str, int] = {}
    ranges: list[npt.NDArray[np.int64]] = []
    counts = stream_bounded(count, sorted(marked.manifests), 8)
    async for inline_bytes, found in report_each("count chunks", counts, len(marked.manifests)):
        inlined += inline_bytes
        for each in found:
            numbers = np.array([files.setdefault(name, len(files)) for name in each.files], dtype=np.int64)
            ranges.append(np.stack([numbers[each.file], each.offset, each.length], axis=1))
    distinct = np.unique(np.concatenate(ranges), axis=0) if ranges else np.empty((0, 3), dtype=np.int64)
    return ChunkStorageStats(native, int(distinct[:, 2].sum()), inlined)


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Ranges of virtual files, as columns. `file` is an index into `files`."""

    files: list[str]
    file: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]


def _count_manifest(manifest: Manifest) -> tuple[int, list[Ranges]]:
    inlined = 0
    found: list[Ranges] = []
    for table in manifest.tables.values():
        inlined += int(table.length[table.kind == ChunkKind.INLINE].sum())
        rows = np.flatnonzero(table.kind == ChunkKind.VIRTUAL)
        if table.location is not None and len(rows):
            codes, file = np.unique(table.location[rows], return_inverse=True)
            names = [table.locations[code] for code in codes.tolist()]
            offset, length = table.offset[rows].astype(np.int64), table.length[rows].astype(np.int64)
            found.append(Ranges(names, file.astype(np.int64), offset, length))
    return inlined, found
