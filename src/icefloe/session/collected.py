"""Whether what a commit refers to was garbage collected while its session was open.

A collection announces itself before it deletes anything: it puts a record into the repository, then writes the refs
again. A commit that is under way fails its first try for that reason, so that it costs nothing while no collection
runs. Then it looks at the records and at every chunk object that its changes refer to. An object that is gone refuses
the commit. Objects that a collection under way may still delete (they are older than its cut-off) make the commit wait
for its end. A collection reads refs again after it wrote them, and keeps what commits name that were faster.

Records are empty objects; their names tell all. One record of a finished collection is kept, that of the last.

    icefloe/collections/<cut-off, microseconds since 1970>-<id>.running
    icefloe/collections/<cut-off, microseconds since 1970>-<id>.done
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from icefloe.environment import monotonic_time
from icefloe.errors import ObjectNotFoundError, SessionStateError, StorageError, UnsupportedError
from icefloe.ids import ObjectId, new_object_id
from icefloe.ledger.contract import Tip
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.session.engine import Engine
from icefloe.session.workspace import Workspace
from icefloe.storage.contract import Storage

RECORDS = "icefloe/collections/"
LEASE_SECONDS = 120.0
"""A collection that did not renew its record for so long is dead, and must not delete anything any more."""
_RENEW_SECONDS = 20.0
_LONG_SESSION_SECONDS = 1800.0
"""Where refs tell of no collections with a longer grace period than twice this, older sessions ask for them."""
SHORT_GRACE = dt.timedelta(seconds=2 * _LONG_SESSION_SECONDS)
_WAIT_SECONDS = 600.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 5.0
_REQUESTS_AT_ONCE = 32
_MANY_OBJECTS = 5_000
"""More objects than this are looked for in a listing of all of them."""
_NAME = re.compile(r"(\d{20})-([0-9A-Z]+)\.(running|done)")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class CollectionRecord:
    """A garbage collection, as it tells of itself."""

    id: ObjectId
    cutoff: dt.datetime
    running: bool
    renewed: dt.datetime | None = None
    """When the record was last written, by the store's clock."""

    @property
    def key(self) -> str:
        age = (self.cutoff - _EPOCH) // dt.timedelta(microseconds=1)
        return f"{RECORDS}{max(age, 0):020d}-{self.id}.{'running' if self.running else 'done'}"


async def list_collections(storage: Storage) -> list[CollectionRecord]:
    """The collections that are under way, and the last that ended."""
    found = []
    try:
        async for page in storage.list(RECORDS):
            for item in page:
                match = _NAME.fullmatch(item.key.removeprefix(RECORDS))
                if match is not None:
                    cutoff = _EPOCH + dt.timedelta(microseconds=int(match[1]))
                    found.append(CollectionRecord(match[2], cutoff, match[3] == "running", item.last_modified))
    except UnsupportedError:
        pass  # nobody collects garbage where nothing can be listed
    return found


