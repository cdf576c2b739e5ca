"""Write manifests of the generation `repository` as rows of fixed width.

The rows of a class have the same kind, rank, widths and text lengths. They differ only in the fields of its layout, and
every other byte is constant. Other MessagePack readers read the same bytes as `{[node, coords]: payload}` entries.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.ids import NODE_ID_BYTES, ObjectId, encode_base32_column, encode_node_id, text_length
from icefloe.model.chunk_table import ChunkKind, ChunkTable, ChunkTables, join_tables
from icefloe.model.snapshot import Manifest

NODE_TEXT_BYTES = text_length(8)
ID_TEXT_BYTES = text_length(12)

NO_CHECKSUM, ETAG, LAST_MODIFIED = 0, 1, 2

_INTEGER_MARK = {4: b"\xce", 8: b"\xcf"}


@dataclass(frozen=True, slots=True)
class RowClass:
    """What the rows of a class have in common."""

    ndim: int
    kind: ChunkKind
    text_bytes: int
    """The length of the id, the location, or the inline data."""
    offset_bytes: int = 0
    length_bytes: int = 0
    checksum: int = NO_CHECKSUM
    etag_bytes: int = 0

    def to_list(self) -> list[int]:
        return [
            self.ndim,
            int(self.kind),
            self.text_bytes,
            self.offset_bytes,
            self.length_bytes,
            self.checksum,
            self.etag_bytes,
        ]


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The layout of a class: a template, the positions of its fields, and the constant bytes as machine words."""

    template: bytes
    fields: np.dtype[Any]
    constants: np.dtype[Any]
    prefix_bytes: int
    """The part before the coordinates, which contains the node id."""
    row_bytes: int


@lru_cache(maxsize=4096)
def layout_of(row: RowClass) -> RowLayout:
    """Lay out a class of rows."""
    writer = _TemplateWriter()
    writer.constant(b"\x92" + bytes([0xA0 | NODE_TEXT_BYTES]))
    writer.field("node", f"V{NODE_TEXT_BYTES}", NODE_TEXT_BYTES)
    writer.constant(_array_header(row.ndim))
    prefix_bytes = len(writer.template)
    for dimension in range(row.ndim):
        writer.integer(f"c{dimension}", 4)
    if row.kind is ChunkKind.NATIVE:
        writer.constant(_NATIVE_START + text_header(row.text_bytes))
        writer.field("text", f"V{row.text_bytes}", row.text_bytes)
        writer.integer("offset", row.offset_bytes)
        writer.integer("length", row.length_bytes)
    elif row.kind is ChunkKind.INLINE:
        writer.constant(_inline_mark(row.text_bytes))
        writer.field("text", f"V{row.text_bytes}", row.text_bytes)
    else:
        writer.constant(b"\x81\xa7Virtual\x94" + text_header(row.text_bytes))
        writer.field("text", f"V{row.text_bytes}", row.text_bytes)
        writer.integer("offset", row.offset_bytes)
        writer.integer("length", row.length_bytes)
        _write_checksum(writer, row)
    return writer.finish(prefix_bytes)


def _write_checksum(writer: _TemplateWriter, row: RowClass) -> None:
    if row.checksum == ETAG:
        writer.constant(b"\x81\xa4ETag" + text_header(row.etag_bytes))
        writer.field("etag", f"V{row.etag_bytes}", row.etag_bytes)
    elif row.checksum == LAST_MODIFIED:
        writer.constant(b"\x81\xacLastModified")
        writer.integer("last_modified", 4)
    else:
        writer.constant(b"\xc0")


