"""SQL over arrays in DuckDB and Spark, beside Parquet in the same engine and xarray, with the ratios that are asked.

`python -m benchmarks.sql [CELLS] [--spark] [--cold] [--folder FOLDER] [--again]`. Every number is the fastest of the
rounds, in seconds by the clock. DuckDB's numbers have processor seconds in parentheses, of this process only. On a
machine with other work, compare the latter.

The data and every finished row stay in the folder, so a run that was interrupted continues where it stopped. `--again`
measures all rows again. `--cold` measures `icefloe sql` from the shell only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

    import icefloe

CHUNKS = (24, 90, 90)
ROUNDS = 3
ROUND_SECONDS = 1
"""Short queries are repeated, because a JVM gets faster for a while."""
FIXED = "one chunk"
"""The query that shows the fixed cost of an engine."""
FROM_SHELL = {
    "a query from the shell": ("select max(t2m) from t2m", 1.5),
    "a typo": ("select x from t2m", 1),
}
"""Queries of `icefloe sql`, and the seconds that they may take."""


@dataclass(frozen=True)
class Query:
    """A query, the same in xarray, and how fast it should be."""

    name: str
    text: str
    by_xarray: Callable[[xr.Dataset], Any] | None = None
    statistics: bool = False
    of_xarray: float | None = None
    """The largest ratio to xarray in DuckDB. On Spark it is a sum: twice xarray and the fixed cost."""
    on_duckdb: float | None = None
    """How many times faster than Parquet in DuckDB."""
    on_spark: float | None = None
    """How many times faster than Parquet on Spark."""
    discarded: bool = False
    """Whether Spark only makes the rows, because returning them to Python takes longer than anything else."""


BOX = "time between '{low}' and '{high}' and lat between 0 and 17"
"""A tenth of the times and of the latitudes."""


def middle(dataset: xr.Dataset) -> slice:
    """Return a tenth of the times."""
    hours = dataset.sizes["time"]
    return slice(hours // 2, hours // 2 + max(1, hours // 10))


QUERIES = [
    Query(FIXED, "select sum(t2m) from t2m where time = '{first}' and lat = 0 and lon = 0"),
    Query("sum", "select sum(t2m) from t2m", lambda d: d.t2m.sum(), of_xarray=1.5),
    Query("sum, statistics", "select sum(t2m) from t2m", lambda d: d.t2m.sum(), True, of_xarray=1.5, on_spark=3),
    Query(
        "group by time",
        "select time, avg(t2m) from t2m group by time",
        lambda d: d.t2m.mean(["lat", "lon"]),
        of_xarray=1.5,
        on_spark=3,
    ),
    Query(
        "group by lat, lon",
        "select lat, lon, avg(t2m) from t2m group by lat, lon",
        lambda d: d.t2m.mean("time"),
        of_xarray=1.5,
        on_spark=3,
    ),
    Query(
        "group by hour(time)",
        "select hour(time), avg(t2m) from t2m group by 1",
        lambda d: d.t2m.mean(["lat", "lon"]).groupby("time.hour").mean(),
        of_xarray=1.5,
        on_spark=3,
    ),
    Query(
        "sum of 1 % of the coordinates",
        f"select sum(t2m) from t2m where {BOX}",
        lambda d: d.t2m.isel(time=middle(d), lat=slice(90, 108)).sum(),
        on_spark=8,
    ),
    Query(
        "rows of 1 % of the coordinates",
        f"select time, lat, lon, t2m from t2m where {BOX}",
        lambda d: d.t2m.isel(time=middle(d), lat=slice(90, 108)).to_dataframe(),
        on_spark=8,
        discarded=True,
    ),
    Query(
        "sum of a column of chunks",
        "select sum(t2m) from t2m where lat between 0 and 17.9 and lon < 36",
        lambda d: d.t2m.sel(lat=slice(0, 17.9), lon=slice(0, 35.9)).sum(),
    ),
    Query(
        "rows of 1 % of the times, returned",
        "select time, lat, lon, t2m from t2m where time < '{early}'",
        lambda d: d.t2m[: max(1, d.sizes["time"] // 100)].to_dataframe(),
    ),
    Query("rare values", "select time, lat, lon, t2m from t2m where t2m > 320"),
    Query(
        "rare values, statistics",
        "select time, lat, lon, t2m from t2m where t2m > 320",
        statistics=True,
        on_duckdb=1,
        on_spark=1,
    ),
]


@dataclass
class Results:
    """The rows that were measured, in a file."""

    path: Path
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, *, again: bool) -> Results:
        known = json.loads(path.read_text()) if path.exists() and not again else {}
        return cls(path, known)

    def add(self, key: str, row: dict[str, Any]) -> None:
        self.rows[key] = row
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.rows, indent=1))
        temporary.replace(self.path)


def fastest(runs: dict[str, Callable[[], Any]]) -> dict[str, tuple[float, float]]:
    """Run each in turn in every round, short ones for a second. Returns seconds by the clock and processor seconds."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            end = time.perf_counter() + ROUND_SECONDS
            while not found[name] or time.perf_counter() < end:
                start, used = time.perf_counter(), time.process_time()
                run()
                found[name].append((time.perf_counter() - start, time.process_time() - used))
    return {name: (min(c for c, _ in each), min(p for _, p in each)) for name, each in found.items()}


