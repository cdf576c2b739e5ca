"""TIFF, GeoTIFF and cloud-optimised GeoTIFF, read with tifffile and, for most compressions, imagecodecs.

Both are wheels without system libraries, and read ranges of remote files through a Python file, so that tiles can be
referenced. Codecs of zarr decode segments (tiles and strips) that are uncompressed, or that use deflate, LZMA or zstd
without a predictor. `icefloe.tiff` decodes the others. One segment of each image is decoded with this codec and with
tifffile before any is referenced.

Coordinates are those of GDAL: a tie point or transformation refers to a pixel's corner, or to its centre if the file
declares pixels as points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import tifffile

from icefloe.errors import FormatError
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.chunk_grids import ChunkRegion, all_coords, grid_shape, virtual_table
from icefloe.ingest.parsers.registry import OpenSource, broken, check_inside
from icefloe.ingest.source_model import References, SourceFile, SourceSchema, SourceVariable, summarise_coordinate
from icefloe.ingest.zarr_documents import bytes_codec, fill_attribute, fill_value_document, json_value
from icefloe.model.chunk_table import empty_table
from icefloe.tiff_codec import CODEC_NAME as TIFF_CODEC
from icefloe.tiff_codec import IMAGE_COMPRESSIONS, TiffCodec

_CODECS: dict[int, dict[str, Any] | None] = {
    1: None,
    8: {"name": "numcodecs.zlib", "configuration": {"level": 6}},
    32946: {"name": "numcodecs.zlib", "configuration": {"level": 6}},
    34925: {"name": "numcodecs.lzma", "configuration": {}},
    50000: {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
    34926: {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
}
"""TIFF compressions that a codec of zarr can decode, if there is no predictor."""
_SEGMENTS = {
    5: "lzw",
    7: "jpeg",
    8: "deflate",
    32946: "deflate",
    32773: "packbits",
    33003: "jpeg2k",
    33004: "jpeg2k",
    33005: "jpeg2k",
    34712: "jpeg2k",
    34887: "lerc",
    34925: "lzma",
    34926: "zstd",
    50000: "zstd",
    34933: "png",
    50001: "webp",
    50002: "jpegxl",
    52546: "jpegxl",
}
"""TIFF compressions that `icefloe.tiff` can decode."""
_UNREADABLE = (tifffile.TiffFileError, ValueError, RuntimeError, OSError, IndexError, TypeError, KeyError)
"""The exceptions of tifffile and imagecodecs for a segment that they cannot decode."""


_MOST_POSITIONS = 1 << 24
"""The largest rotated image, in pixels, with two-dimensional coordinates.

