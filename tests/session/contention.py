"""Many writers of one branch, on simulated time: every request takes as long as in a store that is far away."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import TypeVar

import zarr
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.blocking import Environment, adopt
from icefloe.storage.contract import Storage
from icefloe.storage.wrappers import Operation, WrappedStorage
from icefloe.testing.schedule import ACTOR, SimulatedLoop
from icefloe.testing.storages import SlowStorage

T = TypeVar("T")
LATENCY_SECONDS = 0.02
LAYOUTS = ("distinct arrays", "regions of one array")
_EPOCH = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


class FolderCounts(WrappedStorage):
    """Counts requests by method and folder, such as `put manifests`."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.counts: Counter[str] = Counter()

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        self.counts[f"{operation.method} {operation.key.partition('/')[0]}"] += 1
        return await call()

    def _rewrap(self, inner: Storage) -> Storage:
        wrapper = FolderCounts(inner)
        wrapper.counts = self.counts
        return wrapper


class ProcessStorage(WrappedStorage):
    """The storage of one process. Writers with different ones share nothing in memory."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def _rewrap(self, inner: Storage) -> Storage:
        return ProcessStorage(inner)


@dataclass(frozen=True)
class Contended:
    """How some writers fared."""

    seconds: float
    tries: tuple[int, ...]
    """Of each commit."""
    counts: Counter[str]
    """Requests by method and folder."""
    steps: int
    """Steps of the event loop: a count of the work that does not depend on the machine."""

    @property
    def per_second(self) -> float:
        return len(self.tries) / self.seconds


def prepare(layout: str, writers: int, generation: str) -> Storage:
    """A repository with an array for each writer, or one array with a row for each."""
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version=generation)
    with repo.transaction("main", message="arrays") as store:
        root = zarr.group(store)
        if layout == "distinct arrays":
            for writer in range(writers):
                root.create_array(f"a{writer}", shape=(64,), chunks=(1,), dtype="i4", fill_value=-1)[63] = 1
        else:
            root.create_array("a", shape=(writers, 64), chunks=(1, 1), dtype="i4", fill_value=-1)[:, 63] = 1
    return storage


def chunk_key(layout: str, writer: int, number: int) -> str:
    """The chunk that a writer changes in one of its commits."""
    return f"a{writer}/c/{number}" if layout == "distinct arrays" else f"a/c/{writer}/{number}"


async def commit_repeatedly(repo: icefloe.Repository, layout: str, writer: int, commits: int) -> None:
    """Change one chunk in each of some commits."""
    ACTOR.set(f"writer {writer}")
    for number in range(commits):
        session = await repo.writable_session_async("main")
        session._records_rebases = True
        value = default_buffer_prototype().buffer.from_bytes(bytes([writer, number, 0, 0]))
        await session.store.set(chunk_key(layout, writer, number), value)
        await session.commit_async(f"{writer} {number}", rebase_with=icefloe.ConflictDetector(), rebase_tries=10_000)


def run_writers(
    inner: Storage, layout: str, writers: int, commits: int, seed: int = 1, *, processes: int | None = None
) -> Contended:
    """Let writers commit at the same time, each with a repository of its own.

    Each has a process of its own, unless the number of processes is given.
    """

    async def run() -> Contended:
        counting = FolderCounts(inner)
        slow = SlowStorage(counting, LATENCY_SECONDS)
        storages = [ProcessStorage(slow) for _ in range(processes or writers)]
        repos = [await icefloe.Repository.open_async(storages[w % len(storages)]) for w in range(writers)]
        for repo in repos:
            await repo.readonly_session_async("main")
        known = len([info async for info in repos[0].async_ancestry(branch="main")])
        counting.counts.clear()
        started, first_step = loop.time(), loop.steps
        await asyncio.gather(*(commit_repeatedly(repo, layout, w, commits) for w, repo in enumerate(repos)))
        seconds, counts, steps = loop.time() - started, Counter(counting.counts), loop.steps - first_step
        landed = [info async for info in repos[0].async_ancestry(branch="main")][:-known]
        assert len(landed) == writers * commits
        tries = tuple(1 + info.metadata.get("__icechunk", {}).get("rebase_attempts", 0) for info in landed)
        return Contended(seconds, tries, counts, steps)

    def simulate() -> Contended:
        source = random.Random(seed)
        adopt(
            Environment(
                now=lambda: _EPOCH + dt.timedelta(seconds=loop.time()),
                monotonic=loop.time,
                random_bytes=source.randbytes,
                loop=loop,
            )
        )
        return loop.run(run())

    state = random.getstate()
    random.seed(seed)
    loop = SimulatedLoop(seed, 1e6)
    try:
        return copy_context().run(simulate)
    finally:
        loop.discard()
        random.setstate(state)
