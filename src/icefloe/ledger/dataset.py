"""Refs and history of the generation `dataset`: everything is in `state.json`, and every change swaps that file."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenChangeError,
    InvalidInputError,
    ObjectNotFoundError,
    RefNotFoundError,
    RepositoryExistsError,
    RepositoryNotFoundError,
    SnapshotNotFoundError,
    StorageError,
    UnsupportedError,
    VersionMismatchError,
    branch_moved,
)
from icefloe.formats.dataset.state import (
    STATE_CONFIG_KEY,
    STATE_KEY,
    UPDATE_KEY,
    RefType,
    State,
    StateRef,
    StateSnapshot,
    encode_state,
    parse_state,
    resolve_data_root,
    snapshot_entry,
)
from icefloe.formats.json_documents import dump_json
from icefloe.ids import ObjectId, new_object_id
from icefloe.ledger.ledger import (
    CONVERSION,
    MAIN,
    HistoryChange,
    Ledger,
    RefTargets,
    StaleTipError,
    StoredConfig,
    Tip,
    WholeHistory,
    WholeRefsFile,
    check_name,
    check_new_name,
    check_not_converting,
)
from icefloe.ledger.switch_generation import put_whole
from icefloe.metadata_files import MetadataFiles
from icefloe.model.snapshot import Snapshot, SnapshotInfo
from icefloe.storage.contract import Storage, Version
from icefloe.storage.requests import RetryPolicy, without_userinfo
from icefloe.storage.wrappers import SplitStorage

COLLECTION_KEY = "icefloe-collection"
"""The key of the last garbage collection. The specification does not define it."""
_CONTENTION = RetryPolicy(max_tries=100, initial_backoff_ms=2, max_backoff_ms=500)
"""Each lost round means that another writer changed the state, so a hundred rounds are enough."""


@dataclass(frozen=True, slots=True)
class SeenState:
    """A state file as it was read, and the version token for replacing it."""

    state: State
    version: Version


async def fetch_state(storage: Storage) -> SeenState:
    """Fetch the state file of a storage. Raises RepositoryNotFoundError if there is none."""
    try:
        found = await storage.get_versioned(STATE_KEY)
    except ObjectNotFoundError as error:
        raise RepositoryNotFoundError(f"no dataset at {storage.url}: there is no {STATE_KEY}") from error
    return SeenState(parse_state(found.data), found.version)


async def locate_data(storage: Storage) -> Storage:
    """The storage of a whole dataset, from the storage of its state file.

    A state file may contain another root. A folder below that of the state file is used. Any other root is refused: the
    file may come from an untrusted source, and would decide where files are read, written and deleted with the caller's
    permissions. To use such a root, open a SplitStorage.
    """
    if storage.state_storage is not storage:
        return storage
    root = resolve_data_root((await fetch_state(storage)).state, storage)
    if root is None:
        return storage
    inner = _below(root, storage)
    if inner is not None:
        return SplitStorage(storage, storage.child(inner), STATE_KEY)
    shown = without_userinfo(root)
    raise InvalidInputError(
        f"the state file in {storage.url} says that the files of this dataset are in {shown}, which is not below it. "
        "If you trust that location, pass it explicitly:\n    from icefloe.storage import SplitStorage\n    "
        f"icefloe.Repository.open(SplitStorage(state_storage, icefloe.storage_from_url({shown!r})))",
        url=storage.url,
    )


def _below(root: str, storage: Storage) -> str | None:
    """The folder of a root within a storage, or None if it is not below the storage."""
    own = storage.url.rstrip("/") + "/"
    path = f"file://{quote(root)}" if root.startswith("/") else root
    if not path.startswith(own):
        return None
    inner = unquote(path[len(own) :]) if own.startswith("file://") else path[len(own) :]
    parts = inner.strip("/").split("/")
    return None if not {"", ".", ".."}.isdisjoint(parts) or "\0" in inner else inner


class DatasetLedger(Ledger):
    """The ledger of one dataset. `storage` contains the state file, `metadata_files` everything else."""

    refs_are_checked = True

    def __init__(self, storage: Storage, metadata_files: MetadataFiles) -> None:
        self.storage = storage
        self.metadata_files = metadata_files
        self._seen: SeenState | None = None

    def unstorable_refs(self, branches: Collection[str], tags: Collection[str]) -> set[tuple[str, str]]:
        # Branches and tags share one table.
        return {("tag", name) for name in tags if name in branches}

    async def create(self, initial: Snapshot, config: Mapping[str, Any] | None) -> None:
        root = self.metadata_files.storage.data_storage
        elsewhere = root.url.rstrip("/") != self.storage.url.rstrip("/")
        state = State(
            id=new_object_id(),
            generation=1,
            snapshots=(snapshot_entry(initial.info),),
            refs={MAIN: StateRef(initial.id, "branch")},
            store_root=root.url if elsewhere else None,
            extra={UPDATE_KEY: new_object_id(), **({} if config is None else {STATE_CONFIG_KEY: dict(config)})},
        )
        try:
            version = await self.storage.create(STATE_KEY, encode_state(state))
        except AlreadyExistsError as error:
            raise RepositoryExistsError(f"there is a dataset at {self.storage.url} already") from error
        self._seen = SeenState(state, version)

    async def fetch(self) -> SeenState:
        """Fetch the current state file."""
        self._seen = await fetch_state(self.storage)
        return self._seen

    async def import_history(self, history: WholeHistory, *, replace_leftovers: bool = False) -> None:
        await put_whole(self.storage, STATE_KEY, _plan_state(history), replace_leftovers=replace_leftovers)

    @staticmethod
    async def remove(storage: Storage) -> None:
        await storage.delete([STATE_KEY])

    async def fetch_tip(self, branch: str) -> Tip:
        seen = await self.fetch()
        return Tip(_find_ref(seen.state, branch, "branch"), seen.version, seen.state.extra.get(COLLECTION_KEY))

    async def fetch_tag(self, tag: str) -> ObjectId:
        return _find_ref((await self.fetch()).state, tag, "tag")

    async def fetch_targets(self) -> tuple[dict[str, ObjectId], dict[str, ObjectId]]:
        return _targets((await self.fetch()).state)

    async def fetch_graph(self) -> tuple[RefTargets, Mapping[ObjectId, SnapshotInfo]]:
        state = (await self.fetch()).state
        return RefTargets(*_targets(state)), {entry.snapshot_id: entry.info() for entry in state.snapshots}

    async def list_branches(self) -> set[str]:
        return _names((await self.fetch()).state, "branch")

    async def list_tags(self) -> set[str]:
        return _names((await self.fetch()).state, "tag")

    async def advance(self, branch: str, tip: Tip, snapshot: Snapshot, *, amends: ObjectId | None = None) -> Tip:
        def plan(state: State) -> State | None:
            current = _find_ref(state, branch, "branch")
            if _was_committed(state, current, snapshot.id):
                return None
            if current != tip.snapshot_id:
                raise ConflictError(expected_parent=tip.snapshot_id, actual_parent=current)
            if state.extra.get(COLLECTION_KEY) != tip.collection:
                raise StaleTipError(Tip(current, None, state.extra.get(COLLECTION_KEY)))
            entry = snapshot_entry(snapshot.info)
            parent = tip.snapshot_id if amends is None else _require_entry(state, amends).parent_id
            if entry.parent_id != parent:
                raise StaleTipError(tip)  # the parent expired after the amended snapshot was read
            return state.with_snapshot(entry).with_ref(branch, _moved(state, branch, snapshot.id))

        # The cached state is used if it is the one that the tip was read from.
        known = self._seen if self._seen is not None and self._seen.version == tip.version_token else None
        seen = await self._update(plan, known)
        return Tip(snapshot.id, seen.version, tip.collection)

    async def announce_collection(self, collection_id: str, *, soon: bool) -> None:
        await self._update(lambda state: state.with_extra(COLLECTION_KEY, collection_id))

    async def record_detached(self, snapshot: Snapshot) -> None:
        def plan(state: State) -> State | None:
            return None if state.find_snapshot(snapshot.id) else state.with_snapshot(snapshot_entry(snapshot.info))

        await self._update(plan)

    async def create_branch(self, branch: str, snapshot_id: ObjectId) -> None:
        await self._create_ref(branch, StateRef(snapshot_id, "branch"))

    async def create_tag(self, tag: str, snapshot_id: ObjectId) -> None:
        await self._create_ref(tag, StateRef(snapshot_id, "tag"))

    async def _create_ref(self, name: str, ref: StateRef) -> None:
        check_new_name(name, ref.type)

        def plan(state: State) -> State:
            if name in state.refs:
                raise AlreadyExistsError(f"a {state.refs[name].type} {name!r} exists already")
            return _require_snapshot(state, ref.snapshot_id).with_ref(name, ref)

        await self._update(plan)

    async def reset_branch(self, branch: str, snapshot_id: ObjectId, expected: ObjectId | None) -> ObjectId:
        current = snapshot_id

        def plan(state: State) -> State | None:
            nonlocal current
            current = _find_ref(state, branch, "branch")
            if expected is not None and current != expected:
                raise branch_moved(branch, expected, current)
            _require_snapshot(state, snapshot_id)
            return None if current == snapshot_id else state.with_ref(branch, _moved(state, branch, snapshot_id))

        await self._update(plan)
        return current

    async def replace_tip(self, branch: str, tip: Tip, snapshot_id: ObjectId) -> None:
        def plan(state: State) -> State | None:
            current = _find_ref(state, branch, "branch")
            if current == snapshot_id:
                return None
            if current != tip.snapshot_id:
                raise ConflictError(expected_parent=tip.snapshot_id, actual_parent=current)
            parent_id = _require_entry(state, snapshot_id).parent_id
            is_cut_off = parent_id is not None and state.find_snapshot(parent_id) is None
            # The file of the snapshot may have been collected since, because nothing referred to it.
            if is_cut_off or state.extra.get(COLLECTION_KEY) != tip.collection:
                raise StaleTipError(Tip(current, None, state.extra.get(COLLECTION_KEY)))
            return state.with_ref(branch, _moved(state, branch, snapshot_id))

        await self._update(plan)

    async def delete_branch(self, branch: str) -> None:
        if branch == MAIN:
            raise ForbiddenChangeError(
                "the main branch cannot be deleted, because every repository needs it", "cannot-delete-main"
            )

        def plan(state: State) -> State:
            _find_ref(state, branch, "branch")
            return state.with_ref(branch, None)

        await self._update(plan)

    async def delete_tag(self, tag: str) -> None:
        _find_ref((await self.fetch()).state, tag, "tag")
        raise UnsupportedError("tags of the generation `dataset` are permanent and cannot be deleted")

    async def ancestry(self, snapshot_id: ObjectId) -> AsyncIterator[SnapshotInfo]:
        state = (await self.fetch()).state
        entries = {entry.snapshot_id: entry for entry in state.snapshots}
        wanted: ObjectId | None = snapshot_id
        while wanted is not None:
            # Entries are removed, so that a cycle of parents in a corrupt file ends.
            entry = entries.pop(wanted, None)
            if entry is None:
                raise SnapshotNotFoundError(
                    f"the history of {snapshot_id} leads to {wanted}, which {STATE_KEY} does not list, or lists as its "
                    "own ancestor",
                    snapshot_id=wanted,
                )
            yield entry.info()
            wanted = entry.parent_id

    async def fetch_info(self, snapshot_id: ObjectId) -> SnapshotInfo:
        state = (await self.fetch()).state
        entry = state.find_snapshot(snapshot_id)
        if entry is None:
            raise _missing(snapshot_id)
        snapshot = await self.metadata_files.fetch_snapshot(snapshot_id)
        return dataclasses.replace(entry.info(), manifests=tuple(snapshot.manifests.values()))

    async def fetch_config(self) -> StoredConfig:
        found = (await self.fetch()).state.extra.get(STATE_CONFIG_KEY)
        return StoredConfig(found if isinstance(found, dict) else None, _config_version(found))

    async def save_config(self, document: Mapping[str, Any], version_token: Any) -> None:
        def plan(state: State) -> State:
            if _config_version(state.extra.get(STATE_CONFIG_KEY)) != version_token:
                raise ConflictError(
                    message="the stored configuration changed since it was read. Fetch it again, then save"
                )
            return state.with_extra(STATE_CONFIG_KEY, dict(document))

        await self._update(plan)

    async def fetch_listed(self) -> Mapping[ObjectId, SnapshotInfo]:
        return {entry.snapshot_id: entry.info() for entry in (await self.fetch()).state.snapshots}

    async def change_history(self, change: HistoryChange) -> None:
        """Expire snapshots in one atomic step. Snapshots that refs point to at that time are kept."""

        def plan(state: State) -> State | None:
            for name, current in change.branches.items():
                ref = state.refs.get(name)
                if ref is not None and ref.snapshot_id == current and ref.type == "branch" and name != MAIN:
                    state = state.with_ref(name, None)
            pointed_at = {ref.snapshot_id for ref in state.refs.values()}
            return plan_expiry(state, change.expired - pointed_at)

        await self._update(plan)
        for snapshot_id, parent_id in change.parents.items():
            await self._rewrite_parent(snapshot_id, parent_id)

    async def forget_snapshots(self, ids: Collection[ObjectId]) -> frozenset[ObjectId]:
        """Remove snapshots from the list, and give their children the nearest kept ancestor. Returns the removed ones.

        Raises InvalidInputError if a branch or tag points to one of them.
        """
        dropped: list[frozenset[ObjectId]] = []

        def plan(state: State) -> State | None:
            dropped[:] = [frozenset(ids) & {entry.snapshot_id for entry in state.snapshots}]
            return plan_expiry(state, frozenset(ids))

        await self._update(plan)
        return dropped[0]

    async def reparent_snapshot(self, snapshot_id: ObjectId, parent_id: ObjectId) -> None:
        """Expiry: give a snapshot another parent, in the state and in its own file."""

        def plan(state: State) -> State | None:
            _require_snapshot(_require_snapshot(state, parent_id), snapshot_id)
            changed = tuple(
                dataclasses.replace(entry, parent_id=parent_id) if entry.snapshot_id == snapshot_id else entry
                for entry in state.snapshots
            )
            return None if changed == state.snapshots else dataclasses.replace(state, snapshots=changed)

        await self._update(plan)
        await self._rewrite_parent(snapshot_id, parent_id)

    async def _rewrite_parent(self, snapshot_id: ObjectId, parent_id: ObjectId) -> None:
        # The state defines history. The file repeats it for readers without the state.
        self.metadata_files.forget_snapshot(snapshot_id)
        snapshot = await self.metadata_files.fetch_snapshot(snapshot_id)
        await self.metadata_files.write_snapshot(dataclasses.replace(snapshot, parent_id=parent_id))
        self.metadata_files.forget_snapshot(snapshot_id)

    async def _update(self, plan: Callable[[State], State | None], known: SeenState | None = None) -> SeenState:
        """Replace the state with the result of `plan`. Retries if another writer was faster. None means no change."""
        for pause in _CONTENTION.pauses():
            seen = known or await self.fetch()
            known = None
            planned = plan(seen.state)
            if planned is None:
                return seen
            if planned.extra.get(COLLECTION_KEY) != CONVERSION or planned.refs != seen.state.refs:
                await check_not_converting(self.storage, seen.state.extra.get(COLLECTION_KEY))
            # A random text makes every written state unique. After a lost response, reading back shows who wrote it.
            fresh = dataclasses.replace(planned, generation=seen.state.generation + 1).with_extra(
                UPDATE_KEY, new_object_id()
            )
            try:
                version = await self.storage.swap(STATE_KEY, encode_state(fresh), seen.version)
            except VersionMismatchError:
                await asyncio.sleep(pause)
                continue
            self._seen = SeenState(fresh, version)
            return self._seen
        raise StorageError(
            f"{STATE_KEY} in {self.storage.url} changed in each of {_CONTENTION.max_tries} attempts. Try again"
        )


def plan_expiry(state: State, dropped: frozenset[ObjectId]) -> State | None:
    """The state without some snapshots, with new parents for their children. None if it contains none of them."""
    for name, ref in state.refs.items():
        if ref.snapshot_id in dropped:
            raise InvalidInputError(f"the snapshot {ref.snapshot_id} is the tip of the {ref.type} {name!r}")
    parents = {entry.snapshot_id: entry.parent_id for entry in state.snapshots}
    if dropped.isdisjoint(parents):
        return None

    def kept_parent(parent: ObjectId | None) -> ObjectId | None:
        seen: set[ObjectId] = set()
        while parent is not None and parent in dropped and parent not in seen:
            seen.add(parent)
            parent = parents.get(parent)
        return None if parent in dropped else parent

    kept = tuple(
        dataclasses.replace(entry, parent_id=kept_parent(entry.parent_id))
        for entry in state.snapshots
        if entry.snapshot_id not in dropped
    )
    return dataclasses.replace(state, snapshots=kept)


def _find_ref(state: State, name: str, kind: RefType) -> ObjectId:
    ref = state.refs.get(check_name(name, kind))
    if ref is None or ref.type != kind:
        raise RefNotFoundError(
            f"ref not found: no {kind} {name!r}. There are: {', '.join(sorted(_names(state, kind))) or 'none'}"
        )
    return ref.snapshot_id


def _targets(state: State) -> tuple[dict[str, ObjectId], dict[str, ObjectId]]:
    branches = {name: state.refs[name].snapshot_id for name in sorted(_names(state, "branch"))}
    return branches, {name: state.refs[name].snapshot_id for name in sorted(_names(state, "tag"))}


def _names(state: State, kind: RefType) -> set[str]:
    return {name for name, ref in state.refs.items() if ref.type == kind}


def _moved(state: State, branch: str, snapshot_id: ObjectId) -> StateRef:
    return dataclasses.replace(state.refs[branch], snapshot_id=snapshot_id)


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


def _require_snapshot(state: State, snapshot_id: ObjectId) -> State:
    if state.find_snapshot(snapshot_id) is None:
        raise _missing(snapshot_id)
    return state


def _require_entry(state: State, snapshot_id: ObjectId) -> StateSnapshot:
    entry = state.find_snapshot(snapshot_id)
    if entry is None:
        raise _missing(snapshot_id)
    return entry


def _missing(snapshot_id: ObjectId) -> SnapshotNotFoundError:
    return SnapshotNotFoundError(f"no snapshot {snapshot_id} in {STATE_KEY}", snapshot_id=snapshot_id)


def _was_committed(state: State, current: ObjectId, snapshot_id: ObjectId) -> bool:
    """Whether a snapshot is already in the history of a branch tip, after a write whose response was lost."""
    if state.find_snapshot(snapshot_id) is None:
        return False
    parents = {entry.snapshot_id: entry.parent_id for entry in state.snapshots}
    wanted: ObjectId | None = current
    while wanted is not None and wanted != snapshot_id:
        wanted = parents.pop(wanted, None)
    return wanted == snapshot_id


def _config_version(document: Any) -> bytes:
    return dump_json(document)


class StateFile(WholeRefsFile):
    """The file `state.json`. There are no backups of it."""

    key = STATE_KEY

    def summarise(self, data: bytes) -> str:
        state = parse_state(data)
        return f"{len(state.refs)} refs and {len(state.snapshots)} snapshots"

    def rebuild(self, snapshots: Sequence[Snapshot], tip: ObjectId) -> bytes:
        state = State(
            id=new_object_id(),
            generation=1,
            snapshots=tuple(snapshot_entry(each.info) for each in snapshots),
            refs={MAIN: StateRef(tip, "branch")},
            extra={UPDATE_KEY: new_object_id()},
        )
        return encode_state(state)


REF_FILES = StateFile()
