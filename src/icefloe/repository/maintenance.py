"""Expiry, garbage collection, compaction, mirrors and checks, as methods of a repository."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from icefloe.blocking import blocking, current_time
from icefloe.errors import InvalidInputError, check_keywords
from icefloe.ids import ObjectId
from icefloe.lazy_exports import lazy_module
from icefloe.model.snapshot import check_past
from icefloe.session.open_repository import RepositoryContext
from icefloe.storage.build import resolve_storage
from icefloe.storage.contract import StorageLike

if TYPE_CHECKING:
    from icefloe.maintenance import collect as collection
    from icefloe.maintenance import compact as compaction
    from icefloe.maintenance import expire as expiry
    from icefloe.maintenance import inventory, marking
    from icefloe.maintenance import mirror as mirroring
    from icefloe.maintenance import verify as verification
    from icefloe.maintenance import verify_sources as source_verification
    from icefloe.maintenance.collect import CollectionPlan, GCSummary
    from icefloe.maintenance.compact import CompactionPlan, CompactRequest, CompactSummary, Layout
    from icefloe.maintenance.expire import ExpiryPlan, ExpiryRequest, RetentionRule
    from icefloe.maintenance.inventory import Report
    from icefloe.maintenance.mirror import MirrorPlan
    from icefloe.maintenance.verify_checks import VerifyReport
    from icefloe.maintenance.verify_sources import SourceReport
    from icefloe.manifests.manifest_plan import ManifestPlan
else:
    # Most programs never maintain a repository.
    collection = lazy_module("icefloe.maintenance.collect")
    compaction = lazy_module("icefloe.maintenance.compact")
    expiry = lazy_module("icefloe.maintenance.expire")
    inventory = lazy_module("icefloe.maintenance.inventory")
    marking = lazy_module("icefloe.maintenance.marking")
    mirroring = lazy_module("icefloe.maintenance.mirror")
    source_verification = lazy_module("icefloe.maintenance.verify_sources")
    verification = lazy_module("icefloe.maintenance.verify")

_IGNORED_LIMITS = (
    "max_snapshots_in_memory",
    "max_concurrent_deletes",
    "max_consecutive_delete_failures",
    "max_concurrent_listings",
)
"""Arguments of `garbage_collect` in the official package that have no effect here."""


class MaintenanceMixin:
    """The methods of `Repository` that remove, rewrite, copy and check data."""

    _context: RepositoryContext
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
        """Remove old snapshots from history. Their files stay until `garbage_collect` deletes them.

        The newest snapshot of each branch, the snapshot of each tag and the first snapshot are kept. If the parent of a
        kept snapshot expires, its nearest kept ancestor becomes its parent.

        Parameters
        ----------
        older_than
            Expire snapshots that were written before this time, or longer ago than this.
        delete_expired_branches, delete_expired_tags
            Also delete branches or tags whose own snapshot expires. `main` is never deleted.
        retain_last
            Keep this many of the newest commits of every branch and tag, however old they are.
        rules
            Rules for certain branches and tags. All others follow `older_than` and `retain_last`.
        snapshots
            Expire exactly these snapshots instead.
        progress
            Called with the name of a stage, the amount done, and the total amount (0 if it is not known).

        Returns
        -------
        set of str
            Ids of the expired snapshots.

        Raises
        ------
        InvalidInputError
            Nothing is chosen, `older_than` is in the future or has no time zone, or `retain_last` is less than 1.
        SnapshotNotFoundError
            One of `snapshots` is not in the history of a branch or tag.
        ReadOnlyError
            The repository is read-only.

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
        with inventory.reporting_to(progress):
            return set((await expiry.expire(self._context, request)).change.expired)

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
        """Return what `expire_snapshots` would do now. Nothing is changed.

        Parameters
        ----------
        older_than
            Expire snapshots that were written before this time, or longer ago than this.
        delete_expired_branches, delete_expired_tags
            Also delete branches or tags whose own snapshot expires.
        retain_last
            Keep this many of the newest commits of every branch and tag.
        rules
            Rules for certain branches and tags.
        snapshots
            Expire exactly these snapshots instead.

        Returns
        -------
        ExpiryPlan
            The snapshots that expire and the new parents. Pass it to `apply_expiry`.

        Raises
        ------
        InvalidInputError
            The arguments are not valid, as in `expire_snapshots`.
        SnapshotNotFoundError
            One of `snapshots` is not in the history of a branch or tag.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> print(repo.plan_expiry(retain_last=1))
        0 snapshots to expire, 1 stay
        """
        request = _expiry_request(
            older_than, retain_last, rules, snapshots, delete_expired_branches, delete_expired_tags
        )
        return await expiry.plan_expiry_of(self._context, request)

    plan_expiry = blocking(plan_expiry_async)

    async def apply_expiry_async(self, plan: ExpiryPlan, *, progress: Report | None = None) -> set[ObjectId]:
        """Expire the snapshots of a plan. Snapshots that a branch or tag points to by now are kept.

        Parameters
        ----------
        plan
            The result of `plan_expiry`.
        progress
            Called with the name of a stage, the amount done, and the total amount (0 if it is not known).

        Returns
        -------
        set of str
            Ids of the expired snapshots.

        Raises
        ------
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.apply_expiry(repo.plan_expiry(retain_last=1))
        set()
        """
        with inventory.reporting_to(progress):
            return set((await expiry.apply_expiry(self._context, plan)).change.expired)

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
        max_decoded_manifest_mem_bytes: int = 4 << 30,
        max_concurrent_manifest_fetches: int = 32,
        progress: Report | None = None,
        **ignored: Any,
    ) -> GCSummary:
        """Delete old objects that no branch or tag reaches.

        Parameters
        ----------
        delete_object_older_than
            Only delete objects that were last modified before this time, or longer ago than this, by the clock of the
            storage. Choose a value longer than your longest-running write: the chunks of a session are unreachable
            until it commits.
        dry_run
            Delete nothing and return what would be deleted. `plan_garbage_collection` returns more details.
        created_after
            Keep objects that are older than this. Use it if an earlier run has examined them.
        ignore_running_sessions
            Also run if a writable session of this process is older than `delete_object_older_than`.
        incremental
            Start from the result of the last incremental run, which is stored in the repository. Only new commits are
            read. Objects of writers that died since that run are deleted by the next full run.
        max_compressed_manifest_mem_bytes
            Largest total size of compressed manifests in memory.
        max_decoded_manifest_mem_bytes
            Largest total size of decoded manifests in memory. It is estimated from their number of references. A single
            manifest may be larger.
        max_concurrent_manifest_fetches
            Largest number of manifests that are read at the same time.
        progress
            Called with the name of a stage, the amount done, and the total amount (0 if it is not known).
        **ignored
            Further limits of icechunk's method. They are accepted and have no effect.

        Returns
        -------
        GCSummary
            Number and size of the deleted objects.

        Raises
        ------
        InvalidInputError
            The time is in the future or has no time zone, a writable session of this process is older, or an argument
            does not exist.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import datetime, icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.garbage_collect(datetime.timedelta(days=1)).chunks_deleted
        0
        """
        if ignored:
            check_keywords(self.garbage_collect_async, ignored, _IGNORED_LIMITS)
        limits = marking.FetchLimits(
            max(1, min(max_concurrent_manifest_fetches, 256)),
            max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes,
        )
        request = collection.CollectionRequest(
            delete_object_older_than, created_after, limits, ignore_running_sessions, incremental
        )
        with inventory.reporting_to(progress):
            if dry_run:
                plan = await collection.preview_collection(inventory.open_uncached(self._context), request)
                return plan.summary()
            return await collection.collect(self._context, request)

    garbage_collect = blocking(garbage_collect_async)

    async def plan_garbage_collection_async(
        self,
        delete_object_older_than: dt.datetime | dt.timedelta,
        *,
        created_after: dt.datetime | None = None,
        incremental: bool = False,
        progress: Report | None = None,
    ) -> CollectionPlan:
        """Return which objects `garbage_collect` would delete now. Nothing is changed.

        Parameters
        ----------
        delete_object_older_than
            Only delete objects that were last modified before this time, or longer ago than this.
        created_after
            Keep objects that are older than this.
        incremental
            Start from the result of the last incremental run.
        progress
            Called with the name of a stage, the amount done, and the total amount (0 if it is not known).

        Returns
        -------
        CollectionPlan
            The objects to delete, by kind, and the number of objects that stay.

        Raises
        ------
        InvalidInputError
            The time is in the future or has no time zone.

        Examples
        --------
        >>> import datetime, icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.plan_garbage_collection(datetime.timedelta(days=1)).summary().bytes_deleted
        0
        """
        request = collection.CollectionRequest(
            delete_object_older_than, created_after, ignore_running=True, incremental=incremental
        )
        with inventory.reporting_to(progress):
            return await collection.preview_collection(inventory.open_uncached(self._context), request)

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
        """Write the manifests of a branch again, as the current configuration splits them, and commit the result.

        The data does not change. If the manifests already follow the configuration, nothing is committed.

        Parameters
        ----------
        message
            Message of the commit.
        branch
            Name of the branch.
        metadata
            Properties of the commit.
        commit_method
            "new_commit" adds a commit. "amend" replaces the newest commit.
        progress
            Called with the name of a stage, the amount done, and the total amount (0 if it is not known).

        Returns
        -------
        str
            Id of the newest snapshot of the branch.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        InvalidInputError
            `commit_method` is unknown.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repo.transaction("main", message="array") as store:
        ...     zarr.create_array(store, name="t", shape=4, chunks=2, dtype="i4")[:] = 1
        >>> repo.rewrite_manifests("new manifests", branch="main") == repo.lookup_branch("main")
        True
        """
        if commit_method not in ("new_commit", "amend"):
            raise InvalidInputError(f"commit_method={commit_method!r}: expected 'new_commit' or 'amend'")
        merged = {**self._default_metadata, **(metadata or {})}
        with inventory.reporting_to(progress):
            return await compaction.rewrite_manifests(
                self._context, compaction.RewriteRequest(branch, message, merged, amends=commit_method == "amend")
            )

    rewrite_manifests = blocking(rewrite_manifests_async)

    async def plan_rewrite_manifests_async(self, branch: str = "main") -> ManifestPlan:
        """Return how `rewrite_manifests` would write the manifests of a branch now. Nothing is changed.

        Parameters
        ----------
        branch
            Name of the branch.

        Returns
        -------
        ManifestPlan
            The manifests to write and the manifests that stay.

        Raises
        ------
        RefNotFoundError
            There is no such branch.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.plan_rewrite_manifests("main").outputs
        ()
        """
        return await compaction.plan_rewrite(self._context, branch)

    plan_rewrite_manifests = blocking(plan_rewrite_manifests_async)

    async def compact_async(
        self,
        branch: str = "main",
        *,
        arrays: str = "*",
        region: Sequence[tuple[int, int]] | None = None,
        order: Literal["chunk", "hilbert"] = "chunk",
        unpack: bool = False,
        merge: Mapping[str, int] | None = None,
        keep: int = 0,
        message: str | None = None,
        progress: Report | None = None,
        **settings: Any,
    ) -> CompactSummary:
        """Write small chunks into packs, and rewrite packs that hold many unused bytes. Or merge small chunks.

        The data does not change. Each batch is committed separately, so an interrupted run keeps its finished batches.
        Concurrent writers do not conflict with it, and their chunks are kept.

        With `merge`, old small chunks along a dimension become larger chunks, and the newest stay as they are. This
        changes the chunk grid, so a writer that changed the same array in the meantime has a conflict.

        Parameters
        ----------
        branch
            Name of the branch.
        arrays
            Pattern of array paths, with `*` for any text.
        region
            Only chunks in this box of the chunk grid: (first, end) for each dimension. `end` is excluded.
        order
            Order of chunks in a pack: "chunk" is the order of their coordinates. "hilbert" follows a Hilbert curve,
            which keeps neighbours in all dimensions close to each other.
        unpack
            Write chunks from packs into objects of their own instead.
        merge
            Merge neighbouring chunks along one dimension instead, up to this number of cells: `{"time": 720}`. Chunks
            wait until a merged chunk is full. Arrays without the dimension stay as they are.
        keep
            The number of the last cells along the dimension of `merge` whose chunks are not merged. The last chunk is
            never merged.
        message
            Message of the commits.
        progress
            Called with the name of a stage, the amount done, and the total amount (0 if it is not known).
        **settings
            `threshold_bytes` (chunks below this size are packed), `target_bytes` (size of a pack), `dead_share`
            (rewrite packs with a larger share of unused bytes) and `batch_bytes` (size of a batch).

        Returns
        -------
        CompactSummary
            Number of chunks, objects, bytes and commits written.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        InvalidInputError
            A setting or the order is unknown or not valid, or an array to merge has virtual chunks.
        UnsupportedError
            The generation of the repository, or zarr, has no chunks of different lengths, which `merge` needs.
        ConflictError
            Other commits changed the array during every attempt of a merge.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.compact("main").chunks
        0
        """
        layout = _choose_layout(unpack=unpack, merge=merge)
        settings = {**settings, **_merge_settings(merge, keep)}
        request = _compact_request(branch, layout, arrays, region, order, message, settings)
        with inventory.reporting_to(progress):
            return await compaction.compact(self._context, await compaction.plan_compaction(self._context, request))

    compact = blocking(compact_async)

    async def apply_compaction_async(self, plan: CompactionPlan, *, progress: Report | None = None) -> CompactSummary:
        """Write the chunks of a compaction plan. Chunks that changed since the plan was made are skipped.

        Parameters
        ----------
        plan
            The result of `plan_compaction`.
        progress
            Called with the name of a stage, the amount done, and the total amount (0 if it is not known).

        Returns
        -------
        CompactSummary
            Number of chunks, objects, bytes and commits written.

        Raises
        ------
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.apply_compaction(repo.plan_compaction("main")).chunks
        0
        """
        with inventory.reporting_to(progress):
            return await compaction.compact(self._context, plan)

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
        merge: Mapping[str, int] | None = None,
        keep: int = 0,
        **settings: Any,
    ) -> CompactionPlan:
        """Return which chunks `compact` or `materialize` would write now. Nothing is changed.

        Parameters
        ----------
        branch
            Name of the branch.
        arrays
            Pattern of array paths, with `*` for any text.
        region
            Only chunks in this box of the chunk grid: (first, end) for each dimension.
        order
            Order of chunks in a pack: "chunk" or "hilbert".
        unpack
            Plan to write chunks from packs into objects of their own.
        materialize
            Plan to copy virtual chunks, as `materialize` does.
        merge, keep
            Plan to merge chunks along a dimension, as `compact` does.
        **settings
            Settings of `compact`.

        Returns
        -------
        CompactionPlan
            The chunks to write. Pass it to `apply_compaction`.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        InvalidInputError
            A setting or the order is unknown or not valid, or an array to merge has virtual chunks.
        UnsupportedError
            The generation of the repository, or zarr, has no chunks of different lengths, which `merge` needs.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.plan_compaction("main").chunks
        0
        """
        layout = _choose_layout(unpack=unpack, materialize=materialize, merge=merge)
        settings = {**settings, **_merge_settings(merge, keep)}
        request = _compact_request(branch, layout, arrays, region, order, None, settings)
        return await compaction.plan_compaction(self._context, request)

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
        """Copy virtual chunks into the repository. Afterwards their source files are not needed.

        Parameters
        ----------
        branch
            Name of the branch.
        arrays
            Pattern of array paths, with `*` for any text.
        region
            Only chunks in this box of the chunk grid: (first, end) for each dimension.
        message
            Message of the commits.
        progress
            Called with the name of a stage, the amount done, and the total amount (0 if it is not known).
        **settings
            Settings of `compact`.

        Returns
        -------
        CompactSummary
            Number of chunks, objects, bytes and commits written.

        Raises
        ------
        RefNotFoundError
            There is no such branch.
        VirtualChunkError
            A source file cannot be read or has changed.
        InvalidInputError
            A setting is unknown or not valid.
        ReadOnlyError
            The repository is read-only.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.materialize("main").chunks
        0
        """
        request = _compact_request(branch, compaction.Layout.MATERIALIZE, arrays, region, "chunk", message, settings)
        with inventory.reporting_to(progress):
            return await compaction.compact(self._context, await compaction.plan_compaction(self._context, request))

    materialize = blocking(materialize_async)

    async def mirror_async(self, target: StorageLike, *, progress: Report | None = None) -> MirrorPlan:
        """Make another storage a copy of this repository. A later call copies only what is new.

        Readers of the copy see the earlier state or the new one. Do not commit to the copy.

        Parameters
        ----------
        target
            Where to copy to: a storage, a URL or a path.
        progress
            Called with the name of a stage, the amount done, and the total amount (0 if it is not known).

        Returns
        -------
        MirrorPlan
            The objects that were copied and removed.

        Raises
        ------
        InvalidInputError
            The target holds other objects, or a repository of another generation.
        StorageError
            One of the storages cannot be read or written.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> target = icefloe.in_memory_storage()
        >>> _ = repo.mirror(target)
        >>> icefloe.Repository.open(target).lookup_branch("main") == repo.lookup_branch("main")
        True
        """
        with inventory.reporting_to(progress):
            return await mirroring.mirror(self._context, resolve_storage(target))

    mirror = blocking(mirror_async)

    async def plan_mirror_async(self, target: StorageLike) -> MirrorPlan:
        """Return what `mirror` would copy now. Nothing is changed.

        Parameters
        ----------
        target
            Where to copy to: a storage, a URL or a path.

        Returns
        -------
        MirrorPlan
            The objects to copy and to remove.

        Raises
        ------
        InvalidInputError
            The target holds other objects, or a repository of another generation.
        StorageError
            One of the storages cannot be read.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> len(repo.plan_mirror(icefloe.in_memory_storage()).copied) > 0
        True
        """
        return await mirroring.plan_mirror(self._context, resolve_storage(target))

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
        """Check that all objects that branches and tags reach exist and are valid.

        Parameters
        ----------
        logs
            Compare transaction logs with the changes between snapshots.
        decode
            Read and decode every chunk of the newest snapshots of branches and tags.
        virtual
            Check that the files of virtual chunks exist and are unchanged, with one request for each file. Files in
            containers that are not authorized are not checked. The report lists them in `unchecked`.
        repair
            Repair damage that has only one possible correction: logs, sizes, and copies of history. The report lists
            what is left.
        progress
            Called with the name of a stage, the amount done, and the total amount (0 if it is not known).

        Returns
        -------
        VerifyReport
            Damage, number of checked objects, and objects that nothing refers to.

        Raises
        ------
        ReadOnlyError
            `repair` is True and the repository is read-only.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.verify().is_clean
        True
        """
        request = verification.VerifyRequest(logs, decode, virtual)
        with inventory.reporting_to(progress):
            if not repair:
                return await verification.verify(self._context, request)
            return (await verification.repair(self._context, request))[1]

    verify = blocking(verify_async)

    async def verify_sources_async(
        self, *, branch: str | None = None, sample: int = 1, progress: Report | None = None
    ) -> SourceReport:
        """Check every virtual reference against its file, and report by file.

        A file must exist, be unchanged since it was referenced, and be long enough for its references. Some of its
        chunks are decoded. Files in containers that are not authorized are not checked, and the report says so.

        Parameters
        ----------
        branch
            Only the newest snapshot of this branch. None is that of every branch and tag.
        sample
            The number of chunks of each array in each file that are decoded.
        progress
            Called with the name of a stage, the amount done, and the total amount (0 if it is not known).

        Returns
        -------
        SourceReport
            The state of every file.

        Raises
        ------
        InvalidInputError
            The branch does not exist.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.verify_sources().is_clean
        True
        """
        with inventory.reporting_to(progress):
            return await source_verification.verify_sources(self._context, branch=branch, sample=sample)

    verify_sources = blocking(verify_sources_async)


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
    return expiry.ExpiryRequest(
        moment, retain_last, tuple(rules), frozenset(snapshots), delete_branches, delete_tags, now
    )