class _TemplateWriter:
    def __init__(self) -> None:
        self.template = bytearray()
        self._fields: list[tuple[str, str, int]] = []
        self._runs: list[tuple[int, int]] = []

    def constant(self, data: bytes) -> None:
        start = len(self.template)
        self.template += data
        if self._runs and self._runs[-1][1] == start:
            self._runs[-1] = (self._runs[-1][0], len(self.template))
        else:
            self._runs.append((start, len(self.template)))

    def field(self, name: str, form: str, size: int) -> None:
        if size:
            self._fields.append((name, form, len(self.template)))
            self.template += bytes(size)

    def integer(self, name: str, size: int) -> None:
        self.constant(_INTEGER_MARK[size])
        self.field(name, f">u{size}", size)

    def finish(self, prefix_bytes: int) -> RowLayout:
        size = len(self.template)
        pieces: list[tuple[str, str, int]] = []
        for start, end in self._runs:
            while start < end:
                width = next(w for w in (8, 4, 2, 1) if w <= end - start)
                pieces.append((f"k{start}", f"u{width}", start))
                start += width
        return RowLayout(bytes(self.template), _record(self._fields, size), _record(pieces, size), prefix_bytes, size)


def _record(members: list[tuple[str, str, int]], size: int) -> np.dtype[Any]:
    return np.dtype(
        {
            "names": [name for name, _, _ in members],
            "formats": [form for _, form, _ in members],
            "offsets": [offset for _, _, offset in members],
            "itemsize": size,
        }
    )


def _array_header(count: int) -> bytes:
    return bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def map_header(count: int) -> bytes:
    """The MessagePack head of a map of that many entries."""
    if count < 16:
        return bytes([0x80 | count])
    return b"\xde" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdf" + count.to_bytes(4, "big")


@lru_cache(maxsize=1024)
def text_header(size: int) -> bytes:
    """The MessagePack head of a text of that many bytes."""
    if size < 32:
        return bytes([0xA0 | size])
    if size < 1 << 8:
        return b"\xd9" + size.to_bytes(1, "big")
    if size < 1 << 16:
        return b"\xda" + size.to_bytes(2, "big")
    return b"\xdb" + size.to_bytes(4, "big")


def _bytes_header(size: int) -> bytes:
    if size < 1 << 8:
        return b"\xc4" + size.to_bytes(1, "big")
    if size < 1 << 16:
        return b"\xc5" + size.to_bytes(2, "big")
    return b"\xc6" + size.to_bytes(4, "big")


_NATIVE_START = b"\x81\xa3Ref\x93"
_NATIVE_MARK = _NATIVE_START + text_header(ID_TEXT_BYTES)
_TWO_INTEGERS = struct.Struct(">BIBI")
_INLINE, _NATIVE = int(ChunkKind.INLINE), int(ChunkKind.NATIVE)
_JOINED_KINDS = {_INLINE, _NATIVE}


@lru_cache(maxsize=1024)
def _inline_mark(size: int) -> bytes:
    return b"\x81\xa6Inline" + _bytes_header(size)


HINT_KEY = b"icefloe.rows"
HINT_PREFIX = b"\x93\x01\x81" + bytes([0xA0 | len(HINT_KEY)]) + HINT_KEY + b"\xc6"
"""Start of a body with row hints: an array of version, flags with one key, and the map of references."""
HINT_VERSION = 1

_FEW_ROWS = 256
_JOINED_ROWS = 128
"""Up to this many rows, bytes are joined faster than matrices are filled."""
_FOUR_BYTES = 1 << 32
_BLOCK_ROWS = 1 << 14
"""Rows per block. A block fits into the processor's cache."""


