"""The class `Repository`: create, open and configure repositories, and open sessions."""

from __future__ import annotations

import datetime as dt
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from icefloe.blocking import blocking, blocking_classmethod, blocking_staticmethod, run_blocking
from icefloe.display.card import Card, CardMixin, Fact, Styled, first_line
from icefloe.errors import (
    IcefloeError,
    InvalidInputError,
    RefNotFoundError,
    RepositoryNotFoundError,
    SnapshotNotFoundError,
    UnsupportedError,
)
from icefloe.formats.config_document import encode_config
from icefloe.ids import ObjectId, text_length
from icefloe.model.capabilities import SpecVersion
from icefloe.model.config import RepositoryConfig
from icefloe.model.status import Damage
from icefloe.repository.administration import AdministrationMixin, ObservationMixin
from icefloe.repository.history import (
    HistoryMixin,
    InspectionMixin,
    RefsMixin,
    describe_content,
    fetch_refs,
    newest_commits,
)
from icefloe.repository.maintenance import MaintenanceMixin
from icefloe.repository.merging import MergingMixin
from icefloe.session import open_repository as opening
from icefloe.session.ancestry import RefChoice, resolve, resolve_as_of
from icefloe.session.open_repository import RepositoryContext, register_writer
from icefloe.session.rebase import ConflictSolver
from icefloe.session.session import Session, SessionMode
from icefloe.storage.build import resolve_storage
from icefloe.storage.contract import Storage, StorageLike

if TYPE_CHECKING:
    from icefloe.store import IcechunkStore

Authorization = Mapping[str, Any] | None


