"""Fingerprints of chunk references: two chunks with the same one hold the same bytes."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from icefloe.model.chunk_table import ChunkKind, ChunkTable

WIDTH = 33
"""Bytes of a fingerprint: which object (16), offset (8), length (8), kind (1)."""
_ID = 16


def fingerprints(table: ChunkTable) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """A fingerprint per reference, and whether it can be trusted.

    A native object never changes. A virtual chunk is trusted only if its reference says which state of the file it
    means.
    """
    count = len(table)
    made = np.zeros((count, WIDTH), dtype=np.uint8)
    made[:, _ID : _ID + 8] = table.offset.astype("<u8").view(np.uint8).reshape(count, 8)
    made[:, _ID + 8 : _ID + 16] = table.length.astype("<u8").view(np.uint8).reshape(count, 8)
    made[:, -1] = table.kind
    sure = table.kind == ChunkKind.NATIVE
    if table.object_id is not None:
        width = min(_ID, table.object_id.shape[1])
        made[:, :width] = table.object_id[:, :width]
    inline = np.flatnonzero(table.kind == ChunkKind.INLINE)
    if len(inline):
        made[inline, _ID : _ID + 8] = 0
        data = memoryview(table.inline)
        bounds = np.stack([table.offset[inline], table.offset[inline] + table.length[inline]], axis=1).astype(np.int64)
        digests = b"".join(hashlib.blake2b(data[a:b], digest_size=_ID).digest() for a, b in bounds.tolist())
        made[inline, :_ID] = np.frombuffer(digests, dtype=np.uint8).reshape(-1, _ID)
        sure = sure | (table.kind == ChunkKind.INLINE)
    virtual = np.flatnonzero(table.kind == ChunkKind.VIRTUAL)
    if len(virtual):
        made[virtual, :_ID], known = _sources(table, virtual)
        sure[virtual] = known
    return made, sure


def _sources(table: ChunkTable, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Digests of the files of virtual chunks, made once per file and state."""
    assert table.location is not None
    none = np.full(len(rows), -1, dtype=np.int64)
    etag = none if table.etag is None else table.etag[rows].astype(np.int64)
    modified = np.zeros(len(rows), dtype=np.int64)
    if table.last_modified is not None:
        modified = table.last_modified[rows].astype(np.int64)
    states = np.stack([table.location[rows].astype(np.int64), etag, modified], axis=1)
    unique, codes = np.unique(states, axis=0, return_inverse=True)
    digests = np.empty((len(unique), _ID), dtype=np.uint8)
    for number, (location, tag, time) in enumerate(unique.tolist()):
        text = f"{table.locations[location]}\n{table.etags[tag] if tag >= 0 else ''}\n{time}"
        digests[number] = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=_ID).digest(), dtype=np.uint8)
    return digests[codes.reshape(-1)], (etag >= 0) | (modified > 0)
