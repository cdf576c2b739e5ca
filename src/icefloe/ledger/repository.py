"""Refs and history of the generation `repository`: a commit creates the next branch file.

A branch is a folder of files with descending names. The first in order is the newest and names the tip of the branch.
No branch file is ever replaced or removed. A branch is deleted by a last file that marks the deletion. If its files
were removed instead, a writer in progress could create a file in the gap. Then its commit would be lost, or the branch
would exist again. The deletion file is created like a commit, so either a commit or a concurrent deletion succeeds.

A power loss may leave the newest file empty or truncated if files are not synced. Its commit never finished. The tip
is then the one in the file before it, and the next commit takes the number after the damaged file.

An expiry is recorded in the next file of `main`, as new parents of kept snapshots. Every later file of `main` repeats
them, until a garbage collection has written them to the files of the snapshots. `main` is never deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from icefloe.blocking import gather_each, monotonic_time
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenChangeError,
    FormatError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    RefNotFoundError,
    StorageError,
    UnsupportedError,
    branch_moved,
)
from icefloe.ids import ObjectId, new_object_id
from icefloe.lazy_exports import lazy_module
from icefloe.ledger.ledger import (
    CONVERSION,
    FRESH_SECONDS,
    MAIN,
    MOST_NEW_PARENTS,
    Ledger,
    StaleTipError,
    StoredConfig,
    Tip,
    WholeHistory,
    add_position,
    check_name,
    check_new_name,
    check_not_converting,
    gather_requests,
    save_config_file,
)
from icefloe.ledger.quoted_history import QuotingLedger, walk_history
from icefloe.ledger.repository_refs import (
    COLON,
    CONFIG_KEY,
    DOTTED,
    EARLY_CONFIG_KEY,
    GENERATION,
    GENERATION_KEY,
    REF_FILES,
    REFS,
    STYLES,
    TAG_FILE,
    TAG_TOMBSTONE,
    RefContent,
    RefStyle,
    TornRefError,
    group_by_folder,
    parse_folder,
    parse_ref,
    parse_sequence,
)
from icefloe.ledger.switch_generation import create_refs, remove_refs, wait_for_writers
from icefloe.metadata_files import MetadataFiles
from icefloe.model.snapshot import BranchPosition, Snapshot, SnapshotInfo
from icefloe.model.zarr_document import SMALL_FILE_BYTES, load_object
from icefloe.storage.contract import ObjectInfo, Storage, Version, Versioned
from icefloe.storage.requests import RetryPolicy

if TYPE_CHECKING:
    from icefloe.formats import config_yaml
else:
    config_yaml = lazy_module("icefloe.formats.config_yaml")

_LOG = logging.getLogger(__name__)

_CONTENTION = RetryPolicy(max_tries=100, initial_backoff_ms=2, max_backoff_ms=500)
"""Each lost round means that another writer moved the branch, so a hundred rounds are enough."""
_FEWEST_READS, _MOST_READS = 2, 8
"""Branch files that are read at the same time: the last known one and its successors. More if the branch moves fast."""
_READS_BEFORE_LISTING = 24
"""A branch that moved further is listed."""
_MOST_LISTED_FILES = 500
"""With more files of refs, the branches are listed first, and then the newest file of each. A page of a listing has
1,000 names, and some stores return all pages of nested folders."""


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest file of a branch."""

    style: RefStyle
    sequence: int
    content: RefContent

    @property
    def tip(self) -> Tip:
        content = self.content
        return Tip(content.snapshot_id, self.sequence, content.collection, content.new_parents)


class _ListedRefs:
    """The files of refs that were read after a listing. Ledgers of the same repository share it."""

    def __init__(self) -> None:
        self.count: int | None = None
        """The number of files in the last listing."""
        self.contents: dict[str, tuple[Version, RefContent]] = {}
        """By key. A conversion in place may create a file with the same key again, which has another version."""

    def find(self, item: ObjectInfo) -> RefContent | None:
        """The content of a listed file, if it was read or written before."""
        version, content = self.contents.get(item.key, (Version(), None))
        return content if version.agrees_with(item.version) else None


