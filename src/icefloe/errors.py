"""All errors of the library in one tree, grouped by what the caller can do.

IcefloeError (also named IcechunkError)
├── NotFoundError            the requested object does not exist (also a KeyError)
│   ├── RepositoryNotFoundError
│   ├── RefNotFoundError
│   ├── SnapshotNotFoundError
│   ├── NodeNotFoundError
│   └── ObjectNotFoundError
├── AlreadyExistsError       the name is in use
├── ConflictError            another commit came first: rebase and try again
│   └── RebaseFailedError    the other commits changed the same nodes or chunks
├── InvalidInputError        the request is invalid (also a ValueError)
│   └── UnsupportedError     this generation or storage does not support the operation
├── ReadOnlyError            the session or repository is read-only
├── SessionStateError        the session is in the wrong state
├── StorageError             the storage failed: try again
│   ├── VersionMismatchError the object changed since it was read
│   └── PermissionDeniedError
├── FormatError              a file is invalid: trying again does not help
│   └── UnknownFormatError   the format is unknown, or newer than this library
├── VirtualChunkError        a virtual chunk cannot be read: no container, no authorisation, or the file changed
├── OutcomeUnknownError      the operation may have succeeded: check before you try again
└── InternalError            a bug of this library

Some situations belong to two groups: the official package reports them in one, and the other says more. Their classes
inherit from both.

├── RepositoryExistsError    AlreadyExistsError and InvalidInputError
├── PathOccupiedError        AlreadyExistsError and InvalidInputError
├── InvalidSnapshotIdError   SnapshotNotFoundError and InvalidInputError
├── ForbiddenChangeError     SessionStateError and InvalidInputError
├── InvalidTypeError         InvalidInputError and TypeError
├── ParentNotFoundError      SessionStateError and NodeNotFoundError
├── FinishedSessionError     SessionStateError and ReadOnlyError
└── ContainerError           VirtualChunkError and InvalidInputError

The codes in `ErrorKind` are those of the official package. They say precisely what happened.
"""

from __future__ import annotations

import difflib
import enum
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Sequence
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


def check_keywords(method: Callable[..., object], given: Iterable[str], ignored: Collection[str]) -> None:
    """Check the further keyword arguments of a method. It accepts and ignores some of them, and refuses all others."""
    for name in given:
        if name not in ignored:
            near = suggest(name, {*ignored, *inspect.signature(method).parameters})
            raise InvalidInputError(f"{method.__name__.removesuffix('_async')} has no argument {name!r}{near}")


