"""Parquet files of the generation `dataset`: bounded reads, and the attributes file.

A few kilobytes of Parquet can decode to many gigabytes: a dictionary page with one large value and a run of a million
indices, a run of nulls, a page that compresses well. The footer contains the sizes of columns, but they may be wrong.
Arrow relies on the header of each page: it allocates `uncompressed_page_size` bytes and refuses a page of another size.
So this module adds up the sizes in these headers. They are Thrift structs in the compact protocol:

    PageHeader: 1 type, 2 uncompressed_page_size, 3 compressed_page_size, 5 data_page_header {1 num_values, 2 encoding},
                7 dictionary_page_header {1 num_values}, 8 data_page_header_v2 {1 num_values, 4 encoding}
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icefloe.errors import FormatError
from icefloe.formats.header import DecompressionLimits

LIMITS: Final = DecompressionLimits(max_bytes=8 << 30, free_bytes=64 << 20)
_VALUE_BYTES = 16
"""The most memory Arrow uses for a value of fixed width: the value, its levels, its offset in a list."""
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
    """The offset of its content in the file."""


def check_memory(opened: pq.ParquetFile, data: memoryview, columns: Collection[str], what: str) -> frozenset[str]:
    """Refuse columns whose pages would take more memory than is plausible for the size of the file.

    Returns the top-level columns that may become much larger when their dictionaries are expanded. Read these as
    dictionaries.
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
        f"{what} has {file_bytes} bytes and needs at least {size} bytes of memory, but at most {allowed} are allowed"
    )


def _column_bytes(column: Any, schema: Any, data: memoryview, what: str) -> tuple[int, int]:
    """The memory that a column needs at least, and the memory that it needs when its dictionary is expanded."""
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
        return  # Arrow does not read its pages either, and its offsets may be invalid
    start = column.data_page_offset
    dictionary = column.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < start:
        start = dictionary
    end = start + column.total_compressed_size
    if not 0 <= start <= end <= len(data):
        raise FormatError(f"{what} has a column that is outside of the file")
    while start < end:
        try:
            reader = _Thrift(data, start, end)
            header = reader.read_struct(0)
            detail = header.get(5) or header.get(8) or header.get(7) or {}
            page = _Page(
                int(header[1]),
                int(header[2]),
                int(header[3]),
                int(detail.get(1, 0)),
                int(detail.get(4 if 8 in header else 2, 0)),
                reader.position,
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"{what} has a page without a readable header: {error!r}") from error
        if page.uncompressed_bytes < 0 or page.compressed_bytes < 0 or page.num_values < 0:
            raise FormatError(f"{what} has a page of a negative size")
        start = page.start + page.compressed_bytes
        if start > end:
            raise FormatError(f"{what} has a page that ends outside of its column")
        yield page


def _largest_value(page: _Page, compression: str, data: memoryview, what: str) -> int:
    """The length of the longest value of a dictionary. A value is its length in four bytes, followed by its bytes."""
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
    """The length of the longest of consecutive values. Values of equal length are skipped together."""
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
    """Reads one struct of Thrift's compact protocol. Raises Python's own errors."""

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
                    self._byte()  # a boolean in a list is one byte
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


Source: TypeAlias = bytes | bytearray | memoryview | str | Path
"""The bytes of a file, or its path."""

FORMAT_KEY = b"icechunk.format"
FORMAT_NAME = b"g0"
WIDENED_KEY = b"icechunk.widened"

_MAX_ROWS = 500_000_000
_MOST_FIELDS = 1_000_000


@dataclass(frozen=True, slots=True)
class ParquetBytes:
    """An open Parquet file (its footer is read), and its bytes."""

    file: pq.ParquetFile
    data: memoryview


def write_parquet(
    table: pa.Table, row_group_rows: int, metadata: dict[bytes, bytes], dictionaries: Sequence[str] | None = None
) -> bytes:
    """Encode a Parquet file. Field metadata and exact types are kept in its Arrow schema.

    `dictionaries` are the columns to encode with dictionaries. The default is all columns.
    """
    sink = pa.BufferOutputStream()
    marked = table.replace_schema_metadata({FORMAT_KEY: FORMAT_NAME, **metadata})
    pq.write_table(
        marked,
        sink,
        row_group_size=row_group_rows,
        compression="zstd",
        compression_level=1,
        write_statistics=True,
        write_page_index=True,
        write_page_checksum=True,
        use_dictionary=True if dictionaries is None else list(dictionaries),
    )
    return bytes(sink.getvalue())


