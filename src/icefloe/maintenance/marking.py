"""Mark everything that must be kept: what is reachable from refs, and what is too young to be deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError, IcefloeError, ObjectNotFoundError, RefNotFoundError, SnapshotNotFoundError
from icefloe.ids import ObjectId
from icefloe.ledger.generations import GENERATIONS, find_generations
from icefloe.ledger.ledger import JOURNAL_KEY, MAIN, RefTargets
from icefloe.maintenance.inventory import (
    REQUESTS_AT_ONCE,
    UncachedRepository,
    fetch_all_refs,
    id_keys,
    report_each,
    report_progress,
    sorted_distinct,
    stream_bounded,
)
from icefloe.model.chunk_table import ChunkKind
from icefloe.model.manifest_lists import known_files, known_refs, lists_of, missing_lists
from icefloe.model.snapshot import ArrayNode, Manifest, ManifestFileInfo, Snapshot, manifest_ids, named_objects

Keys = npt.NDArray[np.uint64]
_MANY_OBJECTS = 50_000
"""Sorting this many ids takes longer than starting a thread."""


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """The facts of a snapshot that marking needs."""

    id: ObjectId
    parent_id: ObjectId | None
    manifests: tuple[ObjectId, ...]
    attributes: tuple[ObjectId, ...]
    quoted: tuple[ObjectId, ...] = ()
    side_objects: tuple[str, ...] = ()
    """Keys of objects in the commit's metadata, see `side_objects`."""
    is_complete: bool = True
    """False if a manifest list was missing. A commit in progress may write it later."""


@dataclass(frozen=True, slots=True)
class ManifestFacts:
    """The facts of a manifest that marking needs: its distinct chunk objects."""

    id: ObjectId
    objects: npt.NDArray[np.uint8]
    """uint8[n, width], sorted."""
    sizes: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """int64[n]: the end of the last reference into each object."""
    is_missing: bool = False
    """Whether there was no such file. A commit in progress may write it later."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of concurrent work while marking."""

    at_once: int = REQUESTS_AT_ONCE
    manifest_bytes: int = 512 << 20
    """Of manifests as they are stored. A single manifest may be larger."""
    decoded_bytes: int = 4 << 30
    """Of manifests in memory, estimated from the number of references. A single manifest may be larger."""


@dataclass(frozen=True, slots=True)
class Marked:
    """Everything that must be kept. Chunk objects are sorted keys, see `id_keys`."""

    refs: RefTargets
    snapshots: Mapping[ObjectId, SnapshotFacts]
    logs: frozenset[ObjectId]
    manifests: Mapping[ObjectId, ManifestFacts]
    attributes: frozenset[ObjectId]
    chunks: Keys
    listed: frozenset[ObjectId] = field(default=frozenset())
    """Snapshots that the repository lists, live or not."""
    side_objects: frozenset[str] = field(default=frozenset())
    """Keys of objects in the metadata of commits."""
    unreferenced: frozenset[ObjectId] = field(default=frozenset())
    """Unreachable manifests. Only young snapshots, such as those of refused commits, refer to them."""
    infos: Mapping[ObjectId, ManifestFileInfo] = field(default_factory=dict)
    """Sizes of manifests, as snapshots give them. An earlier run may know some manifests without their sizes."""

    @property
    def known(self) -> Known:
        """The facts for another mark. Files that were missing are read again, because they may exist by then."""
        return Known(
            {key: facts for key, facts in self.snapshots.items() if facts.is_complete},
            {key: facts for key, facts in self.manifests.items() if not facts.is_missing},
        )


@dataclass(frozen=True, slots=True)
class Known:
    """Facts of unchanged files that an earlier run read."""

    snapshots: Mapping[ObjectId, SnapshotFacts] = field(default_factory=dict)
    manifests: Mapping[ObjectId, ManifestFacts] = field(default_factory=dict)


async def mark(
    uncached: UncachedRepository,
    young: frozenset[ObjectId],
    existing: frozenset[ObjectId],
    known: Known | None = None,
    limits: FetchLimits | None = None,
    new_parents: Mapping[ObjectId, ObjectId] | None = None,
) -> Marked:
    """Find everything that must be kept, including chunk objects. See `mark_snapshots`."""
    known, limits = known or Known(), limits or FetchLimits()
    marked = await mark_snapshots(uncached, young, existing, known, limits, new_parents)
    manifests = await _mark_manifests(uncached, marked, known, limits)
    many = sum(len(facts.objects) for facts in manifests.values()) > _MANY_OBJECTS
    chunks = await asyncio.to_thread(live_keys, manifests) if many else live_keys(manifests)
    return replace(marked, manifests=manifests, chunks=chunks)


