"""Refs and history of the second official generation: everything is in the `repo` file, and every change swaps it."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Set
from typing import Any

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    ObjectNotFoundError,
    ReadOnlyError,
    RepositoryExistsError,
    RepositoryNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
    VersionMismatchError,
)
from icefloe.formats.flatbuf.files import object_metadata
from icefloe.formats.flatbuf.flexbuffers import decode_flexible, decode_metadata
from icefloe.formats.icechunk2 import repo_edits as edits
from icefloe.formats.icechunk2.repo_edits import (
    OVERWRITTEN,
    Edit,
    Migrated,
    migrated_repository,
    new_backup_name,
    next_update_time,
    plan_removal,
    push_update,
)
from icefloe.formats.icechunk2.repo_file import (
    FLAGS,
    Availability,
    RepoHead,
    RepoInfo,
    SnapshotRecord,
    StatusRecord,
    UpdateKind,
    UpdateRecord,
    decode_repo,
    describe_repo,
    encode_repo,
    list_flags,
    public_status,
    public_update,
    read_repo_head,
)
from icefloe.ids import ObjectId
from icefloe.ledger.icechunk1 import CONTENTION
from icefloe.ledger.ledger import (
    Administration,
    HistoryChange,
    Ledger,
    RefTargets,
    RepositoryAdministration,
    StaleTipError,
    StoredConfig,
    Tip,
    WholeHistory,
    WholeRefsFile,
    check_name,
    check_new_name,
)
from icefloe.ledger.switch_generation import put_whole
from icefloe.metadata_files import MetadataFiles
from icefloe.model.snapshot import Snapshot, SnapshotInfo, from_microseconds
from icefloe.model.status import FeatureFlag, RepoAvailability, RepoStatus, Update
from icefloe.storage.contract import Storage, Versioned

REPO_KEY = "repo"
CONVERTING = "a conversion to another generation is in progress or was interrupted"
"""The reason of the read-only status during a conversion in place."""
_SPEC = 2
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
"""Entries of an operations log that follow from snapshots, refs and the names of deleted tags."""


class SeenRepo:
    """A repo file as it was read, and the version token for replacing it. Only requested parts are decoded."""

    __slots__ = ("_info", "data", "head", "version")

    def __init__(self, found: Versioned, info: RepoInfo | None = None, head: RepoHead | None = None) -> None:
        self.data = found.data
        self.version = found.version
        self.head = head or read_repo_head(found.data)
        self._info = info

    def seen_again(self, found: Versioned) -> SeenRepo:
        """The file of a later read. An unchanged file is not decoded again."""
        return SeenRepo(found, self._info, self.head) if found.data == self.data else SeenRepo(found)

    @property
    def info(self) -> RepoInfo:
        """The whole content of the file."""
        if self._info is None:
            self._info = decode_repo(self.data)
        return self._info


class Icechunk2Ledger(Ledger):
    """The repo file of one repository. The last one read is kept, so that an unchanged file is decoded once."""

    refs_are_files = False
    keeps_pruned_logs = True
    expires_at_once = True
    keeps_deleted_tags = True
    refs_are_checked = True

    @property
    def administration(self) -> Icechunk2Administration:
        return Icechunk2Administration(self)

    def __init__(self, storage: Storage, metadata_files: MetadataFiles) -> None:
        self.storage = storage
        self.metadata_files = metadata_files
        self._seen: SeenRepo | None = None
        self._seen_by_other: SeenRepo | None = None

    async def create(self, initial: Snapshot, config: Mapping[str, Any] | None) -> None:
        info = edits.new_repository(initial, config, _now_us())
        data = encode_repo(info)
        try:
            version = await self.storage.create(REPO_KEY, data, metadata=object_metadata("repo-info", _SPEC))
        except AlreadyExistsError as error:
            raise RepositoryExistsError(f"there is a repository at {self.storage.url} already") from error
        self._seen = SeenRepo(Versioned(data, version), info)

    async def import_history(self, history: WholeHistory, *, replace_leftovers: bool = False) -> None:
        metadata = object_metadata("repo-info", _SPEC)
        await put_whole(
            self.storage, REPO_KEY, _plan_repo(history), metadata=metadata, replace_leftovers=replace_leftovers
        )

    @staticmethod
    async def remove(storage: Storage) -> None:
        if await storage.exists(REPO_KEY):
            backup = new_backup_name(time.time_ns() // 1000)
            await storage.copy(REPO_KEY, f"{OVERWRITTEN}{backup}")
            await storage.delete([REPO_KEY])

    async def fetch_deleted_tags(self) -> frozenset[str]:
        return (await self.fetch_repo_info()).deleted_tags

    async def export_administration(self) -> Administration:
        updates = tuple([update async for update in self.ops_log() if not _is_of_conversion(update.status)])
        status = await self.fetch_status()
        if _is_of_conversion(status):
            status = StatusRecord(Availability.ONLINE, status.set_at_us)
        kinds = [update.kind for update in updates if update.kind not in _TOLD_BY_HISTORY]
        return Administration(
            await self.fetch_metadata(),
            await self.fetch_flags(),
            status,
            updates,
            None if status.availability is Availability.ONLINE else status.availability.name.lower(),
            tuple(kind.name.lower().replace("_", " ") for kind in kinds),
        )

    def remember(self, found: Versioned) -> None:
        self._seen = SeenRepo(found)

    def learn_from(self, other: Ledger) -> None:
        if isinstance(other, Icechunk2Ledger):
            self._seen_by_other = other._seen

    def note_tip(self, branch: str, tip: Tip) -> None:
        if isinstance(tip.collection, SeenRepo):
            self._seen = tip.collection

    def recall_tip(self, branch: str) -> ObjectId | None:
        return None if self._seen is None else self._seen.head.find_branch(branch)

    async def fetch(self) -> SeenRepo:
        """Fetch the current repo file in one request."""
        try:
            found = await self.storage.get_versioned(REPO_KEY)
        except ObjectNotFoundError as error:
            raise RepositoryNotFoundError(f"no repository at {self.storage.url}: there is no `repo` file") from error
        before = self._seen or self._seen_by_other
        self._seen = seen = SeenRepo(found) if before is None else before.seen_again(found)
        return seen

    async def fetch_repo_info(self) -> RepoInfo:
        """The current content of the repo file."""
        return (await self.fetch()).info

    async def check_writable(self) -> None:
        _require_online((await self.fetch()).head.status)

    async def check_convertible(self) -> None:
        status = (await self.fetch()).head.status
        if status.reason != CONVERTING:
            _require_online(status)

    async def announce_conversion(self) -> None:
        """Set the repository to read-only. Writers of the official package respect this too."""

        def edit(info: RepoInfo, now_us: int) -> Edit | None:
            if info.status.reason == CONVERTING:
                return None
            return edits.set_status(info, Availability.READ_ONLY, CONVERTING, now_us)

        await self._apply(edit, while_offline=True)

    async def fetch_tip(self, branch: str) -> Tip:
        check_name(branch, "branch", is_file_name=False)
        seen = await self.fetch()
        return Tip(seen.head.find_branch(branch) or edits.branch_tip(seen.info, branch), seen.version, seen)

    async def fetch_tag(self, tag: str) -> ObjectId:
        check_name(tag, "tag", is_file_name=False)
        seen = await self.fetch()
        return seen.head.find_tag(tag) or edits.find_tag(seen.info, tag)

    async def fetch_targets(self) -> tuple[dict[str, ObjectId], dict[str, ObjectId]]:
        info = await self.fetch_repo_info()
        return dict(info.branches), dict(info.tags)

    async def fetch_graph(self) -> tuple[RefTargets, Mapping[ObjectId, SnapshotInfo]]:
        info = await self.fetch_repo_info()
        return RefTargets(dict(info.branches), dict(info.tags)), _infos_of(info)

    async def list_branches(self) -> set[str]:
        return set((await self.fetch_repo_info()).branches)

    async def list_tags(self) -> set[str]:
        return set((await self.fetch_repo_info()).tags)

    async def advance(self, branch: str, tip: Tip, snapshot: Snapshot, *, amends: ObjectId | None = None) -> Tip:
        check_name(branch, "branch", is_file_name=False)

        def edit(info: RepoInfo, now_us: int) -> Edit | None:
            if snapshot.id in info.snapshots and snapshot.id in _history(info, edits.branch_tip(info, branch)):
                return None  # an earlier attempt succeeded, but its response was lost
            now = Tip(edits.branch_tip(info, branch), None, info)
            if now.snapshot_id == tip.snapshot_id and self.collected_since(tip, now):
                raise StaleTipError(now)
            if amends is not None:
                return edits.add_amendment(info, branch, tip.snapshot_id, snapshot)
            return edits.add_commit(info, branch, tip.snapshot_id, snapshot)

        def check(head: RepoHead) -> None:
            # Whoever lost a race needs one ref of the new file, not the whole history.
            found = head.find_branch(branch)
            if found is not None and found != tip.snapshot_id and not head.may_list(snapshot.id):
                raise ConflictError(expected_parent=tip.snapshot_id, actual_parent=found)

        known = self._seen
        start = known if known is not None and known.version == tip.version_token else None
        landed = await self._apply(edit, start, check=check)
        return Tip(snapshot.id, landed.version, landed)

    def collected_since(self, earlier: Tip, later: Tip) -> bool:
        before, after = _info_of(earlier.collection), _info_of(later.collection)
        return before is not after and _last_collection(before) != _last_collection(after)

    async def announce_collection(self, collection_id: str, *, soon: bool) -> None:
        await self._apply(lambda info, now_us: Edit(info, UpdateRecord(UpdateKind.GC_RAN, 0)))

    async def log_collection(self) -> None:
        await self._apply(lambda info, now_us: Edit(info, UpdateRecord(UpdateKind.GC_RAN, 0)))

    async def log_expiry(self) -> None:
        await self._apply(lambda info, now_us: Edit(info, UpdateRecord(UpdateKind.EXPIRATION_RAN, 0)))

    async def record_detached(self, snapshot: Snapshot) -> None:
        await self._apply(
            lambda info, now_us: None if snapshot.id in info.snapshots else edits.add_detached(info, snapshot)
        )

    async def create_branch(self, branch: str, snapshot_id: ObjectId) -> None:
        check_new_name(branch, "branch", is_file_name=False)
        await self._apply(lambda info, now_us: edits.create_branch(info, branch, snapshot_id))

    async def reset_branch(self, branch: str, snapshot_id: ObjectId, expected: ObjectId | None) -> ObjectId:
        check_name(branch, "branch", is_file_name=False)
        current = snapshot_id

        def edit(info: RepoInfo, now_us: int) -> Edit | None:
            nonlocal current
            current = edits.branch_tip(info, branch)
            return edits.reset_branch(info, branch, snapshot_id, expected)

        await self._apply(edit)
        return current

    async def replace_tip(self, branch: str, tip: Tip, snapshot_id: ObjectId) -> None:
        check_name(branch, "branch", is_file_name=False)

        def edit(info: RepoInfo, now_us: int) -> Edit | None:
            now = Tip(edits.branch_tip(info, branch), None, info)
            if now.snapshot_id == snapshot_id:
                return None
            record = info.snapshots.get(snapshot_id)
            is_cut_off = record is None or (record.parent_id is not None and record.parent_id not in info.snapshots)
            # The file of the snapshot may have been collected since, because nothing referred to it.
            if now.snapshot_id == tip.snapshot_id and (is_cut_off or self.collected_since(tip, now)):
                raise StaleTipError(now)
            return edits.reset_branch(info, branch, snapshot_id, tip.snapshot_id)

        await self._apply(edit)

    async def delete_branch(self, branch: str) -> None:
        check_name(branch, "branch", is_file_name=False)
        await self._apply(lambda info, now_us: edits.delete_branch(info, branch))

    async def create_tag(self, tag: str, snapshot_id: ObjectId) -> None:
        check_new_name(tag, "tag", is_file_name=False)
        await self._apply(lambda info, now_us: edits.create_tag(info, tag, snapshot_id))

    async def delete_tag(self, tag: str) -> None:
        check_name(tag, "tag", is_file_name=False)
        await self._apply(lambda info, now_us: edits.delete_tag(info, tag))

    async def ancestry(self, snapshot_id: ObjectId) -> AsyncIterator[SnapshotInfo]:
        info = await self.fetch_repo_info()
        for ancestor in _listed_history(info, snapshot_id):
            yield ancestor

    async def ancestry_at(self, tip: Tip) -> AsyncIterator[SnapshotInfo]:
        for ancestor in _listed_history(_info_of(tip.collection) or await self.fetch_repo_info(), tip.snapshot_id):
            yield ancestor

    async def fetch_info(self, snapshot_id: ObjectId) -> SnapshotInfo:
        return to_snapshot_info(_find_record(await self.fetch_repo_info(), snapshot_id))

    async def fetch_listed(self) -> Mapping[ObjectId, SnapshotInfo]:
        return await self.fetch_snapshot_infos()

    async def fetch_snapshot_infos(self) -> dict[ObjectId, SnapshotInfo]:
        """Every snapshot the repository lists, reachable or not."""
        return _infos_of(await self.fetch_repo_info())

    async def fetch_pruned_logs(self, snapshot_id: ObjectId, tip: Tip | None = None) -> tuple[ObjectId, ...]:
        """Expired ancestors whose logs, oldest first, come before the snapshot's own when it is compared."""
        info = None if tip is None else _info_of(tip.collection)
        return _find_record(info or await self.fetch_repo_info(), snapshot_id).pruned_logs

    async def fetch_all_pruned_logs(self) -> frozenset[ObjectId]:
        info = await self.fetch_repo_info()
        return frozenset(log for record in info.snapshots.values() for log in record.pruned_logs)

    async def fetch_config(self) -> StoredConfig:
        return _decode_config((await self.fetch()).head)

    async def save_config(self, document: Mapping[str, Any], version_token: Any) -> None:
        def edit(info: RepoInfo, now_us: int) -> Edit:
            if info.config != version_token:
                raise ConflictError(
                    message="the stored configuration changed since it was read. Fetch it again, then save"
                )
            return edits.set_config(info, document)

        await self._apply(edit)

    async def fetch_status(self) -> StatusRecord:
        """Whether the repository accepts writes, since when, and the reason."""
        return (await self.fetch_repo_info()).status

    async def set_status(self, availability: Availability, reason: str | None = None) -> None:
        """Set whether the repository accepts writes."""
        await self._apply(lambda info, now_us: edits.set_status(info, availability, reason, now_us), while_offline=True)

    async def fetch_metadata(self) -> dict[str, Any]:
        """The metadata of the repository."""
        return decode_metadata((await self.fetch_repo_info()).metadata, _SPEC)

    async def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the repository."""
        await self._apply(lambda info, now_us: edits.set_metadata(info, metadata))

    async def update_metadata(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Set some keys of the metadata and keep the others. Returns all metadata."""

        def edit(info: RepoInfo, now_us: int) -> Edit:
            return edits.set_metadata(info, {**decode_metadata(info.metadata, _SPEC), **changes})

        return decode_metadata((await self._apply(edit)).info.metadata, _SPEC)

    async def fetch_flags(self) -> dict[str, bool | None]:
        """Feature flags by name: on, off, or None for the default, which is on."""
        info = await self.fetch_repo_info()
        return {
            name: True if flag in info.enabled_flags else False if flag in info.disabled_flags else None
            for name, flag in FLAGS.items()
        }

    async def check_feature(self, name: str) -> None:
        if (await self.fetch_flags()).get(name) is False:
            raise SessionStateError(
                f"the feature {name!r} is disabled in this repository. Enable it with repo.set_feature_flag({name!r}, "
                "None)",
                feature=name,
            )

    async def set_flag(self, name: str, value: bool | None) -> None:
        """Enable or disable a feature, or restore its default."""
        await self._apply(lambda info, now_us: edits.set_flag(info, name, value))

    async def ops_log(self) -> AsyncIterator[UpdateRecord]:
        """The operations log, newest first. It ends where a backup is missing."""
        info = await self.fetch_repo_info()
        for update in info.updates:
            yield update
        page = info.updates_before
        seen: set[str] = set()
        while page is not None and page not in seen:
            seen.add(page)
            try:
                data = await self.storage.get(f"{OVERWRITTEN}{page}")
            except ObjectNotFoundError:
                return
            info = decode_repo(data)
            yield dataclasses.replace(info.updates[0], backup=page)
            for update in info.updates[1:]:
                yield update
            page = info.updates_before

    async def change_history(self, change: HistoryChange) -> None:
        """Apply a planned expiry in one atomic step. Snapshots that refs point to at that time are kept."""

        def edit(info: RepoInfo, now_us: int) -> Edit | None:
            planned = plan_removal(info, change.expired, change.branches, change.tags)
            return planned.edit if planned.expiry.changes_anything else None

        # A plan that was made just now comes with the file that it was made from. Another one is never replaced.
        known, self._seen_by_other = self._seen_by_other, None
        await self._apply(edit, known, copies_known=True)

    async def forget_snapshots(self, ids: Set[ObjectId]) -> frozenset[ObjectId]:
        """Garbage collection: remove unreachable snapshots from the list, before their files are deleted.

        Returns them.
        """
        outcome: list[frozenset[ObjectId]] = []

        def edit(info: RepoInfo, now_us: int) -> Edit | None:
            planned, gone = edits.forget_snapshots(info, ids)
            outcome[:] = [gone]
            return planned

        await self._apply(edit)
        return outcome[0]

    async def _apply(
        self,
        edit: Callable[[RepoInfo, int], Edit | None],
        known: SeenRepo | None = None,
        *,
        while_offline: bool = False,
        check: Callable[[RepoHead], None] | None = None,
        copies_known: bool = False,
    ) -> SeenRepo:
        """Change the repo file in one atomic step. If another writer changed it, the edit is repeated.

        `check` may refuse the edit before the whole file is decoded. With `copies_known`, the backup of a known file is
        written from memory. That saves a request if few others change the file.
        """
        for number, pause in enumerate(CONTENTION.pauses()):
            seen = known if number == 0 and known is not None else await self.fetch()
            if not while_offline:
                _require_online(seen.head.status)
            if check is not None:
                check(seen.head)
            now_us = next_update_time(seen.info, _now_us())
            planned = edit(seen.info, now_us)
            if planned is None:
                return seen
            backup = new_backup_name(now_us)
            info = push_update(planned.info, dataclasses.replace(planned.update, at_us=now_us), backup)
            data = await asyncio.to_thread(encode_repo, info) if len(seen.data) > 1 << 16 else encode_repo(info)
            from_memory = copies_known and seen is known
            try:
                if from_memory:
                    metadata = object_metadata("repo-info", _SPEC)
                    await self.storage.put(f"{OVERWRITTEN}{backup}", seen.data, metadata=metadata)
                else:
                    await self.storage.copy(REPO_KEY, f"{OVERWRITTEN}{backup}", version=seen.version)
                version = await self.storage.swap(
                    REPO_KEY, data, seen.version, metadata=object_metadata("repo-info", _SPEC)
                )
            except VersionMismatchError:
                if from_memory:
                    await self.storage.delete([f"{OVERWRITTEN}{backup}"])
                await asyncio.sleep(pause if number > 2 else 0)
                continue
            self._seen = replaced = SeenRepo(Versioned(data, version), info)
            return replaced
        raise StorageError(
            f"other writers replaced the `repo` file of {self.storage.url} in each of {CONTENTION.max_tries} attempts. "
            "Try again"
        )


