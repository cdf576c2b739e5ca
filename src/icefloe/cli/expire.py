"""`icefloe expire`: take old snapshots out of history."""

from __future__ import annotations

from typing import Annotated

import typer

from icefloe.cli.arguments import Json, Place, StorageOptions
from icefloe.cli.care import DryRun, parse_age, parse_span
from icefloe.cli.opening import find_snapshot, open_repository
from icefloe.cli.output import print_json, stdout
from icefloe.cli.progress import Bars
from icefloe.maintenance.expire_plan import RetentionRule
from icefloe.repository import Repository


def register(app: typer.Typer) -> None:
    app.command("expire")(expire)


def expire(
    place: Place,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="30d, 12h, 2w, or a time.")
    ] = None,
    retain_last: Annotated[
        int | None, typer.Option("--retain-last", metavar="COUNT", min=1, help="Keep so many of every ref.")
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            metavar="REF=KEEP",
            help="What is kept of some refs: branch:main=90d, rel-*=last:10, tag:v*=forever; can be repeated.",
        ),
    ] = None,
    snapshot: Annotated[
        list[str] | None,
        typer.Option("--snapshot", "-s", metavar="ID", help="Exactly this one, or a range OLD..NEW; can be repeated."),
    ] = None,
    delete_branches: Annotated[bool, typer.Option("--delete-branches", help="Expired branches go, too.")] = False,
    delete_tags: Annotated[bool, typer.Option("--delete-tags", help="Expired tags go, too.")] = False,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Take old snapshots out of history; `gc` then frees their files."""
    repository = open_repository(place, options)
    plan = repository.plan_expiry(
        parse_age(older_than) if older_than else None,
        retain_last=retain_last,
        rules=[parse_rule(each) for each in rule or ()],
        snapshots=[each for text in snapshot or () for each in _named(repository, text)],
        delete_expired_branches=delete_branches,
        delete_expired_tags=delete_tags,
    )
    if not dry_run:
        with Bars() as bars:
            repository.apply_expiry(plan, progress=bars.report)
    if json:
        print_json({
            "dry_run": dry_run,
            "expired": [info.id for info in plan.expired],
            "kept": plan.kept,
            "deleted_branches": sorted(plan.change.branches),
            "deleted_tags": sorted(plan.change.tags),
        })  # fmt: skip
    else:
        stdout().print(str(plan), markup=False)


def parse_rule(text: str) -> RetentionRule:
    """A rule as REF=KEEP, where KEEP is `forever`, `last:10`, `90d`, or several joined by `+`."""
    pattern, equals, keep = text.rpartition("=")
    if not equals or not pattern or not keep:
        raise typer.BadParameter(f"{text!r} is not REF=KEEP", param_hint="--rule")
    keep_for, keep_last, forever = None, None, False
    for part in keep.split("+"):
        if part == "forever":
            forever = True
        elif part.startswith("last:") and part[5:].isdigit():
            keep_last = int(part[5:])
        else:
            keep_for = parse_span(part)
    return RetentionRule(pattern, keep_for, keep_last, forever)


def _named(repository: Repository, text: str) -> list[str]:
    old, dots, new = text.partition("..")
    if not dots:
        return [find_snapshot(repository, text)]
    oldest, newest = find_snapshot(repository, old), find_snapshot(repository, new)
    found = []
    for info in repository.ancestry(snapshot_id=newest):
        found.append(info.id)
        if info.id == oldest:
            return found
    raise typer.BadParameter(f"{old} is no ancestor of {new}", param_hint="--snapshot")
