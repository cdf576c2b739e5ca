"""Icefloe on Apache Spark: sessions, distributed jobs, tables. The only package that imports pyspark."""

from icefloe.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