class RepositoryLedger(QuotingLedger):
    """The refs of one repository. `Tip.version_token` is the sequence number of the newest branch file."""

    keeps_deleted_tags = True
    records_expiries = True

    def __init__(self, storage: Storage, metadata_files: MetadataFiles) -> None:
        super().__init__()
        self.storage = storage
        self.metadata_files = metadata_files
        # The last known files of branches. With them, the newest file is found without a listing.
        self._seen: dict[str, _Newest] = {}
        self._looked: dict[str, float] = {}
        self._expected: dict[str, int] = {}
        self._reads: dict[str, int] = {}
        self._listed = _ListedRefs()

    def learn_from(self, other: Ledger) -> None:
        if isinstance(other, RepositoryLedger):
            self._listed = other._listed

    async def create(self, initial: Snapshot, config: Mapping[str, Any] | None) -> None:
        await self.storage.create(DOTTED.branch_key(MAIN, 0), RefContent(initial.id).encode())
        # Only the creator of the branch file gets here, so a stored configuration means that a repository exists.
        try:
            await self.save_config(config or {}, None)
        except ConflictError:
            left = await self.fetch_config()
            await self.save_config({**(left.document or {}), **(config or {})}, left.version_token)

    async def fetch_tip(self, branch: str) -> Tip:
        newest = await self._fetch_newest(check_name(branch, "branch"))
        if newest is None or newest.content.deleted:
            raise _no_branch(branch)
        return newest.tip

    async def _fetch_newest(self, branch: str) -> _Newest | None:
        """The newest file of a branch, deleted or not. None if there never was one."""
        seen, looked = self._seen.get(branch), monotonic_time()
        newest, expected = None, self._expected.pop(branch, -1)
        if seen is not None and expected > seen.sequence:
            newest = await self._follow(branch, replace(seen, sequence=expected))
        if seen is not None and newest is None:
            newest = await self._follow(branch, seen)
        if newest is None:
            newest = await self._search_newest(branch)
        if newest is None:
            self._seen.pop(branch, None)
        else:
            self._seen[branch] = newest
            self._looked[branch] = looked
        return newest

    async def _follow(self, branch: str, seen: _Newest) -> _Newest | None:
        """The newest file, if the last known one still exists and has few successors. Numbers have no gaps.

        A listing costs more than a few reads, and returns the names of a thousand older files.
        """
        newest: _Newest | None = None
        first, count = seen.sequence, self._reads.get(branch, _FEWEST_READS)
        while first + count <= seen.sequence + _READS_BEFORE_LISTING:
            try:
                found = await gather_each(
                    lambda number: self._find_file(branch, seen.style, number), range(first, first + count)
                )
            except TornRefError:
                break
            for number, content in enumerate(found, first):
                if content is None:
                    self._reads[branch] = min(_FEWEST_READS + max(number - 1 - seen.sequence, 0), _MOST_READS)
                    return newest
                newest = _Newest(seen.style, number, content)
            first, count = first + count, 2 * count
        self._reads.pop(branch, None)
        return None

    def expect_tip(self, branch: str, tip: Tip) -> None:
        self._expected[branch] = tip.version_token

    def note_tip(self, branch: str, tip: Tip) -> None:
        seen = self._seen.get(branch)
        if seen is not None and seen.sequence < tip.version_token:
            content = _content_at(tip, tip.snapshot_id)
            self._seen[branch] = _Newest(seen.style, tip.version_token, content)
            self._looked[branch] = monotonic_time()

    async def _find_file(self, branch: str, style: RefStyle, sequence: int) -> RefContent | None:
        key = style.branch_key(branch, sequence)
        try:
            return parse_ref(await self.storage.get(key), key)
        except ObjectNotFoundError:
            return None

    async def _search_newest(self, branch: str) -> _Newest | None:
        for style in STYLES:
            try:
                found = await self._first_in_folder(style.branch_folder(branch))
            except UnsupportedError:
                return await self._probe_newest(branch)
            if found is None:
                continue
            sequence, number_bytes = found
            own_style = RefStyle(style.separator, number_bytes)
            content = await self._find_whole(branch, own_style, sequence)
            if content is not None:
                return _Newest(own_style, sequence, content)
        return None

    async def _find_whole(self, branch: str, style: RefStyle, sequence: int) -> RefContent | None:
        """The content of the file with a number. If that file is truncated, the newest one before it."""
        torn: TornRefError | None = None
        for number in range(sequence, -1, -1):
            try:
                content = await self._find_file(branch, style, number)
            except TornRefError as error:
                torn = torn or error
                continue
            if content is None and torn is not None:
                break  # others removed the earlier files
            if torn is not None:
                _LOG.warning("%s. Branch %r keeps its previous tip", torn, branch)
            return content
        if torn is not None:
            raise torn
        return None

    async def _probe_newest(self, branch: str) -> _Newest | None:
        """Search the newest file of a branch on a storage that cannot list. Numbers have no gaps."""
        low, high = -1, 0
        while await self._is_there(branch, high):
            low, high = high, 2 * high + 1
        while high - low > 1:
            middle = (low + high) // 2
            if await self._is_there(branch, middle):
                low = middle
            else:
                high = middle
        newest = None if low < 0 else await self._find_whole(branch, DOTTED, low)
        return None if newest is None else _Newest(DOTTED, low, newest)

    async def _is_there(self, branch: str, sequence: int) -> bool:
        try:
            return await self._find_file(branch, DOTTED, sequence) is not None
        except TornRefError:
            return True

    async def _first_in_folder(self, folder: str) -> tuple[int, int] | None:
        """The newest sequence number in a folder. It is the first file of the listing."""
        async for page in self.storage.list(folder):
            for item in page:
                found = parse_sequence(item.key.removeprefix(folder))
                if found is not None:
                    return found
        return None

    async def fetch_positions(self, branch: str, limit: int) -> list[BranchPosition]:
        await self.fetch_tip(branch)
        newest = await self._fetch_newest(branch)
        found: list[BranchPosition] = []
        for sequence in range(newest.sequence if newest is not None else -1, -1, -1):
            assert newest is not None
            try:
                content = await self._find_file(branch, newest.style, sequence)
            except TornRefError:
                continue
            if content is None:
                break  # others removed the earlier files
            if content.deleted:
                continue
            since = (await self.storage.head(newest.style.branch_key(branch, sequence))).last_modified
            if not add_position(found, content.snapshot_id, since, limit):
                break
        return found

    async def _style(self) -> RefStyle:
        """The naming of refs in this repository, from its main branch."""
        seen = self._seen.get(MAIN) or await self._fetch_newest(MAIN)
        return DOTTED if seen is None else seen.style

    async def fetch_tag(self, tag: str) -> ObjectId:
        check_name(tag, "tag")
        for style in STYLES:
            folder = style.tag_folder(tag)
            try:
                data, deleted = await asyncio.gather(
                    self.storage.get(folder + TAG_FILE), self.storage.exists(folder + TAG_TOMBSTONE)
                )
            except ObjectNotFoundError:
                continue
            if not deleted:
                return parse_ref(data, folder + TAG_FILE).snapshot_id
            break
        raise RefNotFoundError(f"ref not found: no tag {tag!r} in {self.storage.url}", name=tag)

    async def _find_tag(self, tag: str) -> ObjectId | None:
        """The snapshot of a tag that is listed."""
        for style in STYLES:
            key = style.tag_folder(tag) + TAG_FILE
            data = await _find(self.storage.get(key))
            if data is not None:
                return parse_ref(data, key).snapshot_id
        return None

    async def fetch_tags(self) -> dict[str, ObjectId]:
        # The listing contains the tombstones, so that one request for each tag is sufficient.
        names = sorted(await self.list_tags())
        found = await gather_requests(map(self._find_tag, names))
        return {name: target for name, target in zip(names, found, strict=True) if target is not None}

    async def list_branches(self) -> set[str]:
        return set(await self.fetch_tips())

    async def fetch_tips(self) -> dict[str, Tip]:
        folders = await self.storage.list_names(REFS)
        names = sorted({name for folder in folders if (name := parse_folder("branch", folder))})
        found = await gather_requests(self._fetch_newest(name) for name in names)
        return {
            name: newest.tip
            for name, newest in zip(names, found, strict=True)
            if newest is not None and not newest.content.deleted
        }

    async def fetch_refs(self) -> tuple[dict[str, Tip], dict[str, ObjectId]]:
        """Read all refs from one listing, if it is short. Files that an earlier call has read are not read again.

        A listing of a file system is not one moment: a tag may be created in a folder that was listed already, and then
        its branch may be reset or deleted in a folder that was not. So tags are listed again if a branch has moved.
        """
        main = None
        if self._listed.count is None:
            main = await self._fetch_newest(MAIN)
            self._listed.count = _MOST_LISTED_FILES + 1 if main is None else main.sequence
        if self._listed.count > _MOST_LISTED_FILES:
            return await super().fetch_refs()
        looked, items = monotonic_time(), {}
        async for page in self.storage.list(REFS):
            items.update({item.key: item for item in page})
        tips, tags = await self._read_refs(items, looked, main)
        return tips, await self.fetch_tags() if tags is None else tags

    async def fetch_refs_once(self) -> tuple[dict[str, Tip], dict[str, ObjectId]]:
        if self._listed.count is not None or self.storage.lists_names_faster:
            return await self.fetch_refs()
        looked, items = monotonic_time(), {}
        async with contextlib.aclosing(self.storage.list(REFS)) as pages:  # type: ignore[type-var]
            async for page in pages:
                items.update({item.key: item for item in page})
                if len(items) > _MOST_LISTED_FILES:
                    self._listed.count = len(items)
                    return await super().fetch_refs()
        tips, tags = await self._read_refs(items, looked, None)
        return tips, await self._read_tags(items) if tags is None else tags

    async def _read_refs(
        self, items: Mapping[str, ObjectInfo], looked: float, main: _Newest | None
    ) -> tuple[dict[str, Tip], dict[str, ObjectId] | None]:
        """The refs in a listing. The tags are None if they have to be listed again, because a branch has moved."""
        self._listed.count, folders = len(items), group_by_folder(items)
        newest = {
            name: found
            for name in sorted({parse_folder("branch", folder) for folder in folders} - {""})
            if (found := _find_listed(name, folders)) is not None
        }
        if main is not None and MAIN in newest and newest[MAIN][:2] == (main.style, main.sequence):
            item = items[main.style.branch_key(MAIN, main.sequence)]
            self._listed.contents[item.key] = item.version, main.content
        keys = {name: style.branch_key(name, number) for name, (style, number) in newest.items()}
        has_moved = any(self._listed.find(items[key]) is None for key in keys.values())
        files = await gather_requests(self._read_listed(name, *newest[name], items[key]) for name, key in keys.items())
        tips: dict[str, Tip] = {}
        for name, file in zip(keys, files, strict=True):
            if file is not None:
                self._seen[name], self._looked[name] = file, looked
            if file is not None and not file.content.deleted:
                tips[name] = file.tip
        return tips, None if has_moved else await self._read_tags(items)

    async def _read_tags(self, items: Mapping[str, ObjectInfo]) -> dict[str, ObjectId]:
        tags = [each for each in REF_FILES.group(items) if each.kind == "tag"]
        targets = await gather_requests(self._read_listed_tag(items[each.keys[0]]) for each in tags)
        return {tag.name: to for tag, to in zip(tags, targets, strict=True) if to is not None}

    async def _read_listed(self, branch: str, style: RefStyle, number: int, item: ObjectInfo) -> _Newest | None:
        """The newest file of a branch, which was listed."""
        content = self._listed.find(item)
        if content is None:
            try:
                content = await self._find_file(branch, style, number)
            except TornRefError:
                content = await self._find_whole(branch, style, number)
            else:
                if content is not None:
                    self._listed.contents[item.key] = item.version, content
        return None if content is None else _Newest(style, number, content)

    async def _read_listed_tag(self, item: ObjectInfo) -> ObjectId | None:
        content = self._listed.find(item)
        if content is None:
            data = await _find(self.storage.get(item.key))
            if data is None:
                return None
            content = parse_ref(data, item.key)
            self._listed.contents[item.key] = item.version, content
        return content.snapshot_id

    async def list_tags(self) -> set[str]:
        files = await self._tag_files()
        return files.get(TAG_FILE, set()) - files.get(TAG_TOMBSTONE, set())

    async def _tag_files(self) -> dict[str, set[str]]:
        """The names of tags, from their files."""
        found: dict[str, set[str]] = {}
        # Branches sort before tags and may have many files, so start the listing after them.
        async for page in self.storage.list(REFS, after=f"{REFS}tag"):
            for item in page:
                folder, _, file = item.key.removeprefix(REFS).rpartition("/")
                name = parse_folder("tag", f"{folder}/")
                if name:
                    found.setdefault(file, set()).add(name)
        return found

    async def advance(self, branch: str, tip: Tip, snapshot: Snapshot, *, amends: ObjectId | None = None) -> Tip:
        if amends is None:
            await self.replace_tip(branch, tip, snapshot.id)
        elif branch == MAIN:
            tip = replace(tip, new_parents=_replace_amended(tip.new_parents, amends, snapshot.id))
            await self.replace_tip(branch, tip, snapshot.id)
        else:
            await self._amend(branch, tip, amends, snapshot.id)
        landed = replace(tip, snapshot_id=snapshot.id, version_token=tip.version_token + 1)
        self.note_current(branch, landed)
        return landed

    async def _amend(self, branch: str, tip: Tip, amended: ObjectId, snapshot_id: ObjectId) -> None:
        """Move a branch other than `main` to the snapshot that replaces its tip, with the new parent of the tip.

        The new parent is recorded before the branch moves. What is no longer needed is removed after it has moved.
        """
        await self._change_new_parents(lambda recorded: _inherit(recorded, amended, snapshot_id))
        try:
            await self.replace_tip(branch, tip, snapshot_id)
        except ConflictError:
            with contextlib.suppress(IcefloeError):
                await self._change_new_parents(lambda recorded: _without(recorded, snapshot_id))
            raise
        # An expiry may have been recorded since, which did not see the new snapshot. The branch has moved, so this must
        # not fail. Without it, the branch shows expired ancestors.
        with contextlib.suppress(IcefloeError):
            await self._change_new_parents(lambda recorded: _replace_amended(recorded, amended, snapshot_id))

    async def _change_new_parents(
        self, change: Callable[[Mapping[ObjectId, ObjectId]], Mapping[ObjectId, ObjectId]]
    ) -> None:
        """Change the recorded new parents, whatever `main` is at."""
        for pause in _CONTENTION.pauses():
            newest = await self._fetch_newest(MAIN)
            if newest is None:
                return
            parents = change(newest.content.new_parents)
            if parents == newest.content.new_parents:
                return
            if await self._take_next(MAIN, newest, replace(newest.content, new_parents=parents)):
                return
            await asyncio.sleep(pause)
        raise _contended(MAIN)

    async def fetch_new_parents(self) -> Mapping[ObjectId, ObjectId]:
        newest = await self._fetch_newest(MAIN)
        return {} if newest is None else newest.content.new_parents

    async def record_new_parents(self, tip: Tip, parents: Mapping[ObjectId, ObjectId]) -> bool:
        newest = self._find_fresh(MAIN, tip)
        for pause in _CONTENTION.pauses():
            newest = newest or await self._pass_commits(tip)
            if newest is None:
                return False
            await check_not_converting(self.storage, newest.content.collection)
            if await self._take_next(MAIN, newest, replace(newest.content, new_parents=parents)):
                return True
            tip, newest = newest.tip, None
            await asyncio.sleep(pause)
        raise _contended(MAIN)

    async def _pass_commits(self, tip: Tip) -> _Newest | None:
        """The newest file of `main`. None if one of the files since a tip has other new parents, or if they are many.

        Every file is read: an expiry may have been recorded and written in the meantime.
        """
        seen = self._seen.get(MAIN) or await self._fetch_newest(MAIN)
        if seen is None:
            raise _no_branch(MAIN)
        found: _Newest | None = None
        for number in range(tip.version_token, tip.version_token + _READS_BEFORE_LISTING):
            looked = monotonic_time()
            try:
                content = await self._find_file(MAIN, seen.style, number)
            except TornRefError:
                content = _content_at(tip, tip.snapshot_id) if found is None else found.content
            if content is None:
                if found is not None:
                    self._seen[MAIN], self._looked[MAIN] = found, looked
                return found
            if content.new_parents != tip.new_parents:
                return None
            found = _Newest(seen.style, number, content)
        return None

    async def replace_tip(self, branch: str, tip: Tip, snapshot_id: ObjectId) -> None:
        check_name(branch, "branch")
        await check_not_converting(self.storage, tip.collection)
        seen = None if tip.collection == CONVERSION else self._seen.get(branch)
        if seen is None or not self._is_fresh(branch):
            # A conversion in place removes the files of a branch. Then the next file could be created a second time.
            seen = await self._fetch_newest(branch)
            if seen is None:
                raise _no_branch(branch)
            if seen.sequence != tip.version_token:
                await self._refuse(branch, tip)
        try:
            await self._create_file(branch, seen.style, tip.version_token + 1, _content_at(tip, snapshot_id))
        except AlreadyExistsError:
            await self._refuse(branch, tip)

    async def _refuse(self, branch: str, tip: Tip) -> NoReturn:
        """Raise the error for a branch that is no longer at a tip."""
        seen, number = self._seen.get(branch), tip.version_token + 1
        if seen is not None and seen.sequence == tip.version_token:
            with contextlib.suppress(TornRefError):
                own, after = await asyncio.gather(
                    self._find_file(branch, seen.style, number), self._find_file(branch, seen.style, number + 1)
                )
                newest = after or own
                # A writer that tries again reads the newest file then. The branch may have moved further.
                if newest is not None and newest.snapshot_id != tip.snapshot_id and not newest.deleted:
                    self._seen[branch] = _Newest(seen.style, number + (after is not None), newest)
                    raise ConflictError(expected_parent=tip.snapshot_id, actual_parent=newest.snapshot_id) from None
        current = await self.fetch_tip(branch)
        if current.snapshot_id != tip.snapshot_id:
            raise ConflictError(expected_parent=tip.snapshot_id, actual_parent=current.snapshot_id) from None
        raise StaleTipError(current) from None

    async def touch_branch(self, branch: str, tip: Tip, collection: str | None = None) -> bool:
        newest = self._find_fresh(check_name(branch, "branch"), tip) or await self._fetch_newest(branch)
        if newest is None or newest.content.deleted:
            return True
        if Tip(newest.content.snapshot_id, newest.sequence) != tip:
            return False
        content = newest.content if collection is None else replace(newest.content, collection=collection)
        return await self._take_next(branch, newest, content)

    def _find_fresh(self, branch: str, tip: Tip) -> _Newest | None:
        """The file of a tip that was read just now. The creation of the next file shows if there is a newer one."""
        seen = self._seen.get(branch)
        if seen is None or not self._is_fresh(branch):
            return None
        return seen if Tip(seen.content.snapshot_id, seen.sequence) == tip else None

    def _is_fresh(self, branch: str) -> bool:
        """Whether a branch was read so recently that its next file can be created, see `FRESH_SECONDS`."""
        return monotonic_time() - self._looked.get(branch, -math.inf) <= FRESH_SECONDS

    async def _create_file(self, branch: str, style: RefStyle, sequence: int, content: RefContent) -> None:
        looked, key = monotonic_time(), style.branch_key(branch, sequence)
        version = await self.storage.create(key, content.encode())
        self._listed.contents.pop(style.branch_key(branch, max(sequence - 1, 0)), None)
        self._listed.contents[key] = version, content
        self._looked[branch] = looked
        self._seen[branch] = _Newest(style, sequence, content)

    async def record_detached(self, snapshot: Snapshot) -> None:
        """Do nothing: the file of the snapshot is sufficient."""

    async def create_branch(self, branch: str, snapshot_id: ObjectId) -> None:
        check_new_name(branch, "branch")
        newest = await self._fetch_newest(branch)
        if newest is not None and not newest.content.deleted:
            raise _branch_exists(branch)
        style = await self._style() if newest is None else newest.style
        sequence = 0 if newest is None else newest.sequence + 1
        try:
            # Two creators of one branch may write the same bytes.
            await self.storage.create(
                style.branch_key(branch, sequence), RefContent(snapshot_id).encode(), unique=False
            )
        except AlreadyExistsError as error:
            raise _branch_exists(branch) from error

    async def reset_branch(self, branch: str, snapshot_id: ObjectId, expected: ObjectId | None) -> ObjectId:
        check_name(branch, "branch")
        for pause in _CONTENTION.pauses():
            newest = await self._fetch_newest(branch)
            if newest is None or newest.content.deleted:
                raise _no_branch(branch)
            current = newest.content.snapshot_id
            if expected is not None and current != expected:
                raise branch_moved(branch, expected, current)
            if current == snapshot_id:
                return current
            if await self._take_next(branch, newest, replace(newest.content, snapshot_id=snapshot_id)):
                return current
            await asyncio.sleep(pause)
        raise _contended(branch)

    async def delete_branch(self, branch: str) -> None:
        check_name(branch, "branch")
        if branch == MAIN:
            raise ForbiddenChangeError(
                "the main branch cannot be deleted, because every repository needs it", "cannot-delete-main"
            )
        for pause in _CONTENTION.pauses():
            newest = await self._fetch_newest(branch)
            if newest is None or newest.content.deleted:
                raise _no_branch(branch)
            if await self._take_next(branch, newest, replace(newest.content, deleted=True)):
                return
            await asyncio.sleep(pause)
        raise _contended(branch)

    async def _take_next(self, branch: str, newest: _Newest, content: RefContent) -> bool:
        """Create the file after the newest. False if another writer did."""
        if content.collection != CONVERSION or content.snapshot_id != newest.content.snapshot_id:
            await check_not_converting(self.storage, newest.content.collection)
        try:
            # Others may reset the branch to the same snapshot, or write its ref again, at the same time.
            content = replace(content, token=new_object_id())
            await self._create_file(branch, newest.style, newest.sequence + 1, content)
        except AlreadyExistsError:
            return False
        return True

    async def create_tag(self, tag: str, snapshot_id: ObjectId) -> None:
        check_new_name(tag, "tag")
        folder = (await self._style()).tag_folder(tag)
        if await self.storage.exists(folder + TAG_TOMBSTONE):
            raise AlreadyExistsError(
                f"tag {tag!r} was deleted. Its name cannot be used again",
                "tag-previously-deleted",
                name=tag,
            )
        try:
            await self.storage.create(folder + TAG_FILE, RefContent(snapshot_id).encode(), unique=False)
        except AlreadyExistsError as error:
            raise AlreadyExistsError(
                f"tag {tag!r} exists already. Tags cannot be moved", "tag-already-exists", name=tag
            ) from error

    async def withdraw_tag(self, tag: str) -> None:
        await self.storage.delete([(await self._style()).tag_folder(tag) + TAG_FILE])

    async def delete_tag(self, tag: str) -> None:
        await self.fetch_tag(tag)
        raise UnsupportedError(f"tag {tag!r} cannot be deleted: tags of the generation `repository` are permanent")

    def ancestry(self, snapshot_id: ObjectId) -> AsyncIterator[SnapshotInfo]:
        return walk_history(self.metadata_files, snapshot_id)

    async def fetch_config(self) -> StoredConfig:
        own = await _find(self.storage.get_versioned(CONFIG_KEY))
        if own is not None:
            return stored_config(own)
        early = await _find(self.storage.get(EARLY_CONFIG_KEY))
        if early is None:
            return StoredConfig(None)
        try:
            return StoredConfig(config_yaml.decode_yaml(early))
        except InvalidInputError as error:
            raise FormatError(f"{EARLY_CONFIG_KEY} of {self.storage.url} cannot be read: {error}") from error

    async def save_config(self, document: Mapping[str, Any], version_token: Any) -> None:
        data = json.dumps({GENERATION_KEY: GENERATION, **document}, indent=2).encode()
        await save_config_file(self.storage, CONFIG_KEY, data, version_token)

    async def import_history(self, history: WholeHistory, *, replace_leftovers: bool = False) -> None:
        await create_refs(self, history)

    async def import_config(self, document: Mapping[str, Any]) -> None:
        stored = await self.fetch_config()
        if stored.document != document:
            # Omit the name of the generation, because the repository does not exist before `main` does.
            data = json.dumps(document, indent=2).encode()
            await save_config_file(self.storage, CONFIG_KEY, data, stored.version_token)

    async def finish_import(self) -> None:
        left = await self.fetch_config()
        await self.save_config(left.document or {}, left.version_token)

    async def import_deleted_tag(self, tag: str) -> None:
        with contextlib.suppress(AlreadyExistsError):
            await self.storage.create(DOTTED.tag_folder(tag) + TAG_TOMBSTONE, b"", unique=False)

    async def fetch_deleted_tags(self) -> frozenset[str]:
        return frozenset((await self._tag_files()).get(TAG_TOMBSTONE, ()))

    @staticmethod
    async def remove(storage: Storage) -> None:
        await wait_for_writers()
        await remove_refs(storage, REFS, (DOTTED.branch_folder(MAIN), COLON.branch_folder(MAIN)))

    @staticmethod
    async def remove_name(storage: Storage) -> None:
        found = await _find(storage.get_versioned(CONFIG_KEY))
        if found is None or not names_generation(found):
            return
        document = stored_config(found).document
        if document is None:
            await storage.delete([CONFIG_KEY])
        else:
            await storage.swap(CONFIG_KEY, json.dumps(document, indent=2).encode(), found.version, unique=False)


