"""`icefloe tag`: list, create or delete tags."""

from __future__ import annotations

from typing import Annotated

import typer

from icefloe.cli.arguments import Json, Place, StorageOptions
from icefloe.cli.opening import open_repository, resolve_revision
from icefloe.cli.output import print_json, stdout
from icefloe.cli.ref_facts import print_refs


def register(app: typer.Typer) -> None:
    app.command("tag")(tag)


def tag(
    place: Place,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The tag to create.")] = None,
    revision: Annotated[
        str, typer.Argument(metavar="[REVISION]", help="Branch, tag or snapshot id that it names for ever.")
    ] = "main",
    delete: Annotated[
        list[str] | None,
        typer.Option("--delete", "-D", metavar="NAME", help="Delete this tag, where the generation allows it."),
    ] = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """List, create or delete tags."""
    repository = open_repository(place, options)
    if delete and name is not None:
        raise typer.BadParameter("create or delete, not both at once", param_hint="--delete")
    if delete:
        for each in delete:
            repository.delete_tag(each)
        print_json({"deleted": delete}) if json else stdout().print(f"Deleted {', '.join(delete)}", markup=False)
    elif name is not None:
        snapshot_id = resolve_revision(repository, revision)
        repository.create_tag(name, snapshot_id)
        if json:
            print_json({"created": name, "snapshot_id": snapshot_id})
        else:
            stdout().print(f"Tag {name} at {snapshot_id}", markup=False)
    else:
        print_refs(repository, "tag", json)
