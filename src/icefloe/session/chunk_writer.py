"""Where the bytes of a written chunk go: into the manifest, a pack, or an object of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from icefloe.chunks.packs import PackBuilder, SealedPack, packing_policy
from icefloe.formats.contract import Format
from icefloe.ids import NodeId, new_chunk_id
from icefloe.manifests.edits import EditBuffer
from icefloe.model.chunk_table import ChunkKind, ChunkRef, Coords
from icefloe.model.config import RepositoryConfig
from icefloe.model.nodes import ArrayNode
from icefloe.session.change_set import ChangeSet
from icefloe.storage.contract import Buffer, Storage

_AT_ONCE = 256
"""Chunks that are recorded before other threads have a turn."""


class EditTarget(Protocol):
    """Where the references of written chunks are recorded."""

    @property
    def changes(self) -> ChangeSet: ...
    def open_edits(self, node: ArrayNode, coords: Coords) -> EditBuffer:
        """The edits of an array; an error when the session takes no change, or has no such chunk (any more)."""


class ChunkWriter:
    """Writes chunks of one session and records them in its change set, while the session's lock is held.

    A chunk is recorded when its bytes are stored or in memory. Where the session takes no change at that moment, the
    write is an error and the change set does not know of it.

    Small chunks wait in memory until their pack is full. A pack that could not be stored stays in memory and is
    tried again by `flush`, so that no chunk whose write was accepted is lost before the commit says so.
    """

    def __init__(self, storage: Storage, format: Format, config: RepositoryConfig, lock: threading.RLock) -> None:
        self._storage = storage
        self._format = format
        self._inline_bytes: int = config.effective("inline_chunk_threshold_bytes")
        self._packs = PackBuilder(packing_policy(config), id_bytes=format.capabilities.object_id_bytes)
        self.unstored: dict[bytes, bytes] = {}
        """Packs that are sealed but not known to be stored, by object id."""
        self.lock = lock

    def find_pending(self, node_id: NodeId, coords: Coords) -> Buffer | None:
        """The bytes of a chunk that waits for its pack."""
        return self._packs.find(node_id, coords)

    async def write(self, target: EditTarget, node: ArrayNode, coords: Coords, data: Buffer) -> None:
        """Take a chunk; it can be read back at once."""
        size = len(data)
        if size <= self._inline_bytes:
            self.record(target, node, coords, ChunkRef(ChunkKind.INLINE, 0, size, data=bytes(data)))
        elif self._packs.policy.takes(size):
            with self.lock:
                target.open_edits(node, coords)
                self._packs.add(node.id, coords, data)
                full = self._packs.seal_full(self._recorder(target.changes)) if self._packs.is_full else []
            for pack in full:
                await self._store(pack.object_id, pack.data)
        else:
            chunk_id = new_chunk_id(self._format.capabilities.object_id_bytes)
            await self._storage.put(self._format.chunk_key(chunk_id), data)
            self.record(target, node, coords, ChunkRef(ChunkKind.NATIVE, 0, size, object_id=chunk_id))

    async def write_many(
        self, target: EditTarget, node: ArrayNode, coords: Sequence[Coords], data: Sequence[Buffer]
    ) -> None:
        """Take many chunks of an array; large ones are stored at the same time."""
        large, inline, packed = [], [], []
        limit = self._inline_bytes
        for each, body in zip(coords, data, strict=True):
            size = len(body)
            if size <= limit:
                inline.append((each, ChunkRef(ChunkKind.INLINE, 0, size, data=bytes(body))))
                if len(inline) == _AT_ONCE:
                    self._record_many(target, node, inline)
                    inline = []
            elif self._packs.policy.takes(size):
                packed.append((each, body))
            else:
                large.append(self.write(target, node, each, body))
        if inline:
            self._record_many(target, node, inline)
        for each, body in packed:
            await self.write(target, node, each, body)
        await asyncio.gather(*large)

    def _record_many(self, target: EditTarget, node: ArrayNode, refs: Sequence[tuple[Coords, ChunkRef]]) -> None:
        last = tuple(map(max, zip(*(coords for coords, _ in refs), strict=True)))
        with self.lock:
            edits = target.open_edits(node, last)
            if self.has_pending:
                for coords, _ in refs:
                    self._packs.discard(node.id, coords)
            edits.set_many(refs)

    def record(self, target: EditTarget, node: ArrayNode, coords: Coords, ref: ChunkRef) -> None:
        """Record a reference whose bytes are elsewhere, or a deletion."""
        with self.lock:
            edits = target.open_edits(node, coords)
            self._packs.discard(node.id, coords)
            edits.set(coords, ref)

    def forget_node(self, node_id: NodeId) -> None:
        """Drop what waits for an array that is deleted."""
        with self.lock:
            self._packs.discard_node(node_id)

    def settle(self, changes: ChangeSet) -> None:
        """Give every waiting chunk its place in a pack, so that the change set knows all references."""
        with self.lock:
            self._packs.seal(self._recorder(changes))

    async def flush(self, changes: ChangeSet) -> None:
        """Store everything that is still in memory."""
        self.settle(changes)
        await self.store_packs()

    async def store_packs(self, packs: Mapping[bytes, bytes] | None = None) -> None:
        """Store packs that are not known to be stored: some, or all there are."""
        waiting = dict(self.unstored) if packs is None else packs
        await asyncio.gather(*(self._store(object_id, data) for object_id, data in waiting.items()))

    def discard(self) -> None:
        """Forget everything that is not stored."""
        with self.lock:
            self._packs.clear()
            self.unstored.clear()

    @property
    def has_pending(self) -> bool:
        return len(self._packs) > 0

    def _recorder(self, changes: ChangeSet) -> Callable[[SealedPack], None]:
        def record(pack: SealedPack) -> None:
            self.unstored[pack.object_id] = pack.data
            for index, node_id in enumerate(pack.tables.nodes):
                changes.edits[node_id].add_shared(pack.tables, index)

        return record

    async def _store(self, object_id: bytes, data: bytes) -> None:
        await self._storage.put(self._format.chunk_key(object_id), data)
        self.unstored.pop(object_id, None)
