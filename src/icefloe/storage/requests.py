"""What every request to a store needs: checked keys and files, merged ranges, retries, threads, translated errors."""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import fcntl
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import obstore
from obstore import exceptions as foreign

from icefloe.blocking import call_later
from icefloe.errors import (
    AlreadyExistsError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StorageError,
    UnsupportedError,
    VersionMismatchError,
    VirtualChunkError,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# The set that the object_store crate escapes in each part of a path, so that its users find what we wrote.


_UNSAFE = re.compile('[\x00-\x1f\x7f-\U0010ffff\\\\{^}%`\\]">\\[~<#|*?]')


def check_key(key: str) -> str:
    """The key itself, if it names an object inside the storage."""
    if not key or key[-1] == "/":
        raise InvalidInputError(f"{key!r} is not a key: it does not name an object")
    _check_parts(key, key)
    return key


def check_prefix(prefix: str) -> str:
    """The prefix itself, if it names a folder inside the storage; the empty one is the whole."""
    if not prefix:
        return prefix
    if prefix[-1] != "/":
        raise InvalidInputError(f"{prefix!r} is not a folder: it must end in '/' or be empty")
    _check_parts(prefix, prefix[:-1])
    return prefix


def _check_parts(shown: str, path: str) -> None:
    if path[:1] == "/" or "//" in path or "\0" in path:
        raise InvalidInputError(f"{shown!r} is not a key: separate its parts with one '/', and do not start with '/'")
    if "." in path and not {".", ".."}.isdisjoint(path.split("/")):
        raise InvalidInputError(f"{shown!r} is not a key: '.' and '..' are not allowed")
    if not path.isascii():
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise InvalidInputError(f"{shown!r} is not a key: it is not valid Unicode") from error


def join_prefix(outer: str, inner: str) -> str:
    """One folder prefix from two; either may be empty, and `inner` may lack the last slash."""
    inner = inner.strip("/")
    return check_prefix(f"{outer}{inner}/" if inner else outer)


def encode_key(key: str) -> str:
    """A key as local files, GCS and Azure hold it: percent-encoded where the character set demands it."""
    if _UNSAFE.search(key) is None:
        return key
    return _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found.group().encode()), key)


def decode_key(text: str) -> str:
    """The key that was encoded."""
    return unquote(text) if "%" in text else text


_GET_PATH: int | None = getattr(fcntl, "F_GETPATH", None)
"""On macOS, what tells where an open file is."""
_MOST_KEPT_FILES = 32
_KEPT_SECONDS = 5.0
_CHECKED_SECONDS = 0.1


