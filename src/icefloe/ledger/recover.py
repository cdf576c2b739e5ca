"""Recover refs, the file that contains all refs, and the stored configuration.

A repository does not open if one of these files is empty, truncated, corrupt or missing. Its content is recovered from
older branch files, from backups of the `repo` file, or from the snapshots, if only one of them can be the tip. Nothing
is removed: an unreadable file that is replaced is kept under another name.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass

from icefloe.errors import FormatError, IcefloeError, InvalidInputError, NotFoundError, ObjectNotFoundError
from icefloe.formats.config_yaml import decode_yaml
from icefloe.formats.contract import get_format
from icefloe.formats.dataset.state import (
    STATE_KEY,
    UPDATE_KEY,
    State,
    StateRef,
    encode_state,
    parse_state,
    snapshot_entry,
)
from icefloe.formats.flatbuf.files import object_metadata
from icefloe.formats.icechunk2.repo_edits import OVERWRITTEN
from icefloe.formats.icechunk2.repo_file import decode_repo
from icefloe.formats.store.snapshot import decode_reference, encode_reference, find_sequence, sequence_name
from icefloe.ids import ObjectId, new_object_id
from icefloe.ledger.contract import MAIN, RefTargets
from icefloe.ledger.generations import find_generations
from icefloe.ledger.icechunk2 import REPO_KEY
from icefloe.ledger.repository import (
    GENERATION,
    GENERATION_KEY,
    RefContent,
    encode_sequence,
    is_torn,
    parse_folder,
    parse_ref,
    parse_sequence,
)
from icefloe.ledger.store import DELETED, new_reference
from icefloe.metadata_files import MetadataFiles
from icefloe.model.administration import Damage, DamageKind
from icefloe.model.capabilities import SpecVersion
from icefloe.model.snapshot import Snapshot
from icefloe.model.zarr_document import load_object
from icefloe.storage.contract import Storage, Versioned

_ASIDE = "damaged/"
"""The folder of unreadable files that were replaced."""
_NAMED = 5
_GONE = "it is gone"


@dataclass(frozen=True, slots=True)
class _Ref:
    """A ref whose file cannot be read, and what is left of it."""

    kind: str
    name: str
    key: str
    why: str
    before: ObjectId | None = None
    """The snapshot of the branch in its newest readable file."""
    deleted: bool = False
    """Whether that file marks the branch as deleted."""
    next_key: str | None = None
    """The file that supersedes the unreadable one, in generations that never replace branch files."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found in the refs and the configuration."""

    damages: tuple[Damage, ...]
    refs: RefTargets
    """The readable refs, in generations with one file per ref."""


async def recover(
    storage: Storage,
    *,
    version: SpecVersion | None = None,
    tips: Mapping[str, ObjectId] | None = None,
    apply: bool = True,
) -> Recovery:
    """Find refs and configuration files that cannot be read, and restore them.

    Parameters
    ----------
    version
        The generation of the repository, if known. Otherwise it is detected from the objects in the storage.
    tips
        The tips of branches that cannot be recovered from the files.
    apply
        Write the missing files. Otherwise only report the damage.
    """
    version = version or await _guess_generation(storage)
    if version is None:
        return Recovery((), RefTargets({}, {}))
    work = _Recovery(storage, version, dict(tips or {}), apply)
    if version is SpecVersion.ICECHUNK2:
        await work.repo()
    elif version is SpecVersion.DATASET:
        await work.state()
    else:
        await work.refs()
    await work.config()
    return Recovery(tuple(work.found), work.readable)


async def _guess_generation(storage: Storage) -> SpecVersion | None:
    """The generation of a repository that may not open."""
    names = set(await storage.list_names(""))
    if REPO_KEY in names:
        return SpecVersion.ICECHUNK2
    if OVERWRITTEN in names:
        # Backups of the repo file stay when the repository is converted to another generation in place.
        others = await find_generations(storage)
        return max(others, default=SpecVersion.ICECHUNK2)
    if "refs/" in names:
        async for page in storage.list("refs/"):
            for item in page:
                if parse_sequence(item.key.rpartition("/")[2]):
                    return SpecVersion.REPOSITORY
        return SpecVersion.ICECHUNK1
    if "r/" in names:
        return SpecVersion.STORE
    if STATE_KEY in names:
        return SpecVersion.DATASET
    if "snapshots/" in names:
        return SpecVersion.REPOSITORY if "config.json" in names else SpecVersion.ICECHUNK1
    return None


