"""A session as its user sees it: a view of one snapshot, and the changes made on top of it."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from icefloe.blocking import awaitable, blocking, run_blocking
from icefloe.codec_pipeline import prefer_fast_pipeline
from icefloe.display.card import Card, Described, Fact, Styled, first_line, format_count, format_time
from icefloe.errors import InvalidInputError, ReadOnlyError, SessionStateError
from icefloe.ids import ObjectId, encode_base32
from icefloe.ledger.contract import Tip
from icefloe.model.chunk_table import ChunkKind, ChunkRef
from icefloe.model.config import RepositoryConfig
from icefloe.model.snapshot import ArrayNode, Diff, Snapshot
from icefloe.model.virtual_chunk_container import VirtualChunkSpec
from icefloe.session import commit as committing
from icefloe.session.change_set import diff_of_changes
from icefloe.session.fork import Fork, WrittenParts, link_parts, merge_fork, write_parts
from icefloe.session.keyspace import KeySpace
from icefloe.session.open_repository import RepositoryParts, register_writer
from icefloe.session.rebase import ConflictSolver, VersionSelection
from icefloe.session.references import reindex_array, set_columns, set_points, set_specs, shift_array, virtual_ref
from icefloe.session.session_state import SessionState
from icefloe.store import Checksum, ChunkBatch, IcechunkStore


class SessionMode(enum.Enum):
    """What a session may do."""

    READONLY = 0
    WRITABLE = 1
    REARRANGE = 2

    readonly = READONLY
    writable = WRITABLE
    rearrange = REARRANGE


class ChunkType(enum.Enum):
    """Where the bytes of a chunk are."""

    UNINITIALIZED = 0
    NATIVE = 1
    VIRTUAL = 2
    INLINE = 3

    uninitialized = UNINITIALIZED
    native = NATIVE
    virtual = VIRTUAL
    inline = INLINE


_TYPE_OF_KIND = {
    ChunkKind.NATIVE: ChunkType.NATIVE,
    ChunkKind.VIRTUAL: ChunkType.VIRTUAL,
    ChunkKind.INLINE: ChunkType.INLINE,
}
_TYPE_CODES = np.array([ChunkType.INLINE.value, ChunkType.NATIVE.value, ChunkType.VIRTUAL.value, 0], dtype=np.uint8)


class Session(Described):
    """A view of one snapshot; a writable one also holds changes until they are committed.

    Sessions come from `Repository.readonly_session` and `Repository.writable_session`. A read-only session pickles;
    a writable one does not: `fork()` it for workers.

    Threads may share a session. Reading and looking (`status`, `chunk_coordinates`, `fork`, listings) see it as of one
    moment. A verb that waits for storage (`commit`, `amend`, `flush`, `rebase`, `link_parts`, `shift_array`,
    `reindex_array`) takes the changes made before it began. A change that comes while it runs raises
    SessionStateError, and ReadOnlyError after a commit: it is in neither the commit nor the session. A verb that fails
    leaves the session writable, with all its changes.
    """

    def __init__(
        self,
        engine: RepositoryParts,
        base: Snapshot,
        *,
        mode: SessionMode = SessionMode.READONLY,
        branch: str | None = None,
        tip: Tip | None = None,
        default_metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._state = SessionState(engine, base, tip=tip)
        self._mode = mode
        self._branch = branch
        self._default_metadata = dict(default_metadata or {})
        self.keyspace = KeySpace(self._state)
        self._has_forked = False

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        """The nodes and chunks behind this session, for other packages of the library."""
        return self._state

    @property
    def read_only(self) -> bool:
        """Whether the session takes no writes."""
        return self._mode is SessionMode.READONLY

    @property
    def mode(self) -> SessionMode:
        """What the session may do."""
        return self._mode

    @property
    def snapshot_id(self) -> ObjectId:
        """The snapshot that the session stands on."""
        return self._state.base.id

    @property
    def branch(self) -> str | None:
        """The branch a commit goes to; None for a read-only session."""
        return self._branch

    @property
    def config(self) -> RepositoryConfig:
        """The configuration of the repository."""
        return self._state.engine.config

    @property
    def store(self) -> IcechunkStore:
        """The session as a Zarr store; zarr reads and writes it in bulk unless told otherwise."""
        prefer_fast_pipeline()
        return IcechunkStore(self)

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether there is something to commit."""
        return not self._state.is_clean()

    @property
    def is_running(self) -> bool:
        """Whether there may be chunks in storage that only a later commit of this session makes reachable."""
        return not self.read_only and (self._has_forked or self.has_uncommitted_changes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Session):
            return NotImplemented
        if self is other:
            return True
        both_read = self.read_only and other.read_only
        same_place = self._state.engine.storage == other._state.engine.storage
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
            ("repository", Styled(self._state.engine.storage.url, "code")),
        ]
        if not self.read_only:
            facts.append(("changes", Styled("uncommitted", "changed") if self.has_uncommitted_changes else "none"))
        return Card(type(self).__name__, self._mode.name.lower(), facts)

    def __getstate__(self) -> dict[str, Any]:
        if not self.read_only:
            raise SessionStateError(
                "a writable session does not pickle: give each worker `session.fork()`, and `session.merge(...)` what "
                "comes back; to read in workers, use repo.readonly_session(...)"
            )
        return {"engine": self._state.engine, "snapshot_id": self.snapshot_id}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        engine: RepositoryParts = state["engine"]
        base = run_blocking(engine.metadata_files.fetch_snapshot(state["snapshot_id"]))
        self.__init__(engine, base)  # type: ignore[misc]

    # -- changes --------------------------------------------------------------------------------------------------

    def status(self) -> Diff:
        """What the session has changed and not committed."""
        view = self._state.view()
        return diff_of_changes(view.base, view.changes)

    def discard_changes(self) -> None:
        """Forget every change; the session stays writable."""
        self._check_writable()
        self._state.discard()

    def move(self, from_path: str, to_path: str) -> None:
        """Give an array or group, with all below it, another path; no chunk and no manifest is rewritten.

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

    async def shift_array_async(self, path: str, chunk_offset: Iterable[int]) -> None:
        """Move every chunk of an array by an offset in chunks; what falls off the grid is dropped.

        The places that become free read as fill value. Resize the array first to keep everything.
        """
        self._check_writable()
        with self._state.exclusive("shift_array"):
            await shift_array(self._state, path, tuple(chunk_offset))

    shift_array = blocking(shift_array_async)

    async def reindex_array_async(
        self,
        path: str,
        forward: Callable[[Iterable[int]], Iterable[int] | None],
        backward: Callable[[Iterable[int]], Iterable[int] | None] | None = None,
    ) -> None:
        """Move the chunks of an array by a function of their coordinates.

        Parameters
        ----------
        forward
            Maps the coordinates of a chunk to its new ones; None leaves it where it is.
        backward
            The inverse: where given, a place whose source is None or empty reads as fill value afterwards.
        """
        self._check_writable()
        with self._state.exclusive("reindex_array"):
            await reindex_array(self._state, path, forward, backward)

    reindex_array = blocking(reindex_array_async)

    # -- virtual references ---------------------------------------------------------------------------------------

    def set_virtual_ref(
        self, key: str, location: str, offset: int, length: int, checksum: Checksum, *, validate_container: bool
    ) -> None:
        """Point one chunk at a file; see `IcechunkStore.set_virtual_ref`."""
        self._check_writable(moves_only=False)
        ref = virtual_ref(self._state, location, offset, length, checksum, validate_container=validate_container)
        self.keyspace.write_ref(key, ref)

    def set_virtual_specs(
        self, array_path: str, chunks: Sequence[VirtualChunkSpec], *, validate_containers: bool
    ) -> list[tuple[int, ...]] | None:
        """Point several chunks at files; see `IcechunkStore.set_virtual_refs`."""
        self._check_writable(moves_only=False)
        return set_specs(self._state, array_path, chunks, validate_containers=validate_containers)

    def set_virtual_columns(
        self,
        array_path: str,
        grid_shape: tuple[int, ...],
        locations: Any,
        offsets: Any,
        lengths: Any,
        *,
        first: tuple[int, ...] | None,
        checksum: Any,
        validate_containers: bool,
    ) -> list[tuple[int, ...]] | None:
        """Point a box of chunks at files, as columns; see `IcechunkStore.set_virtual_refs_arr`."""
        self._check_writable(moves_only=False)
        return set_columns(
            self._state,
            array_path,
            grid_shape,
            (locations, offsets, lengths),
            first=first,
            checksum=checksum,
            validate_containers=validate_containers,
        )

    def set_virtual_points(
        self, array_path: str, coords: Any, columns: tuple[Any, Any, Any], *, checksum: Any, validate_containers: bool
    ) -> list[tuple[int, ...]] | None:
        """Point chunks anywhere at files, as columns; see `IcechunkStore.set_virtual_refs_columns`."""
        self._check_writable(moves_only=False)
        work = self._state
        return set_points(work, array_path, coords, columns, checksum=checksum, validate_containers=validate_containers)

    async def all_virtual_chunk_locations_async(self) -> list[str]:
        """URL of every virtual chunk, with repetitions."""
        found: list[str] = []
        view = self._state.view()
        for node in view.tree.nodes():
            if isinstance(node, ArrayNode):
                table = await view.chunk_table(node)
                if table.location is not None:
                    texts = np.asarray(table.locations, dtype=object)
                    found += texts[table.location[table.location >= 0]].tolist()
        return found

    all_virtual_chunk_locations = blocking(all_virtual_chunk_locations_async)

    # -- chunks ---------------------------------------------------------------------------------------------------

    async def chunk_coordinates(self, array_path: str, batch_size: int = 1000) -> AsyncIterator[tuple[int, ...]]:
        """The coordinates of every chunk of an array that was written."""
        node = self._state.tree.array(_absolute(array_path))
        view = self._state.view(node.id)
        async for table in view.chunk_batches(view.tree.array(node.path), batch_size):
            for row in table.coords.tolist():
                yield tuple(row)

    async def chunk_columns(self, array_path: str, batch_size: int) -> AsyncIterator[ChunkBatch]:
        """The references of an array as columns; see `IcechunkStore.array_chunk_iterator`."""
        node = self._state.tree.array(_absolute(array_path))
        view = self._state.view(node.id)
        async for table in view.chunk_batches(view.tree.array(node.path), batch_size):
            inline = {int(i): table.row(int(i)).data or b"" for i in np.flatnonzero(table.kind == ChunkKind.INLINE)}
            texts = np.asarray([*table.locations, ""], dtype=object)
            codes = np.full(len(table), -1) if table.location is None else table.location
            yield table.coords, _TYPE_CODES[table.kind], texts[codes].tolist(), table.offset, table.length, inline

    async def chunk_type_async(self, array_path: str, chunk_coordinates: Sequence[int]) -> ChunkType:
        """Where the bytes of a chunk are."""
        node = self._state.tree.array(_absolute(array_path))
        coords = tuple(int(c) for c in chunk_coordinates)
        self._state.check_coords(node, coords)
        found = await self._state.find_chunk(node, coords)
        if found is None:
            return ChunkType.UNINITIALIZED
        return _TYPE_OF_KIND[found.kind] if isinstance(found, ChunkRef) else ChunkType.NATIVE

    chunk_type = blocking(chunk_type_async)

    def get_node_id(self, path: str) -> str:
        """The id of the node at a path; it stays when the node is moved."""
        return encode_base32(self._state.tree.node(_absolute(path)).id)

    get_node_id_async = awaitable(get_node_id)

    # -- forks ----------------------------------------------------------------------------------------------------

    async def fork_async(self) -> ForkSession:
        """A session for a worker: it pickles, is written to elsewhere, and comes back to `merge`.

        A fork sees the changes made here so far. Large chunks and packs are written to storage by the worker; only
        references travel back.
        """
        self._check_writable(moves_only=False)
        self._has_forked = True
        view = await self._state.stored_view()
        return ForkSession(Fork.of(view), default_metadata=self._default_metadata)

    fork = blocking(fork_async)

    async def merge_async(
        self, *forks: ForkSession, on_chunk_conflict: VersionSelection = VersionSelection.Fail
    ) -> None:
        """Take over what forks have written, each with its references in memory; see `link_parts` for many chunks.

        Parameters
        ----------
        on_chunk_conflict
            What happens when a chunk was written by more than one fork: an error, the earlier fork's version
            (`UseOurs`) or the later one's (`UseTheirs`).

        Raises
        ------
        InvalidInputError
            Two forks, or a fork and the session, changed one thing since the fork was made: a chunk, the metadata of
            a node, or one deleted or shrank what the other wrote. All forks are merged or none is.
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
        """Take over what workers left in storage with `ForkSession.write_parts`; no reference passes through here."""
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
        """Make the changes visible to everyone, all at once; returns the id of the new snapshot.

        The session is read-only afterwards, at the new snapshot. Writes of other threads that come while the commit
        runs are refused with SessionStateError.

        Parameters
        ----------
        metadata
            Kept with the snapshot, on top of the repository's default commit metadata.
        rebase_with
            Solver for the case that the branch moved on: the changes are carried over and tried again, up to
            `rebase_tries` times. Without one, a branch that moved is a ConflictError.
        allow_empty
            Commit also when nothing changed.
        """
        self._check_writable()
        with self._state.exclusive("commit"):
            branch, _ = self._commit_target(allow_empty=allow_empty)
            request = committing.CommitRequest(message, self._metadata(metadata), rebase_with, rebase_tries)
            snapshot = await committing.commit(self._state, branch, request)
            return self._finish(snapshot)

    commit = blocking(commit_async)

    async def amend_async(
        self, message: str, *, metadata: Mapping[str, Any] | None = None, allow_empty: bool = False
    ) -> ObjectId:
        """Replace the newest commit of the branch by one that also holds these changes."""
        self._check_writable()
        with self._state.exclusive("amend"):
            branch, tip = self._commit_target(allow_empty=allow_empty)
            request = committing.CommitRequest(message, self._metadata(metadata))
            snapshot, _ = await committing.amend(self._state, branch, tip, request)
            return self._finish(snapshot)

    amend = blocking(amend_async)

    async def flush_async(self, message: str, *, metadata: Mapping[str, Any] | None = None) -> ObjectId:
        """Save the changes as a snapshot that no branch points at; returns its id."""
        self._check_writable()
        with self._state.exclusive("flush"):
            branch, _ = self._commit_target(allow_empty=False)
            request = committing.CommitRequest(message, self._metadata(metadata))
            snapshot = await committing.write_detached(self._state, branch, request)
            return self._finish(snapshot)

    flush = blocking(flush_async)

    async def rebase_async(self, solver: ConflictSolver) -> None:
        """Carry the changes over to where the branch stands now; RebaseFailedError lists what clashes."""
        self._check_writable()
        branch = self._branch
        if branch is None:
            raise SessionStateError("this session has no branch to rebase to")
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
                "cannot commit: the session has no changes; write something, or pass allow_empty=True", no_changes=True
            )
        return self._branch, tip

    def _metadata(self, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        return {**self._default_metadata, **(metadata or {})}

    def _finish(self, snapshot: Snapshot) -> ObjectId:
        with self._state.lock:
            self._state.close(snapshot)
            self._mode, self._branch = SessionMode.READONLY, None
        return snapshot.id

    def _check_writable(self, *, moves_only: bool = True) -> None:
        if self.read_only:
            raise ReadOnlyError("the session is read-only; open one with repo.writable_session(branch)")
        if self._mode is SessionMode.REARRANGE and not moves_only:
            raise ReadOnlyError("a rearrange session only moves nodes and chunks; use repo.writable_session(branch)")


class ForkSession(Session):
    """A session for a worker: pickles, takes writes, is merged back; it cannot commit."""

    def __init__(self, fork: Fork, default_metadata: Mapping[str, Any] | None = None) -> None:
        super().__init__(fork.engine, fork.base, mode=SessionMode.WRITABLE, default_metadata=default_metadata)
        self._state.begin(fork.changes, fork.inherited)
        self._since = fork.since
        self._merged_at: int | None = None
        register_writer(self, fork.engine.storage, fork.since)

    @property
    def is_running(self) -> bool:
        """Whether there may be chunks in storage that only a merge of this fork makes reachable."""
        return self._merged_at != self._state.asked and super().is_running

    def note_merged(self) -> None:
        """Remember that the session has everything that was written here until now."""
        self._merged_at = self._state.asked

    async def stored_state(self) -> Fork:
        """What the fork has changed, with every chunk stored."""
        view = await self._state.stored_view()
        return Fork(view.engine, view.base, view.inherited, view.changes, self._since)

    async def write_parts_async(self, label: str = "") -> WrittenParts:
        """Store everything written here, references included, and return a small descriptor for `Session.link_parts`.

        Parameters
        ----------
        label
            Who this is, for the error when two workers wrote the same chunk.
        """
        return await write_parts(self._state, label)

    write_parts = blocking(write_parts_async)

    def __getstate__(self) -> dict[str, Any]:
        return {"fork": run_blocking(self.stored_state()), "default_metadata": self._default_metadata}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["fork"], state["default_metadata"])  # type: ignore[misc]

    def _commit_target(self, *, allow_empty: bool) -> tuple[str, Tip]:
        raise SessionStateError("a fork cannot commit: merge it into the session it came from, and commit that one")


def _absolute(path: str) -> str:
    return path if path.startswith("/") else "/" + path


__all__ = ["ChunkType", "ForkSession", "Session", "SessionMode"]
