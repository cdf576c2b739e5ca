"""Create, find and open repositories of any generation; stored configuration; running writers and collections.

The age of a writer is measured by the clocks of its own process. Garbage collection needs the start of the writer by
the clock of the store, because the store sets the times of objects. It subtracts the age of the writer from the present
time of the store. So the two clocks are never compared.

The record of a garbage collection is an empty object. Its name holds all information. Only the record of the last
finished collection is kept.

    icefloe/collections/<cut-off, microseconds since 1970>-<id>.running
    icefloe/collections/<cut-off, microseconds since 1970>-<id>.done
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import json
import logging
import math
import random
import re
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from icefloe.blocking import blocking_loop, current_time, monotonic_time
from icefloe.chunks.packs import PackingPolicy, packing_policy
from icefloe.chunks.reader import ChunkReader
from icefloe.chunks.virtual_containers import VirtualContainers
from icefloe.debug import traced
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    RefNotFoundError,
    RepositoryExistsError,
    RepositoryNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
    UnsupportedError,
    VersionMismatchError,
)
from icefloe.formats.config_document import decode_config, encode_config
from icefloe.formats.format import Format, get_format
from icefloe.ids import ObjectId, new_object_id
from icefloe.ledger.generations import (
    DEFAULT_SPEC_VERSION,
    GENERATIONS,
    Detected,
    detect,
    detect_generation,
    locate_files,
    make_ledger,
)
from icefloe.ledger.ledger import Ledger, Tip
from icefloe.manifests.manifest_plan import manifests_to_preload
from icefloe.metadata_files import CacheLimits, MetadataFiles
from icefloe.model.capabilities import Capabilities, SpecVersion
from icefloe.model.config import CachingConfig, RepositoryConfig
from icefloe.model.config_value import all_settings, unused_remarks
from icefloe.model.manifest_conditions import pattern_cost
from icefloe.model.manifest_config import ARRAY_PER_MANIFEST, SPECIFIED, ManifestConfig, PreloadRules
from icefloe.model.manifest_lists import ListsNotLoadedError
from icefloe.model.snapshot import Snapshot, TransactionLog
from icefloe.session.races import recent_commits
from icefloe.storage.contract import Storage, Version, Versioned


@dataclass(frozen=True, slots=True)
class WriterStart:
    """When a session or fork began to write, on both clocks of this process.

    The wall clock may be set back. The monotonic clock stops while the machine sleeps. The age is the larger
    of the two differences: a writer that seems too old is seen, one that seems too young might be missed.
    """

    wall: dt.datetime = field(default_factory=current_time)
    monotonic: float = field(default_factory=monotonic_time)

    def age(self) -> dt.timedelta:
        """How long ago it was."""
        return max(current_time() - self.wall, dt.timedelta(seconds=monotonic_time() - self.monotonic))

    def __reduce__(self) -> tuple[Callable[..., WriterStart], tuple[dt.datetime, float]]:
        return _arrived, (self.wall, self.age().total_seconds())


def _arrived(wall: dt.datetime, age_seconds: float) -> WriterStart:
    """The start of a writer that was sent to this process: its monotonic clock is another one."""
    return WriterStart(wall, monotonic_time() - age_seconds)


_WRITERS: weakref.WeakKeyDictionary[Any, tuple[str, WriterStart]] = weakref.WeakKeyDictionary()


def register_writer(session: Any, storage: Storage, since: WriterStart | None = None) -> None:
    """Register a session that may write, from now on or since a given start."""
    _WRITERS[session] = (storage.url, since or WriterStart())


def oldest_writer(storage: Storage) -> dt.timedelta | None:
    """The age of the oldest session or fork of this process that may hold uncommitted chunks of a storage."""
    ages = [
        since.age() for session, (url, since) in list(_WRITERS.items()) if url == storage.url and session.is_running
    ]
    return max(ages, default=None)


RECORDS = "icefloe/collections/"
LEASE_SECONDS = 120.0
"""A collection that did not renew its record for so long is dead, and must not delete anything any more."""
_RENEW_SECONDS = 20.0
LONG_SESSION_SECONDS = 1800.0
"""If refs do not show collections with a grace period over twice this, older sessions ask for them."""
SHORT_GRACE = dt.timedelta(seconds=2 * LONG_SESSION_SECONDS)
_NAME = re.compile(r"(\d{20})-([0-9A-Z]+)\.(running|done)")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class CollectionRecord:
    """The record of one garbage collection."""

    id: ObjectId
    cutoff: dt.datetime
    running: bool
    renewed: dt.datetime | None = None
    """When the record was last written, by the store's clock."""

    @property
    def key(self) -> str:
        age = (self.cutoff - _EPOCH) // dt.timedelta(microseconds=1)
        return f"{RECORDS}{max(age, 0):020d}-{self.id}.{'running' if self.running else 'done'}"


