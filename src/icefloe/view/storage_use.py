"""Where the bytes are: sizes, growth over commits, the chunk grid, changed chunks, and what maintenance would free."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.blocking import current_time, run_blocking
from icefloe.errors import IcefloeError, InvalidInputError, UnsupportedError
from icefloe.maintenance.collect import KINDS as OBJECT_KINDS
from icefloe.maintenance.collect import CollectionPlan, CollectionRequest, preview_collection
from icefloe.maintenance.inventory import UncachedRepository, open_uncached
from icefloe.manifests.chunk_columns import diff_tables
from icefloe.model.chunk_table import ChunkKind, ChunkTable, empty_table, rows_inside
from icefloe.model.snapshot import ArrayNode, Extents
from icefloe.session.ancestry import fetch_shown_log
from icefloe.session.session import Session
from icefloe.storage.contract import Storage
from icefloe.storage.wrappers import WrappedStorage
from icefloe.view.revisions import (
    MOST_REFERENCES,
    ViewedRepository,
    absolute,
    array_sizes,
    commit_json,
    fetch_document,
    find_array,
    node_json,
    plain,
)

_MOST_HISTORY_REFERENCES = 5_000_000
_MOST_SIZES = 2000
_MOST_CELLS = 160_000
_MOST_COMMITS = 200
_MOST_OBJECTS = 20_000
_MOST_CHANGED = 100_000
_MOST_ARRAY_REFERENCES = 10_000_000
KINDS = ("absent", "inline", "native", "packed", "virtual")
_MOST_OPERATIONS = 50


def sizes(viewed: ViewedRepository, snapshot_id: str) -> dict[str, Any]:
    """Bytes on storage of every array of a snapshot, largest first."""
    return viewed.facts.get(("all sizes", snapshot_id), lambda: _sizes(viewed, viewed.session(snapshot_id)))


def _sizes(viewed: ViewedRepository, session: Session) -> dict[str, Any]:
    base = run_blocking(session.state.fetch_base())
    references = sum(each.num_chunk_refs for each in base.manifests.values())
    if references > MOST_REFERENCES:
        raise InvalidInputError(
            f"this snapshot has {references:,} chunk references. The viewer adds up the sizes of at most "
            f"{MOST_REFERENCES:,}. `icefloe stats` shows them"
        )
    arrays = [node for node in base.nodes.values() if isinstance(node, ArrayNode)]
    entries = [{"path": node.path, **array_sizes(viewed, session, node)} for node in arrays]
    entries.sort(key=lambda entry: (-entry["bytes"], entry["path"]))
    return {
        "arrays": entries[:_MOST_SIZES],
        "total_arrays": len(entries),
        "bytes": sum(entry["bytes"] for entry in entries),
        "chunks": sum(entry["chunks"] for entry in entries),
        "manifests": len(base.manifests),
        "manifest_bytes": sum(each.size_bytes for each in base.manifests.values()),
    }


def growth(viewed: ViewedRepository, snapshot_id: str, limit: int) -> dict[str, Any]:
    """The newest commits of a history, oldest first, with the bytes of their content and the bytes that were new.

    Chunks that several snapshots share are new only once. The first commit of the answer counts all its chunks as new.
    """
    return viewed.facts.get(("growth", snapshot_id, limit), lambda: _growth(viewed, snapshot_id, limit))


def _growth(viewed: ViewedRepository, snapshot_id: str, limit: int) -> dict[str, Any]:
    infos = list(itertools.islice(viewed.repository.ancestry(snapshot_id=snapshot_id), limit))[::-1]
    snapshots = [run_blocking(viewed.session(info.id).state.fetch_base()) for info in infos]
    distinct = {each.id: each.num_chunk_refs for base in snapshots for each in base.manifests.values()}
    if sum(distinct.values()) > _MOST_HISTORY_REFERENCES:
        raise InvalidInputError(
            f"these commits have {sum(distinct.values()):,} chunk references. The viewer compares at most "
            f"{_MOST_HISTORY_REFERENCES:,}. Ask for fewer commits"
        )
    totals: dict[str, tuple[int, int]] = {}
    known = np.empty(0, dtype="V28")
    points = []
    for info, base in zip(infos, snapshots, strict=True):
        added = 0
        for manifest_id in base.manifests:
            if manifest_id in totals:
                continue
            chunks, size, pieces = _manifest_pieces(viewed, manifest_id)
            totals[manifest_id] = chunks, size
            fresh = pieces[~np.isin(pieces, known)] if len(known) else pieces
            added += int(np.frombuffer(fresh.tobytes(), dtype=_PIECE)["length"].sum())
            known = np.union1d(known, fresh) if len(fresh) else known
        held = [totals[manifest_id] for manifest_id in base.manifests]
        points.append(
            {
                **{key: value for key, value in commit_json(info).items() if key != "metadata"},
                "chunks": sum(chunks for chunks, _ in held),
                "bytes": sum(size for _, size in held),
                "added_bytes": added,
            }
        )
    return {"commits": points, "more": bool(infos) and infos[0].parent_id is not None}


_PIECE = np.dtype([("source", "V12"), ("offset", "<u8"), ("length", "<u8")])


def _manifest_pieces(viewed: ViewedRepository, manifest_id: str) -> tuple[int, int, npt.NDArray[Any]]:
    """The number and bytes of a manifest's chunks, and the distinct ranges of objects and files that they are in."""
    manifest = run_blocking(viewed.context.metadata_files.fetch_manifest(manifest_id))
    parts, chunks, size = [], 0, 0
    for table in manifest.tables.values():
        chunks += len(table)
        size += int(table.length.sum())
        native = table.kind == ChunkKind.NATIVE
        rows = np.zeros(int(np.count_nonzero(native)), dtype=_PIECE)
        if table.object_id is not None and len(rows):
            ids = np.ascontiguousarray(table.object_id[native][:, -12:])
            rows["source"] = ids.view(f"V{ids.shape[1]}").ravel()
            rows["offset"], rows["length"] = table.offset[native], table.length[native]
        parts.append(rows)
    joined = np.concatenate(parts) if parts else np.zeros(0, dtype=_PIECE)
    return chunks, size, np.unique(joined.view("V28")) if len(joined) else np.empty(0, dtype="V28")


