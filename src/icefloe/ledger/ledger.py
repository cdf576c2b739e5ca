"""The contract of a ledger: refs and history of one repository."""

from __future__ import annotations

import asyncio
import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
    RefNotFoundError,
    StorageError,
    UnsupportedError,
    VersionMismatchError,
)
from icefloe.ids import ObjectId
from icefloe.metadata_files import MetadataFiles
from icefloe.model.snapshot import BranchPosition, Snapshot, SnapshotInfo
from icefloe.model.zarr_document import check_unicode, load_object
from icefloe.storage.contract import Storage, Version, Versioned

if TYPE_CHECKING:
    from icefloe.model.status import FeatureFlag, RepoAvailability, RepoStatus, Update

T = TypeVar("T")

MAIN = "main"
JOURNAL_KEY = "icefloe-conversion.json"
"""The object that exists while a conversion is in progress."""
CONVERSION = "conversion"
"""Replaces the name of the garbage collection in refs while a conversion in place is running."""
MOST_NEW_PARENTS = 64
"""Recorded new parents of snapshots, see `Ledger.records_expiries`. Every later ref of `main` repeats them. An expiry
with more of them writes them to the files of the snapshots at once."""
FRESH_SECONDS = 1.0
"""A branch that was read longer ago is read again before its next file is created. Only a conversion in place removes
branch files. A writer that waited during a conversion could create a file that no reader finds."""
_REQUESTS_AT_ONCE = 32
_MAX_BYTES = 200
"""Names are parts of file names, which have a prefix and a suffix."""


def check_new_name(name: str, what: str, *, is_file_name: bool = True) -> str:
    """Check the name of a new branch or tag."""
    check_name(name, what, is_file_name=is_file_name)
    if not name:
        raise InvalidInputError(f"a new {what} needs a name", "invalid-ref-name")
    if any(ord(symbol) < 32 or ord(symbol) == 127 for symbol in name):
        raise InvalidInputError(f"{name!r} is not a {what} name: control characters are not allowed")
    if len(name.encode("utf-8", "replace")) > _MAX_BYTES:
        raise InvalidInputError(f"the {what} name has {len(name)} characters, expected at most {_MAX_BYTES} bytes")
    return name


def check_name(name: str, what: str, *, is_file_name: bool = True) -> str:
    """Check a name that may exist already. Other writers allow names that this library does not create.

    A generation whose refs are entries of one file allows any name. In other generations, the name is part of a file
    name.
    """
    if not isinstance(name, str) or not (name or not is_file_name):
        raise InvalidInputError(f"a {what} needs a name, found {name!r}", "invalid-ref-name")
    check_unicode(name, f"the {what} name")
    if is_file_name and "/" in name:
        raise InvalidInputError(
            f"{name!r} is not a {what} name: `/` is not allowed in this generation, only in icechunk2",
            "invalid-ref-name",
        )
    return name


@dataclass(frozen=True, slots=True)
class Tip:
    """The snapshot that a branch points to, and the token with which `advance` detects that the branch moved."""

    snapshot_id: ObjectId
    version_token: Any
    collection: Any = field(default=None, compare=False)
    """The last garbage collection before the tip was read, if known. See `Ledger.collected_since`."""
    new_parents: Mapping[ObjectId, ObjectId] = field(default_factory=dict, compare=False)
    """The recorded expiries, in the tip of `main`. See `Ledger.records_expiries`."""


class StaleTipError(ConflictError):
    """The branch did not move, but its ref was rewritten because history was expired or garbage collected.

    `tip` is the branch with its current version token. The committer checks again what the new snapshot refers to, and
    retries.
    """

    tip: Tip

    def __init__(self, tip: Tip) -> None:
        super().__init__(
            message=f"history was expired or garbage collected during every attempt to commit on {tip.snapshot_id}. "
            "Commit again",
            expected_parent=tip.snapshot_id,
            actual_parent=tip.snapshot_id,
            tip=tip,
        )


