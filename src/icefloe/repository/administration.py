"""The repository as a whole, as its user sees it: status, metadata, feature flags and the operations log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from icefloe.blocking import iterate_blocking, run_blocking
from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.formats.icechunk2.repo_info import Availability
from icefloe.ledger.icechunk2 import Icechunk2Ledger
from icefloe.model.administration import FeatureFlag, RepoAvailability, RepoStatus, Update
from icefloe.repository.operations import describe_repo, list_flags, public_status, public_update
from icefloe.session.engine import Engine


class AdministrationDoor:
    """The part of `Repository` that speaks of all of it; what a generation has no place for is an UnsupportedError."""

    _engine: Engine

    # -- status ---------------------------------------------------------------------------------------------------

    def get_status(self) -> RepoStatus:
        """Whether the repository takes writes, since when, and why not."""
        return run_blocking(self.get_status_async())

    @property
    def status(self) -> RepoStatus:
        """Whether the repository takes writes, since when, and why not."""
        return self.get_status()

    async def get_status_async(self) -> RepoStatus:
        """`get_status`, awaited."""
        return public_status(await self._ledger_with("repository_status", "a status").fetch_status())

    def set_status(self, status: RepoStatus) -> None:
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
        run_blocking(self.set_status_async(status))

    async def set_status_async(self, status: RepoStatus) -> None:
        """`set_status`, awaited."""
        ledger = self._ledger_with("repository_status", "a status")
        if not isinstance(status, RepoStatus) or not isinstance(status.availability, RepoAvailability):
            raise InvalidInputError(f"set_status takes a RepoStatus, not {status!r:.80}")
        await ledger.set_status(Availability(status.availability.value), status.limited_availability_reason)

    # -- metadata -------------------------------------------------------------------------------------------------

    def get_metadata(self) -> dict[str, Any]:
        """The metadata of the repository as a whole."""
        return run_blocking(self.get_metadata_async())

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the repository as a whole."""
        return self.get_metadata()

    async def get_metadata_async(self) -> dict[str, Any]:
        """`get_metadata`, awaited."""
        return await self._ledger_with("repository_metadata", "metadata").fetch_metadata()

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the repository as a whole."""
        run_blocking(self.set_metadata_async(metadata))

    async def set_metadata_async(self, metadata: Mapping[str, Any]) -> None:
        """`set_metadata`, awaited."""
        await self._ledger_with("repository_metadata", "metadata").set_metadata(metadata)

    def update_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Set some keys of the repository's metadata, keep the others; returns all of it."""
        return run_blocking(self.update_metadata_async(metadata))

    async def update_metadata_async(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """`update_metadata`, awaited."""
        return await self._ledger_with("repository_metadata", "metadata").update_metadata(metadata)

    # -- feature flags --------------------------------------------------------------------------------------------

    def feature_flags(self) -> list[FeatureFlag]:
        """Every feature that can be switched off, and whether it is."""
        return run_blocking(self.feature_flags_async())

    async def feature_flags_async(self) -> list[FeatureFlag]:
        """`feature_flags`, awaited."""
        return list_flags(await self._ledger_with("feature_flags", "feature flags").fetch_flags())

    def enabled_feature_flags(self) -> list[FeatureFlag]:
        """The features that may be used."""
        return run_blocking(self.enabled_feature_flags_async())

    async def enabled_feature_flags_async(self) -> list[FeatureFlag]:
        """`enabled_feature_flags`, awaited."""
        return [flag for flag in await self.feature_flags_async() if flag.enabled]

    def disabled_feature_flags(self) -> list[FeatureFlag]:
        """The features that are switched off."""
        return run_blocking(self.disabled_feature_flags_async())

    async def disabled_feature_flags_async(self) -> list[FeatureFlag]:
        """`disabled_feature_flags`, awaited."""
        return [flag for flag in await self.feature_flags_async() if not flag.enabled]

    def set_feature_flag(self, name: str, setting: bool | None) -> None:
        """Switch a feature on or off for everyone, or (None) back to its default."""
        run_blocking(self.set_feature_flag_async(name, setting))

    async def set_feature_flag_async(self, name: str, setting: bool | None) -> None:
        """`set_feature_flag`, awaited."""
        await self._ledger_with("feature_flags", "feature flags").set_flag(name, setting)

    # -- operations log -------------------------------------------------------------------------------------------

    def ops_log(self) -> Iterator[Update]:
        """What was done to the repository, newest first, read as far as you iterate."""
        return iterate_blocking(self.ops_log_async())

    async def ops_log_async(self) -> AsyncIterator[Update]:
        """`ops_log`, for `async for`."""
        async for update in self._ledger_with("operations_log", "an operations log").ops_log():
            yield public_update(update)

    def inspect_repo_info(self) -> dict[str, Any]:
        """Everything the repository's one mutable file says, as plain data."""
        return run_blocking(self.inspect_repo_info_async())

    async def inspect_repo_info_async(self) -> dict[str, Any]:
        """`inspect_repo_info`, awaited."""
        seen = await self._ledger_with("operations_log", "a `repo` file").fetch()
        return describe_repo(seen.info, seen.data)

    def _ledger_with(self, capability: str, what: str) -> Icechunk2Ledger:
        engine = self._engine
        if not getattr(engine.capabilities, capability):
            raise UnsupportedError(
                f"repositories of generation {engine.format.spec_version.value!r} have no place for {what}; "
                "`icefloe.convert` makes an icechunk2 repository of this one",
                generation=engine.format.spec_version.value,
            )
        assert isinstance(engine.ledger, Icechunk2Ledger)
        return engine.ledger
