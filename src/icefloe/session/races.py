"""Races between writers of one branch: pauses after a lost one, and what writers of one process share.

Writers of one process do not lose races against each other. They take turns, and each finds the commits of the others
in memory (`RecentCommits`). Which commit is the newest of a branch is read from storage. Memory only answers what such
a commit contains, and what it changed against its parent when it was committed. Both never change. Expiry may give the
commit another parent later, and writes the ref of its branch again then.

A turn ends when the files of the commit are written. The next writer then writes its files on top of a commit whose ref
is still being created (`PendingCommit`), and creates its own ref after that one. If a commit does not get the ref that
was expected, all commits on top of it are tried again. Nobody else has seen them.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from icefloe.ids import ObjectId
from icefloe.ledger.ledger import Ledger, Tip
from icefloe.metadata_files import MetadataFiles
from icefloe.model.snapshot import REWRITTEN_PARENT_KEY, Manifest, Snapshot, TransactionLog
from icefloe.storage.contract import Storage

FIRST_PAUSE_SECONDS = 0.005
_PAUSE_PER_TRY = 4.0
_LONGEST_PAUSE_SECONDS = 10.0
_REMEMBERED_COMMITS = 128
_MOST_LOGGED_CHUNKS = 2_000
"""The log of a commit that wrote more chunks is not kept in memory."""
_MOST_NODES = 10_000
"""A larger snapshot is not kept in memory for other repositories."""


def longest_pause(lost: int, took_seconds: float) -> float:
    """Within which time the next try begins, after `lost` tries failed before one that took so long.

    Tries that overlap defeat each other, so writers spread out over several times the length of one. Who has lost
    often waits less than who came later: with pauses that grow, newcomers win again and again. The first try may have
    stored chunks, which none does again, so its length says nothing.
    """
    if lost == 0:
        return FIRST_PAUSE_SECONDS
    return min(_PAUSE_PER_TRY * took_seconds / lost, _LONGEST_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class WrittenCommit:
    """What the files of a commit contain, apart from its snapshot."""

    log: TransactionLog
    manifests: Sequence[ObjectId]
    """The manifests that the commit wrote."""


class PendingCommit:
    """A commit whose files are written, and whose ref is not created yet.

    Parameters
    ----------
    snapshot
        The snapshot of the commit.
    log
        What the commit changes.
    manifests
        The manifests that it wrote, as far as they are in memory.
    before
        The commit that it is based on, if that one is pending too.
    """

    def __init__(
        self, snapshot: Snapshot, log: TransactionLog, manifests: Sequence[Manifest], before: PendingCommit | None
    ) -> None:
        self.snapshot = snapshot
        self.log = log
        self.manifests = manifests
        self.depth: int = 0 if before is None or before.landed.done() else before.depth + 1
        """How many commits have to get their refs before."""
        self.landed: asyncio.Future[Tip | None] = asyncio.get_running_loop().create_future()
        """Where the commit put the branch. None if it has not got the expected ref."""


class RecentCommits:
    """The newest commits that this process made on one branch, for all its repositories with the same storage.

    Only commits that created nodes and wrote chunks are kept. The logs are those of the time of the commit, so the
    logs of a chain of commits are exactly what changed from the first to the last.
    """

    def __init__(self, storage: Storage, loop: asyncio.AbstractEventLoop) -> None:
        self._storage = storage
        self._loop = weakref.ref(loop)
        self._logs: OrderedDict[ObjectId, tuple[ObjectId, TransactionLog]] = OrderedDict()
        """Parent and log of each commit."""
        self._newest: tuple[Tip, PendingCommit] | None = None
        self.pending: PendingCommit | None = None
        """The last commit whose ref is not created yet."""

    def is_of(self, storage: Storage, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether these are the commits to a storage, by tasks of an event loop."""
        return self._loop() is loop and (self._storage is storage or self._storage == storage)

    @property
    def tip(self) -> Tip | None:
        """Where the newest of these commits put the branch. It may have moved since."""
        return None if self._newest is None else self._newest[0]

    def begin(
        self, snapshot: Snapshot, written: WrittenCommit, before: PendingCommit | None, metadata_files: MetadataFiles
    ) -> PendingCommit:
        """Note a commit whose files are written. `end` has to follow.

        It becomes `pending` if other writers can write on top of it.
        """
        cached = map(metadata_files.find_manifest, written.manifests)
        manifests = [each for each in cached if isinstance(each, Manifest)]
        commit = PendingCommit(snapshot, log := written.log, manifests, before)
        chunks = sum(map(len, log.updated_chunks.values()))
        if log.only_adds and chunks <= _MOST_LOGGED_CHUNKS and REWRITTEN_PARENT_KEY not in snapshot.metadata:
            assert snapshot.parent_id is not None, "a commit has a parent"
            self._logs[snapshot.id] = snapshot.parent_id, log
            if len(self._logs) > _REMEMBERED_COMMITS:
                self._logs.popitem(last=False)
            self.pending = commit
        return commit

    def end(self, commit: PendingCommit, tip: Tip | None) -> None:
        """Tell those that wait for a commit where it put the branch. None if it has not got the expected ref."""
        if commit.landed.done():
            return
        if tip is None or self.pending is commit:
            self.pending = None
        if tip is not None:
            is_small = len(commit.snapshot.nodes) <= _MOST_NODES
            self._newest = (Tip(tip.snapshot_id, tip.version_token), commit) if is_small else None
        commit.landed.set_result(tip)

    def find_logs(self, base_id: ObjectId, snapshot_id: ObjectId) -> list[TransactionLog] | None:
        """The logs of all commits after a base up to a snapshot, oldest first. None if one of them is not known."""
        found: list[TransactionLog] = []
        while snapshot_id != base_id:
            entry = self._logs.get(snapshot_id)
            if entry is None:
                return None
            snapshot_id, log = entry
            found.append(log)
        return found[::-1]

    def is_ahead_of(self, tip: Tip | None) -> bool:
        """Whether the branch has moved on from a tip by commits of this process. Makes no request."""
        newest = self.tip
        if newest is None or tip is None or newest.snapshot_id == tip.snapshot_id:
            return False
        return self.find_logs(tip.snapshot_id, newest.snapshot_id) is not None

    def find_snapshot(self, tip: Tip, ledger: Ledger, branch: str, metadata_files: MetadataFiles) -> Snapshot | None:
        """The snapshot at a tip that was just read, if this process wrote it under the very ref that was read.

        It is then in the caches of the repository too, with the manifests that were written for it.
        """
        if self._newest is None or self._newest[0] != tip:
            return None
        commit = self._newest[1]
        snapshot = commit.snapshot
        if not ledger.is_current(branch, tip) or not metadata_files.has_snapshot(snapshot.id):
            metadata_files.keep_snapshot(snapshot)
            metadata_files.keep_manifests(commit.manifests)
            ledger.note_current(branch, tip)
        return snapshot


_Commits = weakref.WeakValueDictionary[tuple[type[Ledger], str, str], RecentCommits]
_RECENT: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Commits] = weakref.WeakKeyDictionary()
_KEPT: weakref.WeakKeyDictionary[Ledger, dict[str, RecentCommits]] = weakref.WeakKeyDictionary()
"""Commits are kept as long as a repository that knows them exists."""


def recent_commits(ledger: Ledger, branch: str) -> RecentCommits:
    """The commits of this process on a branch of a repository. Tasks of one event loop share them.

    After a conversion in place, other repositories of the process may still have the old generation open. Two servers
    may have buckets of the same name, so that the storages of one URL are not always equal.
    """
    loop, storage = asyncio.get_running_loop(), ledger.storage
    kept = _KEPT.setdefault(ledger, {})
    found = kept.get(branch)
    if found is None or not found.is_of(storage, loop):
        shared = _RECENT.setdefault(loop, weakref.WeakValueDictionary())
        found = shared.setdefault((type(ledger), storage.url, branch), RecentCommits(storage, loop))
        if not found.is_of(storage, loop):
            found = RecentCommits(storage, loop)
        kept[branch] = found
    if found.tip is not None:
        ledger.expect_tip(branch, found.tip)
    return found
