"""Metadata of a repository as tables, and its commits as a stream of changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zarr

from icefloe.blocking import iterate_blocking, run_blocking
from icefloe.errors import InvalidInputError
from icefloe.ids import ObjectId, encode_base32
from icefloe.manifests.chunk_columns import take
from icefloe.model.chunk_table import ChunkKind, ChunkTable, string_column
from icefloe.model.snapshot import ArrayNode, Diff, Extents, Node, SnapshotInfo
from icefloe.model.zarr_document import parse_document
from icefloe.repository import Repository
from icefloe.repository.history import fetch_refs, newest_commits
from icefloe.session.session import Session
from icefloe.tables.columns import TIMESTAMP
from icefloe.tables.grids import Grid, Variable
from icefloe.tables.reading import list_type
from icefloe.tables.selection import BlockList, Selection

_SNAPSHOT = [
    pa.field("snapshot_id", pa.string()),
    pa.field("parent_id", pa.string()),
    pa.field("written_at", TIMESTAMP),
    pa.field("message", pa.string()),
    pa.field("metadata", pa.string()),
]
SCHEMAS: Mapping[str, pa.Schema] = {
    "snapshots": pa.schema(_SNAPSHOT),
    "history": pa.schema([pa.field("position", pa.int64()), *_SNAPSHOT]),
    "refs": pa.schema([("name", pa.string()), ("kind", pa.string()), ("snapshot_id", pa.string())]),
    "nodes": pa.schema(
        [
            ("path", pa.string()),
            ("kind", pa.string()),
            ("node_id", pa.string()),
            ("data_type", pa.string()),
            ("shape", list_type(pa.int64())),
            ("chunk_grid", list_type(pa.int64())),
            ("dimension_names", list_type(pa.string())),
            ("attributes", pa.string()),
            ("manifests", pa.int32()),
        ]
    ),
    "manifests": pa.schema(
        [
            ("manifest_id", pa.string()),
            ("size_bytes", pa.int64()),
            ("chunks", pa.int64()),
            ("arrays", list_type(pa.string())),
        ]
    ),
    "chunks": pa.schema(
        [
            ("path", pa.string()),
            ("coords", list_type(pa.int64())),
            ("kind", pa.string()),
            ("object", pa.string()),
            ("location", pa.string()),
            ("offset", pa.int64()),
            ("length", pa.int64()),
            ("etag", pa.string()),
            ("last_modified", TIMESTAMP),
        ]
    ),
    "files": pa.schema(
        [("key", pa.string()), ("kind", pa.string()), ("size_bytes", pa.int64()), ("modified_at", TIMESTAMP)]
    ),
    "changes": pa.schema(
        [
            ("change", pa.string()),
            ("path", pa.string()),
            ("from_path", pa.string()),
            ("coords", list_type(pa.int64())),
        ]
    ),
}
_ROWS_PER_BATCH = 50_000
_CHUNKS_PER_PART = 1 << 20


@dataclass(frozen=True, slots=True)
class MetadataPart:
    """A share of a metadata table. Only the table of chunks has several."""

    path: str | None = None
    box: Extents = ()


def plan_parts(table: str, session: Session) -> list[MetadataPart]:
    """Divide a metadata table into shares of about equal size."""
    if table != "chunks":
        return [MetadataPart()]
    arrays = [node for node in session.state.tree.nodes() if isinstance(node, ArrayNode)]
    return [MetadataPart(node.path, box) for node in arrays for box in _slabs(node.grid)] or [MetadataPart()]


def _slabs(grid: tuple[int, ...]) -> Iterator[Extents]:
    if not grid:
        yield ()
        return
    per_slab = int(np.prod(grid[1:], dtype=np.int64))
    step = max(1, _CHUNKS_PER_PART // max(1, per_slab))
    for first in range(0, grid[0], step):
        yield ((first, min(first + step, grid[0])), *((0, n) for n in grid[1:]))


def metadata_batches(
    table: str, repository: Repository, session: Session, part: MetadataPart, from_snapshot_id: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one metadata table at the snapshot of a session."""
    if table == "chunks":
        yield from _chunks(session, part)
        return
    if table == "changes":
        yield from _changes(repository, session, from_snapshot_id)
        return
    makers: Mapping[str, Callable[[Repository, Session], Iterable[Sequence[Any]]]] = {
        "snapshots": _snapshots,
        "history": _history,
        "refs": _refs,
        "nodes": _nodes,
        "manifests": _manifests,
        "files": _files,
    }
    yield from _batches(makers[table](repository, session), SCHEMAS[table])


