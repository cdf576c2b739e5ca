"""How far a long piece of maintenance is, told to whoever listens.

The listener belongs to the running task and everything it starts, so that no function in between has to hand it on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Report: TypeAlias = Callable[[str, int, int], None]
"""Called with a stage, how much of it is done, and how much there is; 0 where nobody knows."""

_listener: ContextVar[Report | None] = ContextVar("icefloe_maintenance_progress", default=None)


@contextmanager
def listening(report: Report | None) -> Iterator[None]:
    """Tell this listener what is done in the block; None leaves the one that is listening already."""
    if report is None:
        yield
        return
    token = _listener.set(report)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(stage: str, done: int, total: int = 0) -> None:
    """Tell the listener, if there is one, how far a stage is."""
    report = _listener.get()
    if report is not None:
        report(stage, done, total)


async def telling(stage: str, results: AsyncIterator[T], total: int) -> AsyncIterator[T]:
    """The results as they come, each told."""
    done = 0
    if total:
        tell(stage, 0, total)
    async for result in results:
        yield result
        done += 1
        tell(stage, done, total)
