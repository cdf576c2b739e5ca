"""Counts chunks, objects and bytes of arrays, on whole columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icefloe.model.chunk_table import ChunkKind, ChunkTable

_KINDS = (ChunkKind.NATIVE, ChunkKind.INLINE, ChunkKind.VIRTUAL)


@dataclass(frozen=True, slots=True)
class ChunkCount:
    """Chunks and bytes by kind, and where they are. Several chunks can share an object, and arrays can, too."""

    chunks: dict[str, int]
    bytes: dict[str, int]
    objects: npt.NDArray[np.void]
    """Ids of the objects that hold native chunks, each once."""
    files: npt.NDArray[np.object_]
    """Locations of virtual chunks, each once."""

    @property
    def total_chunks(self) -> int:
        return sum(self.chunks.values())

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())


def count_chunks(table: ChunkTable) -> ChunkCount:
    """The count of one array."""
    chunks, sizes = {}, {}
    for kind in _KINDS:
        rows = table.kind == kind
        chunks[kind.name.lower()] = int(np.count_nonzero(rows))
        sizes[kind.name.lower()] = int(table.length[rows].sum())
    return ChunkCount(chunks, sizes, _objects(table), _files(table))


def _objects(table: ChunkTable) -> npt.NDArray[np.void]:
    if table.object_id is None:
        return np.empty(0, dtype="V1")
    native = np.ascontiguousarray(table.object_id[table.kind == ChunkKind.NATIVE])
    return np.unique(native.view(f"V{native.shape[1]}").ravel())


def _files(table: ChunkTable) -> npt.NDArray[np.object_]:
    if table.location is None:
        return np.empty(0, dtype=object)
    codes = np.unique(table.location[table.kind == ChunkKind.VIRTUAL])
    # A dictionary may hold a location twice.
    return np.array(sorted({table.locations[code] for code in codes.tolist()}), dtype=object)


def add_counts(counts: Iterable[ChunkCount]) -> ChunkCount:
    """The count of several arrays together; what they share counts once."""
    parts = list(counts)
    names = [kind.name.lower() for kind in _KINDS]
    objects = [part.objects for part in parts if len(part.objects)]
    files = [part.files for part in parts if len(part.files)]
    return ChunkCount(
        {name: sum(part.chunks[name] for part in parts) for name in names},
        {name: sum(part.bytes[name] for part in parts) for name in names},
        np.unique(np.concatenate(objects)) if objects else np.empty(0, dtype="V1"),
        np.unique(np.concatenate(files)) if files else np.empty(0, dtype=object),
    )
