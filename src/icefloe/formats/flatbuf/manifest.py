"""Manifests of the official generations: flatbuffers to columns and back, and search without decoding all."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import zstandard

from icefloe.errors import InvalidInputError
from icefloe.formats.byte_columns import Strings, decode_texts, dictionary_of, gather_rows, join_texts
from icefloe.formats.flatbuf.decode import Body, Positions, Table, Tables, Vectors, item_table, root, root_table
from icefloe.formats.flatbuf.encode import OFFSET_TYPE, Coordinates, FieldType, FlatWriter, TableBlock
from icefloe.formats.format import OpenManifest
from icefloe.ids import NodeId, decode_base32, encode_base32
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, ChunkTables, join_tables
from icefloe.model.snapshot import Manifest

Coords = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class CoordinateColumns:
    """The coordinates of the rows of several arrays. Arrays of equal rank share a column."""

    columns: dict[int, Coords]
    ranks: list[int]
    starts: list[int]
    """Per array: its rank, and its first row in the column of that rank."""
    in_order: bool
    """Whether the rows of every array are strictly increasing."""

    def of(self, array: int, count: int) -> Coords:
        """The rows of one array, uint32[n, ndim]."""
        start = self.starts[array]
        return self.columns[self.ranks[array]][start : start + count]


def read_coordinates(rows: Tables, slot: int, lists: Vectors) -> CoordinateColumns:
    """The coordinate vector of every row. All rows of an array have the same rank."""
    body = rows.body
    vectors = rows.vectors(slot, 4, 4)
    bounds = lists.bounds()
    counts = vectors.counts
    if len(counts) == 0:
        none = [0] * len(lists.counts)
        return CoordinateColumns({0: np.empty((0, 0), dtype=np.uint32)}, none, none, in_order=True)
    if int(counts.sum()) * 4 > body.size:
        raise body.corrupt("its coordinates overlap")
    filled = lists.counts > 0
    rank_of = np.zeros(len(lists.counts), dtype=np.int64)
    rank_of[filled] = counts[bounds[:-1][filled]]
    if not bool((counts == (rank_of[0] if len(rank_of) == 1 else np.repeat(rank_of, lists.counts))).all()):
        raise body.corrupt("chunks of one array differ in their number of dimensions")
    columns: dict[int, Coords] = {}
    starts = np.zeros(len(rank_of), dtype=np.int64)
    in_order = True
    ranks = np.unique(rank_of).tolist()
    for rank in ranks:
        at = vectors.starts if len(ranks) == 1 else vectors.starts[counts == rank]
        columns[rank] = _read_column(body, at, rank)
        mine = rank_of == rank
        ends = np.cumsum(lists.counts[mine])
        starts[mine] = ends - lists.counts[mine]
        in_order = in_order and _is_sorted(columns[rank], ends[:-1])
    return CoordinateColumns(columns, rank_of.tolist(), starts.tolist(), in_order)


def _read_column(body: Body, starts: npt.NDArray[np.int64], rank: int) -> Coords:
    return body.read_bytes(starts, 4 * rank).view("<u4").reshape(len(starts), rank).astype(np.uint32, copy=False)


def row_order(coords: Coords) -> npt.NDArray[np.int64] | None:
    """The order that sorts rows lexicographically, or None if they are sorted."""
    if len(coords) < 2 or _is_sorted(coords):
        return None
    if coords.shape[1] == 0:
        return np.arange(len(coords), dtype=np.int64)
    return np.lexsort(coords.T[::-1])


def _is_sorted(coords: Coords, edges: npt.NDArray[np.int64] | None = None) -> bool:
    """Whether rows are strictly increasing. Across an edge, where another array begins, any order is allowed."""
    before, after = coords[:-1], coords[1:]
    equal = np.ones(len(before), dtype=np.bool_)
    if edges is not None:
        equal[edges[(edges > 0) & (edges <= len(before))] - 1] = False
    for axis in range(coords.shape[1]):
        a, b = before[:, axis], after[:, axis]
        if bool((equal & (a > b)).any()):
            return False
        equal &= a == b
    return not bool(equal.any())


def has_duplicates(ordered: Coords) -> bool:
    """Whether neighbouring rows of a sorted column are equal."""
    return bool((ordered[1:] == ordered[:-1]).all(axis=1).any())


MAX_LOCATION_BYTES = 1024
"""Official readers refuse longer locations."""
_DICTIONARY, _ALGORITHM = 2, 3
_ZSTD = 1


def decompress_locations(root: Tables, compressed: Strings) -> list[str]:
    """The distinct compressed locations of a manifest as URLs."""
    decompressor = location_decompressor(root)
    return [decompress_location(root.body, decompressor, frame) for frame in compressed.split()]


def location_decompressor(root: Tables) -> zstandard.ZstdDecompressor:
    """A decompressor for the locations of a manifest, with the dictionary in it."""
    body = root.body
    algorithm = int(root.scalar(_ALGORITHM, "u1", default=_ZSTD)[0])
    vectors = root.vectors(_DICTIONARY, 1, 1, required=False)
    if algorithm != _ZSTD or not vectors.present[0]:
        raise body.corrupt(f"it has compressed locations, but no dictionary for algorithm {algorithm}")
    start, count = int(vectors.starts[0]), int(vectors.counts[0])
    try:
        dictionary = zstandard.ZstdCompressionDict(body.data[start : start + count])
        return zstandard.ZstdDecompressor(dict_data=dictionary)
    except (zstandard.ZstdError, ValueError) as error:
        raise body.corrupt(f"its dictionary of locations is invalid: {error}") from error


def decompress_location(body: Body, decompressor: zstandard.ZstdDecompressor, frame: bytes) -> str:
    """One location as a URL."""
    try:
        if zstandard.frame_content_size(frame) > MAX_LOCATION_BYTES:
            raise body.corrupt(f"a compressed location is longer than {MAX_LOCATION_BYTES} bytes")
        return decompressor.decompress(frame, max_output_size=MAX_LOCATION_BYTES).decode()
    except (zstandard.ZstdError, UnicodeDecodeError) as error:
        raise body.corrupt(f"a compressed location cannot be decompressed: {error}") from error


INDEX, INLINE, OFFSET, LENGTH, CHUNK_ID, LOCATION, ETAG, LAST_MODIFIED, COMPRESSED = range(9)
_UNKNOWN = 255


@dataclass(frozen=True, slots=True)
class _Rows:
    """All references of a file: those of all arrays, concatenated."""

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
    """The references of every array in the file. Raises FormatError for invalid content."""
    root = root_table(body)
    manifest_id = encode_base32(root.struct(0, 12).tobytes())
    arrays, _ = root.tables(1)
    node_ids = arrays.struct(0, 8)
    refs, vectors = arrays.tables(1)
    rows = _read_rows(root, refs, vectors)
    bounds = vectors.bounds().tolist()
    native, virtual, inline = (
        _count(rows.kind == kind, bounds) for kind in (ChunkKind.NATIVE, ChunkKind.VIRTUAL, ChunkKind.INLINE)
    )
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
    """How many rows of each array a mask selects."""
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


def _read_rows(root: Tables, refs: Tables, vectors: Vectors) -> _Rows:
    body = root.body
    coords = read_coordinates(refs, INDEX, vectors)
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
    """Offsets and lengths of all rows, and the inline bytes. Offsets of inline rows refer to these bytes."""
    offset, length = refs.scalar(OFFSET, "<u8"), refs.scalar(LENGTH, "<u8")
    here = kind == ChunkKind.INLINE
    if not here.any():
        return offset, length, b""
    starts, counts = inline.starts[here], inline.counts[here]
    length[here] = counts
    if int(counts.sum()) > refs.body.size // 2:
        # The inline data is most of the file, or rows share it. Use the file itself as the inline bytes.
        offset[here] = starts
        return offset, length, refs.body.data
    data, ends = gather_rows(refs.body, starts, counts)
    offset[here] = ends[:-1]
    return offset, length, data.tobytes()


def _read_locations(
    root: Tables, virtual: npt.NDArray[np.bool_], plain: Vectors, compressed: Vectors
) -> tuple[npt.NDArray[np.int32], list[str]]:
    """The number of each virtual row's location (-1 for other rows), and the distinct locations."""
    body = root.body
    codes, strings = dictionary_of(body, _where(plain, virtual & ~compressed.present))
    packed_codes, packed = dictionary_of(body, _where(compressed, virtual))
    locations = decode_texts(body, strings)
    if len(packed):
        codes = np.where(packed_codes >= 0, packed_codes + len(locations), codes).astype(np.int32)
        locations += decompress_locations(root, packed)
    return codes, locations


