"""A storage in the memory of one process."""

from __future__ import annotations

import bisect
import datetime as dt
import itertools
import os
import threading
import uuid
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icefloe.blocking import fork_safe_lock
from icefloe.display.card import ShownField
from icefloe.errors import (
    AlreadyExistsError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
    VersionMismatchError,
)
from icefloe.storage.contract import Buffer, ObjectInfo, SourceStorage, Storage, Version, Versioned
from icefloe.storage.requests import check_key, check_prefix, check_range, check_ranges, check_unchanged, join_prefix

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class _StoredObject:
    data: bytes
    version: Version
    last_modified: dt.datetime
    metadata: Mapping[str, str]


@dataclass(slots=True, weakref_slot=True)
class _Objects:
    """The objects of one memory, shared by all storages that look into it."""

    name: str
    pid: int
    by_key: dict[str, _StoredObject] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=fork_safe_lock)
    counter: itertools.count[int] = field(default_factory=itertools.count)

    def write(self, key: str, data: Buffer, metadata: Mapping[str, str] | None) -> Version:
        """Hold an object; the lock is taken by the caller."""
        if key not in self.by_key:
            bisect.insort(self.keys, key)
        version = Version(etag=str(next(self.counter)))
        self.by_key[key] = _StoredObject(bytes(data), version, dt.datetime.now(dt.UTC), dict(metadata or {}))
        return version

    def remove(self, keys: Iterable[str]) -> None:
        gone = [key for key in keys if self.by_key.pop(key, None) is not None]
        if len(gone) > 16:
            self.keys = sorted(self.by_key)
            return
        for key in gone:
            del self.keys[bisect.bisect_left(self.keys, key)]

    def below(self, prefix: str, after: str) -> list[str]:
        """Keys in a folder that are greater than `after`, in order."""
        low = max(bisect.bisect_left(self.keys, prefix), bisect.bisect_right(self.keys, after) if after else 0)
        high = bisect.bisect_left(self.keys, prefix[:-1] + "0") if prefix else len(self.keys)  # "0" follows "/"
        return self.keys[low:high]


_BY_NAME: weakref.WeakValueDictionary[str, _Objects] = weakref.WeakValueDictionary()
_NAMED: dict[str, _Objects] = {}


def _make_objects() -> _Objects:
    objects = _Objects(uuid.uuid4().hex, os.getpid())
    _BY_NAME[objects.name] = objects
    return objects


def _find_storage(name: str, pid: int, prefix: str) -> MemoryStorage:
    objects = _BY_NAME.get(name)
    # A forked child inherits the registry, but from then on its copy is another memory.
    if objects is None or pid != os.getpid():
        raise InvalidInputError(
            f"this in-memory storage belongs to process {pid}, or was already freed. This is process {os.getpid()}. To "
            "share a repository between processes, use local files or an object store"
        )
    return MemoryStorage(objects, prefix)


class MemoryStorage(SourceStorage):
    """Objects in a dictionary; gone with the process."""

    def __init__(self, objects: _Objects | None = None, prefix: str = "") -> None:
        self._objects = objects or _make_objects()
        self._prefix = prefix

    @classmethod
    def named(cls, name: str) -> MemoryStorage:
        """The memory of that name in this process, which lives as long as the process."""
        if name not in _NAMED:
            _NAMED[name] = _make_objects()
        return cls(_NAMED[name])

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_storage, (self._objects.name, self._objects.pid, self._prefix)

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("type", "in-memory")
        yield ShownField("url", self.url)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryStorage) and (self._objects is other._objects and self._prefix == other._prefix)

    def __hash__(self) -> int:
        return hash((self._objects.name, self._prefix))

    @property
    def url(self) -> str:
        return f"memory://{self._objects.name}/{self._prefix}"

    def _find(self, key: str) -> _StoredObject:
        stored = self._objects.by_key.get(self._prefix + check_key(key))
        if stored is None:
            raise ObjectNotFoundError(f"cannot read {key!r} in {self.url}: no such object")
        return stored

    async def get(self, key: str) -> bytes:
        return self._find(key).data

    async def get_versioned(self, key: str) -> Versioned:
        stored = self._find(key)
        return Versioned(stored.data, stored.version, stored.last_modified)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        check_range(start, end)
        data = self._find(key).data
        if start >= len(data) and end > start:
            raise StorageError(f"cannot read {key!r} in {self.url} from byte {start}: it has {len(data)} bytes")
        return data[start:end]

    async def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        check_ranges(starts, ends)
        return [await self.get_range(key, start, end) for start, end in zip(starts, ends, strict=True)]

    async def get_range_if(
        self, key: str, start: int, end: int, *, etag: str | None = None, not_modified_after: dt.datetime | None = None
    ) -> bytes:
        stored = self._find(key)
        check_unchanged(
            f"{self.url}{key}",
            etag=etag,
            found_etag=stored.version.etag,
            not_modified_after=not_modified_after,
            found_modified=stored.last_modified,
        )
        return await self.get_range(key, start, end)

    async def head(self, key: str) -> ObjectInfo:
        stored = self._find(key)
        return ObjectInfo(key, len(stored.data), stored.last_modified, stored.version)

    async def metadata(self, key: str) -> Mapping[str, str]:
        """The user metadata an object was written with."""
        return self._find(key).metadata

    async def put(self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        with self._objects.lock:
            self._objects.write(self._prefix + check_key(key), data, metadata)

    async def write_if(
        self,
        key: str,
        data: Buffer,
        before: Version | None,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        path = self._prefix + check_key(key)
        with self._objects.lock:
            stored = self._objects.by_key.get(path)
            if before is None and stored is not None:
                raise AlreadyExistsError(f"cannot create {key!r} in {self.url}: it already exists")
            if before is not None and (stored is None or stored.version != before):
                raise VersionMismatchError(f"cannot replace {key!r} in {self.url}: it has changed since it was read")
            return self._objects.write(path, data, metadata)

    async def list_names(self, prefix: str) -> list[str]:
        folder = self._prefix + check_prefix(prefix)
        with self._objects.lock:
            below = self._objects.below(folder, "")
        names = (key[len(folder) :] for key in below)
        return sorted({name[: name.index("/") + 1] if "/" in name else name for name in names})

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        folder = self._prefix + check_prefix(prefix)
        last = self._prefix + after if after else ""
        while True:
            with self._objects.lock:
                found = [
                    ObjectInfo(key[len(self._prefix) :], len(stored.data), stored.last_modified, stored.version)
                    for key in self._objects.below(folder, last)[:_PAGE]
                    for stored in (self._objects.by_key[key],)
                ]
            if not found:
                return
            yield found
            last = self._prefix + found[-1].key

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self._prefix + check_key(key) for key in keys]
        with self._objects.lock:
            self._objects.remove(paths)

    async def copy(self, source: str, target: str, *, version: Version | None = None) -> None:
        stored = self._find(source)
        if version is not None and version != stored.version:
            raise VersionMismatchError(f"cannot copy {source!r} in {self.url}: it has changed since it was read")
        await self.put(target, stored.data, metadata=stored.metadata)

    def child(self, prefix: str) -> Storage:
        return MemoryStorage(self._objects, join_prefix(self._prefix, prefix))
