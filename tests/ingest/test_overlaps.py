"""Files that hold the same coordinates: refused, or each cell is that of one file by a rule."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefloe import Repository, in_memory_storage
from icefloe.errors import InvalidInputError
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.sources import IngestOptions
from icefloe.ingest.sync import sync_local

pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass(frozen=True, slots=True)
class _File:
    """Hours of one file, its units, and when it was modified."""

    hours: tuple[int, ...]
    days: bool
    modified: int
    issue: int


@st.composite
def _archives(draw: st.DrawFn) -> list[_File]:
    found = []
    is_falling = draw(st.booleans())
    for number in range(draw(st.integers(1, 5))):
        first, step = draw(st.integers(0, 12)), draw(st.sampled_from([1, 1, 2, 3]))
        hours = tuple(first + step * i for i in range(draw(st.integers(1, 6))))
        modified = draw(st.integers(0, 3)) * 100 + number
        found.append(
            _File(hours[::-1] if is_falling else hours, draw(st.booleans()), modified, draw(st.integers(0, 12)))
        )
    return found


def _write(folder: Path, files: Sequence[_File]) -> list[Path]:
    paths = []
    for number, file in enumerate(files):
        values = 100.0 * number + np.array(file.hours, "f8")[:, np.newaxis] + np.array([0.0, 0.5])
        units = "days since 2020-01-01" if file.days else "hours since 2020-01-01"
        times = np.array(file.hours) / 24 if file.days else np.array(file.hours, "f8")
        data = xr.Dataset(
            {"v": (("time", "x"), values), "mask": ("x", [1, 0])}, {"time": ("time", times, {"units": units})}
        )
        path = folder / f"f{number}_r{file.issue}.nc"
        data.to_netcdf(path)
        os.utime(path, (1_000_000_000 + file.modified,) * 2)
        paths.append(path)
    return paths


def _expected(files: Sequence[_File], overlap: str, by: str) -> dict[int, int]:
    """The number of the file of each hour."""
    keys: dict[str, Any] = {
        "name": lambda n: 0,
        "time": lambda n: files[n].modified,
        r"_r(\d+)": lambda n: files[n].issue,
    }
    order = sorted(range(len(files)), key=lambda n: (keys[by](n), n), reverse=overlap == "first")
    return {hour: number for number in order for hour in files[number].hours}


def _check(repo: Repository, wanted: dict[int, int], *, is_falling: bool) -> None:
    found = xr.open_zarr(repo.readonly_session("main").store, consolidated=False).load()
    hours = sorted(wanted, reverse=is_falling)
    times = np.datetime64("2020-01-01", "ns") + np.array(hours) * np.timedelta64(1, "h")
    np.testing.assert_array_equal(found.time.values, times)
    np.testing.assert_array_equal(found.v.values[:, 0], [100.0 * wanted[hour] + hour for hour in hours])
    np.testing.assert_array_equal(found.v.values[:, 1], [100.0 * wanted[hour] + hour + 0.5 for hour in hours])


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    files=_archives(),
    overlap=st.sampled_from(["first", "last"]),
    by=st.sampled_from(["name", "time", r"_r(\d+)"]),
    chunk=st.integers(1, 5),
    mode=st.sampled_from(["native", "mixed"]),
)
def test_each_cell_is_that_of_the_first_or_the_last_file(
    files: list[_File], overlap: Any, by: str, chunk: int, mode: Any
) -> None:
    is_falling = any(len(file.hours) > 1 and file.hours[0] > file.hours[-1] for file in files)
    options = IngestOptions(
        mode=mode,
        concat_dims=("time",),
        overlap=overlap,
        overlap_by=by,
        chunks={"time": chunk},
        time_units="hours since 2020-01-01",
    )
    with tempfile.TemporaryDirectory() as folder:
        paths = _write(Path(folder), files)
        wanted = _expected(files, overlap, by)
        ingested, synced = (Repository.create(in_memory_storage()) for _ in range(2))
        ingest_local(paths, ingested, options)
        _check(ingested, wanted, is_falling=is_falling)
        # The archive is the same, whichever files came first.
        for count in range(1, len(paths) + 1):
            sync_local(paths[-count:], synced, options)
        _check(synced, wanted, is_falling=is_falling)
        assert sync_local(paths, synced, options).snapshot_id is None
        repeated = len(wanted) < sum(len(file.hours) for file in files)
        if repeated:
            with pytest.raises(InvalidInputError, match="overlap|other values"):
                ingest_local(
                    paths,
                    Repository.create(in_memory_storage()),
                    IngestOptions(concat_dims=("time",), chunks={"time": chunk}),
                )


def _days(path: Path, *hours: float, names: str = "v", **more: Any) -> Path:
    variables = {name: ("time", np.array(hours) + 100 * len(names)) for name in names}
    xr.Dataset(variables, {"time": ("time", np.array(hours), {"units": "hours since 2020-01-01"}), **more}).to_netcdf(
        path
    )
    return path


def test_a_file_of_which_a_part_is_used_cannot_be_referenced(tmp_path: Path) -> None:
    paths = [_days(tmp_path / "a.nc", 0, 1, 2), _days(tmp_path / "b.nc", 2, 3)]
    repo = Repository.create(in_memory_storage())
    with pytest.raises(InvalidInputError, match="another file has some of its cells too"):
        ingest_local(paths, repo, IngestOptions(mode="virtual", concat_dims=("time",), overlap="last"))
    assert len(list(repo.ancestry(branch="main"))) == 1


def test_a_file_that_another_one_replaces_can_be_left_out_of_references(tmp_path: Path) -> None:
    paths = [
        _days(tmp_path / name, *hours) for name, hours in (("a1.nc", (0, 1)), ("a2.nc", (0, 1)), ("b1.nc", (2, 3)))
    ]
    repo = Repository.create(in_memory_storage())
    result = ingest_local(paths, repo, IngestOptions(mode="virtual", concat_dims=("time",), overlap="last"))
    assert result.plan is not None
    assert [(i.file.rpartition("/")[2], i.found) for i in result.plan.report.issues if i.facet == "overlap"] == [
        ("a1.nc", "2 of 2 values")
    ]


def test_overlapping_files_with_different_variables_are_refused(tmp_path: Path) -> None:
    paths = [_days(tmp_path / "a.nc", 0, 1, 2, names="v"), _days(tmp_path / "b.nc", 2, 3, names="vw")]
    repo = Repository.create(in_memory_storage())
    with pytest.raises(InvalidInputError, match="files overlap along time"):
        ingest_local(paths, repo, IngestOptions(concat_dims=("time",), overlap="last", allow_missing=True))
    assert len(list(repo.ancestry(branch="main"))) == 1


def test_nearly_equal_coordinates_of_different_precision_are_refused(tmp_path: Path) -> None:
    for name, dtype, values in (("a", "f4", [0.1, 0.2]), ("b", "f8", [0.2, 0.3])):
        xr.Dataset({"v": ("x", [1.0, 2.0])}, {"x": ("x", np.array(values, dtype))}).to_netcdf(tmp_path / f"{name}.nc")
    with pytest.raises(InvalidInputError, match="overlap"):
        ingest_local(
            str(tmp_path / "*.nc"),
            Repository.create(in_memory_storage()),
            IngestOptions(concat_dims=("x",), overlap="last"),
        )


def test_tiles_overlap_only_with_tiles_of_the_same_place(tmp_path: Path) -> None:
    for member in (1, 2):
        for issue, hours in ((1, (0, 1, 2)), (2, (2, 3))):
            values = np.array(hours)[:, np.newaxis] + 10.0 * issue + 100 * member
            xr.Dataset(
                {"v": (("time", "member"), values)}, {"time": np.array(hours, "f8"), "member": [member]}
            ).to_netcdf(tmp_path / f"m{member}_{issue}.nc")
    repo = Repository.create(in_memory_storage())
    ingest_local(str(tmp_path / "*.nc"), repo, IngestOptions(concat_dims=("time", "member"), overlap="last"))
    found = xr.open_zarr(repo.readonly_session("main").store, consolidated=False).load()
    np.testing.assert_array_equal(found.v, [[110, 210], [111, 211], [122, 222], [123, 223]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overlap": "newest"}, "overlap"),
        ({"overlap_by": "(["}, "is wrong"),
        ({"overlap_by": "size"}, "no group in parentheses"),
    ],
)
def test_wrong_policies_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        IngestOptions(**options)


def test_cells_that_a_vanished_file_never_brought_are_not_invented(tmp_path: Path) -> None:
    old, new = _days(tmp_path / "a.nc", 0, 1, 2), _days(tmp_path / "b.nc", 2, 3)
    repo = Repository.create(in_memory_storage())
    options = IngestOptions(concat_dims=("time",), overlap="last")
    sync_local([old, new], repo, options)
    old.unlink()
    _days(new, 3)
    with pytest.raises(InvalidInputError, match="no longer exists"):
        sync_local([new], repo, options, vanished="keep")
    sync_local([new], repo, options, vanished="remove")
    found = xr.open_zarr(repo.readonly_session("main").store, consolidated=False).load()
    np.testing.assert_array_equal(found.v, [103.0])
