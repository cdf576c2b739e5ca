"""GeoTIFF and GRIB files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from icefloe.errors import FormatError
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


def _write_grib(path: Path, times: list[int], levels: list[int], missing: bool = False) -> dict[Any, np.ndarray]:
    eccodes = pytest.importorskip("eccodes")
    fields: dict[Any, np.ndarray] = {}
    with path.open("wb") as file:
        for time in times:
            for name, kind, own in (("t", "isobaricInhPa", levels), ("2t", "heightAboveGround", [2])):
                for level in own:
                    handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
                    eccodes.codes_set(handle, "Ni", 6)
                    eccodes.codes_set(handle, "Nj", 4)
                    for key, value in (
                        ("latitudeOfFirstGridPointInDegrees", 60), ("longitudeOfFirstGridPointInDegrees", 0),
                        ("latitudeOfLastGridPointInDegrees", 30), ("longitudeOfLastGridPointInDegrees", 50),
                        ("iDirectionIncrementInDegrees", 10), ("jDirectionIncrementInDegrees", 10),
                        ("dataDate", 20200101), ("dataTime", 100 * time), ("shortName", name),
                        ("typeOfLevel", kind), ("level", level), ("bitsPerValue", 24),
                    ):  # fmt: skip
                        eccodes.codes_set(handle, key, value)
                    values = np.random.default_rng(time * 1000 + level).normal(280, 10, (4, 6))
                    if missing:
                        eccodes.codes_set(handle, "bitmapPresent", 1)
                        eccodes.codes_set(handle, "missingValue", 9999.0)
                        values[0, 0] = 9999.0
                    eccodes.codes_set_values(handle, values.reshape(-1))
                    eccodes.codes_write(handle, file)
                    eccodes.codes_release(handle)
                    fields[name, time, level] = np.where(values == 9999.0, np.nan, values)
    return fields


def test_grib_fields_are_gathered_into_arrays(tmp_path: Path, describe: Any) -> None:
    fields = _write_grib(tmp_path / "a.grib2", [0, 6], [1000, 850, 500])
    with open_source(describe(tmp_path / "a.grib2")) as source:
        schema = source.schema()
        assert set(schema.variables) == {"t", "2t", "time", "isobaricInhPa", "latitude", "longitude"}
        variable = schema.variables["t"]
        assert variable.dims == ("time", "isobaricInhPa", "latitude", "longitude") and variable.shape == (2, 3, 4, 6)
        assert schema.coordinates["latitude"].values.tolist() == [60, 50, 40, 30]
        assert schema.coordinates["longitude"].values.tolist() == [0, 10, 20, 30, 40, 50]
        values = source.values(variable, tuple(slice(0, n) for n in variable.shape))
        for i, time in enumerate((0, 6)):
            for k, level in enumerate((500, 850, 1000)):
                np.testing.assert_allclose(values[i, k], fields["t", time, level], atol=1e-3)
        part = source.values(variable, (slice(1, 2), slice(0, 2), slice(1, 3), slice(2, 6)))
        np.testing.assert_array_equal(part, values[1:2, 0:2, 1:3, 2:6])
        assert "GRIB" in str(variable.not_virtual)


def test_grib_files_are_joined_along_time_with_missing_values(tmp_path: Path, combine: Any) -> None:

    first = _write_grib(tmp_path / "a.grib2", [0], [1000, 500], missing=True)
    second = _write_grib(tmp_path / "b.grib2", [6], [1000, 500], missing=True)
    _, sink = combine(tmp_path)
    result = xr.open_zarr(sink.store(), consolidated=False)
    np.testing.assert_allclose(result["t"].values[0, 1], first["t", 0, 1000], atol=1e-3)
    np.testing.assert_allclose(result["2t"].values[1], second["2t", 6, 2], atol=1e-3)
    assert np.isnan(result["2t"].values[:, 0, 0]).all()
    assert result.time.values[1] == np.datetime64("2020-01-01T06:00")


def test_a_broken_grib_file_is_named(tmp_path: Path, describe: Any) -> None:
    _write_grib(tmp_path / "a.grib2", [0], [1000])
    data = (tmp_path / "a.grib2").read_bytes()
    (tmp_path / "cut.grib2").write_bytes(data[: len(data) // 3])
    with pytest.raises(FormatError, match=r"cut\.grib2"):
        parse_schema(describe(tmp_path / "cut.grib2"))
