"""The documentation is correct: code runs, links have targets, and tables are complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import ROOT, Block, anchors, blocks, links, name_of, pages, prose

import icefloe
from icefloe.cli.app import COMMANDS, main
from icefloe.errors import IcefloeError
from icefloe.model.config import RepositoryConfig
from icefloe.model.config_value import all_settings, settings_table
from icefloe.model.manifest_config import ManifestConfig
from icefloe.session.open_repository import STORED_BOUNDS

NEVER = "no-run"
RUN = "run"
SPARK = "spark"
RUN_ELSEWHERE = {"docs/tables.md"}
"""Its paths are relative to the folder in which Spark started. It has a separate test."""


def runnable_blocks(page: Path, *, spark: bool) -> list[Block]:
    """Return the blocks that run: Python unless it says no-run, and commands that say run."""
    found = [
        block
        for block in blocks(page)
        if (block.language == "python" and NEVER not in block.words) or (block.language == "sh" and RUN in block.words)
    ]
    return found if spark else [block for block in found if SPARK not in block.words]


def runs() -> list[Any]:
    """Return one run for each page with code, and a second one if some of the code needs Spark."""
    listed = []
    for page in pages():
        name = name_of(page)
        plain, every = runnable_blocks(page, spark=False), runnable_blocks(page, spark=True)
        if plain:
            listed.append(pytest.param(page, plain, id=name))
        if len(every) > len(plain) and name not in RUN_ELSEWHERE:
            listed.append(pytest.param(page, every, id=f"{name} with Spark", marks=pytest.mark.spark))
    return listed


@pytest.mark.parametrize(("page", "code"), runs())
def test_the_code_of_a_page_runs(
    page: Path, code: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in code:
        if block.language == "sh":
            run_commands(page, block)
            continue
        # Line numbers are those of the page, so that errors point to them.
        source = "\n" * (block.line - 1) + block.text
        exec(compile(source, name_of(page), "exec"), names)


def run_commands(page: Path, block: Block) -> None:
    """Run the lines of a block, which are commands of `icefloe`, in this process."""
    for line in block.text.splitlines():
        program, *arguments = shlex.split(line, comments=True) or ["icefloe"]
        assert program == "icefloe", f"{name_of(page)}:{block.line}: {line}"
        assert not arguments or main(arguments) == 0, f"{name_of(page)}:{block.line}: {line}"


def test_every_fence_says_its_language() -> None:
    known = {"python", "sh", "yaml", "text", "json", "mermaid", "sql"}
    missing = [f"{name_of(p)}:{b.line}" for p in pages() for b in blocks(p) if b.language not in known]
    # The diagram of the README has no language.
    assert [block for block in missing if not block.startswith("README.md")] == []


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name_of(page)} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors(found), f"{name_of(page)} links to {target}; {found.name} has no such heading"


def test_every_page_can_be_reached_from_the_index() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "docs" / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        local = [target.partition("#")[0] for target in links(page) if not re.match(r"[a-z]+:", target)]
        waiting += [(page.parent / target).resolve() for target in local if target]
    assert [name_of(page) for page in pages() if page not in seen] == []


@pytest.mark.parametrize("unused", [False, True])
def test_the_tables_of_settings_are_those_of_the_code(unused: bool) -> None:
    """To update the page, print `settings_table(RepositoryConfig, unused=...)`."""
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert settings_table(RepositoryConfig, unused=unused) in page


def test_every_setting_says_what_it_does() -> None:
    for name, setting in all_settings(RepositoryConfig).items():
        assert setting.doc or setting.unused is not None or name == "manifest", name


def test_the_table_of_bounds_is_that_of_the_code() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text().partition("\n## Stored settings have bounds\n")[2]
    rows = re.findall(r"^\| `([\w.]+)` \| ([\d,]+) \| ([\d,]+) \|", text, re.MULTILINE)
    found = {name: (int(low.replace(",", "")), int(high.replace(",", ""))) for name, low, high in rows}
    assert found == dict(STORED_BOUNDS)


def test_the_documented_default_layout_is_the_default() -> None:
    page = ROOT / "docs" / "configuration.md"
    (text,) = (block.text for block in blocks(page) if block.language == "yaml" and "default" in block.words)
    assert icefloe.config_from_yaml(text).manifest == ManifestConfig()


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_yaml_on_pages_is_accepted(page: Path) -> None:
    for block in blocks(page):
        if block.language == "yaml" and NEVER not in block.words:
            icefloe.config_from_yaml(block.text)


def error_classes(root: type[Exception] = IcefloeError) -> set[str]:
    return {root.__name__}.union(*(error_classes(child) for child in root.__subclasses__()))


def test_every_error_is_documented() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    public = {name for name in error_classes() if name in icefloe.__all__}
    assert {name for name in public if f"`{name}`" not in text} == set()


def test_public_names_on_pages_exist() -> None:
    for page in pages():
        text = page.read_text()
        for name in set(re.findall(r"\bicefloe\.([A-Z]\w+)", text)):
            assert hasattr(icefloe, name), f"{name_of(page)} names icefloe.{name}, which does not exist"


def test_pages_name_no_machine() -> None:
    for page in pages():
        assert not re.search(r"/tmp/|/home/|/root/|/work/", prose(page)), name_of(page)


def test_every_package_is_described() -> None:
    source = ROOT / "src" / "icefloe"
    packages = {path.stem for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    table = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    described = set(re.findall(r"`(\w+)`", " ".join(table)))
    assert packages - {"__init__"} - described == set()


def test_the_json_of_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text().partition("\n## JSON output\n")[2]
    rows = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`([a-z-]+)", row)}
    assert set(COMMANDS) - documented == set()
