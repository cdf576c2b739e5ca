"""Objects beside a repository's own files, which commits name in their metadata: long lists of ingested sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import zstandard

from icefloe.maintenance.listing import microseconds
from icefloe.model.snapshot import ingested_texts
from icefloe.storage.contract import ObjectInfo, Storage

FOLDER = "icefloe-ingested/"
INGEST_KEY = "icefloe.ingest"
"""What a commit says about the ingest that made it."""
INLINE, REMOVED = "=", "-"
"""How a text of the list begins that is fingerprints in base64, and one whose sources are no longer there."""
_PIECE_BYTES = 1 << 20


def named_objects(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The objects that the metadata of a commit name, in an entry or inside one."""
    texts: list[Any] = []
    for value in metadata.values():
        texts += value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
    named = (text.removeprefix(REMOVED) for text in texts if isinstance(text, str))
    return tuple(dict.fromkeys(text for text in named if text.startswith(FOLDER)))


def own_texts(metadata: Mapping[str, Any]) -> list[str]:
    """What the commit of an ingest adds to the list of ingested sources: an object, or the fingerprints themselves."""
    entry = metadata.get(INGEST_KEY)
    if not isinstance(entry, Mapping):
        return []
    key, inline = entry.get("fingerprints_object"), entry.get("fingerprints")
    if isinstance(key, str):
        return [key]
    return [INLINE + inline] if isinstance(inline, str) and inline else []


def taken_over(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What was ingested between two commits, in the words of the list."""
    before = set(ingested_texts(old))
    return [text for text in ingested_texts(new) if text not in before]


def taken_back(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What undoes in the list what the commit `new` on top of `old` did to it."""
    # The commit of an ingest may also have joined the texts of others; its entry names its own sources.
    done = own_texts(new) or taken_over(old, new)
    return [text.removeprefix(REMOVED) if text.startswith(REMOVED) else REMOVED + text for text in done]


async def list_side_objects(storage: Storage) -> tuple[ObjectInfo, ...]:
    """All of them, named or not."""
    return tuple([item async for page in storage.list(FOLDER) for item in page])


def find_flaw(data: bytes) -> str | None:
    """What is wrong with the bytes of a list, one frame of zstd; unpacked piece by piece, however much it holds."""
    try:
        told = zstandard.frame_content_size(data)
        found = 0
        with zstandard.ZstdDecompressor().stream_reader(data) as unpacked:
            while piece := unpacked.read(_PIECE_BYTES):
                found += len(piece)
    except zstandard.ZstdError as error:
        return f"it does not decompress ({error})"
    return None if found == told or (told < 0 and found) else f"{found} of {told} bytes are in it"


def unnamed(
    found: Sequence[ObjectInfo], named: Iterable[str], before: int, not_before: int | None
) -> tuple[ObjectInfo, ...]:
    """Those that no commit names and that are old enough, times in microseconds since 1970."""
    kept, floor = frozenset(named), not_before if not_before is not None else -(1 << 62)
    return tuple(item for item in found if item.key not in kept and floor <= microseconds(item.last_modified) < before)
