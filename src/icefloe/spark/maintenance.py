"""Maintenance as Spark jobs: tasks list, read manifests, delete and compact; the driver decides."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from icefloe.blocking import run_blocking
from icefloe.ids import ALPHABET, ObjectId
from icefloe.maintenance.collect import (
    CollectionRequest,
    Marking,
    apply_plan,
    check_refs,
    check_running,
    folders_of,
    key_builder,
)
from icefloe.maintenance.collect_plan import KINDS, AgeLimits, GCSummary, plan_collection
from icefloe.maintenance.compact import CompactSummary, plan_compaction
from icefloe.maintenance.compact import compact as carry_out
from icefloe.maintenance.compact_plan import CompactionPlan, CompactRequest
from icefloe.maintenance.expire_plan import ExpiryPlan, RetentionRule
from icefloe.maintenance.listing import Listed, columns_of, empty_listing, id_texts, join_listings, microseconds
from icefloe.maintenance.marking import ManifestFacts, Marked, fetch_manifest_facts, live_keys, mark_snapshots
from icefloe.maintenance.reading import Reading, gather_bounded, read_anew
from icefloe.maintenance.store_clock import cutoff_time
from icefloe.maintenance.verify_report import VerifyReport
from icefloe.repository import Repository
from icefloe.session.engine import Engine
from icefloe.spark.tasks import SparkJob, parallelism, run_tasks
from icefloe.storage.contract import ObjectInfo

_MANIFESTS_PER_TASK = 64
_DELETES_PER_TASK = 5000
_LISTING_SHARDS = 8


@dataclass(frozen=True, slots=True)
class _Listing:
    """One task: the keys of a folder between two bounds."""

    engine: Engine
    kind: str
    after: str
    until: str | None


def collect_garbage(
    spark: SparkSession,
    repo: Repository,
    delete_object_older_than: dt.datetime | dt.timedelta,
    *,
    dry_run: bool = False,
    created_after: dt.datetime | None = None,
    inventory: Mapping[str, Listed] | None = None,
) -> GCSummary:
    """`Repository.garbage_collect` with listing, marking and deleting in tasks.

    Parameters
    ----------
    inventory
        The objects per folder, where an inventory of the store is at hand, instead of listing; see
        `inventory_from_frame`.
    """
    engine = repo.engine
    run_blocking(engine.ledger.check_writable())
    reading = read_anew(engine)
    request = CollectionRequest(delete_object_older_than, created_after)
    cutoff = run_blocking(cutoff_time(reading.storage, request.older_than))
    check_running(reading, cutoff, request)
    listings = dict(inventory) if inventory is not None else list_on_spark(spark, engine)
    before = microseconds(cutoff)
    files = listings["snapshots"]
    young = frozenset(files.take(files.modified >= before).texts())
    marked = run_blocking(mark_snapshots(reading, young, frozenset(files.texts())))
    marked = _mark_on_spark(spark, engine, marked)
    not_before = None if created_after is None else microseconds(created_after)
    plan = plan_collection(listings, marked, AgeLimits(before, not_before), cutoff)
    if not dry_run:
        # What names chunks goes first, on the driver, with the last look at refs; chunks follow in tasks.
        first = replace(plan, garbage={**plan.garbage, "chunks": empty_listing(files.ids.shape[1])})
        marking = Marking(first, marked, listings)
        run_blocking(check_refs(reading, marking, frozenset(plan.garbage["snapshots"].texts())))
        run_blocking(apply_plan(engine, reading, marking))
        _delete_on_spark(spark, engine, plan.garbage["chunks"])
    return plan.summary()


def list_on_spark(spark: SparkSession, engine: Engine) -> dict[str, Listed]:
    """All folders as columns; large ones are listed in several tasks, each from another first character on."""
    reading = read_anew(engine)
    folders = folders_of(reading)
    bounds = [*ALPHABET[:: len(ALPHABET) // _LISTING_SHARDS], None]
    shards = [
        _Listing(engine, kind, "" if low == 0 else f"{folders[kind]}{bounds[low]}", bounds[low + 1])
        for kind in folders
        for low in range(_LISTING_SHARDS if kind == "chunks" else 1)
    ]
    shards = [shard if shard.kind == "chunks" else replace(shard, until=None) for shard in shards]
    parts = run_tasks(spark, SparkJob(_list_shard, "list objects"), shards)
    width = engine.capabilities.object_id_bytes
    found: dict[str, list[Listed]] = {kind: [] for kind in KINDS}
    for shard, part in zip(shards, parts, strict=True):
        found[shard.kind].append(part)
    return {kind: join_listings(each, width) for kind, each in found.items()}


def _list_shard(shard: _Listing) -> Listed:
    async def run() -> Listed:
        reading = read_anew(shard.engine)
        folder = folders_of(reading)[shard.kind]
        extension = "" if shard.kind == "chunks" else reading.format.metadata_extension
        width = reading.format.capabilities.object_id_bytes
        end = None if shard.until is None else f"{folder}{shard.until}"
        parts = []
        async for page in reading.storage.list(folder, after=shard.after or None):
            kept = [item for item in page if end is None or item.key <= end]
            parts.append(columns_of(kept, folder, extension, width))
            if len(kept) < len(page):
                break
        return join_listings(parts, width)

    return run_blocking(run())


def _mark_on_spark(spark: SparkSession, engine: Engine, marked: Marked) -> Marked:
    """The chunk objects that manifests name, read in tasks; the driver holds keys, not references."""
    wanted = sorted(marked.manifests)
    size = max(1, min(_MANIFESTS_PER_TASK, -(-len(wanted) // max(1, 2 * parallelism(spark)))))
    payloads = [(engine, wanted[low : low + size]) for low in range(0, len(wanted), size)]
    columns = run_tasks(spark, SparkJob(_manifest_keys, "read manifests"), payloads)
    return replace(marked, chunks=np.unique(np.concatenate(columns)) if columns else marked.chunks)


def _manifest_keys(payload: tuple[Engine, list[ObjectId]]) -> Any:
    engine, wanted = payload
    reading = read_anew(engine)

    async def fetch(manifest_id: ObjectId) -> ManifestFacts:
        return await fetch_manifest_facts(reading, manifest_id)

    facts = run_blocking(gather_bounded(fetch, wanted, 8))
    return live_keys({each.id: each for each in facts})


def _delete_on_spark(spark: SparkSession, engine: Engine, chunks: Listed) -> None:
    batches = [(engine, chunks.ids[low : low + _DELETES_PER_TASK]) for low in range(0, len(chunks), _DELETES_PER_TASK)]
    run_tasks(spark, SparkJob(_delete, "delete chunks"), batches)


def _delete(payload: tuple[Engine, Any]) -> int:
    engine, ids = payload
    reading: Reading = read_anew(engine)
    key: Callable[[ObjectId], str] = key_builder(reading, "chunks")
    run_blocking(reading.storage.delete([key(text) for text in id_texts(ids)]))
    return len(ids)


def inventory_from_frame(repo: Repository, frame: Any) -> dict[str, Listed]:
    """An inventory of the store as listings: a DataFrame or Arrow table with `key`, `size` and `last_modified`.

    Keys are relative to the repository. Whoever made it before the last commit loses nothing: what is not listed is
    not deleted.
    """
    table = frame.toArrow() if hasattr(frame, "toArrow") else frame
    reading = read_anew(repo.engine)
    width = repo.engine.capabilities.object_id_bytes
    folders = folders_of(reading)
    keys, sizes = table["key"].to_pylist(), table["size"].to_pylist()
    times = table["last_modified"].to_pylist()
    listings = {}
    for kind in KINDS:
        folder = folders.get(kind)
        if folder is None:
            listings[kind] = empty_listing(width)
            continue
        extension = "" if kind == "chunks" else reading.format.metadata_extension
        page = [_info(*row) for row in zip(keys, sizes, times, strict=True) if row[0].startswith(folder)]
        listings[kind] = columns_of(page, folder, extension, width)
    return listings


def _info(key: str, size: int, modified: dt.datetime) -> ObjectInfo:
    return ObjectInfo(key, size, modified if modified.tzinfo is not None else modified.replace(tzinfo=dt.UTC))


def expire(
    spark: SparkSession,
    repo: Repository,
    older_than: dt.datetime | dt.timedelta | None = None,
    *,
    retain_last: int | None = None,
    rules: Sequence[RetentionRule] = (),
    dry_run: bool = False,
) -> ExpiryPlan:
    """`Repository.expire_snapshots`: its work is a few files, so the driver does it."""
    plan = repo.plan_expiry(older_than, retain_last=retain_last, rules=rules)
    if not dry_run:
        repo.apply_expiry(plan)
    return plan


def compact(
    spark: SparkSession, repo: Repository, request: CompactRequest | None = None, *, dry_run: bool = False
) -> CompactionPlan | list[CompactSummary]:
    """`Repository.compact` with one task per array; tasks commit their batches by themselves."""
    plan = run_blocking(plan_compaction(repo.engine, request or CompactRequest()))
    if dry_run:
        return plan
    payloads = [(repo.engine, replace(plan, arrays=(array,))) for array in plan.arrays]
    return run_tasks(spark, SparkJob(_compact, "compact chunks", bytes=plan.size_bytes), payloads)


def _compact(payload: tuple[Engine, CompactionPlan]) -> CompactSummary:
    engine, plan = payload
    return run_blocking(carry_out(engine, plan))


def rewrite_manifests(spark: SparkSession, repo: Repository, message: str, *, branch: str = "main") -> ObjectId:
    """`Repository.rewrite_manifests`: manifests are columns, so the driver does it."""
    return repo.rewrite_manifests(message, branch=branch)


def verify(spark: SparkSession, repo: Repository, *, decode: bool = False) -> VerifyReport:
    """`Repository.verify`: it streams manifests in bounded memory, on the driver."""
    return repo.verify(decode=decode)
