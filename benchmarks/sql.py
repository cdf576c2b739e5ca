"""SQL over arrays in DuckDB and Spark, beside Parquet in the same engine and xarray.

`python -m benchmarks.sql [CELLS] [--spark]`. Every number is the fastest of the rounds: seconds by the clock, and in
parentheses seconds of all processors, of this process only. On a machine with other work, compare the latter.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import xarray as xr

import icefloe
from icefloe.tables import scan
from icefloe.tables.grids import find_grid
from icefloe.tables.statistics import keep_rows, measure_chunks
from icefloe.xarray import to_icechunk

CHUNKS = (24, 90, 90)
ROUNDS = 3
QUERIES: dict[str, tuple[str, Callable[[xr.Dataset], Any] | None]] = {
    "sum": ("select sum(t2m) from t2m", lambda d: d.t2m.sum()),
    "group by time": ("select time, avg(t2m) from t2m group by time", lambda d: d.t2m.mean(["lat", "lon"])),
    "group by lat, lon": ("select lat, lon, avg(t2m) from t2m group by lat, lon", lambda d: d.t2m.mean("time")),
    "group by hour(time)": (
        "select hour(time), avg(t2m) from t2m group by 1",
        lambda d: d.t2m.mean(["lat", "lon"]).groupby("time.hour").mean(),
    ),
    "sum of 1 % of the coordinates": (
        "select sum(t2m) from t2m where lat between 0 and 17.9 and lon < 36",
        lambda d: d.t2m.sel(lat=slice(0, 17.9), lon=slice(0, 35.9)).sum(),
    ),
    "rows of 1 % of the times": (
        "select time, lat, lon, t2m from t2m where time < '{early}'",
        lambda d: d.t2m[: max(1, d.sizes["time"] // 100)].to_dataframe(),
    ),
    "rare values": ("select time, lat, lon, t2m from t2m where t2m > 320", None),
    "rare values, statistics": ("select time, lat, lon, t2m from t2m where t2m > 320", None),
}


def fastest(run: Callable[[], Any]) -> str:
    clock, processor = [], []
    for _ in range(ROUNDS):
        start, used = time.perf_counter(), time.process_time()
        run()
        clock.append(time.perf_counter() - start)
        processor.append(time.process_time() - used)
    return f"{min(clock):7.3f} ({min(processor):.3f})"


def _open(store: Any) -> xr.Dataset:
    # A dataset keeps what it has read, so every round opens it again.
    return xr.open_zarr(store, consolidated=False, chunks=None)


def make(folder: str, cells: int) -> tuple[icefloe.Repository, xr.Dataset]:
    hours = max(24, cells // (180 * 360))
    values = np.round(250 + 60 * np.random.default_rng(0).random((hours, 180, 360), dtype="f4"), 1)
    values[:: max(1, hours // 3), 40, 300] = 330  # three cells that a search finds
    data = xr.Dataset(
        {"t2m": (("time", "lat", "lon"), values)},
        coords={
            "time": pd.date_range("2020-01-01", periods=hours, freq="h"),
            "lat": np.arange(180) - 90.0,
            "lon": np.arange(360) * 1.0,
        },
    )
    repo = icefloe.Repository.create(f"{folder}/repo")
    session = repo.writable_session("main")
    to_icechunk(data, session, encoding={"t2m": {"chunks": CHUNKS}})
    session.commit("data")
    return repo, data


def keep_statistics(repo: icefloe.Repository, values: Any) -> None:
    """Store statistics, as `icefloe analyze` does on Spark."""
    session = repo.readonly_session("main")
    [variable] = find_grid(session, "/", ["t2m"]).variables
    grid = [-(-n // c) for n, c in zip(values.shape, CHUNKS, strict=True)]
    blocks = (
        (number, values[tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, CHUNKS, strict=True))])
        for number, at in enumerate(np.ndindex(*grid))
    )
    keep_rows(session, variable, measure_chunks(variable, blocks))


def compare(
    repo: icefloe.Repository, data: xr.Dataset, ours: Callable[[str], Any], plain: Callable[[str], Any]
) -> None:
    store = repo.readonly_session("main").store
    early = str(data.time.values[max(1, data.sizes["time"] // 100)])[:19]
    for name, (text, by_xarray) in QUERIES.items():
        query = text.format(early=early)
        if name.endswith("statistics"):
            keep_statistics(repo, data.t2m.values)
        array = "-" if by_xarray is None else fastest(lambda f=by_xarray: _load(f(_open(store))))  # type: ignore[misc]
        found = [fastest(lambda run=run, q=query: run(q)) for run in (ours, plain)]  # type: ignore[misc]
        print(f"{name:30} icefloe {found[0]}  parquet {found[1]}  xarray {array}", flush=True)


def _load(made: Any) -> Any:
    return made.load() if isinstance(made, xr.DataArray) else made


def main(cells: int, *, on_spark: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        repo, data = make(folder, cells)
        parquet = Path(folder) / "t2m.parquet"
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        scan(repo).to_duckdb(connection, "cells")
        connection.execute(f"COPY cells TO '{parquet}' (COMPRESSION zstd)")
        print(f"{data.t2m.size:,} cells, load {os.getloadavg()[0]:.1f}")
        if on_spark:
            from icefloe.spark import connect, sql

            spark = connect("local[2]", settings={"spark.sql.session.timeZone": "UTC"})
            spark.read.parquet(str(parquet)).createOrReplaceTempView("t2m")
            compare(repo, data, lambda q: sql(spark, repo, q).toArrow(), lambda q: spark.sql(q).toArrow())
            spark.stop()
        else:
            connection.execute(f"CREATE VIEW t2m AS SELECT * FROM '{parquet}'")
            compare(repo, data, lambda q: icefloe.sql(repo, q), lambda q: connection.sql(q).to_arrow_table())
        print(f"load {os.getloadavg()[0]:.1f}")
        connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("cells", type=int, nargs="?", default=100_000_000)
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    main(given.cells, on_spark=given.spark)
