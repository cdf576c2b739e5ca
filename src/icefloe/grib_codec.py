"""A Zarr codec whose chunks are GRIB messages: `icefloe.grib`. ecCodes decodes them.

The bytes of a chunk are one GRIB message of edition 1 or 2 with one field, as in its file. So a chunk can be a
reference to a range of a GRIB file. The values are those that ecCodes returns, as 64-bit floats. Missing values are
NaN.

The configuration says which messages belong to the array. A message of another parameter or on another grid is an
error, never values at wrong positions.

| key | meaning |
|---|---|
| `parameter` | the edition and the parameter's numbers, such as `2/0/0/0` (see `parameter_numbers`) |
| `grid` | ecCodes' `md5GridSection` |
| `transposed` | the points of one column are consecutive in the message; false if absent |

zarr writes a chunk as 4 bytes, `IFV1`, followed by a zstd frame with the values as little-endian doubles in C order.
GRIB cannot store all doubles. A message starts with `GRIB`, so the two are never confused.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard
from zarr.abc.codec import ArrayBytesCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer
from zarr.core.common import JSON, parse_named_configuration
from zarr.registry import register_codec

from icefloe.errors import FormatError, InvalidInputError, UnsupportedError

CODEC_NAME = "icefloe.grib"
VALUES_MAGIC = b"IFV1"
MISSING = 1.7e308
"""The value of ecCodes for missing values. No packing can produce it."""


def _eccodes() -> Any:
    """ecCodes is loaded when the first chunk is decoded, not when the codec is registered."""
    try:
        return importlib.import_module("eccodes")
    except ImportError as error:
        raise UnsupportedError(
            "this array consists of GRIB messages. To read it, install ecCodes: pip install 'icefloe[grib]'",
            codec=CODEC_NAME,
        ) from error


def read_values(handle: Any) -> npt.NDArray[np.float64]:
    """The values of a message in ecCodes' order. Missing values are NaN."""
    eccodes = _eccodes()
    eccodes.codes_set(handle, "missingValue", MISSING)
    values = np.asarray(eccodes.codes_get_array(handle, "values"), dtype=np.float64)
    return np.where(values == MISSING, np.nan, values)


def parameter_numbers(handle: Any) -> str:
    """The edition of a message and the numbers of its parameter: `2/discipline/category/number` or `1/table/number`."""
    eccodes = _eccodes()
    edition = int(eccodes.codes_get(handle, "edition", int))
    keys = ["table2Version", "indicatorOfParameter"]
    if edition == 2:
        keys = ["discipline", "parameterCategory", "parameterNumber"]
    return "/".join(str(number) for number in (edition, *(eccodes.codes_get(handle, key, int) for key in keys)))


def count_fields(read: Callable[[int, int], bytes], length: int) -> int:
    """The number of fields of a GRIB message. Only headers of sections are read.

    `read` returns bytes of the message, by their position and number.
    """
    head = read(0, 16)
    if head[7:8] != b"\x02":
        return 1
    end = min(length, int.from_bytes(head[8:16], "big")) - 4
    count, start = 0, 16
    while start + 5 <= end:
        header = read(start, 5)
        size = int.from_bytes(header[:4], "big")
        if size < 5:
            break
        count += header[4] == 7
        start += size
    return max(1, count)


