"""The Zarr store of a session, as `icechunk.store`. Both packages have one class of stores."""

from __future__ import annotations

from icefloe.blocking import AsyncCloseableIterator
from icefloe.model.virtual_chunk_container import VirtualChunkSpec
from icefloe.store import IcechunkStore

__all__ = ["AsyncCloseableIterator", "IcechunkStore", "VirtualChunkSpec"]
