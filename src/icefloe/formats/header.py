"""The 39 bytes in front of every metadata file: magic, writer, spec version, file type, compression."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from icefloe.errors import FormatError, UnknownFormatError
from icefloe.formats.compression import DEFAULT_LIMITS, DecompressionLimits, compress, decompress
from icefloe.version import __version__

MAGIC = bytes.fromhex("494345f09fa78a4348554e4b")
HEADER_BYTES = 39
WRITER = f"icefloe-{__version__}"[:24]

_WRITER_START, _WRITER_END = 12, 36


class FileType(enum.IntEnum):
    """What a metadata file holds; the value is byte 37."""

    SNAPSHOT = 1
    MANIFEST = 2
    ATTRIBUTES = 3
    TRANSACTION_LOG = 4
    CHUNK = 5
    REPO_INFO = 6


class Compression(enum.IntEnum):
    """How the body is compressed; the value is byte 38."""

    NONE = 0
    ZSTD = 1


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header. The numbers are as found: whoever decodes the body says which ones it takes."""

    writer: str
    spec_version: int
    file_type: int
    compression: int


def has_magic(data: bytes | memoryview) -> bool:
    """Whether a file starts like one with a header."""
    return bytes(data[: len(MAGIC)]) == MAGIC


def encode_header(file_type: FileType, spec_version: int, compression: Compression = Compression.ZSTD) -> bytes:
    """The 39 bytes for a file of ours."""
    return MAGIC + WRITER.encode().ljust(_WRITER_END - _WRITER_START) + bytes([spec_version, file_type, compression])


def parse_header(data: bytes | memoryview) -> Header:
    """Take the header apart; FormatError when there is none."""
    if len(data) < HEADER_BYTES or not has_magic(data):
        raise FormatError(
            f"not a metadata file: {min(len(data), HEADER_BYTES)} of {HEADER_BYTES} header bytes, "
            f"starting with {bytes(data[:12]).hex() or 'nothing'}, expected {MAGIC.hex()}"
        )
    writer = bytes(data[_WRITER_START:_WRITER_END]).decode("utf-8", "replace").rstrip(" \0")
    return Header(writer, data[36], data[37], data[38])


def encode_file(file_type: FileType, spec_version: int, body: bytes, level: int = 3) -> bytes:
    """A whole file: header and compressed body."""
    return encode_header(file_type, spec_version) + compress(body, level)


def decode_file(
    data: bytes | memoryview,
    file_type: FileType,
    spec_versions: range,
    limits: DecompressionLimits = DEFAULT_LIMITS,
) -> tuple[Header, bytes]:
    """The header and the decompressed body of a file that has to be of this type and of a known version."""
    header = parse_header(data)
    name = file_type.name.lower().replace("_", " ")
    if header.spec_version not in spec_versions:
        raise UnknownFormatError(
            f"a {name} file of spec version {header.spec_version}, written by {header.writer!r}; this library reads "
            f"up to version {spec_versions[-1]}: upgrade icefloe",
            spec_version=header.spec_version,
        )
    if header.file_type != file_type:
        raise FormatError(f"expected a {name} file (type {int(file_type)}), found type {header.file_type}")
    body = memoryview(data)[HEADER_BYTES:]
    if header.compression == Compression.NONE:
        return header, bytes(body)
    if header.compression == Compression.ZSTD:
        return header, decompress(body, limits)
    raise UnknownFormatError(f"a {name} file with unknown compression {header.compression}; known are 0 and 1 (zstd)")