def encode_manifest_body(manifest: Manifest) -> bytes | memoryview:
    """Encode a manifest as MessagePack, with a hint that lets readers decode it as a matrix."""
    tables = join_tables(manifest.tables)
    columns = tables.rows
    if 0 < len(columns) <= _JOINED_ROWS:
        joined = _join_rows(manifest.id, tables)
        if joined is not None:
            return joined
    texts = _Texts.of(tables)
    codes, classes = (_classify_few if len(columns) <= _FEW_ROWS else _classify)(tables, texts)
    sizes = np.array([layout_of(c).row_bytes for c in classes], dtype=np.int64)
    head = _encode_head(manifest.id, tables.counts, classes, *_find_runs(codes))
    if len(classes) <= 1:
        total = int(sizes.sum()) * len(columns)
        body = np.empty(len(head) + total, dtype=np.uint8)
        if classes:
            _fill_class(_rows_at(body, len(head), classes[0], len(columns)), classes[0], columns, texts)
    else:
        row_sizes = sizes[codes]
        starts = np.cumsum(row_sizes) - row_sizes + len(head)
        body = np.empty(len(head) + int(row_sizes.sum()), dtype=np.uint8)
        _scatter_classes(body, starts, codes, classes, columns, texts)
    body[: len(head)] = np.frombuffer(head, dtype=np.uint8)
    return body.data


@dataclass(frozen=True, slots=True)
class _Words:
    """A dictionary of texts as one buffer."""

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, words: Sequence[str]) -> _Words:
        encoded = [word.encode() for word in words]
        sizes = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), np.cumsum(sizes) - sizes, sizes)


@dataclass(frozen=True, slots=True)
class _Texts:
    """All values of varying length in rows."""

    nodes: npt.NDArray[Any]
    node_of_row: npt.NDArray[np.int64] | None
    locations: _Words
    etags: _Words
    inline: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, tables: ChunkTables) -> _Texts:
        ids = np.frombuffer(b"".join(tables.nodes), dtype=np.uint8).reshape(-1, NODE_ID_BYTES)
        nodes = np.ascontiguousarray(encode_base32_column(ids)).view("V13")[:, 0]
        columns = tables.rows
        return cls(
            nodes,
            tables.array_of_row() if len(tables) > 1 else None,
            _Words.of(columns.locations if columns.location is not None else ()),
            _Words.of(columns.etags if columns.etag is not None else ()),
            np.frombuffer(columns.inline, dtype=np.uint8),
        )


def _classify(tables: ChunkTables, texts: _Texts) -> tuple[npt.NDArray[np.int64], list[RowClass]]:
    """The class of every row."""
    columns = tables.rows
    count = len(columns)
    codes = np.zeros(count, dtype=np.int64)
    if count == 0:
        return codes, []
    text_bytes = np.full(count, ID_TEXT_BYTES, dtype=np.int64)
    checksum = np.full(count, NO_CHECKSUM, dtype=np.int64)
    etag_bytes = np.zeros(count, dtype=np.int64)
    kinds = set(np.flatnonzero(np.bincount(columns.kind)).tolist())
    if not kinds <= {ChunkKind.INLINE, ChunkKind.NATIVE, ChunkKind.VIRTUAL}:
        raise InvalidInputError(
            f"a manifest can only contain inline, native and virtual references, found kinds {kinds}"
        )
    if ChunkKind.INLINE in kinds:
        text_bytes = np.where(columns.kind == ChunkKind.INLINE, columns.length.astype(np.int64), text_bytes)
    if ChunkKind.VIRTUAL in kinds:
        assert columns.location is not None
        rows = columns.kind == ChunkKind.VIRTUAL
        if len(kinds) == 1:
            text_bytes = texts.locations.sizes[columns.location]
        else:
            text_bytes[rows] = texts.locations.sizes[columns.location[rows]]
        if columns.last_modified is not None:
            checksum[rows & (columns.last_modified > 0)] = LAST_MODIFIED
        if columns.etag is not None:
            with_etag = rows & (columns.etag >= 0)
            checksum[with_etag] = ETAG
            etag_bytes[with_etag] = texts.etags.sizes[columns.etag[with_etag]]
    parts: list[npt.NDArray[np.int64]] = [columns.kind.astype(np.int64)] if len(kinds) > 1 else []
    if kinds != {ChunkKind.NATIVE}:
        parts += [text_bytes, checksum, etag_bytes]
    if len(set(tables.ndims.tolist())) > 1:
        parts.append(np.repeat(tables.ndims, tables.counts))
    for part in parts:
        codes = _fold(codes, part)
    firsts = np.zeros(int(codes.max()) + 1, dtype=np.int64)
    if len(firsts) > 1:
        firsts[codes[::-1]] = np.arange(count)[::-1]
    ends = np.cumsum(tables.counts)
    wide_offset, wide_length = _wide(columns.offset, codes, len(firsts)), _wide(columns.length, codes, len(firsts))
    classes = []
    for code, row in enumerate(firsts.tolist()):
        kind = ChunkKind(int(columns.kind[row]))
        ndim = int(tables.ndims[np.searchsorted(ends, row, side="right")])
        inline = kind is ChunkKind.INLINE
        classes.append(
            RowClass(
                ndim,
                kind,
                int(text_bytes[row]),
                0 if inline else 8 if wide_offset[code] else 4,
                0 if inline else 8 if wide_length[code] else 4,
                int(checksum[row]),
                int(etag_bytes[row]),
            )
        )
    return codes, classes


