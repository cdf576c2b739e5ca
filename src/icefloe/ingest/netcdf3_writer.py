"""NetCDF classic files written from arrays, for synthetic data and trials."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError

_NUMBERS = {"i1": 1, "S1": 2, "i2": 3, "i4": 4, "f4": 5, "f8": 6, "u1": 7, "u2": 8, "u4": 9, "i8": 10, "u8": 11}

Variables = Mapping[str, tuple[tuple[str, ...], npt.NDArray[Any], Mapping[str, Any]]]
"""By name: dimensions, values, attributes."""


def write_netcdf3(
    path: str | Path, variables: Variables, attributes: Mapping[str, Any], *, record_dim: str | None = None,
    version: int = 2,
) -> None:  # fmt: skip
    """Write a CDF-1, CDF-2 or CDF-5 file; variables that start with `record_dim` are stored record by record."""
    if version not in (1, 2, 5):
        raise InvalidInputError(f"there is no NetCDF classic version {version}")
    sizes: dict[str, int] = {}
    for dims, values, _ in variables.values():
        sizes.update(zip(dims, values.shape, strict=True))
    records = sizes.get(record_dim, 0) if record_dim is not None else 0
    layout = {n: _record_bytes(d, v, record_dim) for n, (d, v, _) in variables.items()}
    of_records = [n for n, (d, _, _) in variables.items() if d and d[0] == record_dim]
    if len(of_records) == 1:
        layout[of_records[0]] = (layout[of_records[0]][1], layout[of_records[0]][1])
    fixed = [n for n in variables if n not in of_records]
    begins = dict.fromkeys(variables, 0)
    size = len(_header(variables, attributes, sizes, records, record_dim, version, begins, layout))
    for name in (*fixed, *of_records):
        begins[name] = size
        size += layout[name][0]
    with Path(path).open("wb") as file:
        file.write(_header(variables, attributes, sizes, records, record_dim, version, begins, layout))
        for name in fixed:
            file.write(_padded(_big(variables[name][1]).tobytes()))
        for record in range(records):
            for name in of_records:
                data = _big(variables[name][1][record]).tobytes()
                file.write(data.ljust(layout[name][0], b"\x00"))


def _record_bytes(dims: tuple[str, ...], values: npt.NDArray[Any], record_dim: str | None) -> tuple[int, int]:
    """Padded and plain bytes of one record (or of the whole)."""
    shape = values.shape[1:] if dims and dims[0] == record_dim else values.shape
    plain = int(np.prod(shape, dtype=np.int64)) * values.dtype.itemsize
    return -(-plain // 4) * 4, plain


def _big(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(values).astype(values.dtype.newbyteorder(">"))


def _padded(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // 4) * 4, b"\x00")


def _header(
    variables: Variables,
    attributes: Mapping[str, Any],
    sizes: Mapping[str, int],
    records: int,
    record_dim: str | None,
    version: int,
    begins: Mapping[str, int],
    layout: Mapping[str, tuple[int, int]],
) -> bytes:
    wide = 8 if version == 5 else 4
    place = 4 if version == 1 else 8

    def number(value: int, size: int = wide) -> bytes:
        return value.to_bytes(size, "big")

    def text(value: str) -> bytes:
        data = value.encode()
        return number(len(data)) + _padded(data)

    def described(pairs: Mapping[str, Any]) -> bytes:
        if not pairs:
            return number(0, 4) + number(0)
        return number(12, 4) + number(len(pairs)) + b"".join(text(k) + _attribute(v, number) for k, v in pairs.items())

    dims = list(sizes)
    parts = [b"CDF" + bytes([version]), number(records), number(10, 4), number(len(dims))]
    parts += [text(d) + number(0 if d == record_dim else sizes[d]) for d in dims]
    parts += [described(attributes), number(11, 4), number(len(variables))]
    for name, (own, values, pairs) in variables.items():
        code = _NUMBERS[values.dtype.str[1:]]
        # The size field of a large variable does not fit in CDF-1 and CDF-2; readers compute it.
        stored = min(layout[name][0], (1 << (8 * wide)) - 1)
        parts += [text(name), number(len(own)), *(number(dims.index(d)) for d in own), described(pairs)]
        parts += [number(code, 4), number(stored), number(begins[name], place)]
    return b"".join(parts)


def _attribute(value: Any, number: Any) -> bytes:
    if isinstance(value, str):
        data = value.encode()
        return bytes(number(2, 4) + number(len(data)) + _padded(data))
    values = np.atleast_1d(value)
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        values = values.astype(np.int32)
    return bytes(number(_NUMBERS[values.dtype.str[1:]], 4) + number(len(values)) + _padded(_big(values).tobytes()))
