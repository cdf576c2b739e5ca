"""SQL in DuckDB over arrays, beside Parquet in the same engine and xarray.

`python -m benchmarks.sql [CELLS]`. Every number is the fastest of three rounds, in seconds by the clock.
"""

from __future__ import annotations

import sys
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
from icefloe.xarray import to_icechunk

QUERIES: dict[str, tuple[str, Callable[[xr.Dataset], Any] | None]] = {
    "sum": ("select sum(t2m) from t2m", lambda d: d.t2m.sum()),
    "group by time": ("select time, avg(t2m) from t2m group by time", lambda d: d.t2m.mean(["lat", "lon"])),
    "group by lat, lon": ("select lat, lon, avg(t2m) from t2m group by lat, lon", lambda d: d.t2m.mean("time")),
    "group by hour(time)": ("select hour(time), avg(t2m) from t2m group by 1", None),
    "sum of 1 % of the coordinates": (
        "select sum(t2m) from t2m where lat between 0 and 17.9 and lon < 36",
        lambda d: d.t2m.sel(lat=slice(0, 17.9), lon=slice(0, 35.9)).sum(),
    ),
}


def fastest(run: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _open(store: Any) -> xr.Dataset:
    # A dataset keeps what it has read, so every round opens it again.
    return xr.open_zarr(store, consolidated=False, chunks=None)


def main(cells: int) -> None:
    hours = max(24, cells // (180 * 360))
    values = 250 + 60 * np.random.default_rng(0).random((hours, 180, 360), dtype="f4")
    data = xr.Dataset(
        {"t2m": (("time", "lat", "lon"), np.round(values, 1))},
        coords={
            "time": pd.date_range("2020-01-01", periods=hours, freq="h"),
            "lat": np.arange(180) - 90.0,
            "lon": np.arange(360) * 1.0,
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        repo = icefloe.Repository.create(f"{folder}/repo")
        session = repo.writable_session("main")
        to_icechunk(data, session, encoding={"t2m": {"chunks": (24, 90, 90)}})
        session.commit("data")
        parquet = Path(folder) / "t2m.parquet"
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        scan(repo).to_duckdb(connection, "cells")
        connection.execute(f"COPY cells TO '{parquet}' (COMPRESSION zstd)")
        connection.execute(f"CREATE VIEW t2m AS SELECT * FROM '{parquet}'")
        store = repo.readonly_session("main").store
        print(f"{hours * 180 * 360:,} cells")
        for name, (query, by_xarray) in QUERIES.items():
            ours = fastest(lambda query=query: icefloe.sql(repo, query))  # type: ignore[misc]
            plain = fastest(lambda query=query: connection.sql(query).to_arrow_table())  # type: ignore[misc]
            array = float("nan") if by_xarray is None else fastest(lambda f=by_xarray: f(_open(store)).load())  # type: ignore[misc]
            print(f"{name:32} icefloe {ours:.3f}  parquet {plain:.3f}  xarray {array:.3f}", flush=True)
        connection.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000_000)
