"""Column values spelled as SQL constants, exactly."""

from __future__ import annotations

import json

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


def sql_lookup(values: pa.Array, index: str) -> str:
    """An expression for the value at a position of a constant array.

    The array is one text that Spark's optimizer turns into a constant; a list of literals would be as many nodes of the
    plan, which every rule of the analyzer visits.
    """
    if pa.types.is_timestamp(values.type):
        return f"timestamp_micros({_parsed(values.view(pa.int64()), 'BIGINT')}[{index}])"
    return f"{_parsed(values, _SQL_TYPES[values.type])}[{index}]"


def _parsed(values: pa.Array, type: str) -> str:
    # Python spells what JSON has no word for as Spark reads it: NaN, Infinity.
    text = json.dumps(values.to_pylist(), separators=(",", ":"))
    # Escapes in quoted text depend on settings; bytes do not.
    constant = f"decode(unhex('{text.encode().hex()}'), 'UTF-8')" if type == "STRING" else f"'{text}'"
    return f"from_json({constant}, 'ARRAY<{type}>')"
