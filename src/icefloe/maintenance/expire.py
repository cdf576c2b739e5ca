"""Expiring history: the plan is made from what refs lead to now, then the ledger carries it out."""

from __future__ import annotations

from dataclasses import replace

from icefloe.errors import ObjectNotFoundError
from icefloe.ids import ObjectId
from icefloe.maintenance.expire_plan import ExpiryPlan, ExpiryRequest, plan_again, plan_expiry
from icefloe.maintenance.history import fetch_history
from icefloe.maintenance.progress import tell
from icefloe.maintenance.reading import Reading, fetch_all_refs, read_anew
from icefloe.model.transaction_log import TransactionLog
from icefloe.session.compare import compare_snapshots
from icefloe.session.engine import Engine
from icefloe.session.logs import join_logs, merge_logs

_ROUNDS = 20
"""How often the work is done again because others committed on what was being expired."""


async def plan_expiry_of(engine: Engine, request: ExpiryRequest) -> ExpiryPlan:
    """What would expire now."""
    history = await fetch_history(read_anew(engine))
    return plan_expiry(history, request, tags_can_go=engine.capabilities.deletable_tags)


async def expire(engine: Engine, request: ExpiryRequest) -> ExpiryPlan:
    """Take old snapshots out of history; their files stay until garbage is collected."""
    return await apply_expiry(engine, await plan_expiry_of(engine, request))


async def apply_expiry(engine: Engine, plan: ExpiryPlan) -> ExpiryPlan:
    """Carry a plan out."""
    await engine.check_writable()
    if plan.change.is_empty():
        return plan
    refs = await fetch_all_refs(read_anew(engine).ledger)
    await _apply(engine, plan)
    for _ in range(_ROUNDS):
        # A commit or an amendment that landed meanwhile may stand on what just expired.
        history = await fetch_history(read_anew(engine))
        if history.refs == refs:
            break
        refs, missed = history.refs, plan_again(history, plan.change.expired)
        if missed.change.is_empty():
            break
        await _apply(engine, missed)
    return plan


async def _apply(engine: Engine, plan: ExpiryPlan) -> None:
    seams = {} if engine.ledger.keeps_pruned_logs or not engine.capabilities.transaction_logs else plan.skipped
    reading = read_anew(engine)
    exact = {}
    for number, (child, skipped) in enumerate(seams.items()):
        tell("join transaction logs", number, len(seams))
        # Until the parents change, the log tells of both: one that tells of too little would hide a conflict.
        own = await _log_since(reading, [child], skipped[0])
        exact[child] = await _log_since(reading, [*reversed(skipped), child], plan.change.parents[child])
        await _write_log(engine, child, _union(own, exact[child]))
    tell("change history", 0, 1)
    await engine.ledger.change_history(plan.change)
    for child, log in exact.items():
        await _write_log(engine, child, log)
    tell("change history", 1, 1)


async def _write_log(engine: Engine, snapshot_id: ObjectId, log: TransactionLog) -> None:
    await engine.archive.flush_transaction_log(snapshot_id, log)
    engine.archive.forget_transaction_log(snapshot_id)


def _union(one: TransactionLog, other: TransactionLog) -> TransactionLog:
    """Everything that either log tells; what one created and the other deleted is told twice."""
    joined = merge_logs(one, other)
    return replace(
        joined,
        new_groups=one.new_groups | other.new_groups,
        new_arrays=one.new_arrays | other.new_arrays,
        deleted_groups=one.deleted_groups | other.deleted_groups,
        deleted_arrays=one.deleted_arrays | other.deleted_arrays,
        updated_groups=one.updated_groups | other.updated_groups,
        updated_arrays=one.updated_arrays | other.updated_arrays,
    )


async def _log_since(reading: Reading, snapshots: list[ObjectId], parent: ObjectId) -> TransactionLog:
    archive = reading.archive
    old, new = await archive.fetch_snapshot(parent), await archive.fetch_snapshot(snapshots[-1])
    try:
        logs = [await archive.fetch_transaction_log(each) for each in snapshots]
    except ObjectNotFoundError:
        return await compare_snapshots(old, new, archive)
    return await join_logs(logs, old, new, archive)