async def list_collections(storage: Storage) -> list[CollectionRecord]:
    """The running collections, and the last one that ended."""
    found = []
    try:
        async for page in storage.list(RECORDS):
            for item in page:
                match = _NAME.fullmatch(item.key.removeprefix(RECORDS))
                if match is not None:
                    cutoff = _EPOCH + dt.timedelta(microseconds=int(match[1]))
                    found.append(CollectionRecord(match[2], cutoff, match[3] == "running", item.last_modified))
    except UnsupportedError:
        pass  # no garbage collection runs in a storage that cannot be listed
    return found


class Announcement:
    """The record of a running collection, renewed until the collection ends."""

    def __init__(self, storage: Storage, cutoff: dt.datetime) -> None:
        self.record = CollectionRecord(new_object_id(), cutoff, running=True)
        self._storage = storage
        self._renewed = monotonic_time()
        self._renewing: asyncio.Task[None] | None = None
        self.is_soon = True
        """Whether objects may be deleted that are younger than long sessions."""

    async def begin(self) -> None:
        """Put the record."""
        await self._storage.put(self.record.key, b"")
        self._renewed = monotonic_time()
        self._renewing = asyncio.create_task(self._renew())
        now = (await self._storage.head(self.record.key)).last_modified
        self.is_soon = now - self.record.cutoff < SHORT_GRACE

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            started = monotonic_time()
            with contextlib.suppress(StorageError):  # `check` notices when none comes through
                await self._storage.put(self.record.key, b"")
                self._renewed = started

    def check(self) -> None:
        """Refuse to delete when others may take the collection for dead."""
        silent = monotonic_time() - self._renewed
        if silent > LEASE_SECONDS / 2:
            raise StorageError(
                f"the garbage collection stopped, because it could not renew its announcement for {silent:.0f} "
                "seconds. Some objects may remain. Collect again"
            )

    async def end(self, *, finished: bool) -> None:
        """Take the record back; the one of a finished collection stays as that of the last."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if finished:
            done = CollectionRecord(self.record.id, self.record.cutoff, running=False)
            earlier = [each.key for each in await list_collections(self._storage) if not each.running]
            await self._storage.put(done.key, b"")
            await self._storage.delete([*earlier, self.record.key])
        else:
            await self._storage.delete([self.record.key])


@contextlib.asynccontextmanager
async def announced(storage: Storage, cutoff: dt.datetime) -> AsyncIterator[Announcement]:
    """Tell of a collection while the block runs."""
    announcement = Announcement(storage, cutoff)
    await announcement.begin()
    try:
        yield announcement
    except BaseException:
        await announcement.end(finished=False)
        raise
    await announcement.end(finished=True)


@dataclass(frozen=True, slots=True)
class RepositoryContext:
    """The storage, ledger, format and caches of an open repository. Its sessions share them.

    Pickled as the arguments it was built from.
    """

    storage: Storage
    format: Format
    metadata_files: MetadataFiles
    ledger: Ledger
    reader: ChunkReader
    config: RepositoryConfig
    authorized: Mapping[str, Any]
    packing: PackingPolicy
    attributes_bytes: int
    """Attributes of a document with more bytes are written to a file of their own."""
    official_rules: bool = False
    """Whether to do as the official package does: each chunk is an object and each array has a manifest, unless
    configured otherwise, nodes can be below arrays, and the same changes conflict.
    """

    @property
    def containers(self) -> VirtualContainers:
        return self.reader.containers

    @property
    def capabilities(self) -> Capabilities:
        return self.format.capabilities

    async def check_writable(self) -> None:
        """Whether the repository takes changes of refs, settings and history, and is still of this generation.

        Raises
        ------
        ReadOnlyError
            The repository is set to read-only.
        RepositoryNotFoundError
            Another process converted the repository since it was opened. The refs of the old generation no longer
            exist. A collection by them would delete everything, and no reader would find what is written to them.
        """
        await self.ledger.check_writable()
        version = self.format.spec_version
        if GENERATIONS[version].refs_folder is None:
            return  # their refs, settings and history are in one file, which a conversion removes
        found = await detect_generation(self.storage)
        if found is not None and found is not version:
            raise RepositoryNotFoundError(
                f"{self.storage.url} was opened as generation {version.value!r}, and another process has converted it "
                f"to {found.value!r}. Open it again",
                url=self.storage.url,
            )

    async def fetch_branch(self, branch: str) -> tuple[Tip, Snapshot]:
        """The tip of a branch and its snapshot, for a commit on top of it."""
        recent_commits(self.ledger, branch)
        tip = await self.ledger.fetch_tip(branch)
        return tip, await self.fetch_base(branch, tip)

    async def fetch_base(self, branch: str, tip: Tip) -> Snapshot:
        """The snapshot at a tip, with the history that its file quotes now.

        A commit copies these quotes, and expiry rewrites them in place. A snapshot that is remembered is good if it was
        read, or written, under the very ref that the branch has now: expiry writes the ref again.
        """
        written = recent_commits(self.ledger, branch).find_snapshot(tip, self.ledger, branch, self.metadata_files)
        if written is not None:
            return written
        if self.ledger.is_current(branch, tip):
            return await self.metadata_files.fetch_snapshot_file(tip.snapshot_id)
        snapshot = await self.metadata_files.fetch_snapshot_file(tip.snapshot_id, anew=True)
        self.ledger.note_current(branch, tip)
        return snapshot

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.storage, self.format.spec_version, self.config, dict(self.authorized), self.official_rules)
        return build_context, arguments

    def with_official_rules(self) -> RepositoryContext:
        """The same repository, which does as the official package does."""
        return replace(self, packing=packing_policy(self.config, packs_by_default=False), official_rules=True)

    @property
    def manifest_config(self) -> ManifestConfig:
        """How references are divided into manifests, with the defaults of this repository."""
        given = self.config.manifest
        if not self.official_rules:
            return given or SPECIFIED
        if given is None:
            return ARRAY_PER_MANIFEST
        if (given.sets, given.rules) != (SPECIFIED.sets, SPECIFIED.rules):
            return given
        return replace(given, sets=ARRAY_PER_MANIFEST.sets, rules=ARRAY_PER_MANIFEST.rules)


def build_context(
    storage: Storage,
    spec_version: SpecVersion,
    config: RepositoryConfig,
    authorized: Mapping[str, Any],
    official_rules: bool = False,
) -> RepositoryContext:
    """The context of a repository of a known generation. Sends no request to storage."""
    storage = storage if config.storage is None else storage.configured(config.storage)
    level = None if config.compression is None else config.compression.level
    generation = get_format(spec_version).compressed_at(level)
    caching = config.caching or CachingConfig()
    limits = CacheLimits(
        snapshots=caching.snapshots_limit_bytes,
        manifests=caching.manifests_limit_bytes,
        transaction_logs=caching.transaction_logs_limit_bytes,
        attributes=caching.effective("num_bytes_attributes"),
    )
    metadata_files = MetadataFiles(storage, generation, limits)
    ledger = make_ledger(spec_version, storage, metadata_files)
    reader = ChunkReader.configured(storage, generation.chunk_key, config, authorized)
    return RepositoryContext(
        storage,
        generation,
        metadata_files,
        ledger,
        reader,
        config,
        authorized,
        packing_policy(config, packs_by_default=not official_rules),
        config.effective("attributes_threshold_bytes"),
        official_rules,
    )


_WAIT_SECONDS = 600.0
_FIRST_CHECK_PAUSE_SECONDS, _LONGEST_CHECK_PAUSE_SECONDS = 0.05, 5.0
_REQUESTS_AT_ONCE = 32
_MANY_OBJECTS = 5_000
"""More objects than this are looked for in a listing of all of them."""


async def check_objects(
    context: RepositoryContext, keys: Sequence[str], are_kept: Callable[[], Awaitable[bool]] | None = None
) -> None:
    """Refuse references to missing objects. Wait for collections that may still delete some of them.

    If `are_kept` returns that no collection deletes them, there is no need to wait.
    """
    if not keys:
        return
    started = monotonic_time()
    renewed: dict[ObjectId, tuple[dt.datetime | None, float]] = {}
    pause = _FIRST_CHECK_PAUSE_SECONDS
    while True:
        running = [each for each in await list_collections(context.storage) if each.running]
        oldest = await _fetch_oldest(context, keys)
        now = monotonic_time()
        dangerous = []
        for record in running:
            seen, since = renewed.setdefault(record.id, (record.renewed, now))
            if seen != record.renewed:
                renewed[record.id] = (record.renewed, now)
            elif now - since > LEASE_SECONDS:
                continue  # its process died
            if oldest < record.cutoff:
                dangerous.append(record)
        if not dangerous or (are_kept is not None and await are_kept()):
            return
        if now - started > _WAIT_SECONDS:
            raise StorageError(
                f"a garbage collection of objects older than {dangerous[0].cutoff.isoformat()} is running, and this "
                f"change refers to an object of {oldest.isoformat()}. It was not made. Repeat it after the collection"
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_CHECK_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class NewTarget:
    """A snapshot that a branch or tag was just set to."""

    snapshot_id: ObjectId
    undo: Callable[[], Awaitable[object]]
    branch: str | None = None
    before: ObjectId | None = None
    """Where the branch was before, if there was one."""


async def check_target(context: RepositoryContext, target: NewTarget) -> None:
    """Undo the change of a ref if its snapshot is collected at the same time.

    A collection keeps what refs reach that exist when it begins to delete. So a ref that exists is safe from later
    collections. One that runs now is waited for, unless the history of another ref contains the snapshot.
    """
    if context.ledger.refs_are_checked:
        return
    key = context.format.snapshot_key(target.snapshot_id)
    try:
        await check_objects(context, [key], lambda: _is_in_history(context, target))
    except SessionStateError as error:
        await target.undo()
        raise SnapshotNotFoundError(
            f"snapshot {target.snapshot_id} was garbage collected at the same time. No branch or tag was changed"
        ) from error
    except StorageError:
        with contextlib.suppress(StorageError):
            await target.undo()
        raise


async def _is_in_history(context: RepositoryContext, target: NewTarget) -> bool:
    """Whether other refs, or the branch as it was before, have a snapshot in their history."""
    starts = [] if target.before is None else [target.before]
    for name in await context.ledger.list_branches() - {target.branch}:
        with contextlib.suppress(RefNotFoundError):
            starts.append((await context.ledger.fetch_tip(name)).snapshot_id)
    for start in dict.fromkeys(starts):
        with contextlib.suppress(SnapshotNotFoundError):
            async for info in context.ledger.ancestry(start):
                if info.id == target.snapshot_id:
                    return True
    return False


async def _fetch_oldest(context: RepositoryContext, keys: Sequence[str]) -> dt.datetime:
    """The time of the oldest of some objects, by the store's clock. Raises SessionStateError if one is missing."""
    times = await (_list_times(context, keys) if len(keys) > _MANY_OBJECTS else _head_times(context, keys))
    missing = [key for key in keys if key not in times]
    if missing:
        raise SessionStateError(
            f"nothing was committed: {len(missing)} of {len(keys)} objects of this commit, for example {missing[0]}, "
            "were garbage collected while the session was open. Open a new session and write again. Use a grace period "
            "of garbage collection that is longer than your longest session",
            missing=tuple(missing),
        )
    return min(times.values())


