"""`icefloe analyze`: ranges of values per chunk, so that queries skip chunks."""

from __future__ import annotations

from typing import Annotated

import typer

from icefloe.cli.arguments import Branch, Json, Place, Snapshot, StorageOptions, Tag
from icefloe.cli.care import DryRun
from icefloe.cli.opening import Point, open_repository
from icefloe.cli.output import print_json, stdout
from icefloe.cli.spark_session import Master, Settings, parse_names, spark_session
from icefloe.display.amounts import format_count
from icefloe.session.session import Session
from icefloe.tables.grids import find_grid, list_grids
from icefloe.tables.statistics import has_ranges, missing_chunks


def register(app: typer.Typer) -> None:
    app.command("analyze")(analyze)


def analyze(
    place: Place,
    group: Annotated[str, typer.Option("--group", metavar="PATH", help="The group of the arrays.")] = "/",
    variables: Annotated[
        list[str] | None, typer.Option("--variables", metavar="NAMES", help="Only these, by commas.")
    ] = None,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: Snapshot = None,
    dry_run: DryRun = False,
    master: Master = None,
    conf: Settings = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Find and keep minimum, maximum and counts of every chunk that has none yet, on Spark."""
    repository = open_repository(place, options)
    session = Point(branch, tag, snapshot, None).session(repository)
    names = parse_names(variables)
    if dry_run:
        chunks, seconds = _count_missing(session, group, names), 0.0
    else:
        spark = spark_session(master, conf)
        from icefloe.spark.analysis import analyze as run  # noqa: PLC0415 - Spark is an extra

        done = run(spark, repository, group=group, variables=names, snapshot_id=session.snapshot_id)
        chunks, seconds = done.chunks, done.seconds
    if json:
        print_json({
            "dry_run": dry_run, "snapshot_id": session.snapshot_id, "chunks": chunks, "seconds": round(seconds, 3),
        })  # fmt: skip
        return
    verb = "to measure" if dry_run else "measured"
    for path, count in chunks.items():
        stdout().print(f"{path}: {format_count(count, 'chunk')} {verb}", markup=False)
    if not chunks:
        stdout().print("Every chunk was measured before")


def _count_missing(session: Session, group: str, variables: tuple[str, ...] | None) -> dict[str, int]:
    """Chunks without a range, per array."""
    path = "/" + group.strip("/")
    names = variables or [name for names in list_grids(session, path) for name in names]
    found = [find_grid(session, path, [name]).variables[0] for name in names]
    counts = {each.path: len(missing_chunks(session, each)) for each in found if has_ranges(each.coding)}
    return {name: count for name, count in counts.items() if count}
