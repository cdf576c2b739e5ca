"""Output with rich: consoles, tables and progress bars."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from icefloe.errors import printable

_PIPE_WIDTH = 400
"""Columns for output to a file or pipe. Lines are not cut to the width of a screen, so that `grep` finds everything."""


_ASCII = str.maketrans(
    {
        **dict.fromkeys("─━╌", "-"),
        **dict.fromkeys("│├┤╎", "|"),
        **dict.fromkeys("┼┴┬└┘┌┐", "+"),
        **dict.fromkeys("╮╰", "\\"),
        **dict.fromkeys("╯╭", "/"),
        "●": "*",
        "○": "o",
        "⋮": ":",
        "…": "...",
        "→": "->",
        "×": "x",
        "·": ".",
        "−": "-",
    }
)
"""Characters of drawings and tables on terminals that know only ASCII."""


class _SafeConsole(Console):
    """A console for text from repositories. It writes no control characters of the text to the terminal.

    It does not interpret text as markup. Use `styled` for markup.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        plain = "utf" not in self.encoding
        for each in super().render(renderable, options):
            segment = Segment(each.text.translate(_ASCII), each.style, each.control) if plain else each
            if segment.control or segment.text.isprintable() or segment.text == "\n":
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def stdout() -> Console:
    """The console for results. Output to a file or pipe has no colours and no width limit."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return _SafeConsole(file=sys.stdout, highlight=False, markup=False, emoji=False, width=width)


def stderr() -> Console:
    """The console for messages and errors."""
    return _SafeConsole(file=sys.stderr, highlight=False, markup=False, emoji=False)


def styled(markup: str) -> Text:
    """A text from rich markup. The markup must not contain text from a repository."""
    return Text.from_markup(markup, emoji=False)


def facts_grid(rows: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> Table:
    """Labels with values, one below the other."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, pieces in rows:
        grid.add_row(label, Text.assemble(*pieces))
    return grid


def table(*columns: str, right: Collection[str] = ()) -> Table:
    """An empty table. The columns in `right` are aligned to the right."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name in right, overflow="fold")
    return made


T = TypeVar("T")
_WORTH_A_BAR = 16


def progress(items: Iterable[T], label: str, total: int) -> Iterator[T]:
    """Iterate over the items. A progress bar is shown on a terminal if there are many."""
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
    """Progress bars on standard error, one for each stage."""

    def __init__(self) -> None:
        self._progress = _display(stderr())
        self._tasks: dict[str, TaskID] = {}

    def report(self, stage: str, done: int, total: int) -> None:
        """Update the bar of a stage. A total of 0 means that the total is unknown."""
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
