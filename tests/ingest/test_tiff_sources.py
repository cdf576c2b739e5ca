"""TIFF and GeoTIFF files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError, InvalidInputError
from icefloe.ingest.parsers.registry import open_source, parse_schema, parse_source

tifffile = pytest.importorskip("tifffile")

pytestmark = pytest.mark.filterwarnings("ignore")


def _image(shape: tuple[int, ...] = (70, 50)) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 60000, shape).astype("u2")


@pytest.mark.parametrize("compression", [None, "deflate", "zstd"])
@pytest.mark.parametrize("tile", [None, (32, 16)])
def test_tiles_and_strips_are_referenced(
    tmp_path: Path, describe: Any, check_references: Any, compression: str | None, tile: Any
) -> None:
    if compression == "zstd":
        pytest.importorskip("imagecodecs")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, _image(), tile=tile, compression=compression, rowsperstrip=None if tile else 16)
    schema = check_references(describe(path))
    assert schema.variables["image"].chunks == (tile or (16, 50))
    by_value = parse_source(describe(path)).references["image"].by_value
    assert len(by_value) == (0 if tile else 1)


def test_bands_lie_as_the_file_has_them(tmp_path: Path, describe: Any, check_references: Any) -> None:
    tifffile.imwrite(tmp_path / "c.tif", _image((64, 48, 3)).astype("u1"), tile=(16, 16), photometric="rgb")
    tifffile.imwrite(
        tmp_path / "s.tif", _image((3, 64, 48)), tile=(16, 16), planarconfig="separate", photometric="minisblack"
    )
    assert check_references(describe(tmp_path / "c.tif")).variables["image"].dims == ("y", "x", "band")
    dims = check_references(describe(tmp_path / "s.tif")).variables["image"].dims
    assert dims in (("band", "y", "x"), ("page", "y", "x"))


def test_pixels_have_places_on_the_ground_and_a_fill_value(
    tmp_path: Path, describe: Any, check_references: Any
) -> None:
    tags = [
        (33550, "d", 3, (10.0, 20.0, 0.0), True),
        (33922, "d", 6, (0.0, 0.0, 0.0, 500000.0, 100000.0, 0.0), True),
        (34735, "H", 8, (1, 1, 0, 1, 3072, 0, 1, 32633), True),
        (42113, "s", 0, "7", True),
    ]
    tifffile.imwrite(tmp_path / "g.tif", _image(), tile=(16, 16), extratags=tags, metadata=None)
    schema = check_references(describe(tmp_path / "g.tif"))
    assert schema.coordinates["x"].first == 500005.0 and schema.coordinates["y"].first == 99990.0
    assert schema.coordinates["y"].direction == -1
    assert schema.groups[""]["crs"] == "EPSG:32633"
    assert schema.variables["image"].fill_value == 7


def test_a_truncated_image_is_named(tmp_path: Path, describe: Any) -> None:
    tifffile.imwrite(tmp_path / "a.tif", _image(), tile=(16, 16))
    data = (tmp_path / "a.tif").read_bytes()
    (tmp_path / "cut.tif").write_bytes(data[:400])
    with pytest.raises(FormatError, match=r"cut\.tif"):
        parse_source(describe(tmp_path / "cut.tif"))


def _write_geo(path: Path, image: Any, *, raster: int = 1, epsg: int = 32633, **more: Any) -> Path:
    """A GeoTIFF: `transform` has 16 numbers, or `tie` and `scale` say where pixels lie."""
    keys = [1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, raster, 3072, 0, 1, epsg]
    tags: list[Any] = [(34735, "H", len(keys), keys, True)]
    transform, nodata, gdal = (more.pop(name, None) for name in ("transform", "nodata", "gdal"))
    tie, scale = more.pop("tie", (0, 0, 0, 100.0, 200.0, 0)), more.pop("scale", (10.0, 20.0, 0.0))
    if transform is not None:
        tags.append((34264, "d", 16, transform, True))
    else:
        tags += [(33550, "d", 3, scale, True), (33922, "d", len(tie), tie, True)]
    if nodata is not None:
        tags.append((42113, "s", 0, str(nodata), True))
    if gdal is not None:
        tags.append((42112, "s", 0, gdal, True))
    overviews = more.pop("overviews", 0)
    with tifffile.TiffWriter(path) as writer:
        options = {"photometric": "minisblack", "tile": (16, 16), "metadata": None, **more}
        writer.write(image, extratags=tags, **options)
        for level in range(1, overviews + 1):
            writer.write(image[:: 2**level, :: 2**level], subfiletype=1, **options)
    return path


@st.composite
def _tiffs(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any]]:
    """An image and how tifffile writes it."""
    dtype = draw(st.sampled_from(["u1", "u2", "u4", "i1", "i2", "i4", "f2", "f4", "f8"]))
    height, width = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    layout = draw(st.sampled_from(["plain", "contig", "separate", "pages"]))
    shape = {
        "plain": (height, width),
        "contig": (height, width, 3),
        "separate": (3, height, width),
        "pages": (4, height, width),
    }[layout]
    rng = np.random.default_rng(draw(st.integers(0, 100)))
    image = (rng.random(shape) * 100).astype(dtype)
    options: dict[str, Any] = {
        "photometric": "minisblack",
        "compression": draw(st.sampled_from([None, "zlib", "lzw", "zstd", "lzma", "packbits"])),
        "byteorder": draw(st.sampled_from(["<", ">"])),
        "bigtiff": draw(st.booleans()),
    }
    if layout in ("contig", "separate"):
        options["planarconfig"] = layout
        options["photometric"] = "rgb" if dtype in ("u1", "u2") else "minisblack"
    if draw(st.booleans()):
        options["tile"] = (16, 16 * draw(st.integers(1, 2)))
    else:
        options["rowsperstrip"] = draw(st.integers(1, height))
    if options["compression"] in ("zlib", "lzw", "zstd") and draw(st.booleans()):
        options["predictor"] = 3 if dtype.startswith("f") and draw(st.booleans()) else 2
        if dtype.startswith("f") and options["predictor"] == 2:
            del options["predictor"]
    return image, options


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(_tiffs())
def test_any_tiff_equals_what_tifffile_reads(
    describe: Any, check_references: Any, written: tuple[np.ndarray, dict[str, Any]]
) -> None:
    image, options = written
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tif"
        layout = {key: options.pop(key) for key in ("byteorder", "bigtiff")}
        with tifffile.TiffWriter(path, **layout) as writer:
            writer.write(image, **options)
        expected = tifffile.imread(path)
        check_references(describe(path))
        with open_source(describe(path)) as source:
            variable = source.schema().variables["image"]
            values = source.values(variable, tuple(slice(0, n) for n in variable.shape))
        assert np.dtype(variable.dtype).newbyteorder("=") == expected.dtype
        np.testing.assert_array_equal(values.squeeze(), expected.squeeze())


@pytest.mark.parametrize("raster", [1, 2])
def test_pixels_are_areas_or_points_as_the_file_says(tmp_path: Path, describe: Any, raster: int) -> None:
    schema = parse_schema(describe(_write_geo(tmp_path / "a.tif", _image((4, 5)), raster=raster)))
    half = 0.5 if raster == 1 else 0.0
    assert schema.coordinates["x"].values.tolist() == [100 + 10 * (i + half) for i in range(5)]
    assert schema.coordinates["y"].values.tolist() == [200 - 20 * (i + half) for i in range(4)]
    assert schema.variables["image"].attributes["AREA_OR_POINT"] == ("Area" if raster == 1 else "Point")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.tuples(*[st.integers(-50, 50) for _ in range(4)]).filter(lambda t: t[0] * t[3] - t[1] * t[2] != 0),
    st.integers(-1000, 1000),
    st.integers(-1000, 1000),
    st.sampled_from([1, 2]),
)
def test_transformations_put_every_pixel_where_they_say(
    describe: Any, parts: tuple[int, ...], east: int, north: int, raster: int
) -> None:
    a, b, d, e = parts
    matrix = (a, b, 0, east, d, e, 0, north, 0, 0, 0, 0, 0, 0, 0, 1)
    with tempfile.TemporaryDirectory() as folder:
        file = describe(_write_geo(Path(folder) / "a.tif", _image((3, 4)), transform=matrix, raster=raster))
        schema = parse_schema(file)
        half = 0.5 if raster == 1 else 0.0
        rows, columns = np.meshgrid(np.arange(3) + half, np.arange(4) + half, indexing="ij")
        x, y = east + a * columns + b * rows, north + d * columns + e * rows
        with open_source(file) as source:
            found = {
                name: source.values(v, tuple(slice(0, n) for n in v.shape))
                for name, v in schema.variables.items()
                if name != "image"
            }
    if b == 0 and d == 0:
        np.testing.assert_allclose(np.broadcast_to(found["x"], (3, 4)), x)
        np.testing.assert_allclose(np.broadcast_to(found["y"][:, None], (3, 4)), y)
    else:
        assert schema.variables["xc"].dims == ("y", "x")
        np.testing.assert_allclose(found["xc"], x)
        np.testing.assert_allclose(found["yc"], y)
        corner = [float(v) for v in str(schema.variables["image"].attributes["GeoTransform"]).split()]
        np.testing.assert_allclose(corner[1:3] + corner[4:], [a, b, d, e])


def test_tiles_of_another_reference_system_are_not_joined(tmp_path: Path, combine: Any) -> None:
    _write_geo(tmp_path / "a.tif", _image((32, 32)))
    _write_geo(tmp_path / "b.tif", _image((32, 32)), tie=(0, 0, 0, 420.0, 200.0, 0), epsg=32634)
    with pytest.raises(InvalidInputError, match=r"crs: expected EPSG:32633, found EPSG:32634"):
        combine(tmp_path)


def test_tiles_of_points_and_of_areas_meet_where_their_centres_do(tmp_path: Path, combine: Any) -> None:
    whole = _image((32, 64))
    _write_geo(tmp_path / "a.tif", whole[:, :32])
    _write_geo(tmp_path / "b.tif", whole[:, 32:], tie=(0, 0, 0, 425.0, 190.0, 0), raster=2)
    _, sink = combine(tmp_path)
    found = xr.open_zarr(sink.store(), consolidated=False)
    np.testing.assert_array_equal(found["image"].values, whole)
    np.testing.assert_allclose(np.diff(found["x"].values), 10.0)


def test_rotated_images_of_different_places_are_not_joined(tmp_path: Path, combine: Any) -> None:
    for name, east in (("a", 0), ("b", 320)):
        matrix = (10, 1, 0, east, 1, -10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
        _write_geo(tmp_path / f"{name}.tif", _image((32, 32)), transform=matrix)
    with pytest.raises(InvalidInputError):
        combine(tmp_path)
    with pytest.raises(InvalidInputError, match="GeoTransform"):
        combine(tmp_path, concat_dims=("time",))


@pytest.mark.parametrize(
    ("dtype", "nodata", "fill"),
    [("u2", "7", 7), ("i2", "-9999", -9999), ("u1", "-9999", None), ("u1", "nan", None), ("i4", "1e3", 1000)],
)
def test_values_for_missing_pixels_are_taken_where_a_pixel_can_have_them(
    tmp_path: Path, describe: Any, dtype: str, nodata: str, fill: int | None
) -> None:
    path = _write_geo(tmp_path / "a.tif", _image((16, 16)).astype(dtype), nodata=nodata)
    attributes = parse_schema(describe(path)).variables["image"].attributes
    assert attributes.get("_FillValue") == fill


def test_scale_offset_and_names_of_bands_are_those_of_gdal(tmp_path: Path, combine: Any) -> None:
    gdal = (
        '<GDALMetadata><Item name="SCALE" sample="0" role="scale">0.5</Item>'
        '<Item name="OFFSET" sample="0" role="offset">-3</Item>'
        '<Item name="UNITTYPE" sample="0" role="unittype">K</Item>'
        '<Item name="DESCRIPTION" sample="0" role="description">warmth</Item></GDALMetadata>'
    )
    image = _image((16, 16))
    _write_geo(tmp_path / "a.tif", image, gdal=gdal)
    _, sink = combine(tmp_path)
    found = xr.open_zarr(sink.store(), consolidated=False)["image"]
    np.testing.assert_allclose(found.values, image * 0.5 - 3)
    assert found.attrs["units"] == "K" and found.attrs["long_name"] == "warmth"


def test_overviews_are_told_and_left_alone(tmp_path: Path, combine: Any) -> None:
    _write_geo(tmp_path / "a.tif", _image((64, 64)), overviews=2)
    plan, sink = combine(tmp_path)
    notes = [str(issue) for issue in plan.report.issues]
    assert any("2 overviews of lower resolution (32 x 32, 16 x 16 pixels)" in note for note in notes), notes
    assert set(xr.open_zarr(sink.store(), consolidated=False).data_vars) == {"image"}


def test_images_of_different_shapes_have_dimensions_of_their_own(tmp_path: Path, combine: Any) -> None:
    first, second = _image((40, 50)), _image((7, 9))
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        writer.write(first, photometric="minisblack", metadata=None)
        writer.write(second, photometric="minisblack", metadata=None)
    _, sink = combine(tmp_path)
    found = xr.open_zarr(sink.store(), consolidated=False)
    np.testing.assert_array_equal(found["image_0"].values, first)
    np.testing.assert_array_equal(found["image_1"].values, second)
