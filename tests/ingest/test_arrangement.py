"""Sorted, flipped, wrapped, snapped and packed files equal what xarray makes of the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.ingest import IngestOptions, ingest_local, sync_local

pytestmark = pytest.mark.filterwarnings("ignore")


def _repository() -> icefloe.Repository:
    return icefloe.Repository.create(icefloe.in_memory_storage())


def _opened(repo: icefloe.Repository) -> xr.Dataset:
    (prefix,) = list(repo.config.virtual_chunk_containers or {}) or [None]
    if prefix is not None:
        allowed = icefloe.containers_credentials({prefix: None})
        repo = icefloe.Repository.open(repo.storage, authorize_virtual_chunk_access=allowed)
    return xr.open_zarr(repo.readonly_session("main").store, consolidated=False, zarr_format=3).load()


def _reopened(repo: icefloe.Repository) -> icefloe.Repository:
    return icefloe.Repository.open(repo.storage)


@st.composite
def _archives(draw: st.DrawFn) -> tuple[list[xr.Dataset], dict[str, Any]]:
    """Files whose latitudes run in different directions and whose longitudes have different ranges."""
    seed, count = draw(st.integers(0, 1000)), draw(st.integers(1, 3))
    rng = np.random.default_rng(seed)
    step = draw(st.sampled_from((90.0, 60.0, 45.0)))
    files = []
    for day in range(count):
        lon = np.arange(0.0, 360.0, step)
        start = draw(st.sampled_from((0.0, -180.0)))
        lon = np.sort(np.where(lon >= start + 360, lon - 360, lon))
        lat = np.array([-60.0, 0.0, 30.0, 60.0])
        shape = (2, len(lat), len(lon))
        data = xr.Dataset(
            {
                "t": (("time", "lat", "lon"), rng.normal(size=shape).astype("f4")),
                "row": (("time", "lon"), rng.integers(0, 9, (2, len(lon))).astype("i4")),
                "mask": (("lat", "lon"), np.zeros(shape[1:], "i1")),
            },
            {
                "time": ("time", day * 2 + np.arange(2), {"units": "days since 2000-01-01"}),
                "lat": ("lat", lat, {"units": "degrees_north"}),
                "lon": ("lon", lon, {"units": "degrees_east"}),
            },
        )
        if draw(st.booleans()):
            data = data.isel(lat=slice(None, None, -1))
        files.append(data.isel(lat=rng.permutation(4)) if draw(st.booleans()) else data)
    direction = draw(st.sampled_from(("ascending", "descending")))
    options = {
        "sort": {"lat": direction},
        "longitudes": draw(st.sampled_from(("0..360", "-180..180"))),
        "flip": draw(st.sampled_from(((), ("time",)))),
    }
    return files, options


def _prepared(data: xr.Dataset, options: dict[str, Any]) -> xr.Dataset:
    """The file as xarray arranges it."""
    data = data.isel(dict.fromkeys(options["flip"], slice(None, None, -1)))
    lon = data.lon % 360 if options["longitudes"] == "0..360" else (data.lon + 180) % 360 - 180
    data = data.assign_coords(lon=lon.assign_attrs(data.lon.attrs)).sortby("lon")
    return data.sortby("lat", ascending=options["sort"]["lat"] == "ascending")


@pytest.mark.long
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(archive=_archives(), mode=st.sampled_from(("native", "mixed")), chunk=st.sampled_from((1, 3)))
def test_arranged_files_equal_those_that_xarray_arranges(
    tmp_path_factory: pytest.TempPathFactory, archive: tuple[list[xr.Dataset], dict[str, Any]], mode: Any, chunk: int
) -> None:
    check_arranged(tmp_path_factory.mktemp("files"), *archive, mode, chunk)


def check_arranged(folder: Path, files: list[xr.Dataset], options: dict[str, Any], mode: Any, chunk: int) -> None:
    for number, data in enumerate(files):
        data.to_netcdf(folder / f"f{number}.nc")
    paths = sorted(folder.glob("f*.nc"))
    prepared = [_prepared(xr.open_dataset(path).load(), options) for path in paths]
    # Files follow each other in the direction of their times.
    prepared = prepared[::-1] if options["flip"] else prepared
    expected = xr.concat(prepared, "time", data_vars="minimal") if len(prepared) > 1 else prepared[0]
    given = IngestOptions(mode=mode, chunks={"time": chunk, "lon": 3}, native_below_bytes=8, **options)
    repo, synced = _repository(), _repository()
    ingest_local(paths, repo, given)
    xr.testing.assert_equal(_opened(_reopened(repo)), expected)
    sync_local(paths[-1:], synced, given)
    sync_local(paths, synced, given)
    xr.testing.assert_equal(_opened(_reopened(synced)), expected)


def test_a_sync_with_another_arrangement_writes_the_archive_anew(tmp_path: Path) -> None:
    for day in range(2):
        xr.Dataset({"t": (("time", "lat"), [[1.0, 2.0]])}, {"time": [day], "lat": [0.0, 1.0]}).to_netcdf(
            tmp_path / f"f{day}.nc"
        )
    repo = _repository()
    sync_local(tmp_path, repo, IngestOptions(append_dim="time"))
    flipped = IngestOptions(append_dim="time", sort={"lat": "descending"})
    assert sync_local(tmp_path, repo, flipped).plan.written
    assert _opened(repo).t.values.tolist() == [[2.0, 1.0]] * 2
    assert sync_local(tmp_path, repo, flipped).snapshot_id is None
    sync_local(tmp_path, repo, IngestOptions(append_dim="time"))
    assert _opened(repo).t.values.tolist() == [[1.0, 2.0]] * 2


def test_bounds_of_longitudes_move_with_their_cells(tmp_path: Path) -> None:
    lon = np.array([0.0, 90.0, 180.0, 270.0])
    bounds = np.stack([lon - 45, lon + 45], axis=1)
    xr.Dataset(
        {"t": ("lon", lon), "lon_bnds": (("lon", "nv"), bounds)},
        {"lon": ("lon", lon, {"units": "degrees_east", "bounds": "lon_bnds"})},
    ).to_netcdf(tmp_path / "a.nc")
    repo = _repository()
    ingest_local(tmp_path / "a.nc", repo, IngestOptions(longitudes="-180..180"))
    found = _opened(repo)
    assert found.lon.values.tolist() == [-180.0, -90.0, 0.0, 90.0]
    assert found.t.values.tolist() == [180.0, 270.0, 0.0, 90.0]
    assert found.lon_bnds.values.mean(axis=1).tolist() == found.lon.values.tolist()


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (xr.Dataset({"t": ("lon", [1.0, 2.0])}, {"lon": [0.0, 360.0]}), {"longitudes": "0..360"}, "meridian twice"),
        (
            xr.Dataset({"t": (("y", "x"), [[1.0]]), "lon": (("y", "x"), [[350.0]])}),
            {"longitudes": "-180..180"},
            "use preprocess",
        ),
        (xr.Dataset({"t": ("x", [1.0])}), {"sort": {"x": "ascending"}}, "cannot be sorted"),
        (xr.Dataset({"t": ("x", [1.0])}), {"flip": ("y",)}, "no source has a dimension 'y'"),
        (xr.Dataset({"t": ("x", [1.0, 2.0])}), {"flip": ("x",), "mode": "virtual"}, "another order along x"),
        (xr.Dataset({"t": ("x", [1.0])}, {"x": [1.0]}), {"tolerance": {"z": 1.0}}, "no source has a dimension 'z'"),
        (xr.Dataset({"t": ("x", [1.0, 2.0])}, {"x": [1.0, 1.1]}), {"tolerance": 0.06}, "tolerance 0.06 along x"),
    ],
)
def test_an_arrangement_that_is_not_possible_is_refused(
    tmp_path: Path, data: xr.Dataset, options: dict[str, Any], message: str
) -> None:
    data.to_netcdf(tmp_path / "a.nc")
    repo = _repository()
    with pytest.raises(InvalidInputError, match=message):
        ingest_local(tmp_path / "a.nc", repo, IngestOptions(**options))
    assert len(list(repo.ancestry(branch="main"))) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"sort": {"x": "up"}},
        {"longitudes": "180"},
        {"tolerance": -1.0},
        {"pack": {"t": {"dtype": "i2"}}},
        {"pack": {"t": {"dtype": "f4", "scale_factor": 1.0}}},
        {"pack": {"t": {"dtype": "i2", "scale_factor": 0.0}}},
        {"pack": {"t": {"dtype": "i1", "scale_factor": 1.0, "_FillValue": 999}}},
        {"mode": "virtual", "pack": {"t": {"dtype": "i2", "scale_factor": 1.0}}},
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        IngestOptions(**options)


@pytest.mark.parametrize("mode", ["native", "mixed", "virtual"])
def test_coordinates_within_the_tolerance_are_those_of_the_first_file(tmp_path: Path, mode: Any) -> None:
    rng = np.random.default_rng(5)
    lat = np.array([10.0, 20.0, 30.0])
    for day in range(4):
        jitter = rng.uniform(-1e-6, 1e-6, 3) if day else 0.0
        xr.Dataset({"t": (("time", "lat"), rng.normal(size=(1, 3)))}, {"time": [day], "lat": lat + jitter}).to_netcdf(
            tmp_path / f"f{day}.nc"
        )
    paths = sorted(tmp_path.glob("*.nc"))
    with pytest.raises(InvalidInputError):
        ingest_local(paths, _repository(), IngestOptions(concat_dims=("time",), mode=mode))
    options = IngestOptions(tolerance=1e-5, mode=mode)
    with xr.open_mfdataset(paths, join="override", combine="nested", concat_dim="time") as opened:
        expected = opened.load()
    repo, appended, synced = _repository(), _repository(), _repository()
    ingest_local(paths, repo, options)
    xr.testing.assert_equal(_opened(_reopened(repo)), expected)
    appending = IngestOptions(tolerance=1e-5, mode=mode, append_dim="time")
    for path in paths:
        ingest_local(path, appended, appending)
        sync_local(paths[: paths.index(path) + 1], synced, appending)
    xr.testing.assert_equal(_opened(_reopened(appended)), expected)
    xr.testing.assert_equal(_opened(_reopened(synced)), expected)
    with pytest.raises(InvalidInputError):
        ingest_local(paths, _repository(), IngestOptions(concat_dims=("time",), tolerance=1e-8, mode=mode))


def test_files_with_different_scales_are_packed_with_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    values = rng.uniform(-40, 40, (3, 50)).round(3)
    values[1, 4] = np.nan
    for day in range(3):
        xr.Dataset({"t": (("time", "x"), values[day : day + 1])}, {"time": [day]}).to_netcdf(
            tmp_path / f"f{day}.nc",
            encoding={"t": {"dtype": "i2", "scale_factor": 0.002 + day / 1e4, "add_offset": day, "_FillValue": -9}},
        )
    paths = sorted(tmp_path.glob("*.nc"))
    packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 0.0, "_FillValue": -32768}
    options = IngestOptions(pack={"t": packing}, append_dim="time")
    repo, appended, synced = _repository(), _repository(), _repository()
    ingest_local(paths, repo, options)
    for count in range(1, 4):
        ingest_local(paths[count - 1], appended, options)
        sync_local(paths[:count], synced, options)
    with xr.open_mfdataset(paths) as opened:
        expected = opened.load()
    for each in (repo, appended, synced):
        found = _opened(each)
        assert found.t.encoding["dtype"] == np.dtype("i2")
        np.testing.assert_allclose(found.t.values, expected.t.values, atol=0.0051)
        assert np.array_equal(np.isnan(found.t.values), np.isnan(expected.t.values))
    small = {"dtype": "int8", "scale_factor": 0.01}
    with pytest.raises(InvalidInputError, match="does not fit"):
        ingest_local(paths, _repository(), IngestOptions(pack={"t": small}))
