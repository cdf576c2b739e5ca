"""Status, metadata, feature flags, operations log and metrics of a repository."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from icefloe.blocking import blocking
from icefloe.display.card import format_bytes
from icefloe.errors import InvalidInputError, UnsupportedVersionError
from icefloe.lazy_exports import lazy_module
from icefloe.ledger.ledger import RepositoryAdministration
from icefloe.session.open_repository import RepositoryContext, build_context
from icefloe.storage.wrappers import MethodMetrics, ObservedStorage

if TYPE_CHECKING:
    from icefloe.model import status as repository_status
    from icefloe.model.status import FeatureFlag, RepoStatus, Update
else:
    repository_status = lazy_module("icefloe.model.status")


class AdministrationMixin:
    """The methods of `Repository` for its status, metadata, feature flags and operations log.

    Only the generation `icechunk2` has them. Other generations raise UnsupportedError.
    """

    _context: RepositoryContext

    # -- status ---------------------------------------------------------------------------------------------------

    @property
    def status(self) -> RepoStatus:
        """Whether the repository accepts writes. The result of `get_status`."""
        return self.get_status()

    async def get_status_async(self) -> RepoStatus:
        """Return whether the repository accepts writes.

        Returns
        -------
        RepoStatus
            Availability, the time since when, and the reason.

        Raises
        ------
        UnsupportedError
            This generation has no status.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
        >>> repo.get_status().availability.name
        'online'
        """
        return await self._part("repository_status", "a status").fetch_status()

    get_status = blocking(get_status_async)

    async def set_status_async(self, status: RepoStatus) -> None:
        """Set whether the repository accepts writes.

        Parameters
        ----------
        status
            The new availability and the reason for it.

        Raises
        ------
        InvalidInputError
            `status` is not a RepoStatus.
        UnsupportedError
            This generation has no status.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
        >>> repo.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.read_only, None, "archived"))
        >>> repo.status.limited_availability_reason
        'archived'
        >>> repo.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.online))
        """
        part = self._part("repository_status", "a status")
        is_status = isinstance(status, repository_status.RepoStatus)
        if not is_status or not isinstance(status.availability, repository_status.RepoAvailability):
            raise InvalidInputError(f"set_status takes a RepoStatus, not {status!r:.80}")
        await part.set_status(status.availability, status.limited_availability_reason)

    set_status = blocking(set_status_async)

    # -- metadata -------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the repository. The result of `get_metadata`."""
        return self.get_metadata()

    async def get_metadata_async(self) -> dict[str, Any]:
        """Return the metadata of the repository.

        Returns
        -------
        dict
            The metadata.

        Raises
        ------
        UnsupportedError
            This generation has no metadata of the repository.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
        >>> repo.get_metadata()
        {}
        """
        return await self._part("repository_metadata", "metadata").fetch_metadata()

    get_metadata = blocking(get_metadata_async)

    async def set_metadata_async(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the repository.

        Parameters
        ----------
        metadata
            The new metadata. Its values must be JSON values.

        Raises
        ------
        InvalidInputError
            A value is not a JSON value.
        UnsupportedError
            This generation has no metadata of the repository.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
        >>> repo.set_metadata({"owner": "climate"})
        >>> repo.metadata
        {'owner': 'climate'}
        """
        await self._part("repository_metadata", "metadata").set_metadata(metadata)

    set_metadata = blocking(set_metadata_async)

    async def update_metadata_async(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Set some keys of the repository's metadata and keep the others.

        Parameters
        ----------
        metadata
            The keys to set. Their values must be JSON values.

        Returns
        -------
        dict
            All metadata after the change.

        Raises
        ------
        InvalidInputError
            A value is not a JSON value.
        UnsupportedError
            This generation has no metadata of the repository.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
        >>> repo.set_metadata({"owner": "climate"})
        >>> sorted(repo.update_metadata({"level": 2}))
        ['level', 'owner']
        """
        return await self._part("repository_metadata", "metadata").update_metadata(metadata)

    update_metadata = blocking(update_metadata_async)

    # -- feature flags --------------------------------------------------------------------------------------------

    async def feature_flags_async(self) -> list[FeatureFlag]:
        """Return all feature flags.

        Returns
        -------
        list of FeatureFlag
            Name, default and setting of each flag.

        Raises
        ------
        UnsupportedError
            This generation has no feature flags.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
        >>> [flag.name for flag in repo.feature_flags()]
        ['move_node', 'create_tag', 'delete_tag']
        """
        return await self._part("feature_flags", "feature flags").fetch_flags()

    feature_flags = blocking(feature_flags_async)

    async def enabled_feature_flags_async(self) -> list[FeatureFlag]:
        """Return the feature flags that are on.

        Returns
        -------
        list of FeatureFlag
            The flags.

        Raises
        ------
        UnsupportedError
            This generation has no feature flags.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
        >>> len(repo.enabled_feature_flags())
        3
        """
        return [flag for flag in await self.feature_flags_async() if flag.enabled]

    enabled_feature_flags = blocking(enabled_feature_flags_async)

    async def disabled_feature_flags_async(self) -> list[FeatureFlag]:
        """Return the feature flags that are off.

        Returns
        -------
        list of FeatureFlag
            The flags.

        Raises
        ------
        UnsupportedError
            This generation has no feature flags.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
        >>> repo.disabled_feature_flags()
        []
        """
        return [flag for flag in await self.feature_flags_async() if not flag.enabled]

    disabled_feature_flags = blocking(disabled_feature_flags_async)

    async def set_feature_flag_async(self, name: str, setting: bool | None) -> None:
        """Switch a feature on or off for all users of the repository.

        Parameters
        ----------
        name
            Name of the flag.
        setting
            True is on, False is off, None is the default.

        Raises
        ------
        InvalidInputError
            There is no such flag.
        UnsupportedError
            This generation has no feature flags.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
        >>> repo.set_feature_flag("delete_tag", False)
        >>> [flag.name for flag in repo.disabled_feature_flags()]
        ['delete_tag']
        """
        await self._part("feature_flags", "feature flags").set_flag(name, setting)

    set_feature_flag = blocking(set_feature_flag_async)

    # -- operations log -------------------------------------------------------------------------------------------

    async def ops_log_async(self) -> AsyncIterator[Update]:
        """Iterate over the operations that changed the repository, newest first.

        The log is read as far as you iterate.

        Yields
        ------
        Update
            Kind and time of one operation.

        Raises
        ------
        UnsupportedError
            This generation has no operations log.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
        >>> [type(update.kind).__name__ for update in repo.ops_log()]
        ['RepoInitialized']
        """
        async for update in self._part("operations_log", "an operations log").ops_log():
            yield update

    ops_log = blocking(ops_log_async)

    async def inspect_repo_info_async(self) -> dict[str, Any]:
        """Return the content of the file `repo` as plain data.

        Returns
        -------
        dict
            Branches, tags, snapshots, status, metadata, feature flags and the newest operations.

        Raises
        ------
        UnsupportedError
            This generation has no file `repo`.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
        >>> list(repo.inspect_repo_info()["branches"])
        ['main']
        """
        return await self._part("operations_log", "a `repo` file").describe()

    inspect_repo_info = blocking(inspect_repo_info_async)

    def _part(self, capability: str, what: str) -> RepositoryAdministration:
        context = self._context
        found = context.ledger.administration
        if found is None or not getattr(context.capabilities, capability):
            raise UnsupportedVersionError(
                f"repositories of generation {context.format.spec_version.value!r} have no {what}. Use "
                "`icefloe.upgrade` to convert this one to icechunk2",
                generation=context.format.spec_version.value,
            )
        return found


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
