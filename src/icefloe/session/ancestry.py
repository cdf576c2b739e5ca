"""Resolve refs and times to snapshots, walk ancestry, merge logs, and compare snapshots."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.chunks.reader import ChunkLookup
from icefloe.errors import ConflictError, FormatError, InvalidInputError, ObjectNotFoundError, SnapshotNotFoundError
from icefloe.ids import NodeId, ObjectId
from icefloe.ledger.ledger import MAIN, Tip
from icefloe.manifests.cells import Boxes, box_array, in_boxes, intersect, join_boxes, to_extents
from icefloe.manifests.chunk_columns import diff_tables, find_rows
from icefloe.metadata_files import MetadataFiles
from icefloe.model.manifest_lists import ListedRefs, may_differ, without_common_lists
from icefloe.model.snapshot import (
    REWRITTEN_PARENT_KEY,
    ArrayNode,
    Diff,
    Extents,
    GroupNode,
    Move,
    Node,
    Snapshot,
    SnapshotInfo,
    TransactionLog,
    check_zone,
    find_nodes,
)
from icefloe.session.open_repository import RepositoryContext


async def join_logs(
    logs: Sequence[TransactionLog],
    before: Snapshot,
    after: Snapshot,
    metadata_files: MetadataFiles,
    wanted: Container[NodeId] | None = None,
) -> TransactionLog:
    """The logs of all commits from one snapshot to another, oldest first, as one log.

    An array that one commit makes smaller and a later one larger again loses chunks of which neither log tells: the
    first only says that the array has another shape. So the references of arrays that were changed more than once
    are compared. `wanted` restricts that to some arrays.
    """
    joined = reduce(merge_logs, logs, TransactionLog())
    changed = _find_changed_again(logs)
    if wanted is not None:
        changed = {node_id for node_id in changed if node_id in wanted}
    if not changed:
        return joined
    was = {n.id: n for n in before.nodes.values() if n.id in changed and isinstance(n, ArrayNode)}
    now = {n.id: n for n in after.nodes.values() if n.id in was and isinstance(n, ArrayNode)}
    lookup, chunks = ChunkLookup(metadata_files), dict(joined.updated_chunks)
    for node_id, node in now.items():
        lost = await _find_lost(was[node_id], node, lookup)
        if len(lost):
            known = chunks.get(node_id)
            chunks[node_id] = lost if known is None else join_coordinates([known, lost])
    return replace(joined, updated_chunks=chunks)


def is_cut_off(log: TransactionLog, parent: Snapshot, snapshot: Snapshot) -> bool:
    """Whether the log of a snapshot on the first one does not list all its nodes.

    The official package expires history by putting a kept snapshot on the first one, and leaves its log as it was: the
    log then only tells of the last of the commits in between.
    """
    if parent.parent_id is not None:
        return False
    known = {node.id for node in parent.nodes.values()} | log.new_arrays | log.new_groups
    return any(node.id not in known for node in snapshot.nodes.values())


def merge_logs(first: TransactionLog, second: TransactionLog) -> TransactionLog:
    """Merge two consecutive logs. `join_logs` also finds chunks that neither log mentions."""
    born = first.new_arrays | first.new_groups
    gone = second.deleted_arrays | second.deleted_groups
    # A node that was deleted and came back under its id, as by a revert, is neither new nor deleted.
    restored_groups = (first.deleted_groups & second.new_groups) - first.new_groups
    restored_arrays = (first.deleted_arrays & second.new_arrays) - first.new_arrays
    chunks = dict(first.updated_chunks)
    for node_id, coords in second.updated_chunks.items():
        before = chunks.get(node_id)
        chunks[node_id] = coords if before is None else join_coordinates([before, coords])
    origins = {move.node_id: move.from_path for move in first.moves}
    moves = {move.node_id: move for move in first.moves}
    for move in second.moves:
        moves[move.node_id] = replace(move, from_path=origins.get(move.node_id, move.from_path))
    new_groups = (first.new_groups | second.new_groups) - gone - restored_groups
    new_arrays = (first.new_arrays | second.new_arrays) - gone - restored_arrays
    return TransactionLog(
        new_groups=new_groups,
        new_arrays=new_arrays,
        deleted_groups=(first.deleted_groups - restored_groups) | (second.deleted_groups - born),
        deleted_arrays=(first.deleted_arrays - restored_arrays) | (second.deleted_arrays - born),
        updated_groups=(first.updated_groups | second.updated_groups | restored_groups) - gone - new_groups,
        updated_arrays=(first.updated_arrays | second.updated_arrays | restored_arrays) - gone - new_arrays,
        updated_chunks={node_id: coords for node_id, coords in chunks.items() if node_id not in gone},
        updated_boxes={
            node_id: first.updated_boxes.get(node_id, ()) + second.updated_boxes.get(node_id, ())
            for node_id in first.updated_boxes.keys() | second.updated_boxes.keys()
            if node_id not in gone
        },
        moves=tuple(m for m in moves.values() if m.from_path != m.to_path and m.node_id not in born | gone),
    )


def merge_additions(logs: Sequence[TransactionLog], wanted: Container[NodeId]) -> TransactionLog:
    """Merge consecutive logs that only add nodes and chunks. Only the chunks of the wanted arrays are listed."""
    chunks: dict[NodeId, list[npt.NDArray[np.uint32]]] = {}
    boxes: dict[NodeId, tuple[Extents, ...]] = {}
    for log in logs:
        for node_id, coords in log.updated_chunks.items():
            if node_id in wanted:
                chunks.setdefault(node_id, []).append(coords)
        for node_id, written in log.updated_boxes.items():
            if node_id in wanted:
                boxes[node_id] = boxes.get(node_id, ()) + written
    return TransactionLog(
        new_groups=frozenset().union(*(log.new_groups for log in logs)),
        new_arrays=frozenset().union(*(log.new_arrays for log in logs)),
        updated_chunks={node_id: join_coordinates(parts) for node_id, parts in chunks.items()},
        updated_boxes=boxes,
    )


def fit_log(log: TransactionLog, old: Snapshot, new: Snapshot) -> TransactionLog:
    """The log with exactly the nodes that one snapshot lacks and the other has.

    Another expiry, or an amended commit, may have written a log that begins further up. Such a log names nodes as new
    that `old` has, and does not name nodes as deleted that were created and deleted after it began.
    """
    was, now = {node.id: node for node in old.nodes.values()}, {node.id: node for node in new.nodes.values()}
    added, removed = now.keys() - was.keys(), was.keys() - now.keys()
    kept = now.keys() & was.keys()
    return replace(
        log,
        new_arrays=frozenset(each for each in added if isinstance(now[each], ArrayNode)),
        new_groups=frozenset(each for each in added if isinstance(now[each], GroupNode)),
        deleted_arrays=frozenset(each for each in removed if isinstance(was[each], ArrayNode)),
        deleted_groups=frozenset(each for each in removed if isinstance(was[each], GroupNode)),
        updated_arrays=(log.updated_arrays | log.new_arrays) & kept,
        updated_groups=(log.updated_groups | log.new_groups) & kept,
        updated_chunks={each: coords for each, coords in log.updated_chunks.items() if each in now},
        updated_boxes={each: boxes for each, boxes in log.updated_boxes.items() if each in now},
    )


def log_since(log: TransactionLog, base: Snapshot, theirs: Snapshot) -> TransactionLog:
    """The log as a change of `base`, also if an expiry let it begin further up while a writer was rebased.

    Such a log names nodes as new that `base` has, and so does not tell that they were changed or deleted since. It is
    told from other logs by its nodes. A node counts as changed if its document is another one.
    """
    added, removed = log.new_arrays | log.new_groups, log.deleted_arrays | log.deleted_groups
    if not added and not removed and len(base.nodes) == len(theirs.nodes):
        return log
    was = {node.id: node for node in base.nodes.values()}
    now = {node.id: node for node in theirs.nodes.values()}
    if now.keys() - was.keys() == added and was.keys() - now.keys() == removed:
        return log
    fitted = fit_log(log, base, theirs)
    same = {
        each
        for each in added & was.keys() & now.keys()
        if (was[each].document, was[each].attributes) == (now[each].document, now[each].attributes)
    }
    return replace(fitted, updated_arrays=fitted.updated_arrays - same, updated_groups=fitted.updated_groups - same)


def join_coordinates(parts: Sequence[npt.NDArray[np.uint32]]) -> npt.NDArray[np.uint32]:
    """The chunks of one array that several logs name, each once."""
    filled = [part for part in parts if len(part)] or list(parts[:1])
    if len({part.shape[1] for part in filled}) > 1:
        ranks = ", ".join(str(part.shape[1]) for part in filled)
        raise FormatError(
            f"transaction logs contradict each other: they contain chunks of one array with {ranks} dimensions"
        )
    return filled[0] if len(filled) == 1 else np.unique(np.concatenate(filled), axis=0)


def _find_changed_again(logs: Iterable[TransactionLog]) -> set[NodeId]:
    """Arrays whose document changed in more than one commit, or that were deleted and came back."""
    changes: Counter[NodeId] = Counter()
    for log in logs:
        changes.update(log.updated_arrays | log.new_arrays | log.deleted_arrays)
    return {node_id for node_id, count in changes.items() if count > 1}


async def _find_lost(was: ArrayNode, now: ArrayNode, lookup: ChunkLookup) -> npt.NDArray[np.uint32]:
    """Chunks inside the grid that an array had and no longer has."""
    none = np.empty((0, len(now.grid)), dtype=np.uint32)
    if len(was.grid) != len(now.grid):
        return none
    # Manifests that both have hold the same references.
    older, newer = without_common_lists(was, now)
    await asyncio.gather(lookup.load(older), lookup.load(newer))
    common = set(older.manifests) & set(newer.manifests)
    older = older.with_manifests(tuple(ref for ref in older.manifests if ref not in common))
    box = tuple((0, min(a, b)) for a, b in zip(was.grid, now.grid, strict=True))
    if not older.manifests:
        return none
    before, kept = await lookup.table(older, box), await lookup.table(now, box)
    lost: npt.NDArray[np.uint32] = before.coords[find_rows(kept, before.coords) < 0]
    return lost


async def compare_snapshots(
    old: Snapshot,
    new: Snapshot,
    metadata_files: MetadataFiles,
    *,
    chunks: bool = True,
    wanted: Container[NodeId] | None = None,
) -> TransactionLog:
    """The log of the change from one snapshot to another, found by comparing every node.

    Without `chunks` it lists no chunks of arrays that both have. With `wanted` it lists chunks of these arrays only.
    """
    log = compare_nodes(old, new)
    suspects = [
        (was, now)
        for was, now in suspected_arrays(old, new)
        if (chunks or was is None) and (wanted is None or now.id in wanted)
    ]
    lookup, limit = ChunkLookup(metadata_files), asyncio.Semaphore(_GROUPS_AT_ONCE)

    async def compare(group: Sequence[ArrayPair]) -> list[npt.NDArray[np.uint32]]:
        async with limit:
            return await asyncio.gather(*(_changed_chunks(was, now, lookup) for was, now in group))

    groups = group_by_manifest(suspects)
    columns = chain.from_iterable(await asyncio.gather(*map(compare, groups)))
    pairs = zip(chain.from_iterable(groups), columns, strict=True)
    return replace(log, updated_chunks={now.id: coords for (_, now), coords in pairs if len(coords)})


ArrayPair: TypeAlias = tuple[ArrayNode | None, ArrayNode]
"""An array in an earlier and in a later snapshot. None if it is new."""

_GROUPS_AT_ONCE = 16
"""Groups of arrays that are compared at the same time. Each has some manifests in memory."""


def group_by_manifest(pairs: Iterable[ArrayPair]) -> list[list[ArrayPair]]:
    """Arrays with a common first manifest together. If they are compared at the same time, it is read once for all."""
    groups: dict[object, list[ArrayPair]] = {}
    for was, now in pairs:
        refs = now.manifests or (was.manifests if was is not None else ())
        first = refs.lists[0] if isinstance(refs, ListedRefs) else refs[0].manifest_id if refs else None
        groups.setdefault(first, []).append((was, now))
    return list(groups.values())


def suspected_arrays(old: Snapshot, new: Snapshot) -> list[ArrayPair]:
    """The arrays whose chunks may differ in two snapshots, as they were and as they are. None if the array is new."""
    before = {node.id: node for node in old.nodes.values()}
    found: list[ArrayPair] = []
    for now in new.nodes.values():
        was = before.get(now.id)
        if isinstance(now, ArrayNode):
            if was is None and now.manifests:
                found.append((None, now))
            elif isinstance(was, ArrayNode) and may_differ(was.manifests, now.manifests):
                found.append((was, now))
    return found


def compare_nodes(old: Snapshot, new: Snapshot) -> TransactionLog:
    """The log of the change from one snapshot to another, without chunks."""
    before = {node.id: node for node in old.nodes.values()}
    after = {node.id: node for node in new.nodes.values()}
    fresh = [node for node_id, node in after.items() if node_id not in before]
    gone = [node for node_id, node in before.items() if node_id not in after]
    kept = [(before[node_id], node) for node_id, node in after.items() if node_id in before]
    moves = [Move(was.path, now.path, now.id, isinstance(now, ArrayNode)) for was, now in kept if was.path != now.path]
    updated = [now for was, now in kept if was.document != now.document or was.attributes != now.attributes]
    return TransactionLog(
        new_groups=_ids(fresh, arrays=False),
        new_arrays=_ids(fresh, arrays=True),
        deleted_groups=_ids(gone, arrays=False),
        deleted_arrays=_ids(gone, arrays=True),
        updated_groups=_ids(updated, arrays=False),
        updated_arrays=_ids(updated, arrays=True),
        moves=tuple(sorted(moves, key=lambda move: move.to_path.split("/"))),
    )


def _ids(nodes: Iterable[Node], *, arrays: bool) -> frozenset[NodeId]:
    return frozenset(node.id for node in nodes if isinstance(node, ArrayNode) is arrays)


async def _changed_chunks(was: ArrayNode | None, now: ArrayNode, lookup: ChunkLookup) -> npt.NDArray[np.uint32]:
    parts = [coords async for coords in changed_batches(was, now, lookup)]
    return np.concatenate([np.empty((0, len(now.grid)), dtype=np.uint32), *parts])


async def changed_batches(
    was: ArrayNode | None, now: ArrayNode, lookup: ChunkLookup
) -> AsyncIterator[npt.NDArray[np.uint32]]:
    """The chunks of an array whose references differ in two snapshots, in order, one part of the grid at a time."""
    if was is None:
        for box in await lookup.slabs(now):
            yield (await lookup.table(now, box)).coords
        return
    if was.grid == now.grid:
        was, now = without_common_lists(was, now)
    await asyncio.gather(lookup.load(was), lookup.load(now))
    was, now = without_common(was, now)
    if len(was.grid) != len(now.grid):
        old, new = await asyncio.gather(lookup.table(was), lookup.table(now))
        yield diff_tables(old, new)
        return
    for box in await lookup.slabs(was, now):
        clipped = [intersect(box, tuple((0, n) for n in node.grid)) for node in (was, now)]
        old, new = await asyncio.gather(lookup.table(was, clipped[0]), lookup.table(now, clipped[1]))
        yield diff_tables(old, new)


def without_common(was: ArrayNode, now: ArrayNode) -> tuple[ArrayNode, ArrayNode]:
    """An array in two snapshots without the manifests of both. They hold the same references, which need no reading."""
    common = set(was.manifests).intersection(now.manifests) if was.grid == now.grid else set()
    if not common:
        return was, now
    return (
        replace(was, manifests=tuple(ref for ref in was.manifests if ref not in common)),
        replace(now, manifests=tuple(ref for ref in now.manifests if ref not in common)),
    )


async def chunks_in_boxes(
    snapshot: Snapshot, logs: Sequence[TransactionLog], metadata_files: MetadataFiles
) -> dict[NodeId, npt.NDArray[np.uint32]]:
    """The chunks of a snapshot that lie in boxes its logs name: what distributed writes set, or a little more."""
    wanted = {node_id for log in logs for node_id in log.updated_boxes}
    if not wanted:
        return {}
    lookup = ChunkLookup(metadata_files)
    found: dict[NodeId, npt.NDArray[np.uint32]] = {}
    for node in find_nodes(snapshot.nodes, wanted).values():
        if isinstance(node, ArrayNode):
            ndim = len(node.grid)
            boxes = [box for log in logs for box in log.updated_boxes.get(node.id, ()) if len(box) == ndim]
            found[node.id] = await _chunks_inside(node, box_array(join_boxes(boxes), ndim), lookup)
    return found


async def _chunks_inside(node: ArrayNode, boxes: Boxes, lookup: ChunkLookup) -> npt.NDArray[np.uint32]:
    """The chunks of an array that lie in at least one of many boxes, in order."""
    parts = [np.empty((0, len(node.grid)), dtype=np.uint32)]
    for slab in await lookup.slabs(node):
        low, high = np.array(slab, dtype=np.int64).reshape(len(slab), 2).T
        near = boxes[((boxes[:, :, 0] < high) & (low < boxes[:, :, 1])).all(axis=1)]
        if not len(near):
            continue
        coords = (await lookup.table(node, slab)).coords
        parts.append(coords[in_boxes(coords, [to_extents(box) for box in near])])
    return np.concatenate(parts)


def diff_from_logs(
    old: Snapshot,
    new: Snapshot,
    logs: Sequence[TransactionLog],
    boxed: Mapping[NodeId, npt.NDArray[np.uint32]] | None = None,
) -> Diff:
    """The net change between two snapshots, from the logs of the commits in between (oldest first).

    `boxed` are the chunks in boxes that logs name instead of coordinates.
    """
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
    changed_ids = touched | updated | chunks.keys()
    before, after = find_nodes(old.nodes, changed_ids), find_nodes(new.nodes, changed_ids)
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
    filled = [part for part in parts if len(part)] or list(parts[:1])
    return filled[0] if len(filled) == 1 else np.unique(np.concatenate(filled), axis=0)


GONE = (SnapshotNotFoundError, ObjectNotFoundError, FormatError)
"""What is met where others expired and collected a commit after its history was walked.

