"""The audit of virtual files: every reference against its file, by file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe import Repository
from icefloe.cli.app import main
from icefloe.errors import InvalidInputError
from icefloe.ingest.chunk_grids import all_coords, concatenate_tables, virtual_table
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.sources import IngestOptions
from icefloe.maintenance.verify_checks import ManifestUse
from icefloe.maintenance.verify_sources import group_references, join_groups
from icefloe.model.snapshot import Manifest
from icefloe.testing.synthetic_weather import write_month

pytestmark = pytest.mark.filterwarnings("ignore")
GENERATIONS = ["repository", "dataset", "store", "icechunk1", "icechunk2"]


def _archive(folder: Path, generation: str = "repository", days: int = 4) -> tuple[Repository, list[Path]]:
    write_month(folder / "in", days=days, nlat=5, nlon=6, variables=("t2m",))
    repository = Repository.create(str(folder / "repo"), spec_version=generation)
    ingest_local(folder / "in", repository, IngestOptions(mode="virtual"))
    return _reopen(folder), sorted((folder / "in").rglob("*.nc"))


def _reopen(folder: Path) -> Repository:
    allowed = {f"file://{folder}/in/": None}
    return Repository.open(str(folder / "repo"), authorize_virtual_chunk_access=allowed)


def _status(repository: Repository, **options: Any) -> dict[str, str]:
    report = repository.verify_sources(**options)
    return {row["location"].rsplit("/", 1)[1]: row["status"] for row in report.files.to_pylist()}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_report_names_every_file_and_what_is_wrong_with_it(tmp_path: Path, generation: str) -> None:
    repository, files = _archive(tmp_path, generation)
    report = repository.verify_sources(sample=2)
    assert report.is_clean and report.counts == {"ok": 4}
    assert min(report.files["decoded"].to_pylist()) > 0
    names = [path.name for path in files]
    states = [path.stat() for path in files]
    files[0].unlink()
    content = files[1].read_bytes()
    files[1].write_bytes(content[: len(content) // 3])
    os.utime(files[1], ns=(states[1].st_atime_ns, states[1].st_mtime_ns))
    files[2].write_bytes(content)
    os.utime(files[2], (states[2].st_atime + 100, states[2].st_mtime + 100))
    found = _status(repository, sample=1000)
    expected = {names[0]: "missing", names[1]: "too short", names[2]: "changed", names[3]: "ok"}
    if generation == "dataset":  # it does not record the state of files, but a chunk of the other file is found
        expected[names[2]] = "undecodable"
    assert found == expected
    text = str(repository.verify_sources())
    assert f"missing: file://{files[0]}" in text
    assert not repository.verify_sources().is_clean


def test_a_chunk_that_cannot_be_decoded_is_found_by_a_sample(tmp_path: Path) -> None:
    write_month(tmp_path / "in", days=1, nlat=5, nlon=6, variables=("t2m",))
    [path] = sorted((tmp_path / "in").rglob("*.nc"))
    repository = Repository.create(str(tmp_path / "repo"))
    ingest_local(path, repository, IngestOptions(mode="virtual"))
    state = path.stat()
    path.write_bytes(bytes(state.st_size))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert set(_status(_reopen(tmp_path), sample=0).values()) == {"ok"}
    assert set(_status(_reopen(tmp_path), sample=3).values()) == {"undecodable"}


def test_files_that_were_not_checked_are_not_reported_as_ok(tmp_path: Path) -> None:
    _archive(tmp_path, days=2)
    report = Repository.open(str(tmp_path / "repo")).verify_sources()
    assert report.counts == {"not checked": 2}
    assert not report.is_clean
    with pytest.raises(InvalidInputError, match="no branch"):
        _reopen(tmp_path).verify_sources(branch="dev")


def test_only_the_references_of_the_chosen_branch_are_checked(tmp_path: Path) -> None:
    repository, files = _archive(tmp_path, days=2)
    repository.create_branch("dev", repository.lookup_branch("main"))
    session = repository.writable_session("main")
    group = zarr.open_group(session.store)
    for name in list(group.array_keys()):
        del group[name]
    session.commit("empty")
    files[0].unlink()
    assert _status(repository, branch="main") == {}
    assert _status(repository, branch="dev")[files[0].name] == "missing"
    assert _status(repository)[files[0].name] == "missing"


def test_the_command_prints_the_report_and_fails_if_a_file_is_not_ok(tmp_path: Path, capsys: Any) -> None:
    _, files = _archive(tmp_path, days=2)
    allow = ["--authorize", f"file://{tmp_path}/in/"]
    assert main(["verify", str(tmp_path / "repo"), "--sources", "--json", *allow]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["clean"] and printed["counts"] == {"ok": 2} and len(printed["files"]) == 2
    files[1].unlink()
    assert main(["verify", str(tmp_path / "repo"), "--sources", *allow]) == 1
    assert "1 missing, 1 ok" in capsys.readouterr().out


@settings(max_examples=40)
@given(st.data())
def test_groups_count_every_reference_once_and_know_the_last_byte(data: st.DataObject) -> None:
    """The grouping equals a loop over all references."""
    grid = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    coords = all_coords(grid)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    owner = rng.integers(0, 3, len(coords))
    offsets, lengths = rng.integers(0, 1000, len(coords)), rng.integers(1, 100, len(coords))
    tables = [
        virtual_table(coords[owner == n], offsets[owner == n], lengths[owner == n], f"file:///{n}.nc", last_modified=7)
        for n in range(3)
    ]
    extents = tuple((data.draw(st.integers(0, n - 1)), n) for n in grid)
    manifest = Manifest("m", {"n": concatenate_tables(tables, 2)})
    sample = data.draw(st.integers(0, 3))
    parts = [group_references(manifest, {ManifestUse("n", "/a", extents, grid): "s"}, sample) for _ in range(2)]
    low = np.array([first for first, _ in extents])
    inside = (coords >= low).all(axis=1)
    found = {row["location"]: row for row in join_groups(parts).to_pylist()}
    for n in range(3):
        mine = inside & (owner == n)
        row = found.pop(f"file:///{n}.nc", None)
        if not mine.any():
            assert row is None
            continue
        assert row is not None
        assert row["references"] == 2 * mine.sum()
        assert row["end"] == (offsets + lengths)[mine].max()
        chosen = json.loads(row["sample"])[2] if row["sample"] else []
        assert len(chosen) == min(sample, mine.sum())
        assert {tuple(c) for c in chosen} <= {tuple(c) for c in coords[mine].tolist()}
        assert len({tuple(c) for c in chosen}) == len(chosen)
    assert not found
