"""The plain model that the engine is compared with: hierarchies as dicts, sessions as lists of operations."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

Coords: TypeAlias = tuple[int, ...]
_uids = itertools.count(1)


@dataclass(frozen=True)
class ModelNode:
    """A group (no grid) or an array; `uid` stays when the node moves."""

    uid: int
    document: bytes
    grid: Coords | None = None
    chunks: Mapping[Coords, bytes] = field(default_factory=dict)


Hierarchy: TypeAlias = Mapping[str, ModelNode]


def group_document(attributes: Mapping[str, Any]) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}).encode()


def array_document(shape: Coords, attributes: Mapping[str, Any]) -> bytes:
    """An array of bytes-sized chunks: grid position and chunk are the same."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * len(shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "attributes": attributes,
        }
    ).encode()


def inside(grid: Coords, coords: Coords) -> bool:
    return all(c < n for c, n in zip(coords, grid, strict=True))


def subtree(tree: Hierarchy, path: str) -> list[str]:
    below = "/" if path == "/" else path + "/"
    return [p for p in tree if p == path or p.startswith(below)]


class ReplayError(Exception):
    """What a session did makes no sense on another base."""


@dataclass(frozen=True)
class Put:
    """A new node at a path, in place of a node that is there."""

    uid: int
    path: str
    document: bytes
    grid: Coords | None


@dataclass(frozen=True)
class Document:
    """Another document for a node; chunks outside its grid are gone."""

    uid: int
    document: bytes
    grid: Coords | None


@dataclass(frozen=True)
class Delete:
    """Nodes are gone; a folder with all that is in it."""

    uids: frozenset[int]
    folder: int | None = None


@dataclass(frozen=True)
class Move:
    """A node and all below it have other paths."""

    uid: int
    to_path: str


@dataclass(frozen=True)
class Chunk:
    """A chunk has these bytes, or none."""

    uid: int
    coords: Coords
    data: bytes | None


Operation: TypeAlias = Put | Document | Delete | Move | Chunk


def apply(tree: Hierarchy, operation: Operation) -> dict[str, ModelNode]:
    """The hierarchy after an operation; ReplayError where its nodes are not there."""
    result = dict(tree)
    paths = {node.uid: path for path, node in tree.items()}

    def path_of(uid: int) -> str:
        if uid not in paths:
            raise ReplayError(f"node {uid} is gone")
        return paths[uid]

    if isinstance(operation, Put):
        result[operation.path] = ModelNode(operation.uid, operation.document, operation.grid)
    elif isinstance(operation, Document):
        path = path_of(operation.uid)
        node = result[path]
        chunks = {c: data for c, data in node.chunks.items() if operation.grid and inside(operation.grid, c)}
        result[path] = replace(node, document=operation.document, grid=operation.grid, chunks=chunks)
    elif isinstance(operation, Delete):
        if operation.folder is not None and operation.folder in paths:
            for path in subtree(tree, paths[operation.folder]):
                del result[path]
        for path in [path for path, node in result.items() if node.uid in operation.uids]:
            del result[path]
    elif isinstance(operation, Move):
        source = path_of(operation.uid)
        moving = subtree(tree, source)
        nodes = [(operation.to_path + path[len(source) :], result.pop(path)) for path in moving]
        result.update(nodes)
    else:
        path = path_of(operation.uid)
        node = result[path]
        assert node.grid is not None
        if inside(node.grid, operation.coords):
            chunks = {c: data for c, data in node.chunks.items() if c != operation.coords}
            if operation.data is not None:
                chunks[operation.coords] = operation.data
            result[path] = replace(node, chunks=chunks)
    return result


