"""Reading files that others own and may change under us."""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod

from icefloe.errors import VirtualChunkError
from icefloe.storage.contract import Storage


class SourceStorage(Storage):
    """A storage that can read a range on the condition that the file is still the one that was described."""

    @abstractmethod
    async def get_range_if(
        self, key: str, start: int, end: int, *, etag: str | None = None, not_modified_after: dt.datetime | None = None
    ) -> bytes:
        """Bytes [start, end) of an unchanged file; VirtualChunkError when it changed."""


def check_unchanged(
    shown: str,
    *,
    etag: str | None,
    found_etag: str | None,
    not_modified_after: dt.datetime | None,
    found_modified: dt.datetime | None,
) -> None:
    """Refuse a file that is no longer the one that was described, as far as it can be told.

    Times are compared in whole seconds: a reference holds no finer ones.
    """
    if etag is not None and found_etag is not None and normal_etag(etag) != normal_etag(found_etag):
        raise changed(shown, f"its ETag is {found_etag}, the reference was made for {etag}")
    if not_modified_after is None or found_modified is None:
        return
    if int(found_modified.timestamp()) > int(not_modified_after.timestamp()):
        raise changed(shown, f"it was modified at {found_modified}, the reference holds up to {not_modified_after}")


def changed(shown: str, found: str) -> VirtualChunkError:
    """The error for a file that is no longer the one that was described."""
    return VirtualChunkError(f"{shown} changed after the reference to it was made: {found}; write the references anew")


def normal_etag(etag: str) -> str:
    """An ETag without what servers disagree on: quotes and the mark of a weak one."""
    return etag.removeprefix("W/").strip('"')
