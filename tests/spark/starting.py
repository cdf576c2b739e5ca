"""A start of Spark that takes as long as a test wants."""

from __future__ import annotations

from concurrent.futures import Future


class StartedAfter(Future[None]):
    """Something that has started after so many questions."""

    def __init__(self, questions: int) -> None:
        super().__init__()
        self._left = questions

    def done(self) -> bool:
        self._left -= 1
        return self._left < 0
