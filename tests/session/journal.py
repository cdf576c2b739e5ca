"""A storage that writes down every operation with its key, so that tests can count by kind of file."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from icefloe.storage.contract import Storage
from icefloe.storage.wrappers import READS, WRITES, Operation, WrappedStorage, received_bytes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation that came to its end."""

    method: str
    key: str
    sent_bytes: int
    received_bytes: int


@dataclass(slots=True)
class Journal:
    """What passed since the last reset, in order."""

    entries: list[Entry] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock)

    def note(self, entry: Entry) -> None:
        with self._lock:
            self.entries.append(entry)

    def reset(self) -> None:
        with self._lock:
            self.entries.clear()

    def reads(self, part: str = "") -> list[Entry]:
        """Reads of keys with this text in them."""
        with self._lock:
            return [entry for entry in self.entries if entry.method in READS and part in entry.key]

    def writes(self, part: str = "") -> list[Entry]:
        """Writes of keys with this text in them."""
        with self._lock:
            return [entry for entry in self.entries if entry.method in WRITES and part in entry.key]

    def __reduce__(self) -> tuple[Any, ...]:
        return Journal, ()


class JournalStorage(WrappedStorage):
    """Notes what passes; the journal is shared with the storage's children and stays behind when it is pickled."""

    def __init__(self, inner: Storage, journal: Journal | None = None) -> None:
        super().__init__(inner)
        self.journal = journal or Journal()

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        received = 0
        try:
            answer = await call()
            received = received_bytes(answer)
        finally:
            self.journal.note(Entry(operation.method, operation.key, operation.sent_bytes, received))
        return answer

    def _rewrap(self, inner: Storage) -> Storage:
        return JournalStorage(inner, self.journal)
