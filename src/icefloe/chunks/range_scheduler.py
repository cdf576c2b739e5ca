"""Combine range reads that are in flight together into few requests, bounded in number and in bytes."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt

from icefloe.storage.contract import Buffer, SourceStorage, Storage
from icefloe.storage.requests import plan_reads


@dataclass(frozen=True, slots=True)
class ObjectSource:
    """An object, and the state it must be in; reads of equal sources may share a request."""

    storage: Storage = field(compare=False, repr=False)
    key: str
    etag: str | None = None
    last_modified: int | None = None
    """Seconds since 1970; the object must not have changed after it."""
    place: int = field(default=0)
    """Tells storages apart, which need not be comparable."""
    _hash: int = field(init=False, repr=False, compare=False, default=0)
    _reads_now: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        # Sources are looked up several times for every range that is read.
        object.__setattr__(self, "_hash", hash((self.key, self.etag, self.last_modified, self.place)))
        is_any = self.etag is None and self.last_modified is None
        object.__setattr__(self, "_reads_now", is_any and isinstance(self.storage, SourceStorage))

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

    def read_now(self, start: int, end: int) -> bytes | None:
        """Bytes [start, end), if the storage reads them at once. None if they must be requested."""
        return self.storage.read_now(self.key, start, end) if self._reads_now else None  # type: ignore[attr-defined]

    def read_in_thread(self, start: int, end: int) -> bytes | None:
        """Bytes [start, end), if this thread can read them itself. None if they must be requested."""
        return self.storage.read_in_thread(self.key, start, end) if self._reads_now else None  # type: ignore[attr-defined]


def object_source(
    storage: Storage, key: str, etag: str | None = None, last_modified: int | None = None
) -> ObjectSource:
    """The object of a storage under a key."""
    return ObjectSource(storage, key, etag, last_modified, id(storage))


_FIRST_WINDOW_BYTES = 256 << 10
_TRACKED_SOURCES = 4096
"""Objects whose last read is remembered; each is a few hundred bytes."""
_NEAR_BYTES = 64 << 10
"""A range this close behind the last one counts as following it."""

_FRESH_SECONDS = 5.0
"""Files of others may change: what was read ahead is not used any more after this."""


@dataclass(slots=True)
class _Track:
    """Where the last read of an object ended, and what was read beyond it."""

    end: int
    window: int = 0
    block_start: int = 0
    block: bytes = b""
    served_bytes: int = 0
    read_at: float = 0.0

    def is_followed_by(self, start: int, end: int) -> bool:
        """Whether a range continues a sequential run: it starts in or just behind the last read, and ends after it."""
        return self.end - _NEAR_BYTES <= start <= self.end + _NEAR_BYTES and end > self.end


class ReadAhead:
    """The reads of one event loop, watched for runs.

    zarr asks for only a few chunks at a time, so a run through a pack arrives as many small reads one after the
    other. The first read of an object never reads ahead, a second one that follows it does, and the window doubles
    as long as the run goes on: a lone or random read costs nothing, and at most about half of what is fetched is in
    vain.
    """

    def __init__(self, most_bytes: int, held_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._limit_bytes = held_bytes
        self._tracks: OrderedDict[ObjectSource, _Track] = OrderedDict()
        self._held_bytes = 0

    def find(self, source: ObjectSource, start: int, end: int) -> bytes | None:
        """The bytes of a range that lies in what was read ahead."""
        track = self._tracks.get(source)
        if track is None or not track.block:
            return None
        if time.monotonic() - track.read_at > _FRESH_SECONDS:
            self._drop_block(track)
            return None
        low = start - track.block_start
        high = end - track.block_start
        if low < 0 or high > len(track.block):
            return None
        track.end = max(track.end, end)
        piece = track.block[low:high]
        track.served_bytes += high - low
        if track.served_bytes >= len(track.block):
            self._drop_block(track)  # the run has passed it
        return piece

    def find_track(self, source: ObjectSource) -> _Track | None:
        """The last read of an object, if it is remembered."""
        return self._tracks.get(source)

    def note_alone(self, source: ObjectSource, track: _Track | None, end: int) -> None:
        """Remember a read that continues no run."""
        if track is None:
            self.plan(source, end, end)
            return
        self._tracks.move_to_end(source)
        track.window, track.end = 0, end

    def plan(self, source: ObjectSource, start: int, end: int) -> int:
        """How many bytes to read beyond a range that is about to be requested."""
        if not self._most_bytes:
            return 0
        track = self._tracks.get(source)
        if track is None:
            self._tracks[source] = _Track(end)
            if len(self._tracks) > _TRACKED_SOURCES:
                self._drop_block(self._tracks.popitem(last=False)[1])
            return 0
        self._tracks.move_to_end(source)
        follows = track.is_followed_by(start, end)
        track.window = min(max(2 * track.window, _FIRST_WINDOW_BYTES), self._most_bytes) if follows else 0
        track.end = end
        return track.window

    def keep(self, source: ObjectSource, start: int, body: bytes, *, used_to: int) -> None:
        """Hold what a request brought beyond what was asked for."""
        track = self._tracks.get(source)
        rest = start + len(body) - used_to
        if track is None or rest <= 0:
            return
        self._drop_block(track)
        track.block_start, track.block, track.served_bytes = used_to, body[-rest:], 0
        track.read_at = time.monotonic()
        self._held_bytes += rest
        for other in list(self._tracks.values()):
            if self._held_bytes <= self._limit_bytes:
                break
            self._drop_block(other)

    def _drop_block(self, track: _Track) -> None:
        self._held_bytes -= len(track.block)
        track.block = b""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How reads are merged, and how many run at the same time, per event loop."""

    gap_bytes: int = 128 << 10
    """Ranges this near are one request: reading the bytes in between costs less than another request."""
    merged_bytes: int = 4 << 20
    """Merged requests stay below this, so that a large read still uses several connections."""
    max_requests: int = 256
    max_bytes: int = 256 << 20
    """Bytes asked for and not yet delivered; one request is always allowed."""
    split_bytes: int | None = None
    """A single range larger than this is fetched in parts of this size."""
    read_ahead_bytes: int = 4 << 20
    """The most that is read ahead of ranges that follow one another in an object; 0 never reads ahead."""
    read_ahead_held_bytes: int = 32 << 20


