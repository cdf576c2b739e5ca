"""Public methods document their parameters, results and errors, and show an example."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import icefloe
from icefloe.session.session import ForkSession, Session
from icefloe.store import IcechunkStore

SECTION = re.compile(r"^(Parameters|Returns|Yields|Raises|Examples)\n-+$", re.MULTILINE)


def methods() -> list[Any]:
    """Return the public methods of the public classes that this library defines."""
    found = {}
    for owner in (icefloe.Repository, Session, ForkSession, IcechunkStore):
        for name in dir(owner):
            member = getattr(owner, name)
            if not name.startswith("_") and inspect.isroutine(member) and member.__module__.startswith("icefloe."):
                found[f"{owner.__name__}.{name}"] = member
    return [pytest.param(member, id=name) for name, member in found.items()]


def sections(method: Any) -> dict[str, str]:
    """Return the sections of a docstring by name."""
    parts = SECTION.split(inspect.getdoc(method) or "")
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("method", methods())
def test_a_method_documents_every_parameter_and_no_other(method: Any) -> None:
    section = sections(method).get("Parameters", "")
    named = [name for line in re.findall(r"^(\S.*)$", section, re.MULTILINE) for name in line.split(", ")]
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    taken = [each for each in inspect.signature(method).parameters.values() if each.name not in ("self", "cls")]
    assert named == [marks.get(each.kind, "") + each.name for each in taken]


@pytest.mark.parametrize("method", methods())
def test_a_method_documents_its_result(method: Any) -> None:
    returned = inspect.signature(method).return_annotation
    assert returned is not inspect.Signature.empty
    documented = {"Returns", "Yields"} & set(sections(method))
    assert len(documented) == (returned != "None")


@pytest.mark.parametrize("method", methods())
def test_a_method_shows_an_example(method: Any) -> None:
    assert ">>> " in sections(method).get("Examples", "")


@pytest.mark.parametrize("method", methods())
def test_the_first_line_of_a_docstring_is_one_or_two_whole_sentences(method: Any) -> None:
    first, _, rest = (inspect.getdoc(method) or "").partition("\n")
    assert first.endswith(".") and ";" not in first
    assert not rest or rest.startswith("\n")


@pytest.mark.parametrize("method", methods())
def test_the_errors_of_a_method_exist(method: Any) -> None:
    section = sections(method).get("Raises", "")
    for name in re.findall(r"^(\S+)$", section, re.MULTILINE):
        assert hasattr(icefloe, name) or name in ("TypeError", "FileNotFoundError", "NotImplementedError")
