"""Switch a repository to another generation: import its refs and history, then remove the old ones.

One object identifies the old generation. As long as it exists, the repository opens in the old generation with all its
refs. It is removed in one step.

A conversion writes all other files first and refs last. The last ref is `main`, or the file that holds all refs. Until
then no reader finds the new generation. From then on every reader finds all of it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icefloe.errors import AlreadyExistsError, ConflictError, ObjectNotFoundError, RefNotFoundError
from icefloe.formats.dataset.state import (
    STATE_CONFIG_KEY,
    STATE_KEY,
    UPDATE_KEY,
    State,
    StateRef,
    encode_state,
    snapshot_entry,
)
from icefloe.formats.flatbuf.files import object_metadata
from icefloe.formats.icechunk2.repo_edits import OVERWRITTEN, Migrated, migrated_repository, new_backup_name
from icefloe.formats.icechunk2.repo_file import Availability, StatusRecord, UpdateKind, UpdateRecord, encode_repo
from icefloe.ids import ObjectId, new_object_id
from icefloe.ledger.contract import MAIN, Ledger, save_config_file
from icefloe.ledger.dataset import DatasetLedger
from icefloe.ledger.generations import GENERATIONS
from icefloe.ledger.icechunk1 import Icechunk1Ledger
from icefloe.ledger.icechunk2 import CONVERTING, REPO_KEY, Icechunk2Ledger
from icefloe.ledger.repository import (
    CONFIG_KEY,
    DOTTED,
    FRESH_SECONDS,
    REFS,
    TAG_TOMBSTONE,
    RepositoryLedger,
    names_generation,
    parse_folder,
    parse_sequence,
    stored_config,
)
from icefloe.model.capabilities import SpecVersion
from icefloe.model.snapshot import SnapshotInfo
from icefloe.storage.contract import Storage

_MAIN = ("r/main/", "r/branch:main/", "refs/branch.main/", "refs/branch:main/")


def takes_precedence(first: SpecVersion, second: SpecVersion) -> bool:
    """Whether a storage that holds both generations opens as the first one."""
    return first > second


async def find_generations(storage: Storage) -> set[SpecVersion]:
    """Every generation that has refs in a storage. More than one while a conversion is in progress."""
    found = set()
    if await storage.exists(REPO_KEY):
        found.add(SpecVersion.ICECHUNK2)
    if await storage.exists("refs/branch.main/ref.json"):
        found.add(SpecVersion.ICECHUNK1)
    for folder in _MAIN:
        if any(parse_sequence(name) for name in await storage.list_names(folder)):
            found.add(SpecVersion.STORE if folder.startswith("r/") else SpecVersion.REPOSITORY)
    if await storage.exists(STATE_KEY):
        found.add(SpecVersion.DATASET)
    if await storage.exists(CONFIG_KEY) and names_generation(await storage.get_versioned(CONFIG_KEY)):
        found.add(SpecVersion.REPOSITORY)
    return found


async def remove_generation_name(storage: Storage, version: SpecVersion) -> None:
    """Remove the name of a generation from the configuration. It is then found only by its refs.

    If the other generation takes precedence, it opens from this step on.
    """
    if version is not SpecVersion.REPOSITORY:
        return
    try:
        found = await storage.get_versioned(CONFIG_KEY)
    except ObjectNotFoundError:
        return
    if not names_generation(found):
        return
    document = stored_config(found).document
    if document is None:
        await storage.delete([CONFIG_KEY])
    else:
        await storage.swap(CONFIG_KEY, json.dumps(document, indent=2).encode(), found.version, unique=False)


async def remove_generation(storage: Storage, version: SpecVersion, successor: SpecVersion) -> None:
    """Remove the refs and the configuration of a generation. Its other files stay."""
    if version is SpecVersion.ICECHUNK2:
        if await storage.exists(REPO_KEY):
            backup = new_backup_name(time.time_ns() // 1000)
            await storage.copy(REPO_KEY, f"{OVERWRITTEN}{backup}")
            await storage.delete([REPO_KEY])
    elif version is SpecVersion.DATASET:
        await storage.delete([STATE_KEY])
    elif (folder := GENERATIONS[version].refs_folder) is not None:
        if version is not SpecVersion.ICECHUNK1:
            # A writer that read a branch a moment ago creates the next file without another read, see FRESH_SECONDS.
            # The announcement of the conversion has that file, until it is removed here.
            await asyncio.sleep(FRESH_SECONDS + 0.1)
        await _remove_refs(storage, folder)
    kept = GENERATIONS[successor].config_keys
    keys = [key for key in GENERATIONS[version].config_keys if key not in kept]
    if keys:
        await storage.delete(keys)


async def _remove_refs(storage: Storage, folder: str) -> None:
    keys: list[str] = []
    async for page in storage.list(folder):
        keys += [item.key for item in page]
    # Names of branch files descend: the newest of `main`, which names its tip, is listed first and removed last.
    main = sorted((key for key in keys if key.startswith(_MAIN)), reverse=True)
    await _delete_one_by_one(storage, main)
    rest = [key for key in keys if not key.startswith(_MAIN)]
    if rest:
        await storage.delete(rest)


async def _delete_one_by_one(storage: Storage, keys: Sequence[str]) -> None:
    for key in keys:
        await storage.delete([key])


_TOLD_BY_HISTORY = frozenset(
    {
        UpdateKind.REPO_INITIALIZED,
        UpdateKind.REPO_MIGRATED,
        UpdateKind.NEW_COMMIT,
        UpdateKind.NEW_DETACHED_SNAPSHOT,
        UpdateKind.BRANCH_CREATED,
        UpdateKind.TAG_CREATED,
        UpdateKind.TAG_DELETED,
    }
)
"""Entries of an operations log that can be told again from snapshots, refs and the names of deleted tags."""


@dataclass(frozen=True, slots=True)
class Administration:
    """Metadata, flags, status and operations log of a repository, in generations that store them."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, bool | None] = field(default_factory=dict)
    status: StatusRecord | None = None
    updates: tuple[UpdateRecord, ...] = ()
    """The whole operations log, newest first."""

    @property
    def restricted(self) -> str | None:
        """The name of the status, unless the repository takes all requests."""
        if self.status is None or self.status.availability is Availability.ONLINE:
            return None
        return self.status.availability.name.lower()

    def operations_beyond_history(self) -> list[str]:
        """The operations of the log that a repository without one does not tell in another way."""
        kinds = [update.kind for update in self.updates if update.kind not in _TOLD_BY_HISTORY]
        return [kind.name.lower().replace("_", " ") for kind in kinds]


