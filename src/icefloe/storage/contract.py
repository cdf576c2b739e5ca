"""What the engine asks of a place that keeps bytes by key."""

from __future__ import annotations

import datetime as dt
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from icefloe.errors import ObjectNotFoundError

Buffer: TypeAlias = bytes | bytearray | memoryview


def flat_bytes(data: Buffer) -> bytes | memoryview:
    """The bytes of a buffer in one dimension, without a copy."""
    if isinstance(data, bytes):
        return data
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


@dataclass(frozen=True, slots=True)
class Version:
    """Which state of an object was seen; opaque, compared only by the storage itself."""

    etag: str | None = None
    generation: str | None = None

    def agrees_with(self, other: Version) -> bool:
        """Whether both may be one state: what both know is equal, and there is something that both know."""
        pairs = ((self.etag, other.etag), (self.generation, other.generation))
        known = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
        return bool(known) and all(mine == theirs for mine, theirs in known)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as a listing shows it; the time is the store's own clock, in UTC."""

    key: str
    size_bytes: int
    last_modified: dt.datetime
    version: Version = Version()


@dataclass(frozen=True, slots=True)
class Versioned:
    """The bytes of an object, and which state of it they are."""

    data: bytes
    version: Version
    last_modified: dt.datetime | None = None


_USERINFO = re.compile(r"([a-z][a-z0-9+.-]*://)[^/?#\s]*@", re.IGNORECASE)
_QUERY = re.compile(r"(https?://[^\s?#'\"]*)\?[^\s'\")]+", re.IGNORECASE)


def has_userinfo(url: str) -> bool:
    """Whether an http address holds a user or a password; `abfss://container@account` is no such thing."""
    return url.lower().startswith(("http://", "https://")) and _USERINFO.match(url) is not None


def without_userinfo(text: str) -> str:
    """A text for people: its URLs lose user, password, and the query of http addresses, where signatures stand."""
    if "://" not in text:
        return text
    text = _QUERY.sub(r"\1", text)
    return _USERINFO.sub(lambda found: found[1] if _is_secret(found) else found[0], text)


def _is_secret(found: re.Match[str]) -> bool:
    return found[1].lower().startswith("http") or ":" in found[0].partition("://")[2]


class Storage(ABC):
    """A folder of an object store. Keys are relative, `/`-separated, without a leading slash.

    Every method raises ObjectNotFoundError for a key that is not there, PermissionDeniedError where credentials are
    refused, and StorageError for what may pass by itself, after the retries of its settings.
    Instances pickle (a memory storage only within its process) and may be used from any event loop.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is, for messages; never with credentials."""

    @property
    def read_only(self) -> bool:
        return False

    @abstractmethod
    async def get(self, key: str) -> bytes:
        """The whole object."""

    @abstractmethod
    async def get_versioned(self, key: str) -> Versioned:
        """The whole object and its version, in one request."""

    @abstractmethod
    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of an object; shorter when the object ends before, StorageError when it starts after."""

    @abstractmethod
    async def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """Several ranges of one object; near ones may become one request."""

    @abstractmethod
    async def head(self, key: str) -> ObjectInfo:
        """Size, time and version of an object."""

    @abstractmethod
    async def put(self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        """Write a fresh object; nobody else writes this key. Never half visible."""

    @abstractmethod
    async def create(
        self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None, unique: bool = True
    ) -> Version:
        """Create if absent; exactly one of many callers wins, the others get AlreadyExistsError.

        `unique` says that no other writer would write the same bytes, so that finding them there after a lost answer
        means success. An answer that cannot be settled raises OutcomeUnknownError.
        """

    @abstractmethod
    async def swap(
        self,
        key: str,
        data: Buffer,
        version: Version,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        """Replace the object if it is still that version; VersionMismatchError otherwise. Settled as in create."""

    @abstractmethod
    async def list_names(self, prefix: str) -> list[str]:
        """Sorted names directly in the folder `prefix`, without times and sizes; folders end in `/`.

        A folder is there only if it holds an object.
        """

    @abstractmethod
    def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        """Objects whose key starts with `prefix` (a folder, ending in `/`, or empty), by key, in pages.

        Only keys greater than `after`. Consumers may stop early; no more pages are then asked for than read.
        """

    @abstractmethod
    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; a key that is not there is no error."""

    @abstractmethod
    async def copy(self, source: str, target: str, *, version: Version | None = None) -> None:
        """Copy an object inside the storage, only if it is still that version when one is given."""

    async def exists(self, key: str) -> bool:
        try:
            await self.head(key)
        except ObjectNotFoundError:
            return False
        return True

    async def is_empty(self) -> bool:
        """Whether there is no object at all."""
        async for page in self.list(""):
            if page:
                return False
        return True

    async def make_durable(self) -> None:
        """Return when everything that this process wrote here would survive a power loss.

        `create`, `swap` and `delete` do so themselves before they take effect. Object stores always do.
        """

    @abstractmethod
    def child(self, prefix: str) -> Storage:
        """The same storage, one folder deeper."""
