"""Many chunks of one array at once: where each of them is, and their bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icefloe.chunks.reader import ChunkReader
from icefloe.errors import IcefloeError
from icefloe.manifests.keys import Found
from icefloe.model.chunk_table import ChunkKind
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