@dataclass(frozen=True, slots=True)
class WholeHistory:
    """Everything a ledger keeps: snapshots (parents first), refs, configuration."""

    snapshots: tuple[SnapshotInfo, ...]
    branches: Mapping[str, ObjectId]
    tags: Mapping[str, ObjectId] = field(default_factory=dict)
    deleted_tags: frozenset[str] = frozenset()
    config: Mapping[str, Any] | None = None
    administration: Administration | None = None
    migrated_from: int | None = None
    """The number of the generation whose files these are, if the operations log should record it."""


async def fetch_deleted_tags(ledger: Ledger) -> frozenset[str]:
    """Names that tags had which were deleted: they cannot be given again."""
    if isinstance(ledger, Icechunk2Ledger):
        return (await ledger.fetch_repo_info()).deleted_tags
    found: set[str] = set()
    if isinstance(ledger, RepositoryLedger | Icechunk1Ledger):
        async for page in ledger.storage.list(REFS, after=f"{REFS}tag"):
            for item in page:
                folder, _, file = item.key.removeprefix(REFS).rpartition("/")
                name = parse_folder("tag", f"{folder}/")
                if name and file == TAG_TOMBSTONE:
                    found.add(name)
    return frozenset(found)


def keeps_deleted_tags(ledger: Ledger) -> bool:
    """Whether the generation remembers the names of deleted tags."""
    return isinstance(ledger, RepositoryLedger | Icechunk1Ledger | Icechunk2Ledger)


async def fetch_administration(ledger: Ledger) -> Administration | None:
    """Metadata, flags, status and operations log of a repository. None if its generation does not store them."""
    if not isinstance(ledger, Icechunk2Ledger):
        return None
    updates = tuple([update async for update in ledger.ops_log() if not _is_of_conversion(update.status)])
    status = await ledger.fetch_status()
    if _is_of_conversion(status):
        status = StatusRecord(Availability.ONLINE, status.set_at_us)
    return Administration(await ledger.fetch_metadata(), await ledger.fetch_flags(), status, updates)


def _is_of_conversion(status: StatusRecord | None) -> bool:
    """Whether a conversion in place set this status."""
    return status is not None and status.reason == CONVERTING


async def import_history(ledger: Ledger, history: WholeHistory, *, replace_leftovers: bool = False) -> None:
    """Create refs and history for files that are already there. A second call finishes an interrupted first one.

    With `replace_leftovers`, another generation in the same storage is still the one that opens, so what an interrupted
    run left is replaced. Otherwise AlreadyExistsError is raised when there is another repository.
    """
    if isinstance(ledger, DatasetLedger):
        await _put_whole(ledger, STATE_KEY, _plan_state(history), {}, replace_leftovers)
    elif isinstance(ledger, Icechunk2Ledger):
        await _put_whole(ledger, REPO_KEY, _plan_repo(history), object_metadata("repo-info", 2), replace_leftovers)
    else:
        await _create_refs(ledger, history)


