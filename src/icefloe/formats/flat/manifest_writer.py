"""Columns of chunk references as a flatbuffers manifest that the official readers accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.formats.flat.blocks import OFFSET, Coordinates, FieldType, FlatWriter, TableBlock
from icefloe.formats.flat.body import Positions
from icefloe.formats.flat.ragged import join_texts
from icefloe.ids import NodeId, decode_base32
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.chunk_tables import ChunkTables
from icefloe.model.snapshot import Manifest
from icefloe.model.table_joining import join_tables

_INDEX, _INLINE, _OFFSET, _LENGTH, _CHUNK_ID, _LOCATION, _ETAG, _LAST_MODIFIED = range(8)
_PLAIN_LOCATIONS = 0
Rows = slice | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Texts:
    """Strings that wait for their place behind the tables that point at them."""

    block: TableBlock
    slot: int
    codes: npt.NDArray[np.int32]
    strings: Sequence[str]


def encode_manifest_body(manifest: Manifest, spec: int) -> bytes:
    """The flatbuffer of a manifest; arrays sorted by node id, references by coordinates."""
    tables = join_tables(manifest.tables)
    writer = FlatWriter()
    fields: dict[int, FieldType] = {0: 12, 1: OFFSET}
    if spec >= 2:
        fields[3] = "u1"
    root = writer.tables(1, fields).set(0, _id_bytes(manifest.id))
    if spec >= 2:
        root.set(3, _PLAIN_LOCATIONS)
    listed = writer.references(np.array([len(tables)], dtype=np.int64))
    root.link(1, listed.positions)
    array_block = writer.tables(len(tables), {0: 8, 1: OFFSET})
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
    """Write the references of arrays of one rank together; returns where each stands."""
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
    """Write references of one rank; returns where each stands."""
    kinds = np.bincount(table.kind, minlength=4)
    if len(kinds) > 4 or kinds[ChunkKind.DELETED]:
        raise InvalidInputError("a manifest holds native, virtual and inline references only")
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
    block = writer.tables(count, {_INDEX: Coordinates(table.ndim), _INLINE: OFFSET})
    block.set_coordinates(_INDEX, table.coords[rows])
    lengths = table.length[rows].astype(np.int64)
    starts = table.offset[rows].astype(np.int64)
    if len(starts) and int((starts + lengths).max()) > len(table.inline):
        raise InvalidInputError("an inline reference reaches outside the bytes of its table")
    return block.link(_INLINE, writer.vectors(table.inline, lengths, sources=starts)).positions


def _write_virtual(
    writer: FlatWriter, table: ChunkTable, rows: npt.NDArray[np.int64], positions: Positions, waiting: list[_Texts]
) -> None:
    """Rows with and without each checksum are tables of their own kind: an absent checksum has no value to store."""
    assert table.location is not None
    etag = table.etag[rows] if table.etag is not None else np.full(len(rows), -1, dtype=np.int32)
    modified = table.last_modified[rows] if table.last_modified is not None else np.zeros(len(rows), dtype=np.uint32)
    shape = (etag >= 0) * 2 + (modified > 0)
    for variant in np.unique(shape).tolist():
        picked = shape == variant
        here = rows[picked]
        fields: dict[int, FieldType] = {
            _INDEX: Coordinates(table.ndim), _LOCATION: OFFSET, _OFFSET: "<u8", _LENGTH: "<u8",
        }  # fmt: skip
        if variant & 2:
            fields[_ETAG] = OFFSET
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
    """Write each string that is used once, and point the rows at it."""
    used = np.flatnonzero(np.bincount(texts.codes, minlength=len(texts.strings)))
    strings = texts.strings if len(used) == len(texts.strings) else [texts.strings[i] for i in used.tolist()]
    data, lengths = join_texts(strings)
    at = writer.vectors(data, lengths, text=True)
    place = np.empty(len(texts.strings), dtype=np.int64)
    place[used] = np.arange(len(used))
    which = place[texts.codes]
    writer.apparent_bytes += int(lengths[which].sum() + 5 * len(which))
    texts.block.link(texts.slot, at[which])
