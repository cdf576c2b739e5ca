"""A storage with delays for tests, as `icechunk.testing`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from icefloe.icechunk.storage import Storage
from icefloe.storage import contract as engine
from icefloe.storage.wrappers import WRITES, Operation, WrappedStorage

T = TypeVar("T")


class LatencyStorage(WrappedStorage, Storage):
    """A storage that waits before each request, as a store far away does.

    Parameters
    ----------
    inner
        The storage that carries the requests out.
    write_latency_ms
        The wait before a request that writes.
    read_latency_ms
        The wait before a request that reads.
    """

    write_latency_ms: int
    read_latency_ms: int

    def __init__(self, inner: engine.Storage, *, write_latency_ms: int = 0, read_latency_ms: int = 0) -> None:
        super().__init__(inner)
        self.write_latency_ms = write_latency_ms
        self.read_latency_ms = read_latency_ms

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        latency_ms = self.write_latency_ms if operation.method in WRITES else self.read_latency_ms
        if latency_ms:
            await asyncio.sleep(latency_ms / 1000)
        return await call()

    def _rewrap(self, inner: engine.Storage) -> engine.Storage:
        return LatencyStorage(inner, write_latency_ms=self.write_latency_ms, read_latency_ms=self.read_latency_ms)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.inner, self.write_latency_ms, self.read_latency_ms)


def _rebuild(inner: engine.Storage, write_latency_ms: int, read_latency_ms: int) -> LatencyStorage:
    return LatencyStorage(inner, write_latency_ms=write_latency_ms, read_latency_ms=read_latency_ms)


__all__ = ["LatencyStorage"]
