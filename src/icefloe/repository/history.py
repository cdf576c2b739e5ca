"""Branches, tags, commits, diffs, the ancestry graph, and the content of single files."""

from __future__ import annotations

import asyncio
import heapq
import math
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from icefloe.blocking import blocking
from icefloe.display.card import Fact, Listing, Styled, first_line, format_bytes, format_count, format_time
from icefloe.errors import InvalidInputError, SnapshotNotFoundError, check_keywords
from icefloe.ids import ObjectId
from icefloe.lazy_exports import lazy_module
from icefloe.model.snapshot import ArrayNode, BranchPosition, Diff, ManifestFileInfo, SnapshotInfo
from icefloe.model.zarr_document import parse_document
from icefloe.session.ancestry import RefChoice, ancestry, diff_between, resolve
from icefloe.session.open_repository import NewTarget, RepositoryContext, check_target

if TYPE_CHECKING:
    from icefloe.display import graph as display
    from icefloe.display.graph import AncestryGraph, Ref
    from icefloe.maintenance import inspect as inspection
    from icefloe.maintenance import marking
    from icefloe.maintenance import merge as merging
    from icefloe.maintenance.inspect import ChunkStorageStats
    from icefloe.model import status as repository_status
    from icefloe.model.status import UpdateType
else:
    display = lazy_module("icefloe.display.graph")
    inspection = lazy_module("icefloe.maintenance.inspect")
    repository_status = lazy_module("icefloe.model.status")
    marking = lazy_module("icefloe.maintenance.marking")
    merging = lazy_module("icefloe.maintenance.merge")

_REFS_AT_ONCE = 64
_IGNORED_LIMITS = ("max_snapshots_in_memory",)
"""Arguments of `chunk_storage_stats` in the official package that have no effect here."""


async def fetch_graph(
    context: RepositoryContext, choice: RefChoice, *, plain: bool | None, limit: int | None
) -> AncestryGraph:
    """Return the graph of all commits that branches and tags reach, or of the history of one of them."""
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit={limit}: expected at least 1, or None for all commits")
    refs = await fetch_refs(context)
    chosen = choice.branch or choice.tag or choice.snapshot_id
    # A tag often points to the newest snapshot of a branch. Each start is walked only once.
    starts = [await resolve(context, choice)] if chosen else list(dict.fromkeys(ref.snapshot_id for ref in refs))
    infos = await newest_commits(context, starts, limit)
    shown = {info.id for info in infos}
    commits = [
        display.Commit(info.id, info.parent_id, info.written_at, info.message, _merged_id(info)) for info in infos
    ]
    return display.AncestryGraph(commits, [ref for ref in refs if ref.snapshot_id in shown], plain=plain)


def _merged_id(info: SnapshotInfo) -> str | None:
    merged = info.metadata.get(merging.MERGED)
    return merged if isinstance(merged, str) else None


async def fetch_refs(context: RepositoryContext) -> list[Ref]:
    """Return all branches (`main` first), then all tags, with their snapshots."""
    branches, tags = await asyncio.gather(context.ledger.list_branches(), context.ledger.list_tags())
    slots = asyncio.Semaphore(_REFS_AT_ONCE)

    async def branch(name: str) -> Ref:
        async with slots:
            return display.Ref(name, "branch", (await context.ledger.fetch_tip(name)).snapshot_id)

    async def tag(name: str) -> Ref:
        async with slots:
            return display.Ref(name, "tag", await context.ledger.fetch_tag(name))

    ordered = sorted(branches, key=lambda name: (name != "main", name))
    return await asyncio.gather(*(branch(name) for name in ordered), *(tag(name) for name in sorted(tags)))


async def newest_commits(context: RepositoryContext, starts: list[ObjectId], limit: int | None) -> list[SnapshotInfo]:
    """Return the newest commits of several histories, each once. A walk ends where another one has been."""
    new_parents = await context.ledger.fetch_new_parents()
    walks = [context.ledger.shown_history(start, new_parents) for start in starts]
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


