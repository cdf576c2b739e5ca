"""How long does the ingest of many NetCDF files take? Local Spark, compared with xarray, Dask and VirtualiZarr.

Run with `python -m benchmarks.spark_ingest [--files 1000] [--cores 2]`. Each method runs in its own process, with
the sources in the page cache. Virtual ingest is compared with VirtualiZarr if that is installed. The total includes the
start of Spark, which is also printed separately. Spark starts while the first files are read. A pipeline starts it
once. Afterwards every cell of every file is compared.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import OURS, Meter, Workload

if TYPE_CHECKING:
    import xarray as xr

HOURS, NLAT, NLON = 24, 73, 144
CHUNKS = (4, 25, 36)
"""A few hundred chunks a file: 6 x 3 x 4 for each of five variables."""


def make_files(folder: Path, count: int) -> None:
    """One file per day."""
    from icefloe.testing.synthetic_weather import write_month

    write_month(folder, days=count, nlat=NLAT, nlon=NLON, chunks=CHUNKS)


def ours(mode: str) -> Callable[[Path, Path, int], dict[str, float]]:
    def run(files: Path, target: Path, cores: int) -> dict[str, float]:
        from pyspark.sql import SparkSession

        from icefloe.spark import connect, ingest

        ready = started = time.perf_counter()

        def start() -> SparkSession:
            nonlocal ready
            spark = connect(f"local[{cores},4]", quick_start=True)
            ready = time.perf_counter()
            return spark

        outcome = ingest(start, files, target / "repo", mode=mode, chunks={"time": HOURS} if mode == "native" else None)
        done = time.perf_counter()
        connect().stop()
        return {"seconds": done - started, "start": ready - started, "references": outcome.references}

    return run


def in_this_process(files: Path, target: Path, cores: int) -> dict[str, float]:
    """The same job without Spark, as `icefloe ingest --engine local` runs it."""
    started = time.perf_counter()
    import icefloe
    from icefloe.ingest import IngestOptions, ingest_local

    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(target / "repo")))
    ingest_local(str(files), repository, IngestOptions(mode="virtual"))
    return {"seconds": time.perf_counter() - started}


def dask_native(files: Path, target: Path, cores: int) -> dict[str, float]:
    import dask
    import xarray as xr
    from icechunk.xarray import to_icechunk

    import icechunk

    started = time.perf_counter()
    with dask.config.set(scheduler="processes", num_workers=cores):
        data = xr.open_mfdataset(
            sorted(str(path) for path in files.glob("*.nc")),
            engine="netcdf4",
            chunks={"time": HOURS},
            parallel=True,
            data_vars="minimal",
            coords="minimal",
            compat="override",
        )
        for variable in data.variables.values():
            variable.encoding = {}
        repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(target / "repo")))
        session = repository.writable_session("main")
        fork = session.fork()
        to_icechunk(data, fork)
        session.merge(fork)
        session.commit("files")
    return {"seconds": time.perf_counter() - started}


def virtualizarr(files: Path, target: Path, cores: int) -> dict[str, float]:
    from concurrent.futures import ProcessPoolExecutor

    import xarray as xr

    import icechunk

    started = time.perf_counter()
    paths = sorted(str(path) for path in files.glob("*.nc"))
    with ProcessPoolExecutor(cores) as pool:
        parts = list(pool.map(_virtual_dataset, paths, chunksize=16))
    data = xr.concat(parts, dim="time", data_vars="minimal", coords="minimal", compat="override")
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(str(files))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"file://{files}/", store))
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(target / "repo")), config)
    session = repository.writable_session("main")
    data.virtualize.to_icechunk(session.store)
    session.commit("files")
    return {"seconds": time.perf_counter() - started}


def _virtual_dataset(path: str) -> object:
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_dataset
    from virtualizarr.parsers import HDFParser

    registry = ObjectStoreRegistry({"file://": LocalStore()})
    return open_virtual_dataset(
        f"file://{path}", registry=registry, parser=HDFParser(), loadable_variables=["time", "latitude", "longitude"]
    )


WAYS: dict[str, Callable[[Path, Path, int], dict[str, float]]] = {
    "native: xarray + Dask + official": dask_native,
    "native: icefloe on Spark": ours("native"),
    "virtual: VirtualiZarr + official": virtualizarr,
    "virtual: icefloe on Spark": ours("virtual"),
    "virtual: icefloe without Spark": in_this_process,
}


def check(files: Path, target: Path, *, sample: int) -> bool:
    """Whether the cells of the files (all of them, or a sample) are in the repository as they are in the files."""
    import numpy as np
    import xarray as xr

    import icefloe

    allowed = {f"file://{files}/": None}
    repository = icefloe.Repository.open(str(target / "repo"), authorize_virtual_chunk_access=allowed)
    data = xr.open_zarr(repository.readonly_session("main").store, consolidated=False, chunks=None)
    paths = sorted(files.glob("*.nc"))
    for index in np.linspace(0, len(paths) - 1, sample).astype(int):
        with xr.open_dataset(paths[index], engine="netcdf4") as source:
            part = data.isel(time=slice(index * HOURS, (index + 1) * HOURS))
            names = [name for name in source.variables if source[name].dtype.kind != "O"]
            if not all(np.array_equal(part[n].values, source[n].values, equal_nan=_is_float(source[n])) for n in names):
                return False
    return True


def _is_float(variable: xr.DataArray) -> bool:
    return variable.dtype.kind == "f"


def prepare_files(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    files = _files(folder, scale)
    if not files.exists():
        make_files(files, int(1000 * scale))


def ingest_virtually(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """The files by reference with two cores, the start of Spark or of other processes included."""
    way = "virtual: icefloe on Spark" if library.__name__ == OURS else "virtual: VirtualiZarr + official"
    meter.is_one_process = False
    meter.seconds = WAYS[way](_files(folder, scale), folder, 2)["seconds"]


def _files(folder: Path, scale: float) -> Path:
    """The files, which both libraries use in all rounds."""
    return folder.parent / f"weather-{int(1000 * scale)}"


WORKLOADS = [
    Workload(
        "1,000 NetCDF files",
        "And a whole ingest by reference, beside VirtualiZarr?",
        {"prepare": prepare_files, "ingest by reference": ingest_virtually},
        {"ingest by reference": 2},
    )
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000, help="number of files  [default: 1000]")
    parser.add_argument("--cores", type=int, default=2, help="number of cores  [default: 2]")
    parser.add_argument("--check", type=int, help="number of files to compare cell by cell  [default: all]")
    parser.add_argument("--only", default="", help="run only methods whose name contains this text")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        way, files, target = arguments.child
        print(json.dumps(WAYS[way](Path(files), Path(target), arguments.cores)))
        return
    print(f"{'method':<36} {'total':>9} {'start of Spark':>18} {'equal':>6}")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        files = Path(folder) / "files"
        make_files(files, arguments.files)
        for way in (name for name in WAYS if arguments.only in name):
            if "VirtualiZarr" in way and importlib.util.find_spec("virtualizarr") is None:
                print(f"{way:<36} {'-':>9}  (virtualizarr is not installed)")
                continue
            with tempfile.TemporaryDirectory(prefix="bench-") as target:
                command = [sys.executable, "-m", "benchmarks.spark_ingest", "--cores", str(arguments.cores)]
                command += ["--child", way, str(files), target]
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, env={**os.environ, "ICECHUNK_LOG": "error"}
                )
                if done.returncode:
                    print(f"{way:<36} failed: {done.stderr.strip().splitlines()[-1]}")
                    continue
                told = json.loads(done.stdout.strip().splitlines()[-1])
                equal = check(files, Path(target), sample=min(arguments.check or arguments.files, arguments.files))
                start = told.get("start", 0.0)
                print(f"{way:<36} {told['seconds']:>9.1f} {start:>18.1f} {equal!s:>6}", flush=True)


if __name__ == "__main__":
    main()
