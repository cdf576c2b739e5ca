"""How long does the nightly update of an archive of daily files take, and how much does it write?

Run it by itself: `python -m benchmarks.day_in_the_life [--years 10] [--chunk 1] [--mode native virtual]
[--archive times names forecast]`. Small daily files are written and synced. After 1, 2, 5 and 10 years, one night is
measured: one new, one re-issued and one late file. The files have the modification times of their days. A file that is
younger than two seconds when it is listed is read again by the next sync, because it may have changed since then, and
files of an archive are older.

There are three archives. The files of `times` have a time. Those of `names` have their dates in their names only, and
their latitudes are sorted by value (`pattern` and `sort`). `forecast` has one file for every run of a model and step,
with ten steps. A year has 36 runs, so that it has about as many files as the others. The new files of a night are those
of one run. The first run lacks its last step. Otherwise the late file would fill the only gap, and an array by
reference without gaps has another fill value, so that all of its references are written again.

The official package does what it can do. By value, xarray appends the new file and writes the region of the re-issued
one. By reference, VirtualiZarr does the same with `to_icechunk`, if it is installed. In both cases the caller has to
know which file is new and which one is re-issued, and neither can insert the late file between others. It is left out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import xarray as xr
import zarr
from rich.console import Console
from rich.table import Table

import icechunk
import icefloe
from icefloe.ingest import IngestOptions, SyncResult, sync_local

SHAPE = (20, 30)
YEAR = 365
LATE = YEAR // 2
"""So many days before the end of the archive, a file is missing until the measured night."""


FIRST_DAY = 946684800
"""2000-01-01 in seconds since 1970."""


STEPS = 10
"""The number of steps of a forecast."""


@dataclass(frozen=True, slots=True)
class Archive:
    """What the files of an archive are like."""

    name: str
    dims: tuple[str, ...]
    """The dimensions in the files, besides those of the map."""
    settings: dict[str, Any]
    steps: int = 1
    missing: tuple[int, int] | None = None
    """The day and the step of a file that never exists."""

    @property
    def period(self) -> int:
        """The number of days or runs of a year."""
        return YEAR // self.steps

    def options(self, mode: Any, chunk: int) -> IngestOptions:
        chunks = {"time": chunk} | ({"step": 1} if self.steps > 1 else {})
        # Cells that are sorted cannot be referenced.
        settings = {name: each for name, each in self.settings.items() if mode == "native" or name != "sort"}
        return IngestOptions(mode=mode, chunks=chunks if mode == "native" else {}, **settings)


ARCHIVES = {
    "times": Archive("times", ("time",), {"append_dim": "time"}),
    "names": Archive("names", (), {"pattern": "day{time:%Y%m%d}.nc", "sort": {"y": "descending"}}),
    "forecast": Archive("forecast", ("time", "step"), {"concat_dims": ("time", "step")}, STEPS, (0, STEPS - 1)),
}
TIMES = ARCHIVES["times"]


@lru_cache(maxsize=3)
def template(name: str) -> tuple[bytes, dict[str, int], int]:
    """The bytes of a file of an archive, and the offsets of its coordinates and of its values.

    The files differ only there.
    """
    dims = ARCHIVES[name].dims
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "day.nc"
        with netCDF4.Dataset(path, "w") as file:
            for dim, length in (*((dim, 1) for dim in dims), ("y", SHAPE[0]), ("x", SHAPE[1])):
                file.createDimension(dim, length)
            for dim in dims:
                variable = file.createVariable(dim, "f8", (dim,), contiguous=True)
                variable.units = "days since 2000-01-01" if dim == "time" else "hours"
                variable[:] = [1.0]
            for dim, length in (("y", SHAPE[0]), ("x", SHAPE[1])):
                file.createVariable(dim, "f8", (dim,), contiguous=True)[:] = np.arange(length)
            file.createVariable("t", "<f4", (*dims, "y", "x"), contiguous=True)[:] = np.ones(SHAPE)
        with h5py.File(path) as hdf5:
            return path.read_bytes(), {dim: hdf5[dim].id.get_offset() for dim in dims}, hdf5["t"].id.get_offset()


def write_day(folder: Path, day: int, version: int = 0, archive: Archive = TIMES, step: int = 0) -> Path:
    """Write the file of one day, or of one step of a run."""
    names = {"times": f"{day:05}", "names": time.strftime("%Y%m%d", time.gmtime(FIRST_DAY + 86400 * day))}
    path = folder / f"day{names.get(archive.name, f'{day:05}_{step:03}')}.nc"
    content, offsets, at_values = template(archive.name)
    data = bytearray(content)
    for dim, offset in offsets.items():
        data[offset : offset + 8] = np.array([day if dim == "time" else 6 * step], "<f8").tobytes()
    values = np.random.default_rng([day, step, version]).normal(size=SHAPE).astype("<f4").tobytes()
    data[at_values : at_values + len(values)] = values
    path.write_bytes(data)
    modified = FIRST_DAY + 86400 * day + 3600 * version
    os.utime(path, (modified, modified))
    return path


def stored_bytes(folder: Path) -> int:
    """The size of all objects of a repository."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class WithXarray:
    """The archive by value, with the official package and xarray."""

    name = "xarray + official icechunk"

    def __init__(self, folder: Path, chunk: int) -> None:
        self.folder, self.chunk = folder, chunk
        self.repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))
        self.days = 0

    def load(self, files: list[Path]) -> None:
        """Add the files of some years."""
        _, _, at_values = template(TIMES.name)
        count = SHAPE[0] * SHAPE[1]
        parts = [np.frombuffer(path.read_bytes(), "<f4", count, at_values) for path in files]
        days = [float(path.stem[3:]) for path in files]
        values = np.stack(parts).reshape(-1, *SHAPE)
        data = xr.Dataset({"t": (("time", "y", "x"), values)}, self._coordinates(days))
        self._write(xr.decode_cf(data), {"append_dim": "time"} if self.days else {})
        self.days += len(files)

    def _coordinates(self, days: list[float]) -> dict[str, Any]:
        grid = {"y": np.arange(float(SHAPE[0])), "x": np.arange(float(SHAPE[1]))}
        return {"time": ("time", days, {"units": "days since 2000-01-01"}), **grid}

    def night(self, new: Path, again: Path) -> None:
        """Replace a re-issued file, and append a new one."""
        self._write(xr.open_dataset(again).load().drop_vars(["x", "y"]), {"region": "auto"})
        self._write(xr.open_dataset(new).load(), {"append_dim": "time"})

    def _write(self, data: xr.Dataset, how: dict[str, Any]) -> None:
        session = self.repo.writable_session("main")
        encoding = {} if how else {"t": {"chunks": (self.chunk, *SHAPE)}, "time": {"chunks": (1 << 13,)}}
        data.to_zarr(session.store, encoding=encoding, safe_chunks=False, consolidated=False, zarr_format=3, **how)
        session.commit("more")


