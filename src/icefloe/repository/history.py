"""Branches, tags, commits, diffs, the ancestry graph, and the content of single files."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from icefloe.blocking import blocking
from icefloe.display.graph import AncestryGraph, Commit, Ref
from icefloe.errors import InvalidInputError, SnapshotNotFoundError
from icefloe.ids import ObjectId
from icefloe.maintenance import inspect as inspection
from icefloe.maintenance.inspect import ChunkStorageStats, chunk_storage_stats
from icefloe.maintenance.marking import FetchLimits
from icefloe.model.snapshot import Diff, ManifestFileInfo, SnapshotInfo
from icefloe.session.history import RefChoice, ancestry, diff_between, resolve
from icefloe.session.open_repository import RepositoryParts

_REFS_AT_ONCE = 64


async def fetch_graph(engine: RepositoryParts, choice: RefChoice, *, plain: bool, limit: int | None) -> AncestryGraph:
    """The graph of everything that branches and tags reach, or of the history of one choice."""
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit={limit}: a graph shows at least one commit; None shows all")
    refs = await fetch_refs(engine)
    chosen = choice.branch or choice.tag or choice.snapshot_id
    # A tag often names the tip of a branch: each snapshot is walked from once.
    starts = [await resolve(engine, choice)] if chosen else list(dict.fromkeys(ref.snapshot_id for ref in refs))
    infos = await newest_commits(engine, starts, limit)
    shown = {info.id for info in infos}
    commits = [Commit(info.id, info.parent_id, info.written_at, info.message) for info in infos]
    return AncestryGraph(commits, [ref for ref in refs if ref.snapshot_id in shown], plain=plain)


async def fetch_refs(engine: RepositoryParts) -> list[Ref]:
    """All branches (main first), then all tags, and where they point."""
    branches, tags = await asyncio.gather(engine.ledger.list_branches(), engine.ledger.list_tags())
    slots = asyncio.Semaphore(_REFS_AT_ONCE)

    async def branch(name: str) -> Ref:
        async with slots:
            return Ref(name, "branch", (await engine.ledger.fetch_tip(name)).snapshot_id)

    async def tag(name: str) -> Ref:
        async with slots:
            return Ref(name, "tag", await engine.ledger.fetch_tag(name))

    ordered = sorted(branches, key=lambda name: (name != "main", name))
    return await asyncio.gather(*(branch(name) for name in ordered), *(tag(name) for name in sorted(tags)))


async def newest_commits(engine: RepositoryParts, starts: list[ObjectId], limit: int | None) -> list[SnapshotInfo]:
    """The newest commits of several histories, each once; a history is left where another one was there before."""
    walks = [engine.ledger.ancestry(start) for start in starts]
    heads: list[tuple[float, int, SnapshotInfo]] = []
    await asyncio.gather(*(_advance(heads, index, walk) for index, walk in enumerate(walks)))
    found: dict[ObjectId, SnapshotInfo] = {}
    while heads and (limit is None or len(found) < limit):
        _, index, info = heapq.heappop(heads)
        if info.id not in found:
            found[info.id] = info
            await _advance(heads, index, walks[index])
    for walk in walks:
        close = getattr(walk, "aclose", None)
        if close is not None:
            await close()
    return list(found.values())


async def _advance(heads: list[tuple[float, int, SnapshotInfo]], index: int, walk: AsyncIterator[SnapshotInfo]) -> None:
    info = await anext(walk, None)
    if info is not None:
        heapq.heappush(heads, (-info.written_at.timestamp(), index, info))


class HistoryMixin:
    """The part of `Repository` that looks back."""

    _engine: RepositoryParts

    async def async_ancestry(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: str | None = None
    ) -> AsyncIterator[SnapshotInfo]:
        """A snapshot and its ancestors, newest first, read as far as you iterate."""
        async for info in ancestry(self._engine, RefChoice(branch, tag, snapshot_id)):
            yield info

    ancestry = blocking(async_ancestry)

    async def ancestry_graph_async(
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
        return await fetch_graph(self._engine, RefChoice(branch, tag, snapshot_id), plain=plain, limit=limit)

    ancestry_graph = blocking(ancestry_graph_async)

    async def lookup_snapshot_async(self, snapshot_id: str) -> SnapshotInfo:
        """One commit by its id."""
        # The ledger knows the parent where files do not name it; the file knows the manifests.
        known = await self._engine.ledger.fetch_info(snapshot_id)
        own = await self._engine.metadata_files.fetch_snapshot(snapshot_id)
        return replace(known, manifests=own.info.manifests)

    lookup_snapshot = blocking(lookup_snapshot_async)

    async def list_manifest_files_async(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """The manifest files that a snapshot names."""
        return list((await self._engine.metadata_files.fetch_snapshot(snapshot_id)).manifests.values())

    list_manifest_files = blocking(list_manifest_files_async)

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
        """What changed between two points of one history, down to chunk coordinates."""
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

    diff = blocking(diff_async)


class RefsMixin:
    """The part of `Repository` that names snapshots."""

    _engine: RepositoryParts

    async def create_branch_async(self, branch: str, snapshot_id: str) -> None:
        """A new branch at a snapshot; AlreadyExistsError when the name is taken."""
        await self._engine.check_writable()
        await self._engine.metadata_files.fetch_snapshot(snapshot_id, anew=True)
        await self._engine.ledger.create_branch(branch, snapshot_id)

    create_branch = blocking(create_branch_async)

    async def list_branches_async(self) -> set[str]:
        """Names of all branches."""
        return await self._engine.ledger.list_branches()

    list_branches = blocking(list_branches_async)

    async def lookup_branch_async(self, branch: str) -> ObjectId:
        """The snapshot at which a branch stands."""
        return (await self._engine.ledger.fetch_tip(branch)).snapshot_id

    lookup_branch = blocking(lookup_branch_async)

    async def reset_branch_async(self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None) -> None:
        """Point a branch at another snapshot, if it is still at `from_snapshot_id` when that is given."""
        await self._engine.metadata_files.fetch_snapshot(snapshot_id, anew=True)
        await self._engine.ledger.reset_branch(branch, snapshot_id, from_snapshot_id)

    reset_branch = blocking(reset_branch_async)

    async def delete_branch_async(self, branch: str) -> None:
        """Remove a branch; its snapshots stay until they are collected. `main` cannot be removed."""
        await self._engine.ledger.delete_branch(branch)

    delete_branch = blocking(delete_branch_async)

    async def create_tag_async(self, tag: str, snapshot_id: str) -> None:
        """A name for a snapshot that never moves."""
        await self._engine.check_writable()
        await self._engine.metadata_files.fetch_snapshot(snapshot_id, anew=True)
        await self._engine.ledger.create_tag(tag, snapshot_id)

    create_tag = blocking(create_tag_async)

    async def list_tags_async(self) -> set[str]:
        """Names of all tags."""
        return await self._engine.ledger.list_tags()

    list_tags = blocking(list_tags_async)

    async def lookup_tag_async(self, tag: str) -> ObjectId:
        """The snapshot a tag names."""
        return await self._engine.ledger.fetch_tag(tag)

    lookup_tag = blocking(lookup_tag_async)

    async def delete_tag_async(self, tag: str) -> None:
        """Remove a tag, where the generation allows it; the name cannot be used again."""
        await self._engine.ledger.delete_tag(tag)

    delete_tag = blocking(delete_tag_async)


class InspectionMixin:
    """The part of `Repository` that looks inside."""

    _engine: RepositoryParts

    async def chunk_storage_stats_async(
        self,
        *,
        max_compressed_manifest_mem_bytes: int = 512 << 20,
        max_concurrent_manifest_fetches: int = 32,
        **_: Any,
    ) -> ChunkStorageStats:
        """Bytes of all chunks in all of history, by kind; what snapshots share counts once."""
        limits = FetchLimits(max(1, min(max_concurrent_manifest_fetches, 256)), max_compressed_manifest_mem_bytes)
        return await chunk_storage_stats(self._engine, limits)

    chunk_storage_stats = blocking(chunk_storage_stats_async)

    async def total_chunks_storage_async(self, **limits: int) -> int:
        """Bytes of all chunk objects in all of history."""
        return (await self.chunk_storage_stats_async(**limits)).native_bytes

    total_chunks_storage = blocking(total_chunks_storage_async)

    async def inspect_snapshot_async(self, snapshot_id: str) -> dict[str, Any]:
        """The nodes of a snapshot with their ids and manifests."""
        return await inspection.inspect_snapshot(self._engine, snapshot_id)

    inspect_snapshot = blocking(inspect_snapshot_async)

    async def inspect_manifest_async(self, manifest_id: str) -> dict[str, Any]:
        """The references of a manifest, counted by array and kind."""
        return await inspection.inspect_manifest(self._engine, manifest_id)

    inspect_manifest = blocking(inspect_manifest_async)

    async def inspect_transaction_log_async(self, snapshot_id: str) -> dict[str, Any]:
        """What one commit changed, by node id."""
        return await inspection.inspect_transaction_log(self._engine, snapshot_id)

    inspect_transaction_log = blocking(inspect_transaction_log_async)
