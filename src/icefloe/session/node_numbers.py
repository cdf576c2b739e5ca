"""Ids of new nodes where the generation stores small numbers instead of random bytes.

Numbers that count up would be the same in every session that starts from one snapshot, and would come back after the
highest node was deleted. They are drawn at random, small while the hierarchy is small (they then fit the narrow columns
of early files), and a new node gives its number up where another node has it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import replace

from icefloe.environment import random_bytes
from icefloe.errors import RebaseFailedError
from icefloe.ids import NODE_ID_BYTES, NodeId
from icefloe.model.snapshot import Snapshot
from icefloe.session.change_set import ChangeSet

_SMALL, _LARGE = 2**16 - 1, 2**32 - 1
_SMALL_HIERARCHY = 2**10


class NodeNumbers:
    """Draws numbers that no node of a session has."""

    def __init__(self) -> None:
        self._base: Snapshot | None = None
        self._used: set[NodeId] = set()

    def draw(self, base: Snapshot, changes: ChangeSet) -> NodeId:
        """An id for a new node."""
        if base is not self._base:
            self._base = base
            self._used = {node.id for node in base.nodes.values()}
            self._used.update(node.id for node in changes.added.values())
        drawn = draw_node_id(self._used)
        self._used.add(drawn)
        return drawn

    def forget(self) -> None:
        """Look at the hierarchy again, after nodes came from elsewhere."""
        self._base = None


def draw_node_id(used: Collection[NodeId]) -> NodeId:
    """A random number that is not in use, as a node id."""
    largest = _SMALL if len(used) < _SMALL_HIERARCHY else _LARGE
    while True:
        drawn = (1 + int.from_bytes(random_bytes(16), "big") % largest).to_bytes(NODE_ID_BYTES, "big")
        if drawn not in used:
            return drawn


def give_way(base: Snapshot, changes: ChangeSet, theirs: Snapshot, fresh: Set[NodeId]) -> ChangeSet:
    """The changes with other ids for new nodes whose id a node of `fresh`, new in `theirs`, took in between."""
    clashing = {n.id: path for path, n in changes.added.items() if n.id in fresh and n.id not in changes.origin}
    if not clashing:
        return changes
    if not clashing.keys().isdisjoint(changes.parts):
        # The number stands in manifests that workers wrote; only writing them again could change it.
        raise RebaseFailedError(
            f"a node of snapshot {theirs.id} took the number of an array that a distributed write of this session "
            "filled; open a new session and write again",
            snapshot=theirs.id,
            conflicts=[],
        )
    return _renumber(changes, clashing, {node.id for snapshot in (base, theirs) for node in snapshot.nodes.values()})


def renumber_fork(base: Snapshot, ours: ChangeSet, forked: ChangeSet) -> ChangeSet:
    """What a fork changed, with other ids for new nodes whose id another new node of the session has."""
    paths = {node.id: path for path, node in ours.added.items()}
    clashing = {
        node.id: path
        for path, node in forked.added.items()
        if node.id not in forked.origin and paths.get(node.id, path) != path
    }
    return _renumber(forked, clashing, {*paths, *(node.id for node in base.nodes.values())}) if clashing else forked


def _renumber(changes: ChangeSet, clashing: Mapping[NodeId, str], others: Set[NodeId]) -> ChangeSet:
    used = {*others, *(node.id for node in changes.added.values())}
    result = replace(changes, added=dict(changes.added), edits=dict(changes.edits), cleared=dict(changes.cleared))
    for old, path in clashing.items():
        new = draw_node_id(used)
        used.add(new)
        result.added[path] = replace(result.added[path], id=new)
        result.cleared.pop(old, None)  # nobody else knows a new array
        if old in result.edits:
            result.edits[new] = result.edits.pop(old)
    return result
