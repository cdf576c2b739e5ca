"""Transactional, versioned storage for Zarr arrays on object storage.

The public names are listed in `icefloe.public` and loaded when the first of them is used: `icefloe --help`, shell
completion and the modules that need a corner of the library do not wait for all of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from icefloe.version import __version__ as __version__

if TYPE_CHECKING:
    from icefloe.public import *  # noqa: F403 - the list is there
else:
    # A type checker that saw this function would believe in any name.
    def __getattr__(name: str) -> Any:
        # Names that start with two underscores are asked for by Python itself, while modules are being loaded.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        public = importlib.import_module("icefloe.public")
        if name == "__all__" or name in public.__all__:
            return getattr(public, name)
        # Loading the public names binds the rooms they come from (`icefloe.storage`).
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        return [*importlib.import_module("icefloe.public").__all__, *globals()]
