"""The examples in docstrings run and give the results that they show."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules() -> list[Any]:
    """Return the modules with examples. Those of the package `spark` need pyspark."""
    listed = []
    for file in sorted((SOURCE / "icefloe").rglob("*.py")):
        if re.search(r"^\s*>>> ", file.read_text(), re.MULTILINE):
            name = ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
            marks = [pytest.mark.spark] if name.startswith("icefloe.spark") else []
            listed.append(pytest.param(name, marks=marks, id=name))
    return listed


@pytest.mark.parametrize("name", modules())
def test_the_examples_of_a_module_are_true(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert outcome.failed == 0