class _Recovery:
    """One pass over the refs and the configuration of a repository."""

    def __init__(self, storage: Storage, version: SpecVersion, tips: dict[str, ObjectId], apply: bool) -> None:
        self.storage, self.version, self.tips, self.apply = storage, version, tips, apply
        self.format = get_format(version)
        self.metadata_files = MetadataFiles(storage, self.format)
        self.found: list[Damage] = []
        self.readable = RefTargets({}, {})
        self._snapshots: dict[ObjectId, Snapshot] | None = None

    def _add(self, kind: DamageKind, what: str, key: str, detail: str, *, repairable: bool) -> None:
        self.found.append(Damage(kind, what, key, detail, repairable=repairable))

    async def snapshots(self) -> dict[ObjectId, Snapshot]:
        """Every snapshot whose file can be read."""
        if self._snapshots is None:
            self._snapshots = {}
            for name in await self.storage.list_names(self.format.snapshots_folder):
                snapshot_id = name.removesuffix(self.format.metadata_extension)
                try:
                    self._snapshots[snapshot_id] = await self.metadata_files.fetch_snapshot(snapshot_id)
                except IcefloeError:
                    continue
        return self._snapshots

    async def only_tip(self, known: Iterable[ObjectId]) -> ObjectId | None:
        """The only snapshot without children that no other ref reaches. None if there are several."""
        snapshots = await self.snapshots()
        reached: set[ObjectId] = set()
        for start in known:
            current: ObjectId | None = start
            while current is not None and current not in reached:
                reached.add(current)
                current = snapshots[current].parent_id if current in snapshots else None
        parents = {each.parent_id for each in snapshots.values()}
        left = [each for each in snapshots if each not in reached and each not in parents]
        return left[0] if len(left) == 1 else None

    async def _advice(self, branch: str) -> str:
        snapshots = sorted((await self.snapshots()).values(), key=lambda each: each.written_at, reverse=True)
        if not snapshots:
            return "no snapshot can be read. Restore the repository from a backup"
        newest = ", ".join(each.id for each in snapshots[:_NAMED])
        return (
            f"give its snapshot with `icefloe verify --repair --tip {branch}=SNAPSHOT`. The newest readable snapshots "
            f"are {newest}"
        )

    async def _keep_aside(self, key: str) -> None:
        """Copy an unreadable file before it is replaced."""
        try:
            await self.storage.put(f"{_ASIDE}{key}.{new_object_id()}", await self.storage.get(key))
        except ObjectNotFoundError:
            return

    async def _replace(self, key: str, data: bytes, found: Versioned | None, metadata: Mapping[str, str]) -> None:
        await self._keep_aside(key)
        if found is None:
            await self.storage.create(key, data, metadata=metadata, unique=False)
        else:
            await self.storage.swap(key, data, found.version, metadata=metadata, unique=False)

    async def _get(self, key: str) -> Versioned | None:
        try:
            return await self.storage.get_versioned(key)
        except ObjectNotFoundError:
            return None

    # -- the official second generation: one file, with backups ---------------------------------------------------

    async def repo(self) -> None:
        found = await self._get(REPO_KEY)
        damage = _damage_of(found, decode_repo)
        if damage is None:
            return
        kind, why = damage
        # Names of backups descend: the newest is listed first.
        for name in await self.storage.list_names(OVERWRITTEN):
            try:
                backup = await self.storage.get(f"{OVERWRITTEN}{name}")
                info = decode_repo(backup)
            except (FormatError, ObjectNotFoundError):
                continue
            detail = (
                f"{why}; its newest backup {name} is from before the last change, with "
                f"{len(info.branches)} branches and {len(info.snapshots)} snapshots"
            )
            self._add(kind, "ref", REPO_KEY, detail, repairable=True)
            if self.apply:
                await self._replace(REPO_KEY, backup, found, object_metadata("repo-info", 2))
            return
        self._add(
            kind, "ref", REPO_KEY, f"{why}; no backup can be read. Restore the file from a copy", repairable=False
        )

    # -- dataset: one file, without backups -----------------------------------------------------------------------

    async def state(self) -> None:
        found = await self._get(STATE_KEY)
        damage = _damage_of(found, parse_state)
        if damage is None:
            return
        kind, why = damage
        snapshots = await self.snapshots()
        tip = self.tips.get(MAIN) or await self.only_tip(())
        if tip is None or tip not in snapshots:
            self._add(kind, "ref", STATE_KEY, f"{why}; {await self._advice(MAIN)}", repairable=False)
            return
        detail = (
            f"{why}; the snapshots are listed again and main stands at {tip}; other branches, tags and the "
            "configuration are lost"
        )
        self._add(kind, "ref", STATE_KEY, detail, repairable=True)
        if self.apply:
            state = State(
                id=new_object_id(),
                generation=1,
                snapshots=tuple(snapshot_entry(each.info) for each in _parents_first(snapshots)),
                refs={MAIN: StateRef(tip, "branch")},
                extra={UPDATE_KEY: new_object_id()},
            )
            await self._replace(STATE_KEY, encode_state(state), found, {})

    # -- one file per ref -----------------------------------------------------------------------------------------

    async def refs(self) -> None:
        damaged: list[_Ref] = []
        async for ref in self._read_refs():
            if ref.why:
                damaged.append(ref)
            elif ref.before is not None and not ref.deleted:
                (self.readable.branches if ref.kind == "branch" else self.readable.tags)[ref.name] = ref.before
        if MAIN not in {*self.readable.branches, *(each.name for each in damaged if each.kind == "branch")}:
            damaged.append(self._missing(MAIN))
        for ref in damaged:
            await self._recover_ref(ref, self.readable.targets(), alone=len(damaged) == 1)

    def _missing(self, branch: str) -> _Ref:
        key = self._first_key(branch)
        return _Ref("branch", branch, key, _GONE, next_key=key)

    def _first_key(self, branch: str) -> str:
        if self.version is SpecVersion.ICECHUNK1:
            return f"refs/branch.{branch}/ref.json"
        return (
            f"r/{branch}/ZZZZZZZZ.json" if self.version is SpecVersion.STORE else f"refs/branch.{branch}/ZZZZZZZZ.json"
        )

    async def _recover_ref(self, ref: _Ref, known: Iterable[ObjectId], *, alone: bool) -> None:
        kind = DamageKind.MISSING if ref.why == _GONE else DamageKind.UNREADABLE
        if ref.kind == "tag":
            detail = f"{ref.why}; its snapshot is not known. Delete the object {ref.key}, then create the tag again"
            self._add(kind, "ref", ref.key, detail, repairable=False)
            return
        target = self.tips.get(ref.name) or ref.before or (await self.only_tip(known) if alone else None)
        if target is None or (ref.before is None and target not in await self.snapshots()):
            self._add(kind, "ref", ref.key, f"{ref.why}; {await self._advice(ref.name)}", repairable=False)
            return
        self._add(kind, "ref", ref.key, f"{ref.why}; the branch {ref.name} is at {target}", repairable=True)
        if not self.apply:
            return
        data = (
            encode_reference(new_reference(target, {}))
            if self.version is SpecVersion.STORE
            else RefContent(target).encode()
        )
        if ref.next_key is None:
            await self._replace(ref.key, data, await self._get(ref.key), {})
        else:
            await self.storage.create(ref.next_key, data, unique=False)

    async def _read_refs(self) -> AsyncIterator[_Ref]:
        folder = "r/" if self.version is SpecVersion.STORE else "refs/"
        by_folder: dict[str, list[str]] = {}
        async for page in self.storage.list(folder):
            for item in page:
                parent, _, _ = item.key.removeprefix(folder).rpartition("/")
                by_folder.setdefault(parent, []).append(item.key)
        for parent, members in by_folder.items():
            if self.version is SpecVersion.STORE:
                if not parent:
                    for key in members:
                        yield await self._read_ref("tag", key.rpartition("/")[2].removesuffix(".json"), key)
                else:
                    yield await self._read_branch(parent, members)
                continue
            branch, tag = parse_folder("branch", f"{parent}/"), parse_folder("tag", f"{parent}/")
            if branch and self.version is SpecVersion.REPOSITORY:
                yield await self._read_branch(branch, members)
            elif branch or tag:
                key = f"{folder}{parent}/ref.json"
                if key in members and f"{key}.deleted" not in members:
                    yield await self._read_ref("branch" if branch else "tag", branch or tag, key)

    async def _read_ref(self, kind: str, name: str, key: str) -> _Ref:
        try:
            target, deleted = self._parse(await self.storage.get(key), key)
        except (FormatError, ObjectNotFoundError) as error:
            return _Ref(kind, name, key, str(error))
        return _Ref(kind, name, key, "", target, deleted)

    async def _read_branch(self, branch: str, keys: list[str]) -> _Ref:
        """A branch with numbered files: the newest file, and the one before it if that cannot be read."""
        numbered = {key: number for key in keys if (number := self._number(key)) is not None}
        ordered = sorted(numbered, key=lambda key: numbered[key], reverse=True)
        if not ordered:
            return self._missing(branch)
        why = ""
        for key in ordered:
            found = await self._read_ref("branch", branch, key)
            if not found.why:
                return _Ref("branch", branch, ordered[0], why, found.before, found.deleted, self._after(ordered[0]))
            why = why or found.why
        return _Ref("branch", branch, ordered[0], why, next_key=self._after(ordered[0]))

    def _number(self, key: str) -> int | None:
        name = key.rpartition("/")[2]
        if self.version is SpecVersion.STORE:
            return find_sequence(name)
        found = parse_sequence(name)
        return None if found is None else found[0]

    def _after(self, key: str) -> str:
        folder, _, name = key.rpartition("/")
        if self.version is SpecVersion.STORE:
            number = find_sequence(name)
            assert number is not None
            return f"{folder}/{sequence_name(number + 1)}"
        found = parse_sequence(name)
        assert found is not None
        return f"{folder}/{encode_sequence(found[0] + 1, found[1])}"

    def _parse(self, data: bytes, key: str) -> tuple[ObjectId, bool]:
        if self.version is not SpecVersion.STORE:
            content = parse_ref(data, key)
            return content.snapshot_id, content.deleted
        if is_torn(data):
            raise FormatError(f"{key} is truncated: it has {len(data)} bytes")
        reference = decode_reference(data)
        return reference.snapshot_id, reference.properties.get(DELETED) is True

    # -- configuration --------------------------------------------------------------------------------------------

    async def config(self) -> None:
        if self.version in (SpecVersion.DATASET, SpecVersion.ICECHUNK2):
            return
        key = "config.yaml" if self.version is SpecVersion.ICECHUNK1 else "config.json"
        found = await self._get(key)
        if found is None:
            return
        try:
            if self.version is SpecVersion.ICECHUNK1:
                decode_yaml(found.data)
            else:
                load_object(found.data, key)
            return
        except (FormatError, InvalidInputError, NotFoundError) as error:
            detail = (
                f"{error}; the settings are back at their defaults, what is left of the old text is kept in {_ASIDE}"
            )
        self._add(DamageKind.UNREADABLE, "configuration", key, detail, repairable=True)
        if self.apply:
            empty = {GENERATION_KEY: GENERATION} if self.version is SpecVersion.REPOSITORY else {}
            await self._replace(key, json.dumps(empty).encode(), found, {})


def _parents_first(snapshots: Mapping[ObjectId, Snapshot]) -> list[Snapshot]:
    return sorted(snapshots.values(), key=lambda each: each.written_at)


def _damage_of(found: Versioned | None, decode: Callable[[bytes], object]) -> tuple[DamageKind, str] | None:
    """The kind and the reason of the damage of a file. None if it can be decoded."""
    if found is None:
        return DamageKind.MISSING, _GONE
    try:
        decode(found.data)
    except FormatError as error:
        return DamageKind.UNREADABLE, str(error)
    return None
