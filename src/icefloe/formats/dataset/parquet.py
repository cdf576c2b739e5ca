"""Parquet files in memory: written with statistics and checksums, read with one kind of error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icefloe.errors import FormatError
from icefloe.formats.dataset.parquet_bounds import LIMITS, check_memory, too_large

Source: TypeAlias = bytes | bytearray | memoryview | str | Path
"""The bytes of a file, or its path."""

FORMAT_KEY = b"icechunk.format"
FORMAT_NAME = b"g0"
WIDENED_KEY = b"icechunk.widened"

_MAX_ROWS = 500_000_000
_MOST_FIELDS = 1_000_000


@dataclass(frozen=True, slots=True)
class ParquetBytes:
    """A Parquet file whose footer was read, and its bytes."""

    file: pq.ParquetFile
    data: memoryview


def write_parquet(
    table: pa.Table, row_group_rows: int, metadata: dict[bytes, bytes], dictionaries: Sequence[str] | None = None
) -> bytes:
    """The bytes of a Parquet file; field metadata and exact types survive in its Arrow schema.

    `dictionaries` are the columns whose values repeat; all, if not given.
    """
    sink = pa.BufferOutputStream()
    marked = table.replace_schema_metadata({FORMAT_KEY: FORMAT_NAME, **metadata})
    pq.write_table(
        marked, sink, row_group_size=row_group_rows, compression="zstd", compression_level=1,
        write_statistics=True, write_page_index=True, write_page_checksum=True,
        use_dictionary=True if dictionaries is None else list(dictionaries),
    )  # fmt: skip
    return bytes(sink.getvalue())


def open_parquet(source: Source, what: str) -> ParquetBytes:
    """An opened Parquet file; FormatError when it is none."""
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
        raise FormatError(f"{what} claims {opened.metadata.num_rows} rows; at most {_MAX_ROWS} are read")
    return ParquetBytes(opened, data)


def _open(buffer: pa.Buffer, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    # Every entry of a list in the footer takes a byte at least: none has more of them than the file has bytes.
    return pq.ParquetFile(
        pa.BufferReader(buffer), page_checksum_verification=True, read_dictionary=list(dictionaries) or None,
        thrift_container_size_limit=min(_MOST_FIELDS, max(1, buffer.size)),
    )  # fmt: skip


def read_columns(
    opened: ParquetBytes, columns: Sequence[str], what: str, row_groups: Sequence[int] | None = None
) -> pa.Table:
    """Columns of all or some row groups; FormatError when they are broken, missing, or too large to be believed."""
    try:
        missing = set(columns) - set(opened.file.schema_arrow.names)
        if missing:
            raise FormatError(f"{what} lacks the column(s) {', '.join(sorted(missing))}")
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
    """The table with values in place of dictionaries, if that takes no more memory than is believed."""
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
