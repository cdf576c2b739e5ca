"""What of the files that were written would survive a power loss."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import re
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import wait as wait_for
from typing import Any

from icefloe.storage.requests import SYNCS

_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""On macOS, what fsync does not do: wait for the disk itself."""
_SYNCED_SINGLY = 256
_BEGUN_BYTES = 1 << 18
"""Files of this size are put on the disk one by one. Smaller ones are better written together."""
_RANGE_WRITE = 2  # SYNC_FILE_RANGE_WRITE
_FEW_PATHS = range(3, 17)
"""The numbers of paths that small commits sync."""
_FAST_SECONDS = 0.005
_DIRTY_BYTES = 16 << 20
"""What others have written may be this much: a fast disk takes it in some milliseconds."""
_TRIED_AGAIN = 64
_JOURNALED = {"ext4", "xfs"}
"""File systems that may be synced as a whole for a few files: that writes their journal once, and reports lost data."""
_UNSAFE_WHOLE = ("fuse", "9p")
"""Types of file systems that return from a sync of the whole before the data is on the disk of the server."""


class _LostWriteError(OSError):
    """The system could not write what it had accepted."""


class Unsynced:
    """What this process wrote below a folder since it was last synced: a power loss may undo it.

    A write that decides something first makes durable all that was written before it, because it may refer to that.
    Few files are synced one by one, at the same time. Many are synced with their whole file system, which takes less
    time than syncing each, but waits for what others write as well. So are a few, if that takes less time on this disk
    and others have written almost nothing.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._deletions: set[str] = set()
        self._many = False
        self._times = _SyncTimes()
        self._error: OSError | None = None
        self._witness = _Witness()
        self.unlock()

    def unlock(self) -> None:
        """New locks, in a forked child where nobody would release the old ones."""
        self._lock = threading.Lock()
        # Held while syncing: whoever finds nothing left to sync waits until the others have done it.
        self._syncing = threading.Lock()
        # The parent is told about lost writes through the same open folder.
        self._witness = _Witness()

    @property
    def has_writes(self) -> bool:
        """Whether there is anything but deletions."""
        return bool(self._files or self._folders or self._many or self._syncing.locked())

    def begin(self, folder: str) -> None:
        """A file will be written in a folder. From now on, the system tells this process about lost writes."""
        with self._lock:
            self._witness.begin(folder)

    def add_file(self, path: str) -> None:
        """A file was written under a new name."""
        with self._lock:
            self._folders.add(path[: path.rindex("/")])
            if not self._many:
                self._files.add(path)
            if len(self._files) <= _SYNCED_SINGLY:
                return
            if _SYNCFS is not None and not _type_below(path).startswith(_UNSAFE_WHOLE):
                self._many = True
                self._files = set()
                return
        self.sync()

    def add_folder(self, folder: str) -> None:
        """Names in a folder were made or replaced."""
        with self._lock:
            self._folders.add(folder)

    def add_deletions(self, folder: str) -> None:
        """Names in a folder were removed; they may come back until the next write that decides something."""
        with self._lock:
            self._deletions.add(folder)

    def sync(self, *others: str) -> None:
        """Return when all of it, and the other files, would survive a power loss.

        After an error nobody knows what is on the disk: systems report it once, and forget what they could not write.
        Every later call in this process fails too.
        """
        with self._syncing:
            if self._error is not None:
                raise OSError(
                    self._error.errno,
                    f"an earlier sync to disk failed ({self._error.strerror}), and its data is lost. Check the disk, "
                    "then restart the program",
                    self._root,
                )
            with self._lock:
                files, folders, many = self._files, self._folders | self._deletions, self._many
                self._files, self._folders, self._deletions, self._many = set(), set(), set(), False
                witness, self._witness = self._witness, _Witness()
            try:
                if many:
                    _sync_file_systems(_find_devices(folders), witness)
                    sync_paths([*files, *others])
                else:
                    self._sync_few([*files, *folders, *others], {*folders, *map(os.path.dirname, others)}, witness)
            except _LostWriteError as error:
                self._error = error
                raise
            except BaseException:
                with self._lock:
                    self._files |= files
                    self._folders |= folders
                    self._many = self._many or many
                    # The earlier one has seen more.
                    witness, self._witness = self._witness, witness
                raise
            finally:
                witness.end()

    def _sync_few(self, paths: Sequence[str], folders: Set[str], witness: _Witness) -> None:
        started, times = time.perf_counter(), self._times
        devices = _find_devices(folders) if len(paths) in _FEW_PATHS and times.is_whole_next() else {}
        whole = bool(devices) and _is_fit(devices) and _dirty_bytes() <= _DIRTY_BYTES
        if whole:
            _sync_file_systems(devices, witness)
        else:
            sync_paths(paths)
        if len(paths) in _FEW_PATHS:
            times.note(time.perf_counter() - started, whole=whole)


class _Witness:
    """A folder of each file system that is opened before something is written there, and closed when it is synced.

    Linux tells a lost write once to everybody who had something open on the file system before, and then to nobody. A
    folder that is opened only for the sync would not be told if another program has synced meanwhile.
    """

    __slots__ = ("_folders", "_open")

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._open: dict[int, int] = {}

    def begin(self, folder: str) -> None:
        """Open a folder, unless one of its file system is open."""
        if folder in self._folders or _SYNCFS is None:
            return
        self._folders.add(folder)
        with contextlib.suppress(OSError):
            device = os.stat(folder).st_dev
            if device not in self._open:
                self._open[device] = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)

    def sees(self, device: int) -> int | None:
        """The open folder of a file system."""
        return self._open.get(device)

    def end(self) -> None:
        """Close the folders."""
        opened, self._open, self._folders = self._open, {}, set()
        for fd in opened.values():
            os.close(fd)

    def __del__(self) -> None:
        self.end()


class _SyncTimes:
    """How long it took lately to sync the files of a small commit one by one, and with their whole file system."""

    __slots__ = ("_count", "_singly", "_whole")

    def __init__(self) -> None:
        self._singly: float | None = None
        self._whole: float | None = None
        self._count = 0

    def is_whole_next(self) -> bool:
        """Whether to sync the whole file system next, if it is fit for that.

        The slower way is tried again from time to time. On a slow disk the whole is not tried: what others write
        before the sync begins would be waited for too long.
        """
        if self._singly is None or self._singly > _FAST_SECONDS:
            return False
        self._count += 1
        is_faster = self._whole is None or self._whole < self._singly
        return is_faster != (self._count % _TRIED_AGAIN == 0)

    def note(self, seconds: float, *, whole: bool) -> None:
        """Count the time that a sync took."""
        seconds = min(seconds, 10 * _FAST_SECONDS)
        if whole:
            self._whole = seconds if self._whole is None else self._whole + (seconds - self._whole) / 8
        else:
            self._singly = seconds if self._singly is None else self._singly + (seconds - self._singly) / 8


def sync_paths(paths: Sequence[str]) -> None:
    """Sync files and folders at the same time. The error of a write that was lost comes before other errors."""
    waiting = [SYNCS.submit(sync_path, path) for path in paths[:-1]]
    errors: list[BaseException] = []
    try:
        for path in paths[-1:]:
            sync_path(path)  # this thread would only wait for the others
    except OSError as error:
        errors.append(error)
    finally:
        wait_for(waiting)
    errors += filter(None, (each.exception() for each in waiting))
    if errors:
        raise min(errors, key=lambda found: not isinstance(found, _LostWriteError))


def sync_path(path: str) -> None:
    """Put a file or the names in a folder on the disk; what is gone needs nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        sync_open(fd)
    finally:
        os.close(fd)


