"""Snapshots, logs and attributes files of the repository generation."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import pickle
import time
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from formats.repository_examples import (
    GROUP_DOCUMENT,
    NOW,
    array_document,
    example_log,
    example_snapshot,
    native_table,
    plain,
)
from icefloe.errors import FormatError
from icefloe.formats.header import HEADER_BYTES, decompress
from icefloe.formats.repository import FORMAT
from icefloe.formats.repository import snapshot as snapshot_format
from icefloe.formats.repository.snapshot import MetadataElsewhere, format_time, parse_time
from icefloe.ids import new_node_id, new_object_id
from icefloe.model.snapshot import (
    ArrayNode,
    GroupNode,
    ManifestFileInfo,
    ManifestFiles,
    ManifestRef,
    ManifestRefs,
    Snapshot,
    SnapshotInfo,
    TransactionLog,
    find_nodes,
)
from icefloe.model.zarr_document import parse_array_shape, parse_document


def there_and_back(snapshot: Snapshot) -> Snapshot:
    return plain(FORMAT.decode_snapshot(FORMAT.encode_snapshot(snapshot)))


def body_of(snapshot: Snapshot) -> Any:
    data = FORMAT.encode_snapshot(snapshot)
    return msgpack.unpackb(decompress(data[HEADER_BYTES:]), strict_map_key=False)


def test_a_snapshot_comes_back_as_it_was() -> None:
    snapshot = example_snapshot()
    assert there_and_back(snapshot) == plain(snapshot)


def test_a_snapshot_is_an_array_of_nine_for_any_reader() -> None:
    snapshot = example_snapshot()
    files, attributes, total, short, history, own, started, properties, nodes = body_of(snapshot)
    assert files == [[f.id, 1, f.size_bytes] for f in snapshot.manifests.values()]
    assert attributes == [[snapshot.attribute_files[0], 1]]
    assert (total, short, len(history)) == (900, 4, 4)
    assert own == [snapshot.id, "2025-01-08T21:13:10.236657Z", "hällo"]
    assert started == "2025-01-08T21:13:09.236657Z"
    assert properties["by"] == "me"
    assert nodes["/a"][2] == {"Inline": {"k": {"z": 1, "a": 2.5}, "ü": [None, True]}}
    assert nodes["/a"][3]["Array"][0][:5] == [
        [10, 20],
        "float32",
        [5, 5],
        "Slash",
        {"Float32": pytest.approx(math.nan, nan_ok=True)},
    ]
    assert nodes["/a"][3]["Array"][1][0][1] == [[0, 0], [2, 3]]
    assert nodes["/a-b"][2] == {"Ref": [snapshot.attribute_files[0], 3]}


def test_the_initial_snapshot_has_no_parent() -> None:
    decoded = there_and_back(FORMAT.initial_snapshot(NOW))
    assert (decoded.parent_id, decoded.history, decoded.total_ancestors, decoded.nodes) == (None, (), 0, {})


def test_a_parent_that_is_not_quoted_is_kept() -> None:
    parent = new_object_id()
    assert there_and_back(example_snapshot(history=(), parent_id=parent)).parent_id == parent


def test_metadata_under_reserved_names_comes_back() -> None:
    metadata = {"icefloe.history": 1, "icefloe.documents": {"x": 2}, "icefloe.other": 3}
    assert there_and_back(example_snapshot(metadata=metadata)).metadata == metadata


def test_large_metadata_of_an_ancestor_is_left_in_its_own_file() -> None:
    ancestor = SnapshotInfo(new_object_id(), None, NOW, "m", {"x": "y" * 2000})
    snapshot = example_snapshot(history=(ancestor,), parent_id=ancestor.id)
    once = FORMAT.decode_snapshot(FORMAT.encode_snapshot(snapshot))
    assert isinstance(once.history[0].metadata, MetadataElsewhere)
    twice = FORMAT.decode_snapshot(FORMAT.encode_snapshot(once))
    assert isinstance(twice.history[0].metadata, MetadataElsewhere)


def node_of(document: bytes) -> ArrayNode | GroupNode:
    parsed = parse_document(document)
    if parsed["node_type"] == "group":
        return GroupNode(new_node_id(), "/x", document)
    shape = parse_array_shape(parsed)
    return ArrayNode(new_node_id(), "/x", document, shape.shape, shape.grid, shape.dimension_names)


ODD_DOCUMENTS = {
    "compact": json.dumps(json.loads(array_document()), separators=(",", ":")).encode(),
    "other order": json.dumps(dict(sorted(json.loads(array_document()).items())), indent=2).encode(),
    "unknown key": array_document(extra={"a": 1}),
    "extension type": array_document(data_type={"name": "numpy.datetime64", "configuration": {"unit": "s"}}),
    "other encoding": array_document(chunk_key_encoding={"name": "v2", "configuration": {"separator": "."}}),
    "dots": array_document(chunk_key_encoding={"name": "default", "configuration": {"separator": "."}}),
    "integer fill of a float": array_document(fill_value=0),
    "hexadecimal fill": array_document(fill_value="0x7fc00001"),
    "wide integer": array_document(data_type="uint64", fill_value=2**64 - 1),
    "wider integer in attributes": array_document(attributes={"n": 2**80}),
    "lone surrogate": array_document(attributes={"n": "\ud800"}),
    "no attributes": GROUP_DOCUMENT.replace(b'"attributes": {},\n  ', b""),
    "null attributes": GROUP_DOCUMENT.replace(b"{},", b"null,"),
    "attributes that are no object": GROUP_DOCUMENT.replace(b"{},", b"[1],"),
    "nan in attributes": array_document(attributes={"n": math.nan, "m": math.inf}),
    "repeated key": b'{"node_type": "group", "zarr_format": 3, "a": 1, "a": 2}',
    "rectilinear": array_document(
        chunk_grid={"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[5, 5], [[10, 2]]]}}
    ),
    "codec as text": array_document(codecs=["bytes"]),
    "codec with more keys": array_document(codecs=[{"name": "bytes", "must_understand": False}]),
    "bytes fill": array_document(data_type="bytes", fill_value=[1, 2]),
    "raw bits": array_document(data_type="r16", fill_value=[0, 0]),
    "chunk shape for shards": array_document(
        codecs=[{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 1]}}]
    ),
}


@pytest.mark.parametrize("name", ODD_DOCUMENTS)
def test_an_odd_document_comes_back_byte_for_byte(name: str) -> None:
    node = node_of(ODD_DOCUMENTS[name])
    decoded = there_and_back(example_snapshot(nodes={"/x": node}))
    assert decoded.nodes["/x"] == node


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), json_values, max_size=4), st.sampled_from([None, 0, 2, 4]))
def test_any_attributes_come_back_byte_for_byte(attributes: dict[str, Any], indent: int | None) -> None:
    document = {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
    node = GroupNode(new_node_id(), "/x", json.dumps(document, indent=indent).encode())
    assert there_and_back(example_snapshot(nodes={"/x": node})).nodes["/x"] == node


async def test_documents_of_zarr_need_no_keeping() -> None:
    store = zarr.storage.MemoryStore()
    group = zarr.create_group(store, attributes={"a": 1, "ü": [1.5, None]})
    for name in ("bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "complex128", "str"):
        group.create_array(name, shape=(7, 3), chunks=(2, 3), dtype=name, dimension_names=["x", None])
    group.create_array("scalar", shape=(), dtype="i8", fill_value=-(2**63))
    group.create_array("nan", shape=(3,), dtype="f4", fill_value=math.nan, attributes={"k": {}})
    group.create_array("sharded", shape=(8,), chunks=(2,), shards=(4,), dtype="f8", fill_value=0.1)
    documents = {
        key: value.to_bytes()
        async for key in store.list_prefix("")
        if (value := await store.get(key, zarr.core.buffer.default_buffer_prototype()))
    }
    nodes = {f"/{key}": dataclasses.replace(node_of(document), path=f"/{key}") for key, document in documents.items()}
    snapshot = example_snapshot(nodes=nodes)
    assert body_of(snapshot)[7]["icefloe.documents"] == {}
    assert there_and_back(snapshot).nodes == nodes


def test_nodes_are_listed_in_the_order_of_their_bytes() -> None:
    paths = ["/b", "/a/b", "/a-b", "/", "/é", "/a"]
    nodes = {path: GroupNode(new_node_id(), path, GROUP_DOCUMENT) for path in paths}
    decoded = FORMAT.decode_snapshot(FORMAT.encode_snapshot(example_snapshot(nodes=nodes)))
    assert list(decoded.nodes) == sorted(paths, key=str.encode)
    assert pickle.loads(pickle.dumps(decoded)).nodes == decoded.nodes
    assert "/nothing" not in decoded.nodes
    with pytest.raises(KeyError):
        decoded.nodes["/nothing"]


def test_a_snapshot_of_5760_arrays_opens_at_once() -> None:
    document = array_document()
    nodes = {
        f"/g/{i}": ArrayNode(new_node_id(), f"/g/{i}", document, (10, 20), (2, 4), ("t", None)) for i in range(5760)
    }
    data = FORMAT.encode_snapshot(example_snapshot(nodes=nodes))
    seconds = []
    for _ in range(5):
        start = time.process_time()
        decoded = FORMAT.decode_snapshot(data)
        assert len(list(decoded.nodes)) == 5760
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.2  # 0.01 on an idle machine
    assert decoded.nodes["/g/77"] == nodes["/g/77"]


_BOUND = st.one_of(st.integers(-1, 9), st.sampled_from([2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1]))
_BOX = st.lists(st.lists(_BOUND, min_size=2, max_size=2).map(sorted), min_size=2, max_size=2)


@given(st.lists(_BOX, max_size=3), st.sampled_from([None, "id", "text", "rank", "empty", "order", "bounds"]))
def test_many_manifests_of_an_array_are_read_as_few_are(boxes: list[list[list[int]]], odd: str | None) -> None:
    """One by one or all at once: the same references, or the same error."""
    usual = [[new_object_id(), [[number, 0], [number + 1, 4]]] for number in range(70)]
    wire: list[Any] = [*usual, *([new_object_id(), [list(ends) for ends in zip(*box, strict=True)]] for box in boxes)]
    changes: dict[str, Any] = {
        "id": [new_object_id().lower(), usual[0][1]],
        "text": ["not an id", usual[0][1]],
        "rank": [new_object_id(), [[0], [4]]],
        "empty": [new_object_id(), []],
        "order": [new_object_id(), [[5, 0], [4, 4]]],
        "bounds": [new_object_id(), [[0, 0], [4, 4], [4, 4]]],
    }
    wire += [] if odd is None else [changes[odd]]
    raw = msgspec.Raw(msgpack.packb(wire))

    def read(at_once: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(snapshot_format, "_MANY_MANIFESTS", at_once)
            try:
                refs = snapshot_format._decode_manifests(raw, "/a", 2, snapshot_format._SharedValues())
                each = tuple(refs[index] for index in range(len(refs)))
            except FormatError as error:
                return str(error)
        assert (len(refs), tuple(refs), refs[1:3]) == (len(each), each, each[1:3])
        assert (refs == each, hash(refs), pickle.loads(pickle.dumps(refs))) == (True, hash(each), each)
        return each

    assert read(1) == read(10**9)


def test_long_lists_are_decoded_when_they_are_asked_for() -> None:
    ids = [new_object_id() for _ in range(100)]
    refs = tuple(ManifestRef(manifest_id, ((n, n + 1), (0, 4))) for n, manifest_id in enumerate(ids))
    node = ArrayNode(new_node_id(), "/a", array_document(), (10, 20), (2, 4), ("t", None), refs)
    files = {manifest_id: ManifestFileInfo(manifest_id, n, 2 * n) for n, manifest_id in enumerate(ids)}
    snapshot = example_snapshot(nodes={"/a": node}, manifests=files)
    read = FORMAT.decode_snapshot(FORMAT.encode_snapshot(snapshot))
    assert isinstance(read.manifests, ManifestFiles)
    assert isinstance(read.nodes["/a"], ArrayNode)
    assert isinstance(read.nodes["/a"].manifests, ManifestRefs)
    assert read.info.manifests[3] == files[ids[3]]
    assert (list(read.info.manifests), len(read.info.manifests)) == (list(files.values()), 100)
    assert (dict(read.manifests), read.manifests == files, read.nodes["/a"].manifests) == (files, True, refs)
    assert pickle.loads(pickle.dumps(read)) == plain(snapshot)


def test_nodes_are_found_by_their_ids() -> None:
    nodes = example_snapshot().nodes
    read = FORMAT.decode_snapshot(FORMAT.encode_snapshot(example_snapshot(nodes=nodes))).nodes
    ids = {node.id for node in nodes.values()}
    chosen = {*sorted(ids)[::2], new_node_id()}
    assert find_nodes(read, ids) == {node.id: node for node in nodes.values()}
    assert find_nodes(read, chosen) == find_nodes(nodes, chosen) == {n.id: n for n in nodes.values() if n.id in chosen}


def test_a_damaged_long_list_is_refused_when_it_is_asked_for() -> None:
    files = {i: ManifestFileInfo(i, 1, 1) for i in (new_object_id() for _ in range(100))}
    members = body_of(example_snapshot(manifests=files))
    members[0][50] = ["not an id", 1, 1]
    decoded = FORMAT.decode_snapshot(msgpack.packb(members))
    with pytest.raises(FormatError, match="not an id"):
        len(decoded.manifests)


def test_a_node_under_the_path_of_another_is_refused() -> None:
    members = body_of(example_snapshot())
    members[8]["/z"] = members[8].pop("/a")
    decoded = FORMAT.decode_snapshot(msgpack.packb(members))
    with pytest.raises(FormatError, match="under the path"):
        decoded.nodes["/z"]


def same_log(a: TransactionLog, b: TransactionLog) -> bool:
    chunks = a.updated_chunks.keys() == b.updated_chunks.keys() and all(
        np.array_equal(a.updated_chunks[n], b.updated_chunks[n]) for n in a.updated_chunks
    )
    return chunks and dataclasses.replace(a, updated_chunks={}) == dataclasses.replace(b, updated_chunks={})


def test_a_transaction_log_comes_back_as_it_was() -> None:
    log = example_log()
    assert same_log(FORMAT.decode_transaction_log(FORMAT.encode_transaction_log("", log)), log)


def test_a_log_has_a_ninth_member_only_for_moves() -> None:
    for log, length in ((example_log(), 9), (dataclasses.replace(example_log(), moves=()), 8), (TransactionLog(), 8)):
        body = decompress(FORMAT.encode_transaction_log("", log)[HEADER_BYTES:])
        assert len(msgpack.unpackb(body, strict_map_key=False)) == length


def test_logs_of_seven_members_and_unordered_coordinates_are_read() -> None:
    node = (b"12345678", ())
    body = msgpack.packb(([], [node], [], [], [node], [], {node: [(3, 1), (0, 2), (3, 1)]}))
    log = FORMAT.decode_transaction_log(body)
    assert log.new_arrays == {b"12345678"}
    assert log.updated_groups == frozenset()
    assert log.updated_chunks[b"12345678"].tolist() == [[0, 2], [3, 1]]


def test_a_log_of_a_million_chunks_is_quick() -> None:
    coords = native_table(1_000_000).coords
    start = time.process_time()
    log = FORMAT.decode_transaction_log(
        FORMAT.encode_transaction_log("", TransactionLog(updated_chunks={b"x" * 8: coords}))
    )
    assert time.process_time() - start < 5
    assert np.array_equal(log.updated_chunks[b"x" * 8], coords)


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_attributes_files_keep_their_rows(rows: list[bytes]) -> None:
    assert FORMAT.decode_attributes(FORMAT.encode_attributes(rows)) == rows


def test_attributes_files_may_hold_text() -> None:
    assert FORMAT.decode_attributes(msgpack.packb(["{}", '{"ü":1}'])) == [b"{}", '{"ü":1}'.encode()]


def test_what_compresses_like_a_bomb_is_stored_plain() -> None:
    rows = [bytes(40 << 20)]
    assert FORMAT.decode_attributes(FORMAT.encode_attributes(rows)) == rows


@given(st.datetimes(min_value=dt.datetime(1, 1, 2), max_value=dt.datetime(9999, 12, 30), timezones=st.just(dt.UTC)))  # noqa: DTZ001
def test_times_come_back(moment: dt.datetime) -> None:
    assert parse_time(format_time(moment)) == moment


@pytest.mark.parametrize(
    ("text", "microsecond"),
    [("2025-01-08T21:13:10Z", 0), ("2025-01-08T21:13:10.236Z", 236000), ("2025-01-08T21:13:10.236657011Z", 236657)],
)
def test_times_of_any_precision_are_read(text: str, microsecond: int) -> None:
    assert parse_time(text) == dt.datetime(2025, 1, 8, 21, 13, 10, microsecond, tzinfo=dt.UTC)


@pytest.mark.parametrize("text", ["", "Z", "yesterday", "2025-13-01T00:00:00Z", "2025-01-01T00:00:00.xZ"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_time(text)
