"""Snapshots, manifests, transaction logs and attributes files: fetched through caches, written once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from icefloe.blocking import blocking_loop, fork_safe_lock, reset_after_fork
from icefloe.debug import HAS_TELEMETRY, span
from icefloe.errors import (
    AlreadyExistsError,
    FormatError,
    InvalidInputError,
    InvalidSnapshotIdError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    SnapshotNotFoundError,
    VersionMismatchError,
)
from icefloe.formats.format import Format, OpenManifest
from icefloe.ids import NodeId, ObjectId, is_object_id
from icefloe.manifests.list_plan import plan_lists
from icefloe.model.chunk_table import ChunkRef
from icefloe.model.config import CHUNK_REF_BYTES, SNAPSHOT_NODE_BYTES
from icefloe.model.manifest_lists import ListContent, ListsNotLoadedError, ManifestList, lists_of, missing_lists
from icefloe.model.snapshot import Manifest, ManifestFileInfo, Snapshot, TransactionLog
from icefloe.storage.contract import SourceStorage, Storage, Version

_log = logging.getLogger("icefloe")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """A cache of the most recently used values up to a number of bytes. Larger values are not kept."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        # Reentrant: a load that ends at once is forgotten while it is being noted.
        self._lock = fork_safe_lock()
        self._loading: dict[K, concurrent.futures.Future[V]] = {}
        self._loads: dict[K, object] = {}
        """The load in progress whose value may be kept, per key. A load that began before `renew` is not kept."""
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Drop loads in progress: no thread of a forked child continues them."""
        self._loading = {}
        self._loads = {}
        # Another thread of the parent may have been between keeping a value and counting its bytes.
        self._bytes = sum(size for _, size in self._entries.values())

    async def get(
        self,
        key: K,
        load: Callable[[], Awaitable[tuple[V, int]]],
        load_now: Callable[[], tuple[V, int] | None] | None = None,
    ) -> V:
        """The value of a key. If it is not in the cache, `load` returns it with its size.

        `load_now` is tried before it, in the thread of the caller. It returns None if it would have to wait.
        """
        with self._lock:
            if key in self._entries:
                self.hits += 1
                self._entries.move_to_end(key)
                return self._entries[key][0]
            self.misses += 1
            loading = self._loading.get(key)
            if loading is None:
                token = self._loads[key] = object()
        if loading is None and load_now is not None:
            found = self._load_now(key, load_now, token)
            if found is not None:
                return found[0]
        with self._lock:
            loading = self._loading.get(key)
            if loading is None:
                # Loads run on this library's own loop. A caller that blocks its own loop would stop them.
                token = self._loads[key] = object()
                loading = asyncio.run_coroutine_threadsafe(self._load(key, load, token), blocking_loop())
                self._loading[key] = loading
                loading.add_done_callback(lambda done: self._forget_load(key, done))
        return await asyncio.shield(asyncio.wrap_future(loading))

    def _load_now(self, key: K, load: Callable[[], tuple[V, int] | None], token: object) -> tuple[V, int] | None:
        found = None
        try:
            found = load()
        finally:
            with self._lock:
                if self._loads.get(key) is token:
                    del self._loads[key]
                    if found is not None:
                        self.put(key, *found)
        return found

    def _forget_load(self, key: K, done: concurrent.futures.Future[V]) -> None:
        with self._lock:
            if self._loading.get(key) is done:
                del self._loading[key]

    async def renew(self, key: K, load: Callable[[], Awaitable[tuple[V, int]]]) -> V:
        """The value of a key as it is now. It replaces the value in the cache."""
        with self._lock:
            self.misses += 1
            token = self._loads[key] = object()
        return await self._load(key, load, token)

    async def _load(self, key: K, load: Callable[[], Awaitable[tuple[V, int]]], token: object) -> V:
        try:
            value, size = await load()
            with self._lock:
                if self._loads.get(key) is token:
                    self.put(key, value, size)
        finally:
            with self._lock:
                if self._loads.get(key) is token:
                    del self._loads[key]
        return value

    def find(self, key: K) -> V | None:
        """The value of a key that is in the cache. None if it has to be loaded."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self.hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def holds(self, key: K) -> bool:
        """Whether a value is cached or being loaded."""
        with self._lock:
            return key in self._entries or key in self._loading

    def put(self, key: K, value: V, size: int) -> None:
        """Cache a value that is already loaded."""
        if size > self.limit_bytes:
            return
        with self._lock:
            self._discard(key)
            self._entries[key] = (value, size)
            self._bytes += size
            while self._bytes > self.limit_bytes:
                oldest = next(iter(self._entries))
                self._discard(oldest)

    def drop(self, key: K) -> None:
        """Remove a value, also one that is being loaded."""
        with self._lock:
            self._loads.pop(key, None)
            self._discard(key)

    def _discard(self, key: K) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return ByteCache, (self.limit_bytes,)


