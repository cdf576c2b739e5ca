"""Storages on object stores, through obstore, and the outcome of conditional writes whose answer was lost."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import itertools
import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import obstore
from obstore.exceptions import NotSupportedError, PreconditionError

from icefloe.blocking import fork_safe_lock
from icefloe.display.card import ShownField
from icefloe.errors import (
    AlreadyExistsError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    ReadOnlyError,
    StorageError,
    UnsupportedError,
    VersionMismatchError,
)
from icefloe.model.config import StorageRetriesSettings, StorageSettings
from icefloe.storage.contract import Buffer, ObjectInfo, SourceStorage, Storage, Version, Versioned, flat_bytes
from icefloe.storage.endpoints import Endpoint, S3Endpoint
from icefloe.storage.requests import (
    MISSING,
    NO_RETRIES,
    REQUESTS,
    Fetched,
    RetryPolicy,
    Translating,
    changed,
    check_key,
    check_prefix,
    check_range,
    check_unchanged,
    decode_key,
    delete_all,
    encode_key,
    fetch,
    join_prefix,
    normal_etag,
    write,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class WriteOutcome(enum.Enum):
    """What lies under the key, seen by the writer."""

    OURS = "our own bytes"
    UNTOUCHED = "what was there before"
    OTHERS = "another writer's bytes"
    UNCLEAR = "nothing that says whose bytes these are"


@dataclass(frozen=True, slots=True)
class ConditionalWrite:
    """A create (no version) or a swap, as one try and one look."""

    action: str
    url: str
    attempt: Callable[[], Awaitable[Version]]
    look: Callable[[], Awaitable[tuple[WriteOutcome, Version]]]
    is_swap: bool


async def write_conditionally(write: ConditionalWrite, policy: RetryPolicy) -> Version:
    """Carry out a conditional write; a refusal or failure is believed only after a look.

    A refused try may be the repetition, somewhere below, of a try that had succeeded, or a store's way to say that
    another conditional write was under way which then failed.
    """
    doubtful = False
    last: IcefloeError = StorageError(f"cannot {write.action} in {write.url}: not tried")
    for pause in policy.pauses():
        try:
            return await write.attempt()
        except (AlreadyExistsError, VersionMismatchError) as refusal:
            last = refusal
        except PermissionDeniedError:
            raise
        except StorageError as failure:
            doubtful = True
            last = failure
        try:
            outcome, version = await write.look()
        except (StorageError, InvalidInputError) as unseen:
            raise (_unknown(write, "and it cannot be looked at") if doubtful else last) from unseen
        if outcome is WriteOutcome.OURS:
            return version
        if outcome is WriteOutcome.UNTOUCHED:
            await asyncio.sleep(pause)
            continue
        # A created object is never replaced by another creator, but a swapped one may be swapped again.
        if doubtful and (write.is_swap or outcome is WriteOutcome.UNCLEAR):
            raise _unknown(write, f"and {outcome.value} is there now") from last
        raise _refused(write) from last
    if doubtful:
        raise _unknown(write, "and the object does not show the write") from last
    raise last


def _refused(write: ConditionalWrite) -> IcefloeError:
    if write.is_swap:
        return VersionMismatchError(f"cannot {write.action} in {write.url}: it has changed since it was read")
    return AlreadyExistsError(f"cannot {write.action} in {write.url}: it already exists")


def _unknown(write: ConditionalWrite, found: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"the result of the request to {write.action} in {write.url} is unknown: the response was lost, {found}. Look "
        "at the object before you retry"
    )


async def look_by_content(
    fetch: Callable[[], Awaitable[Versioned]], data: bytes | memoryview, before: Version | None
) -> tuple[WriteOutcome, Version]:
    """Recognise our own write by its bytes, which no other writer would write."""
    try:
        found = await fetch()
    except ObjectNotFoundError:
        return (WriteOutcome.UNTOUCHED if before is None else WriteOutcome.OTHERS), Version()
    if found.data == data:
        return WriteOutcome.OURS, found.version
    is_before = before is not None and found.version.agrees_with(before)
    return (WriteOutcome.UNTOUCHED if is_before else WriteOutcome.OTHERS), found.version


_ADVICE = (
    "every writer would believe to have won and commits would be lost; use a store with conditional writes "
    "(If-None-Match and If-Match), or write from one process at a time elsewhere and copy"
)


async def check_conditional_writes(storage: Storage, folder: str = "") -> None:
    """UnsupportedError when the store takes a create of an object that is there, or a swap of a stale version."""
    key = f"{folder}probe-{secrets.token_hex(8)}"
    try:
        first = await storage.create(key, f"first {secrets.token_hex(8)}".encode())
        try:
            await storage.create(key, f"second {secrets.token_hex(8)}".encode())
        except AlreadyExistsError:
            pass
        else:
            raise UnsupportedError(f"{storage.url} creates an object although it exists: {_ADVICE}")
        second = await storage.swap(key, f"third {secrets.token_hex(8)}".encode(), first)
        try:
            await storage.swap(key, f"fourth {secrets.token_hex(8)}".encode(), first)
        except (VersionMismatchError, OutcomeUnknownError):
            pass
        else:
            raise UnsupportedError(f"{storage.url} replaces an object although it has changed: {_ADVICE}")
        if second == first:
            raise UnsupportedError(f"{storage.url} reports the same version for two different contents: {_ADVICE}")
    finally:
        await storage.delete([key])


_used_in_process = 0


class Client:
    """The connections to an endpoint. They are made at the first use, in each process anew."""

    def __init__(self, endpoint: Endpoint, retries: RetryPolicy) -> None:
        self.endpoint = endpoint
        self.retries = retries
        self._lock = fork_safe_lock()
        self._with_retries: ObjectStore | None = None
        self._for_writes: ObjectStore | None = None
        self._without_retries: ObjectStore | None = None
        self.unsorted = endpoint.traits.sorts is False

    def with_retries(self) -> ObjectStore:
        """The client that repeats requests after a temporary failure."""
        if self._with_retries is None or _used_in_process != os.getpid():
            self._connect()
        assert self._with_retries is not None
        return self._with_retries

    def for_writes(self) -> ObjectStore:
        """The client that repeats failed requests and sends the headers of writes."""
        if self._for_writes is None or _used_in_process != os.getpid():
            self._connect()
        assert self._for_writes is not None
        return self._for_writes

    def without_retries(self) -> ObjectStore:
        """The client that repeats nothing. A conditional write must know the result of every attempt."""
        if self._without_retries is None or _used_in_process != os.getpid():
            self._connect()
        assert self._without_retries is not None
        return self._without_retries

    def _connect(self) -> None:
        global _used_in_process
        with self._lock:
            if _used_in_process not in (0, os.getpid()):
                # A forked child does not have the threads that carry the requests. It would wait for ever.
                raise UnsupportedError(
                    f"{self.endpoint.url} cannot be used in this process, because it was forked after its parent had "
                    "used an object store. Start workers with the 'spawn' or 'forkserver' method"
                )
            _used_in_process = os.getpid()
            with Translating("connect", "", self.endpoint.url):
                self._with_retries = self.endpoint.connect(self.retries)
                own = self.endpoint.has_own_writer
                self._for_writes = self.endpoint.connect(self.retries, writing=True) if own else self._with_retries
                self._without_retries = self.endpoint.connect(NO_RETRIES, writing=True)


_LOG = logging.getLogger(__name__)

WRITE_ID = "icechunk_write_id"
"""Metadata by which a writer recognises its own object; the official package uses the same name."""

_PAGE = 1000
_DELETE_BATCH = 1000

_Page: TypeAlias = list[ObjectInfo]


class ObstoreStorage(SourceStorage):
    """Objects below a prefix of a remote endpoint.

    If `foreign`, other programs wrote the objects, and keys are used as they are, without percent-encoding.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        prefix: str = "",
        *,
        retries: RetryPolicy | None = None,
        client: Client | None = None,
        read_only: bool = False,
        foreign: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._traits = endpoint.traits
        self._prefix = join_prefix("", prefix)
        self._client = client or Client(endpoint, retries or RetryPolicy())
        self._read_only = read_only or not self._traits.writable
        self._foreign = foreign
        self._encodes = self._traits.encodes_keys and not foreign

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._endpoint, self._prefix, self._client.retries, self._read_only, self._foreign)

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("type", self.url.partition("://")[0])
        yield ShownField("url", self.url)
        if isinstance(self._endpoint, S3Endpoint):
            for name in ("region", "endpoint_url", "force_path_style"):
                yield ShownField(name, getattr(self._endpoint.options, name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObstoreStorage) and (self._endpoint, self._prefix) == (other._endpoint, other._prefix)

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def url(self) -> str:
        return self._endpoint.url + self._prefix

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def retries(self) -> RetryPolicy:
        """How failed requests are tried again."""
        return self._client.retries

    def _path(self, key: str) -> str:
        path = self._prefix + check_key(key)
        return encode_key(path) if self._encodes else path

    def _folder(self, prefix: str) -> str:
        path = self._prefix + check_prefix(prefix)
        return encode_key(path) if self._encodes else path

    def _key(self, path: str) -> str:
        return (decode_key(path) if self._encodes else path)[len(self._prefix) :]

    def _writing(self, key: str) -> str:
        if self.read_only:
            raise ReadOnlyError(f"cannot write {key!r}: {self.url} is read only")
        return self._path(key)

    def _etag(self, etag: str) -> str:
        return f'"{etag}"' if self._traits.quotes_etags else etag

    async def get(self, key: str) -> bytes:
        path = self._path(key)
        with Translating("read", key, self.url):
            return (await self._fetch(path)).data

    async def get_versioned(self, key: str) -> Versioned:
        path = self._path(key)
        with Translating("read", key, self.url):
            found = await self._fetch(path)
        return Versioned(found.data, _version(found.meta), found.meta["last_modified"])

    async def _fetch(self, path: str, options: Any = None) -> Fetched:
        store = self._client.with_retries()
        return await REQUESTS.run(lambda: fetch(store, path, options))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        path = self._path(key)
        check_range(start, end)
        if start == end:
            return b""
        with Translating("read", key, self.url):
            store = self._client.with_retries()
            try:
                return await REQUESTS.run(lambda: obstore.get_range(store, path, start=start, end=end).to_bytes())
            except NotSupportedError:
                # A web server without ranges: the whole file holds the part.
                return self._cut(key, await self.get(key), start, end)

    def _cut(self, key: str, data: bytes, start: int, end: int) -> bytes:
        if start >= len(data):
            raise StorageError(f"cannot read {key!r} in {self.url} from byte {start}: it has {len(data)} bytes")
        return data[start:end]

    async def get_range_if(
        self, key: str, start: int, end: int, *, etag: str | None = None, not_modified_after: dt.datetime | None = None
    ) -> bytes:
        path = self._path(key)
        check_range(start, end)
        if start == end:
            return b""
        options: dict[str, Any] = {"range": (start, end)}
        if etag is not None:
            options["if_match"] = self._etag(normal_etag(etag))
        if not_modified_after is not None:
            options["if_unmodified_since"] = not_modified_after
        with Translating("read", key, self.url):
            try:
                found, whole = await self._fetch_range(path, options)
            except PreconditionError as error:
                raise changed(f"{self.url}{key}", "the store reports a change") from error
            # Web servers are free to leave conditions aside.
            check_unchanged(
                f"{self.url}{key}",
                etag=etag,
                found_etag=found.meta["e_tag"],
                not_modified_after=not_modified_after,
                found_modified=found.meta["last_modified"],
            )
        return self._cut(key, found.data, start, end) if whole else found.data

    async def _fetch_range(self, path: str, options: dict[str, Any]) -> tuple[Fetched, bool]:
        """The answer, and whether it is the whole file because the server knows no ranges."""
        try:
            return await self._fetch(path, options), False
        except NotSupportedError:
            return await self._fetch(path, {name: value for name, value in options.items() if name != "range"}), True

    async def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        with Translating("look at", key, self.url):
            store = self._client.with_retries()
            meta = await REQUESTS.run(lambda: obstore.head(store, path))
        return ObjectInfo(key, meta["size"], meta["last_modified"], _version(meta))

    async def metadata(self, key: str) -> Mapping[str, str]:
        """The user metadata an object was written with, as far as the store kept it."""
        with Translating("look at", key, self.url):
            return (await self._fetch(self._path(key), {"head": True})).attributes

    async def put(self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        path = self._writing(key)
        flat = flat_bytes(data)
        with Translating("write", key, self.url):
            store = self._client.for_writes()
            await REQUESTS.run(lambda: write(store, path, flat, dict(metadata or {})))

    async def write_if(
        self,
        key: str,
        data: Buffer,
        before: Version | None,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        path, action = self._writing(key), "create" if before is None else "replace"
        flat = flat_bytes(data)
        attributes = dict(metadata or {})
        write_id = secrets.token_hex(16)
        if not unique:
            attributes[WRITE_ID] = write_id
        mode: Any = "create" if before is None else self._condition(before)

        async def attempt() -> Version:
            with Translating(action, key, self.url):
                store = self._client.without_retries()
                try:
                    put = await REQUESTS.run(lambda: write(store, path, flat, attributes, mode))
                except MISSING as error:
                    if before is None:
                        raise
                    raise VersionMismatchError(f"cannot replace {key!r} in {self.url}: it no longer exists") from error
            return _version(put)

        async def look() -> tuple[WriteOutcome, Version]:
            if unique:
                return await look_by_content(lambda: self.get_versioned(key), flat, before)
            return await self._look_by_id(key, write_id, before)

        return await write_conditionally(
            ConditionalWrite(f"{action} {key!r}", self.url, attempt, look, before is not None), self._client.retries
        )

    def _condition(self, version: Version) -> dict[str, str]:
        condition = {}
        if version.etag is not None:
            condition["e_tag"] = self._etag(version.etag)
        if version.generation is not None:
            condition["version"] = version.generation
        if not condition:
            raise UnsupportedError(f"{self.url} reports no versions of objects, so they cannot be replaced safely")
        return condition

    async def _look_by_id(self, key: str, write_id: str, before: Version | None) -> tuple[WriteOutcome, Version]:
        with Translating("look at", key, self.url):
            try:
                found = await self._fetch(self._path(key), {"head": True})
            except MISSING:
                return (WriteOutcome.UNTOUCHED if before is None else WriteOutcome.OTHERS), Version()
            version = _version(found.meta)
            stamp = found.attributes.get(WRITE_ID)
        if stamp == write_id:
            return WriteOutcome.OURS, version
        if before is not None and version.agrees_with(before):
            return WriteOutcome.UNTOUCHED, version
        return (WriteOutcome.UNCLEAR if stamp is None else WriteOutcome.OTHERS), version

    async def list_names(self, prefix: str) -> list[str]:
        folder = self._folder(prefix)
        self._check_lists()
        with Translating("list", prefix, self.url):
            store = self._client.with_retries()
            found = await REQUESTS.run(lambda: obstore.list_with_delimiter(store, folder or None))
        start = len(prefix)
        names = {self._key(meta["path"])[start:] for meta in found["objects"]}
        folders = {self._key(path.rstrip("/"))[start:] + "/" for path in found["common_prefixes"]}
        if self._traits.sorts is not True:
            # Services on top of a file system may show folders that are empty by now.
            checked = sorted(folders)
            empty = await asyncio.gather(*(self.child(prefix + name).is_empty() for name in checked))
            folders = {name for name, is_empty in zip(checked, empty, strict=True) if not is_empty}
        # Some stores show an object for the folder itself.
        return sorted((names | folders) - {"", "/"})

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        pages = self._pages(prefix, after)
        if self._client.unsorted:
            for page in await _collect(pages):
                yield page
            return
        last = ""
        async for page in pages:
            is_sorted = all(a.key < b.key for a, b in itertools.pairwise(page))
            nested = self._traits.sorts is None and not last and any("/" in info.key[len(prefix) :] for info in page)
            if not last and (nested or not is_sorted):
                # Such stores keep order within a folder only: the whole listing is needed before the first key.
                self._client.unsorted = self._client.unsorted or not is_sorted
                for sorted_page in await _collect(pages, page):
                    yield sorted_page
                return
            if not is_sorted or page[0].key <= last:
                self._client.unsorted = True
                if self._encodes:
                    # Encoded names sort otherwise than the names; folders of plain names are not touched by that.
                    _LOG.warning(
                        "%s lists %r by encoded names; what follows %r is sorted by itself", self.url, prefix, last
                    )
                    for sorted_page in await _collect(pages, page):
                        yield sorted_page
                    return
                raise StorageError(
                    f"{self.url} lists {prefix!r} out of order. Pass sorted_listing=False when you create the storage"
                )
            yield page
            last = page[-1].key

    async def _pages(self, prefix: str, after: str | None) -> AsyncIterator[_Page]:
        """Pages as the store sends them, without those up to `after` and without marks of folders."""
        folder = self._folder(prefix)
        self._check_lists()
        offset = None
        # Encoded keys sort differently, and stores of unknown order may skip keys after an offset in another folder.
        known = self._traits.sorts is True and not self._encodes
        if after and after.startswith(prefix) and (known or (prefix and "/" not in after[len(prefix) :])):
            offset = encode_key(self._prefix + after) if self._encodes else self._prefix + after
        with Translating("list", prefix, self.url):
            stream = obstore.list(self._client.with_retries(), folder or None, offset=offset, chunk_size=_PAGE)
            while (metas := await REQUESTS.run(lambda: next(stream, None))) is not None:
                page = [
                    ObjectInfo(key, meta["size"], meta["last_modified"], _version(meta))
                    for meta in metas
                    for key in (self._key(meta["path"]),)
                    if key.startswith(prefix) and key != prefix and (after is None or key > after)
                ]
                if page:
                    yield page

    def _check_lists(self) -> None:
        if not self._traits.lists:
            raise UnsupportedError(f"{self.url} cannot be listed: web servers do not list files")

    async def is_empty(self) -> bool:
        async for _ in self._pages("", None):
            return False
        return True

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self._writing(key) for key in keys]
        for low in range(0, len(paths), _DELETE_BATCH):
            await self._delete_batch(paths[low : low + _DELETE_BATCH])

    async def _delete_batch(self, paths: Sequence[str]) -> None:
        with Translating(f"delete {len(paths)} objects, among them", paths[0], self.url):
            store = self._client.for_writes()
            await REQUESTS.run(lambda: delete_all(store, paths))

    async def copy(self, source: str, target: str, *, version: Version | None = None) -> None:
        old, new = self._path(source), self._writing(target)
        with Translating("copy", source, self.url):
            store = self._client.for_writes()
            if version is None:
                await REQUESTS.run(lambda: obstore.copy(store, old, new))
                return
            found = await self._fetch(old)
            if not _version(found.meta).agrees_with(version):
                raise VersionMismatchError(f"cannot copy {source!r} in {self.url}: it has changed since it was read")
            await REQUESTS.run(lambda: write(store, new, found.data, found.attributes))

    def without_writes(self) -> ObstoreStorage:
        """The same storage, refusing writes."""
        return self._twin(self._prefix, read_only=True)

    def with_user_agent(self, user_agent: str) -> ObstoreStorage:
        """The same storage, whose requests name this user agent."""
        endpoint = self._endpoint.with_user_agent(user_agent)
        return _rebuild(endpoint, self._prefix, self._client.retries, self._read_only, self._foreign)

    def configured(self, settings: StorageSettings) -> ObstoreStorage:
        if settings.retries is None:
            return self
        policy = _retry_policy(settings.retries, self.retries)
        if policy == self.retries:
            return self
        return _rebuild(self._endpoint, self._prefix, policy, self._read_only, self._foreign)

    def child(self, prefix: str) -> ObstoreStorage:
        return self._twin(join_prefix(self._prefix, prefix), read_only=self._read_only)

    def _twin(self, prefix: str, *, read_only: bool) -> ObstoreStorage:
        return ObstoreStorage(self._endpoint, prefix, client=self._client, read_only=read_only, foreign=self._foreign)


def _rebuild(endpoint: Endpoint, prefix: str, retries: RetryPolicy, read_only: bool, foreign: bool) -> ObstoreStorage:
    return ObstoreStorage(endpoint, prefix, retries=retries, read_only=read_only, foreign=foreign)


def _version(meta: Any) -> Version:
    etag = meta["e_tag"]
    return Version(etag=None if etag is None else normal_etag(etag), generation=meta["version"])


async def _collect(pages: AsyncIterator[list[ObjectInfo]], first: Sequence[ObjectInfo] = ()) -> list[list[ObjectInfo]]:
    found = list(first)
    async for page in pages:
        found.extend(page)
    found.sort(key=lambda info: info.key)
    return [found[low : low + _PAGE] for low in range(0, len(found), _PAGE)]


def _retry_policy(settings: StorageRetriesSettings, usual: RetryPolicy) -> RetryPolicy:
    """Return the retry policy of the settings. Settings that are None come from the usual policy."""
    return RetryPolicy(
        max_tries=usual.max_tries if settings.max_tries is None else settings.max_tries,
        initial_backoff_ms=(
            usual.initial_backoff_ms if settings.initial_backoff_ms is None else settings.initial_backoff_ms
        ),
        max_backoff_ms=usual.max_backoff_ms if settings.max_backoff_ms is None else settings.max_backoff_ms,
    )
