"""Ancestors of a snapshot from the histories that snapshots quote, with as few files fetched as possible."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Container

from icefloe.archive.files import Archive
from icefloe.errors import FormatError, SnapshotNotFoundError
from icefloe.formats.repository.history import MetadataElsewhere
from icefloe.ids import ObjectId
from icefloe.model.snapshot import Snapshot, SnapshotInfo


async def walk_history(
    archive: Archive, snapshot_id: ObjectId, existing: Container[ObjectId] | None = None
) -> AsyncIterator[SnapshotInfo]:
    """The snapshot, then its ancestors, newest first.

    A snapshot quotes its newest ancestors; the walk goes on in the file of the last one. Where it quotes none, its
    parent is fetched. The first snapshot of some early repositories is quoted under an id that no file has: it has no
    parent, so it is never asked for.

    Every file is read from storage, whatever is remembered: expiry rewrites parents and quotes in place, in another
    process perhaps.

    A writer that was under way while history was expired may quote snapshots that were collected since. The parent
    that a snapshot's own file names is always there, so the walk falls back to those. Who knows which snapshots are
    there (`existing`) is never shown one that is not.
    """
    snapshot = await archive.fetch_snapshot(snapshot_id, anew=True)
    seen = {snapshot.id}
    yield snapshot.info
    while True:
        stale = False
        for entry in snapshot.history:
            if existing is not None and entry.parent_id is not None and entry.id not in existing:
                stale = True
                break
            _check_new(entry.id, seen)
            yield await _complete(archive, entry)
        following = _find_next(snapshot)
        if following is None and not stale:
            return
        if stale or snapshot.history:
            found = None if stale or following is None else await _find_snapshot(archive, following)
            if found is not None:
                snapshot = found
                continue
            anew = await _follow_parents(archive, snapshot, seen)
            if anew is None:
                return
            snapshot = anew
        else:
            assert following is not None
            _check_new(following, seen)
            snapshot = await archive.fetch_snapshot(following, anew=True)
        seen.add(snapshot.id)
        yield snapshot.info


async def _find_snapshot(archive: Archive, snapshot_id: ObjectId) -> Snapshot | None:
    try:
        return await archive.fetch_snapshot(snapshot_id, anew=True)
    except SnapshotNotFoundError:
        return None


async def _follow_parents(archive: Archive, snapshot: Snapshot, seen: set[ObjectId]) -> Snapshot | None:
    """The first ancestor by the parents in own files that was not met yet; None when all were."""
    met = {snapshot.id}
    while snapshot.parent_id is not None:
        _check_new(snapshot.parent_id, met)
        snapshot = await archive.fetch_snapshot(snapshot.parent_id, anew=True)
        if snapshot.id not in seen:
            return snapshot
    return None


def _find_next(snapshot: Snapshot) -> ObjectId | None:
    """The file in which the walk goes on: the last quoted ancestor's, or the parent's."""
    if not snapshot.history:
        return snapshot.parent_id
    last = snapshot.history[-1]
    quotes_all = snapshot.total_ancestors is None or snapshot.total_ancestors <= len(snapshot.history)
    return None if last.parent_id is None and quotes_all else last.id


def _check_new(snapshot_id: ObjectId, seen: set[ObjectId]) -> None:
    if snapshot_id in seen:
        raise FormatError(f"the history comes back to snapshot {snapshot_id}: its files contradict each other")
    seen.add(snapshot_id)


async def _complete(archive: Archive, entry: SnapshotInfo) -> SnapshotInfo:
    """An entry with the metadata that was too large to be quoted."""
    if not isinstance(entry.metadata, MetadataElsewhere):
        return entry
    own = await archive.fetch_snapshot(entry.id)
    return dataclasses.replace(entry, metadata=own.metadata)
