"""Times in the official generations: microseconds since 1970, each commit strictly later than its parent."""

from __future__ import annotations

import datetime as dt

from icefloe.environment import current_time
from icefloe.errors import FormatError

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LAST = (dt.datetime.max.replace(tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)


def to_microseconds(time: dt.datetime) -> int:
    """A time as the files keep it; a naive one is taken as UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=dt.UTC)
    return (time - _EPOCH) // dt.timedelta(microseconds=1)


def from_microseconds(microseconds: int) -> dt.datetime:
    """A time of a file, in UTC."""
    if not 0 <= microseconds <= _LAST:
        raise FormatError(f"a file says it was written {microseconds} microseconds after 1970, which no calendar has")
    return _EPOCH + dt.timedelta(microseconds=microseconds)


def later_than(previous: dt.datetime | None, now: dt.datetime | None = None) -> dt.datetime:
    """When to say that a commit was written: now, but at least a microsecond after its parent.

    Official libraries refuse to commit a snapshot that is not later than its parent.
    """
    now = now or current_time()
    return now if previous is None or now > previous else previous + dt.timedelta(microseconds=1)