class ErrorKind(enum.StrEnum):
    """What happened, as a code for programs that branch on it. The codes are those of the official package."""

    COMMIT_CONFLICT = "commit-conflict"
    BRANCH_UPDATE_CONFLICT = "branch-update-conflict"
    REBASE_FAILED = "rebase-failed"
    CONFIG_UPDATED = "config-updated"
    REPO_INFO_UPDATED = "repo-info-updated"
    UPDATE_ATTEMPTS_EXHAUSTED = "update-attempts-exhausted"
    GC_DELETES_FAILING = "gc-deletes-failing"
    NODE_NOT_FOUND = "node-not-found"
    ANCESTOR_NODE_NOT_FOUND = "ancestor-node-not-found"
    CHUNK_NOT_FOUND = "chunk-not-found"
    KEY_NOT_FOUND = "key-not-found"
    SNAPSHOT_NOT_FOUND = "snapshot-not-found"
    NO_SNAPSHOT_AT_TIME = "no-snapshot-at-time"
    REF_NOT_FOUND = "ref-not-found"
    BRANCH_NOT_FOUND = "branch-not-found"
    TAG_NOT_FOUND = "tag-not-found"
    REPOSITORY_NOT_FOUND = "repository-not-found"
    MANIFEST_INFO_NOT_FOUND = "manifest-info-not-found"
    NODE_ALREADY_EXISTS = "node-already-exists"
    BRANCH_ALREADY_EXISTS = "branch-already-exists"
    TAG_ALREADY_EXISTS = "tag-already-exists"
    TAG_PREVIOUSLY_DELETED = "tag-previously-deleted"
    MOVE_WONT_OVERWRITE = "move-wont-overwrite"
    READ_ONLY_SESSION = "read-only-session"
    READ_ONLY_STORE = "read-only-store"
    READ_ONLY_STORAGE = "read-only-storage"
    READ_ONLY_REPOSITORY = "read-only-repository"
    INVALID_KEY = "invalid-key"
    INVALID_CHUNK_INDEX = "invalid-chunk-index"
    ZERO_LENGTH_CHUNK = "zero-length-chunk"
    INVALID_MANIFEST_SPLIT_INDEX = "invalid-manifest-split-index"
    INVALID_REF_TYPE = "invalid-ref-type"
    INVALID_REF_NAME = "invalid-ref-name"
    INVALID_SNAPSHOT_ID = "invalid-snapshot-id"
    INVALID_PATH = "invalid-path"
    BAD_KEY_PREFIX = "bad-key-prefix"
    BAD_METADATA = "bad-metadata"
    BAD_PREFIX = "bad-prefix"
    NOT_AN_ARRAY = "not-an-array"
    NOT_A_GROUP = "not-a-group"
    INVALID_BYTE_RANGE = "invalid-byte-range"
    INVALID_COMMIT_CONFIGURATION = "invalid-commit-configuration"
    INVALID_ARRAY_METADATA = "invalid-array-metadata"
    INVALID_FEATURE_FLAG = "invalid-feature-flag"
    INVALID_VIRTUAL_REF = "invalid-virtual-ref"
    INVALID_CREDENTIALS = "invalid-credentials"
    NO_CONTAINER_FOR_VIRTUAL_CHUNK = "no-container-for-virtual-chunk"
    UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER = "unauthorized-virtual-chunk-container"
    EMPTY_PREFIX_CREATION = "empty-prefix-creation"
    PARENT_DIRECTORY_NOT_CLEAN = "parent-directory-not-clean"
    BAD_SNAPSHOT_CHAIN_FOR_DIFF = "bad-snapshot-chain-for-diff"
    COMMIT_NOT_ALLOWED = "commit-not-allowed"
    MERGE_NOT_ALLOWED = "merge-not-allowed"
    CANNOT_FORK_READ_ONLY_SESSION = "cannot-fork-read-only-session"
    REARRANGE_SESSION_ONLY = "rearrange-session-only"
    NON_REARRANGE_SESSION = "non-rearrange-session"
    MOVE_INTO_SELF_OR_DESCENDANT = "move-into-self-or-descendant"
    MOVE_DESTINATION_PARENT_MISSING = "move-destination-parent-missing"
    MOVE_DESTINATION_PARENT_NOT_GROUP = "move-destination-parent-not-group"
    NO_CHANGES_TO_COMMIT = "no-changes-to-commit"
    NO_AMEND_FOR_INITIAL_COMMIT = "no-amend-for-initial-commit"
    NOT_ON_BRANCH = "not-on-branch"
    NO_SNAPSHOT = "no-snapshot"
    CANNOT_DELETE_MAIN = "cannot-delete-main"
    UNCOMMITTED_CHANGES = "uncommitted-changes"
    MERGE_FAILED = "merge-failed"
    NOT_ALLOWED = "not-allowed"
    UNIMPLEMENTED = "unimplemented"
    REBASE_TX_LOG_PRUNED = "rebase-tx-log-pruned"
    FEATURE_FLAG_DISABLED = "feature-flag-disabled"
    TAG_ERROR = "tag-error"
    INVALID_REPOSITORY_MIGRATION = "invalid-repository-migration"
    OBJECT_NOT_FOUND = "object-not-found"
    OBJECT_STORE = "object-store"
    IO = "io"
    STORAGE_CONFIG = "storage-config"
    CANNOT_PARSE_URL = "cannot-parse-url"
    BAD_REDIRECT = "bad-redirect"
    SEMAPHORE_ACQUIRE = "semaphore-acquire"
    THROTTLED = "throttled"
    STORAGE_OTHER = "storage-other"
    VIRTUAL_CHUNK_FETCH = "virtual-chunk-fetch"
    VIRTUAL_CHUNK_MODIFIED = "virtual-chunk-modified"
    INVALID_OBJECT_SIZE = "invalid-object-size"
    SERIALIZATION = "serialization"
    DESERIALIZATION = "deserialization"
    CONFIG_DESERIALIZATION = "config-deserialization"
    INVALID_FILE_FORMAT = "invalid-file-format"
    UNSUPPORTED_SPEC_VERSION = "unsupported-spec-version"
    UNSUPPORTED_OPERATION_FOR_VERSION = "unsupported-operation-for-version"
    SNAPSHOT_TIMESTAMP = "snapshot-timestamp"
    DUPLICATE_SNAPSHOT_ID = "duplicate-snapshot-id"
    CONCURRENCY = "concurrency"
    FLUSH = "flush"
    PARTIAL_VALUES_PANIC = "partial-values-panic"
    CONFLICTING_PATH_NOT_FOUND = "conflicting-path-not-found"
    INCONSISTENT_MANIFESTS = "inconsistent-manifests"
    POISON_LOCK = "poison-lock"
    PICKLE = "pickle"
    UNKNOWN = "unknown"
    INVALID_INPUT = "invalid-input"
    """An argument that has no code of its own. The official package does not have this code."""
    OUTCOME_UNKNOWN = "outcome-unknown"
    """A write whose result is not known. The official package does not have this code."""


