"""The checks of a verification: chunks, transaction logs, and the report."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import zarr

from icefloe.chunks.reader import ChunkLookup
from icefloe.codec_pipeline import check_grid
from icefloe.display.card import TextCardMixin, format_bytes, format_count
from icefloe.errors import FormatError, IcefloeError, NotFoundError, ObjectNotFoundError, VirtualChunkError, printable
from icefloe.ids import NodeId, ObjectId
from icefloe.maintenance.compact import REWRITTEN
from icefloe.maintenance.inventory import Listed, UncachedRepository, id_keys, is_among
from icefloe.manifests.cells import bounding_box, in_boxes
from icefloe.manifests.chunk_columns import find_rows
from icefloe.model.chunk_table import ChunkKind, ChunkTable, rows_below, tombstones
from icefloe.model.manifest_lists import known_refs
from icefloe.model.snapshot import ArrayNode, Extents, Manifest, Snapshot, TransactionLog
from icefloe.model.status import Damage, DamageKind
from icefloe.model.zarr_document import parse_document
from icefloe.session.ancestry import (
    changed_batches,
    compare_nodes,
    compare_snapshots,
    group_by_manifest,
    is_cut_off,
    join_logs,
    merge_logs,
    suspected_arrays,
)
from icefloe.session.open_repository import RepositoryContext
from icefloe.session.session import Session
from icefloe.storage.requests import check_unchanged

_SHOWN = 50
_SHOWN_PATHS = 3


REPAIRABLE = frozenset({DamageKind.WRONG_SIZE, DamageKind.MISQUOTED, DamageKind.LOG_DIFFERS})


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Files of virtual chunks that could not be checked, for one reason."""

    reason: str
    files: int
    chunks: int
    example: str

    def __str__(self) -> str:
        what = f"{format_count(self.files, 'virtual file')} with {format_count(self.chunks, 'chunk')}"
        return printable(f"not checked: {what}, for example {self.example}: {self.reason}")


@dataclass(frozen=True, slots=True)
class VerifyReport(TextCardMixin):
    """Everything that was checked, and the damage found."""

    damages: tuple[Damage, ...]
    checked: Mapping[str, int]
    orphans: Mapping[str, int] = field(default_factory=dict)
    """Unreferenced objects per kind: garbage, or uncommitted objects of a running writer."""
    orphan_bytes: int = 0
    unchecked: tuple[Unchecked, ...] = ()
    """Files of virtual chunks whose containers are not authorised, or that could not be reached."""

    @property
    def is_clean(self) -> bool:
        return not self.damages

    def of_kind(self, kind: DamageKind) -> Sequence[Damage]:
        """Damage of one kind."""
        return [damage for damage in self.damages if damage.kind is kind]

    def __str__(self) -> str:
        looked = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in self.checked.items() if count)
        lines = [f"checked {looked}: {'clean' if self.is_clean else format_count(len(self.damages), 'damage')}"]
        lines += [f"  {damage}" for damage in self.damages[:_SHOWN]]
        if len(self.damages) > _SHOWN:
            lines.append(f"  ... and {len(self.damages) - _SHOWN:,} more")
        lines += [str(each) for each in self.unchecked]
        unused = sum(self.orphans.values())
        if unused:
            lines.append(
                f"{format_count(unused, 'object')} ({format_bytes(self.orphan_bytes)}) are unreferenced. Garbage "
                "collection deletes them when they are old enough"
            )
        return "\n".join(lines)


Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class ManifestUse:
    """How an array of a snapshot uses a manifest."""

    node_id: NodeId
    path: str
    extents: Extents
    grid: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SharingArrays:
    """Arrays of a snapshot that have the same manifests."""

    paths: tuple[str, ...]
    """Of a few of them."""
    grids: Mapping[NodeId, tuple[str, tuple[int, ...]]]
    """The path and the chunk grid of each."""


@dataclass(frozen=True, slots=True)
class SharedUse:
    """How arrays that have the same manifests use one of them."""

    arrays: SharingArrays
    extents: Extents


SharedUses: TypeAlias = dict[SharedUse, ObjectId]
"""How arrays use a manifest, and a snapshot of each."""


