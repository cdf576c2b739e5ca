"""What a newcomer is told about the project is true: version, lock files, commands, sizes of files."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.project.modules import parse_module

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
LONGEST_FILE_LINES = 900
# Used where a user has them, by code that says so; never needed.
# py4j comes with pyspark, which pins the version it talks to.
OPTIONAL_IMPORTS = {"IPython", "obspec_utils", "opentelemetry", "polars", "py4j", "virtualizarr"}

SOURCES = sorted((ROOT / "src").rglob("*.py"))
LOCKED = {version: (ROOT / "requirements" / f"lock-{version}.txt").read_text().splitlines() for version in PYTHONS}


def version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/icefloe/__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def top_level_imports(path: Path) -> set[str]:
    found = set()
    for node in parse_module(path).imports:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("python", PYTHONS)
def test_a_lock_file_holds_versions_and_nothing_else(python: str) -> None:
    assert LOCKED[python]
    for line in LOCKED[python]:
        assert re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.!+]+", line), line


@pytest.mark.parametrize("python", PYTHONS)
def test_a_lock_file_covers_every_dependency_and_extra(python: str, project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    asked = [*project["project"]["dependencies"], *(line for lines in extras.values() for line in lines)]
    missing = {name_of(line) for line in asked} - {line.split("==")[0] for line in LOCKED[python]}
    assert missing <= {"icefloe"}


def test_everything_the_source_imports_is_declared(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    shipped = [
        *project["project"]["dependencies"],
        *(line for name in extras if name != "dev" for line in extras[name]),
    ]
    declared = {name_of(line) for line in shipped}
    packages = {name: {name_of(owner) for owner in owners} for name, owners in packages_distributions().items()}
    imported = {name for path in SOURCES for name in top_level_imports(path)} - sys.stdlib_module_names - {"icefloe"}
    assert {name for name in imported if not packages.get(name, {name_of(name)}) & declared} <= OPTIONAL_IMPORTS


def test_everything_that_is_always_installed_is_imported_by_the_source(project: dict[str, Any]) -> None:
    packages = {name: {name_of(owner) for owner in owners} for name, owners in packages_distributions().items()}
    imported = {owner for path in SOURCES for name in top_level_imports(path) for owner in packages.get(name, ())}
    assert {name_of(line) for line in project["project"]["dependencies"]} <= imported


def test_every_python_named_in_the_package_has_a_lock_file(project: dict[str, Any]) -> None:
    prefix = "Programming Language :: Python :: "
    named = {entry.removeprefix(prefix) for entry in project["project"]["classifiers"] if entry.startswith(prefix)}
    assert named - {"3"} == set(PYTHONS)


def test_the_changelog_tells_of_this_version() -> None:
    assert re.search(rf"^## \[{re.escape(version())}\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_version_is_stated_once(project: dict[str, Any]) -> None:
    assert "version" not in project["project"]
    # The twin of the official package gives the version of that package.
    own = [path for path in SOURCES if path != ROOT / "src/icefloe/icechunk/__init__.py"]
    stating = [path for path in own if re.search(r"^__version__\s*=", path.read_text(), re.MULTILINE)]
    assert stating == [ROOT / "src/icefloe/__init__.py"]


def test_the_commands_of_the_readme_exist() -> None:
    commands = re.findall(r"python3 dev\.py ([a-z]+)", (ROOT / "README.md").read_text())
    jobs = subprocess.run(
        [sys.executable, ROOT / "dev.py", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert {"demo", "test"} <= set(commands)
    for command in commands:
        assert re.search(rf"^\s+{command}\s", jobs, re.MULTILINE), f"dev.py has no job {command}"


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci/run").read_text()
    assert "python3 dev.py test" in script
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_pre_commit_runs_the_checks_of_the_lint_command() -> None:
    checks = runpy.run_path(str(ROOT / "dev.py"))["CHECKS"]
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    hooks = {hook["name"]: hook["entry"] for hook in repos[0]["hooks"]}
    assert hooks == {name: " ".join(["python3 dev.py run", *command]) for name, command in checks.items()}


def test_workflows_run_the_test_command_on_every_python() -> None:
    job = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"]
    assert tuple(job["strategy"]["matrix"]["python"]) == PYTHONS
    assert job["steps"][-1]["run"] == "python3 dev.py test"


@pytest.mark.parametrize("file", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda file: str(file.name))
def test_a_workflow_names_tests_that_exist_and_no_secret_or_host(file: Path) -> None:
    text = file.read_text()
    for path in re.findall(r"\btests/[\w/.]+", text):
        assert (ROOT / path).exists(), path
    assert not re.search(r"secrets\.|https?://", text)


def test_python_code_in_the_readme_is_python() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        ast.parse(block)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_no_source_file_is_longer_than_a_person_reads() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {path: count for path, count in lengths.items() if count > LONGEST_FILE_LINES} == {}


def test_every_source_file_says_what_question_it_answers() -> None:
    silent = [path for path in SOURCES if path.read_text().strip() and not parse_module(path).docstring]
    assert silent == []


def test_types_are_shipped() -> None:
    assert (ROOT / "src/icefloe/py.typed").exists()
