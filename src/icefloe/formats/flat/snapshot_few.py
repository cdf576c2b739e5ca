"""The nodes of a flatbuffers snapshot that has few of them, read one by one: columns would cost more than the nodes."""

from __future__ import annotations

import struct

import numpy as np

from icefloe.formats.flat.snapshot_nodes import ARRAY, GROUP, ManifestColumns
from icefloe.formats.flat.table import Table
from icefloe.formats.flat.tables import Tables
from icefloe.ids import encode_base32
from icefloe.model.nodes import ArrayNode, Extents, GroupNode, ManifestRef, Node
from icefloe.model.paths import is_node_path

FEW_NODES = 32
_FEW_MANIFESTS = 16
_ID, _PATH, _USER_DATA, _DATA_TYPE, _DATA = range(5)
_SHAPE, _DIMENSION_NAMES, _MANIFESTS, _SHAPE_V2 = range(4)
_DIMENSION = struct.Struct("<QQ")


def read_few_nodes(tables: list[Table]) -> dict[str, Node]:
    """Nodes by path, in the order of raw UTF-8 bytes."""
    nodes = [_read_node(table) for table in tables]
    made = {node.path: node for node in sorted(nodes, key=lambda node: node.path.encode())}
    if len(made) != len(nodes):
        raise tables[0].body.corrupt("a path appears twice")
    return made


def _read_node(table: Table) -> Node:
    body = table.body
    node_id = table.struct(_ID, 8)
    path = table.text(_PATH) or ""
    if not is_node_path(path):
        raise body.corrupt(f"{path!r:.80} is not the path of a node")
    start, count = table.vector(_USER_DATA, 1, 1)
    document = body.data[start : start + count]
    kind = table.scalar(_DATA_TYPE, "u1")
    data = table.child(_DATA)
    if kind == GROUP:
        return GroupNode(node_id, path, document)
    if kind != ARRAY:
        raise body.corrupt("a node is neither an array nor a group")
    shape, grid = _read_shape(data)
    rank = len(shape)
    return ArrayNode(node_id, path, document, shape, grid, _read_names(data, rank), _read_manifests(data, rank))


def _read_shape(array: Table) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and number of chunks per dimension, in the form of either generation."""
    body = array.body
    start, count = array.vector(_SHAPE, 16, 8)
    if array.has(_SHAPE_V2):
        dimensions = array.children(_SHAPE_V2)
        shape = tuple(dimension.scalar(0, "<u8") for dimension in dimensions)
        return shape, tuple(dimension.scalar(1, "<u4") for dimension in dimensions)
    pairs = list(_DIMENSION.iter_unpack(body.data[start : start + 16 * count]))
    if any(length > 0 and chunk == 0 for length, chunk in pairs):
        raise body.corrupt("an array has chunks of length zero")
    return tuple(length for length, _ in pairs), tuple(-(-length // chunk) if length else 0 for length, chunk in pairs)


def _read_names(array: Table, rank: int) -> tuple[str | None, ...] | None:
    """Dimension names; an absent or empty name is none."""
    if not array.has(_DIMENSION_NAMES):
        return None
    names = array.children(_DIMENSION_NAMES)
    if len(names) != rank:
        raise array.body.corrupt("an array has another number of dimension names than of dimensions")
    return tuple(name.text(0, required=False) or None for name in names)


def _read_manifests(array: Table, rank: int) -> tuple[ManifestRef, ...]:
    """The manifests of an array, and the box of the grid that each speaks for."""
    body = array.body
    _, count = array.vector(_MANIFESTS, 4, 4)
    if count > _FEW_MANIFESTS:
        return ManifestColumns(Tables(body, np.array([array.position])), np.array([rank])).of(0)
    return tuple(
        ManifestRef(encode_base32(ref.struct(0, 12)), _read_extents(ref, rank)) for ref in array.children(_MANIFESTS)
    )


def _read_extents(ref: Table, rank: int) -> Extents:
    start, count = ref.vector(1, 8, 4)
    if count not in (0, rank):
        raise ref.body.corrupt("the extents of a manifest have another rank than the array")
    bounds = struct.unpack_from(f"<{2 * count}I", ref.body.data, start)
    return tuple(zip(bounds[::2], bounds[1::2], strict=True))
