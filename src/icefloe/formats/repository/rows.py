"""How one reference lies in a manifest: MessagePack with integers of fixed width, so that equal rows form a matrix.

A class of rows shares kind, rank, widths and text lengths; its rows differ only in the fields of its layout, every
other byte is constant. Any MessagePack reader reads the same bytes as `{[node, coords]: payload}` entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from icefloe.ids import text_length
from icefloe.model.chunk_table import ChunkKind

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
    """Of the id, the location, or the inline data."""
    offset_bytes: int = 0
    length_bytes: int = 0
    checksum: int = NO_CHECKSUM
    etag_bytes: int = 0

    def to_list(self) -> list[int]:
        return [
            self.ndim, int(self.kind), self.text_bytes, self.offset_bytes, self.length_bytes,
            self.checksum, self.etag_bytes,
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The bytes of a class: a template, where its fields are, and the constant rest in pieces of machine words."""

    template: bytes
    fields: np.dtype[Any]
    constants: np.dtype[Any]
    prefix_bytes: int
    """Up to the coordinates: the part that holds the node id."""

    @property
    def row_bytes(self) -> int:
        return len(self.template)


@lru_cache(maxsize=4096)
def layout_of(row: RowClass) -> RowLayout:
    """Lay out a class of rows."""
    writer = _TemplateWriter()
    writer.constant(b"\x92" + bytes([0xA0 | NODE_TEXT_BYTES]))
    writer.field("node", f"V{NODE_TEXT_BYTES}", NODE_TEXT_BYTES)
    writer.constant(_array_mark(row.ndim))
    prefix_bytes = len(writer.template)
    for dimension in range(row.ndim):
        writer.integer(f"c{dimension}", 4)
    if row.kind is ChunkKind.NATIVE:
        writer.constant(b"\x81\xa3Ref\x93" + text_mark(row.text_bytes))
        writer.field("text", f"V{row.text_bytes}", row.text_bytes)
        writer.integer("offset", row.offset_bytes)
        writer.integer("length", row.length_bytes)
    elif row.kind is ChunkKind.INLINE:
        writer.constant(b"\x81\xa6Inline" + _bytes_mark(row.text_bytes))
        writer.field("text", f"V{row.text_bytes}", row.text_bytes)
    else:
        writer.constant(b"\x81\xa7Virtual\x94" + text_mark(row.text_bytes))
        writer.field("text", f"V{row.text_bytes}", row.text_bytes)
        writer.integer("offset", row.offset_bytes)
        writer.integer("length", row.length_bytes)
        _write_checksum(writer, row)
    return writer.finish(prefix_bytes)


def _write_checksum(writer: _TemplateWriter, row: RowClass) -> None:
    if row.checksum == ETAG:
        writer.constant(b"\x81\xa4ETag" + text_mark(row.etag_bytes))
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
        return RowLayout(bytes(self.template), _record(self._fields, size), _record(pieces, size), prefix_bytes)


def _record(members: list[tuple[str, str, int]], size: int) -> np.dtype[Any]:
    return np.dtype(
        {
            "names": [name for name, _, _ in members],
            "formats": [form for _, form, _ in members],
            "offsets": [offset for _, _, offset in members],
            "itemsize": size,
        }
    )


def _array_mark(count: int) -> bytes:
    return bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def map_mark(count: int) -> bytes:
    """The MessagePack head of a map of that many entries."""
    if count < 16:
        return bytes([0x80 | count])
    return b"\xde" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdf" + count.to_bytes(4, "big")


@lru_cache(maxsize=1024)
def text_mark(size: int) -> bytes:
    """The MessagePack head of a text of that many bytes."""
    if size < 32:
        return bytes([0xA0 | size])
    if size < 1 << 8:
        return b"\xd9" + size.to_bytes(1, "big")
    if size < 1 << 16:
        return b"\xda" + size.to_bytes(2, "big")
    return b"\xdb" + size.to_bytes(4, "big")


def _bytes_mark(size: int) -> bytes:
    if size < 1 << 8:
        return b"\xc4" + size.to_bytes(1, "big")
    if size < 1 << 16:
        return b"\xc5" + size.to_bytes(2, "big")
    return b"\xc6" + size.to_bytes(4, "big")
