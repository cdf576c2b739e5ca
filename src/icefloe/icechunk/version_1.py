"""The rules of version 1 of the official package that contradict those of version 2.

A process that follows version 1 differs in these points and in no others:

- New repositories are of version 1 (`Repository.create`, `open_or_create`).
- `Repository.fetch_config` returns None where there is no repository.
- `Repository.ancestry` reads the newest snapshot at once, so that a missing one is an error of the call.
- `Session.fork` refuses a session with changes. `Session.merge` of anything but forks is a TypeError.
- A session that was forked warns if it is committed before a fork is merged. Committing a fork is a TypeError.
- Configurations and storages print one line, with the fields of version 1.
- The default settings of a storage in memory set no `unsafe_` flag.
- Logs go to standard output.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from icefloe.debug import set_log_stream
from icefloe.display.card import WithFields, code, set_value_text
from icefloe.errors import SnapshotNotFoundError
from icefloe.model.config import StorageConcurrencySettings, StorageSettings
from icefloe.session.session import ForkSession, Session
from icefloe.storage.contract import Storage
from icefloe.storage.memory import MemoryStorage

_FOLLOWED = {"version": 2}
_ALL: tuple[str, ...] = ()
_FIELDS = {
    "CachingConfig": _ALL,
    "CompressionConfig": _ALL,
    "ManifestConfig": ("preload", "splitting"),
    "ManifestPreloadConfig": ("max_total_refs", "preload_if"),
    "ManifestSplittingConfig": _ALL,
    "RepositoryConfig": (
        "inline_chunk_threshold_bytes",
        "get_partial_values_concurrency",
        "compression",
        "caching",
        "storage",
        "manifest",
    ),
    "StorageConcurrencySettings": _ALL,
    "StorageRetriesSettings": _ALL,
    "StorageSettings": (
        "concurrency",
        "retries",
        "unsafe_use_conditional_create",
        "unsafe_use_conditional_update",
        "unsafe_use_metadata",
        "storage_class",
        "metadata_storage_class",
        "chunks_storage_class",
    ),
}
"""The fields that version 1 prints, by class."""


def follow_version(version: int) -> None:
    """Follow version 1 or 2 of the official package in this process."""
    _FOLLOWED["version"] = version
    set_log_stream(to_stdout=follows_version_1())
    set_value_text(_value_text if follows_version_1() else None)


def follows_version_1() -> bool:
    """Whether this process follows version 1 of the official package where its versions contradict each other."""
    return _FOLLOWED["version"] == 1


# -- forks ------------------------------------------------------------------------------------------------------------


def check_fork(session: Session) -> None:
    """Refuse to fork a session with changes."""
    if session.has_uncommitted_changes:
        raise ValueError(
            "cannot fork a session with uncommitted changes. Commit them, open a new session and fork that one"
        )


def check_forks(others: tuple[Any, ...]) -> None:
    """Refuse to merge anything but forks."""
    for each in others:
        if not isinstance(each, ForkSession):
            raise TypeError(f"Session.merge takes the results of Session.fork(), got {type(each).__name__}")


def warn_of_unmerged_forks() -> None:
    """Warn that the session that is committed was forked, and that no fork was merged."""
    warnings.warn(
        "this session was forked, and no fork was merged. The commit does not contain what the forks have written. "
        "Merge them before with Session.merge()",
        UserWarning,
        stacklevel=3,
    )


def fork_error(verb: str) -> TypeError:
    """The error if a fork is committed or flushed."""
    return TypeError(f"Cannot {verb} a fork of a session. Merge it into its session, and {verb} that session")


# -- errors -----------------------------------------------------------------------------------------------------------


@contextmanager
def naming_ancestry() -> Iterator[None]:
    """Add to the error about a missing snapshot what it was read for."""
    try:
        yield
    except SnapshotNotFoundError as error:
        error.add_note("in fetch_snapshot, for ancestry")
        raise


# -- texts and settings -----------------------------------------------------------------------------------------------


class InMemoryStorage(MemoryStorage):
    """A storage in memory with the default settings of version 1."""

    def default_settings(self) -> StorageSettings:
        """Return the settings that are used where a configuration has none. The `unsafe_` flags are not set."""
        usual = super().default_settings()
        assert usual.concurrency is not None
        size = usual.concurrency.ideal_concurrent_request_size
        return StorageSettings(concurrency=StorageConcurrencySettings(5, size), retries=usual.retries)


def _value_text(value: WithFields) -> str | None:
    """The text of a value in one line, or None for the usual text."""
    if isinstance(value, Storage):
        return _storage_text(value)
    name = type(value).__name__
    if name not in _FIELDS:
        return None
    shown = [each for each in value._shown_fields() if not _FIELDS[name] or each.name in _FIELDS[name]]
    return f"{name}({', '.join(f'{each.name}={code(each.value)}' for each in shown)})"


def _storage_text(storage: Storage) -> str | None:
    shown = {each.name: each.value for each in storage._shown_fields()}
    kind = shown.pop("type")
    url = urlsplit(storage.url)
    bucket, prefix = url.netloc, url.path.strip("/")
    if kind == "s3":
        options = ", ".join(f"{name}={value}" for name, value in shown.items() if name != "url")
        return f"S3Storage(bucket={bucket}, prefix={prefix}, config=S3Options({options}))"
    if kind == "in-memory":
        backend = "InMemoryObjectStoreBackend"
    elif kind == "local filesystem":
        backend = f"LocalFileSystemObjectStoreBackend(path={shown['path']})"
    elif kind == "gs":
        backend = f"GcsObjectStoreBackend(bucket={bucket}, prefix={prefix})"
    elif kind == "az":
        container, _, prefix = prefix.partition("/")
        backend = f"AzureObjectStoreBackend(account={bucket}, container={container}, prefix={prefix})"
    else:
        return None
    return f"ObjectStorage(backend={backend})"


__all__: list[str] = []
