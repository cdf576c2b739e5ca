"""Units of time and packed numbers."""

from __future__ import annotations

from typing import Any

import cftime
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.ingest.cf import convert_times, format_coordinate, is_time_units, packing_of, parse_time_units, unpack
from icefloe.ingest.zarr_documents import fill_attribute, parse_fill_attribute

_UNITS = st.builds(
    "{} since {:04d}-{:02d}-{:02d} {:02d}:{:02d}:00".format,
    st.sampled_from(["seconds", "minutes", "hours", "days"]), st.integers(1700, 2200), st.integers(1, 12),
    st.integers(1, 28), st.integers(0, 23), st.integers(0, 59),
)  # fmt: skip


@given(source=_UNITS, target=_UNITS, count=st.integers(-(10**6), 10**6))
def test_conversion_agrees_with_cftime(source: str, target: str, count: int) -> None:
    ours = convert_times(np.array([float(count)]), parse_time_units(source), parse_time_units(target), "<f8")[0]
    calendar = "proleptic_gregorian"
    try:
        theirs = cftime.date2num(cftime.num2date(count, source, calendar), target, calendar)
    except (OverflowError, ValueError):
        return
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-4)


def test_integers_are_exact_or_refused() -> None:
    hours, seconds = parse_time_units("hours since 2000-01-01"), parse_time_units("seconds since 1970-01-01")
    exact = convert_times(np.array([1, 2], dtype="i4"), hours, seconds, "<i8")
    assert exact.tolist() == [946688400, 946692000]
    with pytest.raises(InvalidInputError, match="no whole"):
        convert_times(np.array([30]), parse_time_units("minutes since 2000-01-01"), hours, "<i4")


@pytest.mark.parametrize(
    ("text", "is_time"),
    [
        ("hours since 2000-1-1", True),
        ("Days since 1900-01-01T00:00:00Z", True),
        ("K", False),
        (None, False),
        (3, False),
    ],
)
def test_time_units_are_recognised(text: object, is_time: bool) -> None:
    assert is_time_units(text) == is_time


def test_zones_fractions_and_wrong_units() -> None:
    assert parse_time_units("hours since 2000-01-01 02:00 +02:00").reference_us == (
        parse_time_units("hours since 2000-01-01").reference_us
    )
    for wrong in ("months since 2000-01-01", "hours since yesterday", "hours since 2000-13-01"):
        with pytest.raises(InvalidInputError):
            parse_time_units(wrong)
    with pytest.raises(UnsupportedError, match="noleap"):
        parse_time_units("days since 2000-01-01", "noleap")


@pytest.mark.parametrize(
    ("value", "units", "shown"),
    [
        (1.5, "days since 2020-02-28", "2020-02-29 12:00"),
        (90, "seconds since 2020-01-01 12:00", "2020-01-01 12:01:30"),
        (1e300, "days since 2000-01-01", "1e+300 (days since 2000-01-01)"),
        (2.25, "m", "2.25"),
        ("b", None, "b"),
    ],
)
def test_coordinates_are_shown_as_people_read_them(value: Any, units: str | None, shown: str) -> None:
    assert format_coordinate(value, units) == shown


def test_packed_numbers_unpack_with_missing_values() -> None:
    packing = packing_of({"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -1}, "<i2")
    result = unpack(np.array([-1, 0, 4], dtype="i2"), packing, "<f4")
    assert np.isnan(result[0]) and result[1:].tolist() == [10.0, 12.0]


@given(st.floats(width=32))
def test_fill_attributes_come_back(value: float) -> None:
    back = parse_fill_attribute("<f4", fill_attribute("<f4", value))
    assert back == value or (np.isnan(back) and np.isnan(value))
