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
from icefloe.model.nodes import ArrayNode
from icefloe.model.snapshot import Snapshot
from icefloe.model.transaction_log import TransactionLog
from icefloe.session.compare import compare_snapshots
from icefloe.session.logs import merge_logs
from icefloe.session.written import Written


async def check_log(reading: Reading, snapshot_id: ObjectId, parent_id: ObjectId) -> Damage | None:
    """The damage of a snapshot's log, if any; where its files are damaged themselves, nothing is said of the log."""
    key = reading.format.transaction_log_key(snapshot_id)
    try:
        pruned = await reading.ledger.fetch_pruned_logs(snapshot_id)
        logs = [await reading.archive.fetch_transaction_log(each) for each in (*pruned, snapshot_id)]
        told = reduce(merge_logs, logs)
    except ObjectNotFoundError as error:
        return _damage(DamageKind.MISSING, key, f"no log was written ({error})", snapshot_id)
    except FormatError as error:
        return _damage(DamageKind.UNREADABLE, key, str(error), snapshot_id)
    try:
        true = await true_log(reading, snapshot_id, parent_id)
        snapshot = await reading.archive.fetch_snapshot(snapshot_id)
        if REWRITTEN in snapshot.metadata:
            true = replace(true, updated_chunks={})
    except (NotFoundError, FormatError):
        return None
    missing = find_untold(told, true, frozenset(node.id for node in snapshot.nodes.values()))
    return None if missing is None else _damage(DamageKind.LOG_DIFFERS, key, missing, snapshot_id)


async def true_log(reading: Reading, snapshot_id: ObjectId, parent_id: ObjectId) -> TransactionLog:
    """What a snapshot changed against its parent, by comparing both."""
    archive = reading.archive
    old, new = await archive.fetch_snapshot(parent_id), await archive.fetch_snapshot(snapshot_id)
    log = await compare_snapshots(old, new, archive)
    return replace(log, updated_chunks=_in_grid(log.updated_chunks, new))


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