class HistoryChangedError(StorageError):
    """Another process gave a snapshot another parent after a history change was planned, or wrote its log again.

    `parent_id` is the parent in the file of the snapshot, if that is why the change was not applied. The caller plans
    the change again.
    """

    snapshot_id: ObjectId
    parent_id: ObjectId | None

    def __init__(self, snapshot_id: ObjectId, parent_id: ObjectId | None = None) -> None:
        super().__init__(
            f"another process changed the history of snapshot {snapshot_id} at the same time. Try again",
            snapshot_id=snapshot_id,
            parent_id=parent_id,
        )

    @property
    def observed(self) -> Mapping[ObjectId, ObjectId]:
        """The parents that were found in files of snapshots."""
        return {} if self.parent_id is None else {self.snapshot_id: self.parent_id}


def add_position(found: list[BranchPosition], snapshot_id: ObjectId, since: dt.datetime, limit: int) -> bool:
    """Add an older position of a branch. Return whether older ones are wanted.

    Garbage collection and expiry write refs again. Then the time of the oldest file counts.
    """
    if found and found[-1].snapshot_id == snapshot_id:
        found[-1] = BranchPosition(snapshot_id, since)
    elif len(found) == limit:
        return False
    else:
        found.append(BranchPosition(snapshot_id, since))
    return True


async def check_not_converting(storage: Storage, collection: object) -> None:
    """Raise ReadOnlyError if a ref says that a conversion replaces it, and that conversion is not finished.

    `collection` is that of the ref, see `Tip.collection`. A request is only made if it is a conversion.
    """
    if collection == CONVERSION and await storage.exists(JOURNAL_KEY):
        raise ReadOnlyError(
            f"{storage.url} is being converted to another generation, or a conversion was interrupted. Until it is "
            "finished, nothing can be written or deleted. If no conversion is running, run the same conversion again "
            "to finish it. Then open the repository again",
            url=storage.url,
        )


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """The stored configuration as JSON-like data, and the version token for replacing it."""

    document: Mapping[str, Any] | None
    version_token: Any = None


@dataclass(frozen=True, slots=True)
class HistoryChange:
    """The changes of an expiry to refs and history.

    `parents` contains the new parent of every kept snapshot whose parent expires. `former` contains the parents that
    these had when the change was planned. `branches` and `tags` are removed if they still point to the given snapshots.
    """

    expired: frozenset[ObjectId]
    parents: Mapping[ObjectId, ObjectId] = field(default_factory=dict)
    branches: Mapping[str, ObjectId] = field(default_factory=dict)
    tags: Mapping[str, ObjectId] = field(default_factory=dict)
    former: Mapping[ObjectId, ObjectId] = field(default_factory=dict)

    def is_empty(self) -> bool:
        return not (self.expired or self.parents or self.branches or self.tags)

    def check_parent(self, snapshot_id: ObjectId, parent_id: ObjectId | None) -> None:
        """Raise HistoryChangedError if the parent in the file of a snapshot has changed since the plan."""
        former, new = self.former.get(snapshot_id), self.parents.get(snapshot_id)
        if former is not None and new is not None and parent_id not in (former, new):
            raise HistoryChangedError(snapshot_id, parent_id)


@dataclass(frozen=True, slots=True)
class StoredRef:
    """A branch or tag and its files in a storage, whether they can be read or not."""

    kind: Literal["branch", "tag"]
    name: str
    keys: tuple[str, ...]
    """The files, newest first. Only branches of generations that never replace a branch file have several."""