def open_parquet(source: Source, what: str) -> ParquetBytes:
    """Open a Parquet file. Raises FormatError if it is not one."""
    try:
        if isinstance(source, str | Path):
            buffer = pa.memory_map(str(source)).read_buffer()
        else:
            buffer = pa.py_buffer(source)
        data = memoryview(buffer).cast("B")
        opened = _open(buffer)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FormatError(f"{what} is not a readable Parquet file: {error}") from error
    if opened.metadata.num_rows > _MAX_ROWS:
        raise FormatError(f"{what} declares {opened.metadata.num_rows} rows, but at most {_MAX_ROWS} are allowed")
    return ParquetBytes(opened, data)


def _open(buffer: pa.Buffer, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    # Every list entry in the footer takes at least one byte, so no list has more entries than the file has bytes.
    return pq.ParquetFile(
        pa.BufferReader(buffer),
        page_checksum_verification=True,
        read_dictionary=list(dictionaries) or None,
        thrift_container_size_limit=min(_MOST_FIELDS, max(1, buffer.size)),
    )


def read_columns(
    opened: ParquetBytes, columns: Sequence[str], what: str, row_groups: Sequence[int] | None = None
) -> pa.Table:
    """Read columns of all or some row groups. Raises FormatError if they are corrupt, missing, or implausibly large."""
    try:
        missing = set(columns) - set(opened.file.schema_arrow.names)
        if missing:
            raise FormatError(f"{what} has no column(s) {', '.join(sorted(missing))}")
        suspects = sorted(check_memory(opened.file, opened.data, columns, what))
        file = _open(pa.py_buffer(opened.data), suspects) if suspects else opened.file
        if row_groups is None:
            table = file.read(columns=list(columns))
        else:
            table = file.read_row_groups(list(row_groups), columns=list(columns))
        return _written_out(table, suspects, len(opened.data), what) if suspects else table
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        raise FormatError(f"{what} cannot be read: {error}") from error


def _written_out(table: pa.Table, suspects: Sequence[str], file_bytes: int, what: str) -> pa.Table:
    """The table with its dictionaries expanded, if that needs no more memory than is allowed."""
    allowed = LIMITS.allowed_bytes(file_bytes)
    size = 0
    for name in suspects:
        for chunk in table.column(name).chunks:
            if isinstance(chunk, pa.DictionaryArray) and len(chunk):
                lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
                size += pc.sum(lengths.take(chunk.indices)).as_py() or 0
            if size > allowed:
                raise too_large(what, file_bytes, size, allowed)
    for name in suspects:
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            table = table.set_column(table.schema.get_field_index(name), name, column.cast(column.type.value_type))
    return table


def file_metadata(opened: ParquetBytes) -> dict[bytes, bytes]:
    """The key-value metadata of the file."""
    return dict(opened.file.schema_arrow.metadata or {})


SCHEMA = pa.schema([pa.field("attrs", pa.binary(), nullable=False)])
_ROW_GROUP_ROWS = 1024
_WHAT = "the attributes file"


def encode_attributes(attributes: Sequence[bytes]) -> bytes:
    """Encode an attributes file. Row i is the i-th attributes object as JSON text."""
    return write_parquet(pa.table([pa.array(list(attributes), pa.binary())], schema=SCHEMA), _ROW_GROUP_ROWS, {})


def decode_attributes(data: bytes) -> list[bytes]:
    """The rows of an attributes file."""
    column = read_columns(open_parquet(data, _WHAT), ["attrs"], _WHAT).column("attrs")
    try:
        rows: list[bytes] = column.cast(pa.binary()).to_pylist()
    except pa.ArrowException as error:
        raise FormatError(f"{_WHAT} has rows that are not binary: {error}") from error
    if column.null_count:
        raise FormatError(f"{_WHAT} has a null row")
    return rows