def _info_of(seen: SeenRepo | RepoInfo | None) -> RepoInfo | None:
    return seen.info if isinstance(seen, SeenRepo) else seen


def _last_collection(info: RepoInfo | None) -> int | None:
    """The time of the last garbage collection in this file. The operations log continues in older files."""
    return None if info is None else next((u.at_us for u in info.updates if u.kind is UpdateKind.GC_RAN), None)


def _infos_of(info: RepoInfo) -> dict[ObjectId, SnapshotInfo]:
    return {key: to_snapshot_info(record) for key, record in info.snapshots.items()}


def to_snapshot_info(record: SnapshotRecord) -> SnapshotInfo:
    """The history entry of a listed snapshot. The manifests are in its own file."""
    return SnapshotInfo(
        record.id,
        record.parent_id,
        from_microseconds(record.flushed_at_us),
        record.message,
        decode_metadata(record.metadata, _SPEC),
    )


def stored_config(repo: Versioned) -> StoredConfig:
    """The configuration in a repo file that was already read."""
    return _decode_config(read_repo_head(repo.data))


def _decode_config(head: RepoHead) -> StoredConfig:
    config = head.config
    if config is None:
        return StoredConfig(None, None)
    document = decode_flexible(config)
    if not isinstance(document, dict):
        raise FormatError(f"the stored configuration is a {type(document).__name__}, expected a map")
    return StoredConfig(document, config)


