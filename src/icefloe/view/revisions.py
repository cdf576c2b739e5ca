"""Revisions of the viewed repository: refs, the commit graph, what commits changed, and their groups and arrays."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from icefloe.blocking import run_blocking
from icefloe.display.graph import Commit, Ref, plan_graph
from icefloe.errors import InvalidInputError, NotFoundError, RefNotFoundError
from icefloe.maintenance.merge import MERGED
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.snapshot import ArrayNode, Diff, GroupNode, Node, SnapshotInfo, manifest_ids
from icefloe.model.zarr_document import parse_document
from icefloe.repository import Repository
from icefloe.repository.history import fetch_refs, newest_commits
from icefloe.session.session import Session
from icefloe.tables.grids import chunk_lengths

V = TypeVar("V")

_MOST_SESSIONS = 32
_MOST_PATHS = 500
_MOST_TEXT = 20_000
_EXACT_INTEGERS = 2**53
"""A browser rounds larger integers."""
_AUTHOR_KEYS = ("author", "author_name", "committer", "user", "email")
_MOST_DOCUMENT_BYTES = 2 << 20
MOST_REFERENCES = 20_000_000
"""Chunk references that are read to find the sizes of a snapshot."""


class Cache:
    """The most recently used values, up to a total size. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], V], size: Callable[[V], int] = lambda value: 1) -> V:
        """The value of a key. It is loaded if it is not in the cache."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                found: V = self._values[key][0]
                return found
        value = load()
        weight = size(value)
        with self._lock:
            if key not in self._values and weight <= self._limit:
                self._values[key] = value, weight
                self._size += weight
                while self._size > self._limit:
                    _, (_, gone) = self._values.popitem(last=False)
                    self._size -= gone
        return value


@dataclass(frozen=True, slots=True)
class Revision:
    """A snapshot, and whether the name it was asked for can name another one later."""

    snapshot_id: str
    moves: bool


class ViewedRepository:
    """The repository behind a viewer, with the sessions that requests share."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.context = repository.context
        self._sessions = Cache(_MOST_SESSIONS)
        self.facts = Cache(512)
        """Results that depend on immutable snapshots only, by function and arguments."""

    def resolve(self, text: str) -> Revision:
        """The snapshot that a branch, a tag, a snapshot id, or a branch at a time (`main@2024-05-01T12:00Z`) names."""
        for find, moves in (
            (self.repository.lookup_branch, True),
            (self.repository.lookup_tag, True),
            (self._lookup_snapshot, False),
        ):
            try:
                return Revision(find(text), moves)
            except (NotFoundError, InvalidInputError):
                continue
        branch, at, moment = text.rpartition("@")
        if at:
            as_of = _parse_time(moment)
            return Revision(self.repository.readonly_session(branch, as_of=as_of).snapshot_id, True)
        raise RefNotFoundError(f"{text!r} is not a branch, tag or snapshot of this repository", ref=text)

    def _lookup_snapshot(self, text: str) -> str:
        return self.session(text).snapshot_id

    def session(self, snapshot_id: str) -> Session:
        """The read-only session of a snapshot."""
        return self._sessions.get(snapshot_id, lambda: self.repository.readonly_session(snapshot_id=snapshot_id))


def _parse_time(text: str) -> dt.datetime:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInputError(f"{text!r} is not a time such as 2024-05-01T12:00Z") from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


def plain(value: Any) -> Any:
    """Metadata and attributes as JSON that a browser can read: no NaN, no integers that it would round."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT_INTEGERS:
        return str(value)
    if isinstance(value, str) and len(value) > _MOST_TEXT:
        return value[:_MOST_TEXT] + "…"
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def public_url(url: str) -> str:
    """The URL of a storage without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def repository_facts(viewed: ViewedRepository) -> dict[str, Any]:
    """What the head of the page shows."""
    refs = run_blocking(fetch_refs(viewed.context))
    return {
        "url": public_url(viewed.repository.storage.url),
        "generation": viewed.repository.spec_version.value,
        "refs": [_ref_json(ref) for ref in refs],
    }


