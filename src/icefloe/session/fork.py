"""Forks and parts: the results of the workers of a distributed write, and how a session merges them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.blocking import random_bytes, run_blocking
from icefloe.errors import InvalidInputError, SessionStateError, UnsupportedError
from icefloe.ids import NodeId, ObjectId, new_object_id
from icefloe.manifests.cells import (
    ClearedChunks,
    PartRef,
    bounding_box,
    box_array,
    filter_box,
    in_box,
    overlapping_pairs,
)
from icefloe.manifests.chunk_columns import drop_tombstones, find_rows, same_references, take
from icefloe.manifests.manifest_plan import build_manifest, pack_parts
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.snapshot import ArrayNode, Extents, Node, Snapshot
from icefloe.session.change_set import ChangeSet, EditBuffer
from icefloe.session.open_repository import RepositoryContext, WriterStart
from icefloe.session.rebase import VersionSelection
from icefloe.session.session_state import SessionState, SessionView, Tree, renumber_fork

_WRITES_AT_ONCE = 4
"""Manifests of a worker that are encoded and written at the same time: memory holds them."""


@dataclass(frozen=True, slots=True)
class WrittenParts:
    """A description of the writes of one worker. Its size depends on the number of manifests, not of chunks."""

    snapshot_id: ObjectId
    parts: tuple[PartRef, ...]
    paths: Mapping[NodeId, str]
    """Paths of the arrays."""
    label: str = ""
    """Name of the worker, for error messages."""
    cleared: Mapping[NodeId, ClearedChunks] = field(default_factory=dict)
    """Chunks that are all fill value and were therefore not stored. No manifest lists them."""
    chunks: int = 0
    attempt: str = field(default_factory=lambda: random_bytes(8).hex())


async def write_parts(work: SessionState, label: str = "") -> WrittenParts:
    """Store the chunks and references of a fork, and return the description that `link_parts` needs."""
    view = await work.stored_view()
    _refuse_nodes(view)
    fresh_id = partial(new_object_id, work.context.capabilities.object_id_bytes)
    config = work.context.manifest_config
    parts: list[PartRef] = []
    paths: dict[NodeId, str] = {}
    cleared: dict[NodeId, ClearedChunks] = {}
    stored: list[tuple[ArrayNode, ChunkTable]] = []

    async def write(tables: Mapping[NodeId, ChunkTable]) -> list[PartRef]:
        built = build_manifest(tables, fresh_id())
        info = await work.context.metadata_files.write_manifest(built.manifest)
        total = sum(map(len, tables.values()))
        return [
            PartRef(info.id, node_id, built.refs[node_id].extents, len(table), info.size_bytes, manifest_count=total)
            for node_id, table in tables.items()
        ]

    for node_id, edits in view.changes.edits.items():
        table = edits.to_table()
        if not len(table) and edits.base_box is None:
            continue
        node = _edited_array(view, node_id)
        paths[node_id] = node.path
        deleted = table.coords[table.kind == ChunkKind.DELETED]
        if edits.base_box is not None or (len(deleted) and await _any_stored(view, node, deleted)):
            raise UnsupportedError(
                f"a worker deleted chunks of {node.path} or made it smaller. Do that in the session that was forked"
            )
        if len(deleted):
            cleared[node_id] = ClearedChunks.of(deleted)
            table = drop_tombstones(table)
        if len(table):
            stored.append((node, table))
    packed = pack_parts(stored, config)
    while several := list(islice(packed, _WRITES_AT_ONCE)):
        parts += [part for made in await asyncio.gather(*map(write, several)) for part in made]
    count = sum(part.count for part in parts)
    return WrittenParts(view.base.id, tuple(parts), paths, label, cleared, count)


async def _any_stored(view: SessionView, node: ArrayNode, coords: npt.NDArray[np.uint32]) -> bool:
    """Return whether one of the chunks existed before the fork was written to."""
    below = SessionView(view.context, Tree(view.base, view.changes.copy_nodes()), view.inherited, view.reader)
    stored = await below.chunk_table(node, bounding_box(coords))
    return bool((find_rows(stored, coords) >= 0).any())


def _edited_array(view: SessionView, node_id: NodeId) -> ArrayNode:
    """Return the array that edits of a view belong to."""
    origin = view.changes.origin.get(node_id)
    node = view.tree.find(origin) if origin is not None else None
    if node is None or node.id != node_id:
        node = next((node for node in view.changes.added.values() if node.id == node_id), None)
    assert isinstance(node, ArrayNode), "edits are dropped together with their array"
    return node


def _refuse_nodes(view: SessionView) -> None:
    """Raise if a worker changed nodes. Parts hold chunks only, so these changes would be lost."""
    before, after = view.inherited, view.changes
    changed = {path for path, node in after.added.items() if before.added.get(path) != node}
    changed |= (before.added.keys() - after.added.keys()) | (after.removed ^ before.removed)
    if changed:
        raise UnsupportedError(
            f"a worker created, changed or deleted {', '.join(sorted(changed)[:3])}; parts contain only chunks. Change "
            "nodes in the session that was forked, or merge the fork instead of linking its parts"
        )


@dataclass(frozen=True, slots=True)
class _Claim:
    """Chunks of one array that a worker wrote."""

    worker: int
    """Index of the worker in this call. -1 means that the chunks were linked by an earlier call."""
    label: str
    chunks: PartRef | ClearedChunks


async def link_parts(work: SessionState, written: Sequence[WrittenParts]) -> None:
    """Add the parts of workers to a session. They replace chunks that the session had.

    A chunk that two workers wrote is an error. The caller holds the session exclusively.
    """
    for each in written:
        if each.snapshot_id != work.base.id:
            raise SessionStateError(
                f"the parts of {each.label or 'a worker'} are based on snapshot {each.snapshot_id}, and the session on "
                f"{work.base.id}. Link parts to the session that was forked"
            )
    paths = {node_id: path for each in written for node_id, path in each.paths.items()}
    # The parts are linked together or not at all: an error leaves the session unchanged.
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


def _linked_array(work: SessionState, node_id: NodeId, paths: Mapping[NodeId, str]) -> ArrayNode:
    node = work.tree.find(paths[node_id])
    if not isinstance(node, ArrayNode) or node.id != node_id:
        raise SessionStateError(f"workers wrote chunks of {paths[node_id]}, which is no longer in the session")
    return node


async def _forget_replaced(
    work: SessionState, buffer: EditBuffer | None, node: ArrayNode, parts: Sequence[PartRef]
) -> None:
    """Drop edits of chunks that workers have written since. Edits would hide the parts."""
    if buffer is None or not len(buffer):
        return
    for part in parts:
        coords = filter_box(buffer.to_table(), part.extents).coords
        if len(coords):
            table = (await work.lookup.fetch(part.manifest_id, node)).tables[node.id]
            buffer.discard(coords[find_rows(table, coords) >= 0])


def _delete_cleared(buffer: EditBuffer | None, cleared: Sequence[ClearedChunks]) -> None:
    """Delete chunks that the session set after the fork, where workers wrote fill values."""
    if buffer is None or not len(buffer):
        return
    for each in cleared:
        table, coords = buffer.to_table(), each.coords()
        rows = find_rows(table, coords)
        stored = np.flatnonzero(rows >= 0)
        for chunk in coords[stored[table.kind[rows[stored]] != ChunkKind.DELETED]].tolist():
            buffer.delete(tuple(chunk))


async def _refuse_doubles(work: SessionState, node: ArrayNode, claims: Sequence[_Claim]) -> None:
    """Raise if two workers wrote the same chunk. Only manifests whose boxes overlap are read."""
    boxes = box_array([claim.chunks.extents for claim in claims], len(node.shape))
    pairs = overlapping_pairs(boxes)
    workers = np.array([claim.worker for claim in claims], dtype=np.int64)
    for a, b in pairs[workers[pairs[:, 0]] != workers[pairs[:, 1]]].tolist():
        first, second = claims[a], claims[b]
        if isinstance(first.chunks, ClearedChunks):
            first, second = second, first
        if isinstance(first.chunks, ClearedChunks):
            continue  # Both wrote fill values, which are equal.
        table = (await work.lookup.fetch(first.chunks.manifest_id, node)).tables[node.id]
        if isinstance(second.chunks, ClearedChunks):
            others = second.chunks.coords()
        else:
            others = (await work.lookup.fetch(second.chunks.manifest_id, node)).tables[node.id].coords
        double = others[find_rows(table, others) >= 0]
        if len(double):
            who = [claims[a].label, claims[b].label]
            raise InvalidInputError(
                f"{len(double)} chunk(s) of {node.path} were written by both {who[0]} and {who[1]}, for example "
                f"{double[:3].tolist()}. Give each task its own chunks",
                path=node.path,
                chunks=double.tolist(),
                tasks=who,
            )


@dataclass
class Fork:
    """The base snapshot, the changes of the session before the fork, and the changes of the worker."""

    context: RepositoryContext
    base: Snapshot
    inherited: ChangeSet
    changes: ChangeSet
    since: WriterStart = field(default_factory=WriterStart)
    """When the fork was created. The chunks that it wrote are younger."""

    @classmethod
    def of(cls, view: SessionView) -> Fork:
        """Return a fork of the current state of a session."""
        return cls(view.context, view.base, view.changes.over(view.inherited), view.changes.begin_fork())

    def __getstate__(self) -> dict[str, Any]:
        return {
            "context": self.context,
            "snapshot_id": self.base.id,
            "inherited": self.inherited,
            "changes": self.changes,
            "since": self.since,
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.context, self.inherited, self.changes = state["context"], state["inherited"], state["changes"]
        self.since = state["since"]
        self.base = run_blocking(self.context.metadata_files.fetch_snapshot_file(state["snapshot_id"]))


def merge_fork(base: Snapshot, ours: ChangeSet, fork: Fork, on_conflict: VersionSelection) -> ChangeSet:
    """Return the changes of a session and of a fork of it, combined. `ours` is not modified.

    The changes of the fork are applied to the session. Changes of both sides to the same node are an error. For a chunk
    that both sides wrote, `on_conflict` decides.
    """
    if fork.base.id != base.id:
        raise SessionStateError(
            f"the fork is based on snapshot {fork.base.id}, and the session on {base.id}. Merge forks into the session "
            "that they were made from"
        )
    fork = replace(fork, changes=renumber_fork(base, ours, fork.changes))
    sides = _Sides(base, fork.inherited, fork.changes, ours)
    sides.check()
    clashes = sides.chunk_clashes()
    if clashes and on_conflict is VersionSelection.Fail:
        raise _double_write(fork, clashes)
    result = ours.copy()
    adopted = _merge_nodes(sides, result)
    _merge_chunks(sides, result, adopted, clashes if on_conflict is VersionSelection.UseOurs else {})
    return result


class _Sides:
    """The changes of a fork, of its session, and of both before the fork. Nodes are identified by id."""

    def __init__(self, base: Snapshot, before: ChangeSet, forked: ChangeSet, ours: ChangeSet) -> None:
        self.base, self.before, self.forked, self.ours = base, before, forked, ours
        self._origins = {**ours.origin, **before.origin, **forked.origin}
        self._added = {id(changes): {n.id: n for n in changes.added.values()} for changes in (before, forked, ours)}

    def find(self, changes: ChangeSet, node_id: NodeId) -> Node | None:
        """Return a node in the version of one side, or None."""
        node = self._added[id(changes)].get(node_id)
        if node is not None:
            return node
        path = self._origins.get(node_id)
        return None if path is None or path in changes.removed else self.base.nodes[path]

    def changed_nodes(self, changes: ChangeSet) -> dict[NodeId, None]:
        """Return the nodes that one side wrote, moved, created or deleted since the fork."""
        known = {**self._added[id(self.before)], **self._added[id(changes)], **self._origins}
        fresh = self._written(changes)
        return {key: None for key in known if key in fresh or self.find(changes, key) != self.find(self.before, key)}

    def wrote(self, changes: ChangeSet, node_id: NodeId) -> bool:
        """Return whether one side wrote the document of a node since the fork."""
        before, now = self.find(self.before, node_id), self.find(changes, node_id)
        if before is None or now is None:
            return now is not None
        return before.document != now.document or node_id in self._written(changes)

    def _written(self, changes: ChangeSet) -> set[NodeId]:
        """Return the nodes whose document one side wrote since the fork, even if it did not change."""
        return changes.updated if changes is self.forked else changes.updated - self.before.updated

    def changed_chunks(self, changes: ChangeSet, node_id: NodeId) -> npt.NDArray[np.uint32] | None:
        """Return the chunks that one side set or deleted since the fork. None if it has no edits of the array."""
        edits = changes.edits.get(node_id)
        if edits is None:
            return None
        table = edits.to_table()
        known = self.before.edits.get(node_id)
        if known is None or changes is self.forked:
            return table.coords
        stored = known.to_table()
        rows = find_rows(stored, table.coords)
        kept = np.flatnonzero(rows >= 0)
        same = same_references(take(stored, rows[kept]), take(table, kept))
        return np.delete(table.coords, kept[same], axis=0)

    def clipped(self, changes: ChangeSet, node_id: NodeId) -> Extents | None:
        """Return the box of chunks that remain if one side made the array smaller since the fork."""
        edits, known = changes.edits.get(node_id), self.before.edits.get(node_id)
        box = None if edits is None else edits.base_box
        if changes is self.forked:
            return box  # a fork begins without edits
        if box is not None and (known is None or known.base_box != box):
            return box
        was, now = self.find(self.before, node_id), self.find(changes, node_id)
        if not isinstance(was, ArrayNode) or not isinstance(now, ArrayNode) or len(was.grid) != len(now.grid):
            return None
        # Before the fork the session made it smaller than it is now. Then the box of the base stays as it is.
        is_smaller = any(new < old for new, old in zip(now.grid, was.grid, strict=True))
        return tuple((0, n) for n in now.grid) if is_smaller else None

    def touches_chunks(self, changes: ChangeSet, node_id: NodeId) -> bool:
        """Return whether one side changed chunks of an array since the fork."""
        coords = self.changed_chunks(changes, node_id)
        if (coords is not None and len(coords)) or self.clipped(changes, node_id) is not None:
            return True
        return not (
            {*changes.parts.get(node_id, ())} <= {*self.before.parts.get(node_id, ())}
            and {*changes.cleared.get(node_id, ())} <= {*self.before.cleared.get(node_id, ())}
        )

    def check(self) -> None:
        """Raise if both sides changed a node in ways that exclude each other."""
        forked, ours = self.changed_nodes(self.forked), self.changed_nodes(self.ours)
        for node_id in {**forked, **dict.fromkeys(self.forked.edits)}:
            before, theirs, mine = (self.find(each, node_id) for each in (self.before, self.forked, self.ours))
            if before is None:
                continue
            if theirs is None and mine is None:
                if any(before.path in changes.added for changes in (self.forked, self.ours)):
                    raise _refused(before.path, "was replaced on one side and replaced or deleted on the other")
                continue
            if theirs is None and (node_id in ours or self.touches_chunks(self.ours, node_id)):
                raise _refused(before.path, "was deleted by a fork and changed in the session or by another fork")
            touched = node_id in forked or self.touches_chunks(self.forked, node_id)
            if mine is None and touched:
                raise _refused(before.path, "was changed by a fork and deleted in the session or by another fork")
            if theirs is None or mine is None:
                continue
            if node_id in forked and node_id in ours:
                if theirs.path != mine.path and before.path not in (theirs.path, mine.path):
                    raise _refused(
                        before.path, "was moved by a fork, and to another path in the session or another fork"
                    )
                both = self.wrote(self.forked, node_id) and self.wrote(self.ours, node_id)
                if both and theirs.document != mine.document:
                    raise _refused(before.path, "has different metadata in a fork and in the session or another fork")
            self._check_sizes(node_id, before)

    def _check_sizes(self, node_id: NodeId, before: Node) -> None:
        """Raise if one side wrote chunks that the other side removed by making the array smaller."""
        for smaller, other in ((self.forked, self.ours), (self.ours, self.forked)):
            box, coords = self.clipped(smaller, node_id), self.changed_chunks(other, node_id)
            if box is not None and coords is not None and not bool(in_box(coords, box).all()):
                raise _refused(
                    before.path,
                    "was made smaller on one side, and chunks outside the new shape were written on the other",
                )

    def chunk_clashes(self) -> dict[NodeId, npt.NDArray[np.uint32]]:
        """Return the chunks that both sides wrote since the fork with different content."""
        clashes = {}
        for node_id, edits in self.forked.edits.items():
            mine = self.changed_chunks(self.ours, node_id)
            if mine is None or not len(mine):
                continue
            theirs, stored = edits.to_table(), self.ours.edits[node_id].to_table()
            rows = find_rows(theirs, mine)
            both = np.flatnonzero(rows >= 0)
            same = same_references(take(theirs, rows[both]), take(stored, find_rows(stored, mine[both])))
            if not bool(same.all()):
                clashes[node_id] = mine[both[~same]]
        return clashes


def _refused(path: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"nothing was merged: {path} {why}. Create, resize, move and delete arrays in the session before you fork it",
        path=path,
    )


def _merge_nodes(sides: _Sides, result: ChangeSet) -> dict[NodeId, NodeId]:
    """Merge nodes, and return the ids of nodes that are known under another id here."""
    base, adopted = sides.base, {}
    arriving: list[tuple[Node, bool]] = []
    changed = sides.changed_nodes(sides.forked)
    # All nodes leave their old paths before any node gets a new one, because two nodes may swap paths.
    for node_id in changed:
        before, theirs, mine = (sides.find(each, node_id) for each in (sides.before, sides.forked, sides.ours))
        if theirs is None:
            if mine is not None:
                result.remove_node(base, mine)
            continue
        if before is None or mine is None:
            arriving.append((theirs, True))
            continue
        path = mine.path if theirs.path == before.path else theirs.path
        written = sides.wrote(sides.forked, node_id)
        kept = theirs if written else mine
        if path != mine.path:
            result.leave_path(base, mine)
        arriving.append((replace(kept, path=path), written))
    tree = Tree(base, result)
    for node, written in arriving:
        here = tree.find(node.path)
        if here is not None and here.id != node.id:
            if here.document != node.document or sides.find(sides.before, here.id) is not None:
                raise _refused(
                    node.path,
                    "was created by a fork, and a different node was created there in the session or another fork",
                )
            # Two forks created the same node. The chunks of the later fork are added to the node of the earlier one.
            adopted[node.id] = here.id
        elif written:
            result.put_node(base, node)
        else:
            result.place_node(base, node)
        if node.id in sides.forked.origin:
            result.origin.setdefault(node.id, sides.forked.origin[node.id])
    return adopted


def _merge_chunks(
    sides: _Sides,
    result: ChangeSet,
    adopted: Mapping[NodeId, NodeId],
    left_out: Mapping[NodeId, npt.NDArray[np.uint32]],
) -> None:
    merged = _Sides(sides.base, sides.before, sides.forked, result)
    for node_id, edits in sides.forked.edits.items():
        node = merged.find(result, adopted.get(node_id, node_id))
        if not edits or not isinstance(node, ArrayNode):
            continue
        buffer = result.buffer(node)
        if edits.base_box is not None:
            result.show_only(node, edits.base_box)
        table = edits.to_table()
        if node_id in left_out:
            table = _without(table, left_out[node_id])
        buffer.add_table(table)
        buffer.drop_outside(node.grid)
    for node_id, parts in sides.forked.parts.items():
        node = merged.find(result, adopted.get(node_id, node_id))
        if isinstance(node, ArrayNode):
            result.add_parts(node, parts)
    for node_id, cleared in sides.forked.cleared.items():
        node = merged.find(result, adopted.get(node_id, node_id))
        if isinstance(node, ArrayNode):
            result.add_cleared(node, cleared)


def _double_write(fork: Fork, clashes: Mapping[NodeId, npt.NDArray[np.uint32]]) -> InvalidInputError:
    paths = {node.id: path for path, node in fork.changes.added.items()} | fork.changes.origin
    chunks = {paths.get(node_id, node_id.hex()): coords.tolist() for node_id, coords in clashes.items()}
    path, listed = next(iter(chunks.items()))
    return InvalidInputError(
        f"{sum(map(len, chunks.values()))} chunk(s) were written by more than one fork, for example {listed[:3]} of "
        f"{path}. Give each worker its own chunks, or decide which version to keep: merge(..., "
        "on_chunk_conflict=VersionSelection.UseOurs) or UseTheirs",
        chunks=chunks,
    )


def _without(table: ChunkTable, coords: npt.NDArray[np.uint32]) -> ChunkTable:
    rows = find_rows(table, coords)
    keep = np.ones(len(table), dtype=bool)
    keep[rows[rows >= 0]] = False
    return take(table, np.flatnonzero(keep))
