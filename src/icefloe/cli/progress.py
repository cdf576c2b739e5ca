"""Progress of long work, on standard error where it is a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from icefloe.cli.output import stderr

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
