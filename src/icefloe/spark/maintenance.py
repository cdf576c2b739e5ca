"""Maintenance as Spark jobs: tasks do the heavy part, the driver decides."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession

from icefloe.blocking import run_blocking
from icefloe.maintenance.compact import CompactSummary, plan_compaction
from icefloe.maintenance.compact import compact as carry_out
from icefloe.maintenance.compact_plan import CompactionPlan, CompactRequest
from icefloe.session.engine import Engine
from icefloe.spark.collecting import collect_garbage
from icefloe.spark.places import Target, existing_repository
from icefloe.spark.tasks import SparkJob, run_tasks

__all__ = ["collect_garbage", "compact"]


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
