"""A snapshot as the flatbuffer of either official generation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.formats.flat.blocks import OFFSET, FieldType, FlatWriter, TableBlock
from icefloe.formats.flat.body import Positions
from icefloe.formats.flat.metadata_items import encode_metadata, write_items
from icefloe.formats.flat.snapshot_nodes import ARRAY, GROUP
from icefloe.formats.flat.times import to_microseconds
from icefloe.ids import ObjectId, decode_base32, decode_base32_column
from icefloe.model.nodes import ArrayNode, Node
from icefloe.model.snapshot import ManifestFileInfo, Snapshot

_MANIFEST_INFO = np.dtype(
    {
        "names": ["id", "size", "count"],
        "formats": [(np.uint8, (12,)), "<u8", "<u4"],
        "offsets": [0, 16, 24],
        "itemsize": 32,
    }
)


def encode_snapshot_body(snapshot: Snapshot, spec: int) -> bytes:
    """The flatbuffer of a snapshot; nodes sorted by the raw bytes of their paths."""
    writer = FlatWriter()
    fields: dict[int, FieldType] = {0: 12, 2: OFFSET, 3: "<u8", 4: OFFSET, 5: OFFSET, 6: OFFSET}
    keeps_parent = spec < 2 and snapshot.parent_id is not None
    if keeps_parent:
        fields[1] = 12
    if spec >= 2:
        fields[7] = OFFSET
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
        raise InvalidInputError("an object id of this generation has 20 characters")
    return decode_base32_column(np.frombuffer(text, dtype=np.uint8).reshape(len(ids), 20), 12)


def _write_manifest_files(writer: FlatWriter, root: TableBlock, infos: Sequence[ManifestFileInfo], spec: int) -> None:
    ids = object_ids([info.id for info in infos]) if infos else np.empty((0, 12), dtype=np.uint8)
    sizes = np.array([info.size_bytes for info in infos], dtype=np.uint64)
    counts = np.array([info.num_chunk_refs for info in infos], dtype=np.uint64)
    none = np.zeros(1, dtype=np.int64)
    # num_chunk_refs is a hint in 32 bits; no manifest that fits its own limits exceeds them.
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
    block = writer.tables(len(nodes), {0: 8, 1: OFFSET, 2: OFFSET, 3: "u1", 4: OFFSET})
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
    """Array tables; those with dimension names are a kind of their own, for an absent list is not an empty one."""
    positions = np.empty(len(arrays), dtype=np.int64)
    named = np.array([node.dimension_names is not None for node in arrays], dtype=np.bool_)
    for has_names in (False, True):
        rows = np.flatnonzero(named == has_names)
        if len(rows) == 0:
            continue
        picked = [arrays[row] for row in rows.tolist()]
        fields: dict[int, FieldType] = {0: OFFSET, 2: OFFSET}
        if has_names:
            fields[1] = OFFSET
        if spec >= 2:
            fields[3] = OFFSET
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
        raise InvalidInputError("an array has another number of dimensions in its shape than in its chunk grid")
    if spec < 2:
        # A chunk length whose quotient is the number of chunks; the real one is in the document.
        chunks = np.where(lengths > 0, (lengths - 1) // np.maximum(counts, 1) + 1, 0).astype(np.uint64)
        pairs = np.stack([lengths, chunks], axis=1).astype("<u8")
        block.link(0, writer.vectors(pairs.tobytes(), ranks, 16, 8))
        return
    if len(counts) and int(counts.max()) >= 2**32:
        raise InvalidInputError(f"an array has {int(counts.max())} chunks in one dimension; the most is 4294967295")
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
    named = writer.tables(len(texts), {0: OFFSET})
    named.link(0, writer.texts(texts))
    positions[~absent] = named.positions
    vectors.link(positions)


def _write_manifest_refs(writer: FlatWriter, block: TableBlock, arrays: Sequence[ArrayNode]) -> None:
    refs = [ref for node in arrays for ref in node.manifests]
    vectors = writer.references(np.array([len(node.manifests) for node in arrays], dtype=np.int64))
    block.link(2, vectors.positions)
    tables = writer.tables(len(refs), {0: 12, 1: OFFSET})
    if refs:
        tables.set(0, object_ids([ref.manifest_id for ref in refs]))
    boxes = np.array([edge for ref in refs for span in ref.extents for edge in span], dtype="<u4")
    counts = np.array([len(ref.extents) for ref in refs], dtype=np.int64)
    tables.link(1, writer.vectors(boxes.tobytes(), counts, 8, 4))
    vectors.link(tables.positions)
