"""Commits as a stream: which batch of a query a commit was, and what commits changed since a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from icefloe.errors import InvalidInputError
from icefloe.ids import ObjectId
from icefloe.model.diff import Diff
from icefloe.model.snapshot import SnapshotInfo
from icefloe.repository import Repository
from icefloe.session.session import Session
from icefloe.tables.grids import Grid, Variable
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
    removed: str = ""
    """Which cells of before are no longer there; empty when all are."""


def changed_blocks(repository: Repository, grid: Grid, before: str | None, session: Session) -> Change:
    """The blocks of a grid with cells that are new or not what they were at a snapshot; all of them when it is None.

    Those are the blocks of chunks that were written, of cells by which arrays grew, of cells whose coordinates changed,
    and all blocks of an array that was made anew.
    """
    total = int(np.prod(grid.blocks, dtype=np.int64))
    everything = BlockList(tuple((0, n) for n in grid.blocks))
    none = (None,) * len(grid.shape)
    if before is None:
        return Change(Selection(none, everything, total), (0,) * len(grid.shape))
    past = repository.readonly_session(snapshot_id=before)
    diff = repository.diff(from_snapshot_id=before, to_snapshot_id=session.snapshot_id)
    old = past.workspace.tree.find_array(grid.variables[0].path)
    shape = old.shape if old is not None and len(old.shape) == len(grid.shape) else (0,) * len(grid.shape)
    moved, removed = _coordinate_changes(grid, diff, past, session)
    removed = removed or _shrunk(grid, shape)
    if any(_is_anew(variable, past, session) for variable in grid.variables):
        return Change(Selection(none, everything, total), shape, removed)
    lowest = shape
    if any(variable.path in diff.updated_arrays for variable in grid.variables):
        lowest = _smallest_shape(repository, grid, before, session, shape)
    touched = [variable for variable in grid.variables if variable.path in diff.chunk_coords]
    numbers = [_blocks(grid, variable.chunks, diff.chunk_coords[variable.path]) for variable in touched]
    for axis, (first, length) in enumerate(zip(lowest, grid.block, strict=True)):
        positions = [moved[axis], np.arange(first, grid.shape[axis])]
        numbers.append(_slabs(grid, axis, np.unique(np.concatenate(positions) // length)))
    picked = np.unique(np.concatenate(numbers)) if numbers else np.zeros(0, dtype=np.int64)
    return Change(Selection(none, BlockList(everything.box, picked), total), shape, removed)


def _is_anew(variable: Variable, past: Session, session: Session) -> bool:
    """Whether an array is not the one that it was."""
    was, now = past.workspace.tree.find_array(variable.path), session.workspace.tree.find_array(variable.path)
    return was is None or now is None or was.id != now.id


def _smallest_shape(
    repository: Repository, grid: Grid, before: str, session: Session, shape: tuple[int, ...]
) -> tuple[int, ...]:
    """How small the arrays were at any commit since: cells beyond were lost on the way, whatever is there now."""
    lowest = np.array(shape)
    for info in repository.ancestry(snapshot_id=session.snapshot_id):
        if info.id == before:
            break
        tree = repository.readonly_session(snapshot_id=info.id).workspace.tree
        for variable in grid.variables:
            node = tree.find_array(variable.path)
            if node is None or len(node.shape) != len(shape):
                return (0,) * len(shape)
            lowest = np.minimum(lowest, node.shape)
    return tuple(int(n) for n in lowest)


def _shrunk(grid: Grid, shape: tuple[int, ...]) -> str:
    for name, was, now in zip(grid.dims, shape, grid.shape, strict=True):
        if now < was:
            return f"{name} has {now} cells and had {was}"
    return ""


def _coordinate_changes(
    grid: Grid, diff: Diff, past: Session, session: Session
) -> tuple[list[npt.NDArray[np.int64]], str]:
    """Per dimension the positions whose coordinate is another one now, and which values are no longer there."""
    moved: list[npt.NDArray[np.int64]] = []
    removed = ""
    folder = grid.variables[0].path.rpartition("/")[0]
    for name in grid.dims:
        path = f"{folder}/{name}"
        found = np.zeros(0, dtype=np.int64)
        if path in diff.chunk_coords or path in {*diff.new_arrays, *diff.updated_arrays, *diff.deleted_arrays}:
            old, new = _values(past, path), _values(session, path)
            if old is not None and new is not None:
                both = min(len(old), len(new))
                found = np.flatnonzero(old[:both] != new[:both]).astype(np.int64)
                gone = old[~np.isin(old, new)]
                if len(gone) and not removed:
                    removed = f"{len(gone)} value(s) of {name} are gone, such as {gone[0]}"
            elif (old is None) != (new is None):
                found = np.arange(len(old if old is not None else new))  # type: ignore[arg-type]
        moved.append(found)
    return moved, removed


def _values(session: Session, path: str) -> npt.NDArray[Any] | None:
    if session.workspace.tree.find_array(path) is None:
        return None
    return np.asarray(zarr.open_array(session.store, path=path.strip("/"), mode="r")[...])


def _slabs(grid: Grid, axis: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Numbers of all blocks with some positions along one axis."""
    inside = indices[indices < grid.blocks[axis]]
    if not len(inside):
        return np.zeros(0, dtype=np.int64)
    ranges = [inside if each == axis else np.arange(n) for each, n in enumerate(grid.blocks)]
    every = np.meshgrid(*ranges, indexing="ij")
    return np.asarray(np.ravel_multi_index(tuple(part.reshape(-1) for part in every), grid.blocks), dtype=np.int64)


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
