"""One storage made of two: an object that is kept apart, and a place for everything else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from icefloe.errors import InvalidInputError
from icefloe.storage.contract import Buffer, ObjectInfo, Storage, Version, Versioned


class SplitStorage(Storage):
    """`key` lives in `apart`, all other objects in `rest`; an object of that key in `rest` is not seen."""

    def __init__(self, apart: Storage, rest: Storage, key: str = "state.json") -> None:
        self.apart = apart
        self.rest = rest
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return SplitStorage, (self.apart, self.rest, self.key)

    def __repr__(self) -> str:
        return f"SplitStorage({self.apart!r}, {self.rest!r}, {self.key!r})"

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

    def _place(self, key: str) -> Storage:
        return self.apart if key == self.key else self.rest

    async def get(self, key: str) -> bytes:
        return await self._place(key).get(key)

    async def get_versioned(self, key: str) -> Versioned:
        return await self._place(key).get_versioned(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self._place(key).get_range(key, start, end)

    async def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        return await self._place(key).get_ranges(key, starts, ends)

    async def head(self, key: str) -> ObjectInfo:
        return await self._place(key).head(key)

    async def put(self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        await self._place(key).put(key, data, metadata=metadata)

    async def create(
        self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None, unique: bool = True
    ) -> Version:
        if key == self.key:
            await self.rest.make_durable()
        return await self._place(key).create(key, data, metadata=metadata, unique=unique)

    async def swap(
        self,
        key: str,
        data: Buffer,
        version: Version,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        if key == self.key:
            await self.rest.make_durable()
        return await self._place(key).swap(key, data, version, metadata=metadata, unique=unique)

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
        if self._place(source) is not self._place(target):
            raise InvalidInputError(f"cannot copy {source!r} to {target!r}: they are in different storages")
        await self._place(source).copy(source, target, version=version)

    async def make_durable(self) -> None:
        await self.rest.make_durable()
        await self.apart.make_durable()

    def child(self, prefix: str) -> Storage:
        return self.rest.child(prefix)
