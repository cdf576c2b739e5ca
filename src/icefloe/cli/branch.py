"""`icefloe branch`: list, create or delete branches."""

from __future__ import annotations

from typing import Annotated

import typer

from icefloe.cli.arguments import Json, Place, StorageOptions
from icefloe.cli.opening import open_repository, resolve_revision
from icefloe.cli.output import print_json, stdout
from icefloe.cli.ref_facts import print_refs


def register(app: typer.Typer) -> None:
    app.command("branch")(branch)


def branch(
    place: Place,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The branch to create.")] = None,
    start: Annotated[str, typer.Argument(metavar="[START]", help="Where: branch, tag or snapshot id.")] = "main",
    delete: Annotated[
        list[str] | None, typer.Option("--delete", "-D", metavar="NAME", help="Delete this branch; can be repeated.")
    ] = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """List, create or delete branches."""
    repository = open_repository(place, options)
    if delete and name is not None:
        raise typer.BadParameter("create or delete, not both at once", param_hint="--delete")
    if delete:
        for each in delete:
            repository.delete_branch(each)
        print_json({"deleted": delete}) if json else stdout().print(f"Deleted {', '.join(delete)}", markup=False)
    elif name is not None:
        snapshot_id = resolve_revision(repository, start)
        repository.create_branch(name, snapshot_id)
        if json:
            print_json({"created": name, "snapshot_id": snapshot_id})
        else:
            stdout().print(f"Branch {name} at {snapshot_id}", markup=False)
    else:
        print_refs(repository, "branch", json)
