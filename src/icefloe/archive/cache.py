"""A cache by bytes whose misses are loaded once, also when several event loops ask at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Least recently used values up to a number of bytes; a value larger than all of it is not kept."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.hits = 0
        self.misses = 0
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        # Loads in flight, per event loop: a future must not be awaited on another loop than its own.
        self._loading: dict[tuple[int, K], asyncio.Future[V]] = {}

    async def get(self, key: K, load: Callable[[], Awaitable[tuple[V, int]]]) -> V:
        """The value of a key; `load` returns it with its size when it is not held."""
        with self._lock:
            if key in self._held:
                self.hits += 1
                self._held.move_to_end(key)
                return self._held[key][0]
            self.misses += 1
        loop = asyncio.get_running_loop()
        slot = (id(loop), key)
        waiting = self._loading.get(slot)
        if waiting is not None:
            return await asyncio.shield(waiting)
        task = asyncio.ensure_future(self._load(key, load))
        self._loading[slot] = task
        task.add_done_callback(lambda done: self._forget_load(slot, done))
        return await asyncio.shield(task)

    def _forget_load(self, slot: tuple[int, K], done: asyncio.Future[Any]) -> None:
        self._loading.pop(slot, None)
        if not done.cancelled():
            done.exception()  # every waiter raised it already; a load nobody waits for any more must not warn

    async def _load(self, key: K, load: Callable[[], Awaitable[tuple[V, int]]]) -> V:
        value, size = await load()
        self.put(key, value, size)
        return value

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value that is already here."""
        if size > self.limit_bytes:
            return
        with self._lock:
            self._discard(key)
            self._held[key] = (value, size)
            self._bytes += size
            while self._bytes > self.limit_bytes:
                oldest = next(iter(self._held))
                self._discard(oldest)

    def drop(self, key: K) -> None:
        """Forget a value."""
        with self._lock:
            self._discard(key)

    def _discard(self, key: K) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._bytes -= held[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return ByteCache, (self.limit_bytes,)
