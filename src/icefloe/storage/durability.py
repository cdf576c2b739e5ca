"""What of the files that were written would survive a power loss."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import wait as wait_for
from typing import Any

from icefloe.storage.requests import SYNCS

_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""On macOS, what fsync does not do: wait for the disk itself."""
_SYNCED_SINGLY = 256


class _LostWriteError(OSError):
    """The system could not write what it had accepted."""


class Unsynced:
    """What this process wrote below a folder since it was last synced: a power loss may undo it.

    A write that decides something first makes durable all that was written before it, because it may refer to that.
    Few files are synced one by one, at the same time. Many are synced with their whole file system, which takes less
    time than syncing each, but waits for what others write as well.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._deletions: set[str] = set()
        self._many = False
        self._error: OSError | None = None
        self.unlock()

    def unlock(self) -> None:
        """New locks, in a forked child where nobody would release the old ones."""
        self._lock = threading.Lock()
        # Held while syncing: whoever finds nothing left to sync waits until the others have done it.
        self._syncing = threading.Lock()

    @property
    def has_writes(self) -> bool:
        """Whether there is anything but deletions."""
        return bool(self._files or self._folders or self._many or self._syncing.locked())

    def add_file(self, path: str) -> None:
        """A file was written under a new name."""
        with self._lock:
            self._folders.add(path[: path.rindex("/")])
            if not self._many:
                self._files.add(path)
            if len(self._files) <= _SYNCED_SINGLY:
                return
            if _SYNCFS is not None:
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
            try:
                if many:
                    _sync_file_system(self._root)
                sync_paths([*files, *others] if many else [*files, *folders, *others])
            except _LostWriteError as error:
                self._error = error
                raise
            except BaseException:
                with self._lock:
                    self._files |= files
                    self._folders |= folders
                    self._many = self._many or many
                raise


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


def sync_open(fd: int) -> None:
    try:
        if _FULL_SYNC is None:
            os.fsync(fd)
        else:
            fcntl.fcntl(fd, _FULL_SYNC)
    except OSError as error:
        if error.errno not in _NO_SYNC:  # some file systems sync no folders
            raise _LostWriteError(error.errno, error.strerror) from error


def _sync_file_system(folder: str) -> None:
    assert _SYNCFS is not None
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _SYNCFS(fd) != 0:
            number = ctypes.get_errno()
            raise _LostWriteError(number, os.strerror(number), folder)
    finally:
        os.close(fd)


def _find_syncfs() -> Any:
    """The call of Linux that syncs one file system; None elsewhere."""
    try:
        return ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError, TypeError):
        return None


_SYNCFS = _find_syncfs()
_UNSYNCED: weakref.WeakValueDictionary[str, Unsynced] = weakref.WeakValueDictionary()


def unsynced_below(root: str) -> Unsynced:
    """What this process wrote below a folder and did not sync yet; the same for all who ask for that folder."""
    return _UNSYNCED.setdefault(root, Unsynced(root))


def _unlock_all() -> None:
    for each in list(_UNSYNCED.values()):
        each.unlock()


os.register_at_fork(after_in_child=_unlock_all)
