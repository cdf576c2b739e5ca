"""How often a request is repeated, and how long to wait in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from icefloe.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter; `max_tries` counts the first try too."""

    max_tries: int = 10
    initial_backoff_ms: int = 100
    max_backoff_ms: int = 15_000

    def __post_init__(self) -> None:
        if self.max_tries < 1 or self.initial_backoff_ms < 0 or self.max_backoff_ms < 0:
            raise InvalidInputError(f"{self}: at least one try, and no negative times")

    def pauses(self) -> Iterator[float]:
        """Seconds to wait after each try that failed, one per try."""
        ceiling = self.initial_backoff_ms
        for _ in range(self.max_tries):
            yield random.uniform(0, min(ceiling, self.max_backoff_ms)) / 1000
            ceiling = min(ceiling * 2, self.max_backoff_ms)


NO_RETRIES = RetryPolicy(max_tries=1, initial_backoff_ms=0)
