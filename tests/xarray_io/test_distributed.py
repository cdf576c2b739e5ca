"""A cluster of `distributed` with processes of its own writes datasets, over what was committed before too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe import icechunk
from icefloe.xarray import to_icechunk

distributed = pytest.importorskip("distributed", reason="the package `distributed` is not installed")

pytestmark = pytest.mark.xdist_group("distributed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two worker processes, without a dashboard."""
    with (
        dask.config.set({"distributed.worker.daemon": True, "distributed.comm.timeouts.connect": "60s"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
        ) as running,
        distributed.Client(running) as client,
    ):
        yield client


def dataset(add: float = 0, length: int = 6) -> xr.Dataset:
    values = np.arange(4.0 * length).reshape(length, 4) + add
    return xr.Dataset({"t": (("x", "y"), values), "u": ("y", np.arange(4.0) + add)}, {"x": np.arange(length)})


def read(repo: icefloe.Repository) -> xr.Dataset:
    return xr.open_zarr(repo.readonly_session("main").store, consolidated=False).load()


@pytest.fixture(
    params=[
        pytest.param("icefloe", marks=pytest.mark.slow),
        pytest.param("icefloe.icechunk, version 1", marks=pytest.mark.slow),
        "icefloe.icechunk, version 2",
    ]
)
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> icefloe.Repository:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    if request.param == "icefloe":
        return icefloe.Repository.create(storage)
    made: icefloe.Repository = icechunk.Repository.create(storage, spec_version=int(request.param[-1]))
    return made


@pytest.mark.long
def test_a_cluster_replaces_what_was_committed_before(cluster: Any, repo: icefloe.Repository) -> None:
    for number, width in enumerate((2, 3, 3, 6)):
        session = repo.writable_session("main")
        encoding = {"t": {"chunks": (width, 4)}}
        to_icechunk(dataset(number).chunk(x=width), session, mode="w", encoding=encoding)
        session.commit(f"run {number}")
        assert read(repo).identical(dataset(number))
    smaller = dataset(9, 3)
    session = repo.writable_session("main")
    to_icechunk(smaller.chunk(x=1), session, mode="w")
    session.commit("smaller")
    assert read(repo).identical(smaller)


@pytest.mark.slow
def test_a_cluster_appends_and_fills_regions(cluster: Any, repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    to_icechunk(dataset().chunk(x=2), session)
    session.commit("first")
    session = repo.writable_session("main")
    more = dataset(100).drop_vars("u").assign_coords(x=np.arange(6, 12))
    to_icechunk(more.chunk(x=2), session, append_dim="x")
    session.commit("more")
    session = repo.writable_session("main")
    to_icechunk(more.isel(x=slice(0, 2)).chunk(x=2) * 0, session, region="auto")
    session.commit("zeros")
    found = read(repo)
    assert found.x.values.tolist() == list(range(12))
    assert found.t[:6].equals(dataset().t)
    assert (found.t[6:8] == 0).all() and found.t[8:].equals(more.t[2:])


@pytest.mark.slow
def test_a_write_that_fails_on_a_worker_leaves_the_branch_as_it_was(cluster: Any, repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    to_icechunk(dataset().chunk(x=2), session)
    session.commit("first")
    session = repo.writable_session("main")
    broken = dataset().chunk(x=2).map_blocks(_fail, template=dataset().chunk(x=2))
    with pytest.raises(ZeroDivisionError):
        to_icechunk(broken, session, mode="w")
    assert read(repo).identical(dataset())
    session = repo.writable_session("main")
    to_icechunk(dataset(1).chunk(x=2), session, mode="w")
    session.commit("again")
    assert read(repo).identical(dataset(1))


def _fail(block: xr.Dataset) -> xr.Dataset:
    return block / (1 // 0)
