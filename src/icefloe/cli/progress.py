"""Progress of long work, on standard error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from icefloe.cli.output import stderr

T = TypeVar("T")
_WORTH_A_BAR = 16


def progress(items: Iterable[T], label: str, total: int) -> Iterator[T]:
    """The items, with a bar on standard error where it is a terminal and they are many."""
    console = stderr()
    if not console.is_terminal or total < _WORTH_A_BAR:
        yield from items
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield from bar.track(items, total=total, description=label)
