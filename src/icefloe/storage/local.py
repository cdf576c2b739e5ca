"""A storage in a folder of the file system, safe for many processes at once."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import errno
import fcntl
import functools
import hashlib
import itertools
import os
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from icefloe.display.card import ShownField
from icefloe.errors import (
    AlreadyExistsError,
    OutcomeUnknownError,
    StorageError,
    VersionMismatchError,
)
from icefloe.model.config import StorageSettings
from icefloe.storage.contract import Buffer, ObjectInfo, SourceStorage, Storage, Version, Versioned, flat_bytes
from icefloe.storage.durability import Unsynced, begin_writing, device_type, sync_open, sync_path, unsynced_below
from icefloe.storage.requests import (
    DELETIONS,
    FILES,
    KEPT_FILES,
    Bounds,
    KeptFile,
    ResponseTime,
    Translating,
    check_key,
    check_prefix,
    check_ranges,
    check_unchanged,
    decode_key,
    encode_key,
    join_prefix,
    open_inside,
    read_at,
)

Bytes = bytes | memoryview

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_FOLDER_LOCKS = {errno.EBADF, errno.EISDIR, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
_LOCK_NAME = ".lock#0"
_LOOK = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)


_KEPT_ON = {"ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs", "zfs"}
"""File systems on which a file that is open can be deleted and replaced as if it were not."""


class ChangedError(Exception):
    """The file is not the version that was expected."""


class NotDurableError(Exception):
    """The write took effect, but the system cannot say that it survives a power loss."""


def stat_etag(found: os.stat_result) -> str:
    """The ETag the object_store crate gives local files; references of others may carry it."""
    return f"{found.st_ino:x}-{found.st_mtime_ns // 1000:x}-{found.st_size:x}"


def content_version(found: os.stat_result, data: Bytes) -> Version:
    """State and content: inodes and coarse clocks repeat, contents do not unless the writer repeats them."""
    return Version(etag=stat_etag(found), generation=hashlib.sha256(data).hexdigest())


def read_file(path: str, bounds: Bounds) -> bytes:
    """All bytes of a file."""
    return read_open_file(open_inside(path, bounds))[0]


def read_open_file(fd: int) -> tuple[bytes, os.stat_result]:
    """All bytes and the state of an open file, which is closed."""
    try:
        found = os.fstat(fd)
        _check_kind(found)
        parts = [os.read(fd, found.st_size + 1)]
        # One read gives all, but for files above the system's limit per call.
        while len(parts[-1]) and (found.st_size > sum(map(len, parts)) or len(parts) > 1):
            parts.append(os.read(fd, found.st_size + 1))
    finally:
        os.close(fd)
    return (parts[0] if len(parts) == 1 else b"".join(parts)), found


def read_versioned(path: str, bounds: Bounds) -> tuple[bytes, Version, os.stat_result]:
    """All bytes of a file, and which state of it they are."""
    data, found = read_open_file(open_inside(path, bounds))
    return data, content_version(found, data), found


def read_ranges(
    path: str, starts: Sequence[int], ends: Sequence[int], bounds: Bounds
) -> tuple[list[bytes], os.stat_result]:
    """Ranges of a file; a range that starts behind the end comes back empty."""
    fd = open_inside(path, bounds)
    try:
        found = os.fstat(fd)
        _check_kind(found)
        # No more memory is taken than the file has bytes, whatever was asked for.
        size = found.st_size
        return [read_at(fd, start, min(end, size)) for start, end in zip(starts, ends, strict=True)], found
    finally:
        os.close(fd)


def read_part(path: str, key: str, start: int, end: int, bounds: Bounds) -> bytes:
    """A small range of a file. The file is kept open if it has more."""
    fd = open_inside(path, bounds)
    kept = None
    try:
        found = os.fstat(fd)
        _check_kind(found)
        if end - start < found.st_size and device_type(found.st_dev) in _KEPT_ON:
            kept = KeptFile(fd, path, bounds, found, time.perf_counter())
        data = read_at(fd, start, min(end, found.st_size))
    finally:
        if kept is None:
            os.close(fd)
    if kept is not None:
        KEPT_FILES.keep(bounds, key, kept)
    return data


def stat_file(path: str, bounds: Bounds) -> os.stat_result:
    """The state of a file; a folder is no object."""
    fd = os.open(path, _LOOK | os.O_CLOEXEC)
    try:
        bounds.check(fd, path)
        found = os.fstat(fd)
    finally:
        os.close(fd)
    _check_kind(found)
    return found


def _check_kind(found: os.stat_result) -> None:
    """Refuse what is no file: a folder, or a pipe on which a reader would wait."""
    if stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    raise FileNotFoundError(errno.ENOENT, "No such file")


def _write_temporary(
    path: str, data: Bytes, unsynced: Unsynced | None, bounds: Bounds, *, sync: bool = False
) -> tuple[str, os.stat_result]:
    """A finished file beside `path`, under a name that no key can have and that listings of others skip too.

    With `sync`, its bytes are on the disk.
    """
    folder = os.path.dirname(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:
        temporary = f"{folder}/.new#{int.from_bytes(os.urandom(8), 'big')}"
        try:
            fd = os.open(temporary, flags, 0o666)
            break
        except FileExistsError:
            continue  # a repeated request of a network file system; the name is not the key's, so nobody lost a race
        except FileNotFoundError:
            make_folders(folder, unsynced, bounds)
    try:
        # The names that follow are in the folder of this file: it was there when the folder was looked up.
        bounds.check(fd, temporary)
        if unsynced is not None and not sync:
            unsynced.begin(folder)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            sync_open(fd)
        elif unsynced is not None:
            begin_writing(fd, len(data))
        found = os.fstat(fd)
    except BaseException:
        os.close(fd)
        _unlink_quietly(temporary)
        raise
    os.close(fd)
    return temporary, found


def make_folders(folder: str, unsynced: Unsynced | None, bounds: Bounds) -> None:
    """The folder and those above it."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    if folder.startswith(bounds.root):
        os.close(open_inside(folder, bounds))
    for new in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(new)
        if unsynced is not None:
            unsynced.add_folder(os.path.dirname(new))


