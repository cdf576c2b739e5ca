"""Ancestors of a snapshot from the histories that snapshots quote, with as few files fetched as possible."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator

from icefloe.archive.files import Archive
from icefloe.errors import FormatError
from icefloe.formats.repository.history import MetadataElsewhere
from icefloe.ids import ObjectId
from icefloe.model.snapshot import Snapshot, SnapshotInfo


async def walk_history(archive: Archive, snapshot_id: ObjectId) -> AsyncIterator[SnapshotInfo]:
    """The snapshot, then its ancestors, newest first.

    A snapshot quotes its newest ancestors; the walk goes on in the file of the last one. Where it quotes none, its
    parent is fetched. The first snapshot of some early repositories is quoted under an id that no file has: it has no
    parent, so it is never asked for.
    """
    snapshot = await archive.fetch_snapshot(snapshot_id)
    seen = {snapshot.id}
    yield snapshot.info
    while True:
        for entry in snapshot.history:
            _check_new(entry.id, seen)
            yield await _complete(archive, entry)
        following = _find_next(snapshot)
        if following is None:
            return
        if snapshot.history:
            snapshot = await archive.fetch_snapshot(following)
            continue
        _check_new(following, seen)
        snapshot = await archive.fetch_snapshot(following)
        yield snapshot.info


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
