"""A few references of a flatbuffers manifest, found by binary search while the others stay undecoded."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import zstandard

from icefloe.formats.contract import OpenManifest
from icefloe.formats.flat.body import Body
from icefloe.formats.flat.locations import decompress_location, location_decompressor
from icefloe.formats.flat.manifest_reader import (
    CHUNK_ID,
    COMPRESSED,
    ETAG,
    INDEX,
    INLINE,
    LAST_MODIFIED,
    LENGTH,
    LOCATION,
    OFFSET,
    decode_manifest_body,
)
from icefloe.formats.flat.table import Table, item_table, root
from icefloe.formats.flat.tables import root_table
from icefloe.ids import NodeId
from icefloe.model.chunk_table import ChunkKind, ChunkRef
from icefloe.model.snapshot import Manifest

_FEW_ARRAYS = 16
_FREE_SEARCHES, _REFS_PER_SEARCH = 6, 800
"""Searches that together take as long as decoding the whole: it costs some of them, and one more per so many rows."""


class FlatManifest(OpenManifest):
    """A manifest of either official generation, decompressed."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._arrays = _find_arrays(body)
        refs = sum(count for _, count in self._arrays.values())
        self._searches_left = _FREE_SEARCHES + refs // _REFS_PER_SEARCH
        self._decompressor: zstandard.ZstdDecompressor | None = None

    @property
    def nbytes(self) -> int:
        return self._body.size

    def decode(self) -> Manifest:
        return decode_manifest_body(self._body)

    def find(self, node_id: NodeId, wanted: Sequence[tuple[int, ...]]) -> list[ChunkRef] | None:
        held = self._arrays.get(node_id)
        if held is None or self._searches_left < len(wanted):
            return None
        self._searches_left -= len(wanted)
        found = []
        for coords in wanted:
            ref = self._search(*held, coords)
            if ref is None:
                return None  # the search believes in the order of the rows; that there is no such row needs a proof
            found.append(self._read(ref))
        return found

    def _search(self, start: int, count: int, wanted: tuple[int, ...]) -> Table | None:
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            ref = item_table(self._body, start, middle)
            at, rank = ref.vector(INDEX, 4, 4)
            if rank != len(wanted):
                return None
            coords = struct.unpack_from(f"<{rank}I", self._body.data, at)
            if coords == wanted:
                return ref
            if coords < wanted:
                low = middle + 1
            else:
                high = middle
        return None

    def _read(self, ref: Table) -> ChunkRef:
        offset, length = ref.scalar(OFFSET, "<u8"), ref.scalar(LENGTH, "<u8")
        if ref.has(CHUNK_ID):
            return ChunkRef(ChunkKind.NATIVE, offset, length, object_id=ref.struct(CHUNK_ID, 12))
        location = self._read_location(ref)
        if location is not None:
            etag, modified = ref.text(ETAG, required=False), ref.scalar(LAST_MODIFIED, "<u4")
            return ChunkRef(
                ChunkKind.VIRTUAL, offset, length, location=location, etag=etag, last_modified=modified or None
            )
        data = ref.blob(INLINE)
        if data is None:
            raise self._body.corrupt("a chunk reference is neither native, virtual nor inline")
        return ChunkRef(ChunkKind.INLINE, 0, len(data), data=data)

    def _read_location(self, ref: Table) -> str | None:
        frame = ref.blob(COMPRESSED)
        if frame is None:
            return ref.text(LOCATION, required=False)
        if self._decompressor is None:
            self._decompressor = location_decompressor(root_table(self._body))
        return decompress_location(self._body, self._decompressor, frame)


def _find_arrays(body: Body) -> dict[NodeId, tuple[int, int]]:
    """Where the references of each array begin and how many there are."""
    table = root(body)
    if table.vector(1, 4, 4)[1] <= _FEW_ARRAYS:
        few = table.children(1)
        arrays = {array.struct(0, 8): array.vector(1, 4, 4) for array in few}
        count = len(few)
    else:
        many, _ = root_table(body).tables(1)
        ids, held = many.struct(0, 8).tobytes(), many.vectors(1, 4, 4)
        bounds = zip(held.starts.tolist(), held.counts.tolist(), strict=True)
        arrays = {ids[8 * row : 8 * row + 8]: here for row, here in enumerate(bounds)}
        count = len(many)
    if len(arrays) != count:
        raise body.corrupt("an array appears twice")
    return arrays
