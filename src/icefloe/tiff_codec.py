"""A Zarr codec whose chunks are tiles or strips of TIFF files: `icefloe.tiff`. imagecodecs decodes them.

The bytes of a chunk are one segment (a tile or a strip), as in its file. So a chunk can be a reference to a range of a
TIFF file. The last dimensions of a chunk are rows and columns, followed by the samples of a pixel if there are several.
Other dimensions come first and have the length 1. The values are those that tifffile reads.

| key | meaning |
|---|---|
| `compression` | the name of one of `BYTE_COMPRESSIONS` or `IMAGE_COMPRESSIONS` |
| `predictor` | the value of the tag Predictor: 2 (horizontal) or 3 (floating point); none if absent |
| `byte_order` | `little` or `big`, for types of several bytes in compressions of bytes; `little` if absent |
| `samples` | the number of consecutive samples of a pixel; 1 if absent |
| `jpeg_tables` | the value of the tag JPEGTables, in base64 |
| `jpeg_color_space` | the colour space of the JPEG data, if its own markers are not to be used: 2 is RGB |
| `jpeg_output` | the colour space of the values: 1 is grey, 2 RGB, 4 CMYK |

A segment that has another size than its chunk, or values of another type, is an error. A segment cannot claim more
memory than its chunk has.

zarr writes a chunk in the form of `icefloe.stored_values`: its values in little-endian byte order and C order.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from zarr.abc.codec import ArrayBytesCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer
from zarr.core.common import JSON, parse_named_configuration
from zarr.registry import register_codec

from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.stored_values import decode_stored, encode_stored, invalid_chunk, is_stored

CODEC_NAME = "icefloe.tiff"
BYTE_COMPRESSIONS = ("lzw", "deflate", "lzma", "zstd", "packbits")
"""Compressions of bytes. A predictor may come before them."""
IMAGE_COMPRESSIONS = ("jpeg", "jpeg2k", "jpegxl", "lerc", "png", "webp")
"""Compressions of images. Their data contains its own shape and type."""
_INVALID = (RuntimeError, ValueError, TypeError, IndexError, OverflowError)
"""The exceptions of imagecodecs for invalid data."""
_KEYS = ("compression", "predictor", "byte_order", "samples", "jpeg_tables", "jpeg_color_space", "jpeg_output")


def _imagecodecs() -> Any:
    """imagecodecs is loaded when the first chunk is decoded, not when the codec is registered."""
    try:
        return importlib.import_module("imagecodecs")
    except ImportError as error:
        raise UnsupportedError(
            "this array consists of tiles of TIFF files. To read it, install imagecodecs: "
            "pip install 'icefloe[geotiff]'",
            codec=CODEC_NAME,
        ) from error


def _decoder(name: str) -> Callable[..., Any]:
    try:
        found: Callable[..., Any] = getattr(_imagecodecs(), f"{name}_decode")
    except (AttributeError, ImportError) as error:
        raise UnsupportedError(f"this build of imagecodecs has no {name}", codec=CODEC_NAME) from error
    return found


@dataclass(frozen=True)
class TiffCodec(ArrayBytesCodec):
    """Decodes a chunk from one tile or strip of a TIFF file.

    Parameters
    ----------
    compression
        The compression, one of `BYTE_COMPRESSIONS` and `IMAGE_COMPRESSIONS`.
    predictor
        The value of the tag Predictor.
    byte_order
        The byte order of the file.
    samples
        The number of consecutive samples of a pixel.
    jpeg_tables
        The value of the tag JPEGTables.
    jpeg_color_space
        The colour space of the JPEG data. None if its own markers define it.
    jpeg_output
        The colour space of the values. None is the default of the JPEG library.

    Examples
    --------
    >>> TiffCodec("lzw", predictor=2).to_dict()
    {'name': 'icefloe.tiff', 'configuration': {'compression': 'lzw', 'predictor': 2}}
    """

    is_fixed_size = False

    compression: str
    predictor: int = 1
    byte_order: str = "little"
    samples: int = 1
    jpeg_tables: bytes | None = None
    jpeg_color_space: int | None = None
    jpeg_output: int | None = None

    def __post_init__(self) -> None:
        """Check the configuration."""
        is_bytes = self.compression in BYTE_COMPRESSIONS
        problem = None
        if not is_bytes and self.compression not in IMAGE_COMPRESSIONS:
            problem = f"the compression {self.compression!r} is none of {(*BYTE_COMPRESSIONS, *IMAGE_COMPRESSIONS)}"
        elif self.predictor not in (1, 2, 3) or (self.predictor != 1 and not is_bytes):
            problem = f"the predictor {self.predictor!r} is not possible with the compression {self.compression}"
        elif self.byte_order not in ("little", "big"):
            problem = f"the byte order {self.byte_order!r} is neither 'little' nor 'big'"
        elif not _is_count(self.samples) or self.samples < 1:
            problem = f"{self.samples!r} samples"
        elif not all(space is None or _is_count(space) for space in (self.jpeg_color_space, self.jpeg_output)):
            problem = f"the colour spaces {self.jpeg_color_space!r} and {self.jpeg_output!r} are no numbers"
        if problem is not None:
            raise InvalidInputError(f"the configuration of the codec {CODEC_NAME} is invalid: {problem}")

    @classmethod
    def from_dict(cls, data: dict[str, JSON]) -> TiffCodec:
        """Build the codec from its entry in zarr.json.

        Parameters
        ----------
        data
            The name and the configuration.

        Returns
        -------
        TiffCodec
            The codec.

        Raises
        ------
        InvalidInputError
            The configuration is invalid, lacks the compression, or has an unknown key.

        Examples
        --------
        >>> settings = {"compression": "webp", "samples": 3}
        >>> TiffCodec.from_dict({"name": "icefloe.tiff", "configuration": settings}).samples
        3
        """
        _, found = parse_named_configuration(data, CODEC_NAME)
        settings: dict[str, Any] = dict(found)
        if not isinstance(settings.get("compression"), str) or not settings.keys() <= set(_KEYS):
            raise InvalidInputError(
                f"the codec {CODEC_NAME} needs the text `compression`, and allows {_KEYS[1:]}. Found {settings}"
            )
        tables = settings.get("jpeg_tables")
        if tables is not None:
            try:
                settings["jpeg_tables"] = base64.b64decode(tables, validate=True)
            except (binascii.Error, TypeError, ValueError) as error:
                raise InvalidInputError(f"`jpeg_tables` of the codec {CODEC_NAME} is not base64: {error}") from error
        return cls(**settings)

    def to_dict(self) -> dict[str, JSON]:
        """Return the entry in zarr.json.

        Returns
        -------
        dict
            The name and the configuration.

        Examples
        --------
        >>> TiffCodec("jpeg", samples=3, jpeg_output=2).to_dict()["configuration"]
        {'compression': 'jpeg', 'samples': 3, 'jpeg_output': 2}
        """
        settings: dict[str, JSON] = {"compression": self.compression}
        if self.predictor != 1:
            settings["predictor"] = self.predictor
        if self.byte_order != "little":
            settings["byte_order"] = self.byte_order
        if self.samples != 1:
            settings["samples"] = self.samples
        if self.jpeg_tables is not None:
            settings["jpeg_tables"] = base64.b64encode(self.jpeg_tables).decode()
        if self.jpeg_color_space is not None:
            settings["jpeg_color_space"] = self.jpeg_color_space
        if self.jpeg_output is not None:
            settings["jpeg_output"] = self.jpeg_output
        return {"name": CODEC_NAME, "configuration": settings}

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Refuse arrays that do not consist of images of numbers.

        Parameters
        ----------
        shape
            The shape of the array.
        dtype
            The Zarr data type of the array.
        chunk_grid
            The chunk grid of the array.

        Raises
        ------
        InvalidInputError
            The array has too few dimensions, or no numbers.

        Examples
        --------
        >>> from zarr.dtype import parse_dtype
        >>> dtype = parse_dtype("<u2", zarr_format=3)
        >>> TiffCodec("lzw").validate(shape=(64, 64), dtype=dtype, chunk_grid=None)
        """
        if dtype.to_native_dtype().kind not in "iufc":
            raise InvalidInputError(f"the codec {CODEC_NAME} decodes numbers, not {dtype.to_native_dtype()}")
        if len(shape) < (2 if self.samples == 1 else 3):
            raise InvalidInputError(f"the codec {CODEC_NAME} decodes images, and the array has the shape {shape}")

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: ArraySpec) -> int:
        """Segments have no fixed size.

        Parameters
        ----------
        input_byte_length
            The size of the decoded chunk.

        Raises
        ------
        NotImplementedError
            Always. zarr asks only codecs of a fixed size.

        Examples
        --------
        >>> TiffCodec("lzw").is_fixed_size
        False
        """
        raise NotImplementedError

    def decode_segment(self, content: bytes, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Decode the bytes of a segment.

        Parameters
        ----------
        content
            The bytes of the file.
        shape
            The shape of the chunk.
        dtype
            The type of the values.

        Returns
        -------
        numpy.ndarray
            The values, in the byte order of this machine.

        Raises
        ------
        FormatError
            The bytes are invalid, or have another size than the chunk.
        UnsupportedError
            imagecodecs is not installed, or lacks the compression.

        Examples
        --------
        >>> import imagecodecs
        >>> TiffCodec("lzw").decode_segment(imagecodecs.lzw_encode(bytes([1, 2, 3, 4])), (2, 2), "u1").tolist()
        [[1, 2], [3, 4]]
        """
        native = np.dtype(dtype).newbyteorder("=")
        depth = 2 if self.samples == 1 else 3
        image = shape[-depth:]
        if len(shape) < depth or math.prod(shape[:-depth]) != 1 or (depth == 3 and image[-1] != self.samples):
            raise invalid_chunk(
                CODEC_NAME, f"a segment is one image with {self.samples} samples, and the chunk has the shape {shape}"
            )
        try:
            decode = self._decode_bytes if self.compression in BYTE_COMPRESSIONS else self._decode_image
            return decode(content, image, native).reshape(shape)
        except _INVALID as error:
            if isinstance(error, UnsupportedError):
                raise
            raise invalid_chunk(CODEC_NAME, f"{self.compression} data: {error}") from error

    def _decode_bytes(self, content: bytes, image: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        size_bytes = math.prod(image) * dtype.itemsize
        data = _decoder(self.compression)(content, out=size_bytes)
        if len(data) != size_bytes:
            raise invalid_chunk(CODEC_NAME, f"it has {len(data)} bytes, and the shape {image} needs {size_bytes}")
        # The floating point predictor arranges bytes by their significance, whatever the byte order of the file is.
        order = dtype if self.predictor == 3 else dtype.newbyteorder(">" if self.byte_order == "big" else "<")
        # A copy, because chunks that zarr reads may be changed in place.
        values = np.frombuffer(data, order).astype(dtype).reshape(*image[:2], self.samples)
        if self.predictor == 1:
            return values
        undo = _decoder("delta" if self.predictor == 2 else "floatpred")
        found: npt.NDArray[Any] = undo(values, axis=-2)
        return found

    def _decode_image(self, content: bytes, image: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        # The decoders refuse data of another shape or type than `out` has when they have read its header.
        out = np.zeros(image, dtype)
        options: dict[str, Any] = {}
        if self.compression == "jpeg":
            options = {
                "tables": self.jpeg_tables,
                "colorspace": self.jpeg_color_space,
                "outcolorspace": self.jpeg_output,
                "shape": image[:2],
            }
        elif self.compression == "webp" and self.samples == 4:
            # Data of an opaque image may lack the fourth sample.
            options = {"hasalpha": True}
        _decoder(self.compression)(content, out=out, **options)
        return out

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        content = chunk_bytes.to_bytes()
        shape = tuple(chunk_spec.shape)
        dtype = chunk_spec.dtype.to_native_dtype().newbyteorder("=")
        if is_stored(content):
            size_bytes = math.prod(shape) * dtype.itemsize
            data = decode_stored(content, size_bytes, CODEC_NAME)
            if len(data) != size_bytes:
                raise invalid_chunk(CODEC_NAME, f"it has {len(data)} bytes, and the shape {shape} needs {size_bytes}")
            values: npt.NDArray[Any] = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
        else:
            values = self.decode_segment(content, shape, dtype)
        made: Any = values
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(made)

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return self._decode_sync(chunk_bytes, chunk_spec)

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer | None:
        found = chunk_array.as_numpy_array()
        values = np.ascontiguousarray(found, dtype=found.dtype.newbyteorder("<"))
        return chunk_spec.prototype.buffer.from_bytes(encode_stored(values.reshape(-1).view("B").data))

    async def _encode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer | None:
        return self._encode_sync(chunk_array, chunk_spec)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# The entry point `zarr.codecs` registers the codec where only zarr is imported.
register_codec(CODEC_NAME, TiffCodec)
