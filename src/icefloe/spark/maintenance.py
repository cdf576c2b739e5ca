"""Maintenance as Spark jobs: garbage collection, statistics, compaction, audits of virtual files.

The driver has the names of snapshots, manifests, logs and attributes files in memory, and two numbers per chunk object.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.storagelevel import StorageLevel

from icefloe.blocking import run_blocking
from icefloe.codec_pipeline import enable_variable_grids, has_variable_grids
from icefloe.errors import InvalidInputError, ReadOnlyError
from icefloe.ids import ALPHABET, ObjectId, text_length
from icefloe.ledger.ledger import CONVERSION, check_not_converting
from icefloe.maintenance.collect import (
    DELETE_BATCH,
    KINDS,
    AgeLimits,
    CollectionRequest,
    GCSummary,
    Marking,
    check_running,
    delete_garbage,
    folders_of,
    has_stale_quotes,
    key_builder,
    plan_collection,
)
from icefloe.maintenance.compact import CompactionPlan, CompactRequest, CompactSummary, plan_compaction
from icefloe.maintenance.compact import compact as apply_compaction
from icefloe.maintenance.expire import write_new_parents
from icefloe.maintenance.inventory import (
    Listed,
    UncachedRepository,
    columns_of,
    correct_quotes,
    empty_listing,
    fetch_cutoff,
    gather_bounded,
    id_keys,
    id_texts,
    list_folder,
    list_side_objects,
    microseconds,
    open_uncached,
    text_columns,
)
from icefloe.maintenance.marking import ManifestFacts, fetch_manifest_facts, live_keys, mark_snapshots
from icefloe.maintenance.verify_sources import (
    CHECKED,
    FILES,
    OK,
    SourceReport,
    SourceWork,
    check_sources,
    group_manifests,
    plan_sources,
)
from icefloe.model.chunk_table import number_array
from icefloe.repository import Repository
from icefloe.session.open_repository import Announcement, RepositoryContext
from icefloe.spark.jobs import JobMeter, Target, existing_repository
from icefloe.spark.tasks import (
    TASKS_PER_CORE,
    SparkJob,
    arrow_frame,
    collect,
    parallelism,
    run_tasks,
    task_frame,
    watched,
)
from icefloe.tables.grids import Grid, find_grid, list_grids
from icefloe.tables.reading import read_blocks
from icefloe.tables.scans import Scan, share_out
from icefloe.tables.selection import BlockList, BlockPart, Selection
from icefloe.tables.statistics import has_ranges, keep_rows, measure_chunks, missing_chunks
from icefloe.tables.table_options import Revision, address_of, open_address

Inventory: TypeAlias = DataFrame | pa.Table | str | os.PathLike[str]
_COLUMNS = ("key", "size", "last_modified")


def chunk_rows(spark: SparkSession, uncached: UncachedRepository, inventory: Inventory, prefix: str) -> DataFrame:
    """Return the rows of an inventory that are chunk objects: key, size and time in microseconds since 1970."""
    folder = folders_of(uncached)["chunks"]
    return _rows(spark, inventory, prefix, folder, "", uncached.format.capabilities.object_id_bytes)


def other_listings(
    spark: SparkSession, uncached: UncachedRepository, inventory: Inventory, prefix: str
) -> dict[str, Listed]:
    """Return everything but chunk objects by kind, on the driver."""
    width, folders = uncached.format.capabilities.object_id_bytes, folders_of(uncached)
    listings = {kind: empty_listing(width) for kind in KINDS}
    extension = uncached.format.metadata_extension
    for kind, folder in folders.items():
        if kind != "chunks":
            rows = collect(_rows(spark, inventory, prefix, folder, extension, width), "reading the inventory")
            batch = rows.combine_chunks().to_batches()
            if batch:
                listings[kind] = batch_columns(batch[0], folder, extension, width)
    return listings


def _rows(spark: SparkSession, inventory: Inventory, prefix: str, folder: str, extension: str, width: int) -> DataFrame:
    """Return rows whose key has the form of an object in a folder. Other keys do not belong to the repository."""
    frame = _frame(spark, inventory)
    missing = [name for name in _COLUMNS if name not in frame.columns]
    if missing:
        raise InvalidInputError(
            f"the inventory has no column {', '.join(missing)}. It has {', '.join(frame.columns)}. Rename its columns"
        )
    key = sql.substring(sql.col("key"), len(prefix) + 1, 1 << 30) if prefix else sql.col("key")
    length = len(folder) + text_length(width) + len(extension)
    time = sql.unix_micros(sql.col("last_modified").cast("timestamp"))
    fitting = (sql.octet_length("key") == length) & sql.col("size").isNotNull() & sql.col("modified").isNotNull()
    return (
        frame.where(sql.col("key").startswith(prefix + folder))
        .select(key.alias("key"), sql.col("size").cast("long"), time.alias("modified"))
        .where(fitting)
    )


def _frame(spark: SparkSession, inventory: Inventory) -> DataFrame:
    if isinstance(inventory, str | os.PathLike):
        return spark.read.parquet(os.fspath(inventory))
    if isinstance(inventory, pa.Table):
        return arrow_frame(spark, inventory)
    return inventory


def batch_columns(batch: pa.RecordBatch, folder: str, extension: str, width: int) -> Listed:
    """Return rows with keys of one length as columns, without a Python object for each."""
    length = len(folder) + text_length(width) + len(extension)
    names = _matrix(batch.column(0), length)[:, len(folder) :]
    return text_columns(names, _numbers(batch.column(1)), _numbers(batch.column(2)), extension, width)


def _matrix(texts: pa.Array, length: int) -> npt.NDArray[np.uint8]:
    """Return texts of one length as uint8[n, length]."""
    if not len(texts):
        return np.empty((0, length), dtype=np.uint8)
    plain = pc.cast(texts, pa.large_string())
    offsets = np.frombuffer(plain.buffers()[1], dtype=np.int64)[plain.offset : plain.offset + len(plain) + 1]
    data = np.frombuffer(plain.buffers()[2], dtype=np.uint8)
    return data[offsets[0] : offsets[-1]].reshape(len(plain), length)


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return values


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
    """Collect garbage like `Repository.garbage_collect`, with Spark tasks.

    Tasks list, mark, compare and delete the chunk objects.

    Parameters
    ----------
    spark
        The Spark session.
    repo
        A repository, or its path or URL.
    delete_object_older_than
        Only delete objects older than this time or age. Choose a value longer than your longest-running write.
    dry_run
        Only count. Nothing is deleted.
    created_after
        Only delete objects created after this time.
    inventory
        The objects of the store, instead of a listing: a DataFrame, an Arrow table or the path of Parquet files with
        the columns `key`, `size` and `last_modified`. Objects that are not in it are not deleted.
    inventory_prefix
        The common prefix of the keys in the inventory, if they are not relative to the repository.

    Returns
    -------
    GCSummary
        The number and size of the deleted objects.

    Raises
    ------
    ReadOnlyError
        The storage is read-only.

    Examples
    --------
    >>> import datetime
    >>> collect_garbage(spark, repo, datetime.timedelta(days=7), dry_run=True)  # doctest: +SKIP
    """
    context = existing_repository(repo).context
    run_blocking(context.check_writable())
    uncached = open_uncached(context)
    if uncached.storage.read_only and not dry_run:
        raise ReadOnlyError(f"{uncached.storage.url} is read-only, so garbage cannot be collected")
    request = CollectionRequest(delete_object_older_than, created_after)
    run_blocking(check_not_converting(uncached.storage, CONVERSION))
    if not dry_run:
        run_blocking(write_new_parents(context))
    decided = run_blocking(fetch_cutoff(uncached.storage, request.older_than))
    check_running(uncached, decided, request)
    cutoff = decided.time
    ages = AgeLimits(microseconds(cutoff), None if created_after is None else microseconds(created_after))
    with watched(spark, JobMeter("collecting garbage", 0)):
        if inventory is None:
            listed, listings = _list_on_spark(spark, context), run_blocking(_list_others(uncached))
        else:
            listed = chunk_rows(spark, uncached, inventory, inventory_prefix).mapInArrow(_ids_of(context), _LISTED)
            listings = other_listings(spark, uncached, inventory, inventory_prefix)
        # Stored on disk before refs are read, so that the references of a commit in between are seen.
        old = _old_enough(listed, ages).persist(StorageLevel.DISK_ONLY)
        try:
            count = int(collect(old.agg(sql.count("key")), "listing chunk objects").columns[0][0].as_py())
            return _judge(_Work(spark, context, uncached, listings, old, count, ages, cutoff), dry_run=dry_run)
        finally:
            old.unpersist()


@dataclass(frozen=True, slots=True)
class _Work:
    """The listed objects, and the limits that apply to them."""

    spark: SparkSession
    context: RepositoryContext
    uncached: UncachedRepository
    listings: dict[str, Listed]
    old: DataFrame
    count: int
    """Rows of `old`."""
    ages: AgeLimits
    cutoff: dt.datetime


def _judge(work: _Work, *, dry_run: bool) -> GCSummary:
    uncached, files = work.uncached, work.listings["snapshots"]
    side_objects = run_blocking(list_side_objects(uncached.storage))
    young = frozenset(files.take(files.modified >= work.ages.before).texts())
    new_parents = run_blocking(uncached.ledger.fetch_new_parents()) if dry_run else None
    marked = run_blocking(mark_snapshots(uncached, young, frozenset(files.texts()), new_parents=new_parents))
    plan = plan_collection(work.listings, marked, work.ages, work.cutoff, side_objects)
    live = _live_on_spark(work.spark, work.context, sorted(marked.manifests), marked.unreferenced)
    parts = 2 * parallelism(work.spark) + work.count // _ROWS_PER_PART
    # Partition both sides the same way. A broadcast join would send all live keys through the driver.
    named = live.repartition(parts, "key").hint("merge")
    garbage = work.old.repartition(parts, "key").join(named, "key", "left_anti").persist(StorageLevel.DISK_ONLY)
    try:
        found = collect(
            garbage.agg(sql.count("key"), sql.coalesce(sql.sum("size"), sql.lit(0))), "comparing chunk objects"
        )
        chunks, size = (int(column[0].as_py()) for column in found.columns)
        if not dry_run:
            marking = Marking(plan, marked, work.listings)
            if has_stale_quotes(marking):
                run_blocking(correct_quotes(work.context, uncached))
            if chunks or not plan.is_empty():
                _delete_garbage(work, marking, garbage)
    finally:
        garbage.unpersist()
    summary = plan.summary()
    return replace(summary, chunks_deleted=chunks, bytes_deleted=summary.bytes_deleted + size)


def _delete_garbage(work: _Work, marking: Marking, garbage: DataFrame) -> None:
    """Delete metadata objects after a last check of the refs, then chunks with tasks."""
    announcement = Announcement(work.uncached.storage, work.cutoff)
    run_blocking(announcement.begin())
    finished = False
    try:
        _, marked = run_blocking(delete_garbage(work.context, work.uncached, marking, announcement))
        if len(marked.chunks):
            # Only the names of earlier manifests are known. These are the chunks of later commits.
            garbage = garbage.where(~sql.col("key").isin(marked.chunks.view(np.int64).tolist()))
        announcement.check()
        collect(garbage.select("id").mapInArrow(_delete(work.context), "deleted long"), "deleting chunk objects")
        finished = True
    finally:
        run_blocking(announcement.end(finished=finished))


def _old_enough(listed: DataFrame, ages: AgeLimits) -> DataFrame:
    old = listed.where(sql.col("modified") < ages.before)
    return old if ages.not_before is None else old.where(sql.col("modified") >= ages.not_before)


async def _list_others(uncached: UncachedRepository) -> dict[str, Listed]:
    """List every folder except that of chunks. These have at most a few objects per commit."""
    width, folders = uncached.format.capabilities.object_id_bytes, folders_of(uncached)

    async def one(kind: str) -> Listed:
        if kind == "chunks" or kind not in folders:
            return empty_listing(width)
        return await list_folder(uncached.storage, folders[kind], uncached.format.metadata_extension, width)

    return dict(zip(KINDS, await asyncio.gather(*map(one, KINDS)), strict=True))


def _list_on_spark(spark: SparkSession, context: RepositoryContext) -> DataFrame:
    """List chunk objects with several tasks, one per first character."""
    folder = context.format.chunks_folder
    first = ALPHABET[:: len(ALPHABET) // _LISTING_SHARDS]
    bounds = [(f"{folder}{low}" if number else "", first[number + 1 : number + 2]) for number, low in enumerate(first)]

    def work(bound: tuple[str, str]) -> Batches:
        after, until = bound
        return _list_shard(context, after, f"{folder}{until}" if until else None)

    return task_frame(spark, work, bounds, _LISTED)


def _list_shard(context: RepositoryContext, after: str, end: str | None) -> Batches:
    uncached = open_uncached(context)
    folder, width = uncached.format.chunks_folder, uncached.format.capabilities.object_id_bytes
    pages = uncached.storage.list(folder, after=after or None)

    async def next_page() -> Any:
        return await anext(pages, None)

    while (page := run_blocking(next_page())) is not None:
        kept = [item for item in page if end is None or item.key <= end]
        yield listed_batch(columns_of(kept, folder, "", width))
        if len(kept) < len(page):
            return


def listed_batch(listed: Listed) -> pa.RecordBatch:
    """Return objects as Spark rows. The join key is a signed 64-bit number."""
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


def _ids_of(context: RepositoryContext) -> Callable[[Batches], Batches]:
    """Convert rows of an inventory to rows of objects."""
    folder, width = context.format.chunks_folder, context.capabilities.object_id_bytes

    def work(batches: Batches) -> Batches:
        for batch in batches:
            yield listed_batch(batch_columns(batch, folder, "", width))

    return work


def _live_on_spark(
    spark: SparkSession, context: RepositoryContext, manifests: Sequence[ObjectId], unreferenced: frozenset[ObjectId]
) -> DataFrame:
    """Return the keys of chunk objects in manifests. Manifests that no ref reaches can be missing."""
    size = max(1, min(_MANIFESTS_PER_TASK, -(-len(manifests) // max(1, 2 * parallelism(spark)))))
    shares = [list(manifests[low : low + size]) for low in range(0, len(manifests), size)]

    def work(share: tuple[list[ObjectId], frozenset[ObjectId]]) -> Batches:
        return _live_keys(context, *share)

    return task_frame(spark, work, [(share, unreferenced.intersection(share)) for share in shares], _LIVE)


def _live_keys(context: RepositoryContext, manifests: Sequence[ObjectId], unreferenced: frozenset[ObjectId]) -> Batches:
    uncached = open_uncached(context)

    async def fetch(manifest_id: ObjectId) -> ManifestFacts:
        return await fetch_manifest_facts(uncached, manifest_id, may_be_gone=manifest_id in unreferenced)

    # A few at a time, to limit the memory of a task.
    for low in range(0, len(manifests), _FETCHES):
        facts = run_blocking(gather_bounded(fetch, manifests[low : low + _FETCHES], _FETCHES))
        keys = live_keys({each.id: each for each in facts})
        yield pa.RecordBatch.from_arrays([_signed(keys)], names=["key"])


def _delete(context: RepositoryContext) -> Callable[[Batches], Batches]:
    def work(batches: Batches) -> Batches:
        uncached = open_uncached(context)
        key, width = key_builder(uncached, "chunks"), context.capabilities.object_id_bytes
        deleted = 0
        for batch in batches:
            packed = b"".join(batch.column(0).to_pylist())
            ids = np.frombuffer(packed, dtype=np.uint8).reshape(-1, width)
            for low in range(0, len(ids), DELETE_BATCH):
                run_blocking(uncached.storage.delete([key(text) for text in id_texts(ids[low : low + DELETE_BATCH])]))
            deleted += len(ids)
        yield pa.RecordBatch.from_pydict({"deleted": [deleted]})

    return work


_PART_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of an analysis.

    Attributes
    ----------
    snapshot_id
        The snapshot that was analyzed.
    chunks
        The number of chunks with new statistics, by array path.
    seconds
        The duration of the job.

    Examples
    --------
    >>> Analysis("J0YW0WNV6JWY3RH21G7G", {"/t2m": 24}, 1.5).chunks
    {'/t2m': 24}
    """

    snapshot_id: str
    chunks: dict[str, int]
    seconds: float


