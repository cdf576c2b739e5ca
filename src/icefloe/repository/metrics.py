"""Requests, bytes, cache hits and durations of a repository."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from icefloe.display.card import format_bytes
from icefloe.session.open_repository import RepositoryContext, build_context
from icefloe.storage.wrappers import MethodMetrics, ObservedStorage

_log = logging.getLogger("icefloe.metrics")


@dataclass(frozen=True, slots=True)
class RepositoryMetrics:
    """Requests by storage method, cache hits by kind of file, and reads of chunks."""

    storage: Mapping[str, MethodMetrics] = field(default_factory=dict)
    """Empty if the repository is not observed. See `Repository.observed`."""
    caches: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Hits and misses by kind of file."""
    chunk_ranges: int = 0
    chunk_requests: int = 0
    seconds: float = 0.0

    @property
    def total(self) -> MethodMetrics:
        """The sum over all storage methods."""
        return sum(self.storage.values(), MethodMetrics())

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics as plain data, for JSON."""
        return {
            "seconds": self.seconds,
            "total": asdict(self.total),
            "storage": {method: asdict(measured) for method, measured in sorted(self.storage.items())},
            "caches": {name: {"hits": hits, "misses": misses} for name, (hits, misses) in self.caches.items()},
            "chunks": {"ranges": self.chunk_ranges, "requests": self.chunk_requests},
        }

    def __sub__(self, earlier: RepositoryMetrics) -> RepositoryMetrics:
        return RepositoryMetrics(
            {name: each - earlier.storage.get(name, MethodMetrics()) for name, each in self.storage.items()},
            {
                name: (hits - earlier.caches.get(name, (0, 0))[0], misses - earlier.caches.get(name, (0, 0))[1])
                for name, (hits, misses) in self.caches.items()
            },
            self.chunk_ranges - earlier.chunk_ranges,
            self.chunk_requests - earlier.chunk_requests,
            self.seconds - earlier.seconds,
        )

    def __str__(self) -> str:
        total = self.total
        hits, misses = (sum(each[index] for each in self.caches.values()) for index in (0, 1))
        return (
            f"{total.requests:,} requests ({total.failures} failed), {format_bytes(total.received_bytes)} received, "
            f"{format_bytes(total.sent_bytes)} sent, {hits:,} cache hits, {misses:,} misses, {self.seconds:.3f} s"
        )


@dataclass(slots=True)
class Observation:
    """One measured operation. `metrics` is set when the operation ends."""

    name: str
    metrics: RepositoryMetrics = field(default_factory=RepositoryMetrics)


class ObservationMixin:
    """The methods of `Repository` that measure requests, bytes and time."""

    _context: RepositoryContext
    _default_metadata: dict[str, Any]

    def observed(self) -> Any:
        """Return the same repository with a storage that counts requests and bytes.

        Returns
        -------
        Repository
            A new object. Only requests made through it are counted.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage()).observed()
        >>> _ = repo.lookup_branch("main")
        >>> repo.metrics.total.requests > 0
        True
        """
        context = self._context
        if isinstance(context.storage, ObservedStorage):
            return self
        storage = ObservedStorage(context.storage)
        rebuilt = build_context(
            storage, context.format.spec_version, context.config, context.authorized, context.official_rules
        )
        return type(self)(rebuilt, self._default_metadata)  # type: ignore[call-arg]

    @property
    def metrics(self) -> RepositoryMetrics:
        """The requests, cache hits and chunk reads of this object since it was opened, in this process."""
        context = self._context
        storage = context.storage
        return RepositoryMetrics(
            storage.metrics.by_method() if isinstance(storage, ObservedStorage) else {},
            context.metadata_files.cache_counts(),
            context.reader.counts.ranges,
            context.reader.counts.requests,
            time.perf_counter(),
        )

    @contextmanager
    def observe(self, name: str) -> Iterator[Observation]:
        """Measure a block of work and write the result to the log `icefloe.metrics`.

        Parameters
        ----------
        name
            Name of the work in the log.

        Yields
        ------
        Observation
            Its attribute `metrics` is set when the block ends.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage()).observed()
        >>> with repo.observe("look up") as observation:
        ...     _ = repo.lookup_branch("main")
        >>> observation.metrics.total.requests > 0
        True
        """
        before, observation = self.metrics, Observation(name)
        try:
            yield observation
        finally:
            observation.metrics = self.metrics - before
            _log.info("%s: %s", name, observation.metrics)
