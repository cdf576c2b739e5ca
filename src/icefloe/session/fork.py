"""Forks: the part of a session that a worker writes to, and how it comes back."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError, SessionStateError
from icefloe.ids import NodeId
from icefloe.manifests.columns import take
from icefloe.manifests.keys import find_rows
from icefloe.model.chunk_table import ChunkTable
from icefloe.model.nodes import Node
from icefloe.model.snapshot import Snapshot
from icefloe.session.change_set import ChangeSet
from icefloe.session.conflicts import VersionSelection
from icefloe.session.engine import Engine
from icefloe.session.workspace import Workspace


@dataclass
class Fork:
    """The base, what the session had changed when it was forked, and what the worker changes on top."""

    engine: Engine
    base: Snapshot
    inherited: ChangeSet
    changes: ChangeSet
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def of(cls, work: Workspace) -> Fork:
        """A fork of a session whose chunks are all stored."""
        before = work.changes
        inherited = ChangeSet(dict(before.added), set(before.removed), dict(before.origin), dict(before.edits))
        changes = ChangeSet(dict(before.added), set(before.removed), dict(before.origin), {})
        return cls(work.engine, work.base, inherited, changes)

    def attach(self, work: Workspace) -> None:
        """Let a workspace write into this fork."""
        work.rebase_to(self.base, self.changes)
        work.inherited_edits = self.inherited.edits

    def __getstate__(self) -> dict[str, Any]:
        return {
            "engine": self.engine, "snapshot_id": self.base.id,
            "inherited": self.inherited, "changes": self.changes, "id": self.id,
        }  # fmt: skip

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.engine, self.inherited, self.changes = state["engine"], state["inherited"], state["changes"]
        self.id = state["id"]
        self.base = run_blocking(self.engine.archive.fetch_snapshot(state["snapshot_id"]))


def merge_fork(work: Workspace, fork: Fork, on_conflict: VersionSelection) -> None:
    """Take over what a fork changed since it left; a chunk of two forks is settled as told."""
    if fork.base.id != work.base.id:
        raise SessionStateError(
            f"the fork stands on snapshot {fork.base.id}, the session on {work.base.id}: fork and merge one session"
        )
    if fork.id in work.merged_forks:
        raise SessionStateError("this fork is merged already")
    clashes = _chunk_clashes(work, fork)
    if clashes and on_conflict is VersionSelection.Fail:
        path, coords = next(iter(clashes.items()))
        raise InvalidInputError(
            f"{sum(map(len, clashes.values()))} chunk(s) were written by more than one fork, such as "
            f"{coords[:3].tolist()} of {path}; give each worker chunks of its own, or say who wins with "
            "merge(..., on_chunk_conflict=VersionSelection.UseOurs | UseTheirs)",
            chunks={path: coords.tolist() for path, coords in clashes.items()},
        )
    _merge_nodes(work, fork)
    for node_id, edits in fork.changes.edits.items():
        table = edits.to_table()
        _merge_table(work, fork, node_id, table, keep_ours=on_conflict is VersionSelection.UseOurs)
    work.merged_forks[fork.id] = {node_id: edits.to_table().coords for node_id, edits in fork.changes.edits.items()}


def _chunk_clashes(work: Workspace, fork: Fork) -> dict[str, Any]:
    clashes: dict[str, Any] = {}
    paths = {node.id: path for path, node in fork.changes.added.items()} | fork.changes.origin
    for node_id, edits in fork.changes.edits.items():
        table = edits.to_table()
        for merged in work.merged_forks.values():
            theirs = merged.get(node_id)
            if theirs is not None:
                rows = find_rows(table, theirs)
                common = theirs[rows >= 0]
                if len(common):
                    clashes[paths.get(node_id, node_id.hex())] = common
    return clashes


def _merge_nodes(work: Workspace, fork: Fork) -> None:
    started = fork.inherited.added
    for path, node in fork.changes.added.items():
        if started.get(path) == node:
            continue
        here = work.tree.find(path)
        if here is not None and here.id != node.id and started.get(path) is not here:
            if here.document == node.document:
                _adopt(fork, node.id, here)
                continue
            raise InvalidInputError(f"two forks created different nodes at {path}; create it before forking")
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


def _adopt(fork: Fork, node_id: NodeId, here: Node) -> None:
    """Two forks created the same node: the chunks of the later one belong to the node that is there."""
    edits = fork.changes.edits.pop(node_id, None)
    if edits is not None:
        fork.changes.edits[here.id] = edits


def _merge_table(work: Workspace, fork: Fork, node_id: NodeId, table: ChunkTable, *, keep_ours: bool) -> None:
    if keep_ours:
        for merged in work.merged_forks.values():
            theirs = merged.get(node_id)
            if theirs is not None:
                rows = find_rows(table, theirs)
                keep = np.ones(len(table), dtype=bool)
                keep[rows[rows >= 0]] = False
                table = take(table, np.flatnonzero(keep))
    node = next((n for n in work.changes.added.values() if n.id == node_id), None)
    if node is None:
        origin = fork.changes.origin.get(node_id)
        node = work.tree.find(origin) if origin is not None else None
    if node is None or node.id != node_id:
        raise InvalidInputError("a fork wrote chunks of an array that is no longer in the session")
    work.changes.buffer(node).add_table(table)  # type: ignore[arg-type]
