"""The one tree of errors, grouped by what the caller can do about them.

IcefloeError (also named IcechunkError)
├── NotFoundError            what was asked for is not there
│   ├── RepositoryNotFoundError
│   ├── RefNotFoundError
│   ├── SnapshotNotFoundError
│   ├── NodeNotFoundError
│   └── ObjectNotFoundError
├── AlreadyExistsError       the name is taken
├── ConflictError            somebody else committed first: rebase and try again
├── RebaseFailedError        the commits in between touch the same things
├── InvalidInputError        the request itself is wrong
│   └── UnsupportedError     this generation or backend cannot do it
├── ReadOnlyError            the session or repository takes no writes
├── SessionStateError        the session is not in a state for this
├── StorageError             the store failed: try again
│   ├── VersionMismatchError the object changed since it was read
│   └── PermissionDeniedError
├── FormatError              the bytes are not what they should be: trying again does not help
│   └── UnknownFormatError   nothing we know, or newer than this library
├── VirtualChunkError        a virtual chunk cannot be read: container or authorisation missing, file changed or damaged
└── OutcomeUnknownError      it may or may not have happened: look before you act
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
"""Everything a terminal acts on but tabs and line ends; marks that change the order of text; halves of characters."""


def printable(text: str) -> str:
    """A text of a stranger for a terminal or a page: escape sequences become `␛`, other control characters `\\x07`."""
    if text.isprintable():
        return text
    return _CONTROL.sub(_spelled, _SEQUENCE.sub("\u241b", text))


def _spelled(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest right name, to end an error with; empty where none is near.

    >>> suggest("tiem", ["time", "lat"])
    " (did you mean 'time'?)"
    """
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


class ErrorKind(enum.Enum):
    """The coarse kind of an error, for callers that switch on it."""

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
    """Root of everything this library raises on purpose."""

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
    """What was asked for is not there."""

    kind = ErrorKind.NOT_FOUND


class RepositoryNotFoundError(NotFoundError):
    """There is no repository at this place."""


class RefNotFoundError(NotFoundError):
    """No branch or tag of this name."""


class SnapshotNotFoundError(NotFoundError):
    """No snapshot with this id."""


class NodeNotFoundError(NotFoundError):
    """No array or group at this path."""


class ObjectNotFoundError(NotFoundError):
    """No object under this key in the storage."""


class AlreadyExistsError(IcefloeError):
    """The name is taken."""

    kind = ErrorKind.ALREADY_EXISTS


class ConflictError(IcefloeError):
    """The branch moved on since the session started; rebase, then commit again."""

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
    """The session's changes clash with a commit that landed in between."""

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
    """The request itself is wrong; the message says what is allowed."""

    kind = ErrorKind.INVALID_INPUT


class UnsupportedError(InvalidInputError):
    """This generation of the format, or this storage, cannot do what was asked."""


class ReadOnlyError(IcefloeError, ValueError):
    """The session, store or repository takes no writes."""

    kind = ErrorKind.READ_ONLY


class SessionStateError(IcefloeError):
    """The session is not in a state in which this can be done."""

    kind = ErrorKind.SESSION_STATE


class StorageError(IcefloeError):
    """The storage failed; trying again may help."""

    kind = ErrorKind.STORAGE


class VersionMismatchError(StorageError):
    """The object is no longer the version that was read."""


class PermissionDeniedError(StorageError):
    """The storage refused the credentials."""


class FormatError(IcefloeError):
    """A file is not what it says it is; trying again does not help."""

    kind = ErrorKind.FORMAT


class UnknownFormatError(FormatError):
    """Bytes of an unknown or newer generation."""


class VirtualChunkError(IcefloeError):
    """A virtual chunk cannot be read: no container, no authorisation, or the file changed or is damaged."""

    kind = ErrorKind.STORAGE


class OutcomeUnknownError(IcefloeError):
    """The write may or may not have happened; look at the repository before acting."""

    kind = ErrorKind.OUTCOME_UNKNOWN