class RefFiles(ABC):
    """How a generation stores each ref in files of its own. Used to recover refs that cannot be read."""

    folder: ClassVar[str]
    config_key: ClassVar[str]
    empty_config: ClassVar[Mapping[str, Any]] = {}

    @abstractmethod
    def first_key(self, branch: str) -> str:
        """The first file of a branch."""

    def next_key(self, key: str) -> str | None:
        """The branch file that follows this one. None if the file is replaced."""
        return None

    @abstractmethod
    def group(self, keys: Iterable[str]) -> list[StoredRef]:
        """The refs that the objects in the folder belong to. Deleted tags are left out."""

    @abstractmethod
    def parse(self, data: bytes, key: str) -> tuple[ObjectId, bool]:
        """The snapshot in a file, and whether the file marks a deletion. Raises FormatError if it cannot be read."""

    @abstractmethod
    def encode(self, target: ObjectId) -> bytes:
        """The file of a branch at a snapshot."""

    def encode_after(self, before: bytes | None, target: ObjectId) -> bytes:
        """The file of a branch at a snapshot, with what the last readable file of the branch says beyond that."""
        return self.encode(target)

    def check_config(self, data: bytes) -> None:
        """Raise FormatError or InvalidInputError if the configuration cannot be read."""
        load_object(data, self.config_key)


