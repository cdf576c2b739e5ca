"""Which sources a branch has ingested.

Every commit of an ingest tells its own sources in its entry, and takes over the list of all that were ingested before
it; commits of other kinds take the list over as it is (`icefloe.model.snapshot.inherit_metadata`). So the newest commit
tells everything that it holds, whatever becomes of the history below it. Few sources are in the metadata themselves,
more are in objects beside the repository's own, which garbage collection keeps as long as a commit names them.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import zstandard

from icefloe.blocking import run_blocking
from icefloe.errors import FormatError, ObjectNotFoundError
from icefloe.formats.compression import decompress
from icefloe.ingest.record import METADATA_KEY, parse_fingerprints
from icefloe.maintenance.side_objects import FOLDER, INLINE, REMOVED, own_texts
from icefloe.model.snapshot import INGESTED_KEY, Snapshot, ingested_texts
from icefloe.repository import Repository

MOST_INLINE_BYTES = 32
"""Fingerprints in the metadata; more would weigh on every reader of the history."""
MOST_TEXTS = 4
"""Texts of a list before they are joined into one object: every later commit carries them."""


def keep_record(repository: Repository, base: Snapshot, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of an ingest as a commit on top of `base` keeps them; long lists are stored beside and named."""
    entry = dict(metadata[METADATA_KEY])
    marks = base64.b64decode(entry.get("fingerprints", ""))
    if len(marks) > MOST_INLINE_BYTES:
        del entry["fingerprints"]
        entry["fingerprints_object"] = _store(repository, marks)
    kept = {**metadata, METADATA_KEY: entry}
    known, added = ingested_texts(base.metadata), own_texts(kept)
    if INGESTED_KEY in base.metadata and len(known) + len(added) <= MOST_TEXTS:
        return {**kept, INGESTED_KEY: {"add": added}}
    # The list is long, or the commits below were made by somebody who does not take it over.
    before = ingested_at(repository, base.id)
    if not before:
        return {**kept, INGESTED_KEY: {"add": added, "drop": known}}
    joined = b"".join(sorted(before | parse_fingerprints(marks)))
    return {**kept, INGESTED_KEY: {"add": [_store(repository, joined)], "drop": known}}


def _store(repository: Repository, marks: bytes) -> str:
    key = f"{FOLDER}{secrets.token_hex(16)}"
    run_blocking(repository.storage.put(key, zstandard.compress(marks)))
    return key


def ingested_sources(repository: Repository, branch: str) -> frozenset[bytes]:
    """Fingerprints of every source that commits of a branch ingested."""
    return ingested_at(repository, repository.lookup_branch(branch))


def ingested_at(repository: Repository, snapshot_id: str) -> frozenset[bytes]:
    """Fingerprints of every source that a snapshot holds."""
    found: frozenset[bytes] = frozenset()
    for info in repository.ancestry(snapshot_id=snapshot_id):
        if INGESTED_KEY in info.metadata:
            return found | _resolve(repository, ingested_texts(info.metadata), info.id)
        found |= _resolve(repository, own_texts(info.metadata), info.id)
    return found


def _resolve(repository: Repository, texts: Iterable[str], snapshot_id: str) -> frozenset[bytes]:
    """The fingerprints of a list; what was taken back by a later text is not among them."""
    found: set[bytes] = set()
    for text in texts:
        marks = _fetch(repository, text.removeprefix(REMOVED), snapshot_id)
        if text.startswith(REMOVED):
            found -= marks
        else:
            found |= marks
    return frozenset(found)


def _fetch(repository: Repository, text: str, snapshot_id: str) -> set[bytes]:
    try:
        if text.startswith(INLINE):
            return parse_fingerprints(base64.b64decode(text.removeprefix(INLINE), validate=True))
        if not text.startswith(FOLDER):
            raise ValueError("it is neither fingerprints nor the name of a list")
        return parse_fingerprints(decompress(run_blocking(repository.storage.get(text))))
    except (ObjectNotFoundError, FormatError, binascii.Error, ValueError) as error:
        raise FormatError(
            f"the list of sources of snapshot {snapshot_id} ({text}) cannot be read; ingest without skip_ingested",
            key=text,
        ) from error
