"""Commits as a stream: which batch of a query a commit was, and what commits changed since a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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


def find_batch(repository: Repository, snapshot_id: str, query: str, batch: int) -> ObjectId | None:
    """The commit of a batch or of a later one of the same query up to a snapshot; None when there is none.

    Asked of the snapshot that a session stands on: a commit that lands meanwhile, of a process that was believed dead,
    then meets the session's own as a conflict.
    """
    for info in repository.ancestry(snapshot_id=snapshot_id):
        if info.metadata.get(QUERY) == query:
            return info.id if int(info.metadata.get(BATCH, -1)) >= batch else None
    return None


def commits_since(repository: Repository, branch: str, snapshot_id: str | None) -> list[SnapshotInfo]:
    """The commits of a branch after a snapshot, oldest first; all of them when it is None."""
    found: list[SnapshotInfo] = []
    for info in repository.ancestry(branch=branch):
        if info.id == snapshot_id:
            return found[::-1]
        found.append(info)
    if snapshot_id is not None:
        raise InvalidInputError(
            f"the stream stands at snapshot {snapshot_id}, which is no longer in the history of branch {branch!r}: it "
            "was reset or expired; start anew from another snapshot with a fresh checkpoint"
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
    touched = [variable for variable in grid.variables if variable.path in diff.chunk_coords]
    numbers = [_blocks(grid, variable.chunks, diff.chunk_coords[variable.path]) for variable in touched]
    picked = np.unique(np.concatenate(numbers)) if numbers else np.zeros(0, dtype=np.int64)
    return Change(Selection(none, BlockList(everything.box, picked), total), shape)


def _blocks(grid: Grid, chunks: tuple[int, ...], coords: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Numbers of the blocks that chunks lie in."""
    inside = coords[(coords < np.array(_count(grid.shape, chunks))).all(axis=1)].astype(np.int64)
    size, block = np.array(chunks), np.array(grid.block)
    first, last = inside * size // block, np.minimum(((inside + 1) * size - 1) // block, np.array(grid.blocks) - 1)
    if not len(inside):
        return np.zeros(0, dtype=np.int64)
    spans = (last - first).max(axis=0) + 1
    # Chunks that lie across blocks name each of them; as a rule a chunk lies in one.
    steps = np.stack(np.meshgrid(*(np.arange(n) for n in spans), indexing="ij"), axis=-1).reshape(-1, len(spans))
    every = (first[:, None, :] + steps[None, :, :]).reshape(-1, len(spans))
    every = every[(every <= np.repeat(last, len(steps), axis=0)).all(axis=1)]
    numbers: npt.NDArray[np.int64] = np.ravel_multi_index(tuple(every.T), grid.blocks).astype(np.int64)
    return numbers


def _count(shape: tuple[int, ...], chunks: tuple[int, ...]) -> list[int]:
    return [-(-n // c) for n, c in zip(shape, chunks, strict=True)]
