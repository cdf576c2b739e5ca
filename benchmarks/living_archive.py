"""How long does the nightly update of an archive of daily files take, and how much does it write?

Run it by itself: `python -m benchmarks.living_archive [--years 10] [--chunk 1]`. Small daily files are written and
synced. After 1, 2, 5 and 10 years, one update is measured: one new, one replaced and one late file.
The official package does what it can do with xarray: it appends the new file and writes the region of the replaced one.
It cannot insert the late file.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray as xr
from rich.console import Console
from rich.table import Table

import icechunk
import icefloe
from icefloe.ingest import IngestOptions, SyncResult, sync_local

SHAPE = (20, 30)
YEAR = 365


def write_day(folder: Path, day: int, version: int = 0) -> Path:
    """Write the file of one day."""
    path = folder / f"day{day:05}.nc"
    with netCDF4.Dataset(path, "w") as file:
        for name, length in (("time", None), ("y", SHAPE[0]), ("x", SHAPE[1])):
            file.createDimension(name, length)
        times = file.createVariable("time", "f8", ("time",))
        times.units = "days since 2000-01-01"
        times[:] = [float(day)]
        for name, length in (("y", SHAPE[0]), ("x", SHAPE[1])):
            file.createVariable(name, "f8", (name,))[:] = np.arange(length)
        values = np.random.default_rng([day, version]).normal(size=(1, *SHAPE))
        file.createVariable("t", "f4", ("time", "y", "x"))[:] = values
    return path


def stored_bytes(folder: Path) -> int:
    """The size of all objects of a repository."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Official:
    """The same archive, written with the official package and xarray."""

    def __init__(self, folder: Path, chunk: int) -> None:
        self.folder, self.chunk = folder, chunk
        self.repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))

    def begin(self, files: list[Path]) -> None:
        self._write(xr.open_mfdataset(files, combine="nested", concat_dim="time").load(), {})

    def append(self, files: list[Path]) -> None:
        data = xr.open_mfdataset(files, combine="nested", concat_dim="time").load()
        self._write(data, {"append_dim": "time"})

    def night(self, new: Path, again: Path) -> None:
        self._write(xr.open_dataset(again).load().drop_vars(["x", "y"]), {"region": "auto"})
        self._write(xr.open_dataset(new).load(), {"append_dim": "time"})

    def _write(self, data: xr.Dataset, how: dict[str, Any]) -> None:
        session = self.repo.writable_session("main")
        encoding = {} if how else {"t": {"chunks": (self.chunk, *SHAPE)}}
        data.to_zarr(session.store, encoding=encoding, safe_chunks=False, consolidated=False, zarr_format=3, **how)
        session.commit("more")


def measure(run: Callable[[], Any], folder: Path) -> tuple[Any, float, int]:
    """The result, the seconds and the bytes written."""
    before, started = stored_bytes(folder), time.perf_counter()
    result = run()
    seconds = time.perf_counter() - started
    return result, seconds, stored_bytes(folder) - before


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.living_archive", description=__doc__)
    parser.add_argument("--years", type=int, default=10, help="length of the archive  [default: 10]")
    parser.add_argument("--chunk", type=int, default=1, help="days per chunk  [default: 1]")
    arguments = parser.parse_args()
    table = Table(title=f"One night: one new, one replaced and one late file ({arguments.chunk} days in a chunk)")
    for column in ("files", "first sync s", "night s", "KB", "kept", "moved", "written", "nothing new s"):
        table.add_column(column, justify="right")
    table.add_column("official night s (late file left out)", justify="right")
    table.add_column("KB", justify="right")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repo = icefloe.Repository.create(str(folder / "ours"))
        theirs = Official(folder / "theirs", arguments.chunk)
        options = IngestOptions(append_dim="time", chunks={"time": arguments.chunk})

        def sync() -> SyncResult:
            return sync_local(str(folder / "day*.nc"), repo, options)

        days = 0
        for years in [years for years in (1, 2, 5, 10) if years <= arguments.years]:
            late = YEAR * years - YEAR // 2
            added = []
            for day in range(days, YEAR * years):
                if day != late:
                    added.append(write_day(folder, day))
            days = YEAR * years
            _, first, _ = measure(sync, folder / "ours")
            (theirs.append if years > 1 else theirs.begin)(added)
            new, again = write_day(folder, days), write_day(folder, days - YEAR + 10, version=1)
            write_day(folder, late)
            days += 1
            result, night, size = measure(sync, folder / "ours")
            _, idle, _ = measure(sync, folder / "ours")
            _, other, other_size = measure(lambda new=new, again=again: theirs.night(new, again), folder / "theirs")
            plan = result.plan
            table.add_row(
                f"{plan.sources.unchanged + 3:,}",
                f"{first:.2f}",
                f"{night:.2f}",
                f"{size / 1000:,.0f}",
                f"{plan.kept:,}",
                f"{plan.moved:,}",
                f"{plan.written:,}",
                f"{idle:.2f}",
                f"{other:.2f}",
                f"{other_size / 1000:,.0f}",
            )
    Console(width=max(140, Console().width)).print(table)


if __name__ == "__main__":
    main()
