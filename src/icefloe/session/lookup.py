"""Find chunk references of an array in the manifests of its snapshot, one or many at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icefloe.chunks.reader import ChunkReader
from icefloe.errors import FormatError, IcefloeError, ObjectNotFoundError
from icefloe.ids import ObjectId
from icefloe.manifests.cells import filter_box
from icefloe.manifests.columns import Found, concat, find_in, find_row
from icefloe.metadata_files import MetadataFiles
from icefloe.model.chunk_table import (
    ChunkKind,
    ChunkRef,
    ChunkTable,
    empty_table,
    highest,
    lowest,
    rows_inside,
    table_from_rows,
)
from icefloe.model.snapshot import ArrayNode, Extents, Manifest, ManifestRef
from icefloe.storage.contract import Buffer


@dataclass(frozen=True, slots=True)
class LocatedChunks:
    """The chunks of a question, by their position in it."""

    lengths: npt.NDArray[np.int64]
    """Bytes of each chunk; -1 where there is none."""
    array_path: str
    _waiting: Mapping[int, Buffer]
    _pieces: tuple[Found, ...]
    _reader: ChunkReader

    async def fetch(self, first: int, end: int) -> list[Buffer | None]:
        """The bytes of the chunks at positions [first, end); None where there are none."""
        result: list[Buffer | None] = [self._waiting.get(position) for position in range(first, end)]
        await asyncio.gather(*(self._fetch_piece(piece, first, end, result) for piece in self._pieces))
        return result

    async def _fetch_piece(self, piece: Found, first: int, end: int, result: list[Buffer | None]) -> None:
        low, high = np.searchsorted(piece.positions, [first, end])
        if low == high:
            return
        bodies = await self._reader.fetch_many(piece.table, piece.rows[low:high], array_path=self.array_path)
        for position, body in zip((piece.positions[low:high] - first).tolist(), bodies, strict=True):
            result[position] = body

    def undecodable(self, position: int, error: Exception) -> IcefloeError:
        """The error for the chunk at a position whose bytes the codecs refused; it names the array, chunk and file."""
        for piece in self._pieces:
            at = int(np.searchsorted(piece.positions, position))
            if at < len(piece.positions) and piece.positions[at] == position:
                row = int(piece.rows[at])
                where = f"chunk {tuple(piece.table.coords[row].tolist())} of {self.array_path}"
                return self._reader.undecodable(piece.table.row(row), where, error)
        return self._reader.undecodable(None, f"a chunk of {self.array_path}", error)


def gather_located(
    count: int, waiting: Mapping[int, Buffer], pieces: Iterable[Found], reader: ChunkReader, array_path: str
) -> LocatedChunks:
    """What was found in memory and in tables, as one answer; deleted chunks are as if never written."""
    lengths = np.full(count, -1, dtype=np.int64)
    for position, data in waiting.items():
        lengths[position] = len(data)
    present = []
    for piece in pieces:
        alive = piece.table.kind[piece.rows] != ChunkKind.DELETED
        kept = piece if alive.all() else Found(piece.table, piece.rows[alive], piece.positions[alive])
        if len(kept.rows):
            lengths[kept.positions] = kept.table.length[kept.rows]
            present.append(kept)
    return LocatedChunks(lengths, array_path, waiting, tuple(present), reader)


_MAX_INDEXED_ARRAYS = 1024
_FEW_CHUNKS = 64
"""Questions about more chunks are answered from columns."""


@dataclass(frozen=True, slots=True)
class _Boxes:
    """The extents of an array's manifests as columns, so that one comparison finds the right one."""

    refs: tuple[ManifestRef, ...]
    first: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]

    def holding(self, coords: Sequence[int]) -> list[ObjectId]:
        """Manifests whose box contains the coordinates; more than one only in files of others."""
        point = np.asarray(coords, dtype=np.int64)
        inside = ((self.first <= point) & (point < self.end)).all(axis=1)
        return [self.refs[i].manifest_id for i in np.flatnonzero(inside)]

    def asked(self, coords: npt.NDArray[np.uint32]) -> list[tuple[ObjectId, npt.NDArray[np.bool_]]]:
        """Manifests that may hold some of the chunks, each with a mask of those."""
        if len(self.refs) == 1:
            # A single manifest is always searched: in files of other writers its extents may be wrong.
            return [(self.refs[0].manifest_id, np.ones(len(coords), dtype=np.bool_))]
        low, high = np.array(lowest(coords)), np.array(highest(coords))
        near = np.flatnonzero(((self.first <= high) & (low < self.end)).all(axis=1))
        masks = [rows_inside(coords, self.first[i], self.end[i]) for i in near]
        return [(self.refs[i].manifest_id, mask) for i, mask in zip(near, masks, strict=True) if mask.any()]

    def meeting(self, box: Extents) -> list[ObjectId]:
        """Manifests whose box overlaps another box."""
        low = np.array([a for a, _ in box], dtype=np.int64)
        high = np.array([b for _, b in box], dtype=np.int64)
        meets = ((self.first < high) & (low < self.end)).all(axis=1)
        return [self.refs[i].manifest_id for i in np.flatnonzero(meets)]


