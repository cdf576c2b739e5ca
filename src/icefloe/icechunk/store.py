"""The Zarr store of a session, as `icechunk.store`."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import AsyncIterator, Iterator
from typing import Any

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from icefloe import store as engine
from icefloe.blocking import AsyncCloseableIterator
from icefloe.display.card import ShownField, fields_html, fields_text
from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.model.snapshot import ArrayNode
from icefloe.model.virtual_chunk_container import VirtualChunkSpec
from icefloe.model.zarr_document import OtherKey, is_v2_key, parse_key

_PATH = "icechunk.IcechunkStore"


class _AnyStore(ABCMeta):
    """The stores of `icefloe` are instances of this class too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, engine.IcechunkStore)


class IcechunkStore(engine.IcechunkStore, metaclass=_AnyStore):
    """A Zarr v3 store that reads and writes one session."""

    @property
    def _store(self) -> _Keys:
        return _Keys(self)

    def _check_key(self, key: str) -> None:
        if (
            isinstance(parse_key(key), OtherKey)
            and not is_v2_key(key)
            and self.session.keyspace.find_chunk(key) is None
        ):
            raise InvalidInputError(
                f"{key!r} is neither the key of a metadata document (zarr.json) nor of a chunk (c/...)", "invalid-key"
            )

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the value of a key, or None. A key that can never have a value is an `InvalidInputError`."""
        self._check_key(key)
        return await super().get(key, prototype, byte_range)

    async def exists(self, key: str) -> bool:
        """Return whether a key has a value. A key that can never have one is an `InvalidInputError`."""
        self._check_key(key)
        return await super().exists(key)

    async def getsize(self, key: str) -> int:
        """Return the size of a value in bytes. A key that can never have one is an `InvalidInputError`."""
        self._check_key(key)
        return await super().getsize(key)

    def list(self) -> AsyncCloseableIterator[str]:
        """Iterate over all keys, in an `async for` or a `for` loop."""
        return AsyncCloseableIterator(super().list())

    def list_prefix(self, prefix: str) -> AsyncCloseableIterator[str]:
        """Iterate over the keys of a node and of all nodes below it. The prefix is the path of the node."""
        folder = prefix.strip("/") + "/" if prefix.strip("/") else ""
        return AsyncCloseableIterator(super().list_prefix(folder))

    def list_dir(self, prefix: str) -> AsyncCloseableIterator[str]:
        """Iterate over the names directly below a prefix. Every array has a folder `c`, also without chunks."""
        return AsyncCloseableIterator(self._names(prefix, super().list_dir(prefix)))

    async def _names(self, prefix: str, found: AsyncIterator[str]) -> AsyncIterator[str]:
        has_chunks = False
        async for name in found:
            has_chunks |= name == "c"
            yield name
        if not has_chunks and isinstance(self.session._state.tree.find("/" + prefix.strip("/")), ArrayNode):
            yield "c"

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
        self._store = store
        self._keyspace = store.session.keyspace

    async def get(self, key: str) -> bytes:
        found = await self._keyspace.fetch(key)
        if found is None:
            raise NotFoundError(f"there is nothing at {key!r}")
        return bytes(found)

    async def set(self, key: str, value: bytes) -> None:
        self._store._check_writable()
        await self._keyspace.write(key, value)


__all__ = ["AsyncCloseableIterator", "IcechunkStore", "VirtualChunkSpec"]
