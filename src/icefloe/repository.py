"""A repository as its user sees it: create and open, sessions, branches, tags, history."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icefloe.blocking import iterate_blocking, run_blocking
from icefloe.errors import InvalidInputError, RepositoryNotFoundError
from icefloe.ids import ObjectId
from icefloe.model.capabilities import SpecVersion
from icefloe.model.config import RepositoryConfig
from icefloe.model.diff import Diff
from icefloe.model.snapshot import ManifestFileInfo, SnapshotInfo
from icefloe.session import opening
from icefloe.session.conflicts import ConflictSolver
from icefloe.session.engine import Engine
from icefloe.session.history import RefChoice, ancestry, diff_between, resolve, snapshot_as_of
from icefloe.session.session import Session, SessionMode
from icefloe.storage.build import resolve_storage
from icefloe.storage.contract import Storage
from icefloe.store import IcechunkStore

Place = Storage | str | Path
Authorization = Mapping[str, Any] | None


class Repository:
    """A versioned store of Zarr hierarchies.

    Examples
    --------
    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with repo.transaction("main", message="first array") as store:
    ...     _ = zarr.create_array(store, name="t", shape=3, dtype="f4")
    >>> [info.message for info in repo.ancestry(branch="main")]
    ['first array', 'Repository initialized']
    """

    def __init__(self, engine: Engine, default_commit_metadata: Mapping[str, Any] | None = None) -> None:
        self._engine = engine
        self._default_metadata = dict(default_commit_metadata or {})

    # -- create and open ------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        storage: Place,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization = None,
        spec_version: SpecVersion | str | int | None = None,
        check_clean_root: bool = True,
    ) -> Repository:
        """Make a new repository; AlreadyExistsError when there is one.

        Parameters
        ----------
        storage
            Where it lives: a storage, a URL or a path.
        config
            Kept in the repository when given.
        authorize_virtual_chunk_access
            Credentials per container prefix; only these containers are read.
        spec_version
            Generation of the on-disk format: "repository" (default), "dataset", "store", "icechunk1" or "icechunk2".
        check_clean_root
            Refuse a place that holds other objects.
        """
        return run_blocking(
            cls.create_async(storage, config, authorize_virtual_chunk_access, spec_version, check_clean_root)
        )

    @classmethod
    async def create_async(
        cls,
        storage: Place,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization = None,
        spec_version: SpecVersion | str | int | None = None,
        check_clean_root: bool = True,
    ) -> Repository:
        """`create`, awaited."""
        place = resolve_storage(storage)
        version = opening.parse_spec_version(spec_version)
        engine = await opening.create_engine(
            place, version, config, authorize_virtual_chunk_access or {}, check_clean_root=check_clean_root
        )
        return cls(engine)

    @classmethod
    def open(
        cls,
        storage: Place,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization = None,
    ) -> Repository:
        """Open a repository of any generation; `config` is laid over the one kept in it."""
        return run_blocking(cls.open_async(storage, config, authorize_virtual_chunk_access))

    @classmethod
    async def open_async(
        cls,
        storage: Place,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization = None,
    ) -> Repository:
        """`open`, awaited."""
        place = resolve_storage(storage)
        return cls(await opening.open_engine(place, config, authorize_virtual_chunk_access or {}))

    @classmethod
    def open_or_create(
        cls,
        storage: Place,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization = None,
        create_version: SpecVersion | str | int | None = None,
        check_clean_root: bool = True,
    ) -> Repository:
        """Open the repository there, or make one."""
        return run_blocking(
            cls.open_or_create_async(storage, config, authorize_virtual_chunk_access, create_version, check_clean_root)
        )

    @classmethod
    async def open_or_create_async(
        cls,
        storage: Place,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization = None,
        create_version: SpecVersion | str | int | None = None,
        check_clean_root: bool = True,
    ) -> Repository:
        """`open_or_create`, awaited."""
        place = resolve_storage(storage)
        try:
            return await cls.open_async(place, config, authorize_virtual_chunk_access)
        except RepositoryNotFoundError:
            pass
        version = opening.parse_spec_version(create_version)
        engine = await opening.create_or_open_engine(
            place, version, config, authorize_virtual_chunk_access or {}, check_clean_root=check_clean_root
        )
        return cls(engine)

    @staticmethod
    def exists(storage: Place, storage_settings: Any = None) -> bool:
        """Whether there is a repository."""
        return run_blocking(Repository.exists_async(storage, storage_settings))

    @staticmethod
    async def exists_async(storage: Place, storage_settings: Any = None) -> bool:
        """`exists`, awaited."""
        return await opening.find_spec_version(resolve_storage(storage)) is not None

    @staticmethod
    def fetch_spec_version(storage: Place, storage_settings: Any = None) -> SpecVersion | None:
        """The generation of the repository there, or None when there is none."""
        return run_blocking(Repository.fetch_spec_version_async(storage, storage_settings))

    @staticmethod
    async def fetch_spec_version_async(storage: Place, storage_settings: Any = None) -> SpecVersion | None:
        """`fetch_spec_version`, awaited."""
        return await opening.find_spec_version(resolve_storage(storage))

    @staticmethod
    def fetch_config(storage: Place) -> RepositoryConfig | None:
        """The configuration kept in a repository, or None."""
        return run_blocking(Repository.fetch_config_async(storage))

    @staticmethod
    async def fetch_config_async(storage: Place) -> RepositoryConfig | None:
        """`fetch_config`, awaited."""
        return await opening.fetch_stored_config(resolve_storage(storage))

    def save_config(self) -> None:
        """Keep the present configuration in the repository; credentials are never part of it."""
        run_blocking(self.save_config_async())

    async def save_config_async(self) -> None:
        """`save_config`, awaited."""
        await opening.save_config(self._engine)

    def reopen(
        self, config: RepositoryConfig | None = None, authorize_virtual_chunk_access: Authorization = None
    ) -> Repository:
        """The same repository with another configuration laid over, or other authorisations."""
        return run_blocking(self.reopen_async(config, authorize_virtual_chunk_access))

    async def reopen_async(
        self, config: RepositoryConfig | None = None, authorize_virtual_chunk_access: Authorization = None
    ) -> Repository:
        """`reopen`, awaited."""
        engine = opening.reconfigure(self._engine, config, authorize_virtual_chunk_access)
        return Repository(engine, self._default_metadata)

    @property
    def engine(self) -> Engine:
        """The parts behind this repository, for rooms of the library."""
        return self._engine

    @property
    def config(self) -> RepositoryConfig:
        """The configuration in force; change it with `reopen`."""
        return self._engine.config

    @property
    def storage(self) -> Storage:
        """Where the repository lives."""
        return self._engine.storage

    @property
    def spec_version(self) -> SpecVersion:
        """The generation of its on-disk format."""
        return self._engine.format.spec_version

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        """The container prefixes that may be read."""
        return set(self._engine.authorized)

    def set_default_commit_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Metadata for every commit made through this object from now on."""
        self._default_metadata = dict(metadata)

    def default_commit_metadata(self) -> dict[str, Any]:
        """Metadata that every commit made through this object gets."""
        return dict(self._default_metadata)

    def __repr__(self) -> str:
        return f"<icefloe.Repository {self.spec_version.value} at {self.storage.url}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Repository) and other.storage == self.storage and other.config == self.config

    __hash__ = object.__hash__

    # -- sessions -------------------------------------------------------------------------------------------------

    def readonly_session(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: dt.datetime | None = None,
    ) -> Session:
        """A session on a branch, tag, snapshot, or on a branch as it was at a time; later commits are not seen.

        Without any of them: the branch `main`.
        """
        return run_blocking(self.readonly_session_async(branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of))

    async def readonly_session_async(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: dt.datetime | None = None,
    ) -> Session:
        """`readonly_session`, awaited."""
        choice = RefChoice(branch, tag, snapshot_id).or_main()
        if as_of is not None and choice.branch is None:
            raise InvalidInputError("as_of goes with a branch: a tag or snapshot id is a point in time already")
        found = await resolve(self._engine, choice)
        if as_of is not None:
            found = await snapshot_as_of(self._engine, found, as_of)
        base = await self._engine.archive.fetch_snapshot(found)
        opening.preload(self._engine, base)
        return Session(self._engine, base)

    def writable_session(self, branch: str) -> Session:
        """A session whose changes can be committed to a branch."""
        return run_blocking(self.writable_session_async(branch))

    async def writable_session_async(self, branch: str) -> Session:
        """`writable_session`, awaited."""
        return await self._branch_session(branch, SessionMode.WRITABLE)

    def rearrange_session(self, branch: str) -> Session:
        """A writable session that only moves nodes and chunks."""
        return run_blocking(self.rearrange_session_async(branch))

    async def rearrange_session_async(self, branch: str) -> Session:
        """`rearrange_session`, awaited."""
        return await self._branch_session(branch, SessionMode.REARRANGE)

    async def _branch_session(self, branch: str, mode: SessionMode) -> Session:
        await opening.check_writable(self._engine)
        tip = await self._engine.ledger.fetch_tip(branch)
        base = await self._engine.archive.fetch_snapshot(tip.snapshot_id)
        opening.preload(self._engine, base)
        return Session(self._engine, base, mode=mode, branch=branch, tip=tip, default_metadata=self._default_metadata)

    @contextmanager
    def transaction(
        self,
        branch: str,
        *,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
    ) -> Iterator[IcechunkStore]:
        """A store whose changes are committed when the block ends well, and forgotten when it raises."""
        session = self.writable_session(branch)
        yield session.store
        session.commit(message, metadata, rebase_with=rebase_with, rebase_tries=rebase_tries)

    # -- branches and tags ----------------------------------------------------------------------------------------

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """A new branch at a snapshot; AlreadyExistsError when the name is taken."""
        run_blocking(self.create_branch_async(branch, snapshot_id))

    async def create_branch_async(self, branch: str, snapshot_id: str) -> None:
        """`create_branch`, awaited."""
        await self._engine.archive.fetch_snapshot(snapshot_id)
        await self._engine.ledger.create_branch(branch, snapshot_id)

    def list_branches(self) -> set[str]:
        """Names of all branches."""
        return run_blocking(self.list_branches_async())

    async def list_branches_async(self) -> set[str]:
        """`list_branches`, awaited."""
        return await self._engine.ledger.list_branches()

    def lookup_branch(self, branch: str) -> ObjectId:
        """The snapshot at which a branch stands."""
        return run_blocking(self.lookup_branch_async(branch))

    async def lookup_branch_async(self, branch: str) -> ObjectId:
        """`lookup_branch`, awaited."""
        return (await self._engine.ledger.fetch_tip(branch)).snapshot_id

    def reset_branch(self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None) -> None:
        """Point a branch at another snapshot, if it is still at `from_snapshot_id` when that is given."""
        run_blocking(self.reset_branch_async(branch, snapshot_id, from_snapshot_id=from_snapshot_id))

    async def reset_branch_async(self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None) -> None:
        """`reset_branch`, awaited."""
        await self._engine.archive.fetch_snapshot(snapshot_id)
        await self._engine.ledger.reset_branch(branch, snapshot_id, from_snapshot_id)

    def delete_branch(self, branch: str) -> None:
        """Remove a branch; its snapshots stay until they are collected. `main` cannot be removed."""
        run_blocking(self.delete_branch_async(branch))

    async def delete_branch_async(self, branch: str) -> None:
        """`delete_branch`, awaited."""
        await self._engine.ledger.delete_branch(branch)

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """A name for a snapshot that never moves."""
        run_blocking(self.create_tag_async(tag, snapshot_id))

    async def create_tag_async(self, tag: str, snapshot_id: str) -> None:
        """`create_tag`, awaited."""
        await self._engine.archive.fetch_snapshot(snapshot_id)
        await self._engine.ledger.create_tag(tag, snapshot_id)

    def list_tags(self) -> set[str]:
        """Names of all tags."""
        return run_blocking(self.list_tags_async())

    async def list_tags_async(self) -> set[str]:
        """`list_tags`, awaited."""
        return await self._engine.ledger.list_tags()

    def lookup_tag(self, tag: str) -> ObjectId:
        """The snapshot a tag names."""
        return run_blocking(self.lookup_tag_async(tag))

    async def lookup_tag_async(self, tag: str) -> ObjectId:
        """`lookup_tag`, awaited."""
        return await self._engine.ledger.fetch_tag(tag)

    def delete_tag(self, tag: str) -> None:
        """Remove a tag, where the generation allows it; the name cannot be used again."""
        run_blocking(self.delete_tag_async(tag))

    async def delete_tag_async(self, tag: str) -> None:
        """`delete_tag`, awaited."""
        await self._engine.ledger.delete_tag(tag)

    # -- history --------------------------------------------------------------------------------------------------

    def ancestry(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: str | None = None
    ) -> Iterator[SnapshotInfo]:
        """A snapshot and its ancestors, newest first, read as far as you iterate."""
        return iterate_blocking(self.async_ancestry(branch=branch, tag=tag, snapshot_id=snapshot_id))

    async def async_ancestry(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: str | None = None
    ) -> AsyncIterator[SnapshotInfo]:
        """`ancestry`, for `async for`."""
        async for info in ancestry(self._engine, RefChoice(branch, tag, snapshot_id)):
            yield info

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """One commit by its id."""
        return run_blocking(self.lookup_snapshot_async(snapshot_id))

    async def lookup_snapshot_async(self, snapshot_id: str) -> SnapshotInfo:
        """`lookup_snapshot`, awaited."""
        return (await self._engine.archive.fetch_snapshot(snapshot_id)).info

    def list_manifest_files(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """The manifest files that a snapshot names."""
        return run_blocking(self.list_manifest_files_async(snapshot_id))

    async def list_manifest_files_async(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """`list_manifest_files`, awaited."""
        return list((await self._engine.archive.fetch_snapshot(snapshot_id)).manifests.values())

    def diff(
        self,
        *,
        from_branch: str | None = None,
        from_tag: str | None = None,
        from_snapshot_id: str | None = None,
        to_branch: str | None = None,
        to_tag: str | None = None,
        to_snapshot_id: str | None = None,
    ) -> Diff:
        """What changed between two points of one history, down to chunk coordinates."""
        return run_blocking(
            self.diff_async(
                from_branch=from_branch, from_tag=from_tag, from_snapshot_id=from_snapshot_id,
                to_branch=to_branch, to_tag=to_tag, to_snapshot_id=to_snapshot_id,
            )
        )  # fmt: skip

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
        """`diff`, awaited."""
        old = await resolve(self._engine, RefChoice(from_branch, from_tag, from_snapshot_id))
        new = await resolve(self._engine, RefChoice(to_branch, to_tag, to_snapshot_id))
        return await diff_between(self._engine, old, new)
