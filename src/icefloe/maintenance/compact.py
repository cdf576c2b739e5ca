"""Rewrite chunks into packs or out of them, in batches that are committed one by one."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.display.card import TextCardMixin, format_bytes, format_count
from icefloe.errors import ConflictError, InvalidInputError, printable
from icefloe.ids import NodeId, ObjectId, new_chunk_id
from icefloe.ledger.ledger import Tip
from icefloe.maintenance.collect import list_all
from icefloe.maintenance.inventory import Listed, gather_bounded, id_keys, open_uncached, report_progress
from icefloe.manifests.cells import filter_box
from icefloe.manifests.chunk_columns import concat, find_rows, normalise, same_references, take, take_raw
from icefloe.manifests.manifest_plan import ManifestPlan, plan_repack
from icefloe.model.chunk_table import ChunkKind, ChunkTable, empty_table
from icefloe.model.snapshot import ArrayNode, Extents, Snapshot, TransactionLog
from icefloe.session.commit import (
    CommitRequest,
    advance_branch,
    apply_plan,
    check_references,
    replace_newest,
    write_manifests,
    write_snapshot,
)
from icefloe.session.open_repository import RepositoryContext
from icefloe.session.session_state import SessionState
from icefloe.storage.contract import Buffer


def hilbert_order(coords: npt.NDArray[np.uint32]) -> npt.NDArray[np.intp]:
    """The order of coordinates along a Hilbert curve through the smallest cube that contains them."""
    count, ndim = coords.shape
    if count < 2 or ndim == 0:
        return np.arange(count)
    if ndim == 1:
        return np.argsort(coords[:, 0], kind="stable")
    bits = max(int(coords.max()).bit_length(), 1)
    axes = _to_transposed(coords.astype(np.uint32).copy(), bits)
    # The transposed index contains the bits of the position: the highest bit of every axis first, then the next.
    columns = []
    for bit in range(bits - 1, -1, -1):
        columns += [(axes[:, axis] >> np.uint32(bit)) & np.uint32(1) for axis in range(ndim)]
    packed = np.packbits(np.stack(columns, axis=1).astype(np.uint8), axis=1)
    return np.lexsort(packed.T[::-1])


def _to_transposed(axes: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    """Skilling's transform of coordinates, for all rows at once."""
    ndim = axes.shape[1]
    bit = np.uint32(1 << (bits - 1))
    while bit > 1:
        below = np.uint32(bit - 1)
        for axis in range(ndim):
            is_set = (axes[:, axis] & bit) != 0
            axes[is_set, 0] ^= below
            swap = (axes[~is_set, 0] ^ axes[~is_set, axis]) & below
            axes[~is_set, 0] ^= swap
            axes[~is_set, axis] ^= swap
        bit = np.uint32(bit >> 1)
    for axis in range(1, ndim):
        axes[:, axis] ^= axes[:, axis - 1]
    flips = np.zeros(len(axes), dtype=np.uint32)
    bit = np.uint32(1 << (bits - 1))
    while bit > 1:
        flips[(axes[:, ndim - 1] & bit) != 0] ^= np.uint32(bit - 1)
        bit = np.uint32(bit >> 1)
    axes ^= flips[:, None]
    return axes


Keys = npt.NDArray[np.uint64]


class ChunkOrder(enum.Enum):
    """The order of chunks in packs."""

    CHUNK = "chunk"
    HILBERT = "hilbert"


class Layout(enum.Enum):
    """What a compaction does with chunks."""

    PACK = "pack"
    """Small chunks in separate objects, or in packs with unused bytes, are packed together."""
    UNPACK = "unpack"
    """Each chunk in a pack becomes a separate object."""
    MATERIALIZE = "materialize"
    """Virtual chunks are copied into the repository."""


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """The options of a compaction."""

    branch: str = "main"
    layout: Layout = Layout.PACK
    pattern: str = "/*"
    """Paths of arrays. `*` matches any text."""
    region: Extents | None = None
    """Only chunks in this box of the chunk grid."""
    order: ChunkOrder = ChunkOrder.CHUNK
    threshold_bytes: int = 256 << 10
    target_bytes: int = 8 << 20
    dead_share: float = 0.3
    """Packs with a larger share of bytes that the branch does not reference are rewritten."""
    batch_bytes: int = 128 << 20
    """The number of bytes in each commit."""
    message: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.dead_share <= 1:
            raise InvalidInputError(f"dead_share is {self.dead_share}, expected a number between 0 and 1")
        if self.target_bytes < 1 or self.batch_bytes < 1:
            raise InvalidInputError(
                "target_bytes is {self.target_bytes} and batch_bytes is {self.batch_bytes}, expected at least 1"
            )

    def wants(self, path: str) -> bool:
        """Whether an array is selected."""
        pattern = self.pattern if self.pattern.startswith("/") else "/" + self.pattern
        return fnmatchcase(path, pattern)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayRewrite:
    """The chunks of an array to rewrite, in this order."""

    node_id: NodeId
    path: str
    table: ChunkTable
    """Their references. Rows are sorted by coordinates."""
    order: npt.NDArray[np.intp]

    @property
    def size_bytes(self) -> int:
        return int(self.table.length.sum())