def _where(vectors: Vectors, mask: npt.NDArray[np.bool_]) -> Vectors:
    if mask.all() and vectors.present.all():
        return vectors
    return Vectors(np.where(mask, vectors.starts, -1), np.where(mask, vectors.counts, 0))


def _read_etags(refs: Tables, virtual: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int32] | None, list[str]]:
    if refs.field(ETAG, 4, 4) is None:
        return None, []
    codes, strings = dictionary_of(refs.body, _where(refs.strings(ETAG, required=False), virtual))
    return (codes, decode_texts(refs.body, strings)) if len(strings) else (None, [])


_FEW_ARRAYS = 16
_FREE_SEARCHES, _REFS_PER_SEARCH = 6, 800
"""Decoding the whole manifest takes as long as this many searches: a fixed number, and one more per this many rows."""


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
        position = self._arrays.get(node_id)
        if position is None or self._searches_left < len(wanted):
            return None
        self._searches_left -= len(wanted)
        found = []
        for coords in wanted:
            ref = self._search(*position, coords)
            if ref is None:
                return None  # the search relies on the order of the rows, so decode all to be sure
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
    """The first reference of each array, and the number of its references."""
    table = root(body)
    if table.vector(1, 4, 4)[1] <= _FEW_ARRAYS:
        few = table.children(1)
        arrays = {array.struct(0, 8): array.vector(1, 4, 4) for array in few}
        count = len(few)
    else:
        many, _ = root_table(body).tables(1)
        ids, vectors = many.struct(0, 8).tobytes(), many.vectors(1, 4, 4)
        bounds = zip(vectors.starts.tolist(), vectors.counts.tolist(), strict=True)
        arrays = {ids[8 * row : 8 * row + 8]: here for row, here in enumerate(bounds)}
        count = len(many)
    if len(arrays) != count:
        raise body.corrupt("an array appears twice")
    return arrays