async def _put_whole(
    ledger: DatasetLedger | Icechunk2Ledger, key: str, data: bytes, metadata: Mapping[str, str], replace_leftovers: bool
) -> None:
    """The one file that holds refs and history."""
    try:
        await ledger.storage.create(key, data, metadata=metadata)
    except AlreadyExistsError:
        if not replace_leftovers:
            raise
        found = await ledger.storage.get_versioned(key)
        await ledger.storage.swap(key, data, found.version, metadata=metadata)


def _plan_state(history: WholeHistory) -> bytes:
    refs = {name: StateRef(tip, "branch") for name, tip in history.branches.items()}
    refs |= {name: StateRef(target, "tag") for name, target in history.tags.items()}
    config = {} if history.config is None else {STATE_CONFIG_KEY: dict(history.config)}
    state = State(
        id=new_object_id(),
        generation=1,
        snapshots=tuple(snapshot_entry(info) for info in history.snapshots),
        refs=refs,
        extra={UPDATE_KEY: new_object_id(), **config},
    )
    return encode_state(state)


def _plan_repo(history: WholeHistory) -> bytes:
    administration = history.administration or Administration()
    info = migrated_repository(
        Migrated(
            snapshots=history.snapshots,
            branches=history.branches,
            tags=history.tags,
            deleted_tags=history.deleted_tags,
            config=history.config,
            metadata=administration.metadata,
            flags=administration.flags,
            status=administration.status,
            from_version=history.migrated_from,
            updates=administration.updates,
        )
    )
    return encode_repo(info)


async def _create_refs(ledger: Ledger, history: WholeHistory) -> None:
    """One ref after the other; what an interrupted run left is put right, and `main` comes last."""
    for name in await ledger.list_branches() - history.branches.keys() - {MAIN}:
        await ledger.delete_branch(name)
    for name, tip in history.branches.items():
        if name != MAIN:
            await _put_branch(ledger, name, tip)
    for name, target in history.tags.items():
        await _put_tag(ledger, name, target)
    for name in history.deleted_tags:
        await _put_tombstone(ledger, name)
    if history.config is not None:
        await _put_config(ledger, history.config)
    tip = history.branches[MAIN]
    snapshot = await ledger.metadata_files.fetch_snapshot(tip)  # type: ignore[attr-defined]
    try:
        await ledger.create(snapshot, None)
    except AlreadyExistsError:
        if (await ledger.fetch_tip(MAIN)).snapshot_id != tip:
            raise
        if isinstance(ledger, RepositoryLedger):
            left = await ledger.fetch_config()
            await ledger.save_config(left.document or {}, left.version_token)


async def _put_config(ledger: Ledger, document: Mapping[str, Any]) -> None:
    stored = await ledger.fetch_config()
    if stored.document == document:
        return
    if isinstance(ledger, RepositoryLedger):
        # Without the name of the generation: no repository exists before `main` does.
        await save_config_file(
            ledger.storage, CONFIG_KEY, json.dumps(document, indent=2).encode(), stored.version_token
        )
    else:
        await ledger.save_config(document, stored.version_token)


async def _put_branch(ledger: Ledger, name: str, tip: ObjectId) -> None:
    try:
        await ledger.create_branch(name, tip)
    except AlreadyExistsError:
        await ledger.reset_branch(name, tip, None)


async def _put_tag(ledger: Ledger, name: str, target: ObjectId) -> None:
    try:
        await ledger.create_tag(name, target)
    except AlreadyExistsError:
        found = await _find_tag(ledger, name)
        if found != target:
            raise ConflictError(
                message=f"an earlier, interrupted run left the tag {name!r} at {found}, it has to be at {target}; "
                "empty the target and start again",
                expected_parent=target,
                actual_parent=found,
            ) from None


async def _find_tag(ledger: Ledger, name: str) -> ObjectId | None:
    try:
        return await ledger.fetch_tag(name)
    except RefNotFoundError:
        return None


async def _put_tombstone(ledger: Ledger, name: str) -> None:
    """The name of a deleted tag cannot be used again: its file stays."""
    assert isinstance(ledger, RepositoryLedger | Icechunk1Ledger)
    key = DOTTED.tag_folder(name) + TAG_TOMBSTONE
    try:
        await ledger.storage.create(key, b"", unique=False)
    except AlreadyExistsError:
        return
