"""Where a verb writes: text for people, JSON for machines, remarks on standard error."""

from __future__ import annotations

import datetime as dt
import enum
import json
import sys
from collections.abc import Collection, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_PIPE_WIDTH = 400
"""Columns for output that goes to a file or pipe, where cutting lines to a screen would lose what is searched for."""


def stdout() -> Console:
    """The console of a verb's result; no colours and no cutting when it is not a terminal."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def stderr() -> Console:
    """The console of remarks and errors."""
    return Console(file=sys.stderr, highlight=False)


def print_json(value: Any) -> None:
    """One JSON document for machines; times are ISO 8601 in UTC."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def table(*columns: str, right: Collection[str] = ()) -> Table:
    """An empty table with light rules; the columns in `right` hold numbers."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name in right, overflow="fold")
    return made
