"""Copies the objects that hold chunks, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from icefloe.conversion.identities import Identities, Ids
from icefloe.formats.contract import Format
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.storage.contract import Storage

_AT_ONCE = 32


class SeenIds:
    """Which ids were met before, as sorted columns: few bytes for each, however many there are."""

    def __init__(self) -> None:
        self._levels: list[npt.NDArray[np.void]] = []

    def add_new(self, ids: Ids) -> Ids:
        """The distinct ids that were not met before, sorted; they count as met from now on."""
        rows = np.unique(np.ascontiguousarray(ids).view(np.dtype((np.void, ids.shape[1]))).ravel())
        for level in self._levels:
            position = np.searchsorted(level, rows)
            position[position == len(level)] = 0
            rows = rows[level[position] != rows]
        if len(rows):
            self._push(rows)
        return rows.view(np.uint8).reshape(len(rows), ids.shape[1])

    def _push(self, rows: npt.NDArray[np.void]) -> None:
        """Levels of about equal size are joined, so that there are few of them and each row is moved seldom."""
        while self._levels and len(self._levels[-1]) <= 2 * len(rows):
            rows = np.sort(np.concatenate([self._levels.pop(), rows]))
        self._levels.append(rows)


def native_ids(table: ChunkTable) -> Ids | None:
    """The objects in which native chunks of a table lie, with repetitions."""
    if table.object_id is None:
        return None
    rows = table.kind == ChunkKind.NATIVE
    return table.object_id[rows] if not rows.all() else table.object_id


class ChunkCopies:
    """Brings chunk objects from one repository to another; what lies there already under the right name stays."""

    def __init__(
        self,
        source: tuple[Storage, Format],
        target: tuple[Storage, Format],
        identities: Identities,
        *,
        same_root: bool,
    ) -> None:
        self._source, self._source_format = source
        self._target, self._target_format = target
        self._identities = identities
        self._same_root = same_root
        self._seen = SeenIds()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.objects = 0
        self.copied = 0
        self.copied_bytes = 0

    @property
    def shared(self) -> bool:
        """Whether both generations find chunks under the same names in the same place."""
        return self._same_root and (
            self._source_format.chunks_folder == self._target_format.chunks_folder
            and self._identities.source_bytes == self._identities.target_bytes
        )

    def new_objects(self, table: ChunkTable) -> list[bytes]:
        """The objects of a table that were not met before."""
        ids = native_ids(table)
        if ids is None or not len(ids):
            return []
        found = [row.tobytes() for row in self._seen.add_new(ids)]
        self.objects += len(found)
        return found

    async def copy(self, chunk_ids: list[bytes], done: Callable[[int], None]) -> None:
        """Copy objects, many at a time; those that an earlier run copied are left alone."""
        if self.shared or not chunk_ids:
            done(len(chunk_ids))
            return

        async def one(chunk_id: bytes) -> None:
            async with self._slots:
                await self._copy_one(chunk_id)
                done(1)

        await asyncio.gather(*(one(chunk_id) for chunk_id in chunk_ids))

    def keys(self, chunk_id: bytes) -> tuple[str, str]:
        """Where a chunk object lies in the source and in the target."""
        return (
            self._source_format.chunk_key(chunk_id),
            self._target_format.chunk_key(self._identities.chunk(chunk_id)),
        )

    async def _copy_one(self, chunk_id: bytes) -> None:
        source, target = self.keys(chunk_id)
        if await self._target.exists(target):
            return
        if self._same_root and self._source is self._target:
            await self._target.copy(source, target)
        else:
            data = await self._source.get(source)
            await self._target.put(target, data)
            self.copied_bytes += len(data)
        self.copied += 1

    async def fetch_both(self, chunk_id: bytes) -> tuple[bytes, bytes]:
        """The bytes of an object on both sides."""
        source, target = self.keys(chunk_id)
        return await self._source.get(source), await self._target.get(target)