def _batches(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    gathered: list[Sequence[Any]] = []
    for row in rows:
        gathered.append(row)
        if len(gathered) >= _ROWS_PER_BATCH:
            yield _batch(gathered, schema)
            gathered = []
    if gathered:
        yield _batch(gathered, schema)


def _batch(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array(column, type=field.type) for column, field in zip(zip(*rows, strict=True), schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _info_row(info: SnapshotInfo) -> list[Any]:
    return [info.id, info.parent_id, info.written_at, info.message, json.dumps(dict(info.metadata), default=str)]


def _snapshots(repository: Repository, session: Session) -> Iterator[list[Any]]:
    refs = run_blocking(fetch_refs(repository.context))
    starts = list(dict.fromkeys([*(ref.snapshot_id for ref in refs), session.snapshot_id]))
    yield from (_info_row(info) for info in run_blocking(newest_commits(repository.context, starts, None)))


def _history(repository: Repository, session: Session) -> Iterator[list[Any]]:
    for position, info in enumerate(repository.ancestry(snapshot_id=session.snapshot_id)):
        yield [position, *_info_row(info)]


def _refs(repository: Repository, session: Session) -> Iterator[list[Any]]:
    for name in sorted(repository.list_branches()):
        yield [name, "branch", repository.lookup_branch(name)]
    for name in sorted(repository.list_tags()):
        yield [name, "tag", repository.lookup_tag(name)]


def _nodes(repository: Repository, session: Session) -> Iterator[list[Any]]:
    for node in session.state.tree.nodes():
        document = run_blocking(session.state.fetch_document(node.path))
        assert document is not None
        yield _node_row(node, parse_document(document))


def _node_row(node: Node, document: Mapping[str, Any]) -> list[Any]:
    attributes = json.dumps(document.get("attributes") or {})
    if not isinstance(node, ArrayNode):
        return [node.path, "group", encode_base32(node.id), None, None, None, None, attributes, 0]
    declared = document.get("data_type")
    data_type = declared if isinstance(declared, str) else json.dumps(declared)
    names = None if node.dimension_names is None else list(node.dimension_names)
    return [
        node.path,
        "array",
        encode_base32(node.id),
        data_type,
        list(node.shape),
        list(node.grid),
        names,
        attributes,
        len(node.manifests),
    ]


def _manifests(repository: Repository, session: Session) -> Iterator[list[Any]]:
    base = run_blocking(session.state.fetch_base())
    arrays: dict[str, list[str]] = {manifest_id: [] for manifest_id in base.manifests}
    for node in base.nodes.values():
        if isinstance(node, ArrayNode):
            for manifest_id in {ref.manifest_id for ref in node.manifests}:
                arrays.setdefault(manifest_id, []).append(node.path)
    for manifest_id, paths in arrays.items():
        info = base.manifests.get(manifest_id)
        size, count = (info.size_bytes, info.num_chunk_refs) if info is not None else (None, None)
        yield [manifest_id, size, count, paths]


def _files(repository: Repository, session: Session) -> Iterator[list[Any]]:
    for page in iterate_blocking(repository.storage.list("")):
        for entry in page:
            folder, slash, _ = entry.key.partition("/")
            yield [entry.key, folder if slash else "", entry.size_bytes, entry.last_modified]


def _chunks(session: Session, part: MetadataPart) -> Iterator[pa.RecordBatch]:
    if part.path is None:
        return
    node = session.state.tree.array(part.path)
    table = run_blocking(session.state.chunk_table(node, part.box))
    for first in range(0, len(table), _ROWS_PER_BATCH):
        yield _chunk_batch(session, node, take(table, np.arange(first, min(first + _ROWS_PER_BATCH, len(table)))))


def _chunk_batch(session: Session, node: ArrayNode, table: ChunkTable) -> pa.RecordBatch:
    count = len(table)
    kinds = pa.array([kind.name.lower() for kind in ChunkKind]).take(pa.array(table.kind))
    offsets = pa.array(np.arange(0, count * table.ndim + 1, max(1, table.ndim), dtype=np.int32)[: count + 1])
    if table.ndim == 0:
        offsets = pa.array(np.zeros(count + 1, dtype=np.int32))
    coords = pa.ListArray.from_arrays(offsets, pa.array(table.coords.reshape(-1).astype(np.int64)))
    inline = table.kind == ChunkKind.INLINE
    modified = pa.nulls(count, TIMESTAMP)
    if table.last_modified is not None:
        micro = table.last_modified.astype(np.int64) * 1_000_000
        modified = pa.array(micro, mask=table.last_modified == 0).view(TIMESTAMP)
    columns = [
        pa.array([node.path] * count, type=pa.string()),
        coords.cast(list_type(pa.int64())),
        kinds,
        _objects(session, table),
        _texts(table.location, table.locations, count),
        pa.array(np.where(inline, 0, table.offset).astype(np.int64)),
        pa.array(table.length.astype(np.int64)),
        _texts(table.etag, table.etags, count),
        modified,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS["chunks"])


def _objects(session: Session, table: ChunkTable) -> pa.Array:
    if table.object_id is None:
        return pa.nulls(len(table), pa.string())
    # Many chunks share an object. Its key is computed once.
    native = table.kind == ChunkKind.NATIVE
    unique, codes = np.unique(table.object_id, axis=0, return_inverse=True)
    chunk_key = session.state.context.format.chunk_key
    keys = pa.array([chunk_key(each.tobytes()) for each in unique], type=pa.string())
    return keys.take(pa.array(codes.reshape(-1), mask=~native))


def _texts(codes: Any, texts: Any, count: int) -> pa.Array:
    if codes is None:
        return pa.nulls(count, pa.string())
    return string_column(texts).arrow.cast(pa.string()).take(pa.array(codes, mask=codes < 0))


def _changes(repository: Repository, session: Session, older: str | None) -> Iterator[pa.RecordBatch]:
    before = older or repository.lookup_snapshot(session.snapshot_id).parent_id
    if before is None:
        raise InvalidInputError(
            f"snapshot {session.snapshot_id} is the first one. Set the option from_snapshot_id to read changes"
        )
    diff = repository.diff(from_snapshot_id=before, to_snapshot_id=session.snapshot_id)
    rows: list[Sequence[Any]] = []
    for change in ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays", "updated_groups", "updated_arrays"):
        rows += [(change[:-1], path, None, None) for path in sorted(getattr(diff, change))]
    rows += [("moved", new, old, None) for old, new in diff.moved_nodes]
    yield from _batches(rows, SCHEMAS["changes"])
    for path, coords in sorted(diff.chunk_coords.items()):
        yield from _batches(
            (("chunk", path, None, row) for row in coords.astype(np.int64).tolist()), SCHEMAS["changes"]
        )


QUERY, BATCH = "icefloe.stream.query", "icefloe.stream.batch"


def stream_metadata(query: str, batch: int) -> dict[str, Any]:
    """Return the metadata that identifies a commit of a stream."""
    return {QUERY: query, BATCH: batch}


def find_batch(repository: Repository, snapshot_id: str, query: str, batch: int) -> ObjectId | None:
    """Return the commit of a batch, or of a later batch of the same query, up to a snapshot.

    Return None if there is none.

    Pass the snapshot of the writing session. A concurrent commit of another process with the same batch is then a
    conflict.
    """
    for info in repository.ancestry(snapshot_id=snapshot_id):
        if info.metadata.get(QUERY) == query:
            return info.id if int(info.metadata.get(BATCH, -1)) >= batch else None
    return None


def commits_since(repository: Repository, branch: str, snapshot_id: str | None) -> list[SnapshotInfo]:
    """Return the commits of a branch after a snapshot, oldest first. For None, return all."""
    found: list[SnapshotInfo] = []
    for info in repository.ancestry(branch=branch):
        if info.id == snapshot_id:
            return found[::-1]
        found.append(info)
    if snapshot_id is not None:
        raise InvalidInputError(
            f"the stream is at snapshot {snapshot_id}, which is no longer in the history of branch {branch!r}: the "
            "branch was reset, or the snapshot has expired. Start again from another snapshot, with a new checkpoint"
        )
    return found[::-1]


@dataclass(frozen=True, slots=True)
class Change:
    """The difference between two snapshots, for the arrays of one grid."""

    selection: Selection
    first_new: tuple[int, ...]
    """The earlier shape. Cells beyond it are new."""
    removed: str = ""
    """The cells that no longer exist, as text. Empty if all exist."""


def changed_blocks(repository: Repository, grid: Grid, before: str | None, session: Session) -> Change:
    """Return the blocks with cells that are new or changed since a snapshot. For None, return all.

    These are blocks of written chunks, of cells by which arrays grew, of cells whose coordinates changed, and all
    blocks of recreated arrays.
    """
    total = int(np.prod(grid.blocks, dtype=np.int64))
    everything = BlockList(tuple((0, n) for n in grid.blocks))
    none = (None,) * len(grid.shape)
    if before is None:
        return Change(Selection(none, everything, total), (0,) * len(grid.shape))
    past = repository.readonly_session(snapshot_id=before)
    diff = repository.diff(from_snapshot_id=before, to_snapshot_id=session.snapshot_id)
    old = past.state.tree.find_array(grid.variables[0].path)
    shape = old.shape if old is not None and len(old.shape) == len(grid.shape) else (0,) * len(grid.shape)
    moved, removed = _coordinate_changes(grid, diff, past, session)
    removed = removed or _shrunk(grid, shape)
    if any(_is_anew(variable, past, session) for variable in grid.variables):
        return Change(Selection(none, everything, total), shape, removed)
    lowest = shape
    if any(variable.path in diff.updated_arrays for variable in grid.variables):
        lowest = _smallest_shape(repository, grid, before, session, shape)
    touched = [variable for variable in grid.variables if variable.path in diff.chunk_coords]
    numbers = [_blocks(grid, variable, diff.chunk_coords[variable.path]) for variable in touched]
    for axis, (first, lengths) in enumerate(zip(lowest, grid.block, strict=True)):
        positions = [moved[axis], np.arange(first, grid.shape[axis])]
        numbers.append(_change_slabs(grid, axis, np.unique(lengths.indices(np.concatenate(positions)))))
    picked = np.unique(np.concatenate(numbers)) if numbers else np.zeros(0, dtype=np.int64)
    return Change(Selection(none, BlockList(everything.box, picked), total), shape, removed)


def _is_anew(variable: Variable, past: Session, session: Session) -> bool:
    """Return whether an array was recreated."""
    was, now = past.state.tree.find_array(variable.path), session.state.tree.find_array(variable.path)
    return was is None or now is None or was.id != now.id


def _smallest_shape(
    repository: Repository, grid: Grid, before: str, session: Session, shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the smallest shape of the arrays at any commit since. Cells beyond it were lost in between."""
    lowest = np.array(shape)
    for info in repository.ancestry(snapshot_id=session.snapshot_id):
        if info.id == before:
            break
        tree = repository.readonly_session(snapshot_id=info.id).state.tree
        for variable in grid.variables:
            node = tree.find_array(variable.path)
            if node is None or len(node.shape) != len(shape):
                return (0,) * len(shape)
            lowest = np.minimum(lowest, node.shape)
    return tuple(int(n) for n in lowest)


def _shrunk(grid: Grid, shape: tuple[int, ...]) -> str:
    for name, was, now in zip(grid.dims, shape, grid.shape, strict=True):
        if now < was:
            return f"{name} has {now} cells and had {was}"
    return ""


def _coordinate_changes(
    grid: Grid, diff: Diff, past: Session, session: Session
) -> tuple[list[npt.NDArray[np.int64]], str]:
    """Return, per dimension, the positions with a new coordinate and the values that no longer exist."""
    moved: list[npt.NDArray[np.int64]] = []
    removed = ""
    folder = grid.variables[0].path.rpartition("/")[0]
    for name in grid.dims:
        path = f"{folder}/{name}"
        found = np.zeros(0, dtype=np.int64)
        if path in diff.chunk_coords or path in {*diff.new_arrays, *diff.updated_arrays, *diff.deleted_arrays}:
            old, new = _values(past, path), _values(session, path)
            if old is not None and new is not None:
                both = min(len(old), len(new))
                found = np.flatnonzero(old[:both] != new[:both]).astype(np.int64)
                gone = old[~np.isin(old, new)]
                if len(gone) and not removed:
                    removed = f"{len(gone)} value(s) of {name} no longer exist, for example {gone[0]}"
            elif (old is None) != (new is None):
                found = np.arange(len(old if old is not None else new))  # type: ignore[arg-type]
        moved.append(found)
    return moved, removed


def _values(session: Session, path: str) -> npt.NDArray[Any] | None:
    if session.state.tree.find_array(path) is None:
        return None
    return np.asarray(zarr.open_array(session.store, path=path.strip("/"), mode="r")[...])


def _change_slabs(grid: Grid, axis: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers of all blocks with given positions along one axis."""
    inside = indices[indices < grid.blocks[axis]]
    if not len(inside):
        return np.zeros(0, dtype=np.int64)
    ranges = [inside if each == axis else np.arange(n) for each, n in enumerate(grid.blocks)]
    every = np.meshgrid(*ranges, indexing="ij")
    return np.asarray(np.ravel_multi_index(tuple(part.reshape(-1) for part in every), grid.blocks), dtype=np.int64)


def _blocks(grid: Grid, variable: Variable, coords: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Return the numbers of the blocks of chunks."""
    counts = [each.count(n) for each, n in zip(variable.chunks, grid.shape, strict=True)]
    inside = coords[(coords < np.array(counts)).all(axis=1)].astype(np.int64)
    if not len(inside):
        return np.zeros(0, dtype=np.int64)
    first, last = np.empty_like(inside), np.empty_like(inside)
    for axis, (chunks, block, n) in enumerate(zip(variable.chunks, grid.block, grid.shape, strict=True)):
        bounds = np.append(chunks.starts(n), n)
        first[:, axis] = block.indices(bounds[inside[:, axis]])
        last[:, axis] = block.indices(bounds[inside[:, axis] + 1] - 1)
    spans = (last - first).max(axis=0) + 1
    # A chunk can overlap several blocks. Usually it is inside of one.
    steps = np.stack(np.meshgrid(*(np.arange(n) for n in spans), indexing="ij"), axis=-1).reshape(-1, len(spans))
    every = (first[:, None, :] + steps[None, :, :]).reshape(-1, len(spans))
    every = every[(every <= np.repeat(last, len(steps), axis=0)).all(axis=1)]
    numbers: npt.NDArray[np.int64] = np.ravel_multi_index(tuple(every.T), grid.blocks).astype(np.int64)
    return numbers
