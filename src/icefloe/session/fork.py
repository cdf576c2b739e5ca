"""Forks: the part of a session that a worker writes to, and how it comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError, SessionStateError
from icefloe.ids import NodeId
from icefloe.manifests.columns import take
from icefloe.manifests.keys import find_rows
from icefloe.manifests.merge import same_references
from icefloe.model.chunk_table import ChunkTable, tombstones
from icefloe.model.nodes import ArrayNode, Node
from icefloe.model.snapshot import Snapshot
from icefloe.session.change_set import ChangeSet
from icefloe.session.conflicts import VersionSelection
from icefloe.session.engine import Engine
from icefloe.session.node_numbers import renumber_fork
from icefloe.session.view import View
from icefloe.session.workspace import Workspace


@dataclass
class Fork:
    """The base, what the session had changed when it was forked, and what the worker changes on top."""

    engine: Engine
    base: Snapshot
    inherited: ChangeSet
    changes: ChangeSet

    @classmethod
    def of(cls, view: View) -> Fork:
        """A fork of a session as it is now."""
        return cls(view.engine, view.base, view.changes, view.changes.copy_nodes())

    def __getstate__(self) -> dict[str, Any]:
        return {
            "engine": self.engine, "snapshot_id": self.base.id,
            "inherited": self.inherited, "changes": self.changes,
        }  # fmt: skip

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.engine, self.inherited, self.changes = state["engine"], state["inherited"], state["changes"]
        self.base = run_blocking(self.engine.archive.fetch_snapshot(state["snapshot_id"]))


def merge_fork(work: Workspace, fork: Fork, on_conflict: VersionSelection) -> None:
    """Take over what a fork changed since it left; a chunk of two forks is settled as told."""
    if fork.base.id != work.base.id:
        raise SessionStateError(
            f"the fork stands on snapshot {fork.base.id}, the session on {work.base.id}: fork and merge one session"
        )
    fork = replace(fork, changes=renumber_fork(work.base, work.changes, fork.changes))
    work.node_numbers.forget()
    clashes = _chunk_clashes(work, fork)
    if clashes and on_conflict is VersionSelection.Fail:
        raise _double_write(fork, clashes)
    adopted = _merge_nodes(work, fork)
    for node_id, edits in fork.changes.edits.items():
        table = edits.to_table()
        if on_conflict is VersionSelection.UseOurs and node_id in clashes:
            table = _without(table, clashes[node_id])
        node = _find_array(work, fork, adopted.get(node_id, node_id))
        work.changes.buffer(node).add_table(table)


def _chunk_clashes(work: Workspace, fork: Fork) -> dict[NodeId, npt.NDArray[np.uint32]]:
    """Chunks that both sides wrote since the fork left, with other bytes."""
    clashes = {}
    for node_id, edits in fork.changes.edits.items():
        ours = work.changes.edits.get(node_id)
        if ours is None:
            continue
        theirs, mine = edits.to_table(), ours.to_table()
        both = _differing_rows(mine, theirs)
        known = fork.inherited.edits.get(node_id)
        if known is not None and len(both):
            # What stood here when the fork left, it replaced on purpose.
            changed = _differing_rows(known.to_table(), take(mine, find_rows(mine, both)))
            fresh = find_rows(known.to_table(), both) < 0
            both = both[fresh | (find_rows(tombstones(changed), both) >= 0)]
        if len(both):
            clashes[node_id] = both
    return clashes


def _differing_rows(ours: ChunkTable, theirs: ChunkTable) -> npt.NDArray[np.uint32]:
    """Coordinates that both tables have, with other references."""
    rows = find_rows(ours, theirs.coords)
    common = np.flatnonzero(rows >= 0)
    same = same_references(take(ours, rows[common]), take(theirs, common))
    return theirs.coords[common[~same]]


def _double_write(fork: Fork, clashes: Mapping[NodeId, npt.NDArray[np.uint32]]) -> InvalidInputError:
    paths = {node.id: path for path, node in fork.changes.added.items()} | fork.changes.origin
    chunks = {paths.get(node_id, node_id.hex()): coords.tolist() for node_id, coords in clashes.items()}
    path, listed = next(iter(chunks.items()))
    return InvalidInputError(
        f"{sum(map(len, chunks.values()))} chunk(s) were written by more than one fork, such as {listed[:3]} of "
        f"{path}; give each worker chunks of its own, or say who wins with "
        "merge(..., on_chunk_conflict=VersionSelection.UseOurs | UseTheirs)",
        chunks=chunks,
    )


def _without(table: ChunkTable, coords: npt.NDArray[np.uint32]) -> ChunkTable:
    rows = find_rows(table, coords)
    keep = np.ones(len(table), dtype=bool)
    keep[rows[rows >= 0]] = False
    return take(table, np.flatnonzero(keep))


def _find_array(work: Workspace, fork: Fork, node_id: NodeId) -> ArrayNode:
    candidates = [node for node in work.changes.added.values() if node.id == node_id]
    origin = fork.changes.origin.get(node_id)
    if origin is not None:
        candidates += [node for node in (work.tree.find(origin),) if node is not None]
    for node in candidates:
        if isinstance(node, ArrayNode) and node.id == node_id:
            return node
    raise InvalidInputError("a fork wrote chunks of an array that is no longer in the session")


def _merge_nodes(work: Workspace, fork: Fork) -> dict[NodeId, NodeId]:
    """Take over nodes; returns the ids under which nodes of the fork are known here, where they differ."""
    started = fork.inherited.added
    adopted: dict[NodeId, NodeId] = {}
    for path, node in fork.changes.added.items():
        if started.get(path) == node:
            continue
        here = work.tree.find(path)
        if here is not None and here.id != node.id and started.get(path) != here:
            if here.document != node.document:
                raise InvalidInputError(f"two forks created different nodes at {path}; create it before forking")
            # Two forks created the same node: the chunks of the later one belong to the node that is there.
            adopted[node.id] = here.id
            continue
        work.changes.put_node(work.base, node)
        if node.id in fork.changes.origin:
            work.changes.origin[node.id] = fork.changes.origin[node.id]
    for path in fork.changes.removed - fork.inherited.removed:
        gone: Node | None = work.base.nodes.get(path)
        if gone is not None and path not in work.changes.added:
            work.changes.remove_node(work.base, gone)
    for path, node in started.items():
        if path not in fork.changes.added and work.changes.added.get(path) == node:
            work.changes.remove_node(work.base, node)
    return adopted
