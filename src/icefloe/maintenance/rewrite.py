"""Packing the manifests of a branch anew, after the configuration in force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icefloe.errors import ConflictError
from icefloe.ids import ObjectId
from icefloe.ledger.contract import Tip
from icefloe.maintenance.progress import tell
from icefloe.manifests.plan import ManifestPlan, plan_repack
from icefloe.model.manifest_config import SPECIFIED
from icefloe.model.nodes import ArrayNode
from icefloe.model.snapshot import Snapshot
from icefloe.model.transaction_log import TransactionLog
from icefloe.session.commit import CommitRequest, advance_branch, flush_snapshot, replace_newest
from icefloe.session.engine import Engine
from icefloe.session.history import fetch_branch
from icefloe.session.manifest_flush import apply_plan
from icefloe.session.workspace import Workspace

_TRIES = 20


@dataclass(frozen=True, slots=True)
class RewriteRequest:
    """What is asked of a rewrite."""

    branch: str
    message: str
    metadata: Mapping[str, Any]
    amends: bool = False
    """Whether the newest commit is replaced, instead of one being added."""


async def plan_rewrite(engine: Engine, branch: str) -> ManifestPlan:
    """How the manifests of a branch would be packed now."""
    return _plan((await _open(engine, branch))[0])


async def rewrite_manifests(engine: Engine, request: RewriteRequest) -> ObjectId:
    """Commit the same chunks under manifests that are packed anew; returns the snapshot.

    Commits that land in between are kept: the rewrite is made again on top of them.
    """
    await engine.check_writable()
    for attempt in range(_TRIES):
        work, tip = await _open(engine, request.branch)
        plan = _plan(work)
        if not plan.outputs and not plan.kept:
            return tip.snapshot_id
        try:
            return await _apply(work, tip, plan, request)
        except ConflictError:
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _open(engine: Engine, branch: str) -> tuple[Workspace, Tip]:
    tip, base = await fetch_branch(engine, branch)
    return Workspace(engine, base), tip


def _plan(work: Workspace) -> ManifestPlan:
    arrays = [node for node in work.tree.nodes() if isinstance(node, ArrayNode)]
    return plan_repack(arrays, work.base.manifests, work.engine.config.manifest or SPECIFIED)


async def _apply(work: Workspace, tip: Tip, plan: ManifestPlan, request: RewriteRequest) -> ObjectId:
    engine = work.engine
    tell("write manifests", 0, len(plan.outputs))
    flushed = await apply_plan(work, plan, {})
    tell("write manifests", len(plan.outputs), len(plan.outputs))
    commit = CommitRequest(request.message, request.metadata)
    if not request.amends:
        snapshot = await flush_snapshot(work, commit, manifests=flushed)
        await advance_branch(engine, request.branch, tip, snapshot)
        return snapshot.id

    async def flush(tip: Tip, parent: Snapshot, earlier: TransactionLog) -> Snapshot:
        return await flush_snapshot(work, commit, onto=parent, earlier=earlier, manifests=flushed)

    return (await replace_newest(engine, request.branch, tip, work.base, flush))[0].id
