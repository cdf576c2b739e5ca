"""Tiles and strips of TIFF files by reference: the codec `icefloe.tiff`, what it reads, writes and refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from icefloe import Repository
from icefloe.blocking import run_blocking
from icefloe.errors import FormatError, IcefloeError, InvalidInputError
from icefloe.ingest.derived_arrays import pyramid_local
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.parsers.registry import decode_references, open_source, parse_source
from icefloe.ingest.sources import IngestOptions
from icefloe.model.chunk_table import ChunkKind
from icefloe.stored_values import encode_stored
from icefloe.tiff_codec import BYTE_COMPRESSIONS, IMAGE_COMPRESSIONS, TiffCodec

tifffile = pytest.importorskip("tifffile")
imagecodecs = pytest.importorskip("imagecodecs")

pytestmark = pytest.mark.filterwarnings("ignore")

_NAMES = {"deflate": "zlib", "jpeg2k": "jpeg2000"}
"""Names of tifffile that differ."""
_TYPES = {
    "jpeg": ["u1"],
    "webp": ["u1"],
    "png": ["u1", "u2"],
    "jpeg2k": ["u1", "u2", "i2"],
    "jpegxl": ["u1", "u2", "f4"],
    "lerc": ["u1", "i1", "u2", "i4", "f4", "f8"],
}


def _scene(shape: tuple[int, ...], dtype: str, seed: int = 1) -> np.ndarray:
    """Smooth values with some noise, as pictures have them."""
    rng = np.random.default_rng(seed)
    lines = np.add.outer(np.arange(shape[0]), np.arange(shape[1]))
    rest = (1,) * (len(shape) - 2)
    values = 90 + 40 * np.sin(lines / 7).reshape(*shape[:2], *rest) + 9 * rng.random(shape)
    return values.astype(dtype)


@st.composite
def _segments(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any], dict[str, Any]]:
    """An image, how tifffile writes it, and the byte order and size of its file."""
    compression = draw(st.sampled_from([*BYTE_COMPRESSIONS, *IMAGE_COMPRESSIONS]))
    types = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8"]
    dtype = draw(st.sampled_from(_TYPES.get(compression, types)))
    samples = draw(st.sampled_from([3, 4] if compression == "webp" else [1, 1, 3, 4]))
    layout = "contig" if compression == "webp" else draw(st.sampled_from(["contig", "separate"]))
    height, width = draw(st.integers(1, 45)), draw(st.integers(1, 45))
    image = _scene((height, width, samples), dtype, draw(st.integers(0, 99)))
    options: dict[str, Any] = {
        "compression": _NAMES.get(compression, compression),
        "photometric": "minisblack",
        "metadata": None,
    }
    if samples == 1:
        image = image[..., 0]
    else:
        options["planarconfig"] = layout
        if samples == 3 and dtype in ("u1", "u2"):
            options["photometric"] = "rgb"
        elif compression in ("webp", "jpeg"):
            options |= {"photometric": "rgb", "extrasamples": ["unassalpha"]}
        if layout == "separate":
            image = np.ascontiguousarray(np.moveaxis(image, -1, 0))
    if draw(st.booleans()):
        options["tile"] = (16 * draw(st.integers(1, 2)), 16)
    else:
        options["rowsperstrip"] = draw(st.integers(1, height))
    predictors = [1]
    if compression in BYTE_COMPRESSIONS and dtype != "c8":
        predictors = [1, 3] if dtype.startswith("f") else [1, 2]
    options["predictor"] = draw(st.sampled_from(predictors))
    byteorder = draw(st.sampled_from("<>"))
    assume(not (compression == "lerc" and byteorder == ">"))
    return image, options, {"byteorder": byteorder, "bigtiff": draw(st.booleans())}


@pytest.mark.long
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(_segments())
def test_segments_by_reference_equal_tifffile(
    describe: Any, check_references: Any, written: tuple[np.ndarray, dict[str, Any], dict[str, Any]]
) -> None:
    image, options, file = written
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tif"
        try:
            with tifffile.TiffWriter(path, **file) as writer:
                writer.write(image, **options)
            expected = tifffile.imread(path)
        except Exception:
            assume(False)  # tifffile cannot write or read this combination
        check_references(describe(path))
        parsed = parse_source(describe(path))
        variable, found = parsed.schema.variables["image"], parsed.references["image"]
        assert variable.not_virtual is None
        # Only strips at the end of an image, which are shorter than their chunk, are read by value.
        axis = variable.dims.index("y")
        is_cut = "tile" not in options and variable.shape[axis] % variable.chunks[axis]
        last = (variable.shape[axis] - 1) // variable.chunks[axis]
        assert {int(c) for c in found.by_value[:, axis]} == ({last} if is_cut else set())
        assert len(found.table) or is_cut
        with open_source(describe(path)) as source:
            whole = tuple(slice(0, n) for n in variable.shape)
            values = source.values(variable, whole)
            np.testing.assert_array_equal(values.squeeze(), expected.squeeze())
            if not is_cut:
                decoded = decode_references(variable, found.table, whole, source.access)
                np.testing.assert_array_equal(decoded.squeeze(), expected.squeeze())


@pytest.mark.parametrize("quality", [60, 95])
@pytest.mark.parametrize("subsampling", [(1, 1), (2, 2)])
def test_colours_of_jpeg_tiles_are_those_of_tifffile(
    tmp_path: Path, check_references: Any, describe: Any, quality: int, subsampling: tuple[int, int]
) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(
        path,
        _scene((70, 50, 3), "u1"),
        tile=(32, 32),
        photometric="rgb",
        compression="jpeg",
        compressionargs={"level": quality},
        subsampling=subsampling,
    )
    variable = check_references(describe(path)).variables["image"]
    assert variable.codecs[0]["configuration"]["jpeg_output"] == 2
    assert len(parse_source(describe(path)).references["image"].by_value) == 0


def test_jpeg_tables_of_a_file_are_part_of_the_array(tmp_path: Path, describe: Any, check_references: Any) -> None:
    image = _scene((32, 48), "u1")
    tables, tiles = b"", []
    for column in range(0, 48, 16):
        for row in range(0, 32, 16):
            content = bytes(imagecodecs.jpeg8_encode(image[row : row + 16, column : column + 16], level=80))
            tables, tile = _abbreviated(content)
            tiles.append((row, column, tile))
    tiles.sort()
    path = tmp_path / "a.tif"
    tags = [(347, 7, len(tables), tables, True)]
    with tifffile.TiffWriter(path) as writer:
        encoded = (tile for _, _, tile in tiles)
        writer.write(
            encoded, shape=image.shape, dtype="u1", tile=(16, 16), compression="jpeg", extratags=tags, metadata=None
        )
    schema = check_references(describe(path))
    assert "jpeg_tables" in schema.variables["image"].codecs[0]["configuration"]
    assert len(parse_source(describe(path)).references["image"].table) == 6
    assert np.abs(tifffile.imread(path).astype(int) - image).max() < 30


def _abbreviated(content: bytes) -> tuple[bytes, bytes]:
    """The tables of a JPEG image as a stream of their own, and the image without them."""
    tables, rest, at = b"", b"", 2
    while content[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        if content[at + 1] in (0xDB, 0xC4):
            tables += content[at:end]
        else:
            rest += content[at:end]
        at = end
    return b"\xff\xd8" + tables + b"\xff\xd9", b"\xff\xd8" + rest + content[at:]


def test_tiles_that_are_cut_at_the_edge_are_read_by_value(tmp_path: Path, describe: Any, check_references: Any) -> None:
    image = _scene((40, 40, 3), "u1")
    path = tmp_path / "a.tif"
    boxes = [(row, column) for row in (0, 16, 32) for column in (0, 16, 32)]
    with tifffile.TiffWriter(path) as writer:
        encoded = (imagecodecs.webp_encode(image[r : r + 16, c : c + 16], lossless=True) for r, c in boxes)
        writer.write(
            encoded, shape=image.shape, dtype="u1", tile=(16, 16), compression="webp", photometric="rgb", metadata=None
        )
    np.testing.assert_array_equal(tifffile.imread(path), image)
    check_references(describe(path))
    found = parse_source(describe(path)).references["image"]
    assert sorted(map(tuple, found.table.coords[:, :2].tolist())) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(found.by_value) == 5


def test_tiles_that_only_tifffile_decodes_are_read_by_value(tmp_path: Path, describe: Any) -> None:
    # tifffile accepts a tile with the right number of pixels, whatever its shape is.
    image = _scene((16, 32, 3), "u1")
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        turned = imagecodecs.webp_encode(image.reshape(32, 16, 3), lossless=True)
        writer.write(
            iter([turned]),
            shape=image.shape,
            dtype="u1",
            tile=(16, 32),
            compression="webp",
            photometric="rgb",
            metadata=None,
        )
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "a.tif"), image)
    found = parse_source(describe(tmp_path / "a.tif")).references["image"]
    assert len(found.table) == 0 and len(found.by_value) == 1


def _open(place: Path, folder: Path) -> Repository:
    return Repository.open(str(place), authorize_virtual_chunk_access={f"file://{folder}/": None})


def _kinds(repository: Repository, path: str) -> list[int]:
    state = repository.readonly_session("main").state
    return [int(kind) for kind in run_blocking(state.chunk_table(state.tree.array(path))).kind]


_WRITTEN = [
    {"compression": "lzw", "predictor": 2, "byteorder": ">"},
    {"compression": "zlib", "predictor": 3, "dtype": "f4"},
    {"compression": "jpeg", "dtype": "u1", "samples": 3},
    {"compression": "packbits", "dtype": "u1", "tile": None, "rowsperstrip": 16},
]


def _write(path: Path, image: np.ndarray, options: dict[str, Any]) -> Path:
    more = {key: value for key, value in options.items() if key not in ("dtype", "samples", "byteorder")}
    photometric = "rgb" if image.ndim == 3 else "minisblack"
    with tifffile.TiffWriter(path, byteorder=options.get("byteorder", "<")) as writer:
        writer.write(image, photometric=photometric, **{"tile": (32, 32), "metadata": None, **more})
    return path


def _image_of(options: dict[str, Any], shape: tuple[int, int] = (70, 60), seed: int = 3) -> np.ndarray:
    samples = options.get("samples", 1)
    return _scene((*shape, samples) if samples > 1 else shape, options.get("dtype", "u2"), seed)


@pytest.mark.parametrize("options", _WRITTEN, ids=lambda options: options["compression"])
@pytest.mark.parametrize("pipeline", ["ours", "zarr"])
def test_an_array_of_segments_is_read_written_and_read_again(
    tmp_path: Path, options: dict[str, Any], pipeline: str
) -> None:
    (tmp_path / "in").mkdir()
    path = _write(tmp_path / "in" / "a.tif", _image_of(options), options)
    expected = tifffile.imread(path)
    ingest_local(path, Repository.create(str(tmp_path / "repo")), IngestOptions(mode="virtual"))
    repository = _open(tmp_path / "repo", tmp_path / "in")
    assert ChunkKind.VIRTUAL in _kinds(repository, "/image")
    ours = zarr.config.get("codec_pipeline.path")
    with zarr.config.set(
        {"codec_pipeline.path": ours if pipeline == "ours" else "zarr.core.codec_pipeline.BatchedCodecPipeline"}
    ):
        store = repository.readonly_session("main").store
        np.testing.assert_array_equal(zarr.open_array(store, path="image", mode="r")[...], expected)
        session = repository.writable_session("main")
        array = zarr.open_array(session.store, path="image", mode="r+")
        array[30:35, 31:33] = 7
        session.commit("correct some cells")
        store = repository.readonly_session("main").store
        after = zarr.open_array(store, path="image", mode="r")[...]
    expected = expected.copy()
    expected[30:35, 31:33] = 7
    np.testing.assert_array_equal(after, expected)
    assert ChunkKind.VIRTUAL in _kinds(repository, "/image")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([*BYTE_COMPRESSIONS, *IMAGE_COMPRESSIONS]),
    st.sampled_from(["u1", "i2", "u4", "f4", "f8", "c16"]),
    st.integers(0, 99),
)
def test_any_values_can_be_written_and_read(compression: str, dtype: str, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 256, (5, 7, np.dtype(dtype).itemsize), "u1").view(dtype)[..., 0]
    array = zarr.create_array(
        {}, shape=(5, 7), chunks=(4, 4), dtype=dtype, serializer=TiffCodec(compression), filters=[], compressors=[]
    )
    array[...] = values
    found = np.ascontiguousarray(array[...])
    assert found.tobytes() == np.ascontiguousarray(values).tobytes()


def test_plain_zarr_finds_the_codec_by_its_entry_point(tmp_path: Path) -> None:
    """A package's metadata folder on the path is what an installation leaves behind."""
    project = Path(__file__).parents[2]
    assert '\n"icefloe.tiff" = "icefloe.tiff_codec:TiffCodec"\n' in (project / "pyproject.toml").read_text()
    info = tmp_path / "icefloe_entry-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: icefloe-entry\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[zarr.codecs]\nicefloe.tiff = icefloe.tiff_codec:TiffCodec\n")
    code = """
import json, sys, zarr
assert "icefloe" not in sys.modules
document = {"zarr_format": 3, "node_type": "array", "shape": [2, 2], "data_type": "uint8", "attributes": {},
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}}, "fill_value": 0,
    "chunk_key_encoding": {"name": "default"},
    "codecs": [{"name": "icefloe.tiff", "configuration": {"compression": "lzw", "predictor": 2}}]}
make = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes
contents = {"zarr.json": make(json.dumps(document).encode()), "c/0/0": make(bytes.fromhex(sys.argv[1]))}
array = zarr.open_array(zarr.storage.MemoryStore(contents), mode="r")
assert "imagecodecs" not in sys.modules
print(array[...].tolist())
"""
    content = bytes(imagecodecs.lzw_encode(bytes([1, 1, 3, 1])))
    paths = os.pathsep.join([str(tmp_path), str(project / "src")])
    done = subprocess.run(
        [sys.executable, "-c", code, content.hex()],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[[1, 2], [3, 4]]"


# Damaged and hostile bytes


def _encoded(compression: str, image: np.ndarray) -> bytes:
    encode = getattr(imagecodecs, f"{compression}_encode")
    return bytes(encode(image if compression in IMAGE_COMPRESSIONS else image.tobytes()))


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([*BYTE_COMPRESSIONS, *IMAGE_COMPRESSIONS]),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["cut", "flip", "large", "random", "stored"]),
)
def test_damaged_segments_are_errors_of_one_type(compression: str, seed: int, how: str) -> None:
    rng = np.random.default_rng(seed)
    shape = (24, 24, 3)
    content = bytearray(_encoded(compression, _scene(shape, "u1")))
    at = int(rng.integers(min(len(content), 90)))
    if how == "cut":
        del content[int(rng.integers(len(content))) :]
    elif how == "flip":
        content[int(rng.integers(len(content)))] ^= int(rng.integers(1, 256))
    elif how == "large":
        content[at : at + 4] = b"\x7f\xff\xff\xff"
    elif how == "random":
        content = bytearray(rng.integers(0, 256, 200, "u1").tobytes())
    else:
        content = bytearray(encode_stored(bytes(int(rng.integers(4000)))))[: int(rng.integers(10, 60))]
    array = zarr.create_array(
        {},
        shape=shape,
        chunks=shape,
        dtype="u1",
        serializer=TiffCodec(compression, samples=3),
        filters=[],
        compressors=[],
    )
    make = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes
    array.store._store_dict["c/0/0/0"] = make(bytes(content))  # type: ignore[attr-defined]
    try:
        found = array[...]
    except FormatError:
        return
    assert found.shape == shape and found.dtype == np.dtype("u1")


