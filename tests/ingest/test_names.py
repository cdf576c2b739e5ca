"""Coordinates that are in the names of files, as `xarray.Dataset.expand_dims` adds them."""

from __future__ import annotations

import datetime as dt
import itertools
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
from icefloe.ingest.sources import name_values

pytestmark = pytest.mark.filterwarnings("ignore")


def _repository() -> icefloe.Repository:
    return icefloe.Repository.create(icefloe.in_memory_storage())


def _opened(repo: icefloe.Repository, prefix: Path | None = None) -> xr.Dataset:
    if prefix is not None:
        allowed = icefloe.containers_credentials({f"file://{prefix}/": None})
        repo = icefloe.Repository.open(repo.storage, authorize_virtual_chunk_access=allowed)
    return xr.open_zarr(repo.readonly_session("main").store, consolidated=False, zarr_format=3).load()


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("t2m_{time:%Y%m%d}.nc", "t2m_20240229.nc", {"time": (19782, "days since 1970-01-01")}),
        ("{init:%Y%m%d%H}_{step:d}h.nc", "2024010106_12h.nc", {"init": (473358, "hours since 1970-01-01"), "step": 12}),
        ("{time:%Y}/{time:%m}/x{time:%d}.nc", "1970/02/x01.nc", {"time": (31, "days since 1970-01-01")}),
        ("{time:%Y}/x{time:%Y%m%d}.nc", "1970/x19700101.nc", {"time": (0, "days since 1970-01-01")}),
        ("{year:4d}{month:2d}*.nc", "202403_v2.nc", {"year": 2024, "month": 3}),
        ("{model}_r{member:d}.nc", "a b_r-3.nc", {"model": "a b", "member": -3}),
        ("z{level:f}.nc", "z1.5e1.nc", {"level": 15.0}),
        ("{d:%d%b%Y}.nc", "02Jan1970.nc", {"d": (1, "days since 1970-01-01")}),
    ],
)
def test_a_pattern_gives_the_values_in_a_name(pattern: str, name: str, expected: dict[str, Any]) -> None:
    found = name_values(f"file:///data/{name.replace(' ', '%20')}", pattern)
    plain = {dim: each.value if each.units is None else (each.value, each.units) for dim, each in found.items()}
    assert plain == expected


@pytest.mark.parametrize(
    "pattern", ["t.nc", "{}.nc", "{a:x}.nc", "{a:%Q}.nc", "{a", "{a:d}_{a:%Y}.nc", "{a.b}.nc", "{a:3f}"]
)
def test_a_wrong_pattern_is_refused_with_its_text(pattern: str) -> None:
    with pytest.raises(InvalidInputError, match="pattern") as caught:
        IngestOptions(pattern=pattern)
    assert repr(pattern) in str(caught.value)


@pytest.mark.parametrize("name", ["t2m_2024013.nc", "xt2m_20240101.nc", "t2m_20240230.nc", "t2m_20240101.nc4"])
def test_a_file_that_does_not_match_is_an_error_with_its_name_and_the_pattern(tmp_path: Path, name: str) -> None:
    xr.Dataset({"t": ("x", [1.0])}).to_netcdf(tmp_path / name)
    options = IngestOptions(pattern="t2m_{time:%Y%m%d}.nc")
    for run in (ingest_local, sync_local):
        with pytest.raises(InvalidInputError, match="pattern") as caught:
            run([tmp_path / name], _repository(), options)
        assert name in str(caught.value) and "t2m_{time:%Y%m%d}.nc" in str(caught.value)


@given(
    st.lists(st.sampled_from(["%Y", "%m", "%d", "%j", "%H", "%M", "%S", "%b"]), unique=True, min_size=1),
    st.datetimes(),
    st.booleans(),
)
def test_a_time_in_a_name_is_the_one_that_strptime_finds(kinds: list[str], time: dt.datetime, is_wrong: bool) -> None:
    texts = {kind: f"{time.year:04}" if kind == "%Y" else time.strftime(kind) for kind in kinds}
    if is_wrong and "%d" in texts:
        texts["%d"] = "31"  # some months have no such day
    url, pattern = f"file:///f_{'_'.join(texts.values())}.nc", f"f_{{time:{'_'.join(texts)}}}.nc"
    try:
        expected = dt.datetime.strptime(f"{' '.join(texts.values())} +0000", f"{' '.join(texts)} %z")
    except ValueError:
        with pytest.raises(InvalidInputError, match="has no time"):
            name_values(url, pattern)
        return
    found = name_values(url, pattern)["time"]
    unit = str(found.units).split()[0]
    assert found.value == (expected - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(**{unit: 1})


def test_values_of_one_name_must_agree() -> None:
    with pytest.raises(InvalidInputError, match="two values of time"):
        name_values("file:///1971/x19700101.nc", "{time:%Y}/x{time:%Y%m%d}.nc")


def _write(folder: Path, init: int, step: int, member: int, seed: int) -> Path:
    values = np.random.default_rng([seed, init, step, member]).normal(size=(2, 3))
    data = xr.Dataset(
        {"t": (("y", "x"), values.astype("f4"), {"units": "K"}), "q": (("y", "x"), (values * 100).astype("i2"))},
        {"y": [1.0, 2.0], "x": [10, 20, 30]},
    )
    time = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=6 * init)
    path = folder / f"m{member}" / f"{time:%Y%m%d%H}_{step:03d}h.nc"
    path.parent.mkdir(exist_ok=True)
    data.to_netcdf(path, encoding={"q": {"_FillValue": -1}})
    return path


