"""Consecutive transaction logs as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from icefloe.archive.files import Archive
from icefloe.errors import FormatError
from icefloe.ids import NodeId
from icefloe.manifests.keys import find_rows
from icefloe.model.nodes import ArrayNode
from icefloe.model.snapshot import Snapshot
from icefloe.model.transaction_log import TransactionLog
from icefloe.session.lookup import ChunkLookup


async def join_logs(
    logs: Sequence[TransactionLog],
    before: Snapshot,
    after: Snapshot,
    archive: Archive,
    wanted: Container[NodeId] | None = None,
) -> TransactionLog:
    """The logs of all commits from one snapshot to another, oldest first, as one log.

    An array that one commit makes smaller and a later one larger again loses chunks of which neither log tells: the
    first only says that the array has another shape. So the references of arrays that were changed more than once
    are compared. `wanted` restricts that to some arrays.
    """
    joined = reduce(merge_logs, logs, TransactionLog())
    changed = _find_changed_again(logs)
    if wanted is not None:
        changed = {node_id for node_id in changed if node_id in wanted}
    if not changed:
        return joined
    was = {n.id: n for n in before.nodes.values() if n.id in changed and isinstance(n, ArrayNode)}
    now = {n.id: n for n in after.nodes.values() if n.id in was and isinstance(n, ArrayNode)}
    lookup, chunks = ChunkLookup(archive), dict(joined.updated_chunks)
    for node_id, node in now.items():
        lost = await _find_lost(was[node_id], node, lookup)
        if len(lost):
            known = chunks.get(node_id)
            chunks[node_id] = lost if known is None else join_coordinates([known, lost])
    return replace(joined, updated_chunks=chunks)


def is_cut_off(log: TransactionLog, parent: Snapshot, snapshot: Snapshot) -> bool:
    """Whether the log of a snapshot on the first one does not tell of all its nodes.

    The official package expires history by putting a kept snapshot on the first one, and leaves its log as it was: the
    log then only tells of the last of the commits in between.
    """
    if parent.parent_id is not None:
        return False
    known = {node.id for node in parent.nodes.values()} | log.new_arrays | log.new_groups
    return any(node.id not in known for node in snapshot.nodes.values())


def merge_logs(first: TransactionLog, second: TransactionLog) -> TransactionLog:
    """Two consecutive logs as one, as far as they tell; `join_logs` also looks for chunks that they do not mention."""
    born = first.new_arrays | first.new_groups
    gone = second.deleted_arrays | second.deleted_groups
    # A node that was deleted and came back under its id, as by a revert, is neither new nor deleted.
    restored_groups = (first.deleted_groups & second.new_groups) - first.new_groups
    restored_arrays = (first.deleted_arrays & second.new_arrays) - first.new_arrays
    chunks = dict(first.updated_chunks)
    for node_id, coords in second.updated_chunks.items():
        before = chunks.get(node_id)
        chunks[node_id] = coords if before is None else join_coordinates([before, coords])
    origins = {move.node_id: move.from_path for move in first.moves}
    moves = {move.node_id: move for move in first.moves}
    for move in second.moves:
        moves[move.node_id] = replace(move, from_path=origins.get(move.node_id, move.from_path))
    new_groups = (first.new_groups | second.new_groups) - gone - restored_groups
    new_arrays = (first.new_arrays | second.new_arrays) - gone - restored_arrays
    return TransactionLog(
        new_groups=new_groups,
        new_arrays=new_arrays,
        deleted_groups=(first.deleted_groups - restored_groups) | (second.deleted_groups - born),
        deleted_arrays=(first.deleted_arrays - restored_arrays) | (second.deleted_arrays - born),
        updated_groups=(first.updated_groups | second.updated_groups | restored_groups) - gone - new_groups,
        updated_arrays=(first.updated_arrays | second.updated_arrays | restored_arrays) - gone - new_arrays,
        updated_chunks={node_id: coords for node_id, coords in chunks.items() if node_id not in gone},
        updated_boxes={
            node_id: first.updated_boxes.get(node_id, ()) + second.updated_boxes.get(node_id, ())
            for node_id in first.updated_boxes.keys() | second.updated_boxes.keys()
            if node_id not in gone
        },
        moves=tuple(m for m in moves.values() if m.from_path != m.to_path and m.node_id not in born | gone),
    )


def join_coordinates(parts: Sequence[npt.NDArray[np.uint32]]) -> npt.NDArray[np.uint32]:
    """The chunks of one array that several logs name, each once."""
    filled = [part for part in parts if len(part)] or list(parts[:1])
    if len({part.shape[1] for part in filled}) > 1:
        ranks = ", ".join(str(part.shape[1]) for part in filled)
        raise FormatError(f"transaction logs name chunks of one array with {ranks} dimensions: they contradict")
    return filled[0] if len(filled) == 1 else np.unique(np.concatenate(filled), axis=0)


def _find_changed_again(logs: Iterable[TransactionLog]) -> set[NodeId]:
    """Arrays whose document changed in more than one commit, or that were deleted and came back."""
    changes: Counter[NodeId] = Counter()
    for log in logs:
        changes.update(log.updated_arrays | log.new_arrays | log.deleted_arrays)
    return {node_id for node_id, count in changes.items() if count > 1}


async def _find_lost(was: ArrayNode, now: ArrayNode, lookup: ChunkLookup) -> npt.NDArray[np.uint32]:
    """Chunks that an array had, that it still has room for, and that it does not have any more."""
    none = np.empty((0, len(now.grid)), dtype=np.uint32)
    if len(was.grid) != len(now.grid):
        return none
    # Manifests that both have hold the same references.
    common = set(was.manifests) & set(now.manifests)
    older = replace(was, manifests=tuple(ref for ref in was.manifests if ref not in common))
    box = tuple((0, min(a, b)) for a, b in zip(was.grid, now.grid, strict=True))
    if not older.manifests:
        return none
    held, kept = await lookup.table(older, box), await lookup.table(now, box)
    lost: npt.NDArray[np.uint32] = held.coords[find_rows(kept, held.coords) < 0]
    return lost
