"""The writable sessions of this process: what garbage collection can see of writers that are under way."""

from __future__ import annotations

import datetime as dt
import weakref
from typing import Any

from icefloe.environment import current_time
from icefloe.storage.contract import Storage

_RUNNING: weakref.WeakKeyDictionary[Any, tuple[str, dt.datetime]] = weakref.WeakKeyDictionary()


def note_running(session: Any, storage: Storage) -> None:
    """Remember that a session may write from now on."""
    _RUNNING[session] = (storage.url, current_time())


def oldest_running(storage: Storage) -> dt.datetime | None:
    """When the oldest session with uncommitted changes began, among those of this process and storage."""
    started = [
        since
        for session, (url, since) in list(_RUNNING.items())
        if url == storage.url and not session.read_only and session.has_uncommitted_changes
    ]
    return min(started, default=None)
