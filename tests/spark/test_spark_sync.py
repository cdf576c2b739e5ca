"""Syncs on Spark: the archive is equal to a new ingest of its files, whatever happened before."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from tests.ingest.living_archives import LivingArchive

import icefloe
from icefloe.ingest import IngestOptions, SyncResult, ingest_local
from icefloe.spark import ingest, sync

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]
HISTORIES = int(os.environ.get("ICEFLOE_SPARK_HISTORIES", "100"))


def live(spark: Any, folder: Path, seed: int) -> None:
    def run(sources: str, repo: icefloe.Repository, options: IngestOptions, **more: Any) -> SyncResult:
        chosen = {field.name: getattr(options, field.name) for field in fields(options)}
        return sync(spark, sources, repo, **chosen, **more, progress=False)

    (folder / "files").mkdir(parents=True)
    storage = icefloe.local_filesystem_storage(str(folder / "repo"), fsync=False)
    LivingArchive(folder / "files", seed, run, storage).live()


@pytest.mark.parametrize("seed", range(5))
def test_a_living_archive_on_spark_is_equal_to_a_new_ingest(spark: Any, tmp_path: Path, seed: int) -> None:
    live(spark, tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(HISTORIES // 10))
def test_many_living_archives_on_spark_are_equal_to_new_ingests(spark: Any, tmp_path: Path, part: int) -> None:
    for seed in range(100 + 10 * part, 110 + 10 * part):
        live(spark, tmp_path / str(seed), seed)


def test_names_a_function_and_an_arrangement_are_those_of_a_local_ingest(spark: Any, tmp_path: Path) -> None:
    for number in range(40):
        data = xr.Dataset(
            {"t": (("y", "x"), np.full((2, 3), float(number)))}, {"y": [2.0, 1.0], "x": [0.0, 90.0, 270.0]}
        )
        data.to_netcdf(tmp_path / f"m{number % 2}_{number // 2:02d}h.nc")
    factor = 3.0
    options: dict[str, Any] = {
        "pattern": "m{member:d}_{step:d}h.nc",
        "preprocess": lambda data: (data * factor).rename(x="lon"),
        "sort": {"y": "ascending"},
        "longitudes": "-180..180",
        "chunks": {"step": 4},
    }
    expected = icefloe.Repository.create(icefloe.in_memory_storage())
    ingest_local(str(tmp_path / "*.nc"), expected, IngestOptions(**options))
    ingested, synced = (str(tmp_path / name) for name in ("ingested", "synced"))
    ingest(spark, str(tmp_path / "*.nc"), ingested, **options, progress=False)
    sync(spark, str(tmp_path / "m0_*.nc"), synced, **options, progress=False)
    result = sync(spark, str(tmp_path / "*.nc"), synced, **options, batch=12, progress=False)
    assert result.commits == 2
    repositories = [expected, icefloe.Repository.open(ingested), icefloe.Repository.open(synced)]
    stores = [each.readonly_session("main").store for each in repositories]
    wanted, *found = [xr.open_zarr(store, consolidated=False, zarr_format=3).load() for store in stores]
    assert wanted.t.dims == ("member", "step", "y", "lon")
    for each in found:
        xr.testing.assert_identical(each, wanted)
