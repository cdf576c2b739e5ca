"""`icefloe reset`: point a branch at another snapshot."""

from __future__ import annotations

from typing import Annotated

import typer

from icefloe.cli.arguments import Json, Place, StorageOptions
from icefloe.cli.opening import find_snapshot, open_repository, resolve_revision
from icefloe.cli.output import print_json, stdout


def register(app: typer.Typer) -> None:
    app.command("reset")(reset)


def reset(
    place: Place,
    branch: Annotated[str, typer.Argument(metavar="BRANCH", help="The branch to move.", show_default=False)],
    revision: Annotated[
        str, typer.Argument(metavar="REVISION", help="Where to: branch, tag or snapshot id.", show_default=False)
    ],
    expect: Annotated[
        str | None, typer.Option("--expect", metavar="ID", help="Only if the branch is at this snapshot now.")
    ] = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Point a branch at another snapshot.

    The commits it leaves behind stay until they are collected; the old snapshot is printed, so that the way back is
    known. A commit that lands while this runs is never thrown away: the command then fails.
    """
    repository = open_repository(place, options)
    old = repository.lookup_branch(branch)
    new = resolve_revision(repository, revision)
    guard = old if expect is None else find_snapshot(repository, expect)
    repository.reset_branch(branch, new, from_snapshot_id=guard)
    if json:
        print_json({"branch": branch, "from": old, "to": new})
    else:
        stdout().print(f"{branch}: {old} → {new}", markup=False)
