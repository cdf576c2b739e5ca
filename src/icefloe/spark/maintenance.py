"""Maintenance as Spark jobs: tasks do the heavy part, the driver decides."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from icefloe.blocking import run_blocking
from icefloe.ids import ObjectId
from icefloe.maintenance.compact import CompactSummary, plan_compaction
from icefloe.maintenance.compact import compact as carry_out
from icefloe.maintenance.compact_plan import CompactionPlan, CompactRequest
from icefloe.maintenance.expire_plan import ExpiryPlan, RetentionRule
from icefloe.maintenance.verify_report import VerifyReport
from icefloe.session.engine import Engine
from icefloe.spark.collecting import collect_garbage
from icefloe.spark.places import Target, existing_repository
from icefloe.spark.tasks import SparkJob, run_tasks

__all__ = ["collect_garbage", "compact", "expire", "rewrite_manifests", "verify"]


def expire(
    spark: SparkSession,
    repo: Target,
    older_than: dt.datetime | dt.timedelta | None = None,
    *,
    retain_last: int | None = None,
    rules: Sequence[RetentionRule] = (),
    dry_run: bool = False,
) -> ExpiryPlan:
    """`Repository.expire_snapshots`: its work is a few files, so the driver does it."""
    repository = existing_repository(repo)
    plan = repository.plan_expiry(older_than, retain_last=retain_last, rules=rules)
    if not dry_run:
        repository.apply_expiry(plan)
    return plan


def compact(
    spark: SparkSession, repo: Target, request: CompactRequest | None = None, *, dry_run: bool = False
) -> CompactionPlan | list[CompactSummary]:
    """`Repository.compact` with one task per array; tasks commit their batches by themselves."""
    engine = existing_repository(repo).engine
    plan = run_blocking(plan_compaction(engine, request or CompactRequest()))
    if dry_run:
        return plan
    payloads = [(engine, replace(plan, arrays=(array,))) for array in plan.arrays]
    return run_tasks(spark, SparkJob(_compact, "compact chunks", bytes=plan.size_bytes), payloads)


def _compact(payload: tuple[Engine, CompactionPlan]) -> CompactSummary:
    engine, plan = payload
    return run_blocking(carry_out(engine, plan))


def rewrite_manifests(spark: SparkSession, repo: Target, message: str, *, branch: str = "main") -> ObjectId:
    """`Repository.rewrite_manifests`: manifests are columns, so the driver does it."""
    return existing_repository(repo).rewrite_manifests(message, branch=branch)


def verify(spark: SparkSession, repo: Target, *, decode: bool = False) -> VerifyReport:
    """`Repository.verify`: it streams manifests in bounded memory, on the driver."""
    return existing_repository(repo).verify(decode=decode)
