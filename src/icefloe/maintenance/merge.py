"""Apply changes of one branch to another: merge, cherry-pick, revert, fast-forward, squash."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from icefloe.blocking import current_time
from icefloe.chunks.reader import ChunkLookup
from icefloe.display.card import TextCardMixin, format_count
from icefloe.errors import ConflictError, InvalidInputError, RebaseFailedError, SnapshotNotFoundError
from icefloe.ids import NodeId, ObjectId, new_object_id
from icefloe.ledger.ledger import StaleTipError, Tip
from icefloe.manifests.chunk_columns import concat, diff_tables, find_rows, take
from icefloe.model.chunk_table import ChunkTable, empty_table, tombstones
from icefloe.model.snapshot import ArrayNode, Diff, Node, Snapshot, TransactionLog, inherit_metadata
from icefloe.session.ancestry import (
    GONE,
    compare_snapshots,
    diff_between,
    fetch_log,
    join_logs,
    log_since,
    without_common,
)
from icefloe.session.change_set import ChangeSet, EditBuffer, diff_of_changes
from icefloe.session.commit import advance_branch
from icefloe.session.commit_files import CommitRequest, with_parent, write_snapshot
from icefloe.session.open_repository import RepositoryContext, check_objects
from icefloe.session.rebase import (
    Conflict,
    ConflictDetector,
    ConflictSolver,
    VersionSelection,
    drop_false_conflicts,
    rebase_over,
)
from icefloe.session.session_state import SessionState


@dataclass(frozen=True, slots=True)
class MergePlan(TextCardMixin):
    """The changes to apply to a branch, and the conflicts that no solver resolves.

    `base` is the common ancestor of both sides. In conflicts, *ours* is the change to apply, *theirs* is the branch.
    """

    branch: str
    target: ObjectId
    source: ObjectId
    base: ObjectId
    diff: Diff
    conflicts: tuple[Conflict, ...] = ()
    fast_forward: bool = False
    """The branch is only moved, because it has no commits that the source does not have."""
    up_to_date: bool = False
    """The branch contains the changes already."""

    def __str__(self) -> str:
        if self.up_to_date:
            return f"branch {self.branch} contains {self.source} already"
        if self.fast_forward:
            return f"branch {self.branch} moves from {self.target} to {self.source}"
        lines = [f"apply {self.source} to branch {self.branch} at {self.target}, common ancestor {self.base}"]
        if self.conflicts:
            lines.append(f"{format_count(len(self.conflicts), 'conflict')}:")
            lines += [f"  {conflict}" for conflict in self.conflicts]
        else:
            lines.append(str(self.diff).rstrip() or "no changes")
        return "\n".join(lines)


@dataclass(slots=True)
class CollectingSolver(ConflictSolver):
    """Calls another solver. Records the conflicts that it does not resolve, so that one pass finds all conflicts."""

    inner: ConflictSolver
    unsolved: list[Conflict] = field(default_factory=list)

    def resolve(self, conflict: Conflict) -> VersionSelection:
        return self.resolve_all([conflict])[0]

    def resolve_all(self, conflicts: Sequence[Conflict]) -> list[VersionSelection]:
        answers = self.inner.resolve_all(conflicts)
        result = []
        for conflict, answer in zip(conflicts, answers, strict=True):
            if answer is VersionSelection.Fail:
                self.unsolved.append(conflict)
                answer = VersionSelection.UseTheirs
            result.append(answer)
        return result


async def changes_between(context: RepositoryContext, old: Snapshot, new: Snapshot) -> ChangeSet:
    """The changes from `old` to `new`. No chunk is read."""
    changes = ChangeSet()
    before = {node.id: node for node in old.nodes.values()}
    after = {node.id: node for node in new.nodes.values()}
    _change_nodes(changes, old, before, after)
    lookup = ChunkLookup(context.metadata_files)
    for node_id, node in after.items():
        if isinstance(node, ArrayNode):
            was = before.get(node_id)
            buffer = await _edits(lookup, was if isinstance(was, ArrayNode) else None, node)
            if buffer is not None:
                changes.edits[node_id] = buffer
                if was is not None:
                    changes.origin.setdefault(node_id, was.path)
    return changes


def _change_nodes(changes: ChangeSet, old: Snapshot, before: dict[NodeId, Node], after: dict[NodeId, Node]) -> None:
    # Remove all moved nodes before adding any, because two may have swapped paths.
    for node_id, node in before.items():
        if node_id not in after or after[node_id].path != node.path:
            changes.remove_node(old, node)
    for node_id, node in after.items():
        was = before.get(node_id)
        manifests = was.manifests if isinstance(was, ArrayNode) else ()
        now = replace(node, manifests=manifests) if isinstance(node, ArrayNode) else node
        if was is not None and (was.document, was.attributes) == (now.document, now.attributes):
            if now != was:
                changes.place_node(old, now)
        else:
            changes.put_node(old, now)


async def _edits(lookup: ChunkLookup, was: ArrayNode | None, now: ArrayNode) -> EditBuffer | None:
    """The references that differ. None if there are none."""
    if was is not None and was.manifests == now.manifests and was.grid == now.grid:
        return None
    buffer = EditBuffer(len(now.shape))
    if was is not None and any(new < old for new, old in zip(now.grid, was.grid, strict=True)):
        buffer.clip(now.grid)
    if was is not None:
        was, now = without_common(was, now)
    fresh = await lookup.table(now)
    old_refs = empty_table(len(now.shape)) if was is None else await lookup.table(was)
    edits = _difference(old_refs, fresh)
    if len(edits):
        buffer.add_table(edits)
    return buffer if len(edits) or buffer.base_box is not None else None


def _difference(old_refs: ChunkTable, fresh: ChunkTable) -> ChunkTable:
    if not len(old_refs):
        return fresh
    changed = diff_tables(old_refs, fresh)
    rows = find_rows(fresh, changed)
    return concat([take(fresh, rows[rows >= 0]), tombstones(changed[rows < 0])])


@dataclass(frozen=True, slots=True)
class Transplant:
    """A change set on the tip of a branch, and the unresolved conflicts."""

    target: Snapshot
    tip: Tip
    changes: ChangeSet
    conflicts: tuple[Conflict, ...]


async def transplant(
    context: RepositoryContext, old: ObjectId, new: ObjectId, branch: str, solver: ConflictSolver
) -> Transplant:
    """The change from `old` to `new`, rebased on the tip of a branch. Writes nothing."""
    before = await context.metadata_files.fetch_snapshot(old)
    after = await context.metadata_files.fetch_snapshot(new)
    tip, target = await context.fetch_branch(branch)
    changes = await changes_between(context, before, after)
    if target.id == before.id:
        return Transplant(target, tip, changes, ())
    log = log_since(await log_between(context, before, target), before, target)
    log = await drop_false_conflicts(log, before, changes, target, context.metadata_files)
    collecting = CollectingSolver(solver)
    try:
        carried = rebase_over(before, changes, target, log, collecting)
    except RebaseFailedError as error:
        return Transplant(target, tip, ChangeSet(), (*collecting.unsolved, *error.conflicts))
    return Transplant(target, tip, carried, tuple(collecting.unsolved))


async def log_between(context: RepositoryContext, old: Snapshot, new: Snapshot) -> TransactionLog:
    """The changes between two snapshots.

    Reads the logs if one is an ancestor of the other, and compares both otherwise.
    """
    between: list[ObjectId] = []
    if context.capabilities.transaction_logs:
        async for info in context.ledger.ancestry(new.id):
            if info.id == old.id:
                snapshots = [await context.metadata_files.fetch_snapshot(each) for each in reversed(between)]
                pairs = zip([old, *snapshots], snapshots, strict=False)
                logs = [await fetch_log(context, snapshot, parent) for parent, snapshot in pairs]
                return await join_logs(logs, old, new, context.metadata_files)
            between.append(info.id)
    return await compare_snapshots(old, new, context.metadata_files)


MERGED = "merged_snapshot"
"""Metadata of a merge: the snapshot whose changes were applied."""
_TRIES = 20


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """A change from one snapshot to another, to be applied to a branch."""

    branch: str
    old: ObjectId
    new: ObjectId
    message: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    solver: ConflictSolver = field(default_factory=ConflictDetector)
    may_fast_forward: bool = False


async def plan_change(context: RepositoryContext, request: MergeRequest) -> MergePlan:
    """Plan the application of a change to a branch."""
    shortcut = await _shortcut(context, request)
    if shortcut is not None:
        return shortcut
    moved = await transplant(context, request.old, request.new, request.branch, request.solver)
    return _plan(request, moved)


async def apply_change(context: RepositoryContext, request: MergeRequest) -> ObjectId:
    """Apply a change to a branch. Returns its new tip. RebaseFailedError lists all conflicts."""
    await context.check_writable()
    for attempt in range(_TRIES):
        shortcut = await _shortcut(context, request)
        try:
            if shortcut is not None:
                return await _apply_shortcut(context, shortcut)
            moved = await transplant(context, request.old, request.new, request.branch, request.solver)
            return await _land(context, request, moved)
        except ConflictError:
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _land(context: RepositoryContext, request: MergeRequest, moved: Transplant) -> ObjectId:
    if moved.conflicts:
        raise RebaseFailedError(snapshot=moved.target.id, conflicts=list(moved.conflicts))
    if moved.changes.is_empty():
        return moved.target.id
    state = SessionState(context, moved.target, moved.changes, moved.tip)
    snapshot = await write_snapshot(state, CommitRequest(request.message, request.metadata))
    # Its references come from these snapshots. Garbage collection deletes a snapshot before its files.
    await check_objects(context, [context.format.snapshot_key(each) for each in (request.old, request.new)])
    await advance_branch(context, request.branch, moved.tip, snapshot)
    return snapshot.id


def _plan(request: MergeRequest, moved: Transplant) -> MergePlan:
    diff = diff_of_changes(moved.target, moved.changes)
    return MergePlan(
        request.branch,
        moved.target.id,
        request.new,
        request.old,
        diff,
        moved.conflicts,
        up_to_date=not moved.conflicts and moved.changes.is_empty(),
    )


async def _shortcut(context: RepositoryContext, request: MergeRequest) -> MergePlan | None:
    """A plan without a commit: the branch can be moved, or contains the change already."""
    tip = (await context.ledger.fetch_tip(request.branch)).snapshot_id
    up_to_date = request.new == request.old
    if not up_to_date and not (request.may_fast_forward and tip == request.old):
        return None
    diff = Diff() if up_to_date else await diff_between(context, tip, request.new)
    return MergePlan(
        request.branch, tip, request.new, request.old, diff, fast_forward=not up_to_date, up_to_date=up_to_date
    )


async def _apply_shortcut(context: RepositoryContext, plan: MergePlan) -> ObjectId:
    if plan.up_to_date:
        return plan.target
    await context.ledger.reset_branch(plan.branch, plan.source, plan.target)
    return plan.source


async def find_merge_base(context: RepositoryContext, source: ObjectId, target: ObjectId) -> ObjectId:
    """The newest snapshot of the source that the target contains, in its history or through an earlier merge."""
    known: set[ObjectId] = set()
    async for info in context.ledger.ancestry(target):
        known.add(info.id)
        merged = info.metadata.get(MERGED)
        if isinstance(merged, str):
            known.add(merged)
    async for info in context.ledger.ancestry(source):
        if info.id in known:
            return info.id
    raise InvalidInputError(f"the histories of {source} and {target} have no common snapshot, so they cannot be merged")


async def fetch_parent(context: RepositoryContext, snapshot_id: ObjectId) -> ObjectId:
    """The parent of a snapshot that has one."""
    parent = (await context.ledger.fetch_shown_info(snapshot_id)).parent_id
    if parent is None:
        raise InvalidInputError(f"snapshot {snapshot_id} is the first one. It has no changes to apply")
    return parent


@dataclass(frozen=True, slots=True)
class FastForwardPlan(TextCardMixin):
    """The move of a branch to a descendant of its tip."""

    branch: str
    tip: ObjectId
    target: ObjectId

    def __str__(self) -> str:
        if self.tip == self.target:
            return f"branch {self.branch} is at {self.tip} already"
        return f"branch {self.branch} moves from {self.tip} to {self.target}"


async def fast_forward(context: RepositoryContext, branch: str, snapshot_id: ObjectId) -> ObjectId:
    """Move a branch to a descendant of its tip. Raises ConflictError if it has other commits."""
    await context.check_writable()
    plan = await plan_fast_forward(context, branch, snapshot_id)
    if plan.tip != plan.target:
        await context.ledger.reset_branch(branch, plan.target, plan.tip)
    return plan.target


async def plan_fast_forward(context: RepositoryContext, branch: str, snapshot_id: ObjectId) -> FastForwardPlan:
    """The new tip of a branch. Raises ConflictError if it has other commits."""
    tip = (await context.ledger.fetch_tip(branch)).snapshot_id
    async for info in context.ledger.ancestry(snapshot_id):
        if info.id == tip:
            return FastForwardPlan(branch, tip, snapshot_id)
    raise ConflictError(
        message=f"branch {branch!r} is at {tip}, which is not an ancestor of {snapshot_id}. Merge instead, or reset "
        "the branch",
        expected_parent=tip,
        actual_parent=snapshot_id,
    )


@dataclass(frozen=True, slots=True)
class SquashPlan(TextCardMixin):
    """Commits of a branch to join into one."""

    branch: str
    tip: ObjectId
    onto: ObjectId
    commits: tuple[ObjectId, ...]
    """Newest first."""

    def __str__(self) -> str:
        return f"{len(self.commits)} commits of branch {self.branch}, from {self.tip} down, become one on {self.onto}"


async def plan_squash(context: RepositoryContext, branch: str, onto: ObjectId) -> SquashPlan:
    """Plan a squash."""
    for attempt in range(_TRIES):
        tip = (await context.ledger.fetch_tip(branch)).snapshot_id
        commits: list[ObjectId] = []
        try:
            async for info in context.ledger.shown_history(tip):
                if info.id == onto:
                    return SquashPlan(branch, tip, onto, tuple(commits))
                commits.append(info.id)
            break
        except SnapshotNotFoundError:
            # A commit of the walk was expired and collected. The next walk does not contain it.
            if attempt == _TRIES - 1:
                raise
    raise SnapshotNotFoundError(
        f"snapshot {onto} is not in the history of branch {branch!r}. It belongs to another branch, or has expired. "
        "`icefloe log` lists the snapshots of a branch",
        snapshot_id=onto,
    )


async def squash(context: RepositoryContext, plan: SquashPlan, message: str, metadata: Mapping[str, Any]) -> ObjectId:
    """Replace the commits of a plan with one. Raises ConflictError if the branch moved since."""
    await context.check_writable()
    if len(plan.commits) < 2:
        return plan.tip
    for attempt in range(_TRIES):
        try:
            return await _squash(context, plan, message, metadata)
        except (StaleTipError, *GONE) as error:
            # History has expired in the meantime, so other snapshots are between the tip and the base.
            if attempt == _TRIES - 1:
                raise
            now = await plan_squash(context, plan.branch, plan.onto)
            if now.tip != plan.tip:
                raise ConflictError(expected_parent=plan.tip, actual_parent=now.tip) from None
            if now == plan and not isinstance(error, StaleTipError):
                raise
            plan = now
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _squash(context: RepositoryContext, plan: SquashPlan, message: str, metadata: Mapping[str, Any]) -> ObjectId:
    tip = await context.ledger.fetch_tip(plan.branch)
    if tip.snapshot_id != plan.tip:
        raise ConflictError(expected_parent=plan.tip, actual_parent=tip.snapshot_id)
    newest = await context.metadata_files.fetch_snapshot(plan.tip)
    parent = await context.metadata_files.fetch_snapshot(plan.onto, anew=True)
    commits = [await context.metadata_files.fetch_snapshot(each) for each in await _list_written(context, plan)]
    logs = [await fetch_log(context, new, old) for old, new in zip([parent, *commits], commits, strict=False)]
    snapshot = _squashed(context, newest, parent, message, metadata)
    await context.metadata_files.write_snapshot(snapshot)
    if context.capabilities.transaction_logs:
        log = log_since(await join_logs(logs, parent, newest, context.metadata_files), parent, newest)
        await context.metadata_files.write_transaction_log(snapshot.id, log)
    await context.ledger.record_detached(snapshot)
    await context.ledger.replace_tip(plan.branch, tip, snapshot.id)
    return snapshot.id


async def _list_written(context: RepositoryContext, plan: SquashPlan) -> list[ObjectId]:
    """The commits of a plan, oldest first, with those in between whose expiry is only recorded. All have logs."""
    if not context.ledger.records_expiries:
        return list(reversed(plan.commits))
    found: list[ObjectId] = []
    async for info in context.ledger.ancestry(plan.tip):
        if info.id == plan.onto:
            return found[::-1]
        found.append(info.id)
    raise SnapshotNotFoundError(
        f"snapshot {plan.onto} is no longer in the history of branch {plan.branch!r}", snapshot_id=plan.onto
    )


def _squashed(
    context: RepositoryContext, newest: Snapshot, parent: Snapshot, message: str, metadata: Mapping[str, Any]
) -> Snapshot:
    capabilities = context.capabilities
    now = current_time()
    fresh = replace(
        newest,
        id=new_object_id(capabilities.object_id_bytes),
        parent_id=parent.id,
        written_at=max(now, newest.written_at + dt.timedelta(microseconds=1)),
        message=message,
        metadata=inherit_metadata(newest.metadata, metadata),
        history=(),
        started_at=now,
    )
    return with_parent(fresh, parent) if capabilities.history_in_snapshot else fresh
