"""History in generations whose snapshots quote their newest ancestors: walk it, and rewrite it.

Expiry rewrites snapshot files in place: those of kept snapshots that get another parent, and those of their kept
descendants that quote expired snapshots. Files of expired snapshots are not rewritten, because that would reset their
age. Then the ref of every branch whose newest snapshot was rewritten is written again, with the same snapshot. A commit
creates the next branch file. So a writer that still has the old snapshot in memory cannot commit a quote of an expired
snapshot: the number is taken, so it reads the snapshot again and tries the next number.

Several processes may do this at the same time, and one of them may be late. So the files are read first, and each is
only replaced if it is still the one that was read. Then no parent is written that another process has expired and
collected.

In a generation that records expiries, garbage collection does this. Until then, the files quote expired snapshots, and
the history that users see is that of the files with the recorded new parents.
"""

from __future__ import annotations

import asyncio
import dataclasses
from abc import abstractmethod
from collections.abc import AsyncIterator, Container, Iterable, Mapping
from contextlib import aclosing

from icefloe.errors import FormatError, SnapshotNotFoundError, StorageError, VersionMismatchError
from icefloe.formats.repository.snapshot import MAX_HISTORY, MetadataElsewhere
from icefloe.ids import ObjectId
from icefloe.ledger.ledger import HistoryChange, HistoryChangedError, Ledger, Tip
from icefloe.metadata_files import MetadataFiles
from icefloe.model.snapshot import Snapshot, SnapshotInfo
from icefloe.storage.contract import Version


async def walk_history(
    metadata_files: MetadataFiles,
    snapshot_id: ObjectId,
    existing: Container[ObjectId] | None = None,
    read: list[tuple[Snapshot, Version]] | None = None,
) -> AsyncIterator[SnapshotInfo]:
    """The snapshot, then its ancestors, newest first.

    A snapshot quotes its newest ancestors. The walk continues in the file of the last one. If it quotes none, its
    parent is fetched. The first snapshot of some early repositories is quoted with an id that no file has. It has no
    parent, so its file is never read.

    Every file is read from storage, never from a cache, because another process may have rewritten parents and quotes
    in place.

    A writer that ran while history was expired may quote snapshots that were collected since. The parent in a
    snapshot's own file always exists, so the walk falls back to those. With `existing`, only snapshots of this set are
    returned. If the whole history is in the first file, that snapshot and the version of its file are added to `read`.
    """
    if read is None:
        snapshot = await metadata_files.fetch_snapshot_file(snapshot_id, anew=True)
    else:
        snapshot, version = await metadata_files.fetch_versioned_snapshot(snapshot_id)
        is_elsewhere = any(isinstance(each.metadata, MetadataElsewhere) for each in snapshot.history)
        if _find_next(snapshot) is None and not is_elsewhere:
            read.append((snapshot, version))
    seen = {snapshot.id}
    yield snapshot.info
    while True:
        stale = False
        for entry in snapshot.history:
            if existing is not None and entry.parent_id is not None and entry.id not in existing:
                stale = True
                break
            _check_new(entry.id, seen)
            yield await _complete(metadata_files, entry)
        following = _find_next(snapshot)
        if following is None and not stale:
            return
        if stale or snapshot.history:
            found = None if stale or following is None else await _find_snapshot(metadata_files, following)
            if found is not None:
                snapshot = found
                continue
            anew = await _follow_parents(metadata_files, snapshot, seen)
            if anew is None:
                return
            snapshot = anew
        else:
            assert following is not None
            _check_new(following, seen)
            snapshot = await metadata_files.fetch_snapshot_file(following, anew=True)
        seen.add(snapshot.id)
        yield snapshot.info


async def walk_shown_history(
    metadata_files: MetadataFiles,
    snapshot_id: ObjectId,
    new_parents: Mapping[ObjectId, ObjectId],
    existing: Container[ObjectId] | None = None,
) -> AsyncIterator[SnapshotInfo]:
    """The history of a snapshot in which some snapshots have other parents than in their files.

    The ancestors in between are skipped. If they are more than a file quotes, the walk continues in the file of the
    new parent. If that is missing, another process has written a later expiry to the files, and collected garbage.
    """
    start: ObjectId | None = snapshot_id
    seen: set[ObjectId] = set()
    last: ObjectId | None = None
    while start is not None:
        again = None
        if last is not None and await _find_snapshot(metadata_files, start) is None:
            new_parents = {child: parent for child, parent in new_parents.items() if child != last}
            start = again = last
        parent, skipped = None, 0
        async with aclosing(walk_history(metadata_files, start, existing)) as walk:  # type: ignore[type-var]
            async for info in walk:
                if parent is not None and info.id != parent:
                    skipped += 1
                    if skipped > MAX_HISTORY:
                        break
                    continue
                last, parent, skipped = info.id, new_parents.get(info.id), 0
                if info.id != again:
                    _check_new(info.id, seen)
                    yield info if parent is None else dataclasses.replace(info, parent_id=parent)
        start = parent


