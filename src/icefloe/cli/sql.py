"""The commands `sql` and `analyze`: query arrays, and compute the chunk statistics that queries use."""

from __future__ import annotations

import csv as csv_files
import datetime as dt
import enum
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli.options import (
    DryRun,
    Json,
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
from icefloe.errors import UnsupportedError
from icefloe.lazy_exports import lazy_module
from icefloe.repository import Repository
from icefloe.session.session import Session

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from rich import text as rich_text

    from icefloe.cli import console
    from icefloe.tables import grids, queries, sql_plan, sql_planner, statistics, views
else:
    # A wrong query is reported before anything else is imported.
    pa = lazy_module("pyarrow")
    pq = lazy_module("pyarrow.parquet")
    rich_text = lazy_module("rich.text")
    console = lazy_module("icefloe.cli.console")
    grids = lazy_module("icefloe.tables.grids")
    sql_plan = lazy_module("icefloe.tables.sql_plan")
    sql_planner = lazy_module("icefloe.tables.sql_planner")
    statistics = lazy_module("icefloe.tables.statistics")
    queries = lazy_module("icefloe.tables.queries")
    views = lazy_module("icefloe.tables.views")


class Engine(enum.StrEnum):
    """The engine that runs a query."""

    DUCKDB = "duckdb"
    SPARK = "spark"


def sql(
    repo: Repo,
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY", help="SQL query. Without a query, all views are listed.", show_default=False),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=0,
            metavar="COUNT",
            help="Maximum number of rows. 0 shows all.  [default: 50; all with --csv and --parquet]",
        ),
    ] = None,
    engine: Annotated[
        Engine | None, typer.Option("--engine", help="Engine that runs the query.  [default: duckdb]")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show what the query reads. Do not run it.")] = False,
    time_zone: Annotated[
        str,
        typer.Option("--time-zone", metavar="NAME", help="Time zone of times without a zone, such as Europe/Berlin."),
    ] = "UTC",
    at: RevisionOptions = RevisionOptions(),
    spark: SparkOptions = SparkOptions(),
    options: StorageOptions = None,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    parquet: Annotated[
        str | None, typer.Option("--parquet", metavar="FILE", help="Write the rows to a Parquet file.")
    ] = None,
) -> None:
    """Run a SQL query over arrays and metadata.

    Every array is a view. Its name is the path of the array, with `_` instead of `/`. Its columns are the dimensions
    and the values. The arrays of a group that share a grid are also one view, with the name of the group. The view of
    the root group is `cells`. Metadata views are snapshots, history, refs, nodes, manifests, chunks, files and
    changes. `FROM t2m VERSION AS OF 'v1'` reads another branch, tag or snapshot. DuckDB runs the query in this process.
    With `--engine spark` or `--master`, Spark runs it.

    Examples
    --------
    icefloe sql weather
    icefloe sql weather 'select max(t2m) from t2m where lat > 60'
    """
    if json + csv + (parquet is not None) > 1:
        raise typer.BadParameter("give only one of --json, --csv and --parquet")
    if query is not None:
        _check_syntax(query)
    repository = open_repository(repo, options)
    session = at.session(repository)
    if query is None:
        _show_views(views.list_views(session), json=json)
        return
    sql_planner.check_names(query, views.Catalog.of(repository, session, time_zone))
    if limit is None:
        limit = 0 if csv or parquet is not None else 50
    on_spark = engine is Engine.SPARK or (engine is None and (spark.master is not None or bool(spark.conf)))
    if explain:
        console.stdout().print(queries.explain(repository, session, query, time_zone=time_zone), markup=False)
        return
    most = limit + 1 if limit else None
    if on_spark:
        rows = _run_on_spark(spark, repository, session, query, time_zone, most)
    else:
        rows = queries.run_query(repository, session, query, time_zone=time_zone, limit=most).arrow()
    shown = rows.slice(0, limit) if limit else rows
    if parquet is not None:
        pq.write_table(shown, parquet)
        console.stdout().print(f"{parquet}: {format_count(shown.num_rows, 'row')}", markup=False)
    elif csv:
        _print_csv(shown)
    elif json:
        print_json(
            {
                "snapshot_id": session.snapshot_id,
                "columns": shown.schema.names,
                "rows": shown.to_pylist(),
                "more": rows.num_rows > shown.num_rows,
            }
        )
    else:
        _print_rows(shown, limit if rows.num_rows > shown.num_rows else None)


def _check_syntax(query: str) -> None:
    try:
        sql_plan.parse_query(query)
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"this command needs the extra `sql`: pip install 'icefloe[sql]' ({error})") from error


def _run_on_spark(
    spark: SparkOptions, repository: Repository, session: Session, query: str, time_zone: str, limit: int | None
) -> pa.Table:
    connection = spark.session()
    from icefloe.spark.table import run_query  # noqa: PLC0415 - Spark is an extra
    from icefloe.spark.table import sql as sql_on_spark  # noqa: PLC0415

    connection.conf.set("spark.sql.session.timeZone", time_zone)
    return run_query(sql_on_spark(connection, repository, query, snapshot_id=session.snapshot_id), limit)


def _print_csv(rows: pa.Table) -> None:
    writer = csv_files.writer(sys.stdout, lineterminator="\n")
    writer.writerow(rows.schema.names)
    for batch in rows.to_batches(max_chunksize=10_000):
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            writer.writerow(["" if each is None else _plain(each) for each in values])


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.datetime) else value


def _print_rows(rows: pa.Table, limit: int | None) -> None:
    listing = console.table(*rows.schema.names)
    for values in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        listing.add_row(*(_cell(value) for value in values))
    screen = console.stdout()
    screen.print(listing)
    if limit is not None:
        screen.print(rich_text.Text(f"\nthese are the first {limit:,} rows; --limit 0 shows all", style="dim"))


def _cell(value: Any) -> rich_text.Text:
    return rich_text.Text(queries.format_cell(value), style="dim" if value is None else "")


def _show_views(found: Any, *, json: bool) -> None:
    if json:
        print_json(
            [{"view": v.name, "group": v.group, "variables": list(v.variables), "table": v.table} for v in found]
        )
        return
    listing = console.table("view", "holds")
    for view in found:
        listing.add_row(rich_text.Text(view.name), rich_text.Text(view.holds))
    console.stdout().print(listing)


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

    Examples
    --------
    icefloe analyze weather
    icefloe analyze weather --group surface --variables t2m
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
        console.stdout().print(f"{path}: {format_count(count, 'chunk')} {status}", markup=False)
    if not chunks:
        console.stdout().print("All chunks have statistics already")


def _count_missing(session: Session, group: str, variables: tuple[str, ...] | None) -> dict[str, int]:
    """The number of chunks without statistics, per array."""
    path = "/" + group.strip("/")
    names = variables or [name for names in grids.list_grids(session, path) for name in names]
    found = [grids.find_grid(session, path, [name]).variables[0] for name in names]
    counts = {
        each.path: len(statistics.missing_chunks(session, each)) for each in found if statistics.has_ranges(each.coding)
    }
    return {name: count for name, count in counts.items() if count}
