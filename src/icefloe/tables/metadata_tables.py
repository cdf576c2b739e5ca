"""What a repository is made of, as tables: history, refs, nodes, manifests, chunks, files, changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from icefloe.blocking import iterate_blocking, run_blocking
from icefloe.errors import InvalidInputError
from icefloe.ids import encode_base32
from icefloe.manifests.columns import take
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.nodes import ArrayNode, Extents, Node
from icefloe.model.snapshot import SnapshotInfo
from icefloe.model.string_column import string_column
from icefloe.model.zarr_document import parse_document
from icefloe.repository import Repository
from icefloe.repository.graph import fetch_refs, newest_commits
from icefloe.session.session import Session
from icefloe.tables.columns import TIMESTAMP
from icefloe.tables.layouts import list_type

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
            ("path", pa.string()), ("kind", pa.string()), ("node_id", pa.string()), ("data_type", pa.string()),
            ("shape", list_type(pa.int64())), ("chunk_grid", list_type(pa.int64())),
            ("dimension_names", list_type(pa.string())), ("attributes", pa.string()), ("manifests", pa.int32()),
        ]
    ),
    "manifests": pa.schema(
        [
            ("manifest_id", pa.string()), ("size_bytes", pa.int64()), ("chunks", pa.int64()),
            ("arrays", list_type(pa.string())),
        ]
    ),
    "chunks": pa.schema(
        [
            ("path", pa.string()), ("coords", list_type(pa.int64())), ("kind", pa.string()), ("object", pa.string()),
            ("location", pa.string()), ("offset", pa.int64()), ("length", pa.int64()), ("etag", pa.string()),
            ("last_modified", TIMESTAMP),
        ]
    ),
    "files": pa.schema(
        [("key", pa.string()), ("kind", pa.string()), ("size_bytes", pa.int64()), ("modified_at", TIMESTAMP)]
    ),
    "changes": pa.schema(
        [
            ("change", pa.string()), ("path", pa.string()), ("from_path", pa.string()),
            ("coords", list_type(pa.int64())),
        ]
    ),
}  # fmt: skip
_ROWS_PER_BATCH = 50_000
_CHUNKS_PER_PART = 1 << 20


@dataclass(frozen=True, slots=True)
class MetadataPart:
    """A share of a table of metadata; only that of chunks has more than one."""

    path: str | None = None
    box: Extents = ()


def plan_parts(table: str, session: Session) -> list[MetadataPart]:
    """Shares of about equal size."""
    if table != "chunks":
        return [MetadataPart()]
    arrays = [node for node in session.workspace.tree.nodes() if isinstance(node, ArrayNode)]
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
    """Rows of one table of metadata at a session's snapshot."""
    if table == "chunks":
        yield from _chunks(session, part)
        return
    if table == "changes":
        yield from _changes(repository, session, from_snapshot_id)
        return
    makers: Mapping[str, Callable[[Repository, Session], Iterable[Sequence[Any]]]] = {
        "snapshots": _snapshots, "history": _history, "refs": _refs, "nodes": _nodes,
        "manifests": _manifests, "files": _files,
    }  # fmt: skip
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
    refs = run_blocking(fetch_refs(repository.engine))
    starts = list(dict.fromkeys([*(ref.snapshot_id for ref in refs), session.snapshot_id]))
    yield from (_info_row(info) for info in run_blocking(newest_commits(repository.engine, starts, None)))


def _history(repository: Repository, session: Session) -> Iterator[list[Any]]:
    for position, info in enumerate(repository.ancestry(snapshot_id=session.snapshot_id)):
        yield [position, *_info_row(info)]


def _refs(repository: Repository, session: Session) -> Iterator[list[Any]]:
    for name in sorted(repository.list_branches()):
        yield [name, "branch", repository.lookup_branch(name)]
    for name in sorted(repository.list_tags()):
        yield [name, "tag", repository.lookup_tag(name)]


def _nodes(repository: Repository, session: Session) -> Iterator[list[Any]]:
    for node in session.workspace.tree.nodes():
        document = run_blocking(session.workspace.fetch_document(node.path))
        assert document is not None
        yield _node_row(node, parse_document(document))


def _node_row(node: Node, document: Mapping[str, Any]) -> list[Any]:
    attributes = json.dumps(document.get("attributes") or {})
    if not isinstance(node, ArrayNode):
        return [node.path, "group", encode_base32(node.id), None, None, None, None, attributes, 0]
    told = document.get("data_type")
    data_type = told if isinstance(told, str) else json.dumps(told)
    names = None if node.dimension_names is None else list(node.dimension_names)
    return [
        node.path, "array", encode_base32(node.id), data_type, list(node.shape), list(node.grid), names, attributes,
        len(node.manifests),
    ]  # fmt: skip


def _manifests(repository: Repository, session: Session) -> Iterator[list[Any]]:
    base = session.workspace.base
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
    node = session.workspace.tree.array(part.path)
    table = run_blocking(session.workspace.chunk_table(node, part.box))
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
    # Many chunks share an object: its key is spelled once.
    native = table.kind == ChunkKind.NATIVE
    unique, codes = np.unique(table.object_id, axis=0, return_inverse=True)
    chunk_key = session.workspace.engine.format.chunk_key
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
            f"snapshot {session.snapshot_id} is the first one; changes need the option from_snapshot_id"
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
