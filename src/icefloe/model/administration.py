"""What is known of a repository as a whole: whether it takes writes, its feature flags, what was done to it."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass
from typing import ClassVar


class RepoAvailability(enum.Enum):
    """Whether a repository takes writes."""

    online = 0
    read_only = 1
    offline = 2


@dataclass(frozen=True, slots=True)
class RepoStatus:
    """Whether a repository takes writes, since when, and why not."""

    availability: RepoAvailability
    set_at: dt.datetime = None  # type: ignore[assignment]
    """Now, when none is given."""
    limited_availability_reason: str | None = None

    def __post_init__(self) -> None:
        if self.set_at is None:
            object.__setattr__(self, "set_at", dt.datetime.now(dt.UTC))


@dataclass(frozen=True, slots=True)
class FeatureFlag:
    """An operation that a repository can forbid to its writers."""

    id: int
    name: str
    default_enabled: bool
    setting: bool | None
    """What was set; None when the default holds."""

    @property
    def enabled(self) -> bool:
        """Whether the feature may be used."""
        return self.default_enabled if self.setting is None else self.setting


class UpdateType:
    """What an entry of the operations log records: one of the classes below, each with what belongs to it."""

    __slots__ = ()

    RepoInitialized: ClassVar[type[RepoInitialized]]
    RepoMigrated: ClassVar[type[RepoMigrated]]
    RepoStatusChanged: ClassVar[type[RepoStatusChanged]]
    ConfigChanged: ClassVar[type[ConfigChanged]]
    MetadataChanged: ClassVar[type[MetadataChanged]]
    FeatureFlagChanged: ClassVar[type[FeatureFlagChanged]]
    TagCreated: ClassVar[type[TagCreated]]
    TagDeleted: ClassVar[type[TagDeleted]]
    BranchCreated: ClassVar[type[BranchCreated]]
    BranchDeleted: ClassVar[type[BranchDeleted]]
    BranchReset: ClassVar[type[BranchReset]]
    NewCommit: ClassVar[type[NewCommit]]
    CommitAmended: ClassVar[type[CommitAmended]]
    NewDetachedSnapshot: ClassVar[type[NewDetachedSnapshot]]
    GCRan: ClassVar[type[GCRan]]
    ExpirationRan: ClassVar[type[ExpirationRan]]


@dataclass(frozen=True, slots=True)
class RepoInitialized(UpdateType):
    """The repository was made."""


@dataclass(frozen=True, slots=True)
class RepoMigrated(UpdateType):
    """The repository was brought to another generation."""

    from_version: int
    to_version: int


@dataclass(frozen=True, slots=True)
class RepoStatusChanged(UpdateType):
    """The repository takes writes again, or no longer."""

    status: RepoStatus


@dataclass(frozen=True, slots=True)
class ConfigChanged(UpdateType):
    """Another configuration was stored."""


@dataclass(frozen=True, slots=True)
class MetadataChanged(UpdateType):
    """Other metadata of the repository was stored."""


@dataclass(frozen=True, slots=True)
class FeatureFlagChanged(UpdateType):
    """A feature was switched on, off, or (None) back to its default."""

    id: int
    new_value: bool | None


@dataclass(frozen=True, slots=True)
class TagCreated(UpdateType):
    """A new tag."""

    name: str


@dataclass(frozen=True, slots=True)
class TagDeleted(UpdateType):
    """A tag went."""

    name: str
    previous_snap_id: str


@dataclass(frozen=True, slots=True)
class BranchCreated(UpdateType):
    """A new branch."""

    name: str


@dataclass(frozen=True, slots=True)
class BranchDeleted(UpdateType):
    """A branch went."""

    name: str
    previous_snap_id: str


@dataclass(frozen=True, slots=True)
class BranchReset(UpdateType):
    """A branch was pointed at another snapshot."""

    name: str
    previous_snap_id: str


@dataclass(frozen=True, slots=True)
class NewCommit(UpdateType):
    """A commit landed on a branch."""

    branch: str
    new_snap_id: str


@dataclass(frozen=True, slots=True)
class CommitAmended(UpdateType):
    """The newest commit of a branch was replaced."""

    branch: str
    previous_snap_id: str
    new_snap_id: str


@dataclass(frozen=True, slots=True)
class NewDetachedSnapshot(UpdateType):
    """A snapshot was saved that no branch points at."""

    new_snap_id: str


@dataclass(frozen=True, slots=True)
class GCRan(UpdateType):
    """Garbage was collected."""


@dataclass(frozen=True, slots=True)
class ExpirationRan(UpdateType):
    """Old snapshots were expired."""


for _kind in (
    RepoInitialized,
    RepoMigrated,
    RepoStatusChanged,
    ConfigChanged,
    MetadataChanged,
    FeatureFlagChanged,
    TagCreated,
    TagDeleted,
    BranchCreated,
    BranchDeleted,
    BranchReset,
    NewCommit,
    CommitAmended,
    NewDetachedSnapshot,
    GCRan,
    ExpirationRan,
):
    setattr(UpdateType, _kind.__name__, _kind)


@dataclass(frozen=True, slots=True)
class Update:
    """An entry of the operations log."""

    kind: UpdateType
    updated_at: dt.datetime
    backup_path: str | None = None
    """The name in `overwritten/` of the repository file as it was after this update; None for the newest one."""
