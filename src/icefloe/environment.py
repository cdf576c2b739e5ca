"""Time, randomness and the background event loop as the engine sees them: the system's, or those of a simulation.

The engine asks here instead of the standard library wherever the answer decides what is written. A simulation puts
values of its own in force for the tasks it starts; everybody else gets the system's.
"""

from __future__ import annotations

import datetime as dt
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def _system_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@dataclass(frozen=True, slots=True)
class Environment:
    """What a process gets from the machine it runs on."""

    now: Callable[[], dt.datetime] = _system_now
    """The wall clock, in UTC."""
    monotonic: Callable[[], float] = time.monotonic
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    """Bytes that nobody can guess; ids are made of them."""
    loop: asyncio.AbstractEventLoop | None = None
    """The loop for work in the background, if it is not the library's own thread."""


SYSTEM = Environment()
_CURRENT: ContextVar[Environment] = ContextVar("icefloe_environment", default=SYSTEM)


def current_environment() -> Environment:
    """The environment of the running task."""
    return _CURRENT.get()


def current_time() -> dt.datetime:
    """The present time by the clock of this process, in UTC."""
    return _CURRENT.get().now()


def monotonic_time() -> float:
    """Seconds of a clock that never goes back."""
    return _CURRENT.get().monotonic()


def random_bytes(count: int) -> bytes:
    """So many random bytes."""
    return _CURRENT.get().random_bytes(count)


def adopt(environment: Environment) -> None:
    """Put an environment in force for the rest of the running task, and for the tasks that it starts."""
    _CURRENT.set(environment)


@contextmanager
def using(environment: Environment) -> Iterator[None]:
    """Put an environment in force for this block and for the tasks that are started in it."""
    token = _CURRENT.set(environment)
    try:
        yield
    finally:
        _CURRENT.reset(token)
