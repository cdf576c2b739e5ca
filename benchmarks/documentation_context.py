"""Lets the code of other projects run here: datasets without downloads, buckets without a network, missing variables.

`use_made_up_datasets` replaces xarray's tutorial datasets. `use_memory_for_buckets` replaces storages in the cloud by
storages in memory. `fill_in` gives the variables that a block of a page uses and the page does not define, such as an
open repository. All of it is the same for the official package and for ours.
"""

from __future__ import annotations

import builtins
import datetime as dt
import importlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import xarray.tutorial
import zarr

Made = tuple[xr.Dataset, Mapping[str, Any]]


def _air_temperature() -> Made:
    shape = (2920, 25, 53)
    time = np.datetime64("2013-01-01T00", "ns") + np.arange(shape[0]) * np.timedelta64(6, "h")
    values = 280 + 9 * np.random.default_rng(0).normal(size=shape).astype("f4")
    coords = {
        "time": time,
        "lat": np.linspace(75, 15, shape[1], dtype="f4"),
        "lon": np.linspace(200, 330, shape[2], dtype="f4"),
    }
    dataset = xr.Dataset({"air": (("time", "lat", "lon"), values, {"units": "degK"})}, coords, {"title": "made up"})
    packed = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 250.0, "_FillValue": -32767}
    return dataset, {"air": packed, "time": {"dtype": "f4", "units": "hours since 1800-01-01"}}


def _rasm() -> Made:
    shape = (36, 205, 275)
    time = xr.date_range("1980-09-16", periods=shape[0], freq="30D", calendar="noleap", use_cftime=True)
    y, x = np.mgrid[: shape[1], : shape[2]].astype("f8")
    values = np.random.default_rng(0).normal(size=shape)
    coords = {"time": time, "xc": (("y", "x"), x), "yc": (("y", "x"), y)}
    return xr.Dataset({"Tair": (("time", "y", "x"), values, {"units": "C"})}, coords, {"title": "made up"}), {}


_DATASETS: Mapping[str, Callable[[], Made]] = {"air_temperature": _air_temperature, "rasm": _rasm}


def use_made_up_datasets() -> None:
    """Make `xarray.tutorial.open_dataset` give these datasets, from files of this process."""
    folder = tempfile.TemporaryDirectory()

    def open_dataset(name: str, cache: bool = True, cache_dir: Any = None, *, engine: Any = None, **kws: Any) -> Any:
        path = Path(folder.name) / f"{name}.nc"
        if not path.exists():
            dataset, encoding = _DATASETS[name]()
            dataset.to_netcdf(path, encoding=encoding)
        return xr.open_dataset(path, engine=engine, **kws)

    xarray.tutorial.open_dataset = open_dataset
    xarray.tutorial.load_dataset = lambda *names, **options: open_dataset(*names, **options).load()


BUCKETS = ("s3_storage", "gcs_storage", "azure_storage", "tigris_storage", "r2_storage", "http_storage", "hf_storage")


def use_memory_for_buckets() -> None:
    """Make storages in the cloud storages in memory. Their arguments are still checked."""
    icechunk = importlib.import_module("icechunk")
    modules = (icechunk, importlib.import_module("icechunk.storage"))
    memory = icechunk.in_memory_storage

    def stand_in(check: Callable[..., Any]) -> Callable[..., Any]:
        def make(*values: Any, **options: Any) -> Any:
            check(*values, **options)
            return memory()

        return make

    for name in BUCKETS:
        if hasattr(icechunk, name):
            made = stand_in(getattr(icechunk, name))
            for module in modules:
                setattr(module, name, made)
    repository = icechunk.Repository
    create, open_ = repository.create, repository.open

    def create_anew(storage: Any, *values: Any, **options: Any) -> Any:
        storage = memory() if storage is ... else storage
        return create(memory() if repository.exists(storage) else storage, *values, **options)

    def open_or_fill(storage: Any, *values: Any, **options: Any) -> Any:
        storage = memory() if storage is ... else storage
        if not repository.exists(storage):
            _fill(create(storage))
        return open_(storage, *values, **options)

    repository.create, repository.open = staticmethod(create_anew), staticmethod(open_or_fill)


