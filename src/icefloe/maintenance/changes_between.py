"""The change from one snapshot to another, as a change set that can be carried to a third."""

from __future__ import annotations

from dataclasses import replace

from icefloe.ids import NodeId
from icefloe.manifests.columns import concat, take
from icefloe.manifests.edits import EditBuffer
from icefloe.manifests.keys import find_rows
from icefloe.manifests.merge import diff_tables
from icefloe.model.chunk_table import ChunkTable, empty_table, tombstones
from icefloe.model.nodes import ArrayNode, Node
from icefloe.model.snapshot import Snapshot
from icefloe.session.change_set import ChangeSet
from icefloe.session.engine import Engine
from icefloe.session.lookup import ChunkLookup


async def changes_between(engine: Engine, old: Snapshot, new: Snapshot) -> ChangeSet:
    """What must be done to `old` so that it holds what `new` holds; no chunk is read."""
    changes = ChangeSet()
    before = {node.id: node for node in old.nodes.values()}
    after = {node.id: node for node in new.nodes.values()}
    _change_nodes(changes, old, before, after)
    lookup = ChunkLookup(engine.archive)
    for node_id, node in after.items():
        if isinstance(node, ArrayNode):
            was = before.get(node_id)
            buffer = await _edits(lookup, was if isinstance(was, ArrayNode) else None, node)
            if buffer is not None:
                changes.edits[node_id] = buffer
                if was is not None:
                    changes.origin.setdefault(node_id, was.path)
    return changes


def _change_nodes(changes: ChangeSet, old: Snapshot, before: dict[NodeId, Node], after: dict[NodeId, Node]) -> None:
    # All nodes that leave a path do so before others come: two may have changed places.
    for node_id, node in before.items():
        if node_id not in after or after[node_id].path != node.path:
            changes.remove_node(old, node)
    for node_id, node in after.items():
        was = before.get(node_id)
        manifests = was.manifests if isinstance(was, ArrayNode) else ()
        now = replace(node, manifests=manifests) if isinstance(node, ArrayNode) else node
        if was is not None and (was.document, was.attributes) == (now.document, now.attributes):
            if now != was:
                changes.place_node(old, now)
        else:
            changes.put_node(old, now)


async def _edits(lookup: ChunkLookup, was: ArrayNode | None, now: ArrayNode) -> EditBuffer | None:
    """The references that differ; None when none does."""
    if was is not None and was.manifests == now.manifests and was.grid == now.grid:
        return None
    fresh = await lookup.table(now)
    held = empty_table(len(now.shape)) if was is None else await lookup.table(was)
    buffer = EditBuffer(len(now.shape))
    if was is not None and any(new < old for new, old in zip(now.grid, was.grid, strict=True)):
        buffer.clip(now.grid)
    edits = _difference(held, fresh)
    if len(edits):
        buffer.add_table(edits)
    return buffer if len(edits) or buffer.base_box is not None else None


def _difference(held: ChunkTable, fresh: ChunkTable) -> ChunkTable:
    if not len(held):
        return fresh
    changed = diff_tables(held, fresh)
    rows = find_rows(fresh, changed)
    return concat([take(fresh, rows[rows >= 0]), tombstones(changed[rows < 0])])
