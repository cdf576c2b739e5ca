"""The commands `stats` and `manifests`: chunks, objects and bytes per array, and the content of manifests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rich.table import Table
from rich.text import Text

from icefloe.blocking import run_blocking
from icefloe.cli.console import progress, stdout, styled, table
from icefloe.cli.options import Json, Limit, NodePath, Repo, RevisionOptions, StorageOptions, open_repository
from icefloe.cli.output import print_json
from icefloe.display.card import format_bytes, format_count
from icefloe.ids import ObjectId
from icefloe.model.chunk_table import ChunkKind, ChunkTable, string_column
from icefloe.model.snapshot import ArrayNode, Extents, ManifestFileInfo
from icefloe.model.snapshot import Snapshot as SnapshotFile

_KINDS = (ChunkKind.NATIVE, ChunkKind.INLINE, ChunkKind.VIRTUAL)


@dataclass(frozen=True, slots=True)
class ChunkCount:
    """Chunks and bytes by kind, with their objects and files. Chunks and arrays can share an object."""

    chunks: dict[str, int]
    bytes: dict[str, int]
    objects: npt.NDArray[np.void]
    """Distinct ids of the objects with native chunks."""
    files: pa.Array
    """Distinct locations of virtual chunks."""

    @property
    def total_chunks(self) -> int:
        return sum(self.chunks.values())

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())


def count_chunks(table: ChunkTable) -> ChunkCount:
    """Count the chunks of one array."""
    chunks, sizes = {}, {}
    for kind in _KINDS:
        rows = table.kind == kind
        chunks[kind.name.lower()] = int(np.count_nonzero(rows))
        sizes[kind.name.lower()] = int(table.length[rows].sum())
    return ChunkCount(chunks, sizes, _objects(table), _files(table))


def _objects(table: ChunkTable) -> npt.NDArray[np.void]:
    if table.object_id is None:
        return np.empty(0, dtype="V1")
    native = np.ascontiguousarray(table.object_id[table.kind == ChunkKind.NATIVE])
    return np.unique(native.view(f"V{native.shape[1]}").ravel())


def _files(table: ChunkTable) -> pa.Array:
    if table.location is None:
        return pa.array([], type=pa.large_string())
    codes = np.unique(table.location[table.kind == ChunkKind.VIRTUAL])
    # A dictionary may contain a location twice.
    return string_column(table.locations).arrow.take(pa.array(codes)).unique()


def add_counts(counts: Iterable[ChunkCount]) -> ChunkCount:
    """Add the counts of several arrays. Shared objects and files count once."""
    parts = list(counts)
    names = [kind.name.lower() for kind in _KINDS]
    objects = [part.objects for part in parts if len(part.objects)]
    return ChunkCount(
        {name: sum(part.chunks[name] for part in parts) for name in names},
        {name: sum(part.bytes[name] for part in parts) for name in names},
        np.unique(np.concatenate(objects)) if objects else np.empty(0, dtype="V1"),
        pa.chunked_array([part.files for part in parts], type=pa.large_string()).unique(),
    )


def stats(
    repo: Repo,
    path: NodePath = "/",
    limit: Limit = 50,
    at: RevisionOptions = RevisionOptions(),
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Show chunks, objects and bytes per array."""
    session = at.session(open_repository(repo, options))
    state = session.state
    start = "/" + path.strip("/")
    if start != "/":
        state.tree.node(start)
    arrays = [node for node in state.tree.subtree(start) if isinstance(node, ArrayNode)]
    counts = {
        node.path: count_chunks(run_blocking(state.chunk_table(node)))
        for node in progress(arrays, "counting chunks", len(arrays))
    }
    total = add_counts(counts.values())
    if json:
        per_array = [{"path": path, **_as_json(count)} for path, count in counts.items()]
        print_json({"snapshot_id": session.snapshot_id, "total": _as_json(total), "arrays": per_array})
        return
    stdout().print(_listing(counts, total, limit))


