"""Blocking methods made from async ones, the event loop that runs them, and the time and randomness of the process.

A public class writes a method once, as `name_async`. `blocking`, `blocking_classmethod`, `blocking_staticmethod`
and `blocking_function`
make the method `name` from it, with the same signature and docstring. `awaitable` works the other way round, for
methods that only use memory. Blocking calls run on the event loop of one background thread.

The engine reads the clock and random bytes from this module wherever they decide what is written. A simulation replaces
both for the tasks that it starts. All other tasks use the clock and the random bytes of the system.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import datetime as dt
import functools
import inspect
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from icefloe.errors import SessionStateError


def _system_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@dataclass(frozen=True, slots=True)
class Environment:
    """The clock, the random bytes and the event loop that a task uses."""

    now: Callable[[], dt.datetime] = _system_now
    """The wall clock, in UTC."""
    monotonic: Callable[[], float] = time.monotonic
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    """Random bytes that cannot be predicted. Object ids are made of them."""
    loop: asyncio.AbstractEventLoop | None = None
    """The loop for background work. None means the loop of the library's own thread."""


SYSTEM = Environment()
_CURRENT: ContextVar[Environment] = ContextVar("icefloe_environment", default=SYSTEM)


class _Queue:
    """The tasks that take turns."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.begun = 0
        """How many turns there were."""


_TURNS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakValueDictionary[Hashable, _Queue]] = (
    weakref.WeakKeyDictionary()
)


class Turn:
    """Lets tasks of one event loop do something one after the other.

    A task goes on without its turn if no other turn has begun for the longest time: the task whose turn it is may hang.

    Parameters
    ----------
    key
        Tasks with the same key take turns. A task without a key never waits.
    longest_wait
        Seconds.

    Examples
    --------
    >>> async def write():
    ...     async with Turn(("file:///tmp/repo/", "main"), 5):
    ...         ...
    """

    def __init__(self, key: Hashable, longest_wait: float) -> None:
        self._queue = _Queue()
        if key is not None:
            # The queue exists as long as a turn refers to it.
            queues = _TURNS.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
            self._queue = queues.setdefault(key, self._queue)
        self._longest_wait = longest_wait
        self._taken = False

    @property
    def is_taken(self) -> bool:
        """Whether another task has its turn."""
        return self._queue.lock.locked() and not self._taken

    def release(self) -> None:
        """End the turn before the end of the block."""
        if self._taken:
            self._taken = False
            self._queue.lock.release()

    async def __aenter__(self) -> Self:
        lock = self._queue.lock
        if not lock.locked():
            self._taken = await lock.acquire()
        else:
            await self._wait(asyncio.ensure_future(lock.acquire()))
        self._queue.begun += 1
        return self

    async def _wait(self, acquiring: asyncio.Future[bool]) -> None:
        try:
            begun = -1
            while not acquiring.done() and begun != self._queue.begun:
                begun = self._queue.begun
                await asyncio.wait([acquiring], timeout=self._longest_wait)
        except BaseException:
            if acquiring.done():
                self._queue.lock.release()
            acquiring.cancel()
            raise
        self._taken = acquiring.done()
        acquiring.cancel()

    async def __aexit__(self, *_: object) -> None:
        self.release()


def current_environment() -> Environment:
    """Return the environment of the running task."""
    return _CURRENT.get()


def current_time() -> dt.datetime:
    """Return the current time by the clock of this process, in UTC."""
    return _CURRENT.get().now()


def monotonic_time() -> float:
    """Return the seconds of a clock that never goes back."""
    return _CURRENT.get().monotonic()


def random_bytes(count: int) -> bytes:
    """Return `count` random bytes."""
    return _CURRENT.get().random_bytes(count)


def adopt(environment: Environment) -> None:
    """Use an environment for the rest of the running task, and for the tasks that it starts."""
    _CURRENT.set(environment)


@contextmanager
def using(environment: Environment) -> Iterator[None]:
    """Use an environment in this block, and for the tasks that are started in it."""
    token = _CURRENT.set(environment)
    try:
        yield
    finally:
        _CURRENT.reset(token)


T = TypeVar("T")
Item = TypeVar("Item")
P = ParamSpec("P")
Owner = TypeVar("Owner")

_BATCH_ITEMS = 256
_BATCH_SECONDS = 0.005
"""How long items that are available at once are collected before they are passed to the caller's thread."""
_STOP_SECONDS = 2.0


class _LoopThread:
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


_loop_thread = _LoopThread()


class _ForkAware(Protocol):
    def after_fork(self) -> None: ...


