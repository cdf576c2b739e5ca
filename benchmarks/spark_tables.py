"""How fast is SQL over arrays, beside the same cells as rows in Parquet and beside xarray?

    python -m benchmarks.spark_tables --cells 100000000

Every query runs once to warm up, then `--rounds` times; the fastest counts. Ratios above 1 mean that the other one is
slower than `icefloe.spark.table`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

LAT, LON = 361, 720


@dataclass(frozen=True)
class Cost:
    """What a query took, by the clock and of all cores; the latter is fair on a busy machine."""

    seconds: float
    cpu_seconds: float

    def __str__(self) -> str:
        return f"{self.seconds:6.2f} s ({self.cpu_seconds:6.2f} cpu)"

    def told(self) -> dict[str, float]:
        return {"seconds": round(self.seconds, 2), "cpu": round(self.cpu_seconds, 2)}


CHUNKS = {"time": 24, "lat": 91, "lon": 180}


def make_repository(place: Path, cells: int) -> xr.Dataset:
    """Smooth temperatures, colder towards the poles, with a little noise."""
    import icefloe
    from icefloe.xarray import to_icechunk

    times = max(2, round(cells / (LAT * LON)))
    rng = np.random.default_rng(1)
    lat = np.linspace(-90, 90, LAT)
    base = 300 - 50 * np.sin(np.radians(lat)) ** 2
    daily = 5 * np.sin(np.arange(times) * 2 * np.pi / 24)
    values = (base[None, :, None] + daily[:, None, None]).astype("f4") + rng.normal(0, 0.5, (times, LAT, LON)).astype(
        "f4"
    )
    dataset = xr.Dataset(
        {"t2m": (("time", "lat", "lon"), np.round(values, 2))},
        coords={"time": pd.date_range("2020-01-01", periods=times, freq="h"), "lat": lat, "lon": np.arange(LON) * 0.5},
    )
    session = icefloe.Repository.create(str(place)).writable_session("main")
    to_icechunk(dataset, session, encoding={"t2m": {"chunks": tuple(CHUNKS.values())}})
    session.commit("weather")
    return dataset


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def tree_cpu_seconds() -> float:
    """Processor time of this process and everything below it: the JVM and its Python workers, dead ones included."""
    ticks: dict[int, float] = {}
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(folder.name)] = int(fields[1])
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return sum(ticks.get(pid, 0.0) for pid in family) / os.sysconf("SC_CLK_TCK")


def fastest(run: Callable[[], Any], rounds: int) -> tuple[Cost, Any]:
    """The least cost of several runs, after one to warm up, and the answer."""
    result = run()
    costs = []
    for _ in range(rounds):
        started, worked = time.perf_counter(), tree_cpu_seconds()
        result = run()
        costs.append(Cost(time.perf_counter() - started, tree_cpu_seconds() - worked))
    return Cost(min(c.seconds for c in costs), min(c.cpu_seconds for c in costs)), result


def close(a: Any, b: Any) -> bool:
    return bool(np.allclose(np.asarray(a, dtype="f8"), np.asarray(b, dtype="f8"), rtol=1e-4))


def measure(cells: int, rounds: int, work: Path, wide: bool) -> dict[str, Any]:
    from icefloe.spark import analyze, connect, reduce, table

    place, parquet = work / "repository", work / "parquet"
    make_repository(place, cells)
    spark = connect("local[2]", settings={"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "8"})
    started = time.perf_counter()
    table(spark, str(place)).write.parquet(str(parquet))
    to_parquet = time.perf_counter() - started
    import icefloe

    store = icefloe.Repository.open(str(place)).readonly_session("main").store
    # Without a cache: every query reads, as those of the others do.
    stored = xr.open_dataset(store, engine="zarr", consolidated=False, chunks=None, cache=False)
    times = pd.DatetimeIndex(stored.time.values)
    low, high = times[len(times) // 2], times[min(len(times) - 1, len(times) // 2 + max(1, len(times) // 10) - 1)]
    selection = f"time between '{low}' and '{high}' and lat between 40 and 58 and lon < 360"
    hot = "t2m > 305.5"

    def rows() -> Any:
        return spark.read.parquet(str(parquet))

    def cells_of(where: str | None = None) -> Any:
        return table(spark, str(place), where=where)

    def one(df: Any) -> float:
        return float(df.selectExpr("sum(t2m)").head()[0] or 0.0)

    def groups(df: Any, *names: str) -> Any:
        made = df.groupBy(*names).avg("t2m").orderBy(*names).toPandas()
        return made["avg(t2m)"].to_numpy()

    analyze(spark, str(place))
    queries: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]] = {
        "sum": (lambda: one(cells_of()), lambda: one(rows()), lambda: float(stored.t2m.sum(dtype="f8"))),
        "group by time": (
            lambda: groups(cells_of(), "time"), lambda: groups(rows(), "time"),
            lambda: stored.t2m.mean(("lat", "lon"), dtype="f8").values,
        ),
        "1 % of the coordinates": (
            lambda: one(cells_of(selection)), lambda: one(rows().where(selection)),
            lambda: float(stored.t2m.sel(time=slice(low, high), lat=slice(40, 58)).sum(dtype="f8")),
        ),
        "by value, with statistics": (
            lambda: one(cells_of(hot)), lambda: one(rows().where(hot)),
            lambda: float(stored.t2m.where(stored.t2m > 305.5).sum(dtype="f8")),
        ),
    }  # fmt: skip
    if wide:
        queries["group by lat, lon"] = (
            lambda: groups(cells_of(), "lat", "lon"), lambda: groups(rows(), "lat", "lon"),
            lambda: stored.t2m.mean("time", dtype="f8").values.ravel(),
        )  # fmt: skip
    report: dict[str, Any] = {
        "cells": int(stored.t2m.size),
        "bytes": {"repository": folder_bytes(place), "parquet": folder_bytes(parquet)},
        "rows to parquet seconds": round(to_parquet, 2),
        "load average": os.getloadavg()[0],
        "queries": {},
    }
    for name, (ours, parquet_query, xarray_query) in queries.items():
        seconds, answer = fastest(ours, rounds)
        theirs, same = fastest(parquet_query, rounds)
        local, truth = fastest(xarray_query, 1)
        assert close(answer, same) and close(answer, truth), name
        report["queries"][name] = {
            "icefloe": seconds.told(),
            "parquet": theirs.told(),
            "xarray": local.told(),
            "parquet / icefloe": round(theirs.seconds / seconds.seconds, 2),
            "parquet / icefloe, cpu": round(theirs.cpu_seconds / max(seconds.cpu_seconds, 0.01), 2),
        }
        print(f"{name:28} icefloe {seconds}   parquet {theirs}   xarray {local}", flush=True)
    seconds, answer = fastest(lambda: float(reduce(spark, str(place), "sum").t2m), rounds)
    report["queries"]["sum by icefloe.spark.reduce"] = {"icefloe": seconds.told()}
    print(f"{'sum by icefloe.spark.reduce':28} icefloe {seconds}", flush=True)
    return report


def measure_write(rows: int, work: Path) -> dict[str, Any]:
    """Rows to cells of a new grid: wall time, and the memory of the driver's Python process."""
    from icefloe.spark import connect, write

    spark = connect("local[2]", settings={"spark.driver.memory": "4g"})
    columns = 2000
    df = spark.range(0, rows, 1, 8).selectExpr(f"id div {columns} t", f"id % {columns} x", "cast(id % 1000 as float) v")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    done = write(df, str(work / "written"), dims=["t", "x"], chunks={"t": 256, "x": 500})
    seconds = time.perf_counter() - started
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{rows:,} rows written in {seconds:.1f} s, {done.tasks} tasks, driver grew by {grown:.0f} MB", flush=True)
    return {"rows": rows, "seconds": round(seconds, 1), "driver grew by MB": round(grown), "tasks": done.tasks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=100_000_000)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--without-wide-groups", action="store_true", help="leave out the group-by of a quarter million groups"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    work = Path(tempfile.mkdtemp(prefix="icefloe-tables-"))
    try:
        report = measure(arguments.cells, arguments.rounds, work, not arguments.without_wide_groups)
        if arguments.rows:
            report["write"] = measure_write(arguments.rows, work)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(report, indent=2))
        print(json.dumps(report, indent=2))
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
