"""Refs and history of the first official generation: one `ref.json` per branch and tag, parents in the snapshots."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenChangeError,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    RefNotFoundError,
    SnapshotNotFoundError,
    StorageError,
    VersionMismatchError,
    branch_moved,
)
from icefloe.formats.config_yaml import decode_yaml, encode_yaml
from icefloe.formats.flatbuf.files import decode_snapshot_info
from icefloe.ids import OBJECT_ID_BYTES, ObjectId, decode_base32
from icefloe.ledger.ledger import (
    CONVERSION,
    MAIN,
    HistoryChange,
    HistoryChangedError,
    Ledger,
    RefFiles,
    StaleTipError,
    StoredConfig,
    StoredRef,
    Tip,
    WholeHistory,
    check_name,
    check_new_name,
    check_not_converting,
    save_config_file,
)
from icefloe.ledger.repository_refs import group_by_folder, parse_folder
from icefloe.ledger.switch_generation import create_refs, remove_refs
from icefloe.metadata_files import MetadataFiles
from icefloe.model.snapshot import Snapshot, SnapshotInfo
from icefloe.storage.contract import Storage, Version, Versioned
from icefloe.storage.requests import RetryPolicy

CONFIG_KEY = "config.yaml"
_REFS = "refs/"
_REF_FILE = "/ref.json"
_TOMBSTONE = "/ref.json.deleted"
_MAX_REF_BYTES = 4096
_KNOWN_HISTORY = 50_000
_BLANKS = 64
_AT_ONCE = 16
"""Ancestors that a walk over history fetches at the same time, if an earlier walk found their ids."""
CONTENTION = RetryPolicy(max_tries=100, initial_backoff_ms=5, max_backoff_ms=1_000)
"""Each lost round means that another writer committed, so a hundred rounds are enough."""


class Icechunk1Ledger(Ledger):
    """The refs of one repository, each an object that is created or swapped on its own.

    The file of a snapshot contains its parent. Expiry rewrites that file in place, possibly in another process or with
    another library. So history is always read from storage. Earlier reads only show which files will probably be needed
    next. They are fetched at the same time.
    """

    announces_collections = False
    parents_change_unseen = True
    keeps_deleted_tags = True

    def __init__(self, storage: Storage, metadata_files: MetadataFiles) -> None:
        self.storage = storage
        self.metadata_files = metadata_files
        self._history: dict[ObjectId, SnapshotInfo] = {}
        self._tips: dict[str, ObjectId] = {}

    def remember(self, found: Versioned) -> None:
        self._tips[MAIN] = _parse_ref(found.data, _branch_key(MAIN)).snapshot_id

    def recall_tip(self, branch: str) -> ObjectId | None:
        return self._tips.get(branch)

    async def create(self, initial: Snapshot, config: Mapping[str, Any] | None) -> None:
        # Every creator writes the same bytes, so reading them back does not prove who created the ref.
        await self.storage.create(_branch_key(MAIN), _encode_ref(initial.id), unique=False)
        if config is not None:
            await self.save_config(config, None)

    async def fetch_tip(self, branch: str) -> Tip:
        check_name(branch, "branch")
        tip = await self._fetch_ref(_branch_key(branch), "branch", branch)
        self._tips[branch] = tip.snapshot_id
        return tip

    async def fetch_tag(self, tag: str) -> ObjectId:
        check_name(tag, "tag")
        tip, deleted = await asyncio.gather(
            self._fetch_ref(_tag_key(tag), "tag", tag), self.storage.exists(_tombstone_key(tag))
        )
        if deleted:
            raise _no_ref("tag", tag, "it was deleted")
        return tip.snapshot_id

    async def _fetch_ref(self, key: str, kind: str, name: str) -> Tip:
        try:
            found = await self.storage.get_versioned(key)
        except ObjectNotFoundError as error:
            raise _no_ref(kind, name, "it does not exist") from error
        content = _parse_ref(found.data, key)
        return Tip(content.snapshot_id, found.version, CONVERSION if content.converting else None)

    async def list_branches(self) -> set[str]:
        return {name for kind, name, _ in await self._list_refs() if kind == "branch"}

    async def list_tags(self) -> set[str]:
        refs = await self._list_refs()
        deleted = {name for kind, name, is_tombstone in refs if kind == "tag" and is_tombstone}
        return {name for kind, name, _ in refs if kind == "tag"} - deleted

    async def _list_refs(self) -> list[tuple[str, str, bool]]:
        """Kind, name, and whether it is a tombstone, of every ref object. Other objects are skipped."""
        found = []
        async for page in self.storage.list(_REFS):
            for item in page:
                folder, _, file = item.key.removeprefix(_REFS).rpartition("/")
                kind, dot, name = folder.partition(".")
                if dot and kind in ("branch", "tag") and f"/{file}" in (_REF_FILE, _TOMBSTONE):
                    found.append((kind, name, f"/{file}" == _TOMBSTONE))
        return found

    async def advance(self, branch: str, tip: Tip, snapshot: Snapshot, *, amends: ObjectId | None = None) -> Tip:
        check_name(branch, "branch")
        key, data = _branch_key(branch), _encode_ref(snapshot.id)
        known = isinstance(tip.version_token, Version)
        current = tip if known else await self.fetch_tip(branch)
        await check_not_converting(self.storage, current.collection)
        if current.snapshot_id != tip.snapshot_id:
            raise ConflictError(expected_parent=tip.snapshot_id, actual_parent=current.snapshot_id)
        try:
            return Tip(snapshot.id, await self.storage.swap(key, data, current.version_token))
        except VersionMismatchError:
            current = await self.fetch_tip(branch)
        except ObjectNotFoundError as error:
            raise _no_ref("branch", branch, "it was deleted in the meantime") from error
        if current.snapshot_id == tip.snapshot_id:
            raise StaleTipError(current)
        # A write whose response was lost may have succeeded, and others may have committed on top of it since.
        while True:
            try:
                if await self._is_ancestor(snapshot.id, current.snapshot_id, tip.snapshot_id):
                    return Tip(snapshot.id, None)
            except SnapshotNotFoundError:
                walked, current = current, await self.fetch_tip(branch)
                if walked.snapshot_id == current.snapshot_id:
                    raise
                continue  # the branch moved on, and the first snapshot of the walk was collected
            raise ConflictError(expected_parent=tip.snapshot_id, actual_parent=current.snapshot_id)

    async def announce_collection(self, collection_id: str, *, soon: bool) -> None:
        """Rewrite refs if young objects may be deleted, with other blanks at the end, which JSON ignores.

        Writers of the official package then get a conflict instead of losing data. Otherwise refs are not rewritten:
        long-running sessions of this library check for collections themselves.
        """
        if soon:
            await self._rewrite_refs(converting=False)

    async def announce_conversion(self) -> None:
        """Rewrite refs with one more entry, which readers of all libraries ignore."""
        await self._rewrite_refs(converting=True)

    async def _rewrite_refs(self, *, converting: bool) -> None:
        """Rewrite the refs of all branches, with other blanks at the end."""
        for branch in sorted(await self.list_branches()):
            for pause in CONTENTION.pauses():
                try:
                    found = await self.storage.get_versioned(_branch_key(branch))
                    content = _parse_ref(found.data, _branch_key(branch))
                    if not converting and content.converting:
                        await check_not_converting(self.storage, CONVERSION)
                    data = _encode_ref(content.snapshot_id, converting=converting)
                    blanks = b" " * (1 + (len(found.data) - len(data)) % _BLANKS)
                    await self.storage.swap(_branch_key(branch), data + blanks, found.version, unique=False)
                except ObjectNotFoundError:
                    break
                except VersionMismatchError:
                    await asyncio.sleep(pause)
                    continue
                break
            else:
                raise _contended(branch)

    async def _is_ancestor(self, wanted: ObjectId, start: ObjectId, stop: ObjectId) -> bool:
        """Whether a snapshot is between two others in history, without the older one."""
        async for info in self.ancestry(start):
            if info.id in (wanted, stop):
                return info.id == wanted
        return False

    async def record_detached(self, snapshot: Snapshot) -> None:
        """Do nothing: the file of the snapshot is sufficient."""

    async def create_branch(self, branch: str, snapshot_id: ObjectId) -> None:
        check_new_name(branch, "branch")
        try:
            await self.storage.create(_branch_key(branch), _encode_ref(snapshot_id), unique=False)
        except AlreadyExistsError as error:
            raise AlreadyExistsError(
                f"branch {branch!r} exists already. Reset the branch to move it", "branch-already-exists", name=branch
            ) from error

    async def reset_branch(self, branch: str, snapshot_id: ObjectId, expected: ObjectId | None) -> ObjectId:
        check_name(branch, "branch")
        for pause in CONTENTION.pauses():
            current = await self.fetch_tip(branch)
            if expected is not None and current.snapshot_id not in (expected, snapshot_id):
                raise branch_moved(branch, expected, current.snapshot_id)
            if current.snapshot_id == snapshot_id:
                return snapshot_id
            await check_not_converting(self.storage, current.collection)
            try:
                await self.storage.swap(_branch_key(branch), _encode_ref(snapshot_id), current.version_token)
                return current.snapshot_id
            except VersionMismatchError:
                await asyncio.sleep(pause)
        raise _contended(branch)

    async def replace_tip(self, branch: str, tip: Tip, snapshot_id: ObjectId) -> None:
        check_name(branch, "branch")
        await check_not_converting(self.storage, tip.collection)
        try:
            await self.storage.swap(_branch_key(branch), _encode_ref(snapshot_id), tip.version_token)
        except ObjectNotFoundError as error:
            raise _no_ref("branch", branch, "it was deleted in the meantime") from error
        except VersionMismatchError:
            current = await self.fetch_tip(branch)
            if current.snapshot_id == tip.snapshot_id:
                raise StaleTipError(current) from None
            if current.snapshot_id != snapshot_id:
                raise ConflictError(expected_parent=tip.snapshot_id, actual_parent=current.snapshot_id) from None

    async def delete_branch(self, branch: str) -> None:
        check_name(branch, "branch")
        if branch == MAIN:
            raise ForbiddenChangeError(
                "the main branch cannot be deleted, because every repository needs it", "cannot-delete-main"
            )
        await self.fetch_tip(branch)
        await self.storage.delete([_branch_key(branch)])

    async def create_tag(self, tag: str, snapshot_id: ObjectId) -> None:
        check_new_name(tag, "tag")
        if await self.storage.exists(_tombstone_key(tag)):
            raise AlreadyExistsError(
                f"tag {tag!r} was deleted. Its name cannot be used again",
                "tag-previously-deleted",
                name=tag,
            )
        try:
            await self.storage.create(_tag_key(tag), _encode_ref(snapshot_id), unique=False)
        except AlreadyExistsError as error:
            raise AlreadyExistsError(
                f"tag {tag!r} exists already. Tags cannot be moved", "tag-already-exists", name=tag
            ) from error

    async def withdraw_tag(self, tag: str) -> None:
        await self.storage.delete([_tag_key(tag)])

    async def delete_tag(self, tag: str) -> None:
        await self.fetch_tag(tag)
        try:
            await self.storage.create(_tombstone_key(tag), b"", unique=False)
        except AlreadyExistsError as error:
            raise _no_ref("tag", tag, "it was deleted in the meantime") from error

    async def fetch_deleted_tags(self) -> frozenset[str]:
        start = f"{_REFS}tag."
        keys = [item.key async for page in self.storage.list(_REFS, after=start) for item in page]
        return frozenset(
            key.removeprefix(start).removesuffix(_TOMBSTONE)
            for key in keys
            if key.startswith(start) and key.endswith(_TOMBSTONE)
        )

    async def import_history(self, history: WholeHistory, *, replace_leftovers: bool = False) -> None:
        await create_refs(self, history)

    async def import_deleted_tag(self, tag: str) -> None:
        with contextlib.suppress(AlreadyExistsError):
            await self.storage.create(_tombstone_key(tag), b"", unique=False)

    @staticmethod
    async def remove(storage: Storage) -> None:
        await remove_refs(storage, _REFS, (f"{_REFS}branch.{MAIN}/",))

    async def ancestry(self, snapshot_id: ObjectId) -> AsyncIterator[SnapshotInfo]:
        ahead: dict[ObjectId, SnapshotInfo | None] = {}
        info = await self._fetch_next(snapshot_id, ahead, 0)
        seen: set[ObjectId] = set()
        while True:
            if info.id in seen:
                raise FormatError(
                    f"the history of snapshot {snapshot_id} contains {info.id} twice. Run `icefloe verify`"
                )
            seen.add(info.id)
            yield info
            if info.parent_id is None:
                return
            # Most walks end after a few steps, so prefetch as many as were read before.
            info = await self._fetch_parent(info, info.parent_id, ahead, min(len(seen) - 1, _AT_ONCE))

    async def _fetch_parent(
        self, child: SnapshotInfo, parent_id: ObjectId, ahead: dict[ObjectId, SnapshotInfo | None], count: int
    ) -> SnapshotInfo:
        try:
            return await self._fetch_next(parent_id, ahead, count)
        except SnapshotNotFoundError:
            # After the child was read, it was rewritten with another parent, and this snapshot was collected.
            anew = (await self._fetch_history_entry(child.id)).parent_id
            if anew is None or anew == parent_id:
                raise
            return await self._fetch_history_entry(anew)

    async def _fetch_next(
        self, snapshot_id: ObjectId, ahead: dict[ObjectId, SnapshotInfo | None], count: int
    ) -> SnapshotInfo:
        """The next entry of a walk. Ancestors known from an earlier walk are fetched into `ahead` at the same time."""
        found = ahead.pop(snapshot_id, None)
        if found is not None:
            return found
        ahead.clear()
        probable: list[ObjectId] = []
        known = self._history.get(snapshot_id)
        while known is not None and known.parent_id is not None and len(probable) < count:
            probable.append(known.parent_id)
            known = self._history.get(known.parent_id)
        wanted, others = await asyncio.gather(
            self._fetch_history_entry(snapshot_id), asyncio.gather(*map(self._find_history_entry, probable))
        )
        ahead.update(zip(probable, others, strict=True))
        return wanted

    async def _find_history_entry(self, snapshot_id: ObjectId) -> SnapshotInfo | None:
        try:
            return await self._fetch_history_entry(snapshot_id)
        except (SnapshotNotFoundError, FormatError):
            return None

    async def _fetch_history_entry(self, snapshot_id: ObjectId) -> SnapshotInfo:
        """The same as `fetch_info`, but without decoding nodes. A walk over history may read many large snapshots."""
        try:
            data = await self.storage.get(self.metadata_files.format.snapshot_key(snapshot_id))
        except ObjectNotFoundError as error:
            self._history.pop(snapshot_id, None)
            raise SnapshotNotFoundError(
                f"no snapshot {snapshot_id} in {self.storage.url}", snapshot_id=snapshot_id
            ) from error
        found = decode_snapshot_info(data)
        if len(self._history) >= _KNOWN_HISTORY:
            self._history.clear()
        self._history[snapshot_id] = found
        return found

    async def fetch_info(self, snapshot_id: ObjectId) -> SnapshotInfo:
        return (await self.metadata_files.fetch_snapshot(snapshot_id, anew=True)).info

    async def reparent_snapshot(self, snapshot_id: ObjectId, parent_id: ObjectId) -> None:
        """Expiry: rewrite a snapshot in place with another parent."""
        await self.change_parents(HistoryChange(frozenset(), {snapshot_id: parent_id}))

    async def change_parents(self, change: HistoryChange) -> None:
        for snapshot_id, parent_id in change.parents.items():
            self._history.pop(snapshot_id, None)
            snapshot, version = await self.metadata_files.fetch_versioned_snapshot(snapshot_id)
            change.check_parent(snapshot_id, snapshot.parent_id)
            try:
                await self.metadata_files.replace_snapshot(dataclasses.replace(snapshot, parent_id=parent_id), version)
            except VersionMismatchError as error:
                raise HistoryChangedError(snapshot_id) from error

    async def fetch_config(self) -> StoredConfig:
        try:
            found = await self.storage.get_versioned(CONFIG_KEY)
        except ObjectNotFoundError:
            return StoredConfig(None)
        return stored_config(found)

    async def save_config(self, document: Mapping[str, Any], version_token: Any) -> None:
        data = encode_yaml(document).encode()
        await save_config_file(self.storage, CONFIG_KEY, data, version_token)


def stored_config(found: Versioned) -> StoredConfig:
    """The configuration in a `config.yaml`."""
    return StoredConfig(decode_yaml(found.data), found.version)


def _branch_key(branch: str) -> str:
    return f"{_REFS}branch.{branch}{_REF_FILE}"


def _tag_key(tag: str) -> str:
    return f"{_REFS}tag.{tag}{_REF_FILE}"


def _tombstone_key(tag: str) -> str:
    return f"{_REFS}tag.{tag}{_TOMBSTONE}"


@dataclass(frozen=True, slots=True)
class _RefContent:
    """The content of a `ref.json`."""

    snapshot_id: ObjectId
    converting: bool = False
    """Whether a conversion in place replaces this ref."""


def _encode_ref(snapshot_id: ObjectId, *, converting: bool = False) -> bytes:
    document: dict[str, str | bool] = {"snapshot": snapshot_id}
    if converting:
        document["converting"] = True
    return json.dumps(document, separators=(",", ":")).encode()


def _parse_ref(data: bytes, key: str) -> _RefContent:
    try:
        parsed = json.loads(data[:_MAX_REF_BYTES])
        snapshot_id = parsed["snapshot"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f'{key} is not a ref: expected {{"snapshot": "<id>"}}, found {data[:80]!r}') from error
    if not isinstance(snapshot_id, str):
        raise FormatError(f"{key} is not a ref: the snapshot id is {snapshot_id!r}")
    try:
        decode_base32(snapshot_id, OBJECT_ID_BYTES)
    except InvalidInputError as error:
        raise FormatError(f"{key} is not a ref: {error.message}") from error
    return _RefContent(snapshot_id, parsed.get("converting") is True)


def _no_ref(kind: str, name: str, why: str) -> RefNotFoundError:
    return RefNotFoundError(f"ref not found: no {kind} {name!r}: {why}", name=name)


def _contended(branch: str) -> StorageError:
    return StorageError(
        f"other writers moved branch {branch!r} in each of {CONTENTION.max_tries} attempts. Try again", name=branch
    )


class Icechunk1RefFiles(RefFiles):
    """`refs/branch.NAME/ref.json` and `refs/tag.NAME/ref.json`."""

    folder = _REFS
    config_key = CONFIG_KEY

    def first_key(self, branch: str) -> str:
        return _branch_key(branch)

    def group(self, keys: Iterable[str]) -> list[StoredRef]:
        refs: list[StoredRef] = []
        for folder, names in group_by_folder(keys).items():
            branch, tag = parse_folder("branch", folder), parse_folder("tag", folder)
            if (branch or tag) and "ref.json" in names and "ref.json.deleted" not in names:
                refs.append(StoredRef("branch" if branch else "tag", branch or tag, (f"{_REFS}{folder}ref.json",)))
        return refs

    def parse(self, data: bytes, key: str) -> tuple[ObjectId, bool]:
        return _parse_ref(data, key).snapshot_id, False

    def encode(self, target: ObjectId) -> bytes:
        return _encode_ref(target)

    def check_config(self, data: bytes) -> None:
        decode_yaml(data)


REF_FILES = Icechunk1RefFiles()
