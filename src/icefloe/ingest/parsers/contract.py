"""What every parser offers: a schema, chunk references, and values."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe.errors import FormatError, NodeNotFoundError, StorageError, UnsupportedError
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.chunk_grids import ChunkRegion
from icefloe.ingest.source_model import References, SourceFile, SourceSchema, SourceVariable
from icefloe.ingest.zarr_documents import array_document, fill_value_document
from icefloe.model.chunk_table import ChunkKind, ChunkTable


def variable_document(variable: SourceVariable) -> bytes:
    """The zarr.json that describes a variable's bytes in the source."""
    fill = variable.fill_value if variable.fill_value is not None else fill_value_document(variable.dtype, None)
    return array_document(
        shape=variable.shape,
        dtype=variable.dtype,
        chunks=variable.chunks,
        codecs=variable.codecs,
        fill_value=fill,
        attributes={},
        dims=None,
    )


def fetch_rows(table: ChunkTable, rows: npt.NDArray[np.intp], access: SourceAccess) -> list[bytes]:
    """The bytes of some rows of a table, with one request (or few) per file."""
    found: list[bytes] = [b""] * len(rows)
    kinds = table.kind[rows]
    for position in np.flatnonzero(kinds == ChunkKind.INLINE):
        start, length = int(table.offset[rows[position]]), int(table.length[rows[position]])
        found[position] = bytes(table.inline[start : start + length])
    if table.location is None:
        return found
    places = np.where(kinds == ChunkKind.VIRTUAL, table.location[rows], -1)
    for place in np.unique(places[places >= 0]):
        chosen = np.flatnonzero(places == place)
        starts = table.offset[rows[chosen]].astype(np.int64)
        ends = starts + table.length[rows[chosen]].astype(np.int64)
        url = table.locations[int(place)]
        parts = access.read_ranges(url, starts.tolist(), ends.tolist())
        for position, part, start, end in zip(chosen, parts, starts, ends, strict=True):
            if len(part) != end - start:
                raise StorageError(f"cannot read bytes {start} to {end} of {url}: the file is shorter", url=url)
            found[position] = part
    return found


def decode_references(
    variable: SourceVariable, table: ChunkTable, region: ChunkRegion, access: SourceAccess
) -> npt.NDArray[Any]:
    """The values of a region, from references. Chunks without one have the fill value."""
    low = np.array([s.start // c for s, c in zip(region, variable.chunks, strict=True)], dtype=np.int64)
    high = np.array([-(-s.stop // c) for s, c in zip(region, variable.chunks, strict=True)], dtype=np.int64)
    coords = table.coords.astype(np.int64)
    rows = np.flatnonzero(((coords >= low) & (coords < high)).all(axis=1))
    prototype = default_buffer_prototype()
    contents = {"zarr.json": prototype.buffer.from_bytes(variable_document(variable))}
    keys = ("/".join(itertools.chain(["c"], map(str, row))) for row in table.coords[rows].tolist())
    for key, data in zip(keys, fetch_rows(table, rows, access), strict=True):
        contents[key] = prototype.buffer.from_bytes(data)
    array = zarr.open_array(MemoryStore(contents), mode="r")
    return np.asarray(array[region] if region else array[...])


class OpenSource(ABC):
    """An open source. It is a context manager. Values are as stored: packed values stay packed."""

    format: str

    def __init__(self, file: SourceFile, access: SourceAccess) -> None:
        self.file = file
        self.access = access

    @abstractmethod
    def schema(self) -> SourceSchema:
        """Everything but the chunk references."""

    @abstractmethod
    def references(self, variable: SourceVariable) -> References:
        """The chunk references of a variable.

        `variable.chunks` is used if the layout of the file allows a choice (contiguous and record variables).
        """

    def values(self, variable: SourceVariable, region: ChunkRegion) -> npt.NDArray[Any]:
        """The stored values of a region. By default, zarr's codecs decode them from the references."""
        if variable.not_virtual is not None:
            raise UnsupportedError(
                f"{variable.path} of {self.file.url} cannot be read: {variable.not_virtual}",
                url=self.file.url,
                variable=variable.path,
            )
        return decode_references(variable, self.references(variable).table, region, self.access)

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> OpenSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def find_variable(self, path: str) -> SourceVariable:
        """A variable by its path in the file."""
        variables = self.schema().variables
        if path not in variables:
            raise NodeNotFoundError(f"{self.file.url} has no variable {path!r}. It has {sorted(variables)}")
        return variables[path]


def broken(file: SourceFile, format_name: str, reason: object) -> FormatError:
    """The error for an invalid file."""
    return FormatError(
        f"{file.url} is not a readable {format_name} file: {reason}",
        url=file.url,
        format=format_name,
        reason=str(reason),
    )


def check_inside(
    file: SourceFile, format_name: str, offsets: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]
) -> None:
    """Refuse references beyond the end of the file."""
    if len(offsets) == 0 or file.size_bytes == 0:
        return
    end = int((offsets.astype(np.int64) + lengths.astype(np.int64)).max())
    if end > file.size_bytes:
        raise broken(
            file, format_name, f"its data ends at byte {end}, but the file ends at byte {file.size_bytes} (truncated?)"
        )


def with_chunks(variable: SourceVariable, chunks: Sequence[int]) -> SourceVariable:
    """The variable with other chunks, if its layout allows it."""
    return replace(variable, chunks=tuple(int(c) for c in chunks))