def make_values(hours: int) -> Any:
    values = np.round(250 + 60 * np.random.default_rng(0).random((hours, 180, 360), dtype="f4"), 1)
    values[:: max(1, hours // 3), 40, 300] = 330  # a few cells that a search finds
    return values


def make_data(folder: Path, hours: int) -> None:
    """Write the repository, the repository with statistics, and the Parquet file, unless they are there."""
    done = folder / "complete"
    if done.exists():
        return
    import duckdb
    import pandas as pd
    import xarray as xr

    import icefloe
    from icefloe.tables import scan
    from icefloe.xarray import to_icechunk

    for name in ("repo", "statistics"):
        shutil.rmtree(folder / name, ignore_errors=True)
    values = make_values(hours)
    data = xr.Dataset(
        {"t2m": (("time", "lat", "lon"), values)},
        coords={
            "time": pd.date_range("2020-01-01", periods=hours, freq="h"),
            "lat": np.arange(180) - 90.0,
            "lon": np.arange(360) * 1.0,
        },
    )
    repo = icefloe.Repository.create(str(folder / "repo"))
    session = repo.writable_session("main")
    to_icechunk(data, session, encoding={"t2m": {"chunks": CHUNKS}})
    session.commit("data")
    shutil.copytree(folder / "repo", folder / "statistics")
    keep_statistics(icefloe.Repository.open(str(folder / "statistics")), values)
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    scan(repo).to_duckdb(connection, "cells")
    connection.execute(f"COPY cells TO '{folder / 't2m.parquet'}' (COMPRESSION zstd)")
    connection.close()
    done.touch()


def keep_statistics(repo: icefloe.Repository, values: Any) -> None:
    """Store statistics, as `icefloe analyze` does on Spark."""
    from icefloe.tables.grids import find_grid
    from icefloe.tables.statistics import keep_rows, measure_chunks

    session = repo.readonly_session("main")
    [variable] = find_grid(session, "/", ["t2m"]).variables
    grid = [-(-n // c) for n, c in zip(values.shape, CHUNKS, strict=True)]
    blocks = (
        (number, values[tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, CHUNKS, strict=True))])
        for number, at in enumerate(np.ndindex(*grid))
    )
    keep_rows(session, variable, measure_chunks(variable, blocks))


Run = Callable[..., Any]
"""Runs a query."""


def engine_runs(folder: Path, *, on_spark: bool) -> tuple[Run, Run]:
    """Return functions that run a query over a repository and over Parquet files that the same engine wrote."""
    if on_spark:
        from icefloe.spark import connect, sql, table
        from icefloe.spark.tasks import arrow_table

        spark = connect("local[2]", settings={"spark.sql.session.timeZone": "UTC", "spark.driver.memory": "4g"})
        rows = folder / "rows"
        if not (rows / "_SUCCESS").exists():
            table(spark, str(folder / "repo")).write.mode("overwrite").parquet(str(rows))
        spark.read.parquet(str(rows)).createOrReplaceTempView("t2m")

        def finish(frame: Any, *, discarded: bool) -> None:
            if discarded:
                frame.write.format("noop").mode("overwrite").save()
            else:
                arrow_table(frame)

        return (
            lambda repo, q, discarded=False: finish(sql(spark, repo, q), discarded=discarded),
            lambda q, discarded=False: finish(spark.sql(q), discarded=discarded),
        )
    import duckdb

    import icefloe

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE VIEW t2m AS SELECT * FROM '{folder / 't2m.parquet'}'")
    return (
        lambda repo, q, discarded=False: icefloe.sql(repo, q),
        lambda q, discarded=False: connection.sql(q).to_arrow_table(),
    )


def measure(folder: Path, hours: int, results: Results, *, on_spark: bool) -> None:
    """Measure the queries that have no result yet."""
    prefix = "spark: " if on_spark else "duckdb: "
    missing = [query for query in QUERIES if prefix + query.name not in results.rows]
    if not missing:
        return
    import xarray as xr

    import icefloe

    make_data(folder, hours)
    ours, plain = engine_runs(folder, on_spark=on_spark)
    start = np.datetime64("2020-01-01T00:00:00")
    known = {
        "first": str(start),
        "early": str(start + np.timedelta64(max(1, hours // 100), "h")),
        "low": str(start + np.timedelta64(hours // 2, "h")),
        "high": str(start + np.timedelta64(hours // 2 + max(1, hours // 10) - 1, "h")),
    }
    # The first queries of an engine compile it. They would make its fixed cost look larger than it is.
    warm = icefloe.Repository.open(str(folder / "repo"))
    for _ in range(ROUNDS):
        ours(warm, QUERIES[0].text.format(**known))
        plain(QUERIES[0].text.format(**known))
    for query in missing:
        text = query.text.format(**known)
        repo = icefloe.Repository.open(str(folder / ("statistics" if query.statistics else "repo")))
        session = repo.readonly_session("main")

        def by_xarray(f: Any = query.by_xarray, store: Any = session.store) -> None:
            # A dataset keeps what it has read, so every round opens it again.
            made = f(xr.open_zarr(store, consolidated=False, chunks=None))
            if isinstance(made, xr.DataArray):
                made.load()

        runs: dict[str, Callable[[], Any]] = {
            "icefloe": lambda q=text, r=repo, d=query.discarded: ours(r, q, d),
            "parquet": lambda q=text, d=query.discarded: plain(q, d),
        }
        if query.by_xarray is not None:
            runs["xarray"] = by_xarray
        row = {"load": os.getloadavg()[0], "chunks": count_chunks(repo, text), **fastest(runs)}
        results.add(prefix + query.name, row)
        print(f"{prefix + query.name}: {row}", file=sys.stderr, flush=True)


def count_chunks(repo: icefloe.Repository, text: str) -> str:
    """Return how many chunks a query reads, of how many."""
    from icefloe.tables.queries import Catalog, EngineTraits, prepare

    prepared = prepare(text, Catalog.of(repo, repo.readonly_session("main"), "UTC"), EngineTraits(lambda *_: None, 2))
    scan = prepared.relations[0].scan
    assert scan is not None
    rest = prepared.relations[0].rest
    return f"{scan.chunks if rest is None else len(rest)} of {scan.total_chunks}"


def measure_shell(folder: Path, results: Results, demo: str | None) -> None:
    """Measure `icefloe sql` in a new process, over the demo's repository or one of the same size."""
    missing = [name for name in FROM_SHELL if f"shell: {name}" not in results.rows]
    if not missing:
        return
    location = demo or str(folder / "small")
    if demo is None and not (folder / "small-complete").exists():
        import xarray as xr

        import icefloe
        from icefloe.xarray import to_icechunk

        shutil.rmtree(location, ignore_errors=True)
        session = icefloe.Repository.create(location).writable_session("main")
        axes = {"time": np.arange(744) * 3_600_000_000_000, "lat": np.arange(12.0), "lon": np.arange(14.0)}
        axes["time"] = axes["time"].astype("datetime64[ns]")
        values = np.random.default_rng(0).random((744, 12, 14), dtype="f4")
        to_icechunk(xr.Dataset({"t2m": (tuple(axes), values)}, coords=axes), session)
        session.commit("data")
        (folder / "small-complete").touch()
    # An installed package has its bytecode.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    for name in missing:
        command = [str(Path(sys.executable).with_name("icefloe")), "sql", location, FROM_SHELL[name][0]]
        taken = []
        for _ in range(ROUNDS + 1):  # the first one compiles and fills the cache of files
            start = time.perf_counter()
            ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
            taken.append(time.perf_counter() - start)
            if (ended.returncode != 0) != (name == "a typo") or "Traceback" in ended.stderr:
                raise RuntimeError(f"{command} ended with {ended.returncode}: {ended.stderr}")
        row = {"load": os.getloadavg()[0], "icefloe": (min(taken), 0.0)}
        results.add(f"shell: {name}", row)
        print(f"shell: {name}: {row}", file=sys.stderr, flush=True)


def asked(results: Results, engine: str, query: Query) -> Iterator[tuple[str, float, bool]]:
    """Yield what is asked of a query, what was measured, and whether that is enough."""
    row = results.rows[f"{engine}: {query.name}"]
    ours, parquet = row["icefloe"][0], row["parquet"][0]
    faster = query.on_spark if engine == "spark" else query.on_duckdb
    if faster is not None:
        yield f"parquet / icefloe >= {faster:g}", parquet / ours, parquet / ours >= faster
    if query.of_xarray is not None and engine == "duckdb":
        ratio = ours / row["xarray"][0]
        yield f"icefloe / xarray <= {query.of_xarray:g}", ratio, ratio <= query.of_xarray
    fixed = results.rows.get(f"spark: {FIXED}")
    if query.of_xarray is not None and engine == "spark" and fixed is not None:
        ratio = ours / (2 * row["xarray"][0] + fixed["icefloe"][0])
        yield "icefloe / (2 xarray + one chunk) <= 1", ratio, ratio <= 1


def report(results: Results, cells: int) -> None:
    """Print all rows that were measured."""
    print(f"{cells:,} cells, {os.cpu_count()} cores, fastest of {ROUNDS}, seconds by the clock (of the processor)")
    head = f"{'query':40} {'icefloe':16} {'parquet':16} {'xarray':16} {'chunks to read':14} {'load':5} asked: measured"
    print(head)
    for engine in ("duckdb", "spark"):
        for query in QUERIES:
            row = results.rows.get(f"{engine}: {query.name}")
            if row is None:
                continue
            cells_ = []
            for who in ("icefloe", "parquet", "xarray"):
                clock, processor = row.get(who, (None, None))
                used = "" if engine == "spark" or clock is None else f" ({processor:.3f})"
                cells_.append(f"{'-' if clock is None else f'{clock:.3f}{used}':16}")
            ratios = "; ".join(
                f"{text}: {value:.2f}{'' if met else ' NOT MET'}" for text, value, met in asked(results, engine, query)
            )
            print(f"{engine + ': ' + query.name:40} {' '.join(cells_)} {row['chunks']:14} {row['load']:<5.1f} {ratios}")
    for name, (_, limit) in FROM_SHELL.items():
        row = results.rows.get(f"shell: {name}")
        if row is not None:
            seconds = row["icefloe"][0]
            verdict = f"seconds <= {limit:g}: {seconds:.2f}{'' if seconds <= limit else ' NOT MET'}"
            print(f"{'shell: ' + name:40} {seconds:<16.3f} {'-':16} {'-':16} {'-':14} {row['load']:<5.1f} {verdict}")


def main(given: argparse.Namespace) -> None:
    hours = max(24, given.cells // (180 * 360))
    cells = hours * 180 * 360
    folder = Path(given.folder or Path(tempfile.gettempdir()) / f"icefloe-sql-{cells}")
    folder.mkdir(parents=True, exist_ok=True)
    print(f"data and results are in {folder}", file=sys.stderr)
    results = Results.load(folder / "results.json", again=given.again)
    try:
        measure_shell(folder, results, given.demo)
        if not given.cold:
            measure(folder, hours, results, on_spark=False)
            if given.spark:
                measure(folder, hours, results, on_spark=True)
    finally:
        report(results, cells)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("cells", type=int, nargs="?", default=100_000_000)
    parser.add_argument("--spark", action="store_true", help="also on Spark")
    parser.add_argument("--cold", action="store_true", help="only `icefloe sql` from the shell")
    parser.add_argument("--folder", help="where the data and the results are kept")
    parser.add_argument("--demo", help="the demo's repository, for `icefloe sql` from the shell")
    parser.add_argument("--again", action="store_true", help="measure rows again that were measured before")
    main(parser.parse_args())
