"""`icefloe gc`: delete what no branch or tag leads to."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Annotated

import typer

from icefloe.cli.arguments import Json, Place, StorageOptions
from icefloe.cli.care import DryRun, parse_age
from icefloe.cli.opening import open_repository
from icefloe.cli.output import print_json, stdout
from icefloe.cli.progress import Bars


def register(app: typer.Typer) -> None:
    app.command("gc")(gc)


def gc(
    place: Place,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="AGE",
            help="Judge objects of this age by the store's clock: longer than any writer is under way.",
        ),
    ] = "1d",
    created_after: Annotated[
        str | None, typer.Option("--created-after", metavar="TIME", help="Leave older objects alone.")
    ] = None,
    incremental: Annotated[
        bool, typer.Option("--incremental", help="Go on where the last incremental run ended.")
    ] = False,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Delete what no branch or tag leads to and what is old enough."""
    repository = open_repository(place, options)
    after = None if created_after is None else parse_age(created_after)
    if isinstance(after, dt.timedelta):
        raise typer.BadParameter(f"{created_after!r} is not a time", param_hint="--created-after")
    age = parse_age(older_than)
    with Bars() as bars:
        if dry_run:
            plan = repository.plan_garbage_collection(
                age, created_after=after, incremental=incremental, progress=bars.report
            )
            summary, told = plan.summary(), str(plan)
        else:
            summary = repository.garbage_collect(
                age, created_after=after, incremental=incremental, progress=bars.report
            )
            told = f"Deleted {summary}\n{summary.judged()}"
    if json:
        facts = dataclasses.asdict(summary)
        facts["cutoff"] = None if summary.cutoff is None else summary.cutoff.astimezone(dt.UTC).isoformat()
        print_json({"dry_run": dry_run, **facts})
    else:
        stdout().print(told, markup=False)
