"""Collecting garbage as a Spark job: chunk objects are listed, marked, compared and deleted in tasks.

The driver holds snapshots, manifests, logs and attributes files by name, and of chunk objects two numbers.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.storagelevel import StorageLevel

from icefloe.blocking import run_blocking
from icefloe.errors import ReadOnlyError
from icefloe.ids import ALPHABET, ObjectId
from icefloe.maintenance.collect import (
    DELETE_BATCH,
    CollectionRequest,
    Marking,
    check_running,
    delete_garbage,
    folders_of,
    key_builder,
    quotes_what_is_gone,
)
from icefloe.maintenance.collect_plan import KINDS, AgeLimits, GCSummary, plan_collection
from icefloe.maintenance.history import correct_quotes
from icefloe.maintenance.listing import Listed, columns_of, empty_listing, id_keys, id_texts, list_folder, microseconds
from icefloe.maintenance.marking import ManifestFacts, fetch_manifest_facts, live_keys, mark_snapshots
from icefloe.maintenance.reading import Reading, gather_bounded, read_anew
from icefloe.maintenance.side_objects import list_side_objects
from icefloe.maintenance.store_clock import fetch_cutoff
from icefloe.model.string_column import number_array
from icefloe.session.collected import Announcement
from icefloe.session.engine import Engine
from icefloe.spark.inventory import Inventory, batch_columns, chunk_rows, other_listings
from icefloe.spark.places import Target, existing_repository
from icefloe.spark.progress import JobMeter
from icefloe.spark.tasks import collect, parallelism, watched

_MANIFESTS_PER_TASK = 64
_LISTING_SHARDS = 8
_LISTED = "key long, id binary, size long, modified long"
_LIVE = "key long"
_FETCHES = 8
_ROWS_PER_PART = 1 << 19

Batches = Iterator[pa.RecordBatch]


def collect_garbage(
    spark: SparkSession,
    repo: Target,
    delete_object_older_than: dt.datetime | dt.timedelta,
    *,
    dry_run: bool = False,
    created_after: dt.datetime | None = None,
    inventory: Inventory | None = None,
    inventory_prefix: str = "",
) -> GCSummary:
    """`Repository.garbage_collect` with chunk objects listed, marked, compared and deleted in tasks.

    Parameters
    ----------
    inventory
        The objects of the store, where an inventory of it is at hand, instead of listing: a DataFrame, an Arrow table
        or the path of Parquet files, with `key`, `size` and `last_modified`. What it does not tell of is not deleted.
    inventory_prefix
        What keys of the inventory begin with, where they are not relative to the repository.
    """
    engine = existing_repository(repo).engine
    run_blocking(engine.check_writable())
    reading = read_anew(engine)
    if reading.storage.read_only and not dry_run:
        raise ReadOnlyError(f"{reading.storage.url} takes no writes; garbage cannot be collected")
    request = CollectionRequest(delete_object_older_than, created_after)
    decided = run_blocking(fetch_cutoff(reading.storage, request.older_than))
    check_running(reading, decided, request)
    cutoff = decided.time
    ages = AgeLimits(microseconds(cutoff), None if created_after is None else microseconds(created_after))
    with watched(spark, JobMeter("collecting garbage", 0)):
        if inventory is None:
            listed, listings = _list_on_spark(spark, engine), run_blocking(_list_others(reading))
        else:
            listed = chunk_rows(spark, reading, inventory, inventory_prefix).mapInArrow(_ids_of(engine), _LISTED)
            listings = other_listings(spark, reading, inventory, inventory_prefix)
        # Kept on disk before refs are read: what a commit names that lands in between is then seen as named.
        old = _old_enough(listed, ages).persist(StorageLevel.DISK_ONLY)
        try:
            count = int(collect(old.agg(sql.count("key")), "listing chunk objects").columns[0][0].as_py())
            return _judge(_Work(spark, engine, reading, listings, old, count, ages, cutoff), dry_run=dry_run)
        finally:
            old.unpersist()


@dataclass(frozen=True, slots=True)
class _Work:
    """What is listed, and how it is judged."""

    spark: SparkSession
    engine: Engine
    reading: Reading
    listings: dict[str, Listed]
    old: DataFrame
    count: int
    """Rows of `old`."""
    ages: AgeLimits
    cutoff: dt.datetime


def _judge(work: _Work, *, dry_run: bool) -> GCSummary:
    reading, files = work.reading, work.listings["snapshots"]
    beside = run_blocking(list_side_objects(reading.storage))
    young = frozenset(files.take(files.modified >= work.ages.before).texts())
    marked = run_blocking(mark_snapshots(reading, young, frozenset(files.texts())))
    plan = plan_collection(work.listings, marked, work.ages, work.cutoff, beside)
    live = _live_on_spark(work.spark, work.engine, sorted(marked.manifests))
    parts = 2 * parallelism(work.spark) + work.count // _ROWS_PER_PART
    # Both sides are cut the same way. A plan that sends all live keys to every task would pass them through the driver.
    named = live.repartition(parts, "key").hint("merge")
    garbage = work.old.repartition(parts, "key").join(named, "key", "left_anti").persist(StorageLevel.DISK_ONLY)
    try:
        found = collect(
            garbage.agg(sql.count("key"), sql.coalesce(sql.sum("size"), sql.lit(0))), "comparing chunk objects"
        )
        chunks, size = (int(column[0].as_py()) for column in found.columns)
        if not dry_run:
            marking = Marking(plan, marked, work.listings)
            if quotes_what_is_gone(marking):
                run_blocking(correct_quotes(work.engine, reading))
            if chunks or not plan.is_empty():
                _delete_garbage(work, marking, garbage)
    finally:
        garbage.unpersist()
    summary = plan.summary()
    return replace(summary, chunks_deleted=chunks, bytes_deleted=summary.bytes_deleted + size)


def _delete_garbage(work: _Work, marking: Marking, garbage: DataFrame) -> None:
    """Delete what names chunks, with the last look at refs, then chunks in tasks."""
    announcement = Announcement(work.reading.storage, work.cutoff)
    run_blocking(announcement.begin())
    finished = False
    try:
        _, marked = run_blocking(delete_garbage(work.engine, work.reading, marking, announcement))
        if len(marked.chunks):
            # Of the manifests that were known before only names are: these are the chunks of commits since.
            garbage = garbage.where(~sql.col("key").isin(marked.chunks.view(np.int64).tolist()))
        announcement.check()
        collect(garbage.select("id").mapInArrow(_delete(work.engine), "deleted long"), "deleting chunk objects")
        finished = True
    finally:
        run_blocking(announcement.end(finished=finished))


def _old_enough(listed: DataFrame, ages: AgeLimits) -> DataFrame:
    old = listed.where(sql.col("modified") < ages.before)
    return old if ages.not_before is None else old.where(sql.col("modified") >= ages.not_before)


async def _list_others(reading: Reading) -> dict[str, Listed]:
    """Every folder but that of chunks, which are at most a few per commit."""
    width, folders = reading.format.capabilities.object_id_bytes, folders_of(reading)

    async def one(kind: str) -> Listed:
        if kind == "chunks" or kind not in folders:
            return empty_listing(width)
        return await list_folder(reading.storage, folders[kind], reading.format.metadata_extension, width)

    return dict(zip(KINDS, await asyncio.gather(*map(one, KINDS)), strict=True))


def _list_on_spark(spark: SparkSession, engine: Engine) -> DataFrame:
    """Chunk objects, listed in several tasks, each from another first character on."""
    folder = engine.format.chunks_folder
    first = ALPHABET[:: len(ALPHABET) // _LISTING_SHARDS]
    bounds = [(f"{folder}{low}" if number else "", first[number + 1 : number + 2]) for number, low in enumerate(first)]

    def work(batches: Batches) -> Batches:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                after, until = bounds[task]
                yield from _list_shard(engine, after, f"{folder}{until}" if until else None)

    return spark.range(0, len(bounds), 1, len(bounds)).mapInArrow(work, _LISTED)


def _list_shard(engine: Engine, after: str, end: str | None) -> Batches:
    reading = read_anew(engine)
    folder, width = reading.format.chunks_folder, reading.format.capabilities.object_id_bytes
    pages = reading.storage.list(folder, after=after or None)

    async def next_page() -> Any:
        return await anext(pages, None)

    while (page := run_blocking(next_page())) is not None:
        kept = [item for item in page if end is None or item.key <= end]
        yield listed_batch(columns_of(kept, folder, "", width))
        if len(kept) < len(page):
            return


def listed_batch(listed: Listed) -> pa.RecordBatch:
    """Objects as rows of Spark; the key that rows are joined by is a number of 64 bits, with a sign in Spark."""
    width = listed.ids.shape[1]
    packed = pa.py_buffer(np.ascontiguousarray(listed.ids))
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(listed), [None, packed])
    columns = [
        _signed(id_keys(listed.ids)),
        fixed.cast(pa.binary()),
        *map(number_array, (listed.size, listed.modified)),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["key", "id", "size", "modified"])


def _signed(keys: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> pa.Array:
    return number_array(keys.view(np.int64))


def _ids_of(engine: Engine) -> Callable[[Batches], Batches]:
    """Rows of an inventory as rows of objects."""
    folder, width = engine.format.chunks_folder, engine.capabilities.object_id_bytes

    def work(batches: Batches) -> Batches:
        for batch in batches:
            yield listed_batch(batch_columns(batch, folder, "", width))

    return work


def _live_on_spark(spark: SparkSession, engine: Engine, manifests: Sequence[ObjectId]) -> DataFrame:
    """The keys of chunk objects that manifests name."""
    size = max(1, min(_MANIFESTS_PER_TASK, -(-len(manifests) // max(1, 2 * parallelism(spark)))))
    shares = [list(manifests[low : low + size]) for low in range(0, len(manifests), size)] or [[]]

    def work(batches: Batches) -> Batches:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from _live_keys(engine, shares[task])

    return spark.range(0, len(shares), 1, len(shares)).mapInArrow(work, _LIVE)


def _live_keys(engine: Engine, manifests: Sequence[ObjectId]) -> Batches:
    reading = read_anew(engine)

    async def fetch(manifest_id: ObjectId) -> ManifestFacts:
        return await fetch_manifest_facts(reading, manifest_id)

    # A few at a time: a task holds the references of these, not of its whole share.
    for low in range(0, len(manifests), _FETCHES):
        facts = run_blocking(gather_bounded(fetch, manifests[low : low + _FETCHES], _FETCHES))
        keys = live_keys({each.id: each for each in facts})
        yield pa.RecordBatch.from_arrays([_signed(keys)], names=["key"])


def _delete(engine: Engine) -> Callable[[Batches], Batches]:
    def work(batches: Batches) -> Batches:
        reading = read_anew(engine)
        key, width = key_builder(reading, "chunks"), engine.capabilities.object_id_bytes
        deleted = 0
        for batch in batches:
            packed = b"".join(batch.column(0).to_pylist())
            ids = np.frombuffer(packed, dtype=np.uint8).reshape(-1, width)
            for low in range(0, len(ids), DELETE_BATCH):
                run_blocking(reading.storage.delete([key(text) for text in id_texts(ids[low : low + DELETE_BATCH])]))
            deleted += len(ids)
        yield pa.RecordBatch.from_pydict({"deleted": [deleted]})

    return work
