"""`icefloe materialize`: copy virtual chunks into the repository."""

from __future__ import annotations

from typing import Annotated

import typer

from icefloe.cli.arguments import Json, Place, StorageOptions
from icefloe.cli.care import ArrayPattern, ChunkBox, DryRun, WorkBranch
from icefloe.cli.compact import carry_out, parse_region
from icefloe.cli.opening import open_repository


def register(app: typer.Typer) -> None:
    app.command("materialize")(materialize)


def materialize(
    place: Place,
    branch: WorkBranch = "main",
    arrays: ArrayPattern = "*",
    region: ChunkBox = None,
    authorize: Annotated[
        list[str] | None,
        typer.Option("--authorize", metavar="PREFIX", help="Container that may be read; can be repeated."),
    ] = None,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Copy virtual chunks into a repository, so that it no longer needs the files they lie in."""
    repository = open_repository(place, options, dict.fromkeys(authorize or ()))
    box = None if region is None else parse_region(region)
    plan = repository.plan_compaction(branch, arrays=arrays, region=box, materialize=True)
    carry_out(repository, plan, dry_run=dry_run, json=json)
