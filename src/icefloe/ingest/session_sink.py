"""A session as the place where an ingest writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import zarr
from zarr.core.buffer import default_buffer_prototype

from icefloe.blocking import run_blocking
from icefloe.ingest.chunk_grids import Region
from icefloe.ingest.plan import IngestPlan
from icefloe.model.chunk_table import ChunkTable
from icefloe.session.session import Session
from icefloe.session.virtual_refs import set_table


class SessionSink:
    """Writes blocks through the session's Zarr store and references as whole tables; also serves forks."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._arrays: dict[str, zarr.Array[Any]] = {}

    def begin(self, plan: IngestPlan) -> None:
        """Write the documents and the values that the plan holds."""
        self.write_documents(plan.documents)
        for write in plan.values:
            region = tuple(slice(s, s + n) for s, n in zip(write.start, write.values.shape, strict=True))
            self.write_block(write.path, region, write.values)

    def write_documents(self, documents: Mapping[str, bytes]) -> None:
        """Write zarr.json documents by node path."""
        run_blocking(self._write_documents(documents))

    async def _write_documents(self, documents: Mapping[str, bytes]) -> None:
        make = default_buffer_prototype().buffer.from_bytes
        for path, document in documents.items():
            await self._session.store.set(f"{path}/zarr.json" if path else "zarr.json", make(document))

    def write_block(self, array_path: str, region: Region, values: npt.NDArray[Any]) -> None:
        if array_path not in self._arrays:
            self._arrays[array_path] = zarr.open_array(self._session.store, path=array_path, mode="r+", zarr_format=3)
        self._arrays[array_path][region if region else ...] = values

    def write_table(self, array_path: str, table: ChunkTable) -> None:
        workspace = self._session.workspace
        if not workspace.engine.format.capabilities.checksums:
            table = replace(table, etag=None, etags=(), last_modified=None)
        set_table(workspace, array_path, table)
