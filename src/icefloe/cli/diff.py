"""`icefloe diff`: what changed between two points of history."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from icefloe.cli.arguments import Json, Place, StorageOptions
from icefloe.cli.diff_facts import diff_json, print_diff
from icefloe.cli.opening import open_repository, resolve_revision
from icefloe.cli.output import print_json, stderr, stdout
from icefloe.model.diff import Diff


def register(app: typer.Typer) -> None:
    app.command("diff")(diff)


def diff(
    place: Place,
    old: Annotated[
        str | None,
        typer.Argument(metavar="[FROM]", help="Branch, tag or snapshot id (default: the parent of TO)."),
    ] = None,
    new: Annotated[str, typer.Argument(metavar="[TO]", help="Branch, tag or snapshot id.")] = "main",
    chunks: Annotated[bool, typer.Option("--chunks", help="List the coordinates of every changed chunk.")] = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """What changed between two points of history."""
    repository = open_repository(place, options)
    to_id = resolve_revision(repository, new)
    if old is None:
        from_id = next(repository.ancestry(snapshot_id=to_id)).parent_id
    else:
        from_id = resolve_revision(repository, old)
    found = Diff() if from_id is None else repository.diff(from_snapshot_id=from_id, to_snapshot_id=to_id)
    if json:
        print_json({"from": from_id, "to": to_id, **diff_json(found, chunks=chunks)})
        return
    stderr().print(Text(f"{from_id or 'nothing'} → {to_id}", style="dim"))
    print_diff(stdout(), found, chunks=chunks)
