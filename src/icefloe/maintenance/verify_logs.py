"""Whether a transaction log tells what its snapshot changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError, NotFoundError, ObjectNotFoundError
from icefloe.ids import NodeId, ObjectId
from icefloe.maintenance.compact import REWRITTEN
from icefloe.maintenance.reading import Reading
from icefloe.maintenance.verify_report import Damage, DamageKind
from icefloe.manifests.keys import find_rows
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.nodes import ArrayNode
from icefloe.model.snapshot import Snapshot
from icefloe.model.transaction_log import TransactionLog
from icefloe.session.compare import compare_snapshots
from icefloe.session.logs import is_cut_off, join_logs, merge_logs
from icefloe.session.lookup import ChunkLookup
from icefloe.session.written import Written

_CHUNKS_READ = 64
"""Chunks per array that are compared byte by byte where a log does not tell of them."""


async def check_log(reading: Reading, snapshot_id: ObjectId, parent_id: ObjectId) -> Damage | None:
    """The damage of a snapshot's log, if any; where its files are damaged themselves, nothing is said of the log."""
    key = reading.format.transaction_log_key(snapshot_id)
    try:
        pruned = await reading.ledger.fetch_pruned_logs(snapshot_id)
        logs = [await reading.archive.fetch_transaction_log(each) for each in (*pruned, snapshot_id)]
        told = reduce(merge_logs, logs)
        if len(logs) > 1:
            told = await _join(reading, logs, snapshot_id, parent_id) or told
    except ObjectNotFoundError as error:
        return _damage(DamageKind.MISSING, key, f"no log was written ({error})", snapshot_id)
    except FormatError as error:
        return _damage(DamageKind.UNREADABLE, key, str(error), snapshot_id)
    try:
        true = await true_log(reading, snapshot_id, parent_id)
        snapshot = await reading.archive.fetch_snapshot(snapshot_id)
        parent = await reading.archive.fetch_snapshot(parent_id)
        if reading.ledger.parents_change_unseen and is_cut_off(told, parent, snapshot):
            return None  # expired by the official package: readers compare the snapshots
        if REWRITTEN in snapshot.metadata:
            true = replace(true, updated_chunks={})
    except (NotFoundError, FormatError):
        return None
    true = await _without_moved(reading, told, true, parent_id, snapshot)
    missing = find_untold(told, true, frozenset(node.id for node in snapshot.nodes.values()))
    return None if missing is None else _damage(DamageKind.LOG_DIFFERS, key, missing, snapshot_id)


async def _join(
    reading: Reading, logs: list[TransactionLog], snapshot_id: ObjectId, parent_id: ObjectId
) -> TransactionLog | None:
    """The logs as readers join them; None where the files of a snapshot are damaged themselves."""
    archive = reading.archive
    try:
        before, after = await archive.fetch_snapshot(parent_id), await archive.fetch_snapshot(snapshot_id)
        return await join_logs(logs, before, after, archive)
    except (NotFoundError, FormatError):
        return None


async def true_log(reading: Reading, snapshot_id: ObjectId, parent_id: ObjectId) -> TransactionLog:
    """What a snapshot changed against its parent, by comparing both."""
    archive = reading.archive
    old, new = await archive.fetch_snapshot(parent_id), await archive.fetch_snapshot(snapshot_id)
    log = await compare_snapshots(old, new, archive)
    return replace(log, updated_chunks=_in_grid(log.updated_chunks, new))


async def _without_moved(
    reading: Reading, told: TransactionLog, true: TransactionLog, parent_id: ObjectId, snapshot: Snapshot
) -> TransactionLog:
    """Changes without chunks that are only somewhere else: the commit of a compaction between both may have expired."""
    untold = {key: _untold_chunks(told, key, coords) for key, coords in true.updated_chunks.items()}
    untold = {key: coords for key, coords in untold.items() if len(coords)}
    if not untold:
        return true
    before = {node.id: node for node in (await reading.archive.fetch_snapshot(parent_id)).nodes.values()}
    after = {node.id: node for node in snapshot.nodes.values()}
    chunks = dict(true.updated_chunks)
    for node_id, coords in untold.items():
        old, new = before.get(node_id), after.get(node_id)
        if (
            isinstance(old, ArrayNode)
            and isinstance(new, ArrayNode)
            and await _hold_the_same(reading, old, new, coords)
        ):
            del chunks[node_id]
    return replace(true, updated_chunks=chunks)


