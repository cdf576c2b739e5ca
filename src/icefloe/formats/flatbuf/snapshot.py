"""Snapshots of the official generations: flatbuffers to model values and back."""

from __future__ import annotations

import datetime as dt
import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.formats.byte_columns import texts_of
from icefloe.formats.flatbuf.decode import Body, Positions, Table, Tables, Vectors, item_positions, root, root_table
from icefloe.formats.flatbuf.encode import OFFSET_TYPE, FieldType, FlatWriter, TableBlock
from icefloe.formats.flatbuf.flexbuffers import decode_metadata, encode_metadata, read_few_items, write_items
from icefloe.ids import NodeId, ObjectId, decode_base32, decode_base32_column, encode_base32, encode_base32_column
from icefloe.model.snapshot import (
    ArrayNode,
    Extents,
    GroupNode,
    ManifestFileInfo,
    ManifestRef,
    Node,
    Snapshot,
    SnapshotInfo,
    StoredNodes,
    from_microseconds,
    to_microseconds,
)
from icefloe.model.zarr_document import find_bad_path, is_node_path

_ID, _PATH, _USER_DATA, _DATA_TYPE, _DATA = range(5)
_SHAPE, _DIMENSION_NAMES, _MANIFESTS, _SHAPE_V2 = range(4)
ARRAY, GROUP = 1, 2


