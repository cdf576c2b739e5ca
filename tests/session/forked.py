"""Child processes for tests: forked from a clean, warmed-up process, so that each takes milliseconds."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

FORKSERVER = multiprocessing.get_context("forkserver")
# Threads and object-store clients do not survive a fork: children come from a process that has started neither.
FORKSERVER.set_forkserver_preload(["tests.session.warm"])


def run_child(target: Callable[..., None], *args: Any) -> int:
    """Run a function in a process of its own; its exit status."""
    child = FORKSERVER.Process(target=target, args=args)
    child.start()
    child.join(120)
    assert child.exitcode is not None, f"{target.__name__}{args} hangs"
    return child.exitcode


def run_together(target: Callable[..., None], arguments: Sequence[tuple[Any, ...]], seconds: float = 240) -> None:
    """Run a function in several processes at once; all must end well. A barrier is the last argument of each."""
    start = FORKSERVER.Barrier(len(arguments))
    children = [FORKSERVER.Process(target=target, args=(*args, start)) for args in arguments]
    for child in children:
        child.start()
    for child in children:
        child.join(seconds)
    codes = [child.exitcode for child in children]
    for child in children:
        if child.is_alive():
            child.kill()
    assert codes == [0] * len(children), f"children of {target.__name__} ended with {codes}"
