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
import xarray as xr
import zarr

from icefloe import Repository, in_memory_storage
from icefloe.errors import FormatError, InvalidInputError, UnsupportedError
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.parsers.registry import open_source, parse_schema, parse_source
from icefloe.ingest.sources import IngestOptions
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


_VALUES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "bool": (np.array([True, False, True]), (False, True, None)),
    "bytes": (np.array([b"ab", b"", b"cd"], "S2"), (b"", b"cd", b"zz", None)),
    "fixed": (np.array(["ab", "", "cd"], "U2"), ("", "cd", "zz", None)),
    "text": (np.array(["ab", "", "cdef"], object), ("", "cdef", "zz", None)),
    "complex": (np.array([1 + 2j, 0, 3]), (0j, 1 + 2j, None)),
    "half": (np.array([1, 2, 3], "f2"), (2.0, np.nan, None)),
    "wide": (np.array([1, 2, 2**64 - 1], "u8"), (2**64 - 1, 0, None)),
    "date": (np.array(["2020-01-01", "NaT", "1970-01-01"], "M8[s]"), (np.datetime64("NaT"), None)),
}


@pytest.mark.parametrize("mode", ["native", "mixed", "virtual"])
@pytest.mark.parametrize("kind", sorted(_VALUES))
@pytest.mark.parametrize("written", [3, 2], ids=["whole", "unwritten"])
def test_version_2_fill_values_mean_what_they_mean_to_xarray_or_are_refused(
    tmp_path: Path, kind: str, mode: Any, written: int
) -> None:
    values, fills = _VALUES[kind]
    for number, fill in enumerate(fills):
        path = tmp_path / f"{number}.zarr"
        root = zarr.open_group(path, mode="w", zarr_format=2)
        dtype = str if values.dtype == object else values.dtype
        array = root.create_array("v", shape=values.shape, dtype=dtype, chunks=(1,), fill_value=fill)
        array.attrs["_ARRAY_DIMENSIONS"] = ["x"]
        array[:written] = values[:written]
        expected = xr.open_zarr(path, consolidated=False).v.values
        repository = Repository.create(in_memory_storage())
        is_missing_text = kind in ("bytes", "fixed", "text") and any(v != v for v in expected.tolist())
        if is_missing_text:
            with pytest.raises(InvalidInputError, match="Zarr has no missing text"):
                ingest_local(path, repository, IngestOptions(mode=mode))
            ingest_local(path, repository, IngestOptions(mode=mode, drop_variables=("v",)))
            continue
        result = ingest_local(path, repository, IngestOptions(mode=mode))
        assert result.plan is not None
        allowed = dict.fromkeys(result.plan.containers)
        reader = Repository.open(repository.storage, authorize_virtual_chunk_access=allowed)
        found = xr.open_zarr(reader.readonly_session("main").store, consolidated=False).v.values
        assert list(map(repr, found.tolist())) == list(map(repr, expected.tolist()))


@pytest.mark.parametrize("mode", ["native", "virtual"])
@pytest.mark.parametrize("how", ["once", "append"])
def test_booleans_with_other_missing_values_are_not_joined(tmp_path: Path, mode: Any, how: str) -> None:
    paths = [tmp_path / f"{number}.zarr" for number in range(2)]
    for number, (path, fill) in enumerate(zip(paths, (False, None), strict=True)):
        root = zarr.open_group(path, mode="w", zarr_format=2)
        for name, values in (("time", np.array([number])), ("v", np.array([False]))):
            array = root.create_array(
                name, shape=(1,), dtype=values.dtype, chunks=(1,), fill_value=fill if name == "v" else None
            )
            array.attrs["_ARRAY_DIMENSIONS"] = ["time"]
            array[:] = values
    repository = Repository.create(in_memory_storage())
    options = IngestOptions(mode=mode)
    if how == "append":
        ingest_local(paths[:1], repository, options)
        paths, options = paths[1:], IngestOptions(mode=mode, append_dim="time")
    with pytest.raises(InvalidInputError, match="v: _FillValue: expected .*, found .*do not mean the same"):
        ingest_local(paths, repository, options)


def _change_attribute(root: zarr.Group) -> None:
    root["v"].attrs["units"] = "K"


def _change_length(root: zarr.Group) -> None:
    root["v"].resize((5,))


def _add(root: zarr.Group) -> None:
    root.create_array("w", shape=(2,), dtype="i4")


def _remove(root: zarr.Group) -> None:
    del root["v"]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("change", [_change_attribute, _change_length, _add, _remove])
def test_stale_consolidated_metadata_are_refused(tmp_path: Path, describe: Any, zarr_format: Any, change: Any) -> None:
    path = tmp_path / "a.zarr"
    root = zarr.open_group(path, mode="w", zarr_format=zarr_format, attributes={"missing": float("nan")})
    root.create_array("v", shape=(3,), dtype="f4", fill_value=np.nan)
    root.create_array("group/u", shape=(), dtype="i4")
    zarr.consolidate_metadata(path)
    assert set(parse_schema(describe(path)).variables) == {"v", "group/u"}
    change(zarr.open_group(path, mode="r+", use_consolidated=False))
    with pytest.raises(
        FormatError, match=r"a\.zarr/? has consolidated metadata that differs from the metadata of its nodes"
    ):
        parse_schema(describe(path))
    zarr.consolidate_metadata(path)
    parse_schema(describe(path))
