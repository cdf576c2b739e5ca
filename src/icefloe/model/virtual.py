"""A virtual chunk as a caller describes it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class VirtualChunkSpec:
    """Where the bytes of one chunk lie in a file outside the repository."""

    index: Sequence[int]
    location: str
    offset: int
    length: int
    etag_checksum: str | None = None
    last_updated_at_checksum: dt.datetime | None = None
