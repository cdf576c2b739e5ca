"""Writing chunks anew into packs or out of them, batch by batch, each committed on its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icefloe.errors import ConflictError
from icefloe.ids import NodeId, ObjectId, new_chunk_id
from icefloe.ledger.contract import Tip
from icefloe.maintenance.collect import list_all
from icefloe.maintenance.compact_plan import (
    ArrayRewrite,
    CompactionPlan,
    CompactRequest,
    Layout,
    object_use,
    plan_array,
)
from icefloe.maintenance.progress import tell
from icefloe.maintenance.reading import gather_bounded, read_anew
from icefloe.manifests.columns import concat, normalise, take
from icefloe.manifests.keys import find_rows
from icefloe.manifests.merge import same_references, take_raw
from icefloe.manifests.split import filter_box
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.nodes import ArrayNode
from icefloe.session.collected import check_references
from icefloe.session.commit import CommitRequest, advance_branch, flush_snapshot
from icefloe.session.engine import Engine
from icefloe.session.history import fetch_branch
from icefloe.session.manifest_flush import flush_manifests
from icefloe.session.workspace import Workspace
from icefloe.storage.contract import Buffer

REWRITTEN = "icefloe_rewritten_chunks"
"""Metadata of a commit that moved bytes and changed none: its log tells of no chunks, so that writers do not clash."""
_TRIES = 50
_PUTS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class CompactSummary:
    """What a compaction did."""

    chunks: int = 0
    bytes_written: int = 0
    objects_written: int = 0
    commits: tuple[ObjectId, ...] = ()
    skipped: int = 0
    """Chunks that others replaced in the meantime: theirs stay."""

    def __str__(self) -> str:
        return (
            f"{self.chunks:,} chunks ({self.bytes_written:,} bytes) in {self.objects_written:,} new objects, "
            f"{len(self.commits)} commits, {self.skipped:,} chunks left as others wrote them"
        )


async def plan_compaction(engine: Engine, request: CompactRequest) -> CompactionPlan:
    """Which chunks would be written anew now."""
    tip = await engine.ledger.fetch_tip(request.branch)
    work = Workspace(engine, await engine.archive.fetch_snapshot(tip.snapshot_id))
    nodes = {node.id: node for node in work.tree.nodes() if isinstance(node, ArrayNode)}
    tables = {key: await work.chunk_table(node) for key, node in nodes.items()}
    listed = (await list_all(read_anew(engine)))["chunks"]
    use = object_use(tables, listed)
    planned = []
    for key, node in nodes.items():
        if request.wants(node.path):
            table = filter_box(tables[key], request.region) if request.region is not None else tables[key]
            part = plan_array(key, node.path, table, use, request) if len(table) else None
            if part is not None:
                planned.append(part)
    return CompactionPlan(request, tip.snapshot_id, tuple(planned))


async def compact(engine: Engine, plan: CompactionPlan) -> CompactSummary:
    """Carry a plan out; whoever is interrupted keeps the batches that were committed."""
    await engine.check_writable()
    total = CompactSummary()
    tell(f"{plan.request.layout.value} chunks", 0, plan.chunks)
    for number, batch in enumerate(_batches(plan)):
        done = await _apply_batch(engine, plan.request, batch, number)
        total = CompactSummary(
            total.chunks + done.chunks,
            total.bytes_written + done.bytes_written,
            total.objects_written + done.objects_written,
            total.commits + done.commits,
            total.skipped + done.skipped,
        )
        tell(f"{plan.request.layout.value} chunks", total.chunks + total.skipped, plan.chunks)
    return total


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Some chunks of an array, in the order in which they are written."""

    array: ArrayRewrite
    rows: npt.NDArray[np.intp]


def _batches(plan: CompactionPlan) -> Iterator[list[_Piece]]:
    """Pieces of arrays that together come to about the size of a batch."""
    batch: list[_Piece] = []
    left = plan.request.batch_bytes
    for array in plan.arrays:
        first = 0
        ends = np.cumsum(array.table.length[array.order].astype(np.int64))
        while first < len(ends):
            done = int(ends[first - 1]) if first else 0
            after = max(int(np.searchsorted(ends, done + left, side="right")), first + 1)
            batch.append(_Piece(array, array.order[first:after]))
            left -= int(ends[after - 1]) - done
            first = after
            if left <= 0 or first < len(ends):
                yield batch
                batch, left = [], plan.request.batch_bytes
    if batch:
        yield batch


