"""How a diff is told, to people and to machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from icefloe.display.amounts import format_count
from icefloe.model.diff import Diff

_MOST_CHUNKS = 8


def diff_json(diff: Diff, *, chunks: bool) -> dict[str, Any]:
    """A diff as JSON; coordinates of chunks only when asked for, their number always."""
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
    """The moves that carry others along: what lies below a moved group went with it."""
    known = set(moves)

    def goes_along(old: str, new: str) -> bool:
        while old.rpartition("/")[2] == new.rpartition("/")[2] and old and new:
            old, new = old.rpartition("/")[0], new.rpartition("/")[0]
            if (old, new) in known:
                return True
        return False

    return [(old, new) for old, new in moves if not goes_along(old, new)]


def print_diff(console: Console, diff: Diff, *, chunks: bool) -> None:
    """A diff with one line per path: + new, - deleted, ~ changed, > moved."""
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
