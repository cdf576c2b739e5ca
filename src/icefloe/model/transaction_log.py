"""What one commit changed, by node id, so that conflicts and diffs need no snapshot comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from icefloe.ids import NodeId
from icefloe.model.chunk_tables import NO_TABLES, ChunkTables, widen
from icefloe.model.nodes import Extents


@dataclass(frozen=True, slots=True)
class Move:
    """A node that has another path now; descendants have entries of their own."""

    from_path: str
    to_path: str
    node_id: NodeId
    is_array: bool


@dataclass(frozen=True, slots=True, eq=False)
class WrittenChunks(Mapping[NodeId, npt.NDArray[np.uint32]]):
    """Coordinates by array, those of many arrays in common columns. No array is in both."""

    together: ChunkTables
    alone: Mapping[NodeId, npt.NDArray[np.uint32]]

    def __getitem__(self, node_id: NodeId) -> npt.NDArray[np.uint32]:
        found = self.alone.get(node_id)
        return self.together[node_id].coords if found is None else found

    def __iter__(self) -> Iterator[NodeId]:
        yield from self.alone
        yield from self.together

    def __len__(self) -> int:
        return len(self.alone) + len(self.together)


@dataclass(frozen=True, slots=True)
class WrittenColumns:
    """The coordinates of some arrays, array after array, as wide as the largest rank and zero beyond an array's own."""

    nodes: list[NodeId]
    counts: npt.NDArray[np.int64]
    ndims: npt.NDArray[np.int64]
    coords: npt.NDArray[np.uint32]


def join_written(chunks: Mapping[NodeId, npt.NDArray[np.uint32]]) -> WrittenColumns:
    """The coordinates of all arrays in one column."""
    together, alone = (chunks.together, chunks.alone) if isinstance(chunks, WrittenChunks) else (NO_TABLES, chunks)
    listed = list(alone.values())
    ndims = np.concatenate([together.ndims, np.array([each.shape[1] for each in listed], dtype=np.int64)])
    width = int(ndims.max(initial=0))
    parts = [*([together.rows.coords] if len(together) else []), *listed]
    return WrittenColumns(
        [*together.nodes, *alone],
        np.concatenate([together.counts, np.array([len(each) for each in listed], dtype=np.int64)]),
        ndims,
        np.concatenate([np.zeros((0, width), dtype=np.uint32), *[widen(part, width) for part in parts]]),
    )


@dataclass(frozen=True, slots=True)
class TransactionLog:
    """Sets of node ids, and the coordinates of the chunks that were set, replaced or deleted.

    Whether an updated node is an array or a group is decided by looking the id up in a snapshot: early files do not
    keep the two apart.
    """

    new_groups: frozenset[NodeId] = frozenset()
    new_arrays: frozenset[NodeId] = frozenset()
    deleted_groups: frozenset[NodeId] = frozenset()
    deleted_arrays: frozenset[NodeId] = frozenset()
    updated_groups: frozenset[NodeId] = frozenset()
    updated_arrays: frozenset[NodeId] = frozenset()
    updated_chunks: Mapping[NodeId, npt.NDArray[np.uint32]] = field(default_factory=dict)
    """uint32[n, ndim] per array, unique rows in lexicographic order."""
    moves: tuple[Move, ...] = ()
    updated_boxes: Mapping[NodeId, tuple[Extents, ...]] = field(default_factory=dict)
    """Boxes of the chunk grid that a distributed write set chunks in: which ones, only its manifests know."""

    def is_empty(self) -> bool:
        return not (
            self.new_groups or self.new_arrays or self.deleted_groups or self.deleted_arrays
            or self.updated_groups or self.updated_arrays or self.updated_chunks or self.moves or self.updated_boxes
        )  # fmt: skip