class IcefloeError(Exception):
    """Base class of all errors that this library raises.

    Parameters
    ----------
    message
        The text of the error. Control characters are escaped.
    kind
        What happened. None means the code of the class.
    **facts
        Details. Each becomes an attribute.

    Examples
    --------
    >>> error = InvalidInputError("there is no dimension 'tiem'", dim="tiem")
    >>> error.dim, error.kind
    ('tiem', <ErrorKind.INVALID_INPUT: 'invalid-input'>)
    """

    kind: ErrorKind = ErrorKind.UNKNOWN
    message: str

    def __init__(self, message: str, kind: str | None = None, **facts: Any) -> None:
        # Messages quote names and texts of repositories, and end in terminals.
        message = printable(message)
        super().__init__(message)
        self.message = message
        self.facts = facts
        if kind is not None:
            self.kind = ErrorKind(kind)
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.message  # a KeyError would show its quoted form

    def __repr__(self) -> str:
        name = "IcechunkError" if type(self) is IcefloeError else type(self).__name__
        package = "icechunk" if name in _OFFICIAL_NAMES else "icefloe"
        message = self.message.replace("\\", "\\\\").replace('"', '\\"')
        return f'{package}.{name}(message="{message}", kind="{self.kind.value}")'

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.kind, self.facts)


def _rebuild(cls: type[IcefloeError], message: str, kind: ErrorKind, facts: dict[str, Any]) -> IcefloeError:
    error = cls.__new__(cls)
    IcefloeError.__init__(error, message, kind, **facts)
    return error


IcechunkError = IcefloeError
_OFFICIAL_NAMES = frozenset(
    {
        *("IcechunkError", "NotFoundError", "RepositoryNotFoundError", "RefNotFoundError", "SnapshotNotFoundError"),
        *("NodeNotFoundError", "AlreadyExistsError", "ConflictError", "RebaseFailedError", "InvalidInputError"),
        *("ReadOnlyError", "SessionStateError", "StorageError", "FormatError", "InternalError"),
    }
)
"""Classes that the official package has under the same name."""


class NotFoundError(IcefloeError, KeyError):
    """The requested object does not exist."""

    kind = ErrorKind.KEY_NOT_FOUND


class RepositoryNotFoundError(NotFoundError):
    """There is no repository at this URL."""

    kind = ErrorKind.REPOSITORY_NOT_FOUND


class RefNotFoundError(NotFoundError):
    """There is no branch or tag with this name."""

    kind = ErrorKind.REF_NOT_FOUND


class SnapshotNotFoundError(NotFoundError):
    """There is no snapshot with this id."""

    kind = ErrorKind.SNAPSHOT_NOT_FOUND


class NodeNotFoundError(NotFoundError):
    """There is no array or group at this path."""

    kind = ErrorKind.NODE_NOT_FOUND


class ObjectNotFoundError(NotFoundError):
    """There is no object with this key in the storage."""

    kind = ErrorKind.OBJECT_NOT_FOUND


class AlreadyExistsError(IcefloeError):
    """The name is already in use."""

    kind = ErrorKind.NODE_ALREADY_EXISTS


