"""Another parent for a snapshot, also where its descendants quote the old one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from icefloe.archive.files import Archive
from icefloe.formats.repository.history import MAX_HISTORY
from icefloe.ids import ObjectId
from icefloe.ledger.history_walk import walk_history
from icefloe.model.snapshot import Snapshot


async def reparent(archive: Archive, tips: Iterable[ObjectId], snapshot_id: ObjectId, parent_id: ObjectId) -> None:
    """Rewrite a snapshot, and descendants below the tips that quote its ancestors, in place.

    The snapshot itself comes first: as long as a descendant still quotes the old parent, history as it is walked shows
    that parent, and whoever expires it again does all of this again.
    """
    parent = await archive.fetch_snapshot(parent_id)
    quoting: dict[ObjectId, Snapshot] = {}
    for tip in tips:
        for descendant in await _find_quoting(archive, tip, snapshot_id):
            quoting[descendant.id] = descendant
    for descendant in [await archive.fetch_snapshot(snapshot_id), *quoting.values()]:
        archive.forget_snapshot(descendant.id)
        await archive.flush_snapshot(plan_reparented(descendant, snapshot_id, parent))
        archive.forget_snapshot(descendant.id)


async def _find_quoting(archive: Archive, tip: ObjectId, snapshot_id: ObjectId) -> list[Snapshot]:
    """Descendants of a snapshot, up to a tip, whose files quote it; none when it is no ancestor of the tip."""
    newer: list[ObjectId] = []
    async for info in walk_history(archive, tip):
        if info.id == snapshot_id:
            break
        newer.append(info.id)
    else:
        return []
    quoting: list[Snapshot] = []
    for distance, descendant_id in enumerate(reversed(newer)):
        descendant = await archive.fetch_snapshot(descendant_id)
        if any(entry.id == snapshot_id for entry in descendant.history):
            quoting.append(descendant)
        elif distance > MAX_HISTORY:
            break
    return quoting


def plan_reparented(snapshot: Snapshot, child_id: ObjectId, parent: Snapshot) -> Snapshot:
    """The snapshot with a history in which `parent` comes right after `child_id`."""
    kept = () if snapshot.id == child_id else snapshot.history
    ids = [entry.id for entry in kept]
    kept = kept[: ids.index(child_id) + 1] if kept else ()
    if kept:
        kept = (*kept[:-1], dataclasses.replace(kept[-1], parent_id=parent.id))
    above = (dataclasses.replace(parent.info, manifests=()), *parent.history)
    total = len(kept) + 1 + (parent.total_ancestors or len(parent.history))
    return dataclasses.replace(
        snapshot,
        parent_id=parent.id if snapshot.id == child_id else snapshot.parent_id,
        history=(*kept, *above)[: max(MAX_HISTORY, len(kept))],
        total_ancestors=total,
    )
