"""The order of events in a simulation: an event loop on simulated time, and threads that take turns.

`SimulatedLoop` is a deterministic event loop: time is a number, and a seed decides which actor takes the next step.
Every task belongs to an actor, which is named by a context variable. The steps of one actor run in the order in which
they became ready, as on any event loop. When several actors are ready, the seed picks one. When none is ready, time
jumps to the next timer: nothing ever sleeps.

Tasks of the actor `OBSERVER` run before all others. An observer that looks at the simulated world without waiting sees
one state of it.

`Interleaver` runs real threads, one at a time, and a seed decides when they switch. CPython may switch threads whenever
a function is called or returns. A profile function (`sys.setprofile`) stands at these points of chosen modules. Locks
that are made while a simulation runs are replaced by locks that hand over instead of blocking, so that taking one is a
point to switch, too.

This is slow, compared with coroutines that switch where they wait. It finds what they cannot: state that is taken out
of an object and put back a call later.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import heapq
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import icefloe

T = TypeVar("T")

ACTOR: ContextVar[str] = ContextVar("simulated_actor", default="nobody")
OBSERVER = "observer"

_MOST_STEPS = 1_000_000
_LEFT_STEPS = 10_000


class WaitsForEverError(Exception):
    """Nothing is ready and no timer is set, or simulated time ran out, before the work was done."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs tasks of many actors in one thread, in an order and at times that follow from a seed."""

    def __init__(self, seed: int, limit_seconds: float) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._seconds = 0.0
        self._limit_seconds = limit_seconds
        self._queues: dict[str, deque[asyncio.Handle]] = {}
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self.steps = 0
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        """Simulated seconds since the beginning."""
        return self._seconds

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; WaitsForEverError if it has none."""
        main = self.create_task(work)
        asyncio._set_running_loop(self)
        try:
            while not main.done():
                self._step()
        finally:
            asyncio._set_running_loop(None)
        return main.result()

    def discard(self) -> None:
        """End what is ready, and forget what waits."""
        asyncio._set_running_loop(self)
        try:
            for task in asyncio.all_tasks(self):
                task.cancel()
            with contextlib.suppress(WaitsForEverError):
                for _ in range(_LEFT_STEPS):
                    if not self._queues:
                        break
                    self._step()
        finally:
            asyncio._set_running_loop(None)
        for task in asyncio.all_tasks(self):
            # A task that is dropped while it waits would complain that it was never finished.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._queues.clear()
        self._timers.clear()
        self.close()

    def _step(self) -> None:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise WaitsForEverError(f"{_MOST_STEPS} steps were taken at {self._seconds:.3f} s")
        queues = self._queues
        if OBSERVER in queues:
            actor = OBSERVER
        elif not queues:
            self._pass_time()
            return
        elif len(queues) == 1:
            actor = next(iter(queues))
        else:
            actor = self._random.choice(list(queues))
        queue = queues[actor]
        handle = queue.popleft()
        if not queue:
            del queues[actor]
        if not handle._cancelled:
            handle._run()

    def _pass_time(self) -> None:
        while self._timers:
            when, _, handle = heapq.heappop(self._timers)
            if handle._cancelled:
                continue
            if when > self._limit_seconds:
                raise WaitsForEverError(f"after {self._limit_seconds} simulated seconds the work is not done")
            self._seconds = max(self._seconds, when)
            self._enqueue(handle)
            return
        raise WaitsForEverError(f"at {self._seconds:.3f} s everybody waits, and nobody is there to go on")

    def _enqueue(self, handle: asyncio.Handle) -> None:
        context: Context = handle._context  # type: ignore[attr-defined]
        actor = context.get(ACTOR, "nobody")
        queue = self._queues.get(actor)
        if queue is None:
            queue = self._queues[actor] = deque()
        queue.append(handle)

    # The types of these methods say `*args: *Ts`, which a method that hands them on cannot repeat.

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, copy_context() if context is None else context)
        self._enqueue(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, copy_context() if context is None else context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._seconds + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run a function in a step of its own instead of in a thread."""
        outcome: asyncio.Future[T] = self.create_future()

        def call() -> None:
            if outcome.cancelled():
                return
            try:
                outcome.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - handed to whoever waits
                outcome.set_exception(error)

        self.call_soon(call)
        return outcome