class ManifestUses:
    """How the arrays of snapshots use manifests.

    Very many arrays may share the manifests of one list. They take the memory of one array.
    """

    def __init__(self) -> None:
        self.by_manifest: dict[ObjectId, SharedUses] = {}
        self._known: dict[tuple[tuple[NodeId, str, tuple[int, ...]], ...], SharingArrays] = {}

    def add(self, snapshot: Snapshot) -> set[ObjectId]:
        """Add the manifests of a snapshot, without those in lists that are not loaded. Returns their ids."""
        found: set[ObjectId] = set()
        sharing: dict[int, list[ArrayNode]] = {}
        for node in snapshot.nodes.values():
            if isinstance(node, ArrayNode):
                sharing.setdefault(id(node.manifests), []).append(node)
        for nodes in sharing.values():
            arrays = self._join(nodes)
            for ref in known_refs(nodes[0]):
                uses = self.by_manifest.setdefault(ref.manifest_id, {})
                uses.setdefault(SharedUse(arrays, ref.extents), snapshot.id)
                found.add(ref.manifest_id)
        return found

    def _join(self, nodes: Sequence[ArrayNode]) -> SharingArrays:
        key = tuple((node.id, node.path, node.grid) for node in nodes)
        if key not in self._known:
            paths = sorted(node.path for node in nodes)[:_SHOWN_PATHS]
            self._known[key] = SharingArrays(tuple(paths), {node.id: (node.path, node.grid) for node in nodes})
        return self._known[key]

    def paths(self, manifest_id: ObjectId) -> list[str]:
        """Some arrays that use a manifest."""
        paths = {path for use in self.by_manifest.get(manifest_id, {}) for path in use.arrays.paths}
        return sorted(paths)[:_SHOWN_PATHS]


def uses_in(manifest: Manifest, uses: SharedUses) -> dict[ManifestUse, ObjectId]:
    """The arrays that have chunks in a manifest, and a snapshot of each."""
    found: dict[ManifestUse, ObjectId] = {}
    for shared, snapshot_id in uses.items():
        grids = shared.arrays.grids
        used = [(*grids[node_id], node_id) for node_id in manifest.tables if node_id in grids]
        for path, grid, node_id in sorted(used):
            found.setdefault(ManifestUse(node_id, path, shared.extents, grid), snapshot_id)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class ChunkObjects:
    """The existing chunk objects, sorted by key, with their sizes."""

    keys: Keys
    sizes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, listed: Listed) -> ChunkObjects:
        keys = id_keys(listed.ids)
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], listed.size[order])


def check_manifest(
    manifest: Manifest,
    uses: Mapping[ManifestUse, ObjectId],
    objects: ChunkObjects,
    context: RepositoryContext,
    key: str,
) -> tuple[list[Damage], Keys]:
    """Damage of the references that arrays use, and the keys of all chunk objects of the manifest."""
    found: list[Damage] = []
    named: list[Keys] = []
    for table in manifest.tables.values():
        if table.object_id is not None:
            named.append(np.unique(id_keys(table.object_id[table.kind == ChunkKind.NATIVE])))
    seen: set[NodeId] = set()
    for use, snapshot_id in uses.items():
        used = manifest.tables.get(use.node_id)
        if used is None or used.ndim != len(use.grid):
            continue
        found += _check_extents(used, use, snapshot_id, key)
        if use.node_id not in seen:
            seen.add(use.node_id)
            found += _check_native(used, use, snapshot_id, objects, context)
            found += _check_virtual(used, use, snapshot_id, context)
    return found, np.unique(np.concatenate(named)) if named else np.empty(0, dtype=np.uint64)


def _check_extents(table: ChunkTable, use: ManifestUse, snapshot_id: ObjectId, key: str) -> list[Damage]:
    if not use.extents or not len(table):
        return []
    low = np.array([first for first, _ in use.extents], dtype=np.int64)
    high = np.array([end for _, end in use.extents], dtype=np.int64)
    inside_grid = np.asarray((table.coords < np.array(use.grid, dtype=np.int64)).all(axis=1), dtype=bool)
    outside = inside_grid & ~((table.coords >= low) & (table.coords < high)).all(axis=1)
    # A manifest whose box was reduced, because another one replaced the rest, still has rows inside of the box.
    inside = inside_grid & ~outside
    if outside.any() and not inside.any():
        detail = f"its {len(table)} chunks, for example {_coords(table, outside)}, are outside of {list(use.extents)}"
        return [Damage(DamageKind.WRONG_EXTENTS, "manifest", key, detail, snapshot_id, use.path)]
    return []


