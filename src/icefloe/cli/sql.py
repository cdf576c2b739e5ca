"""The commands `sql` and `analyze`: query arrays, and compute the chunk statistics that queries use."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from icefloe.cli.console import stdout, table
from icefloe.cli.options import (
    DryRun,
    Json,
    Limit,
    Repo,
    RevisionOptions,
    SparkOptions,
    StorageOptions,
    Variables,
    open_repository,
    parse_names,
)
from icefloe.cli.output import print_json
from icefloe.display.card import format_count
from icefloe.session.session import Session
from icefloe.tables.grids import find_grid, list_grids
from icefloe.tables.statistics import has_ranges, missing_chunks


def sql(
    repo: Repo,
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY", help="SQL query. Without a query, all views are listed.", show_default=False),
    ] = None,
    limit: Limit = 50,
    at: RevisionOptions = RevisionOptions(),
    spark: SparkOptions = SparkOptions(),
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Run a Spark SQL query over arrays and metadata.

    Every array is a view. Its name is the path of the array, with `_` instead of `/`. Its columns are the dimensions
    and the values. The arrays of a group that share a grid are also one view, with the name of the group. The view of
    the root group is `cells`. Metadata views are snapshots, history, refs, nodes, manifests, chunks, files and
    changes. `icefloe_scan('REPO', 'condition')` reads only matching rows.
    """
    repository = open_repository(repo, options)
    session = at.session(repository)
    connection = spark.session()
    from icefloe.spark.table import list_views, register_views, run_query  # noqa: PLC0415 - Spark is an extra
    from icefloe.tables.options import Revision  # noqa: PLC0415

    if query is None:
        _show_views(list_views(session), json=json)
        return
    register_views(connection, repository, Revision(snapshot_id=session.snapshot_id), query)
    columns, rows = run_query(connection, query, limit + 1 if limit else None)
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
        console.print(Text(f"\nthese are the first {limit:,} rows; --limit 0 shows all", style="dim"))


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


def analyze(
    repo: Repo,
    group: Annotated[str, typer.Option("--group", metavar="PATH", help="Group of the arrays.")] = "/",
    variables: Variables = None,
    at: RevisionOptions = RevisionOptions(),
    dry_run: DryRun = False,
    spark: SparkOptions = SparkOptions(),
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Compute statistics of chunks, on Spark.

    The statistics are the minimum, the maximum and the number of values. Queries use them to skip chunks. Chunks that
    have statistics already are not read again.
    """
    repository = open_repository(repo, options)
    session = at.session(repository)
    names = parse_names(variables)
    if dry_run:
        chunks, seconds = _count_missing(session, group, names), 0.0
    else:
        from icefloe.spark.maintenance import analyze as run  # noqa: PLC0415 - Spark is an extra

        done = run(spark.session(), repository, group=group, variables=names, snapshot_id=session.snapshot_id)
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
    status = "to analyze" if dry_run else "analyzed"
    for path, count in chunks.items():
        stdout().print(f"{path}: {format_count(count, 'chunk')} {status}", markup=False)
    if not chunks:
        stdout().print("All chunks have statistics already")


def _count_missing(session: Session, group: str, variables: tuple[str, ...] | None) -> dict[str, int]:
    """The number of chunks without statistics, per array."""
    path = "/" + group.strip("/")
    names = variables or [name for names in list_grids(session, path) for name in names]
    found = [find_grid(session, path, [name]).variables[0] for name in names]
    counts = {each.path: len(missing_chunks(session, each)) for each in found if has_ranges(each.coding)}
    return {name: count for name, count in counts.items() if count}
