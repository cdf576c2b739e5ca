"""What can be wrong with the objects of a repository."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from icefloe.errors import printable
from icefloe.ids import ObjectId


class DamageKind(enum.Enum):
    """What is wrong with an object."""

    MISSING = "missing"
    """Something names it, and it is not there."""
    UNREADABLE = "unreadable"
    """It exists, but its content is not what its name says."""
    WRONG_ID = "wrong id"
    """Its content names another id."""
    WRONG_SIZE = "wrong size"
    """Its size or number of references differs from its record in a snapshot."""
    TOO_SHORT = "too short"
    """References point behind its end."""
    WRONG_EXTENTS = "wrong extents"
    """A manifest holds chunks outside the extents in the snapshot: they are never found."""
    MISQUOTED = "misquoted"
    """Snapshots quote an ancestor that is no longer there."""
    LOG_DIFFERS = "log differs"
    """A transaction log does not match the changes of its snapshot."""
    UNDECODABLE = "undecodable"
    """The bytes of a chunk do not decode."""
    NO_CONTAINER = "no container"
    """Virtual chunks lie where no configured container is."""
    CHANGED = "changed"
    """A file of virtual chunks is no longer the one that they were made for."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong."""

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
    """Branches and tags that lead to it."""
    repairable: bool = False

    def __str__(self) -> str:
        where = f" of {self.array}" if self.array else ""
        which = f", snapshot {self.snapshot_id}" if self.snapshot_id and self.snapshot_id not in self.key else ""
        refs = f" ({', '.join(self.refs)})" if self.refs else ""
        return printable(f"{self.what} {self.kind.value}: {self.key}{where}{which}{refs}: {self.detail}")
