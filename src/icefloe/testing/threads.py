"""Threads whose switches come from a seed: real threads, of which one runs at a time.

CPython may switch threads whenever a function is called or returns. A profile function (`sys.setprofile`) stands at
these points of chosen modules, and the seed decides whether another thread goes on there. Locks that are made while a
simulation runs are replaced by locks that hand over instead of blocking, so that taking one is a point to switch, too.

This is slow, compared with coroutines that switch where they wait. It finds what they cannot: state that is taken out
of an object and put back a call later.
"""

from __future__ import annotations

import _thread
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import icefloe
from icefloe.testing.event_loop import SimulatedLoop, WaitsForEverError

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