def analyze(
    spark: SparkSession,
    repo: Repository | str | os.PathLike[str],
    *,
    group: str = "/",
    variables: Sequence[str] | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    progress: bool | None = None,
) -> Analysis:
    """Compute and store minimum, maximum, count and missing count of every chunk without statistics.

    The statistics are stored in the repository and are valid for every snapshot that has the chunk. Conditions such as
    `where="t2m > 310"` then read only chunks that can match. Nothing is committed.

    Parameters
    ----------
    spark
        The Spark session.
    repo
        A repository, or its path or URL.
    group
        The group of the arrays.
    variables
        The names of the arrays. None is all.
    branch, tag, snapshot_id
        The snapshot. The default is the tip of `main`.
    progress
        Whether to show a progress bar. None shows it in terminals and notebooks.

    Returns
    -------
    Analysis
        The number of chunks with new statistics.

    Examples
    --------
    >>> from icefloe.spark import analyze, connect
    >>> analyze(connect(), "s3://bucket/weather", variables=["t2m"])  # doctest: +SKIP
    """
    started = time.monotonic()
    address = address_of(repo)
    session = Revision(branch, tag, snapshot_id).session(open_address(address))
    path = "/" + group.strip("/")
    names = (
        list(variables) if variables is not None else [name for names in list_grids(session, path) for name in names]
    )
    added: dict[str, int] = {}
    for name in names:
        grid = find_grid(session, path, [name])
        variable = grid.variables[0]
        todo = missing_chunks(session, variable) if has_ranges(variable.coding) else np.zeros(0, dtype=np.int64)
        if not len(todo):
            continue
        rows = _measure(spark, Scan(address, session.snapshot_id, grid, (None,) * len(grid.shape)), todo, progress)
        added[variable.path] = keep_rows(session, variable, rows)
    return Analysis(session.snapshot_id, added, time.monotonic() - started)