class OutsideFolderError(PermissionError):
    """A symbolic link leads out of the folder of a storage."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EPERM, "a symbolic link leads out of the folder and is not followed", path)


class Bounds:
    """The folder of a storage, which no symbolic link leads out of.

    Whoever writes a folder that others open can put links into it. What was opened is asked where it really is, so
    that nothing can be exchanged between the check and the use. Links that stay inside are followed.
    """

    __slots__ = ("_inside", "_real", "root")

    def __init__(self, root: str) -> None:
        self.root = root
        self._real = self._inside = "\0"  # no path has this character

    def check(self, fd: int, path: str) -> None:
        """Refuse an open file or folder that is not inside; OutsideFolderError."""
        # Every read and write of a local storage comes here, so nothing is called that need not be.
        try:
            found = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            found = _real_path(fd, path)
        if found.startswith(self._inside) or found == self._real:
            return
        # The folder itself may be a link, and may be moved: it is the caller's.
        self._real = real = os.path.realpath(self.root)
        self._inside = inside = real if real == "/" else real + "/"
        if not found.startswith(inside) and found != real:
            raise OutsideFolderError(path)


def _real_path(fd: int, path: str) -> str:
    """Where an open file is, without links, on systems without /proc."""
    if _GET_PATH is not None:
        return os.fsdecode(fcntl.fcntl(fd, _GET_PATH, bytes(1024)).rstrip(b"\0"))
    # Nothing tells where it is: what the path leads to now has to be the same file.
    real = os.path.realpath(path)
    if not os.path.samestat(os.stat(real, follow_symlinks=False), os.fstat(fd)):
        raise OutsideFolderError(path)
    return real


def open_inside(path: str, bounds: Bounds) -> int:
    """A file or folder, opened for reading; opening a pipe does not wait for who writes into it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        bounds.check(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_at(fd: int, start: int, end: int) -> bytes:
    """Bytes [start, end) of an open file; fewer where the file ends before.

    The system reads at most 2,147,479,552 bytes in one call, and file systems may return fewer than were asked for.
    """
    if start >= end:
        return b""
    data = os.pread(fd, end - start, start)
    if len(data) == end - start:
        return data
    parts = [data]
    while parts[-1] and (start := start + len(parts[-1])) < end:
        parts.append(os.pread(fd, end - start, start))
    return b"".join(parts)


class KeptFile:
    """An open file of which small parts are read. It is closed when nobody uses it any more.

    Many small chunks are in one pack. Opening the pack and asking where it is takes longer than reading a chunk. What
    the path leads to now is asked for every read: the descriptor is only used if that is still the same file. So a file
    that was deleted or replaced is never read from here, and a link is only followed if a new check allows it.
    """

    __slots__ = ("_bounds", "_changed", "_checked_at", "_fd", "_identity", "_path", "used_at")

    def __init__(self, fd: int, path: str, bounds: Bounds, found: os.stat_result, now: float) -> None:
        self._fd, self._path, self._bounds = fd, path, bounds
        self._identity, self._changed = (found.st_ino, found.st_dev), found.st_ctime_ns
        self._checked_at = self.used_at = now

    def read(self, start: int, end: int, now: float) -> bytes | None:
        """Bytes [start, end) of the file, fewer where it ends before. None if the path leads to another file."""
        found = os.stat(self._path)
        if (found.st_ino, found.st_dev) != self._identity:
            return None
        if found.st_ctime_ns != self._changed or now - self._checked_at > _CHECKED_SECONDS:
            # It may have been moved out of the folder, and a link put in its place.
            self._bounds.check(self._fd, self._path)
            self._changed, self._checked_at = found.st_ctime_ns, now
        self.used_at = now
        return read_at(self._fd, start, min(end, found.st_size))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._fd)


class KeptFiles:
    """The files of all local storages of this process that are kept open: few, and only while they are used.

    An open file takes its place on the disk until it is closed, also after it was deleted, and its file system cannot
    be unmounted. Network file systems keep a deleted file in its folder until then, so they are left out.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Close all, also in a forked child."""
        self._files: dict[tuple[Bounds, str], KeptFile] = {}
        self._lock = threading.Lock()
        self._is_timed = False
        """Whether files that are not used will be closed later."""

    def find(self, bounds: Bounds, key: str) -> KeptFile | None:
        """The file of a key that is open."""
        return self._files.get((bounds, key))

    def keep(self, bounds: Bounds, key: str, kept: KeptFile) -> None:
        """Keep a file open until it is not used any more, or too many are open."""
        with self._lock:
            self._files[bounds, key] = kept
            if len(self._files) > _MOST_KEPT_FILES:
                del self._files[next(iter(self._files))]
            begins, self._is_timed = not self._is_timed, True
        if begins:
            # The loop of the caller may end before that.
            call_later(_KEPT_SECONDS, self._close_unused)

    def drop(self, bounds: Bounds, key: str) -> None:
        """Close a file when its readers have ended."""
        with self._lock:
            self._files.pop((bounds, key), None)

    def _close_unused(self) -> None:
        now = time.perf_counter()
        with self._lock:
            self._files = {key: kept for key, kept in self._files.items() if now - kept.used_at < _KEPT_SECONDS}
            self._is_timed = goes_on = bool(self._files)
        if goes_on:
            call_later(_KEPT_SECONDS, self._close_unused)


KEPT_FILES = KeptFiles()
os.register_at_fork(after_in_child=KEPT_FILES.forget)


DEFAULT_GAP_BYTES = 1 << 20
DEFAULT_REQUEST_BYTES = 16 << 20
RANGES_AT_ONCE = 10


@dataclass(frozen=True, slots=True)
class MergedRead:
    """One request, [start, end), and the positions of the ranges it serves."""

    start: int
    end: int
    members: npt.NDArray[np.intp]


