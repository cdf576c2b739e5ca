"""What a repository is made of, as its user asks for it: bytes by kind, and single files as plain data."""

from __future__ import annotations

from typing import Any

from icefloe.blocking import run_blocking
from icefloe.maintenance import inspect as inspection
from icefloe.maintenance.marking import FetchLimits
from icefloe.maintenance.statistics import ChunkStorageStats, chunk_storage_stats
from icefloe.session.engine import Engine


class InspectionDoor:
    """The part of `Repository` that looks inside."""

    _engine: Engine

    def chunk_storage_stats(
        self,
        *,
        max_compressed_manifest_mem_bytes: int = 512 << 20,
        max_concurrent_manifest_fetches: int = 32,
        **_: Any,
    ) -> ChunkStorageStats:
        """Bytes of all chunks in all of history, by kind; what snapshots share counts once."""
        return run_blocking(
            self.chunk_storage_stats_async(
                max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
                max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
            )
        )

    async def chunk_storage_stats_async(
        self,
        *,
        max_compressed_manifest_mem_bytes: int = 512 << 20,
        max_concurrent_manifest_fetches: int = 32,
        **_: Any,
    ) -> ChunkStorageStats:
        """`chunk_storage_stats`, awaited."""
        limits = FetchLimits(max(1, min(max_concurrent_manifest_fetches, 256)), max_compressed_manifest_mem_bytes)
        return await chunk_storage_stats(self._engine, limits)

    def total_chunks_storage(self, **limits: int) -> int:
        """Bytes of all chunk objects in all of history."""
        return self.chunk_storage_stats(**limits).native_bytes

    async def total_chunks_storage_async(self, **limits: int) -> int:
        """`total_chunks_storage`, awaited."""
        return (await self.chunk_storage_stats_async(**limits)).native_bytes

    def inspect_snapshot(self, snapshot_id: str) -> dict[str, Any]:
        """The nodes of a snapshot with their ids and manifests."""
        return run_blocking(inspection.inspect_snapshot(self._engine, snapshot_id))

    async def inspect_snapshot_async(self, snapshot_id: str) -> dict[str, Any]:
        """`inspect_snapshot`, awaited."""
        return await inspection.inspect_snapshot(self._engine, snapshot_id)

    def inspect_manifest(self, manifest_id: str) -> dict[str, Any]:
        """The references of a manifest, counted by array and kind."""
        return run_blocking(inspection.inspect_manifest(self._engine, manifest_id))

    async def inspect_manifest_async(self, manifest_id: str) -> dict[str, Any]:
        """`inspect_manifest`, awaited."""
        return await inspection.inspect_manifest(self._engine, manifest_id)

    def inspect_transaction_log(self, snapshot_id: str) -> dict[str, Any]:
        """What one commit changed, by node id."""
        return run_blocking(inspection.inspect_transaction_log(self._engine, snapshot_id))

    async def inspect_transaction_log_async(self, snapshot_id: str) -> dict[str, Any]:
        """`inspect_transaction_log`, awaited."""
        return await inspection.inspect_transaction_log(self._engine, snapshot_id)
