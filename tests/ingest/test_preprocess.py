"""A function changes the dataset of every file, as `preprocess` of `xarray.open_mfdataset` does."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.ingest import IngestOptions, SourceAccess, expand_sources, ingest_local, open_source, sync_local
from icefloe.ingest.sources import identify_function

pytestmark = pytest.mark.filterwarnings("ignore")


def _repository() -> icefloe.Repository:
    return icefloe.Repository.create(icefloe.in_memory_storage())


def _opened(repo: icefloe.Repository) -> xr.Dataset:
    return xr.open_zarr(repo.readonly_session("main").store, consolidated=False, zarr_format=3).load()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(8)
    for day in range(3):
        values = rng.uniform(-20, 30, (2, 3, 4))
        values[0, 1, day] = np.nan
        data = xr.Dataset(
            {
                "t": (("time", "y", "x"), values, {"units": "degC", "grid_mapping": "crs"}),
                "count": (("time", "x"), rng.integers(0, 99, (2, 4)), {"long_name": "observations"}),
                "name": ("x", np.array(["a", "b", "cc", ""], dtype=object)),
                "flag": ("y", [True, False, True]),
                "crs": ((), 0, {"grid_mapping_name": "latitude_longitude"}),
            },
            {
                "time": np.array(["2024-01-01", "2024-01-02"], "M8[ns]") + np.timedelta64(2 * day, "D"),
                "y": [30.0, 20.0, 10.0],
                "x": [0, 90, 180, 270],
                "height": ((), 2.0),
                "area": (("y", "x"), np.arange(12.0).reshape(3, 4)),
            },
            {"title": "station"},
        )
        packing = {"dtype": "i2", "scale_factor": np.float32(0.01), "_FillValue": -1}
        data.to_netcdf(tmp_path / f"f{day}.nc", encoding={"t": packing, "time": {"units": "hours since 2020-01-01"}})
    return sorted(tmp_path.glob("*.nc"))


def _same(data: xr.Dataset) -> xr.Dataset:
    return data


def _renamed(data: xr.Dataset) -> xr.Dataset:
    return data.rename(t="temperature", x="lon").drop_vars("flag").assign_attrs(title="changed")


def _kelvin(data: xr.Dataset) -> xr.Dataset:
    return data.assign(t=(data.t + 273.15).assign_attrs(units="K"), warm=data.t > 10)


def _part(data: xr.Dataset) -> xr.Dataset:
    return data.isel(x=[2, 0], y=slice(None, None, -2)).sortby("y")


def _mean(data: xr.Dataset) -> xr.Dataset:
    return (
        data[["t"]].mean("y").assign_coords(valid=data.time + np.timedelta64(6, "h")).drop_vars("area", errors="ignore")
    )


def _first(data: xr.Dataset) -> xr.Dataset:
    return data[["t", "count"]].isel(time=0).expand_dims("time")


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "mode"),
    [(f, "native") for f in (_same, _renamed, _kelvin, _part, _mean, _first)] + [(_same, "mixed")],
)
def test_preprocessed_files_equal_what_xarray_opens_with_the_same_function(
    files: list[Path], function: Callable[[xr.Dataset], xr.Dataset], mode: Any
) -> None:
    with xr.open_mfdataset(
        files, preprocess=function, data_vars="minimal", coords="minimal", compat="override"
    ) as data:
        expected = data.load()
    options = IngestOptions(preprocess=function, mode=mode, append_dim="time", chunks={"time": 2})
    repo, appended, synced = _repository(), _repository(), _repository()
    ingest_local(files, repo, options)
    ingest_local(files[:1], appended, options)
    ingest_local(files[1:], appended, options)
    sync_local(files[1:], synced, options)
    sync_local(files, synced, options)
    for each in (repo, appended, synced):
        found = _opened(each)
        xr.testing.assert_equal(found, expected)
        assert set(found.coords) == set(expected.coords)
        assert found.attrs == expected.attrs
        # Zarr has one type of text.
        numbers = [name for name in expected if expected[name].dtype.kind not in "OUT"]
        assert {name: found[name].dtype for name in numbers} == {name: expected[name].dtype for name in numbers}
        assert {k: v.attrs for k, v in found.data_vars.items()} == {k: v.attrs for k, v in expected.data_vars.items()}


def test_only_the_cells_that_are_needed_are_read(files: list[Path]) -> None:
    (file,) = expand_sources(files[0])
    with open_source(file, SourceAccess(preprocess=_part)) as source:
        read: list[Any] = []
        inner = source._source  # type: ignore[attr-defined]
        plain = inner.values
        inner.values = lambda variable, region: (read.append((variable.path, region)), plain(variable, region))[1]
        source.values(source.schema().variables["t"], (slice(1, 2), slice(0, 1), slice(0, 1)))
    assert [path for path, _ in read] == ["t"]
    assert read[0][1][0] == slice(1, 2)


def test_a_sync_with_another_function_says_so(files: list[Path]) -> None:
    repo = _repository()
    options = IngestOptions(preprocess=_kelvin, append_dim="time")
    sync_local(files[:2], repo, options)
    for other in (IngestOptions(preprocess=_part, append_dim="time"), IngestOptions(append_dim="time")):
        with pytest.raises(InvalidInputError, match=r"_kelvin.* rebuild=True"):
            sync_local(files, repo, other)
    sync_local(files, repo, options)
    assert sync_local(files, repo, options).snapshot_id is None
    sync_local(files, repo, IngestOptions(preprocess=_part, append_dim="time"), rebuild=True)
    fresh = _repository()
    result = ingest_local(files, fresh, IngestOptions(preprocess=_part))
    xr.testing.assert_identical(_opened(repo), _opened(fresh))
    recorded = next(iter(fresh.ancestry(snapshot_id=result.snapshot_id))).metadata["icefloe.ingest"]["preprocess"]
    assert recorded == identify_function(_part)


def test_a_function_may_be_given_by_its_name(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_functions.py").write_text("def warmer(data):\n    return data[['t']] + 1\nnumber = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    repo = _repository()
    ingest_local(files[0], repo, IngestOptions(preprocess="my_functions:warmer"))
    with xr.open_dataset(files[0]) as data:
        xr.testing.assert_equal(_opened(repo).t, (data[["t"]] + 1).t)
    for wrong in ("my_functions:cooler", "my_functions:number", "nowhere:f", "my_functions", ":f"):
        with pytest.raises(InvalidInputError, match="function"):
            ingest_local(files[0], _repository(), IngestOptions(preprocess=wrong))


def test_what_a_function_cannot_do_is_refused(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="virtual"):
        IngestOptions(mode="virtual", preprocess=_same)
    with pytest.raises(InvalidInputError, match=r"returned NoneType.*f0\.nc"):
        ingest_local(files[0], _repository(), IngestOptions(preprocess=lambda data: None))
    xr.Dataset({"t": ("x", [1.0])}).to_netcdf(tmp_path / "groups.nc", group="inner")
    with pytest.raises((InvalidInputError, UnsupportedError), match="groups"):
        ingest_local(tmp_path / "groups.nc", _repository(), IngestOptions(preprocess=_same))


class _Adder:
    def __init__(self, number: float) -> None:
        self.number = number

    def __call__(self, data: xr.Dataset) -> xr.Dataset:
        return data + self.number


def _add(data: xr.Dataset, number: float, *, scale: float = 1.0) -> xr.Dataset:
    return data * scale + number


def _closure(number: Any) -> Callable[[xr.Dataset], xr.Dataset]:
    return lambda data: data + number


def test_the_identity_of_a_function_is_stable_and_tells_functions_apart() -> None:
    functions = [
        _same,
        _kelvin,
        _Adder(1.0),
        _Adder(2.0),
        _Adder(2.0).__call__,
        partial(_add, number=1.0),
        partial(_add, number=2.0),
        partial(_add, number=2.0, scale=3.0),
        _closure(1),
        _closure(2),
        _closure(np.arange(3)),
        _closure(_same),
        _closure(_kelvin),
    ]
    identities = [identify_function(function) for function in functions]
    assert len(set(identities)) == len(identities)
    assert identities[2] == identify_function(pickle.loads(pickle.dumps(_Adder(1.0))))
    assert identities == [identify_function(function) for function in functions]
    assert identities[0].startswith(f"{__name__}:_same ")
