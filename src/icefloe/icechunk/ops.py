"""Results of maintenance and entries of the operations log, as `icechunk.ops`."""

from __future__ import annotations

from icefloe.maintenance.collect import GCSummary
from icefloe.model.status import Update, UpdateType

__all__ = ["GCSummary", "Update", "UpdateType"]
