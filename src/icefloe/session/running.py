"""The writable sessions and forks of this process: what garbage collection can see of writers that are under way."""

from __future__ import annotations

import datetime as dt
import weakref
from typing import Any

from icefloe.environment import current_time
from icefloe.storage.contract import Storage

_RUNNING: weakref.WeakKeyDictionary[Any, tuple[str, dt.datetime]] = weakref.WeakKeyDictionary()


def note_running(session: Any, storage: Storage, since: dt.datetime | None = None) -> None:
    """Remember that a session may write, from now on or since a time."""
    _RUNNING[session] = (storage.url, since or current_time())


def oldest_running(storage: Storage) -> dt.datetime | None:
    """When the oldest session or fork of this process that may hold uncommitted chunks of a storage began."""
    started = [since for session, (url, since) in list(_RUNNING.items()) if url == storage.url and session.is_running]
    return min(started, default=None)
