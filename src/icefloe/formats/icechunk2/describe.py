"""A `repo` file in public values: status, feature flags, operations log, and all of it as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from icefloe.formats.flatbuf.flexbuffers import decode_flexible, decode_metadata
from icefloe.formats.header import parse_header
from icefloe.formats.icechunk2 import repo_file as stored
from icefloe.formats.icechunk2.repo_edits import FLAGS
from icefloe.formats.icechunk2.repo_file import RepoInfo, UpdateKind
from icefloe.model import administration as public
from icefloe.model.administration import FeatureFlag, RepoAvailability, RepoStatus, Update, UpdateType
from icefloe.model.snapshot import from_microseconds

_SPEC = 2


def public_status(status: stored.StatusRecord) -> RepoStatus:
    """The status of a repository."""
    return RepoStatus(RepoAvailability(status.availability.value), from_microseconds(status.set_at_us), status.reason)


def list_flags(settings: Mapping[str, bool | None]) -> list[FeatureFlag]:
    """Every known flag. All are on by default."""
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
