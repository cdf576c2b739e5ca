"""A storage in a folder of the file system, safe for many processes at once."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from icefloe.errors import (
    AlreadyExistsError,
    InvalidInputError,
    OutcomeUnknownError,
    StorageError,
    VersionMismatchError,
)
from icefloe.storage import local_files as files
from icefloe.storage.contract import Buffer, ObjectInfo, Storage, Version, Versioned, flat_bytes
from icefloe.storage.durability import unsynced_below
from icefloe.storage.keys import check_key, check_prefix, encode_key, join_prefix
from icefloe.storage.ranges import check_range
from icefloe.storage.sources import SourceStorage, check_unchanged
from icefloe.storage.threads import DELETIONS, FILES
from icefloe.storage.translate import Translating

T = TypeVar("T")

INLINE_BYTES = 1 << 17
"""Up to here, handing the work to a thread takes longer than the work."""
_PAGES = (16, 64, 256, 1000)
"""Keys a page: the first come at once, whoever wants all soon gets many."""
_SLOW_SECONDS = 0.002
_FEW_FILES = 16
_DELETED_AT_ONCE = 64
"""Files that one thread deletes before it looks for other work."""


class _Pace:
    """How fast the file system answers lately: a slow one is asked from threads only."""

    __slots__ = ("_average_seconds",)

    def __init__(self) -> None:
        self._average_seconds = 0.0

    @property
    def quick(self) -> bool:
        return self._average_seconds < _SLOW_SECONDS

    def timed(self, call: Callable[[], T]) -> T:
        started = time.perf_counter()
        try:
            return call()
        finally:
            took = min(time.perf_counter() - started, 10 * _SLOW_SECONDS)
            self._average_seconds += (took - self._average_seconds) / 16


class LocalStorage(SourceStorage):
    """Objects as files below a folder.

    With `fsync`, which is the default, what a create, swap or delete comes after survives a power loss before it takes
    effect, and so does its own effect before it is reported. A plain put is not waited for: nothing refers to it until
    a later write decides so. In another process than the one that made the storage every put is waited for, because
    the write that decides happens elsewhere. `encoded` is False for files of others, whose names are taken as they are.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool | None = None, encoded: bool = True) -> None:
        self._root = os.path.abspath(os.path.expanduser(os.fspath(path)))
        self._prefix = self._root.rstrip("/") + "/"
        self._bounds = files.Bounds(self._root)
        self._fsync = fsync
        self._unsynced = unsynced_below(self._root) if fsync is not False else None
        self._home = os.getpid()
        self._encoded = encoded
        self._pace = _Pace()
        self._list_pace = _Pace()

    def __reduce__(self) -> tuple[Any, ...]:
        # Whoever takes the storage over may refer to what was written here.
        if self._unsynced is not None and self._unsynced.has_writes:
            self._unsynced.sync()
        return _rebuild, (self._root, self._fsync, self._encoded, self._home, self._bounds.root)

    def __repr__(self) -> str:
        return f"LocalStorage({self._root!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LocalStorage):
            return False
        return (self._root, self._fsync, self._encoded) == (other._root, other._fsync, other._encoded)

    def __hash__(self) -> int:
        return hash(self._root)

    @property
    def url(self) -> str:
        return Path(self._root).as_uri() + "/"

    def path_of(self, key: str) -> str:
        """The file that holds an object."""
        check_key(key)
        return self._prefix + (encode_key(key) if self._encoded else key)

    def _folder_of(self, prefix: str) -> str:
        check_prefix(prefix)
        return self._prefix + (encode_key(prefix) if self._encoded else prefix).removesuffix("/")

    @property
    def fsync(self) -> bool | None:
        """Whether writes survive a power loss; None where nobody said so, which means that they do."""
        return self._fsync

    def with_fsync(self, fsync: bool) -> LocalStorage:
        """The same storage, with writes that survive a power loss or with faster ones."""
        return _rebuild(self._root, fsync, self._encoded, self._home, self._bounds.root)

    async def make_durable(self) -> None:
        unsynced = self._unsynced
        if unsynced is not None:
            with Translating("sync", "", self._root):
                await FILES.run(unsynced.sync)

    @property
    def _at_once(self) -> bool:
        """Whether a put waits for the disk: somebody else decides, and does not know of it."""
        return self._unsynced is not None and os.getpid() != self._home

    async def _run(self, pace: _Pace, call: Callable[[], T], size: int = 0) -> T:
        if size <= INLINE_BYTES and pace.quick:
            return pace.timed(call)
        return await FILES.run(lambda: pace.timed(call))

    async def _put(self, call: Callable[[], T], size: int) -> T:
        return await (FILES.run(call) if self._at_once else self._run(self._pace, call, size))

    async def _decide(self, call: Callable[[], T], size: int, key: str) -> T:
        """Carry out a conditional write; one that waits for the disk holds nobody up."""
        if self._unsynced is None:
            return await self._run(self._pace, call, size)
        try:
            return await FILES.run(call)
        except files.NotDurableError as error:
            raise OutcomeUnknownError(
                f"{key!r} in {self._root} was written, but the system cannot say that it survives a power loss: "
                f"{error}; check the disk, then look at what is there"
            ) from error

    async def get(self, key: str) -> bytes:
        path = self.path_of(key)
        with Translating("read", key, self._root):
            return await self._run(self._pace, lambda: files.read_file(path, self._bounds), self._size_of(path))

    def _size_of(self, path: str) -> int:
        """How large a file is, where asking is cheap and the answer decides who reads it."""
        return os.stat(path).st_size if self._pace.quick else 0

    async def get_versioned(self, key: str) -> Versioned:
        path = self.path_of(key)
        with Translating("read", key, self._root):
            data, version, found = await self._run(
                self._pace, lambda: files.read_versioned(path, self._bounds), self._size_of(path)
            )
        return Versioned(data, version, _time(found))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return (await self.get_ranges(key, (start,), (end,)))[0]

    async def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        return (await self._read_ranges(key, starts, ends))[0]

    async def _read_ranges(
        self, key: str, starts: Sequence[int], ends: Sequence[int]
    ) -> tuple[list[bytes], os.stat_result]:
        if len(starts) != len(ends):
            raise InvalidInputError(f"{len(starts)} starts and {len(ends)} ends do not make ranges")
        wanted = 0
        for start, end in zip(starts, ends, strict=True):
            check_range(start, end)
            wanted += end - start
        path = self.path_of(key)
        with Translating("read", key, self._root):
            parts, found = await self._run(
                self._pace, lambda: files.read_ranges(path, starts, ends, self._bounds), wanted
            )
        for part, start, end in zip(parts, starts, ends, strict=True):
            if not part and end > start:
                size = found.st_size
                raise StorageError(f"cannot read {key!r} in {self._root} from byte {start}: it has {size} bytes")
        return parts, found

    async def get_range_if(
        self, key: str, start: int, end: int, *, etag: str | None = None, not_modified_after: dt.datetime | None = None
    ) -> bytes:
        parts, found = await self._read_ranges(key, (start,), (end,))
        check_unchanged(
            f"{self.url}{key}",
            etag=etag,
            found_etag=files.stat_etag(found),
            not_modified_after=not_modified_after,
            found_modified=_time(found),
        )
        return parts[0]

    async def head(self, key: str) -> ObjectInfo:
        path = self.path_of(key)
        with Translating("look at", key, self._root):
            found = await self._run(self._pace, lambda: files.stat_file(path, self._bounds))
        return _info(key, found)

    async def put(self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        path, flat = self.path_of(key), flat_bytes(data)
        with Translating("write", key, self._root):
            at_once = self._at_once
            await self._put(
                lambda: files.write_file(path, flat, self._unsynced, self._bounds, at_once=at_once), len(flat)
            )

    async def create(
        self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None, unique: bool = True
    ) -> Version:
        path, flat = self.path_of(key), flat_bytes(data)
        with Translating("create", key, self._root):
            try:
                return await self._decide(
                    lambda: files.create_file(path, flat, self._unsynced, self._bounds), len(flat), key
                )
            except FileExistsError as error:
                raise AlreadyExistsError(f"cannot create {key!r} in {self._root}: it is there already") from error

    async def swap(
        self,
        key: str,
        data: Buffer,
        version: Version,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        path, flat = self.path_of(key), flat_bytes(data)
        with Translating("replace", key, self._root):
            try:
                try:
                    wait = self._unsynced is not None  # in a thread anyway
                    return await self._decide(
                        lambda: files.swap_file(path, flat, version, self._unsynced, self._bounds, wait=wait),
                        len(flat),
                        key,
                    )
                except BlockingIOError:
                    # Another process swaps in this folder: wait where it holds nobody up.
                    return await FILES.run(
                        lambda: files.swap_file(path, flat, version, self._unsynced, self._bounds, wait=True)
                    )
            except files.ChangedError as error:
                raise VersionMismatchError(
                    f"cannot replace {key!r} in {self._root}: it changed since it was read"
                ) from error

    async def list_names(self, prefix: str) -> list[str]:
        folder = self._folder_of(prefix)
        with Translating("list", prefix, self._root):
            return await self._run(
                self._list_pace, lambda: files.list_folder(folder, self._bounds, encoded=self._encoded)
            )

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        walking = files.walk(self._folder_of(prefix), prefix, after or "", self._bounds, encoded=self._encoded)
        for size in itertools.chain(_PAGES, itertools.repeat(_PAGES[-1])):
            take = functools.partial(_next_page, walking, size)
            with Translating("list", prefix, self._root):
                found, ended = await self._run(self._list_pace, take)
            if found:
                yield found
            if ended:
                return

    async def list_names_of_length(self, prefix: str, length: int) -> Sequence[bytes]:
        """Names of so many bytes directly in a folder, as files spell them, in any order."""
        folder = self._folder_of(prefix)
        with Translating("list", prefix, self._root):
            return await FILES.run(lambda: files.names_of_length(folder, length, self._bounds))

    async def stat_names(self, prefix: str, names: Sequence[bytes]) -> tuple[Sequence[int], Sequence[int]]:
        """Sizes, and times in nanoseconds, of files directly in a folder; -1 for those that are gone."""
        folder = self._folder_of(prefix)
        with Translating("list", prefix, self._root):
            return await FILES.run(lambda: files.stat_names(folder, names, self._bounds))

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self.path_of(key) for key in keys]
        with Translating(f"delete {len(keys)} objects, among them", keys[0] if keys else "", self._root):
            unsynced = self._unsynced
            if len(paths) <= _FEW_FILES and self._pace.quick and not (unsynced and unsynced.has_writes):
                try:
                    return self._pace.timed(lambda: files.delete_files(paths, unsynced, self._bounds, wait=False))
                except BlockingIOError:
                    pass  # another process swaps in this folder: wait where it holds nobody up
            parts = [paths[low : low + _DELETED_AT_ONCE] for low in range(0, len(paths), _DELETED_AT_ONCE)]
            work = [
                DELETIONS.run(functools.partial(files.delete_files, part, unsynced, self._bounds)) for part in parts
            ]
            for outcome in await asyncio.gather(*work, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome

    async def copy(self, source: str, target: str, *, version: Version | None = None) -> None:
        old, new = self.path_of(source), self.path_of(target)
        with Translating("copy", source, self._root):
            try:
                at_once = self._at_once
                await self._put(
                    lambda: files.copy_file(old, new, version, self._unsynced, self._bounds, at_once=at_once),
                    self._size_of(old),
                )
            except files.ChangedError as error:
                raise VersionMismatchError(
                    f"cannot copy {source!r} in {self._root}: it changed since it was read"
                ) from error

    def child(self, prefix: str) -> Storage:
        folder = join_prefix("", prefix)
        # No link below the folder that the caller named leads out of it, also not the folder of the child.
        child = _rebuild(self._folder_of(folder), self._fsync, self._encoded, self._home, self._bounds.root)
        child._unsynced = self._unsynced
        return child

    async def remove_leftovers(self, older_than: dt.timedelta, now: dt.datetime | None = None) -> int:
        """Remove the unfinished files of writers that died that long ago; how many they were.

        `now` is the time by the clock that gives files their times: on a network mount it is that of the server.
        """
        seconds = time.time() if now is None else now.timestamp()
        with Translating("clean up", "", self._root):
            return await FILES.run(lambda: files.remove_leftovers(self._root, older_than.total_seconds(), seconds))


def _rebuild(root: str, fsync: bool | None, encoded: bool, home: int, bounds: str) -> LocalStorage:
    storage = LocalStorage(root, fsync=fsync, encoded=encoded)
    storage._bounds = files.Bounds(bounds)
    storage._home = home
    return storage


def _time(found: os.stat_result) -> dt.datetime:
    return dt.datetime.fromtimestamp(found.st_mtime, dt.UTC)


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, found.st_size, _time(found), Version(etag=files.stat_etag(found)))


def _next_page(walking: Iterator[tuple[str, str]], size: int) -> tuple[list[ObjectInfo], bool]:
    page = list(itertools.islice(walking, size))
    found = []
    for key, path in page:
        try:
            found.append(_info(key, os.stat(path)))
        except FileNotFoundError:
            continue  # deleted since the folder was read
    return found, len(page) < size
