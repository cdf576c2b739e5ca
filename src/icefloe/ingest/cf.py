"""CF conventions: times in any calendar, packed numbers, missing values.

Values are decoded as xarray decodes them. `tests/ingest/test_cf_conventions.py` compares the two.
"""

from __future__ import annotations

import datetime as dt
import importlib
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.ingest.zarr_documents import parse_fill_attribute

_NANOSECONDS = {
    "nanosecond": 1,
    "nanoseconds": 1,
    "ns": 1,
    "nsec": 1,
    "nsecs": 1,
    "microsecond": 10**3,
    "microseconds": 10**3,
    "us": 10**3,
    "millisecond": 10**6,
    "milliseconds": 10**6,
    "msec": 10**6,
    "msecs": 10**6,
    "ms": 10**6,
    "second": 10**9,
    "seconds": 10**9,
    "sec": 10**9,
    "secs": 10**9,
    "s": 10**9,
    "minute": 60 * 10**9,
    "minutes": 60 * 10**9,
    "min": 60 * 10**9,
    "mins": 60 * 10**9,
    "hour": 3600 * 10**9,
    "hours": 3600 * 10**9,
    "hr": 3600 * 10**9,
    "hrs": 3600 * 10**9,
    "h": 3600 * 10**9,
    "day": 86400 * 10**9,
    "days": 86400 * 10**9,
    "d": 86400 * 10**9,
}
_UNIT_NAMES = ("days", "hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds")
_SINCE = re.compile(r"^\s*(\w+)\s+since\s+(.+?)\s*$", re.IGNORECASE)
_STAMP = re.compile(
    r"^(-?\d{1,4})-(\d{1,2})-(\d{1,2})(?:[T\s]+(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?"
    r"\s*(Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)?$"
)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_REFORM = dt.datetime(1582, 10, 15, tzinfo=dt.UTC)
_REFORM_NS = (_REFORM - _EPOCH) // dt.timedelta(microseconds=1) * 1000
_CALENDARS = {
    "": "standard",
    "gregorian": "standard",
    "none": "standard",
    "365_day": "noleap",
    "366_day": "all_leap",
}
CIVIL_CALENDARS = ("standard", "proleptic_gregorian")
"""Calendars whose dates since 1582 are those of the civil calendar."""
_MOST = int(np.iinfo(np.int64).max)
NO_TIME = int(np.iinfo(np.int64).min)
"""The integer of a missing time in numpy and xarray."""


@dataclass(frozen=True, slots=True)
class TimeUnits:
    """Parsed time units such as `hours since 2000-01-01`.

    The reference is relative to 1970-01-01 of the same calendar. An instant has the same number in the standard and in
    the proleptic Gregorian calendar.
    """

    text: str
    calendar: str
    unit_ns: int
    reference_ns: int

    @property
    def unit_us(self) -> int:
        """Microseconds in a unit. Zero for nanoseconds."""
        return self.unit_ns // 1000

    @property
    def reference_us(self) -> int:
        return self.reference_ns // 1000

    @property
    def counts_alike(self) -> tuple[int, int]:
        """Units with the same pair are equivalent, even if their texts differ."""
        return self.unit_ns, self.reference_ns


def is_time_units(units: Any) -> bool:
    """Whether a `units` attribute is a time since an instant."""
    return isinstance(units, str) and _SINCE.match(units) is not None


def calendar_name(calendar: Any) -> str:
    """The CF name of a calendar. Some calendars have two names.

    >>> calendar_name("gregorian"), calendar_name(None), calendar_name("365_day")
    ('standard', 'standard', 'noleap')
    """
    name = str(calendar or "").lower()
    return _CALENDARS.get(name, name)


@lru_cache(maxsize=4096)
def parse_time_units(units: str, calendar: str = "standard") -> TimeUnits:
    """Parse CF time units in any calendar of cftime."""
    match = _SINCE.match(units)
    if match is None or match[1].lower() not in _NANOSECONDS:
        raise InvalidInputError(f"{units!r} is not a CF time unit of fixed length", units=units)
    name = calendar_name(calendar)
    since = _civil_reference(match[2], name)
    if since is None:
        since = _cftime_reference(units, match[2], name)
    return TimeUnits(units, name, _NANOSECONDS[match[1].lower()], since)


