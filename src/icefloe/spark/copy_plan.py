"""What a copy does: which arrays, under which documents, in which boxes of chunks."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError, NodeNotFoundError, UnsupportedError
from icefloe.model.nodes import ArrayNode
from icefloe.session.session import Session
from icefloe.spark.places import Bounds, parse_bounds, unknown_name

Box = tuple[tuple[int, int], ...]
"""[first, end) chunk coordinates of the target, by dimension."""


@dataclass(frozen=True, slots=True)
class CopySelection:
    """What is copied: a group, some of its variables, a region by dimension; in other chunks where asked for."""

    group: str = ""
    variables: tuple[str, ...] | None = None
    region: Bounds | None = None
    chunks: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class ArrayCopy:
    """One array on its way: stored chunks travel as they are unless the grid changes."""

    source: str
    target: str
    document: bytes
    start: tuple[int, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    as_stored: bool

    def cells(self, box: Box) -> tuple[slice, ...]:
        """The cells of the target in a box."""
        bounds = zip(box, self.chunks, self.shape, strict=True)
        return tuple(slice(first * chunk, min(end * chunk, n)) for (first, end), chunk, n in bounds)

    def source_cells(self, box: Box) -> tuple[slice, ...]:
        """The cells of the source that go into a box."""
        return tuple(slice(c.start + s, c.stop + s) for c, s in zip(self.cells(box), self.start, strict=True))

    @property
    def chunk_shift(self) -> tuple[int, ...]:
        """How many chunks of the source come before the first copied one."""
        return tuple(s // c for s, c in zip(self.start, self.chunks, strict=True))


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Some chunks of one array."""

    array: ArrayCopy
    box: Box


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Documents by path below the target's root, and the work."""

    groups: Mapping[str, bytes]
    arrays: tuple[ArrayCopy, ...]
    tasks: tuple[CopyTask, ...]
    bytes: int


