"""The blocking requests that take more than one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import obstore

from icefloe.storage.translate import MISSING

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_MULTIPART_BYTES = 100 << 20
_PART_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Fetched:
    """An object, or a part of one, and what the store says about it."""

    data: bytes
    meta: Any
    attributes: dict[str, str]


def fetch(store: ObjectStore, path: str, options: Any) -> Fetched:
    """One GET, or a HEAD when the options say so."""
    found = obstore.get(store, path, options=options)
    is_head = options is not None and options.get("head")
    return Fetched(b"" if is_head else found.bytes().to_bytes(), found.meta, dict(found.attributes))


def write(store: ObjectStore, path: str, data: bytes | memoryview, attributes: dict[str, str], mode: Any = None) -> Any:
    """One PUT, conditional if there is a mode; in parts when it is plain and large."""
    return obstore.put(
        store,
        path,
        data,
        attributes=attributes or None,
        mode=mode,
        use_multipart=mode is None and len(data) > _MULTIPART_BYTES,
        chunk_size=_PART_BYTES,
    )


def delete_all(store: ObjectStore, paths: Sequence[str]) -> None:
    """Delete objects; what is not there is no error."""
    try:
        obstore.delete(store, paths)
        return
    except MISSING:
        pass
    # A missing key ended the batch on this store: the rest is deleted one by one.
    for path in paths:
        try:
            obstore.delete(store, path)
        except MISSING:
            continue
