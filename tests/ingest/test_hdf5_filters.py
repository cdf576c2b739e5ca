"""Filters of HDF5 by reference: the codec `icefloe.hdf5`, compared with what the HDF5 library reads."""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from icefloe import Repository
from icefloe.blocking import run_blocking
from icefloe.errors import FormatError, InvalidInputError
from icefloe.hdf5_codec import Hdf5Codec
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.parsers.registry import decode_references, parse_source
from icefloe.ingest.sources import IngestOptions
from icefloe.model.chunk_table import ChunkKind
from icefloe.stored_values import encode_stored

imagecodecs = pytest.importorskip("imagecodecs")

_NUMBERS = ["u1", "i1", "<u2", ">i2", "<i4", ">u4", "<i8", ">u8", "<f4", ">f4", "<f8", ">f8"]


def _values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, kind: str) -> np.ndarray:
    """Values of one kind: all equal, few different ones, smooth, or all bits at random."""
    if kind == "equal":
        return np.full(shape, 7, dtype)
    if kind == "few":
        return rng.integers(0, 5, shape).astype(dtype)
    if kind == "smooth":
        return (np.cumsum(rng.integers(-2, 3, shape).reshape(-1)).reshape(shape) % 100).astype(dtype)
    if np.dtype(dtype).kind == "f":
        return (rng.standard_normal(shape) * 1000).astype(dtype)
    return rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), "u1").view(dtype)[..., 0]


@st.composite
def _datasets(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any]]:
    """Values, and the arguments of `create_dataset`."""
    dtype = draw(st.sampled_from(_NUMBERS))
    shape = tuple(draw(st.lists(st.integers(1, 24), min_size=1, max_size=3)))
    chunks = tuple(draw(st.integers(1, n)) for n in shape)
    kind = draw(st.sampled_from(["equal", "few", "smooth", "random"]))
    values = _values(np.random.default_rng(draw(st.integers(0, 999))), shape, dtype, kind)
    options: dict[str, Any] = {"chunks": chunks, "shuffle": draw(st.booleans())}
    match draw(st.sampled_from(["szip", "lzf", "scaleoffset", "scaleoffset"])):
        case "szip":
            options["compression"] = "szip"
            options["compression_opts"] = (draw(st.sampled_from(["nn", "ec"])), draw(st.sampled_from([4, 16, 32])))
        case "lzf":
            options["compression"] = "lzf"
        case _:
            bits = st.integers(-3, 6) if np.dtype(dtype).kind == "f" else st.integers(0, 8 * np.dtype(dtype).itemsize)
            options["scaleoffset"] = draw(bits)
            options["compression"] = draw(st.sampled_from([None, "gzip", "lzf"]))
    if "scaleoffset" not in options:
        options["fletcher32"] = draw(st.booleans())
    fill = draw(st.sampled_from([None, 0, 7, 3]))
    if fill is not None:
        options["fillvalue"] = fill
    return values, options


