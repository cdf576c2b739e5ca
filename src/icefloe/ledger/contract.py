"""What the engine asks of refs and history, whatever generation keeps them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from icefloe.ids import ObjectId
from icefloe.model.snapshot import Snapshot, SnapshotInfo


@dataclass(frozen=True, slots=True)
class Tip:
    """Where a branch stands, and the mark by which `advance` notices that it moved."""

    snapshot_id: ObjectId
    mark: Any


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """The configuration kept in the repository, as plain JSON-like data, and the mark for replacing it."""

    document: Mapping[str, Any] | None
    mark: Any = None


class Ledger(ABC):
    """Branches, tags, history and stored configuration of one repository.

    Names are checked here (`/` is refused, RefNotFoundError, AlreadyExistsError); existence of snapshots is checked
    by the caller. Every method that changes something is one atomic step.
    """

    @abstractmethod
    async def create(self, initial: Snapshot, config: Mapping[str, Any] | None) -> None:
        """Make the first ref point at the initial snapshot (already flushed); AlreadyExistsError for all but one."""

    async def check_writable(self) -> None:
        """ReadOnlyError where the repository itself says that it takes no writes."""

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

        ConflictError(expected_parent, actual_parent) if it is no longer at `tip.snapshot_id`; a mark that is stale
        while the branch is still at that snapshot is refreshed and tried again here. `amends` names the snapshot
        that this one replaces at the tip (its parent is then the parent of that one).
        """

    @abstractmethod
    async def record_detached(self, snapshot: Snapshot) -> None:
        """Make a flushed snapshot known that no ref points at."""

    @abstractmethod
    async def create_branch(self, branch: str, snapshot_id: ObjectId) -> None: ...

    @abstractmethod
    async def reset_branch(self, branch: str, snapshot_id: ObjectId, expected: ObjectId | None) -> None:
        """Point a branch anywhere; ConflictError if `expected` is given and is not where it stands."""

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

    @abstractmethod
    async def fetch_info(self, snapshot_id: ObjectId) -> SnapshotInfo:
        """One snapshot as history shows it; SnapshotNotFoundError."""

    async def fetch_pruned_logs(self, snapshot_id: ObjectId) -> tuple[ObjectId, ...]:
        """Expired ancestors, oldest first, whose logs belong to the change of this snapshot."""
        return ()

    @abstractmethod
    async def fetch_config(self) -> StoredConfig: ...

    @abstractmethod
    async def save_config(self, document: Mapping[str, Any], mark: Any) -> None:
        """Replace the stored configuration; ConflictError if it changed since it was fetched."""
