"""Writing xarray objects, as `icechunk.xarray`."""

from __future__ import annotations

from icefloe.icechunk.session import ForkSession, Session
from icefloe.icechunk.store import IcechunkStore
from icefloe.xarray import to_icechunk

__all__ = ["ForkSession", "IcechunkStore", "Session", "to_icechunk"]
