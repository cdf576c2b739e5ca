"""Bringing changes of one branch to another: merge, cherry-pick, revert, fast-forward, squash."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from icefloe.environment import current_time
from icefloe.errors import ConflictError, InvalidInputError, RebaseFailedError, SnapshotNotFoundError
from icefloe.ids import ObjectId, new_object_id
from icefloe.ledger.contract import StaleTipError
from icefloe.maintenance.merge_plan import MergePlan
from icefloe.maintenance.transplant import Transplant, transplant
from icefloe.model.diff import Diff
from icefloe.model.snapshot import Snapshot, inherit_metadata
from icefloe.session.collected import check_objects
from icefloe.session.commit import CommitRequest, advance_branch, flush_snapshot, with_parent
from icefloe.session.conflicts import ConflictDetector, ConflictSolver
from icefloe.session.engine import Engine
from icefloe.session.history import GONE, diff_between, fetch_log
from icefloe.session.logs import join_logs
from icefloe.session.status import diff_of_changes
from icefloe.session.workspace import Workspace

MERGED = "merged_snapshot"
"""Metadata of a merge: the snapshot whose changes it brought."""
_TRIES = 20


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """A change, from one snapshot to another, that shall come to a branch."""

    branch: str
    old: ObjectId
    new: ObjectId
    message: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    solver: ConflictSolver = field(default_factory=ConflictDetector)
    may_fast_forward: bool = False


async def plan_change(engine: Engine, request: MergeRequest) -> MergePlan:
    """What would come to the branch now."""
    shortcut = await _shortcut(engine, request)
    if shortcut is not None:
        return shortcut
    moved = await transplant(engine, request.old, request.new, request.branch, request.solver)
    return _plan(request, moved)


async def apply_change(engine: Engine, request: MergeRequest) -> ObjectId:
    """Bring a change to a branch; returns where the branch stands then. RebaseFailedError lists all conflicts."""
    await engine.check_writable()
    for attempt in range(_TRIES):
        shortcut = await _shortcut(engine, request)
        try:
            if shortcut is not None:
                return await _apply_shortcut(engine, shortcut)
            moved = await transplant(engine, request.old, request.new, request.branch, request.solver)
            return await _land(engine, request, moved)
        except ConflictError:
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _land(engine: Engine, request: MergeRequest, moved: Transplant) -> ObjectId:
    if moved.conflicts:
        raise RebaseFailedError(snapshot=moved.target.id, conflicts=list(moved.conflicts))
    if moved.changes.is_empty():
        return moved.target.id
    work = Workspace(engine, moved.target, moved.changes, moved.tip)
    snapshot = await flush_snapshot(work, CommitRequest(request.message, request.metadata))
    # Its references come from these snapshots. Garbage collection deletes a snapshot before what it refers to.
    await check_objects(engine, [engine.format.snapshot_key(each) for each in (request.old, request.new)])
    await advance_branch(engine, request.branch, moved.tip, snapshot)
    return snapshot.id


def _plan(request: MergeRequest, moved: Transplant) -> MergePlan:
    diff = diff_of_changes(moved.target, moved.changes)
    return MergePlan(
        request.branch, moved.target.id, request.new, request.old, diff, moved.conflicts,
        up_to_date=not moved.conflicts and moved.changes.is_empty(),
    )  # fmt: skip


async def _shortcut(engine: Engine, request: MergeRequest) -> MergePlan | None:
    """A plan without a commit, where the branch may simply be moved or holds the change already."""
    tip = (await engine.ledger.fetch_tip(request.branch)).snapshot_id
    up_to_date = request.new == request.old
    if not up_to_date and not (request.may_fast_forward and tip == request.old):
        return None
    diff = Diff() if up_to_date else await diff_between(engine, tip, request.new)
    return MergePlan(
        request.branch, tip, request.new, request.old, diff, fast_forward=not up_to_date, up_to_date=up_to_date
    )


async def _apply_shortcut(engine: Engine, plan: MergePlan) -> ObjectId:
    if plan.up_to_date:
        return plan.target
    await engine.ledger.reset_branch(plan.branch, plan.source, plan.target)
    return plan.source


async def find_merge_base(engine: Engine, source: ObjectId, target: ObjectId) -> ObjectId:
    """The newest snapshot of the source's history that the target has, in its own history or by an earlier merge."""
    known: set[ObjectId] = set()
    async for info in engine.ledger.ancestry(target):
        known.add(info.id)
        merged = info.metadata.get(MERGED)
        if isinstance(merged, str):
            known.add(merged)
    async for info in engine.ledger.ancestry(source):
        if info.id in known:
            return info.id
    raise InvalidInputError(f"the histories of {source} and {target} have nothing in common; they cannot be merged")


async def fetch_parent(engine: Engine, snapshot_id: ObjectId) -> ObjectId:
    """The parent of a snapshot that has one."""
    parent = (await engine.ledger.fetch_info(snapshot_id)).parent_id
    if parent is None:
        raise InvalidInputError(f"snapshot {snapshot_id} is the first one: it changed nothing that could be taken over")
    return parent