def stored_config(found: Versioned) -> StoredConfig:
    """The configuration in a `config.json`, without the name of the generation."""
    document = dict(_parse_config(found.data))
    document.pop(GENERATION_KEY, None)
    return StoredConfig(document or None, found.version)


def names_generation(found: Versioned) -> bool:
    """Whether a `config.json` contains the name of this generation."""
    try:
        return _parse_config(found.data).get(GENERATION_KEY) == GENERATION
    except FormatError:
        return False


def _parse_config(data: bytes) -> Mapping[str, Any]:
    return load_object(data, CONFIG_KEY, SMALL_FILE_BYTES)


async def _find(request: Any) -> Any:
    try:
        return await request
    except ObjectNotFoundError:
        return None


def _find_listed(branch: str, folders: Mapping[str, Sequence[str]]) -> tuple[RefStyle, int] | None:
    """The newest file of a branch in a listing."""
    for style in STYLES:
        names = folders.get(style.branch_folder(branch).removeprefix(REFS), ())
        first = next((found for name in sorted(names) if (found := parse_sequence(name)) is not None), None)
        if first is not None:
            return RefStyle(style.separator, first[1]), first[0]
    return None


def _content_at(tip: Tip, snapshot_id: ObjectId) -> RefContent:
    """The file that follows a tip, with another snapshot."""
    return RefContent(snapshot_id, collection=tip.collection, new_parents=tip.new_parents)