async def _apply_batch(engine: Engine, request: CompactRequest, batch: list[_Piece], number: int) -> CompactSummary:
    first = await engine.ledger.fetch_tip(request.branch)
    written: dict[NodeId, tuple[ChunkTable, ChunkTable]] = {}
    objects = 0
    for piece in batch:
        old = take_raw(piece.array.table, np.sort(piece.rows).astype(np.int64))
        new, count = await _write(engine, request, piece)
        objects += count
        key = piece.array.node_id
        if key in written:
            old, new = concat([written[key][0], old]), concat([written[key][1], new])
        written[key] = (old, new)
    message = request.message or f"{request.layout.value.capitalize()} chunks"
    commit = CommitRequest(message, {REWRITTEN: request.layout.value, "batch": number}, only_moves_chunks=True)
    total = sum(len(new) for _, new in written.values())
    for attempt in range(_TRIES):
        try:
            snapshot_id, kept = await _land(engine, request.branch, first, commit, written)
        except ConflictError:
            if attempt == _TRIES - 1:
                raise
            continue
        size = sum(int(new.length.sum()) for _, new in written.values())
        commits = () if snapshot_id is None else (snapshot_id,)
        return CompactSummary(kept, size, objects, commits, total - kept)
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _write(engine: Engine, request: CompactRequest, piece: _Piece) -> tuple[ChunkTable, int]:
    """Store the chunks of a piece; their new references, and how many objects hold them."""
    table = piece.array.table
    bodies = await engine.reader.fetch_many(table, piece.rows, array_path=piece.array.path)
    lengths = np.fromiter(map(len, bodies), dtype=np.uint64, count=len(bodies))
    limit = 0 if request.layout is Layout.UNPACK else request.target_bytes
    starts = _cut(lengths, limit, request.threshold_bytes)
    width = engine.capabilities.object_id_bytes
    ids = np.empty((len(bodies), width), dtype=np.uint8)
    offset = np.empty(len(bodies), dtype=np.uint64)
    packs: list[tuple[bytes, list[Buffer]]] = []
    for low, high in zip(starts, [*starts[1:], len(bodies)], strict=True):
        object_id = new_chunk_id(width)
        ids[low:high] = np.frombuffer(object_id, dtype=np.uint8)
        offset[low:high] = np.cumsum(lengths[low:high]) - lengths[low:high]
        packs.append((object_id, bodies[low:high]))

    async def put(pack: tuple[bytes, list[Buffer]]) -> None:
        await engine.storage.put(engine.format.chunk_key(pack[0]), b"".join(pack[1]))

    await gather_bounded(put, packs, _PUTS_AT_ONCE)
    kind = np.full(len(bodies), ChunkKind.NATIVE, dtype=np.uint8)
    return normalise(ChunkTable(table.coords[piece.rows], kind, offset, lengths, ids)), len(packs)


def _cut(lengths: npt.NDArray[np.uint64], target: int, threshold: int) -> list[int]:
    """Where objects begin: chunks are gathered up to the target, those above the threshold stay alone."""
    starts: list[int] = []
    held = target + 1
    alone = True
    for index, length in enumerate(lengths.tolist()):
        large = length > threshold
        if not starts or large or alone or held + length > target:
            starts.append(index)
            held = 0
        held += length
        alone = large
    return starts


async def _land(
    engine: Engine,
    branch: str,
    first: Tip,
    commit: CommitRequest,
    written: dict[NodeId, tuple[ChunkTable, ChunkTable]],
) -> tuple[ObjectId | None, int]:
    """Commit new references for the chunks that are still as they were read; how many that are.

    `first` is where the branch stood before the chunks were written.
    """
    tip, base = await fetch_branch(engine, branch)
    work = Workspace(engine, base, tip=first)
    kept = 0
    for node in work.tree.nodes():
        if isinstance(node, ArrayNode) and node.id in written:
            old, new = written[node.id]
            current = await work.chunk_table(node)
            rows = find_rows(current, old.coords)
            there = np.flatnonzero(rows >= 0)
            same = there[same_references(take_raw(current, rows[there]), take_raw(old, there.astype(np.int64)))]
            if len(same):
                work.set_table(node, take(new, same))
                kept += len(same)
    if not kept:
        return None, 0
    flushed = await flush_manifests(work)
    snapshot = await flush_snapshot(Workspace(engine, base), commit, manifests=flushed)
    await check_references(work, tip)
    await advance_branch(engine, branch, tip, snapshot)
    return snapshot.id, kept
