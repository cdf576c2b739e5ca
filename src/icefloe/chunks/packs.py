"""Small chunks of a session, gathered until they are written together as packs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import numpy.typing as npt

from icefloe.blocking import fork_safe_lock
from icefloe.errors import InvalidInputError
from icefloe.ids import OBJECT_ID_BYTES, NodeId, new_chunk_id
from icefloe.model.chunk_table import ChunkKind, ChunkTable, ChunkTables, Coords, batches_up_to
from icefloe.model.config import ChunkPackingConfig, PackBy, RepositoryConfig
from icefloe.storage.contract import Buffer


@dataclass(frozen=True, slots=True)
class PackingPolicy:
    """Which chunks are packed, with every default filled in."""

    inline_bytes: int
    """Chunks up to this size never get here: they are inline."""
    threshold_bytes: int
    target_bytes: int
    per_array: bool = False

    def takes(self, size_bytes: int) -> bool:
        """Whether a chunk of this size is packed."""
        return self.inline_bytes < size_bytes <= self.threshold_bytes

    @property
    def buffer_bytes(self) -> int:
        """The bytes gathered before full packs are written: enough to pack neighbouring chunks together."""
        return 2 * self.target_bytes


def packing_policy(config: RepositoryConfig, *, packs_by_default: bool = True) -> PackingPolicy:
    """The policy of a configuration; packing that is switched off takes nothing."""
    packing = config.chunk_packing or ChunkPackingConfig(enabled=packs_by_default)
    target = packing.effective("target_bytes")
    threshold = min(packing.effective("threshold_bytes"), target) if packing.effective("enabled") else 0
    return PackingPolicy(
        inline_bytes=config.effective("inline_chunk_threshold_bytes"),
        threshold_bytes=threshold,
        target_bytes=target,
        per_array=packing.effective("by") is PackBy.ARRAY,
    )


@dataclass(frozen=True, slots=True)
class SealedPack:
    """One object to write, and the references into it."""

    object_id: bytes
    data: bytes
    tables: ChunkTables

    def __len__(self) -> int:
        return len(self.tables.rows)


class PackBuilder:
    """The chunks of one session that wait for their pack; the newest bytes of a chunk replace older ones.

    Its memory is the chunks themselves: a caller that seals what is full whenever `is_full` says so holds at most
    `policy.buffer_bytes` and one chunk.
    """

    def __init__(self, policy: PackingPolicy, *, id_bytes: int = OBJECT_ID_BYTES) -> None:
        self.policy = policy
        self._id_bytes = id_bytes
        self._chunks: dict[NodeId, dict[Coords, bytes]] = {}
        self._size_bytes = 0
        # A session may be written to from its own loop and from zarr's.
        self._lock = fork_safe_lock()

    def __len__(self) -> int:
        return sum(len(chunks) for chunks in self._chunks.values())

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def is_full(self) -> bool:
        """Whether `seal_full` has something to do and is due."""
        return self._size_bytes >= self.policy.buffer_bytes

    def add(self, node_id: NodeId, coords: Coords, data: Buffer) -> None:
        """Add a chunk. It replaces an earlier version of itself."""
        content = bytes(data)
        if not content:
            raise InvalidInputError(f"chunk {coords} is empty and cannot be packed")
        with self._lock:
            chunks = self._chunks.setdefault(node_id, {})
            before = chunks.get(coords)
            if before is None and chunks and len(next(iter(chunks))) != len(coords):
                raise InvalidInputError(
                    f"chunk {coords} has another number of dimensions than the other chunks of its array"
                )
            chunks[coords] = content
            self._size_bytes += len(content) - (0 if before is None else len(before))

    def find(self, node_id: NodeId, coords: Coords) -> bytes | None:
        """The bytes of a chunk that waits here."""
        chunks = self._chunks.get(node_id)
        return None if chunks is None else chunks.get(coords)

    def discard(self, node_id: NodeId, coords: Coords) -> bool:
        """Drop a chunk; whether it was here."""
        with self._lock:
            chunks = self._chunks.get(node_id)
            if chunks is None or coords not in chunks:
                return False
            self._size_bytes -= len(chunks.pop(coords))
            if not chunks:
                del self._chunks[node_id]
            return True

    def discard_node(self, node_id: NodeId) -> None:
        """Drop all chunks of an array."""
        with self._lock:
            self._size_bytes -= sum(map(len, self._chunks.pop(node_id, {}).values()))

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._chunks = {}
            self._size_bytes = 0

    def seal(self, record: Callable[[SealedPack], None] | None = None) -> list[SealedPack]:
        """Everything that waits, as packs; nothing is left here.

        `record` is called with each pack before its chunks leave, so that no reader on another thread finds a gap; it
        must not call the builder.
        """
        with self._lock:
            packs = list(_build(self._chunks, self.policy, self._id_bytes))
            for pack in packs if record is not None else ():
                record(pack)  # type: ignore[misc]
            self._chunks, self._size_bytes = {}, 0
        return packs

    def seal_full(self, record: Callable[[SealedPack], None] | None = None) -> list[SealedPack]:
        """The packs that reached their target; less than one pack's worth of chunks stays. `record` as in `seal`."""
        with self._lock:
            packs = sorted(_build(self._chunks, self.policy, self._id_bytes), key=lambda pack: -len(pack.data))
            left_bytes = self._size_bytes
            sealed = []
            for pack in packs:
                if left_bytes < self.policy.target_bytes:
                    break
                sealed.append(pack)
                left_bytes -= len(pack.data)
            for pack in sealed:
                if record is not None:
                    record(pack)
                self._drop(pack.tables)
            self._size_bytes = left_bytes
        return sealed

    def _drop(self, tables: ChunkTables) -> None:
        """Forget the chunks that some tables name."""
        coords = iter(tables.rows.coords.tolist())
        for node_id, count, ndim in zip(tables.nodes, tables.counts.tolist(), tables.ndims.tolist(), strict=True):
            chunks = self._chunks[node_id]
            for row in islice(coords, count):
                del chunks[tuple(row[:ndim])]
            if not chunks:
                del self._chunks[node_id]

    def __reduce__(self) -> str:
        raise TypeError("a PackBuilder contains unwritten chunks and cannot be pickled")