def _inherit(
    new_parents: Mapping[ObjectId, ObjectId], amended: ObjectId, snapshot_id: ObjectId
) -> Mapping[ObjectId, ObjectId]:
    """The new parents with that of an amended snapshot also for the one that replaces it, which comes last."""
    parent = new_parents.get(amended)
    return new_parents if parent is None or snapshot_id in new_parents else {**new_parents, snapshot_id: parent}


def _replace_amended(
    new_parents: Mapping[ObjectId, ObjectId], amended: ObjectId, snapshot_id: ObjectId
) -> Mapping[ObjectId, ObjectId]:
    """The new parents after a snapshot was amended.

    If there are many, that of the amended snapshot is removed, unless it is the first one with this parent. The
    snapshot that was amended first may be in the history of other refs. The later ones mostly are not.
    """
    inherited = _inherit(new_parents, amended, snapshot_id)
    first = next((child for child, parent in inherited.items() if parent == inherited.get(amended)), amended)
    return inherited if len(inherited) <= MOST_NEW_PARENTS or first == amended else _without(inherited, amended)


def _without(new_parents: Mapping[ObjectId, ObjectId], snapshot_id: ObjectId) -> Mapping[ObjectId, ObjectId]:
    return {child: parent for child, parent in new_parents.items() if child != snapshot_id}


def _no_branch(branch: str) -> RefNotFoundError:
    return RefNotFoundError(f"ref not found: no branch {branch!r}. `icefloe branch` lists all branches", name=branch)


def _branch_exists(branch: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"branch {branch!r} exists already. Reset the branch to move it", "branch-already-exists", name=branch
    )


def _contended(branch: str) -> StorageError:
    return StorageError(
        f"other writers moved branch {branch!r} in each of {_CONTENTION.max_tries} attempts. Try again", name=branch
    )
