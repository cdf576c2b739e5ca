"""How fast is SQL over arrays, compared with the same cells as rows in Parquet, and with xarray?

    python -m benchmarks.spark_tables --cells 100000000

Every query runs twice to warm up. Then all queries run in `--rounds` rounds, so that other programs slow all of them
equally. In a round each query runs three times, and short ones for a second, because a JVM gets faster for a while. The
fastest run counts.
With `--precise`, values have all digits and compress little. Otherwise they have two decimals, which Parquet stores in
a dictionary.
Then rows are written to a grid, a quarter of `--rows` and all of them, with the peak memory of every kind of process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

LAT, LON = 361, 720
SHORT_SECONDS, FEWEST_RUNS, MOST_RUNS = 1.0, 3, 12
"""Of one query in one round."""


@dataclass(frozen=True)
class Cost:
    """Wall time and processor time of a query. Processor time is the fairer one on a busy machine."""

    seconds: float
    cpu_seconds: float

    def __str__(self) -> str:
        return f"{self.seconds:6.3f} s ({self.cpu_seconds:6.2f} cpu)"

    def told(self) -> dict[str, float]:
        return {"seconds": round(self.seconds, 3), "cpu": round(self.cpu_seconds, 2)}


CHUNKS = {"time": 24, "lat": 91, "lon": 180}


def make_repository(place: Path, cells: int, *, precise: bool = False) -> xr.Dataset:
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
        {"t2m": (("time", "lat", "lon"), values if precise else np.round(values, 2))},
        coords={"time": pd.date_range("2020-01-01", periods=times, freq="h"), "lat": lat, "lon": np.arange(LON) * 0.5},
    )
    session = icefloe.Repository.create(str(place)).writable_session("main")
    to_icechunk(dataset, session, encoding={"t2m": {"chunks": tuple(CHUNKS.values())}})
    session.commit("weather")
    return dataset


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


_TICKS: dict[tuple[int, str], int] = {}
"""Processor time of every process that was seen below this one, by number and start: dead ones keep theirs."""


def tree_cpu_seconds() -> float:
    """Processor time of this process and everything below it: the JVM and its Python workers."""
    told: dict[int, list[str]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                told[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
    for pid in descendants({pid: int(fields[1]) for pid, fields in told.items()}) & told.keys():
        _TICKS[pid, told[pid][19]] = int(told[pid][11]) + int(told[pid][12])
    return sum(_TICKS.values()) / os.sysconf("SC_CLK_TCK")


def descendants(parents: dict[int, int]) -> set[int]:
    """This process and everything below it."""
    family = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return family


class PeakMemory:
    """The peak memory of the processes below this one: the JVM, and the largest of its Python workers."""

    def __init__(self) -> None:
        self.peaks: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            told = dict(filter(None, map(_memory, Path("/proc").iterdir())))
            for pid in descendants({pid: parent for pid, (parent, _, _) in told.items()}) & told.keys():
                _, name, megabytes = told[pid]
                kind = "driver's Python" if pid == os.getpid() else "JVM" if name == "java" else "largest worker"
                self.peaks[kind] = max(self.peaks.get(kind, 0.0), megabytes)


def _memory(folder: Path) -> tuple[int, tuple[int, str, float]] | None:
    """Parent, name and resident megabytes of a process."""
    if not folder.name.isdigit():
        return None
    try:
        lines = (folder / "status").read_text().splitlines()
    except OSError:
        return None
    told = dict(line.partition(":\t")[::2] for line in lines)
    resident = int(told.get("VmRSS", "0 kB").split()[0]) / 1024
    return int(folder.name), (int(told["PPid"]), told["Name"], resident)


@dataclass
class Racer:
    """A query, the cost of its fastest run so far, and its result."""

    run: Callable[[], Any]
    best: Cost | None = None
    answer: Any = None

    def once(self) -> float:
        """Run the query and return its cost."""
        started, worked = time.perf_counter(), tree_cpu_seconds()
        self.answer = self.run()
        cost = Cost(time.perf_counter() - started, tree_cpu_seconds() - worked)
        before = self.best or cost
        self.best = Cost(min(cost.seconds, before.seconds), min(cost.cpu_seconds, before.cpu_seconds))
        return cost.seconds

    def cost(self) -> Cost:
        assert self.best is not None
        return self.best


def race(racers: Sequence[Racer], rounds: int) -> None:
    """Run all of them in turns."""
    for racer in racers:
        for _ in range(2):
            racer.run()
    for number in range(rounds):
        for racer in racers:
            spent, runs = 0.0, 0
            while runs < FEWEST_RUNS or (spent < SHORT_SECONDS and runs < MOST_RUNS):
                spent += racer.once()
                runs += 1
        print(f"round {number + 1} of {rounds} is finished", file=sys.stderr, flush=True)


def close(a: Any, b: Any) -> bool:
    return bool(np.allclose(np.asarray(a, dtype="f8"), np.asarray(b, dtype="f8"), rtol=1e-4))


def measure(cells: int, rounds: int, work: Path, *, wide: bool, precise: bool) -> dict[str, Any]:
    from icefloe.spark import analyze, connect, reduce, table

    place, parquet = work / "repository", work / "parquet"
    make_repository(place, cells, precise=precise)
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

    def all_columns(df: Any) -> None:
        """Produces every row and discards it."""
        df.write.format("noop").mode("overwrite").save()

    def values(array: xr.DataArray) -> None:
        array.copy().load()

    def reduced_sum(statistics: bool) -> float:
        return float(reduce(spark, str(place), "sum", statistics=statistics).t2m)

    def groups(df: Any, *names: str) -> Any:
        made = df.groupBy(*names).avg("t2m").orderBy(*names).toPandas()
        return made["avg(t2m)"].to_numpy()

    analyze(spark, str(place))
    queries: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]] = {
        "sum": (lambda: one(cells_of()), lambda: one(rows()), lambda: float(stored.t2m.sum(dtype="f8"))),
        "group by time": (
            lambda: groups(cells_of(), "time"),
            lambda: groups(rows(), "time"),
            lambda: stored.t2m.mean(("lat", "lon"), dtype="f8").values,
        ),
        "1 % of the coordinates": (
            lambda: one(cells_of(selection)),
            lambda: one(rows().where(selection)),
            lambda: float(stored.t2m.sel(time=slice(low, high), lat=slice(40, 58)).sum(dtype="f8")),
        ),
        "every column": (
            lambda: all_columns(cells_of()),
            lambda: all_columns(rows()),
            lambda: values(stored.t2m),
        ),
        "every column, 1 % of the coordinates": (
            lambda: all_columns(cells_of(selection)),
            lambda: all_columns(rows().where(selection)),
            lambda: values(stored.t2m.sel(time=slice(low, high), lat=slice(40, 58))),
        ),
        "by value, with statistics": (
            lambda: one(cells_of(hot)),
            lambda: one(rows().where(hot)),
            lambda: float(stored.t2m.where(stored.t2m > 305.5).sum(dtype="f8")),
        ),
    }
    if wide:
        queries["group by lat, lon"] = (
            lambda: groups(cells_of(), "lat", "lon"),
            lambda: groups(rows(), "lat", "lon"),
            lambda: stored.t2m.mean("time", dtype="f8").values.ravel(),
        )
    report: dict[str, Any] = {
        "cells": int(stored.t2m.size),
        "bytes": {"repository": folder_bytes(place), "parquet": folder_bytes(parquet)},
        "rows to parquet seconds": round(to_parquet, 2),
        "load average": os.getloadavg()[0],
        "queries": {},
    }
    racers = {name: [Racer(run) for run in runs] for name, runs in queries.items()}
    for name, statistics in (("sum by reduce, reading", False), ("sum by reduce, from statistics", True)):
        racers[name] = [Racer(partial(reduced_sum, statistics))]
    race([racer for each in racers.values() for racer in each], rounds)
    for name, (ours, *others) in racers.items():
        told = {
            which: racer.cost() for which, racer in zip(("icefloe", "parquet", "xarray"), racers[name], strict=False)
        }
        expected = [racer.answer for racer in others] or [racers["sum"][0].answer]
        assert ours.answer is None or all(close(ours.answer, answer) for answer in expected), name
        report["queries"][name] = {which: cost.told() for which, cost in told.items()}
        print(f"{name:36} " + "   ".join(f"{which} {cost}" for which, cost in told.items()), flush=True)
    report["ratios"] = ratios(report["queries"])
    return report


def ratios(queries: dict[str, Any]) -> dict[str, float]:
    """The figures that have a limit in this project, in wall time."""

    def seconds(query: str, of: str = "icefloe") -> float:
        return float(queries[query][of]["seconds"])

    rows = seconds("sum", "parquet")
    return {
        "full scan / parquet": round(seconds("sum") / rows, 2),
        "parquet / reduce, reading": round(rows / seconds("sum by reduce, reading"), 2),
        "parquet / reduce, from statistics": round(rows / seconds("sum by reduce, from statistics"), 1),
        "sum, full scan / 1 % of the coordinates": round(seconds("sum") / seconds("1 % of the coordinates"), 1),
        "every column, full scan / 1 % of the coordinates": round(
            seconds("every column") / seconds("every column, 1 % of the coordinates"), 1
        ),
    }


def measure_write(rows: int, work: Path) -> dict[str, Any]:
    """Rows to cells of a new grid: wall time, and the peak memory of the driver, the JVM and the workers."""
    from icefloe.spark import connect, write

    spark = connect("local[2]", settings={"spark.driver.memory": "4g"})
    columns = 2000
    ids = spark.range(0, rows, 1, 8)
    # Spread without regard to chunks, as rows that come from elsewhere are.
    df = ids.selectExpr(f"id div {columns} t", f"id % {columns} x", "cast(id % 1000 as float) v").repartition(8)
    with PeakMemory() as memory:
        started, worked = time.perf_counter(), tree_cpu_seconds()
        done = write(df, str(work / f"written-{rows}"), dims=["t", "x"], chunks={"t": 256, "x": 500})
        cost = Cost(time.perf_counter() - started, tree_cpu_seconds() - worked)
    assert done.cells == rows
    peaks = {kind: round(megabytes) for kind, megabytes in sorted(memory.peaks.items())}
    listed = ", ".join(f"{kind} {megabytes:,} MB" for kind, megabytes in peaks.items())
    print(f"{rows:,} rows written in {cost}, {done.tasks} tasks; peaks: {listed}", flush=True)
    return {"rows": rows, **cost.told(), "tasks": done.tasks, "peak MB": peaks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=100_000_000)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--without-wide-groups", action="store_true", help="leave out the group-by of a quarter million groups"
    )
    parser.add_argument("--precise", action="store_true", help="values with all their digits")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    work = Path(tempfile.mkdtemp(prefix="icefloe-tables-"))
    try:
        report: dict[str, Any] = {}
        if arguments.rows:
            report["writes"] = [measure_write(rows, work) for rows in (arguments.rows // 4, arguments.rows)]
        if arguments.cells:
            report |= measure(
                arguments.cells,
                arguments.rounds,
                work,
                wide=not arguments.without_wide_groups,
                precise=arguments.precise,
            )
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(report, indent=2))
        print(json.dumps(report, indent=2))
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