class WithVirtualiZarr:
    """The archive by reference, with VirtualiZarr and `to_icechunk` of the official package."""

    name = "VirtualiZarr + official to_icechunk"

    def __init__(self, folder: Path, chunk: int) -> None:
        self.prefix = f"file://{folder.parent}/"
        config = icechunk.RepositoryConfig.default()
        store = icechunk.local_filesystem_store(str(folder.parent))
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(self.prefix, store))
        self.repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)), config)
        self.days = 0

    def _open(self, path: Path) -> Any:
        from obspec_utils.registry import ObjectStoreRegistry
        from obstore.store import LocalStore
        from virtualizarr import open_virtual_dataset
        from virtualizarr.parsers import HDFParser

        registry = ObjectStoreRegistry({"file://": LocalStore()})
        return open_virtual_dataset(f"file://{path}", registry=registry, parser=HDFParser())

    def load(self, files: list[Path]) -> None:
        """Add the files of some years. References are set directly, because the files differ only in their values."""
        _, _, at_values = template(TIMES.name)
        session = self.repo.writable_session("main")
        rest = files
        if not self.days:
            self._open(files[0]).vz.to_icechunk(session.store)
            rest = files[1:]
            self.days = 1
        root = zarr.open_group(session.store, mode="a")
        root["t"].resize((self.days + len(rest), *SHAPE))
        root["time"].resize((self.days + len(rest),))
        root["time"][self.days :] = [float(path.stem[3:]) for path in rest]
        size = SHAPE[0] * SHAPE[1] * 4
        session.store.set_virtual_refs(
            "t",
            [
                icechunk.VirtualChunkSpec([self.days + number, 0, 0], f"file://{path}", at_values, size)
                for number, path in enumerate(rest)
            ],
        )
        session.commit("more")
        self.days += len(rest)

    def night(self, new: Path, again: Path) -> None:
        """Replace a re-issued file, and append a new one."""
        session = self.repo.writable_session("main")
        self._open(again).drop_vars(["x", "y"]).vz.to_icechunk(session.store, region="auto")
        self._open(new).vz.to_icechunk(session.store, append_dim="time")
        session.commit("a night")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step takes."""

    seconds: float
    processor_seconds: float
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, {self.processor_seconds:.2f} s, {self.size_bytes / 1000:,.0f} KB"


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(run: Callable[[], Any], folder: Path) -> tuple[Any, Cost]:
    """The result, and what it took."""
    before, processor, started = stored_bytes(folder), _processor_seconds(), time.perf_counter()
    result = run()
    seconds, used = time.perf_counter() - started, _processor_seconds() - processor
    return result, Cost(seconds, used, stored_bytes(folder) - before)


def run_mode(archive: Archive, mode: Any, years: list[int], chunk: int, table: Table) -> None:
    """Measure one night after some years."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        repo = icefloe.Repository.create(str(folder / "ours"))
        theirs: WithXarray | WithVirtualiZarr | None = None
        if mode == "native" and archive is TIMES:
            theirs = WithXarray(folder / "theirs", chunk)
        elif mode == "virtual" and archive is TIMES and find_spec("virtualizarr") is not None:
            theirs = WithVirtualiZarr(folder / "theirs", chunk)
        options, period, last = archive.options(mode, chunk), archive.period, archive.steps - 1

        def sync() -> SyncResult:
            return sync_local(str(folder / "day*.nc"), repo, options)

        def write(day: int, step: int, version: int = 0) -> Path:
            return write_day(folder, day, version, archive, step)

        days = 0
        for count in years:
            late = (period * count - period // 2, last // 2)
            every = [(day, step) for day in range(days, period * count) for step in range(archive.steps)]
            added = [write(*each) for each in every if each not in (late, archive.missing)]
            days = period * count
            _, first = measure(sync, folder / "ours")
            if theirs is not None:
                theirs.load(added)
            new = [write(days, step) for step in range(archive.steps)]
            again = write(days - period + min(10, period - 1), last // 2, version=1)
            write(*late)
            days += 1
            result, night = measure(sync, folder / "ours")
            _, idle = measure(sync, folder / "ours")
            plan, other = result.plan, "not measured"
            if theirs is not None:
                _, cost = measure(lambda new=new[0], again=again: theirs.night(new, again), folder / "theirs")
                other = str(cost)
            row = (
                f"{archive.name}, {mode}",
                f"{plan.sources.unchanged + len(new) + 2:,}",
                str(first),
                str(night),
                f"{plan.kept:,} / {plan.moved:,} / {plan.written:,}",
                f"{idle.seconds:.2f} s, {idle.processor_seconds:.2f} s",
                other,
            )
            print(*row, sep=" | ", file=sys.stderr, flush=True)
            table.add_row(*row)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.day_in_the_life", description=__doc__)
    parser.add_argument("--years", type=int, default=10, help="length of the archive  [default: 10]")
    parser.add_argument("--chunk", type=int, default=1, help="days per chunk by value  [default: 1]")
    parser.add_argument("--mode", nargs="+", default=["native", "virtual"], help="native, virtual  [default: both]")
    parser.add_argument(
        "--archive", nargs="+", default=list(ARCHIVES), choices=ARCHIVES, help="times, names, forecast  [default: all]"
    )
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    table = Table(title=f"One night: new files, one re-issued and one late file (load {load:.1f} at the beginning)")
    for column in ("archive", "files", "first sync", "night", "chunks kept / moved / written", "nothing new"):
        table.add_column(column, justify="right")
    table.add_column("official, without the late file", justify="right")
    years = [each for each in (1, 2, 5, 10) if each <= arguments.years]
    for name, mode in itertools.product(arguments.archive, arguments.mode):
        run_mode(ARCHIVES[name], mode, years, arguments.chunk, table)
    table.caption = "wall time, processor time, bytes written"
    Console(width=max(170, Console().width)).print(table)


if __name__ == "__main__":
    main()
