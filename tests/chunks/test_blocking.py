"""Async work is run to its end from ordinary code, in every process and thread, and can be interrupted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.blocking import blocking_loop, gather_each, iterate_blocking, run_blocking, start_task, wait_for_all
from icefloe.errors import SessionStateError
from icefloe.metadata_files import ByteCache


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_a_coroutine_is_run_to_its_end() -> None:
    assert run_blocking(double(21)) == 42


def test_an_error_comes_out_as_it_was_raised() -> None:
    async def fail() -> None:
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        run_blocking(fail())


def test_it_works_inside_another_running_loop_and_from_threads() -> None:
    async def outside() -> int:
        return run_blocking(double(1))

    assert asyncio.run(outside()) == 2
    results: list[int] = []
    threads = [threading.Thread(target=lambda n=n: results.append(run_blocking(double(n)))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [2 * n for n in range(8)]


def test_a_blocking_call_from_its_own_loop_is_refused_instead_of_hanging() -> None:
    async def nested() -> int:
        return run_blocking(double(1))

    with pytest.raises(SessionStateError, match="_async"):
        run_blocking(nested())


async def count(to: int, seen: list[str]) -> AsyncIterator[int]:
    try:
        for number in range(to):
            yield number
    finally:
        seen.append("closed")


def test_an_async_generator_becomes_an_iterator() -> None:
    seen: list[str] = []
    assert list(iterate_blocking(count(1000, seen))) == list(range(1000))
    assert seen == ["closed"]
    assert list(iterate_blocking(count(0, seen))) == []


def test_leaving_early_closes_the_source() -> None:
    seen: list[str] = []
    numbers = iterate_blocking(count(10**9, seen))
    assert next(numbers) == 0 and next(numbers) == 1
    numbers.close()  # type: ignore[attr-defined]
    assert seen == ["closed"]


def test_items_before_an_error_are_not_lost() -> None:
    async def breaking() -> AsyncIterator[int]:
        yield 1
        yield 2
        yield 3
        raise KeyError("after three")

    numbers = iterate_blocking(breaking())
    assert [next(numbers) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(KeyError):
        next(numbers)


def test_a_slow_item_is_handed_over_at_once() -> None:
    async def slow() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(0.02)
            yield number

    times = []
    started = time.monotonic()
    for _ in iterate_blocking(slow()):
        times.append(time.monotonic() - started)
    assert len(times) == 3 and times[0] < times[1] < times[2]


def _exit_code(pid: int) -> int:
    """How a child ended; it fails the test when it does not."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail("the child hangs")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_a_loop_thread_of_its_own() -> None:
    run_blocking(double(1))
    blocking_loop()
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if run_blocking(double(4)) == 8 else 1)
        finally:
            os._exit(2)
    assert _exit_code(pid) == 0


async def _never() -> tuple[int, int]:
    await asyncio.Event().wait()
    raise AssertionError


async def _at_once() -> tuple[int, int]:
    return 7, 1


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("lock_is_held", [False, True])
def test_a_forked_child_loads_what_its_parent_was_loading(lock_is_held: bool) -> None:
    cache: ByteCache[str, int] = ByteCache(100)
    held = threading.Event()

    def hold() -> None:
        with cache._lock:
            held.set()
            time.sleep(0.5)

    loading = asyncio.run_coroutine_threadsafe(cache.get("a", _never), blocking_loop())
    while not cache.holds("a"):
        time.sleep(0.001)
    holder = threading.Thread(target=hold)
    if lock_is_held:
        holder.start()
        held.wait()
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if run_blocking(cache.get("a", _at_once)) == 7 else 1)
        finally:
            os._exit(2)
    assert _exit_code(pid) == 0
    if lock_is_held:
        holder.join()
    loading.cancel()
    for started in list(cache._loading.values()):
        started.cancel()


