"""JSON that every reader accepts: compact UTF-8, non-finite floats as text; and reading it with one kind of error."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any

from icefloe.errors import FormatError

Json = Any

SMALL_FILE_BYTES = 4 << 20
"""What a ref or a configuration may have: far more than any needs."""


def dump_json(value: Json) -> bytes:
    """Compact JSON; NaN and the infinities become text, lone surrogates stay escaped."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(finite_json(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(finite_json(value), separators=(",", ":"), allow_nan=False).encode()


def load_json(data: bytes, what: str) -> Json:
    """Parsed JSON; FormatError that names the file otherwise."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{what} is not valid JSON: {error}") from error


def load_object(data: bytes, what: str, most_bytes: int | None = None) -> dict[str, Json]:
    """A parsed JSON object; FormatError otherwise, and when it has more than `most_bytes`."""
    if most_bytes is not None and len(data) > most_bytes:
        raise FormatError(f"{what} has {len(data)} bytes; allowed: at most {most_bytes}")
    parsed = load_json(data, what)
    if not isinstance(parsed, dict):
        raise FormatError(f"{what} must be a JSON object, found {type(parsed).__name__}")
    return parsed


def dump_time(moment: dt.datetime) -> str:
    """RFC 3339 text in UTC, to the microsecond."""
    return moment.astimezone(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def load_time(text: Json, what: str) -> dt.datetime:
    """A time from RFC 3339 text; digits beyond microseconds are cut."""
    try:
        moment = dt.datetime.fromisoformat(text)
        return moment.astimezone(dt.UTC) if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(f"{what} is not an RFC 3339 time: {str(text)[:80]!r}") from error


def finite_json(value: Json) -> Json:
    """The value with NaN and the infinities as text, as it comes back from dump_json."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: finite_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(item) for item in value]
    return value
