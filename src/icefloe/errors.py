"""All errors of the library in one tree, grouped by what the caller can do.

IcefloeError (also named IcechunkError)
├── NotFoundError            the requested object does not exist
│   ├── RepositoryNotFoundError
│   ├── RefNotFoundError
│   ├── SnapshotNotFoundError
│   ├── NodeNotFoundError
│   └── ObjectNotFoundError
├── AlreadyExistsError       the name is in use
├── ConflictError            another commit came first: rebase and try again
├── RebaseFailedError        the other commits changed the same nodes or chunks
├── InvalidInputError        the request is invalid
│   └── UnsupportedError     this generation or storage does not support the operation
├── ReadOnlyError            the session or repository is read-only
├── SessionStateError        the session is in the wrong state
├── StorageError             the storage failed: try again
│   ├── VersionMismatchError the object changed since it was read
│   └── PermissionDeniedError
├── FormatError              a file is invalid: trying again does not help
│   └── UnknownFormatError   the format is unknown, or newer than this library
├── VirtualChunkError        a virtual chunk cannot be read: no container, no authorisation, or the file changed
└── OutcomeUnknownError      the operation may have succeeded: check before you try again
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterable, Sequence
from typing import Any

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # a control sequence: cursor, colours, erasing
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # a string: titles, links
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Terminal controls except tabs and line ends, characters that change the text direction, and surrogates."""


def printable(text: str) -> str:
    r"""Escape control characters in text from repositories: escape sequences as `␛`, others such as `\x07`."""
    if text.isprintable():
        return text
    return _CONTROL.sub(_spelled, _SEQUENCE.sub("\u241b", text))


def _spelled(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a suggestion of the most similar name, to append to an error. It is empty if no name is similar.

    >>> suggest("tiem", ["time", "lat"])
    " (did you mean 'time'?)"
    """
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


class ErrorKind(enum.Enum):
    """The group of an error, for programs that branch on it."""

    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    CONFLICT = "conflict"
    INVALID_INPUT = "invalid_input"
    READ_ONLY = "read_only"
    SESSION_STATE = "session_state"
    STORAGE = "storage"
    FORMAT = "format"
    OUTCOME_UNKNOWN = "outcome_unknown"
    OTHER = "other"


class IcefloeError(Exception):
    """Base class of all errors that this library raises.

    Parameters
    ----------
    message
        The text of the error. Control characters are escaped.
    **facts
        Details. Each becomes an attribute.

    Examples
    --------
    >>> error = InvalidInputError("there is no dimension 'tiem'", dim="tiem")
    >>> error.dim, error.kind
    ('tiem', <ErrorKind.INVALID_INPUT: 'invalid_input'>)
    """

    kind: ErrorKind = ErrorKind.OTHER

    def __init__(self, message: str, **facts: Any) -> None:
        # Messages quote names and texts of repositories, and end in terminals.
        message = printable(message)
        super().__init__(message)
        self.message = message
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(cls: type[IcefloeError], message: str, facts: dict[str, Any]) -> IcefloeError:
    error = cls.__new__(cls)
    IcefloeError.__init__(error, message, **facts)
    return error


IcechunkError = IcefloeError


class NotFoundError(IcefloeError):
    """The requested object does not exist."""

    kind = ErrorKind.NOT_FOUND


class RepositoryNotFoundError(NotFoundError):
    """There is no repository at this URL."""


class RefNotFoundError(NotFoundError):
    """There is no branch or tag with this name."""


class SnapshotNotFoundError(NotFoundError):
    """There is no snapshot with this id."""


class NodeNotFoundError(NotFoundError):
    """There is no array or group at this path."""


class ObjectNotFoundError(NotFoundError):
    """There is no object with this key in the storage."""


class AlreadyExistsError(IcefloeError):
    """The name is already in use."""

    kind = ErrorKind.ALREADY_EXISTS


class ConflictError(IcefloeError):
    """The branch has new commits since the session started. Rebase the session, then commit again."""

    kind = ErrorKind.CONFLICT

    def __init__(self, message: str | None = None, **facts: Any) -> None:
        facts.setdefault("expected_parent", None)
        facts.setdefault("actual_parent", None)
        super().__init__(
            message
            or f"the branch is at snapshot {facts['actual_parent']}, the session started from "
            f"{facts['expected_parent']}; call session.rebase(...) or commit(..., rebase_with=...)",
            **facts,
        )

    expected_parent: str | None
    actual_parent: str | None


class RebaseFailedError(IcefloeError):
    """The changes of the session conflict with a commit that was made after the session started."""

    kind = ErrorKind.CONFLICT
    snapshot: str
    conflicts: Sequence[Any]

    def __init__(self, message: str | None = None, **facts: Any) -> None:
        facts.setdefault("snapshot", "")
        facts.setdefault("conflicts", [])
        listed = "; ".join(str(c) for c in list(facts["conflicts"])[:5])
        super().__init__(
            message
            or f"cannot rebase over snapshot {facts['snapshot']}: {len(facts['conflicts'])} conflict(s): {listed}",
            **facts,
        )


class InvalidInputError(IcefloeError, ValueError):
    """The request is invalid. The message says what is allowed."""

    kind = ErrorKind.INVALID_INPUT


class UnsupportedError(InvalidInputError):
    """This generation of the format, or this storage, does not support the operation."""


class ReadOnlyError(IcefloeError, ValueError):
    """The session, store or repository is read-only."""

    kind = ErrorKind.READ_ONLY


class SessionStateError(IcefloeError):
    """The session is not in a state that allows the operation."""

    kind = ErrorKind.SESSION_STATE


class StorageError(IcefloeError):
    """The storage failed. Trying again can help."""

    kind = ErrorKind.STORAGE


class VersionMismatchError(StorageError):
    """The object has changed since it was read."""


class PermissionDeniedError(StorageError):
    """The storage rejected the credentials."""


class FormatError(IcefloeError):
    """A file is invalid. Trying again does not help."""

    kind = ErrorKind.FORMAT


class UnknownFormatError(FormatError):
    """The format is unknown, or newer than this library."""


class VirtualChunkError(IcefloeError):
    """A virtual chunk cannot be read: no container, no authorisation, or the file has changed or is damaged."""

    kind = ErrorKind.STORAGE


class OutcomeUnknownError(IcefloeError):
    """The write may have succeeded. Check the repository before you try again."""

    kind = ErrorKind.OUTCOME_UNKNOWN
