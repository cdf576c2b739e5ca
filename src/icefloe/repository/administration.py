"""Status, metadata, feature flags and operations log of a repository."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from icefloe.blocking import blocking
from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.formats.flatbuf.flexbuffers import decode_flexible, decode_metadata
from icefloe.formats.header import parse_header
from icefloe.formats.icechunk2 import repo_file as stored
from icefloe.formats.icechunk2.repo_edits import FLAGS
from icefloe.formats.icechunk2.repo_file import Availability, RepoInfo, UpdateKind
from icefloe.ledger.icechunk2 import Icechunk2Ledger
from icefloe.model import administration as public
from icefloe.model.administration import FeatureFlag, RepoAvailability, RepoStatus, Update, UpdateType
from icefloe.model.snapshot import from_microseconds
from icefloe.session.open_repository import RepositoryParts

_SPEC = 2


def public_status(status: stored.StatusRecord) -> RepoStatus:
    """The status of a repository."""
    return RepoStatus(RepoAvailability(status.availability.value), from_microseconds(status.set_at_us), status.reason)


def list_flags(settings: Mapping[str, bool | None]) -> list[FeatureFlag]:
    """Every known flag; all are on by default."""
    return [FeatureFlag(FLAGS[name], name, True, setting) for name, setting in settings.items()]


def public_update(update: stored.UpdateRecord) -> Update:
    """An entry of the operations log."""
    return Update(_KINDS[update.kind](update), from_microseconds(update.at_us), update.backup)


def _text(value: str | None) -> str:
    """A field that the decoder guarantees for this kind of update."""
    assert value is not None
    return value


def _migrated(update: stored.UpdateRecord) -> UpdateType:
    assert update.versions is not None
    return public.RepoMigrated(*update.versions)


def _flag(update: stored.UpdateRecord) -> UpdateType:
    assert update.flag is not None
    return public.FeatureFlagChanged(update.flag.flag_id, update.flag.value if update.flag.is_set else None)


def _status(update: stored.UpdateRecord) -> UpdateType:
    assert update.status is not None
    return public.RepoStatusChanged(public_status(update.status))


_KINDS: Mapping[UpdateKind, Callable[[stored.UpdateRecord], UpdateType]] = {
    UpdateKind.REPO_INITIALIZED: lambda u: public.RepoInitialized(),
    UpdateKind.REPO_MIGRATED: _migrated,
    UpdateKind.CONFIG_CHANGED: lambda u: public.ConfigChanged(),
    UpdateKind.METADATA_CHANGED: lambda u: public.MetadataChanged(),
    UpdateKind.TAG_CREATED: lambda u: public.TagCreated(_text(u.name)),
    UpdateKind.TAG_DELETED: lambda u: public.TagDeleted(_text(u.name), _text(u.previous_id)),
    UpdateKind.BRANCH_CREATED: lambda u: public.BranchCreated(_text(u.name)),
    UpdateKind.BRANCH_DELETED: lambda u: public.BranchDeleted(_text(u.name), _text(u.previous_id)),
    UpdateKind.BRANCH_RESET: lambda u: public.BranchReset(_text(u.name), _text(u.previous_id)),
    UpdateKind.NEW_COMMIT: lambda u: public.NewCommit(_text(u.name), _text(u.new_id)),
    UpdateKind.COMMIT_AMENDED: lambda u: public.CommitAmended(_text(u.name), _text(u.previous_id), _text(u.new_id)),
    UpdateKind.NEW_DETACHED_SNAPSHOT: lambda u: public.NewDetachedSnapshot(_text(u.new_id)),
    UpdateKind.GC_RAN: lambda u: public.GCRan(),
    UpdateKind.EXPIRATION_RAN: lambda u: public.ExpirationRan(),
    UpdateKind.FEATURE_FLAG_CHANGED: _flag,
    UpdateKind.STATUS_CHANGED: _status,
}


def describe_repo(info: RepoInfo, data: bytes) -> dict[str, Any]:
    """A repo file as plain data, in the layout that the official package prints."""
    header = parse_header(data)
    writer = header.writer.strip()
    name, _, version = writer.partition("-")
    described: dict[str, Any] = {
        "header": {
            "written_by": writer,
            "app_name": name,
            "app_version": version,
            "spec_version": f"{header.spec_version}.0",
            "file_type": "repo-info",
            "compression": "zstd" if header.compression else "none",
        },
        "spec_version": f"{info.spec_version}.0",
        "branches": dict(info.branches),
        "tags": dict(info.tags),
        "deleted_tags": sorted(info.deleted_tags),
        "snapshots": [_record(record) for record in info.snapshots.values()],
        "status": {
            "availability": info.status.availability.name.lower(),
            "set_at": _time(info.status.set_at_us),
            "limited_availability_reason": info.status.reason,
        },
        "metadata": decode_metadata(info.metadata, _SPEC),
        "latest_updates": [_update(update) for update in info.updates],
        "enabled_feature_flags": sorted(info.enabled_flags),
        "disabled_feature_flags": sorted(info.disabled_flags),
    }
    if info.config is not None:
        described["config"] = decode_flexible(info.config)
    if info.updates_before is not None:
        described["repo_before_updates"] = info.updates_before
    return described


def _record(record: stored.SnapshotRecord) -> dict[str, Any]:
    described = {
        "id": record.id,
        "parent_id": record.parent_id,
        "flushed_at": _time(record.flushed_at_us),
        "message": record.message,
        "metadata": decode_metadata(record.metadata, _SPEC),
        "pruned_ancestor_tx_logs": list(record.pruned_logs),
    }
    return {key: value for key, value in described.items() if value not in (None, [])}


def _update(update: stored.UpdateRecord) -> dict[str, Any]:
    kind = public_update(update).kind
    facts = {name: getattr(kind, name) for name in getattr(kind, "__dataclass_fields__", {})}
    if isinstance(kind, public.RepoStatusChanged):
        facts["status"] = kind.status.availability.name
    described: dict[str, Any] = {
        "update_type": {"type": f"{type(kind).__name__}Update", **facts},
        "updated_at": _time(update.at_us),
    }
    return described if update.backup is None else {**described, "backup_path": update.backup}


def _time(microseconds: int) -> str:
    return from_microseconds(microseconds).isoformat().replace("+00:00", "Z")


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
        return public_status(await self._ledger_with("repository_status", "a status").fetch_status())

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
        ledger = self._ledger_with("repository_status", "a status")
        if not isinstance(status, RepoStatus) or not isinstance(status.availability, RepoAvailability):
            raise InvalidInputError(f"set_status takes a RepoStatus, not {status!r:.80}")
        await ledger.set_status(Availability(status.availability.value), status.limited_availability_reason)

    set_status = blocking(set_status_async)

    # -- metadata -------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the repository as a whole."""
        return self.get_metadata()

    async def get_metadata_async(self) -> dict[str, Any]:
        """The metadata of the repository as a whole."""
        return await self._ledger_with("repository_metadata", "metadata").fetch_metadata()

    get_metadata = blocking(get_metadata_async)

    async def set_metadata_async(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the repository as a whole."""
        await self._ledger_with("repository_metadata", "metadata").set_metadata(metadata)

    set_metadata = blocking(set_metadata_async)

    async def update_metadata_async(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Set some keys of the repository's metadata, keep the others; returns all of it."""
        return await self._ledger_with("repository_metadata", "metadata").update_metadata(metadata)

    update_metadata = blocking(update_metadata_async)

    # -- feature flags --------------------------------------------------------------------------------------------

    async def feature_flags_async(self) -> list[FeatureFlag]:
        """Every feature that can be switched off, and whether it is."""
        return list_flags(await self._ledger_with("feature_flags", "feature flags").fetch_flags())

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
        await self._ledger_with("feature_flags", "feature flags").set_flag(name, setting)

    set_feature_flag = blocking(set_feature_flag_async)

    # -- operations log -------------------------------------------------------------------------------------------

    async def ops_log_async(self) -> AsyncIterator[Update]:
        """What was done to the repository, newest first, read as far as you iterate."""
        async for update in self._ledger_with("operations_log", "an operations log").ops_log():
            yield public_update(update)

    ops_log = blocking(ops_log_async)

    async def inspect_repo_info_async(self) -> dict[str, Any]:
        """Everything the repository's one mutable file says, as plain data."""
        seen = await self._ledger_with("operations_log", "a `repo` file").fetch()
        return describe_repo(seen.info, seen.data)

    inspect_repo_info = blocking(inspect_repo_info_async)

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