def _history(info: RepoInfo, snapshot_id: ObjectId) -> list[ObjectId]:
    """A snapshot and its ancestors, newest first."""
    found: dict[ObjectId, None] = {}
    current: ObjectId | None = snapshot_id
    while current is not None:
        if current in found:
            raise FormatError(f"the history of snapshot {snapshot_id} contains {current} twice. Run `icefloe verify`")
        found[current] = None
        current = info.snapshots[current].parent_id
    return list(found)


def _listed_history(info: RepoInfo, snapshot_id: ObjectId) -> Iterator[SnapshotInfo]:
    _find_record(info, snapshot_id)
    for ancestor in _history(info, snapshot_id):
        yield to_snapshot_info(info.snapshots[ancestor])


def _find_record(info: RepoInfo, snapshot_id: ObjectId) -> SnapshotRecord:
    record = info.snapshots.get(snapshot_id)
    if record is None:
        raise SnapshotNotFoundError(
            f"no snapshot {snapshot_id} in this repository. `icefloe log` lists the snapshots of a branch",
            snapshot_id=snapshot_id,
        )
    return record


def _require_online(status: StatusRecord) -> None:
    if status.availability is not Availability.ONLINE:
        word = status.availability.name.lower().replace("_", "-")
        reason = f": {status.reason}" if status.reason else ""
        raise ReadOnlyError(
            f"the repository status is {word} since {from_microseconds(status.set_at_us):%Y-%m-%d %H:%M}{reason}; "
            "set it to online to write",
            "read-only-repository",
        )