async def _head_times(context: RepositoryContext, keys: Sequence[str]) -> dict[str, dt.datetime]:
    gate = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def head(key: str) -> tuple[str, dt.datetime | None]:
        async with gate:
            try:
                return key, (await context.storage.head(key)).last_modified
            except ObjectNotFoundError:
                return key, None

    return {key: time for key, time in await asyncio.gather(*map(head, keys)) if time is not None}


async def _list_times(context: RepositoryContext, keys: Sequence[str]) -> dict[str, dt.datetime]:
    wanted = frozenset(keys)
    times = await _head_times(context, [key for key in keys if not key.startswith(context.format.chunks_folder)])
    async for page in context.storage.list(context.format.chunks_folder):
        times.update((item.key, item.last_modified) for item in page if item.key in wanted)
    return times


_log = logging.getLogger("icefloe")
_CONFIG_TRIES = 20
_FEW_NODES = 200
"""Up to here, looking at every node takes less time than handing the work to a thread."""
_MOST_LEFTOVERS = 1000
"""Files that unfinished creations may leave. A storage with more files holds something else."""
_CLAIM_KEY = "creating.json"
_CLAIM_SECONDS = 30.0
"""A creator checks its claim just before the deciding write. A claim older than this is ignored."""


STORED_BOUNDS: Final = {
    **{name: setting.stored for name, setting in all_settings(RepositoryConfig).items() if setting.stored is not None},
    "manifest.preload.max_total_refs": (0, 1_000_000),
    "manifest.preload.max_arrays_to_scan": (0, 1_000),
    "manifest.preload_rules.max_manifests": (0, 100),
    "manifest.preload_rules.max_manifest_size": (0, 1_000_000),
}
"""Bounds of settings that a repository stores. Writers of the repository chose them, not the caller.

They cost the process that opens it memory, requests, waits or durability. Settings the caller passes are not bounded.
"""

