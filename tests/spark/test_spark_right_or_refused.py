"""What Spark ingests equals the sources, or it is refused before a commit: attacks on the ingest, run in tasks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe import Repository
from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.spark import ingest, ingest_commit

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]
_MODES = ["native", "virtual", "mixed"]


def _write(folder: Path, number: int, changed: int = 0) -> Path:
    """An hour with a large mask that nothing names."""
    folder.mkdir(exist_ok=True)
    path = folder / f"f{number:03d}.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 20_000)
        file.createVariable("time", "i4", ("time",))[:] = [number]
        file["time"].units = "hours since 2020-01-01"
        file.createVariable("v", "f4", ("time", "x"), zlib=True)[:] = np.full((1, 20_000), number)
        mask = np.zeros(20_000)
        mask[-1] = changed
        file.createVariable("mask", "f8", ("x",), zlib=True)[:] = mask
    return path


def _during_the_job(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Let something happen between the first pass over the sources and the tasks."""
    check = ingest_commit.check_plan

    def check_and_change(*given: Any) -> None:
        check(*given)
        happens()

    monkeypatch.setattr(ingest_commit, "check_plan", check_and_change)


@pytest.mark.parametrize("mode", _MODES)
def test_a_changed_cell_of_a_shared_variable_is_found_by_tasks(spark: Any, tmp_path: Path, mode: str) -> None:
    paths = [_write(tmp_path / "in", number) for number in range(40)]
    repository = Repository.create(str(tmp_path / "repo"))
    ingest(spark, paths, repository, mode=mode, progress=False)
    before = repository.lookup_branch("main")
    _write(tmp_path / "in", 50)
    _write(tmp_path / "in", 51, changed=1)
    for sources, options in (
        (tmp_path / "in", {"mode": mode}),
        (tmp_path / "in" / "f051.nc", {"mode": mode, "append_dim": "time"}),
    ):
        target = repository if "append_dim" in options else Repository.create(str(tmp_path / "other"))
        with pytest.raises(InvalidInputError, match=r"/mask has other values in .*f051.nc than in"):
            ingest(spark, sources, target, progress=False, **options)
    assert repository.lookup_branch("main") == before
    ingest(spark, tmp_path / "in" / "f050.nc", repository, mode=mode, append_dim="time", progress=False)


@pytest.mark.parametrize("mode", _MODES)
def test_sources_that_change_within_a_second_are_refused_by_tasks(
    spark: Any, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path / "in", 1)
    other = _write(tmp_path / "other", 2)
    size = max(each.stat().st_size for each in (path, other))
    for nanoseconds, each in ((100, path), (200, other)):
        os.truncate(each, size)
        os.utime(each, ns=(0, 1_900_000_000_000_000_000 + nanoseconds))
    repository = Repository.create(str(tmp_path / "repo"))
    before = repository.lookup_branch("main")
    with monkeypatch.context() as patched:
        _during_the_job(patched, lambda: os.replace(other, path))
        with pytest.raises(IcefloeError, match="changed while it was ingested"):
            ingest(spark, path, repository, mode=mode, progress=False)
    store = tmp_path / "a.zarr"
    root = zarr.open_group(store, mode="w")
    root.create_array("v", shape=(6,), chunks=(2,), dtype="f8", compressors=None, dimension_names=["x"])[:] = 1.0
    with monkeypatch.context() as patched:
        _during_the_job(patched, lambda: (store / "v" / "c" / "1").write_bytes(np.zeros(2).tobytes()) and None)
        with pytest.raises(IcefloeError, match="changed while it was ingested"):
            ingest(spark, store, repository, mode=mode, progress=False)
    assert repository.lookup_branch("main") == before


def _grib(path: Path, fields: list[tuple[str, int, str, int]]) -> list[Any]:
    """Messages of both editions, of levels and accumulations; some cells are missing. Returns what ecCodes reads."""
    eccodes = pytest.importorskip("eccodes")
    found = []
    with path.open("wb") as file:
        for seed, (name, level, step, edition) in enumerate(fields):
            handle = eccodes.codes_grib_new_from_samples(f"regular_ll_{'pl' if level else 'sfc'}_grib{edition}")
            if "-" in step and edition == 2:
                eccodes.codes_set(handle, "productDefinitionTemplateNumber", 8)
            sizes = {"Ni": 3, "Nj": 2, "iDirectionIncrementInDegrees": 10, "jDirectionIncrementInDegrees": 10}
            corners = {"FirstGridPoint": (60, 0), "LastGridPoint": (50, 20)}
            sizes |= {f"latitudeOf{k}InDegrees": north for k, (north, _) in corners.items()}
            sizes |= {f"longitudeOf{k}InDegrees": east for k, (_, east) in corners.items()}
            for key, value in {**sizes, "dataDate": 20200101, "shortName": name, "stepRange": step}.items():
                eccodes.codes_set(handle, key, value)
            if level:
                eccodes.codes_set(handle, "level", level)
            values = np.arange(6.0) + 10 * seed
            values[seed % 6] = 9999.0
            eccodes.codes_set(handle, "bitmapPresent", 1)
            eccodes.codes_set(handle, "missingValue", 9999.0)
            eccodes.codes_set_values(handle, values)
            eccodes.codes_write(handle, file)
            stored = eccodes.codes_get_array(handle, "values")
            found.append(np.where(stored == 9999.0, np.nan, stored))
            eccodes.codes_release(handle)
    return found


@pytest.mark.parametrize("mode", ["native", "mixed", "virtual"])
def test_a_mix_of_messages_equals_what_eccodes_reads(spark: Any, tmp_path: Path, mode: str) -> None:
    fields = [(name, level, step, 2) for name in ("t", "u") for level in (850, 500) for step in ("0", "3")]
    fields += [("tp", 0, "0-3", 2), ("tp", 0, "3-6", 2), ("tp", 0, "0-6", 2), ("2t", 0, "0", 1), ("2t", 0, "3", 1)]
    messages = _grib(tmp_path / "a.grib", fields)
    ingest(spark, tmp_path / "a.grib", str(tmp_path / "repo"), mode=mode, progress=False)
    folder = f"file://{tmp_path}/"
    repository = Repository.open(str(tmp_path / "repo"), authorize_virtual_chunk_access={folder: None})
    store = repository.readonly_session("main").store
    dataset = xr.open_zarr(store, consolidated=False, decode_timedelta=False).load()
    for (name, level, step, _), values in zip(fields, messages, strict=True):
        start, _, end = step.rpartition("-")
        array = dataset[f"{name}_3h" if step == "3-6" else name].isel(time=0)
        dim = next(d for d in array.dims if str(d).startswith("step"))
        array = array.sel({dim: float(end)})
        array = array.sel(isobaricInhPa=level) if level else array
        np.testing.assert_array_equal(array.values.reshape(-1), values, err_msg=f"{name} {level} {step} {start}")
