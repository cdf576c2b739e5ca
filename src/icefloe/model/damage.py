"""The kinds of damage of a repository."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from icefloe.errors import printable
from icefloe.ids import ObjectId


class DamageKind(enum.Enum):
    """The kind of damage of an object."""

    MISSING = "missing"
    """It is referenced, but does not exist."""
    UNREADABLE = "unreadable"
    """It exists, but its content cannot be read."""
    WRONG_ID = "wrong id"
    """Its content has another id."""
    WRONG_SIZE = "wrong size"
    """Its size or number of references differs from its record in a snapshot."""
    TOO_SHORT = "too short"
    """References end after its last byte."""
    WRONG_EXTENTS = "wrong extents"
    """A manifest contains chunks outside of the extents in the snapshot, so that they are never found."""
    MISQUOTED = "misquoted"
    """Snapshots quote an ancestor that no longer exists."""
    LOG_DIFFERS = "log differs"
    """A transaction log does not match the changes of its snapshot."""
    UNDECODABLE = "undecodable"
    """The bytes of a chunk cannot be decoded."""
    NO_CONTAINER = "no container"
    """Virtual chunks are outside of all configured containers."""
    CHANGED = "changed"
    """A file of virtual chunks changed since the references were written."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage."""

    kind: DamageKind
    what: str
    """snapshot, manifest, attributes, transaction log, chunk, virtual file, list, ref"""
    key: str
    """The object in the storage, or the name of the ref."""
    detail: str
    snapshot_id: ObjectId | None = None
    """A snapshot that it is part of."""
    array: str | None = None
    refs: tuple[str, ...] = ()
    """Branches and tags from which it is reachable."""
    repairable: bool = False

    def __str__(self) -> str:
        where = f" of {self.array}" if self.array else ""
        which = f", snapshot {self.snapshot_id}" if self.snapshot_id and self.snapshot_id not in self.key else ""
        refs = f" ({', '.join(self.refs)})" if self.refs else ""
        return printable(f"{self.what} {self.kind.value}: {self.key}{where}{which}{refs}: {self.detail}")
