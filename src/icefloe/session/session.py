"""The classes `Session` and `ForkSession`: a view of one snapshot, and the changes made on top of it."""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from icefloe.blocking import awaitable, blocking, run_blocking
from icefloe.display.card import Card, CardMixin, Fact, Styled, first_line, format_count, format_time
from icefloe.errors import FinishedSessionError, InvalidInputError, ReadOnlyError, SessionStateError
from icefloe.ids import ObjectId
from icefloe.ledger.ledger import Tip
from icefloe.model.config import RepositoryConfig
from icefloe.model.snapshot import ArrayNode, Diff, Snapshot
from icefloe.session import commit as committing
from icefloe.session.change_set import diff_of_changes
from icefloe.session.commit_files import CommitRequest
from icefloe.session.fork import Fork, WrittenParts, link_parts, merge_fork, write_parts
from icefloe.session.keyspace import KeySpace
from icefloe.session.open_repository import RepositoryContext, register_writer
from icefloe.session.rebase import ConflictSolver, VersionSelection
from icefloe.session.session_chunks import ChunkMethods, ChunkType
from icefloe.session.session_state import SessionState

if TYPE_CHECKING:
    from icefloe.store import IcechunkStore

# Zarr takes longer to import than this package, and not all programs need it, so the store is loaded when it is first
# used. A program that has imported zarr will use the store: it is loaded now, and the first read does not wait for it.
if hasattr(sys.modules.get("zarr"), "open_array"):
    import icefloe.codec_pipeline  # noqa: F401


class SessionMode(enum.Enum):
    """What a session may do."""

    READONLY = 0
    WRITABLE = 1
    REARRANGE = 2

    readonly = READONLY
    writable = WRITABLE
    rearrange = REARRANGE