class Announcement:
    """The record of a collection that is under way, renewed until the collection ends."""

    def __init__(self, storage: Storage, cutoff: dt.datetime) -> None:
        self.record = CollectionRecord(new_object_id(), cutoff, running=True)
        self._storage = storage
        self._renewed = monotonic_time()
        self._renewing: asyncio.Task[None] | None = None
        self.is_soon = True
        """Whether objects may be deleted that are younger than long sessions."""

    async def begin(self) -> None:
        """Put the record."""
        await self._storage.put(self.record.key, b"")
        self._renewed = monotonic_time()
        self._renewing = asyncio.create_task(self._renew())
        now = (await self._storage.head(self.record.key)).last_modified
        self.is_soon = now - self.record.cutoff < SHORT_GRACE

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            started = monotonic_time()
            with contextlib.suppress(StorageError):  # `check` notices when none comes through
                await self._storage.put(self.record.key, b"")
                self._renewed = started

    def check(self) -> None:
        """Refuse to delete when others may take the collection for dead."""
        silent = monotonic_time() - self._renewed
        if silent > LEASE_SECONDS / 2:
            raise StorageError(
                f"this collection could not tell others for {silent:.0f} seconds that it is under way; it stopped, and "
                "what it did not delete stays: collect again"
            )

    async def end(self, *, finished: bool) -> None:
        """Take the record back; the one of a finished collection stays as that of the last."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if finished:
            done = CollectionRecord(self.record.id, self.record.cutoff, running=False)
            earlier = [each.key for each in await list_collections(self._storage) if not each.running]
            await self._storage.put(done.key, b"")
            await self._storage.delete([*earlier, self.record.key])
        else:
            await self._storage.delete([self.record.key])


@contextlib.asynccontextmanager
async def announced(storage: Storage, cutoff: dt.datetime) -> AsyncIterator[Announcement]:
    """Tell of a collection while the block runs."""
    announcement = Announcement(storage, cutoff)
    await announcement.begin()
    try:
        yield announcement
    except BaseException:
        await announcement.end(finished=False)
        raise
    await announcement.end(finished=True)


async def check_references(work: Workspace, tip: Tip) -> None:
    """Refuse to commit changes that refer to collected objects; asks for nothing unless a collection ran meanwhile."""
    ledger, first = work.engine.ledger, work.first_tip
    if first is None or not _must_look(work, first, tip):
        return
    told = ledger.announces_collections or work.is_long_open(_LONG_SESSION_SECONDS)
    if not told and not await list_collections(work.engine.storage):
        return  # refs do not tell, but records do: nobody ever collected garbage
    await check_objects(work.engine, await referenced_objects(work))


def _must_look(work: Workspace, first: Tip, tip: Tip) -> bool:
    if work.engine.ledger.announces_collections:
        return work.engine.ledger.collected_since(first, tip)
    return tip != first or work.is_long_open(_LONG_SESSION_SECONDS)


async def referenced_objects(work: Workspace) -> list[str]:
    """The keys of all objects that changes refer to: chunks, and manifests of workers with their chunks."""
    layout = work.engine.format
    tables = [buffer.to_table() for buffer in work.changes.edits.values()]
    parts = {part.manifest_id for each in work.changes.parts.values() for part in each}
    keys = [layout.manifest_key(manifest_id) for manifest_id in sorted(parts)]
    for manifest_id in sorted(parts):
        try:
            tables += (await work.engine.archive.fetch_manifest(manifest_id)).tables.values()
        except ObjectNotFoundError:
            continue  # its own key is among those looked for
    known = frozenset(work.base.attribute_files)
    attributes = {n.attributes.object_id for n in work.changes.added.values() if n.attributes is not None}
    keys += [layout.attributes_key(each) for each in sorted(attributes - known)]
    waiting = frozenset(work.writer.unstored)
    return [*keys, *(layout.chunk_key(each) for each in chunk_objects(tables) if each not in waiting)]


def chunk_objects(tables: Iterable[ChunkTable]) -> list[bytes]:
    """The objects that native references of some tables point at, each once."""
    columns = [table.object_id[table.kind == ChunkKind.NATIVE] for table in tables if table.object_id is not None]
    columns = [column for column in columns if len(column)]
    if not columns:
        return []
    return [row.tobytes() for row in np.unique(np.concatenate(columns), axis=0)]


async def check_objects(engine: Engine, keys: Sequence[str]) -> None:
    """Refuse to refer to objects that are gone; wait for collections that may still delete some of them."""
    if not keys:
        return
    started = monotonic_time()
    renewed: dict[ObjectId, tuple[dt.datetime | None, float]] = {}
    pause = _FIRST_PAUSE_SECONDS
    while True:
        running = [each for each in await list_collections(engine.storage) if each.running]
        oldest = await _fetch_oldest(engine, keys)
        now = monotonic_time()
        dangerous = []
        for record in running:
            seen, since = renewed.setdefault(record.id, (record.renewed, now))
            if seen != record.renewed:
                renewed[record.id] = (record.renewed, now)
            elif now - since > LEASE_SECONDS:
                continue  # whoever ran it died
            if oldest < record.cutoff:
                dangerous.append(record)
        if not dangerous:
            return
        if now - started > _WAIT_SECONDS:
            raise StorageError(
                f"garbage older than {dangerous[0].cutoff.isoformat()} is being collected, and this commit refers to "
                f"objects of {oldest.isoformat()}: it was not made. Commit again when the collection has ended"
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def _fetch_oldest(engine: Engine, keys: Sequence[str]) -> dt.datetime:
    """When the oldest of some objects was written, by the store's clock; SessionStateError when one is gone."""
    times = await (_list_times(engine, keys) if len(keys) > _MANY_OBJECTS else _head_times(engine, keys))
    missing = [key for key in keys if key not in times]
    if missing:
        raise SessionStateError(
            f"{len(missing)} of {len(keys)} objects that this commit refers to, {missing[0]} among them, were garbage "
            "collected while the session was open; it was not committed. Open a new session and write again, and "
            "collect with a longer grace period than sessions are open",
            missing=tuple(missing),
        )
    return min(times.values())


async def _head_times(engine: Engine, keys: Sequence[str]) -> dict[str, dt.datetime]:
    gate = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def head(key: str) -> tuple[str, dt.datetime | None]:
        async with gate:
            try:
                return key, (await engine.storage.head(key)).last_modified
            except ObjectNotFoundError:
                return key, None

    return {key: time for key, time in await asyncio.gather(*map(head, keys)) if time is not None}


async def _list_times(engine: Engine, keys: Sequence[str]) -> dict[str, dt.datetime]:
    wanted = frozenset(keys)
    times = await _head_times(engine, [key for key in keys if not key.startswith(engine.format.chunks_folder)])
    async for page in engine.storage.list(engine.format.chunks_folder):
        times.update((item.key, item.last_modified) for item in page if item.key in wanted)
    return times
