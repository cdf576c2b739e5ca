"""An append is checked against what is there, however the repository was opened; what cannot be checked is refused."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe import Repository
from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.ingest import local_ingest
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.sources import IngestOptions
from icefloe.storage.build import in_memory_storage
from icefloe.testing.synthetic_weather import write_month

pytestmark = pytest.mark.filterwarnings("ignore")
GRID: dict[str, Any] = {"nlat": 5, "nlon": 6, "variables": ("t2m",)}
GENERATIONS = ["repository", "dataset", "store", "icechunk1", "icechunk2"]


def _append(mode: Any, **more: Any) -> IngestOptions:
    return IngestOptions(mode=mode, append_dim="time", **more)


def _times(place: Path, folder: Path) -> int:
    repository = Repository.open(str(place), authorize_virtual_chunk_access={f"file://{folder}/": None})
    return int(xr.open_zarr(repository.readonly_session("main").store, consolidated=False).sizes["time"])


@pytest.mark.parametrize("mode", ["virtual", "mixed"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_same_files_are_not_appended_twice(tmp_path: Path, mode: Any, generation: str) -> None:
    write_month(tmp_path / "in", days=2, **GRID)
    repository = Repository.create(str(tmp_path / "repo"), spec_version=generation)
    ingest_local(tmp_path / "in", repository, _append(mode))
    before = _times(tmp_path / "repo", tmp_path / "in")
    for order in ("after", "any"):
        with pytest.raises(InvalidInputError, match="cannot append along time"):
            ingest_local(tmp_path / "in", Repository.open(str(tmp_path / "repo")), _append(mode, append_order=order))
    assert _times(tmp_path / "repo", tmp_path / "in") == before


def test_a_file_of_another_grid_is_not_appended_to_virtual_ones(tmp_path: Path) -> None:
    write_month(tmp_path / "in", days=1, **GRID)
    repository = Repository.create(str(tmp_path / "repo"))
    ingest_local(tmp_path / "in", repository, _append("virtual"))
    write_month(tmp_path / "in", start=dt.date(2020, 1, 2), days=1, **GRID)
    [second] = sorted((tmp_path / "in").rglob("*.nc"))[1:]
    moved = xr.load_dataset(second, decode_cf=False)
    second.unlink()
    moved.assign_coords(latitude=moved.latitude + 7).to_netcdf(second)
    with pytest.raises(InvalidInputError, match="the grids differ"):
        ingest_local(second, Repository.open(str(tmp_path / "repo")), _append("virtual"))


def test_coordinates_that_cannot_be_read_are_refused_unless_asked_for(tmp_path: Path) -> None:
    write_month(tmp_path / "a", days=1, **GRID)
    write_month(tmp_path / "b", start=dt.date(2020, 1, 2), days=1, **GRID)
    repository = Repository.create(str(tmp_path / "repo"))
    ingest_local(tmp_path / "a", repository, _append("virtual"))
    before = repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match="unchecked=True"):
        ingest_local(tmp_path / "b", repository, _append("virtual"))
    assert repository.lookup_branch("main") == before
    allowed = repository.reopen(authorize_virtual_chunk_access={f"file://{tmp_path}/a/": None})
    assert ingest_local(tmp_path / "b", allowed, _append("virtual"), dry_run=True).plan is not None
    result = ingest_local(tmp_path / "b", repository, _append("virtual", unchecked=True))
    assert result.plan is not None
    assert {issue.severity for issue in result.plan.report.issues if issue.facet == "the repository's values"} == {
        "note"
    }


def test_a_source_that_changed_since_it_was_referred_to_is_no_check(tmp_path: Path) -> None:
    write_month(tmp_path / "in", days=1, **GRID)
    repository = Repository.create(str(tmp_path / "repo"), spec_version="icechunk2")
    ingest_local(tmp_path / "in", repository, _append("virtual"))
    [file] = (tmp_path / "in").rglob("*.nc")
    os.utime(file, (file.stat().st_atime, file.stat().st_mtime + 100))
    write_month(tmp_path / "in", start=dt.date(2020, 1, 2), days=1, **GRID)
    with pytest.raises(InvalidInputError, match="has changed since the reference"):
        ingest_local(sorted((tmp_path / "in").rglob("*.nc"))[-1], repository, _append("virtual"))


def test_a_commit_while_an_ingest_is_planned_is_planned_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_month(tmp_path / "a", days=1, **GRID)
    write_month(tmp_path / "b", start=dt.date(2020, 1, 2), days=1, **GRID)
    place = str(tmp_path / "repo")
    ingest_local(tmp_path / "a", Repository.create(place), _append("native"))
    check, others = local_ingest.check_plan, [1]

    def check_and_be_late(*given: Any) -> None:
        check(*given)
        if others:
            others.clear()
            ingest_local(tmp_path / "b", Repository.open(place), _append("native"))

    monkeypatch.setattr(local_ingest, "check_plan", check_and_be_late)
    with pytest.raises(InvalidInputError, match="cannot append along time"):
        ingest_local(tmp_path / "b", Repository.open(place), _append("native"))


def _while_it_is_planned(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Let something happen between the first pass over the sources and the tasks."""
    check = local_ingest.check_plan

    def check_and_change(*given: Any) -> None:
        check(*given)
        happens()

    monkeypatch.setattr(local_ingest, "check_plan", check_and_change)


