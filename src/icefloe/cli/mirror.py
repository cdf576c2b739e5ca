"""`icefloe mirror`: a copy of a repository elsewhere, again and again at the cost of what is new."""

from __future__ import annotations

from typing import Annotated

import typer

from icefloe.cli.arguments import Json, Place, StorageOptions, TargetOptions
from icefloe.cli.care import DryRun
from icefloe.cli.opening import open_repository, storage_at
from icefloe.cli.output import print_json, stdout
from icefloe.cli.progress import Bars


def register(app: typer.Typer) -> None:
    app.command("mirror")(mirror)


def mirror(
    place: Place,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="An empty place, or an earlier copy.", show_default=False)
    ],
    dry_run: DryRun = False,
    options: StorageOptions = None,
    target_options: TargetOptions = None,
    json: Json = False,
) -> None:
    """Make another place a copy of a repository; again, only what is new is copied."""
    repository = open_repository(place, options)
    storage = storage_at(target, target_options)
    with Bars() as bars:
        plan = repository.plan_mirror(storage) if dry_run else repository.mirror(storage, progress=bars.report)
    if json:
        print_json({
            "dry_run": dry_run,
            "target": storage.url,
            "copied_objects": len(plan.copied),
            "copied_bytes": sum(item.size_bytes for item in plan.copied),
            "unchanged": plan.unchanged,
            "removed": list(plan.removed),
        })  # fmt: skip
        return
    told = str(plan) if dry_run else str(plan).replace(" to copy", " copied").replace(" to remove", " removed")
    stdout().print(told, markup=False)
