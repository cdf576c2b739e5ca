"""Parts: what a worker of a distributed write leaves in storage, so that only a few bytes travel to the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from icefloe.environment import random_bytes
from icefloe.errors import InvalidInputError, SessionStateError, UnsupportedError
from icefloe.ids import NodeId, ObjectId, new_object_id
from icefloe.manifests.boxes import box_array, overlapping_pairs
from icefloe.manifests.keys import find_rows
from icefloe.manifests.pieces import PartRef
from icefloe.manifests.plan import cut_table
from icefloe.manifests.split import filter_box
from icefloe.model.chunk_table import ChunkKind
from icefloe.model.manifest_config import SPECIFIED
from icefloe.model.nodes import ArrayNode
from icefloe.model.snapshot import Manifest
from icefloe.session.view import View
from icefloe.session.workspace import Workspace


@dataclass(frozen=True, slots=True)
class WrittenParts:
    """The descriptor of one worker's writes: a few dozen bytes per manifest, whatever the number of chunks."""

    snapshot_id: ObjectId
    parts: tuple[PartRef, ...]
    paths: Mapping[NodeId, str]
    """Where the arrays of the parts are."""
    label: str = ""
    """Who wrote them, for messages."""
    chunks: int = 0
    attempt: str = field(default_factory=lambda: random_bytes(8).hex())


async def write_parts(work: Workspace, label: str = "") -> WrittenParts:
    """Store the chunks and references of a fork; returns what the driver needs to link them."""
    view = await work.stored_view()
    fresh_id = partial(new_object_id, work.engine.capabilities.object_id_bytes)
    config = work.engine.config.manifest or SPECIFIED
    parts: list[PartRef] = []
    paths: dict[NodeId, str] = {}
    for node_id, edits in view.changes.edits.items():
        table = edits.to_table()
        if not len(table):
            continue
        node = _edited_array(view, node_id)
        paths[node_id] = node.path
        if (table.kind == ChunkKind.DELETED).any() or edits.base_box is not None:
            raise UnsupportedError(
                f"a worker deleted chunks of {node.path} or made it smaller; do that in the session it was forked from"
            )
        for cell in cut_table(node, table, config):
            info = await work.engine.archive.flush_manifest(Manifest(fresh_id(), {node_id: cell}))
            parts.append(PartRef(info.id, node_id, cell.extents(), len(cell), info.size_bytes))
    return WrittenParts(view.base.id, tuple(parts), paths, label, sum(part.count for part in parts))


def _edited_array(view: View, node_id: NodeId) -> ArrayNode:
    """The array behind edits of a view."""
    origin = view.changes.origin.get(node_id)
    node = view.tree.find(origin) if origin is not None else None
    if node is None or node.id != node_id:
        node = next((node for node in view.changes.added.values() if node.id == node_id), None)
    assert isinstance(node, ArrayNode), "edits are dropped together with their array"
    return node


async def link_parts(work: Workspace, written: Sequence[WrittenParts]) -> None:
    """Take over what workers left, in place of what the session held; one chunk from two of them is refused."""
    for each in written:
        if each.snapshot_id != work.base.id:
            raise SessionStateError(
                f"parts of {each.label or 'a worker'} stand on snapshot {each.snapshot_id}, "
                f"the session on {work.base.id}"
            )
    paths = {node_id: path for each in written for node_id, path in each.paths.items()}
    labels = {part.manifest_id: each.label or each.attempt for each in written for part in each.parts}
    by_node: dict[NodeId, list[PartRef]] = {}
    for part in (part for each in written for part in each.parts):
        by_node.setdefault(part.node_id, []).append(part)
    for node_id, parts in by_node.items():
        node = work.tree.find(paths[node_id])
        if not isinstance(node, ArrayNode) or node.id != node_id:
            raise SessionStateError(f"workers wrote chunks of {paths[node_id]}, which is no longer in the session")
        await _refuse_doubles(work, node, [*work.changes.parts.get(node_id, ()), *parts], labels)
        work.writer.settle(work.changes)
        await _forget_replaced(work, node, parts)
        work.changes.add_parts(node, parts)


async def _forget_replaced(work: Workspace, node: ArrayNode, parts: Sequence[PartRef]) -> None:
    """Drop edits of chunks that workers have written since: edits lie over parts."""
    buffer = work.changes.edits.get(node.id)
    if buffer is None or not len(buffer):
        return
    for part in parts:
        coords = filter_box(buffer.to_table(), part.extents).coords
        if len(coords):
            table = (await work.lookup.fetch(part.manifest_id, node)).tables[node.id]
            buffer.discard(coords[find_rows(table, coords) >= 0])


async def _refuse_doubles(
    work: Workspace, node: ArrayNode, parts: Sequence[PartRef], labels: dict[ObjectId, str]
) -> None:
    """Parts whose boxes meet are read and compared; disjoint boxes, the usual case, cost nothing."""
    boxes = box_array([part.extents for part in parts], len(node.shape))
    for a, b in overlapping_pairs(boxes).tolist():
        tables = [(await work.lookup.fetch(parts[i].manifest_id, node)).tables[node.id] for i in (a, b)]
        rows = find_rows(tables[0], tables[1].coords)
        double = tables[1].coords[rows >= 0]
        if len(double):
            who = [labels.get(parts[i].manifest_id, "an earlier task") for i in (a, b)]
            raise InvalidInputError(
                f"{len(double)} chunk(s) of {node.path}, such as {double[:3].tolist()}, were written by both {who[0]} "
                f"and {who[1]}; give each task chunks of its own",
                path=node.path,
                chunks=double.tolist(),
                tasks=who,
            )
