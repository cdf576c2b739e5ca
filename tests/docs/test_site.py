"""The site is built without a warning, has every public name, and loads nothing from other servers."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

import icefloe

PACKAGES = (
    "icefloe",
    "icefloe.dask",
    "icefloe.distributed",
    "icefloe.icechunk",
    "icefloe.ingest",
    "icefloe.spark",
    "icefloe.storage",
    "icefloe.tables",
    "icefloe.testing",
    "icefloe.xarray",
)

# Half a minute of processor time, which a busy machine may take minutes for.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    variables = {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    built = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.long
@pytest.mark.xdist_group("site")
def test_the_reference_has_every_public_name(site: Path) -> None:
    text = "\n".join(page.read_text() for page in (site / "reference").glob("*.html"))
    anchors = set(re.findall(r'id="([^"]+)"', text))
    for package in PACKAGES:
        names = getattr(importlib.import_module(package), "__all__", [])
        missing = {f"{package}.{name}" for name in names if not name.startswith("__")} - anchors
        assert missing == set()


@pytest.mark.long
@pytest.mark.xdist_group("site")
@pytest.mark.parametrize(("page", "owner"), [("repository", icefloe.Repository), ("session", icefloe.Session)])
def test_the_reference_has_every_method(site: Path, page: str, owner: type) -> None:
    anchors = re.findall(r'id="([^"]+)"', (site / "reference" / f"{page}.html").read_text())
    shown = {anchor.rpartition(".")[2] for anchor in anchors if f".{owner.__name__}." in anchor}
    public = {name for name in dir(owner) if not name.startswith(("_", "async_")) and not name.endswith("_async")}
    assert public - shown == set()


@pytest.mark.long
@pytest.mark.xdist_group("site")
def test_pages_load_nothing_from_other_servers(site: Path) -> None:
    loaded = re.compile(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]+)"')
    for page in site.rglob("*.html"):
        assert [url for url in loaded.findall(page.read_text()) if "canonical" not in url] == [], page.name


@pytest.mark.long
@pytest.mark.xdist_group("site")
def test_every_picture_has_a_description(site: Path) -> None:
    for page in site.glob("*.html"):
        for tag in re.findall(r"<img\b[^>]*>", page.read_text()):
            alt = re.search(r'alt="([^"]*)"', tag)
            assert alt is not None and unescape(alt[1]), f"{page.name}: {tag[:120]}"


@pytest.mark.long
def test_the_pictures_are_made_by_code(tmp_path: Path) -> None:
    """Every picture of a page is in the list of the script, and a small run draws some of them."""
    spec = importlib.util.spec_from_file_location("icefloe_pictures", ROOT / "docs" / "pictures.py")
    assert spec is not None and spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = pictures
    spec.loader.exec_module(pictures)
    stored = {path.name for path in (ROOT / "docs" / "images").iterdir() if not path.name.startswith("viewer")}
    assert stored == {*pictures.PICTURES, "logo.svg"}
    drawn = list(pictures.draw_all(tmp_path, days=4, only=("history.svg", "chunks.svg", "ratios.svg", "overview.svg")))
    assert [path.name for path in drawn] == ["overview.svg", "history.svg", "chunks.svg", "ratios.svg"]
    assert "merge" in (tmp_path / "overview.svg").read_text()