def _ref_json(ref: Ref) -> dict[str, Any]:
    return {"name": ref.name, "kind": ref.kind, "snapshot_id": ref.snapshot_id}


def commit_json(info: SnapshotInfo) -> dict[str, Any]:
    """A commit as JSON, with its author and the commit that it merged if the metadata has them."""
    author = next((str(info.metadata[key]) for key in _AUTHOR_KEYS if info.metadata.get(key)), None)
    return {
        "id": info.id,
        "parent_id": info.parent_id,
        "written_at": info.written_at.astimezone(dt.UTC).isoformat(),
        "message": plain(info.message),
        "author": plain(author),
        "merged_id": _merged_id(info),
        "metadata": plain(info.metadata),
    }


def _merged_id(info: SnapshotInfo) -> str | None:
    merged = info.metadata.get(MERGED)
    return merged if isinstance(merged, str) else None


def history(viewed: ViewedRepository, start: str | None, limit: int) -> dict[str, Any]:
    """The newest commits of all branches and tags, or of one revision, with their columns in the graph."""
    refs = run_blocking(fetch_refs(viewed.context))
    starts = [viewed.resolve(start).snapshot_id] if start else list(dict.fromkeys(ref.snapshot_id for ref in refs))
    infos = {info.id: info for info in run_blocking(newest_commits(viewed.context, starts, limit))}
    trunk = next((ref.snapshot_id for ref in refs if ref.kind == "branch" and ref.name == "main"), None)
    commits = [
        Commit(info.id, info.parent_id, info.written_at, info.message, _merged_id(info)) for info in infos.values()
    ]
    layout = plan_graph(commits, trunk)
    rows = [
        {
            **commit_json(infos[row.commit.id]),
            "column": row.own.column,
            "colour": row.own.colour,
            "cut": row.cut,
            "merge": None if row.merges is None else {"column": row.merges.column, "colour": row.merges.colour},
        }
        for row in layout.rows
    ]
    return {
        "commits": rows,
        "columns": layout.width,
        "refs": [_ref_json(ref) for ref in refs if ref.snapshot_id in infos],
        "more": any(row.cut for row in layout.rows),
    }


def commit_facts(viewed: ViewedRepository, snapshot_id: str) -> dict[str, Any]:
    """One commit: its description, its content, and its changes relative to its parent."""
    info = viewed.repository.lookup_snapshot(snapshot_id)
    session = viewed.session(snapshot_id)
    nodes = session.state.base.nodes
    arrays = sum(1 for node in nodes.values() if hasattr(node, "shape"))
    return {
        **commit_json(info),
        "groups": len(nodes) - arrays,
        "arrays": arrays,
        "manifests": len(info.manifests),
        "manifest_bytes": sum(each.size_bytes for each in info.manifests),
        "chunk_references": sum(each.num_chunk_refs for each in info.manifests),
        "changes": None if info.parent_id is None else changes(viewed, info.parent_id, snapshot_id),
    }


def changes(viewed: ViewedRepository, old: str, new: str) -> dict[str, Any]:
    """What differs between two snapshots. An array that was deleted and created again counts as replaced."""
    if old == new:
        return _changes_json(Diff())
    key = "changes", old, new
    return viewed.facts.get(
        key, lambda: _changes_json(viewed.repository.diff(from_snapshot_id=old, to_snapshot_id=new))
    )


