"""The parts of the simulator do what they say: time, order, faults, threads, and a shortened report."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import threading

import pytest

from icefloe.errors import AlreadyExistsError, ObjectNotFoundError, StorageError
from icefloe.storage.contract import Version
from icefloe.testing.actors import ProcessPlan, Step
from icefloe.testing.model import Chunk, Document, apply_change, carry_over, find_clashes
from icefloe.testing.oracle import Violation
from icefloe.testing.profiles import Schedule
from icefloe.testing.schedule import ACTOR, Interleaver, SimulatedLoop, WaitsForEverError, observe
from icefloe.testing.simulator import Failure, run_schedule, shorten
from icefloe.testing.storages import Network, ProcessDied, SimulatedStorage, SimulatedStore

EPOCH = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def make_loop(seed: int = 1) -> SimulatedLoop:
    return SimulatedLoop(seed, 1e6)


def test_sleeping_takes_simulated_time_only() -> None:
    loop = make_loop()
    loop.run(asyncio.sleep(86400))
    assert loop.time() == 86400
    loop.discard()


def test_waiting_for_nobody_is_found_out() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    loop = make_loop()
    with pytest.raises(WaitsForEverError, match="everybody waits"):
        loop.run(wait())
    loop.discard()


def take_turns(seed: int) -> str:
    seen: list[str] = []

    async def actor(name: str) -> None:
        ACTOR.set(name)
        for _ in range(5):
            await asyncio.sleep(0)
            seen.append(name)

    async def all_of_them() -> None:
        await asyncio.gather(actor("a"), actor("b"), actor("c"))

    loop = make_loop(seed)
    loop.run(all_of_them())
    loop.discard()
    return "".join(seen)


def test_the_order_of_actors_comes_from_the_seed() -> None:
    assert take_turns(1) == take_turns(1)
    assert len({take_turns(seed) for seed in range(20)}) > 10


def test_an_observer_is_never_interrupted() -> None:
    seen: list[str] = []

    async def busy() -> None:
        ACTOR.set("busy")
        for _ in range(20):
            await asyncio.sleep(0)
            seen.append("busy")

    async def look() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
            seen.append("look")

    async def both() -> None:
        working = asyncio.create_task(busy())
        await asyncio.sleep(0)
        await observe(look())
        await working

    loop = make_loop()
    loop.run(both())
    loop.discard()
    assert "looklooklooklooklook" in "".join(seen)


def with_storage(network: Network | None, work: object, page_size: int = 1000) -> tuple[object, SimulatedStore]:
    loop = make_loop()
    store = SimulatedStore(lambda: EPOCH + dt.timedelta(seconds=loop.time()), page_size=page_size)
    try:
        return loop.run(work(SimulatedStorage(store, "client", network))), store  # type: ignore[operator]
    finally:
        loop.discard()


def test_the_store_has_a_clock_of_its_own() -> None:
    async def work(storage: SimulatedStorage) -> dt.datetime:
        await asyncio.sleep(100)
        await storage.put("key", b"data")
        return (await storage.head("key")).last_modified

    assert with_storage(None, work)[0] == EPOCH + dt.timedelta(seconds=100)


def test_one_of_many_creators_wins_although_answers_are_lost() -> None:
    async def work(storage: SimulatedStorage) -> list[object]:
        tries = (storage.create("key", f"{number}".encode()) for number in range(8))
        return await asyncio.gather(*tries, return_exceptions=True)

    answers, store = with_storage(Network(random.Random(3), loss_share=0.3), work)
    assert isinstance(answers, list)
    winners = [number for number, answer in enumerate(answers) if isinstance(answer, Version)]
    refused = [answer for answer in answers if isinstance(answer, AlreadyExistsError)]
    assert [str(number).encode() for number in winners] == [store.objects["key"].data]
    assert len(refused) >= 5


def test_a_client_gives_up_when_nothing_comes_back() -> None:
    async def work(storage: SimulatedStorage) -> None:
        await storage.get("key")

    with pytest.raises((StorageError, ObjectNotFoundError)):
        with_storage(Network(random.Random(0), loss_share=1.0), work)


def test_a_dead_process_changes_nothing_any_more() -> None:
    network = Network(random.Random(0), death_share=1.0)

    async def work(storage: SimulatedStorage) -> list[str]:
        for _ in range(3):
            with pytest.raises(ProcessDied):
                await storage.put("key", b"data")
        return []

    _, store = with_storage(network, work)
    assert network.is_dead
    assert len(store.objects) <= 1


def test_a_page_of_a_listing_shows_the_store_as_it_is_then() -> None:
    async def work(storage: SimulatedStorage) -> list[str]:
        for name in "abcd":
            await storage.put(f"x/{name}", b"")
        seen: list[str] = []
        async for page in storage.list("x/"):
            seen += [item.key for item in page]
            await storage.delete(["x/c"])
        return seen

    assert with_storage(None, work, page_size=2)[0] == ["x/a", "x/b", "x/d"]


def test_threads_switch_where_the_seed_says() -> None:
    def count(seed: int) -> int:
        interleaver = Interleaver(seed)
        value = 0

        def add() -> None:
            nonlocal value
            for _ in range(10):
                seen = value
                interleaver.switch()
                value = seen + 1

        assert interleaver.run([add, add]) == []
        return value

    assert count(1) == count(1)
    assert count(1) < 20


def test_a_lock_keeps_simulated_threads_apart() -> None:
    interleaver = Interleaver(1)
    value = 0
    with interleaver.locks():
        lock = threading.Lock()

    def add() -> None:
        nonlocal value
        for _ in range(10):
            with lock:
                seen = value
                interleaver.switch()
                value = seen + 1

    assert interleaver.run([add, add, add]) == []
    assert value == 30


def test_threads_that_wait_for_each_other_are_found_out() -> None:
    interleaver = Interleaver(1)
    with interleaver.locks():
        one, two = threading.Lock(), threading.Lock()

    def take(first: threading.Lock, second: threading.Lock) -> None:
        for _ in range(100):
            with first:
                interleaver.switch()
                with second:
                    pass

    errors = interleaver.run([lambda: take(one, two), lambda: take(two, one)])
    assert any(isinstance(error, WaitsForEverError) for error in errors)


def content(**chunks: bytes) -> dict[str, object]:
    from icefloe.testing.model import ArrayState

    return {"a": ArrayState("a", 6, "", {int(name[1:]): data for name, data in chunks.items()})}


def test_two_writes_of_one_chunk_clash_and_of_two_chunks_do_not() -> None:
    base = content(c0=b"old", c1=b"old")
    theirs = apply_change(base, Chunk("a", 0, b"theirs"))  # type: ignore[arg-type]
    assert find_clashes(base, [Chunk("a", 0, b"ours")], theirs)  # type: ignore[arg-type]
    assert find_clashes(base, [Chunk("a", 0, None)], theirs)  # type: ignore[arg-type]
    assert not find_clashes(base, [Chunk("a", 1, b"ours")], theirs)  # type: ignore[arg-type]
    done = carry_over(base, [Chunk("a", 1, b"ours")], theirs)  # type: ignore[arg-type]
    assert done["a"].chunks == {0: b"theirs", 1: b"ours"}


def test_a_chunk_that_was_cut_off_meanwhile_clashes() -> None:
    base = content(c5=b"old")
    theirs = apply_change(apply_change(base, Document("a", 2, "")), Document("a", 6, ""))  # type: ignore[arg-type]
    assert find_clashes(base, [Chunk("a", 5, b"ours")], theirs)  # type: ignore[arg-type]


def test_a_schedule_that_fails_is_shortened_to_the_steps_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = tuple(Step(number, float(number), "one", 0, "verify") for number in range(12))
    schedule = Schedule("repository", "care", 1, (ProcessPlan("one"),), steps)

    def fails(candidate: Schedule) -> Violation | None:
        numbers = {step.number for step in candidate.steps}
        return Violation("rule", "text") if {3, 9} <= numbers else None

    monkeypatch.setattr("icefloe.testing.simulator.run_schedule", fails)
    short = shorten(schedule, Violation("rule", "text"))
    assert [step.number for step in short.schedule.steps] == [3, 9]
    assert "--seed 1" in str(short)


def test_a_violation_ends_the_simulation_and_is_reported() -> None:
    steps = (Step(0, 0.0, "one", 0, "commit", {"slot": "nothing"}), Step(1, 1.0, "one", 0, "no_such_verb"))
    schedule = Schedule("repository", "care", 1, (ProcessPlan("one"),), steps)
    with_unknown = run_schedule(schedule)
    assert with_unknown is not None and with_unknown.rule == "errors are typed"
    assert "replay it with" in str(Failure(schedule, with_unknown))