def _unlink_quietly(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def write_file(
    path: str, data: Bytes, unsynced: Unsynced | None, bounds: Bounds, *, at_once: bool = False
) -> os.stat_result:
    """Write a file, whole or not at all; with `at_once`, it survives a power loss from then on.

    So does what replaces a file: the old one was needed, and what is written next may rely on the new one.
    """
    sync = unsynced is not None and (at_once or os.path.lexists(path))
    temporary, found = _write_temporary(path, data, unsynced, bounds, sync=sync)
    try:
        _rename(temporary, path, found)
    except BaseException:
        _unlink_quietly(temporary)
        raise
    if unsynced is not None:
        if sync:
            unsynced.add_folder(os.path.dirname(path))
            unsynced.sync()
        else:
            unsynced.add_file(path)
    return found


def create_file(path: str, data: Bytes, unsynced: Unsynced | None, bounds: Bounds) -> Version:
    """Write a file that is not there yet, whole; FileExistsError for all callers but one."""
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "File exists", path)
    temporary, found = _write_temporary(path, data, unsynced, bounds)
    try:
        if unsynced is not None:
            unsynced.sync(temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            if not _is_file(path, found):
                raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A file system without hard links: all creators meet in the folder's lock instead.
            with folder_lock(os.path.dirname(path)):
                if os.path.lexists(path):
                    raise FileExistsError(errno.EEXIST, "File exists", path) from error
                _rename(temporary, path, found)
    finally:
        _unlink_quietly(temporary)
    _sync_name(path, unsynced)
    return content_version(found, data)


def _rename(temporary: str, path: str, written: os.stat_result) -> None:
    """Give a finished file its name."""
    try:
        os.rename(temporary, path)
    except FileNotFoundError:
        if not _is_file(path, written):
            raise


def _is_file(path: str, written: os.stat_result) -> bool:
    """Whether a name belongs to the file that we wrote.

    A network file system repeats a request whose answer was lost. The repetition of a link that was made reports that
    the name exists, and the repetition of a rename that was done reports that the old name does not.
    """
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), written)
    except FileNotFoundError:
        return False