async def observe(work: Coroutine[Any, Any, T]) -> T:
    """Do work as the observer: nobody else takes a step before it is done, if it waits for nothing."""
    context = copy_context()
    context.run(ACTOR.set, OBSERVER)
    return await asyncio.get_running_loop().create_task(work, context=context)


_PACKAGE = Path(icefloe.__file__).parent
_WATCHED = tuple(str(_PACKAGE / name) for name in ("session", "chunks/packs.py", "store.py"))
"""Where threads may switch: the state of a session and everything that changes it."""
_SWITCH_SHARE = 0.12
_MOST_WAITS = 20_000
_REAL_SECONDS = 60.0


class Interleaver:
    """Runs functions in threads, one at a time, and switches where the seed says so."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._gates: dict[int, Any] = {}
        self._ended = _thread.allocate_lock()
        self._me = threading.local()
        self._waits = 0
        self._watched: dict[str, bool] = {}

    def run(self, functions: Sequence[Callable[[], None]]) -> list[BaseException]:
        """Run all functions to their end; returns what they raised."""
        failures: list[BaseException] = []
        self._ended.acquire()
        for number in range(len(functions)):
            self._gates[number] = _thread.allocate_lock()
            self._gates[number].acquire()

        def body(number: int, function: Callable[[], None]) -> None:
            self._me.number = number
            gate = self._gates[number]
            gate.acquire()
            sys.setprofile(self._at_call)
            try:
                function()
            except BaseException as error:  # noqa: BLE001 - handed to the caller, who judges it
                failures.append(error)
            finally:
                sys.setprofile(None)
                del self._gates[number]
                if self._gates:
                    self._random.choice(list(self._gates.values())).release()
                else:
                    self._ended.release()

        for number, function in enumerate(functions):
            _thread.start_new_thread(body, (number, function))
        self._random.choice(list(self._gates.values())).release()
        if not self._ended.acquire(timeout=_REAL_SECONDS):
            raise WaitsForEverError(f"threads did not end within {_REAL_SECONDS} seconds")
        return failures

    def _at_call(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        watched = self._watched.get(name)
        if watched is None:
            watched = self._watched[name] = name.startswith(_WATCHED)
        if watched and self._random.random() < _SWITCH_SHARE:
            self.switch()

    def switch(self) -> None:
        """Let another thread go on; it may be this one again if there is no other."""
        number = getattr(self._me, "number", None)
        others = [gate for each, gate in self._gates.items() if each != number]
        if number is None or not others:
            return
        mine = self._gates[number]
        self._random.choice(others).release()
        mine.acquire()

    def wait(self) -> None:
        """Let others go on because this thread cannot; somebody has to make progress some time."""
        self._waits += 1
        if self._waits > _MOST_WAITS or len(self._gates) < 2:
            raise WaitsForEverError("every thread waits for another one")
        self.switch()

    def identity(self) -> int:
        """Which thread this is."""
        return int(getattr(self._me, "number", -1))

    @contextmanager
    def locks(self) -> Iterator[None]:
        """While this is in force, new locks of the threading module hand over instead of blocking."""
        module: Any = threading
        real = module.Lock, module.RLock
        module.Lock = partial(HandingLock, self, reentrant=False)
        module.RLock = partial(HandingLock, self, reentrant=True)
        try:
            yield
        finally:
            module.Lock, module.RLock = real


class HandingLock:
    """A lock for threads of an interleaver."""

    def __init__(self, interleaver: Interleaver, *, reentrant: bool) -> None:
        self._interleaver = interleaver
        self._reentrant = reentrant
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._interleaver.identity()
        self._interleaver.switch()
        while self._owner is not None and not (self._reentrant and self._owner == me):
            if not blocking:
                return False
            self._interleaver.wait()
        self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            self._interleaver.switch()

    def locked(self) -> bool:
        return self._owner is not None

    def _is_owned(self) -> bool:
        return self._owner == self._interleaver.identity()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class ThreadLoop(SimulatedLoop):
    """The event loop of one thread: where it has nothing to do, other threads go on."""

    def __init__(self, interleaver: Interleaver) -> None:
        super().__init__(0, 1e9)
        self._interleaver = interleaver

    def _pass_time(self) -> None:
        if self._timers:
            super()._pass_time()
        else:
            self._interleaver.wait()
