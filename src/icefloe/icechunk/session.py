"""Sessions, as `icechunk.session`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from icefloe.blocking import blocking
from icefloe.display.card import ShownField, fields_html, fields_text
from icefloe.errors import ForbiddenChangeError, InvalidInputError, SessionStateError, UnsupportedVersionError
from icefloe.icechunk.store import IcechunkStore
from icefloe.icechunk.version_1 import check_fork, check_forks, follows_version_1, fork_error, warn_of_unmerged_forks
from icefloe.model.capabilities import SpecVersion
from icefloe.model.config import RepositoryConfig
from icefloe.model.snapshot import Diff, Snapshot
from icefloe.session import session as engine
from icefloe.session.rebase import ConflictSolver, VersionSelection
from icefloe.session.session import ChunkType, SessionMode


class Session(engine.Session):
    """A view of one snapshot, with changes on top of it if it is writable.

    Nodes can be moved in the sessions of `Repository.rearrange_session` only, as in the official package.
    """

    _records_rebases = True
    _has_moved = False
    _has_unmerged_forks = False

    @property
    def _fork_class(self) -> type[engine.ForkSession]:
        return ForkSession

    def _make_store(self) -> IcechunkStore:
        store = IcechunkStore(self)
        store._is_open = True
        return store

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("read_only", self.read_only)
        yield ShownField("snapshot_id", self.snapshot_id)
        if not self.read_only:
            yield ShownField("branch", self.branch)
            yield ShownField("has_uncommitted_changes", self.has_uncommitted_changes)

    def __repr__(self) -> str:
        return fields_text(f"icechunk.session.{type(self).__name__}", self._shown_fields())

    def _repr_html_(self) -> str:
        return fields_html(f"icechunk.session.{type(self).__name__}", self._shown_fields())

    def move(self, from_path: str, to_path: str) -> None:
        """Move a node, with all nodes below it, to another path. The session must be a rearrange session."""
        self._check_writable()
        if self.mode is not SessionMode.REARRANGE:
            raise SessionStateError(
                f"cannot move {from_path}: this is no rearrange session; open one with repo.rearrange_session(branch)",
                "non-rearrange-session",
            )
        for path in (from_path, to_path):
            if not path.startswith("/"):
                raise InvalidInputError(f"could not create path from {path!r}: it must start with /", "invalid-path")
        if from_path == to_path:
            raise ForbiddenChangeError(
                f"cannot move {from_path} into itself or its own descendant {to_path}", "move-into-self-or-descendant"
            )
        super().move(from_path, to_path)
        self._has_moved = True

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether the session has changes that are not committed. A move counts, also if it was undone."""
        return self._has_moved or super().has_uncommitted_changes

    def fork(self) -> engine.ForkSession:
        """Create a session for a worker.

        In a process that follows version 1, the session must have no changes. That rule is for users: `to_icechunk`
        and Spark fork with the method of the engine.
        """
        if not follows_version_1():
            return super().fork()
        check_fork(self)
        made = super().fork()
        self._has_unmerged_forks = True
        return made

    def _commit_target(self, *, allow_empty: bool) -> tuple[str, Any]:
        if self._has_unmerged_forks:
            warn_of_unmerged_forks()
        return super()._commit_target(allow_empty=allow_empty or self._has_moved)

    def _finish(self, snapshot: Snapshot) -> str:
        self._has_moved = False
        return super()._finish(snapshot)

    async def merge_async(self, *others: Any, on_chunk_conflict: VersionSelection = VersionSelection.Fail) -> None:
        """Add the changes of forks to this session. Merging a session into itself changes nothing."""
        if follows_version_1():
            check_forks(others)
        forks = [other for other in others if other is not self]
        await super().merge_async(*forks, on_chunk_conflict=on_chunk_conflict)
        self._has_unmerged_forks = False

    merge = blocking(merge_async)  # type: ignore[arg-type]

    async def amend_async(
        self, message: str, *, metadata: Mapping[str, Any] | None = None, allow_empty: bool = False
    ) -> str:
        """Replace the newest commit of the branch. The repository must be of version 2."""
        if self._state.context.format.spec_version is SpecVersion.ICECHUNK1:
            raise UnsupportedVersionError(
                "a repository of version 1 has no amended commits; upgrade it with upgrade_icechunk_repository(repo)"
            )
        return await super().amend_async(message, metadata=metadata, allow_empty=allow_empty)

    amend = blocking(amend_async)  # type: ignore[arg-type]

    async def all_virtual_chunk_locations_async(self) -> list[str]:
        """Return the URL of every virtual chunk, also of those below a named container."""
        containers = self._state.context.containers
        found = await super().all_virtual_chunk_locations_async()
        return [each if containers.find_container(each) is None else containers.absolute(each) for each in found]

    all_virtual_chunk_locations = blocking(all_virtual_chunk_locations_async)  # type: ignore[arg-type]

    async def shift_array_async(self, array_path: str, chunk_offset: Iterable[int]) -> None:
        """Move every chunk of an array by an offset. A rearrange session cannot do that."""
        self._check_writable(moves_only=False)
        await super().shift_array_async(array_path, chunk_offset)

    async def reindex_array_async(
        self,
        array_path: str,
        forward: Callable[[Iterable[int]], Iterable[int] | None],
        backward: Callable[[Iterable[int]], Iterable[int] | None] | None = None,
    ) -> None:
        """Move chunks of an array by a function of their coordinates. A rearrange session cannot do that."""
        self._check_writable(moves_only=False)
        await super().reindex_array_async(array_path, forward, backward)

    def __getstate__(self) -> dict[str, Any]:
        if not self.read_only:
            raise ValueError(
                "You must opt-in to pickle writable sessions in a distributed context using Session.fork(). Give each "
                "worker a fork, merge the forks afterwards, and commit this session. To read in workers, use "
                "repo.readonly_session(...)"
            )
        return super().__getstate__()


class ForkSession(Session, engine.ForkSession):
    """A session for a worker. It is pickled, written to, and merged into the session that it was forked from."""

    def __getstate__(self) -> dict[str, Any]:
        return engine.ForkSession.__getstate__(self)

    def _commit_target(self, *, allow_empty: bool) -> tuple[str, Any]:
        if follows_version_1():
            raise fork_error("commit")
        return super()._commit_target(allow_empty=allow_empty)

    async def flush_async(self, message: str, *, metadata: Mapping[str, Any] | None = None) -> str:
        """A fork cannot be flushed: only the session that it is merged into writes snapshots."""
        if follows_version_1():
            raise fork_error("flush")
        raise SessionStateError(
            "cannot flush a forked session. Merge it into its session, and flush that session", "commit-not-allowed"
        )

    flush = blocking(flush_async)  # type: ignore[arg-type]


__all__ = [
    "ChunkType",
    "ConflictSolver",
    "Diff",
    "ForkSession",
    "IcechunkStore",
    "RepositoryConfig",
    "Session",
    "SessionMode",
]
