"""Every change of a `repo` file as a pure function from the old value to the new one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from icefloe.blocking import random_bytes
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenChangeError,
    InvalidInputError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    branch_moved,
)
from icefloe.formats.flatbuf.flexbuffers import decode_flexible, encode_flexible, encode_metadata
from icefloe.formats.icechunk2.repo_file import (
    FLAGS,
    Availability,
    FlagChange,
    RepoInfo,
    SnapshotRecord,
    StatusRecord,
    UpdateKind,
    UpdateRecord,
)
from icefloe.ids import ObjectId, encode_base32
from icefloe.model.snapshot import Snapshot, SnapshotInfo, to_microseconds

OVERWRITTEN = "overwritten/"
DEFAULT_PAGE = 1000
_PAGE_KEY = "num_updates_per_repo_info_file"
_END_OF_TIME_MS = 32_503_680_000_000
"""The year 3000. Names count down to it, so that the newest is listed first."""


def new_backup_name(now_us: int) -> str:
    """A new name in `overwritten/` for the repo file that will be replaced."""
    return f"repo.{_END_OF_TIME_MS - now_us // 1000:014d}.{encode_base32(random_bytes(12))}"


def next_update_time(info: RepoInfo, now_us: int) -> int:
    """The recorded time of an update: the current time, but later than the newest update."""
    return max(now_us, info.updates[0].at_us + 1)


def push_update(info: RepoInfo, update: UpdateRecord, backup: str) -> RepoInfo:
    """The repository with one more update. `backup` is the name under which its current file will be kept."""
    newest, *older = info.updates
    listed = (update, dataclasses.replace(newest, backup=backup), *older)
    page = page_size(info)
    before = info.updates_before
    for position in range(page, len(listed)):
        name = listed[position].backup
        if name is not None:
            listed, before = listed[:position], name
            break
    return dataclasses.replace(info, updates=listed, updates_before=before)


def page_size(info: RepoInfo) -> int:
    """How many updates a repo file keeps, according to the repository's configuration."""
    if info.config is None:
        return DEFAULT_PAGE
    config = decode_flexible(info.config)
    size = config.get(_PAGE_KEY) if isinstance(config, dict) else None
    return size if isinstance(size, int) and size >= 1 else DEFAULT_PAGE


MAIN = "main"


@dataclass(frozen=True, slots=True)
class Edit:
    """The repository after a change, without its log entry, and that entry.

    Writing sets the time and the backup name.
    """

    info: RepoInfo
    update: UpdateRecord


def new_repository(initial: Snapshot, config: Mapping[str, Any] | None, now_us: int) -> RepoInfo:
    """The repo file of a repository that was just created."""
    return RepoInfo(
        branches={MAIN: initial.id},
        snapshots={initial.id: make_record(initial, None)},
        updates=(UpdateRecord(UpdateKind.REPO_INITIALIZED, now_us),),
        status=StatusRecord(Availability.ONLINE, now_us),
        config=None if config is None else encode_flexible(dict(config)),
    )


def make_record(snapshot: Snapshot, parent_id: ObjectId | None, pruned: tuple[ObjectId, ...] = ()) -> SnapshotRecord:
    """A snapshot as the repo file lists it."""
    return SnapshotRecord(
        snapshot.id,
        parent_id,
        to_microseconds(snapshot.written_at),
        snapshot.message,
        encode_metadata(snapshot.metadata, 2),
        pruned,
    )


def branch_tip(info: RepoInfo, branch: str) -> ObjectId:
    """The tip of a branch."""
    if branch not in info.branches:
        raise RefNotFoundError(
            f"ref not found: no branch {branch!r}. There are: {sorted(info.branches)[:20]}", name=branch
        )
    return info.branches[branch]


def add_commit(info: RepoInfo, branch: str, expected: ObjectId, snapshot: Snapshot) -> Edit:
    """Move a branch to a new snapshot."""
    _require_tip(info, branch, expected)
    after = _with_snapshot(info, make_record(snapshot, expected))
    after = dataclasses.replace(after, branches={**info.branches, branch: snapshot.id})
    return Edit(after, UpdateRecord(UpdateKind.NEW_COMMIT, 0, name=branch, new_id=snapshot.id))


