"""Which snapshots of a repo file expire, and what history looks like without them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass

from icefloe.formats.icechunk2.edits import MAIN, Edit
from icefloe.formats.icechunk2.repo_info import RepoInfo, SnapshotRecord, Update, UpdateKind
from icefloe.ids import ObjectId


@dataclass(frozen=True, slots=True)
class Expiry:
    """What an expiry takes out of history."""

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


def plan_expiry(info: RepoInfo, older_than_us: int, *, delete_branches: bool, delete_tags: bool) -> PlannedExpiry:
    """Snapshots older than the cut-off go, except roots and what branches and tags point at.

    A kept snapshot whose parent goes is put on the root, and names the logs of all its former ancestors, oldest first,
    so that its change can still be told.
    """

    def is_old(snapshot_id: ObjectId) -> bool:
        record = info.snapshots[snapshot_id]
        return record.parent_id is not None and record.flushed_at_us < older_than_us

    branches = frozenset(n for n, tip in info.branches.items() if delete_branches and n != MAIN and is_old(tip))
    tags = frozenset(n for n, target in info.tags.items() if delete_tags and is_old(target))
    kept_branches = {name: tip for name, tip in info.branches.items() if name not in branches}
    kept_tags = {name: target for name, target in info.tags.items() if name not in tags}
    tips = {*kept_branches.values(), *kept_tags.values()}
    gone = frozenset(key for key in info.snapshots if is_old(key) and key not in tips)
    after = dataclasses.replace(
        info,
        branches=kept_branches,
        tags=kept_tags,
        deleted_tags=info.deleted_tags | tags,
        snapshots=_without(info.snapshots, gone),
    )
    return PlannedExpiry(Expiry(gone, branches, tags), Edit(after, Update(UpdateKind.EXPIRATION_RAN, 0)))


def _without(snapshots: Mapping[ObjectId, SnapshotRecord], gone: Set[ObjectId]) -> dict[ObjectId, SnapshotRecord]:
    return {
        key: _on_root(snapshots, record) if record.parent_id in gone else record
        for key, record in snapshots.items()
        if key not in gone
    }


def _on_root(snapshots: Mapping[ObjectId, SnapshotRecord], record: SnapshotRecord) -> SnapshotRecord:
    """A snapshot with the root as its parent, and the logs of everything in between."""
    chain: list[SnapshotRecord] = []
    seen = {record.id}
    current = record.parent_id
    root = record.parent_id
    while current is not None and current not in seen:
        seen.add(current)
        root = current
        ancestor = snapshots[current]
        if ancestor.parent_id is not None:
            chain.append(ancestor)
        current = ancestor.parent_id
    pruned = [log for ancestor in reversed(chain) for log in (*ancestor.pruned_logs, ancestor.id)]
    return dataclasses.replace(record, parent_id=root, pruned_logs=(*pruned, *record.pruned_logs))


def plan_removal(
    info: RepoInfo,
    expired: Set[ObjectId],
    branches: Mapping[str, ObjectId],
    tags: Mapping[str, ObjectId],
) -> PlannedExpiry:
    """Chosen snapshots go, except roots and what refs point at by now; refs go if they still stand as given.

    A kept snapshot whose parent goes is put on its nearest kept ancestor.
    """
    gone_branches = frozenset(n for n, tip in branches.items() if n != MAIN and info.branches.get(n) == tip)
    gone_tags = frozenset(n for n, target in tags.items() if info.tags.get(n) == target)
    kept_branches = {name: tip for name, tip in info.branches.items() if name not in gone_branches}
    kept_tags = {name: target for name, target in info.tags.items() if name not in gone_tags}
    tips = {*kept_branches.values(), *kept_tags.values()}
    gone = frozenset(
        key for key, record in info.snapshots.items()
        if key in expired and key not in tips and record.parent_id is not None
    )  # fmt: skip
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
    return PlannedExpiry(Expiry(gone, gone_branches, gone_tags), Edit(after, Update(UpdateKind.EXPIRATION_RAN, 0)))


def _on_kept(
    snapshots: Mapping[ObjectId, SnapshotRecord], record: SnapshotRecord, gone: Set[ObjectId]
) -> SnapshotRecord:
    """A snapshot on its nearest kept ancestor, with the logs of those in between."""
    chain: list[SnapshotRecord] = []
    current = record.parent_id
    while current is not None and current in gone and len(chain) <= len(snapshots):
        chain.append(snapshots[current])
        current = snapshots[current].parent_id
    pruned = [log for ancestor in reversed(chain) for log in (*ancestor.pruned_logs, ancestor.id)]
    return dataclasses.replace(record, parent_id=current, pruned_logs=(*pruned, *record.pruned_logs))
