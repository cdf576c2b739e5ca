"""Errors of obstore and of the operating system, as errors of this library."""

from __future__ import annotations

import errno
import re
from types import TracebackType

from obstore import exceptions as foreign

from icefloe.errors import (
    AlreadyExistsError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StorageError,
    UnsupportedError,
    VersionMismatchError,
)
from icefloe.storage.contract import without_userinfo

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
    if kind is StorageError and _MISCONFIGURED.search(found):
        return InvalidInputError(f"cannot {action} in {url}: {found}; check the address and the options of the storage")
    return kind(f"cannot {action} in {url}: {found}{_ADVICE.get(kind, '')}")


def translate_os_error(error: OSError, action: str, url: str) -> IcefloeError:
    """The error of this library for one of the operating system."""
    found = error.strerror or str(error)
    if action.startswith(_WRITES) and isinstance(error, NotADirectoryError | IsADirectoryError):
        return UnsupportedError(
            f"cannot {action} in {url}: on a file system a name is a file or a folder, and it is the other one there"
        )
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return ObjectNotFoundError(f"cannot {action} in {url}: no such object")
    if isinstance(error, PermissionError) and error.errno == errno.EPERM and "leads out" in found:
        return PermissionDeniedError(f"cannot {action} in {url}: {found}")
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return PermissionDeniedError(f"cannot {action} in {url}: {found}; check owner and mode of the folder")
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
