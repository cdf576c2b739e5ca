"""Refs and history of the generation `store`: a commit creates the next branch file under `r/`.

| specification | early code |
|---|---|
| `r/NAME/<8>.json` | `r/branch:NAME/<13>.json` |
| `r/NAME.json` | `r/tag:NAME/ref.json` |
| `s/<id>.json`, `m/<id>.json` | `s/<id>.msgpack`, `m/<id>.msgpack` |
| `c/<id>` | `c/<id>.msgpack` or `c/<id>` |

As in later generations, no branch file is ever replaced or removed. A branch is deleted by a last file that marks the
deletion. It is created like a commit, so either a commit or a concurrent deletion succeeds.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from icefloe.blocking import current_time, monotonic_time
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenChangeError,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
    RefNotFoundError,
    RepositoryExistsError,
    StorageError,
    UnsupportedError,
    branch_moved,
)
from icefloe.formats.json_documents import dump_json
from icefloe.formats.store.snapshot import (
    EXTENSION,
    Reference,
    decode_reference,
    encode_reference,
    find_sequence,
    sequence_name,
)
from icefloe.ids import ObjectId, decode_base32, encode_base32, new_object_id
from icefloe.ledger.ledger import (
    CONVERSION,
    FRESH_SECONDS,
    MAIN,
    RefFiles,
    StaleTipError,
    StoredConfig,
    StoredRef,
    Tip,
    WholeHistory,
    add_position,
    check_name,
    check_new_name,
    check_not_converting,
    save_config_file,
)
from icefloe.ledger.quoted_history import QuotingLedger, walk_history
from icefloe.ledger.repository_refs import TornRefError, is_torn
from icefloe.ledger.switch_generation import create_refs, remove_refs, wait_for_writers
from icefloe.metadata_files import MetadataFiles
from icefloe.model.snapshot import BranchPosition, Snapshot, SnapshotInfo
from icefloe.model.zarr_document import SMALL_FILE_BYTES, load_object
from icefloe.storage.contract import ObjectInfo, Storage, Versioned
from icefloe.storage.requests import RetryPolicy
from icefloe.storage.wrappers import WRITES, Operation, WrappedStorage

T = TypeVar("T")

MAIN_FOLDER = "r/branch:main/"
_BRANCH, _TAG, _TAG_FILE, _PACKED = "branch:", "tag:", "ref.json", ".msgpack"
_LAST = 2**64 - 1


async def find_legacy_msgpack(storage: Storage) -> Storage:
    """The storage, or a view of it if early code wrote the repository."""
    async for page in storage.list(MAIN_FOLDER):
        if page:
            return LegacyMsgpackStorage(storage)
    return storage


class LegacyMsgpackStorage(WrappedStorage):
    """A read-only view of a repository of early code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return LegacyMsgpackStorage, (self.inner,)

    @property
    def read_only(self) -> bool:
        return True

    @property
    def lists_names_faster(self) -> bool:
        return False  # the names differ

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        if operation.method in WRITES:
            raise ReadOnlyError(f"{self.url} was written by early code and is read-only. Convert it to write to it")
        return await call()

    def _rewrap(self, inner: Storage) -> Storage:
        return inner

    async def _find(self, key: str) -> str:
        """The key in early code. Chunks have one of two."""
        stored = key_there(key)
        if key.startswith("c/") and not await self.inner.exists(stored):
            return key
        return stored

    async def get(self, key: str) -> bytes:
        return await self.inner.get(await self._find(key))

    async def get_versioned(self, key: str) -> Versioned:
        return await self.inner.get_versioned(await self._find(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self.inner.get_range(await self._find(key), start, end)

    async def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        return await self.inner.get_ranges(await self._find(key), starts, ends)

    async def head(self, key: str) -> ObjectInfo:
        return replace(await self.inner.head(await self._find(key)), key=key)

    async def list_names(self, prefix: str) -> list[str]:
        found: set[str] = set()
        async for page in self.list(prefix):
            rests = [item.key[len(prefix) :] for item in page]
            found.update(rest[: rest.index("/") + 1] if "/" in rest else rest for rest in rests)
        return sorted(found)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Sequence[ObjectInfo]]:
        there = prefix
        if prefix.startswith("r/") and len(prefix) > 2:
            there = f"r/{_BRANCH}{prefix[2:]}"
        items = [replace(item, key=key_here(item.key)) async for page in self.inner.list(there) for item in page]
        wanted = (item for item in items if item.key.startswith(prefix) and (after is None or item.key > after))
        yield sorted(wanted, key=lambda item: item.key)

    async def list_names_of_length(self, prefix: str, length: int) -> Sequence[bytes]:
        return await Storage.list_names_of_length(self, prefix, length)

    async def stat_names(self, prefix: str, names: Sequence[bytes]) -> tuple[Sequence[int], Sequence[int]]:
        return await Storage.stat_names(self, prefix, names)


def key_there(key: str) -> str:
    """The name in early code of an object `key` of the specification."""
    folder, _, name = key.partition("/")
    if folder == "r":
        branch, slash, file = name.partition("/")
        if not slash:
            return f"r/{_TAG}{name.removesuffix(EXTENSION)}/{_TAG_FILE}"
        sequence = find_sequence(file)
        if sequence is None:
            raise ObjectNotFoundError(f"no object {key!r}. It is not the name of a branch file")
        return f"r/{_BRANCH}{branch}/{encode_base32((_LAST - sequence).to_bytes(8, 'big'))}{EXTENSION}"
    if folder in ("s", "m"):
        return f"{folder}/{name.removesuffix(EXTENSION)}{_PACKED}"
    return key + _PACKED if folder == "c" else key


def key_here(stored: str) -> str:
    """The name in the specification of an object of early code. Other keys stay."""
    folder, _, name = stored.partition("/")
    if folder == "r" and name.startswith(_TAG) and name.endswith("/" + _TAG_FILE):
        return f"r/{name.removeprefix(_TAG).removesuffix('/' + _TAG_FILE)}{EXTENSION}"
    if folder == "r" and name.startswith(_BRANCH):
        branch, _, file = name.removeprefix(_BRANCH).partition("/")
        try:
            number = int.from_bytes(decode_base32(file.removesuffix(EXTENSION), 8), "big")
        except InvalidInputError:
            return stored
        return f"r/{branch}/{sequence_name(_LAST - number)}" if _LAST - number < 2**40 else stored
    if folder in ("s", "m") and name.endswith(_PACKED):
        return f"{folder}/{name.removesuffix(_PACKED)}{EXTENSION}"
    return stored.removesuffix(_PACKED) if folder == "c" else stored


_LOG = logging.getLogger(__name__)

REFS = "r/"
CONFIG_KEY = "config.json"
DELETED = "icefloe-deleted"
_UPDATE = "icefloe-update"
_COLLECTION = "icefloe-collection"
"""The last garbage collection before the file was written. Every later file of the branch repeats it."""
_CONTENTION = RetryPolicy(max_tries=100, initial_backoff_ms=2, max_backoff_ms=500)
"""Each lost round means that another writer moved the branch, so a hundred rounds are enough."""


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest file of a branch."""

    sequence: int
    reference: Reference

    @property
    def deleted(self) -> bool:
        return self.reference.properties.get(DELETED) is True

    @property
    def tip(self) -> Tip:
        return Tip(self.reference.snapshot_id, self.sequence, self.reference.properties.get(_COLLECTION))


class StoreLedger(QuotingLedger):
    """The refs of one store. `Tip.version_token` is the sequence number of the newest branch file."""

    def __init__(self, storage: Storage, metadata_files: MetadataFiles) -> None:
        super().__init__()
        self.storage = storage
        self.metadata_files = metadata_files
        self._looked: dict[str, float] = {}

    def unstorable_refs(self, branches: Collection[str], tags: Collection[str]) -> set[tuple[str, str]]:
        # The folder of such a branch would have the name of the file of a tag.
        return {("branch", name) for name in branches if name.endswith(EXTENSION)}

    async def create(self, initial: Snapshot, config: Mapping[str, Any] | None) -> None:
        try:
            await self._create_file(MAIN, 0, initial.id)
        except AlreadyExistsError as error:
            raise RepositoryExistsError(f"a repository exists at {self.storage.url} already") from error
        if config is not None:
            await self.save_config(config, None)

    async def fetch_tip(self, branch: str) -> Tip:
        newest = await self._require_newest(branch)
        return newest.tip

    async def _require_newest(self, branch: str) -> _Newest:
        looked = monotonic_time()
        newest = await self._find_newest(check_name(branch, "branch"))
        if newest is None or newest.deleted:
            raise RefNotFoundError(
                f"ref not found: no branch {branch!r}. `icefloe branch` lists all branches", name=branch
            )
        self._looked[branch] = looked
        return newest

    async def _find_newest(self, branch: str) -> _Newest | None:
        """The newest file of a branch, deleted or not. None if there never was one."""
        folder = f"{REFS}{branch}/"
        try:
            async for page in self.storage.list(folder):
                for item in page:
                    sequence = find_sequence(item.key.removeprefix(folder))
                    if sequence is not None:
                        return await self._find_whole(branch, sequence)
        except UnsupportedError:
            return await self._probe_newest(branch)
        return None

    async def _probe_newest(self, branch: str) -> _Newest | None:
        """Search the newest file on a storage that cannot list. Numbers have no gaps."""
        low, high = -1, 0
        while await self._is_there(branch, high):
            low, high = high, 2 * high + 1
        while high - low > 1:
            middle = (low + high) // 2
            if await self._is_there(branch, middle):
                low = middle
            else:
                high = middle
        return None if low < 0 else await self._find_whole(branch, low)

    async def _is_there(self, branch: str, sequence: int) -> bool:
        try:
            return await self._find_file(branch, sequence) is not None
        except TornRefError:
            return True

    async def _find_whole(self, branch: str, sequence: int) -> _Newest | None:
        """The content of the file with a number. If that file is truncated, the newest one before it."""
        torn: TornRefError | None = None
        for number in range(sequence, -1, -1):
            try:
                found = await self._find_file(branch, number)
            except TornRefError as error:
                torn = torn or error
                continue
            if found is None:
                break
            if torn is not None:
                _LOG.warning("%s. Branch %r keeps its previous tip", torn, branch)
            # The next commit takes the number after those of unfinished commits, whose files stay.
            return _Newest(sequence, found.reference)
        if torn is not None:
            raise torn
        return None

    async def _find_file(self, branch: str, sequence: int) -> _Newest | None:
        key = f"{REFS}{branch}/{sequence_name(sequence)}"
        try:
            data = await self.storage.get(key)
        except ObjectNotFoundError:
            return None
        if is_torn(data):
            raise TornRefError(f"{key} is truncated, as after a power loss: it has {len(data)} bytes")
        return _Newest(sequence, decode_reference(data))

    async def fetch_positions(self, branch: str, limit: int) -> list[BranchPosition]:
        newest = await self._require_newest(branch)
        found: list[BranchPosition] = []
        for sequence in range(newest.sequence, -1, -1):
            try:
                file = await self._find_file(branch, sequence)
            except TornRefError:
                continue
            if file is None:
                break
            if file.deleted:
                continue
            since = (await self.storage.head(f"{REFS}{branch}/{sequence_name(sequence)}")).last_modified
            if not add_position(found, file.reference.snapshot_id, since, limit):
                break
        return found

    async def fetch_tag(self, tag: str) -> ObjectId:
        try:
            data = await self.storage.get(_tag_key(check_name(tag, "tag")))
        except ObjectNotFoundError as error:
            raise RefNotFoundError(f"ref not found: no tag {tag!r}. `icefloe tag` lists all tags", name=tag) from error
        return decode_reference(data).snapshot_id

    async def list_branches(self) -> set[str]:
        names = [name[:-1] for name in await self.storage.list_names(REFS) if name.endswith("/")]
        newest = await asyncio.gather(*(self._find_newest(name) for name in names))
        return {name for name, found in zip(names, newest, strict=True) if found is not None and not found.deleted}

    async def list_tags(self) -> set[str]:
        names = await self.storage.list_names(REFS)
        return {name.removesuffix(EXTENSION) for name in names if name.endswith(EXTENSION)}

    async def advance(self, branch: str, tip: Tip, snapshot: Snapshot, *, amends: ObjectId | None = None) -> Tip:
        await self.replace_tip(branch, tip, snapshot.id)
        landed = Tip(snapshot.id, tip.version_token + 1, tip.collection)
        self.note_current(branch, landed)
        return landed

    async def replace_tip(self, branch: str, tip: Tip, snapshot_id: ObjectId) -> None:
        check_name(branch, "branch")
        await check_not_converting(self.storage, tip.collection)
        looked = -math.inf if tip.collection == CONVERSION else self._looked.get(branch, -math.inf)
        if monotonic_time() - looked > FRESH_SECONDS:
            # A conversion in place removes the files of a branch. Then the next file could be created a second time.
            newest = await self._require_newest(branch)
            if newest.tip.version_token != tip.version_token:
                self._refuse(newest.tip, tip)
        try:
            await self._create_file(branch, tip.version_token + 1, snapshot_id, tip.collection)
        except AlreadyExistsError:
            self._refuse(await self.fetch_tip(branch), tip)

    def _refuse(self, current: Tip, tip: Tip) -> NoReturn:
        """Raise the error for a branch that is no longer at a tip."""
        if current.snapshot_id != tip.snapshot_id:
            raise ConflictError(expected_parent=tip.snapshot_id, actual_parent=current.snapshot_id) from None
        raise StaleTipError(current) from None

    async def touch_branch(self, branch: str, tip: Tip, collection: str | None = None) -> bool:
        newest = await self._find_newest(check_name(branch, "branch"))
        if newest is None or newest.deleted:
            return True
        if newest.tip != tip:
            return False
        announced = collection or newest.tip.collection
        if announced != CONVERSION:
            await check_not_converting(self.storage, newest.tip.collection)
        try:
            await self._create_file(branch, newest.sequence + 1, newest.reference.snapshot_id, announced)
        except AlreadyExistsError:
            return False
        return True

    async def _create_file(
        self,
        branch: str,
        sequence: int,
        snapshot_id: ObjectId,
        collection: str | None = None,
        *,
        deleted: bool = False,
    ) -> None:
        """Take a sequence number. Raises AlreadyExistsError if another writer took it."""
        properties: dict[str, Any] = {DELETED: True} if deleted else {}
        if collection is not None:
            properties[_COLLECTION] = collection
        reference = new_reference(snapshot_id, properties)
        looked = monotonic_time()
        await self.storage.create(f"{REFS}{branch}/{sequence_name(sequence)}", encode_reference(reference))
        self._looked[branch] = looked

    async def record_detached(self, snapshot: Snapshot) -> None:
        """Do nothing: the file of the snapshot is sufficient."""

    async def create_branch(self, branch: str, snapshot_id: ObjectId) -> None:
        _check_new_branch(branch)
        newest = await self._find_newest(branch)
        try:
            if newest is not None and not newest.deleted:
                raise AlreadyExistsError(f"the newest file is number {newest.sequence}")
            await self._create_file(branch, 0 if newest is None else newest.sequence + 1, snapshot_id)
        except AlreadyExistsError as error:
            raise AlreadyExistsError(
                f"branch {branch!r} exists already. Reset the branch to move it", "branch-already-exists", name=branch
            ) from error

    async def reset_branch(self, branch: str, snapshot_id: ObjectId, expected: ObjectId | None) -> ObjectId:
        for pause in _CONTENTION.pauses():
            newest = await self._require_newest(branch)
            current = newest.reference.snapshot_id
            if expected is not None and current != expected:
                raise branch_moved(branch, expected, current)
            if current == snapshot_id:
                return current
            await check_not_converting(self.storage, newest.tip.collection)
            try:
                await self._create_file(branch, newest.sequence + 1, snapshot_id, newest.tip.collection)
                return current
            except AlreadyExistsError:
                await asyncio.sleep(pause)
        raise _contended(branch)

    async def delete_branch(self, branch: str) -> None:
        if branch == MAIN:
            raise ForbiddenChangeError(
                "the main branch cannot be deleted, because every repository needs it", "cannot-delete-main"
            )
        for pause in _CONTENTION.pauses():
            newest = await self._require_newest(branch)
            await check_not_converting(self.storage, newest.tip.collection)
            try:
                current = newest.tip
                return await self._create_file(
                    branch, newest.sequence + 1, current.snapshot_id, current.collection, deleted=True
                )
            except AlreadyExistsError:
                await asyncio.sleep(pause)
        raise _contended(branch)

    async def create_tag(self, tag: str, snapshot_id: ObjectId) -> None:
        check_new_name(tag, "tag")
        try:
            await self.storage.create(_tag_key(tag), encode_reference(new_reference(snapshot_id, {})))
        except AlreadyExistsError as error:
            raise AlreadyExistsError(
                f"tag {tag!r} exists already. Tags cannot be moved", "tag-already-exists", name=tag
            ) from error

    async def withdraw_tag(self, tag: str) -> None:
        await self.storage.delete([_tag_key(tag)])

    async def delete_tag(self, tag: str) -> None:
        await self.fetch_tag(tag)
        raise UnsupportedError(f"tag {tag!r} cannot be deleted: tags of the generation `store` are permanent")

    def ancestry(self, snapshot_id: ObjectId) -> AsyncIterator[SnapshotInfo]:
        return walk_history(self.metadata_files, snapshot_id)

    async def fetch_config(self) -> StoredConfig:
        try:
            found = await self.storage.get_versioned(CONFIG_KEY)
        except ObjectNotFoundError:
            return StoredConfig(None)
        return StoredConfig(load_object(found.data, CONFIG_KEY, SMALL_FILE_BYTES), found.version)

    async def save_config(self, document: Mapping[str, Any], version_token: Any) -> None:
        data = dump_json(dict(document))
        await save_config_file(self.storage, CONFIG_KEY, data, version_token)

    async def import_history(self, history: WholeHistory, *, replace_leftovers: bool = False) -> None:
        await create_refs(self, history)

    @staticmethod
    async def remove(storage: Storage) -> None:
        await wait_for_writers()
        await remove_refs(storage, "r/", ("r/main/", "r/branch:main/"))


def _tag_key(tag: str) -> str:
    return f"{REFS}{tag}{EXTENSION}"


def _check_new_branch(branch: str) -> None:
    check_new_name(branch, "branch")
    if branch.endswith(EXTENSION):
        raise InvalidInputError(
            f"{branch!r} is not a branch name: the file of the tag {branch.removesuffix(EXTENSION)!r} has that name"
        )


def new_reference(snapshot_id: ObjectId, properties: Mapping[str, Any]) -> Reference:
    """The content of a new ref file."""
    # A random text makes every file unique. After a lost response, reading back shows who wrote it.
    return Reference(snapshot_id, current_time(), {**properties, _UPDATE: new_object_id()})


class StoreRefFiles(RefFiles):
    """Numbered branch files in `r/NAME/`, tags in `r/NAME.json`."""

    folder = REFS
    config_key = CONFIG_KEY

    def first_key(self, branch: str) -> str:
        return f"{REFS}{branch}/{sequence_name(0)}"

    def next_key(self, key: str) -> str:
        folder, _, name = key.rpartition("/")
        number = find_sequence(name)
        assert number is not None
        return f"{folder}/{sequence_name(number + 1)}"

    def group(self, keys: Iterable[str]) -> list[StoredRef]:
        tags: list[StoredRef] = []
        branches: dict[str, list[str]] = {}
        for key in keys:
            folder, _, name = key.removeprefix(REFS).rpartition("/")
            if not folder:
                tags.append(StoredRef("tag", name.removesuffix(EXTENSION), (key,)))
            else:
                numbered = branches.setdefault(folder, [])
                if find_sequence(name) is not None:
                    numbered.append(key)
        # The name of the newest file sorts first.
        return tags + [StoredRef("branch", name, tuple(sorted(found))) for name, found in branches.items()]

    def parse(self, data: bytes, key: str) -> tuple[ObjectId, bool]:
        if is_torn(data):
            raise FormatError(f"{key} is truncated: it has {len(data)} bytes")
        reference = decode_reference(data)
        return reference.snapshot_id, reference.properties.get(DELETED) is True

    def encode(self, target: ObjectId) -> bytes:
        return encode_reference(new_reference(target, {}))


REF_FILES = StoreRefFiles()


def _contended(branch: str) -> StorageError:
    return StorageError(
        f"other writers moved branch {branch!r} in each of {_CONTENTION.max_tries} attempts. Try again", name=branch
    )