def _expanded(path: Path) -> xr.Dataset:
    init = np.datetime64(dt.datetime.strptime(path.name[:10], "%Y%m%d%H"), "ns")  # noqa: DTZ007 - as xarray has it
    names = {"member": [int(path.parent.name[1:])], "init": [init], "step": [int(path.name[11:14])]}
    with xr.open_dataset(path) as data:
        return data.load().expand_dims(names)


_FORECASTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from((0, 6, 12)), st.integers(0, 2)), min_size=1, max_size=6, unique=True
)


@pytest.mark.long
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(files=_FORECASTS, seed=st.integers(0, 99), mode=st.sampled_from(("native", "virtual", "mixed")), data=st.data())
def test_several_coordinates_of_names_equal_what_xarray_expands_and_combines(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[int, int, int]], seed: int, mode: Any, data: Any
) -> None:
    folder = tmp_path_factory.mktemp("names")
    paths = [_write(folder, *each, seed) for each in files]
    expected = xr.combine_by_coords([_expanded(path) for path in paths], combine_attrs="override")
    options = IngestOptions(
        pattern="m{member:d}/{init:%Y%m%d%H}_{step:d}h.nc",
        mode=mode,
        native_below_bytes=8,
        container_prefix=f"file://{folder}",
    )
    repo, synced = _repository(), _repository()
    ingest_local(paths, repo, options)
    xr.testing.assert_equal(_opened(repo, folder), expected)
    first = data.draw(st.integers(1, len(paths)))
    sync_local(paths[:first], synced, options)
    sync_local(paths, synced, options)
    xr.testing.assert_equal(_opened(synced, folder), expected)


def test_files_are_appended_along_the_dimension_of_their_names(tmp_path: Path) -> None:
    for day in range(1, 5):
        xr.Dataset({"t": ("x", [float(day), 0.0])}).to_netcdf(tmp_path / f"t_2024010{day}.nc")
    options = IngestOptions(pattern="t_{time:%Y%m%d}.nc", append_dim="time", chunks={"time": 2})
    repo = _repository()
    for day in range(1, 5):
        ingest_local(tmp_path / f"t_2024010{day}.nc", repo, options)
    found = _opened(repo)
    assert found.t.dims == ("time", "x")
    assert found.t[:, 0].values.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert found.time.values.astype("M8[D]").astype(str).tolist() == [f"2024-01-0{day}" for day in range(1, 5)]
    with pytest.raises(InvalidInputError, match="cannot append along time"):
        ingest_local(tmp_path / "t_20240102.nc", repo, options)


def _by_function(url: str) -> dict[str, Any]:
    model, number = url.rsplit("/", 1)[-1].removesuffix(".nc").split("-")
    return {"model": model, "time": np.datetime64("2020-01-01") + int(number), "lead": dt.timedelta(hours=int(number))}


def test_a_function_gives_texts_times_and_durations(tmp_path: Path) -> None:
    for model, number in itertools.product("ab", (1, 2)):
        xr.Dataset({"t": ("x", [float(number)])}).to_netcdf(tmp_path / f"{model}-{number}.nc")
    repo = _repository()
    ingest_local(tmp_path, repo, IngestOptions(pattern=_by_function))
    found = xr.decode_cf(_opened(repo), decode_timedelta=True)
    assert found.t.dims == ("model", "time", "lead", "x")
    assert found.model.values.tolist() == ["a", "b"]
    assert found.t.sel(model="b", time="2020-01-03", lead=np.timedelta64(2, "h")).values.tolist() == [2.0]


@pytest.mark.parametrize("returned", [None, {}, {"a": None}, {"a": True}, {1: 2}, {"a": float("nan")}])
def test_what_a_function_must_not_return_is_refused(returned: Any) -> None:
    with pytest.raises(InvalidInputError, match="function of names returned"):
        name_values("file:///a.nc", lambda url: returned)


def test_a_coordinate_that_the_file_has_too_is_refused_unless_it_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "t_20240101.nc"
    xr.Dataset({"t": (("time", "x"), [[1.0, 2.0]])}, {"time": [7.0]}).to_netcdf(path)
    options = IngestOptions(pattern="t_{time:%Y%m%d}.nc")
    with pytest.raises(InvalidInputError, match="a variable 'time' of its own"):
        ingest_local(path, _repository(), options)
    repo = _repository()
    ingest_local(path, repo, IngestOptions(pattern="t_{time:%Y%m%d}.nc", drop_variables=("time",)))
    assert _opened(repo).time.values.astype("M8[D]").astype(str).tolist() == ["2024-01-01"]
    xr.Dataset({"t": (("time", "x"), [[1.0, 2.0], [3.0, 4.0]])}).to_netcdf(path)
    with pytest.raises(InvalidInputError, match="2 cells along 'time'"):
        ingest_local(path, _repository(), options)
