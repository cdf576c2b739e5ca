"""How requests to a storage are made: how many at once, how often again, and with which of its abilities."""

# Annotations are evaluated with the class: they say what the settings take, and every process asks them.

from dataclasses import dataclass
from typing import Annotated

from icefloe.model.config_value import ConfigValue, Count, Flag, Nested, Setting, Text


@dataclass(slots=True, repr=False)
class StorageConcurrencySettings(ConfigValue):
    """How one large object is fetched in several requests."""

    max_concurrent_requests_for_object: Annotated[int | None, Setting(Count(1, 65535), 18)] = None
    ideal_concurrent_request_size: Annotated[int | None, Setting(Count(1), 12 << 20)] = None


@dataclass(slots=True, repr=False)
class StorageRetriesSettings(ConfigValue):
    """How often a request is tried, and the waits in between."""

    max_tries: Annotated[int | None, Setting(Count(1, 65535), 10)] = None
    initial_backoff_ms: Annotated[int | None, Setting(Count(), 100)] = None
    max_backoff_ms: Annotated[int | None, Setting(Count(), 180_000)] = None


@dataclass(slots=True, repr=False)
class StorageTimeoutSettings(ConfigValue):
    """How long a request may take; unset is the backend's own limit."""

    connect_timeout_ms: Annotated[int | None, Setting(Count(1))] = None
    read_timeout_ms: Annotated[int | None, Setting(Count(1))] = None
    operation_timeout_ms: Annotated[int | None, Setting(Count(1))] = None
    operation_attempt_timeout_ms: Annotated[int | None, Setting(Count(1))] = None


@dataclass(slots=True, repr=False)
class StorageSettings(ConfigValue):
    """How the repository uses its storage."""

    concurrency: Annotated[StorageConcurrencySettings | None, Setting(Nested(StorageConcurrencySettings))] = None
    retries: Annotated[StorageRetriesSettings | None, Setting(Nested(StorageRetriesSettings))] = None
    unsafe_use_conditional_create: Annotated[bool | None, Setting(Flag(), True)] = None
    unsafe_use_conditional_update: Annotated[bool | None, Setting(Flag(), True)] = None
    unsafe_use_metadata: Annotated[bool | None, Setting(Flag(), True)] = None
    storage_class: Annotated[str | None, Setting(Text())] = None
    metadata_storage_class: Annotated[str | None, Setting(Text())] = None
    chunks_storage_class: Annotated[str | None, Setting(Text())] = None
    minimum_size_for_multipart_upload: Annotated[int | None, Setting(Count(1), 100 << 20)] = None
    timeouts: Annotated[StorageTimeoutSettings | None, Setting(Nested(StorageTimeoutSettings))] = None
    fsync: Annotated[bool | None, Setting(Flag(), True)] = None
