"""Storages for tests: one that fails on command, one that is slow, and one that counts."""

from __future__ import annotations

import asyncio
import enum
import os
import random
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from icefloe.errors import StorageError
from icefloe.storage.contract import Buffer, Storage, Version
from icefloe.storage.remote import ConditionalWrite, look_by_content, write_conditionally
from icefloe.storage.requests import RetryPolicy
from icefloe.storage.wrappers import (
    METHODS,
    MethodMetrics,
    ObservedStorage,
    Operation,
    StorageMetrics,
    WrappedStorage,
    received_bytes,
)

T = TypeVar("T")


class FaultKind(enum.Enum):
    """How an operation goes wrong."""

    FAIL_BEFORE = "fails before it took effect"
    LOSE_ANSWER = "takes effect, but the answer is lost"
    SLOW = "takes long"
    KILL_BEFORE = "the process dies before it took effect"
    KILL_AFTER = "the process dies after it took effect"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to `times` operations from number `at` on, counted from 1 among those that match."""

    kind: FaultKind
    at: int = 1
    times: int = 1
    methods: tuple[str, ...] = METHODS
    key_contains: str = ""
    seconds: float = 0.05

    def matches(self, operation: Operation) -> bool:
        return operation.method in self.methods and self.key_contains in operation.key


@dataclass(slots=True)
class FaultPlan:
    """Faults to come; `rate` adds random ones, of kinds that a process survives."""

    faults: Sequence[Fault] = ()
    rate: float = 0.0
    seed: int = 0
    enabled: bool = True
    _seen: list[int] = field(default_factory=list)
    _random: random.Random = field(default_factory=random.Random)
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self._seen = [0] * len(self.faults)
        self._random.seed(self.seed)

    def decide(self, operation: Operation) -> Fault | None:
        """The fault that meets this operation, if any."""
        with self._lock:
            if not self.enabled:
                return None
            met = None
            for index, fault in enumerate(self.faults):
                if fault.matches(operation):
                    self._seen[index] += 1
                    if fault.at <= self._seen[index] < fault.at + fault.times:
                        met = met or fault
            if met is None and self.rate and self._random.random() < self.rate:
                met = Fault(self._random.choice((FaultKind.FAIL_BEFORE, FaultKind.LOSE_ANSWER)))
            return met

    def __reduce__(self) -> tuple[Any, ...]:
        return FaultPlan, (tuple(self.faults), self.rate, self.seed, self.enabled)


_NO_PATIENCE = RetryPolicy(max_tries=3, initial_backoff_ms=1, max_backoff_ms=5)


class CountingStorage(ObservedStorage):
    """Counts what passes; a listing counts one request a page.

    Examples
    --------
    >>> from icefloe.storage import in_memory_storage
    >>> import asyncio
    >>> storage = CountingStorage(in_memory_storage())
    >>> asyncio.run(storage.put("key", b"four"))
    >>> storage.counts.of("put").requests, storage.counts.writes.sent_bytes
    (1, 4)
    """

    @property
    def counts(self) -> StorageMetrics:
        """What passed so far, by method."""
        return self.metrics

    def _rewrap(self, inner: Storage) -> Storage:
        return type(self)(inner, self.metrics)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inner,)


class SlowStorage(WrappedStorage):
    """Every request takes at least so many seconds, as in an object store that is far away."""

    def __init__(self, inner: Storage, seconds: float = 0.05) -> None:
        super().__init__(inner)
        self.seconds = seconds

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(self.seconds)
        return await call()

    def _rewrap(self, inner: Storage) -> Storage:
        return SlowStorage(inner, self.seconds)


class FaultyStorage(WrappedStorage):
    """Meets each operation with what the plan says; conditional writes are settled as a real storage settles them."""

    def __init__(
        self, inner: Storage, plan: FaultPlan | Sequence[Fault] = (), counts: StorageMetrics | None = None
    ) -> None:
        super().__init__(inner)
        self.plan = plan if isinstance(plan, FaultPlan) else FaultPlan(tuple(plan))
        self.counts = counts or StorageMetrics()

    def _rewrap(self, inner: Storage) -> Storage:
        return FaultyStorage(inner, self.plan, self.counts)

    @property
    def operations(self) -> int:
        """How many operations were asked for."""
        return self.counts.total.requests

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        fault = self.plan.decide(operation)
        received = 0
        try:
            await self._before(fault, operation)
            answer = await call()
            received = received_bytes(answer)
            self._after(fault, operation)
        finally:
            self.counts.add(
                operation.method, MethodMetrics(requests=1, sent_bytes=operation.sent_bytes, received_bytes=received)
            )
        return answer

    async def _before(self, fault: Fault | None, operation: Operation) -> None:
        if fault is None:
            return
        if fault.kind is FaultKind.KILL_BEFORE:
            os._exit(KILLED)
        if fault.kind is FaultKind.SLOW:
            await asyncio.sleep(fault.seconds)
        if fault.kind is FaultKind.FAIL_BEFORE:
            raise StorageError(f"injected: {operation.method} {operation.key!r} {fault.kind.value}")

    def _after(self, fault: Fault | None, operation: Operation) -> None:
        if fault is None:
            return
        if fault.kind is FaultKind.KILL_AFTER:
            os._exit(KILLED)
        if fault.kind is FaultKind.LOSE_ANSWER:
            raise StorageError(f"injected: {operation.method} {operation.key!r} {fault.kind.value}")

    async def write_if(
        self,
        key: str,
        data: Buffer,
        before: Version | None,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        attempt = super().write_if
        write = ConditionalWrite(
            f"{'create' if before is None else 'swap'} {key!r}",
            self.url,
            lambda: attempt(key, data, before, metadata=metadata, unique=unique),
            lambda: look_by_content(lambda: self.get_versioned(key), bytes(data), before),
            before is not None,
        )
        return await write_conditionally(write, _NO_PATIENCE)


KILLED = 86
"""The exit status of a process that a fault killed."""
