"""The header of a NetCDF classic file: CDF-1, CDF-2 (64-bit offsets) and CDF-5 (64-bit data)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from icefloe.errors import FormatError

_TYPES = {
    1: ">i1", 2: "S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8",
    7: ">u1", 8: ">u2", 9: ">u4", 10: ">i8", 11: ">u8",
}  # fmt: skip
_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12
_MOST = 1 << 24
"""No sane header counts more of anything; a larger number is a broken file, not a reason to allocate."""


@dataclass(frozen=True, slots=True)
class ClassicVariable:
    """A variable as the header describes it; `begin` is the byte where its (first record's) values start."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    attributes: dict[str, Any]
    begin: int
    is_record: bool
    record_bytes: int
    """Bytes of one record (or of the whole) including padding."""


@dataclass(frozen=True, slots=True)
class ClassicHeader:
    """Everything before the data of a NetCDF classic file."""

    version: int
    attributes: dict[str, Any]
    variables: tuple[ClassicVariable, ...]
    records: int
    record_stride: int
    """Bytes from one record to the next, all record variables together."""


class _Reader:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.count_bytes = 4
        self.offset_bytes = 4

    def take(self, count: int) -> bytes:
        data = self._stream.read(count)
        if len(data) != count:
            raise FormatError("the header ends early (truncated file)")
        return data

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def count(self) -> int:
        value = self.integer(self.count_bytes)
        if value > _MOST:
            raise FormatError(f"the header counts {value} entries")
        return value

    def length(self) -> int:
        return self.integer(self.count_bytes)

    def name(self) -> str:
        size = self.count()
        return self.take(_padded(size))[:size].decode("utf-8", errors="replace")

    def tag(self, expected: int) -> int:
        """The number of entries of a list; absent lists have none."""
        found = self.integer(4)
        count = self.count()
        if found not in (0, expected) or (found == 0 and count):
            raise FormatError(f"tag {found} where {expected} belongs")
        return count

    def attributes(self) -> dict[str, Any]:
        return dict(self._attribute() for _ in range(self.tag(_ATTRIBUTE)))

    def _attribute(self) -> tuple[str, Any]:
        name = self.name()
        dtype = self.type()
        count = self.count()
        size = count * (1 if dtype == "S1" else np.dtype(dtype).itemsize)
        data = self.take(_padded(size))[:size]
        if dtype == "S1":
            return name, data.rstrip(b"\x00").decode("utf-8", errors="replace")
        values = np.frombuffer(data, dtype=dtype)
        return name, values[0] if count == 1 else values

    def type(self) -> str:
        number = self.integer(4)
        if number not in _TYPES:
            raise FormatError(f"unknown data type {number}")
        return _TYPES[number]


def _padded(size: int) -> int:
    return -(-size // 4) * 4


def parse_header(stream: BinaryIO, file_bytes: int) -> ClassicHeader:
    """Read the header from the start of a file."""
    reader = _Reader(stream)
    magic = reader.take(4)
    if magic[:3] != b"CDF" or magic[3] not in (1, 2, 5):
        raise FormatError("it does not start as a NetCDF classic file")
    version = magic[3]
    reader.count_bytes = 8 if version == 5 else 4
    reader.offset_bytes = 4 if version == 1 else 8
    try:
        records = reader.length()
        streaming = records == (1 << (8 * reader.count_bytes)) - 1
        dimensions = [(reader.name(), reader.length()) for _ in range(reader.tag(_DIMENSION))]
        attributes = reader.attributes()
        raw = [_variable(reader, dimensions) for _ in range(reader.tag(_VARIABLE))]
    except struct.error as error:
        raise FormatError(f"the header is broken: {error}") from error
    of_records = [v for v in raw if v.is_record]
    if len(of_records) == 1:
        # A lone record variable is stored without padding between its records.
        item = np.dtype(of_records[0].dtype).itemsize
        stride = int(np.prod(of_records[0].shape[1:], dtype=np.int64)) * item
    else:
        stride = sum(v.record_bytes for v in of_records)
    if streaming:
        first = min((v.begin for v in of_records), default=0)
        records = (file_bytes - first) // stride if stride else 0
    variables = tuple(_with_records(v, records) for v in raw)
    return ClassicHeader(version, attributes, variables, records, stride)


def _variable(reader: _Reader, dimensions: list[tuple[str, int]]) -> ClassicVariable:
    name = reader.name()
    indices = [reader.length() for _ in range(reader.count())]
    if any(i >= len(dimensions) for i in indices):
        raise FormatError(f"variable {name} names a dimension that is not there")
    attributes = reader.attributes()
    dtype = reader.type()
    reader.length()
    begin = reader.integer(reader.offset_bytes)
    shape = tuple(dimensions[i][1] for i in indices)
    is_record = bool(shape) and shape[0] == 0
    cells = int(np.prod(shape[1:] if is_record else shape, dtype=np.int64))
    return ClassicVariable(
        name, tuple(dimensions[i][0] for i in indices), shape, dtype, attributes, begin, is_record,
        _padded(cells * np.dtype(dtype).itemsize),
    )  # fmt: skip


def _with_records(variable: ClassicVariable, records: int) -> ClassicVariable:
    shape = (records, *variable.shape[1:]) if variable.is_record else variable.shape
    return ClassicVariable(
        variable.name, variable.dims, shape, variable.dtype, variable.attributes, variable.begin,
        variable.is_record, variable.record_bytes,
    )  # fmt: skip
