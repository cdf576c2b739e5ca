"""`icefloe log`: commits, newest first; with --graph all branches as a drawing."""

from __future__ import annotations

import itertools
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from icefloe.blocking import run_blocking
from icefloe.cli.arguments import AsOf, Branch, Json, Limit, Place, Snapshot, StorageOptions, Tag
from icefloe.cli.commit_facts import commit_json, print_commit
from icefloe.cli.opening import Point, open_repository
from icefloe.cli.output import print_json, stdout
from icefloe.display.amounts import first_line
from icefloe.display.ancestry_graph import AncestryGraph
from icefloe.display.graph_text import RICH_STYLES, graph_lines
from icefloe.repository import Repository
from icefloe.repository.graph import fetch_refs


def register(app: typer.Typer) -> None:
    app.command("log")(log)


def log(
    place: Place,
    graph: Annotated[bool, typer.Option("--graph", "-g", help="Draw branches and tags.")] = False,
    oneline: Annotated[bool, typer.Option("--oneline", help="One line per commit.")] = False,
    limit: Limit = 50,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: Snapshot = None,
    as_of: AsOf = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Commits, newest first; with --graph all branches as a drawing."""
    repository = open_repository(place, options)
    point = Point(branch, tag, snapshot, as_of)
    if graph:
        start = point.snapshot_id(repository) if point.is_given or as_of else None
        drawing = repository.ancestry_graph(snapshot_id=start, limit=limit or None)
        _print_json_graph(drawing) if json else _print_graph(stdout(), drawing)
        return
    _log(repository, point.snapshot_id(repository), limit, oneline=oneline, json=json)


def _log(repository: Repository, start: str, limit: int, *, oneline: bool, json: bool) -> None:
    ancestry = repository.ancestry(snapshot_id=start)
    names: dict[str, list[str]] = {}
    for ref in run_blocking(fetch_refs(repository.engine)):
        names.setdefault(ref.snapshot_id, []).append(ref.name if ref.kind == "branch" else f"tag: {ref.name}")
    shown = list(itertools.islice(ancestry, limit)) if limit else ancestry
    if json:
        commits = [commit_json(info) | {"refs": names.get(info.id, [])} for info in shown]
        more = bool(limit) and next(ancestry, None) is not None
        print_json({"commits": commits, "more": more})
        return
    console = stdout()
    for info in shown:
        if oneline:
            labels = f" ({', '.join(names[info.id])})" if info.id in names else ""
            console.print(
                Text.assemble((info.id, "yellow"), (labels, "bold green"), f" {first_line(info.message)}"),
                soft_wrap=True,
            )
        else:
            print_commit(console, info, names.get(info.id, []))
            console.print()
    if limit and next(ancestry, None) is not None:
        console.print(Text(f"… there is more; --limit 0 shows all, this is the newest {limit}", style="dim"))


def _print_json_graph(graph: AncestryGraph) -> None:
    rows = [
        {"id": row.commit.id, "parent_id": row.commit.parent_id, "written_at": row.commit.written_at,
         "message": row.commit.message, "column": row.own.column}
        for row in graph.layout.rows
    ]  # fmt: skip
    refs = [{"name": ref.name, "kind": ref.kind, "snapshot_id": ref.snapshot_id} for ref in graph.refs]
    print_json({"commits": rows, "refs": refs, "more": any(row.cut for row in graph.layout.rows)})


def _print_graph(console: Console, graph: AncestryGraph) -> None:
    for line in graph_lines(graph.layout, graph.refs):
        text = Text.assemble(*((part, RICH_STYLES.get(style, "")) for part, style in line))
        text.rstrip()
        console.print(text, no_wrap=True, overflow="ellipsis", crop=console.is_terminal)