def carry_over(
    base: Hierarchy, done: Hierarchy, theirs: Hierarchy, operations: Sequence[Operation]
) -> dict[str, ModelNode]:
    """What `operations` made of `base` (that is `done`), made of `theirs`, which others made of `base` meanwhile.

    What counts is where our nodes ended, not the way there; chunks are set and removed in the order in which they were.
    """
    old, ours, new = ({n.uid: (path, n) for path, n in tree.items()} for tree in (base, done, theirs))
    gone = {uid for uid in old if uid not in ours}
    moved = {uid for uid in old.keys() & ours.keys() if old[uid][0] != ours[uid][0]}
    for each in operations:
        if isinstance(each, Delete) and each.folder in gone and each.folder in new:
            gone |= {theirs[path].uid for path in subtree(theirs, new[each.folder][0])} - moved
    result = {path: node for path, node in theirs.items() if node.uid not in gone and node.uid not in ours}
    for uid, (path, node) in ours.items():
        if uid in gone:
            continue
        if uid not in old:
            there = result.get(path)
            if there is None or not _are_one_group(there, node):
                result[path] = node
            continue
        was_path, was = old[uid]
        own = [each for each in operations if not isinstance(each, Delete) and each.uid == uid]
        if uid not in new:
            if path != was_path or node != was:
                raise ReplayError(f"node {uid} is gone")
            continue
        their_path, their_node = new[uid]
        changed = node if node.document != was.document else their_node
        chunks = dict(their_node.chunks)
        for each in own:
            if isinstance(each, Chunk):
                chunks.pop(each.coords, None)
                if each.data is not None:
                    chunks[each.coords] = each.data
            elif isinstance(each, Document) and each.grid is not None:
                chunks = {coords: data for coords, data in chunks.items() if inside(each.grid, coords)}
        chunks = {coords: data for coords, data in chunks.items() if changed.grid and inside(changed.grid, coords)}
        result[path if path != was_path else their_path] = replace(changed, chunks=chunks)
    return result


def _are_one_group(theirs: ModelNode, ours: ModelNode) -> bool:
    return theirs.grid is None and ours.grid is None and theirs.document == ours.document


def new_uid() -> int:
    return next(_uids)


@dataclass(frozen=True)
class Difference:
    """What lies between two hierarchies, wide enough to tell which pairs of changes could clash."""

    uids: frozenset[int]
    """Nodes that are new, gone, moved, or differ in document or chunks."""
    paths: frozenset[str]
    """Paths at which such nodes are or were."""

    def widened(self, touched: frozenset[int], before: Hierarchy) -> Difference:
        """With nodes that were touched and came out as they were."""
        paths = {path for path, node in before.items() if node.uid in touched}
        return Difference(self.uids | touched, self.paths | paths)

    def may_clash(self, other: Difference) -> bool:
        return bool(self.uids & other.uids) or any(
            a == b or a.startswith(b.rstrip("/") + "/") or b.startswith(a.rstrip("/") + "/")
            for a in self.paths
            for b in other.paths
        )


def touched_by(operations: Iterable[Operation]) -> frozenset[int]:
    """The nodes that operations were about."""
    return frozenset(
        uid for each in operations for uid in (each.uids if isinstance(each, Delete) else frozenset([each.uid]))
    )


def difference(before: Hierarchy, after: Hierarchy) -> Difference:
    old = {node.uid: (path, node) for path, node in before.items()}
    new = {node.uid: (path, node) for path, node in after.items()}
    uids = frozenset(uid for uid in old.keys() | new.keys() if old.get(uid) != new.get(uid))
    structural = {uid for uid in uids if uid not in old or uid not in new or old[uid][0] != new[uid][0]}
    return Difference(uids, frozenset(side[uid][0] for side in (old, new) for uid in structural if uid in side))


def keys_of(tree: Hierarchy) -> dict[str, bytes | Any]:
    """The hierarchy as a Zarr store shows it: documents parsed, chunks as bytes."""
    found: dict[str, Any] = {}
    for path, node in tree.items():
        folder = path.strip("/")
        start = f"{folder}/" if folder else ""
        found[f"{start}zarr.json"] = json.loads(node.document)
        for coords, data in node.chunks.items():
            found["/".join([f"{start}c", *map(str, coords)])] = data
    return found
