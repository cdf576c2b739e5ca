"""The verbs `sql` and `analyze`: query arrays, and keep statistics per chunk for queries."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from icefloe.cli.ingest import Master, Settings, parse_names, spark_session
from icefloe.cli.options import (
    AsOf,
    Branch,
    DryRun,
    Json,
    Limit,
    Place,
    Point,
    Snapshot,
    StorageOptions,
    Tag,
    open_repository,
)
from icefloe.cli.output import print_json, stdout, table
from icefloe.display.card import format_count
from icefloe.session.session import Session
from icefloe.tables.grids import find_grid, list_grids
from icefloe.tables.statistics import has_ranges, missing_chunks


def register_sql(app: typer.Typer) -> None:
    app.command("sql")(sql)


def sql(
    place: Place,
    query: Annotated[
        str | None,
        typer.Argument(metavar="[QUERY]", help="A query; without one the views are listed.", show_default=False),
    ] = None,
    limit: Limit = 50,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: Snapshot = None,
    as_of: AsOf = None,
    master: Master = None,
    settings: Settings = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Query arrays and metadata with Spark SQL.

    Every array is a view named by its path, with `_` for `/`: its dimensions and its values are columns. The arrays of
    a group that share a grid are a view named by the group (`cells` for the root). The metadata is in snapshots,
    history, refs, nodes, manifests, chunks, files, changes. `icefloe_scan('REPO', 'condition')` reads what matches.
    """
    repository = open_repository(place, options)
    session = Point(branch, tag, snapshot, as_of).session(repository)
    spark = spark_session(master, settings)
    from icefloe.spark.table import list_views, register_views, run_query  # noqa: PLC0415 - Spark is an extra
    from icefloe.tables.options import Point as TablePoint  # noqa: PLC0415

    if query is None:
        _show_views(list_views(session), json=json)
        return
    register_views(spark, repository, TablePoint(snapshot_id=session.snapshot_id), query)
    columns, rows = run_query(spark, query, limit + 1 if limit else None)
    shown = rows[:limit] if limit else rows
    if json:
        print_json(
            {
                "snapshot_id": session.snapshot_id,
                "columns": columns,
                "rows": shown,
                "more": len(rows) > len(shown),
            }
        )
        return
    listing = table(*columns)
    for row in shown:
        listing.add_row(*(_cell(value) for value in row.values()))
    console = stdout()
    console.print(listing)
    if len(rows) > len(shown):
        console.print(Text(f"\nthe first {limit:,} rows; --limit 0 shows all", style="dim"))


def _cell(value: Any) -> Text:
    if value is None:
        return Text("·", style="dim")
    if isinstance(value, float):
        return Text(f"{value:.9g}")
    return Text(str(value))


def _show_views(views: Any, *, json: bool) -> None:
    if json:
        print_json(
            [{"view": v.name, "group": v.group, "variables": list(v.variables), "table": v.table} for v in views]
        )
        return
    listing = table("view", "holds")
    for view in views:
        listing.add_row(Text(view.name), Text(view.holds))
    stdout().print(listing)


def register_analyze(app: typer.Typer) -> None:
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
        from icefloe.spark.maintenance import analyze as run  # noqa: PLC0415 - Spark is an extra

        done = run(spark, repository, group=group, variables=names, snapshot_id=session.snapshot_id)
        chunks, seconds = done.chunks, done.seconds
    if json:
        print_json(
            {
                "dry_run": dry_run,
                "snapshot_id": session.snapshot_id,
                "chunks": chunks,
                "seconds": round(seconds, 3),
            }
        )
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
