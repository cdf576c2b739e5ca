"""Transactional, versioned storage for Zarr arrays on object storage.

The public names are listed in `__init__.pyi`. The module of a name is imported when the name is first used, so that
`icefloe --help`, shell completion and programs that need a part of the library do not wait for all of it.
"""

from icefloe.lazy_exports import lazy_exports
from icefloe.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_exports(__name__)
