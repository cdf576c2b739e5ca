"""How many requests and bytes a storage was asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from icefloe.blocking import fork_safe_lock
from icefloe.storage.contract import Storage
from icefloe.storage.wrapped import WRITES, Operation, WrappedStorage, received_bytes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Count:
    """Requests of one method, and the content they carried; failed ones count too."""

    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.requests + other.requests,
            self.sent_bytes + other.sent_bytes,
            self.received_bytes + other.received_bytes,
        )


@dataclass(slots=True)
class Counts:
    """Counts by method, shared by a storage and its children; counted in this process only."""

    by_method: dict[str, Count] = field(default_factory=dict)
    _lock: Any = field(default_factory=fork_safe_lock, repr=False)

    def add(self, method: str, count: Count) -> None:
        with self._lock:
            self.by_method[method] = self.by_method.get(method, Count()) + count

    def reset(self) -> None:
        """Start again from nothing."""
        with self._lock:
            self.by_method.clear()

    def of(self, *methods: str) -> Count:
        """The sum of some methods, of all when none is named."""
        chosen = methods or tuple(self.by_method)
        return sum((self.by_method.get(method, Count()) for method in chosen), Count())

    @property
    def total(self) -> Count:
        return self.of()

    @property
    def writes(self) -> Count:
        return self.of(*WRITES)

    def __reduce__(self) -> tuple[Any, ...]:
        return Counts, ()


class CountingStorage(WrappedStorage):
    """Counts what passes; a listing counts one request a page."""

    def __init__(self, inner: Storage, counts: Counts | None = None) -> None:
        super().__init__(inner)
        self.counts = counts or Counts()

    async def _pass(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        received = 0
        try:
            answer = await call()
            received = received_bytes(answer)
        finally:
            self.counts.add(operation.method, Count(1, operation.sent_bytes, received))
        return answer

    def _around(self, inner: Storage) -> Storage:
        return CountingStorage(inner, self.counts)
