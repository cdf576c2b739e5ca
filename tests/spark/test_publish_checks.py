"""Checks of write-audit-publish: what they accept and refuse, and their form in YAML."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from icefloe import Repository
from icefloe.errors import InvalidInputError
from icefloe.storage.build import in_memory_storage

publish = pytest.importorskip("icefloe.spark.publish")


def _session(time: Any, units: str = "K") -> Any:
    repository = Repository.create(in_memory_storage())
    session = repository.writable_session("main")
    values = np.zeros((len(time), 2))
    data = xr.Dataset({"t": (("time", "x"), values, {"units": units})}, {"time": time, "x": [1.0, 2.0]})
    data.to_zarr(session.store, consolidated=False)
    session.commit("data")
    return repository.readonly_session("main")


_DAYS = np.array(["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04"], dtype="M8[ns]")


@pytest.mark.parametrize(
    ("check", "time", "passed"),
    [
        ("NoDuplicates", _DAYS, True),
        ("NoDuplicates", _DAYS[[0, 1, 1, 2]], False),
        ("NoDuplicates", np.array([0.0, np.nan, 2.0]), False),
        ("Regular", _DAYS, True),
        ("Regular", _DAYS[[0, 1, 3]], False),
        ("Regular", np.array([0.0, 1.0, 2.0, np.nan]), False),
        ("Regular", np.array([3.0, 3.0, 3.0]), False),
        ("Regular", np.array([0.0, 0.1, 0.2, 0.3], dtype="f4"), True),
        ("Regular", _DAYS[:1], True),
        ("Monotone", _DAYS[::-1], True),
        ("Monotone", _DAYS[[0, 2, 1]], False),
    ],
)
def test_a_check_of_a_coordinate_passes_only_if_it_holds(check: str, time: Any, passed: bool) -> None:
    finding = getattr(publish, check)("time").run(None, _session(time))
    assert finding.passed is passed, finding


def test_units_are_compared_as_they_are_stored() -> None:
    assert publish.Units("t", "K").run(None, _session(_DAYS)).passed
    found = publish.Units("t", "K").run(None, _session(_DAYS, "degC"))
    assert not found.passed and "degC" in found.details
    assert not publish.Units("x", "m").run(None, _session(_DAYS)).passed


def test_checks_in_yaml_are_the_checks_in_python() -> None:
    text = """
    checks:
      - range: {variable: t2m, low: 180, high: 3.4e+2}
      - missing_share: {variable: t2m, most: 1e-2}
      - no_duplicates: {coordinate: time}
      - monotone: {coordinate: time, group: /a}
      - regular: {coordinate: time, tolerance: 0.01}
      - units: {variable: t2m, units: K}
      - sizes: {sizes: {lat: 5}}
      - climatology: {variable: t2m, mean: m, std: s, sigmas: 4, reference: /c}
    """
    assert publish.parse_checks(text) == [
        publish.ValueRange("t2m", 180.0, 340.0),
        publish.MissingShare("t2m", 0.01),
        publish.NoDuplicates("time"),
        publish.Monotone("time", "/a"),
        publish.Regular("time", 0.01),
        publish.Units("t2m", "K"),
        publish.ExpectedSizes({"lat": 5}),
        publish.Climatology("t2m", "m", "s", sigmas=4.0, reference="/c"),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be a list"),
        ("checks: 3", "must be a list"),
        ("- [", "not valid YAML"),
        ("- monotone", "expected a check"),
        ("- monoton: {coordinate: time}", "unknown check 'monoton'"),
        ("- monotone: {}", "needs the argument 'coordinate'"),
        ("- monotone: {coordinate: time, most: 1}", "no argument 'most'"),
        ("- range: {variable: t, low: cold, high: 3}", "must be a number"),
        ("- range: {variable: t, low: no, high: 3}", "must be a number"),
        ("- units: {variable: t, units: 1}", "must be a text"),
        ("- sizes: {sizes: {lat: five}}", "whole numbers"),
        ("- climatology: {variable: t}", "mean and std, or low and high"),
        ("- climatology: {variable: t, mean: m, high: h}", "mean and std, or low and high"),
    ],
)
def test_checks_that_cannot_be_understood_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        publish.parse_checks(text)


def test_a_file_of_checks_that_cannot_be_read_is_refused(tmp_path: Any) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read"):
        publish.read_checks(tmp_path / "absent.yaml")
    (tmp_path / "checks.yaml").write_text("- monotone: {coordinate: time}")
    assert publish.read_checks(tmp_path / "checks.yaml") == [publish.Monotone("time")]


def _two_years(spoilt: dict[tuple[int, int], float] | None = None) -> xr.Dataset:
    time = np.arange("2023-01-01", "2025-01-01", dtype="M8[D]").astype("M8[ns]")
    day = xr.DataArray(time, dims="time").dt.dayofyear.values
    values = day[:, None] + np.array([0.0, 100.0, 200.0]) + (np.arange(len(time)) % 2)[:, None]
    for cell, value in (spoilt or {}).items():
        values[cell] = value
    return xr.Dataset({"t": (("time", "x"), values)}, {"time": time, "x": [1.0, 2.0, 3.0]})


def _stored(path: Any, **groups: xr.Dataset) -> Any:
    repository = Repository.open_or_create(str(path))
    session = repository.writable_session("main")
    for group, data in groups.items():
        data.to_zarr(session.store, group=group, consolidated=False)
    session.commit("data")
    return repository.readonly_session("main")


def _climatology(data: xr.Dataset, by: str = "dayofyear") -> xr.Dataset:
    groups = data.t.groupby(f"time.{by}")
    parts = {"mean": groups.mean(), "std": groups.std() + 1.0, "low": groups.min(), "high": groups.max()}
    return xr.Dataset(parts)


@pytest.mark.spark
@pytest.mark.parametrize("arrays", [{"mean": "mean", "std": "std"}, {"low": "low", "high": "high"}])
@pytest.mark.parametrize("by", ["dayofyear", "month"])
def test_a_value_far_from_its_climatology_is_found(spark: Any, tmp_path: Any, arrays: dict[str, str], by: str) -> None:
    """The value is usual for another cell and another time of the year."""
    right = _two_years()
    wrong = _two_years({(400, 1): 410.0, (3, 0): np.nan})
    _stored(tmp_path / "reference", normals=_climatology(right, by))
    session = _stored(tmp_path / "data", right=right, wrong=wrong)
    given = {**arrays, "reference": str(tmp_path / "reference"), "reference_group": "normals"}
    found = publish.Climatology("t", **given, group="right").run(spark, session)
    assert found.passed and found.details.startswith("0 of 2,193"), found
    found = publish.Climatology("t", **given, group="wrong").run(spark, session)
    assert not found.passed and found.details.startswith("1 of 2,192"), found
    assert "410 at time=2024-02-05" in found.details and "x=2.0" in found.details, found
    assert publish.Climatology("t", **given, group="wrong", most=0.001).run(spark, session).passed


@pytest.mark.spark
def test_a_climatology_per_cell_can_be_in_the_same_repository(spark: Any, tmp_path: Any) -> None:
    data = _two_years({(5, 2): 5000.0})
    usual = _two_years().t
    normals = xr.Dataset({"low": usual.min("time"), "high": usual.max("time").where(usual.x < 2.5)})
    session = _stored(tmp_path / "data", data=data, normals=normals)
    check = publish.Climatology("t", low="low", high="high", reference_group="normals", group="data")
    found = check.run(spark, session)
    assert found.passed and "731 have no reference" in found.details, found
    nothing = xr.Dataset({"low": usual.min("time") * np.nan, "high": usual.max("time")})
    session = _stored(tmp_path / "other", data=data, normals=nothing)
    assert not check.run(spark, session).passed, "nothing was compared"


def test_a_climatology_of_another_grid_is_refused(tmp_path: Any) -> None:
    data = _two_years()
    shifted = _climatology(data).assign_coords(x=[1.0, 2.0, 3.5])
    short = _climatology(data.isel(time=slice(0, 365)))
    levels = _climatology(data).expand_dims(level=[1])
    session = _stored(tmp_path / "data", data=data, shifted=shifted, short=short, levels=levels)
    for group, reason in [("shifted", "coordinate x"), ("short", "no dayofyear 366"), ("levels", "dimension level")]:
        check = publish.Climatology("t", low="low", high="high", reference_group=group, group="data")
        with pytest.raises(InvalidInputError, match=reason):
            check.run(None, session)
