"""xarray and Dask write into sessions in every way they know, from threads, processes and forks."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.dask import store_dask
from icefloe.distributed import merge_sessions
from icefloe.xarray import IcefloeBackendEntrypoint, to_icechunk


@pytest.fixture
def repository(tmp_path: Path) -> icefloe.Repository:
    return icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "r")))


def weather(days: int = 6, start: str = "2020-01-01", *, lazy: bool = False) -> xr.Dataset:
    times = pd.date_range(start, periods=days, name="time")
    values = np.random.default_rng(days).normal(size=(days, 4, 5)).astype("f4")
    values[0, 0, 0] = np.nan
    dataset = xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), values, {"units": "K"}),
            "name": (("lat",), np.array(["a", "bb", "ccc", ""], dtype=object)),
            "scalar": ((), 3),
        },
        coords={"time": times, "lat": np.linspace(50, 53, 4), "lon": np.arange(5.0)},
        attrs={"title": "Größe", "levels": [1, 2]},
    )
    return dataset.chunk({"time": 2}) if lazy else dataset


def read(repository: icefloe.Repository, **options: Any) -> xr.Dataset:
    store = icefloe.Repository.open(repository.storage).readonly_session("main").store
    return xr.open_zarr(store, consolidated=False, **options)


def committed(repository: icefloe.Repository, write: Any) -> xr.Dataset:
    session = repository.writable_session("main")
    write(session)
    session.commit("written")
    return read(repository)


def test_a_dataset_is_written_and_read_by_xarray_itself(repository: icefloe.Repository) -> None:
    dataset = weather()
    found = committed(repository, lambda s: dataset.to_zarr(s.store, consolidated=False))
    xr.testing.assert_identical(found.load(), dataset)
    assert xr.open_dataset(repository.readonly_session("main").store, engine="zarr", consolidated=False).equals(dataset)


def test_appending_and_regions_change_only_what_they_say(repository: icefloe.Repository) -> None:
    first, second = weather(4), weather(3, "2020-01-05")
    committed(repository, lambda s: first.to_zarr(s.store, consolidated=False))
    found = committed(repository, lambda s: second.to_zarr(s.store, append_dim="time", consolidated=False))
    whole = xr.concat([first, second], "time", data_vars="minimal")
    xr.testing.assert_equal(found.load(), whole)
    part = whole[["t2m"]].isel(time=slice(2, 4)).drop_vars(["lat", "lon"]) * 0
    found = committed(
        repository, lambda s: part.drop_vars("time").to_zarr(s.store, region={"time": slice(2, 4)}, consolidated=False)
    )
    assert (found.t2m.isel(time=slice(2, 4)) == 0).all() and found.t2m.isel(time=1).equals(whole.t2m.isel(time=1))
    found = committed(repository, lambda s: (part + 1).to_zarr(s.store, region="auto", consolidated=False, mode="r+"))
    assert (found.t2m.isel(time=slice(2, 4)) == 1).all() and found.t2m.isel(time=6).equals(whole.t2m.isel(time=6))


@pytest.mark.parametrize("scheduler", ["threads", "synchronous", pytest.param("processes", marks=pytest.mark.slow)])
def test_to_icechunk_writes_appends_and_fills_regions(repository: icefloe.Repository, scheduler: str) -> None:
    first, second = weather(6, lazy=True), weather(4, "2020-01-07", lazy=True)
    options = {"chunkmanager_store_kwargs": {"scheduler": scheduler}}
    found = committed(repository, lambda s: to_icechunk(first, s, **options))
    xr.testing.assert_identical(found.load(), first.compute())
    found = committed(repository, lambda s: to_icechunk(second, s, append_dim="time", **options))
    whole = xr.concat([first.compute(), second.compute()], "time", data_vars="minimal")
    xr.testing.assert_equal(found.load(), whole)
    part = (second[["t2m"]].isel(time=slice(0, 2)) * 0).drop_vars(["lat", "lon"])
    found = committed(repository, lambda s: to_icechunk(part, s, region="auto", **options))
    assert (found.t2m.isel(time=slice(6, 8)).fillna(0) == 0).all()
    assert found.t2m.isel(time=9).equals(whole.t2m.isel(time=9))


def test_modes_are_those_of_to_zarr(repository: icefloe.Repository) -> None:
    committed(repository, lambda s: to_icechunk(weather(), s))
    session = repository.writable_session("main")
    with pytest.raises((FileExistsError, ValueError)):
        to_icechunk(weather(), session)
    to_icechunk(weather(3), session, mode="w")
    to_icechunk(weather(3)[["t2m"]].rename(t2m="other"), session, mode="a")
    to_icechunk(weather(3), session, group="deep/down", encoding={"t2m": {"chunks": (1, 4, 5)}})
    session.commit("replaced")
    found = read(repository)
    assert found.sizes["time"] == 3 and {"t2m", "other"} <= set(found)
    assert read(repository, group="deep/down").t2m.encoding["chunks"] == (1, 4, 5)


def test_packed_encodings_come_back(repository: icefloe.Repository) -> None:
    encoding = {"t2m": {"dtype": "i2", "scale_factor": 0.001, "add_offset": 0.0, "_FillValue": -32768}}
    found = committed(repository, lambda s: to_icechunk(weather(), s, encoding=encoding))
    np.testing.assert_allclose(found.t2m.values, weather().t2m.values, atol=0.001)
    assert np.isnan(found.t2m.values[0, 0, 0])


def test_a_tree_of_datasets_is_written_and_read(repository: icefloe.Repository) -> None:
    tree = xr.DataTree.from_dict({"/": weather(2), "/a": weather(2), "/a/b": weather(2)[["scalar"]]})
    session = repository.writable_session("main")
    tree.to_zarr(session.store, consolidated=False, zarr_format=3)
    session.commit("a tree")
    found = xr.open_datatree(repository.readonly_session("main").store, engine="zarr", consolidated=False)
    xr.testing.assert_equal(found.load(), tree)


@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_dask_arrays_are_stored_where_they_are_computed(repository: icefloe.Repository, scheduler: str) -> None:
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("a", shape=(40, 10), chunks=(5, 10), dtype="f8")
    group.create_array("b", shape=(60,), chunks=(10,), dtype="i8")
    fork = session.fork()
    inside = zarr.open_group(fork.store)
    sources = [da.ones((40, 10), chunks=(10, 10)) * 3, da.arange(20, chunks=10)]
    merged = store_dask(
        sources=sources, targets=[inside["a"], inside["b"]], regions=[None, (slice(20, 40),)], scheduler=scheduler
    )
    session.merge(merged)
    session.commit("stored")
    found = zarr.open_group(repository.readonly_session("main").store, mode="r")
    assert (found["a"][...] == 3).all()
    np.testing.assert_array_equal(found["b"][...], np.pad(np.arange(20), 20))


def test_blocks_that_share_a_chunk_are_refused(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, shape=(40,), chunks=(10,), dtype="f8")
    with pytest.raises(icefloe.InvalidInputError, match="Rechunk"):
        store_dask(sources=[da.ones(40, chunks=15)], targets=[array])


@pytest.mark.skipif("rectilinear_chunks" not in zarr.config.get("array"), reason="this zarr has regular grids only")
def test_blocks_are_stored_along_the_chunks_of_a_variable_grid(repository: icefloe.Repository) -> None:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        session = repository.writable_session("main")
        zarr.create_array(session.store, name="months", shape=(90,), chunks=[[31, 28, 31]], dtype="i8")
        fork = session.fork()
        array = zarr.open_array(fork.store, path="months")
        with pytest.raises(icefloe.InvalidInputError, match="28 to 31 elements"):
            store_dask(sources=[da.arange(90, chunks=30)], targets=[array])
        with pytest.raises(icefloe.InvalidInputError, match="28 to 31 elements"):
            store_dask(sources=[da.arange(59, chunks=((31, 28),))], targets=[array], regions=[(slice(31, 90),)])
        session.merge(store_dask(sources=[da.arange(90, chunks=((31, 59),))], targets=[array]))
        assert (zarr.open_array(session.store, path="months")[:] == np.arange(90)).all()


def fill_row(fork: icefloe.ForkSession, row: int, value: int) -> icefloe.ForkSession:
    zarr.open_array(fork.store, path="a")[row] = value
    return fork


@pytest.mark.slow
def test_spawned_processes_write_forks_that_are_merged(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    zarr.create_group(session.store).create_array("a", shape=(6, 1000), chunks=(1, 1000), dtype="i8")
    fork = session.fork()
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        written = list(pool.map(fill_row, [fork] * 6, range(6), range(10, 16)))
    session.merge(merge_sessions(written))
    session.commit("merged")
    found = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    assert found[:, 0].tolist() == list(range(10, 16)) and (found[...] == found[:, :1]).all()


def test_two_forks_with_one_chunk_are_refused_unless_told_who_wins(repository: icefloe.Repository) -> None:
    for choice, expected in [(icefloe.VersionSelection.UseOurs, 1), (icefloe.VersionSelection.UseTheirs, 2)]:
        session = repository.writable_session("main")
        array = zarr.create_array(session.store, name="a", shape=(2, 9), chunks=(1, 9), dtype="i4", overwrite=True)
        forks = [fill_row(session.fork(), 0, 1), fill_row(session.fork(), 0, 2)]
        with pytest.raises(icefloe.IcefloeError, match="chunk"):
            session.merge(*forks)
        session.discard_changes()
        array = zarr.create_array(session.store, name="a", shape=(2, 9), chunks=(1, 9), dtype="i4", overwrite=True)
        forks = [fill_row(session.fork(), 0, 1), fill_row(session.fork(), 0, 2)]
        session.merge(*forks, on_chunk_conflict=choice)
        assert (array[0] == expected).all() and (array[1] == 0).all()


@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_dask_arrays_replace_what_was_committed_before(tmp_path: Path, scheduler: str) -> None:
    repo = icefloe.Repository.create(tmp_path / "repo")
    ds = xr.Dataset({"t": (("x", "y"), np.arange(24.0).reshape(6, 4))}, coords={"x": np.arange(6)})
    with dask.config.set(scheduler=scheduler):
        for number, width in enumerate((2, 3, 3)):
            session = repo.writable_session("main")
            encoding = {"t": {"chunks": (width, 4)}}
            to_icechunk((ds + number).chunk(x=width), session, mode="w", encoding=encoding)
            session.commit(f"run {number}")
            found = xr.open_zarr(repo.readonly_session("main").store, consolidated=False).load()
            assert found.identical(ds + number)


def test_an_array_without_a_name_of_its_own_comes_back() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    for name in (None, "x"):
        session = repo.writable_session("main")
        array = xr.DataArray(np.arange(3.0), dims="x", coords={"x": [1, 2, 3]}, name=name)
        to_icechunk(array, session, mode="w")
        found = xr.open_dataset(session.store, engine="zarr", consolidated=False)["__xarray_dataarray_variable__"]
        assert found.values.tolist() == [0, 1, 2]


def test_xarray_opens_a_repository_by_its_url(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(tmp_path / "repo")
    for number in range(2):
        session = repo.writable_session("main")
        to_icechunk(xr.Dataset({"t": ("x", np.arange(3.0) + number)}), session, group="a/b", mode="w")
        repo.create_tag(f"v{number}", session.commit(f"run {number}"))
    url, engine = str(tmp_path / "repo"), IcefloeBackendEntrypoint
    assert xr.open_dataset(url, engine=engine, group="a/b").t.values.tolist() == [1, 2, 3]
    assert xr.open_dataset(url, engine=engine, group="a/b", tag="v0").t.values.tolist() == [0, 1, 2]
    assert xr.open_dataset(f"file://{url}", engine=engine, group="a/b", branch="main").t.values.tolist() == [1, 2, 3]
    assert xr.open_datatree(url, engine=engine, tag="v0")["a/b/t"].values.tolist() == [0, 1, 2]
    assert repo.to_xarray(group="a/b").t.values.tolist() == [1, 2, 3]
    assert repo.to_xarray(tag="v0", group="a/b", chunks={}).t.chunks is not None
