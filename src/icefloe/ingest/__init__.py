"""Ingest: files of many formats to one consistent repository. Usable without Spark."""

from icefloe.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