def _civil_reference(text: str, calendar: str) -> int | None:
    """Nanoseconds from 1970 to an instant after the calendar reform of 1582. None if cftime is needed."""
    stamp = _STAMP.match(text)
    if stamp is None or calendar not in CIVIL_CALENDARS:
        return None
    year, month, day, hour, minute, second = (int(g or 0) for g in stamp.groups()[:6])
    try:
        instant = dt.datetime(year, month, day, hour, minute, second, tzinfo=dt.UTC)
    except ValueError:
        return None
    if instant < _REFORM and calendar == "standard":
        return None
    nano = int((stamp[7] or "0").ljust(9, "0")[:9])
    return (instant - _EPOCH) // dt.timedelta(microseconds=1) * 1000 + nano - _zone_ns(stamp[8])


def _cftime_reference(units: str, text: str, calendar: str) -> int:
    cftime = _load_cftime(f"the time units {units!r} in the calendar {calendar!r}")
    try:
        instant = cftime.num2date(0, f"microseconds since {text}", calendar, only_use_cftime_datetimes=True)
        epoch = cftime.datetime(1970, 1, 1, calendar=instant.calendar, has_year_zero=instant.has_year_zero)
        return int((instant - epoch) // dt.timedelta(microseconds=1)) * 1000
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"the time units {units!r} in the calendar {calendar!r} cannot be parsed: {error}", units=units
        ) from error


def _zone_ns(zone: str | None) -> int:
    if zone is None or zone in ("Z", "UTC", "GMT"):
        return 0
    digits = zone[1:].replace(":", "")
    hours, minutes = (int(digits[:-2]), int(digits[-2:])) if len(digits) > 2 else (int(digits), 0)
    return (1 if zone[0] == "+" else -1) * (hours * 60 + minutes) * 60 * 10**9


def find_time_units(attributes: Mapping[str, Any]) -> TimeUnits | None:
    """The time units of a variable's attributes. None for other units and for units without a fixed length."""
    units = attributes.get("units")
    if not is_time_units(units):
        return None
    try:
        return parse_time_units(str(units), str(attributes.get("calendar") or "standard"))
    except InvalidInputError:
        return None


def format_coordinate(value: Any, units: str | None, calendar: str = "standard") -> str:
    """Format a coordinate value. A time is formatted as a date.

    >>> format_coordinate(438383, "hours since 1970-01-01"), format_coordinate(2.5, "m"), format_coordinate(3, None)
    ('2020-01-04 23:00', '2.5', '3')
    """
    if not isinstance(value, (int, float, np.integer, np.floating)):
        return str(value)
    parsed = find_time_units({"units": units, "calendar": calendar})
    if parsed is None:
        return f"{value:.15g}"
    try:
        offset = int(value) * parsed.unit_ns if isinstance(value, (int, np.integer)) else float(value) * parsed.unit_ns
        moment = _moment(parsed, (parsed.reference_ns + offset) / 1000)
    except (OverflowError, ValueError):
        return f"{value:.15g} ({units})"
    return f"{moment:%Y-%m-%d %H:%M}" if not moment.second else f"{moment:%Y-%m-%d %H:%M:%S}"


def _moment(units: TimeUnits, micro: float) -> Any:
    civil = units.calendar in CIVIL_CALENDARS
    if civil and (units.calendar == "proleptic_gregorian" or micro * 1000 >= _REFORM_NS):
        return _EPOCH + dt.timedelta(microseconds=round(micro))
    cftime = _load_cftime(f"dates in the calendar {units.calendar!r}")
    return cftime.num2date(round(micro), "microseconds since 1970-01-01", units.calendar)


def _load_cftime(needed_for: str) -> Any:
    # Only other calendars need it, so it is imported on demand.
    try:
        return importlib.import_module("cftime")
    except ImportError as error:
        raise UnsupportedError(f"{needed_for} need the package cftime: pip install cftime") from error


def format_range(first: Any, last: Any, attributes: Mapping[str, Any]) -> str:
    """Format the first and last value of a coordinate."""
    units, calendar = attributes.get("units"), str(attributes.get("calendar", "standard"))
    return " .. ".join(format_coordinate(value, units, calendar) for value in (first, last))


