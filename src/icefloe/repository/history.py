"""The history of a repository, as its user sees it: commits, what they changed, what they are made of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from icefloe.blocking import iterate_blocking, run_blocking
from icefloe.display.ancestry_graph import AncestryGraph
from icefloe.errors import SnapshotNotFoundError
from icefloe.model.diff import Diff
from icefloe.model.snapshot import ManifestFileInfo, SnapshotInfo
from icefloe.repository.graph import fetch_graph
from icefloe.session.engine import Engine
from icefloe.session.history import RefChoice, ancestry, diff_between, resolve


class HistoryDoor:
    """The part of `Repository` that looks back."""

    _engine: Engine

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

    def ancestry_graph(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        plain: bool = False,
        limit: int | None = None,
    ) -> AncestryGraph:
        """A drawing of all branches and tags, or of the history of one of them.

        Parameters
        ----------
        plain
            No colours, neither as text nor as a picture.
        limit
            Draw only so many commits, the newest.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.ancestry_graph()
        <icefloe.AncestryGraph 1 commit, 1 branch, 0 tags>
        """
        choice = RefChoice(branch, tag, snapshot_id)
        return run_blocking(fetch_graph(self._engine, choice, plain=plain, limit=limit))

    async def ancestry_graph_async(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        plain: bool = False,
        limit: int | None = None,
    ) -> AncestryGraph:
        """`ancestry_graph`, awaited."""
        return await fetch_graph(self._engine, RefChoice(branch, tag, snapshot_id), plain=plain, limit=limit)

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """One commit by its id."""
        return run_blocking(self.lookup_snapshot_async(snapshot_id))

    async def lookup_snapshot_async(self, snapshot_id: str) -> SnapshotInfo:
        """`lookup_snapshot`, awaited."""
        # The ledger knows the parent where files do not name it; the file knows the manifests.
        known = await self._engine.ledger.fetch_info(snapshot_id)
        own = await self._engine.archive.fetch_snapshot(snapshot_id)
        return replace(known, manifests=own.info.manifests)

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
        choices = RefChoice(from_branch, from_tag, from_snapshot_id), RefChoice(to_branch, to_tag, to_snapshot_id)
        ends = [await resolve(self._engine, choice) for choice in choices]
        while True:
            try:
                return await diff_between(self._engine, *ends)
            except SnapshotNotFoundError:
                # A branch that moved on may have lost its earlier tip since it was asked for.
                earlier, ends = ends, [await resolve(self._engine, choice) for choice in choices]
                if ends == earlier:
                    raise
