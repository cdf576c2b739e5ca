"""What the engine asks of refs and history, whatever generation keeps them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from icefloe.errors import ConflictError, RefNotFoundError, UnsupportedError
from icefloe.ids import ObjectId
from icefloe.model.snapshot import Snapshot, SnapshotInfo
from icefloe.storage.contract import Versioned


@dataclass(frozen=True, slots=True)
class Tip:
    """Where a branch stands, and the mark by which `advance` notices that it moved."""

    snapshot_id: ObjectId
    mark: Any
    collection: Any = field(default=None, compare=False)
    """Tells the last garbage collection that is known where the tip was read, see `Ledger.collected_since`."""


class StaleTipError(ConflictError):
    """The branch stands where it stood, but its ref was written again since: history was expired or garbage collected.

    `tip` is where the branch stands, under the mark that it has now. Whoever commits looks again at what the new
    snapshot refers to, and tries again.
    """

    tip: Tip

    def __init__(self, tip: Tip) -> None:
        super().__init__(
            f"history was expired or garbage collected in every try to commit on {tip.snapshot_id}; commit again",
            expected_parent=tip.snapshot_id,
            actual_parent=tip.snapshot_id,
            tip=tip,
        )


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """The configuration kept in the repository, as plain JSON-like data, and the mark for replacing it."""

    document: Mapping[str, Any] | None
    mark: Any = None


@dataclass(frozen=True, slots=True)
class HistoryChange:
    """What an expiry does to refs and history.

    `parents` gives every kept snapshot whose parent goes its new one; `branches` and `tags` are removed if they still
    point where they are said to point.
    """

    expired: frozenset[ObjectId]
    parents: Mapping[ObjectId, ObjectId] = field(default_factory=dict)
    branches: Mapping[str, ObjectId] = field(default_factory=dict)
    tags: Mapping[str, ObjectId] = field(default_factory=dict)

    def is_empty(self) -> bool:
        return not (self.expired or self.parents or self.branches or self.tags)


class Ledger(ABC):
    """Branches, tags, history and stored configuration of one repository.

    Names are checked here (`/` is refused, RefNotFoundError, AlreadyExistsError); existence of snapshots is checked
    by the caller. Every method that changes something is one atomic step.
    """

    keeps_pruned_logs = False
    """Whether a snapshot that lost its parents remembers their logs; else its own log must tell of their changes."""

    announces_collections = True
    """Whether a tip always tells of garbage collections; else a writer that takes long asks for them by itself."""

    parents_change_unseen = False
    """Whether expiry changes parents in files that a commit neither reads nor writes: then a commit looks again."""

    @abstractmethod
    async def create(self, initial: Snapshot, config: Mapping[str, Any] | None) -> None:
        """Make the first ref point at the initial snapshot (already flushed); AlreadyExistsError for all but one."""

    async def check_writable(self) -> None:
        """ReadOnlyError where the repository itself says that it takes no writes."""

    def remember(self, mark: Versioned) -> None:
        """Take note of the object by which the repository was recognised, as it was a moment ago."""

    def recall_tip(self, branch: str) -> ObjectId | None:
        """Where a branch stood when it was last seen, without asking; None where that is not known."""
        return None

    def learn_from(self, other: Ledger) -> None:
        """Take note of what another ledger of the same repository read, for comparing it with what is there now."""

    async def fetch_targets(self) -> tuple[dict[str, ObjectId], dict[str, ObjectId]] | None:
        """Where all branches and all tags point, where one request tells; None where each has to be asked for."""
        return None

    @abstractmethod
    async def fetch_tip(self, branch: str) -> Tip: ...

    @abstractmethod
    async def fetch_tag(self, tag: str) -> ObjectId: ...

    @abstractmethod
    async def list_branches(self) -> set[str]: ...

    @abstractmethod
    async def list_tags(self) -> set[str]: ...

    @abstractmethod
    async def advance(self, branch: str, tip: Tip, snapshot: Snapshot, *, amends: ObjectId | None = None) -> Tip:
        """Commit: the branch goes from `tip` to the flushed snapshot.

        ConflictError(expected_parent, actual_parent) if it is no longer at `tip.snapshot_id`; StaleTipError if it is,
        but history may have been rewritten or garbage collected since the tip was read. A mark that is stale for
        another reason is refreshed and tried again here. `amends` names the snapshot that this one replaces at the
        tip (its parent is then the parent of that one).
        """

    def is_current(self, branch: str, tip: Tip) -> bool:
        """Whether the snapshot at a tip, as the archive remembers it, quotes the history that it has at this tip.

        A commit copies these quotes. Only generations whose snapshots quote their ancestors have to know.
        """
        return True

    def note_current(self, branch: str, tip: Tip) -> None:
        """Take note that the snapshot at a tip was read from storage after the tip was."""

    def collected_since(self, earlier: Tip, later: Tip) -> bool:
        """Whether garbage was collected after one tip of a branch was read and before another was; touches nothing."""
        return bool(earlier.collection != later.collection)

    async def announce_collection(self, collection_id: str, *, soon: bool) -> None:
        """Write refs again, so that every commit that is under way fails its first try and learns of a collection.

        `soon` says that objects of a few minutes may be deleted.
        """

    @abstractmethod
    async def record_detached(self, snapshot: Snapshot) -> None:
        """Make a flushed snapshot known that no ref points at."""

    @abstractmethod
    async def create_branch(self, branch: str, snapshot_id: ObjectId) -> None: ...

    @abstractmethod
    async def reset_branch(self, branch: str, snapshot_id: ObjectId, expected: ObjectId | None) -> None:
        """Point a branch anywhere; ConflictError if `expected` is given and is not where it stands."""

    async def replace_tip(self, branch: str, tip: Tip, snapshot_id: ObjectId) -> None:
        """Point a branch anywhere, if it still stands as `tip` says; ConflictError or StaleTipError, see `advance`."""
        await self.reset_branch(branch, snapshot_id, tip.snapshot_id)

    @abstractmethod
    async def delete_branch(self, branch: str) -> None:
        """Remove a branch; `main` is refused."""

    @abstractmethod
    async def create_tag(self, tag: str, snapshot_id: ObjectId) -> None: ...

    @abstractmethod
    async def delete_tag(self, tag: str) -> None:
        """Remove a tag where the generation can; UnsupportedError otherwise."""

    @abstractmethod
    def ancestry(self, snapshot_id: ObjectId) -> AsyncIterator[SnapshotInfo]:
        """The snapshot itself, then its ancestors, newest first, at a cost that does not depend on what is skipped."""

    def ancestry_at(self, tip: Tip) -> AsyncIterator[SnapshotInfo]:
        """The ancestry of a tip that was just read; as it was then, where the tip was read together with history."""
        return self.ancestry(tip.snapshot_id)

    @abstractmethod
    async def fetch_info(self, snapshot_id: ObjectId) -> SnapshotInfo:
        """One snapshot as history shows it; SnapshotNotFoundError."""

    async def fetch_pruned_logs(self, snapshot_id: ObjectId, tip: Tip | None = None) -> tuple[ObjectId, ...]:
        """Expired ancestors, oldest first, whose logs belong to the change of this snapshot.

        With a `tip`, those of the history that `ancestry_at` shows.
        """
        return ()

    async def fetch_all_pruned_logs(self) -> frozenset[ObjectId]:
        """The logs that `fetch_pruned_logs` names for any snapshot: they outlive their snapshots."""
        return frozenset()

    async def fetch_listed(self) -> Mapping[ObjectId, SnapshotInfo] | None:
        """Every snapshot that the repository lists, reachable or not; None where only files tell what there is."""
        return None

    async def reparent_snapshot(self, snapshot_id: ObjectId, parent_id: ObjectId) -> None:
        """Give a snapshot another parent, all else equal; doing it twice does no harm."""
        raise UnsupportedError(f"{type(self).__name__} cannot give snapshot {snapshot_id} another parent")

    async def change_parents(self, change: HistoryChange) -> None:
        """Give snapshots other parents, as a change of history says."""
        for snapshot_id, parent_id in change.parents.items():
            await self.reparent_snapshot(snapshot_id, parent_id)

    async def change_history(self, change: HistoryChange) -> None:
        """Expiry: carry a change of history out; whoever is interrupted plans and does it again."""
        await self.change_parents(change)
        for branch, standing in change.branches.items():
            if await self._stands(self.fetch_tip(branch), standing):
                await self.delete_branch(branch)
        for tag, target in change.tags.items():
            if await self._stands(self.fetch_tag(tag), target):
                await self.delete_tag(tag)

    @staticmethod
    async def _stands(found: Any, expected: ObjectId) -> bool:
        try:
            answer = await found
        except RefNotFoundError:
            return False
        return (answer.snapshot_id if isinstance(answer, Tip) else answer) == expected

    async def forget_snapshots(self, ids: Set[ObjectId]) -> frozenset[ObjectId]:
        """Collection: take unreachable snapshots off the list, before their files go.

        Returns those that may go; one that became reachable since is not among them.
        """
        return frozenset(ids)

    @abstractmethod
    async def fetch_config(self) -> StoredConfig: ...

    @abstractmethod
    async def save_config(self, document: Mapping[str, Any], mark: Any) -> None:
        """Replace the stored configuration; ConflictError if it changed since it was fetched."""
