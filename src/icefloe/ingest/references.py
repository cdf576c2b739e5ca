"""Values read through chunk references, decoded by zarr's own codecs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe.errors import StorageError
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.chunk_grids import Region
from icefloe.ingest.source_model import SourceVariable
from icefloe.ingest.zarr_documents import array_document, fill_value_document
from icefloe.model.chunk_table import ChunkKind, ChunkTable


def variable_document(variable: SourceVariable) -> bytes:
    """The zarr.json that describes a variable's bytes as they lie in the source."""
    fill = variable.fill_value if variable.fill_value is not None else fill_value_document(variable.dtype, None)
    return array_document(
        shape=variable.shape, dtype=variable.dtype, chunks=variable.chunks, codecs=variable.codecs,
        fill_value=fill, attributes={}, dims=None,
    )  # fmt: skip


def fetch_rows(table: ChunkTable, rows: npt.NDArray[np.intp], access: SourceAccess) -> list[bytes]:
    """The bytes of some rows of a table, one request (or few) per file."""
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
                raise StorageError(f"{url} ends before byte {end}; bytes {start} to {end} were asked for", url=url)
            found[position] = part
    return found


def decode_references(
    variable: SourceVariable, table: ChunkTable, region: Region, access: SourceAccess
) -> npt.NDArray[Any]:
    """The values of a region, from references; chunks without one hold the fill value."""
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
