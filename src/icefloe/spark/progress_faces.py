"""How progress looks: a bar in terminals and notebooks, a line of text in notebooks that cannot draw bars."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from icefloe.errors import printable
from icefloe.spark.progress import JobMeter

Show = Callable[[int], None]
"""Told how many tasks are done."""


@contextmanager
def progress_face(meter: JobMeter) -> Iterator[Show | None]:
    """A way to show how many tasks are done while the block runs; None where nobody looks."""
    console = Console(stderr=True)
    visible = console.is_terminal or console.is_jupyter if meter.shown is None else meter.shown
    if not visible:
        yield None
    elif console.is_jupyter and importlib.util.find_spec("ipywidgets") is None:
        with _line(meter) as show:
            yield show
    else:
        with _bar(console, meter) as show:
            yield show


@contextmanager
def _bar(console: Console, meter: JobMeter) -> Iterator[Show]:
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[amount]}", markup=False), TimeRemainingColumn(), TimeElapsedColumn(),
        # A finished bar stays on the screen where it says more than that its one task is done.
        console=console, transient=meter.tasks == 1,
    )  # fmt: skip
    with bar:
        task = bar.add_task(printable(meter.description), total=meter.tasks, amount=meter.amount(0))
        yield lambda done: bar.update(task, completed=done, amount=meter.amount(done))


@contextmanager
def _line(meter: JobMeter) -> Iterator[Show]:
    """One line that is written over: notebooks draw bars only with the package ipywidgets."""
    started = time.monotonic()

    def show(done: int) -> None:
        passed = time.monotonic() - started
        left = f", about {passed * (meter.tasks - done) / done:,.0f} s left" if 0 < done < meter.tasks else ""
        parts = (f"{done:,}/{meter.tasks:,} tasks", meter.amount(done), f"{passed:,.0f} s{left}")
        text = f"{printable(meter.description)}: {', '.join(part for part in parts if part)}"
        sys.stderr.write(f"\r{text:<100}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\n")