class WholeRefsFile(ABC):
    """How a generation stores all refs in one file. Used to recover a file that cannot be read."""

    key: ClassVar[str]
    backups_folder: ClassVar[str | None] = None
    """The folder of earlier contents, newest first by name. None if there are none."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the object."""
        return {}

    @abstractmethod
    def summarise(self, data: bytes) -> str:
        """What the file contains, in words. Raises FormatError if it cannot be read."""

    def rebuild(self, snapshots: Sequence[Snapshot], tip: ObjectId) -> bytes:
        """A file that lists these snapshots, with the branch `main` at the tip. For generations without backups."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class RefTargets:
    """The snapshots of all branches and tags."""

    branches: dict[str, ObjectId]
    tags: dict[str, ObjectId]

    def targets(self) -> set[ObjectId]:
        """Every snapshot that a ref points to."""
        return {*self.branches.values(), *self.tags.values()}

    def names_of(self, snapshot_id: ObjectId) -> list[str]:
        """The refs that point to a snapshot, as readable text."""
        named = [f"branch {name}" for name, tip in self.branches.items() if tip == snapshot_id]
        return named + [f"tag {name}" for name, target in self.tags.items() if target == snapshot_id]


class RepositoryAdministration(ABC):
    """Status, metadata, feature flags and operations log of a repository, in generations that store them."""

    @abstractmethod
    async def fetch_status(self) -> RepoStatus:
        """Whether the repository accepts writes, since when, and the reason."""

    @abstractmethod
    async def set_status(self, availability: RepoAvailability, reason: str | None) -> None:
        """Set whether the repository accepts writes."""

    @abstractmethod
    async def fetch_metadata(self) -> dict[str, Any]:
        """The metadata of the repository."""

    @abstractmethod
    async def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace all metadata."""

    @abstractmethod
    async def update_metadata(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Set some keys, keep the others, and return all metadata."""

    @abstractmethod
    async def fetch_flags(self) -> list[FeatureFlag]:
        """Every feature that can be disabled, and its state."""

    @abstractmethod
    async def set_flag(self, name: str, value: bool | None) -> None:
        """Enable or disable a feature, or (None) restore its default."""

    @abstractmethod
    def ops_log(self) -> AsyncIterator[Update]:
        """The operations log, newest first."""

    @abstractmethod
    async def describe(self) -> dict[str, Any]:
        """Everything as plain data, in the layout that the official package prints."""


@dataclass(frozen=True, slots=True)
class Administration:
    """Metadata, flags, status and operations log of a repository, for a conversion."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, bool | None] = field(default_factory=dict)
    status: Any = None
    """The record of the generation that stores it."""
    updates: tuple[Any, ...] = ()
    """The whole operations log, newest first, as records of the generation that stores it."""
    restricted: str | None = None
    """The name of the status, unless the repository accepts all requests."""
    operations_beyond_history: tuple[str, ...] = ()
    """The operations in the log that a repository without a log does not record otherwise."""


@dataclass(frozen=True, slots=True)
class WholeHistory:
    """Everything that a ledger stores: snapshots (parents first), refs, configuration."""

    snapshots: tuple[SnapshotInfo, ...]
    branches: Mapping[str, ObjectId]
    tags: Mapping[str, ObjectId] = field(default_factory=dict)
    deleted_tags: frozenset[str] = frozenset()
    config: Mapping[str, Any] | None = None
    administration: Administration | None = None
    migrated_from: int | None = None
    """The number of the generation whose files these are, if the operations log should record it."""


class Ledger(ABC):
    """Branches, tags, history and stored configuration of one repository.

    The ledger checks names (`check_name`, RefNotFoundError, AlreadyExistsError). The caller checks that snapshots
    exist. Every method that changes something is one atomic step.
    """

    storage: Storage
    metadata_files: MetadataFiles

    refs_are_files = True
    """Whether the name of a branch or tag is part of the name of a file. Then it has no `/`."""

    refs_are_checked = False
    """Whether a ref to a snapshot that was collected cannot be created. If not, the caller checks that afterwards."""

    keeps_pruned_logs = False
    """Whether a snapshot lists the logs of its expired parents. If not, its own log must contain their changes."""

    announces_collections = True
    """Whether a tip always shows garbage collections. If not, a long-running writer asks for them itself."""

    parents_change_unseen = False
    """Whether expiry changes parents in files that a commit neither reads nor writes.

    If so, a commit reads them again.
    """

    @abstractmethod
    async def create(self, initial: Snapshot, config: Mapping[str, Any] | None) -> None:
        """Create the first ref, for the initial snapshot (already written).

        All but one caller get AlreadyExistsError.
        """

    keeps_deleted_tags = False
    """Whether the names of deleted tags are kept. They cannot be used again."""

    @abstractmethod
    async def import_history(self, history: WholeHistory, *, replace_leftovers: bool = False) -> None:
        """Create refs and history for files that exist already. A second call finishes an interrupted first one.

        With `replace_leftovers`, the storage still opens as another generation, so the files of an interrupted run are
        replaced. Otherwise AlreadyExistsError is raised if there is another repository.
        """

    async def import_config(self, document: Mapping[str, Any]) -> None:
        """Store the configuration of a repository that has no branch `main` yet."""
        stored = await self.fetch_config()
        if stored.document != document:
            await self.save_config(document, stored.version_token)

    async def import_deleted_tag(self, tag: str) -> None:
        """Store the name of a deleted tag, where such names are kept."""

    async def finish_import(self) -> None:
        """Complete what an interrupted import left after it created `main`."""

    @staticmethod
    @abstractmethod
    async def remove(storage: Storage) -> None:
        """Remove the refs of this generation from a storage. Its other files stay."""

    @staticmethod
    async def remove_name(storage: Storage) -> None:
        """Remove the name of the generation from the configuration. It is then found only by its refs.

        If another generation in the storage takes precedence, it opens from this step on.
        """

    async def fetch_deleted_tags(self) -> frozenset[str]:
        """The names of deleted tags, where they are kept."""
        return frozenset()

    async def export_administration(self) -> Administration | None:
        """Metadata, flags, status and operations log. None if the generation does not store them."""
        return None

    @property
    def administration(self) -> RepositoryAdministration | None:
        """Status, metadata, feature flags and operations log. None if the generation has none of them."""
        return None

    async def check_feature(self, name: str) -> None:
        """Raise SessionStateError if a feature is disabled in the repository."""

    def unstorable_refs(self, branches: Collection[str], tags: Collection[str]) -> set[tuple[str, str]]:
        """Kind and name of the refs of another repository that this generation cannot store."""
        return set()

    async def check_writable(self) -> None:
        """Raise ReadOnlyError if the repository is set to read-only."""

    async def check_convertible(self) -> None:
        """Raise ReadOnlyError if the repository is set to read-only, except by an interrupted conversion."""
        await self.check_writable()

    def remember(self, found: Versioned) -> None:
        """Use the object that detection read, to avoid a request."""

    def recall_tip(self, branch: str) -> ObjectId | None:
        """The last known snapshot of a branch, without a request. None if it is not known."""
        return None

    def expect_tip(self, branch: str, tip: Tip) -> None:
        """Begin the next search for the newest ref of a branch at a tip that another ledger of this process wrote."""

    def note_tip(self, branch: str, tip: Tip) -> None:
        """Take over a tip that another ledger of this process has just written to the same storage."""

    def learn_from(self, other: Ledger) -> None:
        """Use the state that another ledger of the same repository read, to compare it with the current state."""

    expires_at_once = False
    """Whether `change_history` is one atomic step that keeps the snapshots of all refs of that moment.

    If not, a commit made meanwhile may have an expired parent, so an expiry looks at the refs again afterwards.
    """

    records_expiries = False
    """Whether an expiry only records the new parents of kept snapshots. Garbage collection writes them to the files.

    Until then, the files have the parents from before the expiry. `ancestry`, `ancestry_at` and `fetch_info` return
    these, so diffs, rebases and collections meet every log. `shown_history` and `fetch_shown_info` return what users
    see. A new parent is always an ancestor in the files too.
    """

    async def fetch_new_parents(self) -> Mapping[ObjectId, ObjectId]:
        """The new parents of kept snapshots that are recorded, and not written to their files yet."""
        return {}

    async def record_new_parents(self, tip: Tip, parents: Mapping[ObjectId, ObjectId]) -> bool:
        """Replace the recorded new parents. `tip` is that of `main` when the caller read history.

        Returns False if they have changed since, also if they have changed back. Then history may be another one.
        """
        raise UnsupportedError(f"{type(self).__name__} does not record expiries")

    def shown_history(
        self, snapshot_id: ObjectId, new_parents: Mapping[ObjectId, ObjectId] | None = None
    ) -> AsyncIterator[SnapshotInfo]:
        """The ancestry without expired snapshots. `new_parents` are given by who has just fetched them."""
        return self.ancestry(snapshot_id)

    async def fetch_shown_info(self, snapshot_id: ObjectId) -> SnapshotInfo:
        """The history entry of a snapshot, with the parent in `shown_history`."""
        return await self.fetch_info(snapshot_id)

    async def fetch_targets(self) -> tuple[dict[str, ObjectId], dict[str, ObjectId]] | None:
        """The targets of all branches and all tags, if one request returns them. None if each needs a request."""
        return None

    async def fetch_graph(self) -> tuple[RefTargets, Mapping[ObjectId, SnapshotInfo]] | None:
        """All refs and every snapshot that the repository lists, if one object contains both."""
        return None

    @abstractmethod
    async def fetch_tip(self, branch: str) -> Tip: ...

    async def fetch_tips(self) -> dict[str, Tip]:
        """The tips of all branches. Branches that are deleted meanwhile are left out."""
        names = sorted(await self.list_branches())
        found = await gather_requests(map(self._find_tip, names))
        return {name: tip for name, tip in zip(names, found, strict=True) if tip is not None}

    async def _find_tip(self, branch: str) -> Tip | None:
        try:
            return await self.fetch_tip(branch)
        except RefNotFoundError:
            return None

    async def fetch_positions(self, branch: str, limit: int) -> list[BranchPosition]:
        """The snapshots that a branch pointed to, newest first. Files that were only rewritten are left out."""
        raise UnsupportedError(
            f"the generation of {self.storage.url} does not record where branches were. It is recorded in "
            "repository, store and icechunk2"
        )

    @abstractmethod
    async def fetch_tag(self, tag: str) -> ObjectId: ...

    async def fetch_tags(self) -> dict[str, ObjectId]:
        """The targets of all tags."""
        names = sorted(await self.list_tags())
        return dict(zip(names, await gather_requests(map(self.fetch_tag, names)), strict=True))

    async def fetch_refs(self) -> tuple[dict[str, Tip], dict[str, ObjectId]]:
        """The tips of all branches and the targets of all tags."""
        # Tags come second: a tag that replaces a branch is created before the branch is deleted.
        tips = await self.fetch_tips()
        return tips, await self.fetch_tags()

    async def fetch_refs_once(self) -> tuple[dict[str, Tip], dict[str, ObjectId]]:
        """The same as `fetch_refs` with fewer requests. A tag may be missing that was created in the meantime.

        The caller fetches the refs again after it has changed something.
        """
        return await self.fetch_refs()

    @abstractmethod
    async def list_branches(self) -> set[str]: ...

    @abstractmethod
    async def list_tags(self) -> set[str]: ...

    @abstractmethod
    async def advance(self, branch: str, tip: Tip, snapshot: Snapshot, *, amends: ObjectId | None = None) -> Tip:
        """Commit: move the branch from `tip` to a snapshot that is already written.

        Raises ConflictError(expected_parent, actual_parent) if the branch is no longer at `tip.snapshot_id`. Raises
        StaleTipError if it is, but history may have been rewritten or garbage collected since the tip was read. A
        version token that is stale for another reason is refreshed here, and the write is tried again. `amends` names
        the snapshot that this one replaces at the tip. Its parent is then the parent of that one.
        """

    def is_current(self, branch: str, tip: Tip) -> bool:
        """Whether the cached snapshot at a tip quotes the history that it has at this tip.

        A commit copies these quotes. Only generations whose snapshots quote their ancestors have to know.
        """
        return True

    def note_current(self, branch: str, tip: Tip) -> None:
        """Record that the snapshot at a tip was read from storage after the tip."""

    def collected_since(self, earlier: Tip, later: Tip) -> bool:
        """Whether garbage was collected between the reads of two tips of a branch. Makes no request."""
        return bool(earlier.collection != later.collection)

    async def announce_collection(self, collection_id: str, *, soon: bool) -> None:
        """Rewrite refs, so that every commit in progress fails its first attempt and notices the collection.

        `soon` means that objects a few minutes old may be deleted.
        """

    async def log_collection(self) -> None:
        """Record a collection that found nothing to delete, if there is an operations log."""

    async def log_expiry(self) -> None:
        """Record an expiry that found nothing to remove, if there is an operations log."""

    async def announce_conversion(self) -> None:
        """Rewrite refs, so that unfinished commits fail, in open sessions and in new ones.

        A conversion in place calls it before the new generation exists. See `check_not_converting`.
        """
        await self.announce_collection(CONVERSION, soon=True)

    @abstractmethod
    async def record_detached(self, snapshot: Snapshot) -> None:
        """Register a written snapshot that no ref points to."""

    @abstractmethod
    async def create_branch(self, branch: str, snapshot_id: ObjectId) -> None: ...

    @abstractmethod
    async def reset_branch(self, branch: str, snapshot_id: ObjectId, expected: ObjectId | None) -> ObjectId:
        """Move a branch to any snapshot. Returns the one that it was at.

        Raises ConflictError if `expected` is given and the branch is not at it.
        """

    async def replace_tip(self, branch: str, tip: Tip, snapshot_id: ObjectId) -> None:
        """Move a branch to any snapshot if it is still at `tip`. Raises the errors of `advance`."""
        await self.reset_branch(branch, snapshot_id, tip.snapshot_id)

    @abstractmethod
    async def delete_branch(self, branch: str) -> None:
        """Remove a branch. Raises for `main`."""

    @abstractmethod
    async def create_tag(self, tag: str, snapshot_id: ObjectId) -> None: ...

    async def withdraw_tag(self, tag: str) -> None:
        """Remove a tag that was created a moment ago, as if it had never been there."""
        await self.delete_tag(tag)

    @abstractmethod
    async def delete_tag(self, tag: str) -> None:
        """Remove a tag. Raises UnsupportedError if the generation cannot."""

    @abstractmethod
    def ancestry(self, snapshot_id: ObjectId) -> AsyncIterator[SnapshotInfo]:
        """The snapshot, then its ancestors, newest first. The cost does not depend on the skipped entries."""

    def ancestry_at(self, tip: Tip) -> AsyncIterator[SnapshotInfo]:
        """The ancestry of a tip that was just read.

        If the tip was read together with the history, that history is used.
        """
        return self.ancestry(tip.snapshot_id)

    @abstractmethod
    async def fetch_info(self, snapshot_id: ObjectId) -> SnapshotInfo:
        """The history entry of a snapshot. Raises SnapshotNotFoundError."""

    async def fetch_pruned_logs(self, snapshot_id: ObjectId, tip: Tip | None = None) -> tuple[ObjectId, ...]:
        """Expired ancestors, oldest first, whose logs belong to the change of this snapshot.

        With a `tip`, the history is that of `ancestry_at`.
        """
        return ()

    async def fetch_all_pruned_logs(self) -> frozenset[ObjectId]:
        """The logs that `fetch_pruned_logs` returns for any snapshot. They are kept longer than their snapshots."""
        return frozenset()

    async def fetch_listed(self) -> Mapping[ObjectId, SnapshotInfo] | None:
        """Every snapshot that the repository lists, reachable or not. None if the generation keeps no such list."""
        return None

    async def reparent_snapshot(self, snapshot_id: ObjectId, parent_id: ObjectId) -> None:
        """Give a snapshot another parent and change nothing else. This is idempotent."""
        raise UnsupportedError(f"{type(self).__name__} cannot give snapshot {snapshot_id} another parent")

    async def change_parents(self, change: HistoryChange) -> None:
        """Give snapshots the new parents of a history change.

        Raises HistoryChangedError if other processes do the same, and the change has to be planned again.
        """
        for snapshot_id, parent_id in change.parents.items():
            await self.reparent_snapshot(snapshot_id, parent_id)

    async def change_history(self, change: HistoryChange) -> None:
        """Expiry: apply a history change. An interrupted run is planned and applied again."""
        await self.change_parents(change)
        for branch, current in change.branches.items():
            if await self._points_at(self.fetch_tip(branch), current):
                await self.delete_branch(branch)
        for tag, target in change.tags.items():
            if await self._points_at(self.fetch_tag(tag), target):
                await self.delete_tag(tag)

    @staticmethod
    async def _points_at(found: Any, expected: ObjectId) -> bool:
        try:
            answer = await found
        except RefNotFoundError:
            return False
        return (answer.snapshot_id if isinstance(answer, Tip) else answer) == expected

    async def forget_snapshots(self, ids: Set[ObjectId]) -> frozenset[ObjectId]:
        """Garbage collection: remove unreachable snapshots from the list, before their files are deleted.

        Returns those whose files may be deleted, without those that became reachable again.
        """
        return frozenset(ids)

    @abstractmethod
    async def fetch_config(self) -> StoredConfig: ...

    @abstractmethod
    async def save_config(self, document: Mapping[str, Any], version_token: Any) -> None:
        """Replace the stored configuration. Raises ConflictError if it changed since it was fetched."""


async def gather_requests(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The answers of requests. A bounded number of them runs at the same time."""
    gate = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def run(request: Coroutine[Any, Any, T]) -> T:
        async with gate:
            return await request

    return list(await asyncio.gather(*map(run, requests)))


async def save_config_file(storage: Storage, key: str, data: bytes, version_token: Version | None) -> None:
    """Create the object, or replace the version that was read. Raises ConflictError if it has changed."""
    try:
        if version_token is None:
            await storage.create(key, data, unique=False)
        else:
            await storage.swap(key, data, version_token, unique=False)
    except (AlreadyExistsError, VersionMismatchError, ObjectNotFoundError) as error:
        raise ConflictError(
            message="the stored configuration changed since it was read. Fetch it again, then save"
        ) from error
