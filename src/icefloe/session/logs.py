"""Consecutive transaction logs as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError
from icefloe.model.transaction_log import TransactionLog


def merge_logs(first: TransactionLog, second: TransactionLog) -> TransactionLog:
    """Two consecutive logs as one."""
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
        raise FormatError(f"transaction logs name chunks of one array with {ranks} dimensions: they contradict each other")
    return filled[0] if len(filled) == 1 else np.unique(np.concatenate(filled), axis=0)
