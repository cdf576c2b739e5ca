"""Parts: what a worker of a distributed write leaves in storage, so that only a few bytes travel to the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from icefloe.environment import random_bytes
from icefloe.errors import InvalidInputError, SessionStateError, UnsupportedError
from icefloe.ids import NodeId, ObjectId, new_object_id
from icefloe.manifests.boxes import bounding_box, box_array, overlapping_pairs
from icefloe.manifests.edits import EditBuffer
from icefloe.manifests.keys import find_rows
from icefloe.manifests.merge import drop_tombstones
from icefloe.manifests.pieces import ClearedChunks, PartRef
from icefloe.manifests.plan import cut_table
from icefloe.manifests.split import filter_box
from icefloe.model.chunk_table import ChunkKind
from icefloe.model.manifest_config import SPECIFIED
from icefloe.model.nodes import ArrayNode
from icefloe.model.snapshot import Manifest
from icefloe.session.tree import Tree
from icefloe.session.view import View
from icefloe.session.workspace import Workspace


@dataclass(frozen=True, slots=True)
class WrittenParts:
    """The descriptor of one worker's writes: a few dozen bytes per manifest, whatever the number of chunks in it."""

    snapshot_id: ObjectId
    parts: tuple[PartRef, ...]
    paths: Mapping[NodeId, str]
    """Where the arrays of the parts are."""
    label: str = ""
    """Who wrote them, for messages."""
    cleared: Mapping[NodeId, ClearedChunks] = field(default_factory=dict)
    """Where fill values were written and no chunk was; no manifest knows of them."""
    chunks: int = 0
    attempt: str = field(default_factory=lambda: random_bytes(8).hex())


async def write_parts(work: Workspace, label: str = "") -> WrittenParts:
    """Store the chunks and references of a fork; returns what the driver needs to link them."""
    view = await work.stored_view()
    _refuse_nodes(view)
    fresh_id = partial(new_object_id, work.engine.capabilities.object_id_bytes)
    config = work.engine.config.manifest or SPECIFIED
    parts: list[PartRef] = []
    paths: dict[NodeId, str] = {}
    cleared: dict[NodeId, ClearedChunks] = {}
    for node_id, edits in view.changes.edits.items():
        table = edits.to_table()
        if not len(table):
            continue
        node = _edited_array(view, node_id)
        paths[node_id] = node.path
        deleted = table.coords[table.kind == ChunkKind.DELETED]
        if edits.base_box is not None or (len(deleted) and await _any_held(view, node, deleted)):
            raise UnsupportedError(
                f"a worker deleted chunks of {node.path} or made it smaller; do that in the session it was forked from"
            )
        if len(deleted):
            cleared[node_id] = ClearedChunks.of(deleted)
            table = drop_tombstones(table)
        for cell in cut_table(node, table, config) if len(table) else ():
            info = await work.engine.archive.flush_manifest(Manifest(fresh_id(), {node_id: cell}))
            parts.append(PartRef(info.id, node_id, cell.extents(), len(cell), info.size_bytes))
    count = sum(part.count for part in parts)
    return WrittenParts(view.base.id, tuple(parts), paths, label, cleared, count)


async def _any_held(view: View, node: ArrayNode, coords: npt.NDArray[np.uint32]) -> bool:
    """Whether one of the chunks was there before the fork wrote."""
    below = View(view.engine, Tree(view.base, view.changes.copy_nodes()), view.inherited, view.reader)
    held = await below.chunk_table(node, bounding_box(coords))
    return bool((find_rows(held, coords) >= 0).any())


def _edited_array(view: View, node_id: NodeId) -> ArrayNode:
    """The array behind edits of a view."""
    origin = view.changes.origin.get(node_id)
    node = view.tree.find(origin) if origin is not None else None
    if node is None or node.id != node_id:
        node = next((node for node in view.changes.added.values() if node.id == node_id), None)
    assert isinstance(node, ArrayNode), "edits are dropped together with their array"
    return node


def _refuse_nodes(view: View) -> None:
    """Parts hold chunks only: what a worker did to arrays and groups themselves would be lost."""
    before, after = view.inherited, view.changes
    changed = {path for path, node in after.added.items() if before.added.get(path) != node}
    changed |= (before.added.keys() - after.added.keys()) | (after.removed ^ before.removed)
    if changed:
        raise UnsupportedError(
            f"a worker created, changed or deleted {', '.join(sorted(changed)[:3])}; parts hold chunks only. "
            "Do that in the session it was forked from, or merge the fork instead of linking its parts"
        )


@dataclass(frozen=True, slots=True)
class _Claim:
    """Chunks of one array that a worker says it wrote."""

    worker: int
    """Its place among those that are linked now; -1 for what was linked earlier."""
    label: str
    chunks: PartRef | ClearedChunks