def _changes_json(diff: Diff) -> dict[str, Any]:
    replaced = diff.new_arrays & diff.deleted_arrays
    entries: list[dict[str, Any]] = []
    for change, kind, paths in (
        ("added", "group", diff.new_groups),
        ("added", "array", diff.new_arrays - replaced),
        ("deleted", "group", diff.deleted_groups),
        ("deleted", "array", diff.deleted_arrays - replaced),
        ("replaced", "array", replaced),
        ("updated", "group", diff.updated_groups),
        ("updated", "array", diff.updated_arrays - replaced),
    ):
        entries += [{"change": change, "kind": kind, "path": path} for path in sorted(paths)]
    entries += [{"change": "moved", "kind": "node", "path": new, "from": old} for old, new in sorted(diff.moved_nodes)]
    known = {entry["path"]: entry for entry in entries}
    for path, coords in sorted(diff.chunk_coords.items()):
        entry = known.get(path)
        if entry is None:
            entries.append({"change": "written", "kind": "array", "path": path, "chunks": len(coords)})
        else:
            entry["chunks"] = len(coords)
    entries.sort(key=lambda entry: str(entry["path"]))
    return {
        "entries": entries[:_MOST_PATHS],
        "total": len(entries),
        "chunks": _chunk_total(list(diff.chunk_coords.values())),
    }


def _chunk_total(coords: Sequence[Any]) -> int:
    return sum(len(each) for each in coords)


def difference(viewed: ViewedRepository, old: str, new: str) -> dict[str, Any]:
    """What differs between two revisions."""
    ends = viewed.resolve(old).snapshot_id, viewed.resolve(new).snapshot_id
    return {"from": ends[0], "to": ends[1], **changes(viewed, *ends)}


# -- groups and arrays ----------------------------------------------------------------------------------------------


def absolute(path: str) -> str:
    """The path of a node with one slash before each name."""
    return "/" + path.strip("/")


def find_node(session: Session, path: str) -> Node:
    """The node at a path. Raises NodeNotFoundError."""
    return session.state.tree.node(absolute(path)) if absolute(path) != "/" else _root(session)


def _root(session: Session) -> Node:
    found = session.state.tree.find("/")
    return found if found is not None else GroupNode(b"", "/", b'{"zarr_format":3,"node_type":"group"}')


def find_array(session: Session, path: str) -> ArrayNode:
    """The array at a path. Raises NodeNotFoundError or InvalidInputError."""
    node = find_node(session, path)
    if not isinstance(node, ArrayNode):
        raise InvalidInputError(f"{node.path} is a group, not an array")
    return node


def node_json(node: Node) -> dict[str, Any]:
    """What a line of the tree shows."""
    name = node.path.rpartition("/")[2] or "/"
    if not isinstance(node, ArrayNode):
        return {"path": node.path, "name": name, "kind": "group"}
    document = parse_document(node.document)
    return {
        "path": node.path,
        "name": name,
        "kind": "array",
        "data_type": _data_type(document.get("data_type")),
        "shape": [plain(length) for length in node.shape],
        "dimension_names": list(node.dimension_names) if node.dimension_names else None,
    }


def _data_type(given: Any) -> str:
    if isinstance(given, Mapping):
        return str(given.get("name", "?"))
    return str(given)


def children(viewed: ViewedRepository, snapshot_id: str, path: str, offset: int, limit: int) -> dict[str, Any]:
    """The nodes directly below a group."""
    session = viewed.session(snapshot_id)
    start = find_node(session, path).path
    below = "" if start == "/" else start
    tree = session.state.tree
    names = tree.child_names(start)
    found = [tree.find(f"{below}/{name}") for name in names[offset : offset + limit]]
    listed = []
    for node in found:
        if node is not None:
            entry = node_json(node)
            if entry["kind"] == "group":
                entry["children"] = len(tree.child_names(node.path))
            listed.append(entry)
    return {"path": start, "children": listed, "total": len(names)}


def search_nodes(viewed: ViewedRepository, snapshot_id: str, text: str, limit: int) -> dict[str, Any]:
    """The nodes whose path contains a text."""
    wanted = text.lower()
    nodes = viewed.session(snapshot_id).state.base.nodes
    found = (node for path, node in nodes.items() if wanted in path.lower())
    listed = [node_json(node) for node in itertools.islice(found, limit + 1)]
    return {"nodes": listed[:limit], "more": len(listed) > limit}


