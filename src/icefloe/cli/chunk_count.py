"""Counts chunks, objects and bytes of arrays, on whole columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.string_column import string_column

_KINDS = (ChunkKind.NATIVE, ChunkKind.INLINE, ChunkKind.VIRTUAL)


@dataclass(frozen=True, slots=True)
class ChunkCount:
    """Chunks and bytes by kind, and where they are. Several chunks can share an object, and arrays can, too."""

    chunks: dict[str, int]
    bytes: dict[str, int]
    objects: npt.NDArray[np.void]
    """Ids of the objects that hold native chunks, each once."""
    files: pa.Array
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


def _files(table: ChunkTable) -> pa.Array:
    if table.location is None:
        return pa.array([], type=pa.large_string())
    codes = np.unique(table.location[table.kind == ChunkKind.VIRTUAL])
    # A dictionary may hold a location twice.
    return string_column(table.locations).arrow.take(pa.array(codes)).unique()


def add_counts(counts: Iterable[ChunkCount]) -> ChunkCount:
    """The count of several arrays together; what they share counts once."""
    parts = list(counts)
    names = [kind.name.lower() for kind in _KINDS]
    objects = [part.objects for part in parts if len(part.objects)]
    return ChunkCount(
        {name: sum(part.chunks[name] for part in parts) for name in names},
        {name: sum(part.bytes[name] for part in parts) for name in names},
        np.unique(np.concatenate(objects)) if objects else np.empty(0, dtype="V1"),
        pa.chunked_array([part.files for part in parts], type=pa.large_string()).unique(),
    )