def add_amendment(info: RepoInfo, branch: str, amended: ObjectId, snapshot: Snapshot) -> Edit:
    """Replace the snapshot at the tip of a branch. The replaced one stays listed."""
    _require_tip(info, branch, amended)
    replaced = info.snapshots[amended]
    if replaced.parent_id is None:
        raise InvalidInputError("the initial snapshot cannot be amended. Make a commit first")
    after = _with_snapshot(info, make_record(snapshot, replaced.parent_id, replaced.pruned_logs))
    after = dataclasses.replace(after, branches={**info.branches, branch: snapshot.id})
    return Edit(after, UpdateRecord(UpdateKind.COMMIT_AMENDED, 0, name=branch, previous_id=amended, new_id=snapshot.id))


def add_detached(info: RepoInfo, snapshot: Snapshot) -> Edit:
    """Add a snapshot that no ref points to."""
    if snapshot.parent_id is not None and snapshot.parent_id not in info.snapshots:
        raise SnapshotNotFoundError(
            f"the parent {snapshot.parent_id} of a new snapshot has expired in the meantime",
            snapshot_id=snapshot.parent_id,
        )
    after = _with_snapshot(info, make_record(snapshot, snapshot.parent_id))
    return Edit(after, UpdateRecord(UpdateKind.NEW_DETACHED_SNAPSHOT, 0, new_id=snapshot.id))


def _require_tip(info: RepoInfo, branch: str, expected: ObjectId) -> None:
    current = branch_tip(info, branch)
    if current != expected:
        raise ConflictError(expected_parent=expected, actual_parent=current)


def _with_snapshot(info: RepoInfo, record: SnapshotRecord) -> RepoInfo:
    if record.parent_id is not None and record.parent_id not in info.snapshots:
        raise InvalidInputError(
            f"snapshot {record.id} has the parent {record.parent_id}, which is not in the repository"
        )
    return dataclasses.replace(info, snapshots={**info.snapshots, record.id: record})


def create_branch(info: RepoInfo, branch: str, snapshot_id: ObjectId) -> Edit:
    """A new branch."""
    if branch in info.branches:
        raise AlreadyExistsError(
            f"branch {branch!r} exists already. Reset the branch to move it", "branch-already-exists", name=branch
        )
    _require_listed(info, snapshot_id)
    after = dataclasses.replace(info, branches={**info.branches, branch: snapshot_id})
    return Edit(after, UpdateRecord(UpdateKind.BRANCH_CREATED, 0, name=branch))


def reset_branch(info: RepoInfo, branch: str, snapshot_id: ObjectId, expected: ObjectId | None) -> Edit:
    """Move a branch to another snapshot."""
    current = branch_tip(info, branch)
    if expected is not None and current != expected:
        raise branch_moved(branch, expected, current)
    _require_listed(info, snapshot_id)
    after = dataclasses.replace(info, branches={**info.branches, branch: snapshot_id})
    return Edit(after, UpdateRecord(UpdateKind.BRANCH_RESET, 0, name=branch, previous_id=current))


def delete_branch(info: RepoInfo, branch: str) -> Edit:
    """Delete a branch. Its snapshots stay until they are collected."""
    if branch == MAIN:
        raise ForbiddenChangeError(
            "the main branch cannot be deleted, because every repository needs it", "cannot-delete-main"
        )
    current = branch_tip(info, branch)
    left = {name: tip for name, tip in info.branches.items() if name != branch}
    return Edit(
        dataclasses.replace(info, branches=left),
        UpdateRecord(UpdateKind.BRANCH_DELETED, 0, name=branch, previous_id=current),
    )


