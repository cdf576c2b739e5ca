"""`install`: libraries that import `icechunk` get this package."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from icefloe.errors import InvalidInputError, SessionStateError
from icefloe.icechunk.version_1 import follow_version

_OFFICIAL = "icechunk"
_OURS = "icefloe.icechunk"
VERSION_VARIABLE = "ICEFLOE_ICECHUNK_VERSION"
"""The environment variable with the major version of the official package to follow. Child processes inherit it."""


class _Alias(Loader):
    """Gives a module of the official package the module of ours, not a second copy of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has set the one of the alias


class _Finder(MetaPathFinder):
    """Finds `icechunk` and its submodules in this package."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, dot, rest = fullname.partition(".")
        if package != _OFFICIAL:
            return None
        name = _OURS + dot + rest
        found = importlib.util.find_spec(name)
        if found is None:
            return None
        return ModuleSpec(fullname, _Alias(name), is_package=found.submodule_search_locations is not None)


def install(version: int | None = None) -> None:
    """Make `import icechunk` give `icefloe.icechunk` in this process, also to libraries.

    Call it before the first import of `icechunk`. Workers that are started with `spawn` must call it themselves.

    Parameters
    ----------
    version
        1 for programs that were written for version 1 of the official package: new repositories are of version 1, which
        its readers can open, and the rules in `icefloe.icechunk.version_1` are followed. None means the value of the
        environment variable ICEFLOE_ICECHUNK_VERSION, otherwise 2.

    Raises
    ------
    InvalidInputError
        The version is neither 1 nor 2.
    SessionStateError
        The official package has been imported in this process.

    Examples
    --------
    >>> from icefloe.icechunk import install
    >>> install()  # doctest: +SKIP
    >>> import icechunk  # doctest: +SKIP
    """
    followed = str(version) if version is not None else os.environ.get(VERSION_VARIABLE) or "2"
    if followed not in ("1", "2"):
        raise InvalidInputError(f"the version of the official package to follow is {followed!r}, expected 1 or 2")
    follow_version(int(followed))
    os.environ[VERSION_VARIABLE] = followed
    known = sys.modules.get(_OFFICIAL)
    if known is not None and known is not sys.modules[_OURS]:
        raise SessionStateError(
            "the official icechunk package has been imported in this process; call icefloe.icechunk.install() before "
            "anything imports icechunk"
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    importlib.import_module(_OFFICIAL)
    for name in [name for name in sys.modules if name.startswith(_OURS + ".")]:
        importlib.import_module(_OFFICIAL + name.removeprefix(_OURS))


__all__ = ["install"]
