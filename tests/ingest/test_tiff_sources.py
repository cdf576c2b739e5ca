"""TIFF and GeoTIFF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icefloe.errors import FormatError
from icefloe.ingest.parsers.registry import parse_source

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