async def link_parts(work: Workspace, written: Sequence[WrittenParts]) -> None:
    """Take over what workers left, in place of what the session held; one chunk from two of them is refused.

    The caller has the session for itself.
    """
    for each in written:
        if each.snapshot_id != work.base.id:
            raise SessionStateError(
                f"parts of {each.label or 'a worker'} stand on snapshot {each.snapshot_id}, "
                f"the session on {work.base.id}"
            )
    paths = {node_id: path for each in written for node_id, path in each.paths.items()}
    # All of it or nothing: what cannot be linked leaves the session as it was.
    changes = work.changes.copy()
    for node_id, claims in _claims_by_node(written).items():
        node = _linked_array(work, node_id, paths)
        known: tuple[PartRef | ClearedChunks, ...] = (
            *changes.parts.get(node_id, ()),
            *changes.cleared.get(node_id, ()),
        )
        await _refuse_doubles(work, node, [*(_Claim(-1, "an earlier task", each) for each in known), *claims])
        parts = [claim.chunks for claim in claims if isinstance(claim.chunks, PartRef)]
        cleared = [claim.chunks for claim in claims if isinstance(claim.chunks, ClearedChunks)]
        await _forget_replaced(work, changes.edits.get(node.id), node, parts)
        _delete_cleared(changes.edits.get(node.id), cleared)
        if parts:
            changes.add_parts(node, parts)
        if cleared:
            changes.add_cleared(node, cleared)
    work.rebase_to(work.base, changes, work.tip)


def _claims_by_node(written: Sequence[WrittenParts]) -> dict[NodeId, list[_Claim]]:
    by_node: dict[NodeId, list[_Claim]] = {}
    for worker, each in enumerate(written):
        label = each.label or each.attempt
        for part in each.parts:
            by_node.setdefault(part.node_id, []).append(_Claim(worker, label, part))
        for node_id, cleared in each.cleared.items():
            by_node.setdefault(node_id, []).append(_Claim(worker, label, cleared))
    return by_node


def _linked_array(work: Workspace, node_id: NodeId, paths: Mapping[NodeId, str]) -> ArrayNode:
    node = work.tree.find(paths[node_id])
    if not isinstance(node, ArrayNode) or node.id != node_id:
        raise SessionStateError(f"workers wrote chunks of {paths[node_id]}, which is no longer in the session")
    return node


async def _forget_replaced(
    work: Workspace, buffer: EditBuffer | None, node: ArrayNode, parts: Sequence[PartRef]
) -> None:
    """Drop edits of chunks that workers have written since: edits lie over parts."""
    if buffer is None or not len(buffer):
        return
    for part in parts:
        coords = filter_box(buffer.to_table(), part.extents).coords
        if len(coords):
            table = (await work.lookup.fetch(part.manifest_id, node)).tables[node.id]
            buffer.discard(coords[find_rows(table, coords) >= 0])


def _delete_cleared(buffer: EditBuffer | None, cleared: Sequence[ClearedChunks]) -> None:
    """Delete chunks that the session has set since the workers left, where workers wrote fill values."""
    if buffer is None or not len(buffer):
        return
    for each in cleared:
        table, coords = buffer.to_table(), each.coords()
        rows = find_rows(table, coords)
        held = np.flatnonzero(rows >= 0)
        for chunk in coords[held[table.kind[rows[held]] != ChunkKind.DELETED]].tolist():
            buffer.delete(tuple(chunk))


async def _refuse_doubles(work: Workspace, node: ArrayNode, claims: Sequence[_Claim]) -> None:
    """What two workers say of the same box is read and compared; disjoint boxes, the usual case, cost nothing."""
    boxes = box_array([claim.chunks.extents for claim in claims], len(node.shape))
    pairs = overlapping_pairs(boxes)
    workers = np.array([claim.worker for claim in claims], dtype=np.int64)
    for a, b in pairs[workers[pairs[:, 0]] != workers[pairs[:, 1]]].tolist():
        first, second = claims[a], claims[b]
        if isinstance(first.chunks, ClearedChunks):
            first, second = second, first
        if isinstance(first.chunks, ClearedChunks):
            continue  # Both wrote fill values: they agree.
        table = (await work.lookup.fetch(first.chunks.manifest_id, node)).tables[node.id]
        if isinstance(second.chunks, ClearedChunks):
            others = second.chunks.coords()
        else:
            others = (await work.lookup.fetch(second.chunks.manifest_id, node)).tables[node.id].coords
        double = others[find_rows(table, others) >= 0]
        if len(double):
            who = [claims[a].label, claims[b].label]
            raise InvalidInputError(
                f"{len(double)} chunk(s) of {node.path}, such as {double[:3].tolist()}, were written by both {who[0]} "
                f"and {who[1]}; give each task chunks of its own",
                path=node.path,
                chunks=double.tolist(),
                tasks=who,
            )
