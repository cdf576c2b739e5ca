"""The first snapshot of a repository of the official generations: fixed id, no nodes, marked as the root."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from icefloe.model.snapshot import Snapshot

INITIAL_SNAPSHOT_ID = "1CECHNKREP0F1RSTCMT0"
INITIAL_MESSAGE = "Repository initialized"
ROOT_MARK_1: Mapping[str, Any] = {"__root": True}
ROOT_MARK_2: Mapping[str, Any] = {"__icechunk": {"is_root": True}}


def make_initial_snapshot(written_at: dt.datetime, metadata: Mapping[str, Any]) -> Snapshot:
    """The snapshot that every history of such a repository ends with."""
    return Snapshot(INITIAL_SNAPSHOT_ID, None, written_at, INITIAL_MESSAGE, metadata, nodes={}, manifests={})
