"""VirtualiZarr writes to the drop-in and parses it, unchanged. It imports `icechunk` itself."""

from __future__ import annotations

import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(util.find_spec("virtualizarr") is None, reason="VirtualiZarr is not installed")

PRELUDE = """
from icefloe.icechunk import install
install()
import sys, time
from pathlib import Path
import icechunk, numpy as np, pytest, xarray as xr, zarr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr import open_virtual_dataset
from virtualizarr.parsers import HDFParser
folder = Path(sys.argv[1])
prefix = f"file://{folder}/"
config = icechunk.RepositoryConfig.default()
config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(str(folder))))
access = {prefix: icechunk.credentials.LocalFileSystemAccess}
repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder / "repo")), config, access)
def file(name, start, add=0.0):
    ds = xr.Dataset(
        {"t": (("time", "x"), np.arange(12.0).reshape(3, 4) + add), "level": ((), 5.0 + add)},
        {"time": np.arange(start, start + 3)},
    )
    ds.to_netcdf(folder / name, encoding={"t": {"chunksizes": (1, 4)}}, unlimited_dims=["time"])
    return ds
registry = ObjectStoreRegistry({prefix: LocalStore(prefix=str(folder))})
def virtual(name):
    return open_virtual_dataset(
        url=f"{prefix}{name}", parser=HDFParser(), registry=registry, loadable_variables=["time"]
    )
def read(group=None):
    return xr.open_zarr(repo.readonly_session("main").store, consolidated=False, group=group).load()
"""


def run(folder: Path, script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, str(folder)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_virtual_dataset_is_written_appended_to_and_read(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
first, second = file("a.nc", 0), file("b.nc", 3, 100.0)
session = repo.writable_session("main")
virtual("a.nc").vz.to_icechunk(session.store)
virtual("a.nc").vz.to_icechunk(session.store, group="nested/group")
session.commit("First")
assert read().equals(first) and read("nested/group").equals(first)
assert session.chunk_type("/t", [0, 0]) == icechunk.ChunkType.virtual
session = repo.writable_session("main")
virtual("b.nc").drop_vars("level").vz.to_icechunk(session.store, append_dim="time")
session.commit("Second")
assert read().t.equals(xr.concat([first.t, second.t], "time")) and float(read().level) == 5.0
""",
    )


def test_a_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
file("a.nc", 0)
session = repo.writable_session("main")
virtual("a.nc").vz.to_icechunk(session.store)
session.commit("First")
read()
time.sleep(2.1)
file("a.nc", 0, 7.0)
with pytest.raises(icechunk.IcechunkError, match="changed"):
    read()
with pytest.raises(TypeError):
    virtual("a.nc").vz.to_icechunk(repo.writable_session("main").store, last_updated_at="yesterday")
""",
    )


def test_a_repository_is_parsed_into_references_of_its_own_objects(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
from virtualizarr.parsers import IcechunkParser
ds = file("a.nc", 0)
session = repo.writable_session("main")
virtual("a.nc").vz.to_icechunk(session.store)
values = np.random.default_rng(0).normal(size=(4, 500))
group = zarr.open_group(session.store)
native = group.create_array("native", shape=(4, 500), chunks=(1, 500), dtype="f8", dimension_names=("y", "z"))
native[:] = values
session.commit("Virtual, inline and native chunks")
parsed = IcechunkParser()(url=f"{prefix}repo", registry=registry)
found = xr.open_zarr(parsed, consolidated=False, zarr_format=3).load()
assert found.t.equals(ds.t) and np.array_equal(found.native.values, values)
""",
    )
