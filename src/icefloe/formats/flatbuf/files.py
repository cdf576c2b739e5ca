"""Whole files of the official generations: header, body, and the transaction log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from icefloe.formats.byte_columns import texts_of
from icefloe.formats.flatbuf.decode import MAX_BODY_BYTES, Body, Tables, item_positions, root_table
from icefloe.formats.flatbuf.encode import OFFSET_TYPE, Coordinates, FlatWriter, TableBlock
from icefloe.formats.flatbuf.manifest import (
    FlatManifest,
    decode_manifest_body,
    encode_manifest_body,
    read_coordinates,
    row_order,
)
from icefloe.formats.flatbuf.snapshot import (
    decode_snapshot_body,
    decode_snapshot_info_body,
    encode_snapshot_body,
    object_ids,
)
from icefloe.formats.format import OpenManifest
from icefloe.formats.header import WRITER, DecompressionLimits, FileType, decode_file, encode_file
from icefloe.ids import NodeId, ObjectId
from icefloe.model.snapshot import Manifest, Move, Snapshot, SnapshotInfo, TransactionLog, WrittenColumns, join_written

_NEW_GROUPS, _NEW_ARRAYS, _DELETED_GROUPS, _DELETED_ARRAYS, _UPDATED_ARRAYS, _UPDATED_GROUPS = range(1, 7)
_UPDATED_CHUNKS, _MOVED = 7, 8
_MOVED_GROUP, _MOVED_ARRAY = 0, 1


def decode_transaction_log_body(body: Body) -> TransactionLog:
    """Decode a transaction log."""
    root = root_table(body)
    root.struct(0, 12)
    return TransactionLog(
        new_groups=_read_nodes(root, _NEW_GROUPS),
        new_arrays=_read_nodes(root, _NEW_ARRAYS),
        deleted_groups=_read_nodes(root, _DELETED_GROUPS),
        deleted_arrays=_read_nodes(root, _DELETED_ARRAYS),
        updated_groups=_read_nodes(root, _UPDATED_GROUPS),
        updated_arrays=_read_nodes(root, _UPDATED_ARRAYS),
        updated_chunks=_read_chunks(root),
        moves=_read_moves(root),
    )


def _read_nodes(root: Tables, slot: int) -> frozenset[NodeId]:
    vectors = root.vectors(slot, 8, 1)
    raw = root.body.read_bytes(item_positions(root.body, vectors, 8), 8).tobytes()
    return frozenset(raw[start : start + 8] for start in range(0, len(raw), 8))


def _read_chunks(root: Tables) -> dict[NodeId, npt.NDArray[np.uint32]]:
    arrays, _ = root.tables(_UPDATED_CHUNKS)
    ids = arrays.struct(0, 8)
    rows, vectors = arrays.tables(1)
    columns = read_coordinates(rows, 0, vectors)
    chunks: dict[NodeId, npt.NDArray[np.uint32]] = {}
    listed: set[NodeId] = set()
    for array, count in enumerate(vectors.counts.tolist()):
        node_id = ids[array].tobytes()
        if node_id in listed:
            raise root.body.corrupt("an array is listed twice")
        listed.add(node_id)
        if not count:
            # Official writers list arrays without changed chunks. The rank of these is not recorded.
            continue
        coords = columns.of(array, count)
        # Official writers do not sort across the manifests of a split array.
        chunks[node_id] = coords if columns.in_order or row_order(coords) is None else _unique_rows(coords)
    return chunks


def _unique_rows(coords: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    if coords.shape[1] == 0:
        return coords[:1]
    return np.unique(coords, axis=0)


def _read_moves(root: Tables) -> tuple[Move, ...]:
    moves, _ = root.tables(_MOVED, required=False)
    body = root.body
    sources = texts_of(body, moves.strings(0))
    targets = texts_of(body, moves.strings(1))
    ids = moves.struct(2, 8)
    kinds = moves.scalar(3, "u1").tolist()
    return tuple(
        Move(source or "", target or "", ids[row].tobytes(), kinds[row] == _MOVED_ARRAY)
        for row, (source, target) in enumerate(zip(sources, targets, strict=True))
    )


def encode_transaction_log_body(snapshot_id: ObjectId, log: TransactionLog, *, with_moves: bool) -> bytes:
    """The flatbuffer of a log.

    `with_moves` writes the list of moves even if it is empty, as the second generation requires. A log of the first
    generation only has the list if there are moves. Older readers skip the unknown field and find the node under its
    new path. Newer readers and this library report the move.
    """
    writer = FlatWriter()
    has_moves = with_moves or bool(log.moves)
    slots = range(1, 9 if has_moves else 8)
    root = writer.tables(1, {0: 12} | dict.fromkeys(slots, OFFSET_TYPE)).set(0, object_ids([snapshot_id]))
    _write_nodes(writer, root, _NEW_GROUPS, log.new_groups)
    _write_nodes(writer, root, _NEW_ARRAYS, log.new_arrays)
    _write_nodes(writer, root, _DELETED_GROUPS, log.deleted_groups)
    _write_nodes(writer, root, _DELETED_ARRAYS, log.deleted_arrays)
    _write_nodes(writer, root, _UPDATED_ARRAYS, log.updated_arrays)
    _write_nodes(writer, root, _UPDATED_GROUPS, log.updated_groups)
    _write_chunks(writer, root, join_written(log.updated_chunks))
    if has_moves:
        _write_moves(writer, root, sorted(log.moves, key=lambda move: _components(move.to_path)))
    return writer.finish(root)


def _components(path: str) -> list[bytes]:
    """Moves are ordered by path segment, unlike the nodes of a snapshot."""
    return path.encode().split(b"/")


def _write_nodes(writer: FlatWriter, root: TableBlock, slot: int, ids: Collection[NodeId]) -> None:
    root.link(slot, writer.vectors(b"".join(sorted(ids)), np.array([len(ids)], dtype=np.int64), 8, 1))


def _write_chunks(writer: FlatWriter, root: TableBlock, written: WrittenColumns) -> None:
    """Write arrays in the order of their ids. Coordinates of equal rank are written together."""
    count = len(written.nodes)
    listed = writer.references(np.array([count], dtype=np.int64))
    root.link(_UPDATED_CHUNKS, listed.positions)
    block = writer.tables(count, {0: 8, 1: OFFSET_TYPE})
    listed.link(block.positions)
    if not count:
        return
    ids = np.frombuffer(b"".join(written.nodes), dtype=np.uint8).reshape(count, 8)
    order = np.argsort(ids.view(">u8")[:, 0])
    counts = written.counts[order]
    block.set(0, ids[order])
    vectors = writer.references(counts)
    block.link(1, vectors.positions)
    positions = np.empty(len(written.coords), dtype=np.int64)
    for ndim in np.flatnonzero(np.bincount(written.ndims)).tolist():
        rows = np.repeat(written.ndims == ndim, written.counts)
        coords = written.coords[rows, :ndim]
        positions[rows] = writer.tables(len(coords), {0: Coordinates(ndim)}).set_coordinates(0, coords).positions
    shift = (np.cumsum(written.counts) - written.counts)[order] - (np.cumsum(counts) - counts)
    vectors.link(positions[np.repeat(shift, counts) + np.arange(len(positions))])


def _write_moves(writer: FlatWriter, root: TableBlock, moves: Sequence[Move]) -> None:
    listed = writer.references(np.array([len(moves)], dtype=np.int64))
    root.link(_MOVED, listed.positions)
    block = writer.tables(len(moves), {0: OFFSET_TYPE, 1: OFFSET_TYPE, 2: 8, 3: "u1"})
    listed.link(block.positions)
    if not moves:
        return
    block.set(2, np.frombuffer(b"".join(move.node_id for move in moves), dtype=np.uint8).reshape(len(moves), 8))
    block.set(3, np.array([_MOVED_ARRAY if move.is_array else _MOVED_GROUP for move in moves], dtype=np.uint8))
    block.link(0, writer.texts([move.from_path for move in moves]))
    block.link(1, writer.texts([move.to_path for move in moves]))


SPEC_VERSIONS = range(1, 3)
_LIMITS = DecompressionLimits(max_bytes=MAX_BODY_BYTES, free_bytes=256 << 20)
_FAST_LEVEL_BYTES = 8 << 20
"""Larger bodies consist mostly of random ids. A higher level would not make them smaller."""


def open_body(data: bytes, file_type: FileType) -> tuple[int, Body]:
    """The spec version of a file and its flatbuffer."""
    header, body = decode_file(data, file_type, SPEC_VERSIONS, _LIMITS)
    return header.spec_version, Body(body, file_type.name.lower().replace("_", " "))


def seal_body(body: bytes, file_type: FileType, spec: int, level: int | None = None) -> bytes:
    """A whole file."""
    return encode_file(file_type, spec, body, level=level or (1 if len(body) > _FAST_LEVEL_BYTES else 3))


def decode_snapshot(data: bytes) -> Snapshot:
    """A snapshot file of either generation."""
    spec, body = open_body(data, FileType.SNAPSHOT)
    return decode_snapshot_body(body, spec)


def decode_snapshot_info(data: bytes) -> SnapshotInfo:
    """The history entry of a snapshot file. The cost does not depend on the number of nodes."""
    spec, body = open_body(data, FileType.SNAPSHOT)
    return decode_snapshot_info_body(body, spec)


def encode_snapshot(snapshot: Snapshot, spec: int, level: int | None = None) -> bytes:
    """A snapshot file."""
    return seal_body(encode_snapshot_body(snapshot, spec), FileType.SNAPSHOT, spec, level)


def decode_manifest(data: bytes) -> Manifest:
    """A manifest file of either generation."""
    return decode_manifest_body(open_body(data, FileType.MANIFEST)[1])


def open_manifest(data: bytes) -> OpenManifest:
    """A manifest file of either generation, to be searched."""
    return FlatManifest(open_body(data, FileType.MANIFEST)[1])


def encode_manifest(manifest: Manifest, spec: int, level: int | None = None) -> bytes:
    """A manifest file."""
    return seal_body(encode_manifest_body(manifest, spec), FileType.MANIFEST, spec, level)


def decode_transaction_log(data: bytes) -> TransactionLog:
    """A transaction log of either generation."""
    return decode_transaction_log_body(open_body(data, FileType.TRANSACTION_LOG)[1])


def encode_transaction_log(snapshot_id: ObjectId, log: TransactionLog, spec: int, level: int | None = None) -> bytes:
    """A transaction log file."""
    body = encode_transaction_log_body(snapshot_id, log, with_moves=spec >= 2)
    return seal_body(body, FileType.TRANSACTION_LOG, spec, level)


def object_metadata(file_type: str, spec: int) -> Mapping[str, str]:
    """The metadata that official writers attach to objects. It is never read."""
    return {"ic_spec_ver": str(spec), "ic_client": WRITER, "ic_file_type": file_type, "ic_comp_alg": "zstd"}
