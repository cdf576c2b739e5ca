"""Collecting garbage: list, mark, plan, look again, then delete in an order that is safe to die in."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from icefloe.errors import ConflictError, InvalidInputError, ReadOnlyError, SnapshotNotFoundError
from icefloe.ids import ObjectId
from icefloe.maintenance.collect_plan import KINDS, AgeLimits, CollectionPlan, GCSummary, plan_collection
from icefloe.maintenance.history import correct_quotes
from icefloe.maintenance.incremental import list_candidates, next_mark
from icefloe.maintenance.listing import (
    Ids,
    Listed,
    empty_listing,
    id_texts,
    is_among,
    list_folder,
    list_folder_names,
    look_at,
    microseconds,
)
from icefloe.maintenance.marking import FetchLimits, Known, Marked, mark
from icefloe.maintenance.progress import tell
from icefloe.maintenance.reading import Reading, Refs, fetch_all_refs, read_anew, read_anew_of, stream_bounded
from icefloe.maintenance.saved_mark import fetch_mark, save_mark
from icefloe.maintenance.side_objects import list_side_objects
from icefloe.maintenance.store_clock import Cutoff, fetch_cutoff, fetch_store_time
from icefloe.session.collected import Announcement, announced
from icefloe.session.engine import Engine
from icefloe.session.history import check_zone
from icefloe.session.running import oldest_running
from icefloe.storage.local import LocalStorage

DELETE_BATCH = 1000
_DELETES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class CollectionRequest:
    """What is asked of a collection."""

    older_than: dt.datetime | dt.timedelta
    """Objects are judged that were last modified before this time, or longer ago than this, by the store's clock."""
    created_after: dt.datetime | None = None
    limits: FetchLimits = field(default_factory=FetchLimits)
    ignore_running: bool = False
    incremental: bool = False
    """Begin where the mark of the last incremental run ends, and leave one for the next."""

    def __post_init__(self) -> None:
        if self.created_after is not None:
            check_zone(self.created_after, "created_after")


@dataclass(frozen=True, slots=True)
class Marking:
    """A plan, and what it was made from."""

    plan: CollectionPlan
    marked: Marked
    listings: dict[str, Listed]


async def collect(engine: Engine, request: CollectionRequest) -> GCSummary:
    """Delete what no branch or tag leads to and what is old enough."""
    await engine.check_writable()
    reading = read_anew(engine)
    if reading.storage.read_only:
        raise ReadOnlyError(f"{reading.storage.url} takes no writes; garbage cannot be collected")
    marking = await plan_collection_of(reading, request)
    marking = replace(marking, plan=await apply_plan(engine, reading, marking))
    if not request.incremental and isinstance(engine.storage, LocalStorage):
        now = await fetch_store_time(engine.storage)
        await engine.storage.remove_leftovers(max(now - marking.plan.cutoff, dt.timedelta(minutes=5)), now)
    if request.incremental:
        read_at = microseconds(await fetch_store_time(reading.storage))
        mark = next_mark(reading.format, marking.marked, marking.plan, marking.listings, read_at)
        await save_mark(reading.storage, mark)
    return marking.plan.summary()


async def plan_collection_of(reading: Reading, request: CollectionRequest) -> Marking:
    """What would be deleted now.

    Objects are listed before refs are read: whatever a commit names that lands in between is seen as named.
    """
    decided = await fetch_cutoff(reading.storage, request.older_than)
    check_running(reading, decided, request)
    cutoff = decided.time
    known, listings = await _list(reading, request)
    beside = await list_side_objects(reading.storage)
    before = microseconds(cutoff)
    files = listings["snapshots"]
    young = frozenset(files.take(files.modified >= before).texts())
    marked = await mark(reading, young, frozenset(files.texts()), known, request.limits)
    chunks = listings["chunks"]
    unnamed = ~is_among(chunks.ids, marked.chunks)
    listings["chunks"] = await look_at(reading.storage, reading.format.chunks_folder, "", chunks, unnamed)
    not_before = None if request.created_after is None else microseconds(request.created_after)
    plan = plan_collection(listings, marked, AgeLimits(before, not_before), cutoff, beside)
    return Marking(plan, marked, listings)


async def _list(reading: Reading, request: CollectionRequest) -> tuple[Known, dict[str, Listed]]:
    """What is to be judged: everything, or what a saved mark names."""
    if request.incremental:
        width = reading.format.capabilities.object_id_bytes
        mark = await fetch_mark(reading.storage, reading.format.spec_version.value, width)
        if mark is not None:
            candidates = await list_candidates(reading, mark)
            return candidates.known, candidates.listings
    return Known(), await list_all(reading, sized_chunks=False)


def check_running(reading: Reading, cutoff: Cutoff, request: CollectionRequest) -> None:
    """Refuse a cut-off within the life of a writable session of this process: its chunks would be judged."""
    age = oldest_running(reading.storage)
    if age is None or request.ignore_running:
        return
    started = cutoff.started(age)
    if started < cutoff.time:
        raise InvalidInputError(
            f"a writable session of this process is open since {started.isoformat()} by the clock of the store and may "
            f"have written chunks that it did not commit yet; objects older than {cutoff.time.isoformat()} would be "
            "judged. Commit or discard it, choose an earlier time, or pass ignore_running_sessions=True",
            started=started,
        )