# -- chunks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plane:
    """Two dimensions of a chunk grid, or one, at an index of every other one."""

    axes: tuple[int, ...]
    index: tuple[int, ...]

    def box(self, grid: tuple[int, ...]) -> Extents:
        """The box of the grid that the plane covers."""
        return tuple(
            (0, count) if axis in self.axes else (self.index[axis], self.index[axis] + 1)
            for axis, count in enumerate(grid)
        )

    def positions(self, coords: npt.NDArray[Any], bins: tuple[int, ...]) -> list[npt.NDArray[Any]]:
        """Row and column of chunks on the plane, in squares of `bins` chunks."""
        found = [coords[:, axis] // size for axis, size in zip(self.axes, bins, strict=True)]
        return [np.zeros(len(coords), dtype=np.uint32)] * (2 - len(found)) + found


def _check_size(session: Session, node: ArrayNode) -> None:
    known = run_blocking(session.state.fetch_base()).manifests
    count = sum(known[ref.manifest_id].num_chunk_refs for ref in node.manifests if ref.manifest_id in known)
    if count > _MOST_ARRAY_REFERENCES:
        raise InvalidInputError(
            f"the manifests of {node.path} have {count:,} chunk references. The viewer reads at most "
            f"{_MOST_ARRAY_REFERENCES:,}"
        )


def chunk_map(viewed: ViewedRepository, snapshot_id: str, path: str, plane: Plane, *, origins: bool) -> dict[str, Any]:
    """The chunks on a plane of the grid as columns. A square of a large grid stands for several chunks."""
    session = viewed.session(snapshot_id)
    node = find_array(session, path)
    _check_size(session, node)
    table = run_blocking(session.state.chunk_table(node, plane.box(node.grid)))
    bins = _bins([node.grid[axis] for axis in plane.axes])
    rows, columns = plane.positions(table.coords, bins)
    kinds = _kinds(table)
    sources, names = _sources(viewed, table)
    facts: dict[str, Any] = {
        "path": node.path,
        "grid": [plain(count) for count in node.grid],
        "axes": list(plane.axes),
        "bins": list(bins),
        "names": [
            (node.dimension_names[axis] if node.dimension_names else None) or f"dimension {axis}" for axis in plane.axes
        ],
        "chunks": len(table),
        "kinds": list(KINDS),
        "objects": names,
    }
    if origins:
        written, commits = _origins(viewed, session, node, table)
        facts["commits"] = commits
    # The last chunk of a square stands for it.
    keys = rows.astype(np.int64) * (1 << 32) + columns
    _, shown = np.unique(keys[::-1], return_index=True)
    shown = len(keys) - 1 - shown
    facts["cells"] = {
        "row": rows[shown].tolist(),
        "column": columns[shown].tolist(),
        "kind": kinds[shown].tolist(),
        "size": table.length[shown].tolist(),
        "object": sources[shown].tolist(),
        "offset": [plain(int(each)) for each in table.offset[shown]],
    }
    if origins:
        facts["cells"]["commit"] = written[shown].tolist()
    return facts


def _bins(counts: list[int]) -> tuple[int, ...]:
    """How many chunks one square stands for, so that the map does not have too many squares."""
    bins = [1] * len(counts)
    while (
        np.prod([-(-count // size) for count, size in zip(counts, bins, strict=True)], dtype=np.float64) > _MOST_CELLS
    ):
        squares = [-(-count // size) for count, size in zip(counts, bins, strict=True)]
        bins[squares.index(max(squares))] *= 2
    return tuple(bins)


def _kinds(table: ChunkTable) -> npt.NDArray[np.uint8]:
    """The kind of each chunk as an index into KINDS. A native chunk that shares its object is packed."""
    found = np.zeros(len(table), dtype=np.uint8)
    found[table.kind == ChunkKind.INLINE] = KINDS.index("inline")
    found[table.kind == ChunkKind.NATIVE] = KINDS.index("native")
    found[table.kind == ChunkKind.VIRTUAL] = KINDS.index("virtual")
    native = np.flatnonzero(table.kind == ChunkKind.NATIVE)
    if table.object_id is not None and len(native):
        ids = np.ascontiguousarray(table.object_id[native])
        _, inverse, counts = np.unique(ids.view(f"V{ids.shape[1]}").ravel(), return_inverse=True, return_counts=True)
        shared = (counts[inverse.ravel()] > 1) | (table.offset[native] > 0)
        found[native[shared]] = KINDS.index("packed")
    return found


def _sources(viewed: ViewedRepository, table: ChunkTable) -> tuple[npt.NDArray[np.int64], list[str]]:
    """The object or file of each chunk as an index, and the names of these objects. -1 for chunks without one."""
    codes = np.full(len(table), -1, dtype=np.int64)
    names: list[str] = []
    native = np.flatnonzero(table.kind == ChunkKind.NATIVE)
    if table.object_id is not None and len(native):
        ids = np.ascontiguousarray(table.object_id[native])
        distinct, inverse = np.unique(ids.view(f"V{ids.shape[1]}").ravel(), return_inverse=True)
        codes[native] = inverse.ravel()
        names += [viewed.context.format.chunk_key(each.tobytes()) for each in distinct[:_MOST_OBJECTS]]
    virtual = np.flatnonzero(table.kind == ChunkKind.VIRTUAL)
    if table.location is not None and len(virtual):
        used, inverse = np.unique(table.location[virtual], return_inverse=True)
        codes[virtual] = inverse.ravel() + len(names)
        names += [table.locations[int(each)].partition("?")[0] for each in used[:_MOST_OBJECTS]]
    return codes, names


def _origins(
    viewed: ViewedRepository, session: Session, node: ArrayNode, table: ChunkTable
) -> tuple[npt.NDArray[np.int64], list[dict[str, Any]]]:
    """The commit that wrote each chunk, as an index into the commits. -1 where the logs do not tell."""
    written = np.full(len(table), -1, dtype=np.int64)
    commits: list[dict[str, Any]] = []
    for info in itertools.islice(viewed.repository.ancestry(snapshot_id=session.snapshot_id), _MOST_COMMITS):
        open_rows = np.flatnonzero(written < 0)
        if not len(open_rows):
            break
        base = viewed.session(info.id).state.base
        if not any(each.id == node.id for each in base.nodes.values()):
            break
        try:
            log = run_blocking(fetch_shown_log(viewed.context, base, info.parent_id))
        except IcefloeError:
            break
        mine = np.zeros(len(open_rows), dtype=np.bool_)
        coords = table.coords[open_rows]
        if node.id in log.updated_chunks:
            mine |= _among(coords, log.updated_chunks[node.id])
        for box in log.updated_boxes.get(node.id, ()):
            mine |= rows_inside(coords, [first for first, _ in box], [end for _, end in box])
        if node.id in log.new_arrays:
            mine[:] = True
        if mine.any():
            written[open_rows[mine]] = len(commits)
            commits.append({key: value for key, value in commit_json(info).items() if key != "metadata"})
    return written, commits


def _among(coords: npt.NDArray[np.uint32], known: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    if known.shape[1] != coords.shape[1] or not coords.shape[1]:
        return np.full(len(coords), bool(len(known)))
    kind = f"V{4 * coords.shape[1]}"
    ours = np.ascontiguousarray(coords).view(kind).ravel()
    theirs = np.ascontiguousarray(known, dtype=np.uint32).view(kind).ravel()
    found: npt.NDArray[np.bool_] = np.isin(ours, theirs)
    return found


def compare_array(viewed: ViewedRepository, old: str, new: str, path: str, plane: Plane | None) -> dict[str, Any]:
    """How an array differs between two snapshots: its metadata, and its chunks on a plane of the grid."""
    sides = [viewed.session(each) for each in (old, new)]
    nodes = [session.state.tree.find(absolute(path)) for session in sides]
    arrays = [node if isinstance(node, ArrayNode) else None for node in nodes]
    facts: dict[str, Any] = {
        "path": absolute(path),
        "from": None if arrays[0] is None else node_json(arrays[0]),
        "to": None if arrays[1] is None else node_json(arrays[1]),
        "chunks": None,
    }
    first, second = arrays
    if first is None or second is None:
        return facts
    facts["attributes"] = _changed_attributes(
        *[fetch_document(session, node).get("attributes") or {} for session, node in zip(sides, (first, second))]
    )
    if len(first.grid) != len(second.grid):
        return facts
    for session, node in zip(sides, (first, second), strict=True):
        _check_size(session, node)
    tables = [
        run_blocking(session.state.chunk_table(node)) if node.grid else empty_table(0)
        for session, node in zip(sides, (first, second), strict=True)
    ]
    changed = diff_tables(*tables)
    facts["chunks"] = {"changed": len(changed), "from": len(tables[0]), "to": len(tables[1])}
    if plane is not None and changed.shape[1]:
        grid = tuple(max(a, b) for a, b in zip(first.grid, second.grid, strict=True))
        low, high = zip(*plane.box(grid), strict=True)
        shown = changed[rows_inside(changed, low, high)][:_MOST_CHANGED]
        rows, columns = plane.positions(shown, (1,) * len(plane.axes))
        facts["chunks"] |= {"row": rows.tolist(), "column": columns.tolist()}
    return facts


def _changed_attributes(old: dict[str, Any], new: dict[str, Any]) -> list[dict[str, Any]]:
    names = sorted(
        name for name in old.keys() | new.keys() if old.get(name) != new.get(name) or (name in old) != (name in new)
    )
    return [{"name": name, "from": plain(old.get(name)), "to": plain(new.get(name))} for name in names[:200]]


# -- maintenance ----------------------------------------------------------------------------------------------------


class _ReadOnlyStorage(WrappedStorage):
    """A storage that says it is read-only, so that a plan does not write an object to learn the time of the store."""

    @property
    def read_only(self) -> bool:
        return True

    def _rewrap(self, inner: Storage) -> Storage:
        return _ReadOnlyStorage(inner)


def maintenance(viewed: ViewedRepository, keep_days: float, grace_days: float) -> dict[str, Any]:
    """The plans of an expiry and of a garbage collection. Nothing is changed."""
    expiry = viewed.repository.plan_expiry(older_than=dt.timedelta(days=keep_days))
    cutoff = current_time() - dt.timedelta(days=grace_days)
    request = CollectionRequest(cutoff, None, ignore_running=True)
    plan = run_blocking(preview_collection(_read_only(open_uncached(viewed.context)), request))
    return {
        "expiry": {
            "older_than_days": keep_days,
            "expired": len(expiry.expired),
            "kept": expiry.kept,
            "oldest": min((info.written_at for info in expiry.expired), default=None),
        },
        "collection": {"grace_days": grace_days, **_collection_json(plan)},
        "operations": _operations(viewed),
    }


def _read_only(uncached: UncachedRepository) -> UncachedRepository:
    return dataclasses.replace(uncached, storage=_ReadOnlyStorage(uncached.storage))


def _collection_json(plan: CollectionPlan) -> dict[str, Any]:
    kinds = [
        {
            "kind": kind.replace("_", " "),
            "garbage": len(plan.garbage[kind]),
            "bytes": int(plan.garbage[kind].size.sum()),
            "in_use": plan.live.get(kind, 0),
            "too_young": plan.young.get(kind, 0),
        }
        for kind in OBJECT_KINDS
    ]
    return {"cutoff": plan.cutoff, "kinds": kinds, "bytes": plan.summary().bytes_deleted}


def _operations(viewed: ViewedRepository) -> list[dict[str, Any]] | None:
    """The latest operations, if the repository has a log of them."""
    try:
        found = list(itertools.islice(viewed.repository.ops_log(), _MOST_OPERATIONS))
    except UnsupportedError:
        return None
    return [
        {"kind": type(each.kind).__name__, "at": each.updated_at, "detail": plain(str(each.kind))} for each in found
    ]
