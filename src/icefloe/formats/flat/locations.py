"""Locations of virtual chunks compressed with a dictionary that the manifest carries."""

from __future__ import annotations

import zstandard

from icefloe.formats.flat.body import Body
from icefloe.formats.flat.ragged import Strings
from icefloe.formats.flat.tables import Tables

MAX_LOCATION_BYTES = 1024
"""Official readers refuse longer ones."""
_DICTIONARY, _ALGORITHM = 2, 3
_ZSTD = 1


def decompress_locations(root: Tables, compressed: Strings) -> list[str]:
    """The distinct compressed locations of a manifest as URLs."""
    decompressor = location_decompressor(root)
    return [decompress_location(root.body, decompressor, frame) for frame in compressed.split()]


def location_decompressor(root: Tables) -> zstandard.ZstdDecompressor:
    """What decompresses the locations of a manifest, by the dictionary that it carries."""
    body = root.body
    algorithm = int(root.scalar(_ALGORITHM, "u1", default=_ZSTD)[0])
    held = root.vectors(_DICTIONARY, 1, 1, required=False)
    if algorithm != _ZSTD or not held.present[0]:
        raise body.corrupt(f"it has compressed locations, but no dictionary for algorithm {algorithm}")
    start, count = int(held.starts[0]), int(held.counts[0])
    try:
        dictionary = zstandard.ZstdCompressionDict(body.data[start : start + count])
        return zstandard.ZstdDecompressor(dict_data=dictionary)
    except (zstandard.ZstdError, ValueError) as error:
        raise body.corrupt(f"its dictionary of locations is broken: {error}") from error


def decompress_location(body: Body, decompressor: zstandard.ZstdDecompressor, frame: bytes) -> str:
    """One location as a URL."""
    try:
        if zstandard.frame_content_size(frame) > MAX_LOCATION_BYTES:
            raise body.corrupt(f"a compressed location is longer than {MAX_LOCATION_BYTES} bytes")
        return decompressor.decompress(frame, max_output_size=MAX_LOCATION_BYTES).decode()
    except (zstandard.ZstdError, UnicodeDecodeError) as error:
        raise body.corrupt(f"a compressed location cannot be decompressed: {error}") from error