Larger ones only have their transformation.
"""
_NOT_PROJECTION = ("KeyDirectoryVersion", "KeyRevision", "KeyRevisionMinor", "GTRasterTypeGeoKey")


@dataclass(frozen=True, slots=True)
class _Transform:
    """The transformation from column and row to x = x0 + a * column + b * row and y = y0 + d * column + e * row.

    It applies to the centres of the pixels.
    """

    x0: float
    a: float
    b: float
    y0: float
    d: float
    e: float

    @property
    def is_rotated(self) -> bool:
        return self.b != 0 or self.d != 0

    def __str__(self) -> str:
        """The form of GDAL, for corners: origin, width, row rotation, origin, column rotation, height."""
        x, y = self.x0 - (self.a + self.b) / 2, self.y0 - (self.d + self.e) / 2
        return " ".join(repr(float(v)) for v in (x, self.a, self.b, y, self.d, self.e))


@dataclass(frozen=True, slots=True)
class _Image:
    """A series of pages of one shape: its name, its dimensions, and the location of its pixels."""

    name: str
    page: Any
    stack: Any
    suffix: str
    """The suffix of its dimensions, if an earlier image of the file has other dimensions."""
    transform: _Transform | None

    @property
    def y(self) -> str:
        return f"y{self.suffix}"

    @property
    def x(self) -> str:
        return f"x{self.suffix}"


class GeoTiffSource(OpenSource):
    """The full-resolution image of every series. Overviews are not part of the schema, which reports them.

    References: the compressions in `_CODECS` and `_SEGMENTS`, with samples of whole bytes. By value: everything that
    tifffile decodes. A strip or tile that is smaller than its chunk is read by value.
    """

    format = "tiff"

    def __init__(self, file: SourceFile, access: SourceAccess) -> None:
        super().__init__(file, access)
        self._stream = access.open(file)
        self._schema: SourceSchema | None = None
        self._decoded: dict[str, npt.NDArray[Any]] = {}
        try:
            self._tiff = tifffile.TiffFile(self._stream)
            self._images = {image.name: image for image in _images(self._tiff.series)}
        except (tifffile.TiffFileError, ValueError, OSError, IndexError, KeyError) as error:
            self._stream.close()
            raise broken(file, "TIFF", error) from error
        if not self._images:
            self.close()
            raise broken(file, "TIFF", "it contains no image (truncated?)")
        self._overviews = {
            f"{name}/{number}": replace(image, name=f"{name}/{number}", page=level.keyframe, stack=level)
            for name, image in self._images.items()
            for number, level in enumerate(image.stack.levels[1:], 1)
        }
        self._positions = {
            name: (image, axis) for image in self._images.values() for name, axis in _position_names(image).items()
        }

    def schema(self) -> SourceSchema:
        if self._schema is None:
            variables = {name: _describe(image) for name, image in self._images.items()}
            coordinates = {}
            for name, (image, axis) in self._positions.items():
                values = _positions(image, axis)
                dims = (name,) if values.ndim == 1 else (image.y, image.x)
                variables[name] = _position_variable(name, dims, values, axis, image.page)
                coordinates[name] = summarise_coordinate(values)
            first = next(iter(self._images.values()))
            self._schema = SourceSchema(
                self.file,
                self.format,
                variables,
                coordinates,
                {"": _attributes(first.page)},
                left_out=_left_out(self._images),
            )
        return self._schema

    def overviews(self, path: str) -> Sequence[SourceVariable]:
        prefix = f"{path}/"
        return [_describe(image) for name, image in self._overviews.items() if name.startswith(prefix)]

    def _find_image(self, path: str) -> _Image | None:
        return self._images.get(path) or self._overviews.get(path)

    def references(self, variable: SourceVariable) -> References:
        ndim = len(variable.shape)
        grid = grid_shape(variable.shape, variable.chunks)
        image = self._find_image(variable.path)
        if image is None:
            return References(empty_table(ndim), all_coords(grid))
        pages = [p for p in image.stack.pages if p is not None]
        offsets = np.concatenate([np.asarray(p.dataoffsets, np.int64) for p in pages])
        lengths = np.concatenate([np.asarray(p.databytecounts, np.int64) for p in pages])
        coords = all_coords(grid)
        if len(offsets) != len(coords):
            raise broken(self.file, "TIFF", f"it has {len(offsets)} segments, expected {len(coords)}")
        present = lengths > 0
        check_inside(self.file, "TIFF", offsets[present], lengths[present])
        whole = np.ones(len(coords), dtype=bool)
        if not image.page.is_tiled:
            # The last strip of an image is shorter than a chunk.
            axis = variable.dims.index(image.y)
            ends = (coords[:, axis].astype(np.int64) + 1) * variable.chunks[axis]
            whole = ends <= variable.shape[axis]
        if variable.codecs[0]["name"] == TIFF_CODEC:
            whole &= self._decoded_equally(image, variable, offsets, lengths, present & whole)
        chosen = present & whole
        table = virtual_table(
            coords[chosen],
            offsets[chosen],
            lengths[chosen],
            self.file.url,
            etag=self.file.etag,
            last_modified=self.file.last_modified,
        )
        return References(table, coords[present & ~whole])

    def _decoded_equally(
        self, image: _Image, variable: SourceVariable, offsets: Any, lengths: Any, candidates: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """The segments that the codec decodes as tifffile does, judged by one or two of them.

        Some writers cut the tiles at the right and lower edges of an image. Then the last tile is smaller than its
        chunk, and only tiles inside the image can be referenced.
        """
        coords = all_coords(grid_shape(variable.shape, variable.chunks)).astype(np.int64)
        inside = ((coords + 1) * np.array(variable.chunks) <= np.array(variable.shape)).all(axis=1)
        if not candidates.any() or self._is_decoded_equally(image, variable, offsets, lengths, candidates):
            return np.ones(len(coords), dtype=bool)
        inner = candidates & inside
        is_equal = inner.any() and self._is_decoded_equally(image, variable, offsets, lengths, inner)
        return inside if is_equal else np.zeros(len(coords), dtype=bool)

    def _is_decoded_equally(
        self, image: _Image, variable: SourceVariable, offsets: Any, lengths: Any, candidates: npt.NDArray[np.bool_]
    ) -> bool:
        """Whether the last candidate has the same values when tifffile decodes it."""
        position = int(np.flatnonzero(candidates)[-1])
        self._stream.seek(int(offsets[position]))
        content = self._stream.read(int(lengths[position]))
        pages = [p for p in image.stack.pages if p is not None]
        page, index = divmod(position, len(candidates) // len(pages))
        tables = {"jpegtables": pages[page].jpegtables} if int(image.page.compression) == 7 else {}
        codec = TiffCodec.from_dict(dict(variable.codecs[0]))
        try:
            theirs, _, _ = image.page.decode(content, index, **tables)
            ours = codec.decode_segment(content, variable.chunks, variable.dtype)
        except (*_UNREADABLE, FormatError):
            return False
        is_same = ours.size == theirs.size and ours.dtype == theirs.dtype
        return is_same and np.array_equal(ours.ravel(), theirs.ravel(), equal_nan=ours.dtype.kind in "fc")

    def values(self, variable: SourceVariable, region: ChunkRegion) -> npt.NDArray[Any]:
        image = self._find_image(variable.path)
        if image is None:
            image, axis = self._positions[variable.path]
            return _positions(image, axis)[region]
        if variable.path not in self._decoded:
            try:
                decoded = image.stack.asarray()
            except (ValueError, RuntimeError, OSError, tifffile.TiffFileError) as error:
                raise broken(self.file, "TIFF", error) from error
            # The windows of a task read one image several times.
            self._decoded = {variable.path: np.asarray(decoded).reshape(variable.shape)}
        return self._decoded[variable.path][region]

    def close(self) -> None:
        self._tiff.close()
        self._stream.close()


def _images(series: Sequence[Any]) -> list[_Image]:
    """The images of a file. Images with another shape than the first have separate dimensions."""
    found: list[_Image] = []
    masks = [s for s in series if s.keyframe.is_mask]
    images = [s for s in series if not s.keyframe.is_mask] or list(series)
    shape = (images[0].keyframe.imagelength, images[0].keyframe.imagewidth) if images else ()
    first = _transform(images[0].keyframe) if images else None
    for index, stack in enumerate([*images, *(m for m in masks if m not in images)]):
        page = stack.keyframe
        same = (page.imagelength, page.imagewidth) == shape
        own = _transform(page)
        same = same and (own is None or own == first)
        name = "mask" if stack in masks and index >= len(images) else "image" if len(images) == 1 else f"image_{index}"
        found.append(_Image(name, page, stack, "" if same else f"_{index}", first if same else own))
    return found


def _describe(image: _Image) -> SourceVariable:
    page, stack = image.page, image.stack
    separate = page.planarconfig == 2 and page.samplesperpixel > 1
    samples = page.samplesperpixel
    height, width = page.imagelength, page.imagewidth
    rows = page.tilelength if page.is_tiled else min(page.rowsperstrip, height)
    columns = page.tilewidth if page.is_tiled else width
    shape: tuple[int, ...] = (height, width)
    chunks: tuple[int, ...] = (rows, columns)
    dims: tuple[str, ...] = (image.y, image.x)
    if samples > 1 and separate:
        shape, chunks, dims = (samples, *shape), (1, *chunks), ("band", *dims)
    elif samples > 1:
        shape, chunks, dims = (*shape, samples), (*chunks, samples), (*dims, "band")
    if len(stack.pages) > 1:
        shape, chunks, dims = (len(stack.pages), *shape), (1, *chunks), ("page", *dims)
    dtype = np.dtype(page.dtype).newbyteorder(page.parent.byteorder).str
    attributes: dict[str, Any] = {**_ground(image), **_band_attributes(page)}
    fill = _nodata(page)
    if fill is not None:
        attributes["_FillValue"] = fill_attribute(dtype, fill)
    codecs, reason = _codecs_of(image)
    if codecs and codecs[0]["name"] == TIFF_CODEC:
        # The codec returns numbers, not bytes in the order of the file.
        dtype = np.dtype(dtype).newbyteorder("<").str
    return SourceVariable(
        path=image.name,
        dims=dims,
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        attributes=attributes,
        fill_value=fill_value_document(dtype, fill),
        codecs=codecs or (bytes_codec(dtype),),
        not_virtual=reason,
    )


def _codecs_of(image: _Image) -> tuple[tuple[Mapping[str, Any], ...], str | None]:
    """The codecs of the segments of an image, and the reason if there are none."""
    page, number = image.page, int(image.page.compression)
    dtype = np.dtype(page.dtype).newbyteorder(page.parent.byteorder)
    name = _SEGMENTS.get(number)
    is_image = name in IMAGE_COMPRESSIONS
    if page.dtype is None or dtype.kind not in "iufc":
        return (), f"samples of the type {page.dtype} have no codec"
    if not is_image and (page.bitspersample != dtype.itemsize * 8 or page.fillorder != 1):
        return (), f"samples of {page.bitspersample} bits are not whole bytes in the usual order of bits"
    if number in _CODECS and int(page.predictor) == 1:
        plain = _CODECS[number]
        return (bytes_codec(dtype.str), *([plain] if plain else [])), None
    if name is None:
        suffix = "" if number in _CODECS else f" {page.compression.name}"
        return (), f"Zarr has no codec for the TIFF compression{suffix} with the predictor {page.predictor}"
    if not is_image and int(page.predictor) not in (1, 2, 3):
        return (), f"Zarr has no codec for the TIFF predictor {page.predictor}"
    samples = page.samplesperpixel if page.planarconfig == 1 else 1
    if name == "jpeg":
        return _jpeg_codecs(image, samples)
    if name == "lerc" and dtype.byteorder == ">":
        return (), "tifffile does not read LERC data of big-endian files"
    codec = TiffCodec(
        name,
        1 if is_image else int(page.predictor),
        "big" if not is_image and dtype.byteorder == ">" and page.predictor != 3 else "little",
        samples,
    )
    return (codec.to_dict(),), None


def _jpeg_codecs(image: _Image, samples: int) -> tuple[tuple[Mapping[str, Any], ...], str | None]:
    page = image.page
    tables = page.jpegtables
    if page.bitspersample != 8:
        return (), f"Zarr has no codec for JPEG data of {page.bitspersample} bits"
    if page.jpegheader is not None or any(p.jpegtables != tables for p in image.stack.pages if p is not None):
        return (), "its pages have different JPEG headers"
    # tifffile returns YCbCr as RGB, and separate planes as grey.
    space = output = None
    if not page.extrasamples:
        output = {2: 2, 5: 4, 6: 2}.get(int(page.photometric))
        space = 2 if int(page.photometric) == 2 and not page.is_jfif else None
    if page.planarconfig != 1:
        output = 1
    codec = TiffCodec("jpeg", samples=samples, jpeg_tables=tables or None, jpeg_color_space=space, jpeg_output=output)
    return (codec.to_dict(),), None


def _nodata(page: Any) -> Any:
    """GDAL's value for missing pixels. None if there is none, or if no pixel can have it."""
    tag = page.tags.get("GDAL_NODATA")
    if tag is None:
        return None
    text = str(tag.value).strip().strip("\0")
    dtype = np.dtype(page.dtype)
    try:
        value = float(text)
        if dtype.kind in "fc":
            return value
        exact = int(text) if text.lstrip("+-").isdigit() else int(value) if value.is_integer() else None
    except (ValueError, OverflowError):
        return None
    if exact is None or dtype.kind not in "iu":
        return None
    return exact if np.iinfo(dtype).min <= exact <= np.iinfo(dtype).max else None


