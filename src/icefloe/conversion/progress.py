"""Tells how far a conversion has come."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""Called with the name of a stage, how many of its steps are done, and how many there are."""


class Progress:
    """Counts the steps of one stage after the other."""

    def __init__(self, report: Report | None = None) -> None:
        self._report = report

    def start(self, stage: str, total: int) -> Callable[[int], None]:
        """Begin a stage; the returned function counts its steps."""
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if self._report is not None:
                self._report(stage, done, total)

        advance(0)
        return advance
