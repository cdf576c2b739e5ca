"""Virtual chunk containers and references, as `icechunk.virtual`."""

from __future__ import annotations

from icefloe.model.virtual_chunk_container import VirtualChunkContainer, VirtualChunkSpec

__all__ = ["VirtualChunkContainer", "VirtualChunkSpec"]
