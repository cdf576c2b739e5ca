"""Units of time and packed numbers."""

from __future__ import annotations

import warnings
from typing import Any

import cftime
import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.ingest.cf import (
    SourceTimes,
    choose_time_encoding,
    convert_times,
    decoded_dtype,
    format_coordinate,
    is_time_units,
    packing_of,
    parse_time_units,
    unpack,
)
from icefloe.ingest.zarr_documents import attribute_pairs, fill_attribute, parse_fill_attribute

_REFERENCES = st.builds(
    "{:04d}-{:02d}-{:02d} {:02d}:{:02d}:00".format,
    st.integers(1, 2200),
    st.integers(1, 12),
    st.integers(1, 28),
    st.integers(0, 23),
    st.integers(0, 59),
)
_UNITS = st.builds("{} since {}".format, st.sampled_from(["seconds", "minutes", "hours", "days"]), _REFERENCES)
_CALENDARS = st.sampled_from(["standard", "proleptic_gregorian", "noleap", "all_leap", "360_day", "julian"])


@given(
    units=st.lists(_UNITS, min_size=1, max_size=3),
    calendar=_CALENDARS,
    counts=st.lists(st.integers(-(10**5), 10**5), min_size=1, max_size=4),
    dtype=st.sampled_from(["i4", "i8", "f8"]),
)
def test_one_encoding_holds_the_times_of_all_files_in_any_calendar(
    units: list[str], calendar: str, counts: list[int], dtype: str
) -> None:
    values = np.array(counts, dtype=dtype)
    sources = [SourceTimes(parse_time_units(u, calendar), calendar, values.dtype.str, values) for u in units]
    encoding = choose_time_encoding(sources)
    for source in sources:
        stored = convert_times(values, source.units, encoding.units, encoding.dtype)
        ours = cftime.num2date(stored, encoding.units.text, calendar, only_use_cftime_datetimes=True)
        theirs = cftime.num2date(values, source.units.text, calendar, only_use_cftime_datetimes=True)
        assert list(ours) == list(theirs)


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(units=st.tuples(_UNITS, _UNITS), counts=st.lists(st.floats(0, 1e5), min_size=1, max_size=4))
def test_floating_times_in_other_units_are_the_instants_that_xarray_decodes(
    units: tuple[str, str], counts: list[float]
) -> None:
    values = np.array(counts)
    sources = [SourceTimes(parse_time_units(u), "standard", "<f8", values) for u in units]
    try:
        encoding = choose_time_encoding(sources)
        stored = [convert_times(values, s.units, encoding.units, encoding.dtype) for s in sources]
    except InvalidInputError:
        # Nanoseconds of a span of centuries have no place in 64 bits.
        assume(False)
    # Where xarray leaves times to cftime it counts them as doubles first.
    assume(all(np.abs(numbers).max() < 2**53 or encoding.units.unit_ns == 1 for numbers in stored))
    for source, numbers in zip(sources, stored, strict=True):
        np.testing.assert_array_equal(
            _microseconds(numbers, encoding.units.text), _microseconds(values, source.units.text)
        )


def test_times_since_year_one_are_counted_in_nanoseconds_of_today() -> None:
    ancient, modern = parse_time_units("days since 1-1-1"), parse_time_units("nanoseconds since 1970-01-01")
    stored = convert_times(np.array([730_121.25]), ancient, modern, "<i8")
    assert _microseconds(stored, modern.text) == _microseconds(np.array([730_121.25]), ancient.text)


def _microseconds(numbers: np.ndarray, units: str) -> list[Any]:
    """Times as xarray decodes them, as dates of the standard calendar to the microsecond."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = xr.coding.times.decode_cf_datetime(numbers, units, "standard")
    if found.dtype.kind == "M":
        return [str(t) for t in found.astype("M8[us]")]
    return [str(np.datetime64(t.isoformat(), "us")) if t.year > 1582 else t.isoformat() for t in found]


@st.composite
def _packed(draw: st.DrawFn) -> tuple[str, dict[str, Any], list[int]]:
    """A type, attributes and numbers, as messy files have them."""
    dtype = draw(st.sampled_from(["i1", "u1", "i2", "u2", "i4", "f4", "f8"]))
    stored = np.dtype(dtype)
    limits = (-128, 255) if stored.kind == "f" else (np.iinfo(stored).min, np.iinfo(stored).max)
    near = st.integers(max(-128, limits[0]), min(255, limits[1]))
    attributes: dict[str, Any] = {}
    floats = st.sampled_from([np.float32, np.float64])
    if draw(st.booleans()):
        attributes["scale_factor"] = draw(floats)(draw(st.sampled_from([0.5, 0.1, 1.0])))
    if draw(st.booleans()):
        attributes["add_offset"] = draw(floats)(draw(st.sampled_from([5.0, 273.15])))
    if draw(st.booleans()):
        attributes["_FillValue"] = stored.type(draw(near))
    missing = st.one_of(
        near.map(stored.type),
        st.lists(near, min_size=1, max_size=3).map(lambda v: np.array(v, dtype)),
        st.sampled_from([np.float64(1e20), np.float64(np.nan), "-1"]),
    )
    if draw(st.booleans()):
        attributes["missing_value"] = draw(missing)
    if stored.kind in "iu" and draw(st.booleans()):
        attributes["_Unsigned"] = draw(st.sampled_from(["true", "false"]))
    return dtype, attributes, draw(st.lists(near, min_size=1, max_size=12))


@given(packed=_packed())
def test_packed_and_missing_numbers_decode_as_xarray_decodes_them(
    packed: tuple[str, dict[str, Any], list[int]],
) -> None:
    dtype, attributes, numbers = packed
    values = np.array(numbers, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = xr.conventions.decode_cf_variable("v", xr.Variable(("x",), values, dict(attributes))).values
        except (ValueError, OverflowError, KeyError, TypeError):
            # xarray fails on a missing_value beside `_Unsigned` that its type cannot hold.
            return
    ours = packing_of(attribute_pairs(attributes, values.dtype.str), values.dtype.str)
    if any(name in attributes for name in ("scale_factor", "add_offset")):
        decoded = unpack(values, ours, decoded_dtype(values.dtype.str, attributes))
        assert decoded.dtype == theirs.dtype
    else:
        missing = ours.missing(values)
        decoded = ours.meant(values).astype("f8")
        decoded[missing if missing is not None else []] = np.nan
    np.testing.assert_array_equal(decoded, theirs.astype(decoded.dtype))


def test_the_standard_calendar_has_no_days_between_the_julian_and_the_gregorian() -> None:
    julian = parse_time_units("hours since 1-1-1 00:00:0.0")
    proleptic = parse_time_units("hours since 1-1-1 00:00:0.0", "proleptic_gregorian")
    assert (proleptic.reference_ns - julian.reference_ns) == 2 * 86400 * 10**9
    hours = cftime.date2num(cftime.DatetimeGregorian(2010, 6, 1), julian.text, "standard")
    assert format_coordinate(hours, julian.text) == "2010-06-01 00:00"


def test_integers_are_exact_or_refused() -> None:
    hours, seconds = parse_time_units("hours since 2000-01-01"), parse_time_units("seconds since 1970-01-01")
    exact = convert_times(np.array([1, 2], dtype="i4"), hours, seconds, "<i8")
    assert exact.tolist() == [946688400, 946692000]
    with pytest.raises(InvalidInputError, match="not whole"):
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
    with pytest.raises(InvalidInputError, match="cannot be parsed"):
        parse_time_units("days since 2000-02-30", "noleap")


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
