"""A Zarr codec that undoes a filter of HDF5 for which zarr has no codec of its own: `icefloe.hdf5`.

The bytes of a chunk are those of an HDF5 file, so a chunk can be a reference to a range of the file. Each filter of a
dataset is one codec. The values are those that the HDF5 library reads.

| `filter` | HDF5 number | `values` | decoded with |
|---|---|---|---|
| `szip` | 4 | the four parameters of the filter | imagecodecs |
| `scaleoffset` | 6 | the twenty parameters of the filter | NumPy |
| `lzf` | 32000 | none | imagecodecs |
| `lz4` | 32004 | none | imagecodecs |
| `bitshuffle` | 32008 | element size, elements in a block, compression (0 none, 2 LZ4, 3 zstd) | imagecodecs |
| `shuffle` | 2 | element size | NumPy; only behind a filter that changes the size |

`size_bytes` is the decoded size. It is absent behind a filter that changes the size: then a chunk cannot be larger than
its array's chunk and the largest header of a filter. Other sizes are errors, before memory is allocated.

Layouts (HDF5 File Format Specification and the registered filters):

* `szip`: the size as a little-endian 32-bit number, then the SZ stream.
* `scaleoffset`: the number of bits of a value (little-endian, 32 bits), the size of the minimum (1 byte), the minimum
  (16 bytes), then the values minus the minimum, with the most significant bit first. If there is a fill value, the
  largest number of this many bits stands for it. Floats are whole multiples of a power of ten above the minimum.
* `bitshuffle` with a compression: the size and the block size in bytes (big-endian, 64 and 32 bits), then for each
  block its length (big-endian, 32 bits) and its compressed bytes. Elements at the end that are no multiple of 8 follow
  as they are.

zarr writes a chunk in the form of `icefloe.stored_values`, because some filters lose precision.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from zarr.abc.codec import BytesBytesCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer
from zarr.core.common import JSON, parse_named_configuration
from zarr.registry import register_codec

from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.stored_values import decode_stored, encode_stored, invalid_chunk, is_stored

CODEC_NAME = "icefloe.hdf5"
VALUE_COUNTS = {"szip": 4, "scaleoffset": 20, "lzf": 0, "lz4": 0, "bitshuffle": 3, "shuffle": 1}
"""The filters, and the number of values that each one needs."""
_HEADER_BYTES = 64
"""More than filters add to the bytes of a chunk: headers, and a checksum of 4 bytes."""
_SCALEOFFSET_HEADER = 21
_BLOCK_VALUES = 1 << 16
"""Packed values that are unpacked at a time: a multiple of 8, so that each block begins at a byte."""
_INVALID = (RuntimeError, ValueError, TypeError, IndexError, OverflowError)
"""The exceptions of imagecodecs for invalid data."""


def _imagecodecs() -> Any:
    """imagecodecs is loaded when the first chunk is decoded, not when the codec is registered."""
    try:
        return importlib.import_module("imagecodecs")
    except ImportError as error:
        raise UnsupportedError(
            "this array consists of chunks of HDF5 files with filters that zarr does not have. To read it, install "
            "imagecodecs: pip install imagecodecs",
            codec=CODEC_NAME,
        ) from error


@dataclass(frozen=True)
class Hdf5Codec(BytesBytesCodec):
    """Undoes one filter of HDF5.

    Parameters
    ----------
    filter
        The name of the filter, one of `VALUE_COUNTS`.
    values
        The parameters of the filter.
    size_bytes
        The decoded size. None if a filter before this one changes the size.

    Examples
    --------
    >>> Hdf5Codec("lzf", size_bytes=400).to_dict()
    {'name': 'icefloe.hdf5', 'configuration': {'filter': 'lzf', 'size_bytes': 400}}
    """

    is_fixed_size = False

    filter: str
    values: tuple[int, ...] = ()
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check the configuration."""
        problem = None
        if self.filter not in VALUE_COUNTS:
            problem = f"the filter {self.filter!r} is none of {tuple(VALUE_COUNTS)}"
        elif len(self.values) != VALUE_COUNTS[self.filter] or not all(map(_is_count, self.values)):
            problem = f"the filter {self.filter} needs {VALUE_COUNTS[self.filter]} numbers, not {self.values!r}"
        elif self.size_bytes is not None and not _is_count(self.size_bytes):
            problem = f"{self.size_bytes!r} is not a size"
        elif self.filter == "scaleoffset":
            problem = _scaleoffset_problem(self.values)
        elif self.filter == "bitshuffle" and (
            self.values[0] < 1 or self.values[1] % 8 or self.values[2] not in (0, 2, 3)
        ):
            problem = f"the values {self.values} of bitshuffle are not possible"
        elif self.filter == "shuffle" and self.values[0] < 1:
            problem = f"an element of {self.values[0]} bytes"
        if problem is not None:
            raise InvalidInputError(f"the configuration of the codec {CODEC_NAME} is invalid: {problem}")

    @classmethod
    def from_dict(cls, data: dict[str, JSON]) -> Hdf5Codec:
        """Build the codec from its entry in zarr.json.

        Parameters
        ----------
        data
            The name and the configuration.

        Returns
        -------
        Hdf5Codec
            The codec.

        Raises
        ------
        InvalidInputError
            The configuration is invalid, or has an unknown key.

        Examples
        --------
        >>> Hdf5Codec.from_dict({"name": "icefloe.hdf5", "configuration": {"filter": "lz4"}}).values
        ()
        """
        _, found = parse_named_configuration(data, CODEC_NAME)
        settings: dict[str, Any] = dict(found)
        is_valid = isinstance(settings.get("filter"), str) and isinstance(settings.get("values", ()), Sequence)
        if not is_valid or not settings.keys() <= {"filter", "values", "size_bytes"}:
            raise InvalidInputError(
                f"the codec {CODEC_NAME} needs the text `filter`, and allows `values` and `size_bytes`. "
                f"Found {settings}"
            )
        return cls(settings["filter"], tuple(settings.get("values", ())), settings.get("size_bytes"))

    def to_dict(self) -> dict[str, JSON]:
        """Return the entry in zarr.json.

        Returns
        -------
        dict
            The name and the configuration.

        Examples
        --------
        >>> Hdf5Codec("szip", (141, 32, 32, 256)).to_dict()["configuration"]
        {'filter': 'szip', 'values': [141, 32, 32, 256]}
        """
        settings: dict[str, JSON] = {"filter": self.filter}
        if self.values:
            settings["values"] = list(self.values)
        if self.size_bytes is not None:
            settings["size_bytes"] = self.size_bytes
        return {"name": CODEC_NAME, "configuration": settings}

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: ArraySpec) -> int:
        """Filtered chunks have no fixed size.

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
        >>> Hdf5Codec("lzf").is_fixed_size
        False
        """
        raise NotImplementedError

    def decode_bytes(self, content: bytes, most_bytes: int) -> bytes:
        """Undo the filter.

        Parameters
        ----------
        content
            The bytes of the file, or what the codecs after this one made of them.
        most_bytes
            The largest size of the result.

        Returns
        -------
        bytes
            The bytes before the filter was applied.

        Raises
        ------
        FormatError
            The bytes are invalid, or have another size than the chunk.
        UnsupportedError
            imagecodecs is not installed, and the filter needs it.

        Examples
        --------
        >>> import imagecodecs
        >>> Hdf5Codec("lzf", size_bytes=100).decode_bytes(imagecodecs.lzf_encode(bytes(100)), 100) == bytes(100)
        True
        """
        expected = self.size_bytes
        if expected is not None and expected > most_bytes:
            raise invalid_chunk(CODEC_NAME, f"`size_bytes` is {expected}, and the chunk has {most_bytes}")
        undo: Callable[[bytes, int], bytes] = {
            "szip": self._undo_szip,
            "scaleoffset": self._undo_scaleoffset,
            "lzf": self._undo_lzf,
            "lz4": self._undo_lz4,
            "bitshuffle": self._undo_bitshuffle,
            "shuffle": self._undo_shuffle,
        }[self.filter]
        try:
            data = undo(content, most_bytes if expected is None else expected)
        except _INVALID as error:
            if isinstance(error, UnsupportedError):
                raise
            raise invalid_chunk(CODEC_NAME, f"{self.filter} data: {error}") from error
        if len(data) > most_bytes or (expected is not None and len(data) != expected):
            raise invalid_chunk(
                CODEC_NAME, f"{self.filter} data of {len(data)} bytes, expected {expected or most_bytes}"
            )
        return data

    def _undo_szip(self, content: bytes, most: int) -> bytes:
        _check_declared("szip", int.from_bytes(content[:4], "little"), most)
        return bytes(_imagecodecs().szip_decode(content, *self.values, header=True, out=most))

    def _undo_lzf(self, content: bytes, most: int) -> bytes:
        return bytes(_imagecodecs().lzf_decode(content, out=most))

    def _undo_lz4(self, content: bytes, most: int) -> bytes:
        _check_declared("lz4", int.from_bytes(content[:8], "big"), most)
        return bytes(_imagecodecs().lz4h5_decode(content, out=most))

    def _undo_shuffle(self, content: bytes, most: int) -> bytes:
        size = self.values[0]
        count = len(content) // size
        whole = np.frombuffer(content, np.uint8, count * size).reshape(size, count).T.tobytes()
        return whole + content[count * size :]

    def _undo_bitshuffle(self, content: bytes, most: int) -> bytes:
        item_bytes, block_values, compression = self.values
        decode_bits = _imagecodecs().bitshuffle_decode
        if compression == 0:
            return bytes(decode_bits(content, itemsize=item_bytes, blocksize=block_values))
        size, block_bytes = int.from_bytes(content[:8], "big"), int.from_bytes(content[8:12], "big")
        _check_declared("bitshuffle", size, most)
        if block_bytes % (8 * item_bytes) or not block_bytes:
            raise invalid_chunk(CODEC_NAME, f"bitshuffle data with blocks of {block_bytes} bytes")
        decode = _imagecodecs().lz4_decode if compression == 2 else _imagecodecs().zstd_decode
        # The last block has the elements that remain, up to a multiple of 8. The others follow as they are.
        packed = size // (8 * item_bytes) * (8 * item_bytes)
        parts, at = [], 12
        for start in range(0, packed, block_bytes):
            length = int.from_bytes(content[at : at + 4], "big")
            wanted = min(block_bytes, packed - start)
            part = decode(content[at + 4 : at + 4 + length], out=wanted)
            if len(part) != wanted or at + 4 + length > len(content):
                raise invalid_chunk(CODEC_NAME, f"a block of bitshuffle data has {len(part)} bytes, expected {wanted}")
            parts.append(bytes(part))
            at += 4 + length
        parts.append(content[at:])
        joined = b"".join(parts)
        if len(joined) != size:
            raise invalid_chunk(CODEC_NAME, f"bitshuffle data of {len(joined)} bytes, its header says {size}")
        return bytes(decode_bits(joined, itemsize=item_bytes, blocksize=block_bytes // item_bytes))

    def _undo_scaleoffset(self, content: bytes, most: int) -> bytes:
        _, factor, count, kind, size, _, order, has_fill, *fill = self.values
        factor = factor - (1 << 32) if factor >= 1 << 31 else factor
        _check_declared("scaleoffset", count * size, most)
        if kind == 0 and factor == 8 * size:
            # All bits are used. The filter does nothing.
            return content
        if len(content) < _SCALEOFFSET_HEADER:
            raise invalid_chunk(CODEC_NAME, f"scaleoffset data of {len(content)} bytes has no header")
        bits, minimum_bytes = int.from_bytes(content[:4], "little"), min(8, content[4])
        minimum = content[5 : 5 + minimum_bytes].ljust(8, b"\0")[:size]
        packed = content[_SCALEOFFSET_HEADER:]
        if bits > 8 * size or len(packed) * 8 < count * bits:
            raise invalid_chunk(
                CODEC_NAME, f"scaleoffset data of {len(packed)} bytes for {count} values of {bits} bits"
            )
        number = np.dtype(f"<{'f' if kind else 'u'}{size}")
        if bits == 8 * size:
            found: npt.NDArray[Any] = np.frombuffer(packed, number, count)
        else:
            numbers = _unpack_bits(packed, count, bits).astype(f"<u{size}")
            low = np.frombuffer(minimum, number)
            if kind:
                # The HDF5 library computes in the type of the values.
                with np.errstate(all="ignore"):
                    scale = number.type(10.0**factor)
                    found = numbers.view(f"<i{size}").astype(number) / scale + low
            else:
                found = numbers + low
            if has_fill:
                filler = np.array(fill, "<u4").view(np.uint8)[:size].view(number)
                found = np.where(numbers == (1 << bits) - 1, filler, found)
        return found.astype(number.newbyteorder(">" if order else "<")).tobytes()

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        content = chunk_bytes.to_bytes()
        most = math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize + _HEADER_BYTES
        if is_stored(content):
            data = decode_stored(content, most, CODEC_NAME)
        else:
            data = self.decode_bytes(content, most)
        # A copy, because chunks that zarr reads may be changed in place.
        return chunk_spec.prototype.buffer.from_bytes(bytearray(data))

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return self._decode_sync(chunk_bytes, chunk_spec)

    def _encode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer | None:
        return chunk_spec.prototype.buffer.from_bytes(encode_stored(chunk_bytes.to_bytes()))

    async def _encode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer | None:
        return self._encode_sync(chunk_bytes, chunk_spec)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def _check_declared(name: str, size: int, most: int) -> None:
    if size > most:
        raise invalid_chunk(CODEC_NAME, f"{name} data declares {size} bytes, and at most {most} fit")


def _scaleoffset_problem(values: Sequence[int]) -> str | None:
    kind, _, _, number, size, sign, order, has_fill, *_ = values
    is_known = (number == 0 and kind == 2 and size in (1, 2, 4, 8)) or (number == 1 and kind == 0 and size in (4, 8))
    if not is_known or sign not in (0, 1) or order not in (0, 1) or has_fill not in (0, 1):
        return f"the values {tuple(values)} of scaleoffset are not possible"
    return None


def _unpack_bits(packed: bytes, count: int, bits: int) -> npt.NDArray[np.uint64]:
    """Numbers of `bits` bits each, with the most significant bit first, that follow each other without a gap."""
    found = np.zeros(count, np.uint64)
    if bits == 0:
        return found
    for start in range(0, count, _BLOCK_VALUES):
        number = min(_BLOCK_VALUES, count - start)
        first = start * bits // 8
        # Windows of 9 bytes: 64 bits may begin within a byte.
        block = np.frombuffer(packed[first : first + (number * bits + 7) // 8] + bytes(9), np.uint8)
        position = np.arange(number, dtype=np.int64) * bits
        at, skipped = position >> 3, (position & 7).astype(np.uint64)
        windows = np.lib.stride_tricks.sliding_window_view(block, 8)[at]
        high = np.ascontiguousarray(windows).view(">u8")[:, 0].astype(np.uint64) << skipped
        low = block[at + 8].astype(np.uint64) >> (np.uint64(8) - skipped)
        found[start : start + number] = (high | low) >> np.uint64(64 - bits)
    return found


# The entry point `zarr.codecs` registers the codec where only zarr is imported.
register_codec(CODEC_NAME, Hdf5Codec)