def _as_json(count: ChunkCount) -> dict[str, Any]:
    return {
        "chunks": count.chunks,
        "bytes": count.bytes,
        "objects": len(count.objects),
        "virtual_files": len(count.files),
    }


def _listing(counts: dict[str, ChunkCount], total: ChunkCount, limit: int) -> Table:
    numbers = ("chunks", "native", "inline", "virtual", "objects", "files", "bytes")
    listing = table("array", *numbers, right=numbers)
    largest = sorted(counts.items(), key=lambda item: (-item[1].total_bytes, item[0]))
    for path, count in largest[:limit] if limit else largest:
        listing.add_row(Text(path), *_cells(count))
    if limit and len(largest) > limit:
        listing.add_row(Text(f"… {len(largest) - limit:,} more arrays; --limit 0 shows all", style="dim"))
    listing.add_section()
    listing.add_row(Text("all", style="bold"), *_cells(total), style="bold")
    return listing


def _cells(count: ChunkCount) -> list[str]:
    by_kind = [f"{count.chunks[kind]:,}" if count.chunks[kind] else "·" for kind in ("native", "inline", "virtual")]
    shared = [f"{len(found):,}" if len(found) else "·" for found in (count.objects, count.files)]
    return [f"{count.total_chunks:,}", *by_kind, *shared, format_bytes(count.total_bytes)]


_MOST_ARRAYS = 4


def manifests(
    repo: Repo,
    limit: Limit = 50,
    at: RevisionOptions = RevisionOptions(),
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Show the arrays and extents of each manifest."""
    base = at.session(open_repository(repo, options)).state.base
    held = arrays_by_manifest(base)
    files = sorted(base.manifests.values(), key=lambda file: (-file.size_bytes, file.id))
    shown = files[:limit] if limit else files
    if json:
        listed = [_manifests_json(file, held.get(file.id, ())) for file in shown]
        print_json({"snapshot_id": base.id, "manifests": listed, "more": len(shown) < len(files)})
        return
    console = stdout()
    listing = table("manifest", "size", "chunks", "arrays and extents", right=("size", "chunks"))
    for file in shown:
        entries = held.get(file.id, ())
        lines = [Text.assemble(path, (f"  {_extent_text(extents)}", "dim")) for path, extents in entries[:_MOST_ARRAYS]]
        if len(entries) > _MOST_ARRAYS:
            lines.append(Text(f"… {len(entries) - _MOST_ARRAYS:,} more", style="dim"))
        size, refs = format_bytes(file.size_bytes), f"{file.num_chunk_refs:,}"
        listing.add_row(Text(file.id, style="yellow"), size, refs, Text("\n").join(lines))
    console.print(listing)
    total_bytes = sum(file.size_bytes for file in files)
    total_refs = sum(file.num_chunk_refs for file in files)
    rest = f"; the {len(shown):,} largest are shown, --limit 0 shows all" if len(shown) < len(files) else ""
    console.print(
        styled(
            f"\n[dim]{format_count(len(files), 'manifest')}, {format_bytes(total_bytes)}, "
            f"{format_count(total_refs, 'chunk')}{rest}[/]"
        )
    )


def arrays_by_manifest(base: SnapshotFile) -> dict[ObjectId, list[tuple[str, Extents]]]:
    """For each manifest, the arrays that refer to it, with the extents of the chunk grid."""
    held: dict[ObjectId, list[tuple[str, Extents]]] = {}
    for node in base.nodes.values():
        if isinstance(node, ArrayNode):
            for ref in node.manifests:
                held.setdefault(ref.manifest_id, []).append((node.path, ref.extents))
    return held


def _manifests_json(file: ManifestFileInfo, entries: Sequence[tuple[str, Extents]]) -> dict[str, Any]:
    arrays = [{"path": path, "extents": extents or None} for path, extents in entries]
    return {"id": file.id, "size_bytes": file.size_bytes, "chunk_refs": file.num_chunk_refs, "arrays": arrays}


def _extent_text(extents: Extents) -> str:
    return "[" + ", ".join(f"{first}:{end}" for first, end in extents) + "]" if extents else "whole"
