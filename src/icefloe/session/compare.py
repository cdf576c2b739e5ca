"""What differs between two snapshots: from transaction logs where there are any, else by comparing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from icefloe.archive.files import Archive
from icefloe.ids import NodeId
from icefloe.manifests.merge import diff_tables
from icefloe.model.diff import Diff
from icefloe.model.nodes import ArrayNode, Node
from icefloe.model.snapshot import Snapshot
from icefloe.model.transaction_log import Move, TransactionLog
from icefloe.session.lookup import ChunkLookup


async def compare_snapshots(old: Snapshot, new: Snapshot, archive: Archive, *, chunks: bool = True) -> TransactionLog:
    """The log of the change from one snapshot to another, found by comparing every node.

    Without `chunks` it tells of none in arrays that both have.
    """
    before = {node.id: node for node in old.nodes.values()}
    after = {node.id: node for node in new.nodes.values()}
    fresh = [node for node_id, node in after.items() if node_id not in before]
    gone = [node for node_id, node in before.items() if node_id not in after]
    kept = [(before[node_id], node) for node_id, node in after.items() if node_id in before]
    lookup = ChunkLookup(archive)
    suspects: list[tuple[Node | None, Node]] = []
    if chunks:
        suspects += [(was, now) for was, now in kept if _chunks_may_differ(was, now)]
    suspects += [(None, node) for node in fresh if isinstance(node, ArrayNode) and node.manifests]
    columns = await asyncio.gather(*(_changed_chunks(was, now, lookup) for was, now in suspects))
    changed = {now.id: coords for (_, now), coords in zip(suspects, columns, strict=True) if len(coords)}
    moves = [Move(was.path, now.path, now.id, isinstance(now, ArrayNode)) for was, now in kept if was.path != now.path]
    updated = [now for was, now in kept if was.document != now.document or was.attributes != now.attributes]
    return TransactionLog(
        new_groups=_ids(fresh, arrays=False),
        new_arrays=_ids(fresh, arrays=True),
        deleted_groups=_ids(gone, arrays=False),
        deleted_arrays=_ids(gone, arrays=True),
        updated_groups=_ids(updated, arrays=False),
        updated_arrays=_ids(updated, arrays=True),
        updated_chunks=changed,
        moves=tuple(sorted(moves, key=lambda move: move.to_path.split("/"))),
    )


def _ids(nodes: Iterable[Node], *, arrays: bool) -> frozenset[NodeId]:
    return frozenset(node.id for node in nodes if isinstance(node, ArrayNode) is arrays)


def _chunks_may_differ(was: Node, now: Node) -> bool:
    return isinstance(was, ArrayNode) and isinstance(now, ArrayNode) and was.manifests != now.manifests


async def _changed_chunks(was: Node | None, now: Node, lookup: ChunkLookup) -> npt.NDArray[np.uint32]:
    assert isinstance(now, ArrayNode)
    if not isinstance(was, ArrayNode):
        return (await lookup.table(now)).coords
    old, new = await asyncio.gather(lookup.table(was), lookup.table(now))
    return diff_tables(old, new)


async def chunks_in_boxes(
    snapshot: Snapshot, logs: Sequence[TransactionLog], archive: Archive
) -> dict[NodeId, npt.NDArray[np.uint32]]:
    """The chunks of a snapshot that lie in boxes its logs name: what distributed writes set, or a little more."""
    wanted = {node_id for log in logs for node_id in log.updated_boxes}
    if not wanted:
        return {}
    lookup = ChunkLookup(archive)
    found: dict[NodeId, npt.NDArray[np.uint32]] = {}
    for node in snapshot.nodes.values():
        if node.id in wanted and isinstance(node, ArrayNode):
            boxes = [box for log in logs for box in log.updated_boxes.get(node.id, ())]
            tables = [await lookup.table(node, box) for box in dict.fromkeys(boxes)]
            found[node.id] = _union([table.coords for table in tables])
    return found


def diff_from_logs(
    old: Snapshot,
    new: Snapshot,
    logs: Sequence[TransactionLog],
    boxed: Mapping[NodeId, npt.NDArray[np.uint32]] | None = None,
) -> Diff:
    """The net change between two snapshots, from the logs of the commits in between (oldest first).

    `boxed` are the chunks in boxes that logs name instead of coordinates.
    """
    before = {node.id: node for node in old.nodes.values()}
    after = {node.id: node for node in new.nodes.values()}
    chunks: dict[NodeId, list[npt.NDArray[np.uint32]]] = {}
    updated: set[NodeId] = set()
    touched: set[NodeId] = set()
    for log in logs:
        updated |= log.updated_arrays | log.updated_groups
        touched |= log.new_arrays | log.new_groups | log.deleted_arrays | log.deleted_groups
        touched |= {move.node_id for move in log.moves}
        for node_id, coords in log.updated_chunks.items():
            chunks.setdefault(node_id, []).append(coords)
    for node_id, coords in (boxed or {}).items():
        chunks.setdefault(node_id, []).append(coords)
    fresh = [after[i] for i in touched if i in after and i not in before]
    gone = [before[i] for i in touched if i in before and i not in after]
    moved = [(before[i], after[i]) for i in touched if i in before and i in after and before[i].path != after[i].path]
    changed = [after[i] for i in updated if i in before and i in after]
    return Diff(
        new_groups=paths_of(fresh, arrays=False),
        new_arrays=paths_of(fresh, arrays=True),
        deleted_groups=paths_of(gone, arrays=False),
        deleted_arrays=paths_of(gone, arrays=True),
        updated_groups=paths_of(changed, arrays=False),
        updated_arrays=paths_of(changed, arrays=True),
        chunk_coords={after[i].path: _union(parts) for i, parts in sorted(chunks.items()) if i in after},
        moved_nodes=sorted(((was.path, now.path) for was, now in moved), key=lambda move: move[1].split("/")),
    )


def paths_of(nodes: Iterable[Node], *, arrays: bool) -> set[str]:
    """The paths of the arrays, or of the groups, among some nodes."""
    return {node.path for node in nodes if isinstance(node, ArrayNode) is arrays}


def _union(parts: Sequence[npt.NDArray[np.uint32]]) -> npt.NDArray[np.uint32]:
    return parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts), axis=0)
