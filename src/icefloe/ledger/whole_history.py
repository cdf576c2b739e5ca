"""All refs and all history of a repository as one value, and how a ledger takes them over at once.

A repository that is converted has its files first. Refs come last, and of these `main`, or the one file that holds them
all: until then nobody finds a repository of the new generation, from then on everybody finds all of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from icefloe.errors import AlreadyExistsError, ConflictError, RefNotFoundError
from icefloe.formats.dataset.state import (
    CONFIG_KEY,
    STATE_KEY,
    UPDATE_KEY,
    State,
    StateRef,
    encode_state,
    snapshot_entry,
)
from icefloe.formats.flat.files import object_metadata
from icefloe.formats.icechunk2.migration import Migrated, migrated_repository
from icefloe.formats.icechunk2.repo_info import RepoStatus, Update
from icefloe.formats.icechunk2.repo_writer import encode_repo
from icefloe.ids import ObjectId, new_object_id
from icefloe.ledger.config_file import save_config_file
from icefloe.ledger.contract import Ledger
from icefloe.ledger.dataset import DatasetLedger
from icefloe.ledger.icechunk1 import Icechunk1Ledger
from icefloe.ledger.icechunk2 import REPO_KEY, Icechunk2Ledger
from icefloe.ledger.names import MAIN
from icefloe.ledger.sequence import CONFIG_KEY as SEQUENCE_CONFIG
from icefloe.ledger.sequence import SequenceLedger
from icefloe.ledger.sequence_files import DOTTED, REFS, TAG_TOMBSTONE, parse_folder
from icefloe.model.snapshot import SnapshotInfo


@dataclass(frozen=True, slots=True)
class Administration:
    """What a repository says of itself as a whole, where its generation has a place for it."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, bool | None] = field(default_factory=dict)
    status: RepoStatus | None = None
    updates: tuple[Update, ...] = ()
    """The whole operations log, newest first."""


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
    """The number of the generation whose files these are, where the operations log should tell of it."""


async def fetch_deleted_tags(ledger: Ledger) -> frozenset[str]:
    """Names that tags had which were deleted: they cannot be given again."""
    if isinstance(ledger, Icechunk2Ledger):
        return (await ledger.fetch_repo_info()).deleted_tags
    found: set[str] = set()
    if isinstance(ledger, SequenceLedger | Icechunk1Ledger):
        async for page in ledger.storage.list(REFS, after=f"{REFS}tag"):
            for item in page:
                folder, _, file = item.key.removeprefix(REFS).rpartition("/")
                name = parse_folder("tag", f"{folder}/")
                if name and file == TAG_TOMBSTONE:
                    found.add(name)
    return frozenset(found)


def keeps_deleted_tags(ledger: Ledger) -> bool:
    """Whether the generation remembers the names of deleted tags."""
    return isinstance(ledger, SequenceLedger | Icechunk1Ledger | Icechunk2Ledger)


async def fetch_administration(ledger: Ledger) -> Administration | None:
    """What a repository says of itself as a whole; None where it has no place for that."""
    if not isinstance(ledger, Icechunk2Ledger):
        return None
    updates = tuple([update async for update in ledger.ops_log()])
    return Administration(
        await ledger.fetch_metadata(), await ledger.fetch_flags(), await ledger.fetch_status(), updates
    )


async def adopt(ledger: Ledger, history: WholeHistory, *, beside: bool = False) -> None:
    """Make a repository of files that are there; doing it again after an interruption finishes it.

    `beside` says that another generation at the same place is still the one that is found: what an interrupted run left
    is replaced. Otherwise AlreadyExistsError when there is another repository.
    """
    if isinstance(ledger, DatasetLedger):
        await _put_whole(ledger, STATE_KEY, _plan_state(history), {}, beside)
    elif isinstance(ledger, Icechunk2Ledger):
        await _put_whole(ledger, REPO_KEY, _plan_repo(history), object_metadata("repo-info", 2), beside)
    else:
        await _create_refs(ledger, history)


async def _put_whole(
    ledger: DatasetLedger | Icechunk2Ledger, key: str, data: bytes, metadata: Mapping[str, str], beside: bool
) -> None:
    """The one file that holds refs and history."""
    try:
        await ledger.storage.create(key, data, metadata=metadata)
    except AlreadyExistsError:
        if not beside:
            raise
        found = await ledger.storage.get_versioned(key)
        await ledger.storage.swap(key, data, found.version, metadata=metadata)


def _plan_state(history: WholeHistory) -> bytes:
    refs = {name: StateRef(tip, "branch") for name, tip in history.branches.items()}
    refs |= {name: StateRef(target, "tag") for name, target in history.tags.items()}
    config = {} if history.config is None else {CONFIG_KEY: dict(history.config)}
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
    snapshot = await ledger.archive.fetch_snapshot(tip)  # type: ignore[attr-defined]
    try:
        await ledger.create(snapshot, None)
    except AlreadyExistsError:
        if (await ledger.fetch_tip(MAIN)).snapshot_id != tip:
            raise
        if isinstance(ledger, SequenceLedger):
            left = await ledger.fetch_config()
            await ledger.save_config(left.document or {}, left.mark)


async def _put_config(ledger: Ledger, document: Mapping[str, Any]) -> None:
    stored = await ledger.fetch_config()
    if stored.document == document:
        return
    if isinstance(ledger, SequenceLedger):
        # Without the name of the generation, which says that there is a repository: there is none before `main`.
        await save_config_file(ledger.storage, SEQUENCE_CONFIG, json.dumps(document, indent=2).encode(), stored.mark)
    else:
        await ledger.save_config(document, stored.mark)


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
                f"an earlier, interrupted run left the tag {name!r} at {found}, it has to be at {target}; "
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
    """The name of a deleted tag stays taken: the file says so by being there."""
    assert isinstance(ledger, SequenceLedger | Icechunk1Ledger)
    key = DOTTED.tag_folder(name) + TAG_TOMBSTONE
    try:
        await ledger.storage.create(key, b"", unique=False)
    except AlreadyExistsError:
        return