_UNBOUNDED_IF_UNSET = ("manifest.preload_rules.max_manifests", "manifest.preload_rules.max_manifest_size")
_CONDITIONS: Final = (("manifest", "preload"), ("manifest", "splitting"), ("chunk-manifests", None))
"""Stored settings that hold conditions on arrays."""
STORED_CONDITIONS: Final = 500
STORED_DEPTH: Final = 32
STORED_PATTERN_COST: Final = 10_000
"""Of all regular expressions of one stored setting, see `pattern_cost`. Typical ones cost 10 to 30."""


def parse_spec_version(given: SpecVersion | str | int | None) -> SpecVersion:
    """A generation by its name, its number in the official package, or the default."""
    if given is None:
        return DEFAULT_SPEC_VERSION
    if isinstance(given, SpecVersion):
        return given
    try:
        return SpecVersion(given)
    except ValueError as error:
        allowed = ", ".join(repr(v.value) for v in SpecVersion)
        raise InvalidInputError(f"spec_version={given!r}: expected one of {allowed}, 1 or 2") from error


async def find_spec_version(storage: Storage) -> SpecVersion | None:
    """The generation of the repository in a storage, or None."""
    return await detect_generation(storage)


@traced("create_repository")
async def create_context(
    storage: Storage,
    version: SpecVersion,
    config: RepositoryConfig | None,
    authorized: Mapping[str, Any],
    *,
    check_clean_root: bool,
) -> RepositoryContext:
    """Make a repository; AlreadyExistsError for all callers but one, whatever generations they ask for."""
    if await find_spec_version(storage) is not None:
        raise _taken(storage)
    _warn_of_unused(config)
    context = build_context(storage, version, config or RepositoryConfig.default(), authorized)
    initial = context.format.initial_snapshot(current_time())
    document = None if config is None else encode_config(config)
    claim = _CreationClaim(context.storage, version)
    while True:
        await claim.take()
        try:
            if check_clean_root and not await _is_free(storage, context.format):
                raise RepositoryExistsError(
                    f"{storage.url} contains other objects. Choose an empty location, or pass check_clean_root=False",
                    url=storage.url,
                )
            await context.metadata_files.write_snapshot(initial)
            if context.format.logs_initial_snapshot:
                await context.metadata_files.write_transaction_log(initial.id, TransactionLog())
            if not await claim.holds():
                continue
            try:
                await context.ledger.create(initial, document)
            except AlreadyExistsError as error:
                raise _taken(storage) from error
            return context
        finally:
            await claim.release()


