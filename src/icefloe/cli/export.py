"""`icefloe export`: a snapshot, or a part of it, as plain Zarr, Parquet, or another repository."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from icefloe.cli.arguments import AsOf, Branch, Json, Place, Snapshot, StorageOptions, Tag
from icefloe.cli.opening import Point, open_repository, storage_at
from icefloe.cli.output import print_json, stdout
from icefloe.cli.spark_session import Master, Settings, parse_names, parse_numbers, parse_region, spark_session
from icefloe.display.amounts import format_bytes
from icefloe.repository import Repository

Texts = list[str] | None


def register(app: typer.Typer) -> None:
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
    from icefloe.spark import copying, exporting  # noqa: PLC0415 - Spark is an extra

    part: dict[str, Any] = {
        "group": group, "variables": parse_names(variables), "region": parse_region(region) or None,
        "chunks": parse_numbers(chunks, "--chunks") or None,
    }  # fmt: skip
    storage = storage_at(target, target_options)
    facts: dict[str, Any] = {"source": str(session.snapshot_id), "target": storage.url, "format": to}
    if to == "repository":
        copied = copying.copy(spark, session, Repository.open_or_create(storage), message=message, **part)
        facts |= {"snapshot_id": copied.snapshot_id, "tasks": copied.tasks, "chunks": copied.references}
        told = f"{copied.references:,} chunks in {copied.seconds:.1f} s: snapshot {copied.snapshot_id} of {storage.url}"
    else:
        written = exporting.export(spark, session, storage, format=to, **part)
        facts |= {"objects": written.objects, "bytes": written.bytes, "tasks": written.tasks}
        told = f"{written.objects:,} objects, {format_bytes(written.bytes)} in {written.seconds:.1f} s at {storage.url}"
    if json:
        print_json(facts)
    else:
        stdout().print(told, markup=False)
