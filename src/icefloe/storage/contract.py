"""The contract of a storage: bytes by key, with conditional writes."""

from __future__ import annotations

import asyncio
import builtins
import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from icefloe.blocking import run_blocking
from icefloe.display.card import ShownField, WithFields
from icefloe.errors import ObjectNotFoundError, StorageError
from icefloe.model.config import StorageConcurrencySettings, StorageRetriesSettings, StorageSettings
from icefloe.storage.requests import (
    DEFAULT_REQUEST_BYTES,
    RANGES_AT_ONCE,
    MergedRead,
    RetryPolicy,
    check_ranges,
    plan_reads,
)

Buffer: TypeAlias = bytes | bytearray | memoryview


def flat_bytes(data: Buffer) -> bytes | memoryview:
    """The bytes of a buffer in one dimension, without a copy."""
    if isinstance(data, bytes):
        return data
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


@dataclass(frozen=True, slots=True)
class Version:
    """The version of an object. Only the storage that returned it can interpret it."""

    etag: str | None = None
    generation: str | None = None

    def agrees_with(self, other: Version) -> bool:
        """Whether both can be the same version. Every value that both have is equal, and there is at least one."""
        pairs = ((self.etag, other.etag), (self.generation, other.generation))
        known = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
        return bool(known) and all(mine == theirs for mine, theirs in known)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object in a listing. The time is that of the store's clock, in UTC."""

    key: str
    size_bytes: int
    last_modified: dt.datetime
    version: Version = Version()


