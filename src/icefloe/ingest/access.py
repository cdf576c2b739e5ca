"""Read the bytes of sources. Local files are read directly, other files through a storage."""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote, unquote, urlsplit

from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError, ObjectNotFoundError, PermissionDeniedError, StorageError
from icefloe.ingest.source_model import SourceFile
from icefloe.storage import storage_from_url
from icefloe.storage.contract import ObjectInfo, Storage
from icefloe.storage.requests import has_userinfo, read_at

BLOCK_BYTES = 1 << 20
KEPT_BLOCKS = 64


class RemoteFile(io.RawIOBase):
    """A seekable file in a storage. It fetches whole blocks and caches the latest ones.

    A read of many blocks, such as the values of a variable, is one request and does not use the cache.
    """

    def __init__(self, storage: Storage, key: str, size_bytes: int) -> None:
        super().__init__()
        self._storage = storage
        self._key = key
        self._size = size_bytes
        self._position = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        start = self._position
        end = min(start + len(view), self._size)
        if end <= start:
            return 0
        data = self._range(start, end)
        view[: len(data)] = data
        self._position = start + len(data)
        return len(data)

    def _range(self, start: int, end: int) -> bytes:
        first, last = start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        if last - first > 3:
            return run_blocking(self._storage.get_range(self._key, start, end))
        data = b"".join(self._block(index) for index in range(first, last + 1))
        return data[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def _block(self, index: int) -> bytes:
        if index in self._blocks:
            self._blocks.move_to_end(index)
            return self._blocks[index]
        start = index * BLOCK_BYTES
        block = run_blocking(self._storage.get_range(self._key, start, min(start + BLOCK_BYTES, self._size)))
        self._blocks[index] = block
        if len(self._blocks) > KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return block


def normalise_url(place: str | os.PathLike[str]) -> str:
    """Return a path or URL as the absolute URL that virtual references use."""
    text = os.fspath(place)
    if has_userinfo(text):
        raise InvalidInputError(
            "the URL of a source contains a user or a password. URLs of sources are stored and shown. Pass credentials "
            "with SourceAccess({prefix: http_storage(url, headers=...)})"
        )
    if "://" in text:
        return text
    return "file://" + quote(str(Path(text).expanduser().absolute()))


def local_path(url: str) -> Path | None:
    """Return the path of a `file://` URL, or None for other schemes."""
    return Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None


@contextmanager
def local_errors(url: str) -> Iterator[None]:
    """Translate errors of the operating system."""
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"there is no file {url}", url=url) from error
    except PermissionError as error:
        raise PermissionDeniedError(f"this user has no permission to read {url}", url=url) from error
    except OSError as error:
        raise StorageError(f"{url} cannot be read: {error}", url=url) from error


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """How sources are read: storages by URL prefix, and options for all other URLs.

    Parameters
    ----------
    storages
        Storages by URL prefix. The longest prefix applies.
    options
        Options of the storages of all other URLs, such as `endpoint_url` of `s3_storage`. They can contain secrets.
    preprocess
        A function that every source is read through, see `IngestOptions`.

    Examples
    --------
    >>> import icefloe
    >>> access = SourceAccess({"s3://bucket/": icefloe.in_memory_storage()})
    >>> access.exists("s3://bucket/day1.nc")
    False
    """

    storages: Mapping[str, Storage] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of the storages of all other URLs, such as `endpoint_url` of `s3_storage`. They can contain secrets."""
    preprocess: Callable[[Any], Any] | None = None
    """A function that every source is read through."""

    def place(self, url: str) -> tuple[Storage, str]:
        """Return the storage of a URL, and the key in it.

        Parameters
        ----------
        url
            The URL.

        Returns
        -------
        tuple
            The storage and the key.

        Raises
        ------
        InvalidInputError
            The URL has no bucket or host.

        Examples
        --------
        >>> import icefloe
        >>> SourceAccess({"s3://bucket/": icefloe.in_memory_storage()}).place("s3://bucket/a/b.nc")[1]
        'a/b.nc'
        """
        for prefix in sorted(self.storages, key=len, reverse=True):
            folder = prefix if prefix.endswith("/") else prefix + "/"
            if url.startswith(folder):
                return self.storages[prefix], unquote(url[len(folder) :])
        parts = urlsplit(url)
        if not parts.netloc:
            raise InvalidInputError(f"{url} contains no bucket or host", url=url)
        options = tuple(sorted(self.options.items()))
        return _root_storage(f"{parts.scheme}://{parts.netloc}", options), unquote(parts.path.lstrip("/"))

    def describe(self, url: str) -> SourceFile:
        """Return the size, modification time and version of one file.

        Parameters
        ----------
        url
            The URL of the file.

        Returns
        -------
        SourceFile
            The file.

        Examples
        --------
        >>> _ = Path("describe.txt").write_bytes(b"abc")
        >>> SourceAccess().describe(normalise_url("describe.txt")).size_bytes
        3
        """
        path = local_path(url)
        if path is not None:
            with local_errors(url):
                return _describe_status(url, path.stat())
        storage, key = self.place(url)
        info = run_blocking(storage.head(key))
        return SourceFile(url, info.size_bytes, info.version.etag, int(info.last_modified.timestamp()))

    def open(self, file: SourceFile) -> BinaryIO:
        """Open a file for reading.

        Parameters
        ----------
        file
            The source file.

        Returns
        -------
        BinaryIO
            A seekable binary file.

        Examples
        --------
        >>> _ = Path("open.txt").write_bytes(b"abc")
        >>> with SourceAccess().open(SourceFile(normalise_url("open.txt"))) as stream:
        ...     stream.read()
        b'abc'
        """
        path = local_path(file.url)
        if path is not None:
            with local_errors(file.url):
                return cast(BinaryIO, path.open("rb"))
        storage, key = self.place(file.url)
        size = file.size_bytes or run_blocking(storage.head(key)).size_bytes
        return cast(BinaryIO, io.BufferedReader(RemoteFile(storage, key, size), buffer_size=1 << 16))

    def read(self, url: str) -> bytes:
        """Read a whole file.

        Parameters
        ----------
        url
            The URL of the file.

        Returns
        -------
        bytes
            The content.

        Examples
        --------
        >>> _ = Path("read.txt").write_bytes(b"abc")
        >>> SourceAccess().read(normalise_url("read.txt"))
        b'abc'
        """
        path = local_path(url)
        if path is not None:
            with local_errors(url):
                return path.read_bytes()
        storage, key = self.place(url)
        return run_blocking(storage.get(key))

    def read_ranges(self, url: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """Read several ranges of one file.

        Parameters
        ----------
        url
            The URL of the file.
        starts
            The first byte of each range.
        ends
            The byte after each range.

        Returns
        -------
        list of bytes
            The content of each range.

        Examples
        --------
        >>> _ = Path("ranges.txt").write_bytes(b"abcdef")
        >>> SourceAccess().read_ranges(normalise_url("ranges.txt"), [0, 4], [2, 6])
        [b'ab', b'ef']
        """
        path = local_path(url)
        if path is not None:
            with local_errors(url), path.open("rb") as file:
                descriptor = file.fileno()
                size = os.fstat(descriptor).st_size
                return [read_at(descriptor, start, min(end, size)) for start, end in zip(starts, ends, strict=True)]
        storage, key = self.place(url)
        return run_blocking(storage.get_ranges(key, starts, ends))

    def exists(self, url: str) -> bool:
        """Return whether a file exists. Directories do not count.

        Parameters
        ----------
        url
            The URL of the file.

        Returns
        -------
        bool
            True if it exists.

        Examples
        --------
        >>> SourceAccess().exists("file:///nowhere/day1.nc")
        False
        """
        path = local_path(url)
        if path is not None:
            return path.is_file()
        storage, key = self.place(url)
        return run_blocking(storage.exists(key))

    def list_files(self, url: str) -> list[SourceFile]:
        """List every file below a directory, sorted by URL.

        Parameters
        ----------
        url
            The URL of the directory.

        Returns
        -------
        list of SourceFile
            The files.

        Examples
        --------
        >>> Path("listed").mkdir()
        >>> _ = Path("listed/a.nc").write_bytes(b"abc")
        >>> [file.name for file in SourceAccess().list_files(normalise_url("listed"))]
        ['a.nc']
        """
        folder = url.rstrip("/") + "/"
        path = local_path(folder)
        if path is not None:
            found: list[SourceFile] = []
            with local_errors(url):
                for root, _, names in os.walk(path, onerror=_raise):
                    prefix = normalise_url(root).rstrip("/") + "/"
                    found += [_describe_listed(prefix + quote(name), os.path.join(root, name)) for name in names]
            return sorted(found, key=lambda file: file.url)
        storage, key = self.place(folder)
        infos = run_blocking(_list(storage, key))
        base = folder[: len(folder) - len(key)] if key else folder
        return [
            SourceFile(base + info.key, info.size_bytes, info.version.etag, int(info.last_modified.timestamp()))
            for info in infos
        ]


def _describe_listed(url: str, path: str) -> SourceFile:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        # A broken link. Opening it raises the error, or skips the file with on_error='skip'.
        return SourceFile(url, 0, None, 0)
    return SourceFile(url, status.st_size, None, math.ceil(status.st_mtime), str(status.st_mtime_ns))


def _describe_status(url: str, status: os.stat_result) -> SourceFile:
    size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return SourceFile(url, size, None, math.ceil(status.st_mtime), str(status.st_mtime_ns) if size else None)


_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.~-]*")
"""Names that are the same in a URL."""


def describe_paths(paths: Iterable[str]) -> Iterator[tuple[str, SourceFile, os.stat_result | None]]:
    """Describe local paths with one request to the file system each. A path that leads nowhere has no status.

    Archives have many files in few folders, so the URL of a folder is made once.
    """
    folders: dict[str, str] = {}
    for path in paths:
        folder, separator, name = path.rpartition("/")
        if (prefix := folders.get(folder)) is None:
            prefix = folders[folder] = normalise_url(folder + separator or os.curdir).rstrip("/") + "/"
        if _PLAIN_NAME.fullmatch(name):
            url = prefix + name
        else:
            url = prefix + quote(name) if name not in ("", os.curdir, os.pardir) else normalise_url(path)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            yield path, SourceFile(url), None
            continue
        except OSError:
            with local_errors(url):
                raise
        yield path, _describe_status(url, status), status


def _raise(error: OSError) -> None:
    raise error


async def _list(storage: Storage, prefix: str) -> list[ObjectInfo]:
    return [info async for page in storage.list(prefix) for info in page]


@lru_cache(maxsize=64)
def _root_storage(url: str, options: tuple[tuple[str, Any], ...] = ()) -> Storage:
    return storage_from_url(url, **dict(options))


def listing_version(files: Sequence[SourceFile]) -> str:
    """Return a hash of a listing. It changes if a file is replaced, added or removed."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(files, key=lambda each: each.url):
        digest.update(f"{file.url}\0{file.size_bytes}\0{file.etag}\0{file.version or file.last_modified}\0".encode())
    return digest.hexdigest()


def choose_access(
    access: SourceAccess | None, options: Mapping[str, Any] | None, preprocess: Callable[[Any], Any] | None = None
) -> SourceAccess:
    """Return the given access, with the options for sources without a storage of their own."""
    chosen = access or SourceAccess()
    if preprocess is not None:
        chosen = replace(chosen, preprocess=preprocess)
    return replace(chosen, options=dict(options)) if options else chosen