async def _positions_of_log(context: RepositoryContext, branch: str, limit: int) -> list[BranchPosition]:
    """The positions of a branch from the operations log. An entry names the snapshot before or after it."""
    kinds = repository_status.UpdateType
    at: ObjectId | None = (await context.ledger.fetch_tip(branch)).snapshot_id
    found: list[BranchPosition] = []
    assert context.ledger.administration is not None
    async for update in context.ledger.administration.ops_log():
        kind = update.kind
        if branch != (kind.branch if isinstance(kind, kinds.NewCommit | kinds.CommitAmended) else _name_of(kind)):
            continue
        if at is None or len(found) == limit:
            break
        found.append(BranchPosition(at, update.updated_at))
        if isinstance(kind, kinds.NewCommit):
            at = (await context.ledger.fetch_info(at)).parent_id
        elif isinstance(kind, kinds.CommitAmended | kinds.BranchReset):
            at = ObjectId(kind.previous_snap_id)
        else:
            break  # the branch was created here
    return found


def _name_of(kind: UpdateType) -> str | None:
    """The branch that an entry of the operations log is about. Commits are not asked."""
    kinds = repository_status.UpdateType
    branches = kinds.BranchCreated | kinds.BranchDeleted | kinds.BranchReset
    if isinstance(kind, branches):
        return kind.name
    return "main" if isinstance(kind, kinds.RepoInitialized) else None


_MOST_REFS_SHOWN = 12


async def describe_content(context: RepositoryContext) -> tuple[list[Fact], list[Listing]]:
    """The branches, the tags, and the newest commit and arrays of `main`, for the card of a repository."""
    branches, tags = await asyncio.gather(context.ledger.list_branches(), context.ledger.list_tags())
    facts: list[Fact] = [
        ("branches", Styled(_shortened(sorted(branches, key=lambda name: (name != "main", name))), "branch")),
        ("tags", Styled(_shortened(sorted(tags)), "tag") if tags else "none"),
    ]
    tip = await context.ledger.fetch_tip("main")
    base = await context.metadata_files.fetch_snapshot(tip.snapshot_id)
    arrays = [node for node in base.nodes.values() if isinstance(node, ArrayNode)]
    size = sum(decoded_bytes(node) for node in arrays)
    references = sum(manifest.num_chunk_refs for manifest in base.manifests.values())
    facts += [
        ("main", f"{first_line(base.message)}, {format_time(base.written_at)}"),
        (
            "content",
            f"{format_count(len(base.nodes) - len(arrays), 'group')}, {format_count(len(arrays), 'array')}, "
            f"{format_count(references, 'chunk')}, {format_bytes(size)} decoded",
        ),
    ]
    listed = [f"{node.path}  {_array_text(node)}" for node in sorted(arrays, key=decoded_bytes, reverse=True)]
    return facts, [Listing("arrays of main", "tag", listed)] if listed else []


def _shortened(names: list[str]) -> str:
    more = len(names) - _MOST_REFS_SHOWN
    return ", ".join(names[:_MOST_REFS_SHOWN]) + (f", … {more:,} more" if more > 0 else "")


def _array_text(node: ArrayNode) -> str:
    """Data type, shape with dimension names, and size."""
    names = node.dimension_names or (None,) * len(node.shape)
    shape = ", ".join(f"{name}: {n}" if name else str(n) for name, n in zip(names, node.shape, strict=True))
    return f"{_data_type(node)} ({shape}) {format_bytes(decoded_bytes(node))}"


def _data_type(node: ArrayNode) -> str:
    given = parse_document(node.document).get("data_type")
    return str(given.get("name", given)) if isinstance(given, Mapping) else str(given)