def check_range(start: int, end: int) -> None:
    """Refuse what is no range."""
    if start < 0 or end < start:
        raise InvalidInputError(f"[{start}, {end}) is not a range of bytes: expected 0 <= start <= end")


def check_ranges(starts: Sequence[int], ends: Sequence[int]) -> None:
    """Refuse starts and ends that are no ranges."""
    if len(starts) != len(ends):
        raise InvalidInputError(f"{len(starts)} starts and {len(ends)} ends: expected one end for every start")
    for start, end in zip(starts, ends, strict=True):
        check_range(start, end)


def plan_reads(
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    *,
    gap_bytes: int = DEFAULT_GAP_BYTES,
    most_bytes: int = DEFAULT_REQUEST_BYTES,
) -> Iterator[MergedRead]:
    """Merge ranges that lie at most a gap apart into requests of at most a size.

    Every range is in exactly one request, whole; a range larger than the limit has a request of its own, together
    only with what lies inside it.
    """
    order = np.argsort(starts, kind="stable")
    sorted_starts, sorted_ends = starts[order], ends[order]
    reach = np.maximum.accumulate(sorted_ends)
    breaks = np.flatnonzero(sorted_starts[1:] > reach[:-1] + gap_bytes) + 1
    edges = [0, *breaks.tolist(), len(order)]
    for first, last in pairwise(edges):
        while first < last:
            start = int(sorted_starts[first])
            inside = int(np.searchsorted(reach[first:last], start + most_bytes, side="right"))
            after = first + max(inside, 1)
            end = int(sorted_ends[first:after].max())
            if inside == 0:
                # What lies wholly inside an oversized range comes with it for nothing.
                while after < last and int(sorted_ends[after]) <= end:
                    after += 1
            yield MergedRead(start, end, order[first:after])
            first = after


_USERINFO = re.compile(r"([a-z][a-z0-9+.-]*://)[^/?#\s]*@", re.IGNORECASE)
_QUERY = re.compile(r"(https?://[^\s?#'\"]*)\?[^\s'\")]+", re.IGNORECASE)


def has_userinfo(url: str) -> bool:
    """Whether an HTTP URL contains a user or a password. `abfss://container@account` does not."""
    return url.lower().startswith(("http://", "https://")) and _USERINFO.match(url) is not None


def without_userinfo(text: str) -> str:
    """The text without the users and passwords of its URLs, and without queries of HTTP URLs (maybe signatures)."""
    if "://" not in text:
        return text
    text = _QUERY.sub(r"\1", text)
    return _USERINFO.sub(lambda found: found[1] if _is_secret(found) else found[0], text)