def format_step(step: float, units: str | None) -> str:
    """Format the distance of neighbours in their units of time.

    >>> format_step(6, "hours since 1970-01-01"), format_step(1, "days since 2000-01-01"), format_step(0.25, None)
    ('6 hours', '1 day', '0.25')
    """
    match = _SINCE.match(units) if units is not None else None
    if match is None:
        return f"{step:g}"
    return f"{step:g} {match[1].rstrip('s') if step == 1 else match[1]}"


@dataclass(frozen=True, slots=True)
class TimeEncoding:
    """The encoding of times of an array: units, calendar as written, and type."""

    units: TimeUnits
    calendar: str | None
    dtype: str


@dataclass(frozen=True, slots=True)
class SourceTimes:
    """Times of one file: units, calendar as written, type, and the values if they are known."""

    units: TimeUnits
    calendar: str | None
    dtype: str
    values: npt.NDArray[Any] | None = None


def choose_time_encoding(sources: Sequence[SourceTimes]) -> TimeEncoding:
    """Choose one encoding that represents the times of all files exactly.

    Files with equivalent units keep them, in a type that can store all values. Other times become 64-bit integers since
    the reference of the first file, in the largest unit of which all times are multiples.
    """
    first = sources[0]
    _check_calendars(sources)
    dtype = np.result_type(*(np.dtype(s.dtype).newbyteorder("=") for s in sources))
    if len({s.units.counts_alike for s in sources}) == 1 and all(keeps_values(s.dtype, dtype.str) for s in sources):
        return TimeEncoding(first.units, first.calendar, dtype.newbyteorder("<").str)
    common = 0
    for source in sources:
        common = math.gcd(common, source.units.reference_ns - first.units.reference_ns, _granularity(source))
    names = [n for n in _UNIT_NAMES if _NANOSECONDS[n] <= first.units.unit_ns]
    unit = next(n for n in names if common % _NANOSECONDS[n] == 0)
    if unit == "nanoseconds":
        far = next(
            (s.units.text for s in sources if s.values is not None and not _is_countable(s.values, s.units)), None
        )
        if far is not None:
            raise InvalidInputError(
                f"times in {far!r} are outside of the years 1678 to 2262, and other times are finer than microseconds. "
                "Ingest them into different groups"
            )
    return TimeEncoding(_units_since(unit, first.units), first.calendar, "<i8")


def _is_countable(values: npt.NDArray[Any], units: TimeUnits) -> bool:
    """Whether all times fit 64 bits as nanoseconds since 1970."""
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    ends = (float(finite.min()), float(finite.max())) if finite.size else ()
    return all(abs(units.reference_ns + end * units.unit_ns) < _MOST for end in ends)


def _units_since(unit: str, first: TimeUnits) -> TimeUnits:
    """Units with the reference of the first file, or with a later reference if the times would be too large."""
    match = _SINCE.match(first.text)
    assert match is not None
    if _NANOSECONDS[unit] == first.unit_ns:
        return first
    if unit not in ("microseconds", "nanoseconds") or _is_within_nanoseconds(first):
        return parse_time_units(f"{unit} since {match[2]}", first.calendar)
    if unit == "nanoseconds" and first.calendar not in CIVIL_CALENDARS:
        raise InvalidInputError(
            f"times in {first.text!r} of the calendar {first.calendar!r} are finer than microseconds"
        )
    # xarray reads times that cftime decodes as doubles, which cannot represent microseconds over millennia.
    return parse_time_units(f"{unit} since 1970-01-01", first.calendar)


def _is_within_nanoseconds(units: TimeUnits) -> bool:
    """Whether xarray decodes times as nanoseconds since a reference. Otherwise it uses cftime, which does not."""
    is_early = units.calendar == "standard" and units.reference_ns < _REFORM_NS
    return units.calendar in CIVIL_CALENDARS and abs(units.reference_ns) < _MOST and not is_early


def _granularity(source: SourceTimes) -> int:
    """The largest number of nanoseconds of which all times of a source are multiples."""
    if np.dtype(source.dtype).kind in "iu":
        return source.units.unit_ns
    if source.values is None:
        # The precision of xarray's decoding: cftime has microseconds.
        return 1 if _is_within_nanoseconds(source.units) else 1000
    values = source.values.astype(np.float64)
    offsets, scale = _float_offsets(values[np.isfinite(values)], source.units)
    return int(np.gcd.reduce(offsets)) * scale if offsets.size else 0