A manifest that a snapshot names and that is not there is a FormatError.
"""
_WALKS = 20


@dataclass(frozen=True, slots=True)
class RefChoice:
    """A snapshot, named by exactly one of a branch, a tag or its id."""

    branch: str | None = None
    tag: str | None = None
    snapshot_id: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("branch", "tag", "snapshot_id") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidInputError(f"give one of branch, tag and snapshot_id, not {' and '.join(given)}")

    def or_main(self) -> RefChoice:
        """The same choice, or the branch `main` when nothing was chosen."""
        return self if self.branch or self.tag or self.snapshot_id else RefChoice(branch="main")


async def resolve(context: RepositoryContext, choice: RefChoice) -> ObjectId:
    """The snapshot id that a choice names."""
    if choice.branch is not None:
        return (await context.ledger.fetch_tip(choice.branch)).snapshot_id
    if choice.tag is not None:
        return await context.ledger.fetch_tag(choice.tag)
    if choice.snapshot_id is not None:
        return choice.snapshot_id
    raise InvalidInputError("give one of branch, tag and snapshot_id; none was given")


async def ancestry(context: RepositoryContext, choice: RefChoice) -> AsyncIterator[SnapshotInfo]:
    """A snapshot and its ancestors, newest first."""
    start, new_parents = await _resolve_history(context, choice)
    async for info in context.ledger.shown_history(start, new_parents):
        yield info


async def _resolve_history(
    context: RepositoryContext, choice: RefChoice
) -> tuple[ObjectId, Mapping[ObjectId, ObjectId] | None]:
    """The snapshot that a choice names, and the recorded new parents if they were read with it."""
    if choice.branch != MAIN:
        return await resolve(context, choice), None
    tip = await context.ledger.fetch_tip(MAIN)
    return tip.snapshot_id, tip.new_parents


async def resolve_as_of(context: RepositoryContext, choice: RefChoice, time: dt.datetime) -> ObjectId:
    """The newest snapshot in the history of a choice that was written at or before a time."""
    moment = check_zone(time, "as_of")
    oldest = None
    async for info in ancestry(context, choice):
        if info.written_at <= moment:
            return info.id
        oldest = info
    since = f"; its history begins at {oldest.written_at.isoformat()}" if oldest is not None else ""
    raise SnapshotNotFoundError(
        f"the branch had no commit at {moment.isoformat()}{since}", "no-snapshot-at-time", as_of=moment
    )


FetchLog = Callable[[ObjectId], Awaitable[TransactionLog]]
"""Fetches the log of a snapshot. May have begun to before it is called."""


async def fetch_log(
    context: RepositoryContext,
    snapshot: Snapshot,
    parent: Snapshot | None = None,
    wanted: Container[NodeId] | None = None,
    tip: Tip | None = None,
    fetch: FetchLog | None = None,
) -> TransactionLog:
    """What a snapshot changed: its log, or a comparison where the generation or an early writer left none.

    `parent` saves a request where the caller has it. With `wanted`, all changed chunks of these arrays are listed, and
    chunks of other arrays may be missing: their references are not compared. `tip` is given by who walked the history
    of it with `ancestry_at`: then expiry since that walk changes nothing. `fetch` is given by who fetches several logs
    at once.
    """
    logs: list[TransactionLog] = []
    if parent is not None and snapshot.metadata.get(REWRITTEN_PARENT_KEY) == parent.id:
        # Expiry adds the changes of expired ancestors to the log of a kept snapshot, also while this one is rebased.
        log = await compare_snapshots(parent, snapshot, context.metadata_files, chunks=False)
        if log.is_empty():
            return log
    if context.capabilities.transaction_logs:
        pruned = await context.ledger.fetch_pruned_logs(snapshot.id, tip)
        try:
            # Where expiry leaves no list of the logs that belong together, it rewrites the log of a kept snapshot.
            anew = not context.ledger.keeps_pruned_logs
            fetch = fetch or partial(context.metadata_files.fetch_transaction_log, anew=anew)
            logs = [await fetch(each) for each in (*pruned, snapshot.id)]
        except ObjectNotFoundError:
            logs = []
    if len(logs) == 1:
        if context.ledger.parents_change_unseen and parent is not None and is_cut_off(logs[0], parent, snapshot):
            return await compare_snapshots(parent, snapshot, context.metadata_files, wanted=wanted)
        return logs[0]
    if parent is None:
        parent_id = (await context.ledger.fetch_info(snapshot.id)).parent_id
        if parent_id is None:
            return reduce(merge_logs, logs, TransactionLog())
        parent = await context.metadata_files.fetch_snapshot_file(parent_id)
        return await fetch_log(context, snapshot, parent, wanted, tip, fetch)
    if not logs:
        return await compare_snapshots(parent, snapshot, context.metadata_files, wanted=wanted)
    return await join_logs(logs, parent, snapshot, context.metadata_files, wanted)


async def fetch_shown_log(context: RepositoryContext, snapshot: Snapshot, parent_id: ObjectId | None) -> TransactionLog:
    """What a snapshot changed against its parent in `Ledger.shown_history`.

    If that is not the parent in its file, its log contains the changes of its own commit only.
    """
    if parent_id is None or snapshot.parent_id == parent_id or not context.ledger.records_expiries:
        return await fetch_log(context, snapshot)
    parent = await context.metadata_files.fetch_snapshot(parent_id)
    between = await _snapshots_between(context, parent_id, snapshot.id)
    if between is None:
        return await compare_snapshots(parent, snapshot, context.metadata_files)
    logs = [await fetch_log(context, await context.metadata_files.fetch_snapshot(each)) for each in between]
    return fit_log(await join_logs(logs, parent, snapshot, context.metadata_files), parent, snapshot)


async def diff_between(context: RepositoryContext, old: ObjectId, new: ObjectId) -> Diff:
    """What changed from one snapshot to another. Raises SnapshotNotFoundError if one does not exist.

    Along one history the logs are read. Unrelated snapshots are compared. Others may expire and collect what is
    in between meanwhile: then the history is walked again.
    """
    cause: Exception = ConflictError(
        message=f"the history of {new} was expired again and again while it was read; try again"
    )
    for _ in range(_WALKS):
        before = await context.metadata_files.fetch_snapshot_file(old)
        after = await context.metadata_files.fetch_snapshot_file(new)
        try:
            found = await _diff(context, before, after)
        except GONE as error:
            # One of the two, which may still be remembered, or one in between?
            for end in (old, new):
                await context.metadata_files.fetch_snapshot_file(end, anew=True)
            cause = error
        else:
            if found is not None:
                return found
    raise cause


async def _diff(context: RepositoryContext, before: Snapshot, after: Snapshot) -> Diff | None:
    """What changed from one snapshot to another one; None when history was expired meanwhile."""
    between = await _snapshots_between(context, before.id, after.id)
    if between is None or not context.capabilities.transaction_logs:
        return diff_from_logs(before, after, [await compare_snapshots(before, after, context.metadata_files)])
    logs = [
        await fetch_log(context, await context.metadata_files.fetch_snapshot_file(snapshot_id))
        for snapshot_id in between
    ]
    found = diff_from_logs(before, after, logs, await chunks_in_boxes(after, logs, context.metadata_files))
    # Expiry adds the logs of what it takes away to the next one that stays, also those of commits before the first.
    return found if await _snapshots_between(context, before.id, after.id) == between else None


async def _snapshots_between(context: RepositoryContext, old: ObjectId, new: ObjectId) -> list[ObjectId] | None:
    """The commits after `old` up to `new`, oldest first; None when `old` is not an ancestor."""
    found: list[ObjectId] = []
    async for info in context.ledger.ancestry(new):
        if info.id == old:
            return found[::-1]
        found.append(info.id)
    return None
