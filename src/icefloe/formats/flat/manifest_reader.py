"""A flatbuffers manifest as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from icefloe.formats.flat.body import Body, Positions
from icefloe.formats.flat.coordinates import CoordinateColumns, has_duplicates, read_coordinates, row_order
from icefloe.formats.flat.locations import decompress_locations
from icefloe.formats.flat.ragged import decode_texts, dictionary_of, gather_rows
from icefloe.formats.flat.tables import Tables, Vectors, root_table
from icefloe.ids import NodeId, encode_base32
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.snapshot import Manifest

INDEX, INLINE, OFFSET, LENGTH, CHUNK_ID, LOCATION, ETAG, LAST_MODIFIED, COMPRESSED = range(9)
_UNKNOWN = 255


@dataclass(frozen=True, slots=True)
class _Rows:
    """All references of a file, of whichever array, end to end."""

    coords: CoordinateColumns
    kind: npt.NDArray[np.uint8]
    offset: npt.NDArray[np.uint64]
    length: npt.NDArray[np.uint64]
    object_id: npt.NDArray[np.uint8] | None
    location: npt.NDArray[np.int32] | None
    locations: list[str]
    etag: npt.NDArray[np.int32] | None
    etags: list[str]
    last_modified: npt.NDArray[np.uint32] | None
    inline: bytes


def decode_manifest_body(body: Body) -> Manifest:
    """The references of every array in the file; FormatError for anything that cannot be right."""
    root = root_table(body)
    manifest_id = encode_base32(root.struct(0, 12).tobytes())
    arrays, _ = root.tables(1)
    node_ids = arrays.struct(0, 8)
    refs, held = arrays.tables(1)
    rows = _read_rows(root, refs, held)
    bounds = held.bounds().tolist()
    native, virtual, inline = (_count(rows.kind == kind, bounds) for kind in
                               (ChunkKind.NATIVE, ChunkKind.VIRTUAL, ChunkKind.INLINE))  # fmt: skip
    tables: dict[NodeId, ChunkTable] = {}
    for array in range(len(arrays)):
        node_id = node_ids[array].tobytes()
        if node_id in tables:
            raise body.corrupt(f"array {encode_base32(node_id)} appears twice")
        here = slice(bounds[array], bounds[array + 1])
        table = ChunkTable(
            rows.coords.of(array, here.stop - here.start),
            rows.kind[here],
            rows.offset[here],
            rows.length[here],
            object_id=rows.object_id[here] if native[array] and rows.object_id is not None else None,
            inline=rows.inline if inline[array] else b"",
        )
        if virtual[array]:
            table = _with_locations(table, rows, here)
        tables[node_id] = table if rows.coords.in_order else _in_order(body, table)
    return Manifest(manifest_id, tables)


def _count(mask: npt.NDArray[np.bool_], bounds: list[int]) -> list[int]:
    """How many rows of each array a mask marks."""
    if len(bounds) == 2:
        return [int(mask.sum())]
    running = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(mask)])
    counts: list[int] = np.diff(running[bounds]).tolist()
    return counts


def _with_locations(table: ChunkTable, rows: _Rows, here: slice) -> ChunkTable:
    assert rows.location is not None
    return replace(
        table,
        location=rows.location[here],
        locations=rows.locations,
        etag=None if rows.etag is None else rows.etag[here],
        etags=rows.etags,
        last_modified=None if rows.last_modified is None else rows.last_modified[here],
    )


def _in_order(body: Body, table: ChunkTable) -> ChunkTable:
    order = row_order(table.coords)
    if order is None:
        return table
    columns = {
        name: getattr(table, name)[order]
        for name in ("coords", "kind", "offset", "length", "object_id", "location", "etag", "last_modified")
        if getattr(table, name) is not None
    }
    if has_duplicates(columns["coords"]):
        raise body.corrupt("a chunk of an array appears twice")
    return replace(table, **columns)


def _read_rows(root: Tables, refs: Tables, held: Vectors) -> _Rows:
    body = root.body
    coords = read_coordinates(refs, INDEX, held)
    chunk_id = refs.field(CHUNK_ID, 12, 1)
    location = refs.strings(LOCATION, required=False)
    compressed = refs.vectors(COMPRESSED, 1, 1, required=False)
    inline = refs.vectors(INLINE, 1, 1, required=False)
    kind = np.full(len(refs), _UNKNOWN, dtype=np.uint8)
    kind[inline.present] = ChunkKind.INLINE
    kind[location.present | compressed.present] = ChunkKind.VIRTUAL
    if chunk_id is not None:
        kind[chunk_id >= 0] = ChunkKind.NATIVE
    if (kind == _UNKNOWN).any():
        raise body.corrupt("a chunk reference is neither native, virtual nor inline")
    offset, length, data = _read_inline(refs, kind, inline)
    virtual = kind == ChunkKind.VIRTUAL
    codes, locations, etag, etags, modified = None, list[str](), None, list[str](), None
    if virtual.any():
        codes, locations = _read_locations(root, virtual, location, compressed)
        etag, etags = _read_etags(refs, virtual)
        seconds = np.where(virtual, refs.scalar(LAST_MODIFIED, "<u4"), 0).astype(np.uint32)
        modified = seconds if seconds.any() else None
    return _Rows(coords, kind, offset, length, _read_ids(refs, chunk_id), codes, locations, etag, etags, modified, data)


def _read_ids(refs: Tables, chunk_id: Positions | None) -> npt.NDArray[np.uint8] | None:
    if chunk_id is None:
        return None
    here = chunk_id >= 0
    if here.all():
        return refs.body.read_bytes(chunk_id, 12)
    ids = np.zeros((len(refs), 12), dtype=np.uint8)
    ids[here] = refs.body.read_bytes(chunk_id[here], 12)
    return ids


def _read_inline(
    refs: Tables, kind: npt.NDArray[np.uint8], inline: Vectors
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], bytes]:
    """Offsets and lengths of all rows, those of inline rows into the bytes returned with them."""
    offset, length = refs.scalar(OFFSET, "<u8"), refs.scalar(LENGTH, "<u8")
    here = kind == ChunkKind.INLINE
    if not here.any():
        return offset, length, b""
    starts, counts = inline.starts[here], inline.counts[here]
    length[here] = counts
    if int(counts.sum()) > refs.body.size // 2:
        # The data is most of the file, or rows share it: the file itself serves as the bytes.
        offset[here] = starts
        return offset, length, refs.body.data
    data, ends = gather_rows(refs.body, starts, counts)
    offset[here] = ends[:-1]
    return offset, length, data.tobytes()


def _read_locations(
    root: Tables, virtual: npt.NDArray[np.bool_], plain: Vectors, compressed: Vectors
) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Which location each virtual row has, -1 elsewhere, and the distinct locations."""
    body = root.body
    codes, strings = dictionary_of(body, _where(plain, virtual & ~compressed.present))
    packed_codes, packed = dictionary_of(body, _where(compressed, virtual))
    locations = decode_texts(body, strings)
    if len(packed):
        codes = np.where(packed_codes >= 0, packed_codes + len(locations), codes).astype(np.int32)
        locations += decompress_locations(root, packed)
    return codes, locations


def _where(held: Vectors, mask: npt.NDArray[np.bool_]) -> Vectors:
    if mask.all() and held.present.all():
        return held
    return Vectors(np.where(mask, held.starts, -1), np.where(mask, held.counts, 0))


def _read_etags(refs: Tables, virtual: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int32] | None, list[str]]:
    if refs.field(ETAG, 4, 4) is None:
        return None, []
    codes, strings = dictionary_of(refs.body, _where(refs.strings(ETAG, required=False), virtual))
    return (codes, decode_texts(refs.body, strings)) if len(strings) else (None, [])