def _check_calendars(sources: Sequence[SourceTimes]) -> None:
    names = {s.units.calendar for s in sources}
    if len(names) == 1:
        return
    # Values that are not known here are checked when they are converted.
    known = [(s.values, s.units) for s in sources if s.values is not None]
    if names <= set(CIVIL_CALENDARS) and all(_is_after_reform(*each) for each in known):
        return
    raise _other_dates(names)


def _other_dates(names: Iterable[str]) -> InvalidInputError:
    return InvalidInputError(
        f"times are counted in the calendars {' and '.join(sorted(names))}, which have different dates. Ingest them "
        "into different groups"
    )


def _is_after_reform(values: npt.NDArray[Any], units: TimeUnits) -> bool:
    """Whether all times are dates that the standard and the proleptic calendar share."""
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    return not finite.size or units.reference_ns + float(finite.min()) * units.unit_ns >= _REFORM_NS


def convert_times(
    values: npt.NDArray[Any],
    source: TimeUnits,
    target: TimeUnits,
    dtype: str,
    *,
    missing: npt.NDArray[np.bool_] | None = None,
    no_time: Any = None,
) -> npt.NDArray[Any]:
    """Convert times to other units. Raises unless the instants stay exactly the same.

    Missing times become `no_time`. If that is None, they become NaN for floats and `NO_TIME` for 64-bit integers.
    """
    wanted = np.dtype(dtype)
    absent = _absent(values, missing)
    if source.calendar != target.calendar:
        present = values if absent is None else values[~absent]
        if not {source.calendar, target.calendar} <= set(CIVIL_CALENDARS) or not _is_after_reform(present, source):
            raise _other_dates((source.calendar, target.calendar))
    if source.counts_alike == target.counts_alike:
        return _cast_times(values, wanted, source, missing, no_time)
    if values.dtype.kind in "iu":
        plain = values if absent is None else np.where(absent, 0, values)
        offsets, scale = plain, source.unit_ns
    else:
        plain = values.astype(np.float64)
        offsets, scale = _float_offsets(plain if absent is None else np.where(absent, 0, plain), source)
    shift = source.reference_ns - target.reference_ns
    if wanted.kind in "iu":
        result = _whole_units(offsets, scale, shift, source, target, wanted)
    else:
        result = _float_units(offsets, scale, shift, source, target, wanted)
    if absent is not None:
        result[absent] = _no_time(wanted, no_time)
    return result


def _absent(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_] | None:
    found = np.isnan(values) if values.dtype.kind == "f" else None
    if values.dtype.kind == "i" and values.dtype.itemsize == 8:
        found = values == NO_TIME
    if found is None:
        found = missing
    elif missing is not None:
        found = found | missing
    return found if found is not None and bool(found.any()) else None


def _no_time(wanted: np.dtype[Any], given: Any) -> Any:
    if given is not None:
        return given
    if wanted.kind == "f":
        return np.nan
    if wanted.kind == "i" and wanted.itemsize == 8:
        return NO_TIME
    raise InvalidInputError(f"times are missing, but an array of {wanted} cannot store missing times")


def _cast_times(
    values: npt.NDArray[Any],
    wanted: np.dtype[Any],
    units: TimeUnits,
    missing: npt.NDArray[np.bool_] | None,
    no_time: Any,
) -> npt.NDArray[Any]:
    absent = _absent(values, missing)
    if absent is None and keeps_values(values.dtype.str, wanted.str):
        return values.astype(wanted, copy=False)
    plain = values if absent is None else np.where(absent, values.dtype.type(0), values)
    with np.errstate(invalid="ignore", over="ignore"):
        result = plain.astype(wanted)
    if not np.array_equal(result.astype(np.longdouble), plain.astype(np.longdouble)):
        raise InvalidInputError(
            f"times in {units.text!r} do not fit the type {wanted} of their array. They have the type {values.dtype}"
        )
    if absent is not None:
        result[absent] = _no_time(wanted, no_time)
    return result


