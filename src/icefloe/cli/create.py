"""`icefloe create`: make a new repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icefloe.cli.arguments import Json, Place, StorageOptions
from icefloe.cli.opening import storage_at
from icefloe.cli.output import print_json, stdout
from icefloe.formats.config_yaml import config_from_yaml
from icefloe.repository import Repository


def register(app: typer.Typer) -> None:
    app.command("create")(create)


def create(
    place: Place,
    spec_version: Annotated[
        str | None,
        typer.Option(
            "--spec-version",
            metavar="NAME",
            help="Generation of the format: repository (default), dataset, store, icechunk1 or icechunk2.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", exists=True, dir_okay=False, metavar="FILE", help="Configuration to keep, as YAML."),
    ] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Be content with a repository that is there.")] = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Make a new repository."""
    storage = storage_at(place, options)
    given = None if config is None else config_from_yaml(config.read_text())
    existed = exist_ok and Repository.exists(storage)
    if exist_ok:
        repository = Repository.open_or_create(storage, given, create_version=spec_version)
    else:
        repository = Repository.create(storage, given, spec_version=spec_version)
    tip = repository.lookup_branch("main")
    generation = repository.spec_version.value
    if json:
        print_json({"url": storage.url, "spec_version": generation, "created": not existed, "snapshot_id": tip})
    else:
        done = "There is" if existed else "Created"
        stdout().print(f"{done} a repository of generation {generation} at {storage.url}, main at {tip}")
