"""`icefloe ls`: what is in a group, or the chunks of an array."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer
from rich.text import Text

from icefloe.blocking import run_blocking
from icefloe.cli.arguments import AsOf, Branch, Json, Limit, Place, Snapshot, StorageOptions, Tag
from icefloe.cli.node_facts import node_facts
from icefloe.cli.opening import Point, open_repository
from icefloe.cli.output import print_json, stdout, table
from icefloe.display.amounts import format_bytes, format_count
from icefloe.formats.contract import Format
from icefloe.manifests.columns import take
from icefloe.model.chunk_keys import key_encoding
from icefloe.model.chunk_table import ChunkKind, ChunkRef
from icefloe.model.nodes import ArrayNode
from icefloe.session.session import Session


def register(app: typer.Typer) -> None:
    app.command("ls")(ls)


def ls(
    place: Place,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A group or an array.", show_default=False)] = "/",
    limit: Limit = 50,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: Snapshot = None,
    as_of: AsOf = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """What is in a group, or the chunks of an array."""
    session = Point(branch, tag, snapshot, as_of).session(open_repository(place, options))
    tree = session.workspace.tree
    start = "/" + path.strip("/")
    node = tree.find(start) if start == "/" else tree.node(start)
    if isinstance(node, ArrayNode):
        _list_chunks(session, node, limit, json=json)
    else:
        _list_group(session, start, json=json)


def _list_group(session: Session, start: str, *, json: bool) -> None:
    tree = session.workspace.tree
    below = "" if start == "/" else start
    found = [tree.find(f"{below}/{name}") for name in tree.child_names(start)]
    children = [node_facts(node) for node in found if node is not None]
    if json:
        print_json({"path": start, "kind": "group", "children": [facts.as_json() for facts in children]})
        return
    listing = table("name", "type", "shape", "chunks")
    for facts in children:
        if facts.kind == "group":
            listing.add_row(Text(facts.name + "/", style="bold blue"), Text("group", style="dim"), "", "")
        else:
            shape, chunks = Text(facts.shape_text(), style="green"), "×".join(map(str, facts.chunk_shape or ()))
            listing.add_row(Text(facts.name), Text(str(facts.data_type), style="cyan"), shape, chunks)
    stdout().print(listing) if children else stdout().print(Text("empty", style="dim"))


def _list_chunks(session: Session, node: ArrayNode, limit: int, *, json: bool) -> None:
    found = run_blocking(session.workspace.chunk_table(node))
    shown = take(found, np.arange(min(limit, len(found)))) if limit else found
    encoding, generation = key_encoding(node.document), session.workspace.engine.format
    start = "" if node.path == "/" else node.path[1:] + "/"
    entries = [
        {"key": start + encoding.suffix(list(coords)), **_reference(ref, generation)} for coords, ref in shown.rows()
    ]
    if json:
        about = node_facts(node).as_json()
        print_json({**about, "num_chunks": len(found), "chunks": entries, "more": len(shown) < len(found)})
        return
    console = stdout()
    listing = table("chunk", "kind", "bytes", "at", right=("bytes",))
    for entry in entries:
        at = entry.get("object") or entry.get("location")
        place = f"{at} +{entry['offset']}" if at and entry["offset"] else at or ""
        listing.add_row(Text(entry["key"]), entry["kind"], f"{entry['length']:,}", Text(place, style="dim"))
    console.print(listing)
    cells = int(np.prod(node.grid, dtype=np.float64)) if node.grid else 1
    written = f"{format_count(len(found), 'chunk')} of {cells:,}, {format_bytes(int(found.length.sum()))}"
    rest = f"; {len(shown):,} shown, --limit 0 shows all" if len(shown) < len(found) else ""
    console.print(Text(f"\n{written}{rest}", style="dim"))


def _reference(ref: ChunkRef, generation: Format) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": ref.kind.name.lower(), "length": ref.length, "offset": ref.offset}
    if ref.kind is ChunkKind.NATIVE and ref.object_id is not None:
        told["object"] = generation.chunk_key(ref.object_id)
    if ref.kind is ChunkKind.VIRTUAL:
        told |= {"location": ref.location, "etag": ref.etag, "last_modified": ref.last_modified}
    return told
