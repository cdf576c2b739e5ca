"""Which sources a branch has ingested: short lists in the commits themselves, long ones in objects beside them."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import zstandard

from icefloe.blocking import run_blocking
from icefloe.errors import FormatError, ObjectNotFoundError
from icefloe.ingest.record import METADATA_KEY, ingested_before
from icefloe.maintenance.side_objects import FOLDER
from icefloe.repository import Repository

MOST_INLINE_BYTES = 4096
"""A longer list would weigh on every reader of the history."""


def keep_record(repository: Repository, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of an ingest as a commit keeps them; a long list of sources is stored beside and named."""
    entry = dict(metadata[METADATA_KEY])
    marks = base64.b64decode(entry.get("fingerprints", ""))
    if len(marks) <= MOST_INLINE_BYTES:
        return dict(metadata)
    key = f"{FOLDER}{secrets.token_hex(16)}"
    run_blocking(repository.storage.put(key, zstandard.compress(marks)))
    del entry["fingerprints"]
    return {**metadata, METADATA_KEY: {**entry, "fingerprints_object": key}}


def ingested_sources(repository: Repository, branch: str) -> frozenset[bytes]:
    """Fingerprints of every source that commits of a branch ingested."""
    return ingested_before(_records(repository, branch))


def _records(repository: Repository, branch: str) -> Iterator[Mapping[str, Any]]:
    for info in repository.ancestry(branch=branch):
        entry = info.metadata.get(METADATA_KEY)
        key = entry.get("fingerprints_object") if isinstance(entry, Mapping) else None
        if not isinstance(key, str):
            yield info.metadata
            continue
        yield {METADATA_KEY: {"fingerprints": base64.b64encode(_fetch(repository, key, info.id)).decode()}}


def _fetch(repository: Repository, key: str, snapshot_id: str) -> bytes:
    try:
        return zstandard.decompress(run_blocking(repository.storage.get(key)))
    except (ObjectNotFoundError, zstandard.ZstdError) as error:
        raise FormatError(
            f"the list of sources of snapshot {snapshot_id} ({key}) cannot be read; ingest without skip_ingested",
            key=key,
        ) from error
