"""Recover refs, the file that contains all refs, and the stored configuration.

A repository does not open if one of these files is empty, truncated, corrupt or missing. Its content is recovered from
older branch files, from backups of the `repo` file, or from the snapshots, if only one of them can be the tip. Nothing
is removed: an unreadable file that is replaced is kept under another name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from icefloe.errors import FormatError, IcefloeError, InvalidInputError, NotFoundError, ObjectNotFoundError
from icefloe.formats.format import Format
from icefloe.ids import ObjectId, new_object_id
from icefloe.ledger.generations import GENERATIONS, guess_generation
from icefloe.ledger.ledger import MAIN, RefFiles, RefTargets, StoredRef, WholeRefsFile
from icefloe.metadata_files import MetadataFiles
from icefloe.model.capabilities import SpecVersion
from icefloe.model.snapshot import Snapshot
from icefloe.model.status import Damage, DamageKind
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
    content: bytes | None = None
    """The newest readable file."""


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
    version = version or await guess_generation(storage)
    if version is None:
        return Recovery((), RefTargets({}, {}))
    generation = GENERATIONS[version]
    work = _Recovery(storage, generation.format, dict(tips or {}), apply)
    files = generation.ref_files
    if isinstance(files, RefFiles):
        await work.refs(files)
        await work.config(files)
    elif files.backups_folder is not None:
        await work.restore_backup(files, files.backups_folder)
    else:
        await work.rebuild(files)
    return Recovery(tuple(work.found), work.readable)


class _Recovery:
    """One pass over the refs and the configuration of a repository."""

    def __init__(self, storage: Storage, format: Format, tips: dict[str, ObjectId], apply: bool) -> None:
        self.storage, self.format, self.tips, self.apply = storage, format, tips, apply
        self.metadata_files = MetadataFiles(storage, format)
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

    # -- one file for all refs ------------------------------------------------------------------------------------

    async def restore_backup(self, file: WholeRefsFile, folder: str) -> None:
        """Replace an unreadable file by its newest readable backup."""
        found = await self._get(file.key)
        damage = _damage_of(found, file.summarise)
        if damage is None:
            return
        kind, why = damage
        # Names of backups descend: the newest is listed first.
        for name in await self.storage.list_names(folder):
            try:
                backup = await self.storage.get(f"{folder}{name}")
                content = file.summarise(backup)
            except (FormatError, ObjectNotFoundError):
                continue
            detail = f"{why}; its newest backup {name} is from before the last change, with {content}"
            self._add(kind, "ref", file.key, detail, repairable=True)
            if self.apply:
                await self._replace(file.key, backup, found, file.metadata)
            return
        detail = f"{why}; no backup can be read. Restore the file from a copy"
        self._add(kind, "ref", file.key, detail, repairable=False)

    async def rebuild(self, file: WholeRefsFile) -> None:
        """Replace an unreadable file by one that lists the readable snapshots."""
        found = await self._get(file.key)
        damage = _damage_of(found, file.summarise)
        if damage is None:
            return
        kind, why = damage
        snapshots = await self.snapshots()
        tip = self.tips.get(MAIN) or await self.only_tip(())
        if tip is None or tip not in snapshots:
            self._add(kind, "ref", file.key, f"{why}; {await self._advice(MAIN)}", repairable=False)
            return
        detail = (
            f"{why}; the snapshots are listed again and main stands at {tip}; other branches, tags and the "
            "configuration are lost"
        )
        self._add(kind, "ref", file.key, detail, repairable=True)
        if self.apply:
            await self._replace(file.key, file.rebuild(_parents_first(snapshots), tip), found, file.metadata)

    # -- one file per ref -----------------------------------------------------------------------------------------

    async def refs(self, files: RefFiles) -> None:
        """Find the refs that cannot be read, and restore those whose snapshot is known."""
        keys: list[str] = []
        async for page in self.storage.list(files.folder):
            keys += [item.key for item in page]
        damaged: list[_Ref] = []
        for stored in files.group(keys):
            ref = await self._read_ref(files, stored)
            if ref.why:
                damaged.append(ref)
            elif ref.before is not None and not ref.deleted:
                (self.readable.branches if ref.kind == "branch" else self.readable.tags)[ref.name] = ref.before
        if MAIN not in {*self.readable.branches, *(each.name for each in damaged if each.kind == "branch")}:
            damaged.append(_missing(files, MAIN))
        for ref in damaged:
            await self._recover_ref(files, ref, alone=len(damaged) == 1)

    async def _read_ref(self, files: RefFiles, stored: StoredRef) -> _Ref:
        """The content of the newest readable file, and why a newer one cannot be read."""
        if not stored.keys:
            return _missing(files, stored.name)
        newest = stored.keys[0]
        next_key = files.next_key(newest) if stored.kind == "branch" else None
        why = ""
        for key in stored.keys:
            try:
                data = await self.storage.get(key)
                target, deleted = files.parse(data, key)
            except (FormatError, ObjectNotFoundError) as error:
                why = why or str(error)
            else:
                return _Ref(stored.kind, stored.name, newest, why, target, deleted, next_key, data)
        return _Ref(stored.kind, stored.name, newest, why, next_key=next_key)

    async def _recover_ref(self, files: RefFiles, ref: _Ref, *, alone: bool) -> None:
        kind = DamageKind.MISSING if ref.why == _GONE else DamageKind.UNREADABLE
        if ref.kind == "tag":
            detail = f"{ref.why}; its snapshot is not known. Delete the object {ref.key}, then create the tag again"
            self._add(kind, "ref", ref.key, detail, repairable=False)
            return
        target = self.tips.get(ref.name) or ref.before
        if target is None and alone:
            target = await self.only_tip(self.readable.targets())
        if target is None or (ref.before is None and target not in await self.snapshots()):
            self._add(kind, "ref", ref.key, f"{ref.why}; {await self._advice(ref.name)}", repairable=False)
            return
        self._add(kind, "ref", ref.key, f"{ref.why}; the branch {ref.name} is at {target}", repairable=True)
        if not self.apply:
            return
        if ref.next_key is None:
            await self._replace(ref.key, files.encode(target), await self._get(ref.key), {})
        else:
            await self.storage.create(ref.next_key, files.encode_after(ref.content, target), unique=False)

    # -- configuration --------------------------------------------------------------------------------------------

    async def config(self, files: RefFiles) -> None:
        """Replace a configuration that cannot be read by an empty one."""
        found = await self._get(files.config_key)
        if found is None:
            return
        try:
            files.check_config(found.data)
            return
        except (FormatError, InvalidInputError, NotFoundError) as error:
            detail = (
                f"{error}; the settings are back at their defaults, what is left of the old text is kept in {_ASIDE}"
            )
        self._add(DamageKind.UNREADABLE, "configuration", files.config_key, detail, repairable=True)
        if self.apply:
            await self._replace(files.config_key, json.dumps(files.empty_config).encode(), found, {})


def _missing(files: RefFiles, branch: str) -> _Ref:
    key = files.first_key(branch)
    return _Ref("branch", branch, key, _GONE, next_key=key)


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