def _band_attributes(page: Any) -> dict[str, Any]:
    """Scale, offset, units and names of the bands, from GDAL's own tag."""
    tag = page.tags.get("GDAL_METADATA")
    if tag is None:
        return {}
    try:
        items = ElementTree.fromstring(str(tag.value).strip("\0")).findall("Item")
    except ElementTree.ParseError:
        return {}
    by_role: dict[str, dict[int, str]] = {}
    for item in items:
        sample = item.get("sample")
        if sample is not None and sample.isdigit() and item.text:
            by_role.setdefault(item.get("role") or "", {})[int(sample)] = item.text.strip()
    attributes: dict[str, Any] = {}
    count = page.samplesperpixel
    for role, name, many, usual in (("scale", "scale_factor", "scales", 1.0), ("offset", "add_offset", "offsets", 0.0)):
        try:
            values = [float(by_role.get(role, {}).get(i, usual)) for i in range(count)]
        except ValueError:
            continue
        if len(set(values)) > 1:
            attributes[many] = values  # one array has one scale, so readers have to apply these
        elif role in by_role:
            attributes[name] = values[0]
    for role, name in (("unittype", "units"), ("description", "long_name")):
        texts = [by_role.get(role, {}).get(i, "") for i in range(count)]
        if any(texts):
            attributes[name] = texts[0] if len(set(texts)) == 1 else texts
    return attributes


