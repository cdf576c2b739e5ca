"""Ranges read together come back exactly, in few requests."""

from __future__ import annotations

import asyncio
import gc
import random
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.chunks.range_scheduler import ObjectSource, RangeScheduler, ReadLimits, object_source
from icefloe.errors import ObjectNotFoundError
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.requests import plan_reads

SIZE = 5000
BODY = random.Random(7).randbytes(SIZE)
ranges = st.lists(
    st.tuples(st.integers(0, SIZE - 1), st.integers(1, 400)).map(lambda r: (r[0], min(r[0] + r[1], SIZE))),
    min_size=1,
    max_size=40,
)
limits = st.builds(
    ReadLimits,
    gap_bytes=st.integers(0, 300),
    merged_bytes=st.integers(1, 3000),
    max_requests=st.integers(1, 4),
    max_bytes=st.integers(1, 2000),
    split_bytes=st.none() | st.integers(10, 300),
    read_ahead_bytes=st.sampled_from([0, 700]),
    read_ahead_held_bytes=st.sampled_from([300, 5000]),
)


class CountingStorage(MemoryStorage):
    """A memory that lets other tasks run while it answers, and counts."""

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.under_way = getattr(self, "under_way", 0) + 1
        self.most = max(getattr(self, "most", 0), self.under_way)
        self.requests = [*getattr(self, "requests", []), (key, start, end)]
        await asyncio.sleep(0)
        try:
            return await super().get_range(key, start, end)
        finally:
            self.under_way -= 1


def storage_with(**objects: bytes) -> CountingStorage:
    storage = CountingStorage()
    for key, body in objects.items():
        asyncio.run(storage.put(key, body))
    return storage


@given(wanted=ranges, gap=st.integers(0, 500), most=st.integers(1, 3000))
def test_a_plan_covers_every_range_once_within_its_limits(wanted, gap: int, most: int) -> None:
    starts, ends = (np.array(column, dtype=np.int64) for column in zip(*wanted, strict=True))
    plan = list(plan_reads(starts, ends, gap_bytes=gap, most_bytes=most))
    assert sorted(np.concatenate([read.members for read in plan]).tolist()) == list(range(len(wanted)))
    for read in plan:
        inside = sorted((int(starts[i]), int(ends[i])) for i in read.members)
        assert read.start == inside[0][0] and read.end == max(end for _, end in inside)
        assert read.end - read.start <= max(most, max(end - start for start, end in inside))
        reach = inside[0][1]
        for start, end in inside[1:]:
            assert start <= reach + gap
            reach = max(reach, end)


@given(wanted=ranges, limits=limits, rounds=st.integers(1, 3))
def test_reads_in_flight_together_return_exactly_their_bytes(wanted, limits: ReadLimits, rounds: int) -> None:
    storage = storage_with(a=BODY, b=BODY[::-1])
    scheduler = RangeScheduler(limits)

    async def read_all() -> None:
        for _ in range(rounds):
            found = await asyncio.gather(
                *(scheduler.read(object_source(storage, "ab"[i % 2]), s, e) for i, (s, e) in enumerate(wanted))
            )
            for i, (start, end) in enumerate(wanted):
                assert found[i] == (BODY if i % 2 == 0 else BODY[::-1])[start:end]

    asyncio.run(read_all())
    assert storage.most <= limits.max_requests


@given(wanted=ranges, limits=limits)
def test_a_batch_returns_exactly_its_bytes(wanted, limits: ReadLimits) -> None:
    storage = storage_with(a=BODY)
    starts, ends = (np.array(column, dtype=np.int64) for column in zip(*wanted, strict=True))
    found = asyncio.run(RangeScheduler(limits).read_many(object_source(storage, "a"), starts, ends))
    assert found == [BODY[s:e] for s, e in wanted]


def test_a_thousand_neighbours_are_one_request() -> None:
    body = random.Random(1).randbytes(4096 * 1000)
    storage, scheduler = storage_with(a=body), RangeScheduler()

    async def read_all() -> list[bytes]:
        source = object_source(storage, "a")
        return await asyncio.gather(*(scheduler.read(source, i * 4096, i * 4096 + 4096) for i in range(1000)))

    assert b"".join(asyncio.run(read_all())) == body
    assert scheduler.counts.requests == 1


