"""Which chunks are written anew, in which order, so that they share objects, or no longer do."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from icefloe.display.amounts import format_bytes, format_count
from icefloe.errors import InvalidInputError, printable
from icefloe.ids import NodeId, ObjectId
from icefloe.maintenance.hilbert import hilbert_order
from icefloe.maintenance.listing import Listed, id_keys
from icefloe.manifests.merge import take_raw
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.nodes import Extents

Keys = npt.NDArray[np.uint64]


class ChunkOrder(enum.Enum):
    """The order of chunks in packs."""

    CHUNK = "chunk"
    HILBERT = "hilbert"


class Layout(enum.Enum):
    """What becomes of chunks."""

    PACK = "pack"
    """Small chunks that are alone, or in packs with dead bytes, are packed together."""
    UNPACK = "unpack"
    """Chunks in packs become objects of their own."""
    MATERIALIZE = "materialize"
    """Virtual chunks are copied into the repository."""


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """What is asked of a compaction."""

    branch: str = "main"
    layout: Layout = Layout.PACK
    pattern: str = "/*"
    """Paths of arrays; `*` stands for anything."""
    region: Extents | None = None
    """Only chunks in this box of the chunk grid."""
    order: ChunkOrder = ChunkOrder.CHUNK
    threshold_bytes: int = 256 << 10
    target_bytes: int = 8 << 20
    dead_share: float = 0.3
    """Packs of which a larger part is no longer named on the branch are written anew."""
    batch_bytes: int = 128 << 20
    """So much is written before it is committed."""
    message: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.dead_share <= 1:
            raise InvalidInputError(f"dead_share={self.dead_share}: expected a part between 0 and 1")
        if self.target_bytes < 1 or self.batch_bytes < 1:
            raise InvalidInputError("target_bytes and batch_bytes are at least 1")

    def wants(self, path: str) -> bool:
        """Whether an array is among those asked for."""
        pattern = self.pattern if self.pattern.startswith("/") else "/" + self.pattern
        return fnmatchcase(path, pattern)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayRewrite:
    """The chunks of an array that are written anew, in that order."""

    node_id: NodeId
    path: str
    table: ChunkTable
    """Their references; rows are sorted by coordinates."""
    order: npt.NDArray[np.intp]

    @property
    def size_bytes(self) -> int:
        return int(self.table.length.sum())


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What is written anew."""

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
        lines = [f"to {verb} on branch {self.request.branch}: {format_count(self.chunks, 'chunk')}, "
                 f"{format_bytes(self.size_bytes)}"]  # fmt: skip
        lines += [f"  {each.path}: {len(each.table):,} chunks, {format_bytes(each.size_bytes)}" for each in self.arrays]
        return printable("\n".join(lines))


@dataclass(frozen=True, slots=True, eq=False)
class ObjectUse:
    """The chunk objects that a snapshot names, by key in order: bytes in use, references, whole size."""

    keys: Keys
    used: npt.NDArray[np.int64]
    references: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]

    def rows_of(self, table: ChunkTable) -> npt.NDArray[np.intp]:
        assert table.object_id is not None
        return np.searchsorted(self.keys, id_keys(table.object_id))


def object_use(tables: Mapping[NodeId, ChunkTable], listed: Listed) -> ObjectUse:
    """How much of each object is in use; an object that is not listed counts as used whole."""
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
    """The references of an array whose chunks are written anew."""
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
    # One chunk that is alone stays alone: writing it anew gains nothing.
    return chosen if int(np.count_nonzero(chosen)) > 1 or bool((chosen & dead).any()) else np.zeros_like(chosen)


def plan_array(
    node_id: NodeId, path: str, table: ChunkTable, use: ObjectUse, request: CompactRequest
) -> ArrayRewrite | None:
    """The part of the plan of one array; None when nothing is to be done."""
    rows = np.flatnonzero(choose_rows(table, use, request))
    if not len(rows):
        return None
    chosen = take_raw(table, rows)
    order = hilbert_order(chosen.coords) if request.order is ChunkOrder.HILBERT else np.arange(len(rows))
    return ArrayRewrite(node_id, path, chosen, order)