# Coordinates of pixels


def _geo_keys(page: Any) -> Mapping[str, Any]:
    tags = page.geotiff_tags if page.is_geotiff else {}
    return {str(key): value for key, value in (tags or {}).items()}


def _transform(page: Any) -> _Transform | None:
    """The transformation of the centres of the pixels. None if the file has none, or only control points."""
    # Whole numbers are the centres of point pixels, and the corners of area pixels.
    shift = 0.0 if int(_geo_keys(page).get("GTRasterTypeGeoKey") or 1) == 2 else 0.5
    matrix = page.tags.get("ModelTransformationTag")
    scale, tie = page.tags.get("ModelPixelScaleTag"), page.tags.get("ModelTiepointTag")
    if matrix is not None and len(matrix.value) >= 8:
        a, b, _, x0, d, e, _, y0 = (float(v) for v in matrix.value[:8])
    elif scale is not None and tie is not None and len(scale.value) >= 2 and len(tie.value) >= 6:
        column, row, _, east, north = (float(v) for v in tie.value[:5])
        # GDAL treats heights of pixels as downwards, whatever their sign.
        a, b, d, e = float(scale.value[0]), 0.0, 0.0, -abs(float(scale.value[1]))
        x0, y0 = east - column * a, north - row * e
    else:
        return None
    if not all(math.isfinite(v) for v in (a, b, x0, d, e, y0)) or a * e - b * d == 0:
        return None
    return _Transform(x0 + shift * (a + b), a, b, y0 + shift * (d + e), d, e)


