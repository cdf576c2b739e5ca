"""Output of commands without rich: JSON documents, text from a repository, and the facts of `info`.

Importing rich takes a noticeable part of the time of a short command. Commands that print tables use `console`.
"""

from __future__ import annotations

import datetime as dt
import enum
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from icefloe.errors import printable
from icefloe.model.snapshot import SnapshotInfo


def write_text(text: str) -> None:
    """Write text from a repository unchanged. On a terminal, control characters are escaped."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def print_json(value: Any) -> None:
    """Print one JSON document. Times are ISO 8601 in UTC."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_plain)
    # The document stays the same. json.dumps escapes only the control characters below a space.
    sys.stdout.write(_UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found.group()):04x}", text) + "\n")


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
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def commit_json(info: SnapshotInfo) -> dict[str, Any]:
    """A commit as JSON."""
    return {
        "id": info.id,
        "parent_id": info.parent_id,
        "written_at": info.written_at,
        "message": info.message,
        "metadata": dict(info.metadata),
    }


Pieces = Sequence[tuple[str, str]]
"""Texts with their styles of rich. An empty style is plain text."""


def print_facts(rows: Sequence[tuple[str, Pieces]]) -> None:
    """Print labels with values, one below the other. Only a terminal gets styles."""
    if sys.stdout.isatty() or os.environ.get("FORCE_COLOR"):
        from icefloe.cli.console import facts_grid, stdout  # noqa: PLC0415 - see above: rich only for terminals

        stdout().print(facts_grid(rows))
        return
    width = max(len(label) for label, _ in rows)
    for label, pieces in rows:
        for number, line in enumerate("".join(text for text, _ in pieces).split("\n")):
            sys.stdout.write(f"{'' if number else label:<{width}}  {printable(line)}\n")
