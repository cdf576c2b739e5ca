"""Consecutive transaction logs as one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from icefloe.model.transaction_log import TransactionLog


def merge_logs(first: TransactionLog, second: TransactionLog) -> TransactionLog:
    """Two consecutive logs as one."""
    born = first.new_arrays | first.new_groups
    gone = second.deleted_arrays | second.deleted_groups
    chunks = dict(first.updated_chunks)
    for node_id, coords in second.updated_chunks.items():
        before = chunks.get(node_id)
        chunks[node_id] = coords if before is None else np.unique(np.concatenate([before, coords]), axis=0)
    origins = {move.node_id: move.from_path for move in first.moves}
    moves = {move.node_id: move for move in first.moves}
    for move in second.moves:
        moves[move.node_id] = replace(move, from_path=origins.get(move.node_id, move.from_path))
    return TransactionLog(
        new_groups=(first.new_groups | second.new_groups) - gone,
        new_arrays=(first.new_arrays | second.new_arrays) - gone,
        deleted_groups=first.deleted_groups | (second.deleted_groups - born),
        deleted_arrays=first.deleted_arrays | (second.deleted_arrays - born),
        updated_groups=(first.updated_groups | second.updated_groups) - gone,
        updated_arrays=(first.updated_arrays | second.updated_arrays) - gone,
        updated_chunks={node_id: coords for node_id, coords in chunks.items() if node_id not in gone},
        updated_boxes={
            node_id: first.updated_boxes.get(node_id, ()) + second.updated_boxes.get(node_id, ())
            for node_id in first.updated_boxes.keys() | second.updated_boxes.keys()
            if node_id not in gone
        },
        moves=tuple(m for m in moves.values() if m.from_path != m.to_path and m.node_id not in born | gone),
    )
