"""Repositories, as `icechunk.repository`.

A repository is the one of `icefloe`, with the habits of the official package: new repositories are of version 2, one
chunk is one object, a session needs a branch, a tag or a snapshot, and times need a time zone.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from icefloe.blocking import AsyncCloseableIterator, blocking, blocking_classmethod, blocking_staticmethod
from icefloe.display.card import ShownField, fields_html, fields_text
from icefloe.display.graph import AncestryGraph
from icefloe.errors import InvalidInputError, RepositoryNotFoundError, SnapshotNotFoundError
from icefloe.formats.config_document import splitting_document
from icefloe.icechunk.config import Attribution, FeatureFlag, RepositoryConfig
from icefloe.icechunk.conflicts import ConflictSolver
from icefloe.icechunk.credentials import plain_credentials
from icefloe.icechunk.ops import GCSummary, Update
from icefloe.icechunk.session import Session
from icefloe.icechunk.snapshots import Diff, ManifestFileInfo, SnapshotInfo
from icefloe.icechunk.storage import Storage, resolve_redirect
from icefloe.icechunk.store import IcechunkStore
from icefloe.icechunk.types import CommitMethod
from icefloe.icechunk.version_1 import follows_version_1, naming_ancestry
from icefloe.maintenance.inspect import ChunkStorageStats
from icefloe.model.capabilities import SpecVersion
from icefloe.model.config import StorageSettings
from icefloe.model.snapshot import Node, Snapshot, check_zone
from icefloe.model.status import RepoStatus
from icefloe.repository import Repository as EngineRepository
from icefloe.session.session import Session as EngineSession
from icefloe.session.session import SessionMode
from icefloe.storage.build import resolve_storage
from icefloe.storage.contract import Storage as EngineStorage

_log = logging.getLogger("icefloe.icechunk")

Place = EngineStorage | str | Path
Authorization = Mapping[str, Any] | None
_FIRST_BYTES = 512 << 20
_DECODED_BYTES = 4 << 30
_GUIDANCE = {
    "s3": "s3_credentials(from_env=True)",
    "tigris": "s3_credentials(from_env=True)",
    "gs": "gcs_anonymous_credentials()",
    "gcs": "gcs_anonymous_credentials()",
    "az": "azure_from_env_credentials()",
    "azure": "azure_from_env_credentials()",
    "abfs": "azure_from_env_credentials()",
    "file": "credentials.LocalFileSystemAccess",
    "http": "credentials.HttpAccess",
    "https": "credentials.HttpAccess",
}


def _authorized(given: Authorization) -> dict[str, Any] | None:
    if given is None:
        return None
    for prefix, credentials in given.items():
        if credentials is None:
            instead = _GUIDANCE.get(prefix.partition("://")[0].lower(), "explicit credentials")
            warnings.warn(
                f"Passing `None` in `authorize_virtual_chunk_access` for container {prefix!r} is deprecated: give "
                f"explicit credentials, such as {instead}",
                DeprecationWarning,
                stacklevel=4,
            )
    return {prefix: plain_credentials(credentials) for prefix, credentials in given.items()}


def _attributed(storage: Place, attribution: Attribution | None) -> EngineStorage:
    place = resolve_storage(storage)
    rename = getattr(place, "with_user_agent", None)
    if attribution is None or rename is None:
        return place
    renamed: EngineStorage = rename(attribution.user_agent())
    return renamed


def _check_prefix(storage: EngineStorage) -> None:
    parts = urlsplit(storage.url)
    if parts.scheme in ("s3", "gs") and not parts.path.strip("/"):
        raise InvalidInputError(
            f"cannot create a repository at {storage.url}: creation with an empty prefix is not supported; give one",
            "empty-prefix-creation",
        )


def _version(given: SpecVersion | str | int | None) -> SpecVersion | str | int:
    if given is None:
        return SpecVersion.v1 if follows_version_1() else SpecVersion.v2
    if isinstance(given, int):
        if given not in (1, 2):
            raise InvalidInputError(f"Unsupported version {given}. The versions of the format are 1 and 2")
    elif isinstance(given, str) and given not in {version.value for version in SpecVersion}:
        raise InvalidInputError(f"Couldn't parse a valid version from {given!r}. Give 1, 2 or a SpecVersion")
    return given


def _not_after_now(moment: dt.datetime, name: str) -> dt.datetime:
    """The time, or now if it is in the future, which the official package accepts."""
    if not isinstance(moment, dt.datetime):
        return moment
    return min(check_zone(moment, name), dt.datetime.now(dt.UTC))


class _Invalid:
    """Stands for the files of a repository object that cannot be used any more."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(self._reason)


