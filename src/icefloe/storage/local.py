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

from icefloe.errors import AlreadyExistsError, InvalidInputError, StorageError, VersionMismatchError
from icefloe.storage import local_files as files
from icefloe.storage.contract import Buffer, ObjectInfo, Storage, Version, Versioned, flat_bytes
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

    `fsync` makes every write durable before it is reported. `encoded` is False for files of others, whose names are
    taken as they are.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = False, encoded: bool = True) -> None:
        self._root = os.path.abspath(os.path.expanduser(os.fspath(path)))
        self._prefix = self._root.rstrip("/") + "/"
        self._durability = files.Durability(fsync)
        self._encoded = encoded
        self._pace = _Pace()
        self._list_pace = _Pace()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._root, self._durability.fsync, self._encoded)

    def __repr__(self) -> str:
        return f"LocalStorage({self._root!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStorage) and self.__reduce__() == other.__reduce__()

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

    async def _run(self, pace: _Pace, call: Callable[[], T], size: int = 0) -> T:
        if size <= INLINE_BYTES and pace.quick and not self._durability.fsync:
            return pace.timed(call)
        return await FILES.run(lambda: pace.timed(call))

    async def get(self, key: str) -> bytes:
        path = self.path_of(key)
        with Translating("read", key, self._root):
            return await self._run(self._pace, lambda: files.read_file(path), self._size_of(path))

    def _size_of(self, path: str) -> int:
        """How large a file is, where asking is cheap and the answer decides who reads it."""
        return os.stat(path).st_size if self._pace.quick else 0

    async def get_versioned(self, key: str) -> Versioned:
        path = self.path_of(key)
        with Translating("read", key, self._root):
            data, version, found = await self._run(self._pace, lambda: files.read_versioned(path), self._size_of(path))
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
            parts, found = await self._run(self._pace, lambda: files.read_ranges(path, starts, ends), wanted)
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
            found = await self._run(self._pace, lambda: files.stat_file(path))
        return _info(key, found)

    async def put(self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        path, flat = self.path_of(key), flat_bytes(data)
        with Translating("write", key, self._root):
            await self._run(self._pace, lambda: files.write_file(path, flat, self._durability), len(flat))

    async def create(
        self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None, unique: bool = True
    ) -> Version:
        path, flat = self.path_of(key), flat_bytes(data)
        with Translating("create", key, self._root):
            try:
                return await self._run(self._pace, lambda: files.create_file(path, flat, self._durability), len(flat))
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
                    return await self._run(
                        self._pace,
                        lambda: files.swap_file(path, flat, version, self._durability, wait=False),
                        len(flat),
                    )
                except BlockingIOError:
                    # Another process swaps in this folder: wait where it holds nobody up.
                    return await FILES.run(lambda: files.swap_file(path, flat, version, self._durability, wait=True))
            except files.ChangedError as error:
                raise VersionMismatchError(
                    f"cannot replace {key!r} in {self._root}: it changed since it was read"
                ) from error

    async def list_names(self, prefix: str) -> list[str]:
        folder = self._folder_of(prefix)
        with Translating("list", prefix, self._root):
            return await self._run(self._list_pace, lambda: files.list_folder(folder, encoded=self._encoded))

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        walking = files.walk(self._folder_of(prefix), prefix, after or "", encoded=self._encoded)
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
            return await FILES.run(lambda: files.names_of_length(folder, length))

    async def stat_names(self, prefix: str, names: Sequence[bytes]) -> tuple[Sequence[int], Sequence[int]]:
        """Sizes, and times in nanoseconds, of files directly in a folder; -1 for those that are gone."""
        folder = self._folder_of(prefix)
        with Translating("list", prefix, self._root):
            return await FILES.run(lambda: files.stat_names(folder, names))

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self.path_of(key) for key in keys]
        with Translating(f"delete {len(keys)} objects, among them", keys[0] if keys else "", self._root):
            if len(paths) <= _FEW_FILES and self._pace.quick:
                try:
                    return self._pace.timed(lambda: files.delete_files(paths, wait=False))
                except BlockingIOError:
                    pass  # another process swaps in this folder: wait where it holds nobody up
            parts = [paths[low : low + _DELETED_AT_ONCE] for low in range(0, len(paths), _DELETED_AT_ONCE)]
            work = [DELETIONS.run(functools.partial(files.delete_files, part)) for part in parts]
            for outcome in await asyncio.gather(*work, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome

    async def copy(self, source: str, target: str, *, version: Version | None = None) -> None:
        old, new = self.path_of(source), self.path_of(target)
        with Translating("copy", source, self._root):
            try:
                await self._run(
                    self._pace, lambda: files.copy_file(old, new, version, self._durability), self._size_of(old)
                )
            except files.ChangedError as error:
                raise VersionMismatchError(
                    f"cannot copy {source!r} in {self._root}: it changed since it was read"
                ) from error

    def child(self, prefix: str) -> Storage:
        folder = join_prefix("", prefix)
        return LocalStorage(self._folder_of(folder), fsync=self._durability.fsync, encoded=self._encoded)

    async def remove_leftovers(self, older_than: dt.timedelta) -> int:
        """Remove the unfinished files of writers that died that long ago; how many they were."""
        with Translating("clean up", "", self._root):
            return await FILES.run(lambda: files.remove_leftovers(self._root, older_than.total_seconds(), time.time()))


def _rebuild(root: str, fsync: bool, encoded: bool) -> LocalStorage:
    return LocalStorage(root, fsync=fsync, encoded=encoded)


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
