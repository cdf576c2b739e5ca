"""The chunk grid of an array: kind, object, size and origin of each chunk, and what two revisions differ in."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.blocking import run_blocking
from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.manifests.columns import diff_tables
from icefloe.model.chunk_table import ChunkKind, ChunkTable, empty_table, rows_inside
from icefloe.model.snapshot import ArrayNode, Extents
from icefloe.session.history import fetch_log
from icefloe.session.session import Session
from icefloe.view.history import ViewedRepository, commit_json, plain
from icefloe.view.tree import absolute, fetch_document, find_array, node_json

_MOST_CELLS = 160_000
_MOST_COMMITS = 200
_MOST_OBJECTS = 20_000
_MOST_CHANGED = 100_000
_MOST_REFERENCES = 10_000_000
KINDS = ("absent", "inline", "native", "packed", "virtual")


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
    known = session.state.base.manifests
    count = sum(known[ref.manifest_id].num_chunk_refs for ref in node.manifests if ref.manifest_id in known)
    if count > _MOST_REFERENCES:
        raise InvalidInputError(
            f"the manifests of {node.path} have {count:,} chunk references. The viewer reads at most "
            f"{_MOST_REFERENCES:,}"
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
            log = run_blocking(fetch_log(viewed.context, base))
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