def _choose_layout(*, unpack: bool, materialize: bool = False, merge: Mapping[str, int] | None) -> Layout:
    layouts = compaction.Layout
    asked = {layouts.UNPACK: unpack, layouts.MATERIALIZE: materialize, layouts.MERGE: merge is not None}
    chosen = [layout for layout, is_asked in asked.items() if is_asked]
    if len(chosen) > 1:
        raise InvalidInputError(f"choose one of {', '.join(layout.value for layout in chosen)}")
    return chosen[0] if chosen else layouts.PACK


def _merge_settings(merge: Mapping[str, int] | None, keep: int) -> dict[str, Any]:
    if merge is None:
        if keep:
            raise InvalidInputError(f"keep is {keep}, but nothing is merged. Use merge, such as {{'time': 720}}")
        return {}
    if len(merge) != 1:
        raise InvalidInputError(f"merge is {dict(merge)}, expected one dimension and a length, such as {{'time': 720}}")
    [(dim, length)] = merge.items()
    return {"merge": (str(dim), int(length)), "keep": int(keep)}


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
    unknown = settings.keys() - {*allowed, "merge", "keep"}
    if unknown:
        raise InvalidInputError(f"unknown settings {', '.join(sorted(unknown))}. Allowed: {', '.join(allowed)}")
    try:
        chosen = compaction.ChunkOrder(order)
    except ValueError as error:
        raise InvalidInputError(f"order={order!r}: expected 'chunk' or 'hilbert'") from error
    box = None if region is None else tuple((int(first), int(end)) for first, end in region)
    return compaction.CompactRequest(branch, layout, arrays, box, chosen, message=message, **settings)