def _is_secret(found: re.Match[str]) -> bool:
    return found[1].lower().startswith("http") or ":" in found[0].partition("://")[2]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter; `max_tries` counts the first try too."""

    max_tries: int = 10
    initial_backoff_ms: int = 100
    max_backoff_ms: int = 15_000

    def __post_init__(self) -> None:
        if self.max_tries < 1 or self.initial_backoff_ms < 0 or self.max_backoff_ms < 0:
            raise InvalidInputError(f"{self}: expected max_tries >= 1 and no negative times")

    def pauses(self) -> Iterator[float]:
        """Seconds to wait after each try that failed, one per try."""
        ceiling = self.initial_backoff_ms
        for _ in range(self.max_tries):
            yield random.uniform(0, min(ceiling, self.max_backoff_ms)) / 1000
            ceiling = min(ceiling * 2, self.max_backoff_ms)


NO_RETRIES = RetryPolicy(max_tries=1, initial_backoff_ms=0)


T = TypeVar("T")


class Threads:
    """A pool that is made when first used, and anew in a forked child, where its threads are gone."""

    def __init__(self, name: str, workers: int) -> None:
        self._name = name
        self._workers = workers
        self._pool: ThreadPoolExecutor | None = None
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._pool = None

    async def run(self, call: Callable[[], T]) -> T:
        """The answer of a blocking call."""
        return await asyncio.get_running_loop().run_in_executor(self._started(), call)

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """A call that was begun, for those who have no event loop."""
        return self._started().submit(call, *arguments)

    def _started(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix=f"icefloe-{self._name}")
        return self._pool


_SLOW_SECONDS = 0.002


class ResponseTime:
    """The recent response time of the file system. A slow file system is only used from threads."""

    __slots__ = ("_average_seconds",)

    def __init__(self) -> None:
        self._average_seconds = 0.0

    @property
    def is_fast(self) -> bool:
        return self._average_seconds < _SLOW_SECONDS

    def measure(self, call: Callable[[], T]) -> T:
        started = time.perf_counter()
        try:
            return call()
        finally:
            self.note(time.perf_counter() - started)

    def note(self, seconds: float) -> None:
        """Count the time that a call took."""
        self._average_seconds += (min(seconds, 10 * _SLOW_SECONDS) - self._average_seconds) / 16


FILES = Threads("files", min(32, 4 + 2 * (os.cpu_count() or 1)))
DELETIONS = Threads("deletions", 16)
"""A busy disk lets each deletion wait a while, but lets many wait at the same time."""
REQUESTS = Threads("requests", 64)
"""Blocking requests in our threads rather than obstore's coroutines: those end on threads that Python does not know,
and a process that exits at that moment is aborted."""

SYNCS = Threads("syncs", 8)
"""Files are synced at the same time, because the system then writes its journal once for several of them."""


OBSTORE_ERRORS: dict[type[Exception], type[IcefloeError]] = {
    foreign.BaseError: StorageError,
    foreign.GenericError: StorageError,
    foreign.JoinError: StorageError,
    foreign.NotFoundError: ObjectNotFoundError,
    foreign.InvalidPathError: InvalidInputError,
    foreign.NotSupportedError: UnsupportedError,
    foreign.AlreadyExistsError: AlreadyExistsError,
    foreign.PreconditionError: VersionMismatchError,
    foreign.NotModifiedError: VersionMismatchError,
    foreign.PermissionDeniedError: PermissionDeniedError,
    foreign.UnauthenticatedError: PermissionDeniedError,
    foreign.UnknownConfigurationKeyError: InvalidInputError,
    # Some of its errors are Python's own.
    NotImplementedError: UnsupportedError,
    ValueError: InvalidInputError,
}

MISSING = (foreign.NotFoundError, FileNotFoundError)
"""What obstore raises for a key that is not there: its own error, or Python's, depending on the version."""

_WRITES = ("write ", "create ", "replace ")

_MISCONFIGURED = re.compile(
    r"builder error|relative url|missing (bucket|region|container|account)|scheme is not allowed|invalid (url|host)",
    re.IGNORECASE,
)
"""What a request says that no repetition helps: it never left, because it could not be built."""

_INSTANCE_CREDENTIALS = re.compile(r"169\.254\.169\.254|metadata\.google\.internal|169\.254\.170\.2")
"""Addresses that are asked for credentials when neither options nor the environment have any."""

_ADVICE: dict[type[IcefloeError], str] = {
    PermissionDeniedError: "; check the credentials, the bucket policy, and the region or endpoint",
    StorageError: "; the request was repeated as the retry settings say, trying again later may help",
}


def translate_obstore(error: Exception, action: str, url: str) -> IcefloeError:
    """The error of this library for one that obstore raised."""
    kind = next((OBSTORE_ERRORS[base] for base in type(error).__mro__ if base in OBSTORE_ERRORS), StorageError)
    # The first line is the message; obstore appends a debug print of the source below it.
    whole = str(error)
    shown = without_userinfo(whole)
    if shown != whole:
        # The address of a request can hold a password or a signature. The original error is shown in tracebacks.
        error.args = (shown,)
    found = shown.partition("\n")[0].strip()
    if _INSTANCE_CREDENTIALS.search(found):
        return PermissionDeniedError(
            f"cannot {action} in {url}: no credentials were found, neither in the options of the storage nor in the "
            "environment, and this machine has no identity of its own. Set the credentials of the cloud in the "
            "environment (for S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE), or use the option "
            "anonymous=true for a public bucket"
        )
    if kind is StorageError and _MISCONFIGURED.search(found):
        return InvalidInputError(f"cannot {action} in {url}: {found}. Check the address and the options of the storage")
    return kind(f"cannot {action} in {url}: {found}{_ADVICE.get(kind, '')}")


