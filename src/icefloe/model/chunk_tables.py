"""The chunk references of many arrays in one set of columns, each array's table cut out when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from icefloe.ids import NodeId
from icefloe.model.chunk_table import ChunkKind, ChunkTable, empty_table

Numbers = npt.NDArray[np.int64]

_FEW_ROWS = 64
"""Up to here, a dictionary is made as quickly value by value."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTables(Mapping[NodeId, ChunkTable]):
    """Table by node id; thousands of small arrays cost what their columns cost, not a table each.

    `rows` holds the rows of all arrays, array after array in the order of `nodes`, sorted within each; its coordinates
    are as wide as the largest rank, zero beyond an array's own. No array is without rows.
    """

    nodes: Sequence[NodeId]
    counts: Numbers
    ndims: Numbers
    rows: ChunkTable
    _bounds: list[int] = field(default_factory=list, init=False, repr=False)
    _places: dict[NodeId, int] = field(default_factory=dict, init=False, repr=False)
    _cut: dict[int, ChunkTable] = field(default_factory=dict, init=False, repr=False)

    def __getitem__(self, node_id: NodeId) -> ChunkTable:
        return self.at(self._index()[node_id])

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._index()

    def _index(self) -> dict[NodeId, int]:
        if not self._places:
            # At once: readers on other threads find nothing here, or all of it.
            self._places.update(dict(zip(self.nodes, range(len(self.nodes)), strict=True)))
        return self._places

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def at(self, index: int) -> ChunkTable:
        """The table of the array at a place in `nodes`."""
        table = self._cut.get(index)
        if table is None:
            if not self._bounds:
                self._bounds[:] = [0, *np.cumsum(self.counts).tolist()]
            first, end = self._bounds[index], self._bounds[index + 1]
            ndim = int(self.ndims[index])
            whole = len(self.nodes) == 1 and ndim == self.rows.coords.shape[1]
            table = self._cut[index] = self.rows if whole else cut_out(self.rows, first, end, ndim)
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkTables, (self.nodes, self.counts, self.ndims, self.rows)

    @property
    def nbytes(self) -> int:
        """Memory held by the columns, for caches."""
        return self.rows.nbytes + 100 * len(self.nodes)

    def positions(self, node_ids: Sequence[NodeId]) -> Numbers:
        """Where some arrays stand in `nodes`."""
        return np.fromiter(map(self._index().__getitem__, node_ids), dtype=np.int64, count=len(node_ids))

    def select(self, positions: Numbers) -> ChunkTables:
        """The arrays at some places in `nodes`, in the order given; dictionaries and inline bytes are shared."""
        if len(positions) == len(self.nodes) and bool((positions == np.arange(len(positions))).all()):
            return self
        counts = self.counts[positions]
        shift = (np.cumsum(self.counts) - self.counts)[positions] - (np.cumsum(counts) - counts)
        chosen = np.repeat(shift, counts) + np.arange(int(counts.sum()))
        nodes = [self.nodes[position] for position in positions.tolist()]
        ndims = self.ndims[positions]
        return ChunkTables(nodes, counts, ndims, _pick(self.rows, chosen, int(ndims.max(initial=0))))

    def by_id(self) -> ChunkTables:
        """The same arrays, ordered by node id."""
        # All ids have eight bytes, so that they sort as numbers do.
        ids = np.frombuffer(b"".join(self.nodes), dtype=">u8")
        return self if bool((ids[1:] > ids[:-1]).all()) else self.select(np.argsort(ids).astype(np.int64))

    def array_of_row(self) -> Numbers:
        """Per row, the place of its array in `nodes`."""
        return np.repeat(np.arange(len(self.nodes)), self.counts)


NO_TABLES: Final = ChunkTables((), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), empty_table(0))


def cut_out(rows: ChunkTable, first: int, end: int, ndim: int) -> ChunkTable:
    """The rows from `first` to `end` as a table of its own, with its own dictionaries and inline bytes."""
    here = slice(first, end)
    coords, kind, offset, length = rows.coords[here, :ndim], rows.kind[here], rows.offset[here], rows.length[here]
    object_id = None if rows.object_id is None else rows.object_id[here]
    if rows.location is None and rows.etag is None and not len(rows.inline):
        return ChunkTable(coords, kind, offset, length, object_id)
    if object_id is not None and not bool((kind == ChunkKind.NATIVE).any()):
        object_id = None
    location, locations = _own_words(rows.location, rows.locations, here)
    etag, etags = _own_words(rows.etag, rows.etags, here)
    modified = None if rows.last_modified is None else rows.last_modified[here]
    if modified is not None and not bool(modified.any()):
        modified = None
    inline: bytes | memoryview = b""
    within = np.flatnonzero(kind == ChunkKind.INLINE)
    if len(within):
        low, high = int(offset[within].min()), int((offset[within] + length[within]).max())
        inline = bytes(rows.inline[low:high])
        if low:
            offset = offset.copy()
            offset[within] -= np.uint64(low)
    return ChunkTable(
        coords, kind, offset, length, object_id, location, locations, etag, etags, modified, inline
    )  # fmt: skip


def _own_words(
    codes: npt.NDArray[np.int32] | None, words: Sequence[str], here: slice
) -> tuple[npt.NDArray[np.int32] | None, Sequence[str]]:
    if codes is None:
        return None, ()
    if here.stop - here.start <= _FEW_ROWS:
        listed = codes[here].tolist()
        own = {code: index for index, code in enumerate(sorted({code for code in listed if code >= 0}))}
        if not own:
            return None, ()
        return np.array([own.get(code, -1) for code in listed], dtype=np.int32), [words[code] for code in own]
    distinct, inverse = np.unique(codes[here], return_inverse=True)
    missing = int(distinct[0] < 0)
    if missing == len(distinct):
        return None, ()
    return (inverse - missing).astype(np.int32), [words[code] for code in distinct[missing:].tolist()]


def _pick(rows: ChunkTable, chosen: Numbers, width: int) -> ChunkTable:
    def pick(column: Any) -> Any:
        return None if column is None else column[chosen]

    return replace(
        rows, coords=rows.coords[:, :width][chosen], kind=rows.kind[chosen], offset=rows.offset[chosen],
        length=rows.length[chosen], object_id=pick(rows.object_id), location=pick(rows.location),
        etag=pick(rows.etag), last_modified=pick(rows.last_modified),
    )  # fmt: skip


def widen(coords: npt.NDArray[np.uint32], width: int) -> npt.NDArray[np.uint32]:
    """Coordinates of just that many dimensions, zero beyond those they have."""
    if coords.shape[1] >= width:
        return coords[:, :width]
    wide = np.zeros((len(coords), width), dtype=np.uint32)
    wide[:, : coords.shape[1]] = coords
    return wide
