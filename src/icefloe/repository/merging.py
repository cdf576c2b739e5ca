"""Bringing changes from branch to branch, as a user of a repository asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icefloe.blocking import run_blocking
from icefloe.ids import ObjectId
from icefloe.maintenance import merge as merging
from icefloe.maintenance.merge import FastForwardPlan, MergeRequest, SquashPlan
from icefloe.maintenance.merge_plan import MergePlan
from icefloe.maintenance.side_objects import own_texts, taken_back, taken_over
from icefloe.model.snapshot import INGESTED_KEY
from icefloe.session.conflicts import ConflictDetector, ConflictSolver
from icefloe.session.engine import Engine


class MergingDoor:
    """The part of `Repository` that joins histories. In conflicts, *ours* is what comes to the branch."""

    _engine: Engine
    _default_metadata: dict[str, Any]

    def merge(
        self,
        source: str,
        into: str = "main",
        *,
        solver: ConflictSolver | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        fast_forward: bool = True,
    ) -> ObjectId:
        """Bring the commits of a branch to another one; returns where that one stands then.

        A branch without commits of its own is only moved (`fast_forward`). Otherwise one commit is made that holds the
        changes of `source` since both parted. RebaseFailedError lists every conflict that the solver left.

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
        return run_blocking(
            self.merge_async(source, into, solver=solver, message=message, metadata=metadata, fast_forward=fast_forward)
        )

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
        """`merge`, awaited."""
        request = await self._merge_request(source, into, solver, message, metadata, fast_forward)
        return await merging.apply_change(self._engine, request)

    def plan_merge(
        self, source: str, into: str = "main", *, solver: ConflictSolver | None = None, fast_forward: bool = True
    ) -> MergePlan:
        """What `merge` would do now, with every conflict; nothing is changed."""

        async def plan() -> MergePlan:
            request = await self._merge_request(source, into, solver, None, None, fast_forward)
            return await merging.plan_change(self._engine, request)

        return run_blocking(plan())

    async def _merge_request(
        self,
        source: str,
        into: str,
        solver: ConflictSolver | None,
        message: str | None,
        metadata: Mapping[str, Any] | None,
        fast_forward: bool,
    ) -> MergeRequest:
        ledger = self._engine.ledger
        ours, theirs = await ledger.fetch_tip(source), await ledger.fetch_tip(into)
        base = await merging.find_merge_base(self._engine, ours.snapshot_id, theirs.snapshot_id)
        told = {**self._default_metadata, "merged_branch": source, merging.MERGED: ours.snapshot_id}
        known, tip = await ledger.fetch_info(base), await ledger.fetch_info(ours.snapshot_id)
        told |= _ingested(taken_over(known.metadata, tip.metadata))
        return MergeRequest(
            into, base, ours.snapshot_id, message or f"Merge branch {source!r}", {**told, **(metadata or {})},
            solver or ConflictDetector(), fast_forward,
        )  # fmt: skip

    def cherry_pick(
        self,
        snapshot_id: str,
        branch: str = "main",
        *,
        solver: ConflictSolver | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ObjectId:
        """Bring the change of one commit, from anywhere, to a branch; returns the new snapshot."""
        return run_blocking(
            self.cherry_pick_async(snapshot_id, branch, solver=solver, message=message, metadata=metadata)
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
        """`cherry_pick`, awaited."""
        request = await self._pick_request(snapshot_id, branch, solver, message, metadata)
        return await merging.apply_change(self._engine, request)

    def plan_cherry_pick(
        self, snapshot_id: str, branch: str = "main", *, solver: ConflictSolver | None = None
    ) -> MergePlan:
        """What `cherry_pick` would do now; nothing is changed."""

        async def plan() -> MergePlan:
            request = await self._pick_request(snapshot_id, branch, solver, None, None)
            return await merging.plan_change(self._engine, request)

        return run_blocking(plan())

    async def _pick_request(
        self,
        snapshot_id: str,
        branch: str,
        solver: ConflictSolver | None,
        message: str | None,
        metadata: Mapping[str, Any] | None,
    ) -> MergeRequest:
        parent = await merging.fetch_parent(self._engine, snapshot_id)
        picked = await self._engine.ledger.fetch_info(snapshot_id)
        told = {**self._default_metadata, "picked_snapshot": snapshot_id, **_ingested(own_texts(picked.metadata))}
        told |= metadata or {}
        return MergeRequest(branch, parent, snapshot_id, message or picked.message, told, solver or ConflictDetector())

    def revert(
        self,
        snapshot_id: str,
        branch: str = "main",
        *,
        solver: ConflictSolver | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ObjectId:
        """Undo the change of one commit by a new one; returns the new snapshot."""
        return run_blocking(self.revert_async(snapshot_id, branch, solver=solver, message=message, metadata=metadata))

    async def revert_async(
        self,
        snapshot_id: str,
        branch: str = "main",
        *,
        solver: ConflictSolver | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ObjectId:
        """`revert`, awaited."""
        request = await self._revert_request(snapshot_id, branch, solver, message, metadata)
        return await merging.apply_change(self._engine, request)

    def plan_revert(self, snapshot_id: str, branch: str = "main", *, solver: ConflictSolver | None = None) -> MergePlan:
        """What `revert` would do now; nothing is changed."""

        async def plan() -> MergePlan:
            request = await self._revert_request(snapshot_id, branch, solver, None, None)
            return await merging.plan_change(self._engine, request)

        return run_blocking(plan())

    async def _revert_request(
        self,
        snapshot_id: str,
        branch: str,
        solver: ConflictSolver | None,
        message: str | None,
        metadata: Mapping[str, Any] | None,
    ) -> MergeRequest:
        parent = await merging.fetch_parent(self._engine, snapshot_id)
        undone = await self._engine.ledger.fetch_info(snapshot_id)
        below = await self._engine.ledger.fetch_info(parent)
        gone = taken_back(below.metadata, undone.metadata)
        told = {**self._default_metadata, "reverted_snapshot": snapshot_id, **_ingested(gone), **(metadata or {})}
        return MergeRequest(
            branch, snapshot_id, parent, message or f"Revert {undone.message!r}", told, solver or ConflictDetector()
        )

    def fast_forward(self, branch: str, snapshot_id: str) -> ObjectId:
        """Move a branch to a descendant of where it stands; ConflictError when it has commits of its own."""
        return run_blocking(self.fast_forward_async(branch, snapshot_id))

    async def fast_forward_async(self, branch: str, snapshot_id: str) -> ObjectId:
        """`fast_forward`, awaited."""
        return await merging.fast_forward(self._engine, branch, snapshot_id)

    def plan_fast_forward(self, branch: str, snapshot_id: str) -> FastForwardPlan:
        """What `fast_forward` would do now; nothing is changed."""
        return run_blocking(merging.plan_fast_forward(self._engine, branch, snapshot_id))

    def squash(self, branch: str, onto: str, *, message: str, metadata: Mapping[str, Any] | None = None) -> ObjectId:
        """Replace all commits of a branch after the snapshot `onto` by one with the same content."""
        return run_blocking(self.squash_async(branch, onto, message=message, metadata=metadata))

    async def squash_async(
        self, branch: str, onto: str, *, message: str, metadata: Mapping[str, Any] | None = None
    ) -> ObjectId:
        """`squash`, awaited."""
        plan = await merging.plan_squash(self._engine, branch, onto)
        return await merging.squash(self._engine, plan, message, {**self._default_metadata, **(metadata or {})})

    def plan_squash(self, branch: str, onto: str) -> SquashPlan:
        """What `squash` would do now; nothing is changed."""
        return run_blocking(merging.plan_squash(self._engine, branch, onto))


def _ingested(texts: list[str]) -> dict[str, Any]:
    return {INGESTED_KEY: texts} if texts else {}
