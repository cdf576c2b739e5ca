"""What a collection learnt, kept in the repository so that the next one only reads what is new.

The file is one object beside the repository's own folders: a digest, then zstd of MessagePack with columns as bytes.
A mark that is damaged, of another version or of another generation is as good as none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import zstandard

from icefloe.errors import FormatError, ObjectNotFoundError
from icefloe.formats.compression import DecompressionLimits, decompress
from icefloe.ids import ObjectId
from icefloe.maintenance.collect_plan import KINDS
from icefloe.maintenance.listing import Ids, Listed
from icefloe.maintenance.marking import Known, ManifestFacts, SnapshotFacts
from icefloe.maintenance.store_clock import FOLDER
from icefloe.model.decoded_size import check_messagepack
from icefloe.storage.contract import Storage

KEY = f"{FOLDER}garbage-mark"
_VERSION = 2
_DIGEST_BYTES = 32
_MAX_BYTES = 1 << 30
_LIMITS = DecompressionLimits(max_bytes=_MAX_BYTES)
_Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SavedMark:
    """Everything that was live, and everything unreachable that was too young to go."""

    spec_version: str
    known: Known
    snapshot_times: Mapping[ObjectId, int]
    """When snapshot files were modified: expiry rewrites them in place."""
    live: Mapping[str, Listed]
    """Live manifests, attributes files and chunk objects; a time may be later than the true one, never earlier."""
    pending: Mapping[str, Listed]


def encode_mark(mark: SavedMark) -> bytes:
    """The bytes of a mark."""
    snapshots = [
        [facts.id, facts.parent_id, facts.manifests, facts.attributes, facts.quoted, facts.beside, time]
        for facts, time in ((f, mark.snapshot_times.get(f.id, -1)) for f in mark.known.snapshots.values())
    ]
    manifests = [[facts.id, facts.objects.tobytes(), facts.sizes.tobytes()] for facts in mark.known.manifests.values()]
    document = {
        "version": _VERSION,
        "spec_version": mark.spec_version,
        "snapshots": snapshots,
        "manifests": manifests,
        "live": {kind: _pack(listed) for kind, listed in mark.live.items()},
        "pending": {kind: _pack(listed) for kind, listed in mark.pending.items()},
    }
    body = zstandard.ZstdCompressor(level=1).compress(msgpack.packb(document))
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def find_mark_in(data: bytes, spec_version: str, width: int) -> SavedMark | None:
    """The mark in a file, or None when it cannot be relied on."""
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        return None
    try:
        packed = decompress(body, _LIMITS)
        check_messagepack(packed, len(body), "saved mark")
        document = msgpack.unpackb(packed, strict_map_key=False)
        if document["version"] != _VERSION or document["spec_version"] != spec_version:
            return None
        return _parse(document, width)
    except (ValueError, KeyError, TypeError, IndexError, FormatError, msgpack.UnpackException):
        return None


def _parse(document: Mapping[str, Any], width: int) -> SavedMark:
    snapshots, times = {}, {}
    for key, parent, *columns, time in document["snapshots"]:
        manifests, attributes, quoted, beside = map(tuple, columns)
        snapshots[key] = SnapshotFacts(key, parent, manifests, attributes, quoted, beside)
        times[key] = time
    facts = {key: ManifestFacts(key, _ids(ids, width), _numbers(sizes)) for key, ids, sizes in document["manifests"]}
    return SavedMark(
        document["spec_version"],
        Known(snapshots, facts),
        times,
        {kind: _unpack(columns, width) for kind, columns in document["live"].items()},
        {kind: _unpack(document["pending"][kind], width) for kind in KINDS},
    )


def _pack(listed: Listed) -> list[bytes]:
    return [listed.ids.tobytes(), listed.size.tobytes(), listed.modified.tobytes()]


def _unpack(columns: list[bytes], width: int) -> Listed:
    ids, size, modified = columns
    listed = Listed(_ids(ids, width), _numbers(size), _numbers(modified))
    if not len(listed.ids) == len(listed.size) == len(listed.modified):
        raise ValueError("columns of different lengths")
    return listed


def _ids(data: bytes, width: int) -> Ids:
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, width)


def _numbers(data: bytes) -> _Int64:
    return np.frombuffer(data, dtype=np.int64)


async def fetch_mark(storage: Storage, spec_version: str, width: int) -> SavedMark | None:
    """The mark of the last collection, or None."""
    try:
        return find_mark_in(await storage.get(KEY), spec_version, width)
    except ObjectNotFoundError:
        return None


async def save_mark(storage: Storage, mark: SavedMark) -> None:
    """Keep a mark for the next collection; one that is too large to be worth it is not kept."""
    data = encode_mark(mark)
    if len(data) > _MAX_BYTES // 4:
        await storage.delete([KEY])
        return
    await storage.put(KEY, data)
