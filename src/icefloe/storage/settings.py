"""The settings of a repository's configuration, put in force on its storage."""

from __future__ import annotations

from icefloe.model.storage_settings import StorageRetriesSettings, StorageSettings
from icefloe.storage.contract import Storage
from icefloe.storage.local import LocalStorage
from icefloe.storage.remote import ObstoreStorage
from icefloe.storage.retries import RetryPolicy


def configured_storage(storage: Storage, settings: StorageSettings | None) -> Storage:
    """The storage as a repository uses it; what the settings leave open stays as the storage was made."""
    if settings is None:
        return storage
    if isinstance(storage, LocalStorage):
        chosen = settings.fsync if storage.fsync is None else None
        return storage if chosen is None else storage.with_fsync(chosen)
    if settings.retries is None or not isinstance(storage, ObstoreStorage):
        return storage
    policy = retry_policy(settings.retries, storage.retries)
    return storage if policy == storage.retries else storage.with_retries(policy)


def retry_policy(settings: StorageRetriesSettings, usual: RetryPolicy) -> RetryPolicy:
    """The policy of the settings, those left open taken from the usual one."""
    return RetryPolicy(
        max_tries=usual.max_tries if settings.max_tries is None else settings.max_tries,
        initial_backoff_ms=(
            usual.initial_backoff_ms if settings.initial_backoff_ms is None else settings.initial_backoff_ms
        ),
        max_backoff_ms=usual.max_backoff_ms if settings.max_backoff_ms is None else settings.max_backoff_ms,
    )
