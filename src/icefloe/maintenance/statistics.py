"""How many bytes the chunks of a repository take, by kind, each object counted once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icefloe.display.amounts import format_bytes
from icefloe.ids import ObjectId
from icefloe.maintenance.collect import list_all
from icefloe.maintenance.listing import is_among
from icefloe.maintenance.marking import FetchLimits, mark
from icefloe.maintenance.progress import telling
from icefloe.maintenance.reading import read_anew, stream_bounded
from icefloe.model.chunk_table import ChunkKind
from icefloe.model.snapshot import Manifest
from icefloe.session.engine import Engine


@dataclass(frozen=True, slots=True)
class ChunkStorageStats:
    """Bytes of all chunks that branches and tags lead to, through all of history."""

    native_bytes: int = 0
    """Bytes of chunk objects in the repository, dead bytes of packs included."""
    virtual_bytes: int = 0
    """Bytes of distinct virtual references."""
    inlined_bytes: int = 0
    """Bytes of chunks inside manifests."""

    @property
    def non_virtual_bytes(self) -> int:
        return self.native_bytes + self.inlined_bytes

    @property
    def total_bytes(self) -> int:
        return self.native_bytes + self.virtual_bytes + self.inlined_bytes

    def __str__(self) -> str:
        parts = (("native", self.native_bytes), ("virtual", self.virtual_bytes), ("inline", self.inlined_bytes))
        return ", ".join(f"{format_bytes(size)} {name}" for name, size in parts)


async def chunk_storage_stats(engine: Engine, limits: FetchLimits | None = None) -> ChunkStorageStats:
    """Count what refs lead to; a chunk object or a range of a virtual file that several snapshots share counts once."""
    reading = read_anew(engine)
    listings = await list_all(reading)
    marked = await mark(reading, frozenset(), frozenset(), limits=limits)
    chunks = listings["chunks"]
    native = int(chunks.size[is_among(chunks.ids, marked.chunks)].sum())

    async def count(manifest_id: ObjectId) -> tuple[int, list[Ranges]]:
        return _count_manifest(await reading.archive.fetch_manifest(manifest_id))

    inlined = 0
    files: dict[str, int] = {}
    ranges: list[npt.NDArray[np.int64]] = []
    counts = stream_bounded(count, sorted(marked.manifests), 8)
    async for inline_bytes, found in telling("count chunks", counts, len(marked.manifests)):
        inlined += inline_bytes
        for each in found:
            numbers = np.array([files.setdefault(name, len(files)) for name in each.files], dtype=np.int64)
            ranges.append(np.stack([numbers[each.file], each.offset, each.length], axis=1))
    distinct = np.unique(np.concatenate(ranges), axis=0) if ranges else np.empty((0, 3), dtype=np.int64)
    return ChunkStorageStats(native, int(distinct[:, 2].sum()), inlined)


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Ranges of virtual files, as columns; `file` numbers `files`."""

    files: list[str]
    file: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]


def _count_manifest(manifest: Manifest) -> tuple[int, list[Ranges]]:
    inlined = 0
    found: list[Ranges] = []
    for table in manifest.tables.values():
        inlined += int(table.length[table.kind == ChunkKind.INLINE].sum())
        rows = np.flatnonzero(table.kind == ChunkKind.VIRTUAL)
        if table.location is not None and len(rows):
            codes, file = np.unique(table.location[rows], return_inverse=True)
            names = [table.locations[code] for code in codes.tolist()]
            offset, length = table.offset[rows].astype(np.int64), table.length[rows].astype(np.int64)
            found.append(Ranges(names, file.astype(np.int64), offset, length))
    return inlined, found
