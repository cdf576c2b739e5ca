"""The administration of a repository: its status, feature flags, operations log, and damages that a check finds."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from icefloe.display.card import ShownField, WithFields
from icefloe.errors import printable
from icefloe.ids import ObjectId


class RepoAvailability(enum.Enum):
    """Whether a repository accepts writes."""

    online = 0
    read_only = 1
    offline = 2


@dataclass(frozen=True, slots=True, repr=False)
class RepoStatus(WithFields):
    """Whether a repository can be written to.

    Parameters
    ----------
    availability
        Whether the repository can be written to.
    set_at
        The time when the status was set. The default is now.
    limited_availability_reason
        Why the repository cannot be written to.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
    >>> repo.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.read_only, limited_availability_reason="moving"))
    >>> repo.status.limited_availability_reason
    'moving'
    """

    _full_name = "icechunk.repository.RepoStatus"

    availability: RepoAvailability
    set_at: dt.datetime = None  # type: ignore[assignment]
    limited_availability_reason: str | None = None

    def __post_init__(self) -> None:
        if self.set_at is None:
            object.__setattr__(self, "set_at", dt.datetime.now(dt.UTC))

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("availability", self.availability.name.replace("_", " ").capitalize())
        yield ShownField("set_at", self.set_at)
        yield ShownField("limited_availability_reason", self.limited_availability_reason)


@dataclass(frozen=True, slots=True, repr=False)
class FeatureFlag(WithFields):
    """A feature that a repository can disable for all its writers.

    Parameters
    ----------
    id
        The number of the feature.
    name
        Its name.
    default_enabled
        Whether it is enabled by default.
    setting
        Whether it was enabled or disabled. None: the default applies.

    Examples
    --------
    >>> FeatureFlag(1, "move_node", True, None).enabled
    True
    """

    _full_name = "icechunk.config.FeatureFlag"

    id: int
    name: str
    default_enabled: bool
    setting: bool | None

    @property
    def enabled(self) -> bool:
        """Whether the feature is enabled."""
        return self.default_enabled if self.setting is None else self.setting

    def _shown_fields(self) -> Iterator[ShownField]:
        for name in ("id", "name", "default_enabled", "setting", "enabled"):
            yield ShownField(name, getattr(self, name))


class UpdateType:
    """The operation that an entry of the operations log records. Each kind of operation is a subclass.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
    >>> repo.create_tag("v1", repo.lookup_branch("main"))
    >>> [update.kind.name for update in repo.ops_log() if isinstance(update.kind, icefloe.UpdateType.TagCreated)]
    ['v1']
    """

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
    """The repository was created."""


@dataclass(frozen=True, slots=True)
class RepoMigrated(UpdateType):
    """The repository was converted to another generation."""

    from_version: int
    to_version: int


@dataclass(frozen=True, slots=True)
class RepoStatusChanged(UpdateType):
    """The status of the repository was set."""

    status: RepoStatus


@dataclass(frozen=True, slots=True)
class ConfigChanged(UpdateType):
    """The stored configuration was replaced."""


@dataclass(frozen=True, slots=True)
class MetadataChanged(UpdateType):
    """The metadata of the repository was replaced."""


@dataclass(frozen=True, slots=True)
class FeatureFlagChanged(UpdateType):
    """A feature was enabled, disabled, or (None) set back to its default."""

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
    """A branch was created."""

    name: str


@dataclass(frozen=True, slots=True)
class BranchDeleted(UpdateType):
    """A branch was deleted."""

    name: str
    previous_snap_id: str


@dataclass(frozen=True, slots=True)
class BranchReset(UpdateType):
    """A branch was moved to another snapshot."""

    name: str
    previous_snap_id: str


@dataclass(frozen=True, slots=True)
class NewCommit(UpdateType):
    """A commit was added to a branch."""

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
    """A snapshot was saved without a branch."""

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


@dataclass(frozen=True, slots=True, repr=False)
class Update(WithFields):
    """An entry of the operations log.

    Parameters
    ----------
    kind
        The operation.
    updated_at
        The time of the operation.
    backup_path
        The name in `overwritten/` of the repository file after this operation. None for the latest entry.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="icechunk2")
    >>> [update.kind for update in repo.ops_log()]
    [RepoInitialized()]
    """

    _full_name = "icechunk.ops.Update"

    kind: UpdateType
    updated_at: dt.datetime
    backup_path: str | None = None


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