def _classify_few(tables: ChunkTables, texts: _Texts) -> tuple[npt.NDArray[np.int64], list[RowClass]]:
    """The same for few rows. The numpy operations of `_classify` would take longer than a loop over them."""
    columns = tables.rows
    ndims = [ndim for ndim, count in zip(tables.ndims.tolist(), tables.counts.tolist()) for _ in range(count)]
    keys: list[tuple[int, int, int, int, int]] = []
    wide: dict[tuple[int, ...], tuple[bool, bool]] = {}
    rows = zip(columns.kind.tolist(), columns.offset.tolist(), columns.length.tolist(), ndims, strict=True)
    for row, (kind, offset, length, ndim) in enumerate(rows):
        text_bytes, checksum, etag_bytes = ID_TEXT_BYTES, NO_CHECKSUM, 0
        if kind == ChunkKind.INLINE:
            text_bytes = length
        elif kind == ChunkKind.VIRTUAL:
            assert columns.location is not None
            text_bytes = int(texts.locations.sizes[columns.location[row]])
            if columns.last_modified is not None and columns.last_modified[row] > 0:
                checksum = LAST_MODIFIED
            if columns.etag is not None and columns.etag[row] >= 0:
                checksum, etag_bytes = ETAG, int(texts.etags.sizes[columns.etag[row]])
        elif kind != ChunkKind.NATIVE:
            raise InvalidInputError(
                f"a manifest can only contain inline, native and virtual references, found kind {kind}"
            )
        key = (kind, text_bytes, checksum, etag_bytes, ndim)
        keys.append(key)
        if offset >= _FOUR_BYTES or length >= _FOUR_BYTES:
            before = wide.get(key, (False, False))
            wide[key] = before[0] or offset >= _FOUR_BYTES, before[1] or length >= _FOUR_BYTES
    known: dict[tuple[int, ...], int] = {}
    classes: list[RowClass] = []
    for key in sorted(set(keys)):
        known[key] = len(classes)
        kind, text_bytes, checksum, etag_bytes, ndim = key
        widths = (0, 0)
        if kind != ChunkKind.INLINE:
            far, long = wide.get(key, (False, False))
            widths = (8 if far else 4, 8 if long else 4)
        classes.append(RowClass(ndim, ChunkKind(kind), text_bytes, *widths, checksum, etag_bytes))
    return np.array([known[key] for key in keys], dtype=np.int64), classes


def _wide(column: npt.NDArray[np.uint64], codes: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.bool_]:
    """Per class, whether some value needs more than four bytes."""
    wide = np.zeros(count, dtype=np.bool_)
    if int(column.max()) >= 1 << 32:
        wide[codes[column >= np.uint64(1 << 32)]] = True
    return wide