class ConflictError(IcefloeError):
    """The branch has new commits since the session started. Rebase the session, then commit again.

    Parameters
    ----------
    expected_parent
        The snapshot that the session started from.
    actual_parent
        The newest snapshot of the branch.
    message
        The text of the error. None means a text with both snapshots.
    kind
        What happened. None means the code of the class.
    **facts
        Details. Each becomes an attribute.
    """

    kind = ErrorKind.COMMIT_CONFLICT
    expected_parent: str | None
    actual_parent: str | None

    def __init__(
        self,
        expected_parent: str | None = None,
        actual_parent: str | None = None,
        message: str | None = None,
        kind: str | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(
            message
            or f"the branch is at snapshot {actual_parent}, the session started from "
            f"{expected_parent}; call session.rebase(...) or commit(..., rebase_with=...)",
            kind,
            expected_parent=expected_parent,
            actual_parent=actual_parent,
            **facts,
        )


def branch_moved(branch: str, expected: str | None, actual: str | None) -> ConflictError:
    """The error for a branch that is not where a change of it expects it."""
    message = f"branch update conflict: {branch!r} is at snapshot {actual}, not at {expected}; look at it and try again"
    return ConflictError(expected, actual, message, "branch-update-conflict")


class RebaseFailedError(ConflictError):
    """The changes of the session conflict with a commit that was made after the session started.

    Parameters
    ----------
    snapshot
        The commit that the changes conflict with.
    conflicts
        The conflicts that the solver did not resolve.
    message
        The text of the error. None means a text with the conflicts.
    **facts
        Details. Each becomes an attribute.
    """

    kind = ErrorKind.REBASE_FAILED
    snapshot: str
    conflicts: Sequence[Any]

    def __init__(
        self, snapshot: str = "", conflicts: Sequence[Any] = (), message: str | None = None, **facts: Any
    ) -> None:
        listed = "; ".join(str(c) for c in list(conflicts)[:5])
        super().__init__(
            message=message or f"cannot rebase over snapshot {snapshot}: {len(conflicts)} conflict(s): {listed}",
            snapshot=snapshot,
            conflicts=list(conflicts),
            **facts,
        )


class InvalidInputError(IcefloeError, ValueError):
    """The request is invalid. The message says what is allowed."""

    kind = ErrorKind.INVALID_INPUT


class UnsupportedError(InvalidInputError):
    """This generation of the format, or this storage, does not support the operation."""

    kind = ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION


class ReadOnlyError(IcefloeError, ValueError):
    """The session, store or repository is read-only."""

    kind = ErrorKind.READ_ONLY_SESSION


class SessionStateError(IcefloeError):
    """The session or repository is not in a state that allows the operation."""

    kind = ErrorKind.NOT_ALLOWED


class StorageError(IcefloeError):
    """The storage failed. Trying again can help."""

    kind = ErrorKind.STORAGE_OTHER


class VersionMismatchError(StorageError):
    """The object has changed since it was read."""


class PermissionDeniedError(StorageError):
    """The storage rejected the credentials."""

    kind = ErrorKind.OBJECT_STORE


class FormatError(IcefloeError):
    """A file is invalid. Trying again does not help."""

    kind = ErrorKind.INVALID_FILE_FORMAT


class UnknownFormatError(FormatError):
    """The format is unknown, or newer than this library."""

    kind = ErrorKind.UNSUPPORTED_SPEC_VERSION


class VirtualChunkError(IcefloeError):
    """A virtual chunk cannot be read: no container, no authorisation, or the file has changed or is damaged."""

    kind = ErrorKind.VIRTUAL_CHUNK_FETCH


class OutcomeUnknownError(IcefloeError):
    """The write may have succeeded. Check the repository before you try again."""

    kind = ErrorKind.OUTCOME_UNKNOWN


class InternalError(IcefloeError):
    """A bug of this library. Please report it."""


class RepositoryExistsError(AlreadyExistsError, InvalidInputError):
    """There is a repository, or there are other objects, where one should be created."""

    kind = ErrorKind.PARENT_DIRECTORY_NOT_CLEAN


class PathOccupiedError(AlreadyExistsError, InvalidInputError):
    """There is a node at the path that a node should move to."""

    kind = ErrorKind.MOVE_WONT_OVERWRITE


class InvalidSnapshotIdError(SnapshotNotFoundError, InvalidInputError):
    """The text is not the id of a snapshot."""

    kind = ErrorKind.INVALID_SNAPSHOT_ID


class ForbiddenChangeError(SessionStateError, InvalidInputError):
    """The repository does not allow this change, in whatever state it is."""


class InvalidTypeError(InvalidInputError, TypeError):
    """A value has a type that is not allowed, such as a time without a time zone."""


class ParentNotFoundError(SessionStateError, NodeNotFoundError):
    """A node cannot be moved into a group that does not exist."""

    kind = ErrorKind.MOVE_DESTINATION_PARENT_MISSING


class NotAnArrayError(NodeNotFoundError, InvalidInputError):
    """There is a group at this path, and an array is needed."""

    kind = ErrorKind.NOT_AN_ARRAY


class UnsupportedVersionError(UnsupportedError, FormatError):
    """The format of this repository is too old for the operation."""

    kind = ErrorKind.UNSUPPORTED_SPEC_VERSION


class FinishedSessionError(SessionStateError, ReadOnlyError):
    """The session is read-only, or became read-only with its commit, so that it cannot commit, fork or rebase."""

    kind = ErrorKind.READ_ONLY_SESSION


class ContainerError(VirtualChunkError, InvalidInputError):
    """No virtual chunk container covers a location, or the container is not authorised."""

    kind = ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK
