"""Zarr stores and Kerchunk reference sets."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from icefloe.errors import FormatError, UnsupportedError
from icefloe.ingest.parsers.registry import open_source, parse_schema, parse_source
from icefloe.model.chunk_table import ChunkKind

pytestmark = pytest.mark.filterwarnings("ignore")


def _cube() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(7, 9)).astype("f4")


def _equal(file: Any, path: str, expected: np.ndarray) -> None:
    with open_source(file) as source:
        variable = source.find_variable(path)
        np.testing.assert_array_equal(source.values(variable, tuple(slice(0, n) for n in variable.shape)), expected)
        part = tuple(slice(1, n - 2) for n in variable.shape)
        np.testing.assert_array_equal(source.values(variable, part), expected[part])


@pytest.mark.parametrize(
    "options",
    [
        {"compressor": numcodecs.Blosc()},
        {"compressor": numcodecs.Zstd(3)},
        {"compressor": numcodecs.Zlib(3)},
        {"compressor": numcodecs.GZip(3)},
        {"compressor": None},
        {"compressor": numcodecs.LZ4(), "order": "F"},
        {"compressor": numcodecs.Zlib(1), "filters": [numcodecs.Shuffle(4)], "dimension_separator": "/"},
    ],
    ids=str,
)
def test_version_2_arrays_keep_their_bytes_under_version_3_codecs(
    tmp_path: Path, describe: Any, check_references: Any, options: dict[str, Any]
) -> None:
    separator = options.pop("dimension_separator", ".")
    root = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2, attributes={"title": "t"})
    array = root.create_array(
        "deep/x",
        shape=(7, 9),
        chunks=(3, 4),
        dtype=">f4",
        fill_value=np.nan,
        compressors=options.get("compressor"),
        filters=options.get("filters"),
        order=options.get("order", "C"),
        chunk_key_encoding={"name": "v2", "separator": separator},
        attributes={"_ARRAY_DIMENSIONS": ["y", "x"]},
    )
    array[...] = _cube()
    schema = check_references(describe(tmp_path / "a.zarr"))
    assert schema.variables["deep/x"].dims == ("y", "x")
    assert schema.groups[""] == {"title": "t"}
    _equal(describe(tmp_path / "a.zarr"), "deep/x", _cube())


@pytest.mark.parametrize("shards", [None, (6, 8)])
@pytest.mark.parametrize("separator", ["/", "."])
def test_version_3_arrays_and_shards_are_referenced_as_they_are(
    tmp_path: Path, describe: Any, check_references: Any, shards: Any, separator: str
) -> None:
    root = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=3)
    array = root.create_array(
        "x",
        shape=(7, 9),
        chunks=(3, 4),
        shards=shards,
        dtype="f4",
        dimension_names=("y", "x"),
        chunk_key_encoding={"name": "default", "separator": separator},
    )
    array[...] = _cube()
    root.create_array("scalar", shape=(), dtype="i4")[...] = 5
    root.create_array("text", shape=(2,), dtype="string", chunks=(2,))[...] = np.array(["a", "bcd"])
    schema = check_references(describe(tmp_path / "a.zarr"))
    assert schema.variables["x"].chunks == (shards or (3, 4))
    table = parse_source(describe(tmp_path / "a.zarr"), variables=["x"]).references["x"].table
    assert len(table) == (4 if shards else 9)
    _equal(describe(tmp_path / "a.zarr"), "x", _cube())


def test_chunks_that_were_never_written_have_no_reference(tmp_path: Path, describe: Any) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", name="x", shape=(9,), chunks=(3,), dtype="i4", fill_value=7)
    array[3:6] = 1
    found = parse_source(describe(tmp_path / "a.zarr")).references["x"].table
    assert found.coords.tolist() == [[1]]
    _equal(describe(tmp_path / "a.zarr"), "x", np.array([7, 7, 7, 1, 1, 1, 7, 7, 7], dtype="i4"))


def test_a_store_with_a_broken_document_is_named(tmp_path: Path, describe: Any) -> None:
    folder = tmp_path / "a.zarr"
    folder.mkdir()
    (folder / "zarr.json").write_text('{"zarr_format": 3, "node_type": "arr')
    with pytest.raises(FormatError, match=r"a\.zarr.*zarr\.json is not JSON"):
        parse_schema(describe(folder))
    (folder / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array", "shape": [3]}')
    with pytest.raises(FormatError, match="not an array document"):
        parse_schema(describe(folder))


def _references(tmp_path: Path) -> tuple[dict[str, Any], np.ndarray]:
    values = np.arange(20, dtype="<i4").reshape(4, 5)
    (tmp_path / "data.bin").write_bytes(b"head" + values.tobytes())
    zarray = {
        "zarr_format": 2,
        "shape": [4, 5],
        "chunks": [1, 5],
        "dtype": "<i4",
        "compressor": None,
        "filters": None,
        "fill_value": 0,
        "order": "C",
    }
    refs: dict[str, Any] = {
        ".zgroup": '{"zarr_format": 2}',
        ".zattrs": '{"title": "kept"}',
        "x/.zarray": json.dumps(zarray),
        "x/.zattrs": '{"_ARRAY_DIMENSIONS": ["y", "x"]}',
        "x/0.0": ["{{u}}", 4, 20],
        "x/1.0": ["{{u}}", 24, 20],
        "x/2.0": "base64:" + base64.b64encode(values[2].tobytes()).decode(),
    }
    expected = values.copy()
    expected[3] = 0
    return refs, expected


def test_kerchunk_json_references_point_into_the_files(tmp_path: Path, describe: Any, check_references: Any) -> None:
    refs, expected = _references(tmp_path)
    document = {"version": 1, "templates": {"u": str(tmp_path / "data.bin")}, "refs": refs}
    (tmp_path / "set.json").write_text(json.dumps(document))
    schema = check_references(describe(tmp_path / "set.json"))
    assert schema.groups[""] == {"title": "kept"}
    assert schema.referenced == (f"file://{tmp_path}/",)
    _equal(describe(tmp_path / "set.json"), "x", expected)
    kinds = parse_source(describe(tmp_path / "set.json")).references["x"].table.kind
    assert kinds.tolist() == [ChunkKind.VIRTUAL, ChunkKind.VIRTUAL, ChunkKind.INLINE]


def test_kerchunk_parquet_references_are_read_by_record(tmp_path: Path, describe: Any, check_references: Any) -> None:
    refs, expected = _references(tmp_path)
    folder = tmp_path / "set.parq"
    (folder / "x").mkdir(parents=True)
    metadata = {k: json.loads(v) for k, v in refs.items() if k.rpartition("/")[2].startswith(".z")}
    (folder / ".zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": 2}))
    place = str(tmp_path / "data.bin")
    rows = [(place, 4, 20, None), (place, 24, 20, None), (None, 0, 0, expected[2].tobytes()), (None, 0, 0, None)]
    for record in (0, 1):
        part = rows[2 * record : 2 * record + 2]
        columns = dict(zip(("path", "offset", "size", "raw"), map(list, zip(*part, strict=True)), strict=True))
        types = {"path": pa.string(), "offset": pa.int64(), "size": pa.int64(), "raw": pa.binary()}
        table = pa.table({name: pa.array(columns[name], types[name]) for name in types})
        pq.write_table(table, folder / "x" / f"refs.{record}.parq")
    check_references(describe(folder))
    _equal(describe(folder), "x", expected)


def test_generated_references_and_broken_json_are_refused(tmp_path: Path, describe: Any) -> None:
    (tmp_path / "gen.json").write_text('{"version": 1, "gen": [], "refs": {}}')
    with pytest.raises(UnsupportedError, match="gen"):
        parse_schema(describe(tmp_path / "gen.json"))
    (tmp_path / "bad.json").write_text('{"refs": {')
    with pytest.raises(FormatError, match=r"bad\.json"):
        parse_schema(describe(tmp_path / "bad.json"))
