"""Bytes by key, with conditions: the only room that imports obstore."""

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
from icefloe.storage.contract import Buffer, ObjectInfo, RetryPolicy, Storage, Version, Versioned
from icefloe.storage.virtual_sources import open_object_store
from icefloe.storage.wrappers import SplitStorage

__all__ = [
    "Buffer",
    "ObjectInfo",
    "RetryPolicy",
    "SplitStorage",
    "Storage",
    "Version",
    "Versioned",
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
