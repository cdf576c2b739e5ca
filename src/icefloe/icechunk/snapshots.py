"""Snapshots, differences and graphs of history, as `icechunk.snapshots`."""

from __future__ import annotations

from icefloe.display.graph import AncestryGraph
from icefloe.model.snapshot import Diff, ManifestFileInfo, SnapshotInfo

__all__ = ["AncestryGraph", "Diff", "ManifestFileInfo", "SnapshotInfo"]
