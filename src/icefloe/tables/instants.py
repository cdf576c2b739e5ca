"""Times as people write them, in conditions and options."""

from __future__ import annotations

import datetime as dt
import re
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_STAMP = re.compile(
    r"^(\d{4})-(\d{1,2})(?:-(\d{1,2}))?(?:[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6}))?)?)?"
    r"\s*(Z|UTC|[+-]\d{2}:\d{2})?$"
)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def parse_instant(text: str, *, date_only: bool = False) -> dt.datetime | None:
    """An ISO date or time, with its zone when it names one; None when it is written in another way."""
    match = _STAMP.match(text.strip())
    if match is None or (date_only and match[4] is not None):
        return None
    given = zip(match.groups()[:6], (1, 1, 1, 0, 0, 0), strict=True)
    year, month, day, hour, minute, second = (int(part) if part else default for part, default in given)
    micro = int((match[7] or "0").ljust(6, "0"))
    try:
        moment = dt.datetime(year, month, day, hour, minute, second, micro)  # noqa: DTZ001 - the zone follows
    except ValueError:
        return None
    return moment if match[8] is None else moment.replace(tzinfo=_zone(match[8]))


def _zone(text: str) -> dt.tzinfo:
    if text in ("Z", "UTC"):
        return dt.UTC
    sign = -1 if text[0] == "-" else 1
    return dt.timezone(sign * dt.timedelta(hours=int(text[1:3]), minutes=int(text[4:6])))


def session_zone(name: str) -> dt.tzinfo | None:
    """The zone of a session by its name; None when it is not known here."""
    if name.upper() in ("UTC", "Z", "GMT", "ETC/UTC"):
        return dt.UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return None


def to_microseconds(moment: dt.datetime, zone: dt.tzinfo) -> int:
    """Microseconds since 1970; a time without a zone is meant in the given one."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
    return (aware - _EPOCH) // dt.timedelta(microseconds=1)