def _position_names(image: _Image) -> dict[str, str]:
    """Coordinates of an image by name, each with the axis that it is of."""
    if image.transform is None:
        return {}
    if not image.transform.is_rotated:
        return {image.x: "x", image.y: "y"}
    if image.page.imagelength * image.page.imagewidth > _MOST_POSITIONS:
        return {}
    return {f"xc{image.suffix}": "x", f"yc{image.suffix}": "y"}


def _positions(image: _Image, axis: str) -> npt.NDArray[np.float64]:
    """Eastings or northings of the centres of the pixels."""
    transform = image.transform
    assert transform is not None
    columns = np.arange(image.page.imagewidth, dtype=np.float64)
    rows = np.arange(image.page.imagelength, dtype=np.float64)
    if not transform.is_rotated:
        return transform.x0 + columns * transform.a if axis == "x" else transform.y0 + rows * transform.e
    origin, by_column, by_row = (
        (transform.x0, transform.a, transform.b) if axis == "x" else (transform.y0, transform.d, transform.e)
    )
    return np.asarray(origin + columns[None, :] * by_column + rows[:, None] * by_row)


def _position_variable(
    name: str, dims: tuple[str, ...], values: npt.NDArray[np.float64], axis: str, page: Any
) -> SourceVariable:
    attributes = {"standard_name": f"projection_{axis}_coordinate", "axis": axis.upper()}
    if _geo_keys(page).get("GTModelTypeGeoKey") == 2:
        word, units = ("longitude", "degrees_east") if axis == "x" else ("latitude", "degrees_north")
        attributes.update(standard_name=word, units=units)
    return SourceVariable(
        path=name,
        dims=dims,
        shape=values.shape,
        dtype="<f8",
        chunks=values.shape,
        attributes=attributes,
        codecs=(bytes_codec("<f8"),),
        layout="opaque",
        not_virtual="coordinates are computed from tags of the file",
    )


