"""Commits made with formats, metadata files and ledger alone, without a session."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from icefloe.formats.icechunk1 import FORMAT as FORMAT_1
from icefloe.formats.icechunk2 import FORMAT as FORMAT_2
from icefloe.ids import NodeId, new_chunk_id, new_node_id, new_object_id
from icefloe.ledger.icechunk1 import Icechunk1Ledger
from icefloe.ledger.icechunk2 import Icechunk2Ledger
from icefloe.ledger.ledger import Ledger
from icefloe.metadata_files import MetadataFiles
from icefloe.model.chunk_table import ChunkKind, ChunkRef, Coords, table_from_rows
from icefloe.model.snapshot import (
    ArrayNode,
    GroupNode,
    Manifest,
    ManifestFileInfo,
    ManifestRef,
    Node,
    Snapshot,
    TransactionLog,
    later_than,
)
from icefloe.storage.contract import Storage

GROUP_DOCUMENT = b'{"zarr_format":3,"node_type":"group","attributes":{}}'


@dataclasses.dataclass
class HandMade:
    """One repository of an official generation."""

    storage: Storage
    metadata_files: MetadataFiles
    ledger: Ledger
    spec: int

    @classmethod
    def at(cls, storage: Storage, spec: int) -> HandMade:
        metadata_files = MetadataFiles(storage, FORMAT_1 if spec == 1 else FORMAT_2)
        ledger: Ledger = (
            Icechunk1Ledger(storage, metadata_files) if spec == 1 else Icechunk2Ledger(storage, metadata_files)
        )
        return cls(storage, metadata_files, ledger, spec)

    async def create(self, config: Mapping[str, Any] | None = None) -> Snapshot:
        initial = self.metadata_files.format.initial_snapshot(dt.datetime.now(dt.UTC))
        await self.metadata_files.write_snapshot(initial)
        if self.metadata_files.format.logs_initial_snapshot:
            await self.metadata_files.write_transaction_log(initial.id, TransactionLog())
        await self.ledger.create(initial, config)
        return initial

    async def commit(
        self,
        message: str,
        nodes: Sequence[Node],
        manifests: Sequence[ManifestFileInfo],
        log: TransactionLog,
        *,
        branch: str = "main",
        metadata: Mapping[str, Any] | None = None,
        amends: str | None = None,
    ) -> str:
        tip = await self.ledger.fetch_tip(branch)
        parent = await self.ledger.fetch_info(tip.snapshot_id)
        snapshot = Snapshot(
            id=new_object_id(),
            parent_id=parent.parent_id if amends else tip.snapshot_id,
            written_at=later_than(parent.written_at),
            message=message,
            metadata=dict(metadata or {}),
            nodes={node.path: node for node in sorted(nodes, key=lambda node: node.path.encode())},
            manifests={info.id: info for info in manifests},
        )
        await self.metadata_files.write_snapshot(snapshot)
        await self.metadata_files.write_transaction_log(snapshot.id, log)
        await self.ledger.advance(branch, tip, snapshot, amends=amends)
        return snapshot.id

    async def put_chunk(self, data: bytes) -> bytes:
        chunk_id = new_chunk_id()
        await self.storage.put(self.metadata_files.format.chunk_key(chunk_id), data)
        return chunk_id

    async def write_manifest(self, rows: Mapping[NodeId, Sequence[tuple[Coords, ChunkRef]]]) -> ManifestFileInfo:
        tables = {node: table_from_rows(list(refs), len(refs[0][0])) for node, refs in rows.items()}
        return await self.metadata_files.write_manifest(Manifest(new_object_id(), tables))


def array_document(shape: Sequence[int], chunks: Sequence[int], **more: Any) -> bytes:
    """A zarr.json of an uncompressed int32 array."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": "int32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "attributes": {},
            "storage_transformers": [],
            **more,
        },
        indent=1,
    ).encode()


def array_node(
    path: str, shape: Sequence[int], chunks: Sequence[int], manifests: Sequence[ManifestRef] = (), **more: Any
) -> ArrayNode:
    """An array of int32."""
    grid = tuple(-(-n // c) if n else 0 for n, c in zip(shape, chunks, strict=True))
    names = more.get("dimension_names")
    return ArrayNode(
        new_node_id(),
        path,
        array_document(shape, chunks, **more),
        tuple(shape),
        grid,
        None if names is None else tuple(names),
        tuple(manifests),
    )


def group_node(path: str) -> GroupNode:
    """A group without attributes."""
    return GroupNode(new_node_id(), path, GROUP_DOCUMENT)


def int32_bytes(values: Any) -> bytes:
    """Chunk bytes as the codec of `array_document` writes them."""
    return np.ascontiguousarray(values, dtype="<i4").tobytes()


def native(chunk_id: bytes, length: int, offset: int = 0) -> ChunkRef:
    return ChunkRef(ChunkKind.NATIVE, offset, length, object_id=chunk_id)


def inline(data: bytes) -> ChunkRef:
    return ChunkRef(ChunkKind.INLINE, 0, len(data), data=data)
