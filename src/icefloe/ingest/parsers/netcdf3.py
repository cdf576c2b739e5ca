"""NetCDF classic files (CDF-1, CDF-2, CDF-5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.cf import decoded_dtype
from icefloe.ingest.chunk_grids import Region, contiguous_chunks, contiguous_references, region_shape, virtual_table
from icefloe.ingest.parsers.contract import OpenSource, broken
from icefloe.ingest.parsers.netcdf3_header import ClassicHeader, ClassicVariable, parse_header
from icefloe.ingest.source_model import References, SourceFile, SourceSchema, SourceVariable, summarise_coordinate
from icefloe.ingest.zarr_documents import attribute_pairs, bytes_codec, fill_value_document, json_value


class NetCDF3Source(OpenSource):
    """A classic file: plain big-endian values, record variables interleaved record by record."""

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
                self.file, "NetCDF3",
                f"variable {variable.name} ends at byte {last}, the file at byte {self.file.size_bytes} (truncated)",
            )  # fmt: skip

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
            # One record is contiguous; its chunks repeat every stride.
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
        """Whether the records follow each other without anything in between."""
        cells = int(np.prod(classic.shape[1:], dtype=np.int64))
        return self._header.record_stride == cells * np.dtype(classic.dtype).itemsize

    def values(self, variable: SourceVariable, region: Region) -> npt.NDArray[Any]:
        classic = self._by_name[variable.path]
        dtype = np.dtype(classic.dtype)
        if not variable.shape:
            return self._run(classic.begin, 1, dtype).reshape(())
        # Read whole rows of the first dimension: one run, or one per record.
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
        path=variable.name, dims=variable.dims, shape=variable.shape, dtype=dtype, chunks=chunks,
        attributes=attribute_pairs(attributes, dtype), fill_value=fill_value_document(dtype, fill),
        codecs=(bytes_codec(dtype),), layout="records" if variable.is_record else "contiguous",
        decoded_dtype=decoded_dtype(dtype, variable.attributes),
    )  # fmt: skip


def _repeat(inner: npt.NDArray[np.uint32], records: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Chunk coordinates of one record, for every record."""
    coords = np.tile(inner, (len(records), 1))
    coords[:, 0] = np.repeat(records, len(inner)).astype(np.uint32)
    return coords