def node_facts(viewed: ViewedRepository, snapshot_id: str, path: str) -> dict[str, Any]:
    """Everything about one node except its values."""
    session = viewed.session(snapshot_id)
    node = find_node(session, path)
    document = fetch_document(session, node)
    facts = {**node_json(node), "attributes": plain(document.get("attributes") or {})}
    facts["truncated"] = document.get("truncated", False)
    if not isinstance(node, ArrayNode):
        return facts
    files = run_blocking(session.state.fetch_base()).manifests
    table_rows = sum(files[each].num_chunk_refs for each in manifest_ids(node.manifests) if each in files)
    return facts | {
        "chunk_shape": plain(document.get("chunk_grid", {}).get("configuration", {}).get("chunk_shape")),
        "chunk_bounds": _chunk_bounds(node),
        "grid": [plain(count) for count in node.grid],
        "codecs": plain(document.get("codecs")),
        "fill_value": plain(document.get("fill_value")),
        "data_type_document": plain(document.get("data_type")),
        "manifests": len(node.manifests),
        "references": table_rows,
        "coordinates": coordinate_paths(session, node),
        "storage": array_sizes(viewed, session, node) if table_rows <= MOST_REFERENCES else None,
    }


_MOST_BOUNDS = 1 << 16


def _chunk_bounds(node: ArrayNode) -> list[list[int] | None] | None:
    """Where the chunks of a variable grid begin and end along each dimension. None for a regular grid."""
    lengths = chunk_lengths(node)
    if all(each.is_regular for each in lengths):
        return None
    starts = [each.starts(n).tolist() for each, n in zip(lengths, node.shape, strict=True)]
    return [[*each, n] if len(each) < _MOST_BOUNDS else None for each, n in zip(starts, node.shape, strict=True)]


def fetch_document(session: Session, node: Node) -> dict[str, Any]:
    """The zarr.json of a node. Very large attributes are left out."""
    data = run_blocking(session.state.fetch_document(node.path)) or node.document
    if len(data) > _MOST_DOCUMENT_BYTES:
        return {**parse_document(node.document), "attributes": {}, "truncated": True}
    return dict(json.loads(data))


def coordinate_paths(session: Session, node: ArrayNode) -> list[str | None]:
    """For each dimension, the array with its coordinates: of the same name, in the group of the array or above."""
    return [
        _coordinate_path(session, node, name, length)
        for name, length in zip(node.dimension_names or (None,) * len(node.shape), node.shape, strict=True)
    ]


def _coordinate_path(session: Session, node: ArrayNode, name: str | None, length: int) -> str | None:
    group = node.path.rpartition("/")[0]
    while name:
        found = session.state.tree.find(f"{group}/{name}")
        if isinstance(found, ArrayNode) and found.shape == (length,):
            return found.path
        if not group:
            return None
        group = group.rpartition("/")[0]
    return None


def kind_sizes(table: ChunkTable) -> dict[str, Any]:
    """Chunks and bytes of an array by kind."""
    sizes: dict[str, Any] = {"chunks": len(table), "bytes": int(table.length.sum())}
    for kind in (ChunkKind.INLINE, ChunkKind.NATIVE, ChunkKind.VIRTUAL):
        rows = table.kind == kind
        sizes[kind.name.lower()] = {"chunks": int(np.count_nonzero(rows)), "bytes": int(table.length[rows].sum())}
    return sizes


def array_sizes(viewed: ViewedRepository, session: Session, node: ArrayNode) -> dict[str, Any]:
    """Chunks and bytes of one array. `cells` is the number of chunks of the grid."""
    run_blocking(session.state.fetch_base())
    key = "sizes", node.id, node.manifests, node.grid

    def load() -> dict[str, Any]:
        table = run_blocking(session.state.chunk_table(node))
        return {**kind_sizes(table), "cells": plain(math.prod(node.grid)), "decoded_bytes": None}

    return viewed.facts.get(key, load)