def translate_os_error(error: OSError, action: str, url: str) -> IcefloeError:
    """The error of this library for one of the operating system."""
    found = error.strerror or str(error)
    if action.startswith(_WRITES) and isinstance(error, NotADirectoryError | IsADirectoryError):
        return UnsupportedError(
            f"cannot {action} in {url}: a file cannot have the name of an existing folder, nor a folder that of a file"
        )
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return ObjectNotFoundError(f"cannot {action} in {url}: no such object")
    if isinstance(error, PermissionError) and error.errno == errno.EPERM and "leads out" in found:
        return PermissionDeniedError(f"cannot {action} in {url}: {found}")
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return PermissionDeniedError(
            f"cannot {action} in {url}: {found}. Check the owner and the permissions of the folder"
        )
    if error.errno == errno.ENAMETOOLONG:
        return InvalidInputError(f"cannot {action} in {url}: the key is longer than the file system allows")
    return StorageError(f"cannot {action} in {url}: {found}")


class Translating:
    """A `with` block in which foreign errors become this library's."""

    __slots__ = ("_action", "_key", "_url")

    def __init__(self, action: str, key: str, url: str) -> None:
        self._action = action
        self._key = key
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, IcefloeError):
            return
        action = f"{self._action} {self._key!r}" if self._key else self._action
        if isinstance(error, foreign.BaseError | ValueError | NotImplementedError):
            raise translate_obstore(error, action, self._url) from error
        if isinstance(error, OSError):
            raise translate_os_error(error, action, self._url) from error


_MULTIPART_BYTES = 100 << 20
_PART_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Fetched:
    """An object, or a part of one, and what the store says about it."""

    data: bytes
    meta: Any
    attributes: dict[str, str]


def fetch(store: ObjectStore, path: str, options: Any) -> Fetched:
    """One GET, or a HEAD when the options say so."""
    found = obstore.get(store, path, options=options)
    is_head = options is not None and options.get("head")
    return Fetched(b"" if is_head else found.bytes().to_bytes(), found.meta, dict(found.attributes))


def write(store: ObjectStore, path: str, data: bytes | memoryview, attributes: dict[str, str], mode: Any = None) -> Any:
    """One PUT, conditional if there is a mode; in parts when it is plain and large."""
    return obstore.put(
        store,
        path,
        data,
        attributes=attributes or None,
        mode=mode,
        use_multipart=mode is None and len(data) > _MULTIPART_BYTES,
        chunk_size=_PART_BYTES,
    )


def delete_all(store: ObjectStore, paths: Sequence[str]) -> None:
    """Delete objects; what is not there is no error."""
    try:
        obstore.delete(store, paths)
        return
    except MISSING:
        pass
    # A missing key ended the batch on this store: the rest is deleted one by one.
    for path in paths:
        try:
            obstore.delete(store, path)
        except MISSING:
            continue


def check_unchanged(
    shown: str,
    *,
    etag: str | None,
    found_etag: str | None,
    not_modified_after: dt.datetime | None,
    found_modified: dt.datetime | None,
) -> None:
    """Refuse a file that is no longer the one that was described, as far as it can be told.

    A reference holds whole seconds. A file that was modified in the course of the second after `not_modified_after` has
    changed: stores that tell parts of a second are compared with them.
    """
    if etag is not None and found_etag is not None and normal_etag(etag) != normal_etag(found_etag):
        raise changed(shown, f"its ETag is {found_etag}, the reference was made for ETag {etag}")
    if not_modified_after is None or found_modified is None:
        return
    if found_modified > not_modified_after:
        raise changed(shown, f"it was modified at {found_modified}, the reference was made at {not_modified_after}")


def changed(shown: str, found: str) -> VirtualChunkError:
    """The error for a file that is no longer the one that was described."""
    return VirtualChunkError(
        f"a virtual chunk has changed: {shown} has changed since the reference to it was made: {found}. "
        "Write the references again"
    )


def normal_etag(etag: str) -> str:
    """An ETag without what servers disagree on: quotes and the mark of a weak one."""
    return etag.removeprefix("W/").strip('"')
