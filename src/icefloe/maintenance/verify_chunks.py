"""Whether the references of a manifest lead to bytes that are there."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from icefloe.errors import IcefloeError, ObjectNotFoundError, VirtualChunkError
from icefloe.ids import NodeId, ObjectId
from icefloe.maintenance.listing import Listed, id_keys, is_among
from icefloe.maintenance.verify_report import Damage, DamageKind
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.nodes import ArrayNode, Extents
from icefloe.model.snapshot import Manifest
from icefloe.session.engine import Engine
from icefloe.session.session import Session
from icefloe.storage.sources import check_unchanged

Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class ManifestUse:
    """How an array of a snapshot uses a manifest."""

    node_id: NodeId
    path: str
    extents: Extents
    grid: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkObjects:
    """The chunk objects that are there, by key in order, with their sizes."""

    keys: Keys
    sizes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, listed: Listed) -> ChunkObjects:
        keys = id_keys(listed.ids)
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], listed.size[order])


def check_manifest(
    manifest: Manifest, uses: Mapping[ManifestUse, ObjectId], objects: ChunkObjects, engine: Engine, key: str
) -> tuple[list[Damage], Keys]:
    """Damage of the references that arrays use, and the keys of all chunk objects the manifest names."""
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
            found += _check_native(used, use, snapshot_id, objects, engine)
            found += _check_virtual(used, use, snapshot_id, engine)
    return found, np.unique(np.concatenate(named)) if named else np.empty(0, dtype=np.uint64)


def _check_extents(table: ChunkTable, use: ManifestUse, snapshot_id: ObjectId, key: str) -> list[Damage]:
    if not use.extents or not len(table):
        return []
    low = np.array([first for first, _ in use.extents], dtype=np.int64)
    high = np.array([end for _, end in use.extents], dtype=np.int64)
    inside_grid = np.asarray((table.coords < np.array(use.grid, dtype=np.int64)).all(axis=1), dtype=bool)
    outside = inside_grid & ~((table.coords >= low) & (table.coords < high)).all(axis=1)
    # A manifest whose box was cut, because another one took the rest over, still has rows inside the box.
    inside = inside_grid & ~outside
    if outside.any() and not inside.any():
        detail = f"its {len(table)} chunks, {_coords(table, outside)} among them, lie outside of {list(use.extents)}"
        return [Damage(DamageKind.WRONG_EXTENTS, "manifest", key, detail, snapshot_id, use.path)]
    return []


def _check_native(
    table: ChunkTable, use: ManifestUse, snapshot_id: ObjectId, objects: ChunkObjects, engine: Engine
) -> list[Damage]:
    if table.object_id is None:
        return []
    rows = np.flatnonzero(table.kind == ChunkKind.NATIVE)
    ids = table.object_id[rows]
    there = is_among(ids, objects.keys)
    found = []
    for row, count in _by_object(table, rows[~there]):
        object_key = engine.format.chunk_key(table.object_id[row].tobytes())
        detail = f"{count} chunks, {_coords(table, row)} among them, are in it"
        found.append(Damage(DamageKind.MISSING, "chunk", object_key, detail, snapshot_id, use.path))
    held = rows[there]
    ends = table.offset[held] + table.length[held]
    sizes = objects.sizes[np.searchsorted(objects.keys, id_keys(table.object_id[held]))].astype(np.uint64)
    for row, count in _by_object(table, held[ends > sizes]):
        object_key = engine.format.chunk_key(table.object_id[row].tobytes())
        detail = f"{count} chunks, {_coords(table, row)} among them, end behind its end"
        found.append(Damage(DamageKind.TOO_SHORT, "chunk", object_key, detail, snapshot_id, use.path))
    return found


def _by_object(table: ChunkTable, rows: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
    """For each object among the rows one row, and how many there are."""
    if not len(rows):
        return []
    assert table.object_id is not None
    _, first, counts = np.unique(id_keys(table.object_id[rows]), return_index=True, return_counts=True)
    return list(zip(rows[first].tolist(), counts.tolist(), strict=True))


def _check_virtual(table: ChunkTable, use: ManifestUse, snapshot_id: ObjectId, engine: Engine) -> list[Damage]:
    if table.location is None:
        return []
    used = np.unique(table.location[table.kind == ChunkKind.VIRTUAL])
    prefixes = tuple(engine.config.virtual_chunk_containers or ())
    for code in used.tolist():
        location = table.locations[code]
        if not location.startswith("vcc://") and not location.startswith(prefixes):
            detail = "no virtual chunk container of the configuration has this prefix"
            return [Damage(DamageKind.NO_CONTAINER, "chunk", location, detail, snapshot_id, use.path)]
    return []


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a virtual file that references were made for; None is not known."""

    etag: str | None
    last_modified: int | None