def _ground(image: _Image) -> dict[str, Any]:
    """The coordinate reference system of an image, and its transformation if there are no coordinates."""
    attributes: dict[str, Any] = {}
    crs = _crs(image.page)
    if crs is not None:
        attributes["crs"] = crs
    keys = _geo_keys(image.page)
    if keys.get("GTRasterTypeGeoKey") is not None:
        attributes["AREA_OR_POINT"] = "Point" if int(keys["GTRasterTypeGeoKey"]) == 2 else "Area"
    tie = image.page.tags.get("ModelTiepointTag")
    if image.transform is not None and image.transform.is_rotated:
        attributes["GeoTransform"] = str(image.transform)
        names = _position_names(image)
        if names:
            attributes["coordinates"] = " ".join(names)
    elif image.transform is None and tie is not None:
        attributes["ground_control_points"] = [float(v) for v in tie.value]
    return attributes


def _crs(page: Any) -> str | None:
    """The code of the reference system, or the keys that define it."""
    keys = _geo_keys(page)
    for key in ("ProjectedCSTypeGeoKey", "GeographicTypeGeoKey"):
        code = keys.get(key)
        if code is not None and 0 < int(code) < 32767:
            return f"EPSG:{int(code)}"
    named = {k: v for k, v in keys.items() if k.endswith("GeoKey") and "Citation" not in k and k not in _NOT_PROJECTION}
    if not named:
        return None
    return "; ".join(f"{key.removesuffix('GeoKey')}={json_value(named[key])}" for key in sorted(named))


def _attributes(page: Any) -> dict[str, Any]:
    """The map projection from the GeoTIFF keys."""
    kept = {k: json_value(v) for k, v in _geo_keys(page).items() if isinstance(v, (str, int, float))}
    crs = _crs(page)
    return {**kept, "crs": crs} if crs is not None else kept


def _left_out(images: Mapping[str, _Image]) -> dict[str, str]:
    """Overviews by the name of their image."""
    notes: dict[str, str] = {}
    for name, image in images.items():
        sizes = [f"{level.keyframe.imagelength} x {level.keyframe.imagewidth}" for level in image.stack.levels[1:]]
        if sizes:
            notes[f"{name} (overviews)"] = f"{len(sizes)} overviews of lower resolution ({', '.join(sizes)} pixels)"
    return notes
