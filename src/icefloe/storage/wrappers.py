"""Storages in front of another storage: they forward, measure, or choose a storage by key."""

from __future__ import annotations

import datetime as dt
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from icefloe.blocking import fork_safe_lock
from icefloe.display.card import ShownField
from icefloe.errors import IcefloeError, InvalidInputError, NotFoundError
from icefloe.storage.contract import Buffer, ObjectInfo, Storage, Version, Versioned

T = TypeVar("T")

READS = ("get", "get_versioned", "get_range", "get_ranges", "head", "list", "list_names", "stat_names")
WRITES = ("put", "create", "swap", "delete", "copy")
METHODS = READS + WRITES


@dataclass(frozen=True, slots=True)
class Operation:
    """What is asked of the inner storage."""

    method: str
    key: str
    sent_bytes: int = 0


def received_bytes(answer: object) -> int:
    """How many bytes of content an answer carries."""
    if isinstance(answer, bytes):
        return len(answer)
    if isinstance(answer, Versioned):
        return len(answer.data)
    if isinstance(answer, list) and answer and isinstance(answer[0], bytes):
        return sum(map(len, answer))
    return 0


class WrappedStorage(Storage):
    """Forwards everything to another storage. The base class of all wrappers.

    A subclass overrides `_forward` to see or change every operation, `_storage_of` to choose a storage by key, or
    single methods. `_rewrap` makes the wrapper of a child.
    """

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        """Do the operation by calling `call`, or do not."""
        return await call()

    def _storage_of(self, key: str) -> Storage:
        """The storage that holds an object."""
        return self.inner

    @abstractmethod
    def _rewrap(self, inner: Storage) -> Storage:
        """The same wrapper, with the same state, around another storage."""

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("type", type(self).__name__)
        yield ShownField("inner", self.inner)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, WrappedStorage) and self.inner == other.inner

    def __hash__(self) -> int:
        return hash(self.inner)

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def read_only(self) -> bool:
        return self.inner.read_only

    @property
    def state_storage(self) -> Storage:
        found = self.inner.state_storage
        return self if found is self.inner else self._rewrap(found)

    @property
    def data_storage(self) -> Storage:
        found = self.inner.data_storage
        return self if found is self.inner else self._rewrap(found)

    @property
    def lists_names_faster(self) -> bool:
        return self.inner.lists_names_faster

    async def get(self, key: str) -> bytes:
        return await self._forward(Operation("get", key), lambda: self._storage_of(key).get(key))

    async def get_versioned(self, key: str) -> Versioned:
        return await self._forward(Operation("get_versioned", key), lambda: self._storage_of(key).get_versioned(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self._forward(
            Operation("get_range", key), lambda: self._storage_of(key).get_range(key, start, end)
        )

    async def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        return await self._forward(
            Operation("get_ranges", key), lambda: self._storage_of(key).get_ranges(key, starts, ends)
        )

    async def head(self, key: str) -> ObjectInfo:
        return await self._forward(Operation("head", key), lambda: self._storage_of(key).head(key))

    async def put(self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        operation = Operation("put", key, memoryview(data).nbytes)
        await self._forward(operation, lambda: self._storage_of(key).put(key, data, metadata=metadata))

    async def write_if(
        self,
        key: str,
        data: Buffer,
        before: Version | None,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        operation = Operation("create" if before is None else "swap", key, memoryview(data).nbytes)
        return await self._forward(
            operation,
            lambda: self._storage_of(key).write_if(key, data, before, metadata=metadata, unique=unique),
        )

    async def list_names(self, prefix: str) -> list[str]:
        return await self._forward(Operation("list_names", prefix), lambda: self.inner.list_names(prefix))

    async def list_names_of_length(self, prefix: str, length: int) -> Sequence[bytes]:
        operation = Operation("list_names", prefix)
        return await self._forward(operation, lambda: self.inner.list_names_of_length(prefix, length))

    async def stat_names(self, prefix: str, names: Sequence[bytes]) -> tuple[Sequence[int], Sequence[int]]:
        return await self._forward(Operation("stat_names", prefix), lambda: self.inner.stat_names(prefix, names))

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        pages = self.inner.list(prefix, after=after)

        async def next_page() -> Sequence[ObjectInfo] | None:
            return await anext(pages, None)

        while (page := await self._forward(Operation("list", prefix), next_page)) is not None:
            yield page

    async def delete(self, keys: Sequence[str]) -> None:
        await self._forward(Operation("delete", keys[0] if keys else ""), lambda: self.inner.delete(keys))

    async def copy(self, source: str, target: str, *, version: Version | None = None) -> None:
        operation = Operation("copy", source)
        await self._forward(operation, lambda: self._storage_of(source).copy(source, target, version=version))

    async def make_durable(self) -> None:
        await self.inner.make_durable()

    async def remove_leftovers(self, older_than: dt.timedelta, now: dt.datetime | None = None) -> int:
        return await self.inner.remove_leftovers(older_than, now)

    def child(self, prefix: str) -> Storage:
        return self._rewrap(self.inner.child(prefix))


try:
    from opentelemetry import metrics as telemetry
except ImportError:  # measured without it, too
    telemetry = None


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
    """Metrics by method, shared by a storage and its children, in this process only. Failed requests count too."""

    _by_method: dict[str, MethodMetrics] = field(default_factory=dict)
    _lock: Any = field(default_factory=fork_safe_lock, repr=False)

    def add(self, method: str, measured: MethodMetrics) -> None:
        with self._lock:
            self._by_method[method] = self._by_method.get(method, MethodMetrics()) + measured

    def by_method(self) -> Mapping[str, MethodMetrics]:
        """What was measured so far."""
        with self._lock:
            return dict(self._by_method)

    def of(self, *methods: str) -> MethodMetrics:
        """The sum of some methods, of all when none is named."""
        found = self.by_method()
        return sum((found.get(method, MethodMetrics()) for method in methods or found), MethodMetrics())

    @property
    def total(self) -> MethodMetrics:
        """The sum of all methods."""
        return self.of()

    @property
    def writes(self) -> MethodMetrics:
        """The sum of all methods that write."""
        return self.of(*WRITES)

    def reset(self) -> None:
        """Start again from nothing."""
        with self._lock:
            self._by_method.clear()

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

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
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

    def _rewrap(self, inner: Storage) -> Storage:
        return ObservedStorage(inner, self.metrics)

    def __reduce__(self) -> tuple[Any, ...]:
        return ObservedStorage, (self.inner,)


class SplitStorage(WrappedStorage):
    """`key` lives in `apart`, all other objects in `rest`; an object of that key in `rest` is not seen."""

    def __init__(self, apart: Storage, rest: Storage, key: str = "state.json") -> None:
        super().__init__(rest)
        self.apart = apart
        self.rest = rest
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return SplitStorage, (self.apart, self.rest, self.key)

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("type", "SplitStorage")
        yield ShownField("key", self.key)
        yield ShownField("apart", self.apart)
        yield ShownField("rest", self.rest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SplitStorage):
            return NotImplemented
        return (self.apart, self.rest, self.key) == (other.apart, other.rest, other.key)

    def __hash__(self) -> int:
        return hash((self.apart, self.rest, self.key))

    @property
    def url(self) -> str:
        return self.apart.url

    @property
    def read_only(self) -> bool:
        return self.apart.read_only or self.rest.read_only

    @property
    def state_storage(self) -> Storage:
        return self.apart

    @property
    def data_storage(self) -> Storage:
        return self.rest

    @property
    def lists_names_faster(self) -> bool:
        return False  # a listing joins both storages

    def _storage_of(self, key: str) -> Storage:
        return self.apart if key == self.key else self.rest

    async def write_if(
        self,
        key: str,
        data: Buffer,
        before: Version | None,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        if key == self.key:
            await self.rest.make_durable()
        return await super().write_if(key, data, before, metadata=metadata, unique=unique)

    async def list_names_of_length(self, prefix: str, length: int) -> Sequence[bytes]:
        return await Storage.list_names_of_length(self, prefix, length)

    async def stat_names(self, prefix: str, names: Sequence[bytes]) -> tuple[Sequence[int], Sequence[int]]:
        return await Storage.stat_names(self, prefix, names)

    async def list_names(self, prefix: str) -> list[str]:
        names = await self.rest.list_names(prefix)
        if prefix:
            return names
        own = [self.key] if await self.apart.exists(self.key) else []
        return sorted({*names, *own} if own else {*names} - {self.key})

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        own: list[ObjectInfo] = []
        if not prefix and (after is None or after < self.key) and await self.apart.exists(self.key):
            own = [await self.apart.head(self.key)]
        async for page in self.rest.list(prefix, after=after):
            found = [item for item in page if item.key != self.key]
            if own and found and found[-1].key > self.key:
                found = sorted([*found, *own], key=lambda item: item.key)
                own = []
            yield found
        if own:
            yield own

    async def delete(self, keys: Sequence[str]) -> None:
        await self.rest.delete([key for key in keys if key != self.key])
        if self.key in keys:
            await self.rest.make_durable()
            await self.apart.delete([self.key])

    async def copy(self, source: str, target: str, *, version: Version | None = None) -> None:
        if self._storage_of(source) is not self._storage_of(target):
            raise InvalidInputError(f"cannot copy {source!r} to {target!r}: they are in different storages")
        await super().copy(source, target, version=version)

    async def make_durable(self) -> None:
        await self.rest.make_durable()
        await self.apart.make_durable()

    def _rewrap(self, inner: Storage) -> Storage:
        return inner
