"""Random values that the official generations can hold."""

from __future__ import annotations

import datetime as dt

import numpy as np
from hypothesis import strategies as st

from icefloe.formats.icechunk2.repo_file import (
    Availability,
    FlagChange,
    RepoInfo,
    SnapshotRecord,
    StatusRecord,
    UpdateKind,
    UpdateRecord,
)
from icefloe.ids import encode_base32
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, table_from_rows
from icefloe.model.snapshot import (
    ArrayNode,
    GroupNode,
    Manifest,
    ManifestFileInfo,
    ManifestRef,
    Move,
    Node,
    Snapshot,
    TransactionLog,
)
from icefloe.model.zarr_document import is_node_path

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
OBJECT_IDS = st.binary(min_size=12, max_size=12).map(encode_base32)
NODE_IDS = st.binary(min_size=8, max_size=8)
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
MICROSECONDS = st.integers(0, 4 * 10**15)
TIMES = MICROSECONDS.map(lambda n: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=n))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
METADATA = st.dictionaries(TEXT, JSON, max_size=3)


@st.composite
def chunk_refs(draw: st.DrawFn) -> ChunkRef:
    kind = draw(st.sampled_from([ChunkKind.INLINE, ChunkKind.NATIVE, ChunkKind.VIRTUAL]))
    if kind is ChunkKind.INLINE:
        data = draw(st.binary(max_size=20))
        return ChunkRef(kind, 0, len(data), data=data)
    offset, length = draw(U64), draw(U64)
    if kind is ChunkKind.NATIVE:
        return ChunkRef(kind, offset, length, object_id=draw(st.binary(min_size=12, max_size=12)))
    return ChunkRef(
        kind,
        offset,
        length,
        location=draw(st.sampled_from(["s3://b/1", "s3://b/22", "", "file:///ü"]) | TEXT),
        etag=draw(st.none() | TEXT),
        last_modified=draw(st.none() | st.integers(1, 2**32 - 1)),
    )


@st.composite
def chunk_tables(draw: st.DrawFn) -> ChunkTable:
    ndim = draw(st.integers(0, 4))
    coords = st.tuples(*[st.integers(0, 5) | U32] * ndim)
    rows = draw(st.dictionaries(coords, chunk_refs(), min_size=1, max_size=8))
    return table_from_rows(list(rows.items()), ndim)


MANIFESTS = st.builds(Manifest, OBJECT_IDS, st.dictionaries(NODE_IDS, chunk_tables(), max_size=4))


