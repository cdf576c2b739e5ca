"""Maintenance and merging of branches, as methods of a repository."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from icefloe.blocking import blocking, current_time
from icefloe.errors import InvalidInputError
from icefloe.ids import ObjectId
from icefloe.maintenance import merge as merging
from icefloe.maintenance.collect import CollectionPlan, CollectionRequest, GCSummary, collect, plan_collection_of
from icefloe.maintenance.compact import (
    ChunkOrder,
    CompactionPlan,
    CompactRequest,
    CompactSummary,
    Layout,
    RewriteRequest,
    compact,
    plan_compaction,
    plan_rewrite,
    rewrite_manifests,
)
from icefloe.maintenance.expire import ExpiryPlan, ExpiryRequest, RetentionRule, apply_expiry, expire, plan_expiry_of
from icefloe.maintenance.inventory import Report, listening, open_uncached, own_texts, taken_back, taken_over
from icefloe.maintenance.marking import FetchLimits
from icefloe.maintenance.merge import FastForwardPlan, MergePlan, MergeRequest, SquashPlan
from icefloe.maintenance.mirror import MirrorPlan, mirror, plan_mirror
from icefloe.maintenance.verify import VerifyRequest, verify
from icefloe.maintenance.verify import repair as repair_damage
from icefloe.maintenance.verify_checks import VerifyReport
from icefloe.manifests.plan import ManifestPlan
from icefloe.model.snapshot import INGESTED_KEY
from icefloe.session.history import check_past
from icefloe.session.open_repository import RepositoryParts
from icefloe.session.rebase import ConflictDetector, ConflictSolver
from icefloe.storage.build import resolve_storage
from icefloe.storage.contract import Storage


class MaintenanceMixin:
    """The part of `Repository` that cleans up."""

    _engine: RepositoryParts
    _default_metadata: dict[str, Any]

    async def expire_snapshots_async(
        self,
        older_than: dt.datetime | dt.timedelta | None = None,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
        retain_last: int | None = None,
        rules: Sequence[RetentionRule] = (),
        snapshots: Iterable[str] = (),
        progress: Report | None = None,
    ) -> set[ObjectId]:
        """Take old snapshots out of history; their files stay until `garbage_collect`. Returns their ids.

        What a branch or tag points at stays, and so does the first snapshot. History stays walkable: a kept snapshot
        whose parent goes gets its nearest kept ancestor.

        Parameters
        ----------
        older_than
            Snapshots written before this time, or longer ago than this, expire.
        delete_expired_branches, delete_expired_tags
            Refs whose own snapshot expires go, too; `main` never does.
        retain_last
            The newest so many commits of every branch and tag stay, however old.
        rules
            What is kept of some branches and tags; refs that no rule matches follow `older_than` and `retain_last`.
        snapshots
            Expire exactly these instead.
        progress
            Called with a stage, how much of it is done and how much there is (0 where nobody knows). Every verb of
            maintenance takes it.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> for number in range(3):
        ...     with repo.transaction("main", message=f"commit {number}") as store:
        ...         _ = zarr.create_group(store, path=f"g{number}")
        >>> len(repo.expire_snapshots(retain_last=1))
        2
        >>> [info.message for info in repo.ancestry(branch="main")]
        ['commit 2', 'Repository initialized']
        """
        request = _expiry_request(
            older_than, retain_last, rules, snapshots, delete_expired_branches, delete_expired_tags
        )
        with listening(progress):
            return set((await expire(self._engine, request)).change.expired)

    expire_snapshots = blocking(expire_snapshots_async)

    async def plan_expiry_async(
        self,
        older_than: dt.datetime | dt.timedelta | None = None,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
        retain_last: int | None = None,
        rules: Sequence[RetentionRule] = (),
        snapshots: Iterable[str] = (),
    ) -> ExpiryPlan:
        """What `expire_snapshots` would do now; nothing is changed."""
        request = _expiry_request(
            older_than, retain_last, rules, snapshots, delete_expired_branches, delete_expired_tags
        )
        return await plan_expiry_of(self._engine, request)

    plan_expiry = blocking(plan_expiry_async)

    async def apply_expiry_async(self, plan: ExpiryPlan, *, progress: Report | None = None) -> set[ObjectId]:
        """Carry out what `plan_expiry` planned; what refs point at by now stays."""
        with listening(progress):
            return set((await apply_expiry(self._engine, plan)).change.expired)

    apply_expiry = blocking(apply_expiry_async)

    async def garbage_collect_async(
        self,
        delete_object_older_than: dt.datetime | dt.timedelta,
        *,
        dry_run: bool = False,
        created_after: dt.datetime | None = None,
        ignore_running_sessions: bool = False,
        incremental: bool = False,
        max_compressed_manifest_mem_bytes: int = 512 << 20,
        max_concurrent_manifest_fetches: int = 32,
        progress: Report | None = None,
        **_: Any,
    ) -> GCSummary:
        """Delete what no branch or tag leads to and what is old enough.

        Parameters
        ----------
        delete_object_older_than
            Objects modified before this time, or longer ago than this, by the store's clock, are judged. Choose it so
            that no writer has been under way for longer: chunks of a session are unreachable until it commits.
        dry_run
            Say what would be deleted, delete nothing; `plan_garbage_collection` tells more.
        created_after
            Leave objects alone that are older than this, because an earlier run judged them.
        incremental
            Begin with what the last incremental run learnt (a small file in the repository), so that only new commits
            are read and nothing is listed but snapshots. What dead writers left in between stays until the next full
            run.
        ignore_running_sessions
            Collect although a writable session of this process is older than the given time.

        Examples
        --------
        >>> import datetime, icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.garbage_collect(datetime.timedelta(days=1)).chunks_deleted
        0
        """
        limits = FetchLimits(max(1, min(max_concurrent_manifest_fetches, 256)), max_compressed_manifest_mem_bytes)
        request = CollectionRequest(
            delete_object_older_than, created_after, limits, ignore_running_sessions, incremental
        )
        with listening(progress):
            if dry_run:
                return (await plan_collection_of(open_uncached(self._engine), request)).plan.summary()
            return await collect(self._engine, request)

    garbage_collect = blocking(garbage_collect_async)

    async def plan_garbage_collection_async(
        self,
        delete_object_older_than: dt.datetime | dt.timedelta,
        *,
        created_after: dt.datetime | None = None,
        incremental: bool = False,
        progress: Report | None = None,
    ) -> CollectionPlan:
        """What `garbage_collect` would delete now, object by object; nothing is changed."""
        request = CollectionRequest(
            delete_object_older_than, created_after, ignore_running=True, incremental=incremental
        )
        with listening(progress):
            return (await plan_collection_of(open_uncached(self._engine), request)).plan

    plan_garbage_collection = blocking(plan_garbage_collection_async)

    async def rewrite_manifests_async(
        self,
        message: str,
        *,
        branch: str,
        metadata: Mapping[str, Any] | None = None,
        commit_method: Literal["new_commit", "amend"] = "new_commit",
        progress: Report | None = None,
    ) -> ObjectId:
        """Commit the same data under manifests packed anew after the configuration; returns the snapshot."""
        merged = {**self._default_metadata, **(metadata or {})}
        with listening(progress):
            return await rewrite_manifests(
                self._engine, RewriteRequest(branch, message, merged, amends=commit_method == "amend")
            )

    rewrite_manifests = blocking(rewrite_manifests_async)

    async def plan_rewrite_manifests_async(self, branch: str = "main") -> ManifestPlan:
        """How `rewrite_manifests` would pack the manifests of a branch now; nothing is changed."""
        return await plan_rewrite(self._engine, branch)

    plan_rewrite_manifests = blocking(plan_rewrite_manifests_async)

    async def compact_async(
        self,
        branch: str = "main",
        *,
        arrays: str = "*",
        region: Sequence[tuple[int, int]] | None = None,
        order: Literal["chunk", "hilbert"] = "chunk",
        unpack: bool = False,
        message: str | None = None,
        progress: Report | None = None,
        **settings: Any,
    ) -> CompactSummary:
        """Write small chunks that are alone, or in packs with dead bytes, into packs; or chunks out of packs.

        Nobody's data changes: writers beside it keep what they wrote, and do not clash with it. Every batch is
        committed on its own, so that an interrupted run keeps what it did.

        Parameters
        ----------
        arrays
            Which arrays, as a pattern of paths.
        region
            Only chunks in this box of the chunk grid, [first, end) per dimension.
        order
            How chunks lie in packs: in the order of their coordinates, or along a Hilbert curve, where neighbours in
            every dimension are near each other.
        unpack
            Make chunks in packs objects of their own instead.
        settings
            `threshold_bytes`, `target_bytes`, `dead_share`, `batch_bytes`.
        """
        layout = Layout.UNPACK if unpack else Layout.PACK
        request = _compact_request(branch, layout, arrays, region, order, message, settings)
        with listening(progress):
            return await compact(self._engine, await plan_compaction(self._engine, request))

    compact = blocking(compact_async)

    async def apply_compaction_async(self, plan: CompactionPlan, *, progress: Report | None = None) -> CompactSummary:
        """Carry out what `plan_compaction` planned; chunks that changed meanwhile are left alone."""
        with listening(progress):
            return await compact(self._engine, plan)

    apply_compaction = blocking(apply_compaction_async)

    async def plan_compaction_async(
        self,
        branch: str = "main",
        *,
        arrays: str = "*",
        region: Sequence[tuple[int, int]] | None = None,
        order: Literal["chunk", "hilbert"] = "chunk",
        unpack: bool = False,
        materialize: bool = False,
        **settings: Any,
    ) -> CompactionPlan:
        """What `compact` (or `materialize`) would write anew now; nothing is changed."""
        layout = Layout.MATERIALIZE if materialize else Layout.UNPACK if unpack else Layout.PACK
        request = _compact_request(branch, layout, arrays, region, order, None, settings)
        return await plan_compaction(self._engine, request)

    plan_compaction = blocking(plan_compaction_async)

    async def materialize_async(
        self,
        branch: str = "main",
        *,
        arrays: str = "*",
        region: Sequence[tuple[int, int]] | None = None,
        message: str | None = None,
        progress: Report | None = None,
        **settings: Any,
    ) -> CompactSummary:
        """Copy virtual chunks into the repository, so that it no longer needs the files they lie in."""
        request = _compact_request(branch, Layout.MATERIALIZE, arrays, region, "chunk", message, settings)
        with listening(progress):
            return await compact(self._engine, await plan_compaction(self._engine, request))

    materialize = blocking(materialize_async)

    async def mirror_async(self, target: Storage | str | Path, *, progress: Report | None = None) -> MirrorPlan:
        """Make another storage a copy of this repository; again, only what is new is copied.

        Readers of the copy see the old state or the new one. Nobody may commit to the copy.
        """
        with listening(progress):
            return await mirror(self._engine, resolve_storage(target))

    mirror = blocking(mirror_async)

    async def plan_mirror_async(self, target: Storage | str | Path) -> MirrorPlan:
        """What `mirror` would copy now; nothing is changed."""
        return await plan_mirror(self._engine, resolve_storage(target))

    plan_mirror = blocking(plan_mirror_async)

    async def verify_async(
        self,
        *,
        logs: bool = True,
        decode: bool = False,
        virtual: bool = True,
        repair: bool = False,
        progress: Report | None = None,
    ) -> VerifyReport:
        """Check that everything branches and tags lead to is there and is what it should be.

        Parameters
        ----------
        logs
            Compare transaction logs with what their snapshots changed.
        decode
            Read and decode every chunk at the tips of branches and tags.
        virtual
            Look whether the files of virtual chunks are there and unchanged, with one request a file. Files in
            containers that were not authorised are not looked at; `unchecked` of the report names them.
        repair
            Repair what needs no guess (logs, sizes, quotes of history), and report what is left.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.verify().is_clean
        True
        """
        request = VerifyRequest(logs, decode, virtual)
        with listening(progress):
            if not repair:
                return await verify(self._engine, request)
            return (await repair_damage(self._engine, request))[1]

    verify = blocking(verify_async)


def _expiry_request(
    older_than: dt.datetime | dt.timedelta | None,
    retain_last: int | None,
    rules: Sequence[RetentionRule],
    snapshots: Iterable[str],
    delete_branches: bool,
    delete_tags: bool,
) -> ExpiryRequest:
    now = current_time()
    moment = now - older_than if isinstance(older_than, dt.timedelta) else older_than
    if moment is not None:
        check_past(moment, "older_than", now)
    return ExpiryRequest(moment, retain_last, tuple(rules), frozenset(snapshots), delete_branches, delete_tags, now)


def _compact_request(
    branch: str,
    layout: Layout,
    arrays: str,
    region: Sequence[tuple[int, int]] | None,
    order: str,
    message: str | None,
    settings: Mapping[str, Any],
) -> CompactRequest:
    allowed = ("threshold_bytes", "target_bytes", "dead_share", "batch_bytes")
    unknown = settings.keys() - set(allowed)
    if unknown:
        raise InvalidInputError(f"unknown settings {', '.join(sorted(unknown))}; there are: {', '.join(allowed)}")
    try:
        chosen = ChunkOrder(order)
    except ValueError as error:
        raise InvalidInputError(f"order={order!r}: expected 'chunk' or 'hilbert'") from error
    box = None if region is None else tuple((int(first), int(end)) for first, end in region)
    return CompactRequest(branch, layout, arrays, box, chosen, message=message, **settings)


class MergingMixin:
    """The part of `Repository` that joins histories. In conflicts, *ours* is what comes to the branch."""

    _engine: RepositoryParts
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
        request = await self._merge_request(source, into, solver, message, metadata, fast_forward)
        return await merging.apply_change(self._engine, request)

    merge = blocking(merge_async)

    async def plan_merge_async(
        self, source: str, into: str = "main", *, solver: ConflictSolver | None = None, fast_forward: bool = True
    ) -> MergePlan:
        """What `merge` would do now, with every conflict; nothing is changed."""
        request = await self._merge_request(source, into, solver, None, None, fast_forward)
        return await merging.plan_change(self._engine, request)

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
        ledger = self._engine.ledger
        ours, theirs = await ledger.fetch_tip(source), await ledger.fetch_tip(into)
        base = await merging.find_merge_base(self._engine, ours.snapshot_id, theirs.snapshot_id)
        told = {**self._default_metadata, "merged_branch": source, merging.MERGED: ours.snapshot_id}
        known, tip = await ledger.fetch_info(base), await ledger.fetch_info(ours.snapshot_id)
        told |= _ingested(taken_over(known.metadata, tip.metadata))
        return MergeRequest(
            into,
            base,
            ours.snapshot_id,
            message or f"Merge branch {source!r}",
            {**told, **(metadata or {})},
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
        """Bring the change of one commit, from anywhere, to a branch; returns the new snapshot."""
        request = await self._pick_request(snapshot_id, branch, solver, message, metadata)
        return await merging.apply_change(self._engine, request)

    cherry_pick = blocking(cherry_pick_async)

    async def plan_cherry_pick_async(
        self, snapshot_id: str, branch: str = "main", *, solver: ConflictSolver | None = None
    ) -> MergePlan:
        """What `cherry_pick` would do now; nothing is changed."""
        request = await self._pick_request(snapshot_id, branch, solver, None, None)
        return await merging.plan_change(self._engine, request)

    plan_cherry_pick = blocking(plan_cherry_pick_async)

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

    async def revert_async(
        self,
        snapshot_id: str,
        branch: str = "main",
        *,
        solver: ConflictSolver | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ObjectId:
        """Undo the change of one commit by a new one; returns the new snapshot."""
        request = await self._revert_request(snapshot_id, branch, solver, message, metadata)
        return await merging.apply_change(self._engine, request)

    revert = blocking(revert_async)

    async def plan_revert_async(
        self, snapshot_id: str, branch: str = "main", *, solver: ConflictSolver | None = None
    ) -> MergePlan:
        """What `revert` would do now; nothing is changed."""
        request = await self._revert_request(snapshot_id, branch, solver, None, None)
        return await merging.plan_change(self._engine, request)

    plan_revert = blocking(plan_revert_async)

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

    async def fast_forward_async(self, branch: str, snapshot_id: str) -> ObjectId:
        """Move a branch to a descendant of where it stands; ConflictError when it has commits of its own."""
        return await merging.fast_forward(self._engine, branch, snapshot_id)

    fast_forward = blocking(fast_forward_async)

    async def plan_fast_forward_async(self, branch: str, snapshot_id: str) -> FastForwardPlan:
        """What `fast_forward` would do now; nothing is changed."""
        return await merging.plan_fast_forward(self._engine, branch, snapshot_id)

    plan_fast_forward = blocking(plan_fast_forward_async)

    async def squash_async(
        self, branch: str, onto: str, *, message: str, metadata: Mapping[str, Any] | None = None
    ) -> ObjectId:
        """Replace all commits of a branch after the snapshot `onto` by one with the same content."""
        plan = await merging.plan_squash(self._engine, branch, onto)
        return await merging.squash(self._engine, plan, message, {**self._default_metadata, **(metadata or {})})

    squash = blocking(squash_async)

    async def plan_squash_async(self, branch: str, onto: str) -> SquashPlan:
        """What `squash` would do now; nothing is changed."""
        return await merging.plan_squash(self._engine, branch, onto)

    plan_squash = blocking(plan_squash_async)


def _ingested(texts: list[str]) -> dict[str, Any]:
    return {INGESTED_KEY: texts} if texts else {}