def test_a_lone_read_asks_for_nothing_more() -> None:
    storage, scheduler = storage_with(a=BODY), RangeScheduler()
    asyncio.run(scheduler.read(object_source(storage, "a"), 10, 20))
    assert storage.requests == [("a", 10, 20)]


def test_a_run_of_small_reads_needs_few_requests() -> None:
    body = random.Random(2).randbytes(4096 * 500)
    storage, scheduler = storage_with(a=body), RangeScheduler()

    async def read_all() -> bytes:
        source = object_source(storage, "a")
        return b"".join([await scheduler.read(source, i * 4096, i * 4096 + 4096) for i in range(500)])

    assert asyncio.run(read_all()) == body
    assert scheduler.counts.requests < 12
    assert scheduler.counts.bytes <= 2 * len(body)


def test_random_reads_are_not_read_ahead_of() -> None:
    body = bytes(4 << 20)
    storage, scheduler = storage_with(a=body), RangeScheduler()
    places = random.Random(3).sample(range(0, 4 << 20, 128 << 10), 32)

    async def read_all() -> None:
        for place in places:
            await scheduler.read(object_source(storage, "a"), place, place + 100)

    asyncio.run(read_all())
    assert scheduler.counts.bytes <= 32 * 100 + (256 << 10) * 3


def test_reads_that_nobody_waits_for_any_more_are_not_made() -> None:
    storage, scheduler = storage_with(a=BODY), RangeScheduler(ReadLimits(max_requests=1, gap_bytes=0))

    async def give_up() -> bytes:
        source = object_source(storage, "a")
        first = asyncio.ensure_future(scheduler.read(source, 0, 10))
        second = asyncio.ensure_future(scheduler.read(source, 2000, 2010))
        await asyncio.sleep(0)
        second.cancel()
        return await first

    assert asyncio.run(give_up()) == BODY[:10]
    assert storage.requests == [("a", 0, 10)]


def test_an_error_reaches_everyone_who_waits_and_nobody_else() -> None:
    storage, scheduler = storage_with(a=BODY), RangeScheduler()

    async def read_all() -> list[bytes | BaseException]:
        missing, there = object_source(storage, "missing"), object_source(storage, "a")
        return await asyncio.gather(
            *(scheduler.read(source, 0, 10) for source in (missing, there, missing)), return_exceptions=True
        )

    first, second, third = asyncio.run(read_all())
    assert isinstance(first, ObjectNotFoundError) and second == BODY[:10] and isinstance(third, ObjectNotFoundError)


def test_several_event_loops_read_at_the_same_time() -> None:
    storage, scheduler = storage_with(a=BODY), RangeScheduler()
    failures: list[BaseException] = []

    async def read_all(seed: int) -> None:
        source = object_source(storage, "a")
        places = random.Random(seed).sample(range(SIZE - 10), 200)
        found = await asyncio.gather(*(scheduler.read(source, p, p + 10) for p in places))
        assert found == [BODY[p : p + 10] for p in places]

    def run(seed: int) -> None:
        try:
            asyncio.run(read_all(seed))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_sources_of_different_storages_or_conditions_do_not_mix() -> None:
    one, two = storage_with(a=b"1" * 100), storage_with(a=b"2" * 100)
    assert object_source(one, "a") == object_source(one, "a") != object_source(two, "a")
    assert object_source(one, "a", "etag") != object_source(one, "a")
    assert isinstance(hash(object_source(one, "a")), int)

    async def read_both() -> list[bytes]:
        scheduler = RangeScheduler()
        return await asyncio.gather(*(scheduler.read(object_source(s, "a"), 0, 3) for s in (one, two)))

    assert asyncio.run(read_both()) == [b"111", b"222"]


@pytest.mark.parametrize("start", [0, 4990])
def test_an_object_that_ends_early_gives_what_it_has(start: int) -> None:
    storage = storage_with(a=BODY)
    source: ObjectSource = object_source(storage, "a")
    assert asyncio.run(RangeScheduler().read(source, start, SIZE + 50)) == BODY[start:]


def test_a_loop_that_is_gone_leaves_nothing_behind() -> None:
    storage, scheduler = storage_with(a=BODY), RangeScheduler()
    for _ in range(3):
        asyncio.run(scheduler.read(object_source(storage, "a"), 0, 10))
    gc.collect()
    assert len(scheduler._loop_states) == 0