def create_tag(info: RepoInfo, tag: str, snapshot_id: ObjectId) -> Edit:
    """Create a tag. The name of a deleted tag cannot be used again."""
    _require_flag(info, "create_tag")
    if tag in info.deleted_tags:
        raise AlreadyExistsError(
            f"tag {tag!r} was deleted. Its name cannot be used again", "tag-previously-deleted", name=tag
        )
    if tag in info.tags:
        raise AlreadyExistsError(f"tag {tag!r} exists already. Tags cannot be moved", "tag-already-exists", name=tag)
    _require_listed(info, snapshot_id)
    after = dataclasses.replace(info, tags={**info.tags, tag: snapshot_id})
    return Edit(after, UpdateRecord(UpdateKind.TAG_CREATED, 0, name=tag))


def find_tag(info: RepoInfo, tag: str) -> ObjectId:
    """The snapshot of a tag."""
    if tag not in info.tags:
        why = "it was deleted" if tag in info.deleted_tags else f"there are {sorted(info.tags)[:20]}"
        raise RefNotFoundError(f"ref not found: no tag {tag!r}: {why}", name=tag)
    return info.tags[tag]


def delete_tag(info: RepoInfo, tag: str) -> Edit:
    """Delete a tag. Its name cannot be used again."""
    _require_flag(info, "delete_tag")
    current = find_tag(info, tag)
    left = {name: target for name, target in info.tags.items() if name != tag}
    after = dataclasses.replace(info, tags=left, deleted_tags=info.deleted_tags | {tag})
    return Edit(after, UpdateRecord(UpdateKind.TAG_DELETED, 0, name=tag, previous_id=current))


def _require_listed(info: RepoInfo, snapshot_id: ObjectId) -> None:
    if snapshot_id not in info.snapshots:
        raise InvalidInputError(f"snapshot {snapshot_id} is not in the repository", snapshot_id=snapshot_id)


def _require_flag(info: RepoInfo, name: str) -> None:
    if FLAGS[name] in info.disabled_flags:
        raise SessionStateError(
            f"the feature {name!r} is disabled in this repository. Enable it with repo.set_feature_flag({name!r}, None)"
        )


def set_config(info: RepoInfo, document: Mapping[str, Any]) -> Edit:
    """Replace the stored configuration."""
    after = dataclasses.replace(info, config=encode_flexible(dict(document)))
    return Edit(after, UpdateRecord(UpdateKind.CONFIG_CHANGED, 0))


def set_metadata(info: RepoInfo, metadata: Mapping[str, Any]) -> Edit:
    """Replace the metadata of the repository."""
    after = dataclasses.replace(info, metadata=encode_metadata(metadata, 2))
    return Edit(after, UpdateRecord(UpdateKind.METADATA_CHANGED, 0))


def set_status(info: RepoInfo, availability: Availability, reason: str | None, now_us: int) -> Edit:
    """Set the status of the repository."""
    status = StatusRecord(availability, now_us, reason)
    return Edit(dataclasses.replace(info, status=status), UpdateRecord(UpdateKind.STATUS_CHANGED, 0, status=status))


def set_flag(info: RepoInfo, name: str, value: bool | None) -> Edit:
    """Enable or disable a feature, or (None) restore its default."""
    if name not in FLAGS:
        raise InvalidInputError(f"unknown feature flag {name!r}. Known: {', '.join(FLAGS)}", "invalid-feature-flag")
    flag = FLAGS[name]
    enabled, disabled = info.enabled_flags - {flag}, info.disabled_flags - {flag}
    after = dataclasses.replace(
        info,
        enabled_flags=enabled | {flag} if value else enabled,
        disabled_flags=disabled | {flag} if value is False else disabled,
    )
    change = FlagChange(flag, bool(value), value is not None)
    return Edit(after, UpdateRecord(UpdateKind.FEATURE_FLAG_CHANGED, 0, flag=change))


def forget_snapshots(info: RepoInfo, ids: Set[ObjectId]) -> tuple[Edit, frozenset[ObjectId]]:
    """Remove unreachable snapshots from the list. Those that became reachable again stay."""
    from_refs = reachable_snapshots(info)
    gone = frozenset(ids) & frozenset(info.snapshots) - from_refs
    left = {key: record for key, record in info.snapshots.items() if key not in gone}
    # A snapshot without a ref that is too young to be removed must not lose its parents.
    kept = _with_ancestors(info, left)
    left = {key: record for key, record in info.snapshots.items() if key in kept}
    return Edit(dataclasses.replace(info, snapshots=left), UpdateRecord(UpdateKind.GC_RAN, 0)), gone - frozenset(left)