async def _find_snapshot(metadata_files: MetadataFiles, snapshot_id: ObjectId) -> Snapshot | None:
    try:
        return await metadata_files.fetch_snapshot_file(snapshot_id, anew=True)
    except SnapshotNotFoundError:
        return None


async def _follow_parents(metadata_files: MetadataFiles, snapshot: Snapshot, seen: set[ObjectId]) -> Snapshot | None:
    """The first ancestor that was not visited yet, from the parents in the snapshots' own files.

    None if there is none.
    """
    met = {snapshot.id}
    while snapshot.parent_id is not None:
        _check_new(snapshot.parent_id, met)
        snapshot = await metadata_files.fetch_snapshot_file(snapshot.parent_id, anew=True)
        if snapshot.id not in seen:
            return snapshot
    return None


def _find_next(snapshot: Snapshot) -> ObjectId | None:
    """The file in which the walk continues: that of the last quoted ancestor, or of the parent."""
    if not snapshot.history:
        return snapshot.parent_id
    last = snapshot.history[-1]
    quotes_all = snapshot.total_ancestors is None or snapshot.total_ancestors <= len(snapshot.history)
    return None if last.parent_id is None and quotes_all else last.id


def _check_new(snapshot_id: ObjectId, seen: set[ObjectId]) -> None:
    if snapshot_id in seen:
        raise FormatError(
            f"the history contains snapshot {snapshot_id} twice, so its files contradict each other. Run `icefloe "
            "verify`"
        )
    seen.add(snapshot_id)


async def _complete(metadata_files: MetadataFiles, entry: SnapshotInfo) -> SnapshotInfo:
    """An entry with the metadata that was too large to be quoted."""
    if not isinstance(entry.metadata, MetadataElsewhere):
        return entry
    own = await metadata_files.fetch_snapshot_file(entry.id)
    return dataclasses.replace(entry, metadata=own.metadata)


_ROUNDS = 100
"""Each lost round means that another writer committed, so a hundred rounds are enough."""


class QuotingLedger(Ledger):
    """A ledger of a generation whose snapshots quote their newest ancestors and whose branches are numbered files."""

    def __init__(self) -> None:
        self._current: dict[str, Tip] = {}

    @abstractmethod
    async def touch_branch(self, branch: str, tip: Tip, collection: str | None = None) -> bool:
        """Write the ref of a branch again, with the same snapshot. Returns False if the branch moved in the meantime.

        `collection` is a garbage collection to record in the ref.
        """

    def is_current(self, branch: str, tip: Tip) -> bool:
        return self._current.get(branch) == tip

    def note_current(self, branch: str, tip: Tip) -> None:
        self._current[branch] = tip

    async def fetch_info(self, snapshot_id: ObjectId) -> SnapshotInfo:
        return (await self.metadata_files.fetch_snapshot_file(snapshot_id, anew=True)).info

    async def shown_history(
        self, snapshot_id: ObjectId, new_parents: Mapping[ObjectId, ObjectId] | None = None
    ) -> AsyncIterator[SnapshotInfo]:
        parents = await self.fetch_new_parents() if new_parents is None else new_parents
        async for info in walk_shown_history(self.metadata_files, snapshot_id, parents):
            yield info

    async def fetch_shown_info(self, snapshot_id: ObjectId) -> SnapshotInfo:
        info, parents = await asyncio.gather(self.fetch_info(snapshot_id), self.fetch_new_parents())
        return dataclasses.replace(info, parent_id=parents.get(snapshot_id, info.parent_id))

    async def reparent_snapshot(self, snapshot_id: ObjectId, parent_id: ObjectId) -> None:
        """Expiry: give a snapshot another parent, in its own file and in those of descendants that quote it."""
        await self.change_parents(HistoryChange(frozenset(), {snapshot_id: parent_id}))

    async def change_parents(self, change: HistoryChange) -> None:
        if not change.parents:
            return
        rewritten: set[ObjectId] = set()
        for _ in range(_ROUNDS):
            tips, tags = await self.fetch_refs()
            targets = {*(tip.snapshot_id for tip in tips.values()), *tags.values()}
            rewritten |= await rewrite_history(self.metadata_files, targets, change)
            touched = [
                await self.touch_branch(name, tip)
                for name, tip in sorted(tips.items(), key=lambda item: item[0])
                if tip.snapshot_id in rewritten
            ]
            if all(touched):
                return
        raise StorageError(f"other writers moved branches in each of {_ROUNDS} attempts. Expire again")

    async def announce_collection(self, collection_id: str, *, soon: bool) -> None:
        for branch in sorted(await self.list_branches()):
            for _ in range(_ROUNDS):
                tip = await self._find_tip(branch)
                if tip is None or await self.touch_branch(branch, tip, collection_id):
                    break
            else:
                raise StorageError(
                    f"other writers moved branch {branch!r} in each of {_ROUNDS} attempts. Collect garbage again"
                )


