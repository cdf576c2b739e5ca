"""Structure, manifest and attributes files of `dataset` say exactly what they were given."""

from __future__ import annotations

import contextlib
import io
import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.early_generations import JSON_VALUES, manifests, snapshots

from icefloe.errors import FormatError, InvalidInputError, UnsupportedError
from icefloe.formats.dataset import FORMAT
from icefloe.formats.dataset.manifest import (
    decode_coords,
    decode_fixed_coords,
    encode_coord,
    encode_coords,
    manifest_schema,
)
from icefloe.formats.dataset.snapshot import structure_schema
from icefloe.formats.json_documents import GroupParts, build_document
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, table_from_rows
from icefloe.model.snapshot import Manifest, Snapshot, TransactionLog

NODE = (3).to_bytes(8, "big")
COORDS = st.integers(0, 3).flatmap(
    lambda rank: st.lists(
        st.tuples(*[st.integers(0, 260) | st.integers(65000, 66000) | st.integers(0, 2**32 - 1)] * rank), max_size=30
    ).map(lambda rows: np.array(rows, dtype=np.uint32).reshape(len(rows), rank))
)


@pytest.mark.parametrize(
    ("coords", "text"),
    [
        ((5, 30, 10), "051e0a"),
        ((247,), "f7"),
        ((248,), "f8f8"),
        ((256,), "f90100"),
        ((65535,), "f9ffff"),
        ((65536,), "fa010000"),
        ((4294967295,), "fbffffffff"),
        ((0, 300), "00f9012c"),
        ((), ""),
    ],
)
def test_coordinates_have_the_bytes_of_the_format(coords: tuple[int, ...], text: str) -> None:
    assert encode_coord(coords).hex() == text


@given(COORDS)
def test_coordinates_come_back_and_sort_as_numbers_do(coords: np.ndarray) -> None:
    data, offsets = encode_coords(coords)
    texts = [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)]
    rows = [tuple(row) for row in coords.tolist()]
    assert sorted(range(len(rows)), key=lambda i: (texts[i], i)) == sorted(range(len(rows)), key=lambda i: (rows[i], i))
    if rows:
        assert np.array_equal(decode_coords(data, offsets), coords)
        wide = np.frombuffer(coords.astype(">u8").tobytes(), dtype=np.uint8)
        assert np.array_equal(decode_fixed_coords(wide, np.arange(len(rows) + 1) * 8 * coords.shape[1]), coords)


@pytest.mark.parametrize("text", ["f8f7", "f900ff", "fa00ffff", "fb00ffffff", "fc0100000000", "f8", "f901", "ff"])
def test_coordinates_in_other_than_the_shortest_form_are_refused(text: str) -> None:
    data = np.frombuffer(bytes.fromhex(text), dtype=np.uint8)
    with pytest.raises(FormatError):
        decode_coords(data, np.array([0, len(data)]))


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=5))
def test_any_bytes_are_coordinates_in_canonical_form_or_refused(rows: list[bytes]) -> None:
    data = np.frombuffer(b"".join(rows), dtype=np.uint8)
    offsets = np.cumsum([0, *map(len, rows)])
    try:
        coords = decode_coords(data, offsets)
    except FormatError:
        return
    assert encode_coords(coords)[0].tobytes() == data.tobytes()


@given(snapshots(12))
def test_a_snapshot_comes_back_from_its_structure_file(snapshot: Snapshot) -> None:
    assert FORMAT.decode_snapshot(FORMAT.encode_snapshot(snapshot)) == snapshot


@given(manifests(12))
def test_a_manifest_comes_back_from_its_parquet_file(manifest: Manifest) -> None:
    found = FORMAT.decode_manifest(FORMAT.encode_manifest(manifest))
    assert found.id == manifest.id
    assert found.tables == manifest.tables


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_attributes_come_back_byte_for_byte(rows: list[bytes]) -> None:
    assert FORMAT.decode_attributes(FORMAT.encode_attributes(rows)) == rows


@given(snapshots(12), manifests(12))
def test_files_have_the_schema_of_the_specification(snapshot: Snapshot, manifest: Manifest) -> None:
    structure = pq.read_schema(io.BytesIO(FORMAT.encode_snapshot(snapshot)))
    widened = structure.metadata.get(b"icechunk.widened", b"").decode()
    assert structure.equals(structure_schema([w for w in widened.split(",") if w]), check_metadata=False)
    for field in structure_schema():
        assert structure.field(field.name).metadata == field.metadata
    found = pq.read_schema(io.BytesIO(FORMAT.encode_manifest(manifest)))
    wide = found.metadata.get(b"icechunk.widened") == b"length"
    assert found.equals(manifest_schema(pa.uint64() if wide else None), check_metadata=False)
    assert found.metadata[b"icechunk.format"] == b"g0"


def test_the_narrow_schema_prints_as_the_specification_prints_it() -> None:
    text = structure_schema().to_string()
    assert "attrs_reference: struct<attrs_file: string not null, row: uint16 not null, flags: uint16>" in text
    assert "description: 'user-defined attributes, stored in a separate attributes ' + 4" in text
    assert "child 2, extent: list<item: fixed_size_list<item: uint16>[2]> not null" in text
    assert manifest_schema().to_string().splitlines() == [
        "id: uint32 not null",
        "array_id: uint32 not null",
        "coord: binary not null",
        "inline_data: binary",
        "chunk_file: string",
        "offset: uint64",
        "length: uint32 not null",
    ]


