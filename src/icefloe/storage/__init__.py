"""Storages: bytes by key with conditional writes. The only package that imports obstore.

Modules
-------
- `aws_profile`: AWS profiles and endpoints, from environment variables and the shared credentials and config files.
- `build`: Create storages by constructor, from a URL, or from a path.
- `conditional_writes`: Conditional writes: the outcome of a write whose answer was lost, and a probe that a store
  honours conditions.
- `contract`: The contract of a storage: bytes by key, with conditional writes.
- `credentials`: Credentials for object stores. They can be pickled and sent to workers. Their secrets are never
  shown.
- `durability`: What of the files that were written would survive a power loss.
- `endpoints`: Where a remote storage is and how to connect to it.
- `local`: A storage in a folder of the file system, safe for many processes at once.
- `memory`: A storage in the memory of one process.
- `remote`: A storage in an object store, through obstore.
- `requests`: What every request to a store needs: checked keys, merged ranges, retries, threads and translated
  errors.
- `virtual_sources`: Storages that virtual chunks are read from.
- `wrappers`: Storages in front of another storage: they forward, measure, or choose a storage by key.
"""

from __future__ import annotations

from icefloe.storage.build import (
    azure_storage,
    gcs_storage,
    http_storage,
    in_memory_storage,
    local_filesystem_storage,
    r2_storage,
    resolve_storage,
    s3_storage,
    storage_from_url,
    tigris_storage,
)
from icefloe.storage.conditional_writes import check_conditional_writes
from icefloe.storage.contract import Buffer, ObjectInfo, Storage, Version, Versioned
from icefloe.storage.requests import RetryPolicy
from icefloe.storage.virtual_sources import open_object_store
from icefloe.storage.wrappers import SplitStorage, WrappedStorage

__all__ = [
    "Buffer",
    "ObjectInfo",
    "RetryPolicy",
    "SplitStorage",
    "Storage",
    "Version",
    "Versioned",
    "WrappedStorage",
    "azure_storage",
    "check_conditional_writes",
    "gcs_storage",
    "http_storage",
    "in_memory_storage",
    "local_filesystem_storage",
    "open_object_store",
    "r2_storage",
    "resolve_storage",
    "s3_storage",
    "storage_from_url",
    "tigris_storage",
]
