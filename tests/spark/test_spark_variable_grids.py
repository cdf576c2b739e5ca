"""Chunks of different lengths on Spark. Only the driver has zarr's setting for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe import Repository
from icefloe.ingest.placement import ExistingArray
from icefloe.maintenance.compact import CompactRequest, Layout
from icefloe.spark import analyze, compact, copy, export, ingest, pyramid, rechunk, reduce, sync, table
from icefloe.spark import write as write_cells

RECTILINEAR = "rectilinear_chunks" in zarr.config.get("array")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not RECTILINEAR, reason="this zarr has regular grids only"),
]
MONTHS = (31, 28, 31, 30)


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        yield


def write(folder: Path, month: int, *, codec: bool = True, seed: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    start, length = sum(MONTHS[:month]), MONTHS[month]
    values = np.random.default_rng([seed, month]).normal(size=(length, 3, 4)).astype("f4")
    times = np.arange(start, start + length) * 1.0
    data = xr.Dataset({"t": (("time", "y", "x"), values)}, {"time": times, "y": np.arange(3.0), "x": np.arange(4.0)})
    path = folder / f"month{month}.nc"
    data.to_netcdf(path, encoding={"t": {"chunksizes": (length, 3, 2), "zlib": codec, "shuffle": codec}})
    return path


def check(place: Path, folder: Path, lengths: tuple[int, ...] | None = None) -> None:
    repository = Repository.open(str(place), authorize_virtual_chunk_access={f"file://{folder}/": None})
    found = zarr.open_array(repository.readonly_session("main").store, path="t", mode="r")
    files = sorted(folder.glob("*.nc"))
    expected = np.concatenate([xr.open_dataset(file, decode_times=False).load().t.values for file in files])
    np.testing.assert_array_equal(found[:], expected)
    grid = ExistingArray("t", found.metadata.to_dict()).grid()[0]
    assert lengths is None or grid.of(len(expected)) == lengths


@pytest.mark.parametrize("mode", ["virtual", "mixed"])
def test_months_are_ingested_and_appended_by_workers_without_the_setting(spark: Any, tmp_path: Path, mode: Any) -> None:
    folder, place = tmp_path / "in", tmp_path / "repo"
    options: dict[str, Any] = {"mode": mode, "append_dim": "time", "native_below_bytes": 0, "progress": False}
    # In mixed mode, workers write the values of a month with other codecs into the variable grid.
    files = [write(folder, month, codec=mode == "virtual" or month != 1) for month in range(3)]
    ingest(spark, [str(file) for file in files], str(place), **options)
    check(place, folder, MONTHS[:3])
    ingest(spark, str(write(folder, 3)), str(place), **options)
    check(place, folder, MONTHS)


def test_values_are_appended_to_months_by_workers_without_the_setting(spark: Any, tmp_path: Path) -> None:
    folder, place = tmp_path / "in", tmp_path / "repo"
    files = [str(write(folder, month)) for month in range(3)]
    ingest(spark, files, str(place), mode="virtual", append_dim="time", progress=False)
    more = str(write(folder, 3))
    ingest(spark, more, str(place), mode="native", append_dim="time", chunks={"time": 10}, progress=False)
    check(place, folder, (*MONTHS[:3], 10, 10, 10))


def test_months_are_synced_by_workers_without_the_setting(spark: Any, tmp_path: Path) -> None:
    folder, place = tmp_path / "in", tmp_path / "repo"
    options: dict[str, Any] = {"mode": "mixed", "append_dim": "time", "native_below_bytes": 0, "progress": False}
    for month in (0, 2):
        write(folder, month)
    sync(spark, str(folder), str(place), **options)
    check(place, folder, (31, 31))
    write(folder, 1, codec=False)
    write(folder, 3)
    sync(spark, str(folder), str(place), **options)
    check(place, folder, MONTHS)
    write(folder, 2, seed=5)
    sync(spark, str(folder), str(place), **options)
    check(place, folder, MONTHS)
    assert sync(spark, str(folder), str(place), **options).snapshot_id is None


def test_chunks_are_merged_by_workers_without_the_setting(spark: Any, tmp_path: Path) -> None:
    folder, place = tmp_path / "in", tmp_path / "repo"
    for month in (0, 1):
        write(folder, month)
    options: dict[str, Any] = {"append_dim": "time", "chunks": {"time": 5}, "progress": False}
    sync(spark, str(folder), str(place), **options)
    done = compact(spark, str(place), CompactRequest(layout=Layout.MERGE, pattern="t", merge=("time", 20), keep=10))
    assert isinstance(done, list) and sum(len(each.commits) for each in done) == 1
    check(place, folder, (20, 20, 5, 5, 5, 5))
    write(folder, 2)
    sync(spark, str(folder), str(place), **options)
    check(place, folder, (20, 20, *(5,) * 10))


def test_months_are_copied_and_exported_by_workers_without_the_setting(spark: Any, tmp_path: Path) -> None:
    repository = Repository.create(str(tmp_path / "repo"))
    values = np.random.default_rng(1).normal(size=(90, 3, 4))
    with repository.transaction("main", message="months") as store:
        names = ["time", "y", "x"]
        chunks = [[31, 28, 31], [3], [3, 1]]
        made = zarr.create_array(store, name="t", shape=values.shape, chunks=chunks, dtype="f8", dimension_names=names)
        made[:] = values
    copy(spark, repository, str(tmp_path / "copy"), region={"time": (10, 80), "x": (1, 4)}, progress=False)
    found = zarr.open_array(Repository.open(str(tmp_path / "copy")).readonly_session("main").store, path="t", mode="r")
    np.testing.assert_array_equal(found[:], values[10:80, :, 1:])
    assert found.write_chunk_sizes == ((21, 28, 21), (3,), (2, 1))
    export(spark, repository, tmp_path / "plain", region={"time": (31, 85)}, progress=False)
    plain = zarr.open_group(str(tmp_path / "plain"), mode="r")["t"]
    np.testing.assert_array_equal(plain[:], values[31:85])
    assert plain.write_chunk_sizes == ((28, 26), (3,), (3, 1))
    export(spark, repository, tmp_path / "cells", format="parquet", progress=False)
    cells = spark.read.parquet(str(tmp_path / "cells")).orderBy(*names).toPandas()
    np.testing.assert_array_equal(cells.t.to_numpy(), values.reshape(-1))
    np.testing.assert_allclose(reduce(spark, repository, "mean", "time", progress=False).t, values.mean(0))
    # The other dimensions keep their chunks.
    rechunk(spark, repository, {"time": 30}, progress=False)
    array = zarr.open_array(repository.readonly_session("main").store, path="t", mode="r")
    np.testing.assert_array_equal(array[:], values)
    assert array.write_chunk_sizes == ((30, 30, 30), (3,), (3, 1))


def test_months_are_measured_queried_and_written_by_workers_without_the_setting(spark: Any, tmp_path: Path) -> None:
    repository = Repository.create(str(tmp_path / "repo"))
    values = np.arange(90.0 * 4).reshape(90, 4)
    with repository.transaction("main", message="months") as store:
        group = zarr.open_group(store, mode="w")
        names = ["time", "x"]
        made = group.create_array(
            "t", shape=values.shape, chunks=[[31, 28, 31], [3, 1]], dtype="f8", dimension_names=names
        )
        made[:] = values
        for name, length in zip(names, values.shape, strict=True):
            group.create_array(name, data=np.arange(length) * 1.0, dimension_names=[name])
    pyramid(spark, repository, "t", 1, "max", progress=False)
    level = zarr.open_array(repository.readonly_session("main").store, path="t_levels/1/t", mode="r")[:]
    np.testing.assert_array_equal(level, values.reshape(45, 2, 2, 2).max(axis=(1, 3)))
    assert analyze(spark, repository, progress=False).chunks == {"/t": 6}
    assert analyze(spark, repository, progress=False).chunks == {}
    found = table(spark, repository, variables="t", where="t >= 300").orderBy(*names).toPandas()
    np.testing.assert_array_equal(found.t, np.arange(300.0, 360.0))
    # A cell of the second month, and days behind the last one.
    rows = spark.createDataFrame(
        [(40.0, 3.0, -1.0), (90.0, 0.0, -2.0), (91.0, 2.0, -3.0)], "time double, x double, t double"
    )
    assert write_cells(rows, repository).cells == 3
    expected = np.full((92, 4), np.nan)
    expected[:90] = values
    expected[40, 3], expected[90, 0], expected[91, 2] = -1, -2, -3
    array = zarr.open_array(repository.readonly_session("main").store, path="t", mode="r")
    np.testing.assert_array_equal(np.where(array[:] == 0, np.nan, array[:])[1:], expected[1:])
    assert ExistingArray("t", array.metadata.to_dict()).grid()[0].each == (31, 28, 31, 31)
