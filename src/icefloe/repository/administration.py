"""Status, metadata, feature flags and operations log of a repository."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from icefloe.blocking import blocking
from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.ledger.contract import RepositoryAdministration
from icefloe.model.administration import FeatureFlag, RepoAvailability, RepoStatus, Update
from icefloe.session.open_repository import RepositoryParts


class AdministrationMixin:
    """The part of `Repository` that speaks of all of it; what a generation has no place for is an UnsupportedError."""

    _engine: RepositoryParts

    # -- status ---------------------------------------------------------------------------------------------------

    @property
    def status(self) -> RepoStatus:
        """Whether the repository takes writes, since when, and why not."""
        return self.get_status()

    async def get_status_async(self) -> RepoStatus:
        """Whether the repository takes writes, since when, and why not."""
        return await self._part("repository_status", "a status").fetch_status()

    get_status = blocking(get_status_async)

    async def set_status_async(self, status: RepoStatus) -> None:
        """Let the repository take writes, or not.

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
        if not isinstance(status, RepoStatus) or not isinstance(status.availability, RepoAvailability):
            raise InvalidInputError(f"set_status takes a RepoStatus, not {status!r:.80}")
        await part.set_status(status.availability, status.limited_availability_reason)

    set_status = blocking(set_status_async)

    # -- metadata -------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the repository as a whole."""
        return self.get_metadata()

    async def get_metadata_async(self) -> dict[str, Any]:
        """The metadata of the repository as a whole."""
        return await self._part("repository_metadata", "metadata").fetch_metadata()

    get_metadata = blocking(get_metadata_async)

    async def set_metadata_async(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the repository as a whole."""
        await self._part("repository_metadata", "metadata").set_metadata(metadata)

    set_metadata = blocking(set_metadata_async)

    async def update_metadata_async(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Set some keys of the repository's metadata, keep the others; returns all of it."""
        return await self._part("repository_metadata", "metadata").update_metadata(metadata)

    update_metadata = blocking(update_metadata_async)

    # -- feature flags --------------------------------------------------------------------------------------------

    async def feature_flags_async(self) -> list[FeatureFlag]:
        """Every feature that can be switched off, and whether it is."""
        return await self._part("feature_flags", "feature flags").fetch_flags()

    feature_flags = blocking(feature_flags_async)

    async def enabled_feature_flags_async(self) -> list[FeatureFlag]:
        """The features that may be used."""
        return [flag for flag in await self.feature_flags_async() if flag.enabled]

    enabled_feature_flags = blocking(enabled_feature_flags_async)

    async def disabled_feature_flags_async(self) -> list[FeatureFlag]:
        """The features that are switched off."""
        return [flag for flag in await self.feature_flags_async() if not flag.enabled]

    disabled_feature_flags = blocking(disabled_feature_flags_async)

    async def set_feature_flag_async(self, name: str, setting: bool | None) -> None:
        """Switch a feature on or off for everyone, or (None) back to its default."""
        await self._part("feature_flags", "feature flags").set_flag(name, setting)

    set_feature_flag = blocking(set_feature_flag_async)

    # -- operations log -------------------------------------------------------------------------------------------

    async def ops_log_async(self) -> AsyncIterator[Update]:
        """What was done to the repository, newest first, read as far as you iterate."""
        async for update in self._part("operations_log", "an operations log").ops_log():
            yield update

    ops_log = blocking(ops_log_async)

    async def inspect_repo_info_async(self) -> dict[str, Any]:
        """Everything the repository's one mutable file says, as plain data."""
        return await self._part("operations_log", "a `repo` file").describe()

    inspect_repo_info = blocking(inspect_repo_info_async)

    def _part(self, capability: str, what: str) -> RepositoryAdministration:
        engine = self._engine
        administration = engine.ledger.administration
        if administration is None or not getattr(engine.capabilities, capability):
            raise UnsupportedError(
                f"repositories of generation {engine.format.spec_version.value!r} have no place for {what}; "
                "`icefloe.convert` makes an icechunk2 repository of this one",
                generation=engine.format.spec_version.value,
            )
        return administration
