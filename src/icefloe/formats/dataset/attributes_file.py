"""Attributes files of the generation `dataset`: one Parquet column with a row per attributes object."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from icefloe.errors import FormatError
from icefloe.formats.dataset.parquet import open_parquet, read_columns, write_parquet

SCHEMA = pa.schema([pa.field("attrs", pa.binary(), nullable=False)])
_ROW_GROUP_ROWS = 1024
_WHAT = "the attributes file"


def encode_attributes(attributes: Sequence[bytes]) -> bytes:
    """Row i holds the i-th attributes object, as JSON text."""
    return write_parquet(pa.table([pa.array(list(attributes), pa.binary())], schema=SCHEMA), _ROW_GROUP_ROWS, {})


def decode_attributes(data: bytes) -> list[bytes]:
    """The rows of an attributes file."""
    column = read_columns(open_parquet(data, _WHAT), ["attrs"], _WHAT).column("attrs")
    try:
        rows: list[bytes] = column.cast(pa.binary()).to_pylist()
    except pa.ArrowException as error:
        raise FormatError(f"{_WHAT} holds no binary rows: {error}") from error
    if column.null_count:
        raise FormatError(f"{_WHAT} has a null row")
    return rows
