"""Names and modules that load when they are first used.

A package lists its public names once, as re-exports in the stub `__init__.pyi` beside its `__init__.py`. Type checkers
read the stub. At run time, the module of a name is imported when the name is first asked for.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _LazyPackage(ModuleType):
    """A package whose public names win over submodules of the same name.

    Importing a submodule binds it as an attribute of its package. `icefloe.spark.ingest` is a submodule and a
    function; the function is the public name.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and name in self.__dict__.get("__all__", ()):
            return
        super().__setattr__(name, value)


class _LazyModule:
    """A module that is imported when one of its names is first used."""

    __slots__ = ("_module", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        module = self._module
        if module is None:
            module = self._module = importlib.import_module(self._name)
        return getattr(module, name)


def lazy_module(name: str) -> Any:
    """A module for use inside functions. It is imported when one of its names is first used.

    The caller imports the same module in a block of `if TYPE_CHECKING`: type checkers and the checks of imports see an
    ordinary import there.

    Parameters
    ----------
    name
        The full name of the module.

    Returns
    -------
    object
        It has the attributes of the module.

    Examples
    --------
    >>> lazy_module("json").dumps([1])
    '[1]'
    """
    return _LazyModule(name)


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from its stub. Submodules are found as attributes, too."""
    stub = pkgutil.get_data(package, "__init__.pyi")
    assert stub is not None, f"{package} has no __init__.pyi"
    homes = {
        alias.asname or alias.name: node.module
        for node in ast.parse(stub).body
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module != "__future__"
        for alias in node.names
    }
    module = sys.modules[package]
    module.__class__ = _LazyPackage

    def find(name: str) -> Any:
        if name not in homes:
            if name.startswith("_") or importlib.util.find_spec(f"{package}.{name}") is None:
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            return importlib.import_module(f"{package}.{name}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(module, name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(module), *homes})

    return find, names, sorted(homes)