class _CreationClaim:
    """The generation that is being created in a storage.

    Each generation decides by an object of its own who creates it, so two generations could both be created. An object
    that all of them share says which one may be. Creators of that generation need not wait for each other. Others
    wait until it is released, or until it did not change for so long that its owner must have died.
    """

    def __init__(self, storage: Storage, version: SpecVersion) -> None:
        self._storage = storage.state_storage
        self._whole = storage
        self._document = json.dumps({"creating": version.value, "by": new_object_id()}).encode()
        self._version = version
        self._own: Version | None = None

    async def take(self) -> None:
        """Return when only repositories of this generation may be created; AlreadyExistsError when one was."""
        watched, since = Version(), monotonic_time()
        for number in itertools.count():
            found = await self._find()
            try:
                if found is None:
                    self._own = await self._storage.create(_CLAIM_KEY, self._document)
                elif self._is_ours(found) or monotonic_time() - since > _CLAIM_SECONDS:
                    self._own = await self._storage.swap(_CLAIM_KEY, self._document, found.version)
            except (AlreadyExistsError, VersionMismatchError):
                continue
            if await find_spec_version(self._whole) is not None:
                await self.release()
                raise _taken(self._whole)
            if self._own is not None:
                return
            assert found is not None
            if found.version != watched:
                watched, since = found.version, monotonic_time()
            await asyncio.sleep(random.uniform(0.5, 1) * min(0.02 * 2 ** min(number, 5), 0.5))

    async def _find(self) -> Versioned | None:
        try:
            return await self._storage.get_versioned(_CLAIM_KEY)
        except ObjectNotFoundError:
            return None

    def _is_ours(self, found: Versioned) -> bool:
        try:
            document = json.loads(found.data)
        except ValueError:
            return False
        return isinstance(document, dict) and document.get("creating") == self._version.value

    async def holds(self) -> bool:
        """Whether this generation may still be created. Checked just before the deciding write."""
        found = await self._find()
        return found is not None and self._is_ours(found)

    async def release(self) -> None:
        """Let others create here, unless another creator of this generation took the claim over."""
        own, self._own = self._own, None
        if own is None:
            return
        with contextlib.suppress(StorageError):  # a claim that stays does no harm: it is taken over
            found = await self._find()
            if found is not None and found.data == self._document:
                await self._storage.delete([_CLAIM_KEY])


