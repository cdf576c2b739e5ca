"""NetCDF classic files (CDF-1, CDF-2, CDF-5)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.cf import decoded_dtype
from icefloe.ingest.chunk_grids import (
    ChunkRegion,
    contiguous_chunks,
    contiguous_references,
    region_shape,
    virtual_table,
)
from icefloe.ingest.parsers.registry import OpenSource, broken
from icefloe.ingest.source_model import References, SourceFile, SourceSchema, SourceVariable, summarise_coordinate
from icefloe.ingest.zarr_documents import attribute_pairs, bytes_codec, fill_value_document, json_value

_TYPES = {
    1: ">i1",
    2: "S1",
    3: ">i2",
    4: ">i4",
    5: ">f4",
    6: ">f8",
    7: ">u1",
    8: ">u2",
    9: ">u4",
    10: ">i8",
    11: ">u8",
}
_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12
_MOST = 1 << 24
"""The largest plausible count in a header. A larger number means a corrupt file."""


@dataclass(frozen=True, slots=True)
class ClassicVariable:
    """A variable of the header. `begin` is the first byte of its values (of its first record)."""

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
    """The header of a NetCDF classic file."""

    version: int
    attributes: dict[str, Any]
    variables: tuple[ClassicVariable, ...]
    records: int
    record_stride: int
    """Bytes from one record to the next, of all record variables."""


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
        """The number of entries of a list. Absent lists have none."""
        found = self.integer(4)
        count = self.count()
        if found not in (0, expected) or (found == 0 and count):
            raise FormatError(f"found tag {found}, expected {expected}")
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
        raise FormatError("it does not start like a NetCDF classic file")
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
        raise FormatError(f"the header is corrupt: {error}") from error
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
        raise FormatError(f"variable {name} refers to a dimension that does not exist")
    attributes = reader.attributes()
    dtype = reader.type()
    reader.length()
    begin = reader.integer(reader.offset_bytes)
    shape = tuple(dimensions[i][1] for i in indices)
    is_record = bool(shape) and shape[0] == 0
    cells = int(np.prod(shape[1:] if is_record else shape, dtype=np.int64))
    return ClassicVariable(
        name,
        tuple(dimensions[i][0] for i in indices),
        shape,
        dtype,
        attributes,
        begin,
        is_record,
        _padded(cells * np.dtype(dtype).itemsize),
    )


def _with_records(variable: ClassicVariable, records: int) -> ClassicVariable:
    shape = (records, *variable.shape[1:]) if variable.is_record else variable.shape
    return ClassicVariable(
        variable.name,
        variable.dims,
        shape,
        variable.dtype,
        variable.attributes,
        variable.begin,
        variable.is_record,
        variable.record_bytes,
    )


class NetCDF3Source(OpenSource):
    """A classic file: plain big-endian values. Record variables are interleaved by record."""

    format = "netcdf3"

    def __init__(self, file: SourceFile, access: SourceAccess) -> None:
        super().__init__(file, access)
        self._stream = access.open(file)
        self._schema: SourceSchema | None = None
        try:
            self._header: ClassicHeader = parse_header(self._stream, file.size_bytes)
        except FormatError as error:
            self._stream.close()
            raise broken(file, "NetCDF3", error) from error
        self._by_name = {v.name: v for v in self._header.variables}
        for variable in self._header.variables:
            self._check_end(variable)

    def _check_end(self, variable: ClassicVariable) -> None:
        cells = int(np.prod(variable.shape[1:] if variable.is_record else variable.shape, dtype=np.int64))
        last = variable.begin + cells * np.dtype(variable.dtype).itemsize
        if variable.is_record:
            last += max(0, self._header.records - 1) * self._header.record_stride
        if last > self.file.size_bytes and 0 not in variable.shape:
            self._stream.close()
            raise broken(
                self.file,
                "NetCDF3",
                f"variable {variable.name} ends at byte {last}, but the file ends at byte {self.file.size_bytes} "
                "(truncated)",
            )

    def schema(self) -> SourceSchema:
        if self._schema is None:
            variables = {v.name: _describe(v) for v in self._header.variables}
            coordinates = {
                name: summarise_coordinate(self.values(v, tuple(slice(0, n) for n in v.shape)))
                for name, v in variables.items()
                if v.dims in ((), (name,))
            }
            groups = {"": {str(k): json_value(v) for k, v in self._header.attributes.items()}}
            self._schema = SourceSchema(self.file, self.format, variables, coordinates, groups)
        return self._schema

    def references(self, variable: SourceVariable) -> References:
        classic = self._by_name[variable.path]
        itemsize = np.dtype(classic.dtype).itemsize
        if not classic.is_record or self._is_packed(classic):
            coords, offsets, lengths, cut = contiguous_references(
                variable.shape, variable.chunks, itemsize, classic.begin
            )
        else:
            # One record is contiguous. Its chunks repeat with the record stride.
            inner, inner_offsets, lengths, cut_inner = contiguous_references(
                (1, *variable.shape[1:]), (1, *variable.chunks[1:]), itemsize, classic.begin
            )
            records = np.arange(self._header.records, dtype=np.int64)
            coords = _repeat(inner, records)
            offsets = (records[:, None] * self._header.record_stride + inner_offsets[None, :]).reshape(-1)
            lengths = np.tile(lengths, len(records))
            cut = _repeat(cut_inner, records)
        table = virtual_table(
            coords, offsets, lengths, self.file.url, etag=self.file.etag, last_modified=self.file.last_modified
        )
        return References(table, cut)

    def _is_packed(self, classic: ClassicVariable) -> bool:
        """Whether the records are contiguous."""
        cells = int(np.prod(classic.shape[1:], dtype=np.int64))
        return self._header.record_stride == cells * np.dtype(classic.dtype).itemsize

    def values(self, variable: SourceVariable, region: ChunkRegion) -> npt.NDArray[Any]:
        classic = self._by_name[variable.path]
        dtype = np.dtype(classic.dtype)
        if not variable.shape:
            return self._run(classic.begin, 1, dtype).reshape(())
        # Read whole rows of the first dimension: one range, or one per record.
        row = int(np.prod(variable.shape[1:], dtype=np.int64))
        first, count = region[0].start, region[0].stop - region[0].start
        if count <= 0 or row == 0:
            return np.empty(region_shape(region), dtype=dtype)
        if classic.is_record:
            stride = self._header.record_stride
            data = self._bytes(classic.begin + first * stride, (count - 1) * stride + row * dtype.itemsize)
            rows = np.ndarray((count, row), dtype, data, strides=(stride, dtype.itemsize))
        else:
            rows = self._run(classic.begin + first * row * dtype.itemsize, count * row, dtype).reshape(count, row)
        cube = (
            rows.reshape(count, *variable.shape[1:])
            if not classic.is_record
            else np.ascontiguousarray(rows).reshape(count, *variable.shape[1:])
        )
        return cube[(slice(None), *region[1:])]

    def _run(self, begin: int, cells: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        return np.frombuffer(self._bytes(begin, cells * dtype.itemsize), dtype=dtype)

    def _bytes(self, begin: int, size: int) -> bytes:
        self._stream.seek(begin)
        data = self._stream.read(size)
        if len(data) != size:
            raise broken(self.file, "NetCDF3", f"bytes {begin} to {begin + size} are beyond its end (truncated)")
        return data

    def close(self) -> None:
        self._stream.close()


def _describe(variable: ClassicVariable) -> SourceVariable:
    dtype = np.dtype(variable.dtype).str
    itemsize = np.dtype(dtype).itemsize
    fill = variable.attributes.get("_FillValue")
    if dtype.endswith("S1") and isinstance(fill, str):
        fill = fill.encode()
    attributes = {k: v for k, v in variable.attributes.items() if k != "_FillValue"}
    if fill is not None:
        attributes["_FillValue"] = fill
    chunks = (
        (1, *contiguous_chunks(variable.shape[1:], itemsize))
        if variable.is_record
        else contiguous_chunks(variable.shape, itemsize)
    )
    return SourceVariable(
        path=variable.name,
        dims=variable.dims,
        shape=variable.shape,
        dtype=dtype,
        chunks=chunks,
        attributes=attribute_pairs(attributes, dtype),
        fill_value=fill_value_document(dtype, fill),
        codecs=(bytes_codec(dtype),),
        layout="records" if variable.is_record else "contiguous",
        decoded_dtype=decoded_dtype(dtype, variable.attributes),
    )


def _repeat(inner: npt.NDArray[np.uint32], records: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Chunk coordinates of one record, for every record."""
    coords = np.tile(inner, (len(records), 1))
    coords[:, 0] = np.repeat(records, len(inner)).astype(np.uint32)
    return coords
