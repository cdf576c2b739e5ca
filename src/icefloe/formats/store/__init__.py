"""The generation `store`: JSON files after the schemas of the specification."""

from __future__ import annotations

from icefloe.formats.contract import Format
from icefloe.formats.store.format import StoreFormat

FORMAT: Format = StoreFormat()
