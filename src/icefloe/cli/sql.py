"""`icefloe sql`: Spark SQL over the arrays and the metadata of a repository."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from icefloe.cli.arguments import AsOf, Branch, Json, Limit, Place, Snapshot, StorageOptions, Tag
from icefloe.cli.opening import Point, open_repository
from icefloe.cli.output import print_json, stdout, table
from icefloe.cli.spark_session import Master, Settings, spark_session


def register(app: typer.Typer) -> None:
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
    from icefloe.spark.views import list_views, register_views, run_query  # noqa: PLC0415 - Spark is an extra
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