@dataclass(slots=True)
class ReadCounts:
    """What was asked for and what it took."""

    ranges: int = 0
    requests: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Waiter:
    start: int
    end: int
    future: asyncio.Future[bytes]


@dataclass(slots=True, eq=False)
class _Request:
    """One request to the storage and its waiters."""

    source: ObjectSource
    start: int
    end: int
    waiters: list[_Waiter]
    ahead: bool = False
    """Whether it reads further than requested. The rest is kept for later reads."""
    charged_bytes: int = field(default=0)


def _nothing() -> None:
    """What a reference to an object returns that is gone."""


class RangeScheduler:
    """Reads ranges of objects; usable from any number of event loops, which share nothing but the counts."""

    def __init__(self, limits: ReadLimits | None = None) -> None:
        self.limits = limits or ReadLimits()
        self.counts = ReadCounts()
        self._loop_states: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopState] = WeakKeyDictionary()
        self._last: tuple[Callable[[], Any], Callable[[], _LoopState | None]] = (_nothing, _nothing)
        """The loop that read last, and its state. Most reads come from one loop."""

    async def read(self, source: ObjectSource, start: int, end: int) -> bytes:
        """Bytes [start, end) of an object, fewer where it ends before."""
        state = self._loop_state()
        self.counts.ranges += 1
        fetched = state.ahead.find(source, start, end)
        if fetched is not None:
            return fetched
        split = self.limits.split_bytes
        if split is not None and end - start > split:
            parts = [state.submit(source, at, min(at + split, end)) for at in range(start, end, split)]
            return b"".join(await asyncio.gather(*parts))
        return await state.gather_tick(source, start, end)

    def read_now(self, source: ObjectSource, start: int, end: int) -> bytes | None:
        """The same, if the range was read ahead or is a lone read of a local file. None if `read` has to be asked."""
        data = self._loop_state().read_now(source, start, end)
        self.counts.ranges += data is not None
        return data

    def note_reads(self, sizes: Sequence[int]) -> None:
        """Count the reads of other threads."""
        self.counts.ranges += len(sizes)
        self.counts.requests += len(sizes)
        self.counts.bytes += sum(sizes)

    async def read_many(
        self, source: ObjectSource, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> list[Buffer]:
        """Many ranges of one object, in the order asked for; those that were read together share their memory."""
        state = self._loop_state()
        self.counts.ranges += len(starts)
        plan = list(plan_reads(starts, ends, gap_bytes=self.limits.gap_bytes, most_bytes=self.limits.merged_bytes))
        bodies = await asyncio.gather(*(state.submit(source, read.start, read.end) for read in plan))
        result: list[Buffer] = [b""] * len(starts)
        for read, body in zip(plan, bodies, strict=True):
            members = read.members
            shared = memoryview(body)
            lows, highs = (starts[members] - read.start).tolist(), (ends[members] - read.start).tolist()
            for position, low, high in zip(members.tolist(), lows, highs, strict=True):
                result[position] = shared[low:high]
        return result

    def _loop_state(self) -> _LoopState:
        # Only a loop's own thread asks for its state, so no lock is needed.
        loop = asyncio.get_running_loop()
        last_loop, last_state = self._last
        state = last_state() if last_loop() is loop else self._loop_states.get(loop)
        if state is None:
            state = self._loop_states[loop] = _LoopState(self.limits, self.counts)
        if last_loop() is not loop:
            self._last = ref(loop), ref(state)
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        return RangeScheduler, (self.limits,)


class _LoopState:
    """The pending reads of one event loop. It does not refer to the loop, which would keep both alive."""

    def __init__(self, limits: ReadLimits, counts: ReadCounts) -> None:
        self._limits = limits
        self._counts = counts
        self._gathering: dict[ObjectSource, list[_Waiter]] = {}
        self._ready: deque[_Request] = deque()
        self._active: dict[ObjectSource, list[_Request]] = {}
        self._active_requests = 0
        self._active_bytes = 0
        self._tasks: set[asyncio.Task[bytes]] = set()
        self.ahead = ReadAhead(limits.read_ahead_bytes, limits.read_ahead_held_bytes)

    def gather_tick(self, source: ObjectSource, start: int, end: int) -> asyncio.Future[bytes]:
        """Ask for a range together with whatever else is asked for in this turn of the loop."""
        waiter = _Waiter(start, end, asyncio.get_running_loop().create_future())
        for request in self._active.get(source, ()):
            if request.start <= start and end <= request.end:
                request.waiters.append(waiter)
                return waiter.future
        if not self._gathering:
            asyncio.get_running_loop().call_soon(self._dispatch)
        self._gathering.setdefault(source, []).append(waiter)
        return waiter.future

    def read_now(self, source: ObjectSource, start: int, end: int) -> bytes | None:
        """Read a range at once, unless it may share a request with others or begins a sequential run."""
        ahead = self.ahead
        track = ahead.find_track(source)
        if track is not None:
            fetched = ahead.find(source, start, end) if track.block else None
            if fetched is not None:
                return fetched
            if track.is_followed_by(start, end):
                return None
        if self._ready or (self._active and source in self._active) or (self._gathering and source in self._gathering):
            return None
        body = source.read_now(start, end)
        if body is not None:
            ahead.note_alone(source, track, end)
            self._counts.requests += 1
            self._counts.bytes += len(body)
        return body

    def submit(self, source: ObjectSource, start: int, end: int) -> asyncio.Future[bytes]:
        """Ask for a range by itself."""
        waiter = _Waiter(start, end, asyncio.get_running_loop().create_future())
        self._ready.append(_Request(source, start, end, [waiter]))
        self._pump()
        return waiter.future

    def _dispatch(self) -> None:
        gathered, self._gathering = self._gathering, {}
        for source, waiters in gathered.items():
            for request in self._merge(source, waiters):
                more = self.ahead.plan(source, request.start, request.end)
                request.ahead = more > 0
                request.end += more
                self._ready.append(request)
        self._pump()

    def _merge(self, source: ObjectSource, waiters: list[_Waiter]) -> Sequence[_Request]:
        if len(waiters) == 1:
            return [_Request(source, waiters[0].start, waiters[0].end, waiters)]
        starts = np.fromiter((w.start for w in waiters), dtype=np.int64, count=len(waiters))
        ends = np.fromiter((w.end for w in waiters), dtype=np.int64, count=len(waiters))
        plan = plan_reads(starts, ends, gap_bytes=self._limits.gap_bytes, most_bytes=self._limits.merged_bytes)
        return [_Request(source, r.start, r.end, [waiters[i] for i in r.members.tolist()]) for r in plan]

    def _pump(self) -> None:
        """Start what the limits allow."""
        while self._ready and self._active_requests < self._limits.max_requests:
            request = self._ready[0]
            if all(waiter.future.done() for waiter in request.waiters):  # all waiters were cancelled
                self._ready.popleft()
                continue
            size = request.end - request.start
            if self._active_requests and self._active_bytes + size > self._limits.max_bytes:
                return
            self._ready.popleft()
            request.charged_bytes = size
            self._active_requests += 1
            self._active_bytes += size
            self._active.setdefault(request.source, []).append(request)
            self._counts.requests += 1
            task = asyncio.get_running_loop().create_task(request.source.read(request.start, request.end))
            self._tasks.add(task)
            task.add_done_callback(partial(self._finish, request))

    def _finish(self, request: _Request, task: asyncio.Task[bytes]) -> None:
        self._tasks.discard(task)
        self._active_requests -= 1
        self._active_bytes -= request.charged_bytes
        under_way = self._active[request.source]
        under_way.remove(request)
        if not under_way:
            del self._active[request.source]
        if task.cancelled():
            for waiter in request.waiters:
                waiter.future.cancel()
        elif (error := task.exception()) is not None:
            for waiter in request.waiters:
                if not waiter.future.done():
                    waiter.future.set_exception(error)
        else:
            self._deliver(request, task.result())
        self._pump()

    def _deliver(self, request: _Request, body: bytes) -> None:
        self._counts.bytes += len(body)
        for waiter in request.waiters:
            if not waiter.future.done():
                whole = waiter.start == request.start and waiter.end - request.start >= len(body)
                piece = body if whole else body[waiter.start - request.start : waiter.end - request.start]
                waiter.future.set_result(piece)
        if request.ahead:
            asked = max((waiter.end for waiter in request.waiters), default=request.start)
            self.ahead.keep(request.source, request.start, body, used_to=asked)
