"""Rewrite chunks into packs or out of them, or merge them, in batches that are committed one by one.

A merge makes larger chunks of neighbouring small ones along a dimension. The array gets a variable chunk grid: its old
chunks are large, and its newest ones stay small. The references of chunks behind merged ones move to new coordinates.
So the commit of a merge conflicts with every concurrent change of the array.
"""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from icefloe.codec_pipeline import has_variable_grids, variable_grid_advice
from icefloe.display.card import TextCardMixin, format_bytes, format_count
from icefloe.errors import ConflictError, IcefloeError, InvalidInputError, UnsupportedError, printable
from icefloe.ids import NodeId, ObjectId, new_chunk_id
from icefloe.ledger.ledger import Tip
from icefloe.maintenance.collect import list_all
from icefloe.maintenance.inventory import Listed, gather_bounded, id_keys, open_uncached, report_progress
from icefloe.manifests.cells import filter_box
from icefloe.manifests.chunk_columns import concat, find_rows, normalise, overlay, same_references, take, take_raw
from icefloe.manifests.manifest_plan import ManifestPlan, plan_repack
from icefloe.model.chunk_table import ChunkKind, ChunkTable, empty_table, tombstones
from icefloe.model.snapshot import ArrayNode, Extents, Snapshot, SnapshotInfo, TransactionLog
from icefloe.model.zarr_document import ChunkLengths, document_key, grid_document, parse_document, parse_grid
from icefloe.session.commit import advance_branch, check_references, replace_newest
from icefloe.session.commit_files import CommitRequest, apply_plan, write_manifests, write_snapshot
from icefloe.session.open_repository import RepositoryContext, register_writer
from icefloe.session.rebase import ConflictDetector
from icefloe.session.session import Session, SessionMode
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
    MERGE = "merge"
    """Neighbouring small chunks along a dimension become one larger chunk."""


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
    merge: tuple[str, int] | None = None
    """The dimension along which chunks are merged, and the largest number of cells of a merged chunk along it."""
    keep: int = 0
    """The number of the last cells along that dimension whose chunks are not merged."""

    def __post_init__(self) -> None:
        if (self.merge is None) is (self.layout is Layout.MERGE):
            raise InvalidInputError(f"layout is {self.layout.value} and merge is {self.merge}: they belong together")
        if (self.merge is not None and self.merge[1] < 1) or self.keep < 0:
            raise InvalidInputError(
                f"merge is {self.merge} and keep is {self.keep}, expected a length of at least 1, and at least 0 cells "
                "to keep"
            )
        if self.merge is not None and self.region is not None:
            raise InvalidInputError("a merge has no region: it changes the chunk grid of whole arrays. Use keep")
        if not 0 <= self.dead_share <= 1:
            raise InvalidInputError(f"dead_share is {self.dead_share}, expected a number between 0 and 1")
        if self.target_bytes < 1 or self.batch_bytes < 1:
            raise InvalidInputError(
                f"target_bytes is {self.target_bytes} and batch_bytes is {self.batch_bytes}, expected at least 1"
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

    def plus(self, other: CompactSummary) -> CompactSummary:
        """Return the result of both."""
        return CompactSummary(
            self.chunks + other.chunks,
            self.bytes_written + other.bytes_written,
            self.objects_written + other.objects_written,
            self.commits + other.commits,
            self.skipped + other.skipped,
        )

    def __str__(self) -> str:
        return (
            f"{self.chunks:,} chunks ({self.bytes_written:,} bytes) in {self.objects_written:,} new objects, "
            f"{len(self.commits)} commits, {self.skipped:,} chunks left as others wrote them"
        )


async def plan_compaction(context: RepositoryContext, request: CompactRequest) -> CompactionPlan:
    """Plan which chunks to rewrite."""
    if request.layout is Layout.MERGE:
        return await _plan_merges(context, request)
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
    if plan.request.layout is Layout.MERGE:
        for array in plan.arrays:
            async for done in _merge_array(context, plan.request, array.path):
                total = total.plus(done)
                report_progress("merge chunks", total.chunks, max(total.chunks, plan.chunks))
        return total
    for number, batch in enumerate(_batches(plan)):
        done = await _apply_batch(context, plan.request, batch, number)
        total = total.plus(done)
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


MERGED = "icefloe_merged_chunks"
"""Metadata of a commit that only merged chunks of an array: its path, and the parent of the commit."""
_COPIES_AT_ONCE = 2
"""The number of merged chunks in memory."""


def merged_array(info: SnapshotInfo) -> str | None:
    """The path of the array of which a commit merged chunks, if it changed nothing else. Otherwise None.

    An expiry may give the commit another parent, and with it the changes of the commits in between.
    """
    facts = info.metadata.get(MERGED)
    if not isinstance(facts, Mapping) or info.parent_id is None or facts.get("onto") != str(info.parent_id):
        return None
    return str(facts.get("array"))


def plan_merge(lengths: Sequence[int], extent: int, length: int, keep: int = 0) -> list[tuple[int, int]]:
    """Return [first, end) of the chunks that become one chunk of at most `length` cells each.

    The last `keep` cells keep their chunks, and the last chunk is never merged: chunks that are appended later are as
    long as it is. Chunks wait until no further one fits, so that no cell is merged twice.

    Parameters
    ----------
    lengths
        The lengths of the chunks along a dimension.
    extent
        The length of the array along it. The last chunk may end behind it.
    length
        The largest length of a merged chunk.
    keep
        The number of last cells whose chunks stay.

    Returns
    -------
    list of tuple
        Ascending ranges of chunks, of at least two chunks each.

    Examples
    --------
    >>> plan_merge([1] * 10, 10, 4)
    [(0, 4), (4, 8)]
    >>> plan_merge([31, 28, 31, 30], 120, 60, keep=30)
    [(0, 2)]
    """
    groups: list[tuple[int, int]] = []
    first, size, end = 0, 0, 0
    for index, each in enumerate(lengths):
        end += each
        if end > extent - max(1, keep):
            break
        if size + each > length:
            groups.append((first, index))
            first, size = index, 0
        size += each
        if size >= length:
            groups.append((first, index + 1))
            first, size = index + 1, 0
    return [(low, high) for low, high in groups if high - low > 1]


@dataclass(frozen=True, slots=True)
class _ArrayMerge:
    """The chunks of an array that become larger ones."""

    node: ArrayNode
    present: tuple[ChunkLengths, ...]
    """The present chunk lengths."""
    axis: int
    lengths: tuple[int, ...]
    """The present lengths along the axis."""
    groups: tuple[tuple[int, int], ...]

    @property
    def box(self) -> Extents:
        """The part of the present grid that changes: everything from the first merged chunk on."""
        return tuple(
            (self.groups[0][0] if axis == self.axis else 0, count) for axis, count in enumerate(self.node.grid)
        )

    @property
    def starts(self) -> list[int]:
        """The first present chunk of each new chunk."""
        inner = {index for low, high in self.groups for index in range(low + 1, high)}
        return [index for index in range(len(self.lengths)) if index not in inner]

    @property
    def grid(self) -> tuple[ChunkLengths, ...]:
        """The new chunk lengths."""
        bounds = pairwise([*self.starts, len(self.lengths)])
        merged = ChunkLengths(tuple(sum(self.lengths[low:high]) for low, high in bounds))
        return tuple(merged if axis == self.axis else each for axis, each in enumerate(self.present))

    def up_to(self, size_bytes: int, table: ChunkTable) -> _ArrayMerge:
        """The first groups whose chunks have about a size, at least one group."""
        sizes = np.bincount(table.coords[:, self.axis], weights=table.length, minlength=len(self.lengths))
        ends = np.cumsum([sizes[low:high].sum() for low, high in self.groups])
        chosen = max(1, int(np.searchsorted(ends, size_bytes, side="right")))
        return replace(self, groups=self.groups[:chosen])

    def rows(self, table: ChunkTable) -> npt.NDArray[np.intp]:
        """The references of a table that are merged."""
        inside = np.zeros(len(self.lengths) + 1, dtype=bool)
        for low, high in self.groups:
            inside[low:high] = True
        return np.flatnonzero(inside[table.coords[:, self.axis]])

    def moved(self, table: ChunkTable) -> ChunkTable:
        """The references that are not merged, at their new coordinates."""
        place = np.full(len(self.lengths) + 1, -1, dtype=np.int64)
        for new, (low, high) in enumerate(pairwise([*self.starts, len(self.lengths)])):
            if high - low == 1:
                place[low] = new
        target = place[table.coords[:, self.axis]]
        kept = take(table, np.flatnonzero(target >= 0))
        coords = kept.coords.copy()
        coords[:, self.axis] = target[target >= 0]
        return replace(kept, coords=coords)

    def regions(self, table: ChunkTable) -> Iterator[tuple[slice, ...]]:
        """The cells of every merged chunk of which the array has some chunk."""
        others = [axis for axis in range(len(self.node.shape)) if axis != self.axis]
        first = np.cumsum([0, *self.lengths])
        grid = self.present
        for low, high in self.groups:
            inside = (table.coords[:, self.axis] >= low) & (table.coords[:, self.axis] < high)
            for place in np.unique(table.coords[inside][:, others], axis=0).tolist():
                bounds = dict(zip(others, place, strict=True))
                yield tuple(
                    slice(int(first[low]), int(first[high]))
                    if axis == self.axis
                    else slice(grid[axis].start(bounds[axis]), min(grid[axis].start(bounds[axis] + 1), length))
                    for axis, length in enumerate(self.node.shape)
                )


def _find_merge(context: RepositoryContext, request: CompactRequest, node: ArrayNode) -> _ArrayMerge | None:
    """The merge of an array, or None if there is nothing to merge. Raises if it cannot have the new grid."""
    assert request.merge is not None
    dim, length = request.merge
    if dim not in (node.dimension_names or ()):
        return None
    axis = (node.dimension_names or ()).index(dim)
    extent, present = node.shape[axis], parse_grid(parse_document(node.document, node.path))
    lengths = present[axis].of(extent)
    groups = plan_merge(lengths, extent, length, request.keep)
    if not groups:
        return None
    if not context.capabilities.any_chunk_grid:
        raise UnsupportedError(
            f"{node.path} cannot have chunks of different lengths: generation "
            f"{context.format.spec_version.value!r} has regular chunk grids only. Use rechunk, or convert it",
            path=node.path,
        )
    if not has_variable_grids():
        raise UnsupportedError(
            f"merged chunks of {node.path} differ in length from the others, which zarr does not use here. "
            f"{variable_grid_advice()}",
            path=node.path,
        )
    return _ArrayMerge(node, present, axis, lengths, tuple(groups))


async def _fetch_merged(state: SessionState, merge: _ArrayMerge) -> ChunkTable:
    """The references of the part of an array that a merge changes."""
    table = await state.chunk_table(merge.node, merge.box)
    if bool((table.kind == ChunkKind.VIRTUAL).any()):
        raise InvalidInputError(
            f"{merge.node.path} has virtual chunks, which are parts of other files and cannot be merged. Run "
            "`materialize` first, or leave the array out with `arrays`",
            path=merge.node.path,
        )
    return table


async def _plan_merges(context: RepositoryContext, request: CompactRequest) -> CompactionPlan:
    """Plan the merges of all arrays, so that an array that cannot be merged is found before anything is written."""
    assert request.merge is not None
    tip, base = await context.fetch_branch(request.branch)
    state = SessionState(context, base)
    planned: list[ArrayRewrite] = []
    nodes = [node for node in state.tree.nodes() if isinstance(node, ArrayNode) and request.wants(node.path)]
    for node in nodes:
        merge = _find_merge(context, request, node)
        if merge is not None:
            table = await _fetch_merged(state, merge)
            chosen = take_raw(table, merge.rows(table))
            planned.append(ArrayRewrite(node.id, node.path, chosen, np.arange(len(chosen))))
    if not any(request.merge[0] in (node.dimension_names or ()) for node in nodes):
        raise InvalidInputError(f"no selected array of branch {request.branch} has the dimension {request.merge[0]!r}")
    return CompactionPlan(request, tip.snapshot_id, tuple(planned))


async def _merge_array(context: RepositoryContext, request: CompactRequest, path: str) -> AsyncIterator[CompactSummary]:
    """Merge the chunks of an array, with a commit for each batch. A conflict with another commit repeats its batch."""
    conflicts = 0
    while True:
        tip, base = await context.fetch_branch(request.branch)
        session = Session(context, base, mode=SessionMode.WRITABLE, branch=request.branch, tip=tip)
        register_writer(session, context.storage)
        node = session.state.tree.find(path)
        merge = _find_merge(context, request, node) if isinstance(node, ArrayNode) else None
        if merge is None:
            return
        table = await _fetch_merged(session.state, merge)
        merge = merge.up_to(request.batch_bytes, table)
        await _write_merged(context, session, base, merge, table)
        try:
            snapshot_id = await _commit_merged(session, request, merge)
        except ConflictError:
            conflicts += 1
            if conflicts == _TRIES:
                raise
            continue
        yield await _summarise_merge(session, merge, snapshot_id, len(merge.rows(table)))


async def _write_merged(
    context: RepositoryContext, session: Session, base: Snapshot, merge: _ArrayMerge, table: ChunkTable
) -> None:
    """Change the grid of an array, move its references, and write the merged chunks one by one."""
    state, path = session.state, merge.node.path
    stored = parse_document(await state.fetch_document(path) or b"", path)
    document = {**stored, "chunk_grid": grid_document(merge.grid)}
    await session.keyspace.write(document_key(path), json.dumps(document, indent=2).encode())
    node = state.tree.array(path)
    inside = (table.coords < np.asarray(node.grid)).all(axis=1)
    state.set_table(node, overlay(tombstones(table.coords[inside]), merge.moved(table)))
    before = Session(context, base)
    name = path.strip("/")
    old = await asyncio.to_thread(zarr.open_array, before.store, path=name, mode="r", zarr_format=3)
    new = await asyncio.to_thread(zarr.open_array, session.store, path=name, mode="r+", zarr_format=3)

    def copy(region: tuple[slice, ...]) -> None:
        new[region] = old[region]

    async def copy_later(region: tuple[slice, ...]) -> None:
        try:
            await asyncio.to_thread(copy, region)
        except IcefloeError:
            raise
        except Exception as error:
            raise UnsupportedError(
                f"zarr cannot write merged chunks of {path}: {type(error).__name__}: {error}. Leave the array out with "
                "`arrays`",
                path=path,
            ) from error

    await gather_bounded(copy_later, merge.regions(table), _COPIES_AT_ONCE)


async def _commit_merged(session: Session, request: CompactRequest, merge: _ArrayMerge) -> ObjectId:
    """Commit a merge, on top of concurrent commits that did not change the array.

    The metadata name the parent, so that the commit is made again after each rebase.
    """
    assert request.merge is not None
    dim, path = request.merge[0], merge.node.path
    message = request.message or f"Merge chunks of {path} along {dim}"
    for _ in range(_TRIES):
        facts = {"array": path.strip("/"), "dimension": dim, "onto": str(session.snapshot_id)}
        try:
            return await session.commit_async(message, {MERGED: facts})
        except ConflictError:
            await session.rebase_async(ConflictDetector())
    raise ConflictError(message=f"branch {request.branch} got a new commit during each of {_TRIES} attempts")


async def _summarise_merge(session: Session, merge: _ArrayMerge, snapshot_id: ObjectId, chunks: int) -> CompactSummary:
    node = session.state.tree.array(merge.node.path)
    place = {low: new for new, low in enumerate(merge.starts)}
    written = [place[low] for low, _ in merge.groups]
    box = tuple(
        (written[0], written[-1] + 1) if axis == merge.axis else (0, count) for axis, count in enumerate(node.grid)
    )
    table = await session.state.chunk_table(node, box)
    table = take_raw(table, np.flatnonzero(np.isin(table.coords[:, merge.axis], written)))
    native = table.kind == ChunkKind.NATIVE
    objects = 0 if table.object_id is None else len(np.unique(table.object_id[native], axis=0))
    return CompactSummary(chunks, int(table.length.sum()), objects, (snapshot_id,))


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
    return await _plan((await _open(context, branch))[0])


async def rewrite_manifests(context: RepositoryContext, request: RewriteRequest) -> ObjectId:
    """Commit the same chunks in repacked manifests. Returns the snapshot.

    Concurrent commits are kept: the rewrite is repeated on top of them.
    """
    await context.check_writable()
    for attempt in range(_REWRITE_TRIES):
        state, tip = await _open(context, request.branch)
        plan = await _plan(state)
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


async def _plan(state: SessionState) -> ManifestPlan:
    base = await state.fetch_base()
    arrays = [node for node in state.tree.nodes() if isinstance(node, ArrayNode)]
    return plan_repack(arrays, base.manifests, state.context.manifest_config)


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
