"""Which requests fetch many ranges of one object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icefloe.errors import InvalidInputError

DEFAULT_GAP_BYTES = 1 << 20
DEFAULT_REQUEST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """One request, and which of the wanted ranges it serves."""

    start: int
    end: int
    serves: tuple[int, ...]


def check_range(start: int, end: int) -> None:
    """Refuse what is no range."""
    if start < 0 or end < start:
        raise InvalidInputError(f"[{start}, {end}) is no range of bytes: 0 <= start <= end is asked for")


def plan_requests(
    starts: Sequence[int],
    ends: Sequence[int],
    *,
    gap_bytes: int = DEFAULT_GAP_BYTES,
    request_bytes: int = DEFAULT_REQUEST_BYTES,
) -> list[RangeRequest]:
    """Near ranges share a request, unless it grows beyond `request_bytes`; empty ranges need none."""
    if len(starts) != len(ends):
        raise InvalidInputError(f"{len(starts)} starts and {len(ends)} ends do not make ranges")
    requests: list[RangeRequest] = []
    serves: list[int] = []
    low = high = 0
    for index in sorted(range(len(starts)), key=starts.__getitem__):
        start, end = int(starts[index]), int(ends[index])
        check_range(start, end)
        if start == end:
            continue
        if serves and start - high <= gap_bytes and max(high, end) - low <= request_bytes:
            high = max(high, end)
            serves.append(index)
            continue
        if serves:
            requests.append(RangeRequest(low, high, tuple(serves)))
        low, high, serves = start, end, [index]
    if serves:
        requests.append(RangeRequest(low, high, tuple(serves)))
    return requests
