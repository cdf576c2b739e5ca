"""Which chunks a log tells of although nobody wrote them since: both snapshots refer to the very same bytes.

While history is expired, the log of a kept snapshot tells of the changes of its ancestors, too, so that it never tells
too little. A writer that builds on one of these ancestors would meet its own changes as those of others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from icefloe.archive.files import Archive
from icefloe.ids import NodeId
from icefloe.manifests.keys import find_rows
from icefloe.model.chunk_table import ChunkKind
from icefloe.model.nodes import ArrayNode
from icefloe.model.snapshot import Snapshot
from icefloe.model.transaction_log import TransactionLog
from icefloe.session.change_set import ChangeSet, summarise
from icefloe.session.lookup import ChunkLookup
from icefloe.session.written import Written

Coords = npt.NDArray[np.uint32]


async def without_untouched(
    log: TransactionLog, base: Snapshot, changes: ChangeSet, theirs: Snapshot, archive: Archive
) -> TransactionLog:
    """The log without chunks that we changed and that are where they were; nothing is read unless both tell of one."""
    suspects = _find_common(log, base, changes)
    if not suspects:
        return log
    before = {node.id: node for node in base.nodes.values() if node.id in suspects}
    after = {node.id: node for node in theirs.nodes.values() if node.id in suspects}
    lookup, chunks = ChunkLookup(archive), dict(log.updated_chunks)
    for node_id, coords in suspects.items():
        was, now = before.get(node_id), after.get(node_id)
        if isinstance(was, ArrayNode) and isinstance(now, ArrayNode):
            untouched = await _find_untouched(was, now, coords, lookup)
            left = chunks.pop(node_id)
            left = left[~np.isin(_rows(left), _rows(untouched))]
            if len(left):
                chunks[node_id] = left
    return replace(log, updated_chunks=chunks)


def _find_common(log: TransactionLog, base: Snapshot, changes: ChangeSet) -> dict[NodeId, Coords]:
    """Chunks of which both the log and our changes tell, by array."""
    if not any(node_id in log.updated_chunks for node_id in changes.edits):
        return {}
    found = {}
    for node_id, ours in summarise(base, changes).chunks.items():
        told = log.updated_chunks.get(node_id)
        if told is not None and len(told) and told.shape[1] == ours.shape[1]:
            both = Written(ours.shape[1], ours).common(Written(ours.shape[1], told))
            if len(both):
                found[node_id] = both
    return found


def _rows(coords: Coords) -> npt.NDArray[np.void]:
    """Each chunk as one value; the one chunk of an array without dimensions is equal to itself."""
    columns = np.ascontiguousarray(coords if coords.shape[1] else np.zeros((len(coords), 1), dtype=np.uint32))
    return columns.view(f"V{columns.itemsize * columns.shape[1]}").ravel()


async def _find_untouched(was: ArrayNode, now: ArrayNode, coords: Coords, lookup: ChunkLookup) -> Coords:
    held, fresh = await lookup.table(was), await lookup.table(now)
    before, after = find_rows(held, coords), find_rows(fresh, coords)
    there = (before >= 0) & (after >= 0)
    coords, before, after = coords[there], before[there], after[there]
    alike = (held.kind[before] == fresh.kind[after]) & (held.length[before] == fresh.length[after])
    kind, same = held.kind[before], np.zeros(len(coords), dtype=bool)
    if held.object_id is not None and fresh.object_id is not None:
        # Ids are random and never used again: who writes a chunk gives it another one, whatever it holds.
        same |= (kind == ChunkKind.NATIVE) & (held.object_id[before] == fresh.object_id[after]).all(axis=1)
        same &= held.offset[before] == fresh.offset[after]
    for place in np.flatnonzero(alike & (kind == ChunkKind.INLINE)).tolist():
        same[place] = held.row(int(before[place])).data == fresh.row(int(after[place])).data
    untouched: Coords = coords[same & alike]
    return untouched
