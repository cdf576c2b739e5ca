"""Sessions, as `icechunk.session`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from icefloe.display.card import ShownField, fields_html, fields_text
from icefloe.errors import SessionStateError
from icefloe.icechunk.store import IcechunkStore
from icefloe.model.config import RepositoryConfig
from icefloe.model.snapshot import Diff
from icefloe.session import session as engine
from icefloe.session.rebase import ConflictSolver
from icefloe.session.session import ChunkType, SessionMode


class Session(engine.Session):
    """A view of one snapshot, with changes on top of it if it is writable.

    Nodes can be moved in the sessions of `Repository.rearrange_session` only, as in the official package.
    """

    _records_rebases = True

    @property
    def _fork_class(self) -> type[engine.ForkSession]:
        return ForkSession

    def _make_store(self) -> IcechunkStore:
        return IcechunkStore(self)

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
        super().move(from_path, to_path)

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
