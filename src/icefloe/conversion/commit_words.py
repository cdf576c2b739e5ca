"""Which messages and metadata of commits another generation can hold, found by writing and reading them back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from icefloe.errors import IcefloeError
from icefloe.formats.contract import Format
from icefloe.formats.dataset.state import State, encode_state, parse_state, snapshot_entry
from icefloe.model.capabilities import SpecVersion
from icefloe.model.snapshot import Snapshot, SnapshotInfo


def unfit_words(info: SnapshotInfo, target: Format) -> list[str]:
    """What of a commit would not come back as it is: `message`, or keys of its metadata."""
    if not info.metadata and info.message.isascii():
        return []
    if _comes_back(info, target):
        return []
    unfit = [] if _comes_back(replace(info, metadata={}), target) else ["message"]
    plain = replace(info, message="")
    return unfit + [
        f"metadata {key!r}"
        for key, value in info.metadata.items()
        if not _comes_back(replace(plain, metadata={key: value}), target)
    ]


def fitting(info: SnapshotInfo, target: Format) -> SnapshotInfo:
    """The commit without what does not fit; a message keeps all but the characters that cannot be written."""
    unfit = unfit_words(info, target)
    if not unfit:
        return info
    metadata = {key: value for key, value in info.metadata.items() if f"metadata {key!r}" not in unfit}
    message = info.message.encode(errors="replace").decode() if "message" in unfit else info.message
    return replace(info, message=message, metadata=metadata)


def _comes_back(info: SnapshotInfo, target: Format) -> bool:
    try:
        message, metadata = _read_back(replace(info, parent_id=None, manifests=()), target)
    except IcefloeError:
        return False
    return message == info.message and same_words(dict(metadata), dict(info.metadata))


def _read_back(info: SnapshotInfo, target: Format) -> tuple[str, Mapping[str, Any]]:
    if target.spec_version is SpecVersion.DATASET:
        state = State(id=info.id, generation=1, snapshots=(snapshot_entry(info),), refs={})
        found = parse_state(encode_state(state)).snapshots[0].info()
        return found.message, found.metadata
    width = target.capabilities.object_id_bytes
    snapshot = Snapshot(
        "0" * -(-width * 8 // 5), None, info.written_at, info.message, info.metadata, {}, {}, total_ancestors=0
    )
    read = target.decode_snapshot(target.encode_snapshot(snapshot))
    return read.message, read.metadata


def same_words(a: Any, b: Any) -> bool:
    """Equality of JSON-like values in which NaN equals itself, and whole floats are not integers."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same_words(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same_words, a, b))
    return bool(a == b) or (a != a and b != b)
