"""Parquet files in memory: written with statistics and checksums, read with one kind of error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from icefloe.errors import FormatError

Source: TypeAlias = bytes | bytearray | memoryview | str | Path | Any
"""The bytes of a file, its path, or an open file."""

FORMAT_KEY = b"icechunk.format"
FORMAT_NAME = b"g0"
WIDENED_KEY = b"icechunk.widened"

_MAX_ROWS = 500_000_000


def write_parquet(table: pa.Table, row_group_rows: int, metadata: dict[bytes, bytes]) -> bytes:
    """The bytes of a Parquet file; field metadata and exact types survive in its Arrow schema."""
    sink = pa.BufferOutputStream()
    marked = table.replace_schema_metadata({FORMAT_KEY: FORMAT_NAME, **metadata})
    pq.write_table(
        marked, sink, row_group_size=row_group_rows, compression="zstd", compression_level=1,
        write_statistics=True, write_page_index=True, write_page_checksum=True,
    )  # fmt: skip
    return bytes(sink.getvalue())


def open_parquet(source: Source, what: str) -> pq.ParquetFile:
    """An opened Parquet file; FormatError when it is none."""
    try:
        data = pa.BufferReader(source) if isinstance(source, bytes | bytearray | memoryview) else source
        opened = pq.ParquetFile(data, page_checksum_verification=True)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FormatError(f"{what} is not a readable Parquet file: {error}") from error
    if opened.metadata.num_rows > _MAX_ROWS:
        raise FormatError(f"{what} claims {opened.metadata.num_rows} rows; at most {_MAX_ROWS} are read")
    return opened


def read_columns(
    opened: pq.ParquetFile, columns: Sequence[str], what: str, row_groups: Sequence[int] | None = None
) -> pa.Table:
    """Columns of all or some row groups; FormatError when they are broken or missing."""
    try:
        missing = set(columns) - set(opened.schema_arrow.names)
        if missing:
            raise FormatError(f"{what} lacks the column(s) {', '.join(sorted(missing))}")
        if row_groups is None:
            return opened.read(columns=list(columns))
        return opened.read_row_groups(list(row_groups), columns=list(columns))
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise FormatError(f"{what} cannot be read: {error}") from error


def file_metadata(opened: pq.ParquetFile) -> dict[bytes, bytes]:
    """The key-value metadata of the file."""
    return dict(opened.schema_arrow.metadata or {})
