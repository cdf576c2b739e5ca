"""The Zarr store of a session, as `icechunk.store`."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Iterator
from typing import Any

from icefloe import store as engine
from icefloe.blocking import AsyncCloseableIterator
from icefloe.display.card import ShownField, fields_html, fields_text
from icefloe.errors import NotFoundError
from icefloe.model.virtual_chunk_container import VirtualChunkSpec

_PATH = "icechunk.IcechunkStore"


class _AnyStore(ABCMeta):
    """The stores of `icefloe` are instances of this class too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, engine.IcechunkStore)


class IcechunkStore(engine.IcechunkStore, metaclass=_AnyStore):
    """A Zarr v3 store that reads and writes one session. It opens at the first use, as the official one does."""

    @property
    def _store(self) -> _Keys:
        return _Keys(self)

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("read_only", self.read_only)
        yield ShownField("snapshot_id", self.session.snapshot_id)
        if self.session.branch is not None:
            yield ShownField("branch", self.session.branch)

    def __repr__(self) -> str:
        return fields_text(_PATH, self._shown_fields())

    def __str__(self) -> str:
        return fields_text(_PATH, self._shown_fields())

    def _repr_html_(self) -> str:
        return fields_html(_PATH, self._shown_fields())


class _Keys:
    """The bytes of keys, past the interface of Zarr. The official store keeps such an object in `_store`."""

    def __init__(self, store: IcechunkStore) -> None:
        self._keyspace = store.session.keyspace

    async def get(self, key: str) -> bytes:
        found = await self._keyspace.fetch(key)
        if found is None:
            raise NotFoundError(f"there is nothing at {key!r}")
        return bytes(found)

    async def set(self, key: str, value: bytes) -> None:
        await self._keyspace.write(key, value)


__all__ = ["AsyncCloseableIterator", "IcechunkStore", "VirtualChunkSpec"]