@pytest.mark.long
def test_a_segment_claims_no_more_memory_than_its_chunk(tmp_path: Path) -> None:
    large = np.zeros((3072, 3072, 3), "u1")  # 28 MB, some kilobytes when compressed
    (tmp_path / "stored").write_bytes(encode_stored(large.data.cast("B")))
    (tmp_path / "packbits").write_bytes(bytes([129, 0]) * (large.nbytes // 128))
    for compression in {*BYTE_COMPRESSIONS, *IMAGE_COMPRESSIONS} - {"packbits"}:
        more = {"effort": 1} if compression == "jpegxl" else {}
        encode = getattr(imagecodecs, f"{compression}_encode")
        image = large if compression in IMAGE_COMPRESSIONS else large.data.cast("B")
        (tmp_path / compression).write_bytes(encode(image, **more))
    code = """
import pathlib, resource, sys
import numpy as np, zarr, imagecodecs
from icefloe.errors import FormatError
from icefloe.tiff_codec import IMAGE_COMPRESSIONS, TiffCodec
make = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes
def read(name, content):
    codec = TiffCodec("lzw" if name == "stored" else name, samples=3)
    shape = (64, 64, 3)
    array = zarr.create_array(
        {}, shape=shape, chunks=shape, dtype="u1", serializer=codec, filters=[], compressors=[], fill_value=9
    )
    array.store._store_dict["c/0/0/0"] = make(content)
    try:
        return array[...].any() and "values"
    except FormatError:
        return "refused"
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    if path.name in IMAGE_COMPRESSIONS:
        small = bytes(getattr(imagecodecs, path.name + "_encode")(np.ones((64, 64, 3), "u1")))
        assert read(path.name, small) == "values"
    content = path.read_bytes()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # tifffile uses the first bytes of a larger segment of LZW and LZMA.
    assert read(path.name, content) == (False if path.name in ("lzw", "lzma") else "refused"), path.name
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 14_000, (path.name, grown)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("settings_", "reason"),
    [
        ({}, "needs the text `compression`"),
        ({"compression": "lzw", "level": 3}, "allows"),
        ({"compression": "jpegxr"}, "is none of"),
        ({"compression": "lzw", "predictor": 4}, "predictor"),
        ({"compression": "jpeg", "predictor": 2}, "predictor"),
        ({"compression": "lzw", "byte_order": "middle"}, "byte order"),
        ({"compression": "lzw", "samples": 0}, "samples"),
        ({"compression": "lzw", "samples": "3"}, "samples"),
        ({"compression": "jpeg", "jpeg_tables": "?"}, "base64"),
        ({"compression": "jpeg", "jpeg_output": "rgb"}, "colour"),
    ],
)
def test_invalid_configurations_are_refused(settings_: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        TiffCodec.from_dict({"name": "icefloe.tiff", "configuration": settings_})


@given(
    st.builds(
        TiffCodec,
        st.sampled_from(BYTE_COMPRESSIONS),
        st.sampled_from([1, 2, 3]),
        st.sampled_from(["little", "big"]),
        st.integers(1, 9),
    )
    | st.builds(
        TiffCodec,
        st.sampled_from(IMAGE_COMPRESSIONS),
        samples=st.integers(1, 9),
        jpeg_tables=st.none() | st.binary(min_size=1),
        jpeg_color_space=st.none() | st.integers(0, 9),
        jpeg_output=st.none() | st.integers(0, 9),
    )
)
def test_a_configuration_is_read_as_it_is_written(codec: TiffCodec) -> None:
    assert TiffCodec.from_dict(codec.to_dict()) == codec


@pytest.mark.parametrize(("shape", "dtype"), [((4,), "u1"), ((4, 4), "?"), ((4, 4), "S3")])
def test_arrays_that_are_no_images_are_refused(shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(InvalidInputError, match=r"icefloe\.tiff"):
        zarr.create_array(
            {}, shape=shape, chunks=shape, dtype=dtype, serializer=TiffCodec("lzw"), filters=[], compressors=[]
        )


# Several files, overviews


def _place(path: Path, image: np.ndarray, west: float, **options: Any) -> None:
    tags = [
        (33550, "d", 3, (1.0, 1.0, 0.0), True),
        (33922, "d", 6, (0.0, 0.0, 0.0, west, 0.0, 0.0), True),
    ]
    tifffile.imwrite(path, image, tile=(32, 32), extratags=tags, metadata=None, photometric="minisblack", **options)


def test_files_are_joined_by_reference_if_one_codec_decodes_them(tmp_path: Path, combine: Any) -> None:
    whole = _scene((64, 128), "u2")
    _place(tmp_path / "a.tif", whole[:, :64], 0.0, compression="lzw", predictor=2)
    _place(tmp_path / "b.tif", whole[:, 64:], 64.0, compression="lzw", predictor=2)
    _, sink = combine(tmp_path, mode="virtual")
    np.testing.assert_array_equal(xr.open_zarr(sink.store(), consolidated=False)["image"].values, whole)
    _place(tmp_path / "b.tif", whole[:, 64:], 64.0, compression="zlib", predictor=2)
    with pytest.raises(InvalidInputError, match="codecs"):
        combine(tmp_path, mode="virtual")
    _, sink = combine(tmp_path, mode="mixed", native_below_bytes=0)
    np.testing.assert_array_equal(xr.open_zarr(sink.store(), consolidated=False)["image"].values, whole)


@pytest.mark.parametrize("options", _WRITTEN[:3], ids=lambda options: options["compression"])
def test_overviews_of_compressed_images_are_referenced(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "scene.tif"
    image = _image_of(options, (128, 96))
    more = {key: value for key, value in options.items() if key not in ("dtype", "samples", "byteorder")}
    more |= {"photometric": "rgb" if image.ndim == 3 else "minisblack", "tile": (32, 32), "metadata": None}
    with tifffile.TiffWriter(path, byteorder=options.get("byteorder", "<")) as writer:
        writer.write(image, subifds=0, **more)
        for level in (1, 2):
            writer.write(image[:: 2**level, :: 2**level], subfiletype=1, **more)
    ingest_local(path, Repository.create(str(tmp_path / "repo")), IngestOptions(mode="virtual"))
    result = pyramid_local(_open(tmp_path / "repo", tmp_path / "in"), "image", 2, source=str(path))
    repository = _open(tmp_path / "repo", tmp_path / "in")
    store = repository.readonly_session("main").store
    with tifffile.TiffFile(path) as file:
        levels = [level.asarray() for level in file.series[0].levels]
    assert len(levels) == 3
    for each, expected in zip(result.paths, levels[1:], strict=True):
        assert set(_kinds(repository, f"/{each}")) == {ChunkKind.VIRTUAL}
        np.testing.assert_array_equal(zarr.open_array(store, path=each, mode="r")[...], expected)


def test_a_file_that_changed_its_compression_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = _write(tmp_path / "in" / "a.tif", _image_of({}), {"compression": "lzw"})
    ingest_local(path, Repository.create(str(tmp_path / "repo")), IngestOptions(mode="virtual"))
    stat = path.stat()
    path.write_bytes(bytes(len(path.read_bytes())))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    store = _open(tmp_path / "repo", tmp_path / "in").readonly_session("main").store
    with pytest.raises(IcefloeError, match=r"image.*icefloe\.tiff"):
        zarr.open_array(store, path="image", mode="r")[...]