def _fill(repo: Any) -> Any:
    """Write what pages expect to find in a repository."""
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    for name in ("temperature", "pressure", "humidity", "wind_speed", "my_array", "array", "old/path", "data"):
        root.create_array(name, shape=(10, 10), chunks=(5, 5), dtype="f4")[:] = 1
    for name in ("subgroup", "my-group/subgroup"):
        root.require_group(name)
    root["my-group"].create_array("array", shape=(10,), chunks=(5,), dtype="f4")
    snapshot = session.commit("Some arrays")
    repo.create_branch("branch_name", snapshot)
    repo.create_tag("2025-01-15", snapshot)
    return repo


def _fill_more(repo: Any) -> Any:
    """Write what a block expects of the blocks before it, which may have failed."""
    snapshot = _fill(repo).lookup_branch("main")
    for name in ("dev", "my-new-branch"):
        repo.create_branch(name, snapshot)
    for name in ("v1.0.0", "my-new-tag"):
        repo.create_tag(name, snapshot)
    return repo


def _changed(session: Any) -> Any:
    zarr.open_group(session.store).attrs["changed"] = True
    return session


def _dataset() -> xr.Dataset:
    return xr.Dataset({"t": (("time", "x"), np.ones((4, 3)))}, {"time": np.arange(4), "x": np.arange(3)})


_VARIABLES: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "icechunk": lambda known: importlib.import_module("icechunk"),
    "ic": lambda known: importlib.import_module("icechunk"),
    "zarr": lambda known: zarr,
    "np": lambda known: np,
    "xr": lambda known: xr,
    "datetime": lambda known: dt.datetime,
    "timedelta": lambda known: dt.timedelta,
    "UTC": lambda known: dt.UTC,
    "storage": lambda known: known["icechunk"].in_memory_storage(),
    "config": lambda known: known["icechunk"].RepositoryConfig.default(),
    "repo": lambda known: _fill(known["icechunk"].Repository.create(known["icechunk"].in_memory_storage())),
    "session": lambda known: _changed(known["repo"].writable_session("main")),
    "store": lambda known: known["session"].store,
    "group": lambda known: zarr.open_group(known["session"].store),
    "forecast": lambda known: zarr.open_group(known["session"].store),
    "array": lambda known: zarr.open_array(known["session"].store, path="my_array"),
    "arr": lambda known: zarr.open_array(known["session"].store, path="my_array"),
    "ds": lambda known: _dataset(),
    "snapshot_id": lambda known: known["repo"].lookup_branch("main"),
    "snap": lambda known: known["repo"].lookup_branch("main"),
    "name": lambda known: "a-name",
    "new_time": lambda known: 3,
    "n_chunks": lambda known: 2,
    "n": lambda known: 4,
    "t": lambda known: 2,
    "i": lambda known: 1,
    "reading": lambda known: 1.0,
    "other_storage_kwargs": lambda known: {"bucket": "b", "prefix": "p"},
    "analyze": lambda known: np.sum,
    "ingest": lambda known: lambda repo: None,
    "solver": lambda known: known["icechunk"].ConflictDetector(),
}
_MADE_UP_IDS = ("198273178639187", "abc123")


def with_real_ids(code: str) -> str:
    """Put the id of a snapshot that exists in place of one that a page made up."""
    for text in _MADE_UP_IDS:
        code = code.replace(f'"{text}"', 'repo.lookup_branch("main")')
    return code


def fill_in(names: set[str], known: dict[str, Any], *, alone: bool) -> None:
    """Define the variables of a block that are not defined, and those that they need.

    The repository of a block that runs alone also has branches and tags that other blocks of its page create.
    """
    if alone and names & _VARIABLES.keys():
        known["icechunk"] = icechunk = importlib.import_module("icechunk")
        known["repo"] = _fill_more(icechunk.Repository.create(icechunk.in_memory_storage()))
    for name in sorted(names - known.keys() - set(dir(builtins))):
        if name in _VARIABLES:
            for needed in ("icechunk", *(("repo", "session") if name not in ("icechunk", "ic", "repo") else ())):
                if needed not in known:
                    known[needed] = _VARIABLES[needed](known)
            known.setdefault(name, _VARIABLES[name](known))
        elif name.endswith(("_data", "_forecast")):
            known[name] = 1.0
