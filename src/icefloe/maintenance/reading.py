"""A view of a repository for work that reads all of it once: nothing stale, and nobody's cache is filled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from icefloe.archive.files import Archive, CacheLimits
from icefloe.formats.contract import Format
from icefloe.ids import ObjectId
from icefloe.ledger.contract import Ledger
from icefloe.ledger.registry import make_ledger
from icefloe.session.engine import Engine
from icefloe.storage.contract import Storage

T = TypeVar("T")
R = TypeVar("R")

REQUESTS_AT_ONCE = 32
_LIMITS = CacheLimits(snapshots=64 << 20, manifests=0, transaction_logs=0, attributes=0)


@dataclass(frozen=True, slots=True)
class Reading:
    """The parts of a repository, with caches of their own."""

    storage: Storage
    format: Format
    archive: Archive
    ledger: Ledger


def read_anew(engine: Engine) -> Reading:
    """A view of the repository behind an engine that shares nothing with its sessions."""
    archive = Archive(engine.storage, engine.format, _LIMITS)
    ledger = make_ledger(engine.format.spec_version, engine.storage, archive)
    ledger.learn_from(engine.ledger)
    return Reading(engine.storage, engine.format, archive, ledger)


def read_anew_of(reading: Reading) -> Reading:
    """Another view of the same repository, which remembers nothing of what the first one read."""
    archive = Archive(reading.storage, reading.format, _LIMITS)
    ledger = make_ledger(reading.format.spec_version, reading.storage, archive)
    ledger.learn_from(reading.ledger)
    return Reading(reading.storage, reading.format, archive, ledger)


@dataclass(frozen=True, slots=True)
class Refs:
    """Where all branches and tags point."""

    branches: dict[str, ObjectId]
    tags: dict[str, ObjectId]

    def targets(self) -> set[ObjectId]:
        """Every snapshot that a ref points at."""
        return {*self.branches.values(), *self.tags.values()}

    def names_of(self, snapshot_id: ObjectId) -> list[str]:
        """The refs that point at a snapshot, for people."""
        named = [f"branch {name}" for name, tip in self.branches.items() if tip == snapshot_id]
        return named + [f"tag {name}" for name, target in self.tags.items() if target == snapshot_id]


async def fetch_all_refs(ledger: Ledger) -> Refs:
    """All refs, as they are now."""
    found = await ledger.fetch_targets()
    if found is not None:
        return Refs(*found)
    branches, tags = sorted(await ledger.list_branches()), sorted(await ledger.list_tags())

    async def tip(name: str) -> ObjectId:
        return (await ledger.fetch_tip(name)).snapshot_id

    tips = await gather_bounded(tip, branches)
    targets = await gather_bounded(ledger.fetch_tag, tags)
    return Refs(dict(zip(branches, tips, strict=True)), dict(zip(tags, targets, strict=True)))


async def gather_bounded(
    work: Callable[[T], Awaitable[R]], items: Iterable[T], at_once: int = REQUESTS_AT_ONCE
) -> list[R]:
    """The results of work on all items, in order, a bounded number at a time; the first error ends it."""
    return [result async for result in stream_bounded(work, items, at_once)]


async def stream_bounded(
    work: Callable[[T], Awaitable[R]], items: Iterable[T], at_once: int = REQUESTS_AT_ONCE
) -> AsyncIterator[R]:
    """Results in the order of the items, while up to `at_once` of them are worked on."""
    waiting: list[asyncio.Task[R]] = []
    source = iter(items)
    try:
        while True:
            while len(waiting) < at_once:
                try:
                    item = next(source)
                except StopIteration:
                    break
                waiting.append(asyncio.ensure_future(_run(work, item)))
            if not waiting:
                return
            yield await waiting.pop(0)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _run(work: Callable[[T], Awaitable[R]], item: T) -> R:
    return await work(item)
