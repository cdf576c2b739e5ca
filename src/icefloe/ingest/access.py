"""How the bytes of a source are reached: local files directly, everything else through a storage."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote, unquote, urlsplit

from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError, ObjectNotFoundError, PermissionDeniedError, StorageError
from icefloe.ingest.remote_file import RemoteFile
from icefloe.ingest.source_model import SourceFile
from icefloe.storage import storage_from_url
from icefloe.storage.contract import ObjectInfo, Storage, has_userinfo
from icefloe.storage.local_files import read_at


def normalise_url(place: str | os.PathLike[str]) -> str:
    """A path or URL as the absolute URL under which a virtual reference would name it."""
    text = os.fspath(place)
    if has_userinfo(text):
        raise InvalidInputError(
            "the URL of a source holds a user or a password; sources are stored and shown, give credentials with "
            "SourceAccess({prefix: http_storage(url, headers=...)})"
        )
    if "://" in text:
        return text
    return "file://" + quote(str(Path(text).expanduser().absolute()))


def local_path(url: str) -> Path | None:
    """The path behind a `file://` URL; None for other schemes."""
    return Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None


@contextmanager
def local_errors(url: str) -> Iterator[None]:
    """Translate what the operating system says about a file."""
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"there is no file {url}", url=url) from error
    except PermissionError as error:
        raise PermissionDeniedError(f"{url} may not be read by this user", url=url) from error
    except OSError as error:
        raise StorageError(f"{url} cannot be read: {error}", url=url) from error


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """Storages by URL prefix; a URL under none of them is opened with `options` and what the environment says."""

    storages: Mapping[str, Storage] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of the storages of all other URLs, such as `endpoint_url` of `s3_storage`; they may hold secrets."""

    def place(self, url: str) -> tuple[Storage, str]:
        """The storage that holds a URL, and its key there."""
        for prefix in sorted(self.storages, key=len, reverse=True):
            folder = prefix if prefix.endswith("/") else prefix + "/"
            if url.startswith(folder):
                return self.storages[prefix], unquote(url[len(folder) :])
        parts = urlsplit(url)
        if not parts.netloc:
            raise InvalidInputError(f"{url} names no bucket or host", url=url)
        options = tuple(sorted(self.options.items()))
        return _root_storage(f"{parts.scheme}://{parts.netloc}", options), unquote(parts.path.lstrip("/"))

    def describe(self, url: str) -> SourceFile:
        """Size, time and version of one file."""
        path = local_path(url)
        if path is not None:
            with local_errors(url):
                status = path.stat()
            size = 0 if path.is_dir() else status.st_size
            return SourceFile(url, size, None, math.ceil(status.st_mtime))
        storage, key = self.place(url)
        info = run_blocking(storage.head(key))
        return SourceFile(url, info.size_bytes, info.version.etag, int(info.last_modified.timestamp()))

    def open(self, file: SourceFile) -> BinaryIO:
        """A seekable binary file."""
        path = local_path(file.url)
        if path is not None:
            with local_errors(file.url):
                return cast(BinaryIO, path.open("rb"))
        storage, key = self.place(file.url)
        size = file.size_bytes or run_blocking(storage.head(key)).size_bytes
        return cast(BinaryIO, io.BufferedReader(RemoteFile(storage, key, size), buffer_size=1 << 16))

    def read(self, url: str) -> bytes:
        """A whole file."""
        path = local_path(url)
        if path is not None:
            with local_errors(url):
                return path.read_bytes()
        storage, key = self.place(url)
        return run_blocking(storage.get(key))

    def read_ranges(self, url: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """Several ranges [start, end) of one file."""
        path = local_path(url)
        if path is not None:
            with local_errors(url), path.open("rb") as file:
                descriptor = file.fileno()
                size = os.fstat(descriptor).st_size
                return [read_at(descriptor, start, min(end, size)) for start, end in zip(starts, ends, strict=True)]
        storage, key = self.place(url)
        return run_blocking(storage.get_ranges(key, starts, ends))

    def exists(self, url: str) -> bool:
        """Whether there is a file (not a folder) under a URL."""
        path = local_path(url)
        if path is not None:
            return path.is_file()
        storage, key = self.place(url)
        return run_blocking(storage.exists(key))

    def list_files(self, url: str) -> list[SourceFile]:
        """Every file below a folder, sorted by URL."""
        folder = url.rstrip("/") + "/"
        path = local_path(folder)
        if path is not None:
            with local_errors(url):
                found = [
                    _describe_listed(Path(root) / name)
                    for root, _, names in os.walk(path, onerror=_raise)
                    for name in names
                ]
            return sorted(found, key=lambda file: file.url)
        storage, key = self.place(folder)
        infos = run_blocking(_list(storage, key))
        base = folder[: len(folder) - len(key)] if key else folder
        return [
            SourceFile(base + info.key, info.size_bytes, info.version.etag, int(info.last_modified.timestamp()))
            for info in infos
        ]


def _describe_listed(path: Path) -> SourceFile:
    try:
        status = path.stat()
    except FileNotFoundError:
        # A link to nothing: whoever opens it can say so, and leave it out if that was asked for.
        return SourceFile(normalise_url(path), 0, None, 0)
    return SourceFile(normalise_url(path), status.st_size, None, math.ceil(status.st_mtime))


def _raise(error: OSError) -> None:
    raise error


async def _list(storage: Storage, prefix: str) -> list[ObjectInfo]:
    return [info async for page in storage.list(prefix) for info in page]


@lru_cache(maxsize=64)
def _root_storage(url: str, options: tuple[tuple[str, Any], ...] = ()) -> Storage:
    return storage_from_url(url, **dict(options))


def choose_access(access: SourceAccess | None, options: Mapping[str, Any] | None) -> SourceAccess:
    """The access that was given, with the options for sources that it has no storage for."""
    chosen = access or SourceAccess()
    return replace(chosen, options=dict(options)) if options else chosen