async def _is_free(storage: Storage, generation: Format) -> bool:
    """Whether a storage is empty, or holds only files that an unfinished creation left before the first ref."""
    folders = (generation.snapshots_folder.rstrip("/"), generation.transactions_folder.rstrip("/"))
    found = 0
    async for page in storage.list(""):
        found += len(page)
        others = (item.key for item in page if item.key != _CLAIM_KEY)
        if found > _MOST_LEFTOVERS or any(key.rpartition("/")[0] not in folders for key in others):
            return False
    return True


def _taken(storage: Storage) -> AlreadyExistsError:
    return RepositoryExistsError(
        f"there is already a repository at {storage.url}. Open it with Repository.open(...)", url=storage.url
    )


@traced("open_repository")
async def open_context(
    storage: Storage, config: RepositoryConfig | None, authorized: Mapping[str, Any]
) -> RepositoryContext:
    """Open the repository in a storage; RepositoryNotFoundError when there is none."""
    detected = await detect(storage)
    if detected is None:
        missing = RepositoryNotFoundError(
            f"no repository at {storage.url}: the repository doesn't exist. Create one with Repository.create(...)",
            url=storage.url,
        )
        missing.add_note(f"in open, after looking for the files of every generation in {storage.url}")
        raise missing
    version = detected.spec_version
    storage = await locate_files(version, storage)
    stored = await _fetch_config(storage, detected)
    if stored is not None:
        _bound_stored(stored, storage)
    _warn_of_unused(config)
    effective = (stored or RepositoryConfig.default()).merge(config) if config is not None else stored
    context = build_context(storage, version, effective or RepositoryConfig.default(), authorized)
    if detected.identified_by is not None:
        context.ledger.remember(detected.identified_by)
    return context


def _warn_of_unused(config: RepositoryConfig | None) -> None:
    """Log a warning for each setting that the caller set and that has no effect."""
    for remark in unused_remarks(config) if config is not None else ():
        _log.warning("%s", remark)