@dataclass(frozen=True)
class GribCodec(ArrayBytesCodec):
    """Decodes a chunk from one GRIB message.

    Parameters
    ----------
    parameter
        The edition and the numbers of the parameter of all messages.
    grid
        The hash of the grid section of all messages, ecCodes' `md5GridSection`.
    transposed
        The points of one column are consecutive in the message.

    Examples
    --------
    >>> GribCodec("2/0/0/0", "33c7d6025995e1b4913811e77d38ec50").to_dict()["name"]
    'icefloe.grib'
    """

    is_fixed_size = False

    parameter: str
    grid: str
    transposed: bool = False

    @classmethod
    def from_dict(cls, data: dict[str, JSON]) -> GribCodec:
        """Build the codec from its entry in zarr.json.

        Parameters
        ----------
        data
            The name and the configuration.

        Returns
        -------
        GribCodec
            The codec.

        Raises
        ------
        InvalidInputError
            The configuration lacks a key, or has an unknown one.

        Examples
        --------
        >>> settings = {"parameter": "2/0/0/0", "grid": "33c7d6025995e1b4913811e77d38ec50"}
        >>> GribCodec.from_dict({"name": "icefloe.grib", "configuration": settings}).transposed
        False
        """
        _, found = parse_named_configuration(data, CODEC_NAME)
        settings: dict[str, Any] = dict(found)
        is_valid = isinstance(settings.get("parameter"), str) and isinstance(settings.get("grid"), str)
        if not is_valid or not settings.keys() <= {"parameter", "grid", "transposed"}:
            raise InvalidInputError(
                f"the codec {CODEC_NAME} needs the texts `parameter` and `grid`, and allows `transposed`. "
                f"Found {settings}"
            )
        return cls(settings["parameter"], settings["grid"], bool(settings.get("transposed", False)))

    def to_dict(self) -> dict[str, JSON]:
        """Return the entry in zarr.json.

        Returns
        -------
        dict
            The name and the configuration.

        Examples
        --------
        >>> GribCodec("2/0/0/0", "33c7", True).to_dict()["configuration"]
        {'parameter': '2/0/0/0', 'grid': '33c7', 'transposed': True}
        """
        settings: dict[str, JSON] = {"parameter": self.parameter, "grid": self.grid}
        if self.transposed:
            settings["transposed"] = True
        return {"name": CODEC_NAME, "configuration": settings}

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Refuse arrays of another type than 64-bit floats.

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
            The array has another data type.

        Examples
        --------
        >>> from zarr.dtype import parse_dtype
        >>> codec = GribCodec("2/0/0/0", "33c7")
        >>> codec.validate(shape=(4,), dtype=parse_dtype("<f8", zarr_format=3), chunk_grid=None)
        """
        if dtype.to_native_dtype() != np.dtype("f8"):
            raise InvalidInputError(f"the codec {CODEC_NAME} decodes 64-bit floats, not {dtype.to_native_dtype()}")

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: ArraySpec) -> int:
        """GRIB messages have no fixed size.

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
        >>> GribCodec("2/0/0/0", "33c7").is_fixed_size
        False
        """
        raise NotImplementedError

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        content = chunk_bytes.to_bytes()
        shape = tuple(chunk_spec.shape)
        values = self._stored_values(content) if content.startswith(VALUES_MAGIC) else self._message_values(content)
        if values.size != int(np.prod(shape, dtype=np.int64)):
            raise _broken(f"it has {values.size} values, but the chunk has the shape {shape}")
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(self._arranged(values, shape, content))

    def _arranged(self, values: npt.NDArray[np.float64], shape: tuple[int, ...], content: bytes) -> Any:
        if not self.transposed or content.startswith(VALUES_MAGIC):
            return values.reshape(shape)
        rows, columns = shape[-2:]
        return np.ascontiguousarray(values.reshape(columns, rows).T).reshape(shape)

    @staticmethod
    def _stored_values(content: bytes) -> npt.NDArray[np.float64]:
        try:
            data = zstandard.ZstdDecompressor().decompress(content[len(VALUES_MAGIC) :])
            # A copy, because chunks that zarr reads may be changed in place.
            return np.frombuffer(data, dtype="<f8").astype(np.float64)
        except (zstandard.ZstdError, ValueError) as error:
            raise _broken(str(error)) from error

    def _message_values(self, content: bytes) -> npt.NDArray[np.float64]:
        eccodes = _eccodes()
        if not content.startswith(b"GRIB"):
            raise _broken(f"it starts with {content[:4]!r}")
        if count_fields(lambda start, size: content[start : start + size], len(content)) > 1:
            raise _broken("it has several fields")
        try:
            handle = eccodes.codes_new_from_message(content)
            try:
                found = parameter_numbers(handle), str(eccodes.codes_get(handle, "md5GridSection"))
                if found != (self.parameter, self.grid):
                    raise _broken(
                        f"it has the parameter {found[0]} on the grid {found[1]}, but the array has the parameter "
                        f"{self.parameter} on the grid {self.grid}. The file, or the index that it was ingested from, "
                        "is not the one of this array"
                    )
                return read_values(handle)
            finally:
                eccodes.codes_release(handle)
        except eccodes.CodesInternalError as error:
            raise _broken(str(error)) from error

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return self._decode_sync(chunk_bytes, chunk_spec)

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer | None:
        values = np.ascontiguousarray(chunk_array.as_numpy_array(), dtype="<f8")
        return chunk_spec.prototype.buffer.from_bytes(VALUES_MAGIC + zstandard.ZstdCompressor(3).compress(values.data))

    async def _encode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer | None:
        return self._encode_sync(chunk_array, chunk_spec)


def _broken(reason: str) -> FormatError:
    return FormatError(f"a chunk is not a GRIB message of its array: {reason}", codec=CODEC_NAME, reason=reason)


# The entry point `zarr.codecs` registers the codec where only zarr is imported.
register_codec(CODEC_NAME, GribCodec)