class Session(ChunkMethods, CardMixin):
    """A view of one snapshot. A writable session also holds changes until they are committed.

    Sessions are created with `Repository.readonly_session`, `Repository.writable_session` and
    `Repository.rearrange_session`. A read-only session can be pickled. A writable session cannot: use `fork` to send it
    to workers.

    Threads may share a session. Methods that read (`status`, `chunk_coordinates`, `fork`, listings) see the session as
    it is at one moment. Methods that wait for storage (`commit`, `amend`, `flush`, `rebase`, `link_parts`,
    `shift_array`, `reindex_array`) include the changes made before they started. A change made while one of them runs
    raises SessionStateError, or ReadOnlyError after a commit, and is part of neither the commit nor the session. If one
    of these methods fails, the session stays writable and keeps all its changes.

    Parameters
    ----------
    context
        The storage, ledger, format and caches of the repository. Use the methods of
        `Repository` instead of the constructor.
    base
        The snapshot that the session is based on.
    mode
        What the session may do.
    branch
        The branch that a commit updates.
    tip
        The state of the branch when the session was opened.
    default_metadata
        Metadata that is added to the commit.

    Examples
    --------
    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repo.writable_session("main")
    >>> _ = zarr.create_array(session.store, name="t", shape=3, dtype="f4")
    >>> snapshot_id = session.commit("first array")
    >>> repo.lookup_branch("main") == snapshot_id
    True
    """

    def __init__(
        self,
        context: RepositoryContext,
        base: Snapshot,
        *,
        mode: SessionMode = SessionMode.READONLY,
        branch: str | None = None,
        tip: Tip | None = None,
        default_metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._state = SessionState(context, base, tip=tip)
        self._state.only_moves = mode is SessionMode.REARRANGE
        self._mode = mode
        self._branch = branch
        self._default_metadata = dict(default_metadata or {})
        self.keyspace = KeySpace(self._state)
        self._has_forked = False

    _records_rebases = False
    """Whether a commit tells in its metadata how often it was rebased, as commits of the official package do."""

    @property
    def _fork_class(self) -> type[ForkSession]:
        return ForkSession

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        """The nodes and chunks of this session, for other packages of the library."""
        return self._state

    @property
    def read_only(self) -> bool:
        """Whether the session refuses changes."""
        return self._mode is SessionMode.READONLY

    @property
    def mode(self) -> SessionMode:
        """What the session may do: read, write, or only move nodes and chunks."""
        return self._mode

    @property
    def snapshot_id(self) -> ObjectId:
        """The id of the snapshot that the session is based on."""
        return self._state.base.id

    @property
    def branch(self) -> str | None:
        """The branch that a commit updates. None for a read-only session."""
        return self._branch

    @property
    def config(self) -> RepositoryConfig:
        """The configuration of the repository."""
        return self._state.context.config

    @property
    def store(self) -> IcechunkStore:
        """The session as a Zarr store. By default, zarr reads and writes it with Icefloe's codec pipeline."""
        from icefloe.codec_pipeline import prefer_fast_pipeline  # noqa: PLC0415

        prefer_fast_pipeline()
        return self._make_store()

    def _make_store(self) -> IcechunkStore:
        from icefloe.store import IcechunkStore  # noqa: PLC0415

        return IcechunkStore(self)

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether the session has changes that are not committed."""
        return not self._state.is_clean()

    @property
    def is_running(self) -> bool:
        """Whether storage may hold chunks that become reachable only when this session commits."""
        return not self.read_only and (self._has_forked or self.has_uncommitted_changes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Session):
            return NotImplemented
        if self is other:
            return True
        both_read = self.read_only and other.read_only
        same_place = self._state.context.storage == other._state.context.storage
        return both_read and same_place and self.snapshot_id == other.snapshot_id

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        where = f"branch={self._branch!r}, " if self._branch else ""
        return f"<icefloe.{type(self).__name__} {self._mode.name.lower()} {where}snapshot={self.snapshot_id}>"

    def _card(self) -> Card:
        base, nodes = self._state.base, list(self._state.tree.nodes())
        arrays = sum(isinstance(node, ArrayNode) for node in nodes)
        content = f"{format_count(len(nodes) - arrays, 'group')}, {format_count(arrays, 'array')}"
        facts: list[Fact] = [("branch", Styled(self._branch, "branch"))] if self._branch else []
        facts += [
            ("snapshot", Styled(base.id, "code")),
            ("message", first_line(base.message)),
            ("written", format_time(base.written_at)),
            ("content", content),
            ("repository", Styled(self._state.context.storage.url, "code")),
        ]
        if not self.read_only:
            facts.append(("changes", Styled("uncommitted", "changed") if self.has_uncommitted_changes else "none"))
        return Card(type(self).__name__, self._mode.name.lower(), facts)

    def __getstate__(self) -> dict[str, Any]:
        if not self.read_only:
            raise SessionStateError(
                "a writable session cannot be pickled. To write in workers, send them `session.fork()`, and merge the "
                "forks with `session.merge(...)`. To read in workers, send them repo.readonly_session(...)"
            )
        return {"context": self._state.context, "snapshot_id": self.snapshot_id}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        context: RepositoryContext = state["context"]
        base = run_blocking(context.metadata_files.fetch_snapshot_file(state["snapshot_id"]))
        self.__init__(context, base)  # type: ignore[misc]

    # -- changes --------------------------------------------------------------------------------------------------

    def status(self) -> Diff:
        """Return the changes that the session has not committed.

        Returns
        -------
        Diff
            Paths that were added, deleted, updated or moved, and the coordinates of changed chunks.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> _ = zarr.create_array(session.store, name="t", shape=3, dtype="f4")
        >>> sorted(session.status().new_arrays)
        ['/t']
        """
        view = self._state.view()
        return diff_of_changes(view.base, view.changes)

    def discard_changes(self) -> None:
        """Drop all uncommitted changes. The session stays writable.

        Raises
        ------
        ReadOnlyError
            The session is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> _ = zarr.create_group(session.store)
        >>> session.discard_changes()
        >>> session.has_uncommitted_changes
        False
        """
        self._check_writable()
        self._state.discard()

    def move(self, from_path: str, to_path: str) -> None:
        """Move an array or a group, with all nodes below it, to another path.

        No chunk and no manifest is rewritten.

        Parameters
        ----------
        from_path
            Current path of the node.
        to_path
            New path of the node. Its parent group must exist.

        Raises
        ------
        NodeNotFoundError
            There is no node at `from_path`, or no group above `to_path`.
        InvalidInputError
            There is a node at `to_path`.
        ReadOnlyError
            The session is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> _ = zarr.group(session.store).create_array("raw", shape=4, dtype="i4")
        >>> session.move("/raw", "/clean")
        >>> sorted(session.status().new_arrays)
        ['/clean']
        """
        self._check_writable()
        self._state.move(from_path, to_path)

    move_async = awaitable(move)

    # -- forks ----------------------------------------------------------------------------------------------------

    async def fork_async(self) -> ForkSession:
        """Create a session for a worker.

        A fork can be pickled and written to in another process. It sees the changes that this session has so far. The
        worker writes chunks to storage. Only references return, with `merge` or `link_parts`.

        Returns
        -------
        ForkSession
            The session for the worker.

        Raises
        ------
        ReadOnlyError
            The session does not accept new chunks.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> array = zarr.create_array(session.store, name="t", shape=4, chunks=2, dtype="i4")
        >>> forks = [session.fork(), session.fork()]
        >>> for number, fork in enumerate(forks):
        ...     zarr.open_array(fork.store, path="t")[2 * number : 2 * number + 2] = number + 1
        >>> session.merge(*forks)
        >>> array[:].tolist()
        [1, 1, 2, 2]
        """
        if self.read_only:
            raise FinishedSessionError(
                "cannot fork a read-only session. It can be pickled and sent to workers as it is. To write, open a "
                "session with repo.writable_session(branch)",
                "cannot-fork-read-only-session",
            )
        self._check_open(moves_only=False)
        self._has_forked = True
        view = await self._state.stored_view()
        return self._fork_class(Fork.of(view), default_metadata=self._default_metadata)

    fork = blocking(fork_async)

    async def merge_async(
        self, *forks: ForkSession, on_chunk_conflict: VersionSelection = VersionSelection.Fail
    ) -> None:
        """Add the changes of forks to this session. All forks are merged, or none.

        The references of each fork are held in memory. Use `link_parts` for very many chunks.

        Parameters
        ----------
        *forks
            Forks of this session, after the workers have written to them.
        on_chunk_conflict
            What to do if more than one fork wrote a chunk: raise an error (`Fail`), use the version of the earlier fork
            (`UseOurs`), or use the version of the later fork (`UseTheirs`).

        Raises
        ------
        InvalidInputError
            Two forks, or a fork and this session, made changes that exclude each other: both wrote one chunk or the
            metadata of one node, or one deleted or shrank what the other wrote.
        SessionStateError
            A fork is based on another snapshot.
        ReadOnlyError
            The session does not accept new chunks.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> array = zarr.create_array(session.store, name="t", shape=2, dtype="i4")
        >>> fork = session.fork()
        >>> zarr.open_array(fork.store, path="t")[:] = 7
        >>> session.merge(fork)
        >>> array[:].tolist()
        [7, 7]
        """
        self._check_writable(moves_only=False)
        for fork in forks:
            if not isinstance(fork, ForkSession):
                raise InvalidInputError(f"merge takes forks of this session, got {type(fork).__name__}")
        states = [await fork.stored_state() for fork in forks]
        with self._state.lock:
            self._state.check_open()
            work = self._state
            work.writer.seal_packs(work.changes)
            changes = work.changes
            for state in states:
                changes = merge_fork(work.base, changes, state, on_chunk_conflict)
            work.node_numbers.forget()
            work.rebase_to(work.base, changes, work.tip)
            for fork in forks:
                fork.note_merged()

    merge = blocking(merge_async)

    async def link_parts_async(self, written: Sequence[WrittenParts]) -> None:
        """Add the chunks that workers stored with `ForkSession.write_parts`.

        The references stay in storage. Memory use does not grow with the number of chunks.

        Parameters
        ----------
        written
            The values that `ForkSession.write_parts` returned.

        Raises
        ------
        InvalidInputError
            Two workers wrote the same chunk.
        SessionStateError
            A part is based on another snapshot.
        ReadOnlyError
            The session does not accept new chunks.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.transaction("main", message="array") as store:
        ...     _ = zarr.create_array(store, name="t", shape=2, dtype="i4")
        >>> session = repo.writable_session("main")
        >>> fork = session.fork()
        >>> zarr.open_array(fork.store, path="t")[:] = 7
        >>> session.link_parts([fork.write_parts("worker 1")])
        >>> zarr.open_array(session.store, path="t")[:].tolist()
        [7, 7]
        """
        self._check_writable(moves_only=False)
        with self._state.exclusive("link_parts"):
            await link_parts(self._state, written)

    link_parts = blocking(link_parts_async)

    # -- commits --------------------------------------------------------------------------------------------------

    async def commit_async(
        self,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        allow_empty: bool = False,
    ) -> ObjectId:
        """Commit the changes to the branch as one new snapshot.

        Other readers see all of the changes or none. Afterwards the session is read-only, at the new snapshot. Writes
        of other threads during the commit raise SessionStateError.

        Parameters
        ----------
        message
            Message of the commit.
        metadata
            Properties of the commit. They are added to the default commit metadata of the repository.
        rebase_with
            Conflict solver. If the branch has new commits, the changes are rebased with it and committed again.
        rebase_tries
            Largest number of rebases.
        allow_empty
            Also commit if there are no changes.

        Returns
        -------
        str
            Id of the new snapshot.

        Raises
        ------
        ConflictError
            The branch has new commits and `rebase_with` is None, or there were more than `rebase_tries` rebases.
        RebaseFailedError
            The solver did not resolve all conflicts. The error lists them.
        SessionStateError
            There are no changes and `allow_empty` is False, or the session is a fork.
        ReadOnlyError
            The session is read-only.
        OutcomeUnknownError
            The storage did not report whether the commit succeeded. Read the branch before you try again.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> _ = zarr.create_array(session.store, name="t", shape=3, dtype="f4")
        >>> snapshot_id = session.commit("first array", {"author": "me"})
        >>> repo.lookup_snapshot(snapshot_id).metadata["author"]
        'me'
        """
        self._check_open()
        with self._state.exclusive("commit"):
            branch, _ = self._commit_target(allow_empty=allow_empty)
            request = CommitRequest(
                message, self._metadata(metadata), rebase_with, rebase_tries, records_rebases=self._records_rebases
            )
            snapshot = await committing.commit(self._state, branch, request)
            return self._finish(snapshot)

    commit = blocking(commit_async)

    async def amend_async(
        self, message: str, *, metadata: Mapping[str, Any] | None = None, allow_empty: bool = False
    ) -> ObjectId:
        """Replace the newest commit of the branch by one that also holds the changes of this session.

        Parameters
        ----------
        message
            Message of the new commit.
        metadata
            Properties of the new commit.
        allow_empty
            Also commit if there are no changes.

        Returns
        -------
        str
            Id of the new snapshot.

        Raises
        ------
        ConflictError
            The branch has new commits.
        SessionStateError
            There are no changes and `allow_empty` is False, or the session is a fork.
        ReadOnlyError
            The session is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.transaction("main", message="a group") as store:
        ...     _ = zarr.create_group(store)
        >>> session = repo.writable_session("main")
        >>> _ = zarr.create_array(session.store, name="t", shape=3, dtype="f4")
        >>> _ = session.amend("a group and an array")
        >>> [info.message for info in repo.ancestry(branch="main")]
        ['a group and an array', 'Repository initialized']
        """
        self._check_open()
        with self._state.exclusive("amend"):
            branch, tip = self._commit_target(allow_empty=allow_empty)
            request = CommitRequest(message, self._metadata(metadata))
            snapshot, _ = await committing.amend(self._state, branch, tip, request)
            return self._finish(snapshot)

    amend = blocking(amend_async)

    async def flush_async(self, message: str, *, metadata: Mapping[str, Any] | None = None) -> ObjectId:
        """Save the changes as a snapshot that no branch points to.

        Parameters
        ----------
        message
            Message of the snapshot.
        metadata
            Properties of the snapshot.

        Returns
        -------
        str
            Id of the new snapshot.

        Raises
        ------
        SessionStateError
            There are no changes, or the session is a fork.
        ReadOnlyError
            The session is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> _ = zarr.create_group(session.store)
        >>> snapshot_id = session.flush("draft")
        >>> repo.lookup_snapshot(snapshot_id).message
        'draft'
        >>> repo.lookup_branch("main") == snapshot_id
        False
        """
        self._check_open()
        with self._state.exclusive("flush"):
            branch, _ = self._commit_target(allow_empty=False)
            request = CommitRequest(message, self._metadata(metadata))
            snapshot = await committing.write_detached(self._state, branch, request)
            return self._finish(snapshot)

    flush = blocking(flush_async)

    async def rebase_async(self, solver: ConflictSolver) -> None:
        """Move the changes of this session onto the newest commit of the branch.

        Parameters
        ----------
        solver
            Decides what happens to conflicts.

        Raises
        ------
        RebaseFailedError
            The solver did not resolve all conflicts. The error lists them.
        SessionStateError
            The session has no branch.
        ReadOnlyError
            The session is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.transaction("main", message="a group") as store:
        ...     _ = zarr.create_group(store)
        >>> session = repo.writable_session("main")
        >>> _ = zarr.create_array(session.store, name="a", shape=3, dtype="f4")
        >>> with repo.transaction("main", message="another writer") as store:
        ...     _ = zarr.create_array(store, name="b", shape=3, dtype="f4")
        >>> session.rebase(icefloe.ConflictDetector())
        >>> _ = session.commit("a")
        """
        self._check_open()
        branch = self._branch
        if branch is None:
            raise SessionStateError("this session has no branch to rebase to", "commit-not-allowed")
        with self._state.exclusive("rebase"):
            await self._state.store_chunks()
            await committing.rebase(self._state, branch, solver)

    rebase = blocking(rebase_async)

    def _commit_target(self, *, allow_empty: bool) -> tuple[str, Tip]:
        self._check_writable()
        tip = self._state.tip
        if self._branch is None or tip is None:
            raise SessionStateError("this session has no branch to commit to")
        if self._state.is_clean() and not allow_empty:
            raise SessionStateError(
                "cannot commit, no changes made to the session. To commit anyway, pass allow_empty=True",
                "no-changes-to-commit",
                no_changes=True,
            )
        return self._branch, tip

    def _metadata(self, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        return {**self._default_metadata, **(metadata or {})}

    def _finish(self, snapshot: Snapshot) -> ObjectId:
        with self._state.lock:
            self._state.close(snapshot)
            self._mode, self._branch = SessionMode.READONLY, None
        return snapshot.id

    def _check_open(self, *, moves_only: bool = True) -> None:
        if self.read_only:
            raise FinishedSessionError(
                "the session is read-only, or was already committed. Open a new one with repo.writable_session(branch)",
                "commit-not-allowed",
            )
        self._check_writable(moves_only=moves_only)

    def _check_writable(self, *, moves_only: bool = True) -> None:
        if self.read_only:
            raise ReadOnlyError("the session is read-only. Open a writable one with repo.writable_session(branch)")
        if self._mode is SessionMode.REARRANGE and not moves_only:
            raise SessionStateError(
                "a rearrange session can only move nodes and chunks. To write data, use repo.writable_session(branch)",
                "rearrange-session-only",
            )


class ForkSession(Session):
    """A session for a worker. It can be pickled and written to, and is merged into the session it was forked from.

    A fork cannot commit.

    Parameters
    ----------
    fork
        The base and the changes of the fork. Use `Session.fork` instead of the constructor.
    default_metadata
        Metadata that is added to the commit.

    Examples
    --------
    >>> import icefloe, pickle, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repo.writable_session("main")
    >>> _ = zarr.create_group(session.store)
    >>> fork = session.fork()
    >>> fork.read_only
    False
    """

    def __init__(self, fork: Fork, default_metadata: Mapping[str, Any] | None = None) -> None:
        super().__init__(fork.context, fork.base, mode=SessionMode.WRITABLE, default_metadata=default_metadata)
        self._state.begin(fork.changes, fork.inherited)
        self._since = fork.since
        self._merged_at: int | None = None
        register_writer(self, fork.context.storage, fork.since)

    @property
    def is_running(self) -> bool:
        """Whether storage may hold chunks that become reachable only when this fork is merged."""
        return self._merged_at != self._state.asked and super().is_running

    def note_merged(self) -> None:
        """Record that the session has merged everything that this fork has written so far.

        Examples
        --------
        >>> import icefloe
        >>> fork = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").fork()
        >>> fork.note_merged()
        >>> fork.is_running
        False
        """
        self._merged_at = self._state.asked

    async def stored_state(self) -> Fork:
        """Store all chunks of the fork and return its changes.

        Returns
        -------
        Fork
            The base of the fork and its changes.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> fork = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").fork()
        >>> asyncio.run(fork.stored_state()).base.id == fork.snapshot_id
        True
        """
        view = await self._state.stored_view()
        return Fork(view.context, view.base, view.inherited, view.changes, self._since)

    async def write_parts_async(self, label: str = "") -> WrittenParts:
        """Store all chunks and references of this fork.

        Parameters
        ----------
        label
            Name of the worker. It appears in the error if two workers wrote the same chunk.

        Returns
        -------
        WrittenParts
            A small description for `Session.link_parts`. It can be pickled.

        Raises
        ------
        UnsupportedError
            The worker deleted chunks, or created or resized nodes. Do that in the session before the fork.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.transaction("main", message="array") as store:
        ...     _ = zarr.create_array(store, name="t", shape=2, dtype="i4")
        >>> fork = repo.writable_session("main").fork()
        >>> zarr.open_array(fork.store, path="t")[:] = 7
        >>> fork.write_parts("worker 1").chunks
        1
        """
        return await write_parts(self._state, label)

    write_parts = blocking(write_parts_async)

    def __getstate__(self) -> dict[str, Any]:
        return {"fork": run_blocking(self.stored_state()), "default_metadata": self._default_metadata}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["fork"], state["default_metadata"])  # type: ignore[misc]

    def _commit_target(self, *, allow_empty: bool) -> tuple[str, Tip]:
        raise SessionStateError(
            "commits are not allowed in a fork. Merge it into its session, and commit that session",
            "commit-not-allowed",
        )


__all__ = ["ChunkType", "ForkSession", "Session", "SessionMode"]