S = TypeVar("S")
T = TypeVar("T")
_ManifestKey = tuple[ObjectId, str]
_DECODED, _OPENED = "decoded", "opened"

_OFFLOAD_BYTES = 1 << 18
"""Bodies above this are decoded in a thread, so that the event loop stays free."""
_OFFLOAD_REFS = 5000
"""Manifests above this many references are encoded in a thread."""
_LISTS_AT_ONCE = 32
_SMALL_MANIFEST_BYTES = 1 << 14
"""Up to here, decoding a manifest takes hardly longer than searching it."""


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """How many bytes of decoded files are kept, per kind."""

    snapshots: int = 256 << 20
    manifests: int = 1 << 30
    transaction_logs: int = 64 << 20
    attributes: int = 64 << 20
    manifest_lists: int = 64 << 20
    warns_if_small: bool = True
    """Whether to say that a cache cannot keep one file. Maintenance keeps none on purpose."""


class MetadataFiles:
    """The immutable files of one repository, shared by all its sessions."""

    def __init__(self, storage: Storage, format: Format, limits: CacheLimits | None = None) -> None:
        limits = limits or CacheLimits()
        self.storage = storage
        self.format = format
        self._snapshots: ByteCache[ObjectId, Snapshot] = ByteCache(limits.snapshots)
        self._manifests: ByteCache[_ManifestKey, Manifest | OpenManifest] = ByteCache(limits.manifests)
        self._logs: ByteCache[ObjectId, TransactionLog] = ByteCache(limits.transaction_logs)
        self._attributes: ByteCache[ObjectId, Sequence[bytes]] = ByteCache(limits.attributes)
        self._lists: ByteCache[ObjectId, ListContent] = ByteCache(limits.manifest_lists)
        self._warned: set[str] = set() if limits.warns_if_small else {"snapshot", "manifest"}

    async def fetch_snapshot(self, snapshot_id: ObjectId, *, anew: bool = False) -> Snapshot:
        """A snapshot by id, with its manifest lists loaded. See `fetch_snapshot_file`."""
        snapshot = await self.fetch_snapshot_file(snapshot_id, anew=anew)
        await self.load_lists(lists_of(snapshot))
        return snapshot

    async def fetch_snapshot_file(
        self, snapshot_id: ObjectId, *, anew: bool = False, versions: list[Version] | None = None
    ) -> Snapshot:
        """A snapshot by id; SnapshotNotFoundError when there is none.

        Its manifest lists may not be loaded: the manifests of a large array are not needed to open it, or to find a
        few of its chunks. Using them before `load_lists` is a ListsNotLoadedError.

        What a snapshot holds never changes, but expiry rewrites its parent and the history that it quotes in place.
        Pass `anew` to read the file again if a decision depends on these. Then its version is added to `versions`.
        """

        key = self.format.snapshot_key(snapshot_id)

        def check(snapshot: Snapshot, size_bytes: int) -> tuple[Snapshot, int]:
            # The first snapshot of some early repositories has another id than its file says.
            if snapshot.id != snapshot_id and snapshot.parent_id is not None:
                raise FormatError(f"{key} in {self.storage.url} contains another snapshot, {snapshot.id}")
            self._warn_of_small_cache("snapshot", len(snapshot.nodes))
            return snapshot, _snapshot_weight(snapshot, size_bytes)

        load_file, load_now = self._loads(
            key, "fetch_snapshot", snapshot_id, self.format.decode_snapshot, check, versions
        )

        async def load() -> tuple[Snapshot, int]:
            try:
                return await load_file()
            except ObjectNotFoundError as error:
                self._snapshots.drop(snapshot_id)
                if not is_object_id(snapshot_id, self.format.capabilities.object_id_bytes):
                    raise InvalidSnapshotIdError(
                        f"{snapshot_id!r} is not the id of a snapshot. `icefloe log` lists the snapshots of a branch",
                        snapshot_id=snapshot_id,
                    ) from error
                raise SnapshotNotFoundError(
                    f"object not found: there is no snapshot {snapshot_id} in {self.storage.url}. It never existed, "
                    "or it was expired and garbage collected. `icefloe log` lists the snapshots of a branch",
                    snapshot_id=snapshot_id,
                ) from error

        if anew:
            return await self._snapshots.renew(snapshot_id, load)
        return await self._snapshots.get(snapshot_id, load, load_now)

    async def fetch_versioned_snapshot(self, snapshot_id: ObjectId) -> tuple[Snapshot, Version]:
        """A snapshot as its file is now, and the version of the file, for `replace_snapshot`."""
        versions: list[Version] = []
        return await self.fetch_snapshot_file(snapshot_id, anew=True, versions=versions), versions[0]

    async def load_lists(self, lists: Iterable[ManifestList]) -> None:
        """Load manifest lists of a snapshot, so that their manifests can be used. FormatError if one is missing."""
        missing = missing_lists(lists)
        if not missing:
            return
        for each in missing:
            found = self._lists.find(each.id)
            if found is not None:
                each.fill(found)
        missing = missing_lists(missing)
        for start in range(0, len(missing), _LISTS_AT_ONCE):
            await asyncio.gather(*map(self._load_list, missing[start : start + _LISTS_AT_ONCE]))

    async def with_lists(self, compute: Callable[[], T]) -> T:
        """The result of a function. Manifest lists that it needs are loaded, and it is called again."""
        while True:
            try:
                return compute()
            except ListsNotLoadedError as error:
                missing = error.lists
            await self.load_lists(missing)

    async def _load_list(self, each: ManifestList) -> None:
        key, decode = self.format.manifest_list_key(each.id), self.format.decode_manifest_list
        loads = self._loads(
            key, "fetch_manifest_list", each.id, decode, lambda content, size_bytes: (content, 4 * size_bytes)
        )
        try:
            each.fill(await self._lists.get(each.id, *loads))
        except ObjectNotFoundError as error:
            raise FormatError(
                f"manifest list {each.id} of a snapshot is missing from {self.storage.url}. `icefloe verify` lists all "
                "damage"
            ) from error

    async def write_list(self, made: ManifestList) -> None:
        """Write a manifest list."""
        data = self.format.encode_manifest_list(made.content)
        await self._put(self.format.manifest_list_key(made.id), data, "manifest-list")
        self._lists.put(made.id, made.content, 4 * len(data))

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot in the cache that another repository of this process wrote."""
        self._snapshots.put(snapshot.id, snapshot, SNAPSHOT_NODE_BYTES * (len(snapshot.nodes) + len(snapshot.history)))

    def keep_manifests(self, manifests: Iterable[Manifest]) -> None:
        """Keep manifests in the cache that another repository of this process wrote."""
        for manifest in manifests:
            self._manifests.put((manifest.id, _DECODED), manifest, manifest.nbytes)

    def has_snapshot(self, snapshot_id: ObjectId) -> bool:
        """Whether a snapshot is cached or being loaded."""
        return self._snapshots.holds(snapshot_id)

    async def fetch_manifest(self, manifest_id: ObjectId) -> Manifest:
        """A manifest by id, decoded into columns."""

        opened = (manifest_id, _OPENED)

        def weigh(manifest: Manifest, _: int = 0) -> tuple[Manifest, int]:
            self._warn_of_small_cache("manifest", len(manifest))
            return manifest, manifest.nbytes

        key, decode = self.format.manifest_key(manifest_id), self.format.decode_manifest
        load_file, load_file_now = self._loads(key, "fetch_manifest", manifest_id, decode, weigh)

        async def load() -> tuple[Manifest, int]:
            if not self._manifests.holds(opened):
                return await load_file()
            found = await self._open_manifest(manifest_id)
            with self._naming("fetch_manifest", key):
                is_small = found.nbytes < _OFFLOAD_BYTES
                manifest = _decode_open(found) if is_small else await asyncio.to_thread(_decode_open, found)
            self._manifests.drop(opened)
            return weigh(manifest)

        def load_now() -> tuple[Manifest, int] | None:
            found = self._manifests.find(opened)
            if found is None:
                return None if self._manifests.holds(opened) else load_file_now()
            assert isinstance(found, OpenManifest)
            if found.nbytes >= _OFFLOAD_BYTES:
                return None
            with self._naming("fetch_manifest", key):
                manifest = _decode_open(found)
            self._manifests.drop(opened)
            return weigh(manifest)

        entry = await self._manifests.get((manifest_id, _DECODED), load, load_now)
        assert isinstance(entry, Manifest)
        return entry

    async def find_refs(
        self, manifest_id: ObjectId, node_id: NodeId, wanted: Sequence[tuple[int, ...]]
    ) -> list[ChunkRef] | None:
        """The references of a few chunks, if that is possible without decoding the manifest; else it has to be fetched.

        A first chunk of a large array then costs a search, not the decoding of a million references.
        """
        if not self.format.searches_manifests or self._manifests.holds((manifest_id, _DECODED)):
            return None
        opened = await self._open_manifest(manifest_id)
        with self._naming("find_refs", self.format.manifest_key(manifest_id)):
            if opened.nbytes > self._manifests.limit_bytes:
                # It was not kept; its columns may still fit.
                manifest = await asyncio.to_thread(_decode_open, opened)
                self._manifests.put((manifest_id, _DECODED), manifest, manifest.nbytes)
            return _search(opened, node_id, wanted)

    def find_manifest(self, manifest_id: ObjectId) -> Manifest | OpenManifest | None:
        """A manifest that is in memory, decoded or opened. None if it has to be fetched."""
        found = self._manifests.find((manifest_id, _DECODED))
        return self._manifests.find((manifest_id, _OPENED)) if found is None else found

    def load_manifest_now(self, manifest_id: ObjectId) -> Manifest | OpenManifest | None:
        """A manifest that is in memory or in a small local file. None if it has to be fetched."""
        found = self.find_manifest(manifest_id)
        if found is not None:
            return found
        data = self._read_now(self.format.manifest_key(manifest_id))
        if data is None:
            return None
        try:
            if not self.format.searches_manifests or len(data) <= _SMALL_MANIFEST_BYTES:
                decoded = _decode_now(self.format.decode_manifest, data)
                self._warn_of_small_cache("manifest", len(decoded))
                self._manifests.put((manifest_id, _DECODED), decoded, decoded.nbytes)
                return decoded
            opened = _decode_now(self.format.open_manifest, data)
        except FormatError:
            return None  # `fetch_manifest` reads the file again and says what is wrong
        self._manifests.put((manifest_id, _OPENED), opened, opened.nbytes)
        return opened

    def find_refs_now(
        self, opened: OpenManifest, node_id: NodeId, wanted: Sequence[tuple[int, ...]]
    ) -> list[ChunkRef] | None:
        """What `find_refs` returns. None also for a damaged file, which `fetch_manifest` then names."""
        try:
            return _search(opened, node_id, wanted)
        except FormatError:
            return None

    @property
    def has_fast_reads(self) -> bool:
        """Whether files of metadata are on this machine, so that small ones are read at once."""
        return not HAS_TELEMETRY and isinstance(self.storage, SourceStorage) and self.storage.has_fast_reads

    async def _open_manifest(self, manifest_id: ObjectId) -> OpenManifest:
        key, decode = self.format.manifest_key(manifest_id), self.format.open_manifest
        loads = self._loads(key, "fetch_manifest", manifest_id, decode, lambda found, _: (found, found.nbytes))
        entry = await self._manifests.get((manifest_id, _OPENED), *loads)
        assert isinstance(entry, OpenManifest)
        return entry

    async def fetch_transaction_log(
        self, snapshot_id: ObjectId, *, anew: bool = False, versions: list[Version] | None = None
    ) -> TransactionLog:
        """What a snapshot changed against its parent; ObjectNotFoundError when no log was written.

        Expiry rewrites logs in place in some generations, as it does with the parents of snapshots. With `anew`, the
        version of the file is added to `versions`.
        """
        key, decode = self.format.transaction_log_key(snapshot_id), self.format.decode_transaction_log
        load, load_now = self._loads(
            key, "fetch_transaction_log", snapshot_id, decode, lambda log, size_bytes: (log, 4 * size_bytes), versions
        )
        if anew:
            return await self._logs.renew(snapshot_id, load)
        return await self._logs.get(snapshot_id, load, load_now)

    async def fetch_attributes(self, attributes_id: ObjectId, row: int) -> bytes:
        """One attributes object of an attributes file, as JSON text."""

        async def load() -> tuple[Sequence[bytes], int]:
            key = self.format.attributes_key(attributes_id)
            data = await self.storage.get(key)
            rows = await self._decode(self.format.decode_attributes, data, "fetch_attributes", key)
            return rows, sum(len(r) for r in rows)

        rows = await self._attributes.get(attributes_id, load)
        if not 0 <= row < len(rows):
            raise FormatError(
                f"a node refers to row {row} of attributes file {attributes_id}, which has {len(rows)} rows"
            )
        return rows[row]

    async def write_snapshot(self, snapshot: Snapshot) -> int:
        """Write a snapshot file; returns its size.

        Manifest lists that it needs are written before it: a ref may point at the snapshot already.
        """
        if self.format.capabilities.manifest_lists:
            wanted = snapshot
            listed = await self.with_lists(lambda: plan_lists(wanted))
            await asyncio.gather(*map(self.write_list, listed.new))
            snapshot = listed.snapshot
        data = self.format.encode_snapshot(snapshot)
        size = await self._put(self.format.snapshot_key(snapshot.id), data, "snapshot")
        self._snapshots.put(snapshot.id, snapshot, _snapshot_weight(snapshot, size))
        self._warn_of_small_cache("snapshot", len(snapshot.nodes))
        return size

    async def replace_snapshot(self, snapshot: Snapshot, version: Version) -> None:
        """Write a snapshot again, with another parent or other quotes. VersionMismatchError if its file has changed."""
        data = self.format.encode_snapshot(snapshot)
        await self._write_if(self.format.snapshot_key(snapshot.id), data, version, "snapshot")
        self.forget_snapshot(snapshot.id)

    async def replace_transaction_log(
        self, snapshot_id: ObjectId, log: TransactionLog, version: Version | None
    ) -> Version:
        """Write a transaction log again; returns its version. VersionMismatchError if its file has changed.

        With None as version, there must be no file.
        """
        data = self.format.encode_transaction_log(snapshot_id, log)
        written = await self._write_if(self.format.transaction_log_key(snapshot_id), data, version, "transaction-log")
        self.forget_transaction_log(snapshot_id)
        return written

    async def write_manifest(
        self, manifest: Manifest, start: Callable[[Coroutine[Any, Any, None]], object] | None = None
    ) -> ManifestFileInfo:
        """Write a manifest file; returns what a snapshot records of it.

        `start` runs the request in the background. Without it, the request has ended when this returns.
        """
        if len(manifest) < _OFFLOAD_REFS:
            data = self.format.encode_manifest(manifest)
        else:
            data = await asyncio.to_thread(self.format.encode_manifest, manifest)
        self._warn_of_small_cache("manifest", len(manifest))
        put = self._put_manifest(manifest, data)
        if start is None:
            await put
        else:
            start(put)
        return ManifestFileInfo(manifest.id, len(data), len(manifest))

    async def _put_manifest(self, manifest: Manifest, data: bytes) -> None:
        await self._put(self.format.manifest_key(manifest.id), data, "manifest")
        if len(manifest) < _OFFLOAD_REFS:
            # A writer of few references usually reads them next. A bulk write would only fill the memory.
            self._manifests.put((manifest.id, _DECODED), manifest, manifest.nbytes)

    async def write_transaction_log(self, snapshot_id: ObjectId, log: TransactionLog) -> None:
        """Write the transaction log of a snapshot."""
        data = self.format.encode_transaction_log(snapshot_id, log)
        await self._put(self.format.transaction_log_key(snapshot_id), data, "transaction-log")

    async def write_attributes(self, attributes_id: ObjectId, rows: Sequence[bytes]) -> None:
        """Write an attributes file."""
        await self._put(self.format.attributes_key(attributes_id), self.format.encode_attributes(rows), "attributes")

    def _loads(
        self,
        key: str,
        step: str,
        object_id: ObjectId,
        decode: Callable[[bytes], T],
        finish: Callable[[T, int], tuple[T, int]],
        versions: list[Version] | None = None,
    ) -> tuple[Callable[[], Awaitable[tuple[T, int]]], Callable[[], tuple[T, int] | None]]:
        """Two ways to read a file: with a request, and at once. `finish` returns its weight in a cache.

        A request adds the version of the file to `versions`.
        """

        async def load() -> tuple[T, int]:
            if versions is None:
                data = await self._get(key, step, object_id)
            else:
                found = await self.storage.get_versioned(key)
                data = found.data
                versions.append(found.version)
            return finish(await self._decode(decode, data, step, key), len(data))

        def load_now() -> tuple[T, int] | None:
            data = self._read_now(key)
            if data is None:
                return None
            try:
                return finish(_decode_now(decode, data), len(data))
            except FormatError:
                return None  # `load` reads the file again and says what is wrong

        return load, load_now

    def _read_now(self, key: str) -> bytes | None:
        """Read a small local file. None if it has to be requested."""
        if HAS_TELEMETRY or not isinstance(self.storage, SourceStorage):
            return None
        return self.storage.read_now(key)

    async def _get(self, key: str, step: str, object_id: ObjectId) -> bytes:
        """Read a file, as a span of OpenTelemetry where that is installed."""
        if not HAS_TELEMETRY:
            return await self.storage.get(key)
        with span(step, id=object_id):
            return await self.storage.get(key)

    async def _decode(self, decode: Callable[[bytes], T], data: bytes, step: str, key: str) -> T:
        """Decode a file. An error says which file it was and what it was read for."""
        with self._naming(step, key):
            return await _decode(decode, data)

    @contextlib.contextmanager
    def _naming(self, step: str, key: str) -> Iterator[None]:
        """Let an error say which file was decoded, and what it was read for."""
        try:
            yield
        except FormatError as error:
            error.add_note(f"in {step}, after get of {key} in {self.storage.url}")
            raise

    def _warn_of_small_cache(self, kind: Literal["snapshot", "manifest"], count: int) -> None:
        """Say once if the cache cannot keep even one file of a kind: it is then read again for every access."""
        if kind == "snapshot":
            cache: ByteCache[Any, Any] = self._snapshots
            unit_bytes, parts, short, setting = SNAPSHOT_NODE_BYTES, "nodes", "nodes", "num_snapshot_nodes"
        else:
            cache = self._manifests
            unit_bytes, parts, short, setting = CHUNK_REF_BYTES, "chunk references", "references", "num_chunk_refs"
        most = cache.limit_bytes // unit_bytes
        if count > most and kind not in self._warned:
            self._warned.add(kind)
            _log.warning(
                "A %s has %d %s, but the cache can keep %d %s. It is read again for every access. To change that, "
                "increase %s of CachingConfig",
                *(kind, count, parts, most, short, setting),
            )

    async def _put(self, key: str, data: bytes, file_type: str) -> int:
        metadata: Mapping[str, str] = self.format.object_metadata(file_type)
        await self.storage.put(key, data, metadata=metadata)
        return len(data)

    async def _write_if(self, key: str, data: bytes, version: Version | None, file_type: str) -> Version:
        """Replace a file, or create it. VersionMismatchError if the file is not the one that was read.

        Also if the outcome is unknown: then other writers have replaced the file, perhaps after this one.
        """
        try:
            return await self.storage.write_if(key, data, version, metadata=self.format.object_metadata(file_type))
        except (AlreadyExistsError, OutcomeUnknownError) as error:
            raise VersionMismatchError(f"{key} in {self.storage.url} has changed since it was read") from error

    def cache_counts(self) -> dict[str, tuple[int, int]]:
        """Hits and misses of the caches, per kind of file."""
        caches: dict[str, ByteCache[Any, Any]] = {
            "snapshots": self._snapshots,
            "manifests": self._manifests,
            "transaction_logs": self._logs,
            "attributes": self._attributes,
            "manifest_lists": self._lists,
        }
        return {name: (cache.hits, cache.misses) for name, cache in caches.items()}

    def forget_snapshot(self, snapshot_id: ObjectId) -> None:
        """Drop a snapshot from the cache, after maintenance rewrote its file."""
        self._snapshots.drop(snapshot_id)

    def forget_transaction_log(self, snapshot_id: ObjectId) -> None:
        """Drop a transaction log from the cache, after maintenance rewrote its file."""
        self._logs.drop(snapshot_id)


_LISTED_BYTES = 256
"""Memory of a manifest in a list that is loaded."""


def _snapshot_weight(snapshot: Snapshot, size_bytes: int) -> int:
    # The lists are kept with the snapshot once they are loaded.
    listed = sum(map(len, lists_of(snapshot)))
    return 4 * size_bytes + 400 * len(snapshot.nodes) + _LISTED_BYTES * listed


async def _decode(decode: Callable[[bytes], T], data: bytes) -> T:
    if len(data) < _OFFLOAD_BYTES:
        return _decode_now(decode, data)
    return await asyncio.to_thread(_decode_now, decode, data)


def _search(opened: OpenManifest, node_id: NodeId, wanted: Sequence[tuple[int, ...]]) -> list[ChunkRef] | None:
    return _decode_now(lambda asked: opened.find(node_id, asked), wanted)


def _decode_open(opened: OpenManifest) -> Manifest:
    return _decode_now(lambda each: each.decode(), opened)


def _decode_now(decode: Callable[[S], T], data: S) -> T:
    try:
        return decode(data)
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, InvalidInputError) as error:
        # Decoders raise FormatError themselves. Errors of libraries below them also mean a broken file.
        raise FormatError(f"the file cannot be decoded: {type(error).__name__}: {error}") from error