@pytest.mark.parametrize("mode", ["native", "virtual", "mixed"])
@pytest.mark.parametrize("is_same_second", [False, True])
def test_a_file_that_is_replaced_while_it_is_ingested_is_refused(
    tmp_path: Path, mode: Any, is_same_second: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_month(tmp_path / "in", days=3, **GRID)
    other = write_month(tmp_path / "other", start=dt.date(2020, 3, 1), days=1, **GRID)[0]
    replaced = sorted((tmp_path / "in").rglob("*.nc"))[1]
    size = max(path.stat().st_size for path in (other, replaced))
    for path in (other, replaced):
        os.truncate(path, size)
    os.utime(replaced, ns=(0, 1_900_000_000_100_000_000))
    os.utime(other, ns=(0, 1_900_000_000_200_000_000 if is_same_second else 1_900_000_001_000_000_000))
    repository = Repository.create(str(tmp_path / "repo"))
    before = repository.lookup_branch("main")
    _while_it_is_planned(monkeypatch, lambda: os.replace(other, replaced))
    with pytest.raises(InvalidInputError, match="changed while it was ingested. Nothing was committed"):
        ingest_local(tmp_path / "in", repository, IngestOptions(mode=mode))
    assert repository.lookup_branch("main") == before


def _replace_chunk(store: Path) -> None:
    chunk = store / "v" / "c" / "1"
    modified = chunk.stat().st_mtime_ns
    content = np.array([90.0, 91.0]).tobytes()
    assert len(content) == chunk.stat().st_size
    chunk.write_bytes(content)
    os.utime(chunk, ns=(0, modified + 1))


def _remove_chunk(store: Path) -> None:
    (store / "v" / "c" / "1").unlink()


def _grow(store: Path) -> None:
    zarr.open_array(store / "v", mode="r+").resize((8,))


@pytest.mark.parametrize("mode", ["native", "virtual", "mixed"])
@pytest.mark.parametrize("change", [_replace_chunk, _remove_chunk, _grow])
@pytest.mark.parametrize("given", ["a.zarr", "*.zarr", "."])
def test_a_zarr_store_that_changes_while_it_is_ingested_is_refused(
    tmp_path: Path, mode: Any, change: Any, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "in" / "a.zarr"
    root = zarr.open_group(store, mode="w")
    array = root.create_array("v", shape=(6,), chunks=(2,), dtype="f8", compressors=None, dimension_names=["x"])
    array[:] = np.arange(6)
    repository = Repository.create(str(tmp_path / "repo"))
    before = repository.lookup_branch("main")
    with monkeypatch.context() as patched:
        _while_it_is_planned(patched, lambda: change(store))
        with pytest.raises(IcefloeError, match="changed while it was ingested. Nothing was committed"):
            ingest_local(str(tmp_path / "in" / given), repository, IngestOptions(mode=mode))
    assert repository.lookup_branch("main") == before
    ingest_local(str(tmp_path / "in" / given), repository, IngestOptions(mode=mode))


@pytest.mark.parametrize("given", ["a.zarr", "*.zarr", "."])
def test_a_zarr_store_with_a_new_chunk_is_ingested_again(tmp_path: Path, given: str) -> None:
    store = tmp_path / "in" / "a.zarr"
    root = zarr.open_group(store, mode="w")
    for name in ("x", "v"):
        root.create_array(name, shape=(2,), chunks=(1,), dtype="f8", dimension_names=["x"])[:] = [1, 2]
    repository = Repository.create(str(tmp_path / "repo"))
    source = str(tmp_path / "in" / given)
    assert ingest_local(source, repository).snapshot_id is not None
    assert ingest_local(source, repository, skip_ingested=True).already_there == 1
    root["v"][1] = 5.0
    os.utime(store / "v" / "c" / "1", (0, 1_900_000_000))
    ingest_local(source, repository, IngestOptions(region="auto"), skip_ingested=True)
    assert zarr.open_array(repository.readonly_session("main").store, path="v", mode="r")[:].tolist() == [1, 5]


@pytest.mark.parametrize("name", ["with space", "ä ö", "50%25", "a%20b?c", "x#y", "[1]*"])
def test_references_to_files_in_folders_with_odd_names_are_read(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    write_month(folder, days=2, **GRID)
    repository = Repository.create(str(tmp_path / "repo"))
    plan = ingest_local(folder, repository, IngestOptions(mode="virtual")).plan
    assert plan is not None
    authorised = Repository.open(str(tmp_path / "repo"), authorize_virtual_chunk_access=dict.fromkeys(plan.containers))
    ours = xr.open_zarr(authorised.readonly_session("main").store, consolidated=False).load()
    theirs = xr.open_mfdataset(sorted(folder.rglob("*.nc")), data_vars="minimal")
    xr.testing.assert_equal(ours.t2m, theirs.t2m.load())


@pytest.mark.parametrize("appends", [False, True])
def test_chunks_of_a_later_file_that_are_longer_than_those_of_the_array_are_not_referenced(
    tmp_path: Path, appends: bool
) -> None:
    """The first file can be cut into chunks of one hour, as the array needs. The last one cannot."""
    layouts = {"a": (1, None), "b": (3, None), "c": (3, (3, 2))}
    hour = 0
    for name, (count, chunks) in layouts.items():
        values = np.arange(hour, hour + count, dtype="i1")[:, None].repeat(2, axis=1)
        data = xr.Dataset({"v": (("time", "x"), values)}, {"time": np.arange(hour, hour + count, dtype="i4")})
        encoding = {"v": {"contiguous": True} if chunks is None else {"chunksizes": chunks}}
        data.to_netcdf(tmp_path / f"{name}.nc", encoding=encoding)
        hour += count
    repo = Repository.create(in_memory_storage())
    options = IngestOptions(mode="mixed", native_below_bytes=0)
    first = ["a"] if appends else list(layouts)
    ingest_local([tmp_path / f"{name}.nc" for name in first], repo, options)
    if appends:
        ingest_local([tmp_path / f"{name}.nc" for name in ("b", "c")], repo, replace(options, append_dim="time"))
    opened = Repository.open(repo.storage, authorize_virtual_chunk_access={f"file://{tmp_path}/": None})
    array = zarr.open_array(opened.readonly_session("main").store, path="v", mode="r")
    assert np.asarray(array[:, 0]).tolist() == list(range(7))
