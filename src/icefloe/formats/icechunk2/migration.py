"""The repo file of a repository whose commits were made in another generation, with an operations log to match."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from icefloe.formats.flat.flexible_writer import encode_flexible
from icefloe.formats.flat.metadata_items import encode_metadata
from icefloe.formats.flat.times import to_microseconds
from icefloe.formats.icechunk2.edits import FLAGS, MAIN
from icefloe.formats.icechunk2.repo_info import Availability, RepoInfo, RepoStatus, SnapshotRecord, Update, UpdateKind
from icefloe.ids import ObjectId
from icefloe.model.snapshot import SnapshotInfo

_SPEC = 2
_REF_DELAY_US, _DELETION_DELAY_US = 1_000, 2_000
"""How long after a commit its branch or tag is said to have been made, or a tag to have been deleted."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """What the former generation said; snapshots have their parents before them."""

    snapshots: tuple[SnapshotInfo, ...]
    branches: Mapping[str, ObjectId]
    tags: Mapping[str, ObjectId]
    deleted_tags: frozenset[str]
    config: Mapping[str, Any] | None
    metadata: Mapping[str, Any]
    flags: Mapping[str, bool | None]
    status: RepoStatus | None
    from_version: int | None
    updates: tuple[Update, ...] = ()
    """The operations log, newest first, where the former repository kept one and all ids stay as they are."""


def migrated_repository(source: Migrated, now_us: int | None = None) -> RepoInfo:
    """The repo file that lists all of it."""
    now = time.time_ns() // 1000 if now_us is None else now_us
    # Files that an update replaced stay where they were; here nothing was replaced yet.
    updates = tuple(replace(update, backup=None) for update in source.updates) or plan_updates(source, now)
    return RepoInfo(
        branches=dict(source.branches),
        snapshots={info.id: _record(info) for info in source.snapshots},
        updates=updates,
        status=source.status or RepoStatus(Availability.ONLINE, updates[0].at_us),
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


def plan_updates(source: Migrated, now_us: int) -> tuple[Update, ...]:
    """What must have happened, newest first: commits when they were made, refs a moment after what they point at.

    Times rise strictly and end before the migration itself, which is the newest entry.
    """
    written = {info.id: to_microseconds(info.written_at) for info in source.snapshots}
    newest = max(written.values(), default=0)
    branch_of = _branches_of(source)
    happened: list[Update] = []
    for info in source.snapshots:
        if info.parent_id is None:
            continue
        branch = branch_of.get(info.id)
        kind = UpdateKind.NEW_DETACHED_SNAPSHOT if branch is None else UpdateKind.NEW_COMMIT
        happened.append(Update(kind, written[info.id], name=branch, new_id=info.id))
    for name, tip in source.branches.items():
        if name != MAIN:
            happened.append(Update(UpdateKind.BRANCH_CREATED, written[tip] + _REF_DELAY_US, name=name))
    for name, target in source.tags.items():
        happened.append(Update(UpdateKind.TAG_CREATED, written[target] + _REF_DELAY_US, name=name))
    root = next(info.id for info in source.snapshots if info.parent_id is None)
    for name in sorted(source.deleted_tags):
        happened.append(Update(UpdateKind.TAG_CREATED, newest + _REF_DELAY_US, name=name))
        deleted = Update(UpdateKind.TAG_DELETED, newest + _DELETION_DELAY_US, name=name, previous_id=root)
        happened.append(deleted)
    happened.sort(key=lambda update: update.at_us)
    ordered = [Update(UpdateKind.REPO_INITIALIZED, written[root]), *happened]
    if source.from_version is not None:
        ordered.append(Update(UpdateKind.REPO_MIGRATED, now_us, versions=(source.from_version, _SPEC)))
    return tuple(reversed(_strictly_rising(ordered)))


def _branches_of(source: Migrated) -> dict[ObjectId, str]:
    """For every snapshot a branch it was committed to, `main` where it can be."""
    parents = {info.id: info.parent_id for info in source.snapshots}
    found: dict[ObjectId, str] = {}
    for name in sorted(source.branches, key=lambda name: (name != MAIN, name)):
        current: ObjectId | None = source.branches[name]
        while current is not None and current not in found:
            found[current] = name
            current = parents[current]
    return found


def _strictly_rising(updates: list[Update]) -> list[Update]:
    result: list[Update] = []
    last = -1
    for update in updates:
        last = max(update.at_us, last + 1)
        result.append(replace(update, at_us=last))
    return result
