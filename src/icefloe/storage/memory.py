"""A storage in the memory of one process."""

from __future__ import annotations

import bisect
import datetime as dt
import itertools
import os
import threading
import uuid
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icefloe.blocking import fork_safe_lock
from icefloe.errors import (
    AlreadyExistsError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
    VersionMismatchError,
)
from icefloe.storage.contract import (
    Buffer,
    ObjectInfo,
    SourceStorage,
    Storage,
    Version,
    Versioned,
    check_key,
    check_prefix,
    check_range,
    check_unchanged,
    join_prefix,
)

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class _Held:
    data: bytes
    version: Version
    last_modified: dt.datetime
    metadata: Mapping[str, str]


@dataclass(slots=True, weakref_slot=True)
class _Room:
    """The objects of one memory, shared by all storages that look into it."""

    name: str
    pid: int
    objects: dict[str, _Held] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=fork_safe_lock)
    counter: itertools.count[int] = field(default_factory=itertools.count)

    def write(self, key: str, data: Buffer, metadata: Mapping[str, str] | None) -> Version:
        """Hold an object; the lock is taken by the caller."""
        if key not in self.objects:
            bisect.insort(self.keys, key)
        version = Version(etag=str(next(self.counter)))
        self.objects[key] = _Held(bytes(data), version, dt.datetime.now(dt.UTC), dict(metadata or {}))
        return version

    def remove(self, keys: Iterable[str]) -> None:
        gone = [key for key in keys if self.objects.pop(key, None) is not None]
        if len(gone) > 16:
            self.keys = sorted(self.objects)
            return
        for key in gone:
            del self.keys[bisect.bisect_left(self.keys, key)]

    def below(self, prefix: str, after: str) -> list[str]:
        """Keys in a folder that are greater than `after`, in order."""
        low = max(bisect.bisect_left(self.keys, prefix), bisect.bisect_right(self.keys, after) if after else 0)
        high = bisect.bisect_left(self.keys, prefix[:-1] + "0") if prefix else len(self.keys)  # "0" follows "/"
        return self.keys[low:high]


_ROOMS: weakref.WeakValueDictionary[str, _Room] = weakref.WeakValueDictionary()
_NAMED: dict[str, _Room] = {}


def _make_room() -> _Room:
    room = _Room(uuid.uuid4().hex, os.getpid())
    _ROOMS[room.name] = room
    return room


def _find_storage(name: str, pid: int, prefix: str) -> MemoryStorage:
    room = _ROOMS.get(name)
    # A forked child inherits the registry, but from then on its copy is another memory.
    if room is None or pid != os.getpid():
        raise InvalidInputError(
            f"this in-memory storage lives in process {pid}, not in process {os.getpid()}, "
            "or its last user is gone; use local files or an object store to share a repository between processes"
        )
    return MemoryStorage(room, prefix)


class MemoryStorage(SourceStorage):
    """Objects in a dictionary; gone with the process."""

    def __init__(self, room: _Room | None = None, prefix: str = "") -> None:
        self._room = room or _make_room()
        self._prefix = prefix

    @classmethod
    def named(cls, name: str) -> MemoryStorage:
        """The memory of that name in this process, which lives as long as the process."""
        if name not in _NAMED:
            _NAMED[name] = _make_room()
        return cls(_NAMED[name])

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_storage, (self._room.name, self._room.pid, self._prefix)

    def __repr__(self) -> str:
        return f"MemoryStorage({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryStorage) and (self._room is other._room and self._prefix == other._prefix)

    def __hash__(self) -> int:
        return hash((self._room.name, self._prefix))

    @property
    def url(self) -> str:
        return f"memory://{self._room.name}/{self._prefix}"

    def _held(self, key: str) -> _Held:
        held = self._room.objects.get(self._prefix + check_key(key))
        if held is None:
            raise ObjectNotFoundError(f"cannot read {key!r} in {self.url}: no such object")
        return held

    async def get(self, key: str) -> bytes:
        return self._held(key).data

    async def get_versioned(self, key: str) -> Versioned:
        held = self._held(key)
        return Versioned(held.data, held.version, held.last_modified)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        check_range(start, end)
        data = self._held(key).data
        if start >= len(data) and end > start:
            raise StorageError(f"cannot read {key!r} in {self.url} from byte {start}: it has {len(data)} bytes")
        return data[start:end]

    async def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        if len(starts) != len(ends):
            raise InvalidInputError(f"{len(starts)} starts and {len(ends)} ends do not make ranges")
        return [await self.get_range(key, start, end) for start, end in zip(starts, ends, strict=True)]

    async def get_range_if(
        self, key: str, start: int, end: int, *, etag: str | None = None, not_modified_after: dt.datetime | None = None
    ) -> bytes:
        held = self._held(key)
        check_unchanged(
            f"{self.url}{key}",
            etag=etag,
            found_etag=held.version.etag,
            not_modified_after=not_modified_after,
            found_modified=held.last_modified,
        )
        return await self.get_range(key, start, end)

    async def head(self, key: str) -> ObjectInfo:
        held = self._held(key)
        return ObjectInfo(key, len(held.data), held.last_modified, held.version)

    async def metadata(self, key: str) -> Mapping[str, str]:
        """The user metadata an object was written with."""
        return self._held(key).metadata

    async def put(self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        with self._room.lock:
            self._room.write(self._prefix + check_key(key), data, metadata)

    async def create(
        self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None, unique: bool = True
    ) -> Version:
        place = self._prefix + check_key(key)
        with self._room.lock:
            if place in self._room.objects:
                raise AlreadyExistsError(f"cannot create {key!r} in {self.url}: it is there already")
            return self._room.write(place, data, metadata)

    async def swap(
        self,
        key: str,
        data: Buffer,
        version: Version,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        place = self._prefix + check_key(key)
        with self._room.lock:
            held = self._room.objects.get(place)
            if held is None or held.version != version:
                raise VersionMismatchError(f"cannot replace {key!r} in {self.url}: it changed since it was read")
            return self._room.write(place, data, metadata)

    async def list_names(self, prefix: str) -> list[str]:
        folder = self._prefix + check_prefix(prefix)
        with self._room.lock:
            below = self._room.below(folder, "")
        names = (key[len(folder) :] for key in below)
        return sorted({name[: name.index("/") + 1] if "/" in name else name for name in names})

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        folder = self._prefix + check_prefix(prefix)
        last = self._prefix + after if after else ""
        while True:
            with self._room.lock:
                found = [
                    ObjectInfo(key[len(self._prefix) :], len(held.data), held.last_modified, held.version)
                    for key in self._room.below(folder, last)[:_PAGE]
                    for held in (self._room.objects[key],)
                ]
            if not found:
                return
            yield found
            last = self._prefix + found[-1].key

    async def delete(self, keys: Sequence[str]) -> None:
        places = [self._prefix + check_key(key) for key in keys]
        with self._room.lock:
            self._room.remove(places)

    async def copy(self, source: str, target: str, *, version: Version | None = None) -> None:
        held = self._held(source)
        if version is not None and version != held.version:
            raise VersionMismatchError(f"cannot copy {source!r} in {self.url}: it changed since it was read")
        await self.put(target, held.data, metadata=held.metadata)

    def child(self, prefix: str) -> Storage:
        return MemoryStorage(self._room, join_prefix(self._prefix, prefix))