async def create_or_open_context(
    storage: Storage,
    version: SpecVersion,
    config: RepositoryConfig | None,
    authorized: Mapping[str, Any],
    *,
    check_clean_root: bool,
) -> RepositoryContext:
    """Create a repository, or open the one that another process created in the meantime."""
    try:
        return await create_context(storage, version, config, authorized, check_clean_root=check_clean_root)
    except AlreadyExistsError as taken:
        try:
            return await open_context(storage, config, authorized)
        except RepositoryNotFoundError:
            raise taken from None  # by something that is no repository


async def _fetch_config(storage: Storage, detected: Detected) -> RepositoryConfig | None:
    version = detected.spec_version
    try:
        stored = detected.config()
        if stored is None:
            stored = await make_ledger(version, storage, MetadataFiles(storage, get_format(version))).fetch_config()
        return None if stored.document is None else _decode_stored(stored.document, storage)
    except InvalidInputError as error:
        raise FormatError(f"the stored configuration of {storage.url} cannot be used: {error}") from error


def _decode_stored(document: Mapping[str, Any], storage: Storage) -> RepositoryConfig:
    """The configuration of a repository. Its containers are flagged as stored data, not as the caller's."""
    config = decode_config(_without_costly_conditions(document, storage))
    if config.virtual_chunk_containers is not None:
        config.virtual_chunk_containers = {
            key: replace(container, stored=True) for key, container in config.virtual_chunk_containers.items()
        }
    return config


def _without_costly_conditions(document: Mapping[str, Any], storage: Storage) -> Mapping[str, Any]:
    """The stored settings without conditions on arrays that are too costly to evaluate.

    This is decided before they are decoded, because decoding compiles every regular expression.
    """
    kept = dict(document)
    for section, name in _CONDITIONS:
        given = kept.get(section)
        if name is None and not _is_cheap(given):
            del kept[section]
        elif isinstance(given, Mapping) and not _is_cheap(given.get(name)):
            kept[section] = {key: value for key, value in given.items() if key != name}
        else:
            continue
        _log.warning(
            "%s stores %s with more than %s conditions, nested more than %s deep, or with regular expressions that "
            "cost too much; it is not used. Pass it with config= if you want it",
            storage.url,
            section if name is None else f"{section}.{name}",
            STORED_CONDITIONS,
            STORED_DEPTH,
        )
    return kept


def _is_cheap(given: Any) -> bool:
    """Whether a setting with conditions is within what a repository may store."""
    if given is None:
        return True
    level, count, cost = [given], 0, 0
    for _ in range(STORED_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):
                cost += pattern_cost(value)
            elif isinstance(value, dict | Mapping):
                below += value.values()
            elif isinstance(value, list | Sequence) and not isinstance(value, bytes):
                below += value
        count += len(below)
        if count > 8 * STORED_CONDITIONS or cost > STORED_PATTERN_COST:
            return False
        if not below:
            return True
        level = below
    return False


def _bound_stored(config: RepositoryConfig, storage: Storage) -> None:
    """Limit stored settings to bounds that do no harm to the process that opens the repository."""
    for name, (least, most) in STORED_BOUNDS.items():
        *outer, setting = name.split(".")
        owner: Any = config
        for part in outer:
            owner = None if owner is None else getattr(owner, part)
        found = None if owner is None else getattr(owner, setting)
        if owner is not None and found is None and name in _UNBOUNDED_IF_UNSET:
            found = math.inf
        if found is not None and not least <= found <= most:
            used = int(min(max(found, least), most))
            if isinstance(owner, PreloadRules):
                assert config.manifest is not None
                changed: Any = {setting: used}
                config.manifest.preload_rules = replace(owner, **changed)
            else:
                setattr(owner, setting, used)
            _log.warning(
                "%s stores %s = %s; %s is used. Pass the setting with config= if you want it",
                storage.url,
                name,
                found,
                used,
            )
    if config.storage is not None and config.storage.fsync is False:
        config.storage.fsync = None
        _log.warning(
            "%s stores storage.fsync = false, which is not followed: pass it with config= or to the storage if your "
            "commits need not survive a power loss",
            storage.url,
        )