@dataclass(slots=True)
class FileUse:
    """The references of arrays to one state of a virtual file."""

    path: str
    snapshot_id: ObjectId
    chunks: int = 0
    end: int = 0
    """The last byte that they need, exclusive."""


class VirtualFiles:
    """The files that virtual references lead to, gathered over manifests by their distinct locations."""

    def __init__(self) -> None:
        self.uses: dict[str, dict[FileState, FileUse]] = {}

    def add(self, manifest: Manifest, uses: Mapping[ManifestUse, ObjectId]) -> None:
        """Note the references of the tables that arrays use."""
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
        states = np.zeros((len(rows), 3), dtype=np.int64)
        states[:, 0] = table.location[rows]
        states[:, 1] = -1 if table.etag is None else table.etag[rows]
        states[:, 2] = 0 if table.last_modified is None else table.last_modified[rows]
        distinct, group, counts = np.unique(states, axis=0, return_inverse=True, return_counts=True)
        ends = np.zeros(len(distinct), dtype=np.int64)
        np.maximum.at(ends, group.reshape(-1), (table.offset[rows] + table.length[rows]).astype(np.int64))
        for (code, etag, modified), count, end in zip(distinct.tolist(), counts.tolist(), ends.tolist(), strict=True):
            state = FileState(None if etag < 0 else str(table.etags[etag]), modified or None)
            found = self.uses.setdefault(str(table.locations[code]), {}).setdefault(state, FileUse(path, snapshot_id))
            found.chunks += count
            found.end = max(found.end, end)


async def check_file(engine: Engine, location: str, uses: Mapping[FileState, FileUse]) -> list[Damage] | str:
    """Damage of the references to a virtual file, found with one request; or why it cannot be looked at."""
    try:
        source = engine.containers.resolve(location)
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
                "it", etag=state.etag, found_etag=info.version.etag,
                not_modified_after=_instant(state.last_modified), found_modified=info.last_modified,
            )  # fmt: skip
        except VirtualChunkError as error:
            detail = str(error)
        if not detail and info.size_bytes < use.end:
            kind, detail = (
                DamageKind.TOO_SHORT,
                f"it has {info.size_bytes} bytes, and chunks that end at byte {use.end}",
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


async def undecodable_chunks(engine: Engine, snapshot_id: ObjectId) -> list[Damage]:
    """Read and decode every native and inline chunk of a snapshot; those that do not."""
    session = Session(engine, await engine.archive.fetch_snapshot(snapshot_id))
    found: list[Damage] = []
    for node in session.workspace.tree.nodes():
        if isinstance(node, ArrayNode):
            table = await session.workspace.chunk_table(node)
            rows = np.flatnonzero(table.kind != ChunkKind.VIRTUAL)
            array = await asyncio.to_thread(zarr.open_array, session.store, path=node.path.strip("/"), mode="r")
            for row in rows.tolist():
                damage = await asyncio.to_thread(_decode, array, table, row, node.path, snapshot_id, engine)
                if damage is not None:
                    found.append(damage)
    return found


def _decode(array: Any, table: ChunkTable, row: int, path: str, snapshot_id: ObjectId, engine: Engine) -> Damage | None:
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
    key = engine.format.chunk_key(ref.object_id) if ref.object_id is not None else "(inline)"
    return Damage(DamageKind.UNDECODABLE, "chunk", key, f"chunk {list(coords)}: {reason}", snapshot_id, path)