def plan_copy(session: Session, selection: CopySelection, target_group: str, task_bytes: int) -> CopyPlan:
    """Read the documents and decide."""
    root = "/" + selection.group.strip("/")
    nodes = session.workspace.tree.subtree(root)
    if not nodes:
        raise NodeNotFoundError(f"there is no group {root} in snapshot {session.snapshot_id}", path=root)
    documents = {node.path: run_blocking(session.workspace.fetch_document(node.path)) or b"" for node in nodes}
    arrays = [node for node in nodes if isinstance(node, ArrayNode)]
    chosen = _choose(arrays, selection.variables, root)
    _check_names(chosen, selection)
    copies, tasks, size = [], [], 0
    for node in chosen:
        copy = _plan_array(node, documents[node.path], selection, _moved(node.path, root, target_group))
        itemsize = _itemsize(json.loads(copy.document))
        copies.append(copy)
        size += math.prod(copy.shape) * itemsize
        grid = [-(-n // c) for n, c in zip(copy.shape, copy.chunks, strict=True)]
        unit = math.prod(copy.chunks) * itemsize
        tasks += [CopyTask(copy, box) for box in cut_grid(grid, max(1, task_bytes // max(1, unit)))]
    groups = {
        _moved(node.path, root, target_group): documents[node.path]
        for node in nodes
        if not isinstance(node, ArrayNode) and any(_is_below(copy.path, node.path) for copy in chosen)
    }
    return CopyPlan(groups, tuple(copies), tuple(tasks), size)


def _is_below(path: str, group: str) -> bool:
    return group == "/" or path.startswith(group + "/")


def _moved(path: str, root: str, target_group: str) -> str:
    inside = path[len(root) :].strip("/") if root != "/" else path.strip("/")
    return "/".join(part for part in (target_group.strip("/"), inside) if part)


def _choose(arrays: Sequence[ArrayNode], names: Sequence[str] | None, root: str) -> list[ArrayNode]:
    """The arrays asked for, and the coordinates of their dimensions."""
    if names is None:
        return list(arrays)
    inside = {node.path[len(root) :].strip("/") if root != "/" else node.path.strip("/"): node for node in arrays}
    missing = [name for name in names if name not in inside]
    if missing:
        raise NodeNotFoundError(str(unknown_name("array", missing[0], sorted(inside), option=root)))
    wanted = dict.fromkeys(names)
    for name in names:
        folder = name.rpartition("/")[0]
        for dim in inside[name].dimension_names or ():
            label = f"{folder}/{dim}" if folder else str(dim)
            if dim is not None and label in inside:
                wanted.setdefault(label)
    return [inside[name] for name in wanted]


def _check_names(arrays: Sequence[ArrayNode], selection: CopySelection) -> None:
    known = {dim for node in arrays for dim in node.dimension_names or () if dim is not None}
    for what, asked in (("region", selection.region), ("chunks", selection.chunks)):
        unknown = sorted(set(asked or {}) - known)
        if unknown:
            raise unknown_name("dimension", unknown[0], sorted(known), option=what)


def _plan_array(node: ArrayNode, document: bytes, selection: CopySelection, target: str) -> ArrayCopy:
    parsed: dict[str, Any] = json.loads(document)
    grid = parsed["chunk_grid"]
    if grid["name"] != "regular":
        raise UnsupportedError(f"{node.path} has a {grid['name']!r} chunk grid; only regular ones are copied")
    chunks = tuple(int(c) for c in grid["configuration"]["chunk_shape"])
    dims = [name if name is not None else f"dim_{axis}" for axis, name in enumerate(node.dimension_names or ())]
    dims = dims or [f"dim_{axis}" for axis in range(len(node.shape))]
    sizes = dict(zip(dims, node.shape, strict=True))
    bounds = parse_bounds({d: b for d, b in (selection.region or {}).items() if d in sizes}, sizes)
    start = tuple(bounds[d].start if d in bounds else 0 for d in dims)
    shape = tuple(bounds[d].stop - bounds[d].start if d in bounds else n for d, n in sizes.items())
    wanted = tuple(_chunk(d, c, n, selection) for d, c, n in zip(dims, chunks, shape, strict=True))
    ends = zip(start, shape, node.shape, chunks, strict=True)
    whole = all(s % c == 0 and ((s + n) % c == 0 or s + n == size) for s, n, size, c in ends)
    parsed["shape"] = list(shape)
    if wanted != chunks:
        parsed["chunk_grid"]["configuration"]["chunk_shape"] = list(wanted)
        parsed["codecs"] = _without_shards(parsed["codecs"])
    text = json.dumps(parsed, indent=2).encode() if wanted != chunks or shape != node.shape else document
    return ArrayCopy(node.path, target, text, start, shape, wanted, as_stored=whole and wanted == chunks)


def _chunk(dim: str, stored: int, size: int, selection: CopySelection) -> int:
    asked = (selection.chunks or {}).get(dim)
    if asked is None:
        return stored
    if asked < 1 and asked != -1:
        raise InvalidInputError(f"the chunk length {asked} along {dim} is not positive (-1 means all of it)")
    return max(1, size) if asked == -1 else asked


def _without_shards(codecs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Shards of another grid would no longer be cut evenly; their inner codecs encode the new chunks."""
    found: list[Mapping[str, Any]] = []
    for codec in codecs:
        found += codec["configuration"]["codecs"] if codec["name"] == "sharding_indexed" else [codec]
    return found


def _itemsize(document: Mapping[str, Any]) -> int:
    kind = document["data_type"]
    try:
        return np.dtype(kind).itemsize if isinstance(kind, str) else 8
    except TypeError:
        return 16


def cut_grid(grid: Sequence[int], chunks_per_box: int) -> list[Box]:
    """Boxes of at most so many chunks that cover a grid, as long as possible along the last dimensions."""
    steps = [1] * len(grid)
    room = chunks_per_box
    for axis in reversed(range(len(grid))):
        steps[axis] = max(1, min(grid[axis], room))
        room = max(1, room // steps[axis])
        if steps[axis] < grid[axis]:
            break
    ranges = [[(low, min(low + step, n)) for low in range(0, n, step)] for n, step in zip(grid, steps, strict=True)]
    return list(itertools.product(*ranges))
