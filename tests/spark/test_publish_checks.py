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
    """
    assert publish.parse_checks(text) == [
        publish.ValueRange("t2m", 180.0, 340.0),
        publish.MissingShare("t2m", 0.01),
        publish.NoDuplicates("time"),
        publish.Monotone("time", "/a"),
        publish.Regular("time", 0.01),
        publish.Units("t2m", "K"),
        publish.ExpectedSizes({"lat": 5}),
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