class _MissingNodes(Mapping[str, Node]):
    """The nodes of a snapshot whose file is missing. Every access raises the error."""

    def __init__(self, error: SnapshotNotFoundError) -> None:
        self._error = error

    def __getitem__(self, path: str) -> Node:
        raise self._error

    def __iter__(self) -> Iterator[str]:
        raise self._error

    def __len__(self) -> int:
        raise self._error

    def get(self, path: str, default: Any = None) -> Any:
        raise self._error  # a lookup error would be taken for a path without a node


class Repository(EngineRepository):
    """A versioned store of Zarr hierarchies, with the names, arguments and defaults of the official package.

    Examples
    --------
    >>> import zarr
    >>> from icefloe import icechunk
    >>> repo = icechunk.Repository.create(icechunk.in_memory_storage())
    >>> session = repo.writable_session("main")
    >>> _ = zarr.create_group(session.store)
    >>> _ = session.commit("a group")
    >>> int(repo.spec_version.number)
    2
    """

    _session_class: type[EngineSession] = Session
    _attribution = Attribution()

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("storage", self.storage)
        yield ShownField("config", "<RepositoryConfig ...>")

    def __repr__(self) -> str:
        return fields_text(f"icechunk.Repository (v{self.spec_version.number})", self._shown_fields())

    def _repr_html_(self) -> str:
        return fields_html(f"icechunk.Repository (v{self.spec_version.number})", self._shown_fields())

    @classmethod
    async def create_async(
        cls,
        storage: Place,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization = None,
        spec_version: SpecVersion | str | int | None = None,
        check_clean_root: bool = True,
        attribution: Attribution | None = None,
    ) -> Self:
        """Create a repository, of version 2 unless another one is given."""
        _log.debug("Creating Repository at %s", storage)
        place = _attributed(await resolve_redirect(storage), attribution)
        _check_prefix(place)
        made = await super().create_async(
            place, config, _authorized(authorize_virtual_chunk_access), _version(spec_version), check_clean_root
        )
        return cls._adopt(made, attribution)

    create: Any = blocking_classmethod(create_async)

    @classmethod
    async def open_async(
        cls,
        storage: Place,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization = None,
        attribution: Attribution | None = None,
    ) -> Self:
        """Open an existing repository of any version."""
        _log.debug("Opening Repository at %s", storage)
        place = _attributed(await resolve_redirect(storage), attribution)
        made = await super().open_async(place, config, _authorized(authorize_virtual_chunk_access))
        return cls._adopt(made, attribution)

    open: Any = blocking_classmethod(open_async)

    @classmethod
    async def open_or_create_async(
        cls,
        storage: Place,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization = None,
        create_version: SpecVersion | str | int | None = None,
        check_clean_root: bool = True,
        attribution: Attribution | None = None,
    ) -> Self:
        """Open the repository of a storage, or create one of version 2 unless another one is given."""
        place = _attributed(await resolve_redirect(storage), attribution)
        authorized = _authorized(authorize_virtual_chunk_access)
        if await EngineRepository.exists_async(place):
            return cls._adopt(await EngineRepository.open_async(place, config, authorized), attribution)
        _check_prefix(place)
        made = await EngineRepository.open_or_create_async(
            place, config, authorized, _version(create_version), check_clean_root
        )
        return cls._adopt(made, attribution)

    open_or_create: Any = blocking_classmethod(open_or_create_async)

    @classmethod
    def _adopt(cls, made: EngineRepository, attribution: Attribution | None) -> Self:
        repo = cls(made.context.with_official_rules(), made.default_commit_metadata())
        repo._attribution = attribution or Attribution()
        return repo

    @staticmethod
    async def fetch_config_async(storage: Place) -> RepositoryConfig | None:
        """Return the configuration that is saved in a repository, or None if none is saved."""
        storage = await resolve_redirect(storage)
        found = await EngineRepository.fetch_config_async(storage)
        if found is None and not follows_version_1() and not await EngineRepository.exists_async(storage):
            place = resolve_storage(storage)
            raise RepositoryNotFoundError(f"the repository doesn't exist: there is none at {place.url}", url=place.url)
        return found

    fetch_config: Any = blocking_staticmethod(fetch_config_async)

    async def reopen_async(
        self, config: RepositoryConfig | None = None, authorize_virtual_chunk_access: Authorization = None
    ) -> Self:
        """Return the same repository with other settings or credentials."""
        made = await super().reopen_async(config, _authorized(authorize_virtual_chunk_access))
        return self._adopt(made, self._attribution)

    reopen = blocking(reopen_async)  # type: ignore[arg-type]

    def _invalidate(self, reason: str) -> None:
        """Make every use of this object an error: its files no longer exist."""
        self._context = _Invalid(reason)  # type: ignore[assignment]

    @property
    def attribution(self) -> Attribution:
        """The labels that the requests of this object carry."""
        return self._attribution

    # -- history --------------------------------------------------------------------------------------------------

    def async_ancestry(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: str | None = None
    ) -> AsyncCloseableIterator[SnapshotInfo]:
        """Iterate over a snapshot and its ancestors, newest first. A ref that does not exist is an error at once."""
        if sum(each is not None for each in (branch, tag, snapshot_id)) != 1:
            raise InvalidInputError("Must provide one of branch, tag, or snapshot_id", "invalid-ref-name")
        if branch is not None:
            snapshot_id = self.lookup_branch(branch)
        elif tag is not None:
            snapshot_id = self.lookup_tag(tag)
        if follows_version_1():
            assert snapshot_id is not None
            with naming_ancestry():
                self.lookup_snapshot(snapshot_id)
        return AsyncCloseableIterator(super().async_ancestry(snapshot_id=snapshot_id))

    def ancestry(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: str | None = None
    ) -> Iterator[SnapshotInfo]:
        """Iterate over a snapshot and its ancestors, newest first."""
        return self.async_ancestry(branch=branch, tag=tag, snapshot_id=snapshot_id)

    def ops_log_async(self) -> AsyncCloseableIterator[Update]:
        """Iterate over the operations log, newest first."""
        return AsyncCloseableIterator(super().ops_log_async())

    def ops_log(self) -> Iterator[Update]:
        """Iterate over the operations log, newest first."""
        return self.ops_log_async()

    async def readonly_session_async(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: dt.datetime | None = None,
    ) -> Session:
        """Open a session that reads a branch, a tag or a snapshot."""
        if branch is None and tag is None and snapshot_id is None:
            raise InvalidInputError("readonly_session needs a branch, a tag or a snapshot_id", "invalid-ref-name")
        opened = await super().readonly_session_async(branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
        assert isinstance(opened, Session)
        return opened

    readonly_session = blocking(readonly_session_async)  # type: ignore[arg-type]

    async def _branch_session(self, branch: str, mode: SessionMode) -> EngineSession:
        try:
            return await super()._branch_session(branch, mode)
        except SnapshotNotFoundError as error:
            # The official package reads the snapshot when it is needed, so that such a session can be opened.
            tip = await self._context.ledger.fetch_tip(branch)
            now = dt.datetime.now(dt.UTC)
            base = Snapshot(tip.snapshot_id, None, now, "", {}, _MissingNodes(error), {})
            return self._session_class(
                self._context, base, mode=mode, branch=branch, tip=tip, default_metadata=self._default_metadata
            )

    async def inspect_snapshot_async(self, snapshot_id: str, *, pretty: bool | None = None) -> Any:
        """Return the content of a snapshot file as a dictionary.

        With `pretty`, as in version 1 of the official package, return it as JSON, indented or not.
        """
        found = await super().inspect_snapshot_async(snapshot_id)
        return found if pretty is None else json.dumps(found, indent=2 if pretty else None)

    inspect_snapshot: Any = blocking(inspect_snapshot_async)

    # -- maintenance ----------------------------------------------------------------------------------------------

    async def expire_snapshots_async(
        self,
        older_than: dt.datetime,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
    ) -> set[str]:
        """Remove snapshots from history that are older than a time. Return their ids."""
        expired = await super().expire_snapshots_async(
            _not_after_now(older_than, "older_than"),
            delete_expired_branches=delete_expired_branches,
            delete_expired_tags=delete_expired_tags,
        )
        return set(expired)

    expire_snapshots = blocking(expire_snapshots_async)  # type: ignore[arg-type]

    async def garbage_collect_async(
        self,
        delete_object_older_than: dt.datetime,
        *,
        dry_run: bool = False,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = _FIRST_BYTES,
        max_decoded_manifest_mem_bytes: int = _DECODED_BYTES,
        max_concurrent_manifest_fetches: int = 500,
        max_concurrent_deletes: int = 10,
        max_consecutive_delete_failures: int = 50,
        max_concurrent_listings: int | None = None,
    ) -> GCSummary:
        """Delete objects that nothing names and that are older than a time.

        The limits on manifests hold. Snapshots are read one by one, and a deletion that fails raises, so that the other
        arguments have nothing to limit. A time in the future means now.
        """
        return await super().garbage_collect_async(
            _not_after_now(delete_object_older_than, "delete_object_older_than"),
            dry_run=dry_run,
            ignore_running_sessions=True,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        )

    garbage_collect = blocking(garbage_collect_async)  # type: ignore[arg-type]

    async def ancestry_graph_async(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        plain: bool = False,
        limit: int | None = None,
    ) -> AncestryGraph:
        """Draw the commits of all branches and tags, or of one of them. Without `plain`, the text has colours."""
        return await super().ancestry_graph_async(
            branch=branch, tag=tag, snapshot_id=snapshot_id, plain=plain, limit=limit
        )

    ancestry_graph = blocking(ancestry_graph_async)  # type: ignore[arg-type]

    async def diff_async(
        self,
        *,
        from_branch: str | None = None,
        from_tag: str | None = None,
        from_snapshot_id: str | None = None,
        to_branch: str | None = None,
        to_tag: str | None = None,
        to_snapshot_id: str | None = None,
    ) -> Diff:
        """Return what changed from a snapshot to one of its descendants."""
        start = await anext(
            aiter(super().async_ancestry(branch=from_branch, tag=from_tag, snapshot_id=from_snapshot_id))
        )
        newer = False
        async for info in super().async_ancestry(branch=to_branch, tag=to_tag, snapshot_id=to_snapshot_id):
            if info.id == start.id and newer:
                break
            newer = True
        else:
            raise InvalidInputError(
                f"the history of the newer snapshot doesn't include {start.id}. Give the older snapshot first",
                "bad-snapshot-chain-for-diff",
            )
        return await super().diff_async(
            from_snapshot_id=start.id, to_branch=to_branch, to_tag=to_tag, to_snapshot_id=to_snapshot_id
        )

    diff = blocking(diff_async)  # type: ignore[arg-type]

    async def rewrite_manifests_async(
        self,
        message: str,
        *,
        branch: str,
        metadata: Mapping[str, Any] | None = None,
        commit_method: CommitMethod = "new_commit",
    ) -> str:
        """Write the manifests of a branch anew, as the configuration splits them."""
        splitting = None if self.config.manifest is None else self.config.manifest.splitting
        note = {"splitting_config": None if splitting is None else splitting_document(splitting)}
        own = {**(metadata or {}), "__icechunk": {**(metadata or {}).get("__icechunk", {}), **note}}
        return await super().rewrite_manifests_async(message, branch=branch, metadata=own, commit_method=commit_method)

    rewrite_manifests = blocking(rewrite_manifests_async)  # type: ignore[arg-type]

    async def chunk_storage_stats_async(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = _FIRST_BYTES,
        max_decoded_manifest_mem_bytes: int = _DECODED_BYTES,
        max_concurrent_manifest_fetches: int = 500,
    ) -> ChunkStorageStats:
        """Return the size of all chunks that branches and tags reach."""
        return await super().chunk_storage_stats_async(
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        )

    chunk_storage_stats = blocking(chunk_storage_stats_async)  # type: ignore[arg-type]

    async def total_chunks_storage_async(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = _FIRST_BYTES,
        max_decoded_manifest_mem_bytes: int = _DECODED_BYTES,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """Return the size of all native chunks that branches and tags reach. Use `chunk_storage_stats` instead."""
        _warn_of_successor("total_chunks_storage_async", "chunk_storage_stats_async")
        stats = await self.chunk_storage_stats_async(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        )
        return stats.native_bytes

    def total_chunks_storage(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = _FIRST_BYTES,
        max_decoded_manifest_mem_bytes: int = _DECODED_BYTES,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """Return the size of all native chunks that branches and tags reach. Use `chunk_storage_stats` instead."""
        _warn_of_successor("total_chunks_storage", "chunk_storage_stats")
        return self.chunk_storage_stats(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        ).native_bytes


def _warn_of_successor(name: str, successor: str) -> None:
    warnings.warn(
        f"the {name} method has been deprecated in favour of the {successor} method, which also tells the bytes of "
        "inline and virtual chunks",
        DeprecationWarning,
        stacklevel=3,
    )


__all__ = [
    "AncestryGraph",
    "AsyncCloseableIterator",
    "AsyncIterator",
    "Attribution",
    "ChunkStorageStats",
    "CommitMethod",
    "ConflictSolver",
    "Diff",
    "FeatureFlag",
    "GCSummary",
    "IcechunkStore",
    "ManifestFileInfo",
    "RepoStatus",
    "Repository",
    "RepositoryConfig",
    "Session",
    "SnapshotInfo",
    "SpecVersion",
    "Storage",
    "StorageSettings",
    "Update",
]
