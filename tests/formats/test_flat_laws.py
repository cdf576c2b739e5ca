"""decode(encode(x)) == x for every file of the official generations, and their bytes are valid flatbuffers."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import pickle
from typing import Any

import msgpack
import numpy as np
import pytest
from flatbuffers import flexbuffers
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.flat_values import JSON, LOGS, MANIFESTS, OBJECT_IDS, repositories, snapshots

from icefloe.errors import FormatError, InvalidInputError, InvalidTypeError
from icefloe.formats.flatbuf.decode import Body
from icefloe.formats.flatbuf.flexbuffers import decode_flexible, decode_value, encode_flexible, encode_value
from icefloe.formats.flatbuf.manifest import decode_manifest_body, encode_manifest_body
from icefloe.formats.format import Format
from icefloe.formats.icechunk1 import FORMAT as FORMAT_1
from icefloe.formats.icechunk2 import FORMAT as FORMAT_2
from icefloe.formats.icechunk2.repo_file import RepoInfo, decode_repo, encode_repo
from icefloe.ids import new_node_id, new_object_id
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, table_from_rows
from icefloe.model.snapshot import Manifest, Snapshot, TransactionLog

FORMATS = st.sampled_from([FORMAT_1, FORMAT_2])


@given(MANIFESTS, FORMATS)
def test_a_manifest_comes_back_as_it_was_written(manifest: Manifest, format: Format) -> None:
    found = format.decode_manifest(format.encode_manifest(manifest))
    assert found.id == manifest.id and list(found.tables) == sorted(manifest.tables)
    for node, table in manifest.tables.items():
        assert list(found.tables[node].rows()) == list(table.rows())
        assert found.tables[node].ndim == table.ndim


@given(snapshots(), FORMATS)
def test_a_snapshot_comes_back_as_it_was_written(snapshot: Snapshot, format: Format) -> None:
    found = format.decode_snapshot(format.encode_snapshot(snapshot))
    expected = snapshot if format is FORMAT_1 else dataclasses.replace(snapshot, parent_id=None)
    assert list(found.nodes) == list(expected.nodes)
    assert dataclasses.replace(found, nodes=dict(found.nodes)) == expected
    assert pickle.loads(pickle.dumps(found)).nodes == expected.nodes


@given(OBJECT_IDS, LOGS, FORMATS)
def test_a_transaction_log_comes_back_as_it_was_written(name: str, log: TransactionLog, format: Format) -> None:
    found = format.decode_transaction_log(format.encode_transaction_log(name, log))
    assert {node: rows.tolist() for node, rows in found.updated_chunks.items()} == {
        node: rows.tolist() for node, rows in log.updated_chunks.items()
    }
    assert dataclasses.replace(found, updated_chunks={}) == dataclasses.replace(log, updated_chunks={})


@given(repositories())
def test_a_repo_file_comes_back_as_it_was_written(info: RepoInfo) -> None:
    assert decode_repo(encode_repo(info)) == info


@given(JSON)
def test_flexible_values_come_back(value: Any) -> None:
    assert decode_flexible(encode_flexible(value)) == value


@given(JSON)
def test_metadata_of_the_first_official_generation_is_plain_messagepack(value: Any) -> None:
    assert encode_value(value, 1) == msgpack.packb(value)
    assert decode_value(encode_value(value, 1), 1) == value


NOT_JSON = {
    "time": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "set": {1, 2},
    "bytes": b"bytes",
    "nested": [{"a": object()}],
}


@pytest.mark.parametrize("value", NOT_JSON.values(), ids=NOT_JSON)
@pytest.mark.parametrize("spec", [1, 2])
def test_metadata_that_is_not_json_is_refused_in_both_encodings(value: Any, spec: int) -> None:
    with pytest.raises(InvalidTypeError, match="can only contain JSON values"):
        encode_value(value, spec)


ASCII = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=6)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(width=32, allow_nan=False) | ASCII,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ASCII, inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN)
def test_flexible_values_mean_the_same_to_the_reference_library(value: Any) -> None:
    """That library writes ASCII keys and floats of 32 bits only."""
    assert flexbuffers.Loads(encode_flexible(value)) == value
    assert decode_flexible(bytes(flexbuffers.Dumps(value))) == value


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_flexible_value_or_an_error(data: bytes) -> None:
    with contextlib.suppress(FormatError):
        decode_flexible(data)


@pytest.mark.parametrize("value", [{1: 2}, {"a": object()}, 2**64, -(2**63) - 1, {"a\0b": 1}])
def test_what_metadata_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError):
        encode_flexible(value)


def test_shared_and_unshared_strings_read_the_same() -> None:
    """Writers may store equal locations once or per reference."""
    rows = [((i,), ChunkRef(ChunkKind.VIRTUAL, i, 9, location=f"s3://b/{i % 2}", etag="e")) for i in range(6)]
    shared = table_from_rows(rows, 1)
    unshared = dataclasses.replace(
        shared, location=np.arange(6, dtype=np.int32), locations=[f"s3://b/{i % 2}" for i in range(6)]
    )
    node = new_node_id()
    for table in (shared, unshared):
        body = encode_manifest_body(Manifest(new_object_id(), {node: table}), 2)
        found = decode_manifest_body(Body(body, "manifest")).tables[node]
        assert list(found.rows()) == rows and sorted(found.locations) == ["s3://b/0", "s3://b/1"]


def test_a_manifest_does_not_take_deleted_references() -> None:
    table = table_from_rows([((0,), ChunkRef(ChunkKind.DELETED, 0, 0))], 1)
    with pytest.raises(InvalidInputError):
        FORMAT_2.encode_manifest(Manifest(new_object_id(), {new_node_id(): table}))


def test_only_used_locations_are_written() -> None:
    rows = [((0,), ChunkRef(ChunkKind.VIRTUAL, 0, 9, location="s3://b/used"))]
    table = table_from_rows(rows, 1)
    wide = dataclasses.replace(
        table, location=np.array([1], dtype=np.int32), locations=["s3://b/unused", "s3://b/used"]
    )
    body = encode_manifest_body(Manifest(new_object_id(), {new_node_id(): wide}), 1)
    assert b"s3://b/used\0" in body and b"unused" not in body


def test_many_references_are_coded_in_columns() -> None:
    """A hundred thousand references of each kind, far faster than any loop over them could be."""
    count = 100_000
    coords = np.stack(np.divmod(np.arange(count, dtype=np.uint32), 300), axis=1).astype(np.uint32)
    kinds = (np.arange(count) % 3).astype(np.uint8)
    rng = np.random.default_rng(1)
    offset = np.where(kinds == ChunkKind.INLINE, np.arange(count) * 5, rng.integers(0, 2**60, count)).astype(np.uint64)
    length = np.where(kinds == ChunkKind.INLINE, 5, rng.integers(1, 2**30, count)).astype(np.uint64)
    ids = rng.integers(0, 256, (count, 12), dtype=np.uint8)
    ids[kinds != ChunkKind.NATIVE] = 0
    location = np.where(kinds == ChunkKind.VIRTUAL, np.arange(count) % 7, -1).astype(np.int32)
    table = ChunkTable(
        coords, kinds, offset, length, ids, location, [f"s3://b/{i}" for i in range(7)], inline=rng.bytes(count * 5)
    )
    node = new_node_id()
    manifest = Manifest(new_object_id(), {node: table})
    for generation in (FORMAT_1, FORMAT_2):
        found = generation.decode_manifest(generation.encode_manifest(manifest)).tables[node]
        assert (found.coords == coords).all() and (found.kind == kinds).all() and (found.length == length).all()
        for row in range(0, count, 997):
            assert found.row(row) == table.row(row)
