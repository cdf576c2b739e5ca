"""An object that ranges are read from."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

from icefloe.storage.contract import Storage
from icefloe.storage.sources import SourceStorage


@dataclass(frozen=True, slots=True)
class Source:
    """An object, and the state it must be in; reads of equal sources may share a request."""

    storage: Storage = field(compare=False, repr=False)
    key: str
    etag: str | None = None
    last_modified: int | None = None
    """Seconds since 1970; the object must not have changed after it."""
    place: int = field(default=0)
    """Tells storages apart, which need not be comparable."""
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        # Sources are looked up several times for every range that is read.
        object.__setattr__(self, "_hash", hash((self.key, self.etag, self.last_modified, self.place)))

    def __hash__(self) -> int:
        return self._hash

    async def read(self, start: int, end: int) -> bytes:
        """Bytes [start, end), fewer where the object ends before."""
        if self.etag is None and self.last_modified is None:
            return await self.storage.get_range(self.key, start, end)
        assert isinstance(self.storage, SourceStorage)
        return await self.storage.get_range_if(
            self.key,
            start,
            end,
            etag=self.etag,
            not_modified_after=None
            if self.last_modified is None
            else dt.datetime.fromtimestamp(self.last_modified, tz=dt.UTC),
        )


def source_in(storage: Storage, key: str, etag: str | None = None, last_modified: int | None = None) -> Source:
    """The object of a storage under a key."""
    return Source(storage, key, etag, last_modified, id(storage))
