"""Commits as a stream: which batch of a query a commit was, and what commits changed since a snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.ids import ObjectId
from icefloe.model.snapshot import SnapshotInfo
from icefloe.repository import Repository
from icefloe.session.session import Session
from icefloe.tables.grids import Grid
from icefloe.tables.selection import BlockList, Selection

QUERY, BATCH = "icefloe.stream.query", "icefloe.stream.batch"


def stream_metadata(query: str, batch: int) -> dict[str, Any]:
    """What a commit of a stream says about itself."""
    return {QUERY: query, BATCH: batch}


def find_batch(repository: Repository, branch: str, query: str, batch: int) -> ObjectId | None:
    """The commit of a batch or of a later one of the same query; None when it was not committed yet."""
    for info in repository.ancestry(branch=branch):
        if info.metadata.get(QUERY) == query:
            return info.id if int(info.metadata.get(BATCH, -1)) >= batch else None
    return None


def commits_since(repository: Repository, branch: str, snapshot_id: str | None) -> list[SnapshotInfo]:
    """The commits of a branch after a snapshot, oldest first; all of them when it is None."""
    found = []
    for info in repository.ancestry(branch=branch):
        if info.id == snapshot_id:
            return found[::-1]
        found.append(info)
    if snapshot_id is not None:
        raise InvalidInputError(
            f"the stream stands at snapshot {snapshot_id}, which is no longer in the history of branch {branch!r}: it was "
            "reset or expired; start anew from another snapshot with a fresh checkpoint"
        )
    return found[::-1]


@dataclass(frozen=True, slots=True)
class Change:
    """What lies between two snapshots, for the arrays of one grid."""

    selection: Selection
    first_new: tuple[int, ...]
    """The shape before: cells beyond it are new."""


def changed_blocks(repository: Repository, grid: Grid, before: str | None, session: Session) -> Change:
    """The blocks of a grid in which any variable changed since a snapshot; all of them when it is None."""
    total = int(np.prod(grid.blocks, dtype=np.int64))
    everything = BlockList(tuple((0, n) for n in grid.blocks))
    none = (None,) * len(grid.shape)
    if before is None:
        return Change(Selection(none, everything, total), (0,) * len(grid.shape))
    diff = repository.diff(from_snapshot_id=before, to_snapshot_id=session.snapshot_id)
    old = repository.readonly_session(snapshot_id=before).workspace.tree.find_array(grid.variables[0].path)
    shape = old.shape if old is not None and len(old.shape) == len(grid.shape) else (0,) * len(grid.shape)
    numbers = [_blocks(grid, variable.chunks, diff.chunk_coords) for variable in _touched(grid, diff.chunk_coords)]
    picked = np.unique(np.concatenate(numbers)) if numbers else np.zeros(0, dtype=np.int64)
    return Change(Selection(none, BlockList(everything.box, picked), total), shape)


def _touched(grid: Grid, chunks: Mapping[str, Any]) -> Sequence[Any]:
    return [variable for variable in grid.variables if variable.path in chunks]


def _blocks(grid: Grid, chunks: tuple[int, ...], coords: Mapping[str, Any]) -> Any:
    raise NotImplementedError