def decoded_bytes(node: ArrayNode) -> int:
    """The bytes of the decoded values of an array. Types without a fixed size count as 8 bytes for each value."""
    bits = re.search(r"\d+$", _data_type(node))
    width = max(int(bits.group()) // 8, 1) if bits else 1 if _data_type(node) == "bool" else 8
    return math.prod(node.shape) * width


class HistoryMixin:
    """The methods of `Repository` that read history."""

    _context: RepositoryContext

    async def async_ancestry(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: str | None = None
    ) -> AsyncIterator[SnapshotInfo]:
        """Iterate over a snapshot and its ancestors, newest first.

        History is read as far as you iterate. Give exactly one argument.

        Parameters
        ----------
        branch
            Start at the newest snapshot of this branch.
        tag
            Start at the snapshot of this tag.
        snapshot_id
            Start at this snapshot.

        Yields
        ------
        SnapshotInfo
            Id, parent, time, message and metadata of one commit.

        Raises
        ------
        RefNotFoundError
            There is no such branch or tag.
        SnapshotNotFoundError
            There is no such snapshot.
        InvalidInputError
            Not exactly one argument is given.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> [info.message for info in repo.ancestry(branch="main")]
        ['Repository initialized']
        """
        async for info in ancestry(self._context, RefChoice(branch, tag, snapshot_id)):
            yield info

    ancestry = blocking(async_ancestry)

    async def reflog_async(self, branch: str = "main", *, limit: int = 100) -> list[BranchPosition]:
        """Return the snapshots that a branch pointed to, newest first.

        Use it to undo a reset. It is recorded in the generations `repository`, `store` and `icechunk2`. A snapshot that
        no ref reaches any more exists until garbage collection deletes it.

        Parameters
        ----------
        branch
            The branch.
        limit
            Largest number of positions.

        Returns
        -------
        list of BranchPosition
            Snapshot and time of each position. The first one is the current one.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        UnsupportedError
            The generation does not record it.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> first = repo.lookup_branch("main")
        >>> with repo.transaction("main", message="second") as store:
        ...     _ = zarr.create_group(store)
        >>> second = repo.lookup_branch("main")
        >>> repo.reset_branch("main", first)
        >>> [position.snapshot_id == second for position in repo.reflog("main")]
        [False, True, False]
        """
        if self._context.ledger.administration is not None:
            return await _positions_of_log(self._context, branch, limit)
        return await self._context.ledger.fetch_positions(branch, limit)

    reflog = blocking(reflog_async)

    async def ancestry_graph_async(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        plain: bool | None = None,
        limit: int | None = None,
    ) -> AncestryGraph:
        """Draw the commits of all branches and tags, or of one of them.

        Parameters
        ----------
        branch
            Only draw the history of this branch.
        tag
            Only draw the history of this tag.
        snapshot_id
            Only draw the history of this snapshot.
        plain
            Draw without colours. By default, there are colours if the output is a terminal. False always uses them.
        limit
            Only draw this many commits, the newest ones. None draws all.

        Returns
        -------
        AncestryGraph
            A drawing that prints as text and shows as a picture in a notebook.

        Raises
        ------
        RefNotFoundError
            There is no such branch or tag.
        InvalidInputError
            `limit` is less than 1, or more than one of `branch`, `tag` and `snapshot_id` is given.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.ancestry_graph()
        <icefloe.AncestryGraph 1 commit, 1 branch, 0 tags>
        """
        return await fetch_graph(self._context, RefChoice(branch, tag, snapshot_id), plain=plain, limit=limit)

    ancestry_graph = blocking(ancestry_graph_async)

    async def lookup_snapshot_async(self, snapshot_id: str) -> SnapshotInfo:
        """Return the description of one commit.

        Parameters
        ----------
        snapshot_id
            Id of the snapshot.

        Returns
        -------
        SnapshotInfo
            Id, parent, time, message, metadata and manifests.

        Raises
        ------
        SnapshotNotFoundError
            There is no such snapshot.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.lookup_snapshot(repo.lookup_branch("main")).message
        'Repository initialized'
        """
        # The ledger has the parent, which not every generation stores in the file. The file has the manifests.
        known = await self._context.ledger.fetch_shown_info(snapshot_id)
        own = await self._context.metadata_files.fetch_snapshot(snapshot_id)
        return replace(known, manifests=own.info.manifests)

    lookup_snapshot = blocking(lookup_snapshot_async)

    async def list_manifest_files_async(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """Return the manifest files that a snapshot uses.

        Parameters
        ----------
        snapshot_id
            Id of the snapshot.

        Returns
        -------
        list of ManifestFileInfo
            Id, size and number of references of each manifest.

        Raises
        ------
        SnapshotNotFoundError
            There is no such snapshot.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.list_manifest_files(repo.lookup_branch("main"))
        []
        """
        return list((await self._context.metadata_files.fetch_snapshot(snapshot_id)).manifests.values())

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
        """Return the changes between two snapshots, including the coordinates of changed chunks.

        Give exactly one of the `from_` arguments and one of the `to_` arguments.

        Parameters
        ----------
        from_branch, from_tag, from_snapshot_id
            The earlier snapshot.
        to_branch, to_tag, to_snapshot_id
            The later snapshot.

        Returns
        -------
        Diff
            Paths that were added, deleted, updated or moved, and the coordinates of changed chunks.

        Raises
        ------
        RefNotFoundError
            There is no such branch or tag.
        SnapshotNotFoundError
            There is no such snapshot.
        InvalidInputError
            Not exactly one argument of each kind is given.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> first = repo.lookup_branch("main")
        >>> with repo.transaction("main", message="array") as store:
        ...     _ = zarr.create_array(store, name="t", shape=3, dtype="f4")
        >>> sorted(repo.diff(from_snapshot_id=first, to_branch="main").new_arrays)
        ['/t']
        """
        choices = RefChoice(from_branch, from_tag, from_snapshot_id), RefChoice(to_branch, to_tag, to_snapshot_id)
        ends = [await resolve(self._context, choice) for choice in choices]
        while True:
            try:
                return await diff_between(self._context, *ends)
            except SnapshotNotFoundError:
                # The branch may have moved since, and its earlier snapshot may have been deleted.
                earlier, ends = ends, [await resolve(self._context, choice) for choice in choices]
                if ends == earlier:
                    raise

    diff = blocking(diff_async)


class RefsMixin:
    """The methods of `Repository` for branches and tags."""

    _context: RepositoryContext

    async def create_branch_async(self, branch: str, snapshot_id: str) -> None:
        """Create a branch.

        Parameters
        ----------
        branch
            Name of the branch. It must not contain `/`.
        snapshot_id
            Snapshot that the branch points to.

        Raises
        ------
        AlreadyExistsError
            There is a branch of this name.
        SnapshotNotFoundError
            There is no such snapshot.
        InvalidInputError
            The name is not allowed.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.create_branch("dev", repo.lookup_branch("main"))
        >>> sorted(repo.list_branches())
        ['dev', 'main']
        """
        await self._context.check_writable()
        await self._context.metadata_files.fetch_snapshot_file(snapshot_id, anew=True)
        ledger = self._context.ledger
        await ledger.create_branch(branch, snapshot_id)
        await check_target(self._context, NewTarget(snapshot_id, lambda: ledger.delete_branch(branch), branch))

    create_branch = blocking(create_branch_async)

    async def list_branches_async(self) -> set[str]:
        """Return the names of all branches.

        Returns
        -------
        set of str
            The names.

        Examples
        --------
        >>> import icefloe
        >>> icefloe.Repository.create(icefloe.in_memory_storage()).list_branches()
        {'main'}
        """
        return await self._context.ledger.list_branches()

    list_branches = blocking(list_branches_async)

    async def lookup_branch_async(self, branch: str) -> ObjectId:
        """Return the newest snapshot of a branch.

        Parameters
        ----------
        branch
            Name of the branch.

        Returns
        -------
        str
            Id of the snapshot.

        Raises
        ------
        RefNotFoundError
            There is no such branch.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.lookup_branch("main") == repo.readonly_session("main").snapshot_id
        True
        """
        return (await self._context.ledger.fetch_tip(branch)).snapshot_id

    lookup_branch = blocking(lookup_branch_async)

    async def reset_branch_async(self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None) -> None:
        """Set a branch to another snapshot.

        Commits that no branch or tag reaches any more are deleted by a later garbage collection.

        Parameters
        ----------
        branch
            Name of the branch.
        snapshot_id
            The new snapshot of the branch.
        from_snapshot_id
            Only reset the branch if it is at this snapshot.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        SnapshotNotFoundError
            There is no such snapshot.
        ConflictError
            The branch is not at `from_snapshot_id`.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> first = repo.lookup_branch("main")
        >>> with repo.transaction("main", message="mistake") as store:
        ...     _ = zarr.create_group(store)
        >>> repo.reset_branch("main", first)
        >>> repo.lookup_branch("main") == first
        True
        """
        await self._context.metadata_files.fetch_snapshot_file(snapshot_id, anew=True)
        ledger = self._context.ledger
        before = await ledger.reset_branch(branch, snapshot_id, from_snapshot_id)
        undo = partial(ledger.reset_branch, branch, before, snapshot_id)
        await check_target(self._context, NewTarget(snapshot_id, undo, branch, before))

    reset_branch = blocking(reset_branch_async)

    async def delete_branch_async(self, branch: str) -> None:
        """Delete a branch. Its snapshots stay until they are garbage collected.

        Parameters
        ----------
        branch
            Name of the branch.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        InvalidInputError
            The branch is `main`, which cannot be deleted.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.create_branch("dev", repo.lookup_branch("main"))
        >>> repo.delete_branch("dev")
        >>> repo.list_branches()
        {'main'}
        """
        await self._context.ledger.delete_branch(branch)

    delete_branch = blocking(delete_branch_async)

    async def create_tag_async(self, tag: str, snapshot_id: str) -> None:
        """Create a tag: a name for a snapshot that never moves.

        Parameters
        ----------
        tag
            Name of the tag. It must not contain `/`.
        snapshot_id
            Snapshot that the tag points to.

        Raises
        ------
        AlreadyExistsError
            The name is used, or was used by a tag that has been deleted.
        SessionStateError
            The feature flag `create_tag` is off.
        SnapshotNotFoundError
            There is no such snapshot.
        InvalidInputError
            The name is not allowed.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.create_tag("v1", repo.lookup_branch("main"))
        >>> repo.list_tags()
        {'v1'}
        """
        await self._context.check_writable()
        await self._context.metadata_files.fetch_snapshot_file(snapshot_id, anew=True)
        await self._context.ledger.create_tag(tag, snapshot_id)
        await check_target(self._context, NewTarget(snapshot_id, lambda: self._context.ledger.withdraw_tag(tag)))

    create_tag = blocking(create_tag_async)

    async def list_tags_async(self) -> set[str]:
        """Return the names of all tags.

        Returns
        -------
        set of str
            The names.

        Examples
        --------
        >>> import icefloe
        >>> icefloe.Repository.create(icefloe.in_memory_storage()).list_tags()
        set()
        """
        return await self._context.ledger.list_tags()

    list_tags = blocking(list_tags_async)

    async def lookup_tag_async(self, tag: str) -> ObjectId:
        """Return the snapshot of a tag.

        Parameters
        ----------
        tag
            Name of the tag.

        Returns
        -------
        str
            Id of the snapshot.

        Raises
        ------
        RefNotFoundError
            There is no such tag.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.create_tag("v1", repo.lookup_branch("main"))
        >>> repo.lookup_tag("v1") == repo.lookup_branch("main")
        True
        """
        return await self._context.ledger.fetch_tag(tag)

    lookup_tag = blocking(lookup_tag_async)

    async def delete_tag_async(self, tag: str) -> None:
        """Delete a tag. Its name cannot be used again.

        Parameters
        ----------
        tag
            Name of the tag.

        Raises
        ------
        RefNotFoundError
            There is no such tag.
        UnsupportedError
            Tags of this generation cannot be deleted.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
        >>> repo.create_tag("v1", repo.lookup_branch("main"))
        >>> repo.delete_tag("v1")
        >>> repo.list_tags()
        set()
        """
        await self._context.ledger.delete_tag(tag)

    delete_tag = blocking(delete_tag_async)


class InspectionMixin:
    """The methods of `Repository` that show the content of files."""

    _context: RepositoryContext

    async def chunk_storage_stats_async(
        self,
        *,
        max_compressed_manifest_mem_bytes: int = 512 << 20,
        max_decoded_manifest_mem_bytes: int = 4 << 30,
        max_concurrent_manifest_fetches: int = 32,
        **ignored: Any,
    ) -> ChunkStorageStats:
        """Return the size of all chunks that branches and tags reach, in all of history.

        Chunks that several snapshots share are counted once.

        Parameters
        ----------
        max_compressed_manifest_mem_bytes
            Largest total size of compressed manifests in memory.
        max_decoded_manifest_mem_bytes
            Largest total size of decoded manifests in memory. It is estimated from their number of references. A single
            manifest may be larger.
        max_concurrent_manifest_fetches
            Largest number of manifests that are read at the same time.
        **ignored
            Further limits of icechunk's method. They are accepted and have no effect.

        Returns
        -------
        ChunkStorageStats
            Bytes of native, virtual and inline chunks.

        Raises
        ------
        InvalidInputError
            An argument does not exist.

        Examples
        --------
        >>> import icefloe
        >>> icefloe.Repository.create(icefloe.in_memory_storage()).chunk_storage_stats().native_bytes
        0
        """
        if ignored:
            check_keywords(self.chunk_storage_stats_async, ignored, _IGNORED_LIMITS)
        limits = marking.FetchLimits(
            max(1, min(max_concurrent_manifest_fetches, 256)),
            max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes,
        )
        return await inspection.chunk_storage_stats(self._context, limits)

    chunk_storage_stats = blocking(chunk_storage_stats_async)

    async def total_chunks_storage_async(self, **limits: int) -> int:
        """Return the size of all chunk objects that branches and tags reach, in all of history.

        Parameters
        ----------
        **limits
            Limits of `chunk_storage_stats`.

        Returns
        -------
        int
            Number of bytes.

        Examples
        --------
        >>> import icefloe
        >>> icefloe.Repository.create(icefloe.in_memory_storage()).total_chunks_storage()
        0
        """
        return (await self.chunk_storage_stats_async(**limits)).native_bytes

    total_chunks_storage = blocking(total_chunks_storage_async)

    async def inspect_snapshot_async(self, snapshot_id: str) -> dict[str, Any]:
        """Return the content of a snapshot file as plain data.

        Parameters
        ----------
        snapshot_id
            Id of the snapshot.

        Returns
        -------
        dict
            Header, message, metadata, manifests and nodes.

        Raises
        ------
        SnapshotNotFoundError
            There is no such snapshot.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.inspect_snapshot(repo.lookup_branch("main"))["commit_message"]
        'Repository initialized'
        """
        return await inspection.inspect_snapshot(self._context, snapshot_id)

    inspect_snapshot = blocking(inspect_snapshot_async)

    async def inspect_manifest_async(self, manifest_id: str) -> dict[str, Any]:
        """Return a summary of a manifest file as plain data.

        Parameters
        ----------
        manifest_id
            Id of the manifest.

        Returns
        -------
        dict
            Header, size, and the number of references by array and kind.

        Raises
        ------
        ObjectNotFoundError
            There is no such manifest.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.transaction("main", message="array") as store:
        ...     zarr.create_array(store, name="t", shape=4, chunks=2, dtype="i4")[:] = 1
        >>> manifest = repo.list_manifest_files(repo.lookup_branch("main"))[0]
        >>> repo.inspect_manifest(manifest.id)["total_chunk_refs"]
        2
        """
        return await inspection.inspect_manifest(self._context, manifest_id)

    inspect_manifest = blocking(inspect_manifest_async)

    async def inspect_transaction_log_async(self, snapshot_id: str) -> dict[str, Any]:
        """Return the content of a transaction log as plain data.

        Parameters
        ----------
        snapshot_id
            Id of the snapshot that the commit created.

        Returns
        -------
        dict
            Header, ids of new, deleted, updated and moved nodes, and the coordinates of changed chunks. If ancestors
            were expired, their changes are included, and `synthetic_composite` lists their ids.

        Raises
        ------
        NotFoundError
            There is no such snapshot, or it has no transaction log.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.transaction("main", message="array") as store:
        ...     _ = zarr.create_array(store, name="t", shape=4, dtype="i4")
        >>> len(repo.inspect_transaction_log(repo.lookup_branch("main"))["new_arrays"])
        1
        """
        return await inspection.inspect_transaction_log(self._context, snapshot_id)

    inspect_transaction_log = blocking(inspect_transaction_log_async)