@dataclass(frozen=True, slots=True)
class CompactionPlan(TextCardMixin):
    """The chunks to rewrite."""

    request: CompactRequest
    snapshot_id: ObjectId
    arrays: tuple[ArrayRewrite, ...]

    @property
    def chunks(self) -> int:
        return sum(len(each.table) for each in self.arrays)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.arrays)

    def __str__(self) -> str:
        verb = self.request.layout.value
        lines = [
            f"to {verb} on branch {self.request.branch}: {format_count(self.chunks, 'chunk')}, "
            f"{format_bytes(self.size_bytes)}"
        ]
        lines += [f"  {each.path}: {len(each.table):,} chunks, {format_bytes(each.size_bytes)}" for each in self.arrays]
        return printable("\n".join(lines))


@dataclass(frozen=True, slots=True, eq=False)
class ObjectUse:
    """The chunk objects of a snapshot, sorted by key: bytes in use, references, total size."""

    keys: Keys
    used: npt.NDArray[np.int64]
    references: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]

    def rows_of(self, table: ChunkTable) -> npt.NDArray[np.intp]:
        assert table.object_id is not None
        return np.searchsorted(self.keys, id_keys(table.object_id))


def object_use(tables: Mapping[NodeId, ChunkTable], listed: Listed) -> ObjectUse:
    """The bytes of each object that are in use. An object that is not listed counts as fully used."""
    keys, lengths = [], []
    for table in tables.values():
        if table.object_id is not None:
            native = table.kind == ChunkKind.NATIVE
            keys.append(id_keys(table.object_id[native]))
            lengths.append(table.length[native].astype(np.int64))
    joined = np.concatenate(keys) if keys else np.empty(0, dtype=np.uint64)
    distinct, inverse, counts = np.unique(joined, return_inverse=True, return_counts=True)
    used = np.bincount(inverse, weights=np.concatenate(lengths) if lengths else None, minlength=len(distinct))
    size = used.astype(np.int64)
    order = np.argsort(id_keys(listed.ids), kind="stable")
    there = id_keys(listed.ids)[order]
    if len(there) and len(distinct):
        places = np.minimum(np.searchsorted(there, distinct), len(there) - 1)
        found = there[places] == distinct
        size[found] = listed.size[order][places][found]
    return ObjectUse(distinct, used.astype(np.int64), counts.astype(np.int64), size)


