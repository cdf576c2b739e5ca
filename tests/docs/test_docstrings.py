"""Every public name has a full numpydoc docstring: parameters, returns, raises, and an example that runs.

`python -m tests.docs.test_docstrings -v` prints the names whose docstrings are not complete, and what they lack.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import enum
import importlib
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import icefloe

PACKAGES = ("icefloe", "icefloe.ingest", "icefloe.xarray", "icefloe.dask", "icefloe.distributed", "icefloe.spark")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SECTIONS = ("Parameters", "Attributes", "Returns", "Yields", "Raises", "Examples", "Notes", "See Also", "Warnings")


@dataclass(frozen=True)
class Documented:
    """A public function, class, method or property."""

    name: str
    value: Any
    """The object that has the docstring."""

    @property
    def spark(self) -> bool:
        return self.name.startswith("icefloe.spark.")


def parse_docstring(text: str) -> dict[str, list[str]]:
    """Return the lines of each section. The text before the first section is the section with the empty name."""
    sections: dict[str, list[str]] = {"": []}
    current = ""
    lines = inspect.cleandoc(text).splitlines()
    for index, line in enumerate(lines):
        underline = lines[index + 1] if index + 1 < len(lines) else ""
        if line in SECTIONS and re.fullmatch("-{3,}", underline):
            current = line
            sections[current] = []
        elif not (re.fullmatch("-{3,}", line) and not sections[current]):
            sections[current].append(line)
    return sections


def described_names(lines: list[str]) -> list[str]:
    """Return the names that a section describes, in order."""
    names = []
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if line and not line.startswith(" ") and following.startswith(" "):
            names += [name.strip(" *`") for name in line.partition(" : ")[0].split(",")]
    return names


def public_names(package: str) -> Iterator[Documented]:
    """Yield the public callables of a package, and the public members of its classes."""
    module = importlib.import_module(package)
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if isinstance(value, types.FunctionType):
            yield Documented(f"{package}.{name}", value)
        elif isinstance(value, type):
            yield Documented(f"{package}.{name}", value)
            yield from class_members(f"{package}.{name}", value)


def class_members(prefix: str, cls: type) -> Iterator[Documented]:
    """Yield the public methods and properties of a class that this library defines."""
    for name in sorted(dir(cls)):
        owner = next((base for base in cls.__mro__ if name in vars(base)), object)
        if name.startswith("_") or not owner.__module__.startswith("icefloe"):
            continue
        value = inspect.getattr_static(cls, name)
        value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if isinstance(value, (types.FunctionType, property)):
            yield Documented(f"{prefix}.{name}", value)


@cache
def all_names(package: str) -> tuple[Documented, ...]:
    """Return the public names of a package. An object with several names has the first one."""
    seen: set[int] = set()
    listed = []
    for documented in public_names(package):
        function = getattr(documented.value, "fget", documented.value)
        if id(function) not in seen:
            seen.add(id(function))
            listed.append(documented)
    return tuple(listed)


def problems(documented: Documented) -> list[str]:
    """Return what the docstring of a name lacks."""
    value = documented.value
    text = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
    if not text or not text.strip():
        return ["it has no docstring"]
    sections = parse_docstring(text)
    found = summary_problems(sections[""]) + unknown_errors(sections.get("Raises", []))
    if isinstance(value, property):
        return found
    return found + (class_problems if isinstance(value, type) else function_problems)(value, sections)


def summary_problems(lines: list[str]) -> list[str]:
    if not lines:
        return ["it has no summary"]
    found = [] if lines[0].endswith(".") and ";" not in lines[0] else ["its first line is not one or two sentences"]
    return found if len(lines) < 2 or not lines[1] else [*found, "its first line is not followed by an empty one"]


def unknown_errors(lines: list[str]) -> list[str]:
    errors = [name for line in lines if line and not line.startswith(" ") for name in line.split(", ")]
    known = [name for name in errors if hasattr(icefloe, name) or hasattr(builtins, name)]
    return [f"the error {name} does not exist" for name in errors if name not in known]


def class_problems(cls: type, sections: dict[str, list[str]]) -> list[str]:
    # Values of enumerations are described in the class. Errors are made by the library, not by its users.
    if issubclass(cls, (enum.Enum, BaseException)):
        return []
    described = described_names(sections.get("Parameters", []) + sections.get("Attributes", []))
    found = missing_parameters(cls, described)
    return found if has_example(sections) else [*found, "it has no example"]


def function_problems(function: types.FunctionType, sections: dict[str, list[str]]) -> list[str]:
    described = described_names(sections.get("Parameters", []))
    found = missing_parameters(function, described)
    names = [name for name in inspect.signature(function).parameters if name in described]
    if described != names:
        found.append(f"its section Parameters describes {described}, not {names}")
    returns = str(inspect.unwrap(function).__annotations__.get("return", "None"))
    documented = bool({"Returns", "Yields"} & set(sections))
    if documented == (returns in ("None", "NoReturn", "Never")):
        found.append("it has a section Returns" if documented else "it has no section Returns")
    if raises(function) and "Raises" not in sections:
        found.append("it has no section Raises")
    return found if has_example(sections) else [*found, "it has no example"]


def missing_parameters(callable_: Any, described: list[str]) -> list[str]:
    try:
        parameters = inspect.signature(callable_).parameters
    except ValueError:  # classes without a constructor of their own
        return []
    # `object.__init__` and protocols have a signature that says nothing.
    if isinstance(callable_, type) and set(parameters) == {"args", "kwargs"}:
        return []
    names = [name for name in parameters if name not in ("self", "cls") and not name.startswith("_")]
    return [f"the parameter {name} is not described" for name in names if name not in described]


def has_example(sections: dict[str, list[str]]) -> bool:
    return any(line.lstrip().startswith(">>> ") for line in sections.get("Examples", []))


def raises(function: types.FunctionType) -> bool:
    """Whether the body of a function raises an error, other than that a method is not implemented."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    raised = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    return any(ast.unparse(error).partition("(")[0] != "NotImplementedError" for error in raised)


def examples(documented: Documented) -> list[doctest.DocTest]:
    """Return the examples of one docstring, with the names of its module defined."""
    value = getattr(documented.value, "fget", documented.value)
    module = importlib.import_module(value.__module__)
    if not value.__doc__:
        return []
    return [doctest.DocTestParser().get_doctest(value.__doc__, dict(vars(module)), documented.name, None, None)]


marked = [pytest.param(name, marks=[pytest.mark.spark] if name.endswith("spark") else []) for name in PACKAGES]


@pytest.mark.parametrize("package", marked)
def test_public_names_have_complete_docstrings(package: str) -> None:
    found = {each.name: problems(each) for each in all_names(package)}
    assert {name: lacking for name, lacking in found.items() if lacking} == {}


@pytest.mark.parametrize("package", marked)
def test_the_examples_of_public_names_run(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for documented in all_names(package):
        for example in examples(documented):
            runner.run(example)
    assert runner.summarize(verbose=False).failed == 0, capsys.readouterr().out


@pytest.mark.parametrize("package", marked)
def test_only_examples_that_need_spark_are_skipped(package: str) -> None:
    skipped = [
        documented.name
        for documented in all_names(package)
        for example in examples(documented)
        for step in example.examples
        if step.options.get(doctest.SKIP)
    ]
    assert [name for name in skipped if not name.startswith("icefloe.spark.")] == []


def test_the_parser_finds_sections_and_names() -> None:
    text = """Add numbers.

    Parameters
    ----------
    first, second : int
        The numbers.
    **more
        Others.

    Returns
    -------
    int
        The sum.
    """
    sections = parse_docstring(text)
    assert sections[""][0] == "Add numbers."
    assert described_names(sections["Parameters"]) == ["first", "second", "more"]
    assert "".join(sections["Returns"]) == "int    The sum."


if __name__ == "__main__":
    for package_name in PACKAGES:
        for each in all_names(package_name):
            lacking = problems(each)
            if lacking:
                sys.stdout.write(each.name + (f"  # {'; '.join(lacking)}" if "-v" in sys.argv else "") + "\n")
