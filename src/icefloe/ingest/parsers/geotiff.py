"""TIFF, GeoTIFF and cloud-optimised GeoTIFF, read with tifffile."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import tifffile

from icefloe.ingest.access import SourceAccess
from icefloe.ingest.chunk_grids import Region, all_coords, grid_shape, virtual_table
from icefloe.ingest.parsers.contract import OpenSource, broken, check_inside
from icefloe.ingest.source_model import References, SourceFile, SourceSchema, SourceVariable, summarise_coordinate
from icefloe.ingest.zarr_documents import bytes_codec, fill_attribute, fill_value_document, json_value
from icefloe.model.chunk_table import empty_table

_CODECS: dict[int, dict[str, Any] | None] = {
    1: None,
    8: {"name": "numcodecs.zlib", "configuration": {"level": 6}},
    32946: {"name": "numcodecs.zlib", "configuration": {"level": 6}},
    34925: {"name": "numcodecs.lzma", "configuration": {}},
    50000: {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
    34926: {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
}
"""TIFF compressions whose bytes a Zarr codec reads as they are."""


class GeoTiffSource(OpenSource):
    """The full-resolution image of every series; overviews are left out.

    References: uncompressed, deflate, LZMA and zstd tiles or strips without predictor. By value: whatever tifffile
    decodes (LZW, JPEG and predictors need the package imagecodecs).
    """

    format = "tiff"

    def __init__(self, file: SourceFile, access: SourceAccess) -> None:
        super().__init__(file, access)
        self._stream = access.open(file)
        self._schema: SourceSchema | None = None
        self._decoded: dict[str, npt.NDArray[Any]] = {}
        try:
            self._tiff = tifffile.TiffFile(self._stream)
            self._pages = {_name(i, len(self._tiff.series)): s.keyframe for i, s in enumerate(self._tiff.series)}
            self._stacks = {_name(i, len(self._tiff.series)): s for i, s in enumerate(self._tiff.series)}
        except (tifffile.TiffFileError, ValueError, OSError, IndexError, KeyError) as error:
            self._stream.close()
            raise broken(file, "TIFF", error) from error
        if not self._pages:
            self.close()
            raise broken(file, "TIFF", "it holds no image (truncated?)")

    def schema(self) -> SourceSchema:
        if self._schema is None:
            variables = {name: _describe(name, self._pages[name], stack) for name, stack in self._stacks.items()}
            axes = _axes(next(iter(self._pages.values())))
            coordinates = {}
            for name, values in axes.items():
                if any(name in v.dims for v in variables.values()):
                    variables[name] = _axis(name, values)
                    coordinates[name] = summarise_coordinate(values)
            attributes = {"": _attributes(next(iter(self._pages.values())))}
            self._schema = SourceSchema(self.file, self.format, variables, coordinates, attributes)
        return self._schema

    def references(self, variable: SourceVariable) -> References:
        ndim = len(variable.shape)
        grid = grid_shape(variable.shape, variable.chunks)
        page = self._pages.get(variable.path)
        if page is None:
            return References(empty_table(ndim), all_coords(grid))
        pages = [p for p in self._stacks[variable.path].pages if p is not None]
        offsets = np.concatenate([np.asarray(p.dataoffsets, np.int64) for p in pages])
        lengths = np.concatenate([np.asarray(p.databytecounts, np.int64) for p in pages])
        coords = all_coords(grid)
        if len(offsets) != len(coords):
            raise broken(self.file, "TIFF", f"{len(offsets)} segments where {len(coords)} belong")
        present = lengths > 0
        check_inside(self.file, "TIFF", offsets[present], lengths[present])
        whole = np.ones(len(coords), dtype=bool)
        if not page.is_tiled:
            # The last strip of an image is shorter than a chunk.
            axis = variable.dims.index("y")
            ends = (coords[:, axis].astype(np.int64) + 1) * variable.chunks[axis]
            whole = ends <= variable.shape[axis]
        chosen = present & whole
        table = virtual_table(
            coords[chosen], offsets[chosen], lengths[chosen], self.file.url, etag=self.file.etag,
            last_modified=self.file.last_modified,
        )  # fmt: skip
        return References(table, coords[present & ~whole])

    def values(self, variable: SourceVariable, region: Region) -> npt.NDArray[Any]:
        if variable.path not in self._pages:
            axes = _axes(next(iter(self._pages.values())))
            return axes[variable.path][region[0]]
        if variable.path not in self._decoded:
            try:
                image = self._stacks[variable.path].asarray()
            except (ValueError, RuntimeError, OSError, tifffile.TiffFileError) as error:
                raise broken(self.file, "TIFF", error) from error
            # The windows of a task ask for one image several times.
            self._decoded = {variable.path: np.asarray(image).reshape(variable.shape)}
        return self._decoded[variable.path][region]

    def close(self) -> None:
        self._tiff.close()
        self._stream.close()


def _name(index: int, count: int) -> str:
    return "image" if count == 1 else f"image_{index}"


def _describe(name: str, page: Any, stack: Any) -> SourceVariable:
    separate = page.planarconfig == 2 and page.samplesperpixel > 1
    samples = page.samplesperpixel
    height, width = page.imagelength, page.imagewidth
    rows = page.tilelength if page.is_tiled else min(page.rowsperstrip, height)
    columns = page.tilewidth if page.is_tiled else width
    shape: tuple[int, ...] = (height, width)
    chunks: tuple[int, ...] = (rows, columns)
    dims: tuple[str, ...] = ("y", "x")
    if samples > 1 and separate:
        shape, chunks, dims = (samples, *shape), (1, *chunks), ("band", *dims)
    elif samples > 1:
        shape, chunks, dims = (*shape, samples), (*chunks, samples), (*dims, "band")
    if len(stack.pages) > 1:
        shape, chunks, dims = (len(stack.pages), *shape), (1, *chunks), ("page", *dims)
    dtype = np.dtype(page.dtype).newbyteorder(page.parent.byteorder).str
    attributes: dict[str, Any] = {}
    fill: Any = None
    if page.tags.get("GDAL_NODATA") is not None:
        fill = page.nodata
        attributes["_FillValue"] = fill_attribute(dtype, fill)
    codec = _CODECS.get(int(page.compression))
    return SourceVariable(
        path=name, dims=dims, shape=shape, dtype=dtype, chunks=chunks, attributes=attributes,
        fill_value=fill_value_document(dtype, fill), codecs=(bytes_codec(dtype), *([codec] if codec else [])),
        not_virtual=_not_virtual(page),
    )  # fmt: skip


def _not_virtual(page: Any) -> str | None:
    if int(page.compression) not in _CODECS:
        return f"Zarr has no codec for the TIFF compression {page.compression.name}"
    if int(page.predictor) != 1:
        return f"Zarr has no codec for the TIFF predictor {page.predictor}"
    if page.bitspersample % 8 or page.fillorder != 1:
        return f"samples of {page.bitspersample} bits are not whole bytes"
    return None


def _axes(page: Any) -> dict[str, npt.NDArray[np.float64]]:
    """Centres of the pixels, where the file says how pixels lie on the ground."""
    scale, tie = page.tags.get("ModelPixelScaleTag"), page.tags.get("ModelTiepointTag")
    if scale is None or tie is None or len(tie.value) < 6:
        return {}
    column, row, _, east, north = tie.value[:5]
    step_x, step_y = scale.value[:2]
    if not (math.isfinite(step_x) and step_x and math.isfinite(step_y) and step_y):
        return {}
    x = east + (np.arange(page.imagewidth) + 0.5 - column) * step_x
    y = north - (np.arange(page.imagelength) + 0.5 - row) * step_y
    return {"x": x, "y": y}


def _axis(name: str, values: npt.NDArray[np.float64]) -> SourceVariable:
    return SourceVariable(
        path=name, dims=(name,), shape=values.shape, dtype="<f8", chunks=values.shape,
        attributes={"standard_name": f"projection_{name}_coordinate", "axis": name.upper()},
        codecs=(bytes_codec("<f8"),), layout="opaque",
    )  # fmt: skip


def _attributes(page: Any) -> dict[str, Any]:
    """What the GeoTIFF keys say about the map projection."""
    tags = page.geotiff_tags if page.is_geotiff else {}
    kept = {str(k): json_value(v) for k, v in tags.items() if isinstance(v, (str, int, float))}
    for key in ("ProjectedCSTypeGeoKey", "GeographicTypeGeoKey"):
        code = tags.get(key)
        if code is not None:
            kept["crs"] = f"EPSG:{int(code)}"
            break
    return kept