@st.composite
def nodes(draw: st.DrawFn, path: str) -> Node:
    node_id, document = draw(NODE_IDS), draw(st.binary(max_size=30))
    if draw(st.booleans()):
        return GroupNode(node_id, path, document)
    dimensions = draw(st.lists(st.tuples(st.integers(1, 2**40), st.integers(1, 2**31)), max_size=3))
    # Chunks of equal length, as a regular grid has them: then both generations keep the number of chunks.
    shape = tuple(length for length, _ in dimensions)
    grid = tuple(-(-length // max(-(-length // 2**31), min(chunk, length))) for length, chunk in dimensions)
    names = draw(st.none() | st.lists(st.none() | TEXT.filter(bool), min_size=len(shape), max_size=len(shape)))
    extents = st.tuples(*[st.tuples(U32, U32)] * len(shape)) | st.just(())
    manifests = draw(st.lists(st.builds(ManifestRef, OBJECT_IDS, extents), max_size=3))
    return ArrayNode(node_id, path, document, shape, grid, None if names is None else tuple(names), tuple(manifests))


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    paths = sorted(draw(st.sets(TEXT.map(lambda text: "/" + text).filter(is_node_path), max_size=6)), key=str.encode)
    infos = draw(st.lists(st.builds(ManifestFileInfo, OBJECT_IDS, U64, U32), max_size=4, unique_by=lambda i: i.id))
    return Snapshot(
        id=draw(OBJECT_IDS),
        parent_id=draw(st.none() | OBJECT_IDS),
        written_at=draw(TIMES),
        message=draw(TEXT),
        metadata=draw(METADATA),
        nodes={path: draw(nodes(path)) for path in paths},
        manifests={info.id: info for info in sorted(infos, key=lambda info: info.id)},
    )


def _coords(ndim: int) -> st.SearchStrategy[np.ndarray]:  # type: ignore[type-arg]
    rows = st.sets(st.tuples(*[st.integers(0, 3) | U32] * ndim), min_size=1, max_size=6)
    return rows.map(lambda found: np.array(sorted(found), dtype=np.uint32).reshape(len(found), ndim))


_IDS = st.frozensets(NODE_IDS, max_size=3)
MOVES = st.builds(Move, TEXT.map("/".__add__), TEXT.map("/".__add__), NODE_IDS, st.booleans())
LOGS = st.builds(
    TransactionLog,
    _IDS,
    _IDS,
    _IDS,
    _IDS,
    _IDS,
    _IDS,
    st.dictionaries(NODE_IDS, st.integers(0, 3).flatmap(_coords), max_size=3),
    st.lists(MOVES, max_size=3, unique_by=lambda move: move.to_path).map(
        lambda moves: tuple(sorted(moves, key=lambda move: move.to_path.encode().split(b"/")))
    ),
)

STATUSES = st.builds(StatusRecord, st.sampled_from(Availability), U64, st.none() | TEXT)


@st.composite
def updates(draw: st.DrawFn) -> UpdateRecord:
    kind = draw(st.sampled_from(UpdateKind))
    named = kind in range(UpdateKind.TAG_CREATED, UpdateKind.NEW_DETACHED_SNAPSHOT)
    previous = (UpdateKind.TAG_DELETED, UpdateKind.BRANCH_DELETED, UpdateKind.BRANCH_RESET, UpdateKind.COMMIT_AMENDED)
    new = (UpdateKind.NEW_COMMIT, UpdateKind.COMMIT_AMENDED, UpdateKind.NEW_DETACHED_SNAPSHOT)
    return UpdateRecord(
        kind,
        draw(U64),
        draw(st.none() | TEXT),
        name=draw(TEXT) if named else None,
        previous_id=draw(OBJECT_IDS) if kind in previous else None,
        new_id=draw(OBJECT_IDS) if kind in new else None,
        versions=(1, 2) if kind is UpdateKind.REPO_MIGRATED else None,
        flag=FlagChange(draw(st.integers(0, 2**16 - 1)), draw(st.booleans()), draw(st.booleans()))
        if kind is UpdateKind.FEATURE_FLAG_CHANGED
        else None,
        status=draw(STATUSES) if kind is UpdateKind.STATUS_CHANGED else None,
    )


@st.composite
def repositories(draw: st.DrawFn) -> RepoInfo:
    ids = sorted(draw(st.sets(OBJECT_IDS, min_size=1, max_size=5)))
    some = st.sampled_from(ids)
    raw = st.lists(st.tuples(TEXT, st.binary(max_size=9)), max_size=2).map(tuple)
    records = {
        key: SnapshotRecord(
            key, draw(st.none() | some), draw(U64), draw(TEXT), draw(raw), tuple(draw(st.lists(OBJECT_IDS, max_size=2)))
        )
        for key in ids
    }
    flags = st.frozensets(st.integers(0, 2**16 - 1), max_size=3)
    return RepoInfo(
        branches={"main": draw(some), **draw(st.dictionaries(TEXT, some, max_size=3))},
        snapshots=records,
        updates=tuple(draw(st.lists(updates(), min_size=1, max_size=6))),
        status=draw(STATUSES),
        tags=draw(st.dictionaries(TEXT, some, max_size=3)),
        deleted_tags=draw(st.frozensets(TEXT, max_size=3)),
        metadata=draw(raw),
        updates_before=draw(st.none() | TEXT),
        config=draw(st.none() | st.binary(max_size=9)),
        enabled_flags=draw(flags),
        disabled_flags=draw(flags),
        extra=draw(st.none() | st.binary(max_size=9)),
    )
