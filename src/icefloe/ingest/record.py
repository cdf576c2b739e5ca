"""What a commit says about the ingest that made it, and which sources were ingested before."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from icefloe.ingest.plan import IngestPlan
from icefloe.ingest.source_model import SourceFile
from icefloe.maintenance.side_objects import INGEST_KEY

METADATA_KEY = INGEST_KEY
_FINGERPRINT_BYTES = 8


def fingerprint(file: SourceFile) -> bytes:
    """Which state of which file: its URL, size, and version or time."""
    text = f"{file.url}\0{file.size_bytes}\0{file.etag or file.last_modified}"
    return hashlib.blake2b(text.encode(), digest_size=_FINGERPRINT_BYTES).digest()


def ingest_metadata(plan: IngestPlan, files: Sequence[SourceFile], **facts: Any) -> dict[str, Any]:
    """The entry of a commit's metadata: what was ingested and how. `facts` are added, such as the job's name."""
    marks = b"".join(sorted(fingerprint(file) for file in files if file.url not in plan.skipped))
    entry: dict[str, Any] = {
        "mode": plan.options.mode,
        "sources": len(plan.sources),
        "source_bytes": plan.source_bytes,
        "first_source": plan.sources[0],
        "last_source": plan.sources[-1],
        "arrays": len(plan.arrays),
        "tasks": len(plan.tasks),
        "append_dim": plan.options.append_dim,
        "fingerprints": base64.b64encode(marks).decode(),
        **facts,
    }
    if plan.skipped:
        entry["skipped"] = list(plan.skipped)
    return {METADATA_KEY: {key: value for key, value in entry.items() if value is not None}}


def parse_fingerprints(data: bytes) -> set[bytes]:
    """The fingerprints of a list, which stand one after the other."""
    step = _FINGERPRINT_BYTES
    return {data[start : start + step] for start in range(0, len(data), step)}


def not_ingested(files: Iterable[SourceFile], before: frozenset[bytes]) -> list[SourceFile]:
    """The files that are new, or changed since they were ingested."""
    return [file for file in files if fingerprint(file) not in before]
