"""A storage that measures what passes: requests, failures, bytes and seconds per method."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from icefloe.blocking import fork_safe_lock
from icefloe.errors import IcefloeError, NotFoundError
from icefloe.storage.contract import Storage
from icefloe.storage.wrapped import Operation, WrappedStorage, received_bytes

try:
    from opentelemetry import metrics as telemetry
except ImportError:  # measured without it, too
    telemetry = None

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MethodMetrics:
    """What one method of a storage was asked for."""

    requests: int = 0
    failures: int = 0
    """Errors after the storage's own retries; an object that is not there is an answer, not a failure."""
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: float = 0.0
    """The sum over all requests, which may run at the same time."""
    slowest_seconds: float = 0.0

    def __add__(self, other: MethodMetrics) -> MethodMetrics:
        return MethodMetrics(
            self.requests + other.requests,
            self.failures + other.failures,
            self.sent_bytes + other.sent_bytes,
            self.received_bytes + other.received_bytes,
            self.seconds + other.seconds,
            max(self.slowest_seconds, other.slowest_seconds),
        )

    def __sub__(self, earlier: MethodMetrics) -> MethodMetrics:
        return MethodMetrics(
            self.requests - earlier.requests,
            self.failures - earlier.failures,
            self.sent_bytes - earlier.sent_bytes,
            self.received_bytes - earlier.received_bytes,
            self.seconds - earlier.seconds,
            self.slowest_seconds,
        )


@dataclass(slots=True)
class StorageMetrics:
    """Metrics by method, shared by a storage and its children, in this process only."""

    _by_method: dict[str, MethodMetrics] = field(default_factory=dict)
    _lock: Any = field(default_factory=fork_safe_lock, repr=False)

    def add(self, method: str, measured: MethodMetrics) -> None:
        with self._lock:
            self._by_method[method] = self._by_method.get(method, MethodMetrics()) + measured

    def by_method(self) -> Mapping[str, MethodMetrics]:
        """What was measured so far."""
        with self._lock:
            return dict(self._by_method)

    def __reduce__(self) -> tuple[Any, ...]:
        return StorageMetrics, ()


class _Telemetry:
    """The same numbers as OpenTelemetry instruments, where it is installed."""

    def __init__(self) -> None:
        meter = telemetry.get_meter("icefloe")
        self._requests = meter.create_counter("icefloe.storage.requests", unit="1")
        self._bytes = meter.create_counter("icefloe.storage.bytes", unit="By")
        self._seconds = meter.create_histogram("icefloe.storage.duration", unit="s")

    def record(self, method: str, measured: MethodMetrics) -> None:
        labels = {"method": method, "failed": measured.failures > 0}
        self._requests.add(1, labels)
        self._bytes.add(measured.sent_bytes, {"method": method, "direction": "sent"})
        self._bytes.add(measured.received_bytes, {"method": method, "direction": "received"})
        self._seconds.record(measured.seconds, labels)


class ObservedStorage(WrappedStorage):
    """Measures what passes to another storage."""

    def __init__(self, inner: Storage, metrics: StorageMetrics | None = None) -> None:
        super().__init__(inner)
        self.metrics = metrics or StorageMetrics()
        self._telemetry = _Telemetry() if telemetry is not None else None

    async def _pass(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        started = time.perf_counter()
        received, failures = 0, 0
        try:
            answer = await call()
            received = received_bytes(answer)
        except NotFoundError:
            raise
        except IcefloeError:
            failures = 1
            raise
        finally:
            seconds = time.perf_counter() - started
            measured = MethodMetrics(1, failures, operation.sent_bytes, received, seconds, seconds)
            self.metrics.add(operation.method, measured)
            if self._telemetry is not None:
                self._telemetry.record(operation.method, measured)
        return answer

    def _around(self, inner: Storage) -> Storage:
        return ObservedStorage(inner, self.metrics)

    def __reduce__(self) -> tuple[Any, ...]:
        return ObservedStorage, (self.inner,)