def swap_file(
    path: str, data: Bytes, expected: Version, unsynced: Unsynced | None, bounds: Bounds, *, wait: bool
) -> Version:
    """Replace a file if it is the expected version; BlockingIOError if not waiting and someone else swaps."""
    if not os.path.lexists(path):
        raise ChangedError
    temporary, found = _write_temporary(path, data, unsynced, bounds)
    try:
        if unsynced is not None:
            unsynced.sync(temporary)
        with folder_lock(os.path.dirname(path), wait=wait):
            check_version(path, expected, bounds)
            _rename(temporary, path, found)
    finally:
        _unlink_quietly(temporary)
    _sync_name(path, unsynced)
    return content_version(found, data)


def _sync_name(path: str, unsynced: Unsynced | None) -> None:
    """Make a name durable that decides something; NotDurableError when the system cannot."""
    if unsynced is None:
        return
    try:
        sync_path(os.path.dirname(path))
    except OSError as error:
        unsynced.add_folder(os.path.dirname(path))
        raise NotDurableError(str(error)) from error


def check_version(path: str, expected: Version, bounds: Bounds) -> bytes | None:
    """ChangedError unless the file is that version; the bytes, when the comparison read them."""
    try:
        if expected.generation is None:
            if expected.etag is None or stat_etag(stat_file(path, bounds)) != expected.etag:
                raise ChangedError
            return None
        data, version, _ = read_versioned(path, bounds)
    except FileNotFoundError as error:
        raise ChangedError from error
    if version.generation != expected.generation or (expected.etag is not None and version.etag != expected.etag):
        raise ChangedError
    return data


def copy_file(
    source: str, target: str, expected: Version | None, unsynced: Unsynced | None, bounds: Bounds, *, at_once: bool
) -> None:
    """Copy a file, whole; ChangedError when it is not the expected version."""
    data = None if expected is None else check_version(source, expected, bounds)
    write_file(target, read_file(source, bounds) if data is None else data, unsynced, bounds, at_once=at_once)


@contextlib.contextmanager
def folder_lock(folder: str, *, wait: bool = True, shared: bool = False) -> Iterator[None]:
    """Hold the folder's lock, alone or with others who share it; it dies with the process."""
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, how)
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno not in _NO_FOLDER_LOCKS:
                raise
            # Network file systems lock files opened for writing only.
            os.close(fd)
            fd = os.open(f"{folder}/{_LOCK_NAME}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


def delete_files(paths: Sequence[str], unsynced: Unsynced | None, bounds: Bounds, *, wait: bool = True) -> None:
    """Delete files, those of one folder under its lock, so that a swap under way does not bring one back.

    What was written before survives a power loss before anything is gone.

    BlockingIOError if not waiting and someone swaps.
    """
    if unsynced is not None and unsynced.has_writes:
        unsynced.sync()
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        by_folder.setdefault(path[: path.rindex("/")], []).append(path)
    for folder, members in by_folder.items():
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            _folder_inside(folder, bounds) as folder_fd,
            folder_lock(folder, wait=wait, shared=True),
        ):
            for path in members:
                try:
                    os.unlink(path[len(folder) + 1 :], dir_fd=folder_fd)
                except (FileNotFoundError, IsADirectoryError):
                    continue  # what is gone already stops nobody
            if unsynced is not None:
                unsynced.add_deletions(folder)