@dataclass(frozen=True, slots=True)
class FastForwardPlan:
    """A branch that moves to a descendant of where it stands."""

    branch: str
    tip: ObjectId
    target: ObjectId

    def __str__(self) -> str:
        if self.tip == self.target:
            return f"branch {self.branch} is at {self.tip} already"
        return f"branch {self.branch} moves from {self.tip} to {self.target}"


async def fast_forward(engine: Engine, branch: str, snapshot_id: ObjectId) -> ObjectId:
    """Move a branch to a descendant of where it stands; ConflictError when it has commits of its own."""
    await engine.check_writable()
    plan = await plan_fast_forward(engine, branch, snapshot_id)
    if plan.tip != plan.target:
        await engine.ledger.reset_branch(branch, plan.target, plan.tip)
    return plan.target


async def plan_fast_forward(engine: Engine, branch: str, snapshot_id: ObjectId) -> FastForwardPlan:
    """Where a branch would move; ConflictError when it has commits of its own."""
    tip = (await engine.ledger.fetch_tip(branch)).snapshot_id
    async for info in engine.ledger.ancestry(snapshot_id):
        if info.id == tip:
            return FastForwardPlan(branch, tip, snapshot_id)
    raise ConflictError(
        f"branch {branch!r} is at {tip}, which is no ancestor of {snapshot_id}: merge instead, or reset the branch",
        expected_parent=tip,
        actual_parent=snapshot_id,
    )


@dataclass(frozen=True, slots=True)
class SquashPlan:
    """Commits of a branch that become one."""

    branch: str
    tip: ObjectId
    onto: ObjectId
    commits: tuple[ObjectId, ...]
    """Newest first."""

    def __str__(self) -> str:
        return f"{len(self.commits)} commits of branch {self.branch}, from {self.tip} down, become one on {self.onto}"


async def plan_squash(engine: Engine, branch: str, onto: ObjectId) -> SquashPlan:
    """Which commits a squash would join."""
    for attempt in range(_TRIES):
        tip = (await engine.ledger.fetch_tip(branch)).snapshot_id
        commits: list[ObjectId] = []
        try:
            async for info in engine.ledger.ancestry(tip):
                if info.id == onto:
                    return SquashPlan(branch, tip, onto, tuple(commits))
                commits.append(info.id)
            break
        except SnapshotNotFoundError:
            # Others expired and collected a commit on the way: the next walk does not meet it.
            if attempt == _TRIES - 1:
                raise
    raise SnapshotNotFoundError(
        f"snapshot {onto} is not in the history of branch {branch!r}: it is of another branch, or was expired; "
        f"`icefloe log` lists the snapshots of a branch",
        snapshot_id=onto,
    )


async def squash(engine: Engine, plan: SquashPlan, message: str, metadata: Mapping[str, Any]) -> ObjectId:
    """Replace the commits of a plan by one; ConflictError when the branch moved since."""
    await engine.check_writable()
    if len(plan.commits) < 2:
        return plan.tip
    for attempt in range(_TRIES):
        try:
            return await _squash(engine, plan, message, metadata)
        except (StaleTipError, *GONE) as error:
            # History was expired meanwhile: others are between the tip and the snapshot below by now.
            if attempt == _TRIES - 1:
                raise
            now = await plan_squash(engine, plan.branch, plan.onto)
            if now.tip != plan.tip:
                raise ConflictError(expected_parent=plan.tip, actual_parent=now.tip) from None
            if now == plan and not isinstance(error, StaleTipError):
                raise
            plan = now
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _squash(engine: Engine, plan: SquashPlan, message: str, metadata: Mapping[str, Any]) -> ObjectId:
    tip = await engine.ledger.fetch_tip(plan.branch)
    if tip.snapshot_id != plan.tip:
        raise ConflictError(expected_parent=plan.tip, actual_parent=tip.snapshot_id)
    newest = await engine.archive.fetch_snapshot(plan.tip)
    parent = await engine.archive.fetch_snapshot(plan.onto, anew=True)
    commits = [await engine.archive.fetch_snapshot(each) for each in reversed(plan.commits)]
    logs = [await fetch_log(engine, new, old) for old, new in zip([parent, *commits], commits, strict=False)]
    snapshot = _squashed(engine, newest, parent, message, metadata)
    await engine.archive.flush_snapshot(snapshot)
    if engine.capabilities.transaction_logs:
        log = await join_logs(logs, parent, newest, engine.archive)
        await engine.archive.flush_transaction_log(snapshot.id, log)
    await engine.ledger.record_detached(snapshot)
    await engine.ledger.replace_tip(plan.branch, tip, snapshot.id)
    return snapshot.id


def _squashed(
    engine: Engine, newest: Snapshot, parent: Snapshot, message: str, metadata: Mapping[str, Any]
) -> Snapshot:
    capabilities = engine.capabilities
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
