"""The refs, history and objects of a whole repository, read without caches and listed as columns.

The progress listener belongs to the running task and the tasks it starts. No function in between has to pass it on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import zstandard

from icefloe.blocking import current_time, monotonic_time
from icefloe.errors import FormatError, InvalidInputError, SnapshotNotFoundError
from icefloe.formats.format import Format
from icefloe.ids import ObjectId, decode_base32_column, encode_base32_column, new_object_id, text_length
from icefloe.ledger.generations import make_ledger
from icefloe.ledger.ledger import MAIN, HistoryChange, HistoryChangedError, Ledger, RefTargets, Tip
from icefloe.ledger.quoted_history import walk_shown_history
from icefloe.metadata_files import CacheLimits, MetadataFiles
from icefloe.model.snapshot import INGESTED_FOLDER, SnapshotInfo, check_past, check_zone
from icefloe.session.open_repository import RepositoryContext
from icefloe.storage.contract import ObjectInfo, Storage

T = TypeVar("T")

Report: TypeAlias = Callable[[str, int, int], None]
"""Called with a stage, the amount done, and the total. The total is 0 if it is not known."""

_listener: ContextVar[Report | None] = ContextVar("icefloe_maintenance_progress", default=None)


@contextmanager
def reporting_to(report: Report | None) -> Iterator[None]:
    """Report the progress of everything in the block to this function. None keeps the function of an outer block."""
    if report is None:
        yield
        return
    token = _listener.set(report)
    try:
        yield
    finally:
        _listener.reset(token)


def report_progress(stage: str, done: int, total: int = 0) -> None:
    """Report the progress of a stage, if a listener is set."""
    report = _listener.get()
    if report is not None:
        report(stage, done, total)


async def report_each(stage: str, results: AsyncIterator[T], total: int) -> AsyncIterator[T]:
    """Yield the results as they arrive and report each as progress."""
    done = 0
    if total:
        report_progress(stage, 0, total)
    async for result in results:
        yield result
        done += 1
        report_progress(stage, done, total)


FOLDER = "icefloe/"
_ARGUMENT = "delete_object_older_than"
_RESOLUTION = dt.timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Cutoff:
    """The cut-off for deletion, and the time at which it was computed. Both by the store's clock."""

    time: dt.datetime
    now: dt.datetime
    read_at: float
    """When `now` was read, by the monotonic clock of this process."""

    def started(self, age: dt.timedelta) -> dt.datetime:
        """The earliest time that the store may have given to an object of a writer of this age."""
        began = self.now - age + dt.timedelta(seconds=monotonic_time() - self.read_at)
        # A store that reports whole seconds truncates the rest.
        return began if self.now.microsecond else began.replace(microsecond=0)


async def fetch_cutoff(storage: Storage, older_than: dt.datetime | dt.timedelta) -> Cutoff:
    """The given time, or the store's time minus the given age. Raises if it is in the future by the store's clock."""
    if isinstance(older_than, dt.datetime):
        check_zone(older_than, _ARGUMENT)
        # A dry run also works on a read-only storage. Nothing is deleted there.
        now, read_at = (current_time(), monotonic_time()) if storage.read_only else await _fetch_store_time(storage)
        check_past(older_than, _ARGUMENT, now)
        # Some stores report whole seconds.
        return Cutoff(older_than if older_than <= now + _RESOLUTION else now, now, read_at)
    if older_than < dt.timedelta(0):
        raise InvalidInputError(f"{older_than} is in the future. Give a time in the past or a positive time span")
    now, read_at = await _fetch_store_time(storage)
    return Cutoff(now - older_than, now, read_at)


async def fetch_store_time(storage: Storage) -> dt.datetime:
    """The store's time, from an object that is written to measure it."""
    return (await _fetch_store_time(storage))[0]