def _measure(spark: SparkSession, scan: Scan, chunks: npt.NDArray[np.int64], progress: bool | None) -> pa.Table:
    box = tuple((0, n) for n in scan.grid.blocks)
    blocks = BlockList(box, np.sort(chunks))
    selection = Selection(scan.masks, blocks, int(np.prod(scan.grid.blocks, dtype=np.int64)))
    plan = share_out(scan, selection, _PART_BYTES, parallelism(spark) * TASKS_PER_CORE)
    name = scan.grid.variables[0].path
    job = SparkJob(_Measure(scan), f"measuring {len(chunks):,} chunks of {name}", progress)
    return pa.concat_tables(run_tasks(spark, job, list(plan.parts)))


@dataclass(frozen=True, slots=True)
class _Measure:
    scan: Scan

    def __call__(self, part: BlockPart) -> pa.Table:
        grid: Grid = self.scan.grid
        found = (
            (int(np.ravel_multi_index(block.coordinates, grid.blocks)) if grid.blocks else 0, block.values[0])
            for block in read_blocks(self.scan, part)
        )
        return measure_chunks(grid.variables[0], found)


__all__ = ["collect_garbage", "compact"]


def compact(
    spark: SparkSession, repo: Target, request: CompactRequest | None = None, *, dry_run: bool = False
) -> CompactionPlan | list[CompactSummary]:
    """Compact chunks like `Repository.compact`, with one task per array. Each task commits its own batches.

    Parameters
    ----------
    spark
        The Spark session.
    repo
        A repository, or its path or URL.
    request
        Which chunks are compacted. None is the default.
    dry_run
        Only return the plan.

    Returns
    -------
    CompactionPlan or list of CompactSummary
        The plan of a dry run, or the summaries of the tasks.

    Examples
    --------
    >>> compact(spark, "s3://bucket/weather", dry_run=True)  # doctest: +SKIP
    """
    context = existing_repository(repo).context
    plan = run_blocking(plan_compaction(context, request or CompactRequest()))
    if dry_run:
        return plan
    payloads = [(context, replace(plan, arrays=(array,))) for array in plan.arrays]
    return run_tasks(spark, SparkJob(_compact, "compact chunks", bytes=plan.size_bytes), payloads)