def begin_writing(fd: int, size: int) -> None:
    """Let the system begin to put a large new file on the disk, without waiting for it.

    It would begin by itself half a minute later. A sync that follows has then little left to wait for. Nothing depends
    on this call: what fails is reported by the sync.
    """
    if size >= _BEGUN_BYTES and _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(fd, 0, 0, _RANGE_WRITE)


def sync_open(fd: int) -> None:
    try:
        if _FULL_SYNC is None:
            os.fsync(fd)
        else:
            fcntl.fcntl(fd, _FULL_SYNC)
    except OSError as error:
        if error.errno not in _NO_SYNC:  # some file systems sync no folders
            raise _LostWriteError(error.errno, error.strerror) from error


def _find_devices(folders: Iterable[str]) -> dict[int, str]:
    """The file systems that folders are on, each with one of its folders; what is gone needs nothing."""
    found: dict[int, str] = {}
    for folder in folders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found[os.stat(folder).st_dev] = folder
    return found


def _sync_file_systems(devices: Mapping[int, str], witness: _Witness) -> None:
    """Put all that was written to file systems on their disks."""
    for device, folder in devices.items():
        known = witness.sees(device)
        if known is not None:
            _sync_file_system(known, folder)
            continue
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _sync_file_system(fd, folder)
        finally:
            os.close(fd)


def _sync_file_system(fd: int, folder: str) -> None:
    assert _SYNCFS is not None
    if _SYNCFS(fd) != 0:
        number = ctypes.get_errno()
        raise _LostWriteError(number, os.strerror(number), folder)


def _is_fit(devices: Mapping[int, str]) -> bool:
    """Whether file systems may be synced as a whole for a few files."""
    return _SYNCFS is not None and _REPORTS_ERRORS and all(device_type(each) in _JOURNALED for each in devices)


def _find_syncfs() -> Any:
    """The call of Linux that syncs one file system; None elsewhere."""
    try:
        return ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError, TypeError):
        return None


def _find_sync_file_range() -> Any:
    """The call of Linux that begins to write a part of a file to the disk; None elsewhere."""
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError, TypeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


def _reports_errors() -> bool:
    """Whether a sync of a file system fails when a file could not be written: Linux 5.8 and newer."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return os.uname().sysname == "Linux" and found is not None and tuple(map(int, found.groups())) >= (5, 8)


@functools.cache
def device_type(device: int) -> str:
    """The type of a file system. Empty if nothing tells."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            if before.split()[2] == wanted:
                return after.split()[0]
    return ""


def _type_below(path: str) -> str:
    with contextlib.suppress(OSError):
        return device_type(os.stat(os.path.dirname(path)).st_dev)
    return ""


def _dirty_bytes() -> float:
    """How many bytes the whole machine has still to write. Infinite if nothing tells."""
    try:
        fd = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = re.search(rb"\nDirty: +(\d+) kB\nWriteback: +(\d+) kB", os.read(fd, 4096))
        finally:
            os.close(fd)
    except OSError:
        return float("inf")
    return float("inf") if found is None else sum(map(int, found.groups())) * 1024


_SYNCFS = _find_syncfs()
_SYNC_FILE_RANGE = _find_sync_file_range()
_REPORTS_ERRORS = _reports_errors()
_UNSYNCED: weakref.WeakValueDictionary[str, Unsynced] = weakref.WeakValueDictionary()


def unsynced_below(root: str) -> Unsynced:
    """What this process wrote below a folder and did not sync yet; the same for all who ask for that folder."""
    return _UNSYNCED.setdefault(root, Unsynced(root))


def _unlock_all() -> None:
    for each in list(_UNSYNCED.values()):
        each.unlock()


os.register_at_fork(after_in_child=_unlock_all)
