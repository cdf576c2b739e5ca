"""What the `repo` file of the second official generation says: refs, history, status, configuration, operations."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from icefloe.formats.flat.metadata_items import RawMetadata
from icefloe.ids import ObjectId

(
    SPEC, TAGS, BRANCHES, DELETED_TAGS, SNAPSHOTS, STATUS, METADATA, UPDATES, UPDATES_BEFORE, CONFIG, ENABLED, DISABLED,
    EXTRA,
) = range(13)  # fmt: skip
"""The fields of the file's table."""


class UpdateKind(enum.IntEnum):
    """What an entry of the operations log records; the value is the union's type byte."""

    REPO_INITIALIZED = 1
    REPO_MIGRATED = 2
    CONFIG_CHANGED = 3
    METADATA_CHANGED = 4
    TAG_CREATED = 5
    TAG_DELETED = 6
    BRANCH_CREATED = 7
    BRANCH_DELETED = 8
    BRANCH_RESET = 9
    NEW_COMMIT = 10
    COMMIT_AMENDED = 11
    NEW_DETACHED_SNAPSHOT = 12
    GC_RAN = 13
    EXPIRATION_RAN = 14
    FEATURE_FLAG_CHANGED = 15
    STATUS_CHANGED = 16


class Availability(enum.IntEnum):
    """Whether a repository takes writes."""

    ONLINE = 0
    READ_ONLY = 1
    OFFLINE = 2


@dataclass(frozen=True, slots=True)
class RepoStatus:
    """Whether a repository takes writes, since when, and why not."""

    availability: Availability
    set_at_us: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class FlagChange:
    """A feature flag set to a value, or back to its default when `is_set` is False."""

    flag_id: int
    value: bool
    is_set: bool


@dataclass(frozen=True, slots=True)
class Update:
    """One entry of the operations log; the fields that its kind does not have are None."""

    kind: UpdateKind
    at_us: int
    backup: str | None = None
    """The name in `overwritten/` of the file that this update's successor replaced; None for the newest."""
    name: str | None = None
    previous_id: ObjectId | None = None
    new_id: ObjectId | None = None
    versions: tuple[int, int] | None = None
    flag: FlagChange | None = None
    status: RepoStatus | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A snapshot as the repo file lists it; metadata stays encoded, so that rewriting keeps it as it was."""

    id: ObjectId
    parent_id: ObjectId | None
    flushed_at_us: int
    message: str
    metadata: RawMetadata = ()
    pruned_logs: tuple[ObjectId, ...] = ()
    """Expired ancestors whose logs, oldest first, are still part of this snapshot's change."""


@dataclass(frozen=True, slots=True)
class RepoInfo:
    """The whole repo file. Snapshots are named by id; their numbers exist only in the file."""

    branches: Mapping[str, ObjectId]
    snapshots: Mapping[ObjectId, SnapshotRecord]
    updates: tuple[Update, ...]
    """Newest first, at least one."""
    status: RepoStatus
    tags: Mapping[str, ObjectId] = field(default_factory=dict)
    deleted_tags: frozenset[str] = frozenset()
    metadata: RawMetadata = ()
    updates_before: str | None = None
    """The name in `overwritten/` of the file that continues the operations log."""
    config: bytes | None = None
    enabled_flags: frozenset[int] = frozenset()
    disabled_flags: frozenset[int] = frozenset()
    extra: bytes | None = None
    spec_version: int = 2