class FlatNodes(StoredNodes):
    """Nodes by path, in the order of raw UTF-8 bytes."""

    def __init__(self, columns: NodeColumns) -> None:
        self._columns = columns
        self._rows = {path: row for row, path in enumerate(columns.paths)}
        self._made: dict[str, Node] = {}

    def __getitem__(self, path: str) -> Node:
        made = self._made.get(path)
        if made is None:
            made = self._made[path] = self._columns.make(self._rows[path], path)
        return made

    def __contains__(self, path: object) -> bool:
        return path in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def paths_by_id(self) -> Mapping[NodeId, str]:
        return dict(zip(self._columns.ids, self._columns.paths, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)


class NodeColumns:
    """The nodes of a snapshot as columns. All offsets are checked."""

    def __init__(self, nodes: Tables) -> None:
        body = nodes.body
        self._data = body.data
        ids = nodes.struct(_ID, 8)
        paths = [path or "" for path in texts_of(body, nodes.strings(_PATH))]
        documents = nodes.vectors(_USER_DATA, 1, 1)
        kinds = nodes.scalar(_DATA_TYPE, "u1")
        if not bool(np.isin(kinds, (ARRAY, GROUP)).all()):
            raise body.corrupt("a node is neither an array nor a group")
        is_array = kinds == ARRAY
        nodes.child(_DATA)
        arrays = Tables(body, nodes.targets(_DATA, required=True)[is_array])
        order = _path_order(body, paths)
        self.paths = [paths[row] for row in order]
        self.ids = [ids[row].tobytes() for row in order]
        self._starts = documents.starts[order].tolist()
        self._ends = (documents.starts + documents.counts)[order].tolist()
        array_rows = np.where(is_array, np.cumsum(is_array) - 1, -1)
        self._array_rows = array_rows[order].tolist()
        self._shapes = ShapeColumns(arrays)
        self._names = NameColumns(arrays, self._shapes.ranks)
        self._manifests = ManifestColumns(arrays, self._shapes.ranks)

    def make(self, row: int, path: str) -> Node:
        """The value of one node."""
        document = self._data[self._starts[row] : self._ends[row]]
        array = self._array_rows[row]
        if array < 0:
            return GroupNode(self.ids[row], path, document)
        shape, grid = self._shapes.of(array)
        return ArrayNode(self.ids[row], path, document, shape, grid, self._names.of(array), self._manifests.of(array))


def _path_order(body: Body, paths: list[str]) -> list[int]:
    """Rows by raw UTF-8 bytes of the path. Files of correct writers are already in this order."""
    keys = [path.encode() for path in paths]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    if any(keys[a] == keys[b] for a, b in itertools.pairwise(order)):
        raise body.corrupt("a path appears twice")
    bad = find_bad_path(paths)
    if bad is not None:
        raise body.corrupt(f"{bad!r:.80} is not the path of a node")
    return order


class ShapeColumns:
    """Shape and number of chunks per dimension of every array, in the form of either generation."""

    def __init__(self, arrays: Tables) -> None:
        body = arrays.body
        newer = arrays.has(_SHAPE_V2)
        older = arrays.vectors(_SHAPE, 16, 8)
        dimensions, vectors = arrays.tables(_SHAPE_V2, required=False)
        older = Vectors(older.starts, np.where(newer, 0, older.counts))
        at = item_positions(body, older, 16)
        lengths = body.read(at, "<u8", alignment=8)
        chunks = body.read(at + 8, "<u8", alignment=8)
        if bool(((lengths > 0) & (chunks == 0)).any()):
            raise body.corrupt("an array has chunks of length zero")
        whole = np.where(lengths > 0, (lengths - 1) // np.maximum(chunks, 1) + 1, 0)
        self._older = (lengths.tolist(), whole.tolist(), older.bounds().tolist())
        counts = dimensions.scalar(1, "<u4")
        self._newer = (dimensions.scalar(0, "<u8").tolist(), counts.tolist(), vectors.bounds().tolist())
        self._is_newer = newer.tolist()
        self.ranks: npt.NDArray[np.int64] = np.where(newer, vectors.counts, older.counts)

    def of(self, array: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        lengths, counts, bounds = self._newer if self._is_newer[array] else self._older
        here = slice(bounds[array], bounds[array + 1])
        return tuple(lengths[here]), tuple(counts[here])


class NameColumns:
    """Dimension names of every array. An absent or empty name is None."""

    def __init__(self, arrays: Tables, ranks: npt.NDArray[np.int64]) -> None:
        names, vectors = arrays.tables(_DIMENSION_NAMES, required=False)
        if bool((vectors.present & (vectors.counts != ranks)).any()):
            raise arrays.body.corrupt("the number of dimension names of an array is not its number of dimensions")
        self._texts = [text or None for text in texts_of(arrays.body, names.strings(0, required=False))]
        self._bounds = vectors.bounds().tolist()
        self._present = vectors.present.tolist()

    def of(self, array: int) -> tuple[str | None, ...] | None:
        if not self._present[array]:
            return None
        return tuple(self._texts[self._bounds[array] : self._bounds[array + 1]])


def _differ(counts: npt.NDArray[np.int64], ranks: npt.NDArray[np.int64]) -> bool:
    return bool(((counts > 0) & (counts != ranks)).any())


class ManifestColumns:
    """The manifests of every array, and the box of the grid that each covers."""

    def __init__(self, arrays: Tables, ranks: npt.NDArray[np.int64] | None, slot: int = _MANIFESTS) -> None:
        body = arrays.body
        refs, vectors = arrays.tables(slot)
        ids = encode_base32_column(refs.struct(0, 12))
        self._ids = ids.tobytes().decode("ascii")
        self._width = ids.shape[1]
        extents = refs.vectors(1, 8, 4)
        if ranks is not None and _differ(extents.counts, np.repeat(ranks, vectors.counts)):
            raise body.corrupt("the extents of a manifest do not have the rank of the array")
        at = item_positions(body, extents, 8)
        self._first = body.read(at, "<u4").tolist()
        self._end = body.read(at + 4, "<u4").tolist()
        self._boxes = extents.bounds().tolist()
        self._bounds = vectors.bounds().tolist()

    def of(self, array: int) -> tuple[ManifestRef, ...]:
        return tuple(
            ManifestRef(self._ids[row * self._width : (row + 1) * self._width], self._box(row))
            for row in range(self._bounds[array], self._bounds[array + 1])
        )

    def _box(self, row: int) -> Extents:
        here = slice(self._boxes[row], self._boxes[row + 1])
        return tuple(zip(self._first[here], self._end[here], strict=True))


FEW_NODES = 32
_FEW_MANIFESTS = 16
_NODE_ID, _PATH, _USER_DATA, _DATA_TYPE, _DATA = range(5)
_SHAPE, _DIMENSION_NAMES, _ARRAY_MANIFESTS, _SHAPE_V2 = range(4)
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
    node_id = table.struct(_NODE_ID, 8)
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
    """Dimension names. An absent or empty name is None."""
    if not array.has(_DIMENSION_NAMES):
        return None
    names = array.children(_DIMENSION_NAMES)
    if len(names) != rank:
        raise array.body.corrupt("the number of dimension names of an array is not its number of dimensions")
    return tuple(name.text(0, required=False) or None for name in names)


def _read_manifests(array: Table, rank: int) -> tuple[ManifestRef, ...]:
    """The manifests of an array, and the box of the grid that each covers."""
    body = array.body
    _, count = array.vector(_ARRAY_MANIFESTS, 4, 4)
    if count > _FEW_MANIFESTS:
        return ManifestColumns(Tables(body, np.array([array.position])), np.array([rank])).of(0)
    return tuple(
        ManifestRef(encode_base32(ref.struct(0, 12)), _read_extents(ref, rank))
        for ref in array.children(_ARRAY_MANIFESTS)
    )


def _read_extents(ref: Table, rank: int) -> Extents:
    start, count = ref.vector(1, 8, 4)
    if count not in (0, rank):
        raise ref.body.corrupt("the extents of a manifest do not have the rank of the array")
    bounds = struct.unpack_from(f"<{2 * count}I", ref.body.data, start)
    return tuple(zip(bounds[::2], bounds[1::2], strict=True))


_ID, _PARENT, _NODES, _FLUSHED_AT, _MESSAGE, _METADATA, _MANIFESTS, _MANIFESTS_V2 = range(8)
_INFO = struct.Struct("<12s4xQI4x")
"""A manifest file in the older list: its id, its size, its number of references."""


def decode_snapshot_body(body: Body, spec: int) -> Snapshot:
    """Decode a snapshot. `spec` is the spec version of the file, which may be older than that of the repository."""
    table = root(body)
    info = _read_info(table, spec)
    return Snapshot(
        id=info.id,
        parent_id=info.parent_id,
        written_at=info.written_at,
        message=info.message,
        metadata=info.metadata,
        nodes=_read_nodes(table),
        manifests={manifest.id: manifest for manifest in info.manifests},
    )


def decode_snapshot_info_body(body: Body, spec: int) -> SnapshotInfo:
    """The history entry of a snapshot, without reading its nodes."""
    return _read_info(root(body), spec)


def _read_nodes(table: Table) -> Mapping[str, Node]:
    if table.vector(_NODES, 4, 4)[1] <= FEW_NODES:
        return read_few_nodes(table.children(_NODES))
    return FlatNodes(NodeColumns(root_table(table.body).tables(_NODES)[0]))


def _read_info(table: Table, spec: int) -> SnapshotInfo:
    return SnapshotInfo(
        id=encode_base32(table.struct(_ID, 12)),
        parent_id=encode_base32(table.struct(_PARENT, 12)) if table.has(_PARENT) else None,
        written_at=from_microseconds(table.scalar(_FLUSHED_AT, "<u8")),
        message=table.text(_MESSAGE) or "",
        metadata=decode_metadata(read_few_items(table, _METADATA), spec),
        manifests=_read_manifest_infos(table, spec),
    )


def _read_manifest_infos(table: Table, spec: int) -> tuple[ManifestFileInfo, ...]:
    slot, width, alignment = (_MANIFESTS_V2, 4, 4) if _has_newer_list(table, spec) else (_MANIFESTS, 32, 8)
    start, count = table.vector(slot, width, alignment)
    if count > _FEW_MANIFESTS:
        return tuple(read_manifest_files(root_table(table.body), spec).values())
    if slot == _MANIFESTS:
        found = [_INFO.unpack_from(table.body.data, start + 32 * row) for row in range(count)]
    else:
        found = [(t.struct(0, 12), t.scalar(1, "<u8"), t.scalar(2, "<u4")) for t in table.children(slot)]
    infos = (ManifestFileInfo(encode_base32(raw), size, refs) for raw, size, refs in found)
    return tuple({info.id: info for info in infos}.values())


def _has_newer_list(root: Table, spec: int) -> bool:
    """Early files of spec 1 use the newer list's field for something else."""
    return spec >= 2 and root.has(_MANIFESTS_V2)


def read_manifest_files(root: Tables, spec: int) -> dict[ObjectId, ManifestFileInfo]:
    """The manifest files of a snapshot, read as columns. The newer list exists since spec 2."""
    body = root.body
    if spec >= 2 and root.has(_MANIFESTS_V2)[0]:
        infos, _ = root.tables(_MANIFESTS_V2)
        ids, sizes, counts = infos.struct(0, 12), infos.scalar(1, "<u8"), infos.scalar(2, "<u4")
    else:
        at = item_positions(body, root.vectors(_MANIFESTS, 32, 8), 32)
        ids = body.read_bytes(at, 12)
        sizes, counts = body.read(at + 16, "<u8"), body.read(at + 24, "<u4")
    texts = [row.tobytes().decode("ascii") for row in np.ascontiguousarray(encode_base32_column(ids))]
    return {
        text: ManifestFileInfo(text, size, count)
        for text, size, count in zip(texts, sizes.tolist(), counts.tolist(), strict=True)
    }


_MANIFEST_INFO = np.dtype(
    {
        "names": ["id", "size", "count"],
        "formats": [(np.uint8, (12,)), "<u8", "<u4"],
        "offsets": [0, 16, 24],
        "itemsize": 32,
    }
)


def encode_snapshot_body(snapshot: Snapshot, spec: int) -> bytes:
    """Encode a snapshot. Nodes are sorted by the raw bytes of their paths."""
    writer = FlatWriter()
    fields: dict[int, FieldType] = {0: 12, 2: OFFSET_TYPE, 3: "<u8", 4: OFFSET_TYPE, 5: OFFSET_TYPE, 6: OFFSET_TYPE}
    keeps_parent = spec < 2 and snapshot.parent_id is not None
    if keeps_parent:
        fields[1] = 12
    if spec >= 2:
        fields[7] = OFFSET_TYPE
    root = writer.tables(1, fields).set(0, object_ids([snapshot.id]))
    if keeps_parent:
        assert snapshot.parent_id is not None
        root.set(1, object_ids([snapshot.parent_id]))
    root.set(3, to_microseconds(snapshot.written_at)).link(4, writer.texts([snapshot.message]))
    root.link(5, write_items(writer, [encode_metadata(snapshot.metadata, spec)]).positions)
    _write_manifest_files(writer, root, sorted(snapshot.manifests.values(), key=lambda info: info.id), spec)
    nodes = [node for _, node in sorted((path.encode(), node) for path, node in snapshot.nodes.items())]
    vector = writer.references(np.array([len(nodes)], dtype=np.int64))
    root.link(2, vector.positions)
    vector.link(_write_nodes(writer, nodes, spec))
    return writer.finish(root)


def object_ids(ids: Sequence[ObjectId]) -> npt.NDArray[np.uint8]:
    """The bytes of many ids, uint8[n, 12]."""
    if len(ids) == 1:
        return np.frombuffer(decode_base32(ids[0], 12), dtype=np.uint8)[None, :]
    text = "".join(ids).encode("ascii", "replace")
    if len(text) != 20 * len(ids):
        raise InvalidInputError("an object id does not have 20 characters, as this generation requires")
    return decode_base32_column(np.frombuffer(text, dtype=np.uint8).reshape(len(ids), 20), 12)


def _write_manifest_files(writer: FlatWriter, root: TableBlock, infos: Sequence[ManifestFileInfo], spec: int) -> None:
    ids = object_ids([info.id for info in infos]) if infos else np.empty((0, 12), dtype=np.uint8)
    sizes = np.array([info.size_bytes for info in infos], dtype=np.uint64)
    counts = np.array([info.num_chunk_refs for info in infos], dtype=np.uint64)
    none = np.zeros(1, dtype=np.int64)
    # num_chunk_refs is a hint with 32 bits. No manifest within its own limits exceeds them.
    counts = np.minimum(counts, 2**32 - 1).astype(np.uint32)
    if spec < 2:
        rows = np.zeros(len(infos), dtype=_MANIFEST_INFO)
        rows["id"], rows["size"], rows["count"] = ids, sizes, counts
        root.link(6, writer.vectors(rows.tobytes(), none + len(infos), 32, 8))
        return
    root.link(6, writer.vectors(b"", none, 32, 8))
    vector = writer.references(none + len(infos))
    root.link(7, vector.positions)
    block = writer.tables(len(infos), {0: 12, 1: "<u8", 2: "<u4"}).set(0, ids).set(1, sizes).set(2, counts)
    vector.link(block.positions)


def _write_nodes(writer: FlatWriter, nodes: Sequence[Node], spec: int) -> Positions:
    block = writer.tables(len(nodes), {0: 8, 1: OFFSET_TYPE, 2: OFFSET_TYPE, 3: "u1", 4: OFFSET_TYPE})
    if not nodes:
        return block.positions
    block.set(0, np.frombuffer(b"".join(node.id for node in nodes), dtype=np.uint8).reshape(len(nodes), 8))
    is_array = np.array([isinstance(node, ArrayNode) for node in nodes], dtype=np.bool_)
    block.set(3, np.where(is_array, ARRAY, GROUP))
    arrays = [node for node in nodes if isinstance(node, ArrayNode)]
    targets = np.empty(len(nodes), dtype=np.int64)
    targets[~is_array] = writer.tables(len(nodes) - len(arrays), {}).positions
    targets[is_array] = _write_arrays(writer, arrays, spec)
    block.link(4, targets)
    block.link(1, writer.texts([node.path for node in nodes]))
    block.link(2, writer.blobs([node.document for node in nodes]))
    return block.positions


def _write_arrays(writer: FlatWriter, arrays: Sequence[ArrayNode], spec: int) -> Positions:
    """Write array tables.

    Arrays with dimension names have another layout, because an absent list is not an empty one.
    """
    positions = np.empty(len(arrays), dtype=np.int64)
    named = np.array([node.dimension_names is not None for node in arrays], dtype=np.bool_)
    for has_names in (False, True):
        rows = np.flatnonzero(named == has_names)
        if len(rows) == 0:
            continue
        picked = [arrays[row] for row in rows.tolist()]
        fields: dict[int, FieldType] = {0: OFFSET_TYPE, 2: OFFSET_TYPE}
        if has_names:
            fields[1] = OFFSET_TYPE
        if spec >= 2:
            fields[3] = OFFSET_TYPE
        block = writer.tables(len(picked), fields)
        _write_shapes(writer, block, picked, spec)
        if has_names:
            _write_dimension_names(writer, block, picked)
        _write_manifest_refs(writer, block, picked)
        positions[rows] = block.positions
    return positions


def _write_shapes(writer: FlatWriter, block: TableBlock, arrays: Sequence[ArrayNode], spec: int) -> None:
    ranks = np.array([len(node.shape) for node in arrays], dtype=np.int64)
    lengths = np.array([n for node in arrays for n in node.shape], dtype=np.uint64)
    counts = np.array([n for node in arrays for n in node.grid], dtype=np.uint64)
    if len(lengths) != len(counts):
        raise InvalidInputError("the shape and the chunk grid of an array have different numbers of dimensions")
    if spec < 2:
        # A chunk length that gives the right number of chunks. The real chunk length is in the zarr.json.
        chunks = np.where(lengths > 0, (lengths - 1) // np.maximum(counts, 1) + 1, 0).astype(np.uint64)
        pairs = np.stack([lengths, chunks], axis=1).astype("<u8")
        block.link(0, writer.vectors(pairs.tobytes(), ranks, 16, 8))
        return
    if len(counts) and int(counts.max()) >= 2**32:
        raise InvalidInputError(
            f"an array has {int(counts.max())} chunks in one dimension, expected at most 4294967295. Choose larger "
            "chunks"
        )
    block.link(0, writer.vectors(b"", ranks * 0, 16, 8))
    vectors = writer.references(ranks)
    block.link(3, vectors.positions)
    dimensions = writer.tables(len(lengths), {0: "<u8", 1: "<u4"}).set(0, lengths).set(1, counts)
    vectors.link(dimensions.positions)


def _write_dimension_names(writer: FlatWriter, block: TableBlock, arrays: Sequence[ArrayNode]) -> None:
    names = [name for node in arrays for name in node.dimension_names or ()]
    vectors = writer.references(np.array([len(node.dimension_names or ()) for node in arrays], dtype=np.int64))
    block.link(1, vectors.positions)
    positions = np.empty(len(names), dtype=np.int64)
    absent = np.array([not name for name in names], dtype=np.bool_)
    positions[absent] = writer.tables(int(absent.sum()), {}).positions
    texts = [name for name in names if name]
    named = writer.tables(len(texts), {0: OFFSET_TYPE})
    named.link(0, writer.texts(texts))
    positions[~absent] = named.positions
    vectors.link(positions)


def _write_manifest_refs(writer: FlatWriter, block: TableBlock, arrays: Sequence[ArrayNode]) -> None:
    refs = [ref for node in arrays for ref in node.manifests]
    vectors = writer.references(np.array([len(node.manifests) for node in arrays], dtype=np.int64))
    block.link(2, vectors.positions)
    tables = writer.tables(len(refs), {0: 12, 1: OFFSET_TYPE})
    if refs:
        tables.set(0, object_ids([ref.manifest_id for ref in refs]))
    boxes = np.array([edge for ref in refs for span in ref.extents for edge in span], dtype="<u4")
    counts = np.array([len(ref.extents) for ref in refs], dtype=np.int64)
    tables.link(1, writer.vectors(boxes.tobytes(), counts, 8, 4))
    vectors.link(tables.positions)


INITIAL_SNAPSHOT_ID = "1CECHNKREP0F1RSTCMT0"
INITIAL_MESSAGE = "Repository initialized"
ROOT_MARK_1: Mapping[str, Any] = {"__root": True}
ROOT_MARK_2: Mapping[str, Any] = {"__icechunk": {"is_root": True}}


def make_initial_snapshot(written_at: dt.datetime, metadata: Mapping[str, Any]) -> Snapshot:
    """The initial snapshot of every repository of these generations."""
    return Snapshot(INITIAL_SNAPSHOT_ID, None, written_at, INITIAL_MESSAGE, metadata, nodes={}, manifests={})