def choose_rows(table: ChunkTable, use: ObjectUse, request: CompactRequest) -> npt.NDArray[np.bool_]:
    """The references of the chunks of an array to rewrite."""
    if request.layout is Layout.MATERIALIZE:
        virtual: npt.NDArray[np.bool_] = table.kind == ChunkKind.VIRTUAL
        return virtual
    native = table.kind == ChunkKind.NATIVE
    if table.object_id is None or not native.any():
        return np.zeros(len(table), dtype=bool)
    rows = np.minimum(use.rows_of(table), max(len(use.keys) - 1, 0))
    shared = use.references[rows] > 1
    partial = use.used[rows] < use.size[rows]
    if request.layout is Layout.UNPACK:
        chosen: npt.NDArray[np.bool_] = native & (shared | partial)
        return chosen
    dead = (use.size[rows] - use.used[rows]) > request.dead_share * use.size[rows]
    small = (table.length <= request.threshold_bytes) & (use.size[rows] < request.target_bytes // 2)
    alone = small & (use.references[rows] == 1)
    chosen = native & (dead | alone)
    # Do not rewrite a single chunk, because that gains nothing.
    return chosen if int(np.count_nonzero(chosen)) > 1 or bool((chosen & dead).any()) else np.zeros_like(chosen)


def plan_array(
    node_id: NodeId, path: str, table: ChunkTable, use: ObjectUse, request: CompactRequest
) -> ArrayRewrite | None:
    """The plan of one array. None if there is nothing to do."""
    rows = np.flatnonzero(choose_rows(table, use, request))
    if not len(rows):
        return None
    chosen = take_raw(table, rows)
    order = hilbert_order(chosen.coords) if request.order is ChunkOrder.HILBERT else np.arange(len(rows))
    return ArrayRewrite(node_id, path, chosen, order)


REWRITTEN = "icefloe_rewritten_chunks"
"""Metadata of a commit that only moved bytes. Its log contains no chunks, so that it conflicts with no writer."""
_TRIES = 50
_PUTS_AT_ONCE = 8
_BATCH_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class CompactSummary(TextCardMixin):
    """The result of a compaction."""

    chunks: int = 0
    bytes_written: int = 0
    objects_written: int = 0
    commits: tuple[ObjectId, ...] = ()
    skipped: int = 0
    """Chunks that other writers replaced in the meantime. They were not rewritten."""

    def __str__(self) -> str:
        return (
            f"{self.chunks:,} chunks ({self.bytes_written:,} bytes) in {self.objects_written:,} new objects, "
            f"{len(self.commits)} commits, {self.skipped:,} chunks left as others wrote them"
        )


async def plan_compaction(context: RepositoryContext, request: CompactRequest) -> CompactionPlan:
    """Plan which chunks to rewrite."""
    tip = await context.ledger.fetch_tip(request.branch)
    state = SessionState(context, await context.metadata_files.fetch_snapshot(tip.snapshot_id))
    nodes = {node.id: node for node in state.tree.nodes() if isinstance(node, ArrayNode)}
    kind = ChunkKind.VIRTUAL if request.layout is Layout.MATERIALIZE else ChunkKind.NATIVE
    tables = {key: await _fetch_kind(state, node, kind) for key, node in nodes.items()}
    listed = (await list_all(open_uncached(context)))["chunks"]
    use = object_use(tables, listed)
    planned = []
    for key, node in nodes.items():
        if request.wants(node.path):
            table = filter_box(tables[key], request.region) if request.region is not None else tables[key]
            part = plan_array(key, node.path, table, use, request) if len(table) else None
            if part is not None:
                planned.append(part)
    return CompactionPlan(request, tip.snapshot_id, tuple(planned))


async def _fetch_kind(state: SessionState, node: ArrayNode, kind: ChunkKind) -> ChunkTable:
    """The references of one kind of an array. Others are never in memory together."""
    parts = []
    async for batch in state.chunk_batches(node, _BATCH_ROWS):
        rows = batch.kind == kind
        if rows.all():
            parts.append(batch)
        elif rows.any():
            parts.append(take(batch, np.flatnonzero(rows)))
    return concat(parts) if parts else empty_table(len(node.grid))


async def compact(context: RepositoryContext, plan: CompactionPlan) -> CompactSummary:
    """Apply a plan. An interrupted run keeps the batches that were committed."""
    await context.check_writable()
    total = CompactSummary()
    report_progress(f"{plan.request.layout.value} chunks", 0, plan.chunks)
    for number, batch in enumerate(_batches(plan)):
        done = await _apply_batch(context, plan.request, batch, number)
        total = CompactSummary(
            total.chunks + done.chunks,
            total.bytes_written + done.bytes_written,
            total.objects_written + done.objects_written,
            total.commits + done.commits,
            total.skipped + done.skipped,
        )
        report_progress(f"{plan.request.layout.value} chunks", total.chunks + total.skipped, plan.chunks)
    return total


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Some chunks of an array, in the order in which they are written."""

    array: ArrayRewrite
    rows: npt.NDArray[np.intp]


def _batches(plan: CompactionPlan) -> Iterator[list[_Piece]]:
    """Batches of chunks of arrays, each of about the batch size."""
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


async def _apply_batch(
    context: RepositoryContext, request: CompactRequest, batch: list[_Piece], number: int
) -> CompactSummary:
    first = await context.ledger.fetch_tip(request.branch)
    written: dict[NodeId, tuple[ChunkTable, ChunkTable]] = {}
    objects = 0
    for piece in batch:
        old = take_raw(piece.array.table, np.sort(piece.rows).astype(np.int64))
        new, count = await _write(context, request, piece)
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
            snapshot_id, kept = await _land(context, request.branch, first, commit, written)
        except ConflictError:
            if attempt == _TRIES - 1:
                raise
            continue
        size = sum(int(new.length.sum()) for _, new in written.values())
        commits = () if snapshot_id is None else (snapshot_id,)
        return CompactSummary(kept, size, objects, commits, total - kept)
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _write(context: RepositoryContext, request: CompactRequest, piece: _Piece) -> tuple[ChunkTable, int]:
    """Store some chunks. Returns their new references and the number of new objects."""
    table = piece.array.table
    bodies = await context.reader.fetch_many(table, piece.rows, array_path=piece.array.path)
    lengths = np.fromiter(map(len, bodies), dtype=np.uint64, count=len(bodies))
    limit = 0 if request.layout is Layout.UNPACK else request.target_bytes
    starts = _cut(lengths, limit, request.threshold_bytes)
    width = context.capabilities.object_id_bytes
    ids = np.empty((len(bodies), width), dtype=np.uint8)
    offset = np.empty(len(bodies), dtype=np.uint64)
    packs: list[tuple[bytes, list[Buffer]]] = []
    for low, high in zip(starts, [*starts[1:], len(bodies)], strict=True):
        object_id = new_chunk_id(width)
        ids[low:high] = np.frombuffer(object_id, dtype=np.uint8)
        offset[low:high] = np.cumsum(lengths[low:high]) - lengths[low:high]
        packs.append((object_id, bodies[low:high]))

    async def put(pack: tuple[bytes, list[Buffer]]) -> None:
        await context.storage.put(context.format.chunk_key(pack[0]), b"".join(pack[1]))

    await gather_bounded(put, packs, _PUTS_AT_ONCE)
    kind = np.full(len(bodies), ChunkKind.NATIVE, dtype=np.uint8)
    return normalise(ChunkTable(table.coords[piece.rows], kind, offset, lengths, ids)), len(packs)


def _cut(lengths: npt.NDArray[np.uint64], target: int, threshold: int) -> list[int]:
    """The first chunk of each object. Chunks are joined up to the target size. Larger chunks are separate objects."""
    starts: list[int] = []
    pack_bytes = target + 1
    alone = True
    for index, length in enumerate(lengths.tolist()):
        large = length > threshold
        if not starts or large or alone or pack_bytes + length > target:
            starts.append(index)
            pack_bytes = 0
        pack_bytes += length
        alone = large
    return starts


async def _land(
    context: RepositoryContext,
    branch: str,
    first: Tip,
    commit: CommitRequest,
    written: dict[NodeId, tuple[ChunkTable, ChunkTable]],
) -> tuple[ObjectId | None, int]:
    """Commit new references for the chunks that did not change since they were read. Returns their number.

    `first` is the snapshot of the branch before the chunks were written.
    """
    tip, base = await context.fetch_branch(branch)
    state = SessionState(context, base, tip=first)
    kept = 0
    for node in state.tree.nodes():
        if isinstance(node, ArrayNode) and node.id in written:
            old, new = written[node.id]
            current = await state.chunk_table(node)
            rows = find_rows(current, old.coords)
            there = np.flatnonzero(rows >= 0)
            same = there[same_references(take_raw(current, rows[there]), take_raw(old, there.astype(np.int64)))]
            if len(same):
                state.set_table(node, take(new, same))
                kept += len(same)
    if not kept:
        return None, 0
    flushed = await write_manifests(state)
    snapshot = await write_snapshot(SessionState(context, base), commit, manifests=flushed)
    await check_references(state, tip)
    await advance_branch(context, branch, tip, snapshot)
    return snapshot.id, kept


_REWRITE_TRIES = 20


@dataclass(frozen=True, slots=True)
class RewriteRequest:
    """The options of a rewrite."""

    branch: str
    message: str
    metadata: Mapping[str, Any]
    amends: bool = False
    """Whether the newest commit is replaced. Otherwise a commit is added."""


async def plan_rewrite(context: RepositoryContext, branch: str) -> ManifestPlan:
    """Plan how to pack the manifests of a branch."""
    return _plan((await _open(context, branch))[0])


async def rewrite_manifests(context: RepositoryContext, request: RewriteRequest) -> ObjectId:
    """Commit the same chunks in repacked manifests. Returns the snapshot.

    Concurrent commits are kept: the rewrite is repeated on top of them.
    """
    await context.check_writable()
    for attempt in range(_REWRITE_TRIES):
        state, tip = await _open(context, request.branch)
        plan = _plan(state)
        if not plan.outputs and not plan.kept:
            return tip.snapshot_id
        try:
            return await _apply(state, tip, plan, request)
        except ConflictError:
            if attempt == _REWRITE_TRIES - 1:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _open(context: RepositoryContext, branch: str) -> tuple[SessionState, Tip]:
    tip, base = await context.fetch_branch(branch)
    return SessionState(context, base), tip


def _plan(state: SessionState) -> ManifestPlan:
    arrays = [node for node in state.tree.nodes() if isinstance(node, ArrayNode)]
    return plan_repack(arrays, state.base.manifests, state.context.manifest_config)


async def _apply(state: SessionState, tip: Tip, plan: ManifestPlan, request: RewriteRequest) -> ObjectId:
    context = state.context
    report_progress("write manifests", 0, len(plan.outputs))
    flushed = await apply_plan(state, plan, {})
    report_progress("write manifests", len(plan.outputs), len(plan.outputs))
    commit = CommitRequest(request.message, request.metadata)
    if not request.amends:
        snapshot = await write_snapshot(state, commit, manifests=flushed)
        await advance_branch(context, request.branch, tip, snapshot)
        return snapshot.id

    async def write(tip: Tip, parent: Snapshot, earlier: TransactionLog) -> Snapshot:
        return await write_snapshot(state, commit, onto=parent, earlier=earlier, manifests=flushed)

    return (await replace_newest(context, request.branch, tip, state.base, write))[0].id
