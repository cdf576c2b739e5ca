"""Expiring history: the plan is made from what refs lead to now, then the ledger carries it out."""

from __future__ import annotations

from functools import reduce

from icefloe.errors import ObjectNotFoundError
from icefloe.ids import ObjectId
from icefloe.maintenance.expire_plan import ExpiryPlan, ExpiryRequest, plan_expiry
from icefloe.maintenance.history import fetch_history
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
    return await apply_expiry(engine, await plan_expiry_of(engine, request))


async def apply_expiry(engine: Engine, plan: ExpiryPlan) -> ExpiryPlan:
    """Carry a plan out."""
    await engine.ledger.check_writable()
    if plan.change.is_empty():
        return plan
    if engine.capabilities.transaction_logs and not engine.ledger.keeps_pruned_logs:
        # Before the parents change: a log that tells of too much is a needless conflict, one of too little a lost one.
        reading = read_anew(engine)
        for child, skipped in plan.skipped.items():
            await _extend_log(engine, reading, child, skipped, plan.change.parents[child])
    await engine.ledger.change_history(plan.change)
    return plan


async def _extend_log(
    engine: Engine, reading: Reading, child: ObjectId, skipped: tuple[ObjectId, ...], parent: ObjectId
) -> None:
    """Make the log of a snapshot tell of everything since its new parent."""
    log = await _log_since(reading, [*reversed(skipped), child], parent)
    await engine.archive.flush_transaction_log(child, log)
    engine.archive.forget_transaction_log(child)


async def _log_since(reading: Reading, snapshots: list[ObjectId], parent: ObjectId) -> TransactionLog:
    archive = reading.archive
    try:
        return reduce(merge_logs, [await archive.fetch_transaction_log(each) for each in snapshots])
    except ObjectNotFoundError:
        old, new = await archive.fetch_snapshot(parent), await archive.fetch_snapshot(snapshots[-1])
        return await compare_snapshots(old, new, archive)
