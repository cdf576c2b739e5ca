"""The shape of the source: few modules of a readable size, described where a reader looks for them."""

from __future__ import annotations

import ast
import re
import statistics
from collections import Counter
from pathlib import Path

import pytest
from tests.project.modules import parse_module

from icefloe import SpecVersion
from icefloe.storage.local import LocalStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.remote import ObstoreStorage
from icefloe.storage.wrappers import SplitStorage

SOURCE = Path(__file__).resolve().parents[2] / "src/icefloe"
MODULES = sorted(SOURCE.rglob("*.py"))
ENGINE = [path for path in MODULES if path.parent.name != "icechunk"]
"""The modules of `icefloe.icechunk` are not counted: their number and names are those of the official package."""
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)
MOST_MODULES = 236
SMALLEST_MEDIAN_LINES = 180
LONGEST_LINES = 900
LARGEST_SHARE_OF_IMPORTS = 0.09


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_modules_are_few_and_of_a_readable_size() -> None:
    lengths = {path.relative_to(SOURCE).as_posix(): len(lines_of(path)) for path in ENGINE}
    assert len(lengths) <= MOST_MODULES
    assert statistics.median(lengths.values()) >= SMALLEST_MEDIAN_LINES
    assert {name: count for name, count in lengths.items() if count > LONGEST_LINES} == {}


SHARED_NAMES = {"maintenance", "repository", "store"}
"""Names of several modules: the maintenance as methods and on Spark, and the generations `repository` and `store`,
which have the names of a class."""


def test_modules_of_different_subjects_have_different_names() -> None:
    # Commands are named after what they run, and each generation has its own snapshots and manifests.
    others = [path for path in ENGINE if not {"cli", "formats"} & set(path.relative_to(SOURCE).parts)]
    names = Counter(path.stem for path in others if not path.stem.startswith("__"))
    assert {name for name, count in names.items() if count > 1} <= SHARED_NAMES


def test_imports_are_a_small_part_of_the_code() -> None:
    imports = code = 0
    for path in ENGINE:
        code += sum(1 for line in lines_of(path) if line.strip() and not line.strip().startswith("#"))
        for node in parse_module(path).imports:
            imports += (node.end_lineno or node.lineno) - node.lineno + 1
    assert imports / code <= LARGEST_SHARE_OF_IMPORTS


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_package_says_what_each_of_its_modules_is_for(package: Path) -> None:
    described = re.findall(r"^- `(\w+)`: \S", (package / "__init__.py").read_text(), re.MULTILINE)
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    assert set(described) == modules | {path.parent.name for path in package.glob("*/__init__.py")}


def test_no_two_modules_import_each_other_not_even_inside_functions() -> None:
    names = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in MODULES}
    imported = {name: _imported_by(path, names.keys()) - {name} for name, path in names.items()}
    ended: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " imports ".join([*way[way.index(name) :], name])
        if name not in ended:
            for following in sorted(imported[name]):
                visit(following, (*way, name))
            ended.add(name)

    for name in sorted(names):
        visit(name, ())


def _imported_by(path: Path, names: object) -> set[str]:
    found: set[str] = set()
    for node in parse_module(path).imports:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module is not None:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name for name in found if name in names}  # type: ignore[operator]


def test_no_generation_is_named_above_formats_and_ledger() -> None:
    names = {*SpecVersion.__members__}
    below = ("formats", "testing", "model")
    of_one_generation = {f"ledger/{version.value}.py" for version in SpecVersion} | {"ledger/generations.py"}
    naming = []
    for path in ENGINE:
        if path.relative_to(SOURCE).parts[0] in below or path.relative_to(SOURCE).as_posix() in of_one_generation:
            continue
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "SpecVersion" in text else ():
            if isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "SpecVersion":
                naming.append(f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)}")
    assert naming == []


def test_no_kind_of_storage_is_asked_for_above_storage() -> None:
    kinds = {kind.__name__ for kind in (LocalStorage, MemoryStorage, ObstoreStorage, SplitStorage)}
    asking = []
    for path in ENGINE:
        if path.relative_to(SOURCE).parts[0] in ("storage", "testing"):
            continue
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if any(kind in text for kind in kinds) else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                asked = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
                if asked & kinds:
                    asking.append(f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)}")
    assert asking == []


ACROSS_PACKAGES = {"docs", "project", "security", "servers", "xarray_io"}
"""Folders of tests that are about no single package. `servers` has the servers that tests start.

`xarray_io` is not called `xarray`, because the tools that sort imports would take that for the library."""


def test_folders_of_tests_have_the_names_of_what_they_test() -> None:
    tests = SOURCE.parents[1] / "tests"
    folders = {path.parent.relative_to(tests).parts[0] for path in tests.glob("*/**/*.py")}
    named = {path.stem for path in SOURCE.glob("*.py")} | {path.name for path in PACKAGES}
    assert folders - named == ACROSS_PACKAGES
    assert {path.name for path in tests.glob("*.py")} == {"__init__.py", "conftest.py"}


def test_the_formatter_decides_how_code_looks() -> None:
    marked = [path for path in MODULES if "# fmt: " in path.read_text()]
    assert marked == []
