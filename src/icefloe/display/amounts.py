"""Bytes, counts and times as people read them."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence

from icefloe.errors import printable

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SHORTEST_ID = 8


def format_bytes(count: int) -> str:
    """A number of bytes with a binary unit.

    >>> format_bytes(512), format_bytes(1536), format_bytes(5 << 30)
    ('512 B', '1.5 KiB', '5.0 GiB')
    """
    if abs(count) < 1024:
        return f"{count} B"
    value = float(count)
    for unit in _UNITS:
        value /= 1024
        if abs(value) < 1023.95 or unit == _UNITS[-1]:
            break
    return f"{value:.1f} {unit}"


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> format_count(1, "chunk"), format_count(12000, "chunk"), format_count(2, "branch", "branches")
    ('1 chunk', '12,000 chunks', '2 branches')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def format_time(moment: dt.datetime) -> str:
    """A time to the second, in UTC."""
    return f"{moment.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"


def short_length(ids: Sequence[str]) -> int:
    """How many first characters tell these ids apart."""
    ordered = sorted(set(ids))
    shared = (_shared(a, b) + 1 for a, b in itertools.pairwise(ordered))
    return max(_SHORTEST_ID, *shared, 0)


def _shared(a: str, b: str) -> int:
    length = 0
    for x, y in zip(a, b):
        if x != y:
            break
        length += 1
    return length


def first_line(message: str, width: int = 72) -> str:
    """The first line of a message, cut to a width."""
    line = printable(message).strip().partition("\n")[0].strip()
    return line if len(line) <= width else line[: width - 1] + "…"