@contextlib.contextmanager
def _folder_inside(folder: str, bounds: Bounds) -> Iterator[int]:
    """A folder, opened."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        bounds.check(fd, folder)
        yield fd
    finally:
        os.close(fd)


def names_of_length(folder: str, length: int, bounds: Bounds) -> list[bytes]:
    """Names of so many bytes directly in a folder, in any order; for folders of very many files."""
    try:
        with _folder_inside(folder, bounds) as folder_fd:
            names = [os.fsencode(name) for name in os.listdir(folder_fd)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return names if set(map(len, names)) <= {length} else [name for name in names if len(name) == length]


def stat_names(folder: str, names: Sequence[bytes], bounds: Bounds) -> tuple[list[int], list[int]]:
    """Sizes and times in nanoseconds of files in a folder; -1 for what is not there any more or is no file."""
    sizes: list[int] = []
    times: list[int] = []
    try:
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return [-1] * len(names), [-1] * len(names)
    try:
        bounds.check(folder_fd, folder)
        for name in names:
            try:
                # Of a link its own state: it may lead anywhere.
                found = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            except FileNotFoundError:
                size, time = -1, -1  # deleted since the folder was read
            else:
                size, time = (-1, -1) if stat.S_ISDIR(found.st_mode) else (found.st_size, found.st_mtime_ns)
            sizes.append(size)
            times.append(time)
    finally:
        os.close(folder_fd)
    return sizes, times


def walk(folder: str, prefix: str, after: str, bounds: Bounds, *, encoded: bool) -> Iterator[tuple[str, str]]:
    """Key and path of the files below a folder, in order of their keys, from the first key greater than `after`."""
    names, spelling = _read_folder(folder, bounds, encoded=encoded)
    # A folder sorts as its name with the slash: this is the order of the full keys.
    names.sort()
    for name in names:
        key = prefix + name
        if name[-1] == "/":
            if key > after or after.startswith(key):
                yield from walk(f"{folder}/{spelling.get(name, name[:-1])}", key, after, bounds, encoded=encoded)
        elif key > after:
            yield key, f"{folder}/{spelling.get(name, name)}"


def _read_folder(folder: str, bounds: Bounds, *, encoded: bool) -> tuple[list[str], dict[str, str]]:
    """Names in a folder as keys spell them, with a slash behind folders, and how files spell those that differ.

    A link to a folder is left out: it may lead anywhere, and round in a circle. So is a link to a file outside.
    """
    names: list[str] = []
    spelling: dict[str, str] = {}
    try:
        with _folder_inside(folder, bounds) as folder_fd, os.scandir(folder_fd) as found:
            for entry in found:
                spelled = name = entry.name
                if encoded:
                    if "#" in name:
                        continue  # unfinished files, ours and object_store's; a key never has a bare one
                    if "%" in name:
                        name = decode_key(name)
                if entry.is_dir(follow_symlinks=False):
                    name += "/"
                elif entry.is_symlink() and not _is_listed_link(f"{folder}/{spelled}", bounds):
                    continue
                if name != spelled and name[:-1] != spelled:
                    spelling[name] = spelled
                names.append(name)
    except (FileNotFoundError, NotADirectoryError):
        pass
    return names, spelling


def _is_listed_link(path: str, bounds: Bounds) -> bool:
    """Whether a link leads to a file inside."""
    try:
        return stat.S_ISREG(stat_file(path, bounds).st_mode)
    except OSError:
        return False


def list_folder(folder: str, bounds: Bounds, *, encoded: bool) -> list[str]:
    """Sorted names in a folder; those of folders that hold a file end in `/`."""
    names, spelling = _read_folder(folder, bounds, encoded=encoded)
    names.sort()
    return [name for name in names if name[-1] != "/" or _holds_file(folder, name, spelling, bounds, encoded=encoded)]


def _holds_file(folder: str, name: str, spelling: dict[str, str], bounds: Bounds, *, encoded: bool) -> bool:
    inner = f"{folder}/{spelling.get(name, name[:-1])}"
    return next(walk(inner, "", "", bounds, encoded=encoded), None) is not None


def remove_leftovers(folder: str, older_than_seconds: float, now: float) -> int:
    """Remove unfinished files of writers that died; how many they were."""
    removed = 0
    for inner, _, names in os.walk(folder):
        for name in names:
            if not name.startswith(".new#"):
                continue
            path = f"{inner}/{name}"
            try:
                if now - os.stat(path, follow_symlinks=False).st_mtime > older_than_seconds:
                    os.unlink(path)
                    removed += 1
            except FileNotFoundError:
                continue  # its writer finished it in the meantime
    return removed


T = TypeVar("T")

INLINE_BYTES = 1 << 17
"""Up to here, handing the work to a thread takes longer than the work."""
_PAGES = (1, 32, 256, 1000)
"""Keys a page: the newest ref is the first, whoever wants all soon gets many."""
_FEW_FILES = 16
_DELETED_AT_ONCE = 64
"""Files that one thread deletes before it looks for other work."""


class LocalStorage(SourceStorage):
    """Objects as files below a folder.

    With `fsync`, which is the default, what a create, swap or delete comes after survives a power loss before it takes
    effect, and so does its own effect before it is reported. A plain put is not waited for: nothing refers to it until
    a later write decides so. In another process than the one that made the storage every put is waited for, because
    the write that decides happens elsewhere. `encoded` is False for files of others, whose names are taken as they are.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool | None = None, encoded: bool = True) -> None:
        self._root = os.path.abspath(os.path.expanduser(os.fspath(path)))
        self._prefix = self._root.rstrip("/") + "/"
        self._url: str | None = None
        self._bounds = Bounds(self._root)
        self._fsync = fsync
        self._unsynced = unsynced_below(self._root) if fsync is not False else None
        self._home = os.getpid()
        self._encoded = encoded
        self._pace = ResponseTime()
        self._list_pace = ResponseTime()
        self._sync_pace = ResponseTime()

    def __reduce__(self) -> tuple[Any, ...]:
        # Whoever takes the storage over may refer to what was written here.
        if self._unsynced is not None and self._unsynced.has_writes:
            self._unsynced.sync()
        return _rebuild, (self._root, self._fsync, self._encoded, self._home, self._bounds.root)

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("type", "local filesystem")
        yield ShownField("path", str(self._root))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LocalStorage):
            return False
        return (self._root, self._fsync, self._encoded) == (other._root, other._fsync, other._encoded)

    def __hash__(self) -> int:
        return hash(self._root)

    @property
    def url(self) -> str:
        if self._url is None:
            self._url = Path(self._root).as_uri() + "/"
        return self._url

    def path_of(self, key: str) -> str:
        """The file that holds an object."""
        check_key(key)
        return self._prefix + (encode_key(key) if self._encoded else key)

    def _folder_of(self, prefix: str) -> str:
        check_prefix(prefix)
        return self._prefix + (encode_key(prefix) if self._encoded else prefix).removesuffix("/")

    @property
    def fsync(self) -> bool | None:
        """Whether writes survive a power loss; None where nobody said so, which means that they do."""
        return self._fsync

    def configured(self, settings: StorageSettings) -> LocalStorage:
        if settings.fsync is None or self._fsync is not None:
            return self
        return _rebuild(self._root, settings.fsync, self._encoded, self._home, self._bounds.root)

    async def make_durable(self) -> None:
        unsynced = self._unsynced
        if unsynced is not None:
            with Translating("sync", "", self._root):
                await FILES.run(unsynced.sync)

    @property
    def _at_once(self) -> bool:
        """Whether a put waits for the disk: somebody else decides, and does not know of it."""
        return self._unsynced is not None and os.getpid() != self._home

    async def _run(self, pace: ResponseTime, call: Callable[[], T], size: int = 0) -> T:
        if size <= INLINE_BYTES and pace.is_fast:
            return pace.measure(call)
        return await FILES.run(lambda: pace.measure(call))

    async def _put(self, call: Callable[[], T], size: int) -> T:
        return await (FILES.run(call) if self._at_once else self._run(self._pace, call, size))

    async def _decide(self, call: Callable[[], T], size: int, key: str, *, waits_for_others: bool = False) -> T:
        """Carry out a conditional write; one that waits for the disk holds nobody up."""
        if self._unsynced is None:
            return await self._run(self._pace, call, size)
        pace = self._sync_pace
        try:
            if size <= INLINE_BYTES and pace.is_fast and not waits_for_others and len(asyncio.all_tasks()) == 1:
                return pace.measure(call)  # no other task needs this thread
            return await FILES.run(lambda: pace.measure(call))
        except NotDurableError as error:
            raise OutcomeUnknownError(
                f"{key!r} in {self._root} was written, but it may not survive a power loss: {error}. Check the disk, "
                "then look at the object"
            ) from error

    async def get(self, key: str) -> bytes:
        path = self.path_of(key)
        with Translating("read", key, self._root):
            return await self._run(self._pace, lambda: read_file(path, self._bounds), self._size_of(path))

    def _size_of(self, path: str) -> int:
        """How large a file is, where asking is cheap and the answer decides who reads it."""
        return os.stat(path).st_size if self._pace.is_fast else 0

    async def get_versioned(self, key: str) -> Versioned:
        path = self.path_of(key)
        with Translating("read", key, self._root):
            data, version, found = await self._run(
                self._pace, lambda: read_versioned(path, self._bounds), self._size_of(path)
            )
        return Versioned(data, version, _time(found))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return (await self.get_ranges(key, (start,), (end,)))[0]

    def read_now(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        """Bytes of a file, read in this thread. None if another method must be asked, also after an error."""
        if not self._pace.is_fast or (end is not None and end - start > INLINE_BYTES):
            return None
        began, bounds = time.perf_counter(), self._bounds
        kept = KEPT_FILES.find(bounds, key)
        try:
            if end is None:
                path = self.path_of(key)
                return read_file(path, bounds)[start:] if self._size_of(path) <= INLINE_BYTES else None
            data = None if kept is None else kept.read(start, end, began)
            return read_part(self.path_of(key), key, start, end, bounds) if data is None else data
        except OSError:
            if kept is not None:
                KEPT_FILES.drop(bounds, key)
            return None
        finally:
            self._pace.note(time.perf_counter() - began)

    @property
    def has_fast_reads(self) -> bool:
        return self._pace.is_fast

    def read_in_thread(self, key: str, start: int, end: int) -> bytes | None:
        path = self.path_of(key)
        try:
            return self._pace.measure(lambda: read_ranges(path, (start,), (end,), self._bounds)[0][0])
        except OSError:
            return None

    async def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        return (await self._read_ranges(key, starts, ends))[0]

    async def _read_ranges(
        self, key: str, starts: Sequence[int], ends: Sequence[int]
    ) -> tuple[list[bytes], os.stat_result]:
        check_ranges(starts, ends)
        wanted = sum(ends) - sum(starts)
        path = self.path_of(key)
        with Translating("read", key, self._root):
            parts, found = await self._run(self._pace, lambda: read_ranges(path, starts, ends, self._bounds), wanted)
        for part, start, end in zip(parts, starts, ends, strict=True):
            if not part and end > start:
                size = found.st_size
                raise StorageError(f"cannot read {key!r} in {self._root} from byte {start}: it has {size} bytes")
        return parts, found

    async def get_range_if(
        self, key: str, start: int, end: int, *, etag: str | None = None, not_modified_after: dt.datetime | None = None
    ) -> bytes:
        parts, found = await self._read_ranges(key, (start,), (end,))
        check_unchanged(
            f"{self.url}{key}",
            etag=etag,
            found_etag=stat_etag(found),
            not_modified_after=not_modified_after,
            found_modified=_time(found),
        )
        return parts[0]

    async def head(self, key: str) -> ObjectInfo:
        path = self.path_of(key)
        with Translating("look at", key, self._root):
            found = await self._run(self._pace, lambda: stat_file(path, self._bounds))
        return _info(key, found)

    async def put(self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        path, flat = self.path_of(key), flat_bytes(data)
        with Translating("write", key, self._root):
            at_once = self._at_once
            await self._put(lambda: write_file(path, flat, self._unsynced, self._bounds, at_once=at_once), len(flat))

    async def write_if(
        self,
        key: str,
        data: Buffer,
        before: Version | None,
        *,
        metadata: Mapping[str, str] | None = None,
        unique: bool = True,
    ) -> Version:
        path, flat = self.path_of(key), flat_bytes(data)
        unsynced, bounds = self._unsynced, self._bounds
        if before is None:
            with Translating("create", key, self._root):
                try:
                    return await self._decide(lambda: create_file(path, flat, unsynced, bounds), len(flat), key)
                except FileExistsError as error:
                    raise AlreadyExistsError(f"cannot create {key!r} in {self._root}: it already exists") from error
        with Translating("replace", key, self._root):
            try:
                try:
                    wait = unsynced is not None  # in a thread anyway
                    swap = functools.partial(swap_file, path, flat, before, unsynced, bounds)
                    return await self._decide(lambda: swap(wait=wait), len(flat), key, waits_for_others=wait)
                except BlockingIOError:
                    # Another process swaps in this folder: wait where it holds nobody up.
                    return await FILES.run(lambda: swap(wait=True))
            except ChangedError as error:
                raise VersionMismatchError(
                    f"cannot replace {key!r} in {self._root}: it has changed since it was read"
                ) from error

    async def list_names(self, prefix: str) -> list[str]:
        folder = self._folder_of(prefix)
        with Translating("list", prefix, self._root):
            return await self._run(self._list_pace, lambda: list_folder(folder, self._bounds, encoded=self._encoded))

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        walking = walk(self._folder_of(prefix), prefix, after or "", self._bounds, encoded=self._encoded)
        for size in itertools.chain(_PAGES, itertools.repeat(_PAGES[-1])):
            take = functools.partial(_next_page, walking, size)
            with Translating("list", prefix, self._root):
                found, ended = await self._run(self._list_pace, take)
            if found:
                yield found
            if ended:
                return

    @property
    def lists_names_faster(self) -> bool:
        return True

    async def list_names_of_length(self, prefix: str, length: int) -> Sequence[bytes]:
        folder = self._folder_of(prefix)
        with Translating("list", prefix, self._root):
            return await FILES.run(lambda: names_of_length(folder, length, self._bounds))

    async def stat_names(self, prefix: str, names: Sequence[bytes]) -> tuple[Sequence[int], Sequence[int]]:
        folder = self._folder_of(prefix)
        with Translating("list", prefix, self._root):
            return await FILES.run(lambda: stat_names(folder, names, self._bounds))

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self.path_of(key) for key in keys]
        with Translating(f"delete {len(keys)} objects, among them", keys[0] if keys else "", self._root):
            unsynced = self._unsynced
            if len(paths) <= _FEW_FILES and self._pace.is_fast and not (unsynced and unsynced.has_writes):
                try:
                    return self._pace.measure(lambda: delete_files(paths, unsynced, self._bounds, wait=False))
                except BlockingIOError:
                    pass  # another process swaps in this folder: wait where it holds nobody up
            parts = [paths[low : low + _DELETED_AT_ONCE] for low in range(0, len(paths), _DELETED_AT_ONCE)]
            work = [DELETIONS.run(functools.partial(delete_files, part, unsynced, self._bounds)) for part in parts]
            for outcome in await asyncio.gather(*work, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome

    async def copy(self, source: str, target: str, *, version: Version | None = None) -> None:
        old, new = self.path_of(source), self.path_of(target)
        with Translating("copy", source, self._root):
            try:
                at_once = self._at_once
                await self._put(
                    lambda: copy_file(old, new, version, self._unsynced, self._bounds, at_once=at_once),
                    self._size_of(old),
                )
            except ChangedError as error:
                raise VersionMismatchError(
                    f"cannot copy {source!r} in {self._root}: it has changed since it was read"
                ) from error

    def child(self, prefix: str) -> Storage:
        folder = join_prefix("", prefix)
        # No link below the folder that the caller named leads out of it, also not the folder of the child.
        child = _rebuild(self._folder_of(folder), self._fsync, self._encoded, self._home, self._bounds.root)
        child._unsynced = self._unsynced
        return child

    async def remove_leftovers(self, older_than: dt.timedelta, now: dt.datetime | None = None) -> int:
        # On a network mount the server's clock gives files their times.
        seconds = time.time() if now is None else now.timestamp()
        with Translating("clean up", "", self._root):
            return await FILES.run(lambda: remove_leftovers(self._root, older_than.total_seconds(), seconds))


def _rebuild(root: str, fsync: bool | None, encoded: bool, home: int, bounds: str) -> LocalStorage:
    storage = LocalStorage(root, fsync=fsync, encoded=encoded)
    storage._bounds = Bounds(bounds)
    storage._home = home
    return storage


def _time(found: os.stat_result) -> dt.datetime:
    return dt.datetime.fromtimestamp(found.st_mtime, dt.UTC)


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, found.st_size, _time(found), Version(etag=stat_etag(found)))


def _next_page(walking: Iterator[tuple[str, str]], size: int) -> tuple[list[ObjectInfo], bool]:
    page, found = list(itertools.islice(walking, size)), []
    for key, path in page:
        with contextlib.suppress(FileNotFoundError):  # deleted since the folder was read
            found.append(_info(key, os.stat(path)))
    return found, len(page) < size