async def mark_snapshots(
    uncached: UncachedRepository,
    young: frozenset[ObjectId],
    existing: frozenset[ObjectId],
    known: Known | None = None,
    limits: FetchLimits | None = None,
    new_parents: Mapping[ObjectId, ObjectId] | None = None,
) -> Marked:
    """Find everything that must be kept, except chunk objects. Manifests are not read.

    `young` are snapshots whose files are too young to be deleted. They are kept with everything that they refer to, for
    commits in progress and snapshots without a branch. `existing` are all snapshot files. Raises if a reachable
    snapshot cannot be read. `new_parents` are expiries that a collection writes to the files before it marks. They are
    for plans that nobody carries out.
    """
    refs = await fetch_all_refs(uncached.ledger)
    if MAIN not in refs.branches:
        raise RefNotFoundError(
            "there is no branch 'main', so other refs may be missing too. Nothing was deleted. Open the repository "
            "again, and check it with `icefloe verify`",
            name=MAIN,
        )
    listed = await uncached.ledger.fetch_listed()
    parents = None if listed is None else {key: info.parent_id for key, info in listed.items()}
    marker = _SnapshotMarker(uncached, known or Known(), parents, limits or FetchLimits(), new_parents or {})
    await marker.follow(refs.targets(), must_exist=True)
    reachable = {each for fact in marker.found.values() for each in fact.manifests}
    quoted = {each for facts in marker.found.values() for each in facts.quoted}
    await marker.follow((quoted & existing) | young, must_exist=False)
    facts = marker.found
    nothing = np.empty((0, uncached.format.capabilities.object_id_bytes), dtype=np.uint8)
    names = dict.fromkeys(each for fact in facts.values() for each in fact.manifests)
    return Marked(
        refs=refs,
        snapshots=facts,
        logs=frozenset(facts) | await uncached.ledger.fetch_all_pruned_logs(),
        manifests={name: ManifestFacts(name, nothing) for name in names},
        attributes=frozenset(each for fact in facts.values() for each in fact.attributes),
        chunks=np.empty(0, dtype=np.uint64),
        listed=frozenset(listed or ()),
        side_objects=frozenset(each for fact in facts.values() for each in fact.side_objects),
        unreferenced=frozenset(names.keys() - reachable),
        infos=marker.infos,
    )


def live_keys(manifests: Mapping[ObjectId, ManifestFacts]) -> Keys:
    """The sorted distinct keys of all chunk objects of manifests."""
    columns = [facts.objects for facts in manifests.values() if len(facts.objects)]
    return sorted_distinct(id_keys(np.concatenate(columns))) if columns else np.empty(0, dtype=np.uint64)


class _SnapshotMarker:
    """Follows parents from snapshot to snapshot, with many concurrent fetches."""

    def __init__(
        self,
        uncached: UncachedRepository,
        known: Known,
        parents: Mapping[ObjectId, ObjectId | None] | None,
        limits: FetchLimits,
        new_parents: Mapping[ObjectId, ObjectId],
    ) -> None:
        self.uncached = uncached
        self.new_parents = new_parents
        self.known = known
        self.parents = parents
        self.limits = limits
        self.found: dict[ObjectId, SnapshotFacts] = {}
        self.infos: dict[ObjectId, ManifestFileInfo] = {}

    async def follow(self, starts: set[ObjectId] | frozenset[ObjectId], *, must_exist: bool) -> None:
        """Find snapshots and all their ancestors.

        A missing snapshot is an error if it must exist, and is skipped otherwise.
        """
        waiting = {each for each in starts if each not in self.found}
        while waiting:
            following: set[ObjectId] = set()
            ahead = sorted(self._ahead(waiting))
            for each in ahead:
                known = self.known.snapshots.get(each)
                if known is not None:
                    following |= self._keep(known)
            unknown = [each for each in ahead if each not in self.found]
            async for facts in stream_bounded(lambda each: self._fetch(each, must_exist), unknown, self.limits.at_once):
                if facts is not None:
                    following |= self._keep(facts)
                    report_progress("read snapshots", len(self.found), len(self.parents or ()))
            waiting = following - self.found.keys()

    def _keep(self, facts: SnapshotFacts) -> set[ObjectId]:
        """Add a snapshot. Returns its parent, if it has one. A parent that the repository lists takes precedence."""
        if self.parents is not None:
            facts = replace(facts, parent_id=self.parents.get(facts.id))
        if self.new_parents:
            facts = _without_expired(facts, self.new_parents)
        self.found[facts.id] = facts
        return set() if facts.parent_id is None else {facts.parent_id}

    def _ahead(self, waiting: set[ObjectId]) -> set[ObjectId]:
        """The requested snapshots, and their listed ancestors."""
        if self.parents is None:
            return waiting
        ahead: set[ObjectId] = set()
        for each in waiting:
            current: ObjectId | None = each
            while current is not None and current not in ahead and current not in self.found:
                ahead.add(current)
                current = self.parents.get(current)
        return ahead

    async def _fetch(self, snapshot_id: ObjectId, must_exist: bool) -> SnapshotFacts | None:
        files = self.uncached.metadata_files
        try:
            snapshot = await files.fetch_snapshot_file(snapshot_id)
        except SnapshotNotFoundError as error:
            if not must_exist:
                return None
            raise _unreadable(f"snapshot {snapshot_id}", error) from error
        except FormatError as error:
            if not must_exist and await _is_left_over(self.uncached, snapshot_id):
                return None
            raise _unreadable(f"snapshot {snapshot_id}", error) from error
        for each in lists_of(snapshot):
            try:
                await files.load_lists([each])
            except FormatError as error:
                # A commit in progress writes its lists and its snapshot at the same time. And an earlier run may have
                # collected the lists of a refused commit.
                if must_exist or not isinstance(error.__cause__, ObjectNotFoundError):
                    raise _unreadable(f"manifest list {each.id}", error) from error
        self.infos.update(known_files(snapshot).items())
        # In some early repositories, the id of the first snapshot is not that of its file. The file is kept.
        return replace(snapshot_facts(snapshot), id=snapshot_id)


