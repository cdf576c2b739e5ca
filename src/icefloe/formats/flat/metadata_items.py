"""Named metadata values of snapshots and repositories: MessagePack in files of spec 1, FlexBuffers from spec 2 on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.flat.blocks import OFFSET, FlatWriter, ReferenceBlock
from icefloe.formats.flat.body import Body
from icefloe.formats.flat.flexible import ValueBudget, decode_flexible
from icefloe.formats.flat.flexible_writer import encode_flexible
from icefloe.formats.flat.ragged import texts_of
from icefloe.formats.flat.table import MOST_CHILDREN, Table
from icefloe.formats.flat.tables import Tables
from icefloe.model.decoded_size import check_messagepack

RawMetadata = tuple[tuple[str, bytes], ...]
"""Names and encoded values, in the order of the file."""


def encode_value(value: Any, spec: int) -> bytes:
    """One JSON-like value in the encoding of a spec."""
    if spec >= 2:
        return encode_flexible(value)
    try:
        return bytes(msgpack.packb(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"metadata may hold JSON values only: {error}") from error


def decode_value(data: bytes, spec: int, budget: ValueBudget | None = None) -> Any:
    """One JSON-like value in the encoding of a spec."""
    if spec >= 2:
        return decode_flexible(data, budget)
    check_messagepack(data, 0, "metadata")
    try:
        return msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"a metadata value is not MessagePack: {error}") from error


def encode_metadata(metadata: Mapping[str, Any], spec: int) -> RawMetadata:
    """Metadata as a file keeps it, sorted by name."""
    return tuple((name, encode_value(metadata[name], spec)) for name in sorted(metadata, key=str.encode))


def decode_metadata(items: RawMetadata, spec: int) -> dict[str, Any]:
    """Metadata as people see it."""
    budget = ValueBudget()
    if spec < 2:
        check_messagepack(b"".join(value for _, value in items), 0, "metadata")
    return {name: decode_value(value, spec, budget) for name, value in items}


def read_items(tables: Tables, slot: int) -> list[RawMetadata]:
    """The metadata of each row, not yet decoded; nothing where the field is absent."""
    items, held = tables.tables(slot, required=False)
    names = texts_of(tables.body, items.strings(0))
    values = items.vectors(1, 1, 1)
    held_bytes = _slices(tables.body, dict(zip(values.starts.tolist(), values.counts.tolist(), strict=True)))
    pairs = [(name or "", held_bytes[start]) for name, start in zip(names, values.starts.tolist(), strict=True)]
    bounds = held.bounds().tolist()
    return [tuple(pairs[start:end]) for start, end in itertools.pairwise(bounds)]


def read_few_items(table: Table, slot: int) -> RawMetadata:
    """The metadata of one table, not yet decoded; nothing where the field is absent."""
    if table.vector(slot, 4, 4, required=False)[1] > MOST_CHILDREN:
        return read_items(Tables(table.body, np.array([table.position])), slot)[0]
    items = table.children(slot, required=False)
    names = dict(item.vector(0, 1, 1) for item in items)
    values = dict(item.vector(1, 1, 1) for item in items)
    _slices(table.body, names)
    held = _slices(table.body, values)
    return tuple((item.text(0) or "", held[item.vector(1, 1, 1)[0]]) for item in items)


def _slices(body: Body, counts: Mapping[int, int]) -> dict[int, bytes]:
    """The bytes at each position: items may share them, but together they are not larger than the file."""
    if sum(counts.values()) > body.size:
        raise body.corrupt("its metadata overlaps")
    return {start: body.data[start : start + count] for start, count in counts.items()}


def write_items(writer: FlatWriter, rows: list[RawMetadata]) -> ReferenceBlock:
    """One vector of metadata items per row."""
    items = [item for row in rows for item in row]
    vectors = writer.references(np.array([len(row) for row in rows], dtype=np.int64))
    block = writer.tables(len(items), {0: OFFSET, 1: OFFSET})
    block.link(0, writer.texts([name for name, _ in items]))
    block.link(1, writer.blobs([value for _, value in items]))
    vectors.link(block.positions)
    return vectors