async def rewrite_history(
    metadata_files: MetadataFiles, starts: Iterable[ObjectId], change: HistoryChange
) -> set[ObjectId]:
    """Rewrite kept snapshots whose history, or quoted history, differs from `change`. Returns their ids.

    Older snapshots are written first. While a descendant still quotes an expired snapshot, a walk over history shows
    it, so that another expiry repeats all of this after an interruption.

    They are read in the other order. If another process writes a later change, it writes the snapshot with the new
    parent before its descendants. So if that one is as planned, the descendants were as well when they were read. It
    is read again for every ref. Raises HistoryChangedError if it is not as planned, or if a file has changed since it
    was read.
    """
    known: dict[ObjectId, Snapshot] = {}
    rewritten: set[ObjectId] = set()
    for start in sorted(set(starts)):
        candidates, read = await _find_candidates(metadata_files, start, change)
        versions: dict[ObjectId, Version] = {}
        for snapshot_id in reversed(candidates):
            if snapshot_id in known:
                continue
            try:
                # The file that the request before this one has read is not read again.
                if read is None or read[0].id != snapshot_id:
                    read = await metadata_files.fetch_versioned_snapshot(snapshot_id)
            except SnapshotNotFoundError:
                continue  # it is quoted, but its file was collected; the quote is removed
            known[snapshot_id], versions[snapshot_id] = read
            change.check_parent(snapshot_id, known[snapshot_id].parent_id)
            read = None
        to_replace = [each for each in candidates if each in versions and _contradicts(known[each], change)]
        if to_replace:
            for snapshot_id in candidates:
                if snapshot_id in change.parents and snapshot_id in known and snapshot_id not in versions:
                    again = await metadata_files.fetch_snapshot_file(snapshot_id, anew=True)
                    change.check_parent(snapshot_id, again.parent_id)
        for snapshot_id in to_replace:
            snapshot = known[snapshot_id]
            parent_id = change.parents.get(snapshot_id, snapshot.parent_id)
            assert parent_id is not None, "the first snapshot quotes no ancestor"
            if parent_id not in known:
                known[parent_id] = await _fetch_parent(metadata_files, parent_id)
            known[snapshot_id] = plan_quotes(snapshot, known[parent_id])
            try:
                await metadata_files.replace_snapshot(known[snapshot_id], versions[snapshot_id])
            except VersionMismatchError as error:
                raise HistoryChangedError(snapshot_id) from error
            rewritten.add(snapshot_id)
    return rewritten


async def _fetch_parent(metadata_files: MetadataFiles, snapshot_id: ObjectId) -> Snapshot:
    """A snapshot with the history that its file quotes now. The first snapshot quotes none, so it may be cached."""
    if metadata_files.has_snapshot(snapshot_id):
        cached = await metadata_files.fetch_snapshot_file(snapshot_id)
        if cached.parent_id is None and not cached.history:
            return cached
    return await metadata_files.fetch_snapshot_file(snapshot_id, anew=True)


async def _find_candidates(
    metadata_files: MetadataFiles, start: ObjectId, change: HistoryChange
) -> tuple[list[ObjectId], tuple[Snapshot, Version] | None]:
    """Kept ancestors of a snapshot, oldest first, whose parent or quotes may have to change.

    Also the snapshot that the last request has read and its version, if that was the first one.
    """
    read: list[tuple[Snapshot, Version]] = []
    chain = [info.id async for info in walk_history(metadata_files, start, read=read)]
    kept = [snapshot_id for snapshot_id in reversed(chain) if snapshot_id not in change.expired]
    found: list[ObjectId] = []
    distance, quoted_by_all = MAX_HISTORY + 1, False
    for snapshot_id in kept:
        distance = 0 if snapshot_id in change.parents else distance + 1
        if distance > MAX_HISTORY and quoted_by_all:
            # Early writers quoted all of their ancestors.
            read.clear()
            quoted_by_all = _contradicts(await metadata_files.fetch_snapshot_file(snapshot_id), change)
        else:
            quoted_by_all = distance <= MAX_HISTORY
        if quoted_by_all:
            found.append(snapshot_id)
    return found, read[0] if read else None


def _contradicts(snapshot: Snapshot, change: HistoryChange) -> bool:
    """Whether the ancestors in the file of a snapshot differ from those of a history change."""
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
