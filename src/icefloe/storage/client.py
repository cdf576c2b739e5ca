"""The connections of a process to a remote place."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from icefloe.blocking import fork_safe_lock
from icefloe.errors import UnsupportedError
from icefloe.storage.places import Place
from icefloe.storage.retries import NO_RETRIES, RetryPolicy
from icefloe.storage.translate import Translating

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_used_in_process = 0


class Client:
    """The connections to a place; made when first used, in each process anew."""

    def __init__(self, place: Place, retries: RetryPolicy) -> None:
        self.place = place
        self.retries = retries
        self._lock = fork_safe_lock()
        self._patient: ObjectStore | None = None
        self._once: ObjectStore | None = None
        self.unsorted = place.traits.sorts is False

    def patient(self) -> ObjectStore:
        """Repeats what failed for a moment."""
        if self._patient is None or _used_in_process != os.getpid():
            self._connect()
        assert self._patient is not None
        return self._patient

    def once(self) -> ObjectStore:
        """Repeats nothing: a conditional write must know about each of its tries."""
        if self._once is None or _used_in_process != os.getpid():
            self._connect()
        assert self._once is not None
        return self._once

    def _connect(self) -> None:
        global _used_in_process
        with self._lock:
            if _used_in_process not in (0, os.getpid()):
                # The threads that carry requests are not there in a forked child, which would wait for ever.
                raise UnsupportedError(
                    f"{self.place.url} cannot be used in a process that was forked after its parent had used an object "
                    "store; start workers with the 'spawn' or 'forkserver' method"
                )
            _used_in_process = os.getpid()
            with Translating("connect", "", self.place.url):
                self._patient = self.place.connect(self.retries)
                self._once = self.place.connect(NO_RETRIES)
