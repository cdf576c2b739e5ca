"""A cache by bytes whose misses are loaded once, also when several event loops ask at the same time."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

from icefloe.blocking import blocking_loop, fork_safe_lock, tell_after_fork

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
        # Reentrant: a load that ends at once is forgotten while it is being noted.
        self._lock = fork_safe_lock()
        self._loading: dict[K, concurrent.futures.Future[V]] = {}
        self._loads: dict[K, object] = {}
        """The load under way whose value may be kept, per key; one that began before `renew` did may not."""
        tell_after_fork(self)

    def after_fork(self) -> None:
        """Load again what the parent was loading: in a forked child, nobody is at it."""
        self._loading = {}
        self._loads = {}
        # Another thread of the parent may have been between keeping a value and counting its bytes.
        self._bytes = sum(size for _, size in self._held.values())

    async def get(self, key: K, load: Callable[[], Awaitable[tuple[V, int]]]) -> V:
        """The value of a key; `load` returns it with its size when it is not held."""
        with self._lock:
            if key in self._held:
                self.hits += 1
                self._held.move_to_end(key)
                return self._held[key][0]
            self.misses += 1
            loading = self._loading.get(key)
            if loading is None:
                # Loads run on this library's own loop: one that a caller blocks could keep others waiting for ever.
                token = self._loads[key] = object()
                loading = asyncio.run_coroutine_threadsafe(self._load(key, load, token), blocking_loop())
                self._loading[key] = loading
                loading.add_done_callback(lambda done: self._forget_load(key, done))
        return await asyncio.shield(asyncio.wrap_future(loading))

    def _forget_load(self, key: K, done: concurrent.futures.Future[V]) -> None:
        with self._lock:
            if self._loading.get(key) is done:
                del self._loading[key]

    async def renew(self, key: K, load: Callable[[], Awaitable[tuple[V, int]]]) -> V:
        """The value of a key as it is now, whatever is held; it is held from then on."""
        with self._lock:
            self.misses += 1
            token = self._loads[key] = object()
        return await self._load(key, load, token)

    async def _load(self, key: K, load: Callable[[], Awaitable[tuple[V, int]]], token: object) -> V:
        try:
            value, size = await load()
            with self._lock:
                if self._loads.get(key) is token:
                    self.put(key, value, size)
        finally:
            with self._lock:
                if self._loads.get(key) is token:
                    del self._loads[key]
        return value

    def holds(self, key: K) -> bool:
        """Whether a value is here, or on its way."""
        with self._lock:
            return key in self._held or key in self._loading

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
        """Forget a value, also one that is on its way."""
        with self._lock:
            self._loads.pop(key, None)
            self._discard(key)

    def _discard(self, key: K) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._bytes -= held[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return ByteCache, (self.limit_bytes,)
