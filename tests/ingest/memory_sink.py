"""A sink that keeps everything in memory: values through zarr, references as tables; for trials and tests."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe.ingest.access import SourceAccess
from icefloe.ingest.chunk_grids import ChunkRegion
from icefloe.ingest.parsers.registry import fetch_rows
from icefloe.ingest.plan import IngestPlan
from icefloe.model.chunk_table import ChunkTable


class MemorySink:
    """Applies a plan to a dictionary of Zarr keys; references are fetched at once."""

    def __init__(self, access: SourceAccess | None = None) -> None:
        self.contents: dict[str, Buffer] = {}
        self.tables: dict[str, list[ChunkTable]] = {}
        self._access = access or SourceAccess()

    def begin(self, plan: IngestPlan) -> None:
        """Write the documents and the values that the plan holds."""
        self.write_documents(plan.documents)
        for write in plan.values:
            end = [s + n for s, n in zip(write.start, write.values.shape, strict=True)]
            region = tuple(slice(s, e) for s, e in zip(write.start, end, strict=True))
            self.write_block(write.path, region, write.values)

    def write_documents(self, documents: Mapping[str, bytes]) -> None:
        prototype = default_buffer_prototype()
        for path, document in documents.items():
            key = f"{path}/zarr.json" if path else "zarr.json"
            self.contents[key] = prototype.buffer.from_bytes(document)

    def write_block(self, array_path: str, region: ChunkRegion, values: npt.NDArray[Any]) -> None:
        array = zarr.open_array(MemoryStore(self.contents), path=array_path, mode="r+")
        array[region if region else ...] = values

    def write_table(self, array_path: str, table: ChunkTable) -> None:
        self.tables.setdefault(array_path, []).append(table)
        rows = np.arange(len(table))
        keys = ("/".join(itertools.chain([array_path, "c"], map(str, row))) for row in table.coords.tolist())
        prototype = default_buffer_prototype()
        for key, data in zip(keys, fetch_rows(table, rows, self._access), strict=True):
            self.contents[key] = prototype.buffer.from_bytes(data)

    def store(self) -> MemoryStore:
        """The result as a Zarr store."""
        return MemoryStore(self.contents)