def test_a_value_that_is_read_at_once_is_kept() -> None:
    cache: ByteCache[str, int] = ByteCache(100)
    assert run_blocking(cache.get("a", _never, lambda: (7, 1))) == 7
    assert cache.find("a") == 7
    assert run_blocking(cache.get("b", _at_once, lambda: None)) == 7


@pytest.mark.parametrize("change", ["renew", "drop"])
def test_a_value_that_changed_while_it_was_read_at_once_is_not_kept(change: str) -> None:
    """Maintenance rewrites a file, and its cache entry, while another thread has read the old bytes."""
    cache: ByteCache[str, int] = ByteCache(100)

    def read_old() -> tuple[int, int]:
        if change == "renew":
            run_blocking(cache.renew("a", _at_once))
        else:
            cache.drop("a")
        return 6, 1

    assert asyncio.run(cache.get("a", _never, read_old)) == 6
    assert cache.find("a") == (7 if change == "renew" else None)


def test_an_error_while_reading_at_once_leaves_nothing_behind() -> None:
    cache: ByteCache[str, int] = ByteCache(100)

    def fail() -> tuple[int, int]:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_blocking(cache.get("a", _never, fail))
    assert not cache.holds("a")
    assert run_blocking(cache.get("a", _at_once)) == 7


def test_an_interrupt_cancels_the_work() -> None:
    script = textwrap.dedent("""
        import asyncio, signal
        from icefloe.blocking import run_blocking

        # Whoever started the tests in the background may have them ignore interrupts.
        signal.signal(signal.SIGINT, signal.default_int_handler)

        async def work():
            print("started", flush=True)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                print("cancelled", flush=True)
                raise

        try:
            run_blocking(work())
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "started\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.read() == "cancelled\ninterrupted\n"
        assert child.wait(20) == 0


def test_an_abandoned_iterator_is_closed_also_on_the_thread_of_the_event_loop() -> None:
    closed = threading.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(1_000_000):
                yield number
        finally:
            closed.set()

    iterator = iterate_blocking(numbers())
    assert next(iterator) == 0

    async def abandon() -> None:
        iterator.close()  # as the garbage collector does, on whichever thread it runs

    run_blocking(abandon())
    assert closed.wait(10)


def test_a_call_that_is_cancelled_from_inside_raises_that() -> None:
    async def cancel_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    with pytest.raises(asyncio.CancelledError):
        run_blocking(cancel_itself())


STEPS = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6)
"""For each piece of work how often it waits, and whether it fails."""


async def _step(number: int, turns: int, fails: bool, ended: list[int]) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    ended.append(number)
    if fails:
        raise LookupError(number)
    return number


@given(STEPS)
def test_all_background_work_ends_before_its_first_error_is_raised(steps: list[tuple[int, bool]]) -> None:
    ended: list[int] = []
    unasked: list[object] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unasked.append(context))
        tasks = [start_task(_step(number, *step, ended)) for number, step in enumerate(steps)]
        failing = [number for number, (_, fails) in enumerate(steps) if fails]
        outcome = (await asyncio.gather(wait_for_all(tasks), return_exceptions=True))[0]
        assert outcome.args == (failing[0],) if isinstance(outcome, LookupError) else not failing
        assert sorted(ended) == list(range(len(steps)))

    asyncio.run(run())
    assert not unasked, "asyncio logs an error that nobody asked for"


@given(STEPS)
def test_results_come_in_the_order_of_the_items_whichever_ends_first(steps: list[tuple[int, bool]]) -> None:
    async def run() -> list[int]:
        return await gather_each(lambda number: _step(number, steps[number][0], False, []), range(len(steps)))

    assert asyncio.run(run()) == list(range(len(steps)))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="older versions of Python start every task later")
async def test_work_that_never_waits_is_done_when_it_is_started() -> None:
    assert start_task(_step(7, 0, False, [])).done()
    waiting = start_task(_step(8, 1, False, []))
    assert not waiting.done()
    assert await waiting == 8