_fork_aware: weakref.WeakSet[Any] = weakref.WeakSet()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def reset_after_fork(owner: _ForkAware) -> None:
    """Call `owner.after_fork()` in every child of `os.fork()`, as long as the owner exists.

    A child has the memory of its parent but none of its other threads. Code that waits for one of them never returns.
    """
    _fork_aware.add(owner)


def fork_safe_lock() -> threading.RLock:
    """Return a reentrant lock that is free in a forked child, even if a thread of the parent held it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _replace_loop_thread() -> None:
    # A fork copies the loop but not its thread. The child needs a loop thread of its own, and locks that are free.
    global _loop_thread
    _loop_thread = _LoopThread()
    for lock in list(_locks):
        lock._at_fork_reinit()
    for owner in list(_fork_aware):
        owner.after_fork()


def _stop_loop_thread() -> None:
    _loop_thread.stop()


os.register_at_fork(after_in_child=_replace_loop_thread)
atexit.register(_stop_loop_thread)


def blocking_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that runs blocking calls. A simulation has its own."""
    simulated = current_environment().loop
    return _loop_thread.loop() if simulated is None else simulated


def call_later(seconds: float, call: Callable[[], object]) -> None:
    """Call a function after some seconds, in the library's own thread, also if the loop of the caller has ended."""
    loop = _loop_thread.loop()
    loop.call_soon_threadsafe(loop.call_later, seconds, call)


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result. An interrupt cancels the coroutine before it is raised."""
    if _loop_thread.is_own_thread():
        work.close()
        raise SessionStateError(
            "a blocking call was made from inside this library's own event loop, where it would never return; "
            "await the `_async` form of the method instead"
        )
    loop = _loop_thread.loop()
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
    tasks: list[asyncio.Task[None]] = []

    async def run() -> None:
        # The caller continues at once, and not after another turn of the event loop.
        try:
            result = await work
        except Exception as error:  # noqa: BLE001 - raised in the thread of the caller
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    def start() -> None:
        tasks.append(start_task(run()))
        tasks[0].add_done_callback(hand_over)

    def hand_over(done: asyncio.Task[None]) -> None:
        if not outcome.done():
            work.close()  # it never began, or was cancelled
            outcome.set_exception(asyncio.CancelledError() if done.cancelled() else done.exception())

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
            # An interrupt: the work must have stopped before the caller continues.
            loop.call_soon_threadsafe(stop)
            concurrent.futures.wait([outcome])
        raise


def start_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run a coroutine in the background, where Python can at once until it first waits.

    A request to local files often ends without waiting. Then the task is done, and needs no turn of the event loop.
    """
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    return loop.create_task(work)


async def wait_for_all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait until all tasks have ended, also those that fail. Then raise the error of the first that failed."""
    if not all(task.done() for task in tasks):
        await asyncio.gather(*tasks, return_exceptions=True)
    # Each is asked for its error, because asyncio logs errors that nobody asked for.
    for task in [task for task in tasks if task.cancelled() or task.exception() is not None]:
        task.result()


async def gather_each(work: Callable[[Item], Coroutine[Any, Any, T]], items: Sequence[Item]) -> list[T]:
    """The results for all items, which run at the same time. A single one needs no task."""
    if len(items) == 1:
        return [await work(items[0])]
    tasks = [start_task(work(item)) for item in items]
    if all(task.done() for task in tasks):
        await wait_for_all(tasks)
        return [task.result() for task in tasks]
    return list(await asyncio.gather(*tasks))


def iterate_blocking(items: AsyncIterator[T]) -> Iterator[T]:
    """Iterate over an async iterator from ordinary code. Closing the result closes the async iterator.

    The first item is passed on as soon as it is available. Later items that arrive within a few milliseconds are passed
    to the caller's thread in small batches. An item that had to be waited for is passed on at once.
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
            if _loop_thread.is_own_thread():
                # The garbage collector found an abandoned iterator while this thread ran. It cannot wait here.
                task = _loop_thread.loop().create_task(close())
                _CLOSING.add(task)
                task.add_done_callback(_CLOSING.discard)
            else:
                run_blocking(close())


_CLOSING: set[asyncio.Task[Any]] = set()
"""Tasks that close abandoned iterators. An event loop itself keeps only weak references to tasks."""


