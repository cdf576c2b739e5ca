"""Read manifests of the generation `repository`: as a matrix where rows have fixed width, else entry by entry."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.format import OpenManifest
from icefloe.formats.repository.manifest_writer import (
    ETAG,
    HINT_PREFIX,
    HINT_VERSION,
    ID_TEXT_BYTES,
    LAST_MODIFIED,
    NODE_TEXT_BYTES,
    RowClass,
    layout_of,
)
from icefloe.formats.repository.wire_values import (
    WireId,
    WireNodeId,
    decode_or_refuse,
    parse_node_id,
    parse_object_id,
    parse_object_id_bytes,
)
from icefloe.ids import NODE_ID_BYTES, OBJECT_ID_BYTES, NodeId, ObjectId, decode_base32_column, encode_base32
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, ChunkTables
from icefloe.model.snapshot import Manifest
from icefloe.model.zarr_document import check_messagepack

_Coords: TypeAlias = tuple[int, ...]
_Member: TypeAlias = str | int | dict[str, str | int] | tuple[bytes, tuple[Any, ...]] | None
_Payload: TypeAlias = dict[str, bytes | tuple[_Member, ...]]

_FLAT = msgspec.msgpack.Decoder(dict[tuple[WireNodeId, _Coords], _Payload])
_NESTED = msgspec.msgpack.Decoder(dict[WireNodeId, dict[_Coords, _Payload]])
_ID = msgspec.msgpack.Decoder(WireId)
_PARTS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_MAX_COORD = 2**32 - 1


def decode_entries(body: bytes) -> Manifest:
    """Decode a manifest of any layout. Its id is empty if the layout does not contain it."""
    manifest_id, references = _take_parts(body)
    with _without_cycle_search():
        return Manifest(manifest_id, _decode_tables(references))


def _decode_tables(references: msgspec.Raw) -> dict[NodeId, ChunkTable]:
    if _is_flat(references):
        flat = decode_or_refuse(_FLAT, references, "manifest")
        by_wire: dict[WireNodeId, dict[_Coords, _Payload]] = {}
        for (node, coords), payload in flat.items():
            by_wire.setdefault(node, {})[coords] = payload
    else:
        by_wire = decode_or_refuse(_NESTED, references, "manifest")
    by_node = {parse_node_id(node): entries for node, entries in by_wire.items()}
    ranks = _choose_ranks(by_node)
    return {node: _make_table(by_node[node], rank) for node, rank in ranks.items()}


_pauses = threading.Lock()
_paused = 0


def _resume_in_child() -> None:
    # After a fork, the threads that paused the collector only exist in the parent process.
    global _pauses, _paused
    if _paused:
        gc.enable()
    _pauses, _paused = threading.Lock(), 0


os.register_at_fork(after_in_child=_resume_in_child)


@contextlib.contextmanager
def _without_cycle_search() -> Iterator[None]:
    """Pause the cycle collector while millions of values without cycles are created. It would take most of the time."""
    global _paused
    with _pauses:
        if _paused == 0 and not gc.isenabled():
            resume = False
        else:
            resume = True
            _paused += 1
            gc.disable()
    try:
        yield
    finally:
        if resume:
            with _pauses:
                _paused -= 1
                if _paused == 0:
                    gc.enable()


def _take_parts(body: bytes) -> tuple[ObjectId, msgspec.Raw]:
    """Id and references of [version, flags, references], [version, flags, id, references] or [id, references]."""
    if not body or body[0] not in (0x92, 0x93, 0x94):
        raise FormatError(
            f"not a manifest: the body starts with {body[:8].hex() or 'nothing'}, "
            "expected a MessagePack array of 2 to 4"
        )
    *first, references = decode_or_refuse(_PARTS, body, "manifest")
    if len(first) == 2:
        return "", references
    return parse_object_id(decode_or_refuse(_ID, first[-1], "manifest")), references


def _is_flat(references: msgspec.Raw) -> bool:
    """Whether keys are [node, coords] (else they are nodes), by the first key."""
    data = memoryview(references)
    head = {0xDE: 3, 0xDF: 5}.get(data[0], 1)
    key = bytes(data[head : head + 2])
    # A binary node id is itself an array of two: bytes and an empty array.
    return key[:1] == b"\x92" and key[1:] not in (b"\xc4", b"\xc5")


def _choose_ranks(by_node: Mapping[NodeId, Mapping[_Coords, _Payload]]) -> dict[NodeId, int]:
    """The rank of every array.

    In some early files, an array also has references that were copied from other arrays, even of another rank. If an
    array has references of several ranks, those that another array has too are the copies.
    """
    counts = {node: Counter(map(len, entries)) for node, entries in by_node.items() if entries}
    ranks = {node: next(iter(count)) for node, count in counts.items() if len(count) == 1}
    for node, count in counts.items():
        if len(count) == 1:
            continue
        others = [by_node[other] for other in counts if other != node]
        copied = {
            len(coords)
            for coords, payload in by_node[node].items()
            if any(other.get(coords) == payload for other in others)
        }
        own = {rank: number for rank, number in count.items() if rank not in copied} or count
        ranks[node] = max(own, key=lambda rank: (own[rank], rank))
    return ranks


def _make_table(entries: Mapping[_Coords, _Payload], rank: int) -> ChunkTable:
    """Columns of the entries of one array, sorted.

    Entries of another rank are dropped, because nothing can read them.
    """
    keys = [coords for coords in entries if len(coords) == rank]
    payloads = list(entries.values()) if len(keys) == len(entries) else [entries[coords] for coords in keys]
    try:
        flat = np.fromiter(chain.from_iterable(keys), dtype=np.int64, count=len(keys) * rank)
        coords = flat.reshape(len(keys), rank)
        if coords.size and (int(coords.min()) < 0 or int(coords.max()) > _MAX_COORD):
            raise FormatError("a manifest contains chunk coordinates outside of 0..2^32-1")
        if rank and not _is_ascending(coords):
            order = np.lexsort(coords.T[::-1])
            coords, payloads = coords[order], [payloads[row] for row in order.tolist()]
        return _EntryColumns(payloads).finish(coords.astype(np.uint32))
    except (ValueError, TypeError, OverflowError, KeyError, IndexError) as error:
        raise FormatError(f"a manifest contains a reference that cannot be read: {error}") from error


def _is_ascending(coords: npt.NDArray[np.int64]) -> bool:
    ascending = np.zeros(max(len(coords) - 1, 0), dtype=np.bool_)
    for dimension in range(coords.shape[1] - 1, -1, -1):
        column = coords[:, dimension]
        ascending &= column[1:] == column[:-1]
        ascending |= column[1:] > column[:-1]
    return bool(ascending.all())


_KINDS = {"Inline": ChunkKind.INLINE, "Ref": ChunkKind.NATIVE, "Virtual": ChunkKind.VIRTUAL}


class _EntryColumns:
    """Columns from payloads, kind by kind. Raises ValueError, TypeError and similar errors for invalid payloads."""

    def __init__(self, payloads: list[_Payload]) -> None:
        count = len(payloads)
        self._kind = np.fromiter((_KINDS[name] for (name,) in payloads), dtype=np.uint8, count=count)
        self._offset = np.zeros(count, dtype=np.uint64)
        self._length = np.zeros(count, dtype=np.uint64)
        self._object_id: npt.NDArray[np.uint8] | None = None
        self._location: npt.NDArray[np.int32] | None = None
        self._locations: dict[str, int] = {}
        self._etag = np.full(count, -1, dtype=np.int32)
        self._etags: dict[str, int] = {}
        self._modified = np.zeros(count, dtype=np.uint32)
        self._inline = b""
        takers = {"Inline": self._take_inline, "Ref": self._take_native, "Virtual": self._take_virtual}
        for name, take in takers.items():
            rows = np.flatnonzero(self._kind == _KINDS[name])
            if len(rows):
                take(rows, [payloads[row][name] for row in rows.tolist()])

    def _take_inline(self, rows: npt.NDArray[np.int64], values: list[Any]) -> None:
        sizes = np.fromiter(map(len, values), dtype=np.uint64, count=len(values))
        self._inline = b"".join(values)
        self._offset[rows] = np.cumsum(sizes) - sizes
        self._length[rows] = sizes

    def _take_native(self, rows: npt.NDArray[np.int64], values: list[Any]) -> None:
        ids, offsets, lengths = zip(*values, strict=True)
        self._offset[rows] = np.array(offsets, dtype=np.uint64)
        self._length[rows] = np.array(lengths, dtype=np.uint64)
        self._object_id = np.zeros((len(self._kind), OBJECT_ID_BYTES), dtype=np.uint8)
        if all(isinstance(i, str) and len(i) == ID_TEXT_BYTES for i in ids):
            text = np.frombuffer("".join(ids).encode("ascii"), dtype=np.uint8).reshape(len(ids), ID_TEXT_BYTES)
            self._object_id[rows] = decode_base32_column(text, OBJECT_ID_BYTES)
        else:
            joined = b"".join(map(parse_object_id_bytes, ids))
            self._object_id[rows] = np.frombuffer(joined, dtype=np.uint8).reshape(len(ids), OBJECT_ID_BYTES)

    def _take_virtual(self, rows: npt.NDArray[np.int64], values: list[Any]) -> None:
        self._location = np.full(len(self._kind), -1, dtype=np.int32)
        self._offset[rows] = np.array([value[1] for value in values], dtype=np.uint64)
        self._length[rows] = np.array([value[2] for value in values], dtype=np.uint64)
        known = self._locations
        codes = [known.setdefault(_parse_location(value[0]), len(known)) for value in values]
        self._location[rows] = np.array(codes, dtype=np.int32)
        for row, value in zip(rows.tolist(), values, strict=True):
            if len(value) > 3 and value[3] is not None:
                self._take_checksum(row, value[3])

    def _take_checksum(self, row: int, checksum: Any) -> None:
        if not isinstance(checksum, dict):
            raise ValueError(f"a checksum is {checksum!r:.40}")
        ((name, seal),) = checksum.items()
        if name == "ETag" and isinstance(seal, str):
            self._etag[row] = self._etags.setdefault(seal, len(self._etags))
        elif name == "LastModified" and isinstance(seal, int):
            self._modified[row] = seal
        else:
            raise ValueError(f"unknown checksum {name!r:.40}")

    def finish(self, coords: npt.NDArray[np.uint32]) -> ChunkTable:
        return ChunkTable(
            coords,
            self._kind,
            self._offset,
            self._length,
            self._object_id,
            self._location,
            list(self._locations),
            self._etag if self._etags else None,
            list(self._etags),
            self._modified if self._modified.any() else None,
            self._inline,
        )


def _parse_location(wire: Any) -> str:
    """A location, plain or as the earliest writers encoded it."""
    if isinstance(wire, dict) and len(wire) == 1:
        wire = wire["Absolute"]
    if not isinstance(wire, str):
        raise ValueError(f"a virtual reference to {wire!r:.80}")
    return wire


_BLOCK_ROWS = 1 << 14
# Hints beyond these limits are ignored: computing such a layout would take longer than reading the entries.
_MAX_NDIM = 64
_MAX_CLASSES = 4096
# Random per process, so that a file cannot contain texts with colliding hashes on purpose.
_MULTIPLIERS = np.frombuffer(secrets.token_bytes(64 * 8), dtype=np.uint64) | np.uint64(1)
_HINT = msgspec.msgpack.Decoder(tuple[int, str, bytes, list[tuple[int, int, int, int, int, int, int]], bytes, bytes])


def decode_manifest_body(body: bytes, stored_bytes: int | None = None, plan: RowPlan | None = None) -> Manifest:
    """Decode a manifest of any layout. `stored_bytes` is the size of its file, if it is not that of the body.

    Pass the plan of its rows if it has been read.
    """
    try:
        return decode_plan(body, read_plan(body) if plan is None else plan)
    except HintError:  # the hint may be wrong; read the entries
        check_messagepack(body, len(body) if stored_bytes is None else stored_bytes, "manifest")
        return decode_entries(body)


class HintError(Exception):
    """There is no row hint, or it does not describe the rows."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The positions of the rows of every class."""

    manifest_id: ObjectId
    counts: npt.NDArray[np.int64]
    classes: list[RowClass]
    codes: npt.NDArray[np.int64] | None
    """None if all rows are of one class."""
    first: int
    starts: npt.NDArray[np.int64] | None

    def __len__(self) -> int:
        return int(self.counts.sum())

    def row_starts(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The positions of some rows in the body."""
        return self.first + rows * layout_of(self.classes[0]).row_bytes if self.starts is None else self.starts[rows]

    def of_array(self, index: int) -> RowPlan:
        """The plan of the rows of one array alone."""
        end = int(self.counts[: index + 1].sum())
        rows = slice(end - int(self.counts[index]), end)
        first = int(self.row_starts(np.array([rows.start], dtype=np.int64))[0])
        if self.codes is None or self.starts is None:
            return replace(self, counts=self.counts[index : index + 1], first=first)
        return replace(
            self, counts=self.counts[index : index + 1], first=first, codes=self.codes[rows], starts=self.starts[rows]
        )


def read_plan(body: bytes) -> RowPlan:
    """The positions of the rows of a body, from its hint. Raises HintError if there is no plausible hint."""
    if not body.startswith(HINT_PREFIX):
        raise HintError
    hint_start = len(HINT_PREFIX) + 4
    hint_end = hint_start + int.from_bytes(body[len(HINT_PREFIX) : hint_start], "big")
    first = hint_end + 5
    if first > len(body) or body[hint_end] != 0xDF:
        raise HintError
    count = int.from_bytes(body[hint_end + 1 : first], "big")
    try:
        hint = _HINT.decode(body[hint_start:hint_end])
        version, manifest_id, counts_data, class_lists, run_classes_data, run_counts_data = hint
        classes = [RowClass(c[0], ChunkKind(c[1]), *c[2:]) for c in class_lists]
        counts = np.frombuffer(counts_data, dtype="<u4").astype(np.int64)
        run_classes = np.frombuffer(run_classes_data, dtype="<u4").astype(np.int64)
        run_counts = np.frombuffer(run_counts_data, dtype="<u4").astype(np.int64)
    except (msgspec.MsgspecError, ValueError) as error:
        raise HintError from error
    if (
        version != HINT_VERSION
        or len(classes) > _MAX_CLASSES
        or int(counts.sum()) != count
        or int(run_counts.sum()) != count
        or len(run_classes) != len(run_counts)
        or (counts == 0).any()
        or (len(run_classes) and int(run_classes.max()) >= len(classes))
        or not all(_is_plausible(c, len(body)) for c in classes)
    ):
        raise HintError
    sizes = np.array([layout_of(c).row_bytes for c in classes], dtype=np.int64)
    # Check with floats first: the products of a wrong hint may not fit an integer.
    if float(run_counts.astype(np.float64) @ sizes[run_classes].astype(np.float64)) != len(body) - first:
        raise HintError
    if len(classes) == 1:
        return RowPlan(manifest_id, counts, classes, None, first, None)
    codes = np.repeat(run_classes, run_counts)
    row_sizes = sizes[codes]
    return RowPlan(manifest_id, counts, classes, codes, first, np.cumsum(row_sizes) - row_sizes + first)


def _is_plausible(row: RowClass, limit: int) -> bool:
    inline = row.kind is ChunkKind.INLINE
    return (
        row.kind is not ChunkKind.DELETED
        and 0 <= row.ndim <= _MAX_NDIM
        and 0 <= row.text_bytes < limit
        and 0 <= row.etag_bytes < limit
        and (row.kind is not ChunkKind.NATIVE or row.text_bytes == ID_TEXT_BYTES)
        and (inline or (row.offset_bytes in (4, 8) and row.length_bytes in (4, 8)))
        and 0 <= row.checksum <= LAST_MODIFIED
    )


def decode_plan(body: bytes, plan: RowPlan) -> Manifest:
    """The references of the rows of a plan. Raises HintError if they do not match it."""
    if not len(plan):
        return Manifest(plan.manifest_id, {})
    target = _Target(body, plan)
    if plan.codes is None or plan.starts is None:
        row = plan.classes[0]
        matrix = np.ndarray((len(plan),), dtype=layout_of(row).fields, buffer=body, offset=plan.first)
        target.take_class(row, matrix, None)
    else:
        order = np.argsort(plan.codes.astype(np.uint16) if len(plan.classes) < 1 << 16 else plan.codes, kind="stable")
        bounds = [0, *np.cumsum(np.bincount(plan.codes, minlength=len(plan.classes))).tolist()]
        for code, row in enumerate(plan.classes):
            rows = order[bounds[code] : bounds[code + 1]]
            if not len(rows):
                continue
            layout = layout_of(row)
            windows = np.ndarray(
                (len(body) - layout.row_bytes + 1,), dtype=f"V{layout.row_bytes}", buffer=body, strides=(1,)
            )
            target.take_class(row, windows[plan.starts[rows]].view(layout.fields), rows)
    tables = target.finish()
    _check_order(tables)
    return Manifest(plan.manifest_id, tables)


class _Target:
    """The columns being filled, class after class."""

    def __init__(self, body: bytes, plan: RowPlan) -> None:
        count = len(plan)
        kinds = {c.kind for c in plan.classes}
        self._counts = plan.counts
        firsts = np.cumsum(plan.counts) - plan.counts
        starts = plan.row_starts(firsts)
        texts = np.ndarray(
            (len(body) - NODE_TEXT_BYTES - 1,), dtype=f"V{NODE_TEXT_BYTES}", buffer=body, offset=2, strides=(1,)
        )
        self._node_texts = texts[starts]
        self._node_of_row = np.repeat(np.arange(len(plan.counts)), plan.counts) if len(plan.counts) > 1 else None
        self._ndims = np.zeros(len(plan.counts), dtype=np.int64)
        codes = np.zeros(len(firsts), dtype=np.int64) if plan.codes is None else plan.codes[firsts]
        self._ndims[:] = np.array([c.ndim for c in plan.classes], dtype=np.int64)[codes]
        ndim = max(c.ndim for c in plan.classes)
        self._coords = np.zeros((count, ndim), dtype=np.uint32)
        self._kind = np.empty(count, dtype=np.uint8)
        self._offset = np.zeros(count, dtype=np.uint64)
        self._length = np.zeros(count, dtype=np.uint64)
        self._object_id = np.zeros((count, OBJECT_ID_BYTES), dtype=np.uint8) if ChunkKind.NATIVE in kinds else None
        self._location = np.full(count, -1, dtype=np.int32) if ChunkKind.VIRTUAL in kinds else None
        checksums = {c.checksum for c in plan.classes if c.kind is ChunkKind.VIRTUAL}
        self._etag = np.full(count, -1, dtype=np.int32) if ETAG in checksums else None
        self._modified = np.zeros(count, dtype=np.uint32) if LAST_MODIFIED in checksums else None
        self._locations: dict[bytes, int] = {}
        self._etags: dict[bytes, int] = {}
        self._inline = np.zeros(0, dtype=np.uint8)
        self._inline_starts = np.zeros(0, dtype=np.int64)
        if ChunkKind.INLINE in kinds:
            self._place_inline(plan)

    def _place_inline(self, plan: RowPlan) -> None:
        """Put inline bytes in row order, so that those of each array are contiguous."""
        sizes = np.array([c.text_bytes if c.kind is ChunkKind.INLINE else 0 for c in plan.classes], dtype=np.int64)
        codes = np.zeros(len(plan), dtype=np.int64) if plan.codes is None else plan.codes
        ends = np.cumsum(sizes[codes])
        self._inline = np.zeros(int(ends[-1]), dtype=np.uint8)
        self._inline_starts = ends - sizes[codes]

    def take_class(self, row: RowClass, matrix: npt.NDArray[Any], rows: npt.NDArray[np.int64] | None) -> None:
        """Check and copy the rows of one class. `rows` are their target rows, None means all in order."""
        for first in range(0, len(matrix), _BLOCK_ROWS):
            block = matrix[first : first + _BLOCK_ROWS]
            place = slice(first, first + len(block)) if rows is None else rows[first : first + _BLOCK_ROWS]
            self._take_block(row, block, place)
        everywhere = slice(None) if rows is None else rows
        if row.kind is ChunkKind.VIRTUAL:
            assert self._location is not None
            self._location[everywhere] = _index_texts(matrix, "text", row.text_bytes, self._locations)
            if row.checksum == ETAG:
                assert self._etag is not None
                self._etag[everywhere] = _index_texts(matrix, "etag", row.etag_bytes, self._etags)

    def _take_block(self, row: RowClass, block: npt.NDArray[Any], place: slice | npt.NDArray[np.int64]) -> None:
        _check_constants(row, block)
        expected = self._node_texts[0] if self._node_of_row is None else self._node_texts[self._node_of_row[place]]
        if not _same_texts(block["node"], expected):
            raise HintError
        if self._node_of_row is not None and (self._ndims[self._node_of_row[place]] != row.ndim).any():
            raise HintError
        for dimension in range(row.ndim):
            self._coords[place, dimension] = block[f"c{dimension}"]
        self._kind[place] = row.kind
        if row.kind is ChunkKind.INLINE:
            self._take_inline(row, block, place)
            return
        self._offset[place] = block["offset"]
        self._length[place] = block["length"]
        if row.kind is ChunkKind.NATIVE:
            assert self._object_id is not None
            text = np.ascontiguousarray(block["text"]).view(np.uint8).reshape(len(block), -1)
            try:
                self._object_id[place] = decode_base32_column(text, OBJECT_ID_BYTES)
            except InvalidInputError as error:
                raise FormatError(f"a manifest contains a chunk id that is not valid: {error}") from error
        elif row.checksum == LAST_MODIFIED:
            assert self._modified is not None
            self._modified[place] = block["last_modified"]

    def _take_inline(self, row: RowClass, block: npt.NDArray[Any], place: slice | npt.NDArray[np.int64]) -> None:
        starts = self._inline_starts[place]
        self._offset[place] = starts.astype(np.uint64)
        self._length[place] = row.text_bytes
        if row.text_bytes:
            size = row.text_bytes
            windows = np.ndarray(
                (len(self._inline) - size + 1,), dtype=f"V{size}", buffer=self._inline.data, strides=(1,)
            )
            windows[starts] = block["text"]

    def finish(self) -> ChunkTables:
        texts = np.ascontiguousarray(self._node_texts).view(np.uint8).reshape(-1, NODE_TEXT_BYTES)
        try:
            ids = decode_base32_column(texts, NODE_ID_BYTES)
            locations = [text.decode() for text in self._locations]
            etags = [text.decode() for text in self._etags]
        except (InvalidInputError, UnicodeDecodeError) as error:
            raise FormatError(f"a manifest contains an id or a location that is not text: {error}") from error
        nodes: list[NodeId] = np.ascontiguousarray(ids).view(f"V{NODE_ID_BYTES}")[:, 0].tolist()
        if len(set(nodes)) != len(nodes):
            raise HintError
        rows = ChunkTable(
            self._coords,
            self._kind,
            self._offset,
            self._length,
            self._object_id,
            self._location,
            locations,
            self._etag,
            etags,
            self._modified,
            self._inline.tobytes(),
        )
        return ChunkTables(nodes, self._counts, self._ndims, rows)


def _check_constants(row: RowClass, block: npt.NDArray[Any]) -> None:
    layout = layout_of(row)
    words = block.view(layout.constants)
    template = np.frombuffer(layout.template, dtype=layout.constants)[0]
    for name in layout.constants.names or ():
        if (words[name] != template[name]).any():
            raise HintError


def _same_texts(found: npt.NDArray[Any], expected: Any) -> bool:
    """Whether node texts are equal, compared as two machine words that overlap."""
    words = np.dtype({"names": ["a", "b"], "formats": ["u8", "u8"], "offsets": [0, 5], "itemsize": NODE_TEXT_BYTES})
    a = found.view(words)
    b = np.asarray(expected, dtype=f"V{NODE_TEXT_BYTES}").view(words)
    return bool((a["a"] == b["a"]).all() and (a["b"] == b["b"]).all())


def _index_texts(
    matrix: npt.NDArray[Any], field: str, size: int, known: dict[bytes, int]
) -> npt.NDArray[np.int32] | np.int32:
    """Codes of the texts of a field, extending the dictionary."""
    if not size:
        return np.int32(known.setdefault(b"", len(known)))
    texts = np.ascontiguousarray(matrix[field])
    words = _as_words(texts, size)
    # Neighbours usually have the same text. A run of equal texts is looked up once.
    changed = np.zeros(len(texts), dtype=np.bool_)
    changed[0] = True
    hashes = np.zeros(len(texts), dtype=np.uint64)
    for index in range(words.shape[1]):
        changed[1:] |= words[1:, index] != words[:-1, index]
        hashes += words[:, index] * _MULTIPLIERS[index % len(_MULTIPLIERS)]
        hashes ^= hashes >> np.uint64(29)
    firsts = np.flatnonzero(changed)
    _, samples, codes = np.unique(hashes[firsts], return_index=True, return_inverse=True)
    if (words[firsts[samples[codes]]] != words[firsts]).any():
        samples, codes = np.unique(texts[firsts].view(f"S{size}"), return_index=True, return_inverse=True)[1:]
    codes_of_samples = np.empty(len(samples), dtype=np.int32)
    for sample in np.argsort(samples).tolist():
        text = texts[firsts[samples[sample]]].tobytes()
        codes_of_samples[sample] = known.setdefault(text, len(known))
    result: npt.NDArray[np.int32] = codes_of_samples[codes][np.cumsum(changed) - 1]
    return result


def _as_words(texts: npt.NDArray[Any], size: int) -> npt.NDArray[np.uint64]:
    """Texts of one size as rows of machine words, filled up with zeros."""
    if size % 8 == 0:
        return texts.view(np.uint64).reshape(len(texts), size // 8)
    padded = np.zeros((len(texts), -(-size // 8) * 8), dtype=np.uint8)
    padded[:, :size] = texts.view(np.uint8).reshape(len(texts), size)
    return padded.view(np.uint64)


def _check_order(tables: ChunkTables) -> None:
    """Whether the rows of every array are strictly ascending. If not, the entries are read, sorted and made unique."""
    columns = tables.rows
    if len(columns) < 2:
        return
    # From the last dimension to the first: a dimension only matters where all dimensions before it are equal.
    ascending = np.zeros(len(columns) - 1, dtype=np.bool_)
    for dimension in range(columns.coords.shape[1] - 1, -1, -1):
        column = columns.coords[:, dimension]
        ascending &= column[1:] == column[:-1]
        ascending |= column[1:] > column[:-1]
    ascending[np.cumsum(tables.counts)[:-1] - 1] = True
    if not ascending.all():
        raise HintError


_NODE_TEXT_AT = 2
_ARRAYS_PER_WHOLE = 16
"""Decode one array alone if the manifest has at least this many arrays. Decode all after this many such requests."""


class RowManifest(OpenManifest):
    """The body of a manifest file, and the first row of every array if the file has a hint."""

    def __init__(self, body: bytes, stored_bytes: int | None = None) -> None:
        self._body = body
        self._stored_bytes = stored_bytes
        self._plan: RowPlan | None = None
        with contextlib.suppress(HintError):
            self._plan = read_plan(body)
        self._found: dict[NodeId, ChunkTable | None] = {}
        self._arrays_left = 0
        self._starts: list[int] = []
        if self._plan is not None:
            self._arrays_left = len(self._plan.counts) // _ARRAYS_PER_WHOLE
        if self._plan is not None and self._arrays_left:
            starts = self._plan.row_starts(np.cumsum(self._plan.counts) - self._plan.counts)
            self._starts = starts.tolist() if _in_order(body, starts) else []

    @property
    def nbytes(self) -> int:
        # The plan has two numbers per row, which take about as much memory again.
        return 2 * len(self._body)

    def decode(self) -> Manifest:
        return decode_manifest_body(self._body, self._stored_bytes, self._plan)

    def find(self, node_id: NodeId, wanted: Sequence[tuple[int, ...]]) -> list[ChunkRef] | None:
        table = self._table(node_id)
        if table is None or any(len(coords) != table.ndim for coords in wanted):
            return None
        found = []
        for coords in wanted:
            row = bisect_left(range(len(table)), list(coords), key=lambda at: table.coords[at].tolist())
            if row == len(table) or table.coords[row].tolist() != list(coords):
                return None  # the search relies on the order of the arrays, so decode all to be sure
            found.append(table.row(row))
        return found

    def _table(self, node_id: NodeId) -> ChunkTable | None:
        if node_id in self._found:
            return self._found[node_id]
        if self._plan is None or self._arrays_left <= 0:
            return None
        self._arrays_left -= 1
        index = self._search(encode_base32(node_id).encode())
        table = None
        if index is not None:
            with contextlib.suppress(HintError):
                table = decode_plan(self._body, self._plan.of_array(index)).tables.get(node_id)
        self._found[node_id] = table
        return table

    def _search(self, text: bytes) -> int | None:
        """Find an array by id with bisection. Arrays are sorted by id."""
        low, high = 0, len(self._starts)
        while low < high:
            middle = (low + high) // 2
            start = self._starts[middle] + _NODE_TEXT_AT
            found = self._body[start : start + NODE_TEXT_BYTES]
            if found == text:
                return middle
            if found < text:
                low = middle + 1
            else:
                high = middle
        return None


def _in_order(body: bytes, starts: npt.NDArray[np.int64]) -> bool:
    """Whether the ids of the arrays are strictly ascending."""
    if len(starts) < 2:
        return True
    count = len(body) - _NODE_TEXT_AT - NODE_TEXT_BYTES + 1
    texts: npt.NDArray[Any] = np.ndarray(
        (count,), dtype=f"S{NODE_TEXT_BYTES}", buffer=body, offset=_NODE_TEXT_AT, strides=(1,)
    )[starts]
    return bool((texts[1:] > texts[:-1]).all())
