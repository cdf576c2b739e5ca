"""Expiring history: the plan is made from what refs lead to now, then the ledger carries it out."""

from __future__ import annotations

from functools import reduce

from icefloe.errors import ObjectNotFoundError
from icefloe.ids import ObjectId
from icefloe.maintenance.expire_plan import ExpiryPlan, ExpiryRequest, plan_expiry
from icefloe.maintenance.history import History, fetch_history
from icefloe.maintenance.reading import Reading, read_anew
from icefloe.model.transaction_log import TransactionLog
from icefloe.session.compare import compare_snapshots
from icefloe.session.engine import Engine
from icefloe.session.logs import merge_logs


async def plan_expiry_of(engine: Engine, request: ExpiryRequest) -> ExpiryPlan:
    """What would expire now."""
    history = await fetch_history(read_anew(engine))
    return plan_expiry(history, request, tags_can_go=engine.capabilities.deletable_tags)


async def expire(engine: Engine, request: ExpiryRequest) -> ExpiryPlan:
    """Take old snapshots out of history; their files stay until garbage is collected."""
    await engine.ledger.check_writable()
    reading = read_anew(engine)
    history = await fetch_history(reading)
    plan = plan_expiry(history, request, tags_can_go=engine.capabilities.deletable_tags)
    if plan.change.is_empty():
        return plan
    if engine.capabilities.transaction_logs and not engine.ledger.keeps_pruned_logs:
        # Before the parents change: a log that tells of too much is a needless conflict, one of too little a lost one.
        for child in plan.change.parents:
            await _extend_log(engine, reading, history, child, plan.change.parents[child])
    await engine.ledger.change_history(plan.change)
    return plan


async def _extend_log(engine: Engine, reading: Reading, history: History, child: ObjectId, parent: ObjectId) -> None:
    """Make the log of a snapshot tell of everything since its new parent."""
    since: list[ObjectId] = []
    current: ObjectId | None = history.snapshots[child].parent_id
    while current is not None and current != parent:
        since.append(current)
        current = history.snapshots[current].parent_id
    if not since:
        return
    log = await _log_since(reading, [*reversed(since), child], parent)
    await engine.archive.flush_transaction_log(child, log)
    engine.archive.forget_transaction_log(child)


async def _log_since(reading: Reading, snapshots: list[ObjectId], parent: ObjectId) -> TransactionLog:
    archive = reading.archive
    try:
        return reduce(merge_logs, [await archive.fetch_transaction_log(each) for each in snapshots])
    except ObjectNotFoundError:
        old, new = await archive.fetch_snapshot(parent), await archive.fetch_snapshot(snapshots[-1])
        return await compare_snapshots(old, new, archive)
