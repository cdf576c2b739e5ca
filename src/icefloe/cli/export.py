"""The commands that write a repository to another location: export, convert, mirror."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from icefloe.cli.console import Bars, stdout
from icefloe.cli.options import (
    Authorize,
    Chunks,
    DryRun,
    Generation,
    Json,
    Message,
    Repo,
    RevisionOptions,
    SparkOptions,
    StorageOptions,
    Target,
    TargetOptions,
    Texts,
    Variables,
    Yes,
    confirm,
    open_repository,
    parse_names,
    parse_numbers,
    parse_region,
    storage_at,
)
from icefloe.cli.output import print_json
from icefloe.conversion.convert import NEWEST_OFFICIAL, Conversion, upgrade
from icefloe.conversion.convert import convert as convert_repository
from icefloe.conversion.survey import LossKind
from icefloe.conversion.transfer import Verify
from icefloe.display.card import format_bytes, format_count
from icefloe.repository import Repository


def export(
    repo: Repo,
    target: Target,
    to: Annotated[
        Literal["zarr", "parquet", "repository"],
        typer.Option("--to", help="Format of TARGET. A repository gets a commit."),
    ] = "zarr",
    group: Annotated[
        str,
        typer.Option("--group", metavar="PATH", help="Only this group.  [default: the root group]", show_default=False),
    ] = "",
    variables: Variables = None,
    region: Annotated[
        Texts,
        typer.Option("--region", metavar="DIM=FIRST:END", help="Only this range of a dimension. Can be repeated."),
    ] = None,
    chunks: Chunks = None,
    message: Message = None,
    at: RevisionOptions = RevisionOptions(),
    authorize: Authorize = None,
    spark: SparkOptions = SparkOptions(),
    options: StorageOptions = None,
    target_options: TargetOptions = None,
    json: Json = False,
) -> None:
    """Export to Zarr, Parquet or a repository, on Spark.

    Examples
    --------
    icefloe export weather copy.zarr --tag v1
    icefloe export weather rows --to parquet --region time=0:24
    """
    repository = open_repository(repo, options, authorize)
    session = at.session(repository)
    connection = spark.session(quick_start=True)
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
        copied = copy(connection, session, Repository.open_or_create(storage), message=message, **part)
        facts |= {"snapshot_id": copied.snapshot_id, "tasks": copied.tasks, "chunks": copied.references}
        text = f"{copied.references:,} chunks in {copied.seconds:.1f} s: snapshot {copied.snapshot_id} of {storage.url}"
    else:
        written = export_arrays(connection, session, storage, format=to, **part)
        facts |= {"objects": written.objects, "bytes": written.bytes, "tasks": written.tasks}
        text = f"{written.objects:,} objects, {format_bytes(written.bytes)} in {written.seconds:.1f} s at {storage.url}"
    if json:
        print_json(facts)
    else:
        stdout().print(text, markup=False)


def convert(
    repo: Repo,
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="Empty location for the new repository.", show_default=False)
    ] = None,
    to: Generation = NEWEST_OFFICIAL.value,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Replace the repository. Stop all writers first.")
    ] = False,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            "--drop",
            metavar="WORD",
            help=f"Allow to lose what the generation cannot store: {', '.join(kind.value for kind in LossKind)}. "
            "Can be repeated.",
        ),
    ] = None,
    verify: Annotated[
        str,
        typer.Option(
            "--verify",
            metavar="HOW",
            help="What to compare. model: all references; spot: also some chunks; all: all chunks.",
        ),
    ] = Verify.SPOT.value,
    dry_run: DryRun = False,
    yes: Yes = False,
    options: StorageOptions = None,
    target_options: TargetOptions = None,
    json: Json = False,
) -> None:
    """Convert a repository to another generation.

    The history, the branches and the tags are kept. Give a TARGET, or use --in-place.

    Examples
    --------
    icefloe convert old s3://bucket/new --to icechunk2
    icefloe convert old --in-place --to icechunk2 --verify all
    """
    if (target is None) != in_place:
        raise typer.BadParameter("give either a TARGET or --in-place", param_hint="TARGET")
    repository = open_repository(repo, options)
    allowed = drop or []
    if in_place and not dry_run:
        confirm(f"Convert {repository.storage.url} to {to} in place? Stop all writers first.", yes=yes, json=json)
    with Bars() as bars:
        if target is None:
            done = upgrade(repository, to, drop=allowed, verify=verify, progress=bars.report, dry_run=dry_run)
        else:
            storage = storage_at(target, target_options)
            done = convert_repository(
                repository, storage, to, drop=allowed, verify=verify, progress=bars.report, dry_run=dry_run
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
    action = "Would convert" if done.repository is None else "Converted"
    console.print(f"{action} {done.from_version.value} to {done.to_version.value}: {counted}")
    if done.repository is not None:
        copied = f"{format_count(done.copied_objects, 'object')} ({format_bytes(done.copied_bytes)}) copied"
        console.print(f"Chunks: {format_count(done.chunk_objects, 'object')}, {copied}. {done.target}")
    for loss in done.losses:
        console.print(Text.assemble(("lost" if done.repository else "cannot store", "yellow"), f" {loss}"))


def mirror(
    repo: Repo,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="An empty location, or an earlier copy.", show_default=False)
    ],
    dry_run: DryRun = False,
    options: StorageOptions = None,
    target_options: TargetOptions = None,
    json: Json = False,
) -> None:
    """Copy a repository to another location.

    Later runs copy only new objects.

    Examples
    --------
    icefloe mirror weather s3://bucket/weather
    icefloe mirror weather /backup/weather --dry-run
    """
    repository = open_repository(repo, options)
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
    text = str(plan) if dry_run else str(plan).replace(" to copy", " copied").replace(" to remove", " removed")
    stdout().print(text, markup=False)
