"""Column values spelled as SQL constants, exactly."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

_SQL_TYPES = {
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.string(): "STRING", pa.bool_(): "BOOLEAN",
}  # fmt: skip


def has_literals(type: pa.DataType) -> bool:
    """Whether values of a type can be spelled."""
    return type in _SQL_TYPES or pa.types.is_timestamp(type)


def sql_name(name: str) -> str:
    """A column's name, quoted."""
    return "`" + name.replace("`", "``") + "`"


def sql_array(values: pa.Array) -> str:
    """An array constant."""
    if pa.types.is_timestamp(values.type):
        micros = values.view(pa.int64()).to_pylist()
        return "array(" + ", ".join("NULL" if m is None else f"timestamp_micros({m}L)" for m in micros) + ")"
    listed = ", ".join(_constant(value) for value in values.to_pylist())
    return f"CAST(array({listed}) AS ARRAY<{_SQL_TYPES[values.type]}>)"


def _constant(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # Escapes in quoted text depend on settings; bytes do not.
        return f"decode(unhex('{value.encode().hex()}'), 'UTF-8')"
    if isinstance(value, float):
        return f"{value!r}D" if math.isfinite(value) else f"double('{value}')"
    return f"{value}L"
