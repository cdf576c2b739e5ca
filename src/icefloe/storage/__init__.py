"""Storages: bytes by key with conditional writes. The only package that imports obstore.

Modules
-------
- `build`: Build storages from URLs, from arguments, and from the containers of virtual chunks.
- `contract`: The contract of a storage: bytes by key, with conditional writes.
- `credentials`: Credentials for object stores. They can be pickled and sent to workers. Their secrets are never
  shown.
- `durability`: What of the files that were written would survive a power loss.
- `endpoints`: Where a storage is on a network: bucket, options and credentials, with AWS profiles and environment
  variables.
- `local`: A storage in a folder of the file system, safe for many processes at once.
- `memory`: A storage in the memory of one process.
- `remote`: Storages on object stores, through obstore, and the outcome of conditional writes whose answer was lost.
- `requests`: What every request to a store needs: checked keys and files, merged ranges, retries, threads, translated
  errors.
- `wrappers`: Storages in front of another storage: they forward, measure, or choose a storage by key.
"""

from __future__ import annotations

from icefloe.storage.build import (
    azure_storage,
    gcs_storage,
    http_storage,
    in_memory_storage,
    local_filesystem_storage,
    open_object_store,
    r2_storage,
    resolve_storage,
    s3_storage,
    storage_from_url,
    tigris_storage,
)
from icefloe.storage.contract import Buffer, ObjectInfo, Storage, Version, Versioned
from icefloe.storage.remote import check_conditional_writes
from icefloe.storage.requests import RetryPolicy
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
