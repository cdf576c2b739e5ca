"""Something that others do before one request of a storage, for every request in turn."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import icefloe
from icefloe.storage.contract import Storage
from icefloe.storage.wrappers import Operation, WrappedStorage

T = TypeVar("T")
GENERATIONS = [version.value for version in icefloe.SpecVersion]


@dataclass
class Intrusion:
    """Something that happens before a request, counted from where it was armed."""

    before: int
    run: Callable[[], Awaitable[None]] | None = None
    requests: int = 0
    happened: bool = False


class IntrudedStorage(WrappedStorage):
    """Lets something happen before one of its requests."""

    def __init__(self, inner: Storage, intrusion: Intrusion) -> None:
        super().__init__(inner)
        self._intrusion = intrusion

    def _rewrap(self, inner: Storage) -> Storage:
        return IntrudedStorage(inner, self._intrusion)

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        intrusion = self._intrusion
        if intrusion.run is not None:
            intrusion.requests += 1
            if intrusion.requests == intrusion.before:
                intrusion.happened = True
                await intrusion.run()
        return await call()


def every_intrusion() -> Iterator[Intrusion]:
    """Intrusions before the first request, the second one, and so on. The last one comes too late to happen."""
    for before in itertools.count(1):
        intrusion = Intrusion(before)
        yield intrusion
        if not intrusion.happened:
            return