@dataclass(frozen=True, slots=True)
class Versioned:
    """The content of an object, with its version."""

    data: bytes
    version: Version
    last_modified: dt.datetime | None = None


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class Storage(WithFields, ABC):
    """A folder of an object store.

    Keys are relative. Their parts are separated by `/`, and they do not start with a slash. Every method raises
    ObjectNotFoundError for a missing key, PermissionDeniedError if the store refuses the credentials, and StorageError
    for failures that may be temporary, after the configured retries.

    A storage can be pickled and used from any event loop. A storage in memory is only valid in its own process.

    Subclass it for another kind of store. `icefloe.testing.StorageContract` tests what the library relies on.

    Examples
    --------
    >>> import asyncio, icefloe
    >>> storage = icefloe.in_memory_storage()
    >>> asyncio.run(storage.put("a/b", b"content"))
    >>> asyncio.run(storage.get("a/b"))
    b'content'
    """

    _full_name = "icechunk.Storage"

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("type", type(self).__name__)
        yield ShownField("url", self.url)

    @property
    @abstractmethod
    def url(self) -> str:
        """The address of the storage, for messages. It contains no credentials."""

    @property
    def read_only(self) -> bool:
        """Whether the storage refuses all writes."""
        return False

    @property
    def state_storage(self) -> Storage:
        """The storage of the file that contains all refs. It is another one if the storage is a `SplitStorage`."""
        return self

    @property
    def data_storage(self) -> Storage:
        """The storage of all other files."""
        return self

    @abstractmethod
    async def get(self, key: str) -> bytes:
        """Read a whole object.

        Parameters
        ----------
        key
            The key of the object.

        Returns
        -------
        bytes
            The content of the object.

        Raises
        ------
        ObjectNotFoundError
            The object does not exist.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> asyncio.run(storage.put("a", b"content"))
        >>> asyncio.run(storage.get("a"))
        b'content'
        """

    @abstractmethod
    async def get_versioned(self, key: str) -> Versioned:
        """Read a whole object and its version in one request.

        Parameters
        ----------
        key
            The key of the object.

        Returns
        -------
        Versioned
            The content, the version and, if the store reports it, the time of the last change.

        Raises
        ------
        ObjectNotFoundError
            The object does not exist.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> asyncio.run(storage.put("a", b"content"))
        >>> asyncio.run(storage.get_versioned("a")).data
        b'content'
        """

    @abstractmethod
    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Read a range of bytes of an object.

        Parameters
        ----------
        key
            The key of the object.
        start
            The first byte.
        end
            The end of the range. The byte at this position is not included.

        Returns
        -------
        bytes
            The bytes. There are fewer of them if the object ends before `end`.

        Raises
        ------
        ObjectNotFoundError
            The object does not exist.
        StorageError
            The object ends before `start`.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> asyncio.run(storage.put("a", b"content"))
        >>> asyncio.run(storage.get_range("a", 1, 4))
        b'ont'
        """

    async def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """Read several ranges of bytes of one object. Ranges that are close to each other are read with one request.

        Parameters
        ----------
        key
            The key of the object.
        starts
            The first byte of each range.
        ends
            The end of each range. The byte at this position is not included.

        Returns
        -------
        list of bytes
            The bytes of each range.

        Raises
        ------
        ObjectNotFoundError
            The object does not exist.
        StorageError
            The object ends before the start of a range.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> asyncio.run(storage.put("a", b"content"))
        >>> asyncio.run(storage.get_ranges("a", [0, 4], [2, 7]))
        [b'co', b'ent']
        """
        check_ranges(starts, ends)
        found: list[bytes] = [b""] * len(starts)
        filled = [index for index in range(len(starts)) if ends[index] > starts[index]]
        lows = np.fromiter((starts[index] for index in filled), np.int64, len(filled))
        highs = np.fromiter((ends[index] for index in filled), np.int64, len(filled))
        gate = asyncio.Semaphore(RANGES_AT_ONCE)

        async def fetch(read: MergedRead) -> None:
            async with gate:
                data = await self.get_range(key, read.start, read.end)
            members = [filled[member] for member in read.members.tolist()]
            if len(members) == 1:
                found[members[0]] = data
                return
            view = memoryview(data)
            for index in members:
                if starts[index] - read.start >= len(data):
                    raise StorageError(
                        f"cannot read {key!r} in {self.url} from byte {starts[index]}: "
                        f"it has {read.start + len(data)} bytes"
                    )
                found[index] = bytes(view[starts[index] - read.start : ends[index] - read.start])

        await asyncio.gather(*(fetch(read) for read in plan_reads(lows, highs)))
        return found

    @abstractmethod
    async def head(self, key: str) -> ObjectInfo:
        """Read the size, the time of the last change and the version of an object.

        Parameters
        ----------
        key
            The key of the object.

        Returns
        -------
        ObjectInfo
            The facts about the object. The time is that of the store's clock.

        Raises
        ------
        ObjectNotFoundError
            The object does not exist.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> asyncio.run(storage.put("a", b"content"))
        >>> asyncio.run(storage.head("a")).size_bytes
        7
        """

    @abstractmethod
    async def put(self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        """Write an object under a key that no other writer uses. Readers see the whole object or none.

        Parameters
        ----------
        key
            The key of the object.
        data
            Its content.
        metadata
            User metadata. Stores that have none ignore it.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> asyncio.run(storage.put("a", b"content"))
        """

    @abstractmethod
    async def write_if(
        self,
        key: str,
        data: Buffer,
        before: Version | None,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        """Write an object if it has a certain version, or if it does not exist.

        Parameters
        ----------
        key
            The key of the object.
        data
            Its new content.
        before
            The version that the object must have. None: the object must not exist.
        metadata
            User metadata. Stores that have none ignore it.
        unique
            Whether no other writer writes the same bytes. If a response is lost and the object then has these bytes,
            the write succeeded.

        Returns
        -------
        Version
            The new version of the object.

        Raises
        ------
        AlreadyExistsError
            `before` is None and the object exists. Exactly one of many callers succeeds.
        VersionMismatchError
            The object has another version, or does not exist.
        OutcomeUnknownError
            The response was lost, and the object does not show whether the write took effect.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> first = asyncio.run(storage.write_if("a", b"one", None))
        >>> second = asyncio.run(storage.write_if("a", b"two", first))
        >>> asyncio.run(storage.get("a"))
        b'two'
        """

    async def create(
        self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None, unique: bool = True
    ) -> Version:
        """Create an object that must not exist.

        Parameters
        ----------
        key
            The key of the object.
        data
            Its content.
        metadata
            User metadata. Stores that have none ignore it.
        unique
            Whether no other writer writes the same bytes. See `write_if`.

        Returns
        -------
        Version
            The version of the new object.

        Raises
        ------
        AlreadyExistsError
            The object exists. Exactly one of many callers succeeds.
        OutcomeUnknownError
            The response was lost, and the object does not show whether the write took effect.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> version = asyncio.run(storage.create("a", b"content"))
        >>> asyncio.run(storage.create("a", b"other"))
        Traceback (most recent call last):
            ...
        icefloe.errors.AlreadyExistsError: ...
        """
        return await self.write_if(key, data, None, metadata=metadata, unique=unique)

    async def swap(
        self,
        key: str,
        data: Buffer,
        version: Version,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        """Replace an object that must have a certain version.

        Parameters
        ----------
        key
            The key of the object.
        data
            Its new content.
        version
            The version that the object must have.
        metadata
            User metadata. Stores that have none ignore it.
        unique
            Whether no other writer writes the same bytes. See `write_if`.

        Returns
        -------
        Version
            The new version of the object.

        Raises
        ------
        VersionMismatchError
            The object has another version, or does not exist.
        OutcomeUnknownError
            The response was lost, and the object does not show whether the write took effect.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> version = asyncio.run(storage.create("a", b"one"))
        >>> version = asyncio.run(storage.swap("a", b"two", version))
        >>> asyncio.run(storage.get("a"))
        b'two'
        """
        return await self.write_if(key, data, version, metadata=metadata, unique=unique)

    @abstractmethod
    async def list_names(self, prefix: str) -> list[str]:
        """List the names directly in a folder, without sizes and times.

        Parameters
        ----------
        prefix
            The folder. It ends in `/`, or is empty for the whole storage.

        Returns
        -------
        list of str
            The names, sorted. Names of folders end in `/`. A folder exists only if it contains an object.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> for key in ("a/b", "a/c/d"):
        ...     asyncio.run(storage.put(key, b""))
        >>> asyncio.run(storage.list_names("a/"))
        ['b', 'c/']
        """

    @abstractmethod
    def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        """List the objects in a folder and its subfolders in pages, sorted by key.

        Pages are requested when they are read. A caller that stops early causes no further requests.

        Parameters
        ----------
        prefix
            The folder. It ends in `/`, or is empty for the whole storage.
        after
            Only list keys greater than this one.

        Yields
        ------
        sequence of ObjectInfo
            One page of objects.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> for key in ("a/b", "a/c/d"):
        ...     asyncio.run(storage.put(key, b""))
        >>> async def keys():
        ...     return [item.key async for page in storage.list("a/") for item in page]
        >>> asyncio.run(keys())
        ['a/b', 'a/c/d']
        """

    @property
    def lists_names_faster(self) -> bool:
        """Whether names alone are listed much faster than names with sizes and times.

        If so, use `list_names_of_length` and `stat_names` instead of `list` to read the sizes and times of a few
        objects in a large folder.
        """
        return False

    async def list_names_of_length(self, prefix: str, length: int) -> Sequence[bytes]:
        """List the names of a certain length directly in a folder, in any order.

        Parameters
        ----------
        prefix
            The folder. It ends in `/`, or is empty for the whole storage.
        length
            The length of the names in bytes.

        Returns
        -------
        sequence of bytes
            The names. A name may be that of a folder.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> for key in ("a/b", "a/long"):
        ...     asyncio.run(storage.put(key, b""))
        >>> asyncio.run(storage.list_names_of_length("a/", 4))
        [b'long']
        """
        names = [name.encode() for name in await self.list_names(prefix) if not name.endswith("/")]
        return [name for name in names if len(name) == length]

    async def stat_names(self, prefix: str, names: Sequence[bytes]) -> tuple[Sequence[int], Sequence[int]]:
        """Read the sizes and times of some objects directly in a folder.

        Parameters
        ----------
        prefix
            The folder. It ends in `/`, or is empty for the whole storage.
        names
            The names of the objects.

        Returns
        -------
        tuple of two sequences of int
            The sizes in bytes, and the times of the last change in nanoseconds since 1970. Both are -1 for an object
            that does not exist.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> asyncio.run(storage.put("a/b", b"content"))
        >>> sizes, times = asyncio.run(storage.stat_names("a/", [b"b", b"c"]))
        >>> list(sizes)
        [7, -1]
        """
        wanted = {f"{prefix}{name.decode()}": row for row, name in enumerate(names)}
        sizes, times = [-1] * len(names), [-1] * len(names)
        async for page in self.list(prefix):
            for item in page:
                row = wanted.get(item.key)
                if row is not None:
                    sizes[row] = item.size_bytes
                    times[row] = (item.last_modified - _EPOCH) // _MICROSECOND * 1000
        return sizes, times

    @abstractmethod
    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. A missing object is not an error.

        Parameters
        ----------
        keys
            The keys of the objects.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> asyncio.run(storage.put("a", b"content"))
        >>> asyncio.run(storage.delete(["a", "b"]))
        >>> asyncio.run(storage.exists("a"))
        False
        """

    @abstractmethod
    async def copy(self, source: str, target: str, *, version: Version | None = None) -> None:
        """Copy an object inside the storage.

        Parameters
        ----------
        source
            The key of the object.
        target
            The key of the copy.
        version
            The version that the object must have. None: any version.

        Raises
        ------
        ObjectNotFoundError
            The object does not exist.
        VersionMismatchError
            The object has another version.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> asyncio.run(storage.put("a", b"content"))
        >>> asyncio.run(storage.copy("a", "b"))
        >>> asyncio.run(storage.get("b"))
        b'content'
        """

    async def exists(self, key: str) -> bool:
        """Return whether an object exists.

        Parameters
        ----------
        key
            The key of the object.

        Returns
        -------
        bool
            Whether the object exists.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> asyncio.run(icefloe.in_memory_storage().exists("a"))
        False
        """
        try:
            await self.head(key)
        except ObjectNotFoundError:
            return False
        return True

    async def is_empty(self) -> bool:
        """Return whether the storage contains no object.

        Returns
        -------
        bool
            Whether the storage is empty.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> asyncio.run(icefloe.in_memory_storage().is_empty())
        True
        """
        async for page in self.list(""):
            if page:
                return False
        return True

    async def make_durable(self) -> None:
        """Wait until everything that this process wrote survives a power loss.

        `create`, `swap` and `delete` wait for it before they take effect. Writes to object stores are always durable.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> asyncio.run(icefloe.in_memory_storage().make_durable())
        """

    async def remove_leftovers(self, older_than: dt.timedelta, now: dt.datetime | None = None) -> int:
        """Remove unfinished files that writers left behind when they died.

        Only file systems have such files. Object stores only show finished objects.

        Parameters
        ----------
        older_than
            Only remove files older than this. Choose a value longer than your longest-running write.
        now
            The current time by the clock of the store. By default, the clock of this process is used.

        Returns
        -------
        int
            The number of removed files.

        Examples
        --------
        >>> import asyncio, datetime, icefloe
        >>> asyncio.run(icefloe.in_memory_storage().remove_leftovers(datetime.timedelta(days=1)))
        0
        """
        return 0

    def default_settings(self) -> StorageSettings:
        """Return the settings that are used where a configuration has none.

        Returns
        -------
        StorageSettings
            The settings.

        Examples
        --------
        >>> import icefloe
        >>> icefloe.in_memory_storage().default_settings().retries.max_tries
        10
        """
        usual = RetryPolicy()
        return StorageSettings(
            concurrency=StorageConcurrencySettings(
                max_concurrent_requests_for_object=RANGES_AT_ONCE, ideal_concurrent_request_size=DEFAULT_REQUEST_BYTES
            ),
            retries=StorageRetriesSettings(usual.max_tries, usual.initial_backoff_ms, usual.max_backoff_ms),
            unsafe_use_conditional_create=True,
            unsafe_use_conditional_update=True,
            unsafe_use_metadata=True,
        )

    def list_objects(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> builtins.list[tuple[str, int]]:
        """Return the keys and sizes of all objects.

        Parameters
        ----------
        settings
            Ignored. Accepted for compatibility with icechunk.
        prefix
            Only list objects in this folder.

        Returns
        -------
        list of tuple
            Key, relative to the storage, and size in bytes.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> asyncio.run(storage.put("a/b", b"content"))
        >>> storage.list_objects(prefix="a")
        [('a/b', 7)]
        """
        return [(found.key, found.size_bytes) for found in self.list_objects_metadata(settings, prefix)]

    def list_objects_metadata(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> builtins.list[StorageObjectInfo]:
        """Return the keys, sizes and times of all objects.

        Parameters
        ----------
        settings
            Ignored. Accepted for compatibility with icechunk.
        prefix
            Only list objects in this folder.

        Returns
        -------
        list of StorageObjectInfo
            The objects.

        Examples
        --------
        >>> import icefloe
        >>> icefloe.in_memory_storage().list_objects_metadata()
        []
        """
        folder = (prefix or "").strip("/")

        async def found() -> builtins.list[StorageObjectInfo]:
            return [
                StorageObjectInfo(info.key, info.size_bytes, info.last_modified)
                async for page in self.list(f"{folder}/" if folder else "")
                for info in page
            ]

        return run_blocking(found())

    def configured(self, settings: StorageSettings) -> Storage:
        """Return this storage with the settings of a repository.

        Parameters
        ----------
        settings
            The settings. Those that are None, and those that the storage was created with, do not change.

        Returns
        -------
        Storage
            This storage if nothing changes.

        Examples
        --------
        >>> import icefloe
        >>> icefloe.local_filesystem_storage("/data").configured(icefloe.StorageSettings(fsync=False)).fsync
        False
        """
        return self

    @abstractmethod
    def child(self, prefix: str) -> Storage:
        """Return the storage of a folder inside this one.

        Parameters
        ----------
        prefix
            The folder.

        Returns
        -------
        Storage
            A storage whose keys are relative to the folder.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> asyncio.run(storage.child("a").put("b", b"content"))
        >>> asyncio.run(storage.get("a/b"))
        b'content'
        """


StorageLike: TypeAlias = Storage | str | Path
"""A storage, or the URL or path of one."""


@dataclass(frozen=True, slots=True)
class StorageObjectInfo:
    """The key, size and time of an object."""

    key: str
    size_bytes: int
    created_at: dt.datetime


class SourceStorage(Storage):
    """A storage that can read a range on the condition that the file is still the one that was described."""

    @abstractmethod
    async def get_range_if(
        self, key: str, start: int, end: int, *, etag: str | None = None, not_modified_after: dt.datetime | None = None
    ) -> bytes:
        """Bytes [start, end) of an unchanged file; VirtualChunkError when it changed."""

    def read_now(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        """Bytes [start, end), or all, if they can be read at once in this thread. None if a request is needed."""
        return None

    @property
    def has_fast_reads(self) -> bool:
        """Whether a thread that needs many bytes reads them itself, because the bytes are on this machine."""
        return False

    def read_in_thread(self, key: str, start: int, end: int) -> bytes | None:
        """Bytes [start, end), read in this thread, however many they are. Must not be called in an event loop.

        None if a request is needed. Also None after an error: the request then reports it.
        """
        return None
