"""Nodes, commits, diffs and refs as text and as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from icefloe.blocking import run_blocking
from icefloe.cli.console import stderr, stdout, table
from icefloe.cli.output import commit_json, print_json
from icefloe.display.card import first_line, format_count, format_time
from icefloe.display.graph import Ref
from icefloe.model.snapshot import ArrayNode, Diff, Node, SnapshotInfo
from icefloe.model.zarr_document import parse_document
from icefloe.repository import Repository
from icefloe.repository.history import fetch_refs


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a listing shows of a node."""

    path: str
    kind: str
    data_type: str | None = None
    shape: tuple[int, ...] = ()
    chunk_shape: tuple[int, ...] | None = None
    grid: tuple[int, ...] = ()
    dimension_names: tuple[str | None, ...] | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2] or "/"

    def as_json(self) -> dict[str, Any]:
        """The facts as JSON, with the names that Zarr uses."""
        if self.kind == "group":
            return {"path": self.path, "kind": self.kind}
        return {
            "path": self.path,
            "kind": self.kind,
            "data_type": self.data_type,
            "shape": self.shape,
            "chunk_shape": self.chunk_shape,
            "chunk_grid": self.grid,
            "dimension_names": self.dimension_names,
        }

    def shape_text(self) -> str:
        """The shape, with dimension names if the array has them: `(time: 24, lat: 180)`."""
        names = self.dimension_names or (None,) * len(self.shape)
        parts = (f"{name}: {n}" if name else str(n) for name, n in zip(names, self.shape, strict=True))
        return f"({', '.join(parts)})"


def node_facts(node: Node) -> NodeFacts:
    """The facts of a node."""
    if not isinstance(node, ArrayNode):
        return NodeFacts(node.path, "group")
    document = parse_document(node.document)
    return NodeFacts(
        path=node.path,
        kind="array",
        data_type=_data_type(document.get("data_type")),
        shape=node.shape,
        chunk_shape=_chunk_shape(document.get("chunk_grid", {})),
        grid=node.grid,
        dimension_names=node.dimension_names,
    )


def _data_type(given: Any) -> str:
    return str(given.get("name", given)) if isinstance(given, Mapping) else str(given)


def _chunk_shape(grid: Mapping[str, Any]) -> tuple[int, ...] | None:
    shape = grid.get("configuration", {}).get("chunk_shape")
    return None if shape is None else tuple(int(n) for n in shape)


def print_commit(console: Console, info: SnapshotInfo, names: Sequence[str] = ()) -> None:
    """Print a commit like git: id and refs, time, metadata, message."""
    head = Text.assemble(("snapshot ", "yellow"), (info.id, "yellow"))
    if names:
        head.append(f" ({', '.join(names)})", style="bold green")
    console.print(head, soft_wrap=True)
    console.print(Text.assemble(("Date:", "dim"), f"  {format_time(info.written_at)}"))
    for key, value in sorted(info.metadata.items()):
        shown = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
        console.print(Text.assemble((f"{key}:", "dim"), f"  {shown}"), soft_wrap=True)
    console.print()
    for line in info.message.strip().splitlines():
        console.print(Text("    " + line), soft_wrap=True)


_MOST_CHUNKS = 8


def diff_json(diff: Diff, *, chunks: bool) -> dict[str, Any]:
    """A diff as JSON. With `chunks`, it has the coordinates of all changed chunks, otherwise only their number."""
    document: dict[str, Any] = {
        "new_groups": sorted(diff.new_groups),
        "new_arrays": sorted(diff.new_arrays),
        "deleted_groups": sorted(diff.deleted_groups),
        "deleted_arrays": sorted(diff.deleted_arrays),
        "updated_groups": sorted(diff.updated_groups),
        "updated_arrays": sorted(diff.updated_arrays),
        "moved_nodes": [{"from": old, "to": new} for old, new in diff.moved_nodes],
        "updated_chunk_counts": {path: len(coords) for path, coords in sorted(diff.chunk_coords.items())},
    }
    if chunks:
        document["updated_chunks"] = {path: coords.tolist() for path, coords in sorted(diff.chunk_coords.items())}
    return document


def _highest_moves(moves: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The moves without those of nodes below a moved group."""
    known = set(moves)

    def goes_along(old: str, new: str) -> bool:
        while old.rpartition("/")[2] == new.rpartition("/")[2] and old and new:
            old, new = old.rpartition("/")[0], new.rpartition("/")[0]
            if (old, new) in known:
                return True
        return False

    return [(old, new) for old, new in moves if not goes_along(old, new)]


def print_diff(console: Console, diff: Diff, *, chunks: bool) -> None:
    """Print a diff with one line per path: + new, - deleted, ~ changed, > moved."""
    if diff.is_empty():
        console.print(Text("no changes", style="dim"))
        return
    for sign, style, groups, arrays in (
        ("+", "green", diff.new_groups, diff.new_arrays),
        ("-", "red", diff.deleted_groups, diff.deleted_arrays),
        ("~", "yellow", diff.updated_groups, diff.updated_arrays),
    ):
        named = [(path, "group") for path in groups] + [(path, "array") for path in arrays]
        for path, kind in sorted(named):
            console.print(Text.assemble((f"{sign} {kind} {path}", style)), soft_wrap=True)
    for old, new in _highest_moves(diff.moved_nodes):
        console.print(Text.assemble((f"> moved {old} → {new}", "cyan")), soft_wrap=True)
    for path, coords in sorted(diff.chunk_coords.items()):
        line = Text.assemble((f"~ {format_count(len(coords), 'chunk')} of {path}", "yellow"))
        shown = coords if chunks else coords[:_MOST_CHUNKS]
        listed = " ".join("/".join(map(str, row)) for row in shown.tolist())
        more = " …" if len(shown) < len(coords) else ""
        line.append(f"  {listed}{more}", style="dim")
        console.print(line, soft_wrap=True)


def print_refs(repository: Repository, kind: Literal["branch", "tag"], json: bool) -> None:
    """Print all branches or all tags with their commits."""
    refs = [ref for ref in run_blocking(fetch_refs(repository.context)) if ref.kind == kind]
    infos = run_blocking(_fetch_infos(repository, refs))
    if json:
        print_json(
            [
                {"name": ref.name, "snapshot_id": ref.snapshot_id, "commit": commit_json(info)}
                for ref, info in zip(refs, infos, strict=True)
            ]
        )
        return
    if not refs:
        stderr().print(Text(f"no {'branches' if kind == 'branch' else 'tags'}", style="dim"))
        return
    listing = table("name", "snapshot", "written", "message")
    for ref, info in zip(refs, infos, strict=True):
        name = Text(ref.name, style="bold green" if ref.kind == "branch" else "bold cyan")
        message = Text(first_line(info.message))
        listing.add_row(name, Text(ref.snapshot_id, style="yellow"), Text(format_time(info.written_at), "dim"), message)
    stdout().print(listing)


async def _fetch_infos(repository: Repository, refs: Sequence[Ref]) -> list[SnapshotInfo]:
    return await asyncio.gather(*(repository.context.ledger.fetch_info(ref.snapshot_id) for ref in refs))