def _without_expired(facts: SnapshotFacts, new_parents: Mapping[ObjectId, ObjectId]) -> SnapshotFacts:
    """The facts of a snapshot after its new parent, and those of the ancestors that it quotes, are in its file."""
    quoted, parent = [], new_parents.get(facts.id)
    for each in facts.quoted:
        if parent is None or each == parent:
            quoted.append(each)
            parent = new_parents.get(each)
    return replace(facts, parent_id=new_parents.get(facts.id, facts.parent_id), quoted=tuple(quoted))


async def _is_left_over(uncached: UncachedRepository, snapshot_id: ObjectId) -> bool:
    """Whether a snapshot file is of the generation that the repository had before it was converted in place.

    Three generations use the same names for snapshots. After a conversion, the refs of the old generation are removed,
    and its files have no meaning.
    """
    own = uncached.format.spec_version
    if await find_generations(uncached.storage) - {own} or await uncached.storage.exists(JOURNAL_KEY):
        return False
    key = uncached.format.snapshot_key(snapshot_id)
    data = await uncached.storage.get(key)
    for version, generation in GENERATIONS.items():
        if version is own or generation.format.snapshot_key(snapshot_id) != key:
            continue
        try:
            generation.format.decode_snapshot(data)
        except (IcefloeError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            continue
        return True
    return False


def snapshot_facts(snapshot: Snapshot) -> SnapshotFacts:
    """The facts of a snapshot: its list of manifests, and those that only its nodes refer to.

    Manifest lists are in the folder of attributes files, and are kept like these. A list that is not loaded is missing,
    and so are the manifests that only it refers to.
    """
    manifests = dict.fromkeys(known_files(snapshot))
    attributes = dict.fromkeys((*snapshot.attribute_files, *(each.id for each in lists_of(snapshot))))
    # One of the arrays that share their manifests is enough. By identity, because to compare lists takes long.
    sharing: dict[int, ArrayNode] = {}
    for node in snapshot.nodes.values():
        if node.attributes is not None:
            attributes[node.attributes.object_id] = None
        if isinstance(node, ArrayNode):
            sharing[id(node.manifests)] = node
    for node in sharing.values():
        manifests |= dict.fromkeys(manifest_ids(known_refs(node)))
    quoted = tuple(entry.id for entry in snapshot.history)
    side_objects = named_objects(snapshot.metadata)
    is_complete = not missing_lists(lists_of(snapshot))
    return SnapshotFacts(
        snapshot.id, snapshot.parent_id, tuple(manifests), tuple(attributes), quoted, side_objects, is_complete
    )


async def _mark_manifests(
    uncached: UncachedRepository, marked: Marked, known: Known, limits: FetchLimits
) -> dict[ObjectId, ManifestFacts]:
    memory = ManifestMemory(limits, marked.infos)

    async def fetch(manifest_id: ObjectId) -> ManifestFacts:
        async with memory.reserve(manifest_id):
            return await fetch_manifest_facts(uncached, manifest_id, may_be_gone=manifest_id in marked.unreferenced)

    found = {each: known.manifests[each] for each in marked.manifests if each in known.manifests}
    unknown = [each for each in marked.manifests if each not in found]
    async for facts in report_each("read manifests", stream_bounded(fetch, unknown, limits.at_once), len(unknown)):
        found[facts.id] = facts
    return found


async def fetch_manifest_facts(
    uncached: UncachedRepository, manifest_id: ObjectId, *, may_be_gone: bool = False
) -> ManifestFacts:
    """The chunk objects of a manifest. Raises if it cannot be read.

    With `may_be_gone`, a missing manifest has no chunk objects: an earlier run collected it before the commit that
    refers to it was refused.
    """
    width = uncached.format.capabilities.object_id_bytes
    try:
        manifest = await uncached.metadata_files.fetch_manifest(manifest_id)
    except ObjectNotFoundError as error:
        if may_be_gone:
            return ManifestFacts(manifest_id, np.empty((0, width), dtype=np.uint8), is_missing=True)
        raise _unreadable(f"manifest {manifest_id}", error) from error
    except FormatError as error:
        raise _unreadable(f"manifest {manifest_id}", error) from error
    return manifest_facts(manifest, width)


def manifest_facts(manifest: Manifest, width: int) -> ManifestFacts:
    """The distinct chunk objects of a manifest."""
    columns, ends = [], []
    for table in manifest.tables.values():
        if table.object_id is not None:
            native = table.kind == ChunkKind.NATIVE
            columns.append(table.object_id[native])
            ends.append((table.offset[native] + table.length[native]).astype(np.int64))
    if not columns:
        return ManifestFacts(manifest.id, np.empty((0, width), dtype=np.uint8))
    return ManifestFacts(manifest.id, *_distinct(np.concatenate(columns), np.concatenate(ends)))


def _distinct(
    ids: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Sorted distinct ids with their largest end. Chunks of a pack are mostly consecutive, so runs are joined first."""
    if not len(ids):
        return ids, ends
    width = ids.shape[1]
    # All ids have the same width, so that padding with zero bytes does not make different ids equal.
    values = np.ascontiguousarray(ids).view(f"S{width}").ravel()
    heads = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    values, ends = values[heads], np.maximum.reduceat(ends, heads)
    order = np.argsort(values, kind="stable")
    values, ends = values[order], ends[order]
    heads = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return np.ascontiguousarray(values[heads]).view(np.uint8).reshape(-1, width), np.maximum.reduceat(ends, heads)


_DECODED_BYTES_PER_REFERENCE = 128
"""Coordinates, kind, offset, length, and the id or the location of a chunk."""


class ManifestMemory:
    """The memory of manifests that are read at the same time. It waits if their total size exceeds the limits."""

    def __init__(self, limits: FetchLimits, infos: Mapping[ObjectId, ManifestFileInfo]) -> None:
        self._stored, self._decoded = _Budget(limits.manifest_bytes), _Budget(limits.decoded_bytes)
        self._infos = infos

    @asynccontextmanager
    async def reserve(self, manifest_id: ObjectId) -> AsyncIterator[None]:
        """Wait until there is memory for a manifest, and use it."""
        info = self._infos.get(manifest_id) or ManifestFileInfo(manifest_id, 1 << 20, 1 << 16)
        # Chunks inside a manifest are as large as they are stored, and compressed already.
        decoded = info.size_bytes + info.num_chunk_refs * _DECODED_BYTES_PER_REFERENCE
        async with self._decoded.reserve(decoded), self._stored.reserve(info.size_bytes):
            yield


class _Budget:
    """Limits the bytes of concurrent work. A single item is always admitted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reserved = 0
        self._changed = asyncio.Condition()

    def reserve(self, size: int) -> _Reservation:
        return _Reservation(self, size)

    async def take(self, size: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._reserved == 0 or self._reserved + size <= self._limit)
            self._reserved += size

    async def give(self, size: int) -> None:
        async with self._changed:
            self._reserved -= size
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class _Reservation:
    budget: _Budget
    size: int

    async def __aenter__(self) -> None:
        await self.budget.take(self.size)

    async def __aexit__(self, *_: object) -> None:
        await self.budget.give(self.size)


def _unreadable(what: str, error: IcefloeError) -> FormatError:
    return FormatError(
        f"{what} is reachable from a branch or tag but cannot be read ({error}). Nothing was deleted. "
        "`icefloe verify` shows the damage"
    )
