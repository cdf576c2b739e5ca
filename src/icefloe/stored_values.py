"""Chunks that zarr writes into arrays of references: a fixed prefix, followed by a zstd frame.

The codecs `icefloe.tiff` and `icefloe.hdf5` decode bytes of other file formats. They cannot encode every value in these
formats, and some formats lose precision. So a chunk that is written is stored as its bytes, compressed with zstd. The
prefix of 16 bytes tells the two apart. No TIFF compression and no HDF5 filter with a header accepts it as the beginning
of its data: its first four bytes are an invalid size, an invalid bit count and an invalid first code. Data without a
header (PackBits, nbit, bitshuffle without compression) begins with it only if it was made for this purpose.
"""

from __future__ import annotations

import zstandard

from icefloe.errors import FormatError

PREFIX = bytes.fromhex("80808080") + b"IFV2" + bytes.fromhex("9d3ce7a15b0f42c8")


def is_stored(content: bytes) -> bool:
    """Whether the bytes of a chunk were written by `encode_stored`."""
    return content.startswith(PREFIX)


def encode_stored(content: bytes | memoryview) -> bytes:
    """The stored form of bytes."""
    return PREFIX + zstandard.ZstdCompressor(3).compress(content)


def decode_stored(content: bytes, most_bytes: int, codec: str) -> bytes:
    """The bytes of the stored form.

    A frame that declares more than `most_bytes`, or no size, is refused before memory is allocated.
    """
    frame = content[len(PREFIX) :]
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= most_bytes:
            raise invalid_chunk(codec, f"its frame declares {size} bytes, and at most {most_bytes} fit")
        return zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise invalid_chunk(codec, str(error)) from error


def invalid_chunk(codec: str, reason: str) -> FormatError:
    """The error for bytes that a codec cannot decode."""
    return FormatError(f"a chunk cannot be decoded with {codec}: {reason}", codec=codec, reason=reason)