async def list_all(reading: Reading, *, sized_chunks: bool = True) -> dict[str, Listed]:
    """Every folder of a repository as columns; of chunks perhaps only the names, see `list_folder_names`."""
    width = reading.format.capabilities.object_id_bytes
    folders = folders_of(reading)

    async def one(kind: str) -> Listed:
        if kind not in folders:
            return empty_listing(width)
        if kind == "chunks":
            list_chunks = list_folder if sized_chunks else list_folder_names
            return await list_chunks(reading.storage, folders[kind], "", width)
        return await list_folder(reading.storage, folders[kind], reading.format.metadata_extension, width)

    return dict(zip(KINDS, await asyncio.gather(*map(one, KINDS)), strict=True))


def folders_of(reading: Reading) -> dict[str, str]:
    """The folders that the repository's generation has, by kind."""
    layout = reading.format
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


async def apply_plan(engine: Engine, reading: Reading, marking: Marking) -> CollectionPlan:
    """Delete, unless somebody made garbage reachable since it was judged; correct what is quoted of former garbage.

    Returns what was deleted: the plan without what commits refer to that landed meanwhile.

    Snapshots go before what they name: whoever dies in between leaves files that nothing names, never a snapshot whose
    files are gone; the next run finds the rest.
    """
    if quotes_what_is_gone(marking):
        await correct_quotes(engine, reading)
    if marking.plan.is_empty():
        return marking.plan
    async with announced(reading.storage, marking.plan.cutoff) as announcement:
        return (await delete_garbage(engine, reading, marking, announcement))[0]


async def delete_garbage(
    engine: Engine, reading: Reading, marking: Marking, announcement: Announcement
) -> tuple[CollectionPlan, Marked]:
    """Delete what a plan names, but for what commits refer to that landed since; what that was, and what is in use."""
    await engine.ledger.announce_collection(announcement.record.id, soon=announcement.is_soon)
    marked = await mark_again(reading, marking)
    plan = marking.plan.without(marked)
    doomed = frozenset(plan.garbage["snapshots"].texts())
    await _forget(engine, doomed, marked.listed)
    for kind in KINDS:
        await delete_objects(reading, kind, plan.garbage[kind], announcement)
    if plan.beside:
        announcement.check()
        await reading.storage.delete([item.key for item in plan.beside])
    for snapshot_id in doomed:
        engine.archive.forget_snapshot(snapshot_id)
    return plan, marked


async def mark_again(reading: Reading, marking: Marking) -> Marked:
    """What is in use now: refs that moved since they were read are followed, the rest is known.

    A commit that lands after this was told of the collection, and looks itself whether what it refers to is there.
    """
    fresh = await fetch_all_refs(reading.ledger)
    if fresh.targets() <= marking.marked.refs.targets():
        return marking.marked
    await check_refs(reading, marking, fresh, frozenset(marking.plan.garbage["snapshots"].texts()))
    known = Known(marking.marked.snapshots, marking.marked.manifests)
    # A view of its own: files that the first look remembers may have been rewritten since.
    return await mark(read_anew_of(reading), frozenset(), frozenset(), known)


def quotes_what_is_gone(marking: Marking) -> bool:
    """Whether a snapshot seems to quote ancestors that were collected; a session that outlived both commits such."""
    there = frozenset(marking.listings["snapshots"].texts())
    return any(not there.issuperset(facts.quoted) for facts in marking.marked.snapshots.values())


async def check_refs(reading: Reading, marking: Marking, fresh: Refs, doomed: frozenset[ObjectId]) -> None:
    """Follow refs that moved since the mark down to a snapshot that stays."""
    for start in fresh.targets() - marking.marked.refs.targets():
        try:
            async for info in reading.ledger.ancestry(start):
                if info.id in marking.marked.snapshots:
                    break
                if info.id in doomed:
                    raise _resurrected(info.id, fresh.names_of(start))
        except SnapshotNotFoundError as error:
            raise _resurrected(start, fresh.names_of(start)) from error


async def _forget(engine: Engine, doomed: frozenset[ObjectId], listed: frozenset[ObjectId]) -> None:
    wanted = doomed & listed if listed else doomed
    if not wanted:
        return
    try:
        gone = await engine.ledger.forget_snapshots(wanted)
    except InvalidInputError as error:
        raise _resurrected(min(wanted), []) from error
    if wanted - gone:
        raise _resurrected(min(wanted - gone), [])


def _resurrected(snapshot_id: ObjectId, refs: Sequence[str]) -> ConflictError:
    where = f" ({', '.join(refs)})" if refs else ""
    return ConflictError(
        f"snapshot {snapshot_id} became reachable{where} while garbage was judged; nothing was deleted: collect again"
    )


async def delete_objects(reading: Reading, kind: str, listed: Listed, announcement: Announcement) -> None:
    """Delete objects of one kind, many at a time."""
    key = key_builder(reading, kind)
    batches = [listed.ids[low : low + DELETE_BATCH] for low in range(0, len(listed), DELETE_BATCH)]

    async def delete(batch: Ids) -> None:
        announcement.check()
        await reading.storage.delete([key(text) for text in id_texts(batch)])

    done = 0
    async for _ in stream_bounded(delete, batches, _DELETES_AT_ONCE):
        done = min(done + DELETE_BATCH, len(listed))
        tell(f"delete {kind.replace('_', ' ')}", done, len(listed))


def key_builder(reading: Reading, kind: str) -> Callable[[ObjectId], str]:
    """How the id of an object becomes its key."""
    layout = reading.format
    if kind == "chunks":
        return lambda text: f"{layout.chunks_folder}{text}"
    return {
        "snapshots": layout.snapshot_key,
        "transaction_logs": layout.transaction_log_key,
        "manifests": layout.manifest_key,
        "attributes": layout.attributes_key,
    }[kind]