def reachable_snapshots(info: RepoInfo) -> frozenset[ObjectId]:
    """Every snapshot that is reachable from a branch or tag."""
    return _with_ancestors(info, {*info.branches.values(), *info.tags.values()})


def _with_ancestors(info: RepoInfo, starts: Set[ObjectId] | Mapping[ObjectId, Any]) -> frozenset[ObjectId]:
    found: set[ObjectId] = set()
    for start in starts:
        current: ObjectId | None = start
        while current is not None and current not in found:
            found.add(current)
            current = info.snapshots[current].parent_id
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Expiry:
    """What an expiry removes from history."""

    snapshots: frozenset[ObjectId]
    branches: frozenset[str]
    tags: frozenset[str]

    @property
    def changes_anything(self) -> bool:
        return bool(self.snapshots or self.branches or self.tags)


@dataclass(frozen=True, slots=True)
class PlannedExpiry:
    """An expiry and the repository after it."""

    expiry: Expiry
    edit: Edit


def plan_removal(
    info: RepoInfo,
    expired: Set[ObjectId],
    branches: Mapping[str, ObjectId],
    tags: Mapping[str, ObjectId],
) -> PlannedExpiry:
    """Remove chosen snapshots, except roots and targets of refs. Remove refs that did not move.

    The new parent of a kept snapshot is its nearest kept ancestor.
    """
    gone_branches = frozenset(n for n, tip in branches.items() if n != MAIN and info.branches.get(n) == tip)
    gone_tags = frozenset(n for n, target in tags.items() if info.tags.get(n) == target)
    kept_branches = {name: tip for name, tip in info.branches.items() if name not in gone_branches}
    kept_tags = {name: target for name, target in info.tags.items() if name not in gone_tags}
    tips = {*kept_branches.values(), *kept_tags.values()}
    gone = frozenset(
        key
        for key, record in info.snapshots.items()
        if key in expired and key not in tips and record.parent_id is not None
    )
    after = dataclasses.replace(
        info,
        branches=kept_branches,
        tags=kept_tags,
        deleted_tags=info.deleted_tags | gone_tags,
        snapshots={
            key: _on_kept(info.snapshots, record, gone) if record.parent_id in gone else record
            for key, record in info.snapshots.items()
            if key not in gone
        },
    )
    return PlannedExpiry(
        Expiry(gone, gone_branches, gone_tags), Edit(after, UpdateRecord(UpdateKind.EXPIRATION_RAN, 0))
    )


def _on_kept(
    snapshots: Mapping[ObjectId, SnapshotRecord], record: SnapshotRecord, gone: Set[ObjectId]
) -> SnapshotRecord:
    """A snapshot with its nearest kept ancestor as its parent, and the logs of those in between."""
    chain: list[SnapshotRecord] = []
    current = record.parent_id
    while current is not None and current in gone and len(chain) <= len(snapshots):
        chain.append(snapshots[current])
        current = snapshots[current].parent_id
    pruned = [log for ancestor in reversed(chain) for log in (*ancestor.pruned_logs, ancestor.id)]
    return dataclasses.replace(record, parent_id=current, pruned_logs=(*pruned, *record.pruned_logs))


