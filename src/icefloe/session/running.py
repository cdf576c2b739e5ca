"""The writable sessions and forks of this process: what garbage collection can see of writers that are under way.

A writer is as old as the clocks of its own process say. Garbage collection needs to know when the writer began by the
clock of the store, because the store gives objects their times. It subtracts the age of the writer from the present
time of the store, so that the two clocks are never compared with each other.
"""

from __future__ import annotations

import datetime as dt
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from icefloe.environment import current_time, monotonic_time
from icefloe.storage.contract import Storage


@dataclass(frozen=True, slots=True)
class WriterStart:
    """When a session or fork began to write, on both clocks of this process.

    The wall clock may be set back meanwhile. The other one stands still while the machine sleeps. The age is the larger
    of the two differences: a writer that seems too old is seen, one that seems too young might be missed.
    """

    wall: dt.datetime = field(default_factory=current_time)
    monotonic: float = field(default_factory=monotonic_time)

    def age(self) -> dt.timedelta:
        """How long ago it was."""
        return max(current_time() - self.wall, dt.timedelta(seconds=monotonic_time() - self.monotonic))

    def __reduce__(self) -> tuple[Callable[..., WriterStart], tuple[dt.datetime, float]]:
        return _arrived, (self.wall, self.age().total_seconds())


def _arrived(wall: dt.datetime, age_seconds: float) -> WriterStart:
    """The start of a writer that was sent to this process: its monotonic clock is another one."""
    return WriterStart(wall, monotonic_time() - age_seconds)


_RUNNING: weakref.WeakKeyDictionary[Any, tuple[str, WriterStart]] = weakref.WeakKeyDictionary()


def note_running(session: Any, storage: Storage, since: WriterStart | None = None) -> None:
    """Remember that a session may write, from now on or since a time."""
    _RUNNING[session] = (storage.url, since or WriterStart())


def oldest_running(storage: Storage) -> dt.timedelta | None:
    """The age of the oldest session or fork of this process that may hold uncommitted chunks of a storage."""
    ages = [
        since.age() for session, (url, since) in list(_RUNNING.items()) if url == storage.url and session.is_running
    ]
    return max(ages, default=None)
