"""Forecasts grow in every direction, ragged ends are missing, and views have the newest run of every valid time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefloe import Repository
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.ingest import IngestOptions, best_estimate, ingest_local, sync_local
from icefloe.storage.build import in_memory_storage

pytestmark = pytest.mark.filterwarnings("ignore")
_OPTIONS = IngestOptions(chunks={"time": 1, "step": 1, "number": 1})


def _value(run: int, member: int, step: int) -> float:
    return run * 100.0 + step + member / 8


def _write(folder: Path, run: int, member: int, first: int, end: int) -> Path:
    """A file of one run and member, with steps from `first` to `end` hours in steps of 3 hours."""
    steps = np.arange(first, end, 3)
    values = [[[[_value(run, member, int(step)), -1.0] for step in steps]]]
    data = xr.Dataset(
        {"t": (("time", "number", "step", "x"), values)},
        {
            "time": ("time", [run * 6], {"units": "hours since 2024-01-01"}),
            "number": ("number", [member]),
            "step": ("step", steps, {"units": "hours"}),
            "x": ("x", [10.0, 20.0]),
        },
    )
    path = folder / f"r{run}-m{member}-s{first:03d}.nc"
    data.to_netcdf(path)
    return path


@st.composite
def _stages(draw: st.DrawFn) -> list[list[tuple[int, int, int, int]]]:
    """Files of runs of different lengths, some cut into parts, and the order in which they arrive."""
    files = []
    for run in draw(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True)):
        for member in draw(st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True)):
            end = 3 * draw(st.integers(1, 5))
            cut = 3 * draw(st.integers(0, 4))
            files += [(run, member, 0, cut), (run, member, cut, end)] if 0 < cut < end else [(run, member, 0, end)]
    files = draw(st.permutations(files))
    edge = draw(st.integers(0, len(files) - 1))
    return [files[: edge + 1], files[edge + 1 :]]


def _check(data: xr.Dataset, files: list[tuple[int, int, int, int]]) -> None:
    known = {(run, member, step) for run, member, first, end in files for step in range(first, end, 3)}
    assert data.sizes["time"] == len({run for run, _, _ in known})
    assert data.step.values.tolist() == sorted({step for _, _, step in known})
    hours = (data.time.values - np.datetime64("2024-01-01")) / np.timedelta64(6, "h")
    expected = np.full(data.t.shape[:3], np.nan)
    for i, run in enumerate(hours.astype(int).tolist()):
        for j, member in enumerate(data.number.values.tolist()):
            for k, step in enumerate(data.step.values.tolist()):
                if (run, member, step) in known:
                    expected[i, j, k] = _value(run, member, step)
    np.testing.assert_array_equal(data.t.values[..., 0], expected)


def _open(repository: Repository, group: str | None = None) -> xr.Dataset:
    store = repository.readonly_session("main").store
    return xr.open_zarr(store, group=group, consolidated=False, decode_timedelta=False).load()


@pytest.mark.long
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_stages())
def test_a_forecast_grows_in_every_direction_and_equals_a_new_ingest(
    tmp_path_factory: pytest.TempPathFactory, stages: list[list[tuple[int, int, int, int]]]
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    repository = Repository.create(in_memory_storage())
    there: list[tuple[int, int, int, int]] = []
    for stage in stages:
        for each in stage:
            _write(folder, *each)
        there += stage
        try:
            sync_local(str(folder / "*.nc"), repository, _OPTIONS)
        except InvalidInputError as error:
            # Lone parts of runs may leave gaps that no order of the values explains.
            if "not consecutive" not in str(error):
                raise
            return
        _check(_open(repository), there)
    fresh = Repository.create(in_memory_storage())
    ingest_local(str(folder / "*.nc"), fresh, _OPTIONS)
    xr.testing.assert_identical(_open(fresh), _open(repository))


@st.composite
def _appends(draw: st.DrawFn) -> list[list[tuple[int, int, int, int]]]:
    """Two ingests of one run each, in one or two files, with steps that may begin and end elsewhere."""
    stages = []
    for run in draw(st.sampled_from([(0, 1), (1, 0), (0, 0)])):
        first, lengths = draw(st.integers(0, 2)), draw(st.lists(st.integers(1, 2), min_size=1, max_size=2))
        bounds = np.cumsum([first, *lengths]) * 3
        stages.append([(run, 0, int(low), int(high)) for low, high in pairwise(bounds)])
    return stages


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(_appends(), _stages()), st.sampled_from(["time", "time", "step", "number"]))
def test_an_append_of_a_forecast_is_right_or_refused(
    tmp_path_factory: pytest.TempPathFactory, stages: list[list[tuple[int, int, int, int]]], dim: str
) -> None:
    """An ingest extends arrays along one dimension. What it cannot place, it refuses, and nothing changes."""
    folder = tmp_path_factory.mktemp("runs")
    repository = Repository.create(in_memory_storage())
    there: list[tuple[int, int, int, int]] = []
    for stage in stages:
        files = [_write(folder, *each) for each in stage]
        before = repository.lookup_branch("main")
        try:
            if files:
                ingest_local(files, repository, replace(_OPTIONS, append_dim=dim))
        except InvalidInputError:
            assert repository.lookup_branch("main") == before
            return
        there += stage
        _check(_open(repository), there)


def test_steps_of_another_run_do_not_replace_those_of_the_repository(tmp_path: Path) -> None:
    repository = Repository.create(in_memory_storage())
    options = replace(_OPTIONS, append_dim="time")
    ingest_local([_write(tmp_path, 0, 0, 0, 6), _write(tmp_path, 0, 0, 6, 12)], repository, options)
    ingest_local([_write(tmp_path, 1, 0, 0, 6), _write(tmp_path, 1, 0, 6, 12)], repository, options)
    there = [(run, 0, 0, 12) for run in (0, 1)]
    _check(_open(repository), there)
    for bounds in ((3, 9, 15), (3, 6, 9), (0, 6, 15)):
        files = [_write(tmp_path, 2, 0, bounds[0], bounds[1]), _write(tmp_path, 2, 0, bounds[1], bounds[2])]
        with pytest.raises(InvalidInputError, match="use sync"):
            ingest_local(files, repository, options)
        _check(_open(repository), there)


@pytest.mark.parametrize("mode", ["native", "mixed"])
def test_a_variable_along_other_dimensions_than_the_appended_one_is_compared_and_not_written(
    tmp_path: Path, mode: Any
) -> None:
    repository = Repository.create(in_memory_storage())
    options = replace(_OPTIONS, append_dim="time", mode=mode)

    def append(run: int, *, wrong: float = 0.0) -> None:
        files = [_write(tmp_path, run, 0, first, first + 6) for first in (0, 6)]
        for path in files:
            data = xr.load_dataset(path, decode_times=False)
            data["lead"] = (("step", "x"), np.stack([data.step.values * 2.0 + wrong] * 2, axis=1))
            data.to_netcdf(path)
        ingest_local(files, repository, options)

    append(0)
    append(1)
    with pytest.raises(InvalidInputError, match=r"/lead has other values .* than in the repository"):
        append(2, wrong=1.0)
    found = _open(repository)
    _check(found, [(run, 0, 0, 12) for run in (0, 1)])
    assert found["lead"].values[:, 1].tolist() == [0.0, 6.0, 12.0, 18.0]


def test_several_dimensions_to_append_along_name_sync() -> None:
    with pytest.raises(InvalidInputError, match="Use sync"):
        IngestOptions(append_dim=("time", "step"))  # type: ignore[arg-type]


def test_two_files_with_the_same_run_and_step_are_refused(tmp_path: Path) -> None:
    for part in ((0, 0, 0, 12), (0, 0, 6, 18), (1, 0, 0, 12)):
        _write(tmp_path, *part)
    with pytest.raises(InvalidInputError, match="one file, found also in|overlap"):
        ingest_local(str(tmp_path / "*.nc"), Repository.create(in_memory_storage()), _OPTIONS)


def test_a_variable_whose_cells_several_files_share_is_refused_by_name(tmp_path: Path) -> None:
    for run, end in ((0, 12), (1, 6)):
        path = _write(tmp_path, run, 0, 0, end)
        data = xr.load_dataset(path, decode_times=False)
        data["lead"] = ("step", data.step.values * 2.0)
        data.to_netcdf(path)
    repository = Repository.create(in_memory_storage())
    with pytest.raises(InvalidInputError, match=r"lead: position.*drop_variables"):
        ingest_local(str(tmp_path / "*.nc"), repository, _OPTIONS)
    ingest_local(str(tmp_path / "*.nc"), repository, replace(_OPTIONS, drop_variables=("lead",)))
    _check(_open(repository), [(0, 0, 0, 12), (1, 0, 0, 6)])


def test_the_best_estimate_has_the_newest_run_of_every_valid_time(tmp_path: Path) -> None:
    for run, end in ((0, 24), (1, 12), (2, 6)):
        _write(tmp_path, run, 0, 0, end)
    repository = Repository.create(in_memory_storage())
    sync_local(str(tmp_path / "*.nc"), repository, _OPTIONS)
    stored = repository.chunk_storage_stats().native_bytes
    result = best_estimate(repository)
    assert result.variables == {"t": 8}
    assert repository.chunk_storage_stats().native_bytes - stored < 2000
    view = _open(repository, "best")
    hours = ((view.valid_time.values - np.datetime64("2024-01-01")) / np.timedelta64(1, "h")).astype(int).tolist()
    assert hours == list(range(0, 24, 3))
    newest = [max(r for r, end in ((0, 24), (1, 12), (2, 6)) if r * 6 <= h < r * 6 + end) for h in hours]
    expected = [_value(run, 0, hour - run * 6) for run, hour in zip(newest, hours, strict=True)]
    assert view.t.dims == ("valid_time", "number", "x")
    np.testing.assert_array_equal(view.t.values[:, 0, 0], expected)
    runs = (view.reference_time.values - np.datetime64("2024-01-01")) / np.timedelta64(6, "h")
    assert runs.astype(int).tolist() == newest
    assert view.step.values.tolist() == [hour - 6 * run for run, hour in zip(newest, hours, strict=True)]
    # A new run replaces what it covers.
    _write(tmp_path, 3, 0, 0, 9)
    sync_local(str(tmp_path / "*.nc"), repository, _OPTIONS)
    best_estimate(repository)
    again = _open(repository, "best")
    np.testing.assert_array_equal(again.t.values[6:, 0, 0], [_value(3, 0, step) for step in (0, 3, 6)])
    np.testing.assert_array_equal(again.t.values[:6, 0, 0], expected[:6])
    assert repository.verify().is_clean


@pytest.mark.skipif("rectilinear_chunks" not in zarr.config.get("array"), reason="this zarr has regular grids only")
def test_a_view_keeps_the_variable_chunks_of_the_other_dimensions() -> None:
    repository = Repository.create(in_memory_storage())
    values = np.arange(2.0 * 2 * 3).reshape(2, 2, 3)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        with repository.transaction("main", message="two runs") as store:
            group = zarr.open_group(store, mode="w")
            chunks = [[1, 1], [1, 1], [2, 1]]
            names = ["time", "step", "x"]
            group.create_array("t", shape=values.shape, chunks=chunks, dtype="f8", dimension_names=names)[:] = values
            times = group.create_array("time", data=np.array([0, 6]), dimension_names=["time"])
            times.attrs["units"] = "hours since 2024-01-01"
            group.create_array("step", data=np.array([0, 6]), dimension_names=["step"]).attrs["units"] = "hours"
        best_estimate(repository)
        view = zarr.open_array(repository.readonly_session("main").store, path="best/t", mode="r")
        np.testing.assert_array_equal(view[:], [values[0, 0], values[1, 0], values[1, 1]])
        assert view.write_chunk_sizes == ((1, 1, 1), (2, 1))


def test_a_view_that_cannot_be_made_of_references_is_refused(tmp_path: Path) -> None:
    for run in range(2):
        _write(tmp_path, run, 0, 0, 12)
    repository = Repository.create(in_memory_storage())
    ingest_local(str(tmp_path / "*.nc"), repository, IngestOptions(chunks={"time": 1, "step": 2}))
    before = repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match="several runs or steps"):
        best_estimate(repository)
    with pytest.raises(NodeNotFoundError, match="no array 'x'"):
        best_estimate(repository, variables=["x"])
    with pytest.raises(NodeNotFoundError, match="no coordinate 'run'"):
        best_estimate(repository, time="run")
    assert repository.lookup_branch("main") == before


def test_forecasts_by_reference_have_a_view_by_reference(tmp_path: Path) -> None:
    messages = pytest.importorskip("tests.ingest.grib_messages")
    (tmp_path / "in").mkdir()
    specs: dict[int, list[Any]] = {}
    for run, steps in ((0, ("6", "12", "18")), (1, ("6", "12"))):
        specs[run] = [
            messages.Spec("t", 20240101, run * 600, step, level, seed=run * 50 + int(step) + level)
            for step in steps
            for level in (500, 850)
        ]
        periods = [f"0-{step}" for step in steps]
        specs[run] += [messages.Spec("tp", 20240101, run * 600, step, seed=run + len(step)) for step in periods]
        messages.write_messages(tmp_path / "in" / f"{run}.grib2", *specs[run])
    repository = Repository.create(str(tmp_path / "repo"))
    sync_local(str(tmp_path / "in" / "*.grib2"), repository, IngestOptions(mode="virtual"))
    allowed = {f"file://{tmp_path}/in/": None}
    repository = Repository.open(str(tmp_path / "repo"), authorize_virtual_chunk_access=allowed)
    whole = _open(repository)
    messages.check_equals_eccodes(whole, [tmp_path / "in" / f"{run}.grib2" for run in specs])
    assert np.isnan(whole.t.values[1, 2]).all()
    best_estimate(repository)
    view = _open(repository, "best")
    np.testing.assert_array_equal(view.t.values[0], whole.t.values[0, 0])
    np.testing.assert_array_equal(view.t.values[1], whole.t.values[1, 0])
    np.testing.assert_array_equal(view.t.values[2], whole.t.values[1, 1])
    assert zarr.open_array(repository.readonly_session("main").store, path="best/t", mode="r").shape[0] == 3