class Repository(
    RefsMixin,
    HistoryMixin,
    MaintenanceMixin,
    MergingMixin,
    InspectionMixin,
    ObservationMixin,
    AdministrationMixin,
    CardMixin,
):
    """A versioned store of Zarr hierarchies.

    Every method that uses storage has two forms: `name` waits for the result, `name_async` is awaited.

    Parameters
    ----------
    context
        The storage, ledger, format and caches of an open repository. Use `create` or `open` instead of the constructor.
    default_commit_metadata
        Metadata that is added to every commit of this object.

    Examples
    --------
    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with repo.transaction("main", message="first array") as store:
    ...     _ = zarr.create_array(store, name="t", shape=3, dtype="f4")
    >>> [info.message for info in repo.ancestry(branch="main")]
    ['first array', 'Repository initialized']
    """

    _session_class: type[Session] = Session

    def __init__(self, context: RepositoryContext, default_commit_metadata: Mapping[str, Any] | None = None) -> None:
        self._context = context
        self._default_metadata = dict(default_commit_metadata or {})

    # -- create and open ------------------------------------------------------------------------------------------

    @classmethod
    async def create_async(
        cls,
        storage: StorageLike,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization = None,
        spec_version: SpecVersion | str | int | None = None,
        check_clean_root: bool = True,
    ) -> Repository:
        """Create a repository.

        Parameters
        ----------
        storage
            Where to create it: a storage, a URL or a path.
        config
            Configuration. It is saved in the repository.
        authorize_virtual_chunk_access
            Credentials for each virtual chunk container, by URL prefix. Only these containers are read.
        spec_version
            Generation of the on-disk format: "repository" (default), "dataset", "store", "icechunk1" or "icechunk2".
        check_clean_root
            Refuse a storage that holds other objects.

        Returns
        -------
        Repository
            The new repository, with a branch `main` and one empty snapshot.

        Raises
        ------
        AlreadyExistsError
            There is a repository in this storage, or there are other objects and `check_clean_root` is True.
        InvalidInputError
            The generation or the configuration is not valid.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
        >>> repo.list_branches()
        {'main'}
        """
        place = resolve_storage(storage)
        version = opening.parse_spec_version(spec_version)
        context = await opening.create_context(
            place, version, config, authorize_virtual_chunk_access or {}, check_clean_root=check_clean_root
        )
        return cls(context)

    create = blocking_classmethod(create_async)

    @classmethod
    async def open_async(
        cls,
        storage: StorageLike,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization = None,
    ) -> Repository:
        """Open an existing repository. Its generation is detected.

        Parameters
        ----------
        storage
            Where the repository is: a storage, a URL or a path.
        config
            Settings that override the configuration saved in the repository, for this object only.
        authorize_virtual_chunk_access
            Credentials for each virtual chunk container, by URL prefix. Only these containers are read.

        Returns
        -------
        Repository
            The repository.

        Raises
        ------
        RepositoryNotFoundError
            There is no repository in this storage.
        UnknownFormatError
            The repository was written by a newer, unknown version of the format.

        Examples
        --------
        >>> import icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> _ = icefloe.Repository.create(storage)
        >>> icefloe.Repository.open(storage).spec_version.value
        'repository'
        """
        place = resolve_storage(storage)
        return cls(await opening.open_context(place, config, authorize_virtual_chunk_access or {}))

    open = blocking_classmethod(open_async)

    @classmethod
    async def open_or_create_async(
        cls,
        storage: StorageLike,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization = None,
        create_version: SpecVersion | str | int | None = None,
        check_clean_root: bool = True,
    ) -> Repository:
        """Open the repository in a storage. Create one if there is none.

        Parameters
        ----------
        storage
            A storage, a URL or a path.
        config
            Configuration, as in `open` or `create`.
        authorize_virtual_chunk_access
            Credentials for each virtual chunk container, by URL prefix. Only these containers are read.
        create_version
            Generation of a new repository. An existing repository keeps its generation.
        check_clean_root
            Refuse to create a repository in a storage that holds other objects.

        Returns
        -------
        Repository
            The repository.

        Raises
        ------
        AlreadyExistsError
            There is no repository, but there are other objects, and `check_clean_root` is True.
        InvalidInputError
            The generation or the configuration is not valid.

        Examples
        --------
        >>> import icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> icefloe.Repository.open_or_create(storage) == icefloe.Repository.open_or_create(storage)
        True
        """
        place = resolve_storage(storage)
        try:
            return await cls.open_async(place, config, authorize_virtual_chunk_access)
        except RepositoryNotFoundError:
            pass
        version = opening.parse_spec_version(create_version)
        context = await opening.create_or_open_context(
            place, version, config, authorize_virtual_chunk_access or {}, check_clean_root=check_clean_root
        )
        return cls(context)

    open_or_create = blocking_classmethod(open_or_create_async)

    @staticmethod
    async def recover_async(
        storage: StorageLike, tips: Mapping[str, ObjectId] | None = None, *, dry_run: bool = False
    ) -> tuple[Damage, ...]:
        """Repair the files that name the branches, for a repository that cannot be opened.

        Each branch is set to the newest snapshot that can be read. Nothing is deleted.

        Parameters
        ----------
        storage
            Where the repository is.
        tips
            Snapshot id by branch, for branches whose snapshot cannot be found in the files.
        dry_run
            Only report the damage.

        Returns
        -------
        tuple of Damage
            What was damaged. Damage with `repairable` set was repaired. Other damage says what to do.

        Examples
        --------
        >>> import icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> repo = icefloe.Repository.create(storage)
        >>> icefloe.Repository.recover(storage)
        ()
        """
        from icefloe.ledger.recover import recover  # noqa: PLC0415 - it loads every generation

        return (await recover(resolve_storage(storage), tips=tips, apply=not dry_run)).damages

    recover = blocking_staticmethod(recover_async)

    @staticmethod
    async def exists_async(storage: StorageLike, storage_settings: Any = None) -> bool:
        """Return whether a storage holds a repository.

        Parameters
        ----------
        storage
            A storage, a URL or a path.
        storage_settings
            Ignored. Accepted for compatibility with icechunk.

        Returns
        -------
        bool
            True if there is a repository.

        Raises
        ------
        StorageError
            The storage cannot be read.

        Examples
        --------
        >>> import icefloe
        >>> icefloe.Repository.exists(icefloe.in_memory_storage())
        False
        """
        return await opening.find_spec_version(resolve_storage(storage)) is not None

    exists = blocking_staticmethod(exists_async)

    @staticmethod
    async def fetch_spec_version_async(storage: StorageLike, storage_settings: Any = None) -> SpecVersion | None:
        """Return the generation of the repository in a storage.

        Parameters
        ----------
        storage
            A storage, a URL or a path.
        storage_settings
            Ignored. Accepted for compatibility with icechunk.

        Returns
        -------
        SpecVersion or None
            The generation. None if there is no repository.

        Raises
        ------
        StorageError
            The storage cannot be read.

        Examples
        --------
        >>> import icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> _ = icefloe.Repository.create(storage)
        >>> icefloe.Repository.fetch_spec_version(storage)
        <SpecVersion.REPOSITORY: 'repository'>
        """
        return await opening.find_spec_version(resolve_storage(storage))

    fetch_spec_version = blocking_staticmethod(fetch_spec_version_async)

    @staticmethod
    async def fetch_config_async(storage: StorageLike) -> RepositoryConfig | None:
        """Return the configuration that is saved in a repository.

        Parameters
        ----------
        storage
            A storage, a URL or a path.

        Returns
        -------
        RepositoryConfig or None
            The saved configuration. None if there is none, or if there is no repository.

        Raises
        ------
        StorageError
            The storage cannot be read.

        Examples
        --------
        >>> import icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> _ = icefloe.Repository.create(storage, icefloe.RepositoryConfig(inline_chunk_threshold_bytes=64))
        >>> icefloe.Repository.fetch_config(storage).inline_chunk_threshold_bytes
        64
        """
        return await opening.fetch_stored_config(resolve_storage(storage))

    fetch_config = blocking_staticmethod(fetch_config_async)

    async def save_config_async(self) -> None:
        """Save the current configuration in the repository. Credentials are never saved.

        Raises
        ------
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe
        >>> storage = icefloe.in_memory_storage()
        >>> repo = icefloe.Repository.create(storage)
        >>> repo.reopen(icefloe.RepositoryConfig(inline_chunk_threshold_bytes=64)).save_config()
        >>> icefloe.Repository.open(storage).config.inline_chunk_threshold_bytes
        64
        """
        await opening.save_config(self._context)

    save_config = blocking(save_config_async)

    async def reopen_async(
        self, config: RepositoryConfig | None = None, authorize_virtual_chunk_access: Authorization = None
    ) -> Repository:
        """Return the same repository with other settings or credentials.

        Parameters
        ----------
        config
            Settings that override the current configuration.
        authorize_virtual_chunk_access
            Credentials for each virtual chunk container, by URL prefix. None keeps the current ones.

        Returns
        -------
        Repository
            A new object. This one is not changed.

        Raises
        ------
        InvalidInputError
            The configuration is not valid.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.reopen(icefloe.RepositoryConfig(inline_chunk_threshold_bytes=64)).config.inline_chunk_threshold_bytes
        64
        """
        context = opening.reconfigure(self._context, config, authorize_virtual_chunk_access)
        return type(self)(context, self._default_metadata)

    reopen = blocking(reopen_async)

    @property
    def context(self) -> RepositoryContext:
        """The storage, ledger, format and caches of this repository, for other packages of the library."""
        return self._context

    @property
    def engine(self) -> RepositoryContext:
        """The former name of `context`."""
        return self._context

    @property
    def config(self) -> RepositoryConfig:
        """The configuration of this object. Use `reopen` to change it."""
        return self._context.config

    @property
    def storage(self) -> Storage:
        """The storage that holds the repository."""
        return self._context.storage

    @property
    def spec_version(self) -> SpecVersion:
        """The generation of the on-disk format."""
        return self._context.format.spec_version

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        """The URL prefixes of the virtual chunk containers that may be read."""
        return set(self._context.authorized)

    def set_default_commit_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Set metadata that is added to every later commit of this object.

        Parameters
        ----------
        metadata
            Properties of the commits. They replace the earlier default metadata.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.set_default_commit_metadata({"author": "me"})
        >>> repo.default_commit_metadata()
        {'author': 'me'}
        """
        self._default_metadata = dict(metadata)

    def default_commit_metadata(self) -> dict[str, Any]:
        """Return the metadata that is added to every commit of this object.

        Returns
        -------
        dict
            A copy of the metadata.

        Examples
        --------
        >>> import icefloe
        >>> icefloe.Repository.create(icefloe.in_memory_storage()).default_commit_metadata()
        {}
        """
        return dict(self._default_metadata)

    def view(self, *, host: str = "127.0.0.1", port: int = 0, origins: Sequence[str] = ()) -> Any:
        """Show the repository in the browser. In a notebook, the result shows the viewer in a frame.

        The viewer is a web page that a thread of this process serves. It reads the repository only.

        Parameters
        ----------
        host
            Address to listen on. With another address than a loopback one, the URL contains a token.
        port
            Port. 0 chooses a free one.
        origins
            Origins of other pages that may read the JSON API and Zarr over HTTP.

        Returns
        -------
        ViewServer
            The running viewer. `url` is its address, `stop()` ends it, `open_browser()` opens it.

        Raises
        ------
        UnsupportedError
            The packages of the extra `view` are not installed.
        InvalidInputError
            The viewer cannot listen on this address and port.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.view() as viewer:
        ...     viewer.url.startswith("http://127.0.0.1:")
        True
        """
        try:
            server = importlib.import_module("icefloe.view.server")  # a higher layer, and its packages are an extra
        except ImportError as error:
            raise UnsupportedError(
                f"the viewer needs more packages. Install them with: pip install 'icefloe[view]' ({error})"
            ) from error
        return server.ViewServer(self, host, port, origins=origins).start()

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
        try:
            found, listings = run_blocking(describe_content(self._context))
        except (IcefloeError, OSError) as error:
            # A card is shown in any state, also without a network.
            found, listings = [("content", Styled(first_line(f"cannot be read: {error}"), "removed"))], []
        facts += [*found, ("look at it", Styled("repo.view()", "code"))]
        return Card("Repository", Styled(self.storage.url, "code"), facts, listings)

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
        """Open a session that reads one snapshot. It does not see later commits.

        Without arguments, the session reads the newest snapshot of `main`.

        Parameters
        ----------
        branch
            Read the newest snapshot of this branch.
        tag
            Read the snapshot of this tag.
        snapshot_id
            Read this snapshot.
        as_of
            Read the newest snapshot of the branch at this time. The time needs a time zone.

        Returns
        -------
        Session
            A read-only session.

        Raises
        ------
        RefNotFoundError
            There is no such branch or tag.
        SnapshotNotFoundError
            There is no such snapshot, or the branch had none at this time.
        InvalidInputError
            More than one of `branch`, `tag` and `snapshot_id` is given, or `as_of` is given without a branch.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.readonly_session("main")
        >>> session.snapshot_id == repo.lookup_branch("main")
        True
        """
        choice = RefChoice(branch, tag, snapshot_id).or_main()
        if as_of is not None and choice.branch is None:
            raise InvalidInputError("as_of needs a branch. A tag or a snapshot id selects one snapshot already")
        if choice.branch is not None:
            opening.prefetch_tip(self._context, choice.branch)
        if as_of is None:
            found = await resolve(self._context, choice)
        else:
            found = await resolve_as_of(self._context, choice, as_of)
        base = await self._context.metadata_files.fetch_snapshot_file(found)
        opening.preload(self._context, base)
        return self._session_class(self._context, base)

    readonly_session = blocking(readonly_session_async)

    async def writable_session_async(self, branch: str) -> Session:
        """Open a session whose changes can be committed to a branch.

        Parameters
        ----------
        branch
            Name of the branch.

        Returns
        -------
        Session
            A writable session, based on the newest snapshot of the branch.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> _ = zarr.create_group(session.store)
        >>> _ = session.commit("a group")
        """
        return await self._branch_session(branch, SessionMode.WRITABLE)

    writable_session = blocking(writable_session_async)

    async def rearrange_session_async(self, branch: str) -> Session:
        """Open a writable session that can only move nodes and chunks.

        Parameters
        ----------
        branch
            Name of the branch.

        Returns
        -------
        Session
            A session that accepts `move`, `shift_array` and `reindex_array`.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        ReadOnlyError
            The repository is read-only.
        SessionStateError
            The feature flag `move_node` is off.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.transaction("main", message="array") as store:
        ...     _ = zarr.group(store).create_array("raw", shape=3, dtype="f4")
        >>> session = repo.rearrange_session("main")
        >>> session.move("/raw", "/clean")
        >>> _ = session.commit("renamed")
        """
        return await self._branch_session(branch, SessionMode.REARRANGE)

    rearrange_session = blocking(rearrange_session_async)

    async def _branch_session(self, branch: str, mode: SessionMode) -> Session:
        await opening.check_writable(self._context)
        if mode is SessionMode.REARRANGE:
            await self._context.ledger.check_feature("move_node")
        opening.prefetch_tip(self._context, branch)
        tip, base = await self._context.fetch_branch(branch)
        opening.preload(self._context, base)
        session = self._session_class(
            self._context, base, mode=mode, branch=branch, tip=tip, default_metadata=self._default_metadata
        )
        register_writer(session, self._context.storage)
        return session

    def to_xarray(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: dt.datetime | None = None,
        group: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Open a group as an xarray dataset. Without arguments, it is the root group of the branch `main`.

        Parameters
        ----------
        branch
            Read the newest snapshot of this branch.
        tag
            Read the snapshot of this tag.
        snapshot_id
            Read this snapshot.
        as_of
            Read the newest snapshot of the branch at this time.
        group
            Path of the group.
        **kwargs
            Options of `xarray.open_zarr`, such as `chunks`.

        Returns
        -------
        xarray.Dataset
            The dataset. Its variables are read when they are needed.

        Raises
        ------
        RefNotFoundError
            There is no such branch or tag.
        SnapshotNotFoundError
            There is no such snapshot.

        Examples
        --------
        >>> import icefloe, numpy as np, xarray as xr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.transaction("main", message="first") as store:
        ...     _ = xr.Dataset({"t": ("x", np.arange(3.0))}).to_zarr(store, consolidated=False)
        >>> repo.to_xarray().t.values.tolist()
        [0.0, 1.0, 2.0]
        """
        import xarray  # noqa: PLC0415 - an optional library

        if branch is None and tag is None and snapshot_id is None:
            branch = "main"
        session = self.readonly_session(branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
        options = {"chunks": None, **kwargs, "consolidated": False, "zarr_format": 3}
        return xarray.open_zarr(session.store, group=group, **options)

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
        """Write to a branch in a `with` block and commit at its end.

        If the block raises, nothing is committed.

        Parameters
        ----------
        branch
            Name of the branch.
        message
            Message of the commit.
        metadata
            Properties of the commit.
        rebase_with
            Conflict solver, used if the branch has new commits at the end of the block.
        rebase_tries
            Largest number of rebases.

        Yields
        ------
        IcechunkStore
            The Zarr store to write to.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        ConflictError
            The branch has new commits and `rebase_with` is None.
        RebaseFailedError
            The solver did not resolve all conflicts.
        SessionStateError
            The block made no changes.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.transaction("main", message="a group") as store:
        ...     _ = zarr.create_group(store)
        """
        session = self.writable_session(branch)
        yield session.store
        session.commit(message, metadata, rebase_with=rebase_with, rebase_tries=rebase_tries)


_EARLIER = re.compile(r"(?P<branch>.+)@\{(?P<number>\d+)\}")


def _earlier_position(repository: Repository, branch: str, number: int) -> str:
    """Return the snapshot at which a branch was before its last moves."""
    positions = repository.reflog(branch, limit=number + 1)
    if number >= len(positions):
        raise RefNotFoundError(
            f"branch {branch!r} had {len(positions)} positions. `icefloe reflog` lists them", name=branch
        )
    return positions[number].snapshot_id


def resolve_revision(repository: Repository, text: str) -> str:
    """Return the snapshot of a revision: a branch, a tag, the start of a snapshot id, or where a branch was.

    `main@{1}` is where `main` was before it was moved the last time.
    """
    if earlier := _EARLIER.fullmatch(text):
        return _earlier_position(repository, earlier["branch"], int(earlier["number"]))
    if text in repository.list_branches():
        return repository.lookup_branch(text)
    if text in repository.list_tags():
        return repository.lookup_tag(text)
    try:
        return find_snapshot(repository, text)
    except SnapshotNotFoundError as error:
        raise RefNotFoundError(
            f"{text!r} is not a branch, tag or snapshot of {repository.storage.url}. `icefloe log --graph` shows all "
            "of them"
        ) from error


_MOST_CANDIDATES = 5


def find_snapshot(repository: Repository, text: str) -> str:
    """Return the only snapshot id that starts with a text, among the snapshots that branches and tags reach."""
    capabilities = repository.context.capabilities
    wanted = text.upper()
    if len(wanted) == text_length(capabilities.object_id_bytes):
        return repository.lookup_snapshot(wanted).id
    refs = run_blocking(fetch_refs(repository.context))
    starts = list(dict.fromkeys(ref.snapshot_id for ref in refs))
    known = run_blocking(newest_commits(repository.context, starts, None))
    found = [info for info in known if info.id.startswith(wanted)] if wanted else []
    if not found:
        raise SnapshotNotFoundError(
            f"no snapshot id starts with {text!r}. `icefloe log` lists the snapshots of a branch", snapshot_id=text
        )
    if len(found) > 1:
        listed = ", ".join(info.id for info in found[:_MOST_CANDIDATES])
        raise InvalidInputError(f"{len(found)} snapshot ids start with {text!r} ({listed}, ...). Give more characters")
    return found[0].id
