"""Other parents for snapshots, also where their descendants quote the old ones.

Expiry rewrites snapshot files in place: those of kept snapshots that get another parent, and those of their kept
descendants that quote what expires. Files of snapshots that expire are left alone, so that they do not become young
again. Afterwards the ref of every branch whose newest snapshot was rewritten is written again, with the same snapshot.
A commit is the creation of the next branch file, so a writer that still has the old file in memory cannot land a
commit that quotes what expired: it finds the number taken, reads the snapshot again, and tries the next number.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable

from icefloe.archive.files import Archive
from icefloe.errors import RefNotFoundError, SnapshotNotFoundError, StorageError
from icefloe.formats.repository.history import MAX_HISTORY
from icefloe.ids import ObjectId
from icefloe.ledger.contract import HistoryChange, Ledger, Tip
from icefloe.ledger.history_walk import walk_history
from icefloe.model.snapshot import Snapshot, SnapshotInfo

_ROUNDS = 100
"""In every round that is lost somebody committed, so a hundred rounds are many."""


class QuotingLedger(Ledger):
    """A ledger of a generation whose snapshots quote their newest ancestors and whose branches are numbered files."""

    archive: Archive

    def __init__(self) -> None:
        self._current: dict[str, Tip] = {}

    @abstractmethod
    async def touch_branch(self, branch: str, tip: Tip, collection: str | None = None) -> bool:
        """Write the ref of a branch again, with the snapshot that it has; False when the branch moved meanwhile.

        `collection` names a garbage collection that it tells from now on.
        """

    def is_current(self, branch: str, tip: Tip) -> bool:
        return self._current.get(branch) == tip

    def note_current(self, branch: str, tip: Tip) -> None:
        self._current[branch] = tip

    async def fetch_info(self, snapshot_id: ObjectId) -> SnapshotInfo:
        return (await self.archive.fetch_snapshot(snapshot_id, anew=True)).info

    async def reparent_snapshot(self, snapshot_id: ObjectId, parent_id: ObjectId) -> None:
        """Expiry: give a snapshot another parent, in its own file and in those of descendants that quote it."""
        await self.change_parents(HistoryChange(frozenset(), {snapshot_id: parent_id}))

    async def change_parents(self, change: HistoryChange) -> None:
        if not change.parents:
            return
        rewritten: set[ObjectId] = set()
        for _ in range(_ROUNDS):
            branches = {name: await self._find_tip(name) for name in await self.list_branches()}
            tips = {name: tip for name, tip in branches.items() if tip is not None}
            targets = {tip.snapshot_id for tip in tips.values()}
            targets |= {await self.fetch_tag(tag) for tag in await self.list_tags()}
            rewritten |= await rewrite_history(self.archive, targets, change)
            touched = [
                await self.touch_branch(name, tip)
                for name, tip in sorted(tips.items(), key=lambda item: item[0])
                if tip.snapshot_id in rewritten
            ]
            if all(touched):
                return
        raise StorageError(f"branches were moved by others in each of {_ROUNDS} rounds; expire again")

    async def announce_collection(self, collection_id: str, *, soon: bool) -> None:
        for branch in sorted(await self.list_branches()):
            for _ in range(_ROUNDS):
                tip = await self._find_tip(branch)
                if tip is None or await self.touch_branch(branch, tip, collection_id):
                    break
            else:
                raise StorageError(f"branch {branch!r} was moved by others in each of {_ROUNDS} rounds; collect again")

    async def _find_tip(self, branch: str) -> Tip | None:
        try:
            return await self.fetch_tip(branch)
        except RefNotFoundError:
            return None


async def rewrite_history(archive: Archive, starts: Iterable[ObjectId], change: HistoryChange) -> set[ObjectId]:
    """Rewrite kept snapshots that have, or quote, another history than `change` says; returns their ids.

    Older snapshots come first: as long as a descendant still quotes what expires, history as it is walked shows it,
    and whoever expires it again does all of this again.
    """
    known: dict[ObjectId, Snapshot] = {}
    rewritten: set[ObjectId] = set()
    for start in sorted(set(starts)):
        for snapshot_id in await _find_candidates(archive, start, change):
            if snapshot_id in known:
                continue
            try:
                snapshot = known[snapshot_id] = await archive.fetch_snapshot(snapshot_id, anew=True)
            except SnapshotNotFoundError:
                continue  # quoted by somebody, but collected: the quote goes
            if not _contradicts(snapshot, change):
                continue
            parent_id = change.parents.get(snapshot_id, snapshot.parent_id)
            assert parent_id is not None, "the first snapshot quotes nobody"
            if parent_id not in known:
                known[parent_id] = await archive.fetch_snapshot(parent_id, anew=True)
            known[snapshot_id] = plan_quotes(snapshot, known[parent_id])
            await archive.flush_snapshot(known[snapshot_id])
            archive.forget_snapshot(snapshot_id)
            rewritten.add(snapshot_id)
    return rewritten


async def _find_candidates(archive: Archive, start: ObjectId, change: HistoryChange) -> list[ObjectId]:
    """Kept snapshots on the way to a start, oldest first, that may have or quote another history than they should."""
    chain = [info.id async for info in walk_history(archive, start)]
    kept = [snapshot_id for snapshot_id in reversed(chain) if snapshot_id not in change.expired]
    found: list[ObjectId] = []
    distance, quoted_by_all = MAX_HISTORY + 1, False
    for snapshot_id in kept:
        distance = 0 if snapshot_id in change.parents else distance + 1
        if distance > MAX_HISTORY and quoted_by_all:
            # Early writers quoted all of their ancestors.
            quoted_by_all = _contradicts(await archive.fetch_snapshot(snapshot_id), change)
        else:
            quoted_by_all = distance <= MAX_HISTORY
        if quoted_by_all:
            found.append(snapshot_id)
    return found


def _contradicts(snapshot: Snapshot, change: HistoryChange) -> bool:
    """Whether the file of a snapshot says something else of its ancestors than a change of history."""
    if snapshot.parent_id != change.parents.get(snapshot.id, snapshot.parent_id):
        return True
    return any(
        entry.id in change.expired or entry.parent_id != change.parents.get(entry.id, entry.parent_id)
        for entry in snapshot.history
    )


def plan_quotes(snapshot: Snapshot, parent: Snapshot) -> Snapshot:
    """The snapshot with a parent, and with quotes of it and of its ancestors."""
    return dataclasses.replace(
        snapshot,
        parent_id=parent.id,
        history=(dataclasses.replace(parent.info, manifests=()), *parent.history)[:MAX_HISTORY],
        total_ancestors=1 + (parent.total_ancestors or len(parent.history)),
    )
