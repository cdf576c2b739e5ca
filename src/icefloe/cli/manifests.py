"""`icefloe manifests`: which arrays sit in which manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from rich.text import Text

from icefloe.cli.arguments import AsOf, Branch, Json, Limit, Place, Snapshot, StorageOptions, Tag
from icefloe.cli.opening import Point, open_repository
from icefloe.cli.output import print_json, stdout, styled, table
from icefloe.display.amounts import format_bytes, format_count
from icefloe.ids import ObjectId
from icefloe.model.nodes import ArrayNode, Extents
from icefloe.model.snapshot import ManifestFileInfo
from icefloe.model.snapshot import Snapshot as SnapshotFile

_MOST_ARRAYS = 4


def register(app: typer.Typer) -> None:
    app.command("manifests")(manifests)


def manifests(
    place: Place,
    limit: Limit = 50,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: Snapshot = None,
    as_of: AsOf = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Which arrays sit in which manifest, with sizes and extents."""
    base = Point(branch, tag, snapshot, as_of).session(open_repository(place, options)).workspace.base
    held = arrays_by_manifest(base)
    files = sorted(base.manifests.values(), key=lambda file: (-file.size_bytes, file.id))
    shown = files[:limit] if limit else files
    if json:
        listed = [_as_json(file, held.get(file.id, ())) for file in shown]
        print_json({"snapshot_id": base.id, "manifests": listed, "more": len(shown) < len(files)})
        return
    console = stdout()
    listing = table("manifest", "size", "chunks", "arrays and extents", right=("size", "chunks"))
    for file in shown:
        entries = held.get(file.id, ())
        told = [Text.assemble(path, (f"  {_extent_text(extents)}", "dim")) for path, extents in entries[:_MOST_ARRAYS]]
        if len(entries) > _MOST_ARRAYS:
            told.append(Text(f"… {len(entries) - _MOST_ARRAYS:,} more", style="dim"))
        size, refs = format_bytes(file.size_bytes), f"{file.num_chunk_refs:,}"
        listing.add_row(Text(file.id, style="yellow"), size, refs, Text("\n").join(told))
    console.print(listing)
    total_bytes = sum(file.size_bytes for file in files)
    total_refs = sum(file.num_chunk_refs for file in files)
    rest = f"; {len(shown):,} shown, the largest; --limit 0 shows all" if len(shown) < len(files) else ""
    console.print(
        styled(
            f"\n[dim]{format_count(len(files), 'manifest')}, {format_bytes(total_bytes)}, "
            f"{format_count(total_refs, 'chunk')}{rest}[/]"
        )
    )


def arrays_by_manifest(base: SnapshotFile) -> dict[ObjectId, list[tuple[str, Extents]]]:
    """For each manifest the arrays that name it, with the part of the grid it speaks for."""
    held: dict[ObjectId, list[tuple[str, Extents]]] = {}
    for node in base.nodes.values():
        if isinstance(node, ArrayNode):
            for ref in node.manifests:
                held.setdefault(ref.manifest_id, []).append((node.path, ref.extents))
    return held


def _as_json(file: ManifestFileInfo, entries: Sequence[tuple[str, Extents]]) -> dict[str, Any]:
    arrays = [{"path": path, "extents": extents or None} for path, extents in entries]
    return {"id": file.id, "size_bytes": file.size_bytes, "chunk_refs": file.num_chunk_refs, "arrays": arrays}


def _extent_text(extents: Extents) -> str:
    return "[" + ", ".join(f"{first}:{end}" for first, end in extents) + "]" if extents else "whole"