def _check_native(
    table: ChunkTable, use: ManifestUse, snapshot_id: ObjectId, objects: ChunkObjects, context: RepositoryContext
) -> list[Damage]:
    if table.object_id is None:
        return []
    rows = np.flatnonzero(table.kind == ChunkKind.NATIVE)
    ids = table.object_id[rows]
    there = is_among(ids, objects.keys)
    found = []
    for row, count in _by_object(table, rows[~there]):
        object_key = context.format.chunk_key(table.object_id[row].tobytes())
        detail = f"{count} chunks are in it, for example {_coords(table, row)}"
        found.append(Damage(DamageKind.MISSING, "chunk", object_key, detail, snapshot_id, use.path))
    stored = rows[there]
    ends = table.offset[stored] + table.length[stored]
    sizes = objects.sizes[np.searchsorted(objects.keys, id_keys(table.object_id[stored]))].astype(np.uint64)
    for row, count in _by_object(table, stored[ends > sizes]):
        object_key = context.format.chunk_key(table.object_id[row].tobytes())
        detail = f"{count} chunks end after its last byte, for example {_coords(table, row)}"
        found.append(Damage(DamageKind.TOO_SHORT, "chunk", object_key, detail, snapshot_id, use.path))
    return found


def _by_object(table: ChunkTable, rows: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
    """One row of each object, and the number of its rows."""
    if not len(rows):
        return []
    assert table.object_id is not None
    _, first, counts = np.unique(id_keys(table.object_id[rows]), return_index=True, return_counts=True)
    return list(zip(rows[first].tolist(), counts.tolist(), strict=True))


def _check_virtual(
    table: ChunkTable, use: ManifestUse, snapshot_id: ObjectId, context: RepositoryContext
) -> list[Damage]:
    if table.location is None:
        return []
    used = np.unique(table.location[table.kind == ChunkKind.VIRTUAL])
    prefixes = tuple(context.config.virtual_chunk_containers or ())
    for code in used.tolist():
        location = table.locations[code]
        if not location.startswith("vcc://") and not location.startswith(prefixes):
            detail = "no virtual chunk container of the configuration has this prefix"
            return [Damage(DamageKind.NO_CONTAINER, "chunk", location, detail, snapshot_id, use.path)]
    return []


@dataclass(frozen=True, slots=True)
class FileState:
    """The recorded state of a virtual file. None if it is not known."""

    etag: str | None
    last_modified: int | None


@dataclass(slots=True)
class FileUse:
    """The references of arrays to one recorded state of a virtual file."""

    path: str
    snapshot_id: ObjectId
    chunks: int = 0
    end: int = 0
    """The last byte that they need, exclusive."""


class VirtualFiles:
    """The files of virtual references of all manifests, by distinct location."""

    def __init__(self) -> None:
        self.uses: dict[str, dict[FileState, FileUse]] = {}

    def add(self, manifest: Manifest, uses: Mapping[ManifestUse, ObjectId]) -> None:
        """Add the references of the tables that arrays use."""
        seen: set[NodeId] = set()
        for use, snapshot_id in uses.items():
            table = manifest.tables.get(use.node_id)
            if table is not None and table.location is not None and use.node_id not in seen:
                seen.add(use.node_id)
                self._add_table(table, use.path, snapshot_id)

    def _add_table(self, table: ChunkTable, path: str, snapshot_id: ObjectId) -> None:
        rows = np.flatnonzero(table.kind == ChunkKind.VIRTUAL)
        if not len(rows):
            return
        assert table.location is not None
        # Rows of one state get one number. Columns that tables leave out, or that are constant, add nothing to it.
        columns = [column[rows] for column in (table.location, table.etag, table.last_modified) if column is not None]
        group, count = np.zeros(len(rows), dtype=np.int64), 1
        for column in columns:
            values, codes = np.unique(column, return_inverse=True)
            if len(values) > 1:
                distinct, group = np.unique(group * len(values) + codes.reshape(-1), return_inverse=True)
                group, count = group.reshape(-1), len(distinct)
        counts = np.bincount(group, minlength=count)
        first = np.zeros(count, dtype=np.int64)
        first[group[::-1]] = rows[::-1]
        ends = np.zeros(count, dtype=np.int64)
        np.maximum.at(ends, group, (table.offset[rows] + table.length[rows]).astype(np.int64))
        for row, chunks, end in zip(first.tolist(), counts.tolist(), ends.tolist(), strict=True):
            etag = -1 if table.etag is None else int(table.etag[row])
            modified = 0 if table.last_modified is None else int(table.last_modified[row])
            state = FileState(None if etag < 0 else str(table.etags[etag]), modified or None)
            location = str(table.locations[int(table.location[row])])
            found = self.uses.setdefault(location, {}).setdefault(state, FileUse(path, snapshot_id))
            found.chunks += chunks
            found.end = max(found.end, end)


async def check_file(
    context: RepositoryContext, location: str, uses: Mapping[FileState, FileUse]
) -> list[Damage] | str:
    """Check the references to a virtual file with one request. Returns the damage, or why it cannot be checked."""
    try:
        source = context.containers.resolve(location)
    except VirtualChunkError as error:
        return str(error).partition("\n")[0]
    first = next(iter(uses.values()))
    chunks = sum(use.chunks for use in uses.values())
    try:
        info = await source.storage.head(source.key)
    except ObjectNotFoundError:
        detail = f"{chunks} chunks are in it"
        return [Damage(DamageKind.MISSING, "virtual file", location, detail, first.snapshot_id, first.path)]
    except IcefloeError as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    found: list[Damage] = []
    for state, use in uses.items():
        kind, detail = DamageKind.CHANGED, ""
        try:
            check_unchanged(
                "it",
                etag=state.etag,
                found_etag=info.version.etag,
                not_modified_after=_instant(state.last_modified),
                found_modified=info.last_modified,
            )
        except VirtualChunkError as error:
            detail = str(error)
        if not detail and info.size_bytes < use.end:
            kind, detail = (
                DamageKind.TOO_SHORT,
                f"it has {info.size_bytes} bytes, but chunks end at byte {use.end}",
            )
        if detail:
            detail = f"{use.chunks} chunks are in it: {detail}"
            found.append(Damage(kind, "virtual file", location, detail, use.snapshot_id, use.path))
    return found


def _instant(seconds: int | None) -> dt.datetime | None:
    return None if seconds is None else dt.datetime.fromtimestamp(seconds, tz=dt.UTC)


def _coords(table: ChunkTable, which: npt.NDArray[np.bool_] | int) -> list[int]:
    row = which if isinstance(which, int) else int(np.flatnonzero(which)[0])
    return table.coords[row].tolist()  # type: ignore[no-any-return]


async def undecodable_chunks(context: RepositoryContext, snapshot_id: ObjectId) -> list[Damage]:
    """Read and decode every native and inline chunk of a snapshot. Returns those that fail."""
    session = Session(context, await context.metadata_files.fetch_snapshot(snapshot_id))
    found: list[Damage] = []
    for node in session.state.tree.nodes():
        if isinstance(node, ArrayNode):
            table = await session.state.chunk_table(node)
            rows = np.flatnonzero(table.kind != ChunkKind.VIRTUAL)
            check_grid(node.path.strip("/"), parse_document(node.document))
            array = await asyncio.to_thread(zarr.open_array, session.store, path=node.path.strip("/"), mode="r")
            for row in rows.tolist():
                damage = await asyncio.to_thread(_decode, array, table, row, node.path, snapshot_id, context)
                if damage is not None:
                    found.append(damage)
    return found


def _decode(
    array: Any, table: ChunkTable, row: int, path: str, snapshot_id: ObjectId, context: RepositoryContext
) -> Damage | None:
    coords = tuple(table.coords[row].tolist())
    try:
        array.blocks[coords] if coords else array[()]
    except IcefloeError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - codecs raise whatever their libraries do
        reason = f"{type(error).__name__}: {error}"
    else:
        return None
    ref = table.row(row)
    key = context.format.chunk_key(ref.object_id) if ref.object_id is not None else "(inline)"
    return Damage(DamageKind.UNDECODABLE, "chunk", key, f"chunk {list(coords)}: {reason}", snapshot_id, path)


_CHUNKS_READ = 64
"""Chunks per array that are compared byte by byte if a log does not list them."""


async def check_log(uncached: UncachedRepository, snapshot_id: ObjectId, parent_id: ObjectId) -> Damage | None:
    """The damage of a snapshot's log. None if there is none, or if the files of the snapshot are damaged."""
    key = uncached.format.transaction_log_key(snapshot_id)
    try:
        pruned = await uncached.ledger.fetch_pruned_logs(snapshot_id)
        logs = [await uncached.metadata_files.fetch_transaction_log(each) for each in (*pruned, snapshot_id)]
        logged = reduce(merge_logs, logs)
        if len(logs) > 1:
            logged = await _join(uncached, logs, snapshot_id, parent_id) or logged
    except ObjectNotFoundError as error:
        return _damage(DamageKind.MISSING, key, f"no log was written ({error})", snapshot_id)
    except FormatError as error:
        return _damage(DamageKind.UNREADABLE, key, str(error), snapshot_id)
    try:
        snapshot = await uncached.metadata_files.fetch_snapshot(snapshot_id)
        parent = await uncached.metadata_files.fetch_snapshot(parent_id)
        if uncached.ledger.parents_change_unseen and is_cut_off(logged, parent, snapshot):
            return None  # expired by the official package; readers compare the snapshots
        present = frozenset(node.id for node in snapshot.nodes.values())
        missing = find_unlogged(logged, compare_nodes(parent, snapshot), present)
        if missing is None and REWRITTEN not in snapshot.metadata:
            missing = await _find_unlogged_chunks(uncached, logged, parent, snapshot)
    except (NotFoundError, FormatError):
        return None
    return None if missing is None else _damage(DamageKind.LOG_DIFFERS, key, missing, snapshot_id)


async def _find_unlogged_chunks(
    uncached: UncachedRepository, logged: TransactionLog, parent: Snapshot, snapshot: Snapshot
) -> str | None:
    """Changed chunks that are missing in the log. Of a large array, one part of its grid is in memory at a time."""
    lookup = ChunkLookup(uncached.metadata_files)

    async def find(was: ArrayNode | None, now: ArrayNode) -> npt.NDArray[np.uint32]:
        parts = []
        async for coords in changed_batches(was, now, lookup):
            # Chunks outside of the grid were lost when the array became smaller. Its document shows that.
            parts.append(_unlogged_chunks(logged, now.id, coords[rows_below(coords, now.grid)]))
        return np.concatenate([np.empty((0, len(now.grid)), dtype=np.uint32), *parts])

    for group in group_by_manifest(suspected_arrays(parent, snapshot)):
        found = await asyncio.gather(*(find(was, now) for was, now in group))
        for (was, now), unlogged in zip(group, found, strict=True):
            # Chunks may only have been moved, if the commit of a compaction in between has expired.
            if len(unlogged) and (was is None or not await _hold_the_same(uncached, was, now, unlogged)):
                return f"{len(unlogged)} changed chunks are not in the log"
    return None


async def _join(
    uncached: UncachedRepository, logs: list[TransactionLog], snapshot_id: ObjectId, parent_id: ObjectId
) -> TransactionLog | None:
    """The logs as readers join them. None if the files of a snapshot are damaged."""
    metadata_files = uncached.metadata_files
    try:
        before, after = await metadata_files.fetch_snapshot(parent_id), await metadata_files.fetch_snapshot(snapshot_id)
        return await join_logs(logs, before, after, metadata_files)
    except (NotFoundError, FormatError):
        return None


async def true_log(uncached: UncachedRepository, snapshot_id: ObjectId, parent_id: ObjectId) -> TransactionLog:
    """The changes of a snapshot, by comparison with its parent."""
    metadata_files = uncached.metadata_files
    old, new = await metadata_files.fetch_snapshot(parent_id), await metadata_files.fetch_snapshot(snapshot_id)
    log = await compare_snapshots(old, new, metadata_files)
    return replace(log, updated_chunks=_in_grid(log.updated_chunks, new))


def _unlogged_chunks(logged: TransactionLog, node_id: NodeId, coords: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The chunks, in order, that a log neither lists nor has in a box."""
    boxes = [box for box in logged.updated_boxes.get(node_id, ()) if len(box) == coords.shape[1]]
    if boxes and len(coords):
        coords = coords[~in_boxes(coords, boxes)]
    listed = logged.updated_chunks.get(node_id)
    if listed is None or not len(coords) or listed.shape[1] != coords.shape[1]:
        return coords
    if not coords.shape[1]:
        return coords[:0]
    # Both are sorted: only that part of the list is needed which can contain the chunks.
    first, end = np.searchsorted(listed[:, 0], [coords[0, 0], int(coords[-1, 0]) + 1])
    return coords[find_rows(tombstones(listed[first:end]), coords) < 0]


async def _hold_the_same(
    uncached: UncachedRepository, old: ArrayNode, new: ArrayNode, coords: npt.NDArray[np.uint32]
) -> bool:
    """Whether chunks of two snapshots have the same lengths and, for some of them, the same bytes."""
    lookup = ChunkLookup(uncached.metadata_files)
    box = bounding_box(coords)
    old_refs, fresh = await lookup.table(old, box), await lookup.table(new, box)
    before, after = find_rows(old_refs, coords), find_rows(fresh, coords)
    if (before < 0).any() or (after < 0).any() or (old_refs.length[before] != fresh.length[after]).any():
        return False
    for place in np.unique(np.linspace(0, len(coords) - 1, _CHUNKS_READ).astype(np.int64)).tolist():
        pair = [await _read(uncached, old_refs, int(before[place])), await _read(uncached, fresh, int(after[place]))]
        if None not in pair and pair[0] != pair[1]:
            return False
    return True


async def _read(uncached: UncachedRepository, table: ChunkTable, row: int) -> bytes | None:
    """The bytes of a chunk. None if it is virtual, or missing, which is reported separately."""
    start, end = int(table.offset[row]), int(table.offset[row] + table.length[row])
    if table.kind[row] == ChunkKind.INLINE:
        return bytes(table.inline[start:end])
    if table.kind[row] != ChunkKind.NATIVE or table.object_id is None:
        return None
    try:
        return await uncached.storage.get_range(uncached.format.chunk_key(table.object_id[row].tobytes()), start, end)
    except ObjectNotFoundError:
        return None


def _in_grid(
    chunks: Mapping[NodeId, npt.NDArray[np.uint32]], snapshot: Snapshot
) -> dict[NodeId, npt.NDArray[np.uint32]]:
    """The changes without chunks that an array lost when it became smaller. Its document shows that."""
    grids = {node.id: node.grid for node in snapshot.nodes.values() if isinstance(node, ArrayNode)}
    inside = {
        node_id: coords[(coords < np.array(grids[node_id], dtype=np.int64)).all(axis=1)]
        for node_id, coords in chunks.items()
    }
    return {node_id: coords for node_id, coords in inside.items() if len(coords)}


def find_unlogged(logged: TransactionLog, true: TransactionLog, present: frozenset[NodeId]) -> str | None:
    """A change of nodes that is missing in the log, or one in the log that cannot have happened.

    A log may contain more: rewritten chunks, or changes of ancestors that an interrupted expiry was removing.
    """
    for name in ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays"):
        expected, found = getattr(true, name), getattr(logged, name)
        if expected - found:
            return f"{len(expected - found)} {name.replace('_', ' ')} are not in the log"
        gone = present | logged.deleted_arrays | logged.deleted_groups
        wrong = found - expected - gone if name.startswith("new") else found & present
        if wrong:
            return f"the log contains {len(wrong)} {name.replace('_', ' ')} that did not happen"
    updated = logged.updated_arrays | logged.updated_groups
    changed = (true.updated_arrays | true.updated_groups) - updated
    if changed:
        return f"{len(changed)} changed documents are not in the log"
    if {move.node_id for move in true.moves} - {move.node_id for move in logged.moves}:
        return "moved nodes are not in the log"
    return None


def _damage(kind: DamageKind, key: str, detail: str, snapshot_id: ObjectId) -> Damage:
    return Damage(kind, "transaction log", key, detail, snapshot_id, repairable=True)
