"""How much memory the pages of a Parquet file would take, told from their headers before anything is decoded.

A few kilobytes of Parquet can stand for many gigabytes: a dictionary page with one large value and a run of a million
indices, a run of nulls, a page that compresses well. The footer says how large columns are, but nothing holds it to
the truth. Arrow believes the header in front of each page: it reserves `uncompressed_page_size` bytes and refuses a
page of another size. So these headers are what is added up here. They are Thrift structs in the compact protocol:

    PageHeader: 1 type, 2 uncompressed_page_size, 3 compressed_page_size, 5 data_page_header {1 num_values, 2 encoding},
                7 dictionary_page_header {1 num_values}, 8 data_page_header_v2 {1 num_values, 4 encoding}
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from icefloe.errors import FormatError
from icefloe.formats.compression import DecompressionLimits

LIMITS: Final = DecompressionLimits(max_bytes=8 << 30, free_bytes=64 << 20)
_VALUE_BYTES = 16
"""What Arrow takes for a value of a fixed width at most: the value, its levels, its place in a list."""
_DICTIONARY_PAGE, _DATA_PAGES = 2, (0, 3)
_DELTA_BYTE_ARRAY = 7
_FIXED = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_MOST_NESTING = 8
Struct = Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class _Page:
    kind: int
    uncompressed_bytes: int
    compressed_bytes: int
    num_values: int
    encoding: int
    start: int
    """Where its content begins in the file."""


def check_memory(opened: pq.ParquetFile, data: memoryview, columns: Collection[str], what: str) -> frozenset[str]:
    """Refuse columns whose pages would take more memory than the file is believed to hold.

    Returns the top-level columns of which a dictionary may become much larger when its values are written out: these
    are to be read as dictionaries.
    """
    allowed = LIMITS.allowed_bytes(len(data))
    total = 0
    suspects = set()
    metadata = opened.metadata
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            name, _, nested = column.path_in_schema.partition(".")
            if name not in columns:
                continue
            fixed, spread = _column_bytes(column, opened.schema.column(index), data, what)
            total += fixed
            if total + spread > allowed and not nested:
                suspects.add(name)
            else:
                total += spread
            if total > allowed:
                raise too_large(what, len(data), total, allowed)
    return frozenset(suspects)


def too_large(what: str, file_bytes: int, size: int, allowed: int) -> FormatError:
    """The error for a file that would take too much memory."""
    return FormatError(
        f"{what} of {file_bytes} bytes becomes at least {size} bytes, more than the {allowed} that are allowed"
    )


def _column_bytes(column: Any, schema: Any, data: memoryview, what: str) -> tuple[int, int]:
    """Bytes that a column takes for certain, and those that its values take when they are written out."""
    width = schema.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else _FIXED.get(column.physical_type, 0)
    fixed = spread = largest = 0
    for page in _pages(column, data, what):
        fixed += page.uncompressed_bytes
        if page.kind == _DICTIONARY_PAGE:
            if column.physical_type == "BYTE_ARRAY":
                largest = _largest_value(page, column.compression, data, what)
        else:
            fixed += page.num_values * (_VALUE_BYTES + width)
            prefixes = page.uncompressed_bytes if page.encoding == _DELTA_BYTE_ARRAY else 0
            spread += page.num_values * max(largest, prefixes)
    return fixed, spread


def _pages(column: Any, data: memoryview, what: str) -> Iterator[_Page]:
    if column.num_values == 0:
        return  # Arrow reads no page of it either, and its offsets may be those of nothing
    start = column.data_page_offset
    dictionary = column.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < start:
        start = dictionary
    end = start + column.total_compressed_size
    if not 0 <= start <= end <= len(data):
        raise FormatError(f"{what} has a column outside of the file")
    while start < end:
        try:
            reader = _Thrift(data, start, end)
            header = reader.read_struct(0)
            detail = header.get(5) or header.get(8) or header.get(7) or {}
            page = _Page(
                int(header[1]), int(header[2]), int(header[3]), int(detail.get(1, 0)),
                int(detail.get(4 if 8 in header else 2, 0)), reader.position,
            )  # fmt: skip
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"{what} has a page without a readable header: {error!r}") from error
        if page.uncompressed_bytes < 0 or page.compressed_bytes < 0 or page.num_values < 0:
            raise FormatError(f"{what} has a page of a negative size")
        start = page.start + page.compressed_bytes
        if start > end:
            raise FormatError(f"{what} has a page that ends outside of its column")
        yield page


def _largest_value(page: _Page, compression: str, data: memoryview, what: str) -> int:
    """The length of the longest value of a dictionary; each is four bytes of length, and the bytes."""
    content: Any = data[page.start : page.start + page.compressed_bytes]
    if page.uncompressed_bytes > LIMITS.allowed_bytes(len(data)):
        raise too_large(what, len(data), page.uncompressed_bytes, LIMITS.allowed_bytes(len(data)))
    if compression != "UNCOMPRESSED":
        try:
            codec = pa.Codec(compression.lower())
            content = memoryview(codec.decompress(content, decompressed_size=page.uncompressed_bytes, asbytes=True))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FormatError(f"{what} has a dictionary that cannot be decompressed: {error}") from error
    return _longest(np.frombuffer(content, dtype=np.uint8))


def _longest(content: npt.NDArray[np.uint8]) -> int:
    """The longest of values that follow each other, in steps over runs of values of one length."""
    longest = position = 0
    while position + 4 <= len(content):
        length = int(content[position : position + 4].view("<u4")[0])
        longest = max(longest, length)
        step, run = 4 + length, 64
        position += step
        while position + step <= len(content):
            count = min(run, (len(content) - position) // step)
            heads = content[position : position + count * step].reshape(count, step)[:, :4]
            same = (np.ascontiguousarray(heads).view("<u4")[:, 0] == length).argmin()
            if (heads[same] == content[position - step : position - step + 4]).all():
                position += count * step
                run *= 2
            else:
                position += int(same) * step
                break
    return min(longest, len(content))


class _Thrift:
    """Reads one struct of Thrift's compact protocol; errors are those of Python."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: memoryview, start: int, end: int) -> None:
        self.data = data
        self.position = start
        self.end = end

    def read_struct(self, depth: int) -> dict[int, Any]:
        if depth > _MOST_NESTING:
            raise ValueError("nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while True:
            head = self._byte()
            if head == 0:
                return fields
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            fields[number] = self._value(head & 15, depth)

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            return self._skip(self._varint())
        if kind in (9, 10):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            for _ in range(count):
                if head & 15 in (1, 2):
                    self._byte()  # a truth in a list is a byte of its own
                else:
                    self._value(head & 15, depth + 1)
            return None
        if kind == 12:
            return self.read_struct(depth + 1)
        raise ValueError(f"type {kind}")

    def _byte(self) -> int:
        if self.position >= self.end:
            raise ValueError("it ends early")
        self.position += 1
        return self.data[self.position - 1]

    def _skip(self, count: int) -> None:
        if count > self.end - self.position:
            raise ValueError("it ends early")
        self.position += count

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