def test_a_large_manifest_has_several_row_groups() -> None:
    count = 300_000
    coords = np.stack([np.arange(count) // 1000, np.arange(count) % 1000], axis=1).astype(np.uint32)
    data = FORMAT.encode_manifest(Manifest("M", {NODE: native_table(coords)}))
    assert pq.ParquetFile(io.BytesIO(data)).metadata.num_row_groups == 5


def native_table(coords: np.ndarray) -> ChunkTable:
    count = len(coords)
    rng = np.random.default_rng(0)
    return ChunkTable(
        coords=coords,
        kind=np.full(count, ChunkKind.NATIVE, dtype=np.uint8),
        offset=np.arange(count, dtype=np.uint64),
        length=np.full(count, 100, dtype=np.uint64),
        object_id=rng.integers(0, 256, (count, 12), dtype=np.uint8),
    )


def test_rows_in_another_order_are_sorted_and_double_ones_refused() -> None:
    table = native_table(np.array([[1], [2], [3]], dtype=np.uint32))
    rows = pq.read_table(io.BytesIO(FORMAT.encode_manifest(Manifest("M", {NODE: table}))))
    shuffled, double = io.BytesIO(), io.BytesIO()
    pq.write_table(rows.take([2, 0, 1]), shuffled)
    pq.write_table(pa.concat_tables([rows, rows]), double)
    assert FORMAT.decode_manifest(shuffled.getvalue()).tables[NODE] == table
    with pytest.raises(FormatError, match="two rows"):
        FORMAT.decode_manifest(double.getvalue())


def test_an_ordinary_parquet_reader_finds_nodes_and_chunks() -> None:
    table = native_table(np.array([[0], [300]], dtype=np.uint32))
    rows = pq.read_table(io.BytesIO(FORMAT.encode_manifest(Manifest("M", {NODE: table})))).to_pylist()
    assert [row["coord"].hex() for row in rows] == ["00", "f9012c"]
    assert [len(row["chunk_file"]) for row in rows] == [20, 20]
    assert [row["array_id"] for row in rows] == [3, 3]


def test_what_the_schema_cannot_hold_is_refused() -> None:
    checked = ChunkRef(ChunkKind.VIRTUAL, 0, 1, location="s3://b/x", etag="e")
    with pytest.raises(UnsupportedError, match="checksums"):
        FORMAT.encode_manifest(Manifest("M", {NODE: table_from_rows([((), checked)], 0)}))
    with pytest.raises(InvalidInputError, match="URL"):
        FORMAT.encode_manifest(
            Manifest("M", {NODE: table_from_rows([((), ChunkRef(ChunkKind.VIRTUAL, 0, 1, location="x"))], 0)})
        )
    with pytest.raises(UnsupportedError):
        FORMAT.encode_transaction_log("X", TransactionLog())


@settings(max_examples=30)
@given(snapshots(12), manifests(12), st.data())
def test_broken_files_give_format_errors_only(snapshot: Snapshot, manifest: Manifest, data: st.DataObject) -> None:
    for whole, decode in (
        (FORMAT.encode_snapshot(snapshot), FORMAT.decode_snapshot),
        (FORMAT.encode_manifest(manifest), FORMAT.decode_manifest),
        (FORMAT.encode_attributes([b"{}"]), FORMAT.decode_attributes),
    ):
        cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
        with pytest.raises(FormatError):
            decode(cut)
        place = data.draw(st.integers(0, len(whole) - 1))
        flipped = bytearray(whole)
        flipped[place] ^= data.draw(st.integers(1, 255))
        with contextlib.suppress(FormatError):
            decode(bytes(flipped))


@pytest.mark.parametrize("columns", [{"x": [1]}, {"id": ["a"], "path": [None]}])
def test_parquet_files_of_another_kind_give_format_errors(columns: dict[str, list[object]]) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    for decode in (FORMAT.decode_snapshot, FORMAT.decode_manifest, FORMAT.decode_attributes):
        with pytest.raises(FormatError):
            decode(sink.getvalue())


def test_documents_as_zarr_writes_them_need_no_copy_beside_the_columns() -> None:
    import zarr

    store: dict[str, object] = {}
    memory = zarr.storage.MemoryStore(store)
    zarr.group(memory, attributes={"title": "é"})
    for index, kind in enumerate(["bool", "int8", "uint64", "float32", "float64", "complex64"]):
        zarr.create_array(
            memory, name=f"a{index}", shape=(70000, 3), chunks=(7, 3), dtype=kind, attributes={"i": index}
        )
    from icefloe.model.snapshot import ArrayNode, GroupNode
    from icefloe.model.zarr_document import parse_array_shape

    nodes = {}
    for number, key in enumerate(sorted(k for k in store if k.endswith("zarr.json"))):
        document = store[key].to_bytes()  # type: ignore[attr-defined]
        path = "/" + key.removesuffix("zarr.json").rstrip("/")
        node_id = number.to_bytes(8, "big")
        if path == "/":
            nodes[path] = GroupNode(node_id, path, document)
        else:
            shape = parse_array_shape(json.loads(document))
            nodes[path] = ArrayNode(node_id, path, document, shape.shape, shape.grid, shape.dimension_names)
    import datetime as dt

    nodes = dict(sorted(nodes.items()))
    snapshot = Snapshot("S", None, dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "m", {}, nodes, {})
    data = FORMAT.encode_snapshot(snapshot)
    assert b"icefloe.documents" not in pq.read_schema(io.BytesIO(data)).metadata
    assert FORMAT.decode_snapshot(data) == snapshot


@pytest.mark.long
@given(
    st.dictionaries(st.text(max_size=4), JSON_VALUES | st.floats() | st.just({}) | st.just([[], {}, [{}]]), max_size=4)
)
def test_built_documents_are_laid_out_as_the_json_module_does(attributes: dict[str, object]) -> None:
    expected = {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
    assert build_document(GroupParts(attributes)) == json.dumps(expected, indent=2).encode()