_INDEX, _INLINE, _OFFSET, _LENGTH, _CHUNK_ID, _LOCATION, _ETAG, _LAST_MODIFIED = range(8)
_PLAIN_LOCATIONS = 0
Rows = slice | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Texts:
    """Strings that are written after the tables that refer to them."""

    block: TableBlock
    slot: int
    codes: npt.NDArray[np.int32]
    strings: Sequence[str]


def encode_manifest_body(manifest: Manifest, spec: int) -> bytes:
    """Encode a manifest. Arrays are sorted by node id, references by coordinates."""
    tables = join_tables(manifest.tables)
    writer = FlatWriter()
    fields: dict[int, FieldType] = {0: 12, 1: OFFSET_TYPE}
    if spec >= 2:
        fields[3] = "u1"
    root = writer.tables(1, fields).set(0, _id_bytes(manifest.id))
    if spec >= 2:
        root.set(3, _PLAIN_LOCATIONS)
    listed = writer.references(np.array([len(tables)], dtype=np.int64))
    root.link(1, listed.positions)
    array_block = writer.tables(len(tables), {0: 8, 1: OFFSET_TYPE})
    array_block.set(0, _node_ids(tables.nodes))
    listed.link(array_block.positions)
    vectors = writer.references(tables.counts)
    array_block.link(1, vectors.positions)
    waiting: list[_Texts] = []
    if len(tables):
        vectors.link(_write_ranks(writer, tables, waiting))
    for texts in waiting:
        _write_texts(writer, texts)
    return writer.finish(root)


