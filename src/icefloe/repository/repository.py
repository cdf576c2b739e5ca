"""A repository as its user sees it: created, opened, configured, and asked for sessions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icefloe.blocking import blocking, blocking_classmethod, blocking_staticmethod
from icefloe.display.card import Card, Described, Fact, Styled
from icefloe.errors import InvalidInputError, RepositoryNotFoundError
from icefloe.formats.config_document import encode_config
from icefloe.ids import ObjectId
from icefloe.ledger.icechunk2 import check_feature
from icefloe.maintenance.recover import recover
from icefloe.maintenance.verify_checks import Damage
from icefloe.model.capabilities import SpecVersion
from icefloe.model.config import RepositoryConfig
from icefloe.repository.administration import AdministrationMixin
from icefloe.repository.history import HistoryMixin, InspectionMixin, RefsMixin
from icefloe.repository.maintenance import MaintenanceMixin, MergingMixin
from icefloe.repository.metrics import ObservationMixin
from icefloe.session import open_repository as opening
from icefloe.session.history import RefChoice, fetch_branch, resolve, snapshot_as_of
from icefloe.session.open_repository import RepositoryParts, register_writer
from icefloe.session.rebase import ConflictSolver
from icefloe.session.session import Session, SessionMode
from icefloe.storage.build import resolve_storage
from icefloe.storage.contract import Storage
from icefloe.store import IcechunkStore

Place = Storage | str | Path
Authorization = Mapping[str, Any] | None


class Repository(
    RefsMixin,
    HistoryMixin,
    MaintenanceMixin,
    MergingMixin,
    InspectionMixin,
    ObservationMixin,
    AdministrationMixin,
    Described,
):
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

    def __init__(self, engine: RepositoryParts, default_commit_metadata: Mapping[str, Any] | None = None) -> None:
        self._engine = engine
        self._default_metadata = dict(default_commit_metadata or {})

    # -- create and open ------------------------------------------------------------------------------------------

    @classmethod
    async def create_async(
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
        place = resolve_storage(storage)
        version = opening.parse_spec_version(spec_version)
        engine = await opening.create_engine(
            place, version, config, authorize_virtual_chunk_access or {}, check_clean_root=check_clean_root
        )
        return cls(engine)

    create = blocking_classmethod(create_async)

    @classmethod
    async def open_async(
        cls,
        storage: Place,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization = None,
    ) -> Repository:
        """Open a repository of any generation; `config` is laid over the one kept in it."""
        place = resolve_storage(storage)
        return cls(await opening.open_engine(place, config, authorize_virtual_chunk_access or {}))

    open = blocking_classmethod(open_async)

    @classmethod
    async def open_or_create_async(
        cls,
        storage: Place,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization = None,
        create_version: SpecVersion | str | int | None = None,
        check_clean_root: bool = True,
    ) -> Repository:
        """Open the repository there, or make one."""
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

    open_or_create = blocking_classmethod(open_or_create_async)

    @staticmethod
    async def recover_async(
        storage: Place, tips: Mapping[str, ObjectId] | None = None, *, dry_run: bool = False
    ) -> tuple[Damage, ...]:
        """Make the files readable again that say where branches stand; for a repository that does not open.

        Branches come back to the newest state that can be read. Nothing is removed.

        Parameters
        ----------
        storage
            Where the repository is.
        tips
            Where branches are to stand for which the files do not tell.
        dry_run
            Only say what is damaged.

        Returns
        -------
        tuple of Damage
            What was damaged. Those that are `repairable` were repaired. The others say what to do.

        Examples
        --------
        >>> import icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> repo = icefloe.Repository.create(storage)
        >>> icefloe.Repository.recover(storage)
        ()
        """
        return (await recover(resolve_storage(storage), tips=tips, apply=not dry_run)).damages

    recover = blocking_staticmethod(recover_async)

    @staticmethod
    async def exists_async(storage: Place, storage_settings: Any = None) -> bool:
        """Whether there is a repository."""
        return await opening.find_spec_version(resolve_storage(storage)) is not None

    exists = blocking_staticmethod(exists_async)

    @staticmethod
    async def fetch_spec_version_async(storage: Place, storage_settings: Any = None) -> SpecVersion | None:
        """The generation of the repository there, or None when there is none."""
        return await opening.find_spec_version(resolve_storage(storage))

    fetch_spec_version = blocking_staticmethod(fetch_spec_version_async)

    @staticmethod
    async def fetch_config_async(storage: Place) -> RepositoryConfig | None:
        """The configuration kept in a repository, or None."""
        return await opening.fetch_stored_config(resolve_storage(storage))

    fetch_config = blocking_staticmethod(fetch_config_async)

    async def save_config_async(self) -> None:
        """Keep the present configuration in the repository; credentials are never part of it."""
        await opening.save_config(self._engine)

    save_config = blocking(save_config_async)

    async def reopen_async(
        self, config: RepositoryConfig | None = None, authorize_virtual_chunk_access: Authorization = None
    ) -> Repository:
        """The same repository with another configuration laid over, or other authorisations."""
        engine = opening.reconfigure(self._engine, config, authorize_virtual_chunk_access)
        return Repository(engine, self._default_metadata)

    reopen = blocking(reopen_async)

    @property
    def engine(self) -> RepositoryParts:
        """The parts behind this repository, for other packages of the library."""
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

    def _card(self) -> Card:
        config = self.config
        prefixes = sorted(config.virtual_chunk_containers or {})
        allowed = self.authorized_virtual_container_prefixes
        facts: list[Fact] = [("generation", self.spec_version.value)]
        facts += [("container", f"{prefix} ({'authorised' if prefix in allowed else 'locked'})") for prefix in prefixes]
        settings = sorted(encode_config(config))
        facts.append(("configured", ", ".join(settings) if settings else "nothing: defaults"))
        return Card("Repository", Styled(self.storage.url, "code"), facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Repository) and other.storage == self.storage and other.config == self.config

    __hash__ = object.__hash__

    # -- sessions -------------------------------------------------------------------------------------------------

    async def readonly_session_async(
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
        choice = RefChoice(branch, tag, snapshot_id).or_main()
        if as_of is not None and choice.branch is None:
            raise InvalidInputError("as_of goes with a branch: a tag or snapshot id is a point in time already")
        if choice.branch is not None:
            opening.expect_tip(self._engine, choice.branch)
        found = await resolve(self._engine, choice)
        if as_of is not None:
            found = await snapshot_as_of(self._engine, found, as_of)
        base = await self._engine.metadata_files.fetch_snapshot(found)
        opening.preload(self._engine, base)
        return Session(self._engine, base)

    readonly_session = blocking(readonly_session_async)

    async def writable_session_async(self, branch: str) -> Session:
        """A session whose changes can be committed to a branch."""
        return await self._branch_session(branch, SessionMode.WRITABLE)

    writable_session = blocking(writable_session_async)

    async def rearrange_session_async(self, branch: str) -> Session:
        """A writable session that only moves nodes and chunks."""
        return await self._branch_session(branch, SessionMode.REARRANGE)

    rearrange_session = blocking(rearrange_session_async)

    async def _branch_session(self, branch: str, mode: SessionMode) -> Session:
        await opening.check_writable(self._engine)
        if mode is SessionMode.REARRANGE:
            await check_feature(self._engine.ledger, "move_node")
        opening.expect_tip(self._engine, branch)
        tip, base = await fetch_branch(self._engine, branch)
        opening.preload(self._engine, base)
        session = Session(
            self._engine, base, mode=mode, branch=branch, tip=tip, default_metadata=self._default_metadata
        )
        register_writer(session, self._engine.storage)
        return session

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
