"""Output of verbs: tables and text for people, JSON for machines, progress and remarks on standard error."""

from __future__ import annotations

import datetime as dt
import enum
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from icefloe.errors import printable

_PIPE_WIDTH = 400
"""Columns for output that goes to a file or pipe, where cutting lines to a screen would lose what is searched for."""


class _SafeConsole(Console):
    """A console for texts of strangers: no control character of theirs reaches the terminal.

    Texts are not read as markup either. Use `styled` for markup of our own.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable() or segment.text == "\n":
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def stdout() -> Console:
    """The console of a verb's result; no colours and no cutting when it is not a terminal."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return _SafeConsole(file=sys.stdout, highlight=False, markup=False, emoji=False, width=width)


def stderr() -> Console:
    """The console of remarks and errors."""
    return _SafeConsole(file=sys.stderr, highlight=False, markup=False, emoji=False)


def styled(markup: str) -> Text:
    """A text with markup of rich, which holds nothing of a repository."""
    return Text.from_markup(markup, emoji=False)


def write_text(text: str) -> None:
    """Write a text of a repository as it is laid out; control characters are spelled out on a terminal."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def print_json(value: Any) -> None:
    """One JSON document for machines; times are ISO 8601 in UTC."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_plain)
    # The same document: JSON spells these characters as escapes too, and need not for those below a space only.
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
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def table(*columns: str, right: Collection[str] = ()) -> Table:
    """An empty table with light rules; the columns in `right` hold numbers."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name in right, overflow="fold")
    return made


T = TypeVar("T")
_WORTH_A_BAR = 16


def progress(items: Iterable[T], label: str, total: int) -> Iterator[T]:
    """The items, with a bar on standard error where it is a terminal and they are many."""
    console = stderr()
    if not console.is_terminal or total < _WORTH_A_BAR:
        yield from items
        return
    with _display(console) as bar:
        yield from bar.track(items, total=total, description=label)


def _display(console: Console) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class Bars:
    """A bar for each stage of a piece of work, which reports how far each is."""

    def __init__(self) -> None:
        self._progress = _display(stderr())
        self._tasks: dict[str, TaskID] = {}

    def report(self, stage: str, done: int, total: int) -> None:
        """So much of a stage is done; a total of 0 is one that nobody knows."""
        known = total or None
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=known)
        self._progress.update(self._tasks[stage], completed=done, total=known)

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