def _compact(payload: tuple[RepositoryContext, CompactionPlan]) -> CompactSummary:
    context, plan = payload
    return run_blocking(apply_compaction(context, plan))


_GROUPED = "location string, etag string, modified long, path string, references long, end long, sample string"
_CHECKED = "location string, status string, references long, size_bytes long, decoded long, detail string"


def verify_sources(
    spark: SparkSession, repo: Target, *, branch: str | None = None, sample: int = 1, progress: bool | None = None
) -> SourceReport:
    """Check every virtual reference against its file like `Repository.verify_sources`, with Spark tasks.

    Tasks read the manifests, group the references by file, check the files, and decode some chunks of each. The driver
    receives counts, and the files that are not ok.

    Parameters
    ----------
    spark
        The Spark session.
    repo
        A repository, or its path or URL. Files are checked with the access that the repository was opened with.
    branch
        Only the newest snapshot of this branch. None is that of every branch and tag.
    sample
        The number of chunks of each array in each file that are decoded.
    progress
        Whether to show a progress bar. None shows it in terminals and notebooks.

    Returns
    -------
    SourceReport
        The number of files by status, and the files that are not ok.

    Raises
    ------
    InvalidInputError
        The branch does not exist, or `sample` is negative.

    Examples
    --------
    >>> verify_sources(spark, repo, branch="main").counts  # doctest: +SKIP
    {'ok': 3650}
    """
    if sample < 0:
        raise InvalidInputError(f"sample is the number of chunks of each array to decode per file, not {sample}")
    context = existing_repository(repo).context
    work = run_blocking(plan_sources(context, branch))
    manifests = sorted(work.uses)
    size = max(1, min(_MANIFESTS_PER_TASK, -(-len(manifests) // max(1, 2 * parallelism(spark)))))
    names = [manifests[low : low + size] for low in range(0, len(manifests), size)]
    shares = [SourceWork({name: work.uses[name] for name in share}) for share in names]

    def group(share: SourceWork) -> Batches:
        yield from run_blocking(group_manifests(context, share, sample)).to_batches()

    varies = has_variable_grids()

    def check(batches: Batches) -> Batches:
        if varies:
            enable_variable_grids()
        for batch in batches:
            files = pa.Table.from_batches([batch]).cast(FILES)
            yield from run_blocking(check_sources(context, files)).cast(CHECKED).to_batches()

    grouped = task_frame(spark, group, shares, _GROUPED)
    totals = [sql.sum("references").alias("references"), sql.max("end").alias("end")]
    arrays = grouped.groupBy("location", "etag", "modified", "path").agg(*totals, sql.first("sample").alias("sample"))
    files = arrays.groupBy("location", "etag", "modified").agg(*totals, sql.collect_list("sample").alias("samples"))
    files = files.repartition(4 * parallelism(spark), "location")
    with watched(spark, JobMeter("checking files", 0, shown=progress)):
        checked = files.mapInArrow(check, _CHECKED).persist(StorageLevel.DISK_ONLY)
        try:
            counted = checked.groupBy("status").agg(sql.count("location"), sql.sum("references"))
            counts = collect(counted, "checking files").to_pydict()
            bad = collect(checked.where(sql.col("status") != OK), "reading the report").cast(CHECKED)
        finally:
            checked.unpersist()
    status, numbers, references = counts.values()
    return SourceReport(
        bad.sort_by("location"),
        dict(zip(status, numbers, strict=True)),
        dict(zip(status, references, strict=True)),
    )
