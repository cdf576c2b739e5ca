"""A storage in front of another one, which sees every operation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from icefloe.storage.contract import Buffer, ObjectInfo, Storage, Version, Versioned

T = TypeVar("T")

READS = ("get", "get_versioned", "get_range", "get_ranges", "head", "list", "list_names")
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
    """Hands everything on through `_pass`, which subclasses define."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    @abstractmethod
    async def _pass(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        """Do the operation by calling `call`, or do not."""

    @abstractmethod
    def _around(self, inner: Storage) -> Storage:
        """The same wrapper, with the same state, around another storage."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def read_only(self) -> bool:
        return self.inner.read_only

    async def get(self, key: str) -> bytes:
        return await self._pass(Operation("get", key), lambda: self.inner.get(key))

    async def get_versioned(self, key: str) -> Versioned:
        return await self._pass(Operation("get_versioned", key), lambda: self.inner.get_versioned(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self._pass(Operation("get_range", key), lambda: self.inner.get_range(key, start, end))

    async def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        return await self._pass(Operation("get_ranges", key), lambda: self.inner.get_ranges(key, starts, ends))

    async def head(self, key: str) -> ObjectInfo:
        return await self._pass(Operation("head", key), lambda: self.inner.head(key))

    async def put(self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        operation = Operation("put", key, memoryview(data).nbytes)
        await self._pass(operation, lambda: self.inner.put(key, data, metadata=metadata))

    async def create(
        self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None, unique: bool = True
    ) -> Version:
        operation = Operation("create", key, memoryview(data).nbytes)
        return await self._pass(operation, lambda: self.inner.create(key, data, metadata=metadata, unique=unique))

    async def swap(
        self,
        key: str,
        data: Buffer,
        version: Version,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        operation = Operation("swap", key, memoryview(data).nbytes)
        return await self._pass(
            operation, lambda: self.inner.swap(key, data, version, metadata=metadata, unique=unique)
        )

    async def list_names(self, prefix: str) -> list[str]:
        return await self._pass(Operation("list_names", prefix), lambda: self.inner.list_names(prefix))

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        pages = self.inner.list(prefix, after=after)

        async def next_page() -> Sequence[ObjectInfo] | None:
            return await anext(pages, None)

        while (page := await self._pass(Operation("list", prefix), next_page)) is not None:
            yield page

    async def delete(self, keys: Sequence[str]) -> None:
        await self._pass(Operation("delete", keys[0] if keys else ""), lambda: self.inner.delete(keys))

    async def copy(self, source: str, target: str, *, version: Version | None = None) -> None:
        await self._pass(Operation("copy", source), lambda: self.inner.copy(source, target, version=version))

    async def make_durable(self) -> None:
        await self.inner.make_durable()

    def child(self, prefix: str) -> Storage:
        return self._around(self.inner.child(prefix))
