"""`icefloe tree`: groups and arrays as a tree."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text
from rich.tree import Tree

from icefloe.cli.arguments import AsOf, Branch, Json, Place, Snapshot, StorageOptions, Tag
from icefloe.cli.node_facts import NodeFacts, node_facts
from icefloe.cli.opening import Point, open_repository
from icefloe.cli.output import print_json, stdout
from icefloe.model.paths import parent_path


def register(app: typer.Typer) -> None:
    app.command("tree")(tree)


def tree(
    place: Place,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="The group to start from.", show_default=False)] = "/",
    depth: Annotated[int | None, typer.Option("--depth", "-d", min=1, help="Go only so deep.")] = None,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: Snapshot = None,
    as_of: AsOf = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Groups and arrays as a tree."""
    session = Point(branch, tag, snapshot, as_of).session(open_repository(place, options))
    start = "/" + path.strip("/")
    nodes = session.workspace.tree
    if start != "/" or nodes.find("/") is not None:
        nodes.node(start)
    found = [node_facts(node) for node in nodes.subtree(start)]
    found = [facts for facts in found if depth is None or _depth(facts.path) - _depth(start) <= depth]
    if json:
        print_json({"snapshot_id": session.snapshot_id, "nodes": [facts.as_json() for facts in found]})
        return
    stdout().print(_drawn(start, found))


def _depth(path: str) -> int:
    return 0 if path == "/" else path.count("/")


def _drawn(start: str, found: list[NodeFacts]) -> Tree:
    root = Tree(Text(start, style="bold blue"))
    places = {start: root}
    for facts in found:
        if facts.path == start:
            if facts.kind == "array":
                root.label = Text.assemble((start, "bold"), " ", *_array(facts))
            continue
        above = parent_path(facts.path)
        while above is not None and above not in places:
            above = parent_path(above)
        if facts.kind == "group":
            text = Text(facts.name + "/", style="bold blue")
        else:
            text = Text.assemble(facts.name, " ", *_array(facts))
        places[facts.path] = places.get(above or start, root).add(text)
    if not found:
        root.label = Text.assemble((start, "bold blue"), " ", ("(empty)", "dim"))
    return root


def _array(facts: NodeFacts) -> tuple[tuple[str, str] | str, ...]:
    return (facts.shape_text(), "green"), " ", (str(facts.data_type), "cyan")