async def _fetch_store_time(storage: Storage) -> tuple[dt.datetime, float]:
    """The store's time, and the time by the monotonic clock of this process right after it."""
    key = f"{FOLDER}clock-{new_object_id()}"
    await storage.put(key, b"what time is it?")
    read_at = monotonic_time()
    try:
        return (await storage.head(key)).last_modified, read_at
    finally:
        await storage.delete([key])


Ids = npt.NDArray[np.uint8]
NEVER = 1 << 62
"""A time after every cut-off."""
_VALID = np.zeros(256, dtype=bool)
_VALID[np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", dtype=np.uint8)] = True


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Objects whose name is an id. `foreign` counts the others, which are never deleted.

    ids        uint8[n, width]
    size       int64[n], bytes; -1 if not known
    modified   int64[n], microseconds since 1970 by the store's clock; NEVER if not known
    """

    ids: Ids
    size: npt.NDArray[np.int64]
    modified: npt.NDArray[np.int64]
    foreign: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Listed:
        """Some of the objects."""
        return Listed(self.ids[rows], self.size[rows], self.modified[rows])

    def seen(self) -> Listed:
        """Those whose size and time are known."""
        return self.take(self.size >= 0)

    def texts(self) -> list[ObjectId]:
        """The ids as text."""
        return id_texts(self.ids)


def id_texts(ids: Ids) -> list[ObjectId]:
    """Ids as text, in columns up to the last step."""
    if not len(ids):
        return []
    texts: list[ObjectId] = _id_letters(ids).astype(str).tolist()
    return texts


def _id_letters(ids: Ids) -> npt.NDArray[np.bytes_]:
    text = np.ascontiguousarray(encode_base32_column(ids))
    return text.view(f"S{text.shape[1]}").ravel()


def text_ids(texts: Sequence[ObjectId], width: int) -> Ids:
    """Ids from their texts."""
    if not texts:
        return np.empty((0, width), dtype=np.uint8)
    length = text_length(width)
    joined = np.frombuffer("".join(texts).encode("utf-8", "replace"), dtype=np.uint8)
    # Check all lengths, or ids of other lengths would be read as parts of their neighbours. These ids decide what is
    # kept.
    wrong = next((text for text in texts if len(text) != length), "") if len(joined) else texts[0]
    if wrong or len(joined) != length * len(texts):
        raise FormatError(f"{wrong!r:.80} is not an id, expected {length} characters of base32")
    try:
        return decode_base32_column(joined.reshape(len(texts), length), width)
    except InvalidInputError as error:
        raise FormatError(f"a file contains an invalid object id: {error.message}") from error


def microseconds(time: dt.datetime) -> int:
    """A time in whole microseconds since 1970, rounded down."""
    moment = time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def empty_listing(width: int) -> Listed:
    """No objects."""
    none = np.empty(0, dtype=np.int64)
    return Listed(np.empty((0, width), dtype=np.uint8), none, none)


async def list_folder(storage: Storage, folder: str, extension: str, width: int) -> Listed:
    """List a folder. Pages are converted to columns as they arrive."""
    if storage.lists_names_faster:
        listed = await list_folder_names(storage, folder, extension, width)
        return await fetch_sizes(storage, folder, extension, listed, np.ones(len(listed), dtype=bool))
    parts: list[Listed] = []
    foreign = 0
    async for page in storage.list(folder):
        part = columns_of(page, folder, extension, width)
        foreign += part.foreign
        parts.append(part)
        report_progress(f"list {folder}", sum(map(len, parts)))
    return join_listings(parts, width, foreign)


async def list_folder_names(storage: Storage, folder: str, extension: str, width: int) -> Listed:
    """List a folder. Sizes and times are left out if each needs a request, see `fetch_sizes`."""
    if not storage.lists_names_faster:
        return await list_folder(storage, folder, extension, width)
    length = text_length(width) + len(extension)
    names = await storage.list_names_of_length(folder, length)
    text = np.frombuffer(b"".join(names), dtype=np.uint8).reshape(len(names), length)
    unknown = np.full(len(names), -1, dtype=np.int64)
    return text_columns(text, unknown, np.full(len(names), NEVER, dtype=np.int64), extension, width)


async def fetch_sizes(
    storage: Storage, folder: str, extension: str, listed: Listed, rows: npt.NDArray[np.bool_]
) -> Listed:
    """The same objects with the sizes and times of some, without those that no longer exist."""
    wanted = np.flatnonzero(rows & (listed.size < 0))
    if not len(wanted):
        return listed
    names: list[bytes] = _id_letters(listed.ids[wanted]).tolist()
    found = await storage.stat_names(folder, [name + extension.encode() for name in names] if extension else names)
    size, modified = listed.size.copy(), listed.modified.copy()
    size[wanted], modified[wanted] = np.array(found[0], dtype=np.int64), np.array(found[1], dtype=np.int64) // 1000
    there = np.ones(len(listed), dtype=bool)
    there[wanted] = size[wanted] >= 0
    return Listed(listed.ids[there], size[there], modified[there], listed.foreign)


def text_columns(
    text: npt.NDArray[np.uint8],
    size: npt.NDArray[np.int64],
    modified: npt.NDArray[np.int64],
    extension: str,
    width: int,
) -> Listed:
    """Objects from the characters of their names, uint8[n, length]. Names that are not ids are only counted."""
    length = text_length(width)
    ending = np.frombuffer(extension.encode(), dtype=np.uint8)
    proper = _VALID[text[:, :length]].all(axis=1) & (text[:, length:] == ending).all(axis=1)
    ids = decode_base32_column(np.ascontiguousarray(text[proper, :length]), width)
    return Listed(np.ascontiguousarray(ids), size[proper], modified[proper], len(text) - len(ids))


def join_listings(parts: Sequence[Listed], width: int, foreign: int = 0) -> Listed:
    """Several listings as one."""
    if not parts:
        return empty_listing(width)
    return Listed(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.size for part in parts]),
        np.concatenate([part.modified for part in parts]),
        foreign,
    )


def columns_of(page: Sequence[ObjectInfo], folder: str, extension: str, width: int) -> Listed:
    """One page as columns. Names that are not ids are only counted."""
    length = text_length(width)
    expected = len(folder) + length + len(extension)
    fitting = [item for item in page if len(item.key) == expected and item.key.endswith(extension)]
    if not fitting:
        return _nothing(width, len(page))
    names = "".join([item.key[len(folder) : len(folder) + length] for item in fitting])
    encoded = names.encode()
    if len(encoded) != len(fitting) * length:  # some name is not ASCII
        fitting = [item for item in fitting if item.key.isascii()]
        return columns_of(fitting, folder, extension, width) if len(fitting) < len(page) else _nothing(width, len(page))
    text = np.frombuffer(encoded, dtype=np.uint8).reshape(len(fitting), length)
    proper = np.asarray(_VALID[text].all(axis=1), dtype=bool)
    kept = [item for item, good in zip(fitting, proper.tolist(), strict=True) if good]
    ids = decode_base32_column(text[proper], width) if kept else np.empty((0, width), dtype=np.uint8)
    return Listed(
        np.ascontiguousarray(ids),
        np.fromiter((item.size_bytes for item in kept), dtype=np.int64, count=len(kept)),
        np.fromiter((microseconds(item.last_modified) for item in kept), dtype=np.int64, count=len(kept)),
        len(page) - len(kept),
    )


def _nothing(width: int, foreign: int) -> Listed:
    nothing = empty_listing(width)
    return Listed(nothing.ids, nothing.size, nothing.modified, foreign)


def id_keys(ids: Ids) -> npt.NDArray[np.uint64]:
    """The first eight bytes of ids as numbers.

    Ids are random. If two agree here, the effect is that garbage is kept.
    """
    return np.ascontiguousarray(ids[:, :8]).view(">u8").ravel().astype(np.uint64)


def sorted_distinct(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Sorted distinct keys. Several times faster than `np.unique`."""
    keys = np.sort(keys)
    return keys[_heads(keys)]


def first_rows(ids: Ids) -> npt.NDArray[np.intp]:
    """For every distinct key, in order, one of its rows."""
    keys = id_keys(ids)
    order = np.argsort(keys)
    return order[_heads(keys[order])]


def _heads(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    heads = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=heads[1:])
    return heads


def is_among(ids: Ids, live: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Which ids are live. Live ids are given as sorted keys."""
    if not len(live) or not len(ids):
        return np.zeros(len(ids), dtype=bool)
    keys = id_keys(ids)
    places = np.searchsorted(live, keys)
    places[places == len(live)] = 0
    found: npt.NDArray[np.bool_] = live[places] == keys
    return found


_PIECE_BYTES = 1 << 20


async def list_side_objects(storage: Storage) -> tuple[ObjectInfo, ...]:
    """All side objects, whether a commit refers to them or not."""
    return tuple([item async for page in storage.list(INGESTED_FOLDER) for item in page])


def find_corruption(data: bytes) -> str | None:
    """The damage of a list, or None. A list is one zstd frame. It is decompressed in pieces of bounded size."""
    try:
        declared = zstandard.frame_content_size(data)
        found = 0
        with zstandard.ZstdDecompressor().stream_reader(data) as unpacked:
            while piece := unpacked.read(_PIECE_BYTES):
                found += len(piece)
    except zstandard.ZstdError as error:
        return f"it does not decompress ({error})"
    return None if found == declared or (declared < 0 and found) else f"it has {found} of {declared} bytes"


def find_unreferenced(
    found: Sequence[ObjectInfo], named: Iterable[str], before: int, not_before: int | None
) -> tuple[ObjectInfo, ...]:
    """The objects that no commit refers to and that are old enough. Times are microseconds since 1970."""
    kept, floor = frozenset(named), not_before if not_before is not None else -(1 << 62)
    return tuple(item for item in found if item.key not in kept and floor <= microseconds(item.last_modified) < before)


R = TypeVar("R")

REQUESTS_AT_ONCE = 32
_LIMITS = CacheLimits(snapshots=64 << 20, manifests=0, transaction_logs=0, attributes=0, warns_if_small=False)


@dataclass(frozen=True, slots=True)
class UncachedRepository:
    """The storage, format and ledger of a repository, with separate caches. Nothing stale is read."""

    storage: Storage
    format: Format
    metadata_files: MetadataFiles
    ledger: Ledger


def open_uncached(context: RepositoryContext) -> UncachedRepository:
    """Open a view of a repository that shares no cache with its sessions."""
    metadata_files = MetadataFiles(context.storage, context.format, _LIMITS)
    ledger = make_ledger(context.format.spec_version, context.storage, metadata_files)
    ledger.learn_from(context.ledger)
    return UncachedRepository(context.storage, context.format, metadata_files, ledger)


def reopen_uncached(uncached: UncachedRepository) -> UncachedRepository:
    """Open another view of the same repository, without the caches of the first one."""
    metadata_files = MetadataFiles(uncached.storage, uncached.format, _LIMITS)
    ledger = make_ledger(uncached.format.spec_version, uncached.storage, metadata_files)
    ledger.learn_from(uncached.ledger)
    return UncachedRepository(uncached.storage, uncached.format, metadata_files, ledger)


async def fetch_all_refs(ledger: Ledger) -> RefTargets:
    """Fetch all current refs."""
    found = await ledger.fetch_targets()
    if found is not None:
        return RefTargets(*found)
    tips, tags = await ledger.fetch_refs()
    return RefTargets({name: tip.snapshot_id for name, tip in tips.items()}, tags)


async def gather_bounded(
    work: Callable[[T], Awaitable[R]], items: Iterable[T], at_once: int = REQUESTS_AT_ONCE
) -> list[R]:
    """The results of all items, in order. A bounded number runs concurrently. The first error ends it."""
    return [result async for result in stream_bounded(work, items, at_once)]


async def stream_bounded(
    work: Callable[[T], Awaitable[R]], items: Iterable[T], at_once: int = REQUESTS_AT_ONCE
) -> AsyncIterator[R]:
    """Yield results in the order of the items. Up to `at_once` items are processed concurrently."""
    waiting: list[asyncio.Task[R]] = []
    source = iter(items)
    try:
        while True:
            while len(waiting) < at_once:
                try:
                    item = next(source)
                except StopIteration:
                    break
                waiting.append(asyncio.ensure_future(_run(work, item)))
            if not waiting:
                return
            yield await waiting.pop(0)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _run(work: Callable[[T], Awaitable[R]], item: T) -> R:
    return await work(item)


@dataclass(frozen=True, slots=True)
class History:
    """Refs, and all snapshots reachable from them by their parents."""

    refs: RefTargets
    snapshots: Mapping[ObjectId, SnapshotInfo]
    detached: Mapping[ObjectId, SnapshotInfo] = field(default_factory=dict)
    """Snapshots that the repository lists although they are unreachable."""
    misquoted: Mapping[ObjectId, ObjectId] = field(default_factory=dict)
    """Snapshots, with their parents, that some descendants quote with a parent that no longer exists."""
    main: Tip | None = None
    """The tip of `main`, if the snapshots quote their ancestors. It has the recorded expiries."""

    @property
    def new_parents(self) -> Mapping[ObjectId, ObjectId]:
        """The recorded expiries, see `Ledger.records_expiries`. In `fetch_history`, `snapshots` has these parents."""
        return {} if self.main is None else self.main.new_parents

    def chain(self, start: ObjectId) -> list[SnapshotInfo]:
        """A snapshot and its ancestors, newest first."""
        found: list[SnapshotInfo] = []
        current: ObjectId | None = start
        while current is not None:
            info = self.snapshots.get(current)
            if info is None:
                raise SnapshotNotFoundError(f"the history of {start} contains {current}, which does not exist")
            found.append(info)
            current = info.parent_id
        return found

    def roots(self) -> set[ObjectId]:
        """The snapshots without a parent."""
        return {info.id for info in self.snapshots.values() if info.parent_id is None}


async def fetch_history(uncached: UncachedRepository) -> History:
    """Fetch the current history of a repository, without expired snapshots.

    Where expiries are recorded, a tag may be missing that was created in the meantime, see `Ledger.fetch_refs_once`.
    """
    if not uncached.ledger.records_expiries:
        return await fetch_written_history(uncached)
    refs, tips = _split(await uncached.ledger.fetch_refs_once())
    # Snapshots are only deleted after every branch has the name of the collection.
    was_collected = any(tip.collection is not None for tip in tips.values())
    existing = await _fetch_existing(uncached) if was_collected else None
    main = tips.get(MAIN)
    return await _follow_refs(uncached, refs, existing, main, {} if main is None else main.new_parents)


async def fetch_written_history(uncached: UncachedRepository) -> History:
    """Fetch the current history of a repository, with the parents in the files of the snapshots."""
    graph = await uncached.ledger.fetch_graph()
    if graph is not None:
        found: dict[ObjectId, SnapshotInfo] = {}
        refs, listed = graph
        _follow_listed(refs, listed, found)
        return History(refs, found, {key: info for key, info in listed.items() if key not in found})
    existing = await _fetch_existing(uncached)
    refs, tips = _split(await uncached.ledger.fetch_refs())
    return await _follow_refs(uncached, refs, existing, tips.get(MAIN), {})


def _split(found: tuple[dict[str, Tip], dict[str, ObjectId]]) -> tuple[RefTargets, dict[str, Tip]]:
    tips, tags = found
    return RefTargets({name: tip.snapshot_id for name, tip in tips.items()}, tags), tips


async def _follow_refs(
    uncached: UncachedRepository,
    refs: RefTargets,
    existing: Container[ObjectId] | None,
    main: Tip | None,
    parents: Mapping[ObjectId, ObjectId],
) -> History:
    """The history of refs in which some snapshots have other parents than in their files."""
    found: dict[ObjectId, SnapshotInfo] = {}
    misquoted: dict[ObjectId, ObjectId] = {}
    for start in sorted(refs.targets()):
        if start in found:
            continue
        previous: ObjectId | None = None
        async with aclosing(_walk(uncached, start, existing, parents)) as walk:  # type: ignore[type-var]
            async for info in walk:
                if previous is None and info.id != start:
                    # In some early repositories, the id of the first snapshot is not that of its file. Refs contain the
                    # id of the file.
                    info = dataclasses.replace(info, id=start)
                # A quoted entry may have a parent that was collected since. The parent is the next entry of the walk.
                if previous is not None and found[previous].parent_id != info.id:
                    misquoted[previous] = info.id
                    found[previous] = _with_parent(found[previous], info.id)
                if info.id in found:
                    break
                found[info.id] = info
                previous = info.id
    if existing is None:
        return History(refs, found, main=main)
    for start in refs.targets():
        quoted = (await uncached.metadata_files.fetch_snapshot(start)).history
        misquoted.update(_find_contradictions([entry for entry in quoted if entry.id not in parents], found))
    return History(refs, found, misquoted=misquoted, main=main)


_ROUNDS = 20
"""The number of attempts if others change history at the same time."""


async def correct_quotes(context: RepositoryContext, uncached: UncachedRepository) -> None:
    """Rewrite snapshots that quote deleted ancestors."""
    observed: dict[ObjectId, ObjectId] = {}
    misquoted = (await fetch_written_history(uncached)).misquoted
    for _ in range(_ROUNDS):
        if not misquoted:
            return
        former = {**misquoted, **observed}
        try:
            await context.ledger.change_parents(HistoryChange(frozenset(), misquoted, former=former))
        except HistoryChangedError as error:
            observed.update(error.observed)
            misquoted = (await fetch_written_history(reopen_uncached(uncached))).misquoted
        else:
            return


def _find_contradictions(
    quoted: Sequence[SnapshotInfo], found: Mapping[ObjectId, SnapshotInfo]
) -> dict[ObjectId, ObjectId]:
    """Snapshots that are quoted with another parent, because an expiry was interrupted."""
    contradicted = {}
    for entry in quoted:
        known = found[entry.id].parent_id if entry.id in found else None
        if known is not None and entry.parent_id is not None and known != entry.parent_id:
            contradicted[entry.id] = known
    return contradicted


def _follow_listed(
    refs: RefTargets, listed: Mapping[ObjectId, SnapshotInfo], found: dict[ObjectId, SnapshotInfo]
) -> None:
    for start in refs.targets():
        current: ObjectId | None = start
        while current is not None and current not in found:
            if current not in listed:
                raise SnapshotNotFoundError(
                    f"the history of {start} contains {current}, which the repository does not list",
                    snapshot_id=current,
                )
            found[current] = listed[current]
            current = listed[current].parent_id


async def _fetch_existing(uncached: UncachedRepository) -> Container[ObjectId] | None:
    """Ids of the snapshot files, in generations whose snapshots may quote a deleted snapshot."""
    if not uncached.format.capabilities.history_in_snapshot:
        return None
    names = await uncached.storage.list_names(uncached.format.snapshots_folder)
    return {name.removesuffix(uncached.format.metadata_extension) for name in names}


def _walk(
    uncached: UncachedRepository,
    start: ObjectId,
    existing: Container[ObjectId] | None,
    parents: Mapping[ObjectId, ObjectId],
) -> AsyncIterator[SnapshotInfo]:
    if not uncached.format.capabilities.history_in_snapshot:
        return uncached.ledger.ancestry(start)
    return walk_shown_history(uncached.metadata_files, start, parents, existing)


def _with_parent(info: SnapshotInfo, parent_id: ObjectId) -> SnapshotInfo:
    return SnapshotInfo(info.id, parent_id, info.written_at, info.message, info.metadata, info.manifests)
