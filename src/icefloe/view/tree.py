"""Groups and arrays: the tree, the details of a node, its coordinates and its size on storage."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.snapshot import ArrayNode, GroupNode, Node
from icefloe.model.zarr_document import parse_document
from icefloe.session.session import Session
from icefloe.view.revisions import ViewedRepository, plain

_MOST_DOCUMENT_BYTES = 2 << 20
MOST_REFERENCES = 20_000_000
"""Chunk references that are read to find the sizes of a snapshot."""


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
    table_rows = sum(
        session.state.base.manifests[ref.manifest_id].num_chunk_refs
        for ref in node.manifests
        if ref.manifest_id in session.state.base.manifests
    )
    return facts | {
        "chunk_shape": plain(document.get("chunk_grid", {}).get("configuration", {}).get("chunk_shape")),
        "grid": [plain(count) for count in node.grid],
        "codecs": plain(document.get("codecs")),
        "fill_value": plain(document.get("fill_value")),
        "data_type_document": plain(document.get("data_type")),
        "manifests": len(node.manifests),
        "references": table_rows,
        "coordinates": coordinate_paths(session, node),
        "storage": array_sizes(viewed, session, node) if table_rows <= MOST_REFERENCES else None,
    }


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
    key = "sizes", node.id, node.manifests, node.grid

    def load() -> dict[str, Any]:
        table = run_blocking(session.state.chunk_table(node))
        return {**kind_sizes(table), "cells": plain(math.prod(node.grid)), "decoded_bytes": None}

    return viewed.facts.get(key, load)
