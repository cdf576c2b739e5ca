"""Chunk tables, snapshots and logs for tests of the repository generation."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import Any

import numpy as np
from hypothesis import strategies as st

from icefloe.ids import new_node_id, new_object_id
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, table_from_rows
from icefloe.model.snapshot import (
    ArrayNode,
    AttributesRef,
    GroupNode,
    Manifest,
    ManifestFileInfo,
    ManifestRef,
    Move,
    Snapshot,
    SnapshotInfo,
    TransactionLog,
)

NOW = dt.datetime(2025, 1, 8, 21, 13, 10, 236657, tzinfo=dt.UTC)
numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
words = st.one_of(
    st.text(max_size=8), st.text("ab/:é", min_size=30, max_size=40), st.text("x", min_size=250, max_size=260)
)
node_ids = st.binary(min_size=8, max_size=8)
object_ids = st.binary(min_size=12, max_size=12)


@st.composite
def chunk_refs(draw: st.DrawFn) -> ChunkRef:
    """Any reference that a manifest can hold."""
    kind = draw(st.sampled_from([ChunkKind.INLINE, ChunkKind.NATIVE, ChunkKind.VIRTUAL]))
    if kind is ChunkKind.INLINE:
        data = draw(st.one_of(st.binary(max_size=12), st.just(b"x" * 300), st.just(b"y" * 70_000)))
        return ChunkRef(kind, 0, len(data), data=data)
    offset, length = draw(numbers), draw(numbers)
    if kind is ChunkKind.NATIVE:
        return ChunkRef(kind, offset, length, object_id=draw(object_ids))
    seal = draw(st.sampled_from(["none", "etag", "time"]))
    return ChunkRef(
        kind,
        offset,
        length,
        location=draw(words),
        etag=draw(words) if seal == "etag" else None,
        last_modified=draw(st.integers(1, 2**32 - 1)) if seal == "time" else None,
    )


@st.composite
def chunk_tables(draw: st.DrawFn) -> ChunkTable:
    """A table of any rank with any mix of references."""
    ndim = draw(st.sampled_from([0, 1, 2, 3, 17]))
    coords = st.tuples(*[st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1)) for _ in range(ndim)])
    rows = draw(st.lists(st.tuples(coords, chunk_refs()), min_size=1, max_size=8))
    return table_from_rows(rows, ndim)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """A manifest of some arrays."""
    return Manifest(new_object_id(), draw(st.dictionaries(node_ids, chunk_tables(), max_size=5)))


def rows_of(manifest: Manifest) -> dict[bytes, list[tuple[tuple[int, ...], ChunkRef]]]:
    """Everything a manifest says, as comparable values."""
    return {node: list(table.rows()) for node, table in manifest.tables.items() if len(table)}


def native_table(count: int, seed: int = 0) -> ChunkTable:
    """Native references in two dimensions."""
    random = np.random.default_rng(seed)
    coords = np.stack(np.divmod(np.arange(count), 1000), axis=1).astype(np.uint32)
    return ChunkTable(
        coords,
        np.full(count, ChunkKind.NATIVE, dtype=np.uint8),
        np.zeros(count, dtype=np.uint64),
        random.integers(1, 10**6, count).astype(np.uint64),
        random.integers(0, 256, (count, 12), dtype=np.uint8),
    )


def array_document(**changes: Any) -> bytes:
    """An array document as zarr-python writes it."""
    document = {
        "shape": [10, 20],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [5, 5]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN",
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {"k": {"z": 1, "a": 2.5}, "ü": [None, True]},
        "dimension_names": ["t", None],
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    return json.dumps(document | changes, indent=2).encode()


GROUP_DOCUMENT = b'{\n  "attributes": {},\n  "zarr_format": 3,\n  "node_type": "group"\n}'


def example_snapshot(**changes: Any) -> Snapshot:
    """A snapshot that uses every field."""
    files = [ManifestFileInfo(new_object_id(), 1234, 77), ManifestFileInfo(new_object_id(), 99, 3)]
    attributes_id = new_object_id()
    ids = [new_object_id() for _ in range(5)]
    history = tuple(
        SnapshotInfo(ids[i], ids[i + 1], NOW - dt.timedelta(hours=i + 1), f"commit {i}", {"n": i} if i else {})
        for i in range(4)
    )
    nodes = {
        "/": GroupNode(new_node_id(), "/", GROUP_DOCUMENT),
        "/a": ArrayNode(
            new_node_id(),
            "/a",
            array_document(),
            (10, 20),
            (2, 4),
            ("t", None),
            (ManifestRef(files[0].id, ((0, 2), (0, 3))), ManifestRef(files[1].id, ((0, 2), (3, 4)))),
        ),
        "/a-b": ArrayNode(
            new_node_id(),
            "/a-b",
            array_document(attributes={}),
            (10, 20),
            (2, 4),
            ("t", None),
            (),
            AttributesRef(attributes_id, 3),
        ),
    }
    snapshot = Snapshot(
        id=new_object_id(),
        parent_id=ids[0],
        written_at=NOW,
        message="hällo",
        metadata={"by": "me", "n": [1, {}]},
        nodes=nodes,
        manifests={f.id: f for f in files},
        attribute_files=(attributes_id,),
        history=history,
        total_ancestors=900,
        started_at=NOW - dt.timedelta(seconds=1),
    )
    return dataclasses.replace(snapshot, **changes)


def plain(snapshot: Snapshot) -> Snapshot:
    """The same with ordinary dictionaries, for comparison."""
    return dataclasses.replace(
        snapshot,
        nodes=dict(snapshot.nodes),
        metadata=dict(snapshot.metadata),
        manifests=dict(snapshot.manifests),
        history=tuple(dataclasses.replace(h, metadata=dict(h.metadata)) for h in snapshot.history),
    )


def example_log() -> TransactionLog:
    """A log that uses every field."""
    ids = [new_node_id() for _ in range(9)]
    return TransactionLog(
        frozenset(ids[:1]),
        frozenset(ids[1:2]),
        frozenset(ids[2:3]),
        frozenset(ids[3:4]),
        frozenset(ids[4:5]),
        frozenset(ids[5:6]),
        {
            ids[6]: np.array([[0, 1], [2, 3], [2**32 - 1, 0]], dtype=np.uint32),
            ids[7]: np.zeros((1, 0), dtype=np.uint32),
            ids[8]: np.arange(17 * 3, dtype=np.uint32).reshape(3, 17),
        },
        (Move("/x", "/y/ü", ids[6], True),),
    )
