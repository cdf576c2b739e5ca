"""`icefloe.icechunk` has every public name of the installed official package, with the same arguments and defaults."""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

icechunk = pytest.importorskip("icechunk")
pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(icechunk.__version__.startswith(("0.", "1.")), reason="the drop-in has the names of icechunk 2"),
]

INTERNAL_MODULES = {"vendor"}
"""Copies of other libraries' code."""
BINDINGS = {"PyRepository", "PySession", "PyStore"}
"""Classes of the compiled extension that the official package wraps."""
PLUMBING = {"as_bytes", "from_bytes"}
HELPERS = {"LazyArrayWriter", "is_dask_collection", "computing_meta", "has_dask"}
"""Helpers inside `icechunk.xarray` and `icechunk.dask` that are public by their name only."""


def differences() -> list[str]:
    """List what a script finds in the official package and not in ours."""
    return [line for name in modules() for line in of_module(name)]


def modules() -> list[str]:
    found = ["", *(each.name for each in pkgutil.iter_modules(icechunk.__path__))]
    return [name for name in found if not name.startswith("_") and name not in INTERNAL_MODULES]


def of_module(name: str) -> Iterator[str]:
    theirs = importlib.import_module(f"icechunk.{name}".rstrip("."))
    try:
        ours = importlib.import_module(f"icefloe.icechunk.{name}".rstrip("."))
    except ModuleNotFoundError:
        yield f"module {name}"
        return
    for public, value in sorted(public_names(theirs).items()):
        where = f"{name}.{public}".lstrip(".")
        if not hasattr(ours, public):
            yield where
        else:
            yield from of_value(where, value, getattr(ours, public))


def public_names(module: ModuleType) -> dict[str, Any]:
    listed = set(getattr(module, "__all__", ()))
    here = {name for name, value in vars(module).items() if is_own(value)}
    names = {name for name in listed | here if name == "__version__" or not name.startswith("_")}
    return {name: getattr(module, name) for name in names - BINDINGS - HELPERS}


def is_own(value: Any) -> bool:
    own = str(getattr(value, "__module__", "")).startswith(("icechunk", "builtins"))
    return own and (isinstance(value, type) or inspect.isfunction(value))


def of_value(where: str, theirs: Any, ours: Any) -> Iterator[str]:
    if isinstance(theirs, type):
        if not isinstance(ours, type):
            yield f"{where}: {ours!r} is not a class"
            return
        yield from of_class(where, theirs, ours)
    elif callable(theirs):
        yield from of_signature(where, theirs, ours)


def of_class(where: str, theirs: type, ours: type) -> Iterator[str]:
    above = {base.__name__ for base in theirs.__mro__[1:]} - {"object", "SyncMixin", "IcechunkError"}
    for base in sorted(above - {each.__name__ for each in ours.__mro__}):
        if not (base == "Enum" and issubclass(ours, enum.Enum)):
            yield f"{where} is no {base}"
    yield from of_signature(where, theirs, ours)
    for name in sorted(members(theirs)):
        if not hasattr(ours, name) and name not in fields(ours):
            yield f"{where}.{name}"
            continue
        member, found = getattr(theirs, name), getattr(ours, name, None)
        if isinstance(member, type) and issubclass(member, theirs):  # a variant, which inherits its siblings
            yield from of_signature(f"{where}.{name}", member, found)
        elif callable(member) and not isinstance(member, theirs):
            # The first argument of a method has no name that anybody writes.
            bound = [
                getattr(each, name).__get__(object()) if is_method(each, name) else getattr(each, name)
                for each in (theirs, ours)
            ]
            yield from of_value(f"{where}.{name}", *bound)


def fields(cls: type) -> set[str]:
    """Attributes that only instances have."""
    return {name for base in cls.__mro__ for name in inspect.get_annotations(base)}


def members(cls: type) -> set[str]:
    usual = {name for base in (Exception, KeyError, ValueError, str, int, enum.Enum) for name in dir(base)}
    public = {name for name in dir(cls) if not name.startswith("_")} - PLUMBING
    return {name for name in public if name not in usual or name in vars(cls)}


def of_signature(where: str, theirs: Any, ours: Any) -> Iterator[str]:
    asked, given = signature(theirs), signature(ours)
    if asked is None or given is None:
        return
    if isinstance(theirs, type) and (is_wrapper(asked) or issubclass(theirs, enum.Enum) or issubclass(ours, enum.Enum)):
        return
    positions = [name for name, each in given.items() if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    wanted = [name for name, each in asked.items() if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    for index, (name, parameter) in enumerate(asked.items()):
        found = given.get(name)
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            if all(each.kind is not parameter.kind for each in given.values()):
                yield f"{where}(*{name})"
        elif name.startswith("_"):
            continue  # an argument of the compiled extension without a name
        elif found is None:
            if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
                yield f"{where}({name}=)"
        elif name in wanted and (index >= len(positions) or positions[index] != name):
            yield f"{where}: {name} is not argument {index}"
        elif parameter.default not in (inspect.Parameter.empty, ...) and plain(found.default) != plain(
            parameter.default
        ):
            yield f"{where}({name}={parameter.default!r}), not {found.default!r}"


def signature(value: Any) -> dict[str, inspect.Parameter] | None:
    try:
        found = dict(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return None
    return {name: each for name, each in found.items() if name not in ("self", "cls", "$self")}


def is_method(cls: type, name: str) -> bool:
    return inspect.isfunction(inspect.getattr_static(cls, name))


def is_wrapper(asked: dict[str, inspect.Parameter]) -> bool:
    """Whether a constructor takes an object of the compiled extension, so that no script calls it."""
    return any(str(each.annotation).rpartition(".")[2].strip("'>") in BINDINGS for each in asked.values())


def plain(default: Any) -> Any:
    return default if isinstance(default, str | int | float | None | tuple) else str(default).rpartition(".")[2]


def test_every_public_name_of_the_official_package_is_in_the_drop_in() -> None:
    assert differences() == []


if __name__ == "__main__":
    for line in differences():
        print(line)  # noqa: T201