def _whole_units(
    offsets: npt.NDArray[Any], scale: int, shift: int, source: TimeUnits, target: TimeUnits, wanted: np.dtype[Any]
) -> npt.NDArray[Any]:
    if offsets.size == 0:
        return offsets.astype(wanted)
    # Divide offsets in nanoseconds by their common divisor, because millennia do not fit 64 bits.
    shared = int(np.gcd.reduce(offsets, axis=None)) or 1 if scale in (1, 1000) else 1
    offsets, scale = (offsets // shared, scale * shared) if shared > 1 else (offsets, scale)
    common = math.gcd(scale, shift, target.unit_ns)
    scale, shift, unit = scale // common, shift // common, target.unit_ns // common
    low, high = (int(end) * scale + shift for end in (offsets.min(), offsets.max()))
    limits = np.iinfo(wanted)
    times = f"times in {source.text!r}"
    if low < -_MOST or high > _MOST or low // unit < limits.min or high // unit > limits.max:
        raise InvalidInputError(
            f"{times} do not fit {target.text!r} in the type {wanted} of their array. Choose coarser units with "
            "time_units"
        )
    # Nanoseconds since year one do not fit 64 bits, although those since 1970 do.
    is_wide = max(abs(shift), scale) > _MOST
    total = offsets.astype(object if is_wide else np.int64) * scale + shift
    if bool((total % unit).any()):
        raise InvalidInputError(
            f"{times} are not whole numbers of {target.text!r}. Choose finer units or a float dtype"
        )
    return (total // unit).astype(wanted)


def _float_units(
    offsets: npt.NDArray[Any], scale: int, shift: int, source: TimeUnits, target: TimeUnits, wanted: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Times as floats that decode to exactly the same instants."""
    exact = offsets.astype(np.longdouble) * scale + shift
    result = (exact / target.unit_ns).astype(wanted)
    back, unit = _float_offsets(result.astype(np.float64), target)
    if not np.array_equal(back.astype(np.longdouble) * unit, exact):
        raise InvalidInputError(
            f"times in {source.text!r} cannot be stored exactly as {wanted} of {target.text!r}. Store them as "
            "integers: choose time_units with a unit of which they are multiples"
        )
    return result


def _float_offsets(values: npt.NDArray[np.float64], units: TimeUnits) -> tuple[npt.NDArray[Any], int]:
    """Floating times after their reference as integers, as xarray decodes them, and their unit in nanoseconds.

    xarray uses nanoseconds and truncates the rest if 64 bits suffice. Otherwise cftime uses microseconds.
    """
    finite = values[np.isfinite(values)]
    ends = [float(finite.min()), float(finite.max())] if finite.size else [0.0]
    largest = max(abs(units.reference_ns), *(abs(units.reference_ns + end * units.unit_ns) for end in ends))
    in_range = max(largest, *(abs(end * units.unit_ns) for end in ends)) < _MOST
    if in_range and _is_within_nanoseconds(units):
        return (values * np.int64(units.unit_ns)).astype(np.int64), 1
    micro = np.around(values.astype(np.longdouble) * (units.unit_ns / 1000))
    if micro.size and float(np.abs(micro).max()) > _MOST:
        raise InvalidInputError(f"times in {units.text!r} are too far from their reference date")
    return micro.astype(np.int64), 1000


def keeps_values(source: str, target: str) -> bool:
    """Whether every value of one type is exactly a value of the other.

    >>> keeps_values("<i2", "<f4"), keeps_values("<i8", "<f8"), keeps_values(">f4", "<f8")
    (True, False, True)
    """
    if "string" in (source, target):
        return source == target
    ours, theirs = np.dtype(source), np.dtype(target)
    if ours.kind in "iu" and theirs.kind in "fc":
        # numpy treats int64 to float64 as safe, but it is not beyond 2**53.
        digits = 8 * ours.itemsize - (ours.kind == "i")
        part = theirs if theirs.kind == "f" else np.dtype(f"f{theirs.itemsize // 2}")
        return digits <= np.finfo(part).nmant + 1
    if (ours.kind == "b") != (theirs.kind == "b"):
        return False
    return bool(np.can_cast(ours, theirs, "safe"))


@dataclass(frozen=True, slots=True)
class Packing:
    """The packing of numbers: value = stored * scale + offset. Some numbers mean missing.

    fills  numbers that mean missing, before scaling; NaN is always missing
    sign   "u" if stored signed integers are unsigned (`_Unsigned`), "i" for the reverse
    """

    scale: float = 1.0
    offset: float = 0.0
    fills: tuple[Any, ...] = ()
    sign: str = ""

    @property
    def is_plain(self) -> bool:
        return self.scale == 1.0 and self.offset == 0.0

    @property
    def fill(self) -> Any:
        """The number to write for a missing value. None if none is declared."""
        return self.fills[0] if self.fills else None

    def __str__(self) -> str:
        text = f"scale_factor {self.scale:g}, add_offset {self.offset:g}"
        return f"{text}, missing {', '.join(map(str, self.fills))}" if self.fills else text

    def meant_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The type of the numbers before scaling."""
        return dtype if not self.sign else np.dtype(f"{dtype.byteorder}{self.sign}{dtype.itemsize}")

    def meant(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Stored numbers with the sign of `_Unsigned`."""
        return values if not self.sign else values.view(self.meant_dtype(values.dtype))

    def missing(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
        """Which stored numbers mean missing, without NaN. None if none does."""
        if not self.fills or values.dtype.kind not in "iuf":
            return None
        numbers = self.meant(values)
        found: npt.NDArray[np.bool_] = numbers == numbers.dtype.type(self.fills[0])
        for fill in self.fills[1:]:
            found |= numbers == numbers.dtype.type(fill)
        return found if bool(found.any()) else None

    def stored(self, number: Any, dtype: np.dtype[Any]) -> Any:
        """The stored form of a number with the sign of `_Unsigned`."""
        meant = self.meant_dtype(dtype)
        return np.array([number], dtype=meant).view(dtype)[0] if self.sign else dtype.type(number)


_PACKING_ATTRIBUTES = ("scale_factor", "add_offset", "_Unsigned", "_FillValue", "missing_value")
_PACKINGS: dict[tuple[str, ...], Packing] = {}
_KEPT_PACKINGS = 4096


def packing_of(attributes: Mapping[str, Any], dtype: str) -> Packing:
    """The packing of a variable's attributes, as xarray reads them."""
    # Many files have the same few packings. The text of a number also shows its type, and works for NaN.
    key = (dtype, *[repr(attributes[name]) if name in attributes else "" for name in _PACKING_ATTRIBUTES])
    found = _PACKINGS.get(key)
    if found is None:
        found = _parse_packing(attributes, dtype)
        if len(_PACKINGS) >= _KEPT_PACKINGS:
            _PACKINGS.clear()
        _PACKINGS[key] = found
    return found


def _parse_packing(attributes: Mapping[str, Any], dtype: str) -> Packing:
    if dtype == "string" or np.dtype(dtype).kind not in "iuf":
        return Packing()
    stored = np.dtype(dtype)
    unsigned = str(attributes.get("_Unsigned", "")).lower()
    sign = (
        "u" if stored.kind == "i" and unsigned == "true" else "i" if stored.kind == "u" and unsigned == "false" else ""
    )
    packing = Packing(_number(attributes, "scale_factor", 1.0), _number(attributes, "add_offset", 0.0), (), sign)
    meant = packing.meant_dtype(stored)
    fills: dict[Any, None] = {}
    for name in ("_FillValue", "missing_value"):
        given = attributes.get(name)
        for entry in given if isinstance(given, (list, tuple)) else [given]:
            number = parse_fill_attribute(dtype, entry) if name == "_FillValue" and entry is not None else entry
            if sign and name == "_FillValue" and isinstance(number, (int, float)) and _fits(number, stored):
                number = np.array([number], dtype=stored).view(meant)[0].item()
            if _fits(number, meant):
                fills[meant.type(number).item()] = None
    return Packing(packing.scale, packing.offset, tuple(fills), sign)


def _number(attributes: Mapping[str, Any], name: str, default: float) -> float:
    value = attributes.get(name, default)
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if not isinstance(value, (int, float)):
        raise InvalidInputError(f"the attribute {name} is {value!r}, which is not a number")
    return float(value)


def _fits(number: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a number can be a value of a type. Texts and numbers out of its range cannot."""
    if isinstance(number, bool) or not isinstance(number, (int, float)) or number != number:
        return False
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return limits.min <= number <= limits.max and number == int(number)
    with np.errstate(over="ignore"):
        return float(dtype.type(number)) == float(number)


def unpack(values: npt.NDArray[Any], packing: Packing, dtype: str) -> npt.NDArray[Any]:
    """Stored numbers as floating values, missing ones as NaN."""
    wanted = np.dtype(dtype)
    result = packing.meant(values).astype(wanted)
    if packing.scale != 1.0:
        result *= wanted.type(packing.scale)
    if packing.offset != 0.0:
        result += wanted.type(packing.offset)
    missing = packing.missing(values)
    if missing is not None:
        result[missing] = np.nan
    return result


def unpacked_dtype(dtype: str, attributes: Mapping[str, Any]) -> str:
    """The floating type of unpacked values in tables: single precision for small integers without an offset."""
    numpy_type = np.dtype(dtype)
    if numpy_type.kind == "f":
        return numpy_type.newbyteorder("<").str
    return "<f8" if numpy_type.itemsize > 2 or "add_offset" in attributes else "<f4"


def decoded_dtype(dtype: str, attributes: Mapping[str, Any]) -> str:
    """The type in which xarray decodes packed numbers, or numbers of which some are missing.

    The attributes are a file's own: the type of `scale_factor` and `add_offset` decides.

    >>> decoded_dtype("<i2", {"scale_factor": np.float32(0.5)}), decoded_dtype("<i2", {"scale_factor": 0.5})
    ('<f4', '<f8')
    >>> decoded_dtype("<i2", {}), decoded_dtype("<i4", {})
    ('<f4', '<f8')
    """
    stored = np.dtype(dtype)
    scale, offset = (
        np.asarray(attributes[n]).dtype if n in attributes else None for n in ("scale_factor", "add_offset")
    )
    if scale is None and offset is None:
        single = stored.itemsize <= 2 if stored.kind in "iu" else stored.itemsize <= 4
        return "<f4" if single else "<f8"
    if scale is not None and offset is not None and scale == offset and scale in (np.float32, np.float64):
        return "<f8" if stored.itemsize == 4 and stored.kind in "iu" else scale.newbyteorder("<").str
    return "<f4" if offset is None and scale == np.float32 else "<f8"


def halve(
    values: npt.NDArray[Any], axes: tuple[int, int], method: str, attributes: Mapping[str, Any], dtype: str
) -> npt.NDArray[Any]:
    """Cells of 2 × 2 cells each. The last row and column of an odd number are alone."""
    if method == "nearest":
        return values[tuple(slice(None, None, 2) if axis in axes else slice(None) for axis in range(values.ndim))]
    packing = packing_of(attributes, dtype)
    missing = packing.missing(values)
    wide = values.astype(np.float64)
    if missing is not None:
        wide[missing] = np.nan
    wide = np.pad(
        wide, [(0, n % 2 if axis in axes else 0) for axis, n in enumerate(wide.shape)], constant_values=np.nan
    )
    split: list[int] = []
    inner: list[int] = []
    for axis, length in enumerate(wide.shape):
        split += [length // 2, 2] if axis in axes else [length]
        if axis in axes:
            inner.append(len(split) - 1)
    with warnings.catch_warnings():
        # A cell without any value is missing.
        warnings.simplefilter("ignore", RuntimeWarning)
        function: Any = {"mean": np.nanmean, "min": np.nanmin, "max": np.nanmax}[method]
        result = function(wide.reshape(split), axis=tuple(inner))
    if packing.fills and packing.fill == packing.fill:
        result = np.where(np.isnan(result), packing.fill, result)
    return np.asarray(result).astype(dtype)


def whole_nanoseconds(values: npt.NDArray[Any], unit_ns: int) -> npt.NDArray[np.int64]:
    """Times as whole nanoseconds."""
    if values.dtype.kind in "mM":
        return values.astype(f"{values.dtype.kind}8[ns]").astype(np.int64)
    scaled = values.astype(np.float64) * unit_ns
    if not np.isfinite(scaled).all() or (np.abs(scaled) >= 2.0**62).any():
        raise InvalidInputError("reference times and steps must be numbers within 140 years of the units' date")
    if values.dtype.kind in "iu":
        return values.astype(np.int64) * np.int64(unit_ns)
    # Fractions of hours are rounded to the microsecond, which is finer than any forecast.
    return np.rint(scaled / 1000).astype(np.int64) * 1000
