"""The 39-byte header of metadata files, and their zstd bodies. Decompression stops at a limit."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass

import zstandard

from icefloe import __version__
from icefloe.errors import FormatError, UnknownFormatError

ZSTD_MAGIC = bytes.fromhex("28b52ffd")
FLATBUFFER_IDENTIFIER = b"Ichk"

_BLOCK_BYTES = 1 << 20
_WINDOW_BYTES = 1 << 27
"""The largest window that zstd accepts by default. Frames with a larger window are refused."""


@dataclass(frozen=True, slots=True)
class DecompressionLimits:
    """The limit of a decompressed body.

    Up to `free_bytes`, any compression ratio is accepted. Above, a ratio of more than `ratio` is refused as a
    decompression bomb.
    """

    max_bytes: int = 2 << 30
    free_bytes: int = 16 << 20
    ratio: int = 1000

    def allowed_bytes(self, compressed_bytes: int) -> int:
        return min(self.max_bytes, max(self.free_bytes, self.ratio * compressed_bytes))


DEFAULT_LIMITS = DecompressionLimits()

_per_thread = threading.local()


def compress(body: bytes | memoryview, level: int = 3) -> bytes:
    """One zstd frame with content size and checksum."""
    # Contexts are expensive to create and must not be shared between threads.
    contexts: dict[int, zstandard.ZstdCompressor] | None = getattr(_per_thread, "compressors", None)
    if contexts is None:
        contexts = _per_thread.compressors = {}
    context = contexts.get(level)
    if context is None:
        context = contexts[level] = zstandard.ZstdCompressor(level=level, write_checksum=True)
    return context.compress(body)


def is_believable(body_bytes: int, compressed_bytes: int, limits: DecompressionLimits = DEFAULT_LIMITS) -> bool:
    """Whether a reader with these limits accepts the body."""
    return body_bytes <= limits.allowed_bytes(compressed_bytes)


def decompress(data: bytes | memoryview, limits: DecompressionLimits = DEFAULT_LIMITS) -> bytes:
    """The content of exactly one zstd frame. Raises FormatError if it is corrupt or larger than allowed."""
    allowed = limits.allowed_bytes(len(data))
    context: zstandard.ZstdDecompressor | None = getattr(_per_thread, "decompressor", None)
    if context is None:
        context = _per_thread.decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    try:
        declared = zstandard.frame_content_size(data)
        if declared > allowed:
            raise _too_large(len(data), declared, allowed)
        # A frame that declares no content is read as a stream, because the one-shot call does not check it.
        if declared > 0:
            return context.decompress(data, max_output_size=declared, allow_extra_data=False)
        return _decompress_stream(context, data, allowed)
    except (zstandard.ZstdError, MemoryError) as error:
        raise FormatError(f"a zstd body of {len(data)} bytes cannot be decompressed: {error}") from error


def _decompress_stream(context: zstandard.ZstdDecompressor, data: bytes | memoryview, allowed: int) -> bytes:
    """Decompress a frame without a content size."""
    stream = context.decompressobj(write_size=_BLOCK_BYTES)
    parts: list[bytes] = []
    size = 0
    # zstd expands one byte to at most about 32,000. With small steps, a bomb exceeds the limit by at most an eighth.
    step = max(64, min(1 << 16, allowed >> 18))
    for start in range(0, len(data), step):
        part = stream.decompress(data[start : start + step])
        parts.append(part)
        size += len(part)
        if size > allowed:
            raise _too_large(len(data), size, allowed)
        if stream.eof:
            if stream.unused_data or start + step < len(data):
                raise FormatError(f"a zstd body of {len(data)} bytes has bytes after its frame")
            return b"".join(parts)
    raise FormatError(f"a zstd body of {len(data)} bytes ends in the middle of its frame")


def _too_large(compressed: int, size: int, allowed: int) -> FormatError:
    return FormatError(
        f"a zstd body of {compressed} bytes decompresses to at least {size} bytes, but at most {allowed} are allowed"
    )


MAGIC = bytes.fromhex("494345f09fa78a4348554e4b")
HEADER_BYTES = 39
WRITER = f"icefloe-{__version__}"[:24]

_WRITER_START, _WRITER_END = 12, 36


class FileType(enum.IntEnum):
    """The type of a metadata file. The value is byte 37."""

    SNAPSHOT = 1
    MANIFEST = 2
    ATTRIBUTES = 3
    TRANSACTION_LOG = 4
    CHUNK = 5
    REPO_INFO = 6
    MANIFEST_LIST = 7


class Compression(enum.IntEnum):
    """How the body is compressed. The value is byte 38."""

    NONE = 0
    ZSTD = 1


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header. The decoder of the body checks the numbers."""

    writer: str
    spec_version: int
    file_type: int
    compression: int


def has_magic(data: bytes | memoryview) -> bool:
    """Whether a file starts like one with a header."""
    return bytes(data[: len(MAGIC)]) == MAGIC


def is_flatbuffer(body: bytes) -> bool:
    """Whether a decompressed body is a flatbuffer. MessagePack bodies of spec 1 have the same header."""
    return body[4:8] == FLATBUFFER_IDENTIFIER


def encode_header(file_type: FileType, spec_version: int, compression: Compression = Compression.ZSTD) -> bytes:
    """Encode the header of a file that this library writes."""
    return MAGIC + WRITER.encode().ljust(_WRITER_END - _WRITER_START) + bytes([spec_version, file_type, compression])


def parse_header(data: bytes | memoryview) -> Header:
    """Parse the header. Raises FormatError if there is none."""
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
    """The header and the decompressed body of a file. Raises if it is not of this type and of a known version."""
    header = parse_header(data)
    name = file_type.name.lower().replace("_", " ")
    if header.spec_version not in spec_versions:
        raise UnknownFormatError(
            f"a {name} file has spec version {header.spec_version}, written by {header.writer!r}. This library reads "
            f"versions up to {spec_versions[-1]}. Upgrade icefloe",
            spec_version=header.spec_version,
        )
    if header.file_type != file_type:
        raise FormatError(f"expected a {name} file (type {int(file_type)}), found type {header.file_type}")
    body = memoryview(data)[HEADER_BYTES:]
    if header.compression == Compression.NONE:
        return header, bytes(body)
    if header.compression == Compression.ZSTD:
        return header, decompress(body, limits)
    raise UnknownFormatError(
        f"a {name} file has the unknown compression {header.compression}, expected 0 (none) or 1 (zstd)"
    )
