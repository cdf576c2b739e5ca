"""`icefloe compact`: write chunks into packs, out of them, or out of foreign files."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from icefloe.cli.arguments import Json, Place, StorageOptions
from icefloe.cli.care import ArrayPattern, ChunkBox, DryRun, WorkBranch
from icefloe.cli.opening import open_repository
from icefloe.cli.output import print_json, stdout
from icefloe.cli.progress import Bars
from icefloe.maintenance.compact_plan import CompactionPlan
from icefloe.repository import Repository


def register(app: typer.Typer) -> None:
    app.command("compact")(compact)


def compact(
    place: Place,
    branch: WorkBranch = "main",
    arrays: ArrayPattern = "*",
    region: ChunkBox = None,
    hilbert: Annotated[bool, typer.Option("--hilbert", help="Lay chunks out along a Hilbert curve.")] = False,
    unpack: Annotated[bool, typer.Option("--unpack", help="Make packed chunks objects of their own.")] = False,
    materialize: Annotated[bool, typer.Option("--materialize", help="Copy virtual chunks in instead.")] = False,
    dry_run: DryRun = False,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Pack small chunks together, drop dead bytes, or undo that; data stay as they are."""
    repository = open_repository(place, options)
    plan = repository.plan_compaction(
        branch,
        arrays=arrays,
        region=None if region is None else parse_region(region),
        order="hilbert" if hilbert else "chunk",
        unpack=unpack,
        materialize=materialize,
    )
    carry_out(repository, plan, dry_run=dry_run, json=json)


def carry_out(repository: Repository, plan: CompactionPlan, *, dry_run: bool, json: bool) -> None:
    """Show a plan, or do it and tell what was done."""
    if dry_run:
        if json:
            print_json({"dry_run": True, "chunks": plan.chunks, "bytes": plan.size_bytes})
        else:
            stdout().print(str(plan), markup=False)
        return
    with Bars() as bars:
        summary = repository.apply_compaction(plan, progress=bars.report)
    if json:
        print_json({"dry_run": False, **dataclasses.asdict(summary)})
    else:
        stdout().print(f"Wrote {summary}", markup=False)


def parse_region(text: str) -> list[tuple[int, int]]:
    try:
        pairs = [each.split(":") for each in text.split(",")]
        return [(int(first), int(end)) for first, end in pairs]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not FIRST:END per dimension", param_hint="--region") from error
