"""Run async work to its end from ordinary code, on one background event loop; time and randomness of the process.

The engine asks here instead of the standard library wherever the answer decides what is written. A simulation puts
values of its own in force for the tasks it starts; everybody else gets the system's.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import datetime as dt
import os
import secrets
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from icefloe.errors import SessionStateError


def _system_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@dataclass(frozen=True, slots=True)
class Environment:
    """What a process gets from the machine it runs on."""

    now: Callable[[], dt.datetime] = _system_now
    """The wall clock, in UTC."""
    monotonic: Callable[[], float] = time.monotonic
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    """Bytes that nobody can guess; ids are made of them."""
    loop: asyncio.AbstractEventLoop | None = None
    """The loop for work in the background, if it is not the library's own thread."""


SYSTEM = Environment()
_CURRENT: ContextVar[Environment] = ContextVar("icefloe_environment", default=SYSTEM)


def current_environment() -> Environment:
    """The environment of the running task."""
    return _CURRENT.get()


def current_time() -> dt.datetime:
    """The present time by the clock of this process, in UTC."""
    return _CURRENT.get().now()


def monotonic_time() -> float:
    """Seconds of a clock that never goes back."""
    return _CURRENT.get().monotonic()


def random_bytes(count: int) -> bytes:
    """So many random bytes."""
    return _CURRENT.get().random_bytes(count)


def adopt(environment: Environment) -> None:
    """Put an environment in force for the rest of the running task, and for the tasks that it starts."""
    _CURRENT.set(environment)


@contextmanager
def using(environment: Environment) -> Iterator[None]:
    """Put an environment in force for this block and for the tasks that are started in it."""
    token = _CURRENT.set(environment)
    try:
        yield
    finally:
        _CURRENT.reset(token)


T = TypeVar("T")

_BATCH_ITEMS = 256
_BATCH_SECONDS = 0.005
"""How long items that come without waiting are gathered before they cross to the caller's thread."""
_STOP_SECONDS = 2.0


class _Door:
    """A daemon thread with an event loop, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is not None:
            return loop
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="icefloe-io", daemon=True)
                self._thread.start()
            return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def is_own_thread(self) -> bool:
        return self._thread is not None and threading.current_thread() is self._thread

    def stop(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_STOP_SECONDS)


_door = _Door()


class _ForkAware(Protocol):
    def after_fork(self) -> None: ...


_fork_aware: weakref.WeakSet[Any] = weakref.WeakSet()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def tell_after_fork(owner: _ForkAware) -> None:
    """Call `owner.after_fork()` in every child of `os.fork()`, as long as the owner lives.

    A child has the memory of its parent but none of its other threads. Whatever waits for one of them waits for ever.
    """
    _fork_aware.add(owner)


def fork_safe_lock() -> threading.RLock:
    """A reentrant lock that nobody holds in a forked child, whoever held it in the parent."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _forget_door() -> None:
    # A fork copies the loop but not its thread: the child needs a door of its own, and locks nobody holds.
    global _door
    _door = _Door()
    for lock in list(_locks):
        lock._at_fork_reinit()
    for owner in list(_fork_aware):
        owner.after_fork()


def _stop_door() -> None:
    _door.stop()


os.register_at_fork(after_in_child=_forget_door)
atexit.register(_stop_door)


def blocking_loop() -> asyncio.AbstractEventLoop:
    """The event loop behind the door, for those who hand it work themselves; a simulation has its own."""
    simulated = current_environment().loop
    return _door.loop() if simulated is None else simulated


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result; an interrupt cancels it first."""
    if _door.is_own_thread():
        work.close()
        raise SessionStateError(
            "a blocking call was made from inside this library's own event loop, where it would wait for itself for "
            "ever; use the `_async` twin of the method and await it"
        )
    loop = _door.loop()
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
    tasks: list[asyncio.Task[T]] = []

    def start() -> None:
        tasks.append(loop.create_task(work))
        tasks[0].add_done_callback(hand_over)

    def hand_over(done: asyncio.Task[T]) -> None:
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is None:
            outcome.set_result(done.result())
        else:
            outcome.set_exception(error)

    def stop() -> None:
        # The interrupt may have come before the work was handed over.
        if not tasks:
            start()
        tasks[0].cancel()

    try:
        loop.call_soon_threadsafe(start)
        return outcome.result()
    except BaseException:
        if not outcome.done():
            # An interrupt: nothing of the work may go on behind the caller's back.
            loop.call_soon_threadsafe(stop)
            concurrent.futures.wait([outcome])
        raise


def iterate_blocking(items: AsyncIterator[T]) -> Iterator[T]:
    """The items of an async iterator, one after the other; closing the result closes the source.

    The first item comes as soon as it is there. Later ones cross the threads in small batches when they come faster
    than a few milliseconds; an item that needed waiting is handed over at once.
    """
    ended = False
    failure: Exception | None = None

    async def pull(most: int) -> list[T]:
        nonlocal ended, failure
        batch: list[T] = []
        until = time.monotonic() + _BATCH_SECONDS
        while len(batch) < most and (not batch or time.monotonic() < until):
            try:
                batch.append(await anext(items))
            except StopAsyncIteration:
                ended = True
                break
            except Exception as error:  # noqa: BLE001 - raised below, after the items that came before it
                ended, failure = True, error
                break
        return batch

    try:
        most = 1
        while not ended:
            yield from run_blocking(pull(most))
            most = _BATCH_ITEMS
        if failure is not None:
            raise failure
    finally:
        close = getattr(items, "aclose", None)
        if close is not None and not ended:
            run_blocking(close())
