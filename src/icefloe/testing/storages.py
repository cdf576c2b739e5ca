"""Storages for tests: one that fails on command, one that is slow, one that counts, and a simulated object store.

The simulated store has a clock of its own, delays, lost and repeated requests, and clients that die.
A `SimulatedStore` holds objects; a `SimulatedStorage` is one client's connection to it. A request takes effect at one
moment between two delays. A `Network` decides, from a seed, about the delays and about what goes wrong:

* a request that is lost: the client tries again after a while, as clients of object stores do;
* an answer that is lost: the request took effect, the client tries again, and the effect happens twice;
* a request that arrives a second time much later;
* more losses than a client has patience for: StorageError, or for a conditional write what `write_conditionally`
  makes of it;
* the death of the client, before or after the effect.

Listings come in small pages, and each page shows the store as it is when that page is asked for. This is what stores
with consistent listings promise: an object written or deleted meanwhile may or may not be shown.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import datetime as dt
import enum
import itertools
import os
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from icefloe.errors import (
    AlreadyExistsError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
    VersionMismatchError,
)
from icefloe.storage.contract import Buffer, ObjectInfo, Storage, Version, Versioned
from icefloe.storage.remote import ConditionalWrite, look_by_content, write_conditionally
from icefloe.storage.requests import RetryPolicy, check_key, check_prefix, check_range, join_prefix
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


_PATIENCE = RetryPolicy(max_tries=4, initial_backoff_ms=20, max_backoff_ms=500)


class ProcessDied(BaseException):
    """The process that asked is dead."""


@dataclass(frozen=True, slots=True)
class _StoredObject:
    data: bytes
    version: Version
    last_modified: dt.datetime


@dataclass(slots=True)
class SimulatedStore:
    """The objects of one store, and the time by its clock."""

    now: Callable[[], dt.datetime]
    resolution_seconds: int = 0
    """Times are cut to so many seconds; 0 keeps microseconds."""
    page_size: int = 1000
    objects: dict[str, _StoredObject] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    watchers: list[Callable[[str, str], Awaitable[None]]] = field(default_factory=list)
    """Told of every request that changed something, in the step in which it did."""
    number: int = field(default_factory=itertools.count().__next__)
    """Tells the stores of one process apart, also those of simulations that are over."""
    _versions: itertools.count[int] = field(default_factory=itertools.count)

    def time(self) -> dt.datetime:
        """The time that the store gives to an object written now."""
        now = self.now()
        if self.resolution_seconds:
            now = now.replace(second=now.second - now.second % self.resolution_seconds, microsecond=0)
        return now

    def find(self, key: str) -> _StoredObject:
        stored = self.objects.get(key)
        if stored is None:
            raise ObjectNotFoundError(f"cannot read {key!r} in the simulated store: no such object")
        return stored

    def write(self, key: str, data: Buffer) -> Version:
        if key not in self.objects:
            bisect.insort(self.keys, key)
        version = Version(etag=str(next(self._versions)))
        self.objects[key] = _StoredObject(bytes(data), version, self.time())
        return version

    def remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            if self.objects.pop(key, None) is not None:
                del self.keys[bisect.bisect_left(self.keys, key)]

    def below(self, prefix: str, after: str) -> list[str]:
        """Keys that start with a prefix and are greater than `after`, in order."""
        low = max(bisect.bisect_left(self.keys, prefix), bisect.bisect_right(self.keys, after) if after else 0)
        high = bisect.bisect_left(self.keys, prefix[:-1] + "0") if prefix else len(self.keys)  # "0" follows "/"
        return self.keys[low:high]


@dataclass(slots=True)
class Network:
    """What happens to the requests of one client; `None` as network is a perfect one without any delay."""

    random: random.Random
    """Replaced at the beginning of every step of an actor, so that a step meets the same faults in every schedule."""
    slow_share: float = 0.1
    loss_share: float = 0.0
    death_share: float = 0.0
    is_dead: bool = False
    operations: int = 0

    def delay(self) -> float:
        """Seconds that a message is under way."""
        if self.random.random() < self.slow_share:
            return self.random.uniform(0.05, 2.0)
        return self.random.uniform(0.001, 0.02)


class SimulatedStorage(Storage):
    """One client's connection to a simulated store."""

    def __init__(self, store: SimulatedStore, name: str, network: Network | None = None, prefix: str = "") -> None:
        self._store = store
        self._name = name
        self._network = network
        self._prefix = prefix

    def __repr__(self) -> str:
        return f"SimulatedStorage({self.url!r})"

    def __eq__(self, other: object) -> bool:
        # Processes share nothing in memory, so the connections of two of them are not the same storage.
        return isinstance(other, SimulatedStorage) and (
            self._store is other._store and (self._name, self._prefix) == (other._name, other._prefix)
        )

    def __hash__(self) -> int:
        return hash((id(self._store), self._name, self._prefix))

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidInputError("a simulated storage does not leave its process")

    @property
    def url(self) -> str:
        return f"simulated://{self._store.number}.{self._name}/{self._prefix}"

    async def _request(self, effect: Callable[[], T], changes: str = "", *, patient: bool = True) -> T:
        """Send a request whose effect happens at one moment; `changes` names the key that it changes."""
        network = self._network
        if network is None:
            answer = effect()
            await self._tell(changes)
            return answer
        tries = _PATIENCE.max_tries if patient else 1
        for attempt in range(tries):
            network.operations += 1
            if network.is_dead:
                raise ProcessDied
            chance = network.random.random()
            await asyncio.sleep(network.delay())
            if network.is_dead:
                raise ProcessDied
            if chance < network.death_share / 2:
                network.is_dead = True
                raise ProcessDied
            lost = 1 - chance < network.loss_share
            if lost and network.random.random() < 0.5:
                await asyncio.sleep(network.random.uniform(0.1, 1.0))
                continue
            answer = effect()
            await self._tell(changes)
            if chance < network.death_share:
                network.is_dead = True
                raise ProcessDied
            await asyncio.sleep(network.delay())
            if network.is_dead:
                raise ProcessDied
            if not lost:
                return answer
            if changes and patient and attempt == 0 and network.random.random() < 0.3:
                asyncio.get_running_loop().call_later(network.random.uniform(0.1, 2.0), _again, effect)
        raise StorageError(f"no answer from {self.url} after {tries} tries")

    async def _tell(self, changes: str) -> None:
        if changes:
            for watch in self._store.watchers:
                await watch(changes, self._name)

    async def get(self, key: str) -> bytes:
        path = self._prefix + check_key(key)
        return await self._request(lambda: self._store.find(path).data)

    async def get_versioned(self, key: str) -> Versioned:
        path = self._prefix + check_key(key)

        def read() -> Versioned:
            stored = self._store.find(path)
            return Versioned(stored.data, stored.version, stored.last_modified)

        return await self._request(read)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        check_range(start, end)
        path = self._prefix + check_key(key)

        def read() -> bytes:
            data = self._store.find(path).data
            if start >= len(data) and end > start:
                raise StorageError(f"cannot read {key!r} in {self.url} from byte {start}: it has {len(data)} bytes")
            return data[start:end]

        return await self._request(read)

    async def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        if len(starts) != len(ends):
            raise InvalidInputError(f"{len(starts)} starts and {len(ends)} ends: expected one end for every start")
        return [await self.get_range(key, start, end) for start, end in zip(starts, ends, strict=True)]

    async def head(self, key: str) -> ObjectInfo:
        path = self._prefix + check_key(key)

        def look() -> ObjectInfo:
            stored = self._store.find(path)
            return ObjectInfo(key, len(stored.data), stored.last_modified, stored.version)

        return await self._request(look)

    async def put(self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        path, flat = self._prefix + check_key(key), bytes(data)
        await self._request(lambda: self._store.write(path, flat), path)

    async def write_if(
        self,
        key: str,
        data: Buffer,
        before: Version | None,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        path, flat = self._prefix + check_key(key), bytes(data)

        def effect() -> Version:
            stored = self._store.objects.get(path)
            if before is None and stored is not None:
                raise AlreadyExistsError(f"cannot create {key!r} in {self.url}: it already exists")
            if before is not None and (stored is None or stored.version != before):
                raise VersionMismatchError(f"cannot replace {key!r} in {self.url}: it has changed since it was read")
            return self._store.write(path, flat)

        write = ConditionalWrite(
            f"{'create' if before is None else 'swap'} {key!r}",
            self.url,
            lambda: self._request(effect, path, patient=False),
            lambda: look_by_content(lambda: self.get_versioned(key), flat, before),
            before is not None,
        )
        return await write_conditionally(write, _PATIENCE)

    async def list_names(self, prefix: str) -> list[str]:
        folder = self._prefix + check_prefix(prefix)

        def look() -> list[str]:
            names = (key[len(folder) :] for key in self._store.below(folder, ""))
            return sorted({name[: name.index("/") + 1] if "/" in name else name for name in names})

        return await self._request(look)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        folder = self._prefix + check_prefix(prefix)
        last = self._prefix + after if after else ""

        def page() -> list[ObjectInfo]:
            return [
                ObjectInfo(key[len(self._prefix) :], len(stored.data), stored.last_modified, stored.version)
                for key in self._store.below(folder, last)[: self._store.page_size]
                for stored in (self._store.objects[key],)
            ]

        while found := await self._request(page):
            yield found
            if len(found) < self._store.page_size:
                return
            last = self._prefix + found[-1].key

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self._prefix + check_key(key) for key in keys]
        await self._request(lambda: self._store.remove(paths), paths[0] if paths else "")

    async def copy(self, source: str, target: str, *, version: Version | None = None) -> None:
        origin, path = self._prefix + check_key(source), self._prefix + check_key(target)

        def effect() -> None:
            stored = self._store.find(origin)
            if version is not None and version != stored.version:
                raise VersionMismatchError(f"cannot copy {source!r} in {self.url}: it has changed since it was read")
            self._store.write(path, stored.data)

        await self._request(effect, path)

    def child(self, prefix: str) -> Storage:
        return SimulatedStorage(self._store, self._name, self._network, join_prefix(self._prefix, prefix))


def _again(effect: Callable[[], object]) -> None:
    """A request arrives a second time, long after its sender gave up waiting for it."""
    with contextlib.suppress(AlreadyExistsError, ObjectNotFoundError, VersionMismatchError):
        effect()
