"""The Python worker processes of Spark: they end without a traceback.

Imports little, because every worker imports it.
"""

from __future__ import annotations

import gc
import socket
import sys
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any

_DAEMON = "pyspark.daemon"
_LEAVE = 1
"""The return value that ends the process of a worker."""


@cache
def freeze_loaded_modules() -> None:
    """Exclude the loaded modules from garbage collection.

    The daemon of Spark's workers collects garbage after every task, and most of the objects are modules that stay
    loaded. This runs once per process, so that objects of later tasks are still collected.
    """
    gc.collect()
    gc.freeze()


@cache
def suppress_shutdown_traceback() -> None:
    """Prevent the traceback of this worker when the JVM closes its connection. Does nothing in other processes."""
    loop = sys.modules["__main__"]
    if getattr(getattr(loop, "__spec__", None), "name", None) == _DAEMON and hasattr(loop, "worker"):
        # Only in this process, which was forked from the daemon and looks the names up for every task.
        loop.worker = QuietWorker(loop.worker)  # type: ignore[attr-defined]
        loop.traceback = QuietTraceback()  # type: ignore[attr-defined]


class QuietWorker:
    """Waits for the next task, and ends the process without a traceback if the JVM closes the connection.

    Spark's own loop treats the closed connection as a failed task, cannot report it to the JVM, and prints a traceback
    for each worker whenever a session ends.
    """

    def __init__(self, run: Callable[[socket.socket, bool], int]) -> None:
        self._run = run

    def __call__(self, connection: socket.socket, authenticated: bool) -> int:
        try:
            waiting = connection.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return _LEAVE
        return self._run(connection, authenticated) if waiting else _LEAVE


class QuietTraceback:
    """The module `traceback` for Spark's loop. It does not print errors of a connection that the JVM closed.

    Spark asks workers for the data sources, the schema and the partitions of a query. The JVM closes the connection
    when it has the answer. A worker that flushes its output later prints a traceback, and nothing was lost.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    def print_exc(self, *args: Any, **options: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            traceback.print_exc(*args, **options)
