"""The threads that wait for disks and servers, so that event loops need not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """A pool that is made when first used, and anew in a forked child, where its threads are gone."""

    def __init__(self, name: str, workers: int) -> None:
        self._name = name
        self._workers = workers
        self._pool: ThreadPoolExecutor | None = None
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._pool = None

    async def run(self, call: Callable[[], T]) -> T:
        """The answer of a blocking call."""
        return await asyncio.get_running_loop().run_in_executor(self._started(), call)

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """A call that was begun, for those who have no event loop."""
        return self._started().submit(call, *arguments)

    def _started(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix=f"icefloe-{self._name}")
        return self._pool


FILES = Threads("files", min(32, 4 + 2 * (os.cpu_count() or 1)))
DELETIONS = Threads("deletions", 16)
"""A busy disk lets each deletion wait a while, but lets many wait at the same time."""
REQUESTS = Threads("requests", 64)
"""Blocking requests in our threads rather than obstore's coroutines: those end on threads that Python does not know,
and a process that exits at that moment is aborted."""

SYNCS = Threads("syncs", 8)
"""Files are synced at the same time, because the system then writes its journal once for several of them."""
