"""Merges of branches, cherry-picks, reverts, fast-forwards and squashes, as methods of a repository."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from icefloe.blocking import blocking
from icefloe.ids import ObjectId
from icefloe.lazy_exports import lazy_module
from icefloe.model.snapshot import INGESTED_KEY, added_sources, own_sources, reverted_sources
from icefloe.session.open_repository import RepositoryContext
from icefloe.session.rebase import ConflictDetector, ConflictSolver

if TYPE_CHECKING:
    from icefloe.maintenance import merge as merging
    from icefloe.maintenance.merge import FastForwardPlan, MergePlan, MergeRequest, SquashPlan
else:
    merging = lazy_module("icefloe.maintenance.merge")


class MergingMixin:
    """The methods of `Repository` that combine branches. In conflicts, *ours* is the change applied to the branch."""

    _context: RepositoryContext
    _default_metadata: dict[str, Any]

    async def merge_async(
        self,
        source: str,
        into: str = "main",
        *,
        solver: ConflictSolver | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        fast_forward: bool = True,
    ) -> ObjectId:
        """Apply the commits of one branch to another branch.

        If `into` has no commits of its own, it is only moved. Otherwise one commit is created. It holds all changes of
        `source` since the common ancestor of both branches.

        Parameters
        ----------
        source
            Branch to read from. It is not changed.
        into
            Branch to change.
        solver
            Decides what happens to conflicts. Without a solver, every conflict is an error.
        message
            Message of the commit.
        metadata
            Properties of the commit.
        fast_forward
            Move the branch if it has no commits of its own. If False, a commit is always created.

        Returns
        -------
        str
            Id of the newest snapshot of `into`.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        RebaseFailedError
            The solver did not resolve all conflicts. The error lists them.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.transaction("main", message="a group") as store:
        ...     _ = zarr.create_group(store)
        >>> repo.create_branch("dev", repo.lookup_branch("main"))
        >>> for branch in ("dev", "main"):
        ...     with repo.transaction(branch, message=f"on {branch}") as store:
        ...         _ = zarr.create_array(store, name=branch, shape=3, dtype="i4")
        >>> _ = repo.merge("dev", "main")
        >>> sorted(zarr.open_group(repo.readonly_session("main").store, mode="r").array_keys())
        ['dev', 'main']
        """
        request = await self._merge_request(source, into, solver, message, metadata, fast_forward)
        return await merging.apply_change(self._context, request)

    merge = blocking(merge_async)

    async def plan_merge_async(
        self, source: str, into: str = "main", *, solver: ConflictSolver | None = None, fast_forward: bool = True
    ) -> MergePlan:
        """Return what `merge` would do now, with all conflicts. Nothing is changed.

        Parameters
        ----------
        source
            Branch to read from.
        into
            Branch to change.
        solver
            Decides what happens to conflicts.
        fast_forward
            Move the branch if it has no commits of its own.

        Returns
        -------
        MergePlan
            The changes and the conflicts.

        Raises
        ------
        RefNotFoundError
            There is no such branch.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.create_branch("dev", repo.lookup_branch("main"))
        >>> repo.plan_merge("dev", "main").conflicts
        ()
        """
        request = await self._merge_request(source, into, solver, None, None, fast_forward)
        return await merging.plan_change(self._context, request)

    plan_merge = blocking(plan_merge_async)

    async def _merge_request(
        self,
        source: str,
        into: str,
        solver: ConflictSolver | None,
        message: str | None,
        metadata: Mapping[str, Any] | None,
        fast_forward: bool,
    ) -> MergeRequest:
        ledger = self._context.ledger
        ours, theirs = await ledger.fetch_tip(source), await ledger.fetch_tip(into)
        base = await merging.find_merge_base(self._context, ours.snapshot_id, theirs.snapshot_id)
        properties = {**self._default_metadata, "merged_branch": source, merging.MERGED: ours.snapshot_id}
        known, tip = await ledger.fetch_info(base), await ledger.fetch_info(ours.snapshot_id)
        properties |= _ingested(added_sources(known.metadata, tip.metadata))
        return merging.MergeRequest(
            into,
            base,
            ours.snapshot_id,
            message or f"Merge branch {source!r}",
            {**properties, **(metadata or {})},
            solver or ConflictDetector(),
            fast_forward,
        )

    async def cherry_pick_async(
        self,
        snapshot_id: str,
        branch: str = "main",
        *,
        solver: ConflictSolver | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ObjectId:
        """Apply the changes of one commit to a branch, as a new commit.

        Parameters
        ----------
        snapshot_id
            Snapshot of the commit. It may be on any branch.
        branch
            Branch to change.
        solver
            Decides what happens to conflicts. Without a solver, every conflict is an error.
        message
            Message of the new commit. By default it is the message of the original commit.
        metadata
            Properties of the new commit.

        Returns
        -------
        str
            Id of the newest snapshot of the branch.

        Raises
        ------
        SnapshotNotFoundError
            There is no such snapshot.
        RefNotFoundError
            There is no such branch.
        InvalidInputError
            The snapshot is the first one of the repository.
        RebaseFailedError
            The solver did not resolve all conflicts. The error lists them.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.create_branch("dev", repo.lookup_branch("main"))
        >>> with repo.transaction("dev", message="a group") as store:
        ...     _ = zarr.create_group(store)
        >>> _ = repo.cherry_pick(repo.lookup_branch("dev"), "main")
        >>> [info.message for info in repo.ancestry(branch="main")]
        ['a group', 'Repository initialized']
        """
        request = await self._commit_request(snapshot_id, branch, solver, message, metadata, reverts=False)
        return await merging.apply_change(self._context, request)

    cherry_pick = blocking(cherry_pick_async)

    async def plan_cherry_pick_async(
        self, snapshot_id: str, branch: str = "main", *, solver: ConflictSolver | None = None
    ) -> MergePlan:
        """Return what `cherry_pick` would do now, with all conflicts. Nothing is changed.

        Parameters
        ----------
        snapshot_id
            Snapshot of the commit.
        branch
            Branch to change.
        solver
            Decides what happens to conflicts.

        Returns
        -------
        MergePlan
            The changes and the conflicts.

        Raises
        ------
        SnapshotNotFoundError
            There is no such snapshot.
        RefNotFoundError
            There is no such branch.
        InvalidInputError
            The snapshot is the first one of the repository.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.create_branch("dev", repo.lookup_branch("main"))
        >>> with repo.transaction("dev", message="a group") as store:
        ...     _ = zarr.create_group(store)
        >>> repo.plan_cherry_pick(repo.lookup_branch("dev"), "main").diff.new_groups
        {'/'}
        """
        request = await self._commit_request(snapshot_id, branch, solver, None, None, reverts=False)
        return await merging.plan_change(self._context, request)

    plan_cherry_pick = blocking(plan_cherry_pick_async)

    async def revert_async(
        self,
        snapshot_id: str,
        branch: str = "main",
        *,
        solver: ConflictSolver | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ObjectId:
        """Undo the changes of one commit with a new commit.

        Parameters
        ----------
        snapshot_id
            Snapshot of the commit to undo.
        branch
            Branch to change.
        solver
            Decides what happens to conflicts with later commits. Without a solver, every conflict is an error.
        message
            Message of the new commit.
        metadata
            Properties of the new commit.

        Returns
        -------
        str
            Id of the newest snapshot of the branch.

        Raises
        ------
        SnapshotNotFoundError
            There is no such snapshot.
        RefNotFoundError
            There is no such branch.
        InvalidInputError
            The snapshot is the first one of the repository.
        RebaseFailedError
            The solver did not resolve all conflicts. The error lists them.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.transaction("main", message="a group") as store:
        ...     _ = zarr.create_group(store)
        >>> _ = repo.revert(repo.lookup_branch("main"))
        >>> [info.message for info in repo.ancestry(branch="main")]
        ["Revert 'a group'", 'a group', 'Repository initialized']
        """
        request = await self._commit_request(snapshot_id, branch, solver, message, metadata, reverts=True)
        return await merging.apply_change(self._context, request)

    revert = blocking(revert_async)

    async def plan_revert_async(
        self, snapshot_id: str, branch: str = "main", *, solver: ConflictSolver | None = None
    ) -> MergePlan:
        """Return what `revert` would do now, with all conflicts. Nothing is changed.

        Parameters
        ----------
        snapshot_id
            Snapshot of the commit to undo.
        branch
            Branch to change.
        solver
            Decides what happens to conflicts.

        Returns
        -------
        MergePlan
            The changes and the conflicts.

        Raises
        ------
        SnapshotNotFoundError
            There is no such snapshot.
        RefNotFoundError
            There is no such branch.
        InvalidInputError
            The snapshot is the first one of the repository.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.transaction("main", message="a group") as store:
        ...     _ = zarr.create_group(store)
        >>> repo.plan_revert(repo.lookup_branch("main")).diff.deleted_groups
        {'/'}
        """
        request = await self._commit_request(snapshot_id, branch, solver, None, None, reverts=True)
        return await merging.plan_change(self._context, request)

    plan_revert = blocking(plan_revert_async)

    async def _commit_request(
        self,
        snapshot_id: str,
        branch: str,
        solver: ConflictSolver | None,
        message: str | None,
        metadata: Mapping[str, Any] | None,
        *,
        reverts: bool,
    ) -> MergeRequest:
        """The request that applies the changes of one commit to a branch, or undoes them."""
        parent_id = await merging.fetch_parent(self._context, snapshot_id)
        commit = await self._context.ledger.fetch_shown_info(snapshot_id)
        if reverts:
            parent = await self._context.ledger.fetch_info(parent_id)
            sources = reverted_sources(parent.metadata, commit.metadata)
            ends, text, key = (snapshot_id, parent_id), f"Revert {commit.message!r}", "reverted_snapshot"
        else:
            sources = own_sources(commit.metadata)
            ends, text, key = (parent_id, snapshot_id), commit.message, "picked_snapshot"
        properties = {**self._default_metadata, key: snapshot_id, **_ingested(sources), **(metadata or {})}
        return merging.MergeRequest(branch, *ends, message or text, properties, solver or ConflictDetector())

    async def fast_forward_async(self, branch: str, snapshot_id: str) -> ObjectId:
        """Move a branch to a descendant of its newest snapshot.

        Parameters
        ----------
        branch
            Name of the branch.
        snapshot_id
            The new snapshot of the branch.

        Returns
        -------
        str
            Id of the newest snapshot of the branch.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        SnapshotNotFoundError
            There is no such snapshot.
        ConflictError
            The branch has commits that `snapshot_id` does not descend from.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.create_branch("dev", repo.lookup_branch("main"))
        >>> with repo.transaction("dev", message="a group") as store:
        ...     _ = zarr.create_group(store)
        >>> repo.fast_forward("main", repo.lookup_branch("dev")) == repo.lookup_branch("dev")
        True
        """
        return await merging.fast_forward(self._context, branch, snapshot_id)

    fast_forward = blocking(fast_forward_async)

    async def plan_fast_forward_async(self, branch: str, snapshot_id: str) -> FastForwardPlan:
        """Return what `fast_forward` would do now. Nothing is changed.

        Parameters
        ----------
        branch
            Name of the branch.
        snapshot_id
            The new snapshot of the branch.

        Returns
        -------
        FastForwardPlan
            The current and the new snapshot of the branch.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        SnapshotNotFoundError
            There is no such snapshot.
        ConflictError
            The branch has commits that `snapshot_id` does not descend from.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> plan = repo.plan_fast_forward("main", repo.lookup_branch("main"))
        >>> plan.tip == plan.target
        True
        """
        return await merging.plan_fast_forward(self._context, branch, snapshot_id)

    plan_fast_forward = blocking(plan_fast_forward_async)

    async def squash_async(
        self, branch: str, onto: str, *, message: str, metadata: Mapping[str, Any] | None = None
    ) -> ObjectId:
        """Replace all commits of a branch after a snapshot by one commit with the same content.

        Parameters
        ----------
        branch
            Name of the branch.
        onto
            Snapshot that becomes the parent of the new commit. It must be in the history of the branch.
        message
            Message of the new commit.
        metadata
            Properties of the new commit.

        Returns
        -------
        str
            Id of the newest snapshot of the branch.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        SnapshotNotFoundError
            `onto` is not in the history of the branch.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> first = repo.lookup_branch("main")
        >>> for name in "ab":
        ...     with repo.transaction("main", message=name) as store:
        ...         _ = zarr.create_group(store, path=name)
        >>> _ = repo.squash("main", first, message="a and b")
        >>> [info.message for info in repo.ancestry(branch="main")]
        ['a and b', 'Repository initialized']
        """
        plan = await merging.plan_squash(self._context, branch, onto)
        return await merging.squash(self._context, plan, message, {**self._default_metadata, **(metadata or {})})

    squash = blocking(squash_async)

    async def plan_squash_async(self, branch: str, onto: str) -> SquashPlan:
        """Return what `squash` would do now. Nothing is changed.

        Parameters
        ----------
        branch
            Name of the branch.
        onto
            Snapshot that becomes the parent of the new commit.

        Returns
        -------
        SquashPlan
            The commits to replace.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        SnapshotNotFoundError
            `onto` is not in the history of the branch.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> first = repo.lookup_branch("main")
        >>> with repo.transaction("main", message="a group") as store:
        ...     _ = zarr.create_group(store)
        >>> len(repo.plan_squash("main", first).commits)
        1
        """
        return await merging.plan_squash(self._context, branch, onto)

    plan_squash = blocking(plan_squash_async)


def _ingested(texts: list[str]) -> dict[str, Any]:
    return {INGESTED_KEY: texts} if texts else {}