class AsyncCloseableIterator(Generic[T]):
    """The items of an async iterator, for `async for` and for ordinary `for` loops.

    Parameters
    ----------
    items
        The async iterator.

    Examples
    --------
    >>> async def numbers():
    ...     yield 1
    ...     yield 2
    >>> list(AsyncCloseableIterator(numbers()))
    [1, 2]
    """

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items
        self._blocking: Iterator[T] | None = None

    def __aiter__(self) -> AsyncCloseableIterator[T]:
        return self

    async def __anext__(self) -> T:
        return await anext(self._items)

    async def aclose(self) -> None:
        """Stop the iteration and free what it holds."""
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._blocking is None:
            self._blocking = iterate_blocking(self._items)
        return next(self._blocking)


# -- methods made from other methods ------------------------------------------------------------------------------


@overload
def blocking(method: Callable[P, Coroutine[Any, Any, T]], name: str | None = None) -> Callable[P, T]: ...
@overload
def blocking(method: Callable[P, AsyncIterator[T]], name: str | None = None) -> Callable[P, Iterator[T]]: ...
def blocking(method: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """Make the blocking form of an async method, in the body of its class.

    The result has the signature and the docstring of the async method. It returns what the async method returns when
    it is awaited. For an async generator it returns an iterator. It calls the async method by name, so a subclass only
    has to override the async method.

    Parameters
    ----------
    method
        The async method, or an async generator.
    name
        Name of the result. By default it is the name of `method` without `_async` or `async_`.

    Returns
    -------
    callable
        The blocking method.

    Examples
    --------
    >>> class Counter:
    ...     async def count_async(self, text: str) -> int:
    ...         return len(text)
    ...
    ...     count = blocking(count_async)
    >>> Counter().count("abc")
    3
    """
    async_name = method.__name__
    name = name or async_name.removesuffix("_async").removeprefix("async_")
    run: Callable[[Any], Any] = iterate_blocking if inspect.isasyncgenfunction(method) else run_blocking

    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            work = getattr(self, async_name)(*args, **kwargs)
        except TypeError as error:
            raise _renamed(error, async_name, name) from None
        return run(work)

    made: Callable[..., Any] = _documented(call, method, name)
    return made


def blocking_classmethod(
    method: Callable[Concatenate[type[Owner], P], Coroutine[Any, Any, T]],
) -> classmethod[Owner, P, T]:
    """Make the blocking form of an async class method, as `blocking` does for a method."""
    return classmethod(blocking(getattr(method, "__func__", method)))


def blocking_staticmethod(method: Callable[P, Coroutine[Any, Any, T]]) -> staticmethod[P, T]:
    """Make the blocking form of an async static method, as `blocking` does for a method."""
    return staticmethod(blocking_function(getattr(method, "__func__", method)))


def blocking_function(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make the blocking form of an async function of a module, as `blocking` does for a method."""
    async_name = function.__name__
    name = async_name.removesuffix("_async")

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            work = function(*args, **kwargs)
        except TypeError as error:
            raise _renamed(error, async_name, name) from None
        return run_blocking(work)

    made: Callable[P, T] = _documented(call, function, name)
    return made


def awaitable(method: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make the async form of a method that only uses memory and therefore never waits.

    The result is named `name_async`. Running such a method on the event loop instead would cost two changes of thread
    for each call.

    Parameters
    ----------
    method
        The ordinary method.

    Returns
    -------
    callable
        The async method. It has the signature and the docstring of `method`.

    Examples
    --------
    >>> class Counter:
    ...     def count(self, text: str) -> int:
    ...         return len(text)
    ...
    ...     count_async = awaitable(count)
    >>> run_blocking(Counter().count_async("abc"))
    3
    """
    name = method.__name__

    async def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, name)(*args, **kwargs)

    made: Callable[P, Coroutine[Any, Any, T]] = _documented(call, method, f"{name}_async")
    return made


def _documented(call: Callable[..., Any], method: Callable[..., Any], name: str) -> Any:
    """Give a method the signature and docstring of another one, and a name of its own."""
    made: Any = functools.update_wrapper(call, method)
    made.__name__ = name
    made.__qualname__ = method.__qualname__.removesuffix(method.__name__) + name
    returned = method.__annotations__.get("return")
    if inspect.isasyncgenfunction(method) and isinstance(returned, str):
        # `AsyncIterator[Item]` is a text here. The item stays a text, which its own module can evaluate.
        item = returned.partition("[")[2].removesuffix("]")
        made.__annotations__ = {**method.__annotations__, "return": Iterator[item]}  # type: ignore[valid-type]
        made.__signature__ = inspect.signature(method).replace(return_annotation=made.__annotations__["return"])
    return made


def _renamed(error: TypeError, async_name: str, name: str) -> TypeError:
    """Wrong arguments are reported with the name that the caller used."""
    return TypeError(str(error).replace(f"{async_name}()", f"{name}()")).with_traceback(error.__traceback__)
