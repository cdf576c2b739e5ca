"""zstd bodies: compressed in one frame with a checksum, decompressed under a limit, so that a bomb stops early."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import zstandard

from icefloe.errors import FormatError

ZSTD_MAGIC = bytes.fromhex("28b52ffd")

_BLOCK_BYTES = 1 << 20
_WINDOW_BYTES = 1 << 27
"""The largest window zstd itself takes without being asked; a frame that wants more is refused."""


@dataclass(frozen=True, slots=True)
class DecompressionLimits:
    """How large a body may become.

    Up to `free_bytes` any ratio is believed; above, more than `ratio` bytes from one compressed byte is a bomb.
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
    # Contexts are expensive to make and must not be shared between threads.
    contexts: dict[int, zstandard.ZstdCompressor] | None = getattr(_per_thread, "compressors", None)
    if contexts is None:
        contexts = _per_thread.compressors = {}
    context = contexts.get(level)
    if context is None:
        context = contexts[level] = zstandard.ZstdCompressor(level=level, write_checksum=True)
    return context.compress(body)


def is_believable(body_bytes: int, compressed_bytes: int, limits: DecompressionLimits = DEFAULT_LIMITS) -> bool:
    """Whether a reader with these limits would take the body."""
    return body_bytes <= limits.allowed_bytes(compressed_bytes)


def decompress(data: bytes | memoryview, limits: DecompressionLimits = DEFAULT_LIMITS) -> bytes:
    """The content of exactly one zstd frame; FormatError when it is broken or larger than allowed."""
    allowed = limits.allowed_bytes(len(data))
    context: zstandard.ZstdDecompressor | None = getattr(_per_thread, "decompressor", None)
    if context is None:
        context = _per_thread.decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    try:
        declared = zstandard.frame_content_size(data)
        if declared > allowed:
            raise _too_large(len(data), declared, allowed)
        # A frame that claims to be empty is read as a stream: the one-shot call would believe it unseen.
        if declared > 0:
            return context.decompress(data, max_output_size=declared, allow_extra_data=False)
        return _decompress_stream(context, data, allowed)
    except (zstandard.ZstdError, MemoryError) as error:
        raise FormatError(f"a zstd body of {len(data)} bytes cannot be decompressed: {error}") from error


def _decompress_stream(context: zstandard.ZstdDecompressor, data: bytes | memoryview, allowed: int) -> bytes:
    """For frames that do not say how large their content is."""
    stream = context.decompressobj(write_size=_BLOCK_BYTES)
    parts: list[bytes] = []
    size = 0
    # zstd makes at most some 32,000 bytes of one: with small steps a bomb passes what is allowed by an eighth at most.
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
        f"a zstd body of {compressed} bytes becomes at least {size} bytes, more than the {allowed} that are allowed"
    )
