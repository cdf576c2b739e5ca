"""Carrying a change from where it was made to the tip of a branch."""

from __future__ import annotations

from dataclasses import dataclass

from icefloe.errors import RebaseFailedError
from icefloe.ids import ObjectId
from icefloe.ledger.contract import Tip
from icefloe.maintenance.changes_between import changes_between
from icefloe.maintenance.merge_plan import CollectingSolver
from icefloe.model.snapshot import Snapshot
from icefloe.model.transaction_log import TransactionLog
from icefloe.session.change_set import ChangeSet
from icefloe.session.compare import compare_snapshots
from icefloe.session.conflicts import Conflict, ConflictSolver
from icefloe.session.engine import Engine
from icefloe.session.history import fetch_branch, fetch_log
from icefloe.session.logs import join_logs
from icefloe.session.rebase import rebase_over
from icefloe.session.untouched import without_untouched


@dataclass(frozen=True, slots=True)
class Transplant:
    """A change set on the tip of a branch, and the conflicts that were not settled."""

    target: Snapshot
    tip: Tip
    changes: ChangeSet
    conflicts: tuple[Conflict, ...]


async def transplant(engine: Engine, old: ObjectId, new: ObjectId, branch: str, solver: ConflictSolver) -> Transplant:
    """The change from `old` to `new`, on top of where a branch stands now; nothing is written."""
    before = await engine.archive.fetch_snapshot(old)
    after = await engine.archive.fetch_snapshot(new)
    tip, target = await fetch_branch(engine, branch)
    changes = await changes_between(engine, before, after)
    if target.id == before.id:
        return Transplant(target, tip, changes, ())
    log = await log_between(engine, before, target)
    log = await without_untouched(log, before, changes, target, engine.archive)
    collecting = CollectingSolver(solver)
    try:
        carried = rebase_over(before, changes, target, log, collecting)
    except RebaseFailedError as error:
        return Transplant(target, tip, ChangeSet(), (*collecting.unsolved, *error.conflicts))
    return Transplant(target, tip, carried, tuple(collecting.unsolved))


async def log_between(engine: Engine, old: Snapshot, new: Snapshot) -> TransactionLog:
    """What changed between two snapshots: along one history the logs tell, else both are compared."""
    between: list[ObjectId] = []
    if engine.capabilities.transaction_logs:
        async for info in engine.ledger.ancestry(new.id):
            if info.id == old.id:
                snapshots = [await engine.archive.fetch_snapshot(each) for each in reversed(between)]
                pairs = zip([old, *snapshots], snapshots, strict=False)
                logs = [await fetch_log(engine, snapshot, parent) for parent, snapshot in pairs]
                return await join_logs(logs, old, new, engine.archive)
            between.append(info.id)
    return await compare_snapshots(old, new, engine.archive)