@dataclass(frozen=True, slots=True)
class _Rows:
    """All chunks of some arrays, one array after the other, in chunk order within each."""

    nodes: Sequence[NodeId]
    ndims: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    """Where the chunks of every array end."""
    coords: npt.NDArray[np.uint32]
    """As wide as the largest rank, zero beyond an array's own."""
    lengths: npt.NDArray[np.uint64]
    data: Sequence[bytes]


def _build(
    chunks: Mapping[NodeId, Mapping[Coords, bytes]], policy: PackingPolicy, id_bytes: int
) -> Iterator[SealedPack]:
    """Packs of chunks in (array, chunk) order, each up to the target size."""
    filled = {node_id: each for node_id, each in chunks.items() if each}
    for group in [{key: each} for key, each in filled.items()] if policy.per_array else [filled]:
        if group:
            yield from _cut(_order(group), policy.target_bytes, id_bytes)


def _order(chunks: Mapping[NodeId, Mapping[Coords, bytes]]) -> _Rows:
    ndims = np.fromiter((len(next(iter(each))) for each in chunks.values()), dtype=np.int64, count=len(chunks))
    counts = np.fromiter(map(len, chunks.values()), dtype=np.int64, count=len(chunks))
    keys = list(chain.from_iterable(chunks.values()))
    width = int(ndims.max())
    if int(ndims.min()) < width:
        keys = [key + (0,) * (width - len(key)) for key in keys]
    coords = np.fromiter(chain.from_iterable(keys), dtype=np.uint32, count=len(keys) * width).reshape(len(keys), width)
    data = list(chain.from_iterable([each.values() for each in chunks.values()]))
    order = np.lexsort((*coords.T[::-1], np.repeat(np.arange(len(counts)), counts)))
    if (order[1:] < order[:-1]).any():
        coords, data = coords[order], [data[index] for index in order.tolist()]
    lengths = np.fromiter(map(len, data), dtype=np.uint64, count=len(data))
    return _Rows(list(chunks), ndims, np.cumsum(counts), coords, lengths, data)


def _cut(rows: _Rows, target_bytes: int, id_bytes: int) -> Iterator[SealedPack]:
    """Cut the rows where the next chunk would pass the target."""
    ends = np.cumsum(rows.lengths, dtype=np.uint64)
    starts = ends - rows.lengths
    for first, after in batches_up_to(target_bytes, ends):
        object_id = new_chunk_id(id_bytes)
        yield SealedPack(
            object_id, b"".join(rows.data[first:after]), _tables_in_pack(rows, starts, first, after, object_id)
        )


def _tables_in_pack(
    rows: _Rows, starts: npt.NDArray[np.uint64], first: int, after: int, object_id: bytes
) -> ChunkTables:
    """The references of the rows from `first` to `after`, for every array."""
    count = after - first
    index = int(np.searchsorted(rows.ends, first, side="right"))
    end = int(np.searchsorted(rows.ends, after, side="left")) + 1
    ndims = rows.ndims[index:end]
    references = ChunkTable(
        rows.coords[first:after, : int(ndims.max())],
        np.full(count, ChunkKind.NATIVE, dtype=np.uint8),
        starts[first:after] - starts[first],
        rows.lengths[first:after],
        np.tile(np.frombuffer(object_id, dtype=np.uint8), (count, 1)),
    )
    ends = np.minimum(rows.ends[index:end] - first, count)
    counts = ends.copy()
    counts[1:] -= ends[:-1]
    return ChunkTables(rows.nodes[index:end], counts, ndims, references)