def _boxes(node: ArrayNode) -> _Boxes:
    everything = tuple((0, 1 << 62) for _ in node.shape)
    bounds = np.array([ref.extents or everything for ref in node.manifests], dtype=np.int64)
    bounds = bounds.reshape(len(node.manifests), len(node.shape), 2)
    return _Boxes(node.manifests, bounds[:, :, 0], bounds[:, :, 1])


class ChunkLookup:
    """Looks up references in manifests. Fetches only manifests whose extents overlap the requested chunks."""

    def __init__(self, metadata_files: MetadataFiles) -> None:
        self._metadata_files = metadata_files
        # By identity of the tuple, which its boxes keep alive: hashing thousands of refs per look-up would cost more
        # than the look-up.
        self._indexed: dict[int, _Boxes] = {}

    async def find(self, node: ArrayNode, coords: tuple[int, ...]) -> ChunkRef | None:
        """The reference of one chunk, or None when it was never written."""
        for manifest_id in self.manifests_for(node, coords):
            refs = await self._find_few(node, manifest_id, [coords])
            if refs is not None:
                return refs[0]
            table = await self._table(node, manifest_id)
            if table is not None:
                row = find_row(table, coords)
                if row is not None:
                    return table.row(row)
        return None

    async def find_many(
        self, node: ArrayNode, coords: npt.NDArray[np.uint32], positions: npt.NDArray[np.intp]
    ) -> tuple[list[Found], npt.NDArray[np.intp]]:
        """The rows of `coords[positions]`, by manifest, and the positions that were never written."""
        if not node.manifests or not len(positions):
            return [], positions
        asked = self._index(node).asked(coords[positions])
        tables = await asyncio.gather(
            *(self._table_of(node, manifest_id, coords[positions[inside]]) for manifest_id, inside in asked)
        )
        found, missing = [], np.ones(len(coords), dtype=bool)
        for (_, inside), table in zip(asked, tables, strict=True):
            if table is not None:
                wanted = positions[inside]
                here, _ = find_in(table, coords, wanted[missing[wanted]])
                missing[here.positions] = False
                found.append(here)
        return found, positions[missing[positions]]

    def manifests_for(self, node: ArrayNode, coords: tuple[int, ...]) -> list[ObjectId]:
        """Manifests that may hold a chunk."""
        if len(node.manifests) == 1:
            return [node.manifests[0].manifest_id]
        if not node.manifests:
            return []
        return self._index(node).holding(coords)

    async def table(self, node: ArrayNode, box: Extents | None = None) -> ChunkTable:
        """All references of an array, or those inside a box of its grid."""
        bounds = box if box is not None else tuple((0, n) for n in node.grid)
        if not node.manifests or any(a >= b for a, b in bounds):
            return empty_table(len(node.shape))
        ids = list(dict.fromkeys(self._index(node).meeting(bounds)))
        tables = await asyncio.gather(*(self._table(node, manifest_id) for manifest_id in ids))
        inside = [filter_box(table, bounds) for table in tables if table is not None]
        return concat(inside) if inside else empty_table(len(node.shape))

    async def _table(self, node: ArrayNode, manifest_id: ObjectId) -> ChunkTable | None:
        manifest = await self.fetch(manifest_id, node)
        table = manifest.tables.get(node.id)
        # Early writers left entries of other arrays under an id; another rank cannot be this array's.
        return table if table is not None and table.ndim == len(node.shape) else None

    async def _table_of(
        self, node: ArrayNode, manifest_id: ObjectId, coords: npt.NDArray[np.uint32]
    ) -> ChunkTable | None:
        """A table that has these chunks if the manifest has: just them, where they can be found by themselves."""
        if len(coords) <= _FEW_CHUNKS:
            wanted = [tuple(row) for row in coords.tolist()]
            refs = await self._find_few(node, manifest_id, wanted)
            if refs is not None:
                return table_from_rows(list(zip(wanted, refs, strict=True)), len(node.shape))
        return await self._table(node, manifest_id)

    async def _find_few(
        self, node: ArrayNode, manifest_id: ObjectId, wanted: list[tuple[int, ...]]
    ) -> list[ChunkRef] | None:
        with self._naming(manifest_id, node):
            return await self._metadata_files.find_refs(manifest_id, node.id, wanted)

    async def fetch(self, manifest_id: ObjectId, node: ArrayNode | None = None) -> Manifest:
        """A manifest that a snapshot names; its absence is damage."""
        with self._naming(manifest_id, node):
            return await self._metadata_files.fetch_manifest(manifest_id)

    @contextlib.contextmanager
    def _naming(self, manifest_id: ObjectId, node: ArrayNode | None) -> Iterator[None]:
        try:
            yield
        except ObjectNotFoundError as error:
            whose = f" of array {node.path}" if node is not None else ""
            raise FormatError(
                f"manifest {manifest_id}{whose} is named by the snapshot but is not in "
                f"{self._metadata_files.storage.url}; `icefloe verify` shows the damage",
                manifest_id=manifest_id,
            ) from error

    def _index(self, node: ArrayNode) -> _Boxes:
        boxes = self._indexed.get(id(node.manifests))
        if boxes is None or boxes.refs is not node.manifests:
            if len(self._indexed) >= _MAX_INDEXED_ARRAYS:
                self._indexed.clear()
            boxes = self._indexed[id(node.manifests)] = _boxes(node)
        return boxes
