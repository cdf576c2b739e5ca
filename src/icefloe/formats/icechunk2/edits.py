"""Every change of a repo file as a pure function from what it says to what it will say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.formats.flat.flexible_writer import encode_flexible
from icefloe.formats.flat.metadata_items import encode_metadata
from icefloe.formats.flat.times import to_microseconds
from icefloe.formats.icechunk2.repo_info import (
    Availability,
    FlagChange,
    RepoInfo,
    RepoStatus,
    SnapshotRecord,
    Update,
    UpdateKind,
)
from icefloe.ids import ObjectId
from icefloe.model.snapshot import Snapshot

MAIN = "main"
FLAGS: Mapping[str, int] = {"move_node": 3, "create_tag": 4, "delete_tag": 5}
"""Feature flags by name; all are on unless disabled."""


@dataclass(frozen=True, slots=True)
class Edit:
    """The repository after a change, without its log entry, and the entry; its time and backup are set on landing."""

    info: RepoInfo
    update: Update


def new_repository(initial: Snapshot, config: Mapping[str, Any] | None, now_us: int) -> RepoInfo:
    """The repo file of a repository that was just created."""
    return RepoInfo(
        branches={MAIN: initial.id},
        snapshots={initial.id: make_record(initial, None)},
        updates=(Update(UpdateKind.REPO_INITIALIZED, now_us),),
        status=RepoStatus(Availability.ONLINE, now_us),
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
    """Where a branch stands."""
    if branch not in info.branches:
        raise RefNotFoundError(f"no branch {branch!r}; there are {sorted(info.branches)[:20]}", name=branch)
    return info.branches[branch]


def add_commit(info: RepoInfo, branch: str, expected: ObjectId, snapshot: Snapshot) -> Edit:
    """A branch goes on to a new snapshot."""
    _require_tip(info, branch, expected)
    after = _with_snapshot(info, make_record(snapshot, expected))
    after = dataclasses.replace(after, branches={**info.branches, branch: snapshot.id})
    return Edit(after, Update(UpdateKind.NEW_COMMIT, 0, name=branch, new_id=snapshot.id))


def add_amendment(info: RepoInfo, branch: str, amended: ObjectId, snapshot: Snapshot) -> Edit:
    """A branch goes on to a snapshot that replaces the one at its tip; the replaced one stays listed."""
    _require_tip(info, branch, amended)
    replaced = info.snapshots[amended]
    if replaced.parent_id is None:
        raise InvalidInputError("the initial snapshot cannot be amended; make an ordinary commit first")
    after = _with_snapshot(info, make_record(snapshot, replaced.parent_id, replaced.pruned_logs))
    after = dataclasses.replace(after, branches={**info.branches, branch: snapshot.id})
    return Edit(after, Update(UpdateKind.COMMIT_AMENDED, 0, name=branch, previous_id=amended, new_id=snapshot.id))


def add_detached(info: RepoInfo, snapshot: Snapshot) -> Edit:
    """A snapshot that no ref points at becomes known."""
    if snapshot.parent_id is not None and snapshot.parent_id not in info.snapshots:
        raise SnapshotNotFoundError(
            f"the parent {snapshot.parent_id} of a new snapshot was expired meanwhile", snapshot_id=snapshot.parent_id
        )
    after = _with_snapshot(info, make_record(snapshot, snapshot.parent_id))
    return Edit(after, Update(UpdateKind.NEW_DETACHED_SNAPSHOT, 0, new_id=snapshot.id))


def _require_tip(info: RepoInfo, branch: str, expected: ObjectId) -> None:
    standing = branch_tip(info, branch)
    if standing != expected:
        raise ConflictError(expected_parent=expected, actual_parent=standing)


def _with_snapshot(info: RepoInfo, record: SnapshotRecord) -> RepoInfo:
    if record.parent_id is not None and record.parent_id not in info.snapshots:
        raise InvalidInputError(f"snapshot {record.id} has the parent {record.parent_id}, which is not listed")
    return dataclasses.replace(info, snapshots={**info.snapshots, record.id: record})


def create_branch(info: RepoInfo, branch: str, snapshot_id: ObjectId) -> Edit:
    """A new branch."""
    if branch in info.branches:
        raise AlreadyExistsError(f"branch {branch!r} exists already; reset_branch moves it", name=branch)
    _require_listed(info, snapshot_id)
    after = dataclasses.replace(info, branches={**info.branches, branch: snapshot_id})
    return Edit(after, Update(UpdateKind.BRANCH_CREATED, 0, name=branch))


def reset_branch(info: RepoInfo, branch: str, snapshot_id: ObjectId, expected: ObjectId | None) -> Edit:
    """A branch points elsewhere."""
    standing = branch_tip(info, branch)
    if expected is not None and standing != expected:
        raise ConflictError(expected_parent=expected, actual_parent=standing)
    _require_listed(info, snapshot_id)
    after = dataclasses.replace(info, branches={**info.branches, branch: snapshot_id})
    return Edit(after, Update(UpdateKind.BRANCH_RESET, 0, name=branch, previous_id=standing))


def delete_branch(info: RepoInfo, branch: str) -> Edit:
    """A branch goes; its snapshots stay until they are collected."""
    if branch == MAIN:
        raise InvalidInputError("the branch main cannot be deleted: it is what makes the place a repository")
    standing = branch_tip(info, branch)
    left = {name: tip for name, tip in info.branches.items() if name != branch}
    return Edit(
        dataclasses.replace(info, branches=left),
        Update(UpdateKind.BRANCH_DELETED, 0, name=branch, previous_id=standing),
    )


def create_tag(info: RepoInfo, tag: str, snapshot_id: ObjectId) -> Edit:
    """A new tag; the name of a deleted one is gone for good."""
    _require_flag(info, "create_tag")
    if tag in info.deleted_tags:
        raise AlreadyExistsError(f"tag {tag!r} existed and was deleted; its name cannot be used again", name=tag)
    if tag in info.tags:
        raise AlreadyExistsError(f"tag {tag!r} exists already; tags never move", name=tag)
    _require_listed(info, snapshot_id)
    after = dataclasses.replace(info, tags={**info.tags, tag: snapshot_id})
    return Edit(after, Update(UpdateKind.TAG_CREATED, 0, name=tag))


def find_tag(info: RepoInfo, tag: str) -> ObjectId:
    """Where a tag points."""
    if tag not in info.tags:
        why = "it was deleted" if tag in info.deleted_tags else f"there are {sorted(info.tags)[:20]}"
        raise RefNotFoundError(f"no tag {tag!r}: {why}", name=tag)
    return info.tags[tag]


def delete_tag(info: RepoInfo, tag: str) -> Edit:
    """A tag goes, and its name stays taken."""
    _require_flag(info, "delete_tag")
    standing = find_tag(info, tag)
    left = {name: target for name, target in info.tags.items() if name != tag}
    after = dataclasses.replace(info, tags=left, deleted_tags=info.deleted_tags | {tag})
    return Edit(after, Update(UpdateKind.TAG_DELETED, 0, name=tag, previous_id=standing))


def _require_listed(info: RepoInfo, snapshot_id: ObjectId) -> None:
    if snapshot_id not in info.snapshots:
        raise InvalidInputError(f"snapshot {snapshot_id} is not in the repository", snapshot_id=snapshot_id)


def _require_flag(info: RepoInfo, name: str) -> None:
    if FLAGS[name] in info.disabled_flags:
        raise SessionStateError(
            f"the repository has the feature {name!r} switched off; repo.set_feature_flag({name!r}, None) allows it "
            "again"
        )


def set_config(info: RepoInfo, document: Mapping[str, Any]) -> Edit:
    """Another stored configuration."""
    after = dataclasses.replace(info, config=encode_flexible(dict(document)))
    return Edit(after, Update(UpdateKind.CONFIG_CHANGED, 0))


def set_metadata(info: RepoInfo, metadata: Mapping[str, Any]) -> Edit:
    """Other metadata of the repository as a whole."""
    after = dataclasses.replace(info, metadata=encode_metadata(metadata, 2))
    return Edit(after, Update(UpdateKind.METADATA_CHANGED, 0))


def set_status(info: RepoInfo, availability: Availability, reason: str | None, now_us: int) -> Edit:
    """The repository takes writes or does not."""
    status = RepoStatus(availability, now_us, reason)
    return Edit(dataclasses.replace(info, status=status), Update(UpdateKind.STATUS_CHANGED, 0, status=status))


def set_flag(info: RepoInfo, name: str, value: bool | None) -> Edit:
    """A feature on, off, or (None) as by default."""
    if name not in FLAGS:
        raise InvalidInputError(f"no feature flag {name!r}; there are {', '.join(FLAGS)}")
    flag = FLAGS[name]
    enabled, disabled = info.enabled_flags - {flag}, info.disabled_flags - {flag}
    after = dataclasses.replace(
        info,
        enabled_flags=enabled | {flag} if value else enabled,
        disabled_flags=disabled | {flag} if value is False else disabled,
    )
    change = FlagChange(flag, bool(value), value is not None)
    return Edit(after, Update(UpdateKind.FEATURE_FLAG_CHANGED, 0, flag=change))


def forget_snapshots(info: RepoInfo, ids: Set[ObjectId]) -> tuple[Edit, frozenset[ObjectId]]:
    """Collection: snapshots that nothing reaches leave the list; those that became reachable again stay."""
    from_refs = reachable_snapshots(info)
    gone = frozenset(ids) & frozenset(info.snapshots) - from_refs
    left = {key: record for key, record in info.snapshots.items() if key not in gone}
    # What stays without a ref (a detached snapshot too young to go) must not lose its parents.
    held = _with_ancestors(info, left)
    left = {key: record for key, record in info.snapshots.items() if key in held}
    return Edit(dataclasses.replace(info, snapshots=left), Update(UpdateKind.GC_RAN, 0)), gone - frozenset(left)


def reachable_snapshots(info: RepoInfo) -> frozenset[ObjectId]:
    """Every snapshot that a branch or tag leads to."""
    return _with_ancestors(info, {*info.branches.values(), *info.tags.values()})


def _with_ancestors(info: RepoInfo, starts: Set[ObjectId] | Mapping[ObjectId, Any]) -> frozenset[ObjectId]:
    found: set[ObjectId] = set()
    for start in starts:
        current: ObjectId | None = start
        while current is not None and current not in found:
            found.add(current)
            current = info.snapshots[current].parent_id
    return frozenset(found)
