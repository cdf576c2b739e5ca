"""CF conventions: units of time, and values packed into small integers."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.ingest.zarr_documents import parse_fill_attribute

_UNITS_US = {
    "microsecond": 1, "microseconds": 1, "us": 1,
    "millisecond": 10**3, "milliseconds": 10**3, "msec": 10**3, "msecs": 10**3, "ms": 10**3,
    "second": 10**6, "seconds": 10**6, "sec": 10**6, "secs": 10**6, "s": 10**6,
    "minute": 60 * 10**6, "minutes": 60 * 10**6, "min": 60 * 10**6, "mins": 60 * 10**6,
    "hour": 3600 * 10**6, "hours": 3600 * 10**6, "hr": 3600 * 10**6, "hrs": 3600 * 10**6, "h": 3600 * 10**6,
    "day": 86400 * 10**6, "days": 86400 * 10**6, "d": 86400 * 10**6,
}  # fmt: skip
_SINCE = re.compile(r"^\s*(\w+)\s+since\s+(.+?)\s*$", re.IGNORECASE)
_STAMP = re.compile(
    r"^(-?\d{1,4})-(\d{1,2})-(\d{1,2})(?:[T\s]+(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d+))?)?)?"
    r"\s*(Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)?$"
)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_STANDARD = ("standard", "gregorian", "proleptic_gregorian", "")


@dataclass(frozen=True, slots=True)
class TimeUnits:
    """`hours since 2000-01-01` taken apart: microseconds per unit, and the reference instant since 1970."""

    text: str
    calendar: str
    unit_us: int
    reference_us: int


def is_time_units(units: Any) -> bool:
    """Whether a `units` attribute counts time since an instant."""
    return isinstance(units, str) and _SINCE.match(units) is not None


def parse_time_units(units: str, calendar: str = "standard") -> TimeUnits:
    """Take CF time units apart; only calendars that agree with the civil one since 1582."""
    match = _SINCE.match(units)
    if match is None or match[1].lower() not in _UNITS_US:
        raise InvalidInputError(f"{units!r} are not CF time units of a fixed length", units=units)
    if calendar.lower() not in _STANDARD:
        raise UnsupportedError(
            f"times in the calendar {calendar!r} are not converted between units; give every file the same units",
            units=units, calendar=calendar,
        )  # fmt: skip
    stamp = _STAMP.match(match[2])
    if stamp is None:
        raise InvalidInputError(f"the instant {match[2]!r} of the time units {units!r} is not understood", units=units)
    year, month, day, hour, minute, second = (int(g or 0) for g in stamp.groups()[:6])
    try:
        instant = dt.datetime(max(year, 1), month, day, hour, minute, second, tzinfo=dt.UTC)
    except ValueError as error:
        raise InvalidInputError(f"the instant of the time units {units!r} does not exist: {error}") from error
    micro = int((stamp[7] or "0").ljust(6, "0")[:6])
    since = (instant - _EPOCH) // dt.timedelta(microseconds=1) + micro - _zone_us(stamp[8])
    return TimeUnits(units, calendar or "standard", _UNITS_US[match[1].lower()], since)


def _zone_us(zone: str | None) -> int:
    if zone is None or zone in ("Z", "UTC", "GMT"):
        return 0
    digits = zone[1:].replace(":", "")
    hours, minutes = (int(digits[:-2]), int(digits[-2:])) if len(digits) > 2 else (int(digits), 0)
    return (1 if zone[0] == "+" else -1) * (hours * 60 + minutes) * 60 * 10**6


def format_coordinate(value: Any, units: str | None, calendar: str = "standard") -> str:
    """A coordinate as people read it: a time as its date, any other as it is.

    >>> format_coordinate(438383, "hours since 1970-01-01"), format_coordinate(2.5, "m"), format_coordinate(3, None)
    ('2020-01-04 23:00', '2.5', '3')
    """
    if not isinstance(value, (int, float, np.integer, np.floating)):
        return str(value)
    if units is not None and is_time_units(units) and calendar.lower() in _STANDARD:
        told = parse_time_units(units, calendar)
        try:
            moment = _EPOCH + dt.timedelta(microseconds=told.reference_us + float(value) * told.unit_us)
        except (OverflowError, ValueError):
            return f"{value:.15g} ({units})"
        return f"{moment:%Y-%m-%d %H:%M}" if not moment.second else f"{moment:%Y-%m-%d %H:%M:%S}"
    return f"{value:.15g}"


def format_range(first: Any, last: Any, attributes: Mapping[str, Any]) -> str:
    """The ends of a coordinate as people read them."""
    units, calendar = attributes.get("units"), str(attributes.get("calendar", "standard"))
    return " .. ".join(format_coordinate(value, units, calendar) for value in (first, last))


def format_step(step: float, units: str | None) -> str:
    """The distance of neighbours, in the word that their units of time have for it.

    >>> format_step(6, "hours since 1970-01-01"), format_step(1, "days since 2000-01-01"), format_step(0.25, None)
    ('6 hours', '1 day', '0.25')
    """
    match = _SINCE.match(units) if units is not None else None
    if match is None:
        return f"{step:g}"
    return f"{step:g} {match[1].rstrip('s') if step == 1 else match[1]}"


def convert_times(values: npt.NDArray[Any], source: TimeUnits, target: TimeUnits, dtype: str) -> npt.NDArray[Any]:
    """Times in other units; exact, or an error where the target's integers cannot hold them."""
    shift_us = source.reference_us - target.reference_us
    wanted = np.dtype(dtype)
    if values.dtype.kind in "iu":
        micro = values.astype(np.int64) * source.unit_us + shift_us
        if wanted.kind in "iu":
            if bool((micro % target.unit_us).any()):
                raise InvalidInputError(
                    f"times in {source.text!r} are no whole {target.text!r}; choose finer units or a float dtype"
                )
            return (micro // target.unit_us).astype(wanted)
        return (micro / target.unit_us).astype(wanted)
    converted = values.astype(np.float64) * (source.unit_us / target.unit_us) + shift_us / target.unit_us
    if wanted.kind in "iu":
        rounded = np.rint(converted)
        if bool((np.abs(converted - rounded) > 1e-6).any()):
            raise InvalidInputError(
                f"times in {source.text!r} are no whole {target.text!r}; choose finer units or a float dtype"
            )
        return rounded.astype(wanted)
    return converted.astype(wanted)


@dataclass(frozen=True, slots=True)
class Packing:
    """How stored numbers become values: stored * scale + offset, with one stored number for "missing"."""

    scale: float = 1.0
    offset: float = 0.0
    fill: Any = None

    @property
    def is_plain(self) -> bool:
        return self.scale == 1.0 and self.offset == 0.0


def packing_of(attributes: Mapping[str, Any], dtype: str) -> Packing:
    """The packing that a variable's attributes declare."""
    fill = attributes.get("_FillValue", attributes.get("missing_value"))
    if isinstance(fill, list):
        fill = fill[0] if fill else None
    return Packing(
        float(attributes.get("scale_factor", 1.0)),
        float(attributes.get("add_offset", 0.0)),
        None if fill is None else parse_fill_attribute(dtype, fill),
    )


def unpack(values: npt.NDArray[Any], packing: Packing, dtype: str) -> npt.NDArray[Any]:
    """Stored numbers as floating values, missing ones as NaN."""
    wanted = np.dtype(dtype)
    result = values.astype(wanted)
    if packing.scale != 1.0:
        result *= wanted.type(packing.scale)
    if packing.offset != 0.0:
        result += wanted.type(packing.offset)
    if packing.fill is not None and values.dtype.kind in "iuf":
        result[values == values.dtype.type(packing.fill)] = np.nan
    return result


def unpacked_dtype(dtype: str, attributes: Mapping[str, Any]) -> str:
    """The floating type that holds unpacked values: single precision for small integers, as xarray chooses."""
    numpy_type = np.dtype(dtype)
    if numpy_type.kind == "f":
        return numpy_type.newbyteorder("<").str
    if numpy_type.itemsize <= 2 and "add_offset" not in attributes:
        return "<f4"
    return "<f8" if numpy_type.itemsize > 2 or "add_offset" in attributes else "<f4"
