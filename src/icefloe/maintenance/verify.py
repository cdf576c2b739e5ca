"""Verify that everything reachable from refs exists and is intact, and repair what can be repaired."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from icefloe.chunks.virtual_containers import no_authorization
from icefloe.errors import (
    FormatError,
    IcefloeError,
    NotFoundError,
    ObjectNotFoundError,
    SnapshotNotFoundError,
    UnsupportedError,
)
from icefloe.ids import ObjectId
from icefloe.ledger.ledger import RefTargets
from icefloe.maintenance.collect import list_all
from icefloe.maintenance.inventory import (
    Listed,
    UncachedRepository,
    correct_quotes,
    fetch_all_refs,
    find_corruption,
    id_keys,
    is_among,
    list_side_objects,
    open_uncached,
    report_each,
    report_progress,
    stream_bounded,
    text_ids,
)
from icefloe.maintenance.verify_checks import (
    ChunkObjects,
    ManifestUses,
    Unchecked,
    VerifyReport,
    VirtualFiles,
    check_file,
    check_log,
    check_manifest,
    true_log,
    undecodable_chunks,
    uses_in,
)
from icefloe.model.manifest_lists import ManifestList, known_files, lists_of, without_lists
from icefloe.model.snapshot import Manifest, ManifestFileInfo, Snapshot, named_objects
from icefloe.model.status import Damage, DamageKind
from icefloe.session.open_repository import RepositoryContext
from icefloe.storage.contract import ObjectInfo


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """The options of a verification."""

    logs: bool = True
    """Compare transaction logs with the changes of their snapshots."""
    decode: bool = False
    """Read and decode every native chunk of the tips of branches and tags (not of their history)."""
    virtual: bool = True
    """Check that the files of virtual chunks exist and are unchanged, if access to them is authorised."""


async def verify(context: RepositoryContext, request: VerifyRequest | None = None) -> VerifyReport:
    """Check the whole repository. Objects are listed first, so that concurrent commits do not look like damage."""
    uncached = open_uncached(context)
    listings = await list_all(uncached)
    work = _Verification(context, uncached, listings, request or VerifyRequest())
    await work.run()
    return work.report()


class _Verification:
    """One pass over refs, snapshots, manifests and logs. Collects damage."""

    def __init__(
        self,
        context: RepositoryContext,
        uncached: UncachedRepository,
        listings: Mapping[str, Listed],
        request: VerifyRequest,
    ) -> None:
        self.context, self.uncached, self.listings, self.request = context, uncached, listings, request
        self.damages: list[Damage] = []
        self.parents: dict[ObjectId, ObjectId | None] = {}
        self.manifests: dict[ObjectId, ManifestFileInfo | None] = {}
        self.named_by: dict[ObjectId, ObjectId] = {}
        """A snapshot that refers to a manifest or attributes file."""
        self.uses = ManifestUses()
        self.attributes: dict[ObjectId, tuple[int, ObjectId]] = {}
        self.damaged_lists: set[ObjectId] = set()
        self.objects = ChunkObjects.of(listings["chunks"])
        self.live_chunks: list[np.ndarray[tuple[int], np.dtype[np.uint64]]] = []
        self.refs = RefTargets({}, {})
        self.checked = dict.fromkeys(("refs", "snapshots", "transaction_logs", "manifests", "attributes", "chunks"), 0)
        self.lists: dict[str, ObjectId] = {}
        """Lists of ingested sources, and a snapshot that refers to each."""
        self.unnamed_lists: tuple[ObjectInfo, ...] = ()
        self.files = VirtualFiles()
        self.unchecked: dict[str, Unchecked] = {}

    async def run(self) -> None:
        await self._refs()
        self.checked["refs"] = len(self.refs.branches) + len(self.refs.tags)
        listed = await self.uncached.ledger.fetch_listed()
        await self._snapshots({key: info.parent_id for key, info in listed.items()} if listed is not None else None)
        await self._lists()
        await self._attributes()
        await self._manifests()
        if self.request.virtual:
            await self._virtual_files()
        if self.request.logs and self.context.capabilities.transaction_logs:
            await self._logs()
        if self.request.decode:
            starts = sorted(self.refs.targets() & self.parents.keys())
            for number, start in enumerate(starts):
                report_progress("decode chunks of refs", number, len(starts))
                try:
                    self.damages += await undecodable_chunks(self.context, start)
                except UnsupportedError:
                    # A chunk grid that zarr does not use here is no damage.
                    raise
                except IcefloeError as error:
                    if not self.damages:  # otherwise the damage that prevents it is already reported
                        key = self.uncached.format.snapshot_key(start)
                        self._add(DamageKind.UNREADABLE, "snapshot", key, str(error), start)

    # -- refs -----------------------------------------------------------------------------------------------------

    async def _refs(self) -> None:
        """The readable refs. For unreadable ones, the recovery reports what can be done."""
        from icefloe.ledger.recover import recover  # noqa: PLC0415 - it loads every generation

        recovery = await recover(self.uncached.storage, version=self.uncached.format.spec_version, apply=False)
        self.damages += recovery.damages
        try:
            self.refs = await fetch_all_refs(self.uncached.ledger)
        except FormatError:
            self.refs = recovery.refs

    # -- snapshots ------------------------------------------------------------------------------------------------

    async def _snapshots(self, listed: Mapping[ObjectId, ObjectId | None] | None) -> None:
        existing = set(self.listings["snapshots"].texts())
        waiting = {(start, start) for start in self.refs.targets()}
        quotes: dict[ObjectId, tuple[ObjectId, ...]] = {}
        while waiting:
            following: set[tuple[ObjectId, ObjectId]] = set()
            async for snapshot_id, snapshot in stream_bounded(self._fetch_snapshot, sorted(waiting)):
                if snapshot is None:
                    self.parents[snapshot_id] = None
                    continue
                parent = snapshot.parent_id if listed is None else listed.get(snapshot_id)
                self.parents[snapshot_id] = parent
                self.checked["snapshots"] += 1
                report_progress("check snapshots", self.checked["snapshots"], len(listed or ()))
                quotes[snapshot_id] = tuple(entry.id for entry in snapshot.history if entry.parent_id is not None)
                self._note_snapshot(snapshot)
                if parent is not None:
                    following.add((parent, snapshot_id))
            waiting = {(each, child) for each, child in following if each not in self.parents}
            waiting = {(each, child) for each, child in dict(waiting).items()}
        for snapshot_id, quoted in quotes.items():
            gone = [each for each in quoted if each not in existing and each not in self.parents]
            if gone:
                self._add(
                    DamageKind.MISQUOTED,
                    "snapshot",
                    self.uncached.format.snapshot_key(snapshot_id),
                    f"it quotes {len(gone)} ancestors that were collected, for example {gone[0]}",
                    snapshot_id,
                    repairable=True,
                )

    async def _fetch_snapshot(self, wanted: tuple[ObjectId, ObjectId]) -> tuple[ObjectId, Snapshot | None]:
        snapshot_id, child = wanted
        key = self.uncached.format.snapshot_key(snapshot_id)
        try:
            snapshot = await self.uncached.metadata_files.fetch_snapshot_file(snapshot_id)
        except SnapshotNotFoundError:
            why = "a ref points to it" if child == snapshot_id else f"it is the parent of {child}"
            self._add(DamageKind.MISSING, "snapshot", key, why, child)
            return snapshot_id, None
        except FormatError as error:
            self._add(DamageKind.UNREADABLE, "snapshot", key, str(error), child)
            return snapshot_id, None
        for each in lists_of(snapshot):
            await self._check_manifest_list(each, snapshot_id)
        if snapshot.id != snapshot_id:
            self._add(DamageKind.WRONG_ID, "snapshot", key, f"it says that it is {snapshot.id}", child)
        return snapshot_id, snapshot

    async def _check_manifest_list(self, each: ManifestList, snapshot_id: ObjectId) -> None:
        """Load a list. If that is not possible, the manifests in it are not checked."""
        self.attributes.setdefault(each.id, (-1, snapshot_id))
        try:
            await self.uncached.metadata_files.load_lists([each])
        except FormatError as error:
            if each.id not in self.damaged_lists:
                self.damaged_lists.add(each.id)
                key = self.uncached.format.manifest_list_key(each.id)
                is_there = not isinstance(error.__cause__, ObjectNotFoundError)
                kind = DamageKind.UNREADABLE if is_there else DamageKind.MISSING
                detail = str(error) if is_there else "the snapshot names it"
                self._add(kind, "manifest list", key, detail, snapshot_id)

    def _note_snapshot(self, snapshot: Snapshot) -> None:
        for key in named_objects(snapshot.metadata):
            self.lists.setdefault(key, snapshot.id)
        for info in known_files(snapshot).values():
            known = self.manifests.get(info.id)
            if known is not None and known != info:
                self._wrong_size(snapshot.id, info, known.size_bytes, known.num_chunk_refs)
            self.manifests.setdefault(info.id, info)
            self.named_by.setdefault(info.id, snapshot.id)
        for node in snapshot.nodes.values():
            if node.attributes is not None:
                row, _ = self.attributes.get(node.attributes.object_id, (-1, ""))
                self.attributes[node.attributes.object_id] = (max(row, node.attributes.row), snapshot.id)
        for manifest_id in self.uses.add(snapshot):
            self.manifests.setdefault(manifest_id, None)
            self.named_by.setdefault(manifest_id, snapshot.id)

    # -- lists of ingested sources --------------------------------------------------------------------------------

    async def _lists(self) -> None:
        async for key, flaw in stream_bounded(self._check_list, sorted(self.lists)):
            self.checked["lists"] = self.checked.get("lists", 0) + 1
            if flaw is not None:
                self._add(*flaw, self.lists[key])
        there = await list_side_objects(self.uncached.storage)
        self.unnamed_lists = tuple(item for item in there if item.key not in self.lists)

    async def _check_list(self, key: str) -> tuple[str, tuple[DamageKind, str, str, str] | None]:
        try:
            flaw = find_corruption(await self.uncached.storage.get(key))
        except ObjectNotFoundError:
            return key, (DamageKind.MISSING, "list", key, "the commit of an ingest refers to it")
        return key, None if flaw is None else (DamageKind.UNREADABLE, "list", key, flaw)

    # -- attributes -----------------------------------------------------------------------------------------------

    async def _attributes(self) -> None:
        for attributes_id, (row, snapshot_id) in sorted(self.attributes.items()):
            key = self.uncached.format.attributes_key(attributes_id)
            self.checked["attributes"] += 1
            if row < 0:
                continue  # a manifest list, which was checked with its snapshot
            try:
                await self.uncached.metadata_files.fetch_attributes(attributes_id, row)
            except ObjectNotFoundError:
                self._add(DamageKind.MISSING, "attributes", key, "nodes have their attributes in it", snapshot_id)
            except FormatError as error:
                self._add(DamageKind.UNREADABLE, "attributes", key, str(error), snapshot_id)

    # -- manifests and chunks -------------------------------------------------------------------------------------

    async def _manifests(self) -> None:
        sizes = _sizes(self.listings["manifests"], list(self.manifests))
        found = stream_bounded(self._fetch_manifest, sorted(self.manifests))
        async for manifest_id, manifest in report_each("check manifests", found, len(self.manifests)):
            if manifest is None:
                continue
            self.checked["manifests"] += 1
            self.checked["chunks"] += len(manifest)
            snapshot_id = self.named_by[manifest_id]
            info, size = self.manifests[manifest_id], sizes.get(manifest_id)
            if info is not None and _differs(info, size, len(manifest)):
                self._wrong_size(snapshot_id, info, size, len(manifest))
            key = self.uncached.format.manifest_key(manifest_id)
            if manifest.id != manifest_id:
                self._add(DamageKind.WRONG_ID, "manifest", key, f"it says that it is {manifest.id}", snapshot_id)
            uses = uses_in(manifest, self.uses.by_manifest.get(manifest_id, {}))
            damages, live = check_manifest(manifest, uses, self.objects, self.context, key)
            self.live_chunks.append(live)
            self.damages += damages
            if self.request.virtual:
                self.files.add(manifest, uses)

    async def _fetch_manifest(self, manifest_id: ObjectId) -> tuple[ObjectId, Manifest | None]:
        key, snapshot_id = self.uncached.format.manifest_key(manifest_id), self.named_by[manifest_id]
        arrays = ", ".join(self.uses.paths(manifest_id))
        try:
            return manifest_id, await self.uncached.metadata_files.fetch_manifest(manifest_id)
        except ObjectNotFoundError:
            self._add(DamageKind.MISSING, "manifest", key, "the snapshot names it", snapshot_id, arrays)
        except FormatError as error:
            self._add(DamageKind.UNREADABLE, "manifest", key, str(error), snapshot_id, arrays)
        return manifest_id, None

    def _wrong_size(self, snapshot_id: ObjectId, info: ManifestFileInfo, size: int | None, refs: int) -> None:
        self._add(
            DamageKind.WRONG_SIZE,
            "manifest",
            self.uncached.format.manifest_key(info.id),
            f"the snapshot records {info.size_bytes} bytes and {info.num_chunk_refs} chunks, but it has {size} and "
            f"{refs}",
            snapshot_id,
            repairable=True,
        )

    async def _virtual_files(self) -> None:
        """Check each file with one request, however many references it has."""

        async def check(location: str) -> tuple[str, list[Damage] | str]:
            return location, await check_file(self.context, location, self.files.uses[location])

        containers = self.context.containers
        locations: list[str] = []
        refused: dict[str, str] = {}
        for each in sorted(self.files.uses):
            container = containers.find_container(each)
            if container is None:
                continue
            if containers.is_authorized(container):
                locations.append(each)
                continue
            # An archive may have millions of files. Those of one container have one reason.
            if container.url_prefix not in refused:
                reason = str(no_authorization(each, container)).partition("\n")[0]
                refused[container.url_prefix] = reason.replace(each, "it")
            self._add_unchecked(each, refused[container.url_prefix])
        async for location, found in report_each(
            "check virtual files", stream_bounded(check, locations), len(locations)
        ):
            if not isinstance(found, str):
                self.checked["virtual_files"] = self.checked.get("virtual_files", 0) + 1
                self.damages += found
                continue
            # Reasons contain the file. Files of one folder that cannot be checked are reported together.
            self._add_unchecked(location, found.replace(location, "it"))

    def _add_unchecked(self, location: str, reason: str) -> None:
        chunks = sum(use.chunks for use in self.files.uses[location].values())
        known = self.unchecked.get(reason, Unchecked(reason, 0, 0, location))
        self.unchecked[reason] = replace(known, files=known.files + 1, chunks=known.chunks + chunks)

    # -- logs -----------------------------------------------------------------------------------------------------

    async def _logs(self) -> None:
        pairs = [(child, parent) for child, parent in self.parents.items() if parent is not None]

        async def check(pair: tuple[ObjectId, ObjectId]) -> Damage | None:
            return await check_log(self.uncached, *pair)

        async for damage in report_each("check transaction logs", stream_bounded(check, sorted(pairs), 8), len(pairs)):
            self.checked["transaction_logs"] += 1
            if damage is not None:
                self.damages.append(damage)

    # -- the result -----------------------------------------------------------------------------------------------

    def _add(
        self,
        kind: DamageKind,
        what: str,
        key: str,
        detail: str,
        snapshot_id: ObjectId,
        array: str | None = None,
        *,
        repairable: bool = False,
    ) -> None:
        self.damages.append(Damage(kind, what, key, detail, snapshot_id, array or None, repairable=repairable))

    def _refs_of(self, snapshot_id: ObjectId | None) -> tuple[str, ...]:
        """Refs that point to a snapshot or to a descendant of it."""
        if snapshot_id is None:
            return ()
        return tuple(
            name
            for start in sorted(self.refs.targets())
            if snapshot_id in self._ancestors(start)
            for name in self.refs.names_of(start)
        )[:5]

    def _ancestors(self, start: ObjectId) -> set[ObjectId]:
        found: set[ObjectId] = set()
        current: ObjectId | None = start
        while current is not None and current not in found:
            found.add(current)
            current = self.parents.get(current)
        return found

    def report(self) -> VerifyReport:
        width = self.context.capabilities.object_id_bytes
        chunks = np.unique(np.concatenate(self.live_chunks)) if self.live_chunks else np.empty(0, dtype=np.uint64)
        live = {
            "snapshots": _keys(self.parents, width),
            "transaction_logs": _keys(self.parents, width),
            "manifests": _keys(self.manifests, width),
            "attributes": _keys(self.attributes, width),
            "chunks": chunks,
        }
        orphans = {kind: ~is_among(listed.ids, live[kind]) for kind, listed in self.listings.items()}
        if self.uncached.ledger.keeps_pruned_logs:
            orphans["transaction_logs"][:] = False
        counts = {kind: int(np.count_nonzero(rows)) for kind, rows in orphans.items()}
        if self.unnamed_lists:
            counts["lists"] = len(self.unnamed_lists)
        return VerifyReport(
            tuple(replace(damage, refs=self._refs_of(damage.snapshot_id)) for damage in self.damages),
            self.checked,
            counts,
            sum(int(self.listings[kind].size[rows].sum()) for kind, rows in orphans.items())
            + sum(item.size_bytes for item in self.unnamed_lists),
            tuple(self.unchecked.values()),
        )


def _differs(info: ManifestFileInfo, size: int | None, refs: int) -> bool:
    """Whether a manifest differs from its record in a snapshot. Early snapshots omit some numbers."""
    wrong_size = size is not None and info.size_bytes not in (0, size)
    return wrong_size or info.num_chunk_refs not in (0, refs)


def _keys(texts: Iterable[ObjectId], width: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.sort(id_keys(text_ids(list(texts), width)))


def _sizes(listed: Listed, wanted: list[ObjectId]) -> dict[ObjectId, int]:
    chosen = listed.take(is_among(listed.ids, _keys(wanted, listed.ids.shape[1])))
    return dict(zip(chosen.texts(), chosen.size.tolist(), strict=True))


async def repair(context: RepositoryContext, request: VerifyRequest | None = None) -> tuple[VerifyReport, VerifyReport]:
    """Verify, repair what can be repaired, and verify again. Returns both reports."""
    before = found = await verify(context, request)
    if any(damage.repairable for damage in found.damages):
        await context.check_writable()
    if any(damage.repairable and damage.what in ("ref", "configuration") for damage in found.damages):
        from icefloe.ledger.recover import recover  # noqa: PLC0415 - it loads every generation

        await recover(context.storage, version=context.format.spec_version)
        found = await verify(context, request)
    damages = [damage for damage in found.damages if damage.repairable]
    if not damages:
        return before, found
    uncached = open_uncached(context)
    if any(damage.kind is DamageKind.MISQUOTED for damage in damages):
        await correct_quotes(context, uncached)
    for snapshot_id in dict.fromkeys(d.snapshot_id for d in damages if d.kind is DamageKind.WRONG_SIZE):
        assert snapshot_id is not None
        await _correct_sizes(context, uncached, snapshot_id)
    for damage in damages:
        if damage.what == "transaction log":
            await _write_log(context, uncached, damage)
    return before, await verify(context, request)


async def _correct_sizes(context: RepositoryContext, uncached: UncachedRepository, snapshot_id: ObjectId) -> None:
    """Rewrite a snapshot with the actual sizes of its manifests."""
    snapshot = await uncached.metadata_files.fetch_snapshot(snapshot_id)
    infos = {}
    for manifest_id in snapshot.manifests:
        size = (await uncached.storage.head(uncached.format.manifest_key(manifest_id))).size_bytes
        manifest = await uncached.metadata_files.fetch_manifest(manifest_id)
        infos[manifest_id] = ManifestFileInfo(manifest_id, size, len(manifest))
    # The sizes of manifests in lists are in the lists, so these are written anew.
    nodes = without_lists(snapshot)
    await context.metadata_files.write_snapshot(dataclasses.replace(snapshot, nodes=nodes, manifests=infos))
    context.metadata_files.forget_snapshot(snapshot_id)


async def _write_log(context: RepositoryContext, uncached: UncachedRepository, damage: Damage) -> None:
    """Rewrite a log by comparing its snapshot with the parent."""
    assert damage.snapshot_id is not None
    parent_id = (await uncached.ledger.fetch_info(damage.snapshot_id)).parent_id
    if parent_id is None:
        return
    try:
        log = await true_log(uncached, damage.snapshot_id, parent_id)
    except (NotFoundError, FormatError):
        return
    await context.metadata_files.write_transaction_log(damage.snapshot_id, log)
    context.metadata_files.forget_transaction_log(damage.snapshot_id)
