"""Arguments and answers that the verbs of maintenance share."""

from __future__ import annotations

import datetime as dt
import re
from typing import Annotated

import typer

DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show the plan, change nothing.")]
WorkBranch = Annotated[str, typer.Option("--branch", "-b", metavar="NAME", help="The branch to work on.")]
ArrayPattern = Annotated[str, typer.Option("--arrays", metavar="PATTERN", help="Paths of arrays; * is anything.")]
ChunkBox = Annotated[
    str | None, typer.Option("--region", metavar="0:4,2:8", help="Chunks in this box of the chunk grid.")
]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")


def parse_age(text: str) -> dt.datetime | dt.timedelta:
    """A time span such as `12h`, `30d` or `2w`, or a time in ISO 8601 with its time zone."""
    span = _SPAN.fullmatch(text.strip())
    if span is not None:
        return dt.timedelta(seconds=float(span.group(1)) * _UNITS[span.group(2)])
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is neither a span (12h, 30d, 2w) nor a time (2024-05-01T12:00Z)") from error
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no time zone; write {text}Z for UTC, or an offset such as +09:00")
    return moment


def parse_span(text: str) -> dt.timedelta:
    """A time span such as `12h`, `30d` or `2w`."""
    span = parse_age(text)
    if not isinstance(span, dt.timedelta):
        raise typer.BadParameter(f"{text!r} is not a span such as 12h, 30d or 2w")
    return span
