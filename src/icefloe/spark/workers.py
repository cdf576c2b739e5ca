"""What a Python worker of Spark does once, so that the tasks after it are cheap and its end is quiet."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable
from functools import cache

_DAEMON = "pyspark.daemon"
_LEAVE = 1
"""What the loop of a worker takes as: no further task, end the process."""


@cache
def settle_worker() -> None:
    """Take what is loaded by now out of the sight of garbage collection.

    The daemon of Spark's workers collects after every task, and most of what it looks at are modules that stay. Once
    per process: what later tasks leave behind must be found.
    """
    gc.collect()
    gc.freeze()


@cache
def end_quietly() -> None:
    """Let this worker go without a traceback when the session ends; does nothing in other processes."""
    loop = sys.modules["__main__"]
    if getattr(getattr(loop, "__spec__", None), "name", None) == _DAEMON and hasattr(loop, "worker"):
        # Only in this process, which was forked from the daemon and looks the function up for every task.
        loop.worker = QuietWorker(loop.worker)  # type: ignore[attr-defined]


class QuietWorker:
    """Waits for the next task; a worker whose JVM hangs up meanwhile has nothing to tell and nobody to tell it to.

    Spark's own loop takes the end of the connection for a failed task, fails again at telling the JVM so, and prints
    a traceback for each worker whenever a session ends.
    """

    def __init__(self, run: Callable[[socket.socket, bool], int]) -> None:
        self._run = run

    def __call__(self, connection: socket.socket, authenticated: bool) -> int:
        try:
            waiting = connection.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return _LEAVE
        return self._run(connection, authenticated) if waiting else _LEAVE
