"""HDF5 filters as Zarr v3 codecs, and which ones have none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icefloe.ingest.zarr_documents import TEXT_CODECS, bytes_codec

_UNSUPPORTED = {
    4: "szip",
    5: "nbit",
    6: "scale-offset",
    32000: "LZF",
    32004: "LZ4 (HDF5's own framing)",
    32008: "bitshuffle",
    32013: "zfp",
    32017: "SZ",
}

_BLOSC_NAMES = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")


def codecs_of(plist: Any, dtype: str) -> tuple[tuple[Mapping[str, Any], ...], str | None]:
    """The codecs that undo a dataset's filters, and why there are none (None when there are)."""
    if dtype == "string":
        return TEXT_CODECS, None
    codecs: list[Mapping[str, Any]] = [bytes_codec(dtype)]
    for position in range(plist.get_nfilters()):
        number, _, values, name = plist.get_filter(position)
        codec = _codec(number, values)
        if codec is None:
            label = _UNSUPPORTED.get(number, f"number {number} ({name.decode(errors='replace')})")
            return (codecs[0],), f"Zarr has no codec for the HDF5 filter {label}"
        if number != 2 or values[0] > 1:
            codecs.append(codec)
    return tuple(codecs), None


def _codec(number: int, values: tuple[int, ...]) -> Mapping[str, Any] | None:
    match number:
        case 1:
            return {"name": "numcodecs.zlib", "configuration": {"level": values[0]}}
        case 2:
            return {"name": "numcodecs.shuffle", "configuration": {"elementsize": values[0]}}
        case 3:
            return {"name": "numcodecs.fletcher32", "configuration": {}}
        case 307:
            return {"name": "numcodecs.bz2", "configuration": {"level": values[0] if values else 9}}
        case 32015:
            return {"name": "zstd", "configuration": {"level": values[0] if values else 3, "checksum": False}}
        case 32001 if len(values) >= 7:
            return {
                "name": "blosc",
                "configuration": {
                    "typesize": max(1, values[2]),
                    "cname": _BLOSC_NAMES[values[6]],
                    "clevel": values[4],
                    "shuffle": _BLOSC_SHUFFLES[values[5]],
                    "blocksize": 0,
                },
            }
    return None