def _id_bytes(object_id: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(decode_base32(object_id, 12), dtype=np.uint8)[None, :]


def _node_ids(node_ids: Sequence[NodeId]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(node_ids), dtype=np.uint8).reshape(len(node_ids), 8)


def _write_ranks(writer: FlatWriter, tables: ChunkTables, waiting: list[_Texts]) -> Positions:
    """Write the references of arrays of one rank together. Returns the position of each."""
    ranks = np.flatnonzero(np.bincount(tables.ndims)).tolist()
    if len(ranks) == 1:
        return _write_table(writer, replace(tables.rows, coords=tables.rows.coords[:, : ranks[0]]), waiting)
    positions = np.empty(len(tables.rows), dtype=np.int64)
    for ndim in ranks:
        chosen = tables.ndims == ndim
        alike = tables.select(np.flatnonzero(chosen)).rows
        table = replace(alike, coords=alike.coords[:, :ndim])
        positions[np.repeat(chosen, tables.counts)] = _write_table(writer, table, waiting)
    return positions


def _write_table(writer: FlatWriter, table: ChunkTable, waiting: list[_Texts]) -> Positions:
    """Write references of one rank. Returns the position of each."""
    kinds = np.bincount(table.kind, minlength=4)
    if len(kinds) > 4 or kinds[ChunkKind.DELETED]:
        raise InvalidInputError("a manifest can only contain native, virtual and inline references")
    positions = np.empty(len(table), dtype=np.int64)
    for kind in (ChunkKind.NATIVE, ChunkKind.VIRTUAL, ChunkKind.INLINE):
        if kinds[kind] == 0:
            continue
        rows: Rows = slice(None) if kinds[kind] == len(table) else np.flatnonzero(table.kind == kind)
        count = int(kinds[kind])
        if kind is ChunkKind.NATIVE:
            positions[rows] = _write_native(writer, table, rows, count)
        elif kind is ChunkKind.INLINE:
            positions[rows] = _write_inline(writer, table, rows, count)
        else:
            _write_virtual(writer, table, np.arange(len(table))[rows], positions, waiting)
    return positions


def _write_native(writer: FlatWriter, table: ChunkTable, rows: Rows, count: int) -> Positions:
    assert table.object_id is not None
    block = writer.tables(count, {_INDEX: Coordinates(table.ndim), _OFFSET: "<u8", _LENGTH: "<u8", _CHUNK_ID: 12})
    block.set_coordinates(_INDEX, table.coords[rows]).set(_OFFSET, table.offset[rows])
    return block.set(_LENGTH, table.length[rows]).set(_CHUNK_ID, table.object_id[rows]).positions


def _write_inline(writer: FlatWriter, table: ChunkTable, rows: Rows, count: int) -> Positions:
    block = writer.tables(count, {_INDEX: Coordinates(table.ndim), _INLINE: OFFSET_TYPE})
    block.set_coordinates(_INDEX, table.coords[rows])
    lengths = table.length[rows].astype(np.int64)
    starts = table.offset[rows].astype(np.int64)
    if len(starts) and int((starts + lengths).max()) > len(table.inline):
        raise InvalidInputError("the offset and length of an inline reference are outside of the inline bytes")
    return block.link(_INLINE, writer.vectors(table.inline, lengths, sources=starts)).positions


def _write_virtual(
    writer: FlatWriter, table: ChunkTable, rows: npt.NDArray[np.int64], positions: Positions, waiting: list[_Texts]
) -> None:
    """Rows with and without a checksum need different table layouts, because an absent field is not stored."""
    assert table.location is not None
    etag = table.etag[rows] if table.etag is not None else np.full(len(rows), -1, dtype=np.int32)
    modified = table.last_modified[rows] if table.last_modified is not None else np.zeros(len(rows), dtype=np.uint32)
    shape = (etag >= 0) * 2 + (modified > 0)
    for variant in np.unique(shape).tolist():
        picked = shape == variant
        here = rows[picked]
        fields: dict[int, FieldType] = {
            _INDEX: Coordinates(table.ndim),
            _LOCATION: OFFSET_TYPE,
            _OFFSET: "<u8",
            _LENGTH: "<u8",
        }
        if variant & 2:
            fields[_ETAG] = OFFSET_TYPE
        if variant & 1:
            fields[_LAST_MODIFIED] = "<u4"
        block = writer.tables(len(here), fields).set_coordinates(_INDEX, table.coords[here])
        block.set(_OFFSET, table.offset[here]).set(_LENGTH, table.length[here])
        waiting.append(_Texts(block, _LOCATION, table.location[here], table.locations))
        if variant & 2:
            waiting.append(_Texts(block, _ETAG, etag[picked], table.etags))
        if variant & 1:
            block.set(_LAST_MODIFIED, modified[picked])
        positions[here] = block.positions


def _write_texts(writer: FlatWriter, texts: _Texts) -> None:
    """Write each distinct string once, and link the rows to it."""
    used = np.flatnonzero(np.bincount(texts.codes, minlength=len(texts.strings)))
    strings = texts.strings if len(used) == len(texts.strings) else [texts.strings[i] for i in used.tolist()]
    data, lengths = join_texts(strings)
    at = writer.vectors(data, lengths, text=True)
    place = np.empty(len(texts.strings), dtype=np.int64)
    place[used] = np.arange(len(used))
    which = place[texts.codes]
    writer.apparent_bytes += int(lengths[which].sum() + 5 * len(which))
    texts.block.link(texts.slot, at[which])