@pytest.mark.long
@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(_datasets())
def test_filtered_chunks_by_reference_equal_the_hdf5_library(
    describe: Any, check_references: Any, written: tuple[np.ndarray, dict[str, Any]]
) -> None:
    values, options = written
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        try:
            with h5py.File(path, "w") as file:
                dataset = file.create_dataset("x", shape=values.shape, dtype=values.dtype, **options)
                dataset[: max(1, len(values) // 2)] = values[: max(1, len(values) // 2)]
                masks = {
                    tuple(a // b for a, b in zip(info.chunk_offset, options["chunks"], strict=True)): info.filter_mask
                    for info in map(dataset.id.get_chunk_info, range(dataset.id.get_num_chunks()))
                }
        except (ValueError, OSError):
            assume(False)  # szip refuses some chunk shapes and types
        schema = check_references(describe(path))
        assert schema.variables["x"].not_virtual is None
        found = parse_source(describe(path)).references["x"]
        # A filter that would not make a chunk smaller is skipped, which its mask says. Such a chunk is read by value.
        assert {tuple(c) for c in found.by_value.tolist()} == {c for c, mask in masks.items() if mask}
        assert {tuple(c) for c in found.table.coords.tolist()} == {c for c, mask in masks.items() if not mask}


# Chunks of 100 values, `arange(100) % 7 * 3`, which hdf5plugin 7.1 wrote. The HDF5 library alone lacks these filters.
_PLUGINS: list[tuple[str, int, tuple[int, ...], str]] = [
    (
        "<i4",
        32004,
        (160,),
        "AAAAAAAAAZAAAACgAAAAJ/AKAAAAAAMAAAAGAAAACQAAAAwAAAAPAAAAEhkADxwAa1AADAAAAAAAACRiDwAAABIAAQD/AQMAAAAGAAAACQAAAAwA"
        "AAAcAGxQAAYAAAAAAAAj4gkAAAAMAAAADwAAABIAAQCPAwAAAAYAAAAcABxQAAMAAAA=",
    ),
    (
        "<i2",
        32008,
        (0, 4, 2, 40, 0),
        "KpVKpVJms9lsNjQajUajOBwOh8NAIBAIBAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACpVCqV"
        "SpvNZrPZ0Wg0Go3hcDgcDgKBQCAQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAKVSbDZGo4fD"
        "CAQAAAAAAAAAAAAAAAAAAAAAAAAAAAAADwASAAAAAwA=",
    ),
    (
        "<f4",
        32008,
        (0, 4, 4, 40, 2),
        "AAAAAAAAAZAAAACgAAAALh8AAQBQ/wpoNBqNRiAQCAQCNpvNZrNEIpFIJHg8Ho/HfAAGoH6/3+/3AAAAAAAAAAAuHwABAFD/CqPRaDQagUAgEAjZ"
        "bDabzRKJRCKR4/F4PB58AAag+/1+v98AAAAAAAAAABgfAAEAFKWNRgQCZrNIJI/HMQBQAO/3AAAAAHBBAACQQQAAAAAAAEBA",
    ),
    (
        ">u4",
        32008,
        (0, 4, 4, 0, 3, 3),
        "AAAAAAAAAZAAACAAAAAAQyi1L/1ggADNAQBUAgAAKpVKpVKpVGaz2Ww2m800Go1Go9FoOBwOh8PhcEAgEAgEAoEHALkWAUAMOAOaAWJULrOhAiwA"
        "AAAPAAAAEgAAAAAAAAAD",
    ),
]


def _write_chunk(path: Path, dtype: str, number: int, values: tuple[int, ...], content: bytes) -> None:
    """A dataset of one chunk with a filter that the HDF5 library does not have."""
    with h5py.File(path, "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((100,))
        plist.set_filter(number, h5py.h5z.FLAG_OPTIONAL, values)
        space = h5py.h5s.create_simple((100,))
        made = h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(np.dtype(dtype)), space, plist)
        made.write_direct_chunk((0,), content)


@pytest.mark.parametrize(("dtype", "number", "values", "content"), _PLUGINS, ids=["lz4", "none", "bslz4", "bszstd"])
def test_chunks_of_registered_filters_are_read(
    tmp_path: Path, describe: Any, dtype: str, number: int, values: tuple[int, ...], content: str
) -> None:
    path = tmp_path / "a.h5"
    _write_chunk(path, dtype, number, values, base64.b64decode(content))
    parsed = parse_source(describe(path))
    variable = parsed.schema.variables["x"]
    assert variable.not_virtual is None and len(parsed.references["x"].table) == 1
    found = decode_references(variable, parsed.references["x"].table, (slice(0, 100),), SourceAccess())
    np.testing.assert_array_equal(found, (np.arange(100) % 7 * 3).astype(dtype))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(1, 3000),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([8, 64, 1024]),
    st.sampled_from([0, 2, 3]),
    st.integers(0, 99),
)
def test_bitshuffled_blocks_are_put_together(count: int, size: int, block: int, compression: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 9, count).astype(f"<u{size}").tobytes()
    shuffled = bytes(imagecodecs.bitshuffle_encode(values, itemsize=size, blocksize=block))
    content = shuffled
    if compression:
        encode = imagecodecs.lz4_encode if compression == 2 else imagecodecs.zstd_encode
        packed = count // 8 * 8 * size
        blocks = [bytes(encode(shuffled[at : min(packed, at + block * size)])) for at in range(0, packed, block * size)]
        content = len(values).to_bytes(8, "big") + (block * size).to_bytes(4, "big")
        content += b"".join(len(each).to_bytes(4, "big") + each for each in blocks) + shuffled[packed:]
    codec = Hdf5Codec("bitshuffle", (size, block, compression), len(values))
    assert codec.decode_bytes(content, len(values)) == values


@given(st.binary(max_size=200), st.integers(1, 9))
def test_bytes_behind_the_last_element_are_not_shuffled(content: bytes, size: int) -> None:
    whole = len(content) // size * size
    expected = bytearray(content)
    for position in range(whole):
        expected[position] = content[position % size * (whole // size) + position // size]
    assert Hdf5Codec("shuffle", (size,)).decode_bytes(content, 200) == bytes(expected)


@pytest.mark.parametrize(
    ("number", "values", "name"),
    [(5, (1, 2), "nbit"), (32013, (1,), "zfp"), (32017, (1,), "SZ"), (32008, (0, 4, 4, 3, 2), "32008")],
)
def test_other_filters_have_a_reason(
    tmp_path: Path, describe: Any, number: int, values: tuple[int, ...], name: str
) -> None:
    _write_chunk(tmp_path / "a.h5", "<i4", 32004, (0,), b"\0" * 30)
    content = (tmp_path / "a.h5").read_bytes()
    if number != 5:
        _write_chunk(tmp_path / "a.h5", "<i4", number, values, b"\0" * 30)
    else:
        # The library checks the parameters of its own filter, so the number is changed in the file.
        changed = content.replace((32004).to_bytes(2, "little"), (5).to_bytes(2, "little"))
        assert changed != content
        (tmp_path / "a.h5").write_bytes(changed)
    assert name in str(parse_source(describe(tmp_path / "a.h5")).schema.variables["x"].not_virtual)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([("STD_I16LE", "<i2"), ("STD_U16BE", ">u2"), ("STD_I32BE", ">i4"), ("STD_U8LE", "u1")]),
    st.data(),
)
def test_integers_that_use_some_of_their_bits_are_read_by_value(
    describe: Any, check_references: Any, kind: tuple[str, str], data: st.DataObject
) -> None:
    name, dtype = kind
    size = 8 * np.dtype(dtype).itemsize
    precision = data.draw(st.integers(size // 2 + 1, size))  # the library refuses fewer
    stored = getattr(h5py.h5t, name).copy()
    stored.set_precision(precision)
    stored.set_offset(data.draw(st.integers(0, size - precision)))
    values = (np.arange(8) - (4 if "i" in dtype else 0)).astype(dtype)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        with h5py.File(path, "w") as file:
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((8,))
            made = h5py.h5d.create(file.id, b"x", stored, h5py.h5s.create_simple((8,)), plist)
            h5py.Dataset(made)[...] = values
        schema = check_references(describe(path))
        assert (schema.variables["x"].not_virtual is None) == (precision == size)


@pytest.mark.parametrize("fields", [(15, 7, 8, 0, 7), (31, 23, 8, 0, 23)])
def test_floats_of_another_layout_are_read_by_value_or_refused(
    tmp_path: Path, describe: Any, check_references: Any, fields: tuple[int, ...]
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        stored = h5py.h5t.IEEE_F32LE.copy()
        stored.set_fields(*fields)
        if fields[0] == 15:
            stored.set_precision(16)
            stored.set_size(2)
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((8,))
        made = h5py.h5d.create(file.id, b"x", stored, h5py.h5s.create_simple((8,)), plist)
        h5py.Dataset(made)[...] = np.arange(8)
    variable = check_references(describe(tmp_path / "a.h5")).variables["x"]
    assert (variable.not_virtual is None) == (fields[0] == 31)


def _kinds(repository: Repository, path: str) -> set[int]:
    state = repository.readonly_session("main").state
    return {int(kind) for kind in run_blocking(state.chunk_table(state.tree.array(path))).kind}


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "lzf", "shuffle": True, "fletcher32": True},
        {"compression": "szip"},
        {"scaleoffset": 2, "dtype": "f4"},
        {"scaleoffset": 0, "compression": "gzip", "shuffle": True},
    ],
    ids=["lzf", "szip", "float", "integer"],
)
@pytest.mark.parametrize("pipeline", ["ours", "zarr"])
def test_an_array_of_filtered_chunks_is_read_written_and_read_again(
    tmp_path: Path, options: dict[str, Any], pipeline: str
) -> None:
    (tmp_path / "in").mkdir()
    values = np.add.outer(np.arange(40), np.arange(60) % 7).astype(options.get("dtype", ">i4"))
    with h5py.File(tmp_path / "in" / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(16, 16), **options)
        values = file["x"][...]
    ingest_local(tmp_path / "in", Repository.create(str(tmp_path / "repo")), IngestOptions(mode="virtual"))
    allowed = {f"file://{tmp_path}/in/": None}
    repository = Repository.open(str(tmp_path / "repo"), authorize_virtual_chunk_access=allowed)
    assert _kinds(repository, "/x") == {ChunkKind.VIRTUAL}
    ours = zarr.config.get("codec_pipeline.path")
    with zarr.config.set(
        {"codec_pipeline.path": ours if pipeline == "ours" else "zarr.core.codec_pipeline.BatchedCodecPipeline"}
    ):
        session = repository.writable_session("main")
        array = zarr.open_array(session.store, path="x", mode="r+")
        np.testing.assert_array_equal(array[...], values)
        # scaleoffset=2 would round this value. What zarr writes is kept as it is.
        changed = 1.23456 if values.dtype.kind == "f" else 123456
        array[3:20, 5] = changed
        session.commit("correct some cells")
        store = repository.readonly_session("main").store
        found = zarr.open_array(store, path="x", mode="r")[...]
    values[3:20, 5] = changed
    np.testing.assert_array_equal(found, values)
    assert ChunkKind.VIRTUAL in _kinds(repository, "/x")


# Damaged and hostile bytes


def _encoded() -> dict[str, tuple[Hdf5Codec, bytes]]:
    values = (np.arange(400) % 50).astype("<i4")
    data = values.tobytes()
    encoded: dict[str, tuple[Hdf5Codec, bytes]] = {
        "lz4": (Hdf5Codec("lz4", (), 1600), bytes(imagecodecs.lz4h5_encode(data))),
    }
    with h5py.File("a.h5", "w", driver="core", backing_store=False) as file:
        for name, options in (("lzf", {"compression": "lzf"}), ("szip", {"compression": "szip"})):
            made = file.create_dataset(name, data=values, chunks=(400,), **options)
            parameters = made.id.get_create_plist().get_filter(0)[2] if name == "szip" else ()
            encoded[name] = Hdf5Codec(name, tuple(parameters), 1600), made.id.read_direct_chunk((0,))[1]
        for name, dtype in (("integers", "<i4"), ("floats", "<f4")):
            made = file.create_dataset(name, data=values.astype(dtype), chunks=(400,), scaleoffset=0, fillvalue=3)
            parameters = made.id.get_create_plist().get_filter(0)[2]
            encoded[name] = Hdf5Codec("scaleoffset", tuple(parameters), 1600), made.id.read_direct_chunk((0,))[1]
    shuffled = bytes(imagecodecs.bitshuffle_encode(data, itemsize=4, blocksize=200))
    blocks = [bytes(imagecodecs.lz4_encode(shuffled[at : at + 800])) for at in (0, 800)]
    content = (1600).to_bytes(8, "big") + (800).to_bytes(4, "big")
    content += b"".join(len(each).to_bytes(4, "big") + each for each in blocks)
    encoded["bitshuffle"] = Hdf5Codec("bitshuffle", (4, 200, 2), 1600), content
    return encoded


_ENCODED = _encoded()


@pytest.mark.parametrize("name", _ENCODED)
def test_the_examples_of_damage_are_valid_before_it(name: str) -> None:
    codec, content = _ENCODED[name]
    kind = "<f4" if name == "floats" else "<i4"
    np.testing.assert_array_equal(np.frombuffer(codec.decode_bytes(content, 1600), kind), np.arange(400) % 50)


@settings(max_examples=400)
@given(
    st.sampled_from(sorted(_ENCODED)), st.integers(0, 2**32 - 1), st.sampled_from(["cut", "flip", "large", "random"])
)
def test_damaged_chunks_are_errors_of_one_type(name: str, seed: int, how: str) -> None:
    codec, intact = _ENCODED[name]
    rng, content = np.random.default_rng(seed), bytearray(intact)
    if how == "cut":
        del content[int(rng.integers(len(content))) :]
    elif how == "flip":
        content[int(rng.integers(len(content)))] ^= int(rng.integers(1, 256))
    elif how == "large":
        at = int(rng.integers(min(len(content), 24)))
        content[at : at + 4] = b"\x7f\xff\xff\xff"
    else:
        content = bytearray(rng.integers(0, 256, int(rng.integers(90)), "u1").tobytes())
    array = zarr.create_array({}, shape=(400,), chunks=(400,), dtype="i4", compressors=[codec], filters=[])
    make = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes
    array.store._store_dict["c/0"] = make(bytes(content))  # type: ignore[attr-defined]
    try:
        assert array[...].shape == (400,)
    except FormatError:
        return


@pytest.mark.parametrize("name", sorted(_ENCODED))
def test_a_chunk_claims_no_more_memory_than_it_has(name: str) -> None:
    codec, content = _ENCODED[name]
    for wrong in (encode_stored(bytes(3000)), encode_stored(bytes(10**7)), content[:3], b""):
        array = zarr.create_array({}, shape=(400,), chunks=(400,), dtype="i4", compressors=[codec], filters=[])
        make = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes
        array.store._store_dict["c/0"] = make(wrong)  # type: ignore[attr-defined]
        with pytest.raises(FormatError, match=r"icefloe\.hdf5"):
            array[...]
    for smaller in (0, 100, 1599):
        with pytest.raises(FormatError, match=r"icefloe\.hdf5"):
            Hdf5Codec(codec.filter, codec.values).decode_bytes(content, smaller)


@pytest.mark.parametrize(
    ("settings_", "reason"),
    [
        ({}, "needs the text `filter`"),
        ({"filter": "lzf", "level": 3}, "allows"),
        ({"filter": "nbit"}, "is none of"),
        ({"filter": "szip", "values": [1, 2]}, "needs 4 numbers"),
        ({"filter": "szip", "values": [1, 2, 3, "4"]}, "needs 4 numbers"),
        ({"filter": "lzf", "size_bytes": -1}, "not a size"),
        ({"filter": "bitshuffle", "values": [4, 3, 2]}, "not possible"),
        ({"filter": "bitshuffle", "values": [4, 8, 1]}, "not possible"),
        ({"filter": "shuffle", "values": [0]}, "0 bytes"),
        ({"filter": "scaleoffset", "values": [1] * 20}, "not possible"),
    ],
)
def test_invalid_configurations_are_refused(settings_: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        Hdf5Codec.from_dict({"name": "icefloe.hdf5", "configuration": settings_})


@pytest.mark.parametrize("name", sorted(_ENCODED))
def test_a_configuration_is_read_as_it_is_written(name: str) -> None:
    codec = _ENCODED[name][0]
    assert Hdf5Codec.from_dict(codec.to_dict()) == codec


def test_the_codecs_are_registered_without_imagecodecs() -> None:
    project = Path(__file__).parents[2]
    assert '\n"icefloe.hdf5" = "icefloe.hdf5_codec:Hdf5Codec"\n' in (project / "pyproject.toml").read_text()
    code = """
import sys, icefloe.codec_pipeline
from zarr.registry import get_codec_class
assert get_codec_class("icefloe.hdf5").__module__ == "icefloe.hdf5_codec"
assert get_codec_class("icefloe.tiff").__module__ == "icefloe.tiff_codec"
assert not {"imagecodecs", "tifffile", "h5py"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
