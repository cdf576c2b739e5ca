"""`icefloe stats`: chunks by kind, objects and bytes, per array."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from icefloe.blocking import run_blocking
from icefloe.cli.arguments import AsOf, Branch, Json, Limit, Place, Snapshot, StorageOptions, Tag
from icefloe.cli.chunk_count import ChunkCount, add_counts, count_chunks
from icefloe.cli.opening import Point, open_repository
from icefloe.cli.output import print_json, stdout, table
from icefloe.cli.progress import progress
from icefloe.display.amounts import format_bytes
from icefloe.model.nodes import ArrayNode


def register(app: typer.Typer) -> None:
    app.command("stats")(stats)


def stats(
    place: Place,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="Only at and below this.", show_default=False)] = "/",
    limit: Limit = 50,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: Snapshot = None,
    as_of: AsOf = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Chunks by kind, objects and bytes, per array."""
    session = Point(branch, tag, snapshot, as_of).session(open_repository(place, options))
    workspace = session.workspace
    start = "/" + path.strip("/")
    if start != "/":
        workspace.tree.node(start)
    arrays = [node for node in workspace.tree.subtree(start) if isinstance(node, ArrayNode)]
    counts = {
        node.path: count_chunks(run_blocking(workspace.chunk_table(node)))
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
    places = [f"{len(found):,}" if len(found) else "·" for found in (count.objects, count.files)]
    return [f"{count.total_chunks:,}", *by_kind, *places, format_bytes(count.total_bytes)]
