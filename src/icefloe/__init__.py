"""Transactional, versioned storage for Zarr arrays on object storage.

The public names are listed in `__init__.pyi`. The module of a name is imported when the name is first used, so that
`icefloe --help`, shell completion and programs that need a part of the library do not wait for all of it.
"""

from icefloe.lazy_exports import lazy_exports

__version__ = "0.1.0"
"""The version of this library, in the one place that states it."""

__getattr__, __dir__, __all__ = lazy_exports(__name__)
