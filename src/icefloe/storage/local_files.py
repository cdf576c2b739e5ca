"""The blocking file operations: written whole, created once, swapped under a lock, listed in order."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence

from icefloe.storage.contract import Version
from icefloe.storage.durability import Unsynced, sync_open, sync_path
from icefloe.storage.keys import decode_key

Bytes = bytes | memoryview

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_FOLDER_LOCKS = {errno.EBADF, errno.EISDIR, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
_LOCK_NAME = ".lock#0"
_GET_PATH: int | None = getattr(fcntl, "F_GETPATH", None)
"""On macOS, what tells where an open file is."""
_LOOK = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)


class ChangedError(Exception):
    """The file is not the version that was expected."""


class LeadsOutError(PermissionError):
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
        """Refuse an open file or folder that is not inside; LeadsOutError."""
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
            raise LeadsOutError(path)


def _real_path(fd: int, path: str) -> str:
    """Where an open file is, without links, on systems without /proc."""
    if _GET_PATH is not None:
        return os.fsdecode(fcntl.fcntl(fd, _GET_PATH, bytes(1024)).rstrip(b"\0"))
    # Nothing tells where it is: what the path leads to now has to be the same file.
    real = os.path.realpath(path)
    if not os.path.samestat(os.stat(real, follow_symlinks=False), os.fstat(fd)):
        raise LeadsOutError(path)
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
        bounds.check(fd, path)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            sync_open(fd)
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
