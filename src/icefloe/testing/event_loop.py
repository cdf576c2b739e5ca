"""A deterministic event loop: time is a number, and a seed decides which actor takes the next step.

Every task belongs to an actor, which is named by a context variable. The steps of one actor run in the order in which
they became ready, as on any event loop. When several actors are ready, the seed picks one. When none is ready, time
jumps to the next timer: nothing ever sleeps.

Tasks of the actor `OBSERVER` run before all others. An observer that looks at the simulated world without waiting sees
one state of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

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
