"""Any generation becomes any other one, elsewhere or in its place, with everything it holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.conversion.repositories import assert_same, go_on, make_repository

import icefloe
from icefloe import SpecVersion
from icefloe.ledger.ledger import JOURNAL_KEY

VERSIONS = [version.value for version in SpecVersion]
PAIRS = [(a, b) for a in VERSIONS for b in VERSIONS if a != b]


@pytest.mark.every_generation
@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_repository_is_converted_to_another_place(tmp_path: Path, old: str, new: str) -> None:
    source = make_repository(tmp_path / "source", old, virtual=_folder(tmp_path / "virtual"))
    before = _files(tmp_path / "source")
    done = icefloe.convert(source, tmp_path / "target", new, verify="all")
    assert (done.from_version.value, done.to_version.value) == (old, new)
    assert _files(tmp_path / "source") == before
    assert done.repository is not None and done.repository.spec_version.value == new
    assert_same(source, done.repository)
    assert not (tmp_path / "target" / JOURNAL_KEY).exists()
    assert done.copied_objects == done.chunk_objects > 0
    opened = icefloe.Repository.open(tmp_path / "target")
    assert opened.config.virtual_chunk_containers == source.config.virtual_chunk_containers
    go_on(done.repository)


@pytest.mark.every_generation
@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_repository_is_converted_in_its_place(tmp_path: Path, old: str, new: str) -> None:
    source = make_repository(tmp_path / "repo", old, virtual=_folder(tmp_path / "virtual"))
    shutil.copytree(tmp_path / "repo", tmp_path / "copy")
    chunks = _files(tmp_path / "repo" / "chunks")
    done = icefloe.upgrade(source, new, verify="all")
    assert done.repository is not None and done.repository.spec_version.value == new
    kept = icefloe.Repository.open(
        tmp_path / "copy", authorize_virtual_chunk_access=dict.fromkeys(source.authorized_virtual_container_prefixes)
    )
    assert_same(kept, done.repository)
    if {old, new} <= {"repository", "icechunk1", "icechunk2"}:
        assert _files(tmp_path / "repo" / "chunks") == chunks and done.copied_objects == 0
    go_on(done.repository)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