def _untold_chunks(told: TransactionLog, node_id: NodeId, coords: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    covered = Written(coords.shape[1], told.updated_chunks.get(node_id), told.updated_boxes.get(node_id, ()))
    both = Written(coords.shape[1], coords).common(covered)
    return coords[~np.isin(_rows(coords), _rows(both))]


def _rows(coords: npt.NDArray[np.uint32]) -> npt.NDArray[np.bytes_]:
    flat = np.ascontiguousarray(coords, dtype=">u4")
    # Rows have one width, so that those which end in zero bytes still differ where the coordinates do.
    return flat.view(f"S{4 * coords.shape[1]}").ravel() if coords.shape[1] else np.zeros(len(coords), dtype="S1")


async def _hold_the_same(reading: Reading, old: ArrayNode, new: ArrayNode, coords: npt.NDArray[np.uint32]) -> bool:
    """Whether chunks of two snapshots have the same lengths and, for some of them, the same bytes."""
    lookup = ChunkLookup(reading.archive)
    held, fresh = await lookup.table(old), await lookup.table(new)
    before, after = find_rows(held, coords), find_rows(fresh, coords)
    if (before < 0).any() or (after < 0).any() or (held.length[before] != fresh.length[after]).any():
        return False
    for place in np.unique(np.linspace(0, len(coords) - 1, _CHUNKS_READ).astype(np.int64)).tolist():
        pair = [await _read(reading, held, int(before[place])), await _read(reading, fresh, int(after[place]))]
        if None not in pair and pair[0] != pair[1]:
            return False
    return True


async def _read(reading: Reading, table: ChunkTable, row: int) -> bytes | None:
    """The bytes of a chunk; None where they are somebody else's, or are not there, which is damage of its own."""
    start, end = int(table.offset[row]), int(table.offset[row] + table.length[row])
    if table.kind[row] == ChunkKind.INLINE:
        return bytes(table.inline[start:end])
    if table.kind[row] != ChunkKind.NATIVE or table.object_id is None:
        return None
    try:
        return await reading.storage.get_range(reading.format.chunk_key(table.object_id[row].tobytes()), start, end)
    except ObjectNotFoundError:
        return None


def _in_grid(
    chunks: Mapping[NodeId, npt.NDArray[np.uint32]], snapshot: Snapshot
) -> dict[NodeId, npt.NDArray[np.uint32]]:
    """Without the chunks that an array lost by becoming smaller: its document tells of them."""
    grids = {node.id: node.grid for node in snapshot.nodes.values() if isinstance(node, ArrayNode)}
    inside = {
        node_id: coords[(coords < np.array(grids[node_id], dtype=np.int64)).all(axis=1)]
        for node_id, coords in chunks.items()
    }
    return {node_id: coords for node_id, coords in inside.items() if len(coords)}


def find_untold(told: TransactionLog, true: TransactionLog, present: frozenset[NodeId]) -> str | None:
    """Something that changed and that the log does not tell, or that it tells and cannot be.

    A log may tell more: chunks written again, or the changes of ancestors that an expiry was about to take out.
    """
    for name in ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays"):
        expected, found = getattr(true, name), getattr(told, name)
        if expected - found:
            return f"{len(expected - found)} {name.replace('_', ' ')} are not in the log"
        gone = present | told.deleted_arrays | told.deleted_groups
        wrong = found - expected - gone if name.startswith("new") else found & present
        if wrong:
            return f"the log tells of {len(wrong)} {name.replace('_', ' ')} that there are not"
    updated = told.updated_arrays | told.updated_groups
    changed = (true.updated_arrays | true.updated_groups) - updated
    if changed:
        return f"{len(changed)} changed documents are not in the log"
    for node_id, coords in true.updated_chunks.items():
        known = told.updated_chunks.get(node_id)
        covered = Written(coords.shape[1], known, told.updated_boxes.get(node_id, ()))
        both = Written(coords.shape[1], coords).common(covered)
        if len(np.unique(both, axis=0)) < len(coords):
            return f"{len(coords) - len(both)} changed chunks are not in the log"
    if {move.node_id for move in true.moves} - {move.node_id for move in told.moves}:
        return "moved nodes are not in the log"
    return None


def _damage(kind: DamageKind, key: str, detail: str, snapshot_id: ObjectId) -> Damage:
    return Damage(kind, "transaction log", key, detail, snapshot_id, repairable=True)