def _now_us() -> int:
    return time.time_ns() // 1000


def _is_of_conversion(status: StatusRecord | None) -> bool:
    """Whether a conversion in place set this status."""
    return status is not None and status.reason == CONVERTING


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


class Icechunk2Administration(RepositoryAdministration):
    """Status, metadata, feature flags and operations log of the `repo` file."""

    def __init__(self, ledger: Icechunk2Ledger) -> None:
        self._ledger = ledger

    async def fetch_status(self) -> RepoStatus:
        return public_status(await self._ledger.fetch_status())

    async def set_status(self, availability: RepoAvailability, reason: str | None) -> None:
        await self._ledger.set_status(Availability(availability.value), reason)

    async def fetch_metadata(self) -> dict[str, Any]:
        return await self._ledger.fetch_metadata()

    async def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        await self._ledger.set_metadata(metadata)

    async def update_metadata(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        return await self._ledger.update_metadata(changes)

    async def fetch_flags(self) -> list[FeatureFlag]:
        return list_flags(await self._ledger.fetch_flags())

    async def set_flag(self, name: str, value: bool | None) -> None:
        await self._ledger.set_flag(name, value)

    async def ops_log(self) -> AsyncIterator[Update]:
        async for update in self._ledger.ops_log():
            yield public_update(update)

    async def describe(self) -> dict[str, Any]:
        seen = await self._ledger.fetch()
        return describe_repo(seen.info, seen.data)


class RepoFile(WholeRefsFile):
    """The file `repo`, with earlier contents in `overwritten/`."""

    key = REPO_KEY
    backups_folder = OVERWRITTEN

    @property
    def metadata(self) -> Mapping[str, str]:
        return object_metadata("repo-info", _SPEC)

    def summarise(self, data: bytes) -> str:
        info = decode_repo(data)
        return f"{len(info.branches)} branches and {len(info.snapshots)} snapshots"


REF_FILES = RepoFile()