async def fetch_stored_config(storage: Storage) -> RepositoryConfig | None:
    """The configuration kept in a repository, or None."""
    detected = await detect(storage)
    return None if detected is None else await _fetch_config(storage, detected)


async def save_config(context: RepositoryContext) -> None:
    """Keep the configuration in force in the repository."""
    await context.check_writable()
    stored = await context.ledger.fetch_config()
    await context.ledger.save_config(encode_config(context.config), stored.version_token)


async def extend_config(context: RepositoryContext, config: RepositoryConfig) -> None:
    """Lay settings over the stored configuration, of which others may change something else at the same time."""
    await context.check_writable()
    for attempt in range(_CONFIG_TRIES):
        stored = await context.ledger.fetch_config()
        now = context.config
        if stored.document is not None:
            now = decode_config(_without_costly_conditions(stored.document, context.storage))
        try:
            return await context.ledger.save_config(encode_config(now.merge(config)), stored.version_token)
        except ConflictError:
            if attempt == _CONFIG_TRIES - 1:
                raise
        await asyncio.sleep(random.uniform(0, 0.02 * 2 ** min(attempt, 5)))


def reconfigure(
    context: RepositoryContext, config: RepositoryConfig | None, authorized: Mapping[str, Any] | None
) -> RepositoryContext:
    """The same repository with another configuration laid over, or other authorisations."""
    merged = context.config.merge(config) if config is not None else context.config
    allowed = context.authorized if authorized is None else authorized
    return build_context(context.storage, context.format.spec_version, merged, allowed, context.official_rules)


async def check_writable(context: RepositoryContext) -> None:
    """Fail early if the repository is read-only."""
    await context.ledger.check_writable()


def prefetch_tip(context: RepositoryContext, branch: str) -> None:
    """Begin to fetch the snapshot where a branch stood when it was last seen.

    Usually the branch is still there. Then the ref and the snapshot are fetched at the same time.
    """
    guess = context.ledger.recall_tip(branch)
    if guess is not None and not context.metadata_files.has_snapshot(guess):
        fetching = asyncio.run_coroutine_threadsafe(context.metadata_files.fetch_snapshot_file(guess), blocking_loop())
        # A missing snapshot is no error: the branch has moved.
        fetching.add_done_callback(lambda done: done.cancelled() or done.exception())


def preload(context: RepositoryContext, base: Snapshot) -> None:
    """Fetch the manifests that the configuration names, in the background; the session does not wait.

    Without a configuration these are small ones. Where files are on this machine, reading a small manifest when it is
    needed takes less time than finding out that it may be needed.
    """
    if _has_default_preload(context.config.manifest) and context.metadata_files.has_fast_reads:
        return
    chosen = None
    with contextlib.suppress(ListsNotLoadedError):
        chosen = manifests_to_preload(base, context.config.manifest) if len(base.nodes) <= _FEW_NODES else None
    if chosen is None or not all(map(context.metadata_files.find_manifest, chosen)):
        asyncio.run_coroutine_threadsafe(_preload(context, base, chosen), blocking_loop())


def _has_default_preload(config: ManifestConfig | None) -> bool:
    return config is None or (config.preload is None and config.preload_rules == SPECIFIED.preload_rules)


async def _choose_in_lists(context: RepositoryContext, base: Snapshot) -> list[ObjectId]:
    try:
        return await context.metadata_files.with_lists(lambda: manifests_to_preload(base, context.config.manifest))
    except IcefloeError as error:
        _log.debug("preloading manifest lists failed: %s", error)
        return []


async def _preload(context: RepositoryContext, base: Snapshot, chosen: list[ObjectId] | None) -> None:
    if chosen is None:
        try:
            chosen = await asyncio.to_thread(manifests_to_preload, base, context.config.manifest)
        except ListsNotLoadedError:
            chosen = await _choose_in_lists(context, base)
    for manifest_id in chosen:
        try:
            await context.metadata_files.fetch_manifest(manifest_id)
        except IcefloeError as error:
            # A read of this manifest raises the same error where it can be handled.
            _log.debug("preloading manifest %s failed: %s", manifest_id, error)
