"""Collect garbage: list, mark, plan, check again, then delete in an order that is safe to interrupt.

An incremental collection saves its mark in one object outside of the repository's folders: a digest, then zstd of
MessagePack with columns as bytes. A mark that is corrupt, of another version or of another generation is ignored.

The mark contains the names of all objects that were live, and of unreferenced objects that were too young to be
deleted. Objects that crashed writers have left since then are not in it. The next full collection finds them in the
listing.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from icefloe.debug import traced
from icefloe.display.card import TextCardMixin, WithFields, format_bytes, format_count
from icefloe.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
    SnapshotNotFoundError,
)
from icefloe.formats.format import Format
from icefloe.formats.header import DecompressionLimits, decompress
from icefloe.ids import ObjectId
from icefloe.ledger.ledger import CONVERSION, RefTargets, check_not_converting
from icefloe.maintenance.expire import write_new_parents
from icefloe.maintenance.inventory import (
    FOLDER,
    Cutoff,
    Ids,
    Listed,
    UncachedRepository,
    correct_quotes,
    empty_listing,
    fetch_all_refs,
    fetch_cutoff,
    fetch_sizes,
    fetch_store_time,
    find_unreferenced,
    first_rows,
    id_keys,
    id_texts,
    is_among,
    join_listings,
    list_folder,
    list_folder_names,
    list_side_objects,
    microseconds,
    open_uncached,
    reopen_uncached,
    report_progress,
    stream_bounded,
    text_ids,
)
from icefloe.maintenance.marking import FetchLimits, Known, ManifestFacts, Marked, SnapshotFacts, mark
from icefloe.model.snapshot import check_zone
from icefloe.model.zarr_document import check_messagepack
from icefloe.session.open_repository import Announcement, RepositoryContext, announced, oldest_writer
from icefloe.storage.contract import ObjectInfo, Storage

KINDS = ("snapshots", "transaction_logs", "manifests", "attributes", "chunks")
"""In the order of deletion: an object is deleted before the objects that it refers to."""


@dataclass(frozen=True, slots=True, repr=False)
class GCSummary(WithFields):
    """The result of a garbage collection, or of a dry run.

    Parameters
    ----------
    bytes_deleted
        The size of all deleted objects.
    chunks_deleted, manifests_deleted, snapshots_deleted, attributes_deleted, transaction_logs_deleted
        The numbers of deleted objects.
    objects_failed_to_delete, throttled_batches
        Always 0. A request that the store throttles is repeated. A deletion that fails raises an error.
    delete_errors, skipped_phases
        Always empty. A deletion that fails raises an error, and no kind of object is skipped.
    lists_deleted
        The number of deleted lists of ingested sources.
    cutoff
        Only objects last modified before this time, by the store's clock, could be deleted.
    objects_in_use
        The number of objects that are reachable from branches and tags. A Spark job does not count chunk objects.
    objects_too_young
        The number of unreferenced objects that were modified after the cut-off.

    Examples
    --------
    >>> import datetime as dt, icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> repo.garbage_collect(dt.timedelta(days=7)).chunks_deleted
    0
    """

    _full_name = "icechunk.ops.GCSummary"

    bytes_deleted: int = 0
    chunks_deleted: int = 0
    manifests_deleted: int = 0
    snapshots_deleted: int = 0
    attributes_deleted: int = 0
    transaction_logs_deleted: int = 0
    objects_failed_to_delete: int = 0
    throttled_batches: int = 0
    delete_errors: list[str] = field(default_factory=list)
    skipped_phases: list[str] = field(default_factory=list)
    lists_deleted: int = 0
    cutoff: dt.datetime | None = field(default=None, compare=False)
    objects_in_use: int = field(default=0, compare=False)
    objects_too_young: int = field(default=0, compare=False)

    def judged(self) -> str:
        """Return a text with the cut-off and the numbers of objects that were kept.

        Returns
        -------
        str
            One line.

        Examples
        --------
        >>> import icefloe
        >>> icefloe.GCSummary(objects_in_use=5).judged()
        'cut-off none: 5 in use, 0 too young'
        """
        before = "none" if self.cutoff is None else f"{self.cutoff.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
        return f"cut-off {before}: {self.objects_in_use:,} in use, {self.objects_too_young:,} too young"

    def __str__(self) -> str:
        counts = [
            (self.snapshots_deleted, "snapshot"),
            (self.transaction_logs_deleted, "transaction log"),
            (self.manifests_deleted, "manifest"),
            (self.attributes_deleted, "attributes file"),
            (self.chunks_deleted, "chunk object"),
            (self.lists_deleted, "list of sources"),
        ]
        counted = ", ".join(format_count(count, name) for count, name in counts if count)
        return f"{counted}; {format_bytes(self.bytes_deleted)}" if counted else "nothing"


@dataclass(frozen=True, slots=True)
class CollectionPlan(TextCardMixin):
    """The objects to delete, per kind, and the numbers of objects to keep."""

    cutoff: dt.datetime
    garbage: Mapping[str, Listed]
    live: Mapping[str, int]
    young: Mapping[str, int]
    """Unreferenced objects that are too young to be deleted."""
    side_objects: tuple[ObjectInfo, ...] = ()
    """Objects outside of the repository's folders that no commit refers to, see `side_objects`."""

    def summary(self) -> GCSummary:
        """The summary of the plan."""
        counts: Any = {f"{kind}_deleted": len(self.garbage[kind]) for kind in KINDS}
        return GCSummary(
            bytes_deleted=sum(int(listed.size.sum()) for listed in self.garbage.values())
            + sum(item.size_bytes for item in self.side_objects),
            lists_deleted=len(self.side_objects),
            cutoff=self.cutoff,
            objects_in_use=sum(self.live.values()),
            objects_too_young=sum(self.young.values()),
            **counts,
        )

    def without(self, marked: Marked) -> CollectionPlan:
        """The plan without objects that are in use in the meantime."""
        garbage = {
            kind: listed.take(~is_among(listed.ids, _live_keys(kind, marked, listed.ids.shape[1])))
            for kind, listed in self.garbage.items()
        }
        side_objects = tuple(item for item in self.side_objects if item.key not in marked.side_objects)
        return replace(self, garbage=garbage, side_objects=side_objects)

    def is_empty(self) -> bool:
        return not self.side_objects and not any(len(listed) for listed in self.garbage.values())

    def __str__(self) -> str:
        lines = [f"to delete, not modified since {self.cutoff:%Y-%m-%d %H:%M:%S}: {self.summary()}"]
        for kind in KINDS:
            listed = self.garbage[kind]
            lines.append(
                f"  {kind.replace('_', ' '):17}{len(listed):>10,} to delete {format_bytes(int(listed.size.sum())):>10}"
                f" {self.live.get(kind, 0):>10,} in use {self.young.get(kind, 0):>10,} too young"
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class AgeLimits:
    """The cut-off times of objects, in microseconds since 1970."""

    before: int
    not_before: int | None = None


def plan_collection(
    listings: Mapping[str, Listed],
    marked: Marked,
    ages: AgeLimits,
    cutoff: dt.datetime,
    side_objects: Sequence[ObjectInfo] = (),
) -> CollectionPlan:
    """All listed objects that are unreferenced and old enough."""
    garbage, live, young = {}, {}, {}
    for kind in KINDS:
        listed = listings[kind]
        named = is_among(listed.ids, _live_keys(kind, marked, listed.ids.shape[1]))
        old = listed.modified < ages.before
        if ages.not_before is not None:
            old &= listed.modified >= ages.not_before
        garbage[kind] = listed.take(~named & old)
        live[kind] = int(np.count_nonzero(named))
        young[kind] = int(np.count_nonzero(~named & (listed.modified >= ages.before)))
    left = find_unreferenced(side_objects, marked.side_objects, ages.before, ages.not_before)
    return CollectionPlan(cutoff, garbage, live, young, left)


def _live_keys(kind: str, marked: Marked, width: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    if kind == "chunks":
        return marked.chunks
    texts: Mapping[str, list[ObjectId]] = {
        "snapshots": list(marked.snapshots),
        "transaction_logs": list(marked.logs),
        "manifests": list(marked.manifests),
        "attributes": list(marked.attributes),
    }
    return np.sort(id_keys(_text_ids(texts[kind], width)))


def _text_ids(texts: list[ObjectId], width: int) -> Ids:
    return text_ids(texts, width)


KEY = f"{FOLDER}garbage-mark"
_VERSION = 2
_DIGEST_BYTES = 32
_MAX_BYTES = 1 << 30
_LIMITS = DecompressionLimits(max_bytes=_MAX_BYTES)
_Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SavedMark:
    """Everything that was live, and everything unreachable that was too young to be deleted."""

    spec_version: str
    known: Known
    snapshot_times: Mapping[ObjectId, int]
    """The times of snapshot files. Expiry rewrites these files in place."""
    live: Mapping[str, Listed]
    """Live manifests, attributes files and chunk objects. Their times may be too late, but never too early."""
    pending: Mapping[str, Listed]


def encode_mark(mark: SavedMark) -> bytes:
    """Encode a mark."""
    snapshots = [
        [facts.id, facts.parent_id, facts.manifests, facts.attributes, facts.quoted, facts.side_objects, time]
        for facts, time in ((f, mark.snapshot_times.get(f.id, -1)) for f in mark.known.snapshots.values())
    ]
    manifests = [[facts.id, facts.objects.tobytes(), facts.sizes.tobytes()] for facts in mark.known.manifests.values()]
    document = {
        "version": _VERSION,
        "spec_version": mark.spec_version,
        "snapshots": snapshots,
        "manifests": manifests,
        "live": {kind: _pack(listed) for kind, listed in mark.live.items()},
        "pending": {kind: _pack(listed) for kind, listed in mark.pending.items()},
    }
    body = zstandard.ZstdCompressor(level=1).compress(msgspec.msgpack.encode(document))
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def find_mark_in(data: bytes, spec_version: str, width: int) -> SavedMark | None:
    """Decode a mark. None if it is not valid."""
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        return None
    try:
        packed = decompress(body, _LIMITS)
        check_messagepack(packed, len(body), "saved mark")
        document = msgspec.msgpack.decode(packed)
        if document["version"] != _VERSION or document["spec_version"] != spec_version:
            return None
        return _parse(document, width)
    except (ValueError, KeyError, TypeError, IndexError, FormatError, RecursionError):
        return None


def _parse(document: Mapping[str, Any], width: int) -> SavedMark:
    snapshots, times = {}, {}
    for key, parent, *columns, time in document["snapshots"]:
        manifests, attributes, quoted, side_objects = map(tuple, columns)
        snapshots[key] = SnapshotFacts(key, parent, manifests, attributes, quoted, side_objects)
        times[key] = time
    facts = {key: ManifestFacts(key, _ids(ids, width), _numbers(sizes)) for key, ids, sizes in document["manifests"]}
    return SavedMark(
        document["spec_version"],
        Known(snapshots, facts),
        times,
        {kind: _unpack(columns, width) for kind, columns in document["live"].items()},
        {kind: _unpack(document["pending"][kind], width) for kind in KINDS},
    )


def _pack(listed: Listed) -> list[bytes]:
    return [listed.ids.tobytes(), listed.size.tobytes(), listed.modified.tobytes()]


def _unpack(columns: list[bytes], width: int) -> Listed:
    ids, size, modified = columns
    listed = Listed(_ids(ids, width), _numbers(size), _numbers(modified))
    if not len(listed.ids) == len(listed.size) == len(listed.modified):
        raise ValueError("columns of different lengths")
    return listed


def _ids(data: bytes, width: int) -> Ids:
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, width)


def _numbers(data: bytes) -> _Int64:
    return np.frombuffer(data, dtype=np.int64)


async def fetch_mark(storage: Storage, spec_version: str, width: int) -> SavedMark | None:
    """The mark of the last collection, or None."""
    try:
        return find_mark_in(await storage.get(KEY), spec_version, width)
    except ObjectNotFoundError:
        return None


async def save_mark(storage: Storage, mark: SavedMark) -> None:
    """Save a mark for the next collection, unless it is too large to be useful."""
    data = encode_mark(mark)
    if len(data) > _MAX_BYTES // 4:
        await storage.delete([KEY])
        return
    await storage.put(KEY, data)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The objects that may be garbage, per kind, and the snapshots that need not be read again."""

    listings: dict[str, Listed]
    known: Known


async def list_candidates(uncached: UncachedRepository, mark: SavedMark) -> Candidates:
    """The current snapshot files, and all other objects from the mark."""
    width = uncached.format.capabilities.object_id_bytes
    layout = uncached.format
    files = await list_folder(uncached.storage, layout.snapshots_folder, layout.metadata_extension, width)
    times = dict(zip(files.texts(), files.modified.tolist(), strict=True))
    same = {key: f for key, f in mark.known.snapshots.items() if times.get(key) == mark.snapshot_times.get(key, -1)}
    listings = {"snapshots": files}
    for kind in KINDS[1:]:
        parts = [part for part in (mark.live.get(kind), mark.pending.get(kind)) if part is not None and len(part)]
        listings[kind] = parts[0] if len(parts) == 1 else _distinct(join_listings(parts, width))
    return Candidates(listings, Known(same, mark.known.manifests))


def _distinct(listed: Listed) -> Listed:
    if not len(listed):
        return listed
    return listed.take(first_rows(listed.ids))


def next_mark(layout: Format, marked: Marked, plan: CollectionPlan, listings: dict[str, Listed], now: int) -> SavedMark:
    """The mark after a collection: live objects, and unreferenced objects that were too young."""
    width = listings["snapshots"].ids.shape[1]
    files = listings["snapshots"]
    times = dict(zip(files.texts(), files.modified.tolist(), strict=True))
    logs = [each for each in marked.logs if each in times] if layout.capabilities.transaction_logs else []
    live = {
        "transaction_logs": _as_listed(logs, listings["transaction_logs"], now, width),
        "manifests": _as_listed(list(marked.manifests), listings["manifests"], now, width),
        "attributes": _as_listed(list(marked.attributes), listings["attributes"], now, width),
        "chunks": _live_objects(marked, listings["chunks"], now, width),
    }
    pending = {}
    everything = plan_collection(listings, marked, AgeLimits(1 << 62), plan.cutoff)
    for kind in KINDS:
        left = everything.garbage[kind]
        gone = np.sort(id_keys(plan.garbage[kind].ids))
        pending[kind] = empty_listing(width) if kind == "snapshots" else left.take(~is_among(left.ids, gone))
    return SavedMark(layout.spec_version.value, marked.known, times, live, pending)


def _as_listed(texts: list[ObjectId], listed: Listed, now: int, width: int) -> Listed:
    """Objects by name, with sizes and times from a listing. Objects that are not listed count as new."""
    ids = text_ids(texts, width)
    return _look_up(ids, np.zeros(len(ids), dtype=np.int64), listed, now)


def _live_objects(marked: Marked, listed: Listed, now: int, width: int) -> Listed:
    filled = [facts for facts in marked.manifests.values() if len(facts.objects)]
    if not filled:
        return empty_listing(width)
    ids = np.concatenate([facts.objects for facts in filled])
    sizes = np.concatenate([facts.sizes for facts in filled])
    first = first_rows(ids)
    return _look_up(ids[first], sizes[first], listed, now)


def _look_up(ids: np.ndarray, sizes: np.ndarray, listed: Listed, now: int) -> Listed:
    listed = listed.seen()
    modified = np.full(len(ids), now, dtype=np.int64)
    size = sizes.astype(np.int64)
    if len(listed) and len(ids):
        keys, listed_keys = id_keys(ids), id_keys(listed.ids)
        order = np.argsort(listed_keys)
        there = listed_keys[order]
        places = np.minimum(np.searchsorted(there, keys), len(there) - 1)
        found = there[places] == keys
        modified[found] = listed.modified[order][places][found]
        size[found] = listed.size[order][places][found]
    return Listed(ids, size, modified)


DELETE_BATCH = 1000
_DELETES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class CollectionRequest:
    """The options of a collection."""

    older_than: dt.datetime | dt.timedelta
    """Only objects last modified before this time, or longer ago than this, are deleted. By the store's clock."""
    created_after: dt.datetime | None = None
    limits: FetchLimits = field(default_factory=FetchLimits)
    ignore_running: bool = False
    incremental: bool = False
    """Start from the mark of the last incremental run, and save one for the next run."""

    def __post_init__(self) -> None:
        if self.created_after is not None:
            check_zone(self.created_after, "created_after")


@dataclass(frozen=True, slots=True)
class Marking:
    """A plan and its inputs."""

    plan: CollectionPlan
    marked: Marked
    listings: dict[str, Listed]
    now: dt.datetime | None = None
    """The time by the store's clock when the cut-off was computed. A Spark job does not need it."""


_LEFTOVER_AGE = dt.timedelta(minutes=5)
"""A writer may still finish a file that is younger than this."""


@traced("garbage_collect")
async def collect(context: RepositoryContext, request: CollectionRequest) -> GCSummary:
    """Delete objects that are unreachable from branches and tags and old enough."""
    await context.check_writable()
    if context.storage.read_only:
        raise ReadOnlyError(f"{context.storage.url} is read-only, so garbage cannot be collected")
    await write_new_parents(context)
    uncached = open_uncached(context)
    marking = await plan_collection_of(uncached, request)
    marking = replace(marking, plan=await apply_plan(context, uncached, marking))
    if not request.incremental and marking.now is not None:
        await context.storage.remove_leftovers(max(marking.now - marking.plan.cutoff, _LEFTOVER_AGE), marking.now)
    if request.incremental:
        read_at = microseconds(await fetch_store_time(uncached.storage))
        mark = next_mark(uncached.format, marking.marked, marking.plan, marking.listings, read_at)
        await save_mark(uncached.storage, mark)
    return marking.plan.summary()


async def preview_collection(uncached: UncachedRepository, request: CollectionRequest) -> CollectionPlan:
    """What a collection would delete now. It must not be carried out: the files have the expired parents."""
    return (await plan_collection_of(uncached, request, await uncached.ledger.fetch_new_parents())).plan


async def plan_collection_of(
    uncached: UncachedRepository, request: CollectionRequest, new_parents: Mapping[ObjectId, ObjectId] | None = None
) -> Marking:
    """Plan what to delete. `new_parents` are only given for a preview.

    Objects are listed before refs are read. So the references of a commit in between are seen.
    """
    # Files of the new generation look like garbage or damage until its refs exist.
    await check_not_converting(uncached.storage, CONVERSION)
    decided = await fetch_cutoff(uncached.storage, request.older_than)
    check_running(uncached, decided, request)
    cutoff = decided.time
    known, listings = await _list(uncached, request)
    side_objects = await list_side_objects(uncached.storage)
    before = microseconds(cutoff)
    files = listings["snapshots"]
    young = frozenset(files.take(files.modified >= before).texts())
    marked = await mark(uncached, young, frozenset(files.texts()), known, request.limits, new_parents)
    chunks = listings["chunks"]
    unreferenced = ~is_among(chunks.ids, marked.chunks)
    listings["chunks"] = await fetch_sizes(uncached.storage, uncached.format.chunks_folder, "", chunks, unreferenced)
    not_before = None if request.created_after is None else microseconds(request.created_after)
    plan = plan_collection(listings, marked, AgeLimits(before, not_before), cutoff, side_objects)
    return Marking(plan, marked, listings, decided.now)


async def _list(uncached: UncachedRepository, request: CollectionRequest) -> tuple[Known, dict[str, Listed]]:
    """The candidates for deletion: all objects, or those in a saved mark."""
    if request.incremental:
        width = uncached.format.capabilities.object_id_bytes
        mark = await fetch_mark(uncached.storage, uncached.format.spec_version.value, width)
        if mark is not None:
            candidates = await list_candidates(uncached, mark)
            return candidates.known, candidates.listings
    return Known(), await list_all(uncached, sized_chunks=False)


def check_running(uncached: UncachedRepository, cutoff: Cutoff, request: CollectionRequest) -> None:
    """Refuse a cut-off after the start of a writable session of this process, because its chunks could be deleted."""
    age = oldest_writer(uncached.storage)
    if age is None or request.ignore_running:
        return
    started = cutoff.started(age)
    if started < cutoff.time:
        raise InvalidInputError(
            f"a writable session of this process is open since {started.isoformat()} (clock of the store) and may have "
            "uncommitted chunks. The collection would delete unreferenced objects from before "
            f"{cutoff.time.isoformat()}. Commit or discard the session, choose an earlier time, or pass "
            "ignore_running_sessions=True",
            started=started,
        )


async def list_all(uncached: UncachedRepository, *, sized_chunks: bool = True) -> dict[str, Listed]:
    """List every folder of a repository as columns.

    Sizes and times of chunks may be missing, see `list_folder_names`.
    """
    width = uncached.format.capabilities.object_id_bytes
    folders = folders_of(uncached)

    async def one(kind: str) -> Listed:
        if kind not in folders:
            return empty_listing(width)
        if kind == "chunks":
            list_chunks = list_folder if sized_chunks else list_folder_names
            return await list_chunks(uncached.storage, folders[kind], "", width)
        return await list_folder(uncached.storage, folders[kind], uncached.format.metadata_extension, width)

    return dict(zip(KINDS, await asyncio.gather(*map(one, KINDS)), strict=True))


def folders_of(uncached: UncachedRepository) -> dict[str, str]:
    """The folders that the repository's generation has, by kind."""
    layout = uncached.format
    folders = {
        "snapshots": layout.snapshots_folder,
        "manifests": layout.manifests_folder,
        "chunks": layout.chunks_folder,
    }
    if layout.capabilities.transaction_logs:
        folders["transaction_logs"] = layout.transactions_folder
    if layout.capabilities.attributes_files:
        folders["attributes"] = layout.attributes_folder
    return folders


async def apply_plan(context: RepositoryContext, uncached: UncachedRepository, marking: Marking) -> CollectionPlan:
    """Delete garbage, except objects that became reachable since the plan. Rewrite quotes of deleted snapshots.

    Returns what was deleted: the plan without objects that new commits refer to.

    Snapshots are deleted before the objects that they refer to. So an interruption leaves unreferenced files, but never
    a snapshot with missing files. The next run finds the rest.
    """
    if has_stale_quotes(marking):
        await correct_quotes(context, uncached)
    if marking.plan.is_empty():
        await context.ledger.log_collection()
        return marking.plan
    async with announced(uncached.storage, marking.plan.cutoff) as announcement:
        return (await delete_garbage(context, uncached, marking, announcement))[0]


async def delete_garbage(
    context: RepositoryContext, uncached: UncachedRepository, marking: Marking, announcement: Announcement
) -> tuple[CollectionPlan, Marked]:
    """Delete the objects of a plan, except those that new commits refer to.

    Returns the deleted objects and those in use.
    """
    await context.ledger.announce_collection(announcement.record.id, soon=announcement.is_soon)
    marked = await mark_again(uncached, marking)
    plan = marking.plan.without(marked)
    doomed = frozenset(plan.garbage["snapshots"].texts())
    await _forget(context, doomed, marked.listed)
    for kind in KINDS:
        await delete_objects(uncached, kind, plan.garbage[kind], announcement)
    if plan.side_objects:
        announcement.check()
        await uncached.storage.delete([item.key for item in plan.side_objects])
    for snapshot_id in doomed:
        context.metadata_files.forget_snapshot(snapshot_id)
    return plan, marked


async def mark_again(uncached: UncachedRepository, marking: Marking) -> Marked:
    """The objects that are in use now. Only refs that moved since the mark are followed.

    A later commit is notified of the collection and checks itself that the objects it refers to exist.
    """
    fresh = await fetch_all_refs(uncached.ledger)
    if fresh.targets() <= marking.marked.refs.targets():
        return marking.marked
    await check_refs(uncached, marking, fresh, frozenset(marking.plan.garbage["snapshots"].texts()))
    known = marking.marked.known
    # Another uncached view, because files that the first one cached may have been rewritten since.
    return await mark(reopen_uncached(uncached), frozenset(), frozenset(), known)


def has_stale_quotes(marking: Marking) -> bool:
    """Whether a snapshot quotes collected ancestors.

    A session that was open during expiry and collection commits such.
    """
    there = frozenset(marking.listings["snapshots"].texts())
    return any(not there.issuperset(facts.quoted) for facts in marking.marked.snapshots.values())


async def check_refs(
    uncached: UncachedRepository, marking: Marking, fresh: RefTargets, doomed: frozenset[ObjectId]
) -> None:
    """Follow refs that moved since the mark, until a kept snapshot is reached."""
    for start in fresh.targets() - marking.marked.refs.targets():
        try:
            async for info in uncached.ledger.ancestry(start):
                if info.id in marking.marked.snapshots:
                    break
                if info.id in doomed:
                    raise _became_reachable(info.id, fresh.names_of(start))
        except SnapshotNotFoundError as error:
            raise _became_reachable(start, fresh.names_of(start)) from error


async def _forget(context: RepositoryContext, doomed: frozenset[ObjectId], listed: frozenset[ObjectId]) -> None:
    wanted = doomed & listed if listed else doomed
    if not wanted:
        return
    try:
        gone = await context.ledger.forget_snapshots(wanted)
    except InvalidInputError as error:
        raise _became_reachable(min(wanted), []) from error
    if wanted - gone:
        raise _became_reachable(min(wanted - gone), [])


def _became_reachable(snapshot_id: ObjectId, refs: Sequence[str]) -> ConflictError:
    where = f" ({', '.join(refs)})" if refs else ""
    return ConflictError(
        message=f"snapshot {snapshot_id} became reachable{where} during the collection. Nothing was deleted. Collect "
        "garbage again"
    )


async def delete_objects(uncached: UncachedRepository, kind: str, listed: Listed, announcement: Announcement) -> None:
    """Delete objects of one kind, many at a time."""
    key = key_builder(uncached, kind)
    batches = [listed.ids[low : low + DELETE_BATCH] for low in range(0, len(listed), DELETE_BATCH)]

    async def delete(batch: Ids) -> None:
        announcement.check()
        await uncached.storage.delete([key(text) for text in id_texts(batch)])

    done = 0
    async for _ in stream_bounded(delete, batches, _DELETES_AT_ONCE):
        done = min(done + DELETE_BATCH, len(listed))
        report_progress(f"delete {kind.replace('_', ' ')}", done, len(listed))


def key_builder(uncached: UncachedRepository, kind: str) -> Callable[[ObjectId], str]:
    """The function from the id of an object to its key."""
    layout = uncached.format
    if kind == "chunks":
        return lambda text: f"{layout.chunks_folder}{text}"
    return {
        "snapshots": layout.snapshot_key,
        "transaction_logs": layout.transaction_log_key,
        "manifests": layout.manifest_key,
        "attributes": layout.attributes_key,
    }[kind]
