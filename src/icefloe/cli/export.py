"""The verbs that write a repository elsewhere: export, convert, mirror."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from icefloe.cli.ingest import Master, Settings, parse_names, parse_numbers, parse_region, spark_session
from icefloe.cli.options import (
    AsOf,
    Branch,
    DryRun,
    Json,
    Place,
    Point,
    Snapshot,
    StorageOptions,
    Tag,
    TargetOptions,
    open_repository,
    storage_at,
)
from icefloe.cli.output import Bars, print_json, stdout
from icefloe.conversion.convert import convert as convert_repository
from icefloe.conversion.convert import upgrade
from icefloe.conversion.steps import Conversion
from icefloe.conversion.survey import LossKind
from icefloe.conversion.transfer import Verify
from icefloe.display.card import format_bytes, format_count
from icefloe.repository import Repository

Texts = list[str] | None


def register_export(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    place: Place,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Path or URL to write to.", show_default=False)],
    to: Annotated[
        Literal["zarr", "parquet", "repository"], typer.Option("--to", help="What to write; repositories get a commit.")
    ] = "zarr",
    group: Annotated[str, typer.Option("--group", metavar="PATH", help="Only this group.")] = "",
    variables: Annotated[Texts, typer.Option("--variables", metavar="NAMES", help="Only these, by commas.")] = None,
    region: Annotated[Texts, typer.Option("--region", metavar="DIM=FIRST:END", help="Only these cells.")] = None,
    chunks: Annotated[Texts, typer.Option("--chunks", metavar="DIM=LENGTH", help="Other chunks; -1 for all.")] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Message of the commit.")] = None,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: Snapshot = None,
    as_of: AsOf = None,
    authorize: Annotated[
        Texts, typer.Option("--authorize", metavar="PREFIX", help="Read virtual chunks below it; can be repeated.")
    ] = None,
    target_options: Annotated[
        Texts, typer.Option("--target-option", metavar="NAME=VALUE", help="Option of the target's storage.")
    ] = None,
    master: Master = None,
    conf: Settings = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Write a snapshot, or a part of it, as plain Zarr, Parquet or another repository."""
    repository = open_repository(place, options, dict.fromkeys(authorize or ()))
    session = Point(branch, tag, snapshot, as_of).session(repository)
    spark = spark_session(master, conf, quick_start=True)
    from icefloe.spark import copy  # noqa: PLC0415 - Spark is an extra
    from icefloe.spark import export as export_arrays  # noqa: PLC0415 - Spark is an extra

    part: dict[str, Any] = {
        "group": group,
        "variables": parse_names(variables),
        "region": parse_region(region) or None,
        "chunks": parse_numbers(chunks, "--chunks") or None,
    }
    storage = storage_at(target, target_options)
    facts: dict[str, Any] = {"source": str(session.snapshot_id), "target": storage.url, "format": to}
    if to == "repository":
        copied = copy(spark, session, Repository.open_or_create(storage), message=message, **part)
        facts |= {"snapshot_id": copied.snapshot_id, "tasks": copied.tasks, "chunks": copied.references}
        told = f"{copied.references:,} chunks in {copied.seconds:.1f} s: snapshot {copied.snapshot_id} of {storage.url}"
    else:
        written = export_arrays(spark, session, storage, format=to, **part)
        facts |= {"objects": written.objects, "bytes": written.bytes, "tasks": written.tasks}
        told = f"{written.objects:,} objects, {format_bytes(written.bytes)} in {written.seconds:.1f} s at {storage.url}"
    if json:
        print_json(facts)
    else:
        stdout().print(told, markup=False)


def register_convert(app: typer.Typer) -> None:
    app.command("convert")(convert)


def convert(
    place: Place,
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="Empty place for the new repository.", show_default=False)
    ] = None,
    to: Annotated[
        str,
        typer.Option("--to", metavar="NAME", help="Generation: repository, dataset, store, icechunk1 or icechunk2."),
    ] = "icechunk2",
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Convert the repository where it is; nobody else may write meanwhile.")
    ] = False,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            "--drop",
            metavar="WORD",
            help=f"What may be lost where it does not fit: {', '.join(kind.value for kind in LossKind)}.",
        ),
    ] = None,
    verify: Annotated[
        str, typer.Option("--verify", metavar="HOW", help="model: all references; spot: also some chunks; all chunks.")
    ] = Verify.SPOT.value,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")] = False,
    options: StorageOptions = None,
    target_options: TargetOptions = None,
    json: Json = False,
) -> None:
    """Make a repository of another generation, with all its history, elsewhere or in its place."""
    if (target is None) != in_place:
        raise typer.BadParameter("give a TARGET, or --in-place", param_hint="TARGET")
    repository = open_repository(place, options)
    words = drop or []
    with Bars() as bars:
        if target is None:
            done = upgrade(repository, to, drop=words, verify=verify, progress=bars.report, dry_run=dry_run)
        else:
            storage = storage_at(target, target_options)
            done = convert_repository(
                repository, storage, to, drop=words, verify=verify, progress=bars.report, dry_run=dry_run
            )
    if json:
        print_json(_facts(done))
    else:
        _show(done)


def _facts(done: Conversion) -> dict[str, object]:
    return {
        "source": done.source,
        "target": done.target,
        "from": done.from_version.value,
        "to": done.to_version.value,
        "converted": done.repository is not None,
        "branches": done.branches,
        "tags": done.tags,
        "snapshots": done.snapshots,
        "manifests": done.manifests,
        "chunk_objects": done.chunk_objects,
        "copied_objects": done.copied_objects,
        "copied_bytes": done.copied_bytes,
        "losses": [{"what": loss.kind.value, "count": loss.count, "examples": loss.examples} for loss in done.losses],
    }


def _show(done: Conversion) -> None:
    console = stdout()
    counted = ", ".join(
        [
            format_count(done.snapshots, "snapshot"),
            format_count(done.branches, "branch", "branches"),
            format_count(done.tags, "tag"),
            format_count(done.manifests, "manifest"),
        ]
    )
    verb = "Would convert" if done.repository is None else "Converted"
    console.print(f"{verb} {done.from_version.value} to {done.to_version.value}: {counted}")
    if done.repository is not None:
        copied = f"{format_count(done.copied_objects, 'object')} ({format_bytes(done.copied_bytes)}) copied"
        console.print(f"Chunks: {format_count(done.chunk_objects, 'object')}, {copied}. {done.target}")
    for loss in done.losses:
        console.print(Text.assemble(("lost" if done.repository else "no place for", "yellow"), f" {loss}"))


def register_mirror(app: typer.Typer) -> None:
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
        print_json(
            {
                "dry_run": dry_run,
                "target": storage.url,
                "copied_objects": len(plan.copied),
                "copied_bytes": sum(item.size_bytes for item in plan.copied),
                "unchanged": plan.unchanged,
                "removed": list(plan.removed),
            }
        )
        return
    told = str(plan) if dry_run else str(plan).replace(" to copy", " copied").replace(" to remove", " removed")
    stdout().print(told, markup=False)
