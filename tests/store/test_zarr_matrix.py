"""Everything that zarr writes comes back, before and after a commit, in every generation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

import icefloe
from icefloe import Repository, codec_pipeline

Make = Callable[..., Repository]
RECTILINEAR = "rectilinear_chunks" in zarr.config.get("array")


def document(store: Any, key: str) -> bytes:
    found = sync(store.get(key, default_buffer_prototype()))
    assert found is not None, key
    body: bytes = found.to_bytes()
    return body


def documents(store: Any) -> dict[str, bytes]:
    async def keys() -> list[str]:
        return [key async for key in store.list() if key.endswith("zarr.json")]

    return {key: document(store, key) for key in sync(keys())}


def reopened(repository: Repository) -> Any:
    return Repository.open(repository.storage).readonly_session("main").store


def equal(left: Any, right: Any) -> None:
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype.kind in "fc":
        assert (
            left.astype(left.dtype.newbyteorder("<")).tobytes() == right.astype(left.dtype.newbyteorder("<")).tobytes()
        )
    else:
        np.testing.assert_array_equal(left, right)


def sample(dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    count = int(np.prod(shape))
    random = np.random.default_rng(7)
    if dtype in ("string", "variable_length_bytes"):
        words: list[Any] = [f"ü{n}" * (n % 4) for n in range(count)]
        if dtype != "string":
            words = [word.encode() for word in words]
        return np.array(words, dtype=object).reshape(shape)
    kind = np.dtype(dtype)
    if kind.kind in "US":
        return np.array([f"{n}"[:3] for n in range(count)], dtype=kind).reshape(shape)
    if kind.fields is not None:
        out = np.zeros(shape, dtype=kind)
        for name in kind.names or ():
            out[name] = np.arange(count).reshape(shape)
        return out
    if kind.kind == "b":
        return random.integers(0, 2, shape).astype(kind)
    if kind.kind in "mM":
        values = random.integers(0, 10**6, shape).astype("i8").astype(kind)
        values.reshape(-1)[0] = np.array("NaT", dtype=kind)
        return values
    return (random.integers(0, 100, shape) + 1).astype(kind)


DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    ">i4",
    ">f8",
    "datetime64[s]",
    "datetime64[ns]",
    "timedelta64[ms]",
    "S5",
    "U4",
    "string",
    "variable_length_bytes",
    [("a", "<i4"), ("b", "<f8")],
]


@pytest.mark.filterwarnings("ignore")
def test_every_dtype_comes_back(make_repository: Make) -> None:
    repository = make_repository()
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    expected = {}
    for n, dtype in enumerate(DTYPES):
        values = sample(dtype, (7, 5))
        array = group.create_array(f"a{n}", shape=(7, 5), chunks=(3, 2), dtype=dtype)
        array[...] = values
        equal(array[...], values)
        expected[f"a{n}"] = values
        empty = group.create_array(f"e{n}", shape=(7, 5), chunks=(3, 2), dtype=dtype)
        expected[f"e{n}"] = empty[...]
    before = documents(session.store)
    session.commit("all of them")
    store = reopened(repository)
    assert documents(store) == before
    group = zarr.open_group(store, mode="r")
    for name, values in expected.items():
        equal(group[name][...], values)


def codec_chains() -> dict[str, dict[str, Any]]:
    inner = [TransposeCodec(order=(1, 0)), BytesCodec(endian="big"), ZstdCodec()]
    chains: dict[str, dict[str, Any]] = {
        "none": {"compressors": None},
        "zstd": {"compressors": [ZstdCodec(level=3)]},
        "gzip": {"compressors": [GzipCodec(level=1)]},
        "blosc": {"compressors": [BloscCodec(cname="lz4", shuffle="bitshuffle")]},
        "crc32c": {"compressors": [Crc32cCodec()]},
        "gzip and crc32c": {"compressors": [GzipCodec(level=1), Crc32cCodec()]},
        "big endian": {"compressors": None, "serializer": BytesCodec(endian="big")},
        "transpose": {"filters": [TransposeCodec(order=(1, 0))]},
        "shards": {"shards": (6, 4)},
        "shards with codecs": {"serializer": ShardingCodec(chunk_shape=(1, 1), codecs=inner), "compressors": None},
        "shards in shards": {
            "serializer": ShardingCodec(chunk_shape=(3, 2), codecs=[ShardingCodec(chunk_shape=(1, 2))]),
            "compressors": None,
        },
        "index at the start": {
            "serializer": ShardingCodec(chunk_shape=(1, 2), index_location="start"),
            "compressors": None,
        },
    }
    return chains


@pytest.mark.every_generation
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pipeline", ["zarr", "icefloe"])
def test_every_codec_comes_back(make_repository: Make, pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_pipeline._Choice, "by_default", False)
    path = codec_pipeline.PIPELINE if pipeline == "icefloe" else "zarr.core.codec_pipeline.BatchedCodecPipeline"
    settings = {"codec_pipeline.path": path}
    repository = make_repository()
    session = repository.writable_session("main")
    values = sample("int32", (13, 9))
    with zarr.config.set(settings):
        group = zarr.create_group(session.store)
        for name, options in codec_chains().items():
            array = group.create_array(name, shape=(13, 9), chunks=(3, 2), dtype="int32", **options)
            array[...] = values
            array[2:5, 1:3] = values[2:5, 1:3] * 2
        session.commit("all of them")
        group = zarr.open_group(reopened(repository), mode="r")
        expected = values.copy()
        expected[2:5, 1:3] *= 2
        for name in codec_chains():
            equal(group[name][...], expected)
            equal(group[name][3:8, ::3], expected[3:8, ::3])
            equal(group[name].oindex[[0, 5, 12], [1, 8]], expected[np.ix_([0, 5, 12], [1, 8])])


SHAPES = [((), ()), ((0,), (3,)), ((5, 0, 2), (2, 1, 2)), ((1,), (10,)), ((4, 4), (4, 4)), ((700,), (1,))]
ENCODINGS = [("default", "/"), ("default", "."), ("v2", "."), ("v2", "/")]


def test_every_shape_and_key_encoding_comes_back(make_repository: Make) -> None:
    repository = make_repository()
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    expected = {}
    for n, (shape, chunks) in enumerate(SHAPES):
        for m, (name, separator) in enumerate(ENCODINGS):
            if m and not repository.context.capabilities.any_key_encoding:
                with pytest.raises(icefloe.InvalidInputError, match="chunk key encoding"):
                    group.create_array(
                        f"g/{n}-{m}",
                        shape=shape,
                        chunks=chunks,
                        dtype="i2",
                        chunk_key_encoding={"name": name, "separator": separator},
                    )
                continue
            array = group.create_array(
                f"g/{n}-{m}",
                shape=shape,
                chunks=chunks,
                dtype="i2",
                fill_value=-3,
                dimension_names=[None if axis % 2 else f"dim {axis}" for axis in range(len(shape))],
                chunk_key_encoding={"name": name, "separator": separator},
            )
            if shape == (700,):
                array[690:] = 4
            else:
                array[...] = np.arange(np.prod(shape)).reshape(shape)
            expected[f"g/{n}-{m}"] = array[...]
    before = documents(session.store)
    session.commit("all of them")
    store = reopened(repository)
    assert documents(store) == before
    group = zarr.open_group(store, mode="r")
    for name, values in expected.items():
        equal(group[name][...], values)
        names = tuple(None if axis % 2 else f"dim {axis}" for axis in range(values.ndim))
        assert group[name].metadata.dimension_names in (names, names or None)


@pytest.mark.skipif(not RECTILINEAR, reason="this zarr has regular grids only")
def test_chunks_of_different_sizes_come_back_or_are_refused(make_repository: Make, generation: str) -> None:
    repository = make_repository()
    session = repository.writable_session("main")
    values = sample("int32", (10, 6))
    with zarr.config.set({"array.rectilinear_chunks": True}):
        group = zarr.create_group(session.store)
        if not repository.context.format.capabilities.any_chunk_grid:
            with pytest.raises(icefloe.InvalidInputError, match=generation):
                group.create_array("a", shape=(10, 6), chunks=[[1, 2, 3, 4], [5, 1]], dtype="int32")
            return
        array = group.create_array("a", shape=(10, 6), chunks=[[1, 2, 3, 4], [5, 1]], dtype="int32")
        array[...] = values
        session.commit("written")
        equal(zarr.open_array(reopened(repository), path="a", mode="r")[...], values)


FILLS = [
    ("f4", float("nan")),
    ("f8", float("inf")),
    ("f8", -0.0),
    ("f2", 1.5),
    ("i8", -(2**62)),
    ("u8", 2**64 - 1),
    ("bool", True),
    ("c16", complex(1, -2)),
    ("string", "nothing"),
    ("datetime64[D]", np.datetime64("NaT")),
    ("S3", b"ab"),
]


@pytest.mark.filterwarnings("ignore")
def test_every_fill_value_comes_back(make_repository: Make) -> None:
    repository = make_repository()
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    expected = [
        group.create_array(str(n), shape=(3,), dtype=dtype, fill_value=fill)[...]
        for n, (dtype, fill) in enumerate(FILLS)
    ]
    session.commit("nothing but fill")
    group = zarr.open_group(reopened(repository), mode="r")
    for n, values in enumerate(expected):
        equal(group[str(n)][...], values)


ATTRIBUTES: dict[str, Any] = {
    "text": 'Größe 漢字 🧊 \u0000 "quoted" \\',
    "null": None,
    "nested": {"a": [1, [2, {"b": None}]], "": ""},
    "numbers": [0, -1, 2**53 + 1, 1e300, 0.1, True],
    "empty": {},
    "_FillValue": "NaN",
    "zarr_format": 2,
}


def test_attributes_come_back_byte_for_byte(make_repository: Make) -> None:
    repository = make_repository(attributes_threshold_bytes=200)
    session = repository.writable_session("main")
    group = zarr.create_group(session.store, attributes=ATTRIBUTES)
    array = group.create_array("a", shape=(3,), dtype="f8", attributes={**ATTRIBUTES, "long": "x" * 5000})
    array.attrs["nan"] = float("nan")
    odd = b'{"node_type": "group",\n\t"attributes" : { "b": 1,"a":1.0e+2 , "n": NaN, "x": "' + b"y" * 300
    odd += b'" } , "zarr_format":3 }\r\n'
    sync(session.store.set("odd/zarr.json", cpu.Buffer.from_bytes(odd)))
    before = documents(session.store)
    session.commit("written")
    store = reopened(repository)
    assert documents(store) == before and before["odd/zarr.json"] == odd
    found = zarr.open_array(store, path="a", mode="r").attrs.asdict()
    assert np.isnan(found.pop("nan")) and found == {**ATTRIBUTES, "long": "x" * 5000}


def test_large_attributes_are_stored_once_and_reused(tmp_path: Path) -> None:
    config = icefloe.RepositoryConfig(attributes_threshold_bytes=1000)
    repository = Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "r")), config)
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    array = group.create_array("a", shape=(4,), chunks=(1,), dtype="i4", attributes={"long": "x" * 4000})
    group.create_array("b", shape=(4,), chunks=(1,), dtype="i4", attributes={"short": "x"})
    session.commit("made")

    def files() -> set[str]:
        return {path.name for path in (tmp_path / "r" / "attributes").iterdir()}

    first = files()
    assert len(first) == 1
    for n in range(4):
        session = repository.writable_session("main")
        zarr.open_array(session.store, path="a")[n] = n
        zarr.open_array(session.store, path="b").attrs["short"] = str(n)
        session.commit("chunks and others")
    assert files() == first
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a").attrs["more"] = "y"
    session.commit("changed")
    assert len(files()) == 2
    assert zarr.open_array(reopened(repository), path="a").attrs.asdict() == {"long": "x" * 4000, "more": "y"}
    assert array.shape == (4,)


def test_metadata_that_a_user_consolidated_comes_back(make_repository: Make) -> None:
    repository = make_repository()
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("g/a", shape=(3,), dtype="i4")
    consolidated = json.loads(document(session.store, "zarr.json"))
    consolidated["consolidated_metadata"] = {
        "kind": "inline",
        "must_understand": False,
        "metadata": {"g/a": json.loads(document(session.store, "g/a/zarr.json"))},
    }
    body = json.dumps(consolidated, indent=3).encode()
    sync(session.store.set("zarr.json", cpu.Buffer.from_bytes(body)))
    session.commit("consolidated")
    assert document(reopened(repository), "zarr.json") == body


@pytest.mark.parametrize("steps", [1, 3])
def test_a_shrunk_array_forgets_what_it_lost(make_repository: Make, steps: int) -> None:
    """`steps` commits are made in between, or only one at the end."""
    repository = make_repository()
    model = np.arange(100).reshape(10, 10)
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, shape=(10, 10), chunks=(3, 3), dtype="i8", fill_value=-1)
    array[...] = model

    def next_session() -> Any:
        nonlocal session
        if steps > 1:
            session.commit("a step")
            session = Repository.open(repository.storage).writable_session("main")
        return zarr.open_array(session.store)

    array = next_session()
    array.resize((4, 5))
    equal(array[...], model[:4, :5])
    array = next_session()
    array.resize((10, 10))
    expected = np.full((10, 10), -1)
    # Zarr keeps whole chunks: the last ones that were cut keep what lay beyond the edge.
    expected[:6, :6] = model[:6, :6]
    equal(array[...], expected)
    array = next_session()
    array.append(np.full((2, 10), 5), axis=0)
    expected = np.concatenate([expected, np.full((2, 10), 5)])
    equal(array[...], expected)
    session.commit("the end")
    equal(zarr.open_array(reopened(repository))[...], expected)


def test_a_node_is_deleted_and_made_again_as_something_else(make_repository: Make) -> None:
    repository = make_repository()
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("x", shape=(4,), chunks=(2,), dtype="i4")[...] = 1
    group.create_group("y").create_array("z", shape=(4,), chunks=(2,), dtype="i4")[...] = 2
    session.commit("first")

    session = repository.writable_session("main")
    group = zarr.open_group(session.store)
    del group["x"]
    del group["y"]
    group.create_array("y", shape=(4,), chunks=(1,), dtype="i2", fill_value=9)
    group.create_group("x").create_array("z", shape=(2,), chunks=(1,), dtype="i2")[...] = 3
    equal(group["y"][...], [9] * 4)
    session.commit("second")

    group = zarr.open_group(reopened(repository), mode="r")
    equal(group["y"][...], [9] * 4)
    equal(group["x/z"][...], [3, 3])
    first = list(repository.ancestry(branch="main"))[1].id
    before = zarr.open_group(repository.readonly_session(snapshot_id=first).store, mode="r")
    equal(before["x"][...], [1] * 4)
    equal(before["y/z"][...], [2] * 4)


def test_a_moved_group_has_everything_below_it(make_repository: Make) -> None:
    repository = make_repository()
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("old/in/a", shape=(4,), chunks=(2,), dtype="i4")[...] = 1
    group.create_array("old-b", shape=(4,), chunks=(2,), dtype="i4")[...] = 2
    session.commit("first")
    session = repository.writable_session("main")
    session.move("/old", "/new")
    session.commit("moved")
    group = zarr.open_group(reopened(repository), mode="r")
    equal(group["new/in/a"][...], [1] * 4)
    equal(group["old-b"][...], [2] * 4)
    assert sorted(group) == ["new", "old-b"]