_SPEC = 2
_REF_DELAY_US, _DELETION_DELAY_US = 1_000, 2_000
"""The recorded time between a commit and the creation of its branch or tag, or the deletion of a tag."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """The history of the previous generation. Parents precede their children."""

    snapshots: tuple[SnapshotInfo, ...]
    branches: Mapping[str, ObjectId]
    tags: Mapping[str, ObjectId]
    deleted_tags: frozenset[str]
    config: Mapping[str, Any] | None
    metadata: Mapping[str, Any]
    flags: Mapping[str, bool | None]
    status: StatusRecord | None
    from_version: int | None
    updates: tuple[UpdateRecord, ...] = ()
    """The operations log, newest first, if the previous repository had one and all ids stay the same."""


def migrated_repository(source: Migrated, now_us: int | None = None) -> RepoInfo:
    """The repo file of an imported history."""
    now = time.time_ns() // 1000 if now_us is None else now_us
    # No file has been replaced yet, so there are no backups.
    updates = tuple(replace(update, backup=None) for update in source.updates) or plan_updates(source, now)
    return RepoInfo(
        branches=dict(source.branches),
        snapshots={info.id: _record(info) for info in source.snapshots},
        updates=updates,
        status=source.status or StatusRecord(Availability.ONLINE, updates[-1].at_us),
        tags=dict(source.tags),
        deleted_tags=source.deleted_tags,
        metadata=encode_metadata(source.metadata, _SPEC),
        config=None if source.config is None else encode_flexible(dict(source.config)),
        enabled_flags=frozenset(FLAGS[name] for name, value in source.flags.items() if value),
        disabled_flags=frozenset(FLAGS[name] for name, value in source.flags.items() if value is False),
    )


def _record(info: SnapshotInfo) -> SnapshotRecord:
    return SnapshotRecord(
        info.id,
        info.parent_id,
        to_microseconds(info.written_at),
        info.message,
        encode_metadata(info.metadata, _SPEC),
    )


def plan_updates(source: Migrated, now_us: int) -> tuple[UpdateRecord, ...]:
    """The updates that created this history, newest first. Refs are created shortly after the commits they point to.

    Times are strictly increasing. The migration itself is the newest entry.
    """
    written = {info.id: to_microseconds(info.written_at) for info in source.snapshots}
    newest = max(written.values(), default=0)
    branch_of = _branches_of(source)
    happened: list[UpdateRecord] = []
    for info in source.snapshots:
        if info.parent_id is None:
            continue
        branch = branch_of.get(info.id)
        kind = UpdateKind.NEW_DETACHED_SNAPSHOT if branch is None else UpdateKind.NEW_COMMIT
        happened.append(UpdateRecord(kind, written[info.id], name=branch, new_id=info.id))
    for name, tip in source.branches.items():
        if name != MAIN:
            happened.append(UpdateRecord(UpdateKind.BRANCH_CREATED, written[tip] + _REF_DELAY_US, name=name))
    for name, target in source.tags.items():
        happened.append(UpdateRecord(UpdateKind.TAG_CREATED, written[target] + _REF_DELAY_US, name=name))
    root = next(info.id for info in source.snapshots if info.parent_id is None)
    for name in sorted(source.deleted_tags):
        happened.append(UpdateRecord(UpdateKind.TAG_CREATED, newest + _REF_DELAY_US, name=name))
        deleted = UpdateRecord(UpdateKind.TAG_DELETED, newest + _DELETION_DELAY_US, name=name, previous_id=root)
        happened.append(deleted)
    happened.sort(key=lambda update: update.at_us)
    ordered = [UpdateRecord(UpdateKind.REPO_INITIALIZED, written[root]), *happened]
    if source.from_version is not None:
        ordered.append(UpdateRecord(UpdateKind.REPO_MIGRATED, now_us, versions=(source.from_version, _SPEC)))
    return tuple(reversed(_strictly_rising(ordered)))


def _branches_of(source: Migrated) -> dict[ObjectId, str]:
    """For every snapshot, a branch that it may have been committed to, preferably `main`."""
    parents = {info.id: info.parent_id for info in source.snapshots}
    found: dict[ObjectId, str] = {}
    for name in sorted(source.branches, key=lambda name: (name != MAIN, name)):
        current: ObjectId | None = source.branches[name]
        while current is not None and current not in found:
            found[current] = name
            current = parents[current]
    return found


def _strictly_rising(updates: list[UpdateRecord]) -> list[UpdateRecord]:
    result: list[UpdateRecord] = []
    last = -1
    for update in updates:
        last = max(update.at_us, last + 1)
        result.append(replace(update, at_us=last))
    return result