def _fold(codes: npt.NDArray[np.int64], part: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Codes of the distinct pairs of both columns, dense from 0."""
    largest = int(part.max())
    if largest == int(part.min()):
        return codes  # they are dense already
    if largest >= 1 << 16:
        part = np.unique(part, return_inverse=True)[1].astype(np.int64)
        largest = int(part.max())
    pairs = codes * (largest + 1) + part
    top = int(pairs.max())
    if top < 1 << 22:
        present = np.bincount(pairs, minlength=top + 1) > 0
        dense: npt.NDArray[np.int64] = np.cumsum(present) - 1
        folded: npt.NDArray[np.int64] = dense[pairs]
    else:
        folded = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return folded


def _rows_at(body: npt.NDArray[np.uint8], start: int, row: RowClass, count: int) -> npt.NDArray[Any]:
    return np.ndarray((count,), dtype=layout_of(row).fields, buffer=body.data, offset=start)


def _scatter_classes(
    body: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    codes: npt.NDArray[np.int64],
    classes: list[RowClass],
    columns: ChunkTable,
    texts: _Texts,
) -> None:
    """Fill the rows of each class, and copy them to their positions."""
    small = codes.astype(np.uint16) if len(classes) < 1 << 16 else codes
    order = np.argsort(small, kind="stable")
    bounds = [0, *np.cumsum(np.bincount(codes, minlength=len(classes))).tolist()]
    for code, row in enumerate(classes):
        rows = order[bounds[code] : bounds[code + 1]]
        size = layout_of(row).row_bytes
        # A window of one row at every byte. Assigning to some windows scatters whole rows.
        places = np.ndarray((len(body) - size + 1,), dtype=f"V{size}", buffer=body.data, strides=(1,))
        for first in range(0, len(rows), _BLOCK_ROWS):
            block = rows[first : first + _BLOCK_ROWS]
            filled = np.empty(len(block), dtype=layout_of(row).fields)
            _fill_block(filled, layout_of(row), row, columns, texts, block)
            places[starts[block]] = filled.view(f"V{size}")


def _fill_class(target: npt.NDArray[Any], row: RowClass, columns: ChunkTable, texts: _Texts) -> None:
    """Fill rows that lie one after the other."""
    layout = layout_of(row)
    for first in range(0, len(target), _BLOCK_ROWS):
        block = slice(first, min(first + _BLOCK_ROWS, len(target)))
        _fill_block(target[block], layout, row, columns, texts, block)


def _fill_block(
    target: npt.NDArray[Any],
    layout: RowLayout,
    row: RowClass,
    columns: ChunkTable,
    texts: _Texts,
    rows: slice | npt.NDArray[np.int64],
) -> None:
    target.view(f"V{layout.row_bytes}")[:] = np.void(layout.template)
    target["node"] = texts.nodes[0] if texts.node_of_row is None else texts.nodes[texts.node_of_row[rows]]
    for dimension in range(row.ndim):
        target[f"c{dimension}"] = columns.coords[rows, dimension]
    if row.kind is ChunkKind.INLINE:
        if row.text_bytes:
            target["text"] = _windows(texts.inline, row.text_bytes)[columns.offset[rows].astype(np.int64)]
        return
    target["offset"] = columns.offset[rows]
    target["length"] = columns.length[rows]
    if row.kind is ChunkKind.NATIVE:
        assert columns.object_id is not None
        text = np.ascontiguousarray(encode_base32_column(columns.object_id[rows]))
        target["text"] = text.view(f"V{row.text_bytes}")[:, 0]
        return
    assert columns.location is not None
    if row.text_bytes:
        starts = texts.locations.starts[columns.location[rows]]
        target["text"] = _windows(texts.locations.data, row.text_bytes)[starts]
    if row.checksum == ETAG and row.etag_bytes:
        assert columns.etag is not None
        target["etag"] = _windows(texts.etags.data, row.etag_bytes)[texts.etags.starts[columns.etag[rows]]]
    elif row.checksum == LAST_MODIFIED:
        assert columns.last_modified is not None
        target["last_modified"] = columns.last_modified[rows]


def _windows(data: npt.NDArray[np.uint8], size: int) -> npt.NDArray[Any]:
    """Every run of `size` bytes as one value."""
    if len(data) < size:
        raise InvalidInputError(f"a reference needs {size} bytes, but there are only {len(data)}")
    return np.ndarray((len(data) - size + 1,), dtype=f"V{size}", buffer=data.data, strides=(1,))


def _find_runs(codes: npt.NDArray[np.int64]) -> tuple[bytes, bytes]:
    """The class of every row, as classes and lengths of runs."""
    if len(codes) == 0:
        return b"", b""
    firsts = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1])
    return codes[firsts].astype("<u4").tobytes(), np.diff(np.append(firsts, len(codes))).astype("<u4").tobytes()


def _encode_head(
    manifest_id: ObjectId,
    counts: npt.NDArray[np.int64],
    classes: list[RowClass],
    run_classes: bytes,
    run_counts: bytes,
) -> bytes:
    """What comes before the rows. The hint has the class of every row and the number of rows of every array."""
    lists = [c.to_list() for c in classes]
    hint = msgspec.msgpack.encode(
        [HINT_VERSION, manifest_id, counts.astype("<u4").tobytes(), lists, run_classes, run_counts]
    )
    return HINT_PREFIX + len(hint).to_bytes(4, "big") + hint + b"\xdf" + int(counts.sum()).to_bytes(4, "big")


def _join_rows(manifest_id: ObjectId, tables: ChunkTables) -> bytes | None:
    """The same bytes for few rows of inline and native references. None if there is another kind or a long integer."""
    columns = tables.rows
    kinds, offsets, lengths = columns.kind.tolist(), columns.offset.tolist(), columns.length.tolist()
    if not _JOINED_KINDS.issuperset(kinds) or max(offsets) >= _FOUR_BYTES or max(lengths) >= _FOUR_BYTES:
        return None
    inline, ids = columns.inline, b""
    if columns.object_id is not None:
        ids = encode_base32_column(columns.object_id).tobytes()
    marked = np.full((*columns.coords.shape, 5), _INTEGER_MARK[4][0], dtype=np.uint8)
    marked[:, :, 1:] = columns.coords.astype(">u4").view(np.uint8).reshape(*columns.coords.shape, 4)
    coords, width = marked.tobytes(), 5 * columns.coords.shape[1]
    keys: list[tuple[int, int, int]] = []
    rows: list[Any] = []
    for node_id, count, ndim in zip(tables.nodes, tables.counts.tolist(), tables.ndims.tolist(), strict=True):
        head = b"\x92" + text_header(NODE_TEXT_BYTES) + encode_node_id(node_id) + _array_header(ndim)
        for row in range(len(keys), len(keys) + count):
            start, offset, length = row * width, offsets[row], lengths[row]
            place = coords[start : start + 5 * ndim]
            if kinds[row] == _INLINE:
                keys.append((_INLINE, length, ndim))
                rows += (head, place, _inline_mark(length), inline[offset : offset + length])
            else:
                keys.append((_NATIVE, ID_TEXT_BYTES, ndim))
                text = ids[row * ID_TEXT_BYTES : (row + 1) * ID_TEXT_BYTES]
                rows += (head, place, _NATIVE_MARK, text, _TWO_INTEGERS.pack(0xCE, offset, 0xCE, length))
    codes = {key: code for code, key in enumerate(sorted(set(keys)))}
    classes = [
        RowClass(ndim, ChunkKind(kind), size, *((0, 0) if kind == _INLINE else (4, 4))) for kind, size, ndim in codes
    ]
    runs = [(codes[key], len(list(alike))) for key, alike in groupby(keys)]
    run_classes, run_counts = (struct.pack(f"<{len(runs)}I", *column) for column in zip(*runs, strict=True))
    return b"".join([_encode_head(manifest_id, tables.counts, classes, run_classes, run_counts), *rows])
